"""``statem-dist sweep run`` as a user has it: real workers, real tasks, and nothing left behind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import HAS_PROC, Site, eventually

pytestmark = pytest.mark.e2e

HUMANEVAL = str(Path(__file__).resolve().parents[2] / "runbooks" / "humaneval.sweep.yaml")

PATIENT = {"STATEM_LEASE_SECONDS": "30"}
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
    assert (counts["planned"], counts["scored"], counts["passed"], counts["failed"]) == (36, 36, 24, 12)
    rows = {row["values"]["agent"]: row for row in data["rows"]}
    assert [(name, row["passed"], row["blocked"], row["loops"]) for name, row in rows.items()] == [
        ("reference", 12, 0, 0),
        ("empty", 0, 36, 12),
        ("second-try", 12, 12, 12),
    ]
    assert {trial["node"] for trial in data["trials"] if trial["outcome"] == "failed"} == {"gave-up"}
    logs = "".join(path.read_text() for path in Path(data["folder"]).glob("workers/*.log"))
    # Every execution stands in a worker's log, so that none was done by the sweep itself.
    assert logs.count(" ms\n") == counts["checks"]


def test_a_sweep_without_workers(site: Site) -> None:
    """The sweep executes checks itself, prints a table without escapes, and takes the server down again."""
    sweep = write(site, "touch out", matrix={"model": ["small", "large"]})
    said = site.run("sweep", "run", sweep, "--limit", "2", "--no-keep", "-c", "2")
    assert said.exit_code == 0, said.stderr
    table = [line.split()[:4] for line in said.stdout.splitlines()]
    assert table == [
        ["model", "passed", "failed", "stuck"],
        ["small", "2/2", "0", "0"],
        ["large", "2/2", "0", "0"],
        ["all", "4/4", "0", "0"],
    ]
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
    stack = site.begin("up", "-c", "1")
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
    for words in ("modle=large", "model", "model=huge"):
        assert site.json("sweep", "run", sweep, "--only", words, expect=64)["ok"] is False


def test_exit_codes(site: Site) -> None:
    """Trials that did not pass are a success of the sweep unless asked for; one that could not be judged is none."""
    stuck = write(site, "true", trials=1, max_steps=1)
    assert site.json("sweep", "run", stuck)["counts"]["stuck"] == 1
    refused = site.json("sweep", "run", stuck, "--exit-status", expect=6)
    assert refused["error"] == "1 of 1 trials have not passed."
    assert refused["details"]["ok"] is False
    told = site.run("sweep", "run", stuck)
    assert "stuck: on 'work' after 1 steps; 'done' was refused: before_transfer.0 check_failed" in told.stdout
    (sweep_id,) = {path.name for path in (site.state_dir / "sweeps").iterdir() if path.name in told.stderr}
    assert f"Sweep {sweep_id}; its workspaces: {site.state_dir / 'sweeps' / sweep_id}" in told.stderr
    broken = site.run("sweep", "run", write(site, "no-such-agent", trials=2))
    assert broken.exit_code == 1
    assert "2 of 2 trials could not be judged." in broken.stderr
    assert "2 trials: error: the agent command could not be started (exit 127)" in broken.stdout


def test_a_mistake_in_the_file_costs_nothing(site: Site) -> None:
    """It is told before anything is started."""
    said = site.run("sweep", "run", write(site, "true", trails=5))
    assert said.exit_code == 1
    assert "unknown keyword 'trails'; did you mean 'trials'?" in said.stderr
    assert site.run("sweep", "run", write(site, "true"), "--out", "no/such/folder.json").exit_code == 64
    assert not site.state_dir.exists()


@pytest.mark.parametrize(("workers", "how"), [("0", "interrupt"), ("2", "interrupt"), ("1", "terminate")])
def test_stopping_half_way(site: Site, workers: str, how: str) -> None:
    """What is done is told, what ran is cancelled, the rest is pending, and nothing goes on: no agent, no worker."""
    agent = 'touch out; test "$STATEM_TRIAL" -lt 3 || { touch "$STATEM_SPEC.hangs"; sleep 600; }'
    sweep = site.begin(
        "sweep", "run", write(site, agent), "--workers", workers, "-c", "2", "--json", "--out", "r.json", **PATIENT
    )
    eventually(lambda: (site.folder / "gate.yaml.hangs").exists() or not sweep.running, "a trial hangs")
    eventually(lambda: _ended(site) >= 2, "two trials have ended")
    getattr(sweep, how)()
    said = sweep.wait()
    assert said.exit_code == 130, said.stderr
    details: dict[str, Any] = said.data["details"]
    counts = details["counts"]
    assert (counts["planned"], counts["passed"], counts["cancelled"], counts["pending"]) == (6, 2, 2, 2)
    assert (details["complete"], details["interrupted"]) == (False, True)
    assert said.data["error"] == "Interrupted: 2 passed, 2 cancelled, 2 not begun, of 6 planned."
    assert json.loads((site.folder / "r.json").read_text()) == details
    assert not left_behind(site)


def test_stopping_a_check_half_way(site: Site) -> None:
    """A check that the sweep executes itself is ended, and its run left to be taken up again."""
    site.write("slow.yaml", "nodes: {work: {before_transfer: [{type: command, run: sleep 600}], next: done}, done: }\n")
    path = site.write("slow.sweep.yaml", "runbook: slow.yaml\n")
    sweep = site.begin("sweep", "run", str(path))
    if HAS_PROC:
        eventually(lambda: site.processes("sleep"), "the check runs")
    sweep.interrupt()
    said = sweep.wait()
    assert said.exit_code == 130
    assert "Interrupted: 1 cancelled, of 1 planned." in said.stderr
    assert not left_behind(site)


def test_a_worker_that_cannot_start(site: Site) -> None:
    """The sweep says why instead of waiting, and leaves nothing."""
    said = site.run("sweep", "run", write(site, "true"), "--workers", "1", STATEM_BROKER_URL="redis://127.0.0.1:1/0")
    assert said.exit_code == 8
    assert "Worker 1 ended with status 8" in said.stderr
    assert "The broker redis://127.0.0.1:1/0 cannot be used" in said.stderr
    assert not left_behind(site)


def _ended(site: Site) -> int:
    """Return how many runs have ended."""
    return len(site.json("runs", "--status", "finished")["runs"])
