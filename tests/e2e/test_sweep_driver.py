"""Trials on a real embedded server, driven one after another by the slots of this process, without Celery between."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path

import pytest
from msgspec.structs import replace

from statem_dist.embedded import server
from statem_dist.protocol.events import WorkClaimed
from statem_dist.protocol.model import Actor
from statem_dist.settings import Settings
from statem_dist.store.codec import StoredRunbook
from statem_dist.sweep.model import Attempt, Trial, Usage
from statem_dist.sweep.plan import planned, seed_of
from statem_dist.sweep.spec import load_sweep
from statem_workers.runtime import Runtime, WorkerOptions
from tests.support.programs import alive, eventually

pytestmark = pytest.mark.e2e

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
    """A server, a worker's slots in this process, and short ways to drive trials."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        state = folder / "state"
        self.settings = Settings(
            state_dir=state, redis_url=server.ensure(state).redis_url, kill_grace_seconds=0.2, lease_seconds=5.0
        )
        self.runtime = self.another()
        self.ledger = self.runtime.ledger
        self.engine = self.runtime.slots.engine
        self._numbers = count(1)

    def another(self) -> Runtime:
        """Return what another worker has."""
        return Runtime(
            WorkerOptions(queues=("trials",), concurrency=1, pool="threads", inherit_env=True), self.settings
        )

    def close(self) -> None:
        self.runtime.supervisor.close()
        server.stop(self.folder / "state")

    def submit(self, agent: str | None, runbook: str = LOOP, **sweep: object) -> str:
        """Store a sweep of ``agent: {run}`` and further keywords; return its id."""
        number = next(self._numbers)
        (self.folder / f"{number}.yaml").write_text(runbook)
        document: dict[str, object] = {"runbook": f"{number}.yaml", "success": ["good"], "queue": f"q{number}", **sweep}
        if agent is not None:
            document["agent"] = {"run": agent}
        path = self.folder / f"{number}.sweep.yaml"
        path.write_text(json.dumps(document))
        loaded = load_sweep(path)
        stored = StoredRunbook(runbook=loaded.parsed.runbook, text=loaded.parsed.text, source=str(path))
        self.runtime.store.save_runbook(stored)
        sweep_id = f"s{number}"
        self.ledger.create(sweep_id, loaded.definition, sweep_id, "tester")
        self.ledger.add(sweep_id, loaded.definition, planned(loaded.cells, loaded.definition.trials))
        self.ledger.steer(sweep_id, "active", ("planning",))
        return sweep_id

    def drive_all(self, sweep_id: str) -> list[Trial]:
        """Drive every trial of a sweep that waits, one after another; return all as they are then."""
        queue = self.ledger.require(sweep_id).definition.queue
        while self.runtime.slots.drive_next(queue):
            pass
        return list(self.ledger.trials(sweep_id))

    def at_work(self, sweep_id: str, name: str) -> bool:
        """Return whether an agent of a sweep has made a file of that name."""
        running = [trial.last for trial in self.ledger.running(sweep_id) if trial.last is not None]
        return any((workspace_of(attempt) / name).exists() for attempt in running)

    def drive(self, agent: str | None, runbook: str = LOOP, **sweep: object) -> Attempt:
        """Drive the only trial of a sweep, whose troubles are not borne; return its only attempt."""
        (trial,) = self.drive_all(self.submit(agent, runbook, **{"retries": 0, **sweep}))
        (attempt,) = trial.attempts
        assert trial.state == attempt.outcome
        return attempt


def workspace_of(attempt: Attempt) -> Path:
    """Return where the agent of an attempt worked."""
    return Path(attempt.folder) / "workspace"


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
    assert (result.outcome, result.node, result.reason, result.detail) == (
        "passed",
        "good",
        "success_end",
        "ended on 'good'",
    )
    assert (result.steps, result.calls, result.blocked, result.loops, result.checks) == (2, 1, 0, 0, 2)
    run = track.engine.run(result.run_id)
    sweep_id = result.run_id.rpartition("-")[0]
    assert run.labels == {"sweep": sweep_id, "trial": "1", "repetition": "1", "attempt": "1"}
    folder = Path(result.folder)
    assert (folder / "workspace/out.txt").read_text() == "right\n"
    assert [json.loads(line)["event"] for line in (folder / "history.jsonl").read_text().splitlines()]
    assert json.loads((folder / "result.json").read_text())["reason"] == "success_end"
    assert json.loads((folder / "evidence.json").read_text())


def test_a_trial_fails(track: Track) -> None:
    """Edges are tried in order; what ends elsewhere than on a success has failed."""
    result = track.drive("echo wrong > out.txt")
    assert (result.outcome, result.node, result.blocked, result.checks) == ("failed", "bad", 1, 2)
    assert result.reason == "failure_end"
    (block,) = result.blocks
    assert (block.node, block.target, block.times) == ("verify", "good", 1)


def test_a_trial_is_stuck(track: Track) -> None:
    """An agent that changes nothing is called until its steps are used up; the reason says what refused it."""
    result = track.drive('echo "$STATEM_ATTEMPT" > other.txt', max_steps=3)
    assert (result.outcome, result.reason, result.node) == ("stuck", "max_steps", "work")
    assert (result.steps, result.calls, result.blocked) == (3, 3, 3)
    assert "on 'work' after 3 steps; 'verify' was refused: before_transfer.0 check_failed" in result.detail


def test_without_an_agent_a_refusal_is_final(track: Track) -> None:
    """Nobody will change anything, so nothing is tried twice."""
    result = track.drive(None)
    assert (result.outcome, result.steps, result.calls, result.blocked) == ("stuck", 1, 0, 1)
    assert result.reason == "no_progress"


def test_the_same_block_three_times_in_a_row_is_no_progress(track: Track) -> None:
    """An agent that changes nothing is not paid for twenty steps."""
    result = track.drive("true")
    assert (result.outcome, result.reason, result.calls, result.blocked) == ("stuck", "no_progress", 3, 3)
    assert track.engine.run(result.run_id).status == "cancelled"


def test_an_agent_that_takes_too_long(track: Track) -> None:
    """Its whole call is ended, and the trial with it."""
    result = track.drive("echo $$ > pid; sleep 600 & sleep 600", timeouts={"agent": 0.3})
    assert (result.outcome, result.reason) == ("timeout", "agent_timeout")
    assert result.detail == "the agent took longer than 0.3 s at 'work'"


def test_a_trial_that_takes_too_long(track: Track) -> None:
    """Its clock covers everything from its start; what is under way is ended, a check as well as the agent."""
    slow_check = LOOP.replace("grep -q right out.txt", "sleep 600")
    for agent, runbook in (("sleep 600", LOOP), ("echo > out.txt", slow_check)):
        result = track.drive(agent, runbook, timeouts={"trial": 0.5})
        assert (result.outcome, result.reason) == ("timeout", "trial_timeout")
        assert 0.4 < result.seconds < 30
        assert track.engine.run(result.run_id).status == "cancelled"


@pytest.mark.parametrize(
    ("agent", "node", "reason", "said"),
    [
        ("no-such-agent", "", "agent_not_started", "the agent command could not be started (exit 127)"),
        ("./agent.sh", "", "agent_not_started", 'name a file beside the sweep file as "$STATEM_SWEEP_DIR/FILE"'),
        (
            "true",
            "in_hook: [{type: command, run: exit 4}]",
            "hook_failed",
            "the in_hook of 'work' did not pass: in_hook.0 check_failed",
        ),
        (
            "true",
            "before_transfer: [{type: llm_review, prompt: Well?, run: exit 75, retry: {maximum_attempts: 1}}]",
            "check_not_evaluated",
            "'work' -> 'good' ended as error at before_transfer: reviewer_unavailable",
        ),
    ],
)
def test_what_the_host_could_not_do_is_no_failure(track: Track, agent: str, node: str, reason: str, said: str) -> None:
    """A missing agent command, a broken set-up and an absent reviewer say nothing about the work."""
    result = track.drive(agent, f"nodes: {{work: {{prompt: Do it., next: good, {node}}}, good: }}\n")
    assert (result.outcome, result.reason, result.node) == ("error", reason, "work")
    assert said in result.detail


def test_what_an_agent_is_given(track: Track) -> None:
    """The prompt on stdin and in a file, its variables, and from the second call on what refused it."""
    agent = r"""
        cat > stdin.txt; cp "$STATEM_PROMPT_FILE" prompt.txt
        env | grep '^STATEM_\|^BUDGET=7' > "env-$STATEM_ATTEMPT.txt"
        test "$STATEM_ATTEMPT" = 1 || { cp "$STATEM_BLOCKED_FILE" blocked.json; echo right > out.txt; }
        echo "call $STATEM_ATTEMPT"
    """
    result = track.drive(agent, matrix={"model-name": ["tiny/1"]}, env={"BUDGET": "7"})
    folder = workspace_of(result)
    assert (result.outcome, result.calls, result.blocked) == ("passed", 2, 1)
    assert (folder / "stdin.txt").read_text() == (folder / "prompt.txt").read_text() == "Write out.txt."
    first, second = (
        dict(line.split("=", 1) for line in (folder / f"env-{n}.txt").read_text().splitlines()) for n in (1, 2)
    )
    expected = {
        "STATEM_VAR_MODEL_NAME": "tiny/1",
        "STATEM_TRIAL": "1",
        "STATEM_RUN_ID": result.run_id,
        "STATEM_CURRENT": "work",
        "STATEM_ATTEMPT": "1",
        "STATEM_PYTHON": sys.executable,
        "STATEM_SWEEP_DIR": str(track.folder),
        "STATEM_SEED": str(seed_of(0, {"model-name": "tiny/1"}, 1)),
    }
    assert first.items() >= expected.items()
    assert "STATEM_BLOCKED_FILE" not in first
    assert second["STATEM_ATTEMPT"] == "2"
    blocked = json.loads((folder / "blocked.json").read_text())
    assert blocked["current"] == "work"
    (refusal,) = blocked["blocked"]
    assert (refusal["to"], refusal["outcome"], refusal["results"][0]["passed"]) == ("verify", "blocked", False)
    desk = folder.with_name("agent")
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
    assert (workspace_of(result) / "log").read_text() == "none\n" * 3


def test_an_agent_may_move_by_itself(track: Track) -> None:
    """A run that its agent has moved is taken up where it stands then."""
    goto = f'{shlex.quote(sys.executable)} -m statem_dist.cli.main goto verify --run-id "$STATEM_RUN_ID"'
    result = track.drive(f"echo right > out.txt; {goto}")
    assert (result.outcome, result.node, result.calls) == ("passed", "good", 1)


def test_many_trials_at_once(track: Track) -> None:
    """Slots share the engine and its inline worker, and each trial comes to its own end."""
    agent = "test $(( STATEM_TRIAL % 3 )) -eq 0 || echo right > out.txt; echo >> out.txt"
    sweep_id = track.submit(agent, trials=24)
    with ThreadPoolExecutor(6) as pool:
        for _ in range(6):
            pool.submit(track.drive_all, sweep_id)
    assert [trial.state for trial in track.ledger.trials(sweep_id)] == ["passed", "passed", "failed"] * 8
    sweep = track.ledger.require(sweep_id)
    assert (sweep.status, sweep.planned, sweep.complete) == ("finished", 24, True)


def test_an_agent_names_the_edge_that_it_wants(track: Track) -> None:
    """Only that one is tried; a name that is no edge of the node leaves all of them."""
    runbook = "nodes: {work: {prompt: Choose., next: [bad, good]}, good: , bad: }\n"
    assert track.drive("echo good > $STATEM_GOTO_FILE", runbook).node == "good"
    assert track.drive("echo elsewhere > $STATEM_GOTO_FILE", runbook).node == "bad"


def test_prompts_name_values(track: Track) -> None:
    """Variables of the sweep are filled in, and nothing else; what looks like a command stays text."""
    runbook = (
        "nodes: {work: {prompt: 'Do ${STATEM_VAR_TASK} in $STATEM_VAR_LANGUAGE for $HOME $(id)', next: good}, good: }"
    )
    result = track.drive("cat > prompt.txt", runbook, matrix={"task": ["$(rm -r /) `x`"]}, vars={"language": "C"})
    assert (workspace_of(result) / "prompt.txt").read_text() == "Do $(rm -r /) `x` in C for $HOME $(id)"


def test_usage_is_summed(track: Track) -> None:
    """Over the calls of an attempt, and over the sweep; what is no usage counts nothing."""
    says = """
        test "$STATEM_ATTEMPT" = 1 || echo right > out.txt
        echo '{"input_tokens": 10, "output_tokens": 2, "cost_usd": 0.25}' > "$STATEM_USAGE_FILE"
    """
    sweep_id = track.submit(says, trials=2)
    first, second = track.drive_all(sweep_id)
    assert first.last is not None
    assert second.last is not None
    assert first.last.usage == second.last.usage == Usage(20, 4, 0.5)
    assert track.ledger.require(sweep_id).usage == Usage(40, 8, 1.0)
    nonsense = track.drive("echo right > out.txt; echo '{\"cost_usd\": -1}' > $STATEM_USAGE_FILE")
    assert nonsense.usage is None


def test_an_error_is_tried_again_within_its_budget(track: Track) -> None:
    """Each attempt has a run and a workspace of its own, and the earlier ones stay as they were."""
    agent = f"test -e {track.folder}/mended || exit 127; echo right > out.txt"
    sweep_id = track.submit(agent, retries=1)
    (trial,) = track.drive_all(sweep_id)
    assert [(a.outcome, a.reason, a.retried, a.troubles) for a in trial.attempts] == [
        ("error", "agent_not_started", True, 0),
        ("error", "agent_not_started", False, 1),
    ]
    assert trial.state == "error"
    assert len({attempt.run_id for attempt in trial.attempts} | {attempt.folder for attempt in trial.attempts}) == 4
    (track.folder / "mended").touch()
    assert track.ledger.again(sweep_id, [trial]) == 1
    track.ledger.steer(sweep_id, "active", ("finished",))
    (after,) = track.drive_all(sweep_id)
    assert after.attempts[:2] == trial.attempts
    assert (after.state, after.attempts[2].troubles) == ("passed", 0)


def test_another_worker_goes_on_where_a_trial_stood(track: Track) -> None:
    """A trial whose lease has run out keeps its run, its workspace and its counts; only the last call is repeated."""
    agent = 'echo x >> calls; test "$(wc -l < calls)" -ge 2 || exec sleep 600; echo right > out.txt'
    sweep_id = track.submit(agent)
    queue = track.ledger.require(sweep_id).definition.queue
    lost = track.another()
    with ThreadPoolExecutor(1) as pool:
        driven = pool.submit(lost.slots.drive_next, queue)
        eventually(lambda: track.at_work(sweep_id, "calls"), "the agent works")
        (claim,) = track.ledger.claims(sweep_id)
        (trial,) = track.ledger.running(sweep_id)
        # What a keeper does when a lease has run out, done while its holder still believes in it.
        definition = track.ledger.require(sweep_id).definition
        assert track.ledger.settle(claim, trial.planned.cell, definition, trial.last, None)
        assert driven.result(), "it has learned that the trial is not its own any more, and ended its agent"
    (after,) = track.drive_all(sweep_id)
    (attempt,) = after.attempts
    assert (after.state, attempt.calls, attempt.outcome) == ("passed", 2, "passed")
    assert (workspace_of(attempt) / "calls").read_text() == "x\nx\n"
    lost.supervisor.close()


def test_a_worker_that_stops_hands_its_trials_back(track: Track) -> None:
    """At the end of the grace the agent is ended, and the trial waits again, with nothing charged to it."""
    sweep_id = track.submit("test -e out.txt || { echo right > out.txt; exec sleep 600; }")
    queue = track.ledger.require(sweep_id).definition.queue
    stopping = track.another()
    with ThreadPoolExecutor(1) as pool:
        driven = pool.submit(stopping.slots.drive_next, queue)
        eventually(lambda: track.at_work(sweep_id, "out.txt"), "the agent works")
        stopping.stop(0.0)
        assert driven.result()
    (trial,) = track.ledger.trials(sweep_id)
    assert (trial.state, len(trial.attempts), trial.attempts[0].losses) == ("pending", 1, 0)
    assert not stopping.slots.drive_next(queue), "nothing is taken by one that stops"
    (after,) = track.drive_all(sweep_id)
    assert (after.state, len(after.attempts)) == ("passed", 1)
    stopping.supervisor.close()


def test_a_cancelled_sweep_ends_its_agents(track: Track) -> None:
    """Within seconds, and their runs are cancelled; what waits is cancelled at once."""
    sweep_id = track.submit("touch begun; exec sleep 600", trials=2)
    queue = track.ledger.require(sweep_id).definition.queue
    with ThreadPoolExecutor(1) as pool:
        driven = pool.submit(track.runtime.slots.drive_next, queue)
        eventually(lambda: track.at_work(sweep_id, "begun"), "the agent works")
        track.ledger.steer(sweep_id, "cancelled", ("active",))
        assert driven.result()
    first, second = track.ledger.trials(sweep_id)
    assert (first.state, second.state) == ("cancelled", "cancelled")
    assert first.last is not None
    assert (first.last.reason, second.last) == ("sweep_cancelled", None)
    assert track.engine.run(first.last.run_id).status == "cancelled"


@pytest.mark.parametrize("instead", ["true", 'touch "$OLDPWD"', 'ln -s / "$OLDPWD"'])
def test_an_agent_does_not_escape_its_checks(track: Track, instead: str) -> None:
    """One that removes its workspace, or puts something else in its place, is judged by an empty one."""
    result = track.drive(f'cd /; rm -rf "$OLDPWD"; {instead}')
    assert (result.outcome, result.reason, result.checks) == ("stuck", "no_progress", 3)


def test_a_run_goes_on_by_the_runbook_that_it_has_begun_with(track: Track) -> None:
    """Also when the sweep has been given another one while a worker had the trial."""
    sweep_id = track.submit('echo x >> calls; test "$(wc -l < calls)" -ge 2 || exec sleep 600; echo right > out.txt')
    queue = track.ledger.require(sweep_id).definition.queue
    lost = track.another()
    with ThreadPoolExecutor(1) as pool:
        driven = pool.submit(lost.slots.drive_next, queue)
        eventually(lambda: track.at_work(sweep_id, "calls"), "the agent works")
        lost.stop(0.0)
        assert driven.result()
    other = track.submit("true", "nodes: {elsewhere: {next: good}, good: }")
    changed = replace(track.ledger.require(sweep_id).definition, runbook=track.ledger.require(other).definition.runbook)
    track.ledger.revise(sweep_id, changed, "changed")
    (trial,) = track.drive_all(sweep_id)
    (attempt,) = trial.attempts
    assert (trial.state, attempt.node, attempt.revision) == ("passed", "good", 1)
    lost.supervisor.close()


def test_a_workspace_that_cannot_be_made_is_an_error(track: Track) -> None:
    """The trial says why, and no other one suffers."""
    template = track.folder / "template"
    template.mkdir()
    sweep_id = track.submit("true", workspace={"template": "template"}, retries=0)
    template.rmdir()
    (trial,) = track.drive_all(sweep_id)
    assert trial.last is not None
    assert (trial.state, trial.last.reason) == ("error", "workspace_failed")
    assert "template" in trial.last.detail


OWN_RUN = f"{shlex.quote(sys.executable)} -m statem_dist.cli.main {{}} --run-id $STATEM_RUN_ID"
"""A command on the run of the trial."""


def test_a_run_that_somebody_cancels_is_no_failure(track: Track) -> None:
    """The trial ends as cancelled, with who did it and why."""
    result = track.drive(f"echo right > out.txt; {OWN_RUN.format('cancel --run --reason costly --agent-id boss')}")
    assert (result.outcome, result.node) == ("cancelled", "work")
    assert (result.reason, "costly" in result.detail) == ("run_cancelled", True)


def test_a_trial_whose_transition_is_ended_with_its_run_is_cancelled(track: Track) -> None:
    """Also when the run ends in the middle of a check."""
    ends_itself = (
        "nodes:\n  work:\n    before_transfer: [{run: '"
        + OWN_RUN.format("terminate --reason costly").replace("'", "''")
        + "; sleep 614'}]\n    next: good\n  good: The end.\n"
    )
    result = track.drive(None, ends_itself)
    assert (result.outcome, result.node, result.reason) == ("cancelled", "work", "run_cancelled")
    assert result.detail == "the run was cancelled: costly"


def test_a_paused_trial_goes_on_with_its_run(track: Track) -> None:
    """The driver waits for the end of the pause, however long it is."""
    sweep_id = track.submit(f"echo right > out.txt; {OWN_RUN.format('pause --agent-id boss')}")
    with ThreadPoolExecutor(1) as pool:
        driven = pool.submit(track.drive_all, sweep_id)
        eventually(
            lambda: f"{sweep_id}-1" in [run_id for _, run_id in track.engine.store.marks("paused", 10)],
            "the agent has paused its run",
        )
        track.engine.unpause(f"{sweep_id}-1", Actor("boss"))
        (trial,) = driven.result()
    assert trial.state == "passed"


# --- what befalls workers is no doing of the agent ----------------------------------------------------------------


ONE_CALL = "nodes: {work: {prompt: Go., before_transfer: [{path: out.txt}], next: good}, good: }\n"
CHECKED = ONE_CALL.replace("path: out.txt", "run: test -e out.txt")
HANGS_ONCE = "test -e once && touch out.txt && exit; touch once; exec sleep 600"


def hand_back(track: Track, sweep_id: str, file: str = "once") -> Attempt:
    """Let a worker begin the only trial of a sweep, stop it while its agent is at work; return the attempt."""
    stopping = track.another()
    with ThreadPoolExecutor(1) as pool:
        driven = pool.submit(stopping.slots.drive_next, track.ledger.require(sweep_id).definition.queue)
        eventually(lambda: track.at_work(sweep_id, file), "the agent works")
        stopping.stop(0.0)
        assert driven.result()
    stopping.supervisor.close()
    (trial,) = track.ledger.trials(sweep_id)
    assert trial.last is not None
    return trial.last


def test_an_interrupted_step_counts_once(track: Track) -> None:
    """A trial that was handed back in the middle of its last step has that step all the same."""
    sweep_id = track.submit(HANGS_ONCE, ONE_CALL, max_steps=1)
    assert hand_back(track, sweep_id).steps == 1
    (trial,) = track.drive_all(sweep_id)
    assert trial.last is not None
    assert (trial.state, trial.last.reason, trial.last.steps) == ("passed", "success_end", 1)


def test_time_without_a_worker_does_not_count(track: Track) -> None:
    """A trial that waits for another worker for longer than its own time has that time all the same."""
    sweep_id = track.submit(HANGS_ONCE, ONE_CALL, timeouts={"trial": 2})
    attempt = hand_back(track, sweep_id)
    eventually(lambda: track.ledger.clock() - attempt.started_at > 2000, "its time would be over")
    (trial,) = track.drive_all(sweep_id)
    assert trial.last is not None
    assert (trial.state, trial.last.reason) == ("passed", "success_end")


def test_a_run_that_is_paused_for_too_long(track: Track) -> None:
    """The trial's time goes on, and is over in the end; that is no error of the host."""
    result = track.drive(f"echo right > out.txt; {OWN_RUN.format('pause --agent-id boss')}", timeouts={"trial": 2})
    assert (result.outcome, result.reason) == ("timeout", "trial_timeout")


def test_somebody_else_moves_the_run_in_vain(track: Track) -> None:
    """What somebody else attempts and is blocked in is waited for, and keeps nobody from the attempt of the driver."""
    two_ways = """\
nodes:
  work:
    prompt: Go.
    next:
      - {to: good, condition: [{run: test -e key}]}
      - {to: bad, condition: [{run: "touch began; sleep 1; touch key; exit 1"}]}
  good:
  bad:
"""
    sweep_id = track.submit(
        "touch ready; until test -e began; do sleep 0.02; done", two_ways, timeouts={"agent": 20}, retries=0
    )
    other = track.another()
    with ThreadPoolExecutor(2) as pool:
        driven = pool.submit(track.drive_all, sweep_id)
        eventually(lambda: track.at_work(sweep_id, "ready"), "the agent works")
        beside = pool.submit(other.slots.engine.goto, f"{sweep_id}-1", "bad", Actor("beside"))
        assert beside.result().transition.outcome == "blocked"
        (trial,) = driven.result()
    other.supervisor.close()
    assert trial.last is not None
    assert (trial.state, trial.last.reason, len(trial.attempts)) == ("passed", "success_end", 1)


def test_a_trial_goes_on_to_its_end_while_its_worker_stops(track: Track) -> None:
    """Within the grace its checks are executed as ever, and each of them once."""
    sweep_id = track.submit(
        "touch ready; until test -e go; do sleep 0.02; done; touch out.txt",
        CHECKED,
    )
    stopping = track.another()
    with ThreadPoolExecutor(1) as pool:
        driven = pool.submit(stopping.slots.drive_next, track.ledger.require(sweep_id).definition.queue)
        eventually(lambda: track.at_work(sweep_id, "ready"), "the agent works")
        stopping.stop(5.0)
        (trial,) = track.ledger.running(sweep_id)
        assert trial.last is not None
        (workspace_of(trial.last) / "go").touch()
        assert driven.result()
    stopping.supervisor.close()
    (after,) = track.ledger.trials(sweep_id)
    assert after.state == "passed"
    claims = [event for _, event in track.engine.store.events(f"{sweep_id}-1") if isinstance(event, WorkClaimed)]
    assert len(claims) <= 2


def test_a_verdict_that_comes_too_late_ends_no_run(track: Track) -> None:
    """A worker that has lost its trial without knowing it, and comes to a verdict, leaves the run to its successor."""
    sweep_id = track.submit("touch once; exec sleep 600", ONE_CALL, timeouts={"agent": 1.5})
    late = track.another()
    with ThreadPoolExecutor(1) as pool:
        driven = pool.submit(late.slots.drive_next, track.ledger.require(sweep_id).definition.queue)
        eventually(lambda: track.at_work(sweep_id, "once"), "the agent works")
        # Its renewals come to nothing, as in a process that is stopped; meanwhile somebody else takes the trial over.
        late.slots._holding.close()
        (claim,) = track.ledger.claims(sweep_id)
        (trial,) = track.ledger.running(sweep_id)
        definition = track.ledger.require(sweep_id).definition
        assert track.ledger.settle(claim, trial.planned.cell, definition, trial.last, None)
        driven.result()
    late.supervisor.close()
    assert track.engine.run(f"{sweep_id}-1").ending is None
    assert not (Path(trial.last.folder if trial.last else "") / "result.json").exists()
    track.ledger.steer(sweep_id, "cancelled", ("active",))


def test_nobody_works_beside_the_agent_of_a_silent_worker(track: Track) -> None:
    """A worker of this host that was stopped has an agent that goes on; whoever takes the trial over ends it first."""
    agent = "test -e once && touch out.txt && exit; echo $$ > pid; touch once; exec sleep 600"
    sweep_id = track.submit(agent, ONE_CALL)
    silent = track.another()
    with ThreadPoolExecutor(1) as pool:
        driven = pool.submit(silent.slots.drive_next, track.ledger.require(sweep_id).definition.queue)
        eventually(lambda: track.at_work(sweep_id, "once"), "the agent works")
        silent.slots._holding.close()
        (claim,) = track.ledger.claims(sweep_id)
        (trial,) = track.ledger.running(sweep_id)
        assert trial.last is not None
        pid = int((workspace_of(trial.last) / "pid").read_text())
        definition = track.ledger.require(sweep_id).definition
        assert track.ledger.settle(claim, trial.planned.cell, definition, trial.last, None)
        (after,) = track.drive_all(sweep_id)
        gone = not alive(pid)
        silent.supervisor.close()
        driven.result()
    assert (after.state, gone) == ("passed", True)
