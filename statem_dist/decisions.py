"""What waits for somebody's decision: the inbox of approvals."""

from __future__ import annotations

from typing import Any

from msgspec import Struct

from statem_dist.protocol.answers import question_of
from statem_dist.protocol.model import Actor, Run


class Decision(Struct, frozen=True):
    """A check that waits for somebody's decision. Its id names run, transition and check, and so entry, edge and
    runbook version as well: another attempt is another transition, and needs another decision.

    ``expires_at`` is in ms since the epoch, 0 for never.
    """

    run_id: str
    transition: str
    check: str
    question: str
    source: str
    target: str
    entry_id: str
    spec_hash: str
    requested_by: Actor
    requested_at: int
    expires_at: int
    operator: bool

    @property
    def id(self) -> str:
        """The id by which it is approved or rejected."""
        return f"{self.run_id}/{self.transition}/{self.check}"


def decisions_of(run: Run) -> list[Decision]:
    """Return what the open transition of a run waits for people to decide."""
    transition = run.in_flight
    if transition is None:
        return []
    waiting = (planned for planned in transition.plan if planned.id in transition.awaiting)
    return [
        Decision(
            run_id=run.id,
            transition=transition.id,
            check=planned.id,
            question=question_of(planned),
            source=transition.source,
            target=transition.target,
            entry_id=run.entry_id,
            spec_hash=run.runbook,
            requested_by=transition.by,
            requested_at=transition.opened_at,
            expires_at=transition.awaiting[planned.id],
            operator=planned.check.by == "operator",
        )
        for planned in waiting
    ]


def decision_view(decision: Decision) -> dict[str, Any]:
    """Return a decision as plain data: an item of ``approvals``."""
    return {
        "id": decision.id,
        "run_id": decision.run_id,
        "transition": decision.transition,
        "check": decision.check,
        "question": decision.question,
        "from": decision.source,
        "to": decision.target,
        "entry_id": decision.entry_id,
        "spec_hash": decision.spec_hash,
        "requested_by": decision.requested_by.id,
        "requested_at": decision.requested_at,
        "expires_at": decision.expires_at or None,
        "operator": decision.operator,
    }
