"""What a command works with: settings from the environment, the engine on the right store, and who is asking.

A command goes to ``STATEM_REDIS_URL`` if that is set, else to the embedded instance of the state directory, which
is started when needed.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated

from statem_dist.cli.declare import Option
from statem_dist.protocol.model import Actor, Run
from statem_dist.settings import Settings

if TYPE_CHECKING:
    from statem_dist.engine import Engine

RunIdOption = Annotated[str | None, Option("--run-id", metavar="ID", help="The run; by default the one started last.")]
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
    """One command's view of the runs."""

    def __init__(self, settings: Settings, engine: Engine) -> None:
        self.settings = settings
        self.engine = engine

    @property
    def scope(self) -> str:
        """The scope of the active run: the state directory."""
        return str(self.settings.state_dir)

    def run_id(self, given: str | None) -> str:
        """Return the run that a command means: the one given, else the active one.

        Raises:
            NotFound: none is given and none is active.
            Invalid: the given id has no usable character.
        """
        from statem_dist.engine import clean_run_id

        return self.engine.active_run_id(self.scope) if given is None else clean_run_id(given)

    def settled_run(self, given: str | None) -> Run:
        """Return the run that a reading command means, after settling what a killed command may have left."""
        return self.engine.settled_run(self.run_id(given))

    def actor(self, agent_id: str | None, agent_role: str | None, run: Run | None = None) -> Actor:
        """Return who is asking: by option, by environment, else whoever started the run."""
        started_by = run.by if run is not None else Actor(DEFAULT_AGENT)
        return Actor(
            id=agent_id or os.environ.get("STATEM_AGENT_ID") or started_by.id or DEFAULT_AGENT,
            role=agent_role or os.environ.get("STATEM_AGENT_ROLE") or started_by.role,
        )


@contextmanager
def session(state_dir: str | None) -> Iterator[Session]:
    """Open the store that a command is for, and close what was opened for it."""
    from statem_dist.engine import Engine

    settings = Settings.from_environment(os.environ, state_dir=state_dir)
    engine = Engine(settings, store_url(settings), inline=settings.embedded, quick=True)
    try:
        yield Session(settings, engine)
    finally:
        engine.close()


def store_url(settings: Settings) -> str:
    """Return the URL of the state store; the embedded server is started if it does not run."""
    if settings.redis_url is not None:
        return settings.redis_url
    from statem_dist.embedded.server import ensure

    return ensure(settings.state_dir, idle_stop_seconds=settings.idle_stop_seconds).redis_url
