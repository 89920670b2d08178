"""Trials of stored sweeps, claimed and ended as workers do it, for tests of what people see and steer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from statem_dist.sweep.ledger import Claim, Ledger
from statem_dist.sweep.model import OUTCOME_OF, Attempt, Outcome, Reason, Usage

LEASE_MS = 600_000

REASON: Mapping[Outcome, Reason] = {outcome: reason for reason, outcome in reversed(list(OUTCOME_OF.items()))}
"""The first reason that leads to each outcome."""


def claimed(ledger: Ledger, sweep_id: str) -> Claim:
    """Claim the next trial of a sweep; there must be one."""
    definition, _ = ledger.definition(sweep_id)
    holder = f"test-{ledger.latest_change(sweep_id)}"
    claim = ledger.claim(sweep_id, definition, ledger.lanes(sweep_id, definition), holder, LEASE_MS)
    assert isinstance(claim, Claim), claim
    return claim


def begun(ledger: Ledger, claim: Claim, **changes: Any) -> Attempt:
    """Note that the trial of a claim is under way, as the next attempt at it."""
    (trial,) = ledger.trials(claim.sweep_id, [claim.number])
    number = len(trial.attempts) + 1
    fields: dict[str, Any] = {
        "number": claim.number,
        "attempt": number,
        "run_id": f"{claim.sweep_id}-{claim.number}-{number}",
        "queued_at": claim.ready_at,
        "started_at": claim.ready_at,
        "worker": "worker:here:1:1",
        "host": "here",
        "folder": f"/nowhere/{claim.number}/{number}",
        "node": "work",
    }
    attempt = Attempt(**{**fields, **changes})
    assert ledger.note(claim, attempt, LEASE_MS)
    return attempt


def end(ledger: Ledger, claim: Claim, outcome: Outcome | None, **changes: Any) -> Attempt:
    """End a claim with an outcome, or (None) with an attempt that came to nothing and is followed by another."""
    reason = REASON[outcome] if outcome else "worker_lost"
    usage: Usage | None = changes.get("usage")
    fields: dict[str, Any] = {"ended_at": claim.ready_at + 2_000, "outcome": outcome or "error", "reason": reason}
    attempt = begun(ledger, claim, **{**fields, **changes})
    definition, _ = ledger.definition(claim.sweep_id)
    (trial,) = ledger.trials(claim.sweep_id, [claim.number])
    assert ledger.settle(claim, trial.planned.cell, definition, attempt, outcome, used=usage)
    return attempt


def end_next(ledger: Ledger, sweep_id: str, *outcomes: Outcome) -> list[int]:
    """Claim a trial for each outcome and end it so; return their numbers."""
    numbers = []
    for outcome in outcomes:
        claim = claimed(ledger, sweep_id)
        end(ledger, claim, outcome)
        numbers.append(claim.number)
    return numbers
