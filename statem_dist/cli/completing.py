"""The values that a shell offers behind ``<TAB>``: runs, nodes, targets, decisions, tokens.

Completion looks and does nothing else: it starts no server, finishes no transition, says nothing about what is wrong,
and keeps nobody waiting who is typing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import closing
from typing import TYPE_CHECKING

from msgspec.structs import replace

from statem_dist.protocol.model import Run
from statem_dist.settings import Settings

if TYPE_CHECKING:
    from statem_dist.engine import Engine

LIMIT_SECONDS = 0.3
"""After that nothing is offered: a shell is silent while it waits."""

OFFERED_MAX = 100
"""How many runs are offered, and looked through for decisions."""


def offered(kind: str, *, run_id: str | None, state_dir: str | None) -> list[str]:
    """Return values of a kind, or none if they cannot be found out in time.

    Args:
        kind: a key of ``KINDS``.
        run_id: the run that the command line names so far; None means the active one.
        state_dir: the state directory that it names so far.
    """
    found: list[str] = []

    def look() -> None:
        try:
            found.extend(_looked_up(kind, run_id, state_dir))
        except Exception:
            # Whatever is wrong, the command itself will say it; words here would spoil the line that is being typed.
            return

    # A thread, because a name server or a store that hangs cannot be given up otherwise.
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    thread.join(LIMIT_SECONDS)
    return list(found)


def _looked_up(kind: str, run_id: str | None, state_dir: str | None) -> list[str]:
    settings = replace(Settings.from_environment(os.environ, state_dir=state_dir), patience_seconds=LIMIT_SECONDS)
    url = settings.redis_url or _embedded_url(settings)
    if url is None:
        return []
    from statem_dist.engine import Engine

    with closing(Engine(settings, url, inline=False, quick=True)) as engine:
        return KINDS[kind](engine, run_id)


def _embedded_url(settings: Settings) -> str | None:
    """Return the URL of the embedded server if it runs."""
    from statem_dist.embedded.server import running

    endpoint = running(settings.state_dir)
    return None if endpoint is None else endpoint.redis_url


def _runs(engine: Engine, run_id: str | None) -> list[str]:
    return engine.store.run_ids(None, OFFERED_MAX)


def _nodes(engine: Engine, run_id: str | None) -> list[str]:
    return [node.name for node in engine.runbook(_run(engine, run_id).runbook).nodes]


def _targets(engine: Engine, run_id: str | None) -> list[str]:
    run = _run(engine, run_id)
    return [edge.target for edge in engine.runbook(run.runbook).exits(run.node)]


def _decisions(engine: Engine, run_id: str | None) -> list[str]:
    from statem_dist.decisions import decisions_of

    ids = (each for status in ("waiting", "paused") for each in engine.store.run_ids(status, OFFERED_MAX))
    waiting = (engine.store.load(each) for each in ids)
    return [decision.id for snapshot in waiting if snapshot for decision in decisions_of(snapshot.run)]


def _tokens(engine: Engine, run_id: str | None) -> list[str]:
    from statem_dist.tokens import Tokens

    now = engine.store.clock()
    return [token.id for token in Tokens(engine.store).list() if token.state(now) == "live"]


def _run(engine: Engine, run_id: str | None) -> Run:
    """Return the run that the command line means so far, as it is."""
    return engine.run(run_id or engine.active_run_id(str(engine.settings.state_dir)))


KINDS: dict[str, Callable[[Engine, str | None], list[str]]] = {
    "runs": _runs,
    "nodes": _nodes,
    "targets": _targets,
    "decisions": _decisions,
    "tokens": _tokens,
}
"""What can be offered, by the word for it in the declaration of an argument or an option."""
