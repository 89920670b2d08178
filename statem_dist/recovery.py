"""What needs somebody, or what nobody works on: the list that an operator goes through after an accident.

Only runs with an open transition are read, by the status index. What waits for a decision that was asked for is no part
of it (``decisions``), nor is a run that is paused.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, TypeAlias

from msgspec import Struct

from statem_dist.listing import OnUnreadable, RunFilter, listed
from statem_dist.protocol.model import RunStatus
from statem_dist.protocol.progress import pending
from statem_dist.settings import Settings
from statem_dist.store.base import Snapshot, Store
from statem_dist.waiting import unknown_reason

OPEN: tuple[RunStatus, ...] = ("outcome_unknown", "moving", "waiting")
"""Every status of a run with an open transition that is not paused."""

Trouble: TypeAlias = Literal["outcome_unknown", "claim_lost", "not_begun"]
"""What is wrong: nobody knows what a check did; the lease of a claim is over; what is owed was not begun."""

REMEDIES: dict[Trouble, str] = {
    "outcome_unknown": "an operator decides",
    "claim_lost": "the claim is given up",
    "not_begun": "what is owed is sent once more",
}
"""What is done about it. The last two are safe by themselves."""


class Neglected(Struct, frozen=True):
    """A run that needs somebody, or that nobody works on.

    ``since`` is ms since the epoch; ``told`` says in a sentence what is wrong.
    """

    run_id: str
    node: str
    transition: str
    trouble: Trouble
    checks: tuple[str, ...]
    since: int
    told: str

    @property
    def needs_a_decision(self) -> bool:
        """Whether nothing can be done about it without somebody who decides."""
        return self.trouble == "outcome_unknown"


def neglected(store: Store, settings: Settings, on_unreadable: OnUnreadable) -> Iterator[Neglected]:
    """Yield every run that needs somebody, or that nobody works on; the cost grows with the open runs.

    Args:
        store: where the runs are kept.
        settings: says how long what is owed may wait for somebody to begin it.
        on_unreadable: told of each run that cannot be read.
    """
    for status in OPEN:
        for snapshot in listed(store, RunFilter(status=status), on_unreadable):
            if (found := trouble_of(snapshot, settings)) is not None:
                yield found


def trouble_of(snapshot: Snapshot, settings: Settings) -> Neglected | None:
    """Return what is wrong with a run, or None if it is in good hands, at rest, or paused."""
    run, transition = snapshot.run, snapshot.run.in_flight
    if transition is None or run.paused is not None:
        return None

    def found(trouble: Trouble, checks: tuple[str, ...], since: int, told: str) -> Neglected:
        return Neglected(run.id, run.node, transition.id, trouble, checks, since, told)

    lost = [claim for claim in transition.claims if snapshot.leases.get(claim.token, 0) <= snapshot.now]
    if lost:
        workers = ", ".join(sorted({claim.worker for claim in lost}))
        checks = tuple(claim.checks[0] for claim in lost)
        told = f"{', '.join(checks)} was begun by {workers}, whose lease is over"
        return found("claim_lost", checks, min(claim.at for claim in lost), told)
    if transition.unknown:
        since = min(what.at for what in transition.unknown.values())
        return found("outcome_unknown", tuple(transition.unknown), since, unknown_reason(run))
    grace_ms = round(settings.hint_grace_seconds * 1000)
    begun_by = max(run.updated_at, *transition.not_before.values(), 0) + grace_ms
    owed = tuple(check for batch in pending(run) for check in batch.checks if batch.not_before <= snapshot.now)
    if owed and begun_by <= snapshot.now:
        return found("not_begun", owed, run.updated_at, f"{', '.join(owed)} is owed, and nobody has begun it")
    return None


def neglected_view(found: Neglected) -> dict[str, Any]:
    """Return it as plain data: an item of ``recover --all``."""
    return {
        "run_id": found.run_id,
        "current": found.node,
        "transition": found.transition,
        "trouble": found.trouble,
        "checks": list(found.checks),
        "since": found.since,
        "told": found.told,
        "remedy": REMEDIES[found.trouble],
    }
