"""What is told of a run that needs somebody, or that nobody works on."""

from __future__ import annotations

from pathlib import Path

from statem_dist.protocol.commands import ExpireClaim, Pause
from statem_dist.protocol.graph import Node
from statem_dist.recovery import trouble_of
from statem_dist.resume import Address, resume_prompt
from statem_dist.settings import Settings
from statem_dist.store.base import Snapshot
from statem_dist.views import settled_transition, steered
from statem_dist.waiting import unknown_reason
from tests.support.builders import AGENT, WORKER, Desk, loop, one_by_one, shell

SETTINGS = Settings(state_dir=Path("/unused"), lease_seconds=30.0, hint_grace_seconds=5.0)


def begun() -> Desk:
    """Return a run whose hook is being executed."""
    desk = Desk(loop(Node("a", out_hook=one_by_one(shell()))))
    desk.goto()
    desk.claim()
    return desk


def lost() -> Desk:
    """Return a run whose hook has lost its worker."""
    desk = begun()
    desk.apply(ExpireClaim(transition="t2", token=1))
    return desk


def trouble(desk: Desk, *, leased: bool = False) -> str | None:
    """Return what is wrong with a run."""
    leases = {1: desk.now + 1} if leased else {}
    found = trouble_of(Snapshot(run=desk.run, now=desk.now, leases=leases), SETTINGS)
    return None if found is None else found.trouble


def test_a_run_is_in_trouble_or_in_good_hands() -> None:
    """A live lease, the grace for a message, a pause and a rest are none; what is left alone is."""
    desk = begun()
    assert (trouble(desk, leased=True), trouble(desk)) == (None, "claim_lost")
    desk.apply(ExpireClaim(transition="t2", token=1))
    assert trouble(desk) == "outcome_unknown"
    desk.apply(Pause(reason="lunch", by=AGENT))
    assert trouble(desk) is None
    idle = Desk(loop(Node("a", before_transfer=one_by_one(shell()))))
    assert trouble(idle) is None
    idle.goto()
    assert trouble(idle) is None
    idle.now += 5_000
    assert trouble(idle) == "not_begun"


def test_the_reason_names_check_worker_time_and_ways_out() -> None:
    """Whoever reads it knows what to look at, and what to type."""
    told = unknown_reason(lost().run)
    for word in ("out_hook.0", WORKER.id, "was lost while it ran", "2025-06-15T15:06:40", "statem-dist recover r"):
        assert word in told
    for way in ("--resume", "--abort", "--mark passed|failed", "--reason"):
        assert way in told
    assert unknown_reason(begun().run) == ""


def test_answers_hold_it_as_data() -> None:
    """The same in the answer to a ``goto`` and in the state of the run; nothing of it while all is known."""
    desk = lost()
    expected = [{"check": "out_hook.0", "since": desk.now, "worker": WORKER.id, "cause": "worker_lost"}]
    assert settled_transition(desk.run, desk.transition)["outcome_unknown"] == expected
    assert steered(desk.run)["in_flight"]["outcome_unknown"] == expected
    assert "outcome_unknown" not in settled_transition(begun().run, begun().transition)


def test_an_agent_that_comes_back_is_told_to_wait() -> None:
    """It is nothing that an agent decides."""
    desk = lost()
    address = Address("statem-dist", "r", "/state", at="state_dir")
    assert "Nobody knows what one of its hooks did" in resume_prompt(desk.run, desk.runbook, address)
    assert "Nobody knows" not in resume_prompt(begun().run, desk.runbook, address)
