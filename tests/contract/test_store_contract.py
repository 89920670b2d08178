"""What every store promises to the coordinator, and what the Redis one keeps under which key."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from typing import Any, get_args

import pytest
from msgspec.structs import replace

from statem_dist.errors import StoredDataUnreadable, Unavailable
from statem_dist.protocol.commands import (
    Cancel,
    CancelRun,
    ClaimWork,
    Command,
    Decide,
    Goto,
    Pause,
    RecordOutcomes,
    Save,
    Start,
)
from statem_dist.protocol.decide import decide
from statem_dist.protocol.evolve import evolve, replay
from statem_dist.protocol.graph import Check, Manual, Node, Runbook
from statem_dist.protocol.model import SCHEMA, Run, RunStatus
from statem_dist.store import keys
from statem_dist.store.base import Change, Overdue, Push, Snapshot, Store
from statem_dist.store.codec import Receipt, StoredRunbook, encode_run
from statem_dist.store.redis_client import RedisClient, connect
from statem_dist.store.redis_store import COMMIT, LOG_SECONDS, RECEIPT_SECONDS, STOPS_SECONDS, RedisStore
from tests.contract.conftest import Bench, RedisBench
from tests.support.builders import AGENT, PASSED, PLACE, WORKER, loop, one_by_one, shell
from tests.support.servers import RealServer

RUNBOOK = loop(Node("a", before_transfer=one_by_one(shell())))
LEASE_MS = 60_000

_operations = count(1)


def decided(run: Run | None, command: Command, *, operation: str | None = None, now: int = 1000) -> Change:
    """Return a command's decision on a run, ready to be committed; nothing is due and nothing is sent."""
    events = decide(run, command, now)
    after = run
    for event in events:
        after = evolve(after, event)
    assert after is not None
    return Change(
        before=run,
        after=after,
        events=tuple(events),
        operation=operation or f"op{next(_operations)}",
        due_ms=None,
        lease_ms=LEASE_MS,
    )


def start(run_id: str = "r", **labels: str) -> Start:
    """Return the command that creates a run."""
    return Start(run_id=run_id, runbook=RUNBOOK, place=PLACE, by=AGENT, labels=labels)


def goto() -> Goto:
    """Return the command that opens a transition with one check."""
    return Goto(runbook=RUNBOOK, target="b", by=AGENT)


def save() -> Save:
    """Return a command that adds two events and needs nobody."""
    return Save(runbook=RUNBOOK, by=AGENT)


def written(store: Store, change: Change) -> Run:
    """Commit a change that nobody contests, and return the run."""
    assert store.commit(change) is None
    return change.after


def created(store: Store, run_id: str = "r", *, now: int = 1000, **labels: str) -> Run:
    """Create a run."""
    return written(store, decided(None, start(run_id, **labels), now=now))


def claimed(store: Store, lease_ms: int = LEASE_MS) -> Run:
    """Create a run with an open transition whose one check is claimed."""
    run = written(store, decided(created(store), goto()))
    claim = ClaimWork(transition="t2", check="before_transfer.0", worker=WORKER)
    return written(store, replace(decided(run, claim), lease_ms=lease_ms))


def listed(store: Store, status: str | None, limit: int, **options: Any) -> list[str]:
    """Return the ids of runs in the order of their marks."""
    return [run_id for _, run_id in store.marks(status, limit, **options)]


def loaded(store: Store, run_id: str = "r") -> Run:
    """Return the run as it is stored."""
    snapshot = store.load(run_id)
    assert snapshot is not None
    return snapshot.run


# --- commits --------------------------------------------------------------------------------------------------


def test_what_was_committed_is_loaded(bench: Bench) -> None:
    """The stored run equals the one that was committed, and is the fold of the stored events."""
    assert bench.store.load("r") is None
    run = created(bench.store, model="small")
    assert loaded(bench.store) == run
    run = written(bench.store, decided(run, goto()))
    assert loaded(bench.store) == run
    events = bench.store.events("r")
    assert [number for number, _ in events] == list(range(1, run.version + 1))
    assert replay(event for _, event in events) == run


def test_a_lost_race_writes_nothing(bench: Bench) -> None:
    """A commit on an old version returns the current one and leaves document, events, indices and queues alone."""
    old = created(bench.store)
    run = written(bench.store, decided(old, save()))
    late = replace(decided(old, goto()), due_ms=5, pushes=(Push("checks", b"x"),))
    assert bench.store.commit(late) == run.version
    assert loaded(bench.store) == run
    assert len(bench.store.events("r")) == run.version
    assert bench.messages("checks") == []
    assert bench.due("r") is None
    assert listed(bench.store, "moving", 10) == []


def test_a_run_is_created_once(bench: Bench) -> None:
    """A second creation is told the version of the first; a commit on a run that does not exist is told 0."""
    run = created(bench.store)
    assert bench.store.commit(decided(None, start())) == run.version
    stranger = decided(decided(None, start("other")).after, save())
    assert bench.store.commit(stranger) == 0
    assert bench.store.load("other") is None


def test_a_repeated_commit_is_applied_once(bench: Bench) -> None:
    """After a lost reply the same commit succeeds again, without a second event, message or lease."""
    run = created(bench.store)
    change = replace(decided(run, goto()), pushes=(Push("checks", b"x"),))
    assert bench.store.commit(change) is None
    assert bench.store.commit(change) is None
    assert len(bench.store.events("r")) == change.after.version
    assert bench.messages("checks") == [b"x"]


def test_a_repeated_commit_succeeds_after_others_have_followed(bench: Bench) -> None:
    """The answer to a retry is that of the first try, also when the run has moved on since, and changes nothing."""
    first = decided(created(bench.store), save(), operation="abc")
    run = written(bench.store, first)
    run = written(bench.store, decided(run, goto()))
    assert bench.store.commit(first) is None
    assert loaded(bench.store) == run


def test_operation_ids_are_compared_as_a_whole(bench: Bench) -> None:
    """An operation whose id is the beginning or the end of an earlier one is another operation."""
    run = written(bench.store, decided(created(bench.store), save(), operation="abcdef"))
    for operation in ("abc", "def", "bcde"):
        stale = decided(decided(None, start()).after, save(), operation=operation)
        assert bench.store.commit(stale) == run.version


def test_sixteen_operations_are_remembered(bench: Bench) -> None:
    """The sixteenth operation back is still known, the seventeenth is forgotten: its repetition is a lost race."""
    change = decided(None, start())
    changes = [change]
    written(bench.store, change)
    for _ in range(16):
        changes.append(decided(changes[-1].after, save()))
        written(bench.store, changes[-1])
    assert bench.store.commit(changes[1]) is None
    assert bench.store.commit(changes[0]) == changes[-1].after.version


def test_events_are_read_forwards_and_backwards(bench: Bench) -> None:
    """Events carry their numbers and come in pages, from either end."""
    run = created(bench.store)
    while run.version < 9:
        run = written(bench.store, decided(run, save()))
    everything = bench.store.events("r")
    assert bench.store.events("r", after=4, limit=2) == everything[4:6]
    assert bench.store.events("r", after=run.version) == []
    assert bench.store.latest_events("r", None, 3) == everything[:-4:-1]
    assert bench.store.latest_events("r", 4, 2) == [everything[2], everything[1]]
    assert bench.store.latest_events("r", 1, 10) == []
    assert bench.store.events("nobody") == []


# --- indices --------------------------------------------------------------------------------------------------


def test_the_status_index_follows_the_run(bench: Bench) -> None:
    """A run is listed under the status that it has, and under no other."""
    run = created(bench.store)

    def statuses() -> list[str]:
        return [status for status in get_args(RunStatus) if listed(bench.store, status, 10)]

    assert statuses() == ["active"]
    run = written(bench.store, decided(run, goto()))
    assert statuses() == ["moving"]
    run = written(bench.store, decided(run, Cancel(transition="t2", reason="", by=AGENT)))
    assert statuses() == ["active"]
    asking = loop(Node("a", before_transfer=one_by_one(Check(do=Manual("sure?")))))
    asked = Goto(runbook=asking, target="b", by=AGENT, on_manual="wait")
    run = written(bench.store, decided(run, asked))
    assert statuses() == ["waiting"]
    run = written(bench.store, decided(run, Decide("t3", "before_transfer.0", True, "", AGENT)))
    assert statuses() == ["active"]
    run = written(bench.store, decided(run, Pause(reason="", by=AGENT)))
    assert statuses() == ["paused"]
    written(bench.store, decided(run, CancelRun(reason="", by=AGENT)))
    assert statuses() == ["cancelled"]


def test_a_finished_run_is_listed_as_finished(bench: Bench) -> None:
    """A run that is created on an end of its runbook is finished at once."""
    end = Runbook(hash="e", name="end", initial="a", nodes=(Node("a"),))
    written(bench.store, decided(None, Start(run_id="r", runbook=end, place=PLACE, by=AGENT)))
    assert listed(bench.store, "finished", 10) == ["r"]


def test_runs_are_listed_newest_first(bench: Bench) -> None:
    """Ids come by creation, newest first, across all shards, up to the limit."""
    ids = [f"run-{number}" for number in range(20)]
    for number, run_id in enumerate(ids):
        created(bench.store, run_id, now=1000 + number)
    assert len({keys.shard_of(run_id) for run_id in ids}) > 1
    assert listed(bench.store, None, 100) == ids[::-1]
    assert listed(bench.store, None, 3) == ids[:-4:-1]
    assert listed(bench.store, "active", 3) == ids[:-4:-1]


def test_a_label_has_an_index_of_its_own(bench: Bench) -> None:
    """Runs are listed by one of their labels, newest first; a label of another value is another one."""
    for number in range(6):
        created(bench.store, f"run-{number}", now=1000 + number, model="small" if number % 2 else "large")
    assert listed(bench.store, None, 10, label=("model", "small")) == ["run-5", "run-3", "run-1"]
    assert listed(bench.store, None, 10, label=("model", "huge")) == []


def test_a_walk_by_pages_meets_each_run_once(bench: Bench) -> None:
    """Pages follow the order of creation, also among runs of one millisecond and while others are added and removed."""
    for number in range(60):
        created(bench.store, f"run-{number:02}", now=1000 + number // 20)
    met: list[str] = []
    before: tuple[int, str] | None = None
    while page := listed(bench.store, None, 7, before=before):
        met += page
        before = (loaded(bench.store, page[-1]).created_at, page[-1])
        created(bench.store, f"later-{len(met)}", now=2000)
    assert met == [f"run-{number:02}" for number in reversed(range(60))]
    assert listed(bench.store, None, 3, before=(1001, "run-30x")) == ["run-30", "run-29", "run-28"]
    forward: list[str] = []
    after = (0, "")
    while page := listed(bench.store, "active", 7, after=after):
        forward += page
        after = (loaded(bench.store, page[-1]).created_at, page[-1])
    assert forward[:60] == [f"run-{number:02}" for number in range(60)]
    assert sorted(forward) == sorted({*forward}) == sorted(listed(bench.store, "active", 100))


def test_many_runs_are_loaded_at_once(bench: Bench) -> None:
    """Each is the one that ``load`` gives, in the order that was asked for, and nothing where there is none."""
    first, second = created(bench.store, "a"), created(bench.store, "b")
    found = bench.store.load_many(["b", "none", "a"])
    assert [each.run if isinstance(each, Snapshot) else each for each in found] == [second, None, first]
    assert bench.store.load_many([]) == []


def test_a_receipt_is_written_with_its_commit_and_only_with_it(bench: Bench) -> None:
    """What a request led to is known from its commit on; a commit that lost its race leaves none."""
    old = created(bench.store)
    receipt = Receipt(request="key", fingerprint="f", transition="t2")
    written(bench.store, replace(decided(old, goto()), receipt=receipt))
    assert bench.store.receipt("r", "key") == receipt
    assert bench.store.receipt("r", "other") is None
    assert bench.store.receipt("other", "key") is None
    late = replace(decided(old, save()), receipt=replace(receipt, request="late"))
    assert bench.store.commit(late) is not None
    assert bench.store.receipt("r", "late") is None


def test_a_receipt_lives_for_a_day(redis_bench: RedisBench) -> None:
    """It expires by itself."""
    run = created(redis_bench.store)
    written(redis_bench.store, replace(decided(run, save()), receipt=Receipt("key", "f")))
    left = redis_bench.call("TTL", keys.receipt("r", "key"))
    assert RECEIPT_SECONDS - 60 < left <= RECEIPT_SECONDS


def test_the_feed_tells_of_every_commit(redis_bench: RedisBench) -> None:
    """Each commit is one entry with the numbers of its events, and reading goes on after any of them."""
    store = redis_bench.redis_store
    run = created(store)
    shard = keys.shard_of("r")
    ends = store.feed_ends()
    assert [end != "0-0" for end in ends] == [number == shard for number in range(keys.SHARDS)]
    after = written(store, decided(run, save()))
    entries = store.feed_since(ends, 10)[shard]
    assert entries is not None
    assert [(each.run_id, each.first, each.last) for each in entries] == [("r", run.version + 1, after.version)]
    assert store.feed_ends()[shard] == entries[0].position
    whole = store.feed_since(["0-0"] * keys.SHARDS, 10)[shard]
    assert whole is not None
    assert [each.last for each in whole] == [run.version, after.version]


def test_a_feed_that_no_longer_reaches_back_says_so(redis_bench: RedisBench) -> None:
    """Who comes back after entries were dropped is told that some are missing."""
    store = redis_bench.redis_store
    run = created(store)
    ends = store.feed_ends()
    shard = keys.shard_of("r")
    for _ in range(3):
        run = written(store, decided(run, save()))
    redis_bench.call("XTRIM", keys.feed(shard), "MAXLEN", 1)
    assert store.feed_since(ends, 10)[shard] is None


def test_runbooks_are_immutable(bench: Bench) -> None:
    """The first registration under a hash stays."""
    first = StoredRunbook(runbook=RUNBOOK, text="first", source="a.yaml")
    bench.store.save_runbook(first)
    bench.store.save_runbook(replace(first, text="second"))
    assert bench.store.runbook(RUNBOOK.hash) == first
    assert bench.store.runbook("unknown") is None


def test_scopes_point_to_their_latest_run(bench: Bench) -> None:
    """Each scope has the run that was activated last; others are not touched."""
    assert bench.store.active("here") is None
    bench.store.activate(["here", "here/x"], "one")
    bench.store.activate(["here"], "two")
    assert [bench.store.active(scope) for scope in ("here", "here/x")] == ["two", "one"]


def test_what_a_session_was_told_is_kept_per_run(bench: Bench) -> None:
    """The latest document of a session is found by run and session, and by nothing else."""
    bench.store.save_stops("r", "s", b"old")
    bench.store.save_stops("r", "s", b"new")
    assert [bench.store.stops(*where) for where in (("r", "s"), ("r", "t"), ("q", "s"))] == [b"new", None, None]


def test_dynamic_checks_are_kept_per_entry_and_agent(bench: Bench) -> None:
    """Each agent has one document per entry; another agent, entry or run is not touched by it."""
    store = bench.store
    assert store.dynamic("r", "r-e1") == {}
    store.save_dynamic("r", "r-e1", "implementer", b"first")
    store.save_dynamic("r", "r-e1", "a critic: ü/x", b"\x00\xff")
    store.save_dynamic("r", "r-e2", "implementer", b"later")
    store.save_dynamic("other", "r-e1", "implementer", b"other")
    store.save_dynamic("r", "r-e1", "implementer", b"second")
    assert store.dynamic("r", "r-e1") == {"implementer": b"second", "a critic: ü/x": b"\x00\xff"}
    assert store.dynamic("r", "r-e2") == {"implementer": b"later"}
    assert store.dynamic("r", "r-e3") == {}


def test_logs_are_kept_per_check(bench: Bench) -> None:
    """The longer output of a check is found by run, transition and check."""
    bench.store.save_log("r", "t1", "in_hook.0", "höchst ausführlich")
    assert bench.store.log("r", "t1", "in_hook.0") == "höchst ausführlich"
    assert bench.store.log("r", "t2", "in_hook.0") is None


# --- leases and reminders -------------------------------------------------------------------------------------


def test_a_claim_has_a_lease_until_it_ends(bench: Bench) -> None:
    """A lease begins with its claim, by the server's clock, and is gone when the claim is."""
    run = claimed(bench.store)
    snapshot = bench.store.load("r")
    assert snapshot is not None
    assert 0 < snapshot.leases[1] - snapshot.now <= LEASE_MS
    outcome = RecordOutcomes(transition="t2", token=1, worker=WORKER, outcomes=(PASSED,))
    written(bench.store, decided(run, outcome))
    snapshot = bench.store.load("r")
    assert snapshot is not None
    assert snapshot.leases == {}
    assert not bench.store.renew("r", 1, LEASE_MS)


def test_a_live_lease_is_renewed(bench: Bench) -> None:
    """Renewing moves the expiry to the full length from now."""
    claimed(bench.store)
    before = bench.store.load("r")
    assert before is not None
    assert bench.store.renew("r", 1, 2 * LEASE_MS)
    after = bench.store.load("r")
    assert after is not None
    assert after.leases[1] > before.leases[1]
    assert not bench.store.renew("r", 2, LEASE_MS), "nobody holds that token"
    assert not bench.store.renew("nobody", 1, LEASE_MS)


def test_a_lease_is_renewed_by_its_holder_alone(bench: Bench) -> None:
    """The same token of a future that the store has lost keeps nobody else's claim; a renewal changes no holder."""
    run = written(bench.store, decided(created(bench.store), goto()))
    claim = ClaimWork(transition="t2", check="before_transfer.0", worker=WORKER)
    written(bench.store, replace(decided(run, claim), lease_ms=LEASE_MS, operation="abc123"))
    for _ in range(2):
        assert bench.store.renew("r", 1, LEASE_MS, "abc123")
        assert not bench.store.renew("r", 1, LEASE_MS, "abc124")
    snapshot = bench.store.load("r")
    assert snapshot is not None
    assert 0 < snapshot.leases[1] - snapshot.now <= LEASE_MS


def test_an_expired_lease_is_not_renewed(bench: Bench) -> None:
    """Once a lease has run out it stays lost: somebody else may have seen it."""
    claimed(bench.store, lease_ms=1)
    snapshot = bench.store.load("r")
    assert snapshot is not None
    bench.let_pass(snapshot.leases[1])
    assert not bench.store.renew("r", 1, LEASE_MS)


def test_reminders_are_set_moved_and_removed(bench: Bench) -> None:
    """A commit sets when the run is due, the next one moves it, and one without a time removes it."""
    run = written(bench.store, replace(decided(None, start()), due_ms=0))
    first = bench.due("r")
    assert first is not None
    bench.let_pass(first)
    assert [overdue.run_id for overdue in bench.store.overdue(10)] == ["r"]
    run = written(bench.store, replace(decided(run, goto()), due_ms=3_600_000))
    second = bench.due("r")
    assert second is not None
    assert second - first >= 3_600_000
    assert list(bench.store.overdue(10)) == []
    written(bench.store, decided(run, Cancel(transition="t2", reason="", by=AGENT)))
    assert bench.due("r") is None


def test_overdue_runs_are_limited(bench: Bench) -> None:
    """No look returns more than was asked for of a shard, oldest reminder first."""
    shard = keys.shard_of("r")
    ids = [run_id for run_id in (f"x{number}" for number in range(200)) if keys.shard_of(run_id) == shard][:5]
    for number, run_id in enumerate(ids):
        written(bench.store, replace(decided(None, start(run_id)), due_ms=number - 10_000))
    assert [overdue.run_id for overdue in bench.store.overdue(3)] == ids[:3]


def test_messages_travel_with_the_commit(bench: Bench) -> None:
    """Messages lie in their queues, in the order in which they were committed."""
    first = (Push("checks", b"one"), Push("llm", b"review"), Push("checks", b"\x00\xff two"))
    run = written(bench.store, replace(decided(None, start(model="small")), pushes=first))
    written(bench.store, replace(decided(run, save()), pushes=(Push("checks", b"three"),)))
    assert bench.messages("checks") == [b"one", b"\x00\xff two", b"three"]
    assert bench.messages("llm") == [b"review"]


def test_a_reminder_is_answered_once(bench: Bench) -> None:
    """Two reapers that saw the same reminder: the first moves it and sends, the second does nothing."""
    run = written(bench.store, replace(decided(None, start()), due_ms=-1))
    (seen,) = bench.store.overdue(10)
    message = (Push("checks", b"again"),)
    assert bench.store.remind(seen, run.version, 3_600_000, message, hinted=True)
    assert not bench.store.remind(seen, run.version, 3_600_000, message, hinted=True)
    assert bench.messages("checks") == [b"again"]
    assert list(bench.store.overdue(10)) == []


def test_a_reminder_of_another_version_is_void(bench: Bench) -> None:
    """When the run has changed since it was looked at, nothing is sent; the change has set its own reminder."""
    run = written(bench.store, replace(decided(None, start()), due_ms=-1))
    (seen,) = bench.store.overdue(10)
    assert not bench.store.remind(seen, run.version + 1, 1000, (Push("checks", b"x"),), hinted=True)
    assert not bench.store.remind(Overdue("nobody", "1"), 1, 1000, (Push("checks", b"x"),), hinted=True)
    assert bench.messages("checks") == []
    assert bench.due("r") == int(seen.score)


def test_a_reminder_is_postponed_whatever_its_run_is(bench: Bench) -> None:
    """No version is compared; where there is no reminder, none is made."""
    written(bench.store, replace(decided(None, start()), due_ms=-1))
    now = bench.store.clock()
    bench.store.postpone("r", 3_600_000)
    due = bench.due("r")
    assert due is not None
    assert due >= now + 3_600_000
    bench.store.postpone("nobody", 1000)
    assert bench.due("nobody") is None


def test_only_the_reminder_of_a_run_that_is_gone_is_forgotten(bench: Bench) -> None:
    """The one of a run that is there stays."""
    written(bench.store, replace(decided(None, start()), due_ms=-1))
    bench.store.forget("r")
    bench.store.forget("nobody")
    assert bench.due("r") is not None


def test_repeated_messages_are_counted(bench: Bench) -> None:
    """The count of dispatches grows with each reminder that says it is one, also where the messages go by another
    broker, and a commit begins it anew."""
    run = written(bench.store, replace(decided(None, start()), due_ms=-1))
    counted = []
    here, both = (Push("checks", b"x"),), (Push("checks", b"x"), Push("llm", b"y"))
    reminders: tuple[tuple[tuple[Push, ...], bool], ...] = ((here, True), ((), False), ((), True), (both, True))
    for pushes, hinted in reminders:
        (seen,) = bench.store.overdue(10)
        assert bench.store.remind(seen, run.version, -1, pushes, hinted=hinted)
        snapshot = bench.store.load("r")
        assert snapshot is not None
        counted.append(snapshot.hints)
    assert counted == [1, 1, 2, 3]
    assert (bench.messages("checks"), bench.messages("llm")) == ([b"x", b"x"], [b"y"])
    written(bench.store, decided(run, save()))
    snapshot = bench.store.load("r")
    assert snapshot is not None
    assert snapshot.hints == 0


# --- Redis ----------------------------------------------------------------------------------------------------


def test_stream_ids_are_versions(redis_bench: RedisBench) -> None:
    """The entry of an event is ``VERSION-0``, so that a version can be looked up and followed without an index."""
    run = created(redis_bench.store)
    run = written(redis_bench.store, decided(run, save()))
    entries = redis_bench.call("XRANGE", keys.events("r"), "-", "+")
    assert [entry[0] for entry in entries] == [f"{number}-0".encode() for number in range(1, run.version + 1)]


def test_labels_are_indexed(redis_bench: RedisBench) -> None:
    """A run is listed under each of its labels, scored by its creation."""
    created(redis_bench.store, now=1234, model="small", task="x=y")
    for key, value in (("model", "small"), ("task", "x=y")):
        index = keys.label(keys.shard_of("r"), key, value)
        assert redis_bench.call("ZRANGE", index, 0, -1, "WITHSCORES") == [b"r", b"1234"]


def test_all_keys_of_a_run_share_a_slot(redis_bench: RedisBench) -> None:
    """Everything that one commit touches carries the same hash tag, apart from the broker's queues."""
    written(redis_bench.store, replace(decided(None, start(model="small")), due_ms=1))
    claimed_keys = {key.decode() for key in redis_bench.call("KEYS", "*")}
    assert {key.split(":")[1] for key in claimed_keys} == {f"{{{keys.shard_of('r')}}}"}


def test_only_logs_and_reminders_expire(redis_bench: RedisBench) -> None:
    """Nothing of a run has a time to live, but the longer outputs and what sessions were told, which have a week."""
    claimed(redis_bench.store)
    redis_bench.store.save_runbook(StoredRunbook(runbook=RUNBOOK, text="", source=""))
    redis_bench.store.save_log("r", "t1", "in_hook.0", "text")
    redis_bench.store.save_stops("r", "s", b"told")
    lives = {key.decode(): redis_bench.call("TTL", key) for key in redis_bench.call("KEYS", "*")}
    assert LOG_SECONDS - 60 < lives.pop(keys.log("r", "t1", "in_hook.0")) <= LOG_SECONDS
    assert STOPS_SECONDS - 60 < lives.pop(keys.stops("r", "s")) <= STOPS_SECONDS
    assert set(lives.values()) == {-1}


def test_commits_are_announced(redis_bench: RedisBench) -> None:
    """Each commit publishes the run's id and its new version on the channel of its shard; a lost race does not."""
    with redis_bench.client.pubsub() as subscription:  # type: ignore[no-untyped-call]
        subscription.subscribe(keys.moved(keys.shard_of("r")))
        run = created(redis_bench.store)
        redis_bench.store.commit(decided(None, start()))
        run = written(redis_bench.store, decided(run, save()))
        heard = [subscription.get_message(timeout=5) for _ in range(3)]
        assert [message["data"] for message in heard[1:] if message] == [b"r 3", f"r {run.version}".encode()]
        assert subscription.get_message(timeout=0) is None


def test_a_document_of_another_schema_is_refused(redis_bench: RedisBench) -> None:
    """A document that a newer version wrote is not guessed at, and the message says which versions are meant."""
    run = created(redis_bench.store)
    newer = encode_run(replace(run, schema=SCHEMA + 1))
    redis_bench.call("HSET", keys.run("r"), "doc", newer)
    with pytest.raises(StoredDataUnreadable, match=f"schema version {SCHEMA + 1}") as caught:
        redis_bench.store.load("r")
    assert caught.value.hint


@pytest.mark.parametrize("document", [b"", b"{", b"[]", b"{}", b'{"schema":1}', b"\xff"])
def test_a_damaged_document_is_refused(redis_bench: RedisBench, document: bytes) -> None:
    """A document that is no run is reported as unreadable, whatever is wrong with it."""
    created(redis_bench.store)
    redis_bench.call("HSET", keys.run("r"), "doc", document)
    with pytest.raises(StoredDataUnreadable):
        redis_bench.store.load("r")


def test_unknown_fields_are_refused(redis_bench: RedisBench) -> None:
    """A field that this version does not know would be lost with the next commit: the document is refused."""
    run = created(redis_bench.store)
    redis_bench.call("HSET", keys.run("r"), "doc", encode_run(run)[:-1] + b',"surprise":1}')
    with pytest.raises(StoredDataUnreadable, match="surprise"):
        redis_bench.store.load("r")


@pytest.mark.parametrize("entry", [b"{", b'{"event":"of_the_future","at":1}'])
def test_a_damaged_event_is_refused(redis_bench: RedisBench, entry: bytes) -> None:
    """The same for an event, of a kind that this version does not know or of no kind at all."""
    run = created(redis_bench.store)
    redis_bench.call("XADD", keys.events("r"), f"{run.version + 1}-0", "e", entry)
    with pytest.raises(StoredDataUnreadable):
        redis_bench.store.events("r")


def test_a_server_that_forgot_the_scripts_learns_them_again(redis_bench: RedisBench) -> None:
    """After SCRIPT FLUSH, as after a restart, the next call brings its script along."""
    run = created(redis_bench.store)
    redis_bench.call("SCRIPT", "FLUSH")
    assert loaded(redis_bench.store) == run
    redis_bench.call("SCRIPT", "FLUSH")
    written(redis_bench.store, decided(run, save()))
    assert redis_bench.call("SCRIPT", "EXISTS", COMMIT.sha) == [1]


def test_racing_threads_lose_nothing(redis_bench: RedisBench) -> None:
    """Sixteen threads on one run: every success is in the log once, and the version is their sum."""
    store = redis_bench.redis_store
    created(store)
    threads, successes_each = 16, 5
    barrier = threading.Barrier(threads)

    def work(_: int) -> int:
        barrier.wait()
        tries = 0
        for _ in range(successes_each):
            while True:
                tries += 1
                change = decided(loaded(store), replace(save(), request_id=f"q{next(_operations)}"))
                if store.commit(change) is None:
                    break
        return tries

    with ThreadPoolExecutor(threads) as pool:
        tries = sum(pool.map(work, range(threads)))
    run = loaded(store)
    events = store.events("r")
    assert run.version == len(events) == 3 + 2 * threads * successes_each
    assert run.transitions == 1 + threads * successes_each
    assert replay(event for _, event in events) == run
    assert tries >= threads * successes_each


# --- the real server ------------------------------------------------------------------------------------------


def test_the_server_is_never_asked_to_watch(real_bench: RedisBench) -> None:
    """Optimistic locking is the script's: no WATCH, no MULTI, and nothing that blocks."""
    real_bench.call("CONFIG", "RESETSTAT")
    run = claimed(real_bench.store)
    real_bench.store.renew("r", 1, LEASE_MS)
    real_bench.store.marks(None, 10)
    real_bench.store.overdue(10)
    real_bench.store.remind(Overdue("r", "1"), run.version, 1000, (), hinted=True)
    statistics = real_bench.call("INFO", "commandstats").decode()
    used = {line.split(":")[0].removeprefix("cmdstat_") for line in statistics.splitlines() if ":" in line}
    assert "evalsha" in used
    assert not used & {"watch", "multi", "exec", "blpop", "brpop", "wait", "keys", "scan"}


def test_a_commit_is_one_round_trip(real_bench: RedisBench) -> None:
    """Loading and committing cost one command each, once the server knows the scripts."""
    run = created(real_bench.store)
    loaded(real_bench.store)
    real_bench.call("CONFIG", "RESETSTAT")
    loaded(real_bench.store)
    written(real_bench.store, decided(run, save()))
    statistics = real_bench.call("INFO", "commandstats").decode()
    assert "cmdstat_evalsha:calls=2," in statistics
    assert "cmdstat_eval:" not in statistics


def test_data_and_scripts_survive_a_killed_server(private_server: RealServer) -> None:
    """A store whose server was killed with SIGKILL and comes back goes on by itself, with every commit there."""
    with connect(private_server.url) as client:
        store = RedisStore(RedisClient(client), patience_seconds=30)
        run = claimed(store)
        private_server.kill()
        back = threading.Thread(target=private_server.start)
        back.start()
        try:
            assert loaded(store) == run
            assert store.renew("r", 1, LEASE_MS)
            outcome = RecordOutcomes(transition="t2", token=1, worker=WORKER, outcomes=(PASSED,))
            run = written(store, decided(run, outcome))
            assert replay(event for _, event in store.events("r")) == run
        finally:
            back.join()


def test_patience_ends(private_server: RealServer) -> None:
    """A server that stays away is reported as unavailable, with what to do about it; nothing hangs."""
    with connect(private_server.url) as client:
        store = RedisStore(RedisClient(client), patience_seconds=0.05)
        run = created(store)
        private_server.stop()
        for ask in (lambda: store.load("r"), lambda: store.commit(decided(run, save())), lambda: store.overdue(1)):
            with pytest.raises(Unavailable, match="cannot be used") as caught:
                ask()
            assert "STATEM_REDIS_URL" in caught.value.hint


def test_a_full_server_refuses_at_once(private_server: RealServer) -> None:
    """Out of memory is no matter of patience: the store says so, and nothing was half written."""
    with connect(private_server.url) as client:
        store = RedisStore(RedisClient(client), patience_seconds=3600)
        run = created(store)
        store.call("CONFIG", "SET", "maxmemory", "1")
        with pytest.raises(Unavailable) as caught:
            store.commit(decided(run, save()))
        assert "maxmemory" in caught.value.hint
        assert loaded(store) == run
        assert len(store.events("r")) == run.version
