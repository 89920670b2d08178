"""Commands for agent hosts: ``hook stop``, which a host calls, and ``hook install``, which makes it do so."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from typing import TYPE_CHECKING, Annotated

from msgspec.structs import replace

from statem_dist.cli.answer import Answer
from statem_dist.cli.declare import Option
from statem_dist.cli.session import JsonOption, RunIdOption, StateDirOption, service_for, verbs
from statem_dist.errors import StatemError
from statem_dist.resume import Address
from statem_dist.settings import Settings
from statem_dist.stophook import (
    Host,
    Rules,
    Standing,
    decode_told,
    encode_told,
    judge,
    read_call,
    session_key,
    stop_states,
    tell_human,
)

if TYPE_CHECKING:
    from statem_dist.cli.verbs import Verbs

LIMIT_SECONDS = 2.0
"""After that the agent may stop, whatever hangs: the host's pipe, a name server, Redis. Hosts wait for the hook."""

PATIENCE_SECONDS = 1.0
"""How long an unreachable state store is tried again: an agent that wants to stop does not wait for repairs."""

HostOption = Annotated[Host, Option("--host", metavar="HOST", help="claude or codex.")]


def stop(
    host: HostOption = "claude",
    run_id: RunIdOption = None,
    yield_once: Annotated[bool, Option("--yield-once", help="Never tell an agent twice in a row to go on.")] = False,
    state_dir: StateDirOption = None,
) -> Answer:
    """Answer a Stop hook, whose JSON is on stdin: go on with the active run, or stop.

    It prints one JSON document and ends with 0, whatever happens; what cannot be found out lets the agent stop.

    Example: statem-dist hook stop --host claude < stop.json
    """
    document = _in_time(lambda: _judged(host, run_id, state_dir, yield_once=yield_once))
    return Answer(dict(document), lambda: json.dumps(document))


def install(
    host: HostOption = "claude",
    user: Annotated[
        bool, Option("--user/--project", help="In the settings of this user, or of this project (the default).")
    ] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Only show what would be changed.")] = False,
    as_json: JsonOption = False,
) -> Answer:
    """Add the Stop hook to the settings of an agent host; all else in them stays as it is.

    Example: statem-dist hook install --host claude --dry-run
    """
    from statem_dist import hook_settings

    path = hook_settings.settings_file(host, os.environ, user=user)
    command = f"{os.environ.get('STATEM_COMMAND') or 'statem-dist'} hook stop --host {host}"
    before = hook_settings.read(path)
    after = hook_settings.with_stop_hook(before, path, command)
    changed = after != before
    if changed and not dry_run:
        hook_settings.write(path, after)
    difference = hook_settings.difference(before, after, path)
    data = {
        "ok": True,
        "host": host,
        "path": str(path),
        "command": command,
        "changed": changed,
        "dry_run": dry_run,
        "diff": difference,
    }

    def as_text() -> str:
        if not changed:
            return f"Nothing to change: {path} has the hook."
        if dry_run:
            return difference
        trust = "\nCodex runs a new hook only after you have trusted it: type /hooks there." if host == "codex" else ""
        return f"Added to {path}: {command}{trust}"

    return Answer(data, as_text)


def _in_time(work: Callable[[], dict[str, str]]) -> dict[str, str]:
    """Return what a piece of work gives; if it fails or takes too long, the answer that lets the agent stop.

    It is done in a thread, so that nothing that hangs can hold up the answer.
    """
    answers: list[dict[str, str]] = []

    def attempt() -> None:
        try:
            answers.append(work())
        except StatemError as error:
            answers.append(tell_human(error.message.rstrip(".")))
        except ValueError as error:
            answers.append(tell_human(str(error)))
        except Exception as error:
            # A defect here must not keep an agent from stopping.
            answers.append(tell_human(f"{type(error).__name__}: {error}"))

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(LIMIT_SECONDS)
    return answers[0] if answers else tell_human(f"nothing was found out within {LIMIT_SECONDS:g} s")


def _judged(host: Host, run_id: str | None, state_dir: str | None, *, yield_once: bool) -> dict[str, str]:
    """Read what the host says and where the run stands, and decide; remember what is about to be said."""
    from statem_dist.embedded.place import Place
    from statem_dist.run_ids import clean_run_id

    call = read_call(_everything_on_stdin())
    if call.cwd:
        # A relative state directory is meant from where the agent works, as in the commands that it calls.
        with suppress(OSError, ValueError):
            os.chdir(call.cwd)
    rules = Rules(stop_states(os.environ.get("STATEM_AUTOLOOP_STOP_STATES")), yield_once)
    settings = Settings.from_environment(os.environ, state_dir=state_dir)
    service = service_for(settings)
    if service is None and settings.embedded and not os.path.isdir(Place.of(settings.state_dir).data):
        return judge(call, None, None, rules).answer
    settings = replace(settings, patience_seconds=min(settings.patience_seconds, PATIENCE_SECONDS))
    with closing(verbs(settings, service)) as engine:
        wanted = clean_run_id(run_id) if run_id else engine.active(str(settings.state_dir))
        if wanted is None:
            return judge(call, None, None, rules).answer
        session = session_key(host, call.session_id)
        told = decode_told(engine.stops(wanted, session))
        address = Address.of(settings, wanted, os.environ.get("STATEM_COMMAND"), service=service is not None)
        verdict = judge(call, _standing(engine, address), told, rules)
        if verdict.told is not None:
            # First: an agent whose reminders cannot be counted is not reminded.
            engine.save_stops(wanted, session, encode_told(verdict.told))
        return verdict.answer


def _standing(engine: Verbs, address: Address) -> Standing:
    """Return where the run of an address stands."""
    run, busy = engine.glance(address.run_id)
    return Standing(
        node=run.node,
        entry_id=run.entry_id,
        version=run.version,
        exits=tuple(edge.target for edge in engine.runbook(run.runbook).exits(run.node)),
        busy=busy or run.held,
        address=address,
    )


def _everything_on_stdin() -> bytes:
    """Return all of stdin, read without a lock for which the end of the process would have to wait."""
    return b"".join(iter(lambda: os.read(0, 1 << 16), b""))
