"""Removing runs that have ended: at the version that was seen, all at once, and nothing that lives."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from statem_dist.archive import Archive, ended_runs, leftovers_of, take_out
from statem_dist.coordinator import Applied, Coordinator, Terms
from statem_dist.dispatch import NoDispatch
from statem_dist.errors import Invalid, NotFound, StateRegressed
from statem_dist.protocol.commands import CancelRun, ClaimWork, ExpireClaim, Goto, Pause, RecordOutcomes, Restart, Start
from statem_dist.protocol.model import Run
from statem_dist.retention import FAILURES_PER_LOOK, Retention, may_go
from statem_dist.runbook import parse
from statem_dist.settings import Settings
from statem_dist.store import keys
from statem_dist.store.base import Leftovers, Store
from statem_dist.store.codec import StoredRunbook, encode_run
from statem_dist.sweep.ledger import Ledger
from statem_dist.transfer import is_there_already
from statem_dist.verification import StoredRunbooks, run_ids, strays, verify_run
from tests.contract.conftest import Bench, RedisBench
from tests.support.builders import AGENT, PASSED, PLACE, WORKER
from tests.support.ledgers import definition, planned
from tests.support.stored_runs import SETTINGS

PARSED = parse("nodes: {a: {next: b}, b: The end.}", source="x.yaml", format="yaml")
RUNBOOK = PARSED.runbook


def made(store: Store, run_id: str = "r", **labels: str) -> Run:
    """Make a run, and bring it to its end."""
    store.save_runbook(StoredRunbook(runbook=RUNBOOK, text=PARSED.text, source="x.yaml"))
    coordinator = Coordinator(store, NoDispatch(), SETTINGS)
    start = Start(run_id=run_id, runbook=RUNBOOK, place=PLACE, by=AGENT, labels=labels, request_id=f"start-{run_id}")
    coordinator.apply(run_id, start, None, Terms(request=f"start-{run_id}", fingerprint="f"))
    return coordinator.apply(run_id, Goto(runbook=RUNBOOK, target="b", by=AGENT, request_id=f"goto-{run_id}")).run


def test_a_run_is_removed_with_everything_that_is_kept_of_it(bench: Bench) -> None:
    """Document, events, marks, dynamic checks, outputs and receipts; a second time there is nothing to remove."""
    store = bench.store
    run = made(store, team="blue")
    other = made(store, "other", team="blue")
    store.save_dynamic("r", run.entry_id, "agent", b"{}")
    store.save_log("r", "t2", "before_transfer.0", "much")
    leftovers = leftovers_of(store, run, store.clock())
    assert run.entry_id in leftovers.entries
    assert "goto-r" in leftovers.requests
    assert store.receipt("r", "start-r") is not None
    leftovers = replace(leftovers, logs=(("t2", "before_transfer.0"),))
    assert store.remove(run, leftovers)
    assert store.load("r") is None
    assert store.events("r") == []
    assert store.dynamic("r", run.entry_id) == {}
    assert store.log("r", "t2", "before_transfer.0") is None
    assert store.receipt("r", "start-r") is None
    for status, label in ((None, None), ("finished", None), (None, ("team", "blue"))):
        assert [run_id for _, run_id in store.marks(status, 9, label=label)] == ["other"]
    assert not store.remove(run, leftovers)
    assert store.load("other") is not None
    assert other.ended


def test_a_run_that_has_moved_is_not_removed(bench: Bench) -> None:
    """Whoever saw an earlier version removes nothing, also when the run has ended again."""
    store = bench.store
    run = made(store)
    coordinator = Coordinator(store, NoDispatch(), SETTINGS)
    coordinator.apply("r", Restart(runbook=RUNBOOK, place=PLACE, by=AGENT))
    assert not store.remove(run, Leftovers())
    coordinator.apply("r", CancelRun(reason="enough", by=AGENT))
    assert not store.remove(run, Leftovers())
    now = coordinator.load("r").run
    assert len(store.events("r")) == now.version
    assert store.remove(now, Leftovers())


def test_nothing_of_a_removed_run_is_left_in_redis(real_bench: RedisBench) -> None:
    """No key and no place in an index names it, and the scope that pointed to it points nowhere."""
    store = real_bench.redis_store
    run = made(store, team="blue")
    store.activate(["/here", "/here:x"], "r")
    made(store, "kept")
    store.activate(["/there"], "kept")
    assert take_out(store, "r", None) is None
    store.release_pointers()
    assert (store.active("/here"), store.active("/here:x"), store.active("/there")) == (None, None, "kept")
    assert [key for key in real_bench.call("KEYS", "*") if key.endswith((b":r", b"=blue")) or b":r:" in key] == []
    assert list(strays(store)) == []
    assert list(run_ids(store)) == ["kept"]
    assert run.status == "finished"


def test_what_lives_is_never_taken_out(real_bench: RedisBench, tmp_path: Path) -> None:
    """Active, paused, and cancelled while something is executed: refused, and nothing of it is in the archive."""
    store = real_bench.redis_store
    coordinator = Coordinator(store, NoDispatch(), SETTINGS)
    archive = Archive(tmp_path / "archive")
    store.save_runbook(StoredRunbook(runbook=RUNBOOK, text=PARSED.text, source="x.yaml"))
    coordinator.apply("r", Start(run_id="r", runbook=RUNBOOK, place=PLACE, by=AGENT))
    for status in ("active", "paused"):
        if status == "paused":
            coordinator.apply("r", Pause(reason="lunch", by=AGENT))
        with pytest.raises(Invalid, match=f"is {status}"):
            take_out(store, "r", archive)
    assert list(ended_runs(store)) == []
    assert archive.files() == []
    with pytest.raises(NotFound):
        take_out(store, "nobody", archive)


def test_a_run_whose_document_is_not_its_history_stays(real_bench: RedisBench, tmp_path: Path) -> None:
    """What would come back from the archive is not what is stored: somebody has to look at it first."""
    store = real_bench.redis_store
    run = made(store)
    real_bench.call("HSET", keys.run("r"), "doc", encode_run(replace(run, entries=99)))
    with pytest.raises(Invalid, match="stays where it is"):
        take_out(store, "r", Archive(tmp_path))
    assert store.load("r") is not None


def test_a_run_comes_back_from_the_archive_as_it_was(real_bench: RedisBench, tmp_path: Path) -> None:
    """The same document and the same events; and of two runs of one id the archive keeps both."""
    store = real_bench.redis_store
    archive = Archive(tmp_path / "archive")
    run = made(store, team="blue")
    events = store.events("r")
    path = take_out(store, "r", archive)
    assert path is not None
    assert path.stat().st_mode & 0o777 == 0o600
    parcel = archive.load(archive.find("r"))
    assert (parcel.run, list(enumerate(parcel.events, start=1))) == (run, events)
    assert Coordinator(store, NoDispatch(), SETTINGS).adopt(parcel.events) == run
    assert is_there_already(store, parcel)
    assert store.events("r") == events
    assert verify_run(store, "r", StoredRunbooks(store)).violations == []
    assert take_out(store, "r", archive) == path
    real_bench.let_pass(run.created_at + 1)
    later = made(store, team="red")
    assert take_out(store, "r", archive) != path
    assert len(archive.files()) == 2
    assert archive.load(archive.find("r")).run == later


def test_a_run_that_comes_back_is_no_lost_write(real_bench: RedisBench, tmp_path: Path) -> None:
    """Who has seen a run before it was archived goes on with it after its import; what is lost later is noticed."""
    store = real_bench.redis_store
    archive = Archive(tmp_path / "archive")
    run = made(store)
    remembering = Coordinator(store, NoDispatch(), SETTINGS)
    before = remembering.load("r")
    take_out(store, "r", archive)
    Coordinator(store, NoDispatch(), SETTINGS).adopt(archive.load(archive.find("r")).events)
    assert remembering.load("r").run == run
    kept = real_bench.call("HGETALL", keys.run("r"))
    restart = Restart(runbook=RUNBOOK, place=PLACE, by=AGENT)
    assert remembering.apply("r", restart, before).run.version > run.version
    assert store.losses() == {}
    # The writes since the import are lost, and that is noticed as ever.
    real_bench.call("HSET", keys.run("r"), *kept)
    with pytest.raises(StateRegressed):
        remembering.apply("r", restart)


def test_a_run_made_anew_is_no_lost_write(real_bench: RedisBench) -> None:
    """A process that remembers another run of the same id, and that something of it was lost, may move the new one."""
    store = real_bench.redis_store
    run = made(store)
    remembering = Coordinator(store, NoDispatch(), SETTINGS)
    kept = real_bench.call("HGETALL", keys.run("r"))
    coordinator = Coordinator(store, NoDispatch(), SETTINGS)
    coordinator.apply("r", Restart(runbook=RUNBOOK, place=PLACE, by=AGENT))
    remembering.load("r")
    real_bench.call("DEL", keys.run("r"))
    real_bench.call("HSET", keys.run("r"), *kept)
    remembering.load("r")
    assert store.losses() == {"run": 1}
    real_bench.call("DEL", keys.run("r"), keys.events("r"))
    real_bench.let_pass(run.updated_at)
    coordinator.apply("r", Start(run_id="r", runbook=RUNBOOK, place=PLACE, by=AGENT))
    remembering.apply("r", Goto(runbook=RUNBOOK, target="b", by=AGENT))
    assert store.losses() == {"run": 1}


def test_a_late_result_means_no_run_that_was_made_anew(real_bench: RedisBench) -> None:
    """The same worker, transition and token in another run of the same id: what was begun for the first is not its."""
    store = real_bench.redis_store
    parsed = parse("nodes: {a: {before_transfer: [{run: 'true'}], next: b}, b: The end.}", source="x", format="yaml")
    coordinator = Coordinator(store, NoDispatch(), SETTINGS)

    def claimed() -> Applied:
        coordinator.apply("r", Start(run_id="r", runbook=parsed.runbook, place=PLACE, by=AGENT))
        opened = coordinator.apply("r", Goto(runbook=parsed.runbook, target="b", by=AGENT)).run.transition
        assert opened is not None
        claim = ClaimWork(transition=opened.id, check=opened.plan[0].id, worker=WORKER)
        return coordinator.apply("r", claim)

    first = claimed()
    assert first.run.transition is not None
    result = RecordOutcomes(
        transition=first.run.transition.id, token=first.run.transition.token, worker=WORKER, outcomes=(PASSED,)
    )
    expired = ExpireClaim(transition=result.transition, token=result.token)
    coordinator.apply("r", expired)
    run = coordinator.apply("r", CancelRun(reason="enough", by=AGENT)).run
    take_out(store, "r", None)
    real_bench.let_pass(run.updated_at)
    second = claimed()
    assert second.run.transition is not None
    assert (second.run.transition.id, second.run.transition.token) == (result.transition, result.token)
    with pytest.raises(NotFound):
        coordinator.record(first.run, result, first.operation)
    assert coordinator.load("r").run == second.run
    assert coordinator.record(second.run, result, second.operation).run.node == "b"


def test_age_and_number_decide_together(real_bench: RedisBench) -> None:
    """A run goes that is old enough and not among those that were created last, whatever has moved them since."""
    store = real_bench.redis_store
    coordinator = Coordinator(store, NoDispatch(), SETTINGS)
    for name in ("one", "two", "three"):
        last = made(store, name)
        real_bench.let_pass(last.updated_at)
    coordinator.apply("one", Restart(runbook=RUNBOOK, place=PLACE, by=AGENT))
    one = coordinator.apply("one", CancelRun(reason="enough", by=AGENT)).run
    real_bench.let_pass(one.updated_at)
    assert [each.run_id for each in ended_runs(store)] == ["one", "two", "three"]
    assert [each.run_id for each in ended_runs(store, keep=1)] == ["one", "two"]
    assert [each.run_id for each in ended_runs(store, keep=2)] == ["one"]
    assert list(ended_runs(store, keep=3)) == []
    assert list(ended_runs(store, older_than_ms=3_600_000)) == []
    assert list(ended_runs(store, older_than_ms=3_600_000, keep=1)) == []


def test_a_look_reads_no_run_that_stays_for_its_number(real_bench: RedisBench) -> None:
    """With every number kept, no document is read, however many there are."""
    store = real_bench.redis_store
    for number in range(20):
        made(store, f"r{number}")
    real_bench.call("CONFIG", "RESETSTAT")
    assert list(ended_runs(store, keep=20)) == []
    told = bytes(real_bench.call("INFO", "commandstats"))
    assert b"cmdstat_zcard" in told
    assert b"cmdstat_hgetall" not in told
    (oldest,) = ended_runs(store, keep=19)
    assert oldest.run_id == store.marks("finished", 1, after=(0, ""))[0][1]


def test_a_run_that_began_anew_is_not_as_old_as_it_was(real_bench: RedisBench) -> None:
    """Found to be old enough, then restarted and ended again before its turn: it stays, and goes when it is old."""
    store = real_bench.redis_store
    made(store)
    (found,) = ended_runs(store)
    real_bench.let_pass(found.at)
    coordinator = Coordinator(store, NoDispatch(), SETTINGS)
    coordinator.apply("r", Restart(runbook=RUNBOOK, place=PLACE, by=AGENT))
    coordinator.apply("r", CancelRun(reason="enough", by=AGENT))
    with pytest.raises(Invalid, match="moved"):
        take_out(store, found.run_id, None, found.at)
    (found,) = ended_runs(store)
    assert take_out(store, found.run_id, None, found.at) is None
    assert store.load("r") is None


def test_a_disk_that_was_full_is_used_again(
    real_bench: RedisBench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A look gives up after a few runs, tells of those alone, and an hour later they go like the others."""
    store = real_bench.redis_store
    for number in range(15):
        made(store, f"r{number}")
    place = tmp_path / "archive"
    place.touch()
    kept = Retention(store, Settings(state_dir=tmp_path, retain_days=0, archive_dir=place))
    assert kept.look() == 0
    assert len(caplog.messages) == FAILURES_PER_LOOK
    place.unlink()
    assert kept.look() == 15 - FAILURES_PER_LOOK
    monkeypatch.setattr("statem_dist.retention.AGAIN_SECONDS", 0.0)
    assert kept.look() == FAILURES_PER_LOOK
    assert list(ended_runs(store)) == []


def test_retention_takes_out_what_may_go_and_nothing_by_default(real_bench: RedisBench, tmp_path: Path) -> None:
    """Nothing is demanded without a setting; with one, runs go to the archive, those of an open sweep stay."""
    store = real_bench.redis_store
    ledger = Ledger(store)
    ledger.create("s", definition(), "print", "me")
    ledger.add("s", definition(), planned([1]))
    ledger.steer("s", "active", ["planning"])
    made(store, "trial", sweep="s", trial="1")
    made(store, "mine", sweep="of chairs")
    made(store, "other")
    assert not Retention(store, Settings(state_dir=tmp_path)).demanded
    assert {each.run_id for each in may_go(store, older_than_ms=0, keep=0)} == {"mine", "other"}
    young = Settings(state_dir=tmp_path, retain_days=1, archive_dir=tmp_path / "archive")
    assert Retention(store, young).look() == 0
    retention = Retention(store, replace(young, retain_days=0))
    assert retention.demanded
    assert retention.look() == 2
    archive = Archive(tmp_path / "archive")
    assert {archive.load(path).run.id for path in archive.files()} == {"mine", "other"}
    assert store.load("trial") is not None
    ledger.steer("s", "cancelled", ["active"])
    assert Retention(store, replace(young, retain_days=0, archive_dir=None)).look() == 1
    assert store.load("trial") is None
    assert len(archive.files()) == 2
