"""Which trial is next, and what keepers do, on a ledger in a Redis, real or not."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from statem_dist.dispatch import PushWithCommit
from statem_dist.identity import this_process
from statem_dist.roster import Roster, WorkerCard
from statem_dist.store import keys
from statem_dist.sweep.hints import Hints
from statem_dist.sweep.keeper import Keeper
from statem_dist.sweep.ledger import Claim, Ledger
from statem_dist.sweep.model import Definition, Limit, Share, StopWhen
from statem_dist.sweep.shared_limits import SharedLimits
from statem_dist.sweep.taking import Taken, Taker
from tests.contract.conftest import RedisBench
from tests.support.ledgers import attempt, definition, planned

LEASE_MS = 60_000
DEAD = "worker:{host}:1:1"
"""A worker of this host whose process has another start time than the one of that number now."""


class Floor:
    """Sweeps, and the slots of one worker.

    Args:
        bench: the Redis.
        disk: a folder on the disk that trials would fill.
    """

    def __init__(self, bench: RedisBench, disk: Path) -> None:
        self.bench = bench
        self.ledger = Ledger(bench.redis_store)
        self.limits = SharedLimits(bench.redis_store)
        self.taker = Taker(self.ledger, self.limits, LEASE_MS, "here", disk)
        self.roster = Roster(bench.redis_store)
        self.keeper = Keeper(self.ledger, Hints(bench.redis_store, PushWithCommit()), self.roster)

    def submit(self, sweep_id: str, trials: int = 3, **changes: Any) -> Definition:
        """Store a sweep whose trials wait."""
        made = definition(**{"disk_floor_bytes": 0, **changes})
        self.ledger.create(sweep_id, made, sweep_id, "me")
        self.ledger.add(sweep_id, made, planned(range(1, trials + 1)))
        self.ledger.steer(sweep_id, "active", ["planning"])
        return made

    def take(self, queue: str = "trials") -> Taken:
        """Take a trial; there must be one."""
        taken = self.taker.take(queue)
        assert taken is not None
        return taken

    def turns(self, count: int) -> str:
        """Take trials one after another, and return the sweeps that they are of."""
        return "".join(self.take().claim.sweep_id for _ in range(count))

    def serve(self, slots: int) -> None:
        """Let a worker with slots for trials announce itself."""
        card = WorkerCard(this_process("worker"), ("trials",), slots, "threads", 0, "0")
        self.roster.announce(card)

    def hints(self) -> int:
        """Return how many messages wait for slots."""
        return int(self.bench.call("LLEN", "trials"))


@pytest.fixture
def floor(redis_bench: RedisBench, tmp_path: Path) -> Floor:
    """No sweep yet."""
    return Floor(redis_bench, tmp_path)


def test_equals_take_turns(floor: Floor) -> None:
    """The one that was served longest ago comes next, whatever their sizes are."""
    floor.submit("a", 3)
    floor.submit("b", 2)
    assert floor.turns(5) == "ababa"
    assert floor.taker.take("trials") is None


def test_priority_comes_first(floor: Floor) -> None:
    """As long as the more important one has trials that may begin; then the others take turns."""
    floor.submit("l", 1, priority="low")
    floor.submit("n", 1)
    floor.submit("h", 2, priority="high")
    assert floor.turns(4) == "hhnl"


def test_a_bound_lets_the_next_sweep_in(floor: Floor) -> None:
    """What may not begin holds nobody back, not even in a sweep of higher priority."""
    floor.submit("h", 3, priority="high", concurrency=1)
    floor.submit("n", 1)
    assert floor.turns(2) == "hn"


def test_queues_are_apart(floor: Floor) -> None:
    """Trials are taken by those who serve their queue."""
    floor.submit("a", 1, queue="gpu")
    assert floor.taker.take("trials") is None
    assert floor.take("gpu").claim.sweep_id == "a"


def test_what_is_not_active_is_not_taken(floor: Floor) -> None:
    """A paused sweep keeps its trials, and one that is gone is forgotten."""
    floor.submit("a")
    floor.ledger.steer("a", "paused", ["active"])
    assert floor.taker.take("trials") is None
    floor.bench.call("DEL", keys.sweep("a", "sweep"))
    assert floor.taker.take("trials") is None
    assert floor.ledger.open() == []


def test_limits_are_shared_by_sweeps(floor: Floor) -> None:
    """A place is taken with the trial and given back with it; who waits says for what."""
    limit = Limit("provider", in_flight=1, when={"model": "opus"})
    for sweep_id in "ab":
        floor.submit(sweep_id, 2, limits=(limit,))
    first = floor.take()
    while first.claim.number != 1:
        # The trial of the other model needs no place.
        first = floor.take()
    others = [floor.take().claim.number for _ in range(3 - len(floor.ledger.claims("a") + floor.ledger.claims("b")))]
    assert set(others) <= {2}
    assert floor.taker.take("trials") is None
    assert floor.limits.usage("provider").in_flight == 1
    other = "b" if first.claim.sweep_id == "a" else "a"
    assert "1 trials are under way" in floor.ledger.require(other).held["limit provider"]
    floor.taker.renew(first)
    floor.taker.release(first)
    assert (floor.take().claim.sweep_id, floor.limits.usage("provider").in_flight) == (other, 1)


def test_a_place_is_given_back_where_no_trial_can_begin(floor: Floor) -> None:
    """Looking for a trial in vain uses nothing of what is allowed within a minute."""
    floor.submit("a", 2, limits=(Limit("brief", per_minute=5),), concurrency=1)
    floor.take()
    for _ in range(10):
        assert floor.taker.take("trials") is None
    usage = floor.limits.usage("brief")
    assert (usage.in_flight, usage.last_minute) == (1, 1)


def test_a_full_disk_holds_trials_back(floor: Floor) -> None:
    """They wait, with the reason where the sweep is looked at; none of them fails."""
    made = floor.submit("a", disk_floor_bytes=1 << 60)
    assert floor.taker.take("trials") is None
    sweep = floor.ledger.require("a")
    assert sweep.counts["pending"] == 3
    assert "disk_floor" in sweep.held["here"]
    floor.ledger.revise("a", definition(disk_floor_bytes=1, name=made.name), "a")
    assert floor.take().claim.number == 1


# --- keepers -------------------------------------------------------------------------------------------------------


def test_slots_are_woken_for_trials_that_wait(floor: Floor) -> None:
    """For as many as can begin, and no more messages than slots; what waits already is counted."""
    floor.submit("a", 3)
    floor.keeper.look()
    assert floor.hints() == 0, "nobody is there"
    floor.serve(2)
    floor.keeper.look()
    floor.keeper.look()
    assert floor.hints() == 2


def test_bounds_are_known_to_the_keeper(floor: Floor) -> None:
    """Where one trial may run and one does, nobody is woken in vain."""
    floor.submit("a", 3, concurrency=1)
    floor.serve(4)
    floor.take()
    floor.keeper.look()
    assert floor.hints() == 0


def lapse(floor: Floor) -> Claim:
    """Take a trial under a lease that has run out when this returns."""
    made, _ = floor.ledger.definition("a")
    claim = floor.ledger.claim("a", made, floor.ledger.lanes("a", made), "h", 1)
    assert isinstance(claim, Claim)
    floor.bench.let_pass(int(floor.bench.call("ZSCORE", keys.sweep("a", "running"), claim.number)))
    return claim


def test_what_was_not_begun_waits_again(floor: Floor) -> None:
    """A worker that was lost between the claim and the first word costs nothing."""
    floor.submit("a", 1)
    lapse(floor)
    while floor.ledger.require("a").counts["running"]:
        # The clock that a process carries on by itself may be a moment behind that of the server.
        floor.keeper.look()
    (trial,) = floor.ledger.trials("a")
    assert (trial.state, trial.attempts) == ("pending", ())


@pytest.mark.parametrize(
    "lose",
    [
        pytest.param(lapse, id="lease"),
        pytest.param(lambda floor: floor.take().claim, id="dead"),
    ],
)
def test_a_lost_worker_uses_the_budget(floor: Floor, lose: Callable[[Floor], Claim]) -> None:
    """The attempt goes on with another worker until the budget is used up; then its trial ends as an error."""
    worker = DEAD.format(host=socket.gethostname())
    floor.submit("a", 1, retries=1)
    known = None
    for losses, state in ((1, "pending"), (2, "error")):
        claim = lose(floor)
        known = replace(known or attempt(claim, worker=worker), claim=claim.token)
        floor.bench.call("HSET", keys.sweep("a", "tries"), claim.number, 1)
        floor.bench.call("HSET", keys.sweep("a", "attempts"), f"{claim.number}.1", msgspec.json.encode(known))
        while floor.ledger.require("a").counts["running"]:
            floor.keeper.look()
        (trial,) = floor.ledger.trials("a")
        (known,) = trial.attempts
        assert (trial.state, known.losses) == (state, losses)
    (ended,) = next(iter(floor.ledger.trials("a"))).attempts
    assert (ended.outcome, ended.reason) == ("error", "worker_lost")
    assert worker in ended.detail
    assert floor.ledger.require("a").status == "finished"


def test_a_living_worker_keeps_its_trial(floor: Floor) -> None:
    """It is asked for again and again, and is there."""
    floor.submit("a", 1)
    claim = floor.take().claim
    assert floor.ledger.note(claim, attempt(claim, worker=this_process("worker")), LEASE_MS)
    for _ in range(5):
        floor.keeper.look()
    assert floor.ledger.require("a").counts["running"] == 1


def test_rules_stop_a_sweep(floor: Floor) -> None:
    """With the reason; what is under way goes on, and what waits stays as it is."""
    made = floor.submit("a", 4, stop_when=StopWhen(failures=Share(count=1)))
    claim = floor.take().claim
    other = floor.take().claim
    (trial,) = floor.ledger.trials("a", [claim.number])
    floor.ledger.settle(claim, trial.planned.cell, made, attempt(claim, 1, "failed"), "failed")
    floor.keeper.look()
    sweep = floor.ledger.require("a")
    assert (sweep.status, sweep.counts["pending"], sweep.counts["running"]) == ("stopped", 2, 1)
    assert "1 of 4 trials have not passed" in sweep.status_reason
    assert floor.taker.take("trials") is None
    (trial,) = floor.ledger.trials("a", [other.number])
    floor.ledger.settle(other, trial.planned.cell, made, attempt(other, 1, "passed"), "passed")
    floor.keeper.look()
    assert floor.ledger.open() == [], "nothing of it is left to look after"


def test_what_has_ended_is_forgotten(floor: Floor) -> None:
    """Workers look after open sweeps alone; one that is tried again is open again."""
    made = floor.submit("a", 1)
    claim = floor.take().claim
    (trial,) = floor.ledger.trials("a")
    floor.ledger.settle(claim, trial.planned.cell, made, attempt(claim, 1, "error"), "error")
    floor.keeper.look()
    assert floor.ledger.open() == []
    assert floor.ledger.again("a", list(floor.ledger.trials("a"))) == 1
    floor.ledger.steer("a", "active", ["finished"])
    assert floor.take().claim.number == 1


def test_who_has_just_claimed_a_trial_is_not_taken_for_its_last_worker(floor: Floor) -> None:
    """Between the claim and the first word of it, the last word is that of a worker that is gone."""
    floor.submit("a", 1)
    first = floor.take().claim
    known = replace(attempt(first, worker=DEAD.format(host=socket.gethostname())), claim=first.token)
    made, _ = floor.ledger.definition("a")
    (trial,) = floor.ledger.trials("a")
    assert floor.ledger.note(first, known, LEASE_MS)
    assert floor.ledger.settle(first, trial.planned.cell, made, known, None)
    second = floor.take().claim
    for _ in range(5):
        floor.keeper.look()
    (claim,) = floor.ledger.claims("a")
    assert claim.token == second.token


def test_a_sweep_that_cannot_be_read_keeps_no_other_waiting(floor: Floor) -> None:
    """Keepers and slots leave alone what a newer version has written, and go on with the rest."""
    floor.submit("a", 1, priority="high")
    floor.submit("b", 1)
    floor.bench.call("HSET", keys.sweep("a", "sweep"), "definition", '{"name": 7}')
    floor.serve(2)
    floor.keeper.look()
    assert floor.hints() == 1
    assert floor.take().claim.sweep_id == "b"
