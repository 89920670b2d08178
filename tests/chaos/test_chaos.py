"""A short round of chaos in every run of the tests; ``make chaos`` has long ones."""

from __future__ import annotations

import os

import pytest

from tests.chaos.plan import LENGTHS, NEEDS_SERVER, ONE_AT_A_TIME, SHARES, plan_of
from tests.chaos.round import Round
from tests.support.programs import HAS_PROC

SECONDS = 30.0
SEED = 20261201


def test_a_seed_decides_the_plan() -> None:
    """The same seed makes the same plan, another one another; every kind of fault comes in a minute of it."""
    assert plan_of(7, 60.0) == plan_of(7, 60.0)
    assert plan_of(7, 60.0).faults != plan_of(8, 60.0).faults
    assert {fault.kind for fault in plan_of(7, 60.0).faults} == set(SHARES)
    assert {plan_of(seed, 60.0).broker for seed in range(3)} == {"state", "database", "server"}


@pytest.mark.parametrize("seed", range(5))
def test_the_server_is_taken_away_once_at_a_time(seed: int) -> None:
    """Nothing that needs the server is planned while another fault has taken it away."""
    away_until = 0.0
    for fault in plan_of(seed, 120.0).faults:
        if fault.kind in NEEDS_SERVER:
            assert fault.at >= away_until, fault
        if fault.kind in ONE_AT_A_TIME:
            assert LENGTHS[fault.kind][0] <= fault.seconds <= LENGTHS[fault.kind][1]
            away_until = fault.at + fault.seconds


@pytest.mark.e2e
@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.timeout(420)
@pytest.mark.skipif(not HAS_PROC, reason="what is left of a process tree can be seen in /proc only")
def test_nothing_is_lost_and_nothing_is_done_twice(capsys: pytest.CaptureFixture[str]) -> None:
    """After half a minute in which everything dies now and then, all has settled and no law is broken.

    ``CHAOS_SEED`` chooses another plan.
    """
    seed = int(os.environ.get("CHAOS_SEED", SEED))
    verdict = Round(plan_of(seed, SECONDS), print).run()
    with capsys.disabled():
        print(f"\n{verdict.summary}")
    assert not verdict.broken, verdict.summary
    assert sum(verdict.outcomes.values()) > 0
    assert sum(verdict.faults.values()) > 0
