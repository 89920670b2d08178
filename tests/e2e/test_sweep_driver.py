"""One trial after another on a real embedded server, its checks executed by the driver itself."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest
from statem_dist.sweep.trials import plan

from statem_dist.checks.process import Supervisor
from statem_dist.deadline import Deadline
from statem_dist.embedded import server
from statem_dist.engine import Engine
from statem_dist.protocol.model import Actor
from statem_dist.settings import Settings
from statem_dist.sweep.driver import Driver
from statem_dist.sweep.pool import Pool
from statem_dist.sweep.results import TrialResult
from statem_dist.sweep.spec import load_sweep
from tests.support.programs import eventually

pytestmark = pytest.mark.e2e

PATIENCE_SECONDS = 60.0

LOOP = """\
nodes:
  work: {prompt: Write out.txt., before_transfer: [{type: predicate, path: out.txt, exists: true}]}
  verify: {}
  good: {}
  bad: {}
edges:
  - {from: work, to: verify}
  - {from: verify, to: good, condition: [{type: command, run: grep -q right out.txt}]}
  - {from: verify, to: bad}
"""


class Track:
    """A server, an engine on it, and short ways to drive trials."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        settings = Settings(state_dir=folder / "state", kill_grace_seconds=0.2)
        self.engine = Engine(settings, server.ensure(settings.state_dir).redis_url, inline=True)
        self.agents = Supervisor(kill_grace_seconds=0.2)
        self._numbers = count(1)

    def close(self) -> None:
        self.agents.close()
        self.engine.close()
        server.stop(self.folder / "state")

    def driver(self, agent: str | None, runbook: str, **sweep: object) -> Driver:
        """Write a sweep file of ``agent: {run, timeout}`` and further keywords; return who drives it."""
        number = next(self._numbers)
        (self.folder / f"{number}.yaml").write_text(runbook)
        document: dict[str, object] = {"runbook": f"{number}.yaml", "success": ["good"], **sweep}
        if agent is not None:
            document["agent"] = {"run": agent, "timeout": sweep.get("timeout", 60)}
        document.pop("timeout", None)
        path = self.folder / f"{number}.sweep.yaml"
        path.write_text(json.dumps(document))
        environ = {**os.environ, "STATEM_STATE_DIR": str(self.folder / "state")}
        return Driver(load_sweep(path), f"s{number}", self.engine, self.agents, Deadline(), environ)

    def drive(self, agent: str | None, runbook: str = LOOP, **sweep: object) -> TrialResult:
        """Drive the only trial of a sweep."""
        driver = self.driver(agent, runbook, **sweep)
        (trial,) = plan(driver.sweep, driver.sweep_id, self.folder / driver.sweep_id)
        return driver.drive(trial)


@pytest.fixture(scope="module")
def track() -> Iterator[Track]:
    """One server for all trials of this module."""
    folder = Path(tempfile.mkdtemp(prefix="statem-sweep-")).resolve()
    track = Track(folder)
    try:
        yield track
    finally:
        track.close()
        shutil.rmtree(folder)


def test_a_trial_passes(track: Track) -> None:
    """The agent works at the node with a prompt, the checks agree, the run ends on a success."""
    result = track.drive("echo right > out.txt")
    assert (result.outcome, result.node, result.reason) == ("passed", "good", "ended on 'good'")
    assert (result.steps, result.calls, result.blocked, result.loops, result.checks) == (2, 1, 0, 0, 2)
    run = track.engine.run(result.trial.run_id)
    assert run.labels == {"sweep": result.trial.run_id.rpartition("-")[0], "trial": "1"}
    assert (result.trial.folder / "out.txt").read_text() == "right\n"


def test_a_trial_fails(track: Track) -> None:
    """Edges are tried in order; what ends elsewhere than on a success has failed."""
    result = track.drive("echo wrong > out.txt")
    assert (result.outcome, result.node, result.blocked, result.checks) == ("failed", "bad", 1, 2)


def test_a_trial_is_stuck(track: Track) -> None:
    """An agent that changes nothing is called until its steps are used up; the reason says what refused it."""
    result = track.drive("exit 3", max_steps=3)
    assert (result.outcome, result.node) == ("stuck", "work")
    assert (result.steps, result.calls, result.blocked) == (3, 3, 3)
    assert "on 'work' after 3 steps; 'verify' was refused: before_transfer.0 check_failed" in result.reason


def test_without_an_agent_a_refusal_is_final(track: Track) -> None:
    """Nobody will change anything, so nothing is tried twice."""
    result = track.drive(None)
    assert (result.outcome, result.steps, result.calls, result.blocked) == ("stuck", 1, 0, 1)


def test_an_agent_that_takes_too_long(track: Track) -> None:
    """Its whole call is ended, and the trial with it."""
    result = track.drive("echo $$ > pid; sleep 600 & sleep 600", timeout=0.3)
    assert (result.outcome, result.reason) == ("timeout", "the agent took longer than 0.3 s at 'work'")


@pytest.mark.parametrize(
    ("agent", "node", "said"),
    [
        ("no-such-agent", "", "the agent command could not be started (exit 127)"),
        ("./agent.sh", "", 'name a file beside the sweep file as "$STATEM_SWEEP_DIR/FILE"'),
        (
            "true",
            "in_hook: [{type: command, run: exit 4}]",
            "the in_hook of 'work' did not pass: in_hook.0 check_failed",
        ),
        (
            "true",
            "before_transfer: [{type: llm_review, prompt: Well?, run: exit 75, retry: {maximum_attempts: 1}}]",
            "'work' -> 'good' ended as error at before_transfer: reviewer_unavailable",
        ),
    ],
)
def test_what_the_host_could_not_do_is_no_failure(track: Track, agent: str, node: str, said: str) -> None:
    """A missing agent command, a broken set-up and an absent reviewer say nothing about the work."""
    result = track.drive(agent, f"nodes: {{work: {{prompt: Do it., next: good, {node}}}, good: }}\n")
    assert (result.outcome, result.node) == ("error", "work")
    assert said in result.reason


def test_what_an_agent_is_given(track: Track) -> None:
    """The prompt on stdin and in a file, its variables, and from the second call on what refused it."""
    agent = """
        cat > stdin.txt; cp "$STATEM_PROMPT_FILE" prompt.txt
        env | grep '^STATEM_' > "env-$STATEM_ATTEMPT.txt"
        test "$STATEM_ATTEMPT" = 1 || { cp "$STATEM_BLOCKED_FILE" blocked.json; echo right > out.txt; }
        echo "call $STATEM_ATTEMPT"
    """
    result = track.drive(agent, matrix={"model-name": ["tiny/1"]}, env={"BUDGET": "7"})
    folder = result.trial.folder
    assert (result.outcome, result.calls, result.blocked) == ("passed", 2, 1)
    assert (folder / "stdin.txt").read_text() == (folder / "prompt.txt").read_text() == "Write out.txt."
    first, second = (
        dict(line.split("=", 1) for line in (folder / f"env-{n}.txt").read_text().splitlines()) for n in (1, 2)
    )
    expected = {
        "STATEM_VAR_MODEL_NAME": "tiny/1",
        "STATEM_TRIAL": "1",
        "STATEM_RUN_ID": result.trial.run_id,
        "STATEM_CURRENT": "work",
        "STATEM_ATTEMPT": "1",
        "STATEM_PYTHON": sys.executable,
        "STATEM_SWEEP_DIR": str(track.folder),
    }
    assert first.items() >= expected.items()
    assert "STATEM_BLOCKED_FILE" not in first
    assert second["STATEM_ATTEMPT"] == "2"
    blocked = json.loads((folder / "blocked.json").read_text())
    assert blocked["current"] == "work"
    (refusal,) = blocked["blocked"]
    assert (refusal["to"], refusal["outcome"], refusal["results"][0]["passed"]) == ("verify", "blocked", False)
    desk = folder.with_name("trial-1.agent")
    assert (desk / "output-1.txt").read_text() == "call 1"
    assert (desk / "output-2.txt").read_text() == "call 2"


def test_refusals_are_told_where_there_is_no_prompt(track: Track) -> None:
    """A node without a prompt needs no agent until it cannot be left."""
    runbook = "nodes: {gate: {before_transfer: [{type: predicate, path: key, exists: true}], next: good}, good: }\n"
    result = track.drive("touch key", runbook)
    assert (result.outcome, result.steps, result.calls, result.blocked) == ("passed", 2, 1, 1)


def test_loops_are_counted(track: Track) -> None:
    """Coming back to a node twice is two loops, and each entry begins without refusals of the last."""
    runbook = """\
nodes:
  work: {prompt: Go on., next: verify}
  verify:
    next: [{to: good, condition: [{type: command, run: test "$(wc -l < log)" -ge 3}]}, {to: work}]
  good:
"""
    result = track.drive('echo "${STATEM_BLOCKED_FILE:-none}" >> log', runbook)
    assert (result.outcome, result.loops, result.blocked, result.calls) == ("passed", 2, 2, 3)
    assert (result.trial.folder / "log").read_text() == "none\n" * 3


def test_an_agent_may_move_by_itself(track: Track) -> None:
    """A run that its agent has moved is taken up where it stands then."""
    goto = f'{shlex.quote(sys.executable)} -m statem_dist.cli.main goto verify --run-id "$STATEM_RUN_ID"'
    result = track.drive(f"echo right > out.txt; {goto}")
    assert (result.outcome, result.node, result.calls) == ("passed", "good", 1)


def test_many_trials_at_once(track: Track) -> None:
    """Threads share the engine and its inline worker, and each trial comes to its own end."""
    agent = "test $(( STATEM_TRIAL % 3 )) -eq 0 || echo right > out.txt; echo >> out.txt"
    driver = track.driver(agent, LOOP, trials=24)
    pool = Pool(driver.drive, plan(driver.sweep, driver.sweep_id, track.folder / driver.sweep_id), concurrency=6)
    pool.start()
    assert pool.wait(PATIENCE_SECONDS)
    assert [result.outcome for result in pool.board.results()] == ["passed", "passed", "failed"] * 8


def test_a_defect_costs_one_trial(track: Track) -> None:
    """A workspace that is there already is nobody's to work in: the trial is an error and says why."""
    driver = track.driver("true", LOOP)
    (trial,) = plan(driver.sweep, driver.sweep_id, track.folder / driver.sweep_id)
    trial.folder.mkdir(parents=True)
    result = driver.drive(trial)
    assert result.outcome == "error"
    assert "FileExistsError" in result.reason


OWN_RUN = f"{shlex.quote(sys.executable)} -m statem_dist.cli.main {{}} --run-id $STATEM_RUN_ID"
"""A command on the run of the trial."""


def test_a_run_that_somebody_cancels_is_no_failure(track: Track) -> None:
    """The trial ends as cancelled, with who did it and why."""
    result = track.drive(f"echo right > out.txt; {OWN_RUN.format('cancel --run --reason costly --agent-id boss')}")
    assert (result.outcome, result.node) == ("cancelled", "work")
    assert "cancelled by boss (costly)" in result.reason


def test_a_trial_whose_transition_is_ended_with_its_run_is_cancelled(track: Track) -> None:
    """Also when the run ends in the middle of a check."""
    ends_itself = (
        "nodes:\n  work:\n    before_transfer: [{run: '"
        + OWN_RUN.format("terminate --reason costly").replace("'", "''")
        + "; sleep 614'}]\n    next: good\n  good: The end.\n"
    )
    result = track.drive(None, ends_itself)
    assert (result.outcome, result.node, result.reason) == ("cancelled", "work", "the run was cancelled: costly")


def test_a_paused_trial_goes_on_with_its_run(track: Track) -> None:
    """The driver waits for the end of the pause, however long it is."""
    driver = track.driver(f"echo right > out.txt; {OWN_RUN.format('pause --agent-id boss')}", LOOP)
    (trial,) = plan(driver.sweep, driver.sweep_id, track.folder / driver.sweep_id)
    with ThreadPoolExecutor(1) as pool:
        driven = pool.submit(driver.drive, trial)
        eventually(
            lambda: trial.run_id in [run_id for _, run_id in track.engine.store.marks("paused", 10)],
            "the agent has paused its run",
        )
        track.engine.unpause(trial.run_id, Actor("boss"))
        result = driven.result()
    assert (result.outcome, result.node) == ("passed", "good")
