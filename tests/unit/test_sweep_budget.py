"""The one budget of troubles that a trial survives."""

from __future__ import annotations

from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from statem_dist.sweep.budget import PAUSE_SECONDS_MAX, concluded, lost, pause_before, troubles_after
from statem_dist.sweep.ledger import Claim
from statem_dist.sweep.model import OUTCOME_OF, RETRIED, Attempt, Reason
from tests.support.ledgers import attempt

BEGUN = attempt(Claim("s", 1, 1, 0))


@pytest.mark.parametrize("reason", get_args(Reason))
def test_only_what_the_host_could_not_do_is_tried_again(reason: Reason) -> None:
    """Every error, while the budget lasts; what an agent has failed at, and what somebody has cancelled, never."""
    ended, outcome = concluded(BEGUN, reason, "why", 9, retries=1)
    assert (ended.outcome, ended.reason, ended.detail, ended.ended_at) == (OUTCOME_OF[reason], reason, "why", 9)
    assert (outcome is None) == ended.retried == (reason in RETRIED)
    assert outcome is None or outcome == OUTCOME_OF[reason]
    assert concluded(BEGUN, reason, "why", 9, retries=0) == (ended_for_good(ended), OUTCOME_OF[reason])


def ended_for_good(ended: Attempt) -> Attempt:
    """Return an attempt that none follows by itself."""
    return replace(ended, retried=False)


@given(st.integers(0, 5), st.lists(st.sampled_from(["lost", "error"]), max_size=20))
def test_every_trouble_uses_one(retries: int, troubles: list[str]) -> None:
    """Whatever their order, a trial survives exactly as many as its budget, and its counts tell how many there were."""
    current = BEGUN
    for number, trouble in enumerate(troubles, start=1):
        if trouble == "lost":
            current, outcome = lost(current, 1, retries)
        else:
            current, outcome = concluded(current, "internal_error", "", 1, retries)
        if number > retries:
            assert outcome == "error"
            assert current.outcome == "error"
            return
        assert outcome is None
        if current.outcome is not None:
            current = attempt(Claim("s", 1, 1, 0), current.attempt + 1, troubles=troubles_after(current))
        assert troubles_after(current) == number


@given(st.integers(0, 1000), st.floats(0, 1))
def test_pauses_are_bounded(troubles: int, share: float) -> None:
    """None at first; later ones are longer, at most half a minute, and spread at random."""
    pause = pause_before(troubles, share)
    assert 0 <= pause <= PAUSE_SECONDS_MAX
    assert pause_before(0, share) == 0
    assert pause_before(troubles + 1, 1.0) >= pause_before(troubles, 1.0)
