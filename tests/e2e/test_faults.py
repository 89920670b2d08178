"""Everything that can die, dies in the middle of a transition; the run comes through, once and visibly."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from statem_dist.embedded import server
from tests.support.programs import HAS_PROC, Site, eventually

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.chaos,
    pytest.mark.skipif(not HAS_PROC, reason="what is left of a process tree can be seen in /proc only"),
]

OUTAGE_SECONDS = 10.0

HANGS_ONCE = """
nodes:
  a:
    before_transfer:
      - run: "echo $$ >> begun; [ $(wc -l < begun) -gt 1 ] || { sleep 611 & setsid sleep 611 & sleep 611; }"
    next: b
  b: The end.
"""
"""A check that hangs, with a process tree of three, the first time that it is executed."""

HOOK_HANGS = """
nodes:
  a: {out_hook: [{run: "echo $$ >> begun; sleep 611"}], next: b}
  b: The end.
"""

WAITS_FOR_FILE = """
nodes:
  a:
    before_transfer: [{run: "echo $$ >> begun; until [ -e opened ]; do sleep 0.05; done; echo through"}]
    next: b
  b: {before_transfer: [{run: "echo again"}], next: c}
  c: The end.
"""


def in_the_middle(site: Site, starts: int = 1) -> None:
    """Wait until the check has been begun that many times."""
    eventually(lambda: len(site.lines("begun")) >= starts, f"the command is begun {starts} times")


def tries_of(entry: dict[str, object]) -> list[object]:
    """Return how often each check before a transfer was evaluated."""
    results = entry["before_transfer"]
    assert isinstance(results, list)
    return [result["tries"] for result in results]


def test_a_run_survives_the_death_of_its_worker(site: Site) -> None:
    """After ``kill -9`` of a worker another one executes the check anew, the transition commits once, nothing stays."""
    site.start(HANGS_ONCE)
    first = site.worker("-c", "1")
    waiting = site.begin("goto", "b", "--run-id", "r", "--json")
    in_the_middle(site)
    second = site.worker("-c", "1")
    assert len(site.processes("sleep\x00611")) == 3
    first.kill()
    said = waiting.wait()
    assert (said.exit_code, said.data["outcome"]) == (0, "committed")
    assert len(site.lines("begun")) == 2
    eventually(lambda: not site.processes("sleep\x00611"), "the first command's tree is gone", site.processes)
    (entry,) = site.history()
    assert entry["event"] == "goto"
    assert f":{second.pid}:" in entry["before_transfer"][0]["by"]


def test_the_next_command_settles_what_a_killed_one_left(site: Site) -> None:
    """After ``kill -9`` of an inline ``goto`` even a look at the run finishes it: checked again, committed once."""
    site.start(HANGS_ONCE)
    killed = site.begin("goto", "b", "--run-id", "r")
    in_the_middle(site)
    killed.kill()
    looked = site.run("cur", "--run-id", "r")
    assert "Finishing transition t2 (a -> b) that was left" in looked.stderr
    assert "statem-dist cancel --run-id r" in looked.stderr
    assert "Current: b" in looked.stdout
    assert len(site.lines("begun")) == 2
    assert site.events() == ["goto"]
    eventually(lambda: not site.processes("sleep\x00611"), "the killed command's tree is gone", site.processes)


def test_goto_itself_finishes_what_a_killed_one_left(site: Site) -> None:
    """The same ``goto`` again does not begin another transition; it finishes the one that is open."""
    site.start(HANGS_ONCE)
    killed = site.begin("goto", "b", "--run-id", "r")
    in_the_middle(site)
    killed.kill()
    assert site.json("goto", "b", "--run-id", "r")["transition"] == "t2"
    assert site.events() == ["goto"]


def test_a_command_that_outlives_its_caller_is_ended_before_it_is_run_again(site: Site) -> None:
    """It ignores SIGTERM, so it dies only at the end of its grace; the second begins after that."""
    command = "trap '' TERM; echo $$ >> begun; [ $(wc -l < begun) -gt 1 ] || sleep 611; kill -0 $(head -n 1 begun)"
    site.start(f'nodes:\n  a: {{before_transfer: [{{run: "{command}"}}], next: b}}\n  b: The end.\n')
    killed = site.begin("goto", "b", "--run-id", "r")
    in_the_middle(site)
    killed.kill()
    # The second copy asks whether the first is there.
    blocked = site.json("goto", "b", "--run-id", "r", expect=2)
    assert blocked["details"]["transition"] == "t2"
    assert len(site.lines("begun")) == 2


def test_another_request_than_the_killed_one_is_not_answered_by_what_that_left(site: Site) -> None:
    """Who confirms does not hear that nobody confirmed: the leftover ends as it must, then the own ``goto`` begins."""
    site.start(
        'nodes:\n  a: {before_transfer: [{type: manual, text: "ok?"}, {run: "echo $$ >> begun; '
        '[ $(wc -l < begun) -gt 1 ] || sleep 611"}], next: b}\n  b: The end.\n'
    )
    killed = site.begin("goto", "b", "--run-id", "r")
    in_the_middle(site)
    killed.kill()
    assert site.json("goto", "b", "--run-id", "r", "--yes", "--agent-id", "bob")["transition"] == "t3"
    assert site.events() == ["goto_blocked", "goto"]


def test_a_stopped_caller_loses_its_claim_with_its_lease(site: Site) -> None:
    """Another command goes on after it, and ends its command first; the stopped one learns how it ended."""
    site.start(HANGS_ONCE)
    stopped = site.begin("goto", "b", "--run-id", "r", "--json")
    in_the_middle(site)
    os.kill(stopped.pid, signal.SIGSTOP)
    eventually(lambda: site.run("goto", "b", "--run-id", "r").exit_code == 0, "the lease has run out")
    assert not site.processes("sleep\x00611")
    os.kill(stopped.pid, signal.SIGCONT)
    said = stopped.wait()
    assert (said.exit_code, said.data["transition"]) == (0, "t2")
    assert site.events() == ["goto"]


def test_a_cancellation_ends_the_pause_before_another_try(site: Site) -> None:
    """Whoever waits for the time of the next try notices it at once."""
    retry = "retry: {on: [failed], maximum_attempts: 2, initial_interval: 600}"
    site.start(
        f'nodes:\n  a: {{before_transfer: [{{run: "echo $$ >> begun; exit 75", {retry}}}], next: b}}\n  b: End.\n'
    )
    waiting = site.begin("goto", "b", "--run-id", "r", "--json")
    eventually(lambda: "retry" in site.run("history", "--raw", "--run-id", "r").stdout, "the first try has failed")
    site.json("cancel", "--run-id", "r")
    assert waiting.wait().exit_code == 1
    assert len(site.lines("begun")) == 1


@pytest.mark.parametrize("with_worker", [False, True], ids=["inline", "worker"])
def test_a_hook_whose_executor_was_killed_is_not_run_again(site: Site, with_worker: bool) -> None:
    """Nobody knows what the hook did, so the run stays, says so, and ends as an error when an operator gives it up."""
    site.start(HOOK_HANGS)
    executor = site.worker("-c", "1") if with_worker else None
    caller = site.begin("goto", "b", "--run-id", "r", "--json")
    in_the_middle(site)
    if executor is None:
        caller.kill()
        assert site.json("cur", "--run-id", "r")["current"] == "a"
    else:
        executor.kill()
        site.worker("-c", "1")
        said = caller.wait()
        assert said.exit_code == 1
        assert "nobody knows what out_hook.0 did" in said.data["error"]
    assert site.json("cur", "--run-id", "r")["status"] == "outcome_unknown"
    site.json("recover", "r", "--abort")
    (entry,) = site.history()
    assert (entry["event"], entry["stage"]) == ("goto_error", "out_hook")
    assert [result["reason"] for result in entry["results"]] == ["hook_outcome_unknown"]
    assert len(site.lines("begun")) == 1
    eventually(lambda: not site.processes("sleep\x00611"), "the hook has ended", site.processes)


def test_ctrl_c_ends_the_command_and_leaves_the_rest_to_the_next(site: Site) -> None:
    """Ctrl-C exits with 130 and says how it goes on; the command is gone; the next ``goto`` finishes the transition."""
    site.start(HANGS_ONCE)
    interrupted = site.begin("goto", "b", "--run-id", "r")
    in_the_middle(site)
    interrupted.interrupt()
    said = interrupted.wait()
    assert said.exit_code == 130
    assert "is not settled yet" in said.stderr
    for way in ("cur", "cancel"):
        assert f"`statem-dist {way} --run-id r`" in said.stderr
    assert "Traceback" not in said.stderr
    eventually(lambda: not site.processes("sleep\x00611"), "the command is gone", site.processes)
    moved = site.json("goto", "b", "--run-id", "r")
    assert (moved["current"], moved["transition"]) == ("b", "t2")
    assert site.events() == ["goto"]


def test_a_worker_that_was_frozen_comes_back_too_late(site: Site) -> None:
    """What it reports after its lease has passed to another is refused; the transition commits once, by the other."""
    site.start(
        "nodes: {a: {before_transfer: [{run: 'echo $$ >> begun; n=$(wc -l < begun);"
        " until [ -e opened$n ]; do sleep 0.05; done; echo execution $n'}], next: b}, b: The end.}"
    )
    first = site.worker("-c", "1")
    waiting = site.begin("goto", "b", "--run-id", "r", "--json")
    in_the_middle(site)
    second = site.worker("-c", "1")
    os.kill(first.pid, signal.SIGSTOP)
    try:
        in_the_middle(site, 2)
        site.write("opened1")
        site.write("opened2")
        said = waiting.wait()
    finally:
        os.kill(first.pid, signal.SIGCONT)
    assert said.exit_code == 0, said
    second.terminate()
    assert second.wait().exit_code == 0
    site.start("nodes: {a: {before_transfer: [{run: 'true'}], next: b}, b: The end.}", "next")
    assert f":{first.pid}:" in site.json("goto", "b", "--run-id", "next")["results"][0]["by"]
    (entry,) = site.history()
    (result,) = entry["before_transfer"]
    assert (entry["event"], result["output"]) == ("goto", "execution 2")
    assert f":{second.pid}:" in result["by"]


def test_ctrl_c_while_a_worker_executes_leaves_the_work_to_it(site: Site) -> None:
    """Who only waits may go: exit code 130, and the worker finishes the transition all the same."""
    site.start(WAITS_FOR_FILE)
    site.worker("-c", "1")
    waiting = site.begin("goto", "b", "--run-id", "r")
    in_the_middle(site)
    waiting.interrupt()
    said = waiting.wait()
    assert said.exit_code == 130
    assert "is not settled yet" in said.stderr
    assert "Traceback" not in said.stderr
    site.write("opened")
    eventually(lambda: site.json("cur", "--run-id", "r")["current"] == "b", "the worker has finished it")
    assert len(site.lines("begun")) == 1


def test_an_idle_worker_stops_although_redis_is_gone(site: Site) -> None:
    """SIGTERM ends a worker whose server is no more, within seconds and with exit code 0."""
    worker = site.worker("-c", "1")
    server.stop(site.state_dir)
    worker.terminate()
    said = worker.wait()
    assert said.exit_code == 0, said


def freeze_server(site: Site) -> Callable[[], None]:
    """Stop the server as if its machine hung; return what makes it go on."""
    pid = site.server_pid
    os.kill(pid, signal.SIGSTOP)
    return lambda: os.kill(pid, signal.SIGCONT)


def kill_server(site: Site) -> Callable[[], None]:
    """Kill the server; return what starts it again."""
    os.kill(site.server_pid, signal.SIGKILL)
    return lambda: void(server.ensure(site.state_dir))


def void(_: object) -> None:
    """Forget a value."""


@pytest.mark.slow
@pytest.mark.parametrize("take_away", [kill_server, freeze_server], ids=["killed", "frozen"])
def test_redis_may_be_away_for_ten_seconds(site: Site, take_away: Callable[[Site], Callable[[], None]]) -> None:
    """The worker keeps its result, the caller waits on, the transition commits once, and the worker takes more work."""
    site.environment["STATEM_LEASE_SECONDS"] = "30"
    site.start(WAITS_FOR_FILE)
    worker = site.worker("-c", "2")
    waiting = site.begin("goto", "b", "--run-id", "r", "--json")
    in_the_middle(site)
    bring_back = take_away(site)
    timer = threading.Timer(OUTAGE_SECONDS, bring_back)
    timer.start()
    try:
        site.write("opened")
    finally:
        timer.join()
    said = waiting.wait()
    assert (said.exit_code, said.data["current"]) == (0, "b")
    assert worker.running
    assert site.events() == ["goto"]
    assert len(site.lines("begun")) == 1
    here = f":{worker.pid}:"
    eventually(lambda: here in site.run("doctor", "--json").stdout, "the worker has announced itself again")
    again = site.json("goto", "c", "--run-id", "r")
    assert here in again["results"][0]["by"]
    lost = worker.stderr.count("is away; trying until it is back")
    assert lost == worker.stderr.count("the broker is back")
    assert lost == 1 or take_away is freeze_server
    assert "Celery 6.0" not in worker.stderr
    assert "Cannot connect" not in worker.stderr


@pytest.fixture
def tiny_disk(site: Site) -> Iterator[Path]:
    """A folder on a disk of 64 KiB."""
    folder = site.folder / "tiny"
    folder.mkdir()
    if sys.platform != "linux" or os.geteuid() != 0:
        pytest.skip("only root on Linux may mount a small disk")
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(folder)], capture_output=True, text=True, check=False
    )
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted here: {mounted.stderr.strip()}")
    yield folder
    subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_is_the_commands_own_failure(site: Site, tiny_disk: Path) -> None:
    """A check that fills the workspace's disk blocks with what the program itself says, and nothing else breaks."""
    runbook = "nodes: {a: {before_transfer: [{run: 'head -c 200000 /dev/zero > big'}], next: b}, b: The end.}"
    site.start(runbook, "r", "--workspace", str(tiny_disk))
    blocked = site.json("goto", "b", "--run-id", "r", expect=2)
    (result,) = blocked["details"]["results"]
    assert result["reason"] == "check_failed"
    assert "No space left on device" in result["output"]
    (tiny_disk / "big").unlink()
    assert site.json("cur", "--run-id", "r")["current"] == "a"


def test_an_export_without_room_leaves_the_old_file(site: Site, tiny_disk: Path) -> None:
    """What does not fit is an error that names the file and why; the file of before is whole, and nothing else is left
    beside it. With room again the same command writes the new one."""
    site.start("nodes: {a: {next: b}, b: The end.}")
    file = tiny_disk / "r.run.jsonl"
    site.json("export", "r", "--output", str(file))
    before = file.read_bytes()
    site.json("goto", "b", "--run-id", "r")
    with (tiny_disk / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
        while True:
            filler.write(bytes(4096))
    refused = site.json("export", "r", "--output", str(file), expect=8)
    assert "No space left on device" in refused["error"]
    assert str(file) in refused["error"]
    assert file.read_bytes() == before
    assert sorted(each.name for each in tiny_disk.iterdir()) == ["filler", "r.run.jsonl"]
    (tiny_disk / "filler").unlink()
    site.json("export", "r", "--output", str(file))
    assert file.read_bytes() != before


def test_a_full_disk_under_the_state_directory_is_named(site: Site, tiny_disk: Path) -> None:
    """Nothing can be written: exit code 8 and the path; with room again the same command works."""
    state_dir = str(tiny_disk / "state")
    runbook = str(site.write("plain.yaml", "nodes: {a: {next: b}, b: The end.}"))
    filler = tiny_disk / "filler"
    filler.write_bytes(bytes(32768))
    (tiny_disk / "rest").write_bytes(bytes(0))
    with (tiny_disk / "rest").open("wb", buffering=0) as rest, contextlib.suppress(OSError):
        while True:
            rest.write(bytes(4096))
    try:
        refused = site.json("start", runbook, "--run-id", "r", "--state-dir", state_dir, expect=8)
        assert str(tiny_disk) in refused["error"]
        filler.unlink()
        site.json("start", runbook, "--run-id", "r", "--state-dir", state_dir)
    finally:
        server.stop(Path(state_dir))
