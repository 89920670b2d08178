"""``statem-dist sweep run`` as a user has it: real workers, real tasks, and nothing left behind."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import HAS_PROC, Site, eventually

pytestmark = pytest.mark.e2e

HUMANEVAL = str(Path(__file__).resolve().parents[2] / "runbooks" / "humaneval.sweep.yaml")

PATIENT: Any = {"STATEM_LEASE_SECONDS": "30"}
"""On a busy machine a lease of a second is lost now and then, and a hook with it."""

GATE = """\
nodes: {work: {prompt: Go., before_transfer: [{type: command, run: test -f out}], next: done}, done: , never: }
"""


def write(site: Site, agent: str, **sweep: object) -> str:
    """Write a sweep of six trials and its runbook; return the path of the sweep file."""
    site.write("gate.yaml", GATE)
    document = {"runbook": "gate.yaml", "trials": 6, "agent": {"run": agent}, "success": ["done"], **sweep}
    return str(site.write("gate.sweep.yaml", json.dumps(document)))


def left_behind(site: Site) -> dict[int, str]:
    """Return the processes of a site that are still there; a killed one may take a moment to go."""
    return site.processes() if HAS_PROC else {}


@pytest.mark.slow
def test_humaneval_with_two_workers(site: Site) -> None:
    """Of twelve tasks per agent, the reference passes all, the empty one none, the second try all after one repair."""
    said = site.run(
        "sweep", "run", HUMANEVAL, "--workers", "2", "--limit", "12", "--json", "--out", "r.json", **PATIENT
    )
    assert said.exit_code == 0, said.stderr
    assert not left_behind(site)
    data = said.data
    assert json.loads((site.folder / "r.json").read_text()) == data
    counts = data["counts"]
    assert (data["planned"], data["scored"], counts["passed"], counts["failed"]) == (36, 36, 24, 12)
    rows = {row["values"]["agent"]: row for row in data["scores"]["rows"]}
    assert [(name, row["states"]["passed"], row["blocked"], row["loops"]) for name, row in rows.items()] == [
        ("reference", 12, 0, 0),
        ("empty", 0, 36, 12),
        ("second-try", 12, 12, 12),
    ]
    assert {trial["node"] for trial in data["trials"] if trial["state"] == "failed"} == {"gave-up"}


def test_a_sweep_with_a_worker_of_its_own(site: Site) -> None:
    """One worker is started without being asked for; nothing of it or of the server is left, and nor is the folder."""
    sweep = write(site, "touch out", matrix={"model": ["small", "large"]})
    said = site.run("sweep", "run", sweep, "--limit", "2", "--no-keep", "-c", "2")
    assert said.exit_code == 0, said.stderr
    table = [line.split()[:4] for line in said.stdout.splitlines()[:4]]
    assert table == [
        ["model", "passed", "failed", "stuck"],
        ["small", "2/2", "0", "0"],
        ["large", "2/2", "0", "0"],
        ["all", "4/4", "0", "0"],
    ]
    assert "coverage 100.0 %" in said.stdout
    assert "\x1b" not in said.stdout + said.stderr
    assert "\r" not in said.stderr
    assert not left_behind(site)
    assert list((site.state_dir / "sweeps").iterdir()) == []


def test_a_server_that_was_there_stays(site: Site) -> None:
    """Only what the sweep has started is stopped; its runs can be looked at afterwards."""
    site.start("nodes: [only]\n")
    server_pid = site.server_pid
    data = site.json("sweep", "run", write(site, "touch out"), "--limit", "1")
    assert site.server_pid == server_pid
    run = site.json("cur", "--run-id", data["trials"][0]["run_id"])
    assert (run["current"], run["status"]) == ("done", "finished")


def test_a_server_that_up_has_taken_over_stays(site: Site) -> None:
    """An ``up`` that came while the sweep ran keeps the server that the sweep had started."""
    agent = 'touch "$STATEM_SWEEP_DIR/begun"; until [ -e "$STATEM_SWEEP_DIR/opened" ]; do sleep 0.05; done; touch out'
    sweep = site.begin("sweep", "run", write(site, agent, trials=1))
    eventually(lambda: (site.folder / "begun").exists() or not sweep.running, "the agent is called")
    stack = site.begin("up", "-c", "1", "--trials", "0", "--no-api")
    eventually(lambda: "ready: " in stack.stdout or not stack.running, "the worker is ready")
    server_pid = site.server_pid
    site.write("opened")
    assert sweep.wait().exit_code == 0
    assert site.server_pid == server_pid
    stack.interrupt()
    assert stack.wait().exit_code == 0


def test_only_chooses_trials(site: Site) -> None:
    """``--only`` keeps the trials with that value, and refuses what the sweep does not have."""
    sweep = write(site, "touch out", matrix={"model": ["small", "large"]}, trials=1)
    data = site.json("sweep", "run", sweep, "--only", "model=large")
    assert [trial["values"] for trial in data["trials"]] == [{"model": "large"}]
    assert site.json("sweep", "run", sweep, "--only", "model", expect=64)["ok"] is False
    for words in ("modle=large", "model=huge"):
        assert site.json("sweep", "run", sweep, "--only", words, expect=1)["ok"] is False


def test_exit_codes(site: Site) -> None:
    """Trials that did not pass are a success of the sweep unless asked for; one that could not be judged is none."""
    stuck = write(site, "true", trials=1, max_steps=1)
    assert site.json("sweep", "run", stuck)["counts"]["stuck"] == 1
    refused = site.json("sweep", "run", stuck, "--exit-status", expect=6)
    assert refused["error"] == "1 of 1 trials have not passed."
    assert refused["details"]["ok"] is False
    told = site.run("sweep", "run", stuck)
    assert (
        "stuck: max_steps: on 'work' after 1 steps; 'done' was refused: before_transfer.0 check_failed" in told.stdout
    )
    assert "∞ #1 (1): stuck, max_steps" in told.stderr
    assert f"its folders: {site.state_dir / 'sweeps'}/gate-" in told.stderr
    broken = site.run("sweep", "run", write(site, "no-such-agent", trials=2, retries=0))
    assert broken.exit_code == 1
    assert "2 of 2 trials could not be judged." in broken.stderr
    assert "error, agent_not_started: the agent command could not be started (exit 127)" in broken.stderr
    stopped = site.run(
        "sweep", "run", write(site, "no-such-agent", trials=40, retries=0, stop_when={"errors": 3}, concurrency=2)
    )
    assert stopped.exit_code == 1
    assert "The sweep was stopped: " in stopped.stderr
    assert "pending" in stopped.stderr.rpartition("Of 40 trials:")[2]


def test_a_mistake_in_the_file_costs_nothing(site: Site) -> None:
    """It is told before anything is started."""
    said = site.run("sweep", "run", write(site, "true", trails=5))
    assert said.exit_code == 1
    assert "unknown keyword 'trails'; did you mean 'trials'?" in said.stderr
    assert site.run("sweep", "run", write(site, "true"), "--out", "no/such/folder.json").exit_code == 64
    assert not site.state_dir.exists()


@pytest.mark.parametrize(("workers", "how"), [("1", "interrupt"), ("2", "interrupt"), ("1", "terminate")])
def test_stopping_half_way_and_going_on(site: Site, workers: str, how: str) -> None:
    """What ran is handed back, nothing goes on, and the sweep is paused; resumed, it does what was left and no more."""
    agent = (
        'echo "$STATEM_TRIAL" >>"$STATEM_SWEEP_DIR/calls"; touch out;'
        ' test "$STATEM_TRIAL" -lt 3 || test -e "$STATEM_SWEEP_DIR/go" ||'
        ' { touch "$STATEM_SWEEP_DIR/hangs"; sleep 600; }'
    )
    sweep = site.begin(
        "sweep", "run", write(site, agent), "--workers", workers, "-c", "2", "--json", "--out", "r.json", **PATIENT
    )
    eventually(lambda: (site.folder / "hangs").exists() or not sweep.running, "a trial hangs")
    eventually(lambda: site.json("sweep", "list")["sweeps"][0]["counts"]["passed"] == 2, "two trials have passed")
    getattr(sweep, how)()
    said = sweep.wait()
    assert said.exit_code == 130, said.stderr
    details: dict[str, Any] = said.data["details"]
    assert (details["status"], details["planned"], details["counts"]["passed"]) == ("paused", 6, 2)
    assert (details["counts"]["pending"], details["counts"]["running"]) == (4, 0)
    assert (details["complete"], details["interrupted"]) == (False, True)
    sweep_id = details["sweep"]
    assert said.data["error"] == (
        f"Interrupted: 2 passed, 4 pending, of 6 planned. To go on: statem-dist sweep resume {sweep_id} --workers 1"
    )
    assert json.loads((site.folder / "r.json").read_text()) == details
    assert not left_behind(site)
    site.write("go")
    resumed = site.json("sweep", "resume", "gate", "--workers", workers, **PATIENT)
    assert (resumed["sweep"], resumed["status"], resumed["counts"]["passed"]) == (sweep_id, "finished", 6)
    calls = site.lines("calls")
    assert (calls.count("1"), calls.count("2"), calls.count("6")) == (1, 1, 1), "what had ended was not done again"
    assert not left_behind(site)


def test_running_it_again_after_a_stop_goes_on_with_it(site: Site) -> None:
    """The same command again attaches to the sweep that it paused, and lets it go on."""
    agent = 'touch out; test -e "$STATEM_SWEEP_DIR/go" || { touch "$STATEM_SWEEP_DIR/hangs"; sleep 600; }'
    path = write(site, agent, trials=2)
    sweep = site.begin("sweep", "run", path, **PATIENT)
    eventually(lambda: (site.folder / "hangs").exists() or not sweep.running, "a trial hangs")
    sweep.interrupt()
    assert sweep.wait().exit_code == 130
    site.write("go")
    again = site.json("sweep", "run", path, **PATIENT)
    assert (again["status"], again["counts"]["passed"]) == ("finished", 2)
    assert len(site.json("sweep", "list")["sweeps"]) == 1


def test_who_joins_a_run_and_leaves_stops_nothing(site: Site) -> None:
    """A second ``run`` finds workers there and starts none; its Ctrl-C leaves the sweep to the first one."""
    agent = 'touch out "$STATEM_SWEEP_DIR/begun"; until [ -e "$STATEM_SWEEP_DIR/go" ]; do sleep 0.05; done'
    path = write(site, agent, trials=2)
    first = site.begin("sweep", "run", path, **PATIENT)
    eventually(lambda: (site.folder / "begun").exists() or not first.running, "a trial is under way")
    second = site.begin("sweep", "run", path, **PATIENT)
    eventually(lambda: "is active already" in second.stderr or not second.running, "the second one has attached")
    second.interrupt()
    said = second.wait()
    assert said.exit_code == 130
    assert "Others go on with it" in said.stderr
    site.write("go")
    assert first.wait().exit_code == 0, first.stderr
    assert not left_behind(site)


def test_a_run_that_is_killed_outright_leaves_its_workers_to_end_the_sweep(site: Site) -> None:
    """Nobody has to stay: the sweep comes to its end, and its workers go when nothing is left to do."""
    agent = 'touch out "$STATEM_SWEEP_DIR/begun"; until [ -e "$STATEM_SWEEP_DIR/go" ]; do sleep 0.05; done'
    run = site.begin("sweep", "run", write(site, agent), "-c", "2", **PATIENT)
    eventually(lambda: (site.folder / "begun").exists() or not run.running, "a trial is under way")
    run.kill()
    site.write("go")
    ended = site.json("sweep", "status", "gate", "--wait", "30", "--exit-status")
    assert (ended["status"], ended["counts"]["passed"]) == ("finished", 6)
    if HAS_PROC:
        eventually(lambda: not site.processes("statem_workers"), "the worker ends")


def test_workers_that_die_end_the_run(site: Site) -> None:
    """It does not wait for ever: the sweep is paused, and its trial goes on when somebody resumes it."""
    if not HAS_PROC:
        pytest.skip("the worker is found by /proc")
    agent = 'touch out "$STATEM_SWEEP_DIR/begun"; until [ -e "$STATEM_SWEEP_DIR/go" ]; do sleep 0.05; done'
    run = site.begin("sweep", "run", write(site, agent, trials=1))
    eventually(lambda: (site.folder / "begun").exists() or not run.running, "the trial is under way")
    (worker,) = site.processes("statem_workers")
    os.kill(worker, signal.SIGKILL)
    said = run.wait()
    assert said.exit_code == 8
    # It may have begun the trial before it was heard of: then this is the error itself.
    assert "Worker 1 ended with status -9" in said.stderr
    assert "To go on: statem-dist sweep resume gate-" in said.stderr
    site.write("go")
    resumed = site.json("sweep", "resume", "gate", "--workers", "1")
    assert resumed["counts"]["passed"] == 1


def test_stopping_a_check_half_way(site: Site) -> None:
    """A check that a worker executes is ended, and its trial handed back."""
    site.write("slow.yaml", "nodes: {work: {before_transfer: [{type: command, run: sleep 600}], next: done}, done: }\n")
    path = site.write("slow.sweep.yaml", "runbook: slow.yaml\n")
    sweep = site.begin("sweep", "run", str(path), **PATIENT)
    if HAS_PROC:
        eventually(lambda: site.processes("sleep") or not sweep.running, "the check runs")
    sweep.interrupt()
    said = sweep.wait()
    assert said.exit_code == 130
    assert "Interrupted: 1 pending, of 1 planned." in said.stderr
    assert not left_behind(site)


def test_a_worker_that_cannot_start(site: Site) -> None:
    """The sweep says why instead of waiting, is paused, and leaves nothing."""
    path = write(site, "true")
    said = site.run("sweep", "run", path, "--workers", "1", STATEM_BROKER_URL="redis://127.0.0.1:1/0")
    assert said.exit_code == 8
    assert "Worker 1 ended with status 8" in said.stderr
    assert "The broker redis://127.0.0.1:1/0 cannot be used" in said.stderr
    assert "To go on: statem-dist sweep resume gate-" in said.stderr
    assert not left_behind(site)
    assert site.json("sweep", "list")["sweeps"][0]["status"] == "paused"
