"""What the ledger of sweeps promises, on each Redis; every test also with the first reply to each command lost.

A lost reply is answered by sending the same again, so that a ledger whose replies get lost has to give the same
answers, and to leave the same behind, as one whose replies arrive.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from statem_dist.errors import Conflict, NotFound
from statem_dist.store import keys
from statem_dist.store.redis_store import RedisStore
from statem_dist.sweep import ledger as ledger_module
from statem_dist.sweep.lanes import Lane
from statem_dist.sweep.ledger import PAGE, Change, Claim, Ledger, OpenSweep, Refusal
from statem_dist.sweep.model import Attempt, Definition, Limit, Outcome, Planned, State, Sweep, Trial, Usage
from statem_dist.sweep.shared_limits import LimitUsage, SharedLimits, Wait
from tests.contract.conftest import RedisBench
from tests.support.ledgers import EveryFirstReplyLost, attempt, audit, definition, flat, planned, settled, taken

LEASE_MS = 60_000
PER_MODEL = {"model": {"opus": 1, "*": 2}}


class Desk:
    """A ledger, and the Redis that it is kept in.

    Args:
        bench: the Redis.
        store: what the ledger speaks through.
    """

    def __init__(self, bench: RedisBench, store: RedisStore) -> None:
        self.bench = bench
        self.store = store
        self.ledger = Ledger(store)
        self.limits = SharedLimits(store)

    def submitted(self, trials: int = 4, sweep_id: str = "s", **changes: Any) -> Definition:
        """Store a sweep whose trials wait, and return its definition."""
        made = definition(**changes)
        self.ledger.create(sweep_id, made, f"print-{sweep_id}", "me")
        assert self.ledger.add(sweep_id, made, planned(range(1, trials + 1))) == trials
        assert self.ledger.steer(sweep_id, "active", ["planning"]) == "planning"
        return made

    def claimed(self, holder: str = "h", lease_ms: int = LEASE_MS) -> Claim:
        """Claim a trial; there must be one."""
        claim = taken(self.ledger, holder, lease_ms=lease_ms)
        assert isinstance(claim, Claim)
        return claim

    def ended(self, outcome: Outcome, holder: str = "h") -> Claim:
        """Claim a trial and end it."""
        claim = self.claimed(holder)
        assert settled(self.ledger, claim, outcome, attempt(claim, 1, outcome))
        return claim

    def lapsed(self, holder: str = "h") -> Claim:
        """Claim a trial under a lease that has run out when this returns."""
        claim = self.claimed(holder, lease_ms=1)
        score = self.bench.call("ZSCORE", keys.sweep("s", "running"), claim.number)
        self.bench.let_pass(int(score))
        return claim

    def sweep(self) -> Sweep:
        """Return the sweep as it is now."""
        return self.ledger.require("s")

    def counts(self) -> dict[State, int]:
        """Return how many trials are in each state that any is in."""
        return {state: count for state, count in self.sweep().counts.items() if count}

    def state(self, number: int) -> State:
        """Return the state of a trial."""
        return self.trial(number).state

    def trial(self, number: int) -> Trial:
        """Return a trial."""
        (found,) = self.ledger.trials("s", [number])
        return found

    def slots(self) -> dict[str, int]:
        """Return the counters of bounds that are not at zero."""
        found = flat(self.bench.call("HGETALL", keys.sweep("s", "slots")))
        return {name: int(count) for name, count in found.items() if count != "0"}

    def all_keys(self) -> set[str]:
        """Return the names of all keys."""
        return {bytes(name).decode() for name in self.bench.call("KEYS", "*")}

    def told(self, after: str = "0-0") -> list[tuple[int, str]]:
        """Return what the feed tells."""
        return [(change.number, change.to) for change in self.ledger.changes("s", after, 1000)]


@pytest.fixture(params=["answered", "replies-lost"])
def desk(request: pytest.FixtureRequest, redis_bench: RedisBench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """An empty ledger, whose replies arrive, or do when what they answer has been sent twice."""
    store = redis_bench.redis_store
    if request.param == "replies-lost":
        monkeypatch.setattr("statem_dist.store.redis_store.time.sleep", lambda seconds: None)
        store = RedisStore(EveryFirstReplyLost(store.client), patience_seconds=30.0)
    desk = Desk(redis_bench, store)
    yield desk
    if desk.ledger.sweep("s") is not None:
        audit(redis_bench.redis_store)


# --- submitting -------------------------------------------------------------------------------------------------


def test_a_sweep_is_stored_and_read(desk: Desk) -> None:
    """What was created and planned is read as it was, with every state counted."""
    made = desk.submitted(3, labels={"team": "a"})
    found = desk.sweep()
    assert found.definition == made
    assert (found.status, found.created_by, found.revision, found.ended_at) == ("active", "me", 1, 0)
    assert found.counts == {
        **dict.fromkeys(("running", "passed", "failed", "stuck", "timeout", "error", "cancelled"), 0),
        "pending": 3,
    }
    assert list(desk.ledger.trials("s")) == [Trial(trial, "pending") for trial in planned([1, 2, 3])]
    assert desk.ledger.size("s") == 3
    assert desk.ledger.open() == [OpenSweep("s", "trials", "normal")]
    assert desk.ledger.definition("s") == (made, 1)
    assert desk.ledger.fingerprint("s") == "print-s"
    assert desk.ledger.latest_of("print-s") == found
    assert desk.ledger.latest_of("other") is None


def test_create_and_add_may_be_repeated(desk: Desk) -> None:
    """A second creation changes nothing, and trials that are planned already are not planned again."""
    made = desk.submitted(3)
    before = desk.sweep()
    desk.ledger.create("s", definition(name="another"), "print-s", "you")
    assert desk.sweep() == before
    assert desk.ledger.add("s", made, planned([2, 3, 4])) == 1
    assert desk.counts() == {"pending": 4}


def test_a_sweep_that_is_not_wholly_created_is_none(desk: Desk) -> None:
    """One whose creation ended in the middle is not listed."""
    desk.bench.call("ZADD", keys.SWEEPS, 1, "half")
    desk.bench.call("HSET", keys.sweep("half", "sweep"), "definition", "{}")
    assert desk.ledger.sweep("half") is None
    assert desk.ledger.listed(10) == []
    assert desk.ledger.ids() == ["half"]


def test_what_is_not_there_is_not_found(desk: Desk) -> None:
    """Each method that needs a sweep says so, and writes nothing; those of workers answer that there is nothing."""
    made = definition()
    for act in (
        lambda: desk.ledger.require("s"),
        lambda: desk.ledger.definition("s"),
        lambda: desk.ledger.add("s", made, planned([1])),
        lambda: desk.ledger.revise("s", made, "print"),
        lambda: desk.ledger.steer("s", "active", ["planning"]),
        lambda: desk.ledger.again("s", [Trial(planned([1])[0], "passed")]),
        lambda: desk.ledger.withdraw("s", [1]),
    ):
        with pytest.raises(NotFound, match="s"):
            act()
    claim = Claim("s", 1, 1, 0)
    assert desk.ledger.claim("s", made, [Lane(made, {"model": "opus"})], "h", LEASE_MS) == Refusal("status")
    assert not desk.ledger.note(claim, attempt(claim), LEASE_MS)
    assert not desk.ledger.settle(claim, {}, made, attempt(claim, 1, "passed"), "passed")
    assert not desk.ledger.settle(claim, {}, made, None, None)
    assert desk.ledger.renew("s", [claim], LEASE_MS) == ("cancelled", {1})
    desk.ledger.hold("s", "h", "full disk")
    assert list(desk.ledger.trials("s")) == desk.ledger.running("s") == []
    assert desk.ledger.lapsed("s") == desk.ledger.claims("s") == []
    assert desk.ledger.latest_change("s") == "0-0"
    assert desk.ledger.fingerprint("s") == ""
    assert desk.all_keys() == set()


def test_sweeps_are_listed_newest_first(desk: Desk) -> None:
    """By the time of their creation, as many as are wanted."""
    for moment, name in enumerate("abc"):
        desk.submitted(1, name)
        desk.bench.call("ZADD", keys.SWEEPS, moment, name)
    assert desk.ledger.ids() == ["c", "b", "a"]
    assert [found.id for found in desk.ledger.listed(2)] == ["c", "b"]
    assert desk.ledger.listed(0) == []
    assert {each.id for each in desk.ledger.open()} == {"a", "b", "c"}
    desk.ledger.unpublish("a")
    assert {each.id for each in desk.ledger.open()} == {"b", "c"}


def test_who_was_served_last_is_known(desk: Desk) -> None:
    """The numbers rise with each trial that is taken, across sweeps."""
    assert desk.ledger.served([]) == []
    desk.ledger.serve("a")
    desk.ledger.serve("b")
    first_a, first_b, never = desk.ledger.served(["a", "b", "c"])
    assert 0 == never < first_a < first_b
    desk.ledger.serve("a")
    assert desk.ledger.served(["a"])[0] > first_b


def test_more_trials_than_a_page(desk: Desk) -> None:
    """Planning and reading go in pages, and lose nothing between them."""
    made = definition(concurrency_per={"model": {"*": 1}})
    desk.ledger.create("s", made, "print-s", "me")
    wanted = planned(range(1, 2 * PAGE + 2))
    assert desk.ledger.add("s", made, iter(wanted), ready_at=7) == len(wanted)
    assert [trial.planned for trial in desk.ledger.trials("s")] == wanted
    assert [trial.planned.number for trial in desk.ledger.trials("s", [PAGE + 1, 5, 9999])] == [PAGE + 1, 5]
    assert desk.ledger.withdraw("s", range(1, PAGE + 2)) == PAGE + 1
    assert desk.ledger.steer("s", "cancelled", ["planning"]) == "planning"
    assert desk.counts() == {"cancelled": len(wanted)}


# --- claiming ---------------------------------------------------------------------------------------------------


def test_the_lowest_number_is_claimed_first(desk: Desk) -> None:
    """Whatever its lane; tokens rise."""
    desk.submitted(4, concurrency_per={"model": {"*": 10}})
    claims = [desk.claimed(holder) for holder in "abcd"]
    assert [claim.number for claim in claims] == [1, 2, 3, 4]
    assert [claim.token for claim in claims] == [1, 2, 3, 4]
    assert desk.counts() == {"running": 4}
    assert taken(desk.ledger, "e") == Refusal("none")
    assert [trial.planned.number for trial in desk.ledger.running("s")] == [1, 2, 3, 4]
    assert {trial.state for trial in desk.ledger.running("s")} == {"running"}
    assert {claim.token for claim in desk.ledger.claims("s")} == {1, 2, 3, 4}


def test_the_same_holder_gets_the_same_claim(desk: Desk) -> None:
    """Until it is settled, even when the sweep takes no more; then it gets another."""
    desk.submitted(2)
    claim = desk.claimed("a")
    assert taken(desk.ledger, "a") == claim
    desk.ledger.steer("s", "paused", ["active"])
    assert taken(desk.ledger, "a") == claim
    assert taken(desk.ledger, "b") == Refusal("status")
    desk.ledger.steer("s", "active", ["paused"])
    assert settled(desk.ledger, claim, "passed", attempt(claim, 1, "passed"))
    assert desk.claimed("a").number == 2


def test_a_sweep_takes_trials_only_while_it_is_active(desk: Desk) -> None:
    """Not while it is planned, paused or stopped, and not when it was cancelled."""
    made = definition()
    desk.ledger.create("s", made, "print-s", "me")
    desk.ledger.add("s", made, planned([1]))
    assert taken(desk.ledger, "a") == Refusal("status")
    for status in ("paused", "stopped", "cancelled"):
        desk.ledger.steer("s", "active", ["planning", "paused", "stopped"])
        desk.ledger.steer("s", status, ["active"])
        assert taken(desk.ledger, "a") == Refusal("status")


def test_the_bound_of_the_sweep(desk: Desk) -> None:
    """No more trials run at once; one that has ended makes room."""
    desk.submitted(3, concurrency=2)
    first = desk.claimed("a")
    desk.claimed("b")
    assert taken(desk.ledger, "c") == Refusal("full")
    assert settled(desk.ledger, first, "failed", attempt(first, 1, "failed"))
    assert desk.claimed("c").number == 3


def test_bounds_of_values(desk: Desk) -> None:
    """A value's own bound holds for it, ``*`` for each of the others; those that it holds back are passed over."""
    desk.submitted(9, concurrency_per=PER_MODEL)
    numbers = []
    for holder in "abc":
        numbers.append(desk.claimed(holder).number)
    # Odd numbers are of opus, of which one may run; even ones of sonnet, of which two may.
    assert numbers == [1, 2, 4]
    assert taken(desk.ledger, "d") == Refusal("bounds")
    assert desk.slots() == {'{"model":"opus"}': 1, '{"model":"sonnet"}': 2}
    claim = desk.claimed("b")
    assert settled(desk.ledger, claim, None, None)
    assert desk.claimed("d").number == 2


def test_every_value_has_a_counter_of_its_own(desk: Desk) -> None:
    """``*`` does not mean all of them together; a value that has no bound is not bounded."""
    made = definition(concurrency_per={"model": {"*": 1}, "task": {"t9": 1}})
    desk.ledger.create("s", made, "print-s", "me")
    desk.ledger.add("s", made, planned(range(1, 7), ("a", "b", "c")))
    desk.ledger.steer("s", "active", ["planning"])
    assert [desk.claimed(holder).number for holder in "xyz"] == [1, 2, 3]
    assert taken(desk.ledger, "w") == Refusal("bounds")


def test_a_cell_without_the_axis_is_not_bound_by_it(desk: Desk) -> None:
    """Neither by the bounds nor by the shared limits of values that it does not have."""
    limit = Limit("x", in_flight=1, when={"model": "opus"})
    made = definition(concurrency_per={"model": {"*": 1}}, limits=(limit,))
    desk.ledger.create("s", made, "print-s", "me")
    desk.ledger.add("s", made, [Planned(number, {"task": "t"}, number) for number in (1, 2)])
    desk.ledger.add("s", made, planned([3]))
    desk.ledger.steer("s", "active", ["planning"])
    assert [desk.claimed(holder).number for holder in "ab"] == [1, 2]
    lanes = {lane.key: lane for lane in desk.ledger.lanes("s", made)}
    assert lanes['{"model":null}'].bounds == () == lanes['{"model":null}'].limits
    assert lanes['{"model":"opus"}'].limits == (limit,)


def test_a_claim_is_confined_to_the_lanes_that_are_given(desk: Desk) -> None:
    """So that whoever finds a shared limit exhausted can pass its lanes over."""
    made = desk.submitted(4, limits=(Limit("x", in_flight=1, when={"model": "opus"}),))
    lanes = [lane for lane in desk.ledger.lanes("s", made) if not lane.limits]
    claims = [desk.ledger.claim("s", made, lanes, holder, LEASE_MS) for holder in "abc"]
    assert [claim.number for claim in claims if isinstance(claim, Claim)] == [2, 4]
    assert claims[2] == Refusal("none")
    assert desk.ledger.claim("s", made, [], "d", LEASE_MS) == Refusal("none")


def test_when_a_trial_became_ready(desk: Desk) -> None:
    """With its sweep, unless it was added or made to wait again later."""
    made = desk.submitted(2)
    desk.ledger.add("s", made, planned([3]), ready_at=77)
    claims = {number: desk.claimed(str(number)) for number in (1, 2, 3)}
    active_since = claims[1].ready_at
    assert claims[2].ready_at == active_since > 77 == claims[3].ready_at
    assert settled(desk.ledger, claims[1], None, None)
    desk.ledger.steer("s", "paused", ["active"])
    desk.ledger.steer("s", "active", ["paused"])
    # By the clock of whoever hands it back, which it carries on by itself from that of the server.
    assert desk.claimed("again").ready_at >= active_since - 100


def test_claims_at_the_same_time(redis_bench: RedisBench) -> None:
    """Many threads claim and settle, and every trial is had once at a time, within its bounds."""
    desk = Desk(redis_bench, redis_bench.redis_store)
    made = desk.submitted(60, concurrency=5, concurrency_per=PER_MODEL)
    lanes = desk.ledger.lanes("s", made)
    had: Counter[int] = Counter()
    lock = threading.Lock()

    def work(name: int) -> None:
        for turn in range(1000):
            claim = desk.ledger.claim("s", made, lanes, f"{name}.{turn}", LEASE_MS)
            if claim == Refusal("status"):
                return
            if isinstance(claim, Claim):
                assert sum(desk.slots().values()) <= 3
                assert desk.ledger.note(claim, attempt(claim), LEASE_MS)
                with lock:
                    had[claim.number] += 1
                assert settled(desk.ledger, claim, "passed", attempt(claim, 1, "passed"), by=made)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(work, range(4)))
    assert had == Counter(range(1, 61))
    assert desk.sweep().status == "finished"
    assert desk.slots() == {}
    audit(redis_bench.redis_store)


# --- working ----------------------------------------------------------------------------------------------------


def test_an_attempt_is_noted_and_settled(desk: Desk) -> None:
    """What is known of it is read with its trial; its end is the state, and what it used is added up once."""
    desk.submitted(2)
    claim = desk.claimed()
    under_way = attempt(claim, node="a")
    assert desk.ledger.note(claim, under_way, LEASE_MS)
    assert desk.ledger.note(claim, under_way, LEASE_MS)
    assert desk.trial(1) == Trial(planned([1])[0], "running", (under_way,))
    ended = attempt(claim, 1, "passed", node="b")
    used = Usage(input_tokens=10, output_tokens=3, cost_usd=0.25)
    assert settled(desk.ledger, claim, "passed", ended, used=used)
    assert settled(desk.ledger, claim, "passed", ended, used=used), "the same call again was done before"
    assert desk.trial(1) == Trial(planned([1])[0], "passed", (ended,))
    assert desk.sweep().usage == used
    assert desk.counts() == {"pending": 1, "passed": 1}


def test_a_trial_waits_again_and_gets_another_attempt(desk: Desk) -> None:
    """Each attempt stays; the latest decides."""
    desk.submitted(1, concurrency_per=PER_MODEL)
    first = desk.claimed("a")
    failed = attempt(first, 1, "error")
    assert settled(desk.ledger, first, None, failed, used=Usage(cost_usd=1.5))
    assert desk.trial(1) == Trial(planned([1])[0], "pending", (failed,))
    assert desk.slots() == {}
    second = desk.claimed("b")
    assert second.token > first.token
    passed = attempt(second, 2, "passed")
    assert settled(desk.ledger, second, "passed", passed, used=Usage(cost_usd=0.5))
    assert desk.trial(1) == Trial(planned([1])[0], "passed", (failed, passed))
    assert desk.sweep().usage == Usage(cost_usd=2.0)
    assert desk.sweep().status == "finished"


def test_a_claim_without_an_attempt(desk: Desk) -> None:
    """A trial that was given back unbegun waits as it did, and one that was cancelled so has no attempt."""
    desk.submitted(1)
    claim = desk.claimed("a")
    assert settled(desk.ledger, claim, None, None)
    assert desk.trial(1) == Trial(planned([1])[0], "pending")
    claim = desk.claimed("b")
    assert settled(desk.ledger, claim, "cancelled", None)
    assert desk.trial(1) == Trial(planned([1])[0], "cancelled")


def test_the_token_of_an_earlier_claim_changes_nothing(desk: Desk) -> None:
    """Neither what is known, nor the lease, nor the outcome, nor the sums."""
    desk.submitted(1)
    old = desk.lapsed("a")
    assert settled(desk.ledger, old, None, None, lapsed=True)
    new = desk.claimed("b")
    under_way = attempt(new, worker="b")
    assert desk.ledger.note(new, under_way, LEASE_MS)
    before = desk.sweep(), desk.trial(1), desk.bench.call("ZSCORE", keys.sweep("s", "running"), 1)
    late = attempt(old, 1, "passed", worker="a")
    assert not desk.ledger.note(old, attempt(old, worker="a"), 10 * LEASE_MS)
    assert desk.ledger.renew("s", [old, new], LEASE_MS // 2) == ("active", {old.token}), "of one trial"
    assert not settled(desk.ledger, old, "passed", late, used=Usage(cost_usd=9))
    assert not settled(desk.ledger, old, "passed", late, lapsed=True)
    assert (desk.sweep(), desk.trial(1)) == before[:2]
    assert settled(desk.ledger, new, "failed", attempt(new, 1, "failed", worker="b"))
    assert not settled(desk.ledger, old, "passed", late)
    assert desk.state(1) == "failed"


def test_a_lease_runs_out(desk: Desk) -> None:
    """Its holder can do nothing more but settle; whoever finds it lapsed may settle, once."""
    desk.submitted(2)
    claim = desk.lapsed("a")
    alive = desk.claimed("b")
    assert desk.ledger.renew("s", [claim, alive], LEASE_MS) == ("active", {claim.token})
    assert not desk.ledger.note(claim, attempt(claim), LEASE_MS)
    assert [found.number for found in desk.ledger.lapsed("s")] == [1]
    assert not settled(desk.ledger, alive, "error", attempt(alive, 1, "error"), lapsed=True)
    lost = attempt(claim, 1, "error")
    assert settled(desk.ledger, claim, None, lost, lapsed=True)
    other_keeper = attempt(claim, 1, "error", detail="found by another")
    assert not settled(desk.ledger, claim, None, other_keeper, lapsed=True)
    assert desk.ledger.lapsed("s") == []
    assert desk.trial(1).attempts == (lost,)


def test_leases_are_prolonged(desk: Desk) -> None:
    """By renewal and by each note, of those that have not run out."""
    desk.submitted(2)
    first, second = desk.claimed("a", lease_ms=5_000), desk.claimed("b", lease_ms=5_000)
    scores = [int(desk.bench.call("ZSCORE", keys.sweep("s", "running"), number)) for number in (1, 2)]
    assert desk.ledger.renew("s", [first], LEASE_MS) == ("active", set())
    assert desk.ledger.note(second, attempt(second), LEASE_MS)
    for number, score in zip((1, 2), scores, strict=True):
        assert int(desk.bench.call("ZSCORE", keys.sweep("s", "running"), number)) > score + 50_000
    desk.ledger.steer("s", "paused", ["active"])
    assert desk.ledger.renew("s", [], LEASE_MS) == ("paused", set())


def test_a_late_holder_settles_while_nobody_else_has(desk: Desk) -> None:
    """A lease that has run out costs no result as long as nobody has found it."""
    desk.submitted(1)
    claim = desk.lapsed("a")
    assert settled(desk.ledger, claim, "passed", attempt(claim, 1, "passed"))
    assert desk.state(1) == "passed"


def test_an_attempt_that_has_ended_is_never_written_again(desk: Desk) -> None:
    """Whoever holds the trial next cannot change it, whatever number it gives its own."""
    desk.submitted(1)
    claim = desk.ended("failed")
    before = desk.trial(1).attempts
    assert desk.ledger.again("s", [desk.trial(1)]) == 1
    desk.ledger.steer("s", "active", ["finished"])
    claim = desk.claimed("b")
    assert not desk.ledger.note(claim, attempt(claim, 1, node="z"), LEASE_MS)
    settled(desk.ledger, claim, "failed", attempt(claim, 1, "passed", detail="mine"))
    assert desk.trial(1).attempts == before


def test_hosts_that_begin_no_trial(desk: Desk) -> None:
    """What they say counts for a while and is then forgotten; a number in JSON is not taken for text."""
    desk.submitted(1)
    desk.ledger.hold("s", "host", 'less than "512M" free')
    assert desk.sweep().held == {"host": 'less than "512M" free'}
    desk.bench.call("HSET", keys.sweep("s", "holds"), "old", '[1,"long ago"]')
    assert set(desk.sweep().held) == {"host"}


# --- how a sweep ends -------------------------------------------------------------------------------------------


def test_a_sweep_is_finished_with_its_last_trial(desk: Desk) -> None:
    """Also while it is paused or stopped; it has an end then."""
    for status in ("active", "paused", "stopped"):
        desk.submitted(2)
        desk.ended("passed", "a")
        claim = desk.claimed("b")
        desk.ledger.steer("s", status, ["active"], "because")
        assert desk.sweep().ended_at == 0
        assert settled(desk.ledger, claim, "failed", attempt(claim, 1, "failed"))
        found = desk.sweep()
        assert (found.status, found.status_reason, found.complete) == ("finished", "", True)
        assert found.ended_at >= found.created_at
        desk.ledger.remove("s")


def test_a_sweep_that_is_stopped_ends_with_what_is_under_way(desk: Desk) -> None:
    """Whether that gets an outcome or waits again; what waits goes on waiting, and goes on when it is active again."""
    desk.submitted(3)
    first, second = desk.claimed("a"), desk.claimed("b")
    assert desk.ledger.steer("s", "stopped", ["active"], "more than 5% errors") == "active"
    assert settled(desk.ledger, first, "error", attempt(first, 1, "error"))
    assert desk.sweep().ended_at == 0
    assert settled(desk.ledger, second, None, attempt(second, 1, "error"))
    found = desk.sweep()
    assert (found.status, found.status_reason) == ("stopped", "more than 5% errors")
    assert found.ended_at > 0
    assert desk.counts() == {"pending": 2, "error": 1}
    desk.ledger.steer("s", "active", ["stopped"])
    assert desk.sweep().ended_at == 0
    assert desk.claimed("c").number == 2


def test_a_sweep_that_is_stopped_while_nothing_runs_has_ended(desk: Desk) -> None:
    """At once."""
    desk.submitted(1)
    desk.ledger.steer("s", "stopped", ["active"], "why")
    assert desk.sweep().ended_at > 0


def test_cancelling_ends_what_waits_at_once(desk: Desk) -> None:
    """What is under way gets its outcome, or is cancelled when it was to wait again; then the sweep has ended."""
    desk.submitted(5, concurrency_per=PER_MODEL)
    first, second = desk.claimed("a"), desk.claimed("b")
    assert desk.ledger.steer("s", "cancelled", ["active", "paused"], "no money") == "active"
    assert desk.counts() == {"running": 2, "cancelled": 3}
    assert desk.sweep().ended_at == 0
    assert desk.ledger.renew("s", [first], LEASE_MS) == ("cancelled", set())
    assert settled(desk.ledger, first, "passed", attempt(first, 1, "passed"))
    assert settled(desk.ledger, second, None, None)
    found = desk.sweep()
    assert desk.counts() == {"passed": 1, "cancelled": 4}
    assert (found.status, found.status_reason) == ("cancelled", "no money")
    assert found.ended_at > 0
    assert desk.slots() == {}


def test_cancelling_again_ends_what_has_come_to_wait_since(desk: Desk) -> None:
    """As when somebody made trials wait and went away before the sweep was active."""
    desk.submitted(2)
    desk.ledger.steer("s", "cancelled", ["active"])
    assert desk.ledger.again("s", desk.ledger.trials("s")) == 2
    assert desk.counts() == {"pending": 2}
    assert desk.ledger.steer("s", "cancelled", ["active"]) == "cancelled"
    assert desk.counts() == {"cancelled": 2}


def test_more_is_cancelled_than_the_feed_keeps(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then it tells of the last ones only."""
    monkeypatch.setattr(ledger_module, "FEED_LENGTH", 100)
    desk.submitted(700)
    desk.ledger.steer("s", "cancelled", ["active"])
    assert desk.counts() == {"cancelled": 700}
    told = desk.told()
    assert told[-1] == (0, "cancelled")
    assert {number for number, _ in told[-101:-1]} == set(range(601, 701))


def test_a_status_needs_one_that_is_expected(desk: Desk) -> None:
    """Otherwise nothing happens, and nobody is told to look after the sweep; the same status again is no change."""
    desk.submitted(2)
    desk.ledger.steer("s", "cancelled", ["active"])
    desk.ledger.unpublish("s")
    position = desk.ledger.latest_change("s")
    with pytest.raises(Conflict, match="cancelled: it cannot become paused"):
        desk.ledger.steer("s", "paused", ["active"])
    assert desk.ledger.steer("s", "cancelled", []) == "cancelled"
    assert desk.ledger.open() == []
    assert desk.told(position) == []


def test_a_sweep_with_nothing_to_do_is_finished(desk: Desk) -> None:
    """When it becomes active, and when all that waited is withdrawn."""
    made = definition()
    desk.ledger.create("s", made, "print-s", "me")
    assert desk.ledger.steer("s", "active", ["planning"]) == "planning"
    assert desk.sweep().status == "finished"
    desk.ledger.remove("s")
    desk.submitted(2)
    claim = desk.claimed()
    assert desk.ledger.withdraw("s", [1, 2, 3]) == 1, "one is under way, one is not planned"
    assert desk.sweep().status == "active"
    assert settled(desk.ledger, claim, None, None)
    assert desk.ledger.withdraw("s", [1]) == 1
    assert desk.sweep().status == "finished"
    assert desk.sweep().ended_at > 0
    assert desk.counts() == {"cancelled": 2}


def test_what_has_ended_waits_again(desk: Desk) -> None:
    """Those whose state is still the one that was seen; the others are left alone."""
    desk.submitted(4)
    for holder, outcome in (("a", "passed"), ("b", "error"), ("c", "error")):
        desk.ended(outcome, holder)  # type: ignore[arg-type]
    seen = list(desk.ledger.trials("s"))
    assert desk.ledger.again("s", [seen[1]]) == 1
    assert desk.ledger.again("s", seen[1:]) == 1, "one waits by now, another has waited all the time"
    assert desk.counts() == {"passed": 1, "pending": 3}
    assert [len(trial.attempts) for trial in desk.ledger.trials("s")] == [1, 1, 1, 0]
    assert desk.claimed("d").number == 2
    assert desk.ledger.again("s", []) == 0


def test_what_was_withdrawn_is_known(desk: Desk) -> None:
    """Until it waits again; what was cancelled with its sweep was not withdrawn."""
    desk.submitted(3)
    assert desk.ledger.withdraw("s", [1, 2]) == 2
    assert desk.ledger.withdrawn("s") == {1, 2}
    desk.ledger.steer("s", "cancelled", ["active"])
    assert desk.ledger.withdrawn("s") == {1, 2}
    assert desk.ledger.again("s", [desk.trial(1), desk.trial(3)]) == 2
    assert desk.ledger.withdrawn("s") == {2}


def test_a_sweep_that_is_paused_is_not_finished_by_withdrawal(desk: Desk) -> None:
    """Whoever paused it may be about to make other trials wait."""
    desk.submitted(1)
    desk.ledger.steer("s", "paused", ["active"])
    assert desk.ledger.withdraw("s", [1]) == 1
    assert desk.sweep().status == "paused"
    assert desk.ledger.steer("s", "active", ["paused"]) == "paused"
    assert desk.sweep().status == "finished"


def test_a_content_is_reserved_once(desk: Desk) -> None:
    """Of two that want it in place of the same sweep the first one has it, and both are told so."""
    assert desk.ledger.holder("print") == ""
    assert desk.ledger.reserve("print", "", "a") == "a"
    assert desk.ledger.reserve("print", "", "b") == "a"
    assert desk.ledger.reserve("print", "a", "c") == "c"
    assert desk.ledger.holder("print") == "c"


def test_numbers_may_have_gaps(desk: Desk) -> None:
    """The size is the highest of them."""
    made = desk.submitted(2)
    desk.ledger.add("s", made, planned([5, 12]))
    assert desk.ledger.numbers("s") == [1, 2, 5, 12]
    assert desk.ledger.size("s") == 12
    assert [trial.planned.number for trial in desk.ledger.trials("s")] == [1, 2, 5, 12]
    desk.ledger.remove("s")
    assert desk.ledger.size("s") == 0


def test_a_finished_sweep_is_extended(desk: Desk) -> None:
    """Trials are added, it becomes active, and is finished again."""
    made = desk.submitted(1)
    desk.ended("passed")
    assert desk.ledger.add("s", made, planned([2]), ready_at=desk.store.clock()) == 1
    assert desk.ledger.steer("s", "active", ["finished"]) == "finished"
    assert desk.sweep().ended_at == 0
    desk.ended("passed", "b")
    assert desk.sweep().status == "finished"


# --- revising ---------------------------------------------------------------------------------------------------


def test_a_revision_moves_what_waits_to_its_lanes(desk: Desk) -> None:
    """No lane of the earlier binding is left; the new bounds hold, also for those that run already."""
    desk.submitted(8, concurrency=4)
    claims = [desk.claimed(holder) for holder in "abc"]
    revised = definition(concurrency_per={"model": {"*": 2}})
    desk.ledger.revise("s", revised, "print-2")
    assert desk.ledger.definition("s") == (revised, 2)
    assert {lane.key for lane in desk.ledger.lanes("s", revised)} == {'{"model":"opus"}', '{"model":"sonnet"}'}
    assert desk.slots() == {'{"model":"opus"}': 2, '{"model":"sonnet"}': 1}
    assert desk.claimed("d").number == 4, "1 and 3 are of opus and run"
    assert taken(desk.ledger, "e") == Refusal("bounds")
    for claim in claims:
        assert settled(desk.ledger, claim, "passed", attempt(claim, 1, "passed"))
    assert desk.slots() == {'{"model":"sonnet"}': 1}
    desk.ledger.revise("s", definition(), "print-3")
    assert desk.slots() == {}
    assert [lane.key for lane in desk.ledger.lanes("s", definition())] == ["{}"]
    assert [desk.claimed(holder).number for holder in "fghi"] == [5, 6, 7, 8]


def test_a_revision_is_known_by_its_content(desk: Desk) -> None:
    """A sweep that was revised is no longer the one of the earlier content, and workers hear of its new queue."""
    desk.submitted(1)
    desk.ledger.create("later", definition(), "print-s", "me")
    desk.ledger.revise("s", definition(retries=9), "print-s")
    assert desk.ledger.holder("print-s") == "later", "it was submitted last"
    desk.ledger.remove("later")
    desk.ledger.revise("s", definition(queue="fast", priority="high"), "print-2")
    assert desk.ledger.latest_of("print-s") is None
    assert keys.sweep_of("print-s") not in desk.all_keys()
    found = desk.ledger.latest_of("print-2")
    assert found is not None
    assert (found.id, found.revision, found.definition.queue) == ("s", 3, "fast")
    assert desk.ledger.open() == [OpenSweep("s", "fast", "high")]
    assert desk.ledger.fingerprint("s") == "print-2"


def test_who_follows_an_earlier_definition_loses_nothing(desk: Desk) -> None:
    """It claims nothing by bounds that hold no more, and what it puts into a lane comes into the right one."""
    old = desk.submitted(4)
    lanes = desk.ledger.lanes("s", old)
    first, second = desk.claimed("a"), desk.claimed("b")
    assert settled(desk.ledger, first, "error", attempt(first, 1, "error"))
    revised = definition(concurrency_per={"model": {"*": 1}})
    desk.ledger.revise("s", revised, "print-2")
    assert desk.ledger.claim("s", old, lanes, "c", LEASE_MS) == Refusal("bounds")
    assert desk.ledger.lanes("s", old) == []
    assert settled(desk.ledger, second, None, None, by=old)
    assert desk.ledger.add("s", old, planned([5])) == 1
    assert desk.ledger.again("s", [desk.trial(1)]) == 1
    lanes_there = {bytes(lane).decode() for lane in desk.bench.call("SMEMBERS", keys.sweep("s", "lanes"))}
    assert lanes_there == {'{"model":"opus"}', '{"model":"sonnet"}'}
    assert [desk.claimed(holder).number for holder in "cd"] == [1, 2]
    assert taken(desk.ledger, "e") == Refusal("bounds")


def test_a_revision_that_was_left_in_the_middle_is_completed(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the first worker that asks for the lanes."""
    desk.submitted(2 * PAGE + 1)
    revised = definition(concurrency_per={"model": {"*": 9}})
    with monkeypatch.context() as patched:
        patched.setattr(desk.ledger, "lanes", lambda *_: [])
        desk.ledger.revise("s", revised, "print-2")
    assert {bytes(lane) for lane in desk.bench.call("SMEMBERS", keys.sweep("s", "lanes"))} == {b"{}"}
    assert len(desk.ledger.lanes("s", revised)) == 2
    assert desk.claimed("a").number == 1


def test_withdrawing_and_cancelling_find_what_a_revision_has_left(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever lane it waits in."""
    desk.submitted(6)
    with monkeypatch.context() as patched:
        patched.setattr(desk.ledger, "lanes", lambda *_: [])
        desk.ledger.revise("s", definition(concurrency_per={"model": {"*": 9}}), "print-2")
    assert desk.ledger.withdraw("s", [1, 2]) == 2
    with monkeypatch.context() as patched:
        patched.setattr(desk.ledger, "lanes", lambda *_: [])
        desk.ledger.revise("s", definition(concurrency_per={"task": {"*": 9}}), "print-3")
    desk.ledger.steer("s", "cancelled", ["active"])
    assert desk.counts() == {"cancelled": 6}


def test_cancelling_misses_no_lane_that_has_just_come(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lane that came between the look at the lanes and the cancellation is looked for again."""
    desk.submitted(4, concurrency_per={"model": {"*": 9}})
    every = desk.ledger._lanes("s")
    seen = [every, every[:1], []]
    with monkeypatch.context() as patched:
        patched.setattr(desk.ledger, "_lanes", lambda _: seen.pop())
        assert desk.ledger.steer("s", "cancelled", ["active"]) == "active"
    assert seen == [], "it has looked until all were there"
    assert desk.counts() == {"cancelled": 4}


# --- removing and telling ---------------------------------------------------------------------------------------


def test_nothing_is_left_of_a_sweep_that_was_removed(desk: Desk) -> None:
    """Whatever it had, and whatever those who worked on it still say; another sweep keeps everything."""
    desk.submitted(1, "other")
    others = desk.all_keys()
    desk.submitted(6, concurrency_per=PER_MODEL)
    desk.ended("passed", "a")
    desk.ledger.hold("s", "host", "why")
    desk.ledger.serve("s")
    desk.ledger.revise("s", definition(concurrency_per={"task": {"*": 1}}), "print-2")
    claim = desk.claimed("b")
    assert desk.ledger.note(claim, attempt(claim), LEASE_MS)
    desk.ledger.remove("s")
    assert desk.all_keys() == others
    assert not desk.ledger.note(claim, attempt(claim), LEASE_MS)
    assert not desk.ledger.settle(claim, {"model": "opus"}, definition(), attempt(claim, 1, "passed"), "passed")
    assert desk.ledger.renew("s", [claim], LEASE_MS) == ("cancelled", {claim.token})
    desk.ledger.hold("s", "host", "why")
    desk.ledger.remove("s")
    assert desk.all_keys() == others
    assert desk.ledger.ids() == ["other"] == [each.id for each in desk.ledger.open()]
    assert desk.ledger.served(["s"]) == [0]


def test_a_removal_leaves_the_content_to_a_later_sweep(desk: Desk) -> None:
    """The one that was submitted last with it is found still."""
    desk.submitted(1)
    desk.ledger.create("later", definition(), "print-s", "me")
    desk.ledger.remove("s")
    found = desk.ledger.latest_of("print-s")
    assert found is not None
    assert found.id == "later"


def test_the_feed_tells_every_change(redis_bench: RedisBench) -> None:
    """In order, of trials and of the sweep itself, from any position on."""
    desk = Desk(redis_bench, redis_bench.redis_store)
    desk.submitted(3)
    claim = desk.claimed("a")
    settled(desk.ledger, claim, None, None)
    desk.ended("failed", "b")
    assert desk.ledger.withdraw("s", [2]) == 1
    position = desk.ledger.latest_change("s")
    assert desk.told() == [
        (0, "active"),
        (1, "running"),
        (1, "pending"),
        (1, "running"),
        (1, "failed"),
        (2, "cancelled"),
    ]
    desk.ledger.again("s", [desk.trial(1)])
    desk.ledger.steer("s", "cancelled", ["active"], "why")
    assert desk.told(position) == [(1, "pending"), (1, "cancelled"), (3, "cancelled"), (0, "cancelled")]
    first, second = desk.ledger.changes("s", "0-0", 2)
    assert isinstance(first, Change)
    assert desk.ledger.changes("s", first.position, 1) == [second]


def test_the_feed_tells_nothing_twice(desk: Desk) -> None:
    """However often a reply is lost."""
    desk.submitted(1)
    desk.ended("passed")
    assert desk.told() == [(0, "active"), (1, "running"), (1, "passed"), (0, "finished")]


# --- shared limits ----------------------------------------------------------------------------------------------


def test_no_more_are_in_flight_than_a_limit_allows(desk: Desk) -> None:
    """A place that is released, or whose lease has run out, is free."""
    limit = Limit("x", in_flight=2)
    assert desk.limits.take(limit, "a", LEASE_MS) is None
    assert desk.limits.take(limit, "b", LEASE_MS) is None
    # A lease that is short from the beginning may run out between a take and its repetition.
    moment = desk.store.clock()
    desk.bench.call("ZADD", keys.limit("x", "held"), moment, "b")
    desk.bench.let_pass(moment)
    assert desk.limits.usage("x") == LimitUsage(in_flight=1, last_minute=2)
    assert desk.limits.take(limit, "c", LEASE_MS) is None
    assert desk.limits.take(limit, "d", LEASE_MS) == Wait(used=2, wait_ms=0)
    assert not desk.limits.renew("x", "b", LEASE_MS), "its place was given to another"
    desk.limits.release("x", "a")
    desk.limits.release("x", "a")
    assert desk.limits.take(limit, "d", LEASE_MS) is None
    assert desk.limits.usage("x") == LimitUsage(in_flight=2, last_minute=4)
    assert desk.limits.usage("y") == LimitUsage(in_flight=0, last_minute=0)


def test_a_place_is_taken_once(desk: Desk) -> None:
    """However often its holder asks; its lease is prolonged by renewal alone."""
    limit = Limit("x", in_flight=1, per_minute=1)
    for _ in range(3):
        assert desk.limits.take(limit, "a", LEASE_MS) is None
    assert desk.limits.usage("x") == LimitUsage(in_flight=1, last_minute=1)
    score = int(desk.bench.call("ZSCORE", keys.limit("x", "held"), "a"))
    assert desk.limits.renew("x", "a", 10 * LEASE_MS)
    assert int(desk.bench.call("ZSCORE", keys.limit("x", "held"), "a")) >= score + 8 * LEASE_MS
    assert not desk.limits.renew("x", "b", LEASE_MS)
    assert desk.limits.usage("x").in_flight == 1


def test_no_more_begin_within_a_minute_than_a_limit_allows(desk: Desk) -> None:
    """In any 60 seconds; whoever has to wait is told until when, and who begins twice counts twice."""
    limit = Limit("x", per_minute=3)
    begun = keys.limit("x", "begun")
    now = desk.store.clock()
    for age, name in ((70_000, "gone"), (59_000, "one"), (30_000, "two")):
        desk.bench.call("ZADD", begun, now - age, name)
    assert desk.limits.take(limit, "a", LEASE_MS) is None
    desk.limits.release("x", "a")
    refused = desk.limits.take(limit, "a", LEASE_MS)
    assert refused is not None
    assert refused.used == 0
    assert 0 < refused.wait_ms <= 1_000, "until the oldest of them is a minute old"
    narrower = desk.limits.take(Limit("x", per_minute=2), "a", LEASE_MS)
    assert narrower is not None
    assert 25_000 < narrower.wait_ms <= 30_000, "two of them have to be a minute old"
    desk.bench.call("ZREM", begun, "one", "two")
    for _ in range(2):
        assert desk.limits.take(limit, "a", LEASE_MS) is None
        desk.limits.release("x", "a")
    assert desk.limits.take(limit, "a", LEASE_MS) is not None
    assert desk.limits.usage("x") == LimitUsage(in_flight=0, last_minute=3)


def test_a_place_that_was_not_used_counts_for_no_minute(desk: Desk) -> None:
    """Whoever took a place and found no trial for it gives it back as if it had never been taken."""
    limit = Limit("brief", per_minute=1)
    assert desk.limits.take(limit, "early", LEASE_MS) is None
    desk.limits.release("brief", "early", unused=True)
    assert desk.limits.take(limit, "late", LEASE_MS) is None
    desk.limits.release("brief", "late")
    assert desk.limits.take(limit, "later", LEASE_MS) is not None


def test_a_limit_that_is_used_no_more_leaves_nothing(desk: Desk) -> None:
    """Its places are released, and its beginnings are forgotten after a minute."""
    assert desk.limits.take(Limit("x"), "a", LEASE_MS) is None
    desk.limits.release("x", "a")
    assert desk.all_keys() == {keys.limit("x", "begun")}
    assert 0 < desk.bench.call("PTTL", keys.limit("x", "begun")) <= 60_000


def test_a_limit_is_shared_by_many(redis_bench: RedisBench) -> None:
    """Threads that take, look and release never find more places in use than there are."""
    limits = SharedLimits(redis_bench.redis_store)
    limit = Limit("x", in_flight=3, per_minute=40)

    def work(name: int) -> int:
        begun = 0
        for turn in range(40):
            if limits.take(limit, f"{name}.{turn}", LEASE_MS) is None:
                begun += 1
                assert limits.usage("x").in_flight <= 3
                limits.release("x", f"{name}.{turn}")
        return begun

    with ThreadPoolExecutor(4) as pool:
        begun = sum(pool.map(work, range(4)))
    assert begun <= 40
    assert limits.usage("x") == LimitUsage(in_flight=0, last_minute=begun)


def test_attempts_of_a_page_are_read_whole(desk: Desk) -> None:
    """Several attempts of several trials come with their own trial, oldest first."""
    desk.submitted(2)
    wanted: dict[int, list[Attempt]] = {1: [], 2: []}
    for count in (1, 2, 3):
        for number in (1, 2):
            claim = desk.claimed(f"{count}.{number}")
            assert claim.number == number
            ended = attempt(claim, count, "error", detail=f'{count} "ended_at": {number}')
            wanted[number].append(ended)
        for claim in desk.ledger.claims("s"):
            assert settled(desk.ledger, claim, None, wanted[claim.number][-1])
    assert {trial.planned.number: list(trial.attempts) for trial in desk.ledger.trials("s")} == wanted
