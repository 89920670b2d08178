"""Holding trials: what is given up, when, and how often it is said."""

from __future__ import annotations

import time
from typing import cast

from statem_dist.deadline import Deadline
from statem_dist.errors import Unavailable
from statem_dist.sweep.holding import Held, Holding, Why
from statem_dist.sweep.ledger import Claim, Ledger
from statem_dist.sweep.model import Status
from tests.support.programs import eventually


class Renewals:
    """What a ledger answers to renewals."""

    def __init__(self) -> None:
        self.status: Status = "active"
        self.lost: set[int] = set()
        self.away = False
        self.asked: list[list[int]] = []

    def renew(self, sweep_id: str, claims: list[Claim], lease_ms: int) -> tuple[Status, set[int]]:
        """Return the status of a sweep, and the tokens that are lost."""
        if self.away:
            raise Unavailable("The store is away.")
        self.asked.append([claim.number for claim in claims])
        return self.status, self.lost


class Trial:
    """A trial that is held, and what was said of it."""

    def __init__(self, number: int) -> None:
        self.ended: list[Why] = []
        self.renewed = 0
        self.held = Held(Claim("s", number, number, 0), Deadline(), self.ended.append, self._renew)

    def _renew(self) -> None:
        self.renewed += 1


def holding(renewals: Renewals, lease_seconds: float = 60.0) -> Holding:
    """Return what holds trials; nothing is killed, so that there is no grace."""
    return Holding(cast(Ledger, renewals), lease_seconds, 0.0)


def test_what_is_held_is_renewed_together() -> None:
    """One question for all trials of a sweep, and whatever else is held for them is renewed too."""
    renewals, first, second = Renewals(), Trial(1), Trial(2)
    holds = holding(renewals)
    with holds.hold(first.held), holds.hold(second.held):
        holds.renew()
    holds.close()
    assert renewals.asked == [[1, 2]]
    assert (first.renewed, second.renewed, first.held.why, first.held.until.passed) == (1, 1, "", False)


def test_what_is_lost_is_given_up_and_the_rest_goes_on() -> None:
    """The driver goes by the deadline, and what is being executed is told to end until the trial is let go."""
    renewals, first, second = Renewals(), Trial(1), Trial(2)
    renewals.lost = {2}
    holds = holding(renewals)
    with holds.hold(first.held), holds.hold(second.held):
        holds.renew()
        assert (first.held.why, second.held.why, second.held.until.passed) == ("", "lost", True)
        eventually(lambda: len(second.ended) >= 2, "it is told again")
        assert set(second.ended) == {"lost"}
        assert first.ended == []
    holds.close()


def test_a_cancelled_sweep_gives_its_trials_up() -> None:
    """Whoever renews learns of it."""
    renewals, trial = Renewals(), Trial(1)
    renewals.status = "cancelled"
    holds = holding(renewals)
    with holds.hold(trial.held):
        holds.renew()
        assert trial.held.why == "cancelled"
    holds.close()


def test_a_store_that_is_away_too_long_costs_the_trial() -> None:
    """By the own clock, before the lease has run out by that of the server."""
    renewals, trial = Renewals(), Trial(1)
    renewals.away = True
    holds = holding(renewals, lease_seconds=1.0)
    with holds.hold(trial.held):
        begun = time.monotonic()
        eventually(lambda: trial.held.why == "lost", "it is given up")
        assert time.monotonic() - begun > 0.5, "an outage of half a lease is borne"
    holds.close()


def test_what_comes_after_the_end_is_given_up_at_once() -> None:
    """A trial that was being taken when this process was told to stop does not hold that up."""
    early, late = Trial(1), Trial(2)
    holds = holding(Renewals())
    with holds.hold(early.held):
        holds.give_up_all("shutdown")
        with holds.hold(late.held):
            assert (early.held.why, late.held.why, late.held.until.passed) == ("shutdown", "shutdown", True)
    holds.close()
