"""What a command works with: settings from the environment, the engine on the right store, and who is asking.

A command goes to the service of ``STATEM_URL`` if that is set, else to the Redis of ``STATEM_REDIS_URL``, else to the
embedded instance of the state directory, which is started when needed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from statem_dist.checks.environment import STORE_WITHHELD
from statem_dist.cli.declare import Option
from statem_dist.errors import Unavailable, Usage
from statem_dist.protocol.model import Actor, Run
from statem_dist.settings import Settings

if TYPE_CHECKING:
    from statem_dist.cli.remote import RemoteEngine
    from statem_dist.cli.verbs import RunbookDesk, TokenDesk, Verbs
    from statem_dist.client.address import Address
    from statem_dist.engine import Engine
    from statem_dist.store.redis_store import RedisStore

RunIdOption = Annotated[
    str | None,
    Option(
        "--run-id", metavar="ID", help="The run (default: STATEM_RUN_ID, else the one started last).", complete="runs"
    ),
]
StateDirOption = Annotated[
    str | None,
    Option("--state-dir", metavar="DIR", help="State directory (default: STATEM_STATE_DIR, else .statem)."),
]
JsonOption = Annotated[bool, Option("--json", help="Print one JSON document on stdout.")]
YesOption = Annotated[bool, Option("--yes", help="Confirm every manual check and checklist.")]
AgentIdOption = Annotated[
    str | None, Option("--agent-id", metavar="ID", help="Who is asking (default: STATEM_AGENT_ID).")
]
AgentRoleOption = Annotated[
    str | None, Option("--agent-role", metavar="ROLE", help="In which role (default: STATEM_AGENT_ROLE).")
]

DEFAULT_AGENT = "agent"
"""Agent id of somebody who gives none."""


class Session:
    """One command's view of the runs. The store is opened, and its server started, when it is first asked for.

    Args:
        settings: limits and places.
        service: the service that has the runs, if one has them.
    """

    def __init__(self, settings: Settings, service: Address | None = None) -> None:
        self.settings = settings
        self.service = service

    @property
    def embedded(self) -> bool:
        """Whether the runs live in the embedded instance of the state directory."""
        return self.service is None and self.settings.embedded

    @cached_property
    def engine(self) -> Verbs:
        """The verbs on the runs.

        Raises:
            Unavailable: the embedded server cannot be started.
        """
        return verbs(self.settings, self.service)

    @property
    def tokens(self) -> TokenDesk:
        """The tokens of the service."""
        if self.service is not None:
            from statem_dist.cli.remote_tokens import RemoteTokens

            return RemoteTokens(self.remote.client)
        from statem_dist.tokens import Tokens

        return Tokens(self.store)

    @property
    def runbooks(self) -> RunbookDesk:
        """The registered runbooks."""
        if self.service is not None:
            from statem_dist.cli.remote_runbooks import RemoteRunbooks

            return RemoteRunbooks(self.remote.client)
        from statem_dist.registry import Registry

        return Registry(self.store)

    @property
    def remote(self) -> RemoteEngine:
        """The verbs, where a service has the runs."""
        from statem_dist.cli.remote import RemoteEngine

        assert isinstance(self.engine, RemoteEngine), "with a service the runs are there"
        return self.engine

    @property
    def store(self) -> RedisStore:
        """The state store itself, for commands that are for no service."""
        return self.store_engine.store

    @property
    def store_engine(self) -> Engine:
        """The verbs of the state store itself, for commands that are for no service."""
        from statem_dist.engine import Engine

        assert isinstance(self.engine, Engine), "without a service the runs are in a store"
        return self.engine

    @cached_property
    def nothing_yet(self) -> str:
        """Why there can be no run, in a sentence; empty if there may be one.

        A command that only looks must not make the state directory, nor start a server to learn that it is empty.
        """
        place = self.settings.state_dir
        return f"There is no state directory {place} yet." if self.embedded and _is_missing(place) else ""

    @property
    def scope(self) -> str:
        """The scope of the active run: the state directory."""
        return str(self.settings.state_dir)

    def run_id(self, given: str | None) -> str:
        """Return the run that a command means: the one given, else that of ``STATEM_RUN_ID``, else the active one.

        An agent or check that works for a run has the variable, and means that run.

        Raises:
            NotFound: none is given and none is active, or there is none at all yet.
            Invalid: the given id has no usable character.
        """
        if given is None:
            given = os.environ.get("STATEM_RUN_ID") or None
        wanted = None if given is None else usable_run_id(given)
        if self.nothing_yet:
            from statem_dist.coordinator import run_not_found
            from statem_dist.run_ids import no_active_run

            raise no_active_run(self.scope, self.nothing_yet) if wanted is None else run_not_found(wanted)
        return wanted or self.engine.active_run_id(self.scope)

    def settled_run(self, given: str | None) -> Run:
        """Return the run that a reading command means, after settling what a killed command may have left."""
        from statem_dist.cli.progress import say_finishing

        run_id = self.run_id(given)
        return self.engine.settled_run(run_id, lambda transition: say_finishing(run_id, transition))

    def actor(self, agent_id: str | None, agent_role: str | None, run: Run | None = None) -> Actor:
        """Return who is asking: by option, by environment, else whoever started the run."""
        started_by = run.by if run is not None else Actor(DEFAULT_AGENT)
        return Actor(
            id=agent_id or os.environ.get("STATEM_AGENT_ID") or started_by.id or DEFAULT_AGENT,
            role=agent_role or os.environ.get("STATEM_AGENT_ROLE") or started_by.role,
        )


def caller_name() -> str:
    """Return who makes or ends what is for everybody: the agent that calls itself one, else this user."""
    from statem_dist.identity import user_name

    return os.environ.get("STATEM_AGENT_ID") or user_name()


@contextmanager
def session(state_dir: str | None) -> Iterator[Session]:
    """Open the store or service that a command is for, and close what was opened for it."""
    settings = Settings.from_environment(os.environ, state_dir=state_dir)
    at = Session(settings, service_for(settings))
    if at.embedded and os.environ.get(STORE_WITHHELD):
        raise Unavailable(
            "A check or hook on this worker cannot reach the state of its run.",
            hint="The address of the store is withheld from commands; what they may know is in their environment.",
        )
    try:
        yield at
    finally:
        if "engine" in vars(at):
            at.engine.close()


def usable_run_id(given: str) -> str:
    """Return a run id of safe characters; if it is not as it was given, say so on stderr.

    Raises:
        Invalid: it has no usable character, or it is too long.
    """
    from statem_dist.run_ids import clean_run_id

    cleaned = clean_run_id(given)
    if cleaned != given:
        print(f"Note: run id {given!r} is used as {cleaned!r}.", file=sys.stderr)
    return cleaned


def service_for(settings: Settings) -> Address | None:
    """Return the service that commands are to go to, with the token to use there; None where they go to a store.

    The token is that of ``STATEM_TOKEN``. Without one, commands for the service that runs for the state directory use
    the token that is kept there for them.

    Raises:
        Usage: ``STATEM_URL`` or ``STATEM_TOKEN`` cannot be used.
    """
    if not os.environ.get("STATEM_URL"):
        return None
    from msgspec.structs import replace

    from statem_dist.client.address import address_from, local_token
    from statem_dist.embedded.place import Place

    address = address_from(os.environ)
    if address is None or address.token or not address.loopback:
        return address
    place = Place.of(settings.state_dir)
    return replace(address, token=local_token(address.url, Path(place.service_file), Path(place.token_file)))


def require_no_service(command: str) -> None:
    """Refuse a command that works on the store itself where a service is meant.

    Raises:
        Usage: ``STATEM_URL`` is set.
    """
    if os.environ.get("STATEM_URL"):
        raise Usage(
            f"`{command}` works on the state store itself, not through the service of STATEM_URL.",
            hint="Unset STATEM_URL; STATEM_REDIS_URL or --state-dir says which store is meant.",
        )


def verbs(settings: Settings, service: Address | None) -> Verbs:
    """Return the verbs on the runs of a service, or else of the state store."""
    if service is not None:
        from statem_dist.cli.remote import RemoteEngine

        return RemoteEngine(settings, service)
    from statem_dist.engine import Engine

    return Engine(settings, store_url(settings), inline=settings.embedded, quick=True)


def store_url(settings: Settings) -> str:
    """Return the URL of the state store; the embedded server is started if it does not run."""
    if settings.redis_url is not None:
        return settings.redis_url
    from statem_dist.embedded.server import ensure

    return ensure(
        settings.state_dir, idle_stop_seconds=settings.idle_stop_seconds, appendfsync=settings.durability.appendfsync
    ).redis_url


def _is_missing(place: Path) -> bool:
    """Return whether nothing is at a path; where that cannot be seen, whoever opens it will say why."""
    try:
        place.lstat()
    except FileNotFoundError:
        return True
    except OSError:
        pass
    return False


def pairs(given: list[str] | None, option: str) -> dict[str, str]:
    """Return what an option that takes ``KEY=VALUE`` was given.

    Raises:
        Usage: something else was given.
    """
    found: dict[str, str] = {}
    for text in given or ():
        key, sign, value = text.partition("=")
        if not key or not sign:
            raise Usage(f"{option} takes KEY=VALUE, not {text!r}.")
        found[key] = value
    return found


def variables_here(names: list[str] | None) -> dict[str, str]:
    """Return the variables of this process that ``--pass-env`` names.

    Raises:
        Usage: one of them is not set.
    """
    missing = [name for name in names or () if name not in os.environ]
    if missing:
        raise Usage(f"--pass-env names variables that are not set here: {', '.join(missing)}.")
    return {name: os.environ[name] for name in names or ()}
