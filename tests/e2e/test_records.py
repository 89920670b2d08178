"""Records as operators handle them: verify, export, import, archive, prune and retention, by the real programs."""

from __future__ import annotations

import json
import os
import sys
from contextlib import closing
from pathlib import Path

import pytest

from statem_dist.archive import Archive
from statem_dist.embedded.place import Place
from statem_dist.store import keys
from statem_dist.store.client import client_for
from statem_dist.store.redis_store import RedisStore
from statem_dist.sweep.desk import has_ended
from statem_dist.verification import StoredRunbooks, verify_run
from tests.support.driven_sweeps import sweeps_of_a_site
from tests.support.programs import Site, eventually

pytestmark = pytest.mark.e2e

SHORT = "nodes: {a: {before_transfer: [{run: 'test -e allowed'}], next: b}, b: The end.}"

DIES = """
import os, signal, sys

from statem_dist.store.redis_store import RedisStore

left = int(sys.argv.pop(1))


def step():
    global left
    left -= 1
    if left == 0:
        os.kill(os.getpid(), signal.SIGKILL)


def counted(function):
    def counting(*arguments, **options):
        step()
        found = function(*arguments, **options)
        step()
        return found
    return counting


os.fsync, os.replace, os.open = counted(os.fsync), counted(os.replace), counted(os.open)
RedisStore.call, RedisStore.run_script = counted(RedisStore.call), counted(RedisStore.run_script)

from statem_dist.cli.main import main

sys.exit(main())
"""
"""The command line, killed before or after a step that reaches the disk or the store."""


@pytest.fixture
def ended(site: Site) -> Site:
    """A site with a run that was blocked once and has ended, and one that lives."""
    site.start(SHORT)
    assert site.run("goto", "b", "--run-id", "r").exit_code == 2
    site.write("allowed")
    site.json("goto", "b", "--run-id", "r")
    site.start(SHORT, "alive")
    return site


def test_verify_finds_what_somebody_did_by_hand(ended: Site) -> None:
    """Exit code 0 and the counts while everything is lawful; then 1, and run, event, law and sentence."""
    found = ended.json("verify", "--all")
    assert (found["runs"], found["violation_count"], found["violations"]) == (2, 0, [])
    assert ended.run("verify", "r").stdout.endswith("all lawful.\n")
    shard = keys.shard_of("r")
    ended.redis("ZADD", keys.status(shard, "active"), "1", "r")
    ended.redis("XDEL", keys.events("alive"), "2-0")
    told = ended.json("verify", "--all", expect=1)["details"]["violations"]
    assert {(each["run"], each["event"], each["law"]) for each in told} >= {
        ("alive", 2, "numbering"),
        ("r", 12, "status_index"),
    }
    assert all(each["sentence"] for each in told)
    said = ended.run("verify", "r")
    assert said.exit_code == 1
    assert said.stdout.startswith("r, event 12: status_index: ")
    assert ended.run("verify", "nobody").exit_code == 1
    assert ended.run("verify").exit_code == 64
    assert ended.run("verify", "--all", STATEM_URL="http://127.0.0.1:1").exit_code == 64


def test_runs_go_to_another_state_directory(ended: Site, tmp_path: Path) -> None:
    """As one file, by a pipe, and as a folder; what is there already is said to be, and a damaged file refused."""
    other = ("--state-dir", str(ended.folder / "other"))
    try:
        ended.json("export", "--all", "--output", "all.run.jsonl.gz")
        assert ended.json("verify", "--file", "all.run.jsonl.gz")["runs"] == 2
        assert ended.json("import", "all.run.jsonl.gz", "--dry-run", *other)["imported"] == ["alive", "r"]
        assert ended.json("import", "all.run.jsonl.gz", *other)["imported"] == ["alive", "r"]
        again = ended.json("import", "all.run.jsonl.gz", *other)
        assert (again["imported"], again["unchanged"]) == ([], ["alive", "r"])
        for run_id in ("r", "alive"):
            for words in (("history", "--raw"), ("state",), ("evidence",)):
                shown = ended.json(*words, "--run-id", run_id)
                assert ended.json(*words, "--run-id", run_id, *other) == shown
        assert ended.json("verify", "--all", *other)["violation_count"] == 0
        piped = ended.run("export", "r").stdout
        lines = piped.splitlines(keepends=True)
        broken = ended.write("broken.run.jsonl", "".join([*lines[:4], *lines[5:]]))
        refused = ended.json("import", str(broken), *other, expect=1)["details"]["refused"]
        assert refused[0]["error"].startswith("Line 5: ")
        assert ended.json("verify", "--file", str(broken), expect=1)["details"]["violations"][0]["law"] == "file"
        assert ended.json("export", "--all", "--folder", "runs")["runs"] == 2
        assert ended.json("import", "runs", *other)["unchanged"] == ["alive", "r"]
        assert ended.run("export", "r", "--json").exit_code == 64
    finally:
        ended.run("down", *other)


def test_another_run_of_the_same_id_is_a_conflict(ended: Site) -> None:
    """It is left alone, and the others of the file come in."""
    ended.json("export", "r", "--output", "r.run.jsonl")
    ended.json("prune", "r")
    ended.start(SHORT)
    refused = ended.json("import", "r.run.jsonl", expect=5)["details"]
    assert (refused["imported"], refused["refused"][0]["source"]) == ([], "r")


def test_an_archived_run_can_be_looked_at_and_comes_back(ended: Site) -> None:
    """What lives stays; history, evidence and list are those of before; import makes the same run again."""
    before = {
        words: ended.json(*words, "--run-id", "r") for words in (("history",), ("history", "--raw"), ("evidence",))
    }
    listed = ended.json("runs", "--status", "finished")["runs"]
    assert [each["run_id"] for each in ended.json("archive", "--all", "--dry-run")["runs"]] == ["r"]
    assert ended.json("archive", "--older-than", "1h")["runs"] == []
    assert ended.json("archive", "--keep", "1")["runs"] == []
    told = ended.json("archive", "r", "alive", expect=1)["details"]
    assert ([each["run_id"] for each in told["runs"]], told["refused"][0]["run_id"]) == (["r"], "alive")
    assert ended.run("cur", "--run-id", "r").exit_code == 1
    assert [each["run_id"] for each in ended.json("runs")["runs"]] == ["alive"]
    assert ended.json("runs", "--archive")["runs"] == listed
    assert ended.json("runs", "--archive", "--status", "cancelled")["runs"] == []
    for words, shown in before.items():
        assert ended.json(*words, "--run-id", "r", "--archive") == shown
    assert ended.run("history", "--run-id", "nobody", "--archive").exit_code == 1
    assert ended.run("history", "--run-id", "r", "--archive", STATEM_URL="http://127.0.0.1:1").exit_code == 64
    assert ended.json("verify", "--all")["violation_count"] == 0
    assert ended.json("verify", "--file", str(ended.state_dir / "archive"))["runs"] == 1
    assert ended.json("import", str(ended.state_dir / "archive"))["imported"] == ["r"]
    assert ended.json("history", "--raw", "--run-id", "r") == before["history", "--raw"]
    assert ended.json("prune", "--all")["runs"] == [{"run_id": "r"}]
    assert ended.run("prune").exit_code == 64


@pytest.mark.slow
@pytest.mark.chaos
def test_a_store_in_use_is_lawful_at_every_moment() -> None:
    """While a sweep is under way, and a worker of it is killed: nothing is found, and nothing of it is archived."""
    agent = 'touch out; [ "$STATEM_TRIAL" -le 4 ] || until [ -e "$STATEM_SWEEP_DIR/gate" ]; do sleep 0.05; done'
    with sweeps_of_a_site() as sweeps:
        site = sweeps.site
        killed = sweeps.worker(2)
        sweep = sweeps.submit("busy", agent, trials=10, limits={"api": {"in_flight": 3}})

        def stands_at_the_gate() -> bool:
            counts = sweeps.sweep(sweep).counts
            return (counts["passed"], counts["running"]) == (4, 2)

        while not stands_at_the_gate():
            assert site.json("verify", "--all")["violation_count"] == 0
        killed.kill()
        assert site.json("verify", "--all")["violation_count"] == 0
        sweeps.worker(2)
        eventually(stands_at_the_gate, "another worker goes on")
        assert site.json("verify", "--all")["violation_count"] == 0
        assert len(site.json("runs", "--status", "finished")["runs"]) == 4
        assert site.json("archive", "--all")["runs"] == [], "they are of a sweep that is open"
        site.write("gate")
        while not has_ended(sweeps.sweep(sweep)):
            assert site.json("verify", "--all")["violation_count"] == 0
        assert sweeps.ended(sweep).counts["passed"] == 10
        assert site.json("verify", "--all")["sweeps"] == 1
        assert len(site.json("archive", "--all")["runs"]) == 10
        assert site.json("runs")["runs"] == []
        assert site.json("sweep", "trials", sweep)["ok"]


@pytest.mark.slow
@pytest.mark.chaos
def test_whoever_kills_archive_loses_nothing_and_doubles_nothing(ended: Site) -> None:
    """Killed before and after each step in turn: the run is whole in the store or whole in the archive, at last there
    alone."""
    with closing(client_for(f"unix://{Place.of(ended.state_dir).socket}", quick=True)) as client:
        _kill_at_every_step(ended, RedisStore(client, patience_seconds=5.0))


def _kill_at_every_step(ended: Site, store: RedisStore) -> None:
    snapshot = store.load("r")
    assert snapshot is not None
    run, events = snapshot.run, store.events("r")
    archive = Archive(ended.state_dir / "archive")
    kills = 0
    for steps in range(1, 200):
        argv = [sys.executable, "-c", DIES, str(steps), "archive", "--all", "--json"]
        program = ended.launch(argv, f"archive-{steps}", ended.environment)
        said = program.wait()
        stored, kept = store.load("r"), [archive.load(path) for path in archive.files()]
        assert stored is not None or kept, "it is somewhere"
        if stored is not None:
            assert (stored.run, store.events("r")) == (run, events)
            assert verify_run(store, "r", StoredRunbooks(store)).violations == []
        assert [(each.run, list(enumerate(each.events, start=1))) for each in kept] in ([], [(run, events)])
        if said.exit_code == 0:
            break
        assert said.exit_code == -9
        kills += 1
    assert kills > 20
    assert store.load("r") is None
    assert len(archive.files()) == 1
    assert ended.json("verify", "--all")["violation_count"] == 0
    torn = [path for path in archive.folder.rglob(".*") if path.is_file()]
    assert torn, "a file that was being written when somebody was killed"
    for path in torn:
        os.utime(path, (0, 0))
    ended.json("import", str(archive.folder))
    ended.json("archive", "r")
    assert [path for path in archive.folder.rglob("*") if path.is_file()] == archive.files(), "the next one tidies up"


@pytest.mark.slow
@pytest.mark.chaos
def test_whoever_kills_import_goes_on_where_it_was(ended: Site) -> None:
    """Killed before and after each step in turn: what came in is whole, and at last everything is there once."""
    ended.json("export", "--all", "--output", "all.run.jsonl")
    other = ended.folder / "other"
    try:
        ended.json("runs", "--state-dir", str(other))
        ended.json("import", "all.run.jsonl", "--dry-run", "--state-dir", str(other))
        imported: list[str] = []
        for steps in range(1, 200):
            argv = [sys.executable, "-c", DIES, str(steps)]
            argv += ["import", "all.run.jsonl", "--state-dir", str(other), "--json"]
            said = ended.launch(argv, f"import-{steps}", ended.environment).wait()
            verified = ended.json("verify", "--all", "--state-dir", str(other))
            assert verified["violation_count"] == 0
            if said.exit_code == 0:
                imported = said.data["imported"] + said.data["unchanged"]
                break
            assert said.exit_code == -9
        assert sorted(imported) == ["alive", "r"]
        for run_id in imported:
            shown = ended.json("history", "--raw", "--run-id", run_id)
            assert ended.json("history", "--raw", "--run-id", run_id, "--state-dir", str(other)) == shown
    finally:
        ended.run("down", "--state-dir", str(other))


def test_a_worker_takes_out_what_has_been_there_long_enough(ended: Site) -> None:
    """With a number of runs to keep it archives the others; the log says how many and where."""
    archive = ended.folder / "old runs"
    worker = ended.worker("-c", "1", STATEM_RETAIN_RUNS="0", STATEM_ARCHIVE_DIR=str(archive))
    eventually(lambda: "taken out" in worker.stderr, "the worker has taken the run out", lambda: worker.stderr)
    assert f"1 runs that had ended were taken out to {archive}" in worker.stderr
    shown = ended.json("history", "--run-id", "r", "--archive", STATEM_ARCHIVE_DIR=str(archive))
    assert [each["event"] for each in shown["history"]][-1] == "goto"
    assert [each["run_id"] for each in ended.json("runs")["runs"]] == ["alive"]


def test_a_worker_removes_nothing_by_default(ended: Site) -> None:
    """No setting, no removal: the thread does not even begin."""
    worker = ended.worker("-c", "1")
    ended.json("goto", "b", "--run-id", "alive")
    assert "taken out" not in worker.stderr
    assert len(ended.json("runs")["runs"]) == 2
    assert json.loads(ended.run("verify", "--all", "--json").stdout)["ok"]
