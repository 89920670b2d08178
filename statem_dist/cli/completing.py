"""The values that a shell offers behind ``<TAB>``: runs, nodes, targets, decisions, tokens, sweeps.

Completion looks and does nothing else: it starts no server, finishes no transition, says nothing about what is wrong,
and keeps nobody waiting who is typing.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from contextlib import closing

from msgspec.structs import replace

from statem_dist.cli.session import Session, service_for
from statem_dist.decisions import decisions_of
from statem_dist.listing import RunFilter
from statem_dist.protocol.model import Run
from statem_dist.settings import Settings

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
    at = Session(settings, service_for(settings))
    if at.embedded:
        url = _embedded_url(settings)
        if url is None:
            return []
        # What runs there is looked at, and never executed.
        at = Session(replace(settings, redis_url=url))
    with closing(at.engine):
        return KINDS[kind](at, run_id)


def _embedded_url(settings: Settings) -> str | None:
    """Return the URL of the embedded server if it runs."""
    from statem_dist.embedded.server import running

    endpoint = running(settings.state_dir)
    return None if endpoint is None else endpoint.redis_url


def _runs(at: Session, run_id: str | None) -> list[str]:
    return [each["run_id"] for each in at.engine.summaries(RunFilter(), OFFERED_MAX, _pass_over)]


def _nodes(at: Session, run_id: str | None) -> list[str]:
    return [node.name for node in at.engine.runbook(_run(at, run_id).runbook).nodes]


def _targets(at: Session, run_id: str | None) -> list[str]:
    run = _run(at, run_id)
    return [edge.target for edge in at.engine.runbook(run.runbook).exits(run.node)]


def _decisions(at: Session, run_id: str | None) -> list[str]:
    waiting = (
        at.engine.find(each["run_id"])
        for status in ("waiting", "paused")
        for each in at.engine.summaries(RunFilter(status=status), OFFERED_MAX, _pass_over)
    )
    return [decision.id for run in waiting if run is not None for decision in decisions_of(run)]


def _tokens(at: Session, run_id: str | None) -> list[str]:
    now = at.engine.clock()
    return [token.id for token in at.tokens.list() if token.state(now) == "live"]


def _sweeps(at: Session, run_id: str | None) -> list[str]:
    from statem_dist.sweep.ledger import Ledger

    return [] if at.service is not None else Ledger(at.store).ids()[:OFFERED_MAX]


def _run(at: Session, run_id: str | None) -> Run:
    """Return the run that the command line means so far, as it is."""
    return at.engine.run(run_id or at.engine.active_run_id(at.scope))


def _pass_over(run_id: str, error: Exception) -> None:
    """Say nothing of a run that cannot be read."""


KINDS: dict[str, Callable[[Session, str | None], list[str]]] = {
    "runs": _runs,
    "nodes": _nodes,
    "targets": _targets,
    "decisions": _decisions,
    "tokens": _tokens,
    "sweeps": _sweeps,
}
"""What can be offered, by the word for it in the declaration of an argument or an option."""
