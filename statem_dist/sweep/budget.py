"""What becomes of a trial when an attempt has ended, or its worker was lost: the one budget of ``retries``.

Every infrastructure trouble uses one of it: an attempt that ends as ``error`` and is tried again in a workspace of its
own, and a worker that is lost under an attempt, which then goes on where it stood. What the agent has done or left
undone is never tried again by itself.
"""

from __future__ import annotations

from msgspec.structs import replace

from statem_dist.sweep.model import OUTCOME_OF, Attempt, Outcome, Reason

PAUSE_SECONDS = 1.0
PAUSE_SECONDS_MAX = 30.0
"""Pause before an attempt that follows an error by itself: the first one, doubled with each, and the longest."""


def troubles_after(attempt: Attempt) -> int:
    """Return how much of the budget is used up after an attempt, its own troubles included."""
    return attempt.troubles + attempt.losses + (attempt.outcome == "error")


def concluded(attempt: Attempt, reason: Reason, detail: str, now: int, retries: int) -> tuple[Attempt, Outcome | None]:
    """Return an attempt that has ended, and the outcome of its trial; None when the trial is to be tried again.

    Args:
        now: ms since the epoch.
        retries: the budget.
    """
    outcome = OUTCOME_OF[reason]
    ended = replace(attempt, outcome=outcome, reason=reason, detail=detail, ended_at=now, position=None)
    if outcome != "error" or troubles_after(ended) > retries:
        return ended, outcome
    return replace(ended, retried=True), None


def lost(attempt: Attempt, now: int, retries: int) -> tuple[Attempt, Outcome | None]:
    """Return an attempt whose worker was lost: it goes on (None), or its trial ends, with the budget used up."""
    shaken = replace(attempt, losses=attempt.losses + 1)
    if troubles_after(shaken) <= retries:
        return shaken, None
    detail = f"{shaken.losses} workers were lost under it, the last one {attempt.worker}"
    ended = replace(shaken, outcome="error", reason="worker_lost", detail=detail, ended_at=now, position=None)
    return ended, "error"


def pause_before(troubles: int, share: float) -> float:
    """Return how many seconds to wait before an attempt that follows troubles.

    Args:
        troubles: how many there were; 0 means no pause.
        share: from 0 to 1: the part of the pause that is taken, so that many do not go on at once (full jitter).
    """
    if not troubles:
        return 0.0
    longest: float = min(PAUSE_SECONDS * 2 ** min(troubles - 1, 10), PAUSE_SECONDS_MAX)
    return share * longest
