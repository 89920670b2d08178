"""Sweeps as their users have them: real workers, real agents, and whatever befalls both."""

from __future__ import annotations

import csv
import json
import os
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from statem_dist.embedded import server
from statem_dist.protocol.model import Actor
from statem_dist.sweep.model import Outcome, Reason
from statem_dist.sweep.plan import seed_of
from statem_dist.sweep.scores import scores_of
from tests.support.driven_sweeps import UNHURRIED, Sweeps, at_once, only_attempt, results, sweeps_of_a_site
from tests.support.programs import Program, Site, alive, eventually
from tests.support.service import serve

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "runbooks"

WAITS = 'until [ -e "$STATEM_SWEEP_DIR/{name}.gate" ]; do sleep 0.05; done'
"""An agent that waits until the test opens its gate."""

NOTED = """\
echo "begin $STATEM_VAR_MODEL" >> "$STATEM_SWEEP_DIR/{name}.log"
{waits}
touch out
echo "end $STATEM_VAR_MODEL" >> "$STATEM_SWEEP_DIR/{name}.log"
"""
"""An agent that notes when it begins and ends."""


def noted(log: str, gate: str = "") -> str:
    """Return the command of an agent that notes its work in a log, and waits for a gate."""
    return NOTED.format(name=log, waits=WAITS.format(name=gate or log))


@pytest.fixture(scope="module")
def sweeps() -> Iterator[Sweeps]:
    """Sweeps with a worker of eight slots, and one of a single slot for the queue ``solo``."""
    with sweeps_of_a_site() as sweeps:
        sweeps.worker(8)
        sweeps.worker(1, "-Q", "solo")
        yield sweeps


@pytest.fixture
def apart() -> Iterator[Sweeps]:
    """Sweeps without a worker, in a site for this test alone."""
    with sweeps_of_a_site() as sweeps:
        yield sweeps


# --- outcomes ----------------------------------------------------------------------------------------------------

HOOKED = "nodes: {work: {prompt: Go., in_hook: [{run: exit 4}], next: done}, done: }\n"
UNSURE = """\
nodes:
  work: {prompt: Go., before_transfer: [{run: exit 75, retry: {exit_status: [75], maximum_attempts: 1}}], next: done}
  done:
"""
ENDS_BADLY = "nodes: {work: {prompt: Go., next: gave-up}, done: , gave-up: {outcome: failure}}\n"

HANGS = "sleep 600"

KINDS: list[tuple[str, str, dict[str, Any], Outcome, Reason]] = [
    ("passes", "touch out", {}, "passed", "success_end"),
    ("ends-badly", "true", {"runbook_text": ENDS_BADLY}, "failed", "failure_end"),
    ("does-nothing", "true", {}, "stuck", "no_progress"),
    ("slow-to-mend", "echo x >> tries", {"max_steps": 2}, "stuck", "max_steps"),
    ("hangs", HANGS, {"timeouts": {"agent": "0.5s"}}, "timeout", "agent_timeout"),
    ("takes-too-long", HANGS, {"timeouts": {"trial": "1s"}}, "timeout", "trial_timeout"),
    ("is-not-there", "no-such-agent", {"retries": 0}, "error", "agent_not_started"),
    ("is-not-judged", "true", {"retries": 0, "runbook_text": UNSURE}, "error", "check_not_evaluated"),
    ("is-not-prepared", "true", {"retries": 0, "runbook_text": HOOKED}, "error", "hook_failed"),
    ("has-no-place", "true", {"retries": 0, "workspace": {"git": ".", "ref": "v1"}}, "error", "workspace_failed"),
]
"""Agents and their sweeps, each with the outcome and the reason that it comes to."""


def test_every_outcome_has_its_reason(sweeps: Sweeps) -> None:
    """Sweeps of one trial each, all at once: every one ends as it must, and says why in its folder too."""
    submitted: dict[str, str] = {}
    for name, run, keywords, _, _ in KINDS:
        given = dict(keywords)
        text = given.pop("runbook_text", None)
        more = {} if text is None else {"runbook": text}
        submitted[name] = sweeps.submit(name, run, **more, **given)
    sweeps.ended(*submitted.values())
    found = {name: sweeps.trial(sweep_id) for name, sweep_id in submitted.items()}
    assert {name: results([trial]) for name, trial in found.items()} == {
        name: [(outcome, reason)] for name, _, _, outcome, reason in KINDS
    }
    for name, trial in found.items():
        attempt = only_attempt(trial)
        kept = json.loads((Path(attempt.folder) / "result.json").read_text())
        assert (kept["reason"], kept["detail"]) == (attempt.reason, attempt.detail), name
        assert attempt.detail
    assert {sweeps.sweep(sweep_id).status for sweep_id in submitted.values()} == {"finished"}


def test_a_run_that_somebody_terminates_is_no_result(sweeps: Sweeps) -> None:
    """The trial is cancelled and not scored, and its agent is ended."""
    sweep_id = sweeps.submit("cut", f'echo $$ > "$STATEM_SWEEP_DIR/cut.pid"; {HANGS}')
    eventually(lambda: sweeps.site.lines("cut.pid"), "the agent is at work")
    sweeps.engine.cancel_run(f"{sweep_id}-1", "not wanted", Actor(id="ada"), terminate=True)
    sweeps.ended(sweep_id)
    assert results(sweeps.trials(sweep_id)) == [("cancelled", "run_cancelled")]
    assert only_attempt(sweeps.trial(sweep_id)).detail == "the run was cancelled: not wanted"
    (pid,) = sweeps.site.lines("cut.pid")
    eventually(lambda: not alive(int(pid)), "the agent is gone")


def test_trouble_is_tried_again_in_a_new_attempt(sweeps: Sweeps) -> None:
    """What the host could not do is done again in a new workspace, within the budget; the earlier attempts are kept."""
    counted = 'echo x >> "$STATEM_SWEEP_DIR/{name}.starts"; echo "$PWD" > here'
    recovers = (
        f'{counted.format(name="recovers")}; [ $(wc -l < "$STATEM_SWEEP_DIR/recovers.starts") -gt 1 ] || exit 127'
    )
    good = sweeps.submit("recovers", f"{recovers}; touch out")
    bad = sweeps.submit("never", f"{counted.format(name='never')}; exit 127", retries=1)
    sweeps.ended(good, bad)
    first, second = sweeps.trial(good).attempts
    assert (first.outcome, first.reason, first.retried, first.troubles) == ("error", "agent_not_started", True, 0)
    assert (second.outcome, second.reason, second.retried, second.troubles) == ("passed", "success_end", False, 1)
    for attempt in (first, second):
        assert (Path(attempt.folder) / "workspace" / "here").read_text().strip() == f"{attempt.folder}/workspace"
    assert first.run_id != second.run_id
    assert sweeps.trial(bad).state == "error"
    assert [attempt.retried for attempt in sweeps.trial(bad).attempts] == [True, False]
    assert len(sweeps.site.lines("never.starts")) == 2


# --- what agents are told, and tell -------------------------------------------------------------------------------

FORK = """\
nodes:
  work: {prompt: "Speak ${STATEM_VAR_LANGUAGE} as $STATEM_VAR_MODEL.", next: [left, right]}
  left:
  right:
"""


def test_an_agent_is_told_its_values_and_chooses_its_way(sweeps: Sweeps) -> None:
    """The prompt has the values of the sweep and of the cell, and the edge that it names is taken before the first."""
    says = 'cat > said; cmp -s said "$STATEM_PROMPT_FILE" && echo right > "$STATEM_GOTO_FILE"'
    sweep_id = sweeps.submit("chooses", says, FORK, vars={"language": "Welsh"}, matrix={"model": ["small"]})
    sweeps.ended(sweep_id)
    attempt = only_attempt(sweeps.trial(sweep_id))
    assert (attempt.reason, attempt.node) == ("success_end", "right")
    assert (Path(attempt.folder) / "workspace" / "said").read_text() == "Speak Welsh as small."


def test_what_agents_have_used_is_summed(sweeps: Sweeps) -> None:
    """Over the calls of an attempt, and over the trials of the sweep; what cannot be understood counts as nothing."""
    used = '{"input_tokens": 10, "output_tokens": 1, "cost_usd": 0.25}'
    agent = f"echo '{used}' > \"$STATEM_USAGE_FILE\"; [ -e once ] && touch out; touch once"
    costly = sweeps.submit("costly", agent, trials=3)
    silent = sweeps.submit("silent", 'echo "many" > "$STATEM_USAGE_FILE"; touch out')
    sweeps.ended(costly, silent)
    usage = sweeps.sweep(costly).usage
    assert (usage.input_tokens, usage.output_tokens, usage.cost_usd) == (60, 6, 1.5)
    for trial in sweeps.trials(costly):
        told = only_attempt(trial).usage
        assert told is not None
        assert (told.input_tokens, told.output_tokens, told.cost_usd) == (20, 2, 0.5)
    assert only_attempt(sweeps.trial(silent)).usage is None


def test_seeds_are_different_and_stay(sweeps: Sweeps) -> None:
    """Every trial has another seed, and the same one in another sweep of the same content."""
    agent = 'echo "$STATEM_VAR_MODEL $STATEM_TRIAL $STATEM_SEED" >> "$STATEM_SWEEP_DIR/seeds.log"; touch out'
    keywords: dict[str, Any] = {"matrix": {"model": ["small", "large"]}, "trials": 3, "seed": 11}
    sweeps.ended(sweeps.submit("seeds", agent, **keywords))
    first = sweeps.site.lines("seeds.log")
    assert len({line.split()[2] for line in first}) == 6
    assert sorted(first) == sorted(
        f"{model} {repetition} {seed_of(11, {'model': model}, repetition)}"
        for model in ("small", "large")
        for repetition in (1, 2, 3)
    )
    sweeps.ended(sweeps.submit("seeds", agent, **keywords))
    assert sorted(sweeps.site.lines("seeds.log")) == sorted(first * 2)


# --- how many at once, and in which order -------------------------------------------------------------------------


def test_bounds_of_a_sweep_hold(sweeps: Sweeps) -> None:
    """In all and per value as many trials are at work as allowed, never more, and never fewer for long."""
    sweep_id = sweeps.submit(
        "bounded",
        noted("bounded"),
        matrix={"model": ["a", "b", "c"]},
        trials=4,
        concurrency={"total": 4, "per": {"model": {"a": 1, "*": 2}}},
    )
    eventually(lambda: len(sweeps.site.lines("bounded.log")) == 4, "four are at work")
    sweeps.site.write("bounded.gate")
    assert sweeps.ended(sweep_id).counts["passed"] == 12
    log = sweeps.site.lines("bounded.log")
    assert len(log) == 24
    most = {model: at_once(log, model) for model in ("a", "b", "c")}
    assert most["a"] == 1
    assert max(most.values()) <= 2
    assert at_once(log) == 4


def test_a_limit_is_shared_by_sweeps(sweeps: Sweeps) -> None:
    """Of two sweeps together no more trials are at work than the limit says; who waits is told why."""
    limits = {"narrow": {"in_flight": 3, "when": {"model": "large"}}}
    agent = f'[ "$STATEM_VAR_MODEL" = large ] || {{ touch out; exit; }}\n{noted("shared")}'
    two = [
        sweeps.submit(name, agent, matrix={"model": ["large", "small"]}, trials=4, limits=limits, seed=seed)
        for seed, name in enumerate(("one", "other"))
    ]
    assert two[0] != two[1]
    eventually(lambda: len(sweeps.site.lines("shared.log")) == 3, "three are at work")
    held = eventually(lambda: [why for each in two for why in sweeps.sweep(each).held.items()], "somebody is held")
    assert held[0] == ("limit narrow", "3 trials are under way")
    for sweep_id in two:
        eventually(lambda: sweeps.sweep(sweep_id).counts["passed"] == 4, "what needs no place goes on")  # noqa: B023
    sweeps.site.write("shared.gate")
    sweeps.ended(*two)
    assert len(sweeps.site.lines("shared.log")) == 16
    assert at_once(sweeps.site.lines("shared.log")) == 3


def test_who_is_served_first(sweeps: Sweeps) -> None:
    """The highest priority first, and sweeps of the same priority in turn."""
    alone = {"queue": "solo"}
    holds = sweeps.submit("holds", noted("order", "order"), **alone)
    eventually(lambda: sweeps.site.lines("order.log"), "the only slot is taken")

    def submit(name: str, priority: str) -> str:
        agent = f'echo {name} >> "$STATEM_SWEEP_DIR/served.log"; touch out'
        return sweeps.submit(name, agent, trials=3, priority=priority, **alone)

    waiting = [submit("late", "low"), submit("even", "normal"), submit("odd", "normal"), submit("urgent", "high")]
    sweeps.site.write("order.gate")
    sweeps.ended(holds, *waiting)
    served = sweeps.site.lines("served.log")
    assert served[:3] == ["urgent"] * 3
    assert served[3:9] in (["even", "odd"] * 3, ["odd", "even"] * 3)
    assert served[9:] == ["late"] * 3


def test_a_sweep_keeps_no_person_waiting(apart: Sweeps) -> None:
    """While hundreds of trials wait for two slots that are busy, a check of somebody's run is executed at once, and a
    decision moves it: each has queues and slots of its own."""
    site = apart.site
    apart.worker(2)
    site.worker("-c", "1")
    sweep_id = apart.submit("crowd", f"{WAITS.format(name='crowd')}; touch out", trials=300)
    eventually(
        lambda: apart.sweep(sweep_id).counts["running"] == 2, "both slots are busy", lambda: apart.told(sweep_id)
    )
    site.start("nodes: {a: {before_transfer: [{run: 'true'}, Good?], next: b}, b: The end.}")
    site.json("goto", "b", "--run-id", "r", "--on-manual", "wait", expect=7)
    assert site.json("approve", "r")["current"] == "b"
    sweep = apart.sweep(sweep_id)
    assert (sweep.counts["running"], sweep.ended) == (2, 0)
    site.json("sweep", "cancel", sweep_id)
    site.write("crowd.gate")


def test_a_straggler_keeps_nothing_waiting(sweeps: Sweeps) -> None:
    """While one trial hangs, its slot-mates end one after another."""
    agent = f'[ "$STATEM_TRIAL" != 1 ] || {{ {WAITS.format(name="straggler")}; }}; touch out'
    sweep_id = sweeps.submit("straggler", agent, trials=12, concurrency=2)
    eventually(lambda: sweeps.sweep(sweep_id).counts["passed"] == 11, "all others have passed")
    assert sweeps.sweep(sweep_id).counts["running"] == 1
    sweeps.site.write("straggler.gate")
    assert sweeps.ended(sweep_id).counts["passed"] == 12


# --- steering -----------------------------------------------------------------------------------------------------


def test_rules_stop_a_sweep(sweeps: Sweeps) -> None:
    """Failures, errors and cost: no trial begins after the one that meets the rule, and the sweep says which it was."""
    costs = """echo '{"cost_usd": 0.3}' > "$STATEM_USAGE_FILE"; touch out"""
    common: dict[str, Any] = {"trials": 6, "queue": "solo", "retries": 0}
    failing = sweeps.submit("failing", "true", ENDS_BADLY, stop_when={"failures": 2}, **common)
    broken = sweeps.submit("broken", "exit 127", stop_when={"errors": "20%"}, **common)
    costly = sweeps.submit("spends", costs, stop_when={"cost_usd": 0.9}, **common)
    sweeps.ended(failing, broken, costly)
    told = {}
    for sweep_id in (failing, broken, costly):
        sweep = sweeps.sweep(sweep_id)
        assert sweep.status == "stopped"
        told[sweep.definition.name] = ({state: n for state, n in sweep.counts.items() if n}, sweep.status_reason)
    assert told == {
        "failing": ({"pending": 4, "failed": 2}, "2 of 6 trials have not passed (stop_when.failures)"),
        "broken": ({"pending": 4, "error": 2}, "2 of 6 trials could not be judged (stop_when.errors)"),
        "spends": ({"pending": 3, "passed": 3}, "the agents have used 0.90 of 0.90 USD (stop_when.cost_usd)"),
    }


def test_a_sweep_is_paused_and_resumed(sweeps: Sweeps) -> None:
    """While it is paused, what is under way goes on to its end, and nothing begins."""
    sweep_id = sweeps.submit("pauses", noted("pauses"), trials=6, concurrency=2)
    eventually(lambda: len(sweeps.site.lines("pauses.log")) == 2, "two are at work")
    sweeps.desk.pause(sweep_id, "lunch")
    sweeps.site.write("pauses.gate")
    eventually(lambda: sweeps.sweep(sweep_id).counts["passed"] == 2, "what was under way has ended")
    # The slots have looked for more by the time that another sweep has gone through them.
    sweeps.ended(sweeps.submit("meanwhile", "touch out", trials=8))
    paused = sweeps.sweep(sweep_id)
    assert (paused.status, paused.status_reason) == ("paused", "lunch")
    assert (paused.counts["running"], paused.counts["pending"]) == (0, 4)
    sweeps.desk.resume(sweep_id)
    assert sweeps.ended(sweep_id).counts["passed"] == 6
    assert len(sweeps.site.lines("pauses.log")) == 12


def test_a_cancelled_sweep_leaves_no_agent(sweeps: Sweeps) -> None:
    """Agents at work are ended with what they have started, also those that do not want to; the rest never begins."""
    agent = f'trap "" TERM; sleep 600 & echo $$ $! >> "$STATEM_SWEEP_DIR/cancelled.pids"; {HANGS}; sleep 600'
    sweep_id = sweeps.submit("cancelled", agent, trials=6, concurrency=3)
    eventually(lambda: len(sweeps.site.lines("cancelled.pids")) == 3, "three are at work")
    sweeps.desk.cancel(sweep_id, "a mistake")
    ended = sweeps.ended(sweep_id)
    assert (ended.status, ended.status_reason, ended.counts["cancelled"]) == ("cancelled", "a mistake", 6)
    pids = [int(pid) for line in sweeps.site.lines("cancelled.pids") for pid in line.split()]
    assert len(pids) == 6
    eventually(lambda: not any(map(alive, pids)), "no agent is left")
    assert Counter(results(sweeps.trials(sweep_id))) == {("cancelled", "sweep_cancelled"): 3, ("cancelled", None): 3}


def test_a_full_disk_begins_nothing(sweeps: Sweeps) -> None:
    """Below its floor a host says so and begins no trial; with a lower floor the sweep goes on by itself."""
    floor = 900_000 * 2**30
    sweep_id = sweeps.submit("full", "touch out", trials=2, disk_floor="900000G")
    held = eventually(lambda: sweeps.sweep(sweep_id).held, "the host says why")
    (why,) = held.values()
    assert f"above {floor // 2**20} MiB (disk_floor)" in why
    assert sweeps.sweep(sweep_id).counts["pending"] == 2
    definition, _ = sweeps.ledger.definition(sweep_id)
    sweeps.ledger.revise(sweep_id, replace(definition, disk_floor_bytes=0), sweeps.ledger.fingerprint(sweep_id))
    assert sweeps.ended(sweep_id).counts["passed"] == 2


# --- workers that come and go -------------------------------------------------------------------------------------


def test_two_workers_share_a_sweep(apart: Sweeps) -> None:
    """Both have trials under way at once, and each trial is done by one of them."""
    apart.worker(2)
    apart.worker(2)
    sweep_id = apart.submit("both", noted("both"), trials=8)
    eventually(lambda: len(apart.site.lines("both.log")) == 4, "four are at work")
    busy = Counter(only_attempt(trial).worker for trial in apart.ledger.running(sweep_id))
    assert sorted(busy.values()) == [2, 2]
    apart.site.write("both.gate")
    assert apart.ended(sweep_id).counts["passed"] == 8
    assert len(apart.site.lines("both.log")) == 16


DONE_ONCE = """\
echo "$STATEM_TRIAL" >> "$STATEM_SWEEP_DIR/begun"
until [ -e "$STATEM_SWEEP_DIR/gate" ]; do sleep 0.05; done
echo "$STATEM_TRIAL" >> "$STATEM_SWEEP_DIR/done"
touch out
"""
"""An agent that notes its trial when it begins and when it is done, with a gate between."""


@pytest.mark.chaos
def test_a_killed_worker_costs_no_trial_and_doubles_none(apart: Sweeps) -> None:
    """Another worker goes on in place; agents of the first are ended, so that each trial is done exactly once."""
    first = apart.worker(3)
    sweep_id = apart.submit("lost", DONE_ONCE, trials=8)
    eventually(lambda: len(apart.site.lines("begun")) == 3, "three are at work")
    taken = {trial.planned.number for trial in apart.ledger.running(sweep_id)}
    first.kill()
    apart.worker(4)
    eventually(lambda: len(apart.site.lines("begun")) == 7, "the second one is busy")
    apart.site.write("gate")
    assert apart.ended(sweep_id).counts["passed"] == 8
    assert sorted(apart.site.lines("done")) == [str(number) for number in range(1, 9)]
    assert {trial.planned.number: only_attempt(trial).losses for trial in apart.trials(sweep_id)} == {
        number: int(number in taken) for number in range(1, 9)
    }


@pytest.mark.chaos
def test_a_worker_that_is_stopped_hands_its_trials_back(apart: Sweeps) -> None:
    """After its grace it ends its agents; the trials wait, none of their budget is used, and another worker goes on."""
    first = apart.worker(3, "--grace", "0.3")
    sweep_id = apart.submit("stopped", DONE_ONCE, trials=4, retries=0)
    eventually(lambda: len(apart.site.lines("begun")) == 3, "three are at work")
    first.terminate()
    assert first.wait().exit_code == 0, first.stderr
    assert "Traceback" not in first.stderr
    assert (apart.sweep(sweep_id).counts["running"], apart.sweep(sweep_id).counts["pending"]) == (0, 4)
    apart.site.write("gate")
    apart.worker(4)
    assert apart.ended(sweep_id).counts["passed"] == 4
    assert sorted(apart.site.lines("done")) == ["1", "2", "3", "4"]
    for trial in apart.trials(sweep_id):
        attempt = only_attempt(trial)
        assert (attempt.losses, attempt.troubles, attempt.attempt) == (0, 0, 1)


KILLS = """\
[ "$STATEM_VAR_KIND" = killer ] || { touch out; exit; }
until kill -9 $(cat "$STATEM_SWEEP_DIR/victim"); do sleep 0.05; done
sleep 600
"""
"""An agent that kills whichever worker the test names, and minds its own business in any other trial."""


@pytest.mark.chaos
@pytest.mark.slow
def test_a_trial_that_kills_its_workers_ends_as_error(apart: Sweeps) -> None:
    """Its budget is used up, it is given up, and the rest of the sweep is done."""
    sweep_id = apart.submit("killer", KILLS, matrix={"kind": ["killer", "good"]}, trials=2, retries=1, concurrency=1)

    def fresh_victim() -> Program:
        (apart.site.folder / "victim").unlink(missing_ok=True)
        return apart.worker(1)

    lost = 0
    while apart.sweep(sweep_id).status == "active":
        worker = fresh_victim()
        apart.site.write("victim", str(worker.pid))
        eventually(
            lambda: not worker.running or apart.sweep(sweep_id).status == "finished",  # noqa: B023
            "it is killed, or has done what there was",
            lambda: apart.told(sweep_id),
        )
        lost += not worker.running
    # Each of the two may lose two: the one that its budget allows, and the one that it ends with.
    assert lost == 4
    assert Counter(results(apart.trials(sweep_id))) == {("error", "worker_lost"): 2, ("passed", "success_end"): 2}
    for trial in apart.trials(sweep_id):
        attempt = only_attempt(trial)
        assert attempt.losses == (2 if trial.planned.cell["kind"] == "killer" else 0)


UNREPEATABLE = """\
nodes:
  work:
    prompt: Go on.
    in_hook: [{run: 'echo x >> "$STATEM_SWEEP_DIR/begun"; until [ -e "$STATEM_SWEEP_DIR/gate" ]; do sleep 0.05; done'}]
    before_transfer: [{path: out}]
    next: done
  done:
"""


@pytest.mark.chaos
def test_a_hook_that_may_have_run_is_not_run_again(apart: Sweeps) -> None:
    """The attempt whose worker was lost during it ends as error, and another one is begun in a new workspace."""
    first = apart.worker(1)
    sweep_id = apart.submit("hooked", "touch out", UNREPEATABLE)
    eventually(lambda: apart.site.lines("begun"), "the hook runs")
    first.kill()
    apart.site.write("gate")
    apart.worker(1)
    apart.ended(sweep_id)
    lost, passed = apart.trial(sweep_id).attempts
    assert (lost.reason, lost.losses, lost.retried) == ("hook_outcome_unknown", 1, True)
    assert (passed.reason, passed.losses, passed.troubles) == ("success_end", 0, 2)
    assert len(apart.site.lines("begun")) == 2


@pytest.mark.chaos
def test_a_store_that_is_killed_costs_no_trial(apart: Sweeps) -> None:
    """It comes back with what it had, and workers that have waited go on: every trial passes, with its counts right."""
    apart.worker(4)
    sweep_id = apart.submit("restart", 'echo "$STATEM_TRIAL" >> "$STATEM_SWEEP_DIR/done"; touch out', trials=60)
    eventually(lambda: apart.sweep(sweep_id).ended >= 10, "ten have ended")
    pid = apart.site.server_pid
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not alive(pid), "the server is gone")
    server.ensure(apart.site.state_dir, idle_stop_seconds=0)
    assert apart.ended(sweep_id).counts["passed"] == 60
    assert set(apart.site.lines("done")) == {str(number) for number in range(1, 61)}


@pytest.mark.chaos
def test_a_frozen_worker_changes_nothing_when_it_wakes(apart: Sweeps) -> None:
    """Its trials go on elsewhere when its lease has run out; what it says of them afterwards is too late to count."""
    frozen = apart.worker(2, STATEM_LEASE_SECONDS="2")
    sweep_id = apart.submit("frozen", DONE_ONCE, trials=2)
    eventually(lambda: len(apart.site.lines("begun")) == 2, "both are at work")
    os.kill(frozen.pid, signal.SIGSTOP)
    try:
        other = apart.worker(2, STATEM_LEASE_SECONDS="2")
        eventually(lambda: len(apart.site.lines("begun")) == 4, "both are at work elsewhere", lambda: other.stderr)
        apart.site.write("gate")
        assert apart.ended(sweep_id).counts["passed"] == 2
    finally:
        os.kill(frozen.pid, signal.SIGCONT)
    eventually(lambda: frozen.stderr.count("is lost to somebody else") == 2, "it has noticed", lambda: frozen.stderr)
    for trial in apart.trials(sweep_id):
        attempt = only_attempt(trial)
        assert (trial.state, attempt.losses) == ("passed", 1)
        assert f":{frozen.pid}:" not in attempt.worker


# --- agents that move their run themselves ------------------------------------------------------------------------


@pytest.fixture(scope="module")
def served() -> Iterator[Sweeps]:
    """Sweeps with a service and a worker that knows where it is."""
    with sweeps_of_a_site() as sweeps:
        url = serve(sweeps.site).url
        sweeps.worker(4, STATEM_URL=url)
        yield sweeps


SELF_DRIVEN = f'exec "$STATEM_PYTHON" -I -S "{SHIPPED}/agents/self_driven.py"'
ITSELF: dict[str, Any] = {"mode": "self_driven", "continuations": 1}

LOOP = """\
nodes:
  work: {prompt: Go on., before_transfer: [{path: out}, {run: 'test "$(wc -l < out)" -ge 2'}], next: check}
  check: {next: [{to: done, condition: [{run: 'test -s out'}]}]}
  done:
"""


@pytest.mark.slow
def test_an_agent_moves_its_run_by_itself(served: Sweeps) -> None:
    """It is called once, and steps, refusals and checks are counted as for any other; what it mends lets it on."""
    sweep_id = served.submit("itself", f"{SELF_DRIVEN} sh -c 'echo x >> out'", LOOP, agent=ITSELF)
    served.ended(sweep_id)
    attempt = only_attempt(served.trial(sweep_id))
    assert (attempt.reason, attempt.node, attempt.calls) == ("success_end", "done", 1)
    assert (attempt.steps, attempt.blocked, attempt.checks) == (3, 1, 5)


@pytest.mark.slow
def test_an_agent_that_stops_early_is_continued(served: Sweeps) -> None:
    """It is called again with the prompt that takes the run up; one that stops too often has given up."""
    once = f"[ -e out ] && {SELF_DRIVEN} sh -c 'echo x >> out'; cp \"$STATEM_PROMPT_FILE\" first; touch out"
    returns = served.submit("returns", once, LOOP, agent={**ITSELF, "continuations": 2})
    leaves = served.submit("leaves", "true", LOOP, agent=ITSELF)
    served.ended(returns, leaves)
    attempt = only_attempt(served.trial(returns))
    assert (attempt.reason, attempt.calls) == ("success_end", 2)
    assert f"--run-id {attempt.run_id}" in (Path(attempt.folder) / "workspace" / "first").read_text()
    gone = only_attempt(served.trial(leaves))
    assert (gone.outcome, gone.reason, gone.calls) == ("stuck", "agent_gave_up", 2)


@pytest.mark.chaos
@pytest.mark.slow
def test_a_worker_that_goes_is_not_blamed_on_the_agent(apart: Sweeps) -> None:
    """A self-driven agent that was ended with its worker has not stopped: it is called again, whatever it may do."""
    service = serve(apart.site).url
    agent = f'echo x >> "$STATEM_SWEEP_DIR/begun"; {WAITS.format(name="gone")}; {SELF_DRIVEN} sh -c "echo x >> out"'
    first = apart.worker(1, STATEM_URL=service)
    sweep_id = apart.submit("blamed", agent, LOOP, agent={**ITSELF, "continuations": 0})
    eventually(lambda: len(apart.site.lines("begun")) == 1, "it is at work")
    first.kill()
    second = apart.worker(1, "--grace", "0.2", STATEM_URL=service)
    eventually(lambda: len(apart.site.lines("begun")) == 2, "it is at work again", lambda: apart.told(sweep_id))
    second.terminate()
    assert second.wait().exit_code == 0
    apart.worker(1, STATEM_URL=service)
    eventually(lambda: len(apart.site.lines("begun")) == 3, "it is at work once more", lambda: apart.told(sweep_id))
    apart.site.write("gone.gate")
    apart.ended(sweep_id)
    attempt = only_attempt(apart.trial(sweep_id))
    assert (attempt.reason, attempt.calls, attempt.losses) == ("success_end", 3, 1)


@pytest.mark.slow
def test_the_token_of_an_agent_reaches_no_other_run(served: Sweeps) -> None:
    """With what a self-driven agent is given, it can neither see nor move a run beside its own, nor end a sweep."""
    served.site.start("nodes: {a: {next: b}, b: }\n", "other")
    agent = (
        "$STATEM_COMMAND cur --run-id other > seen.txt 2>&1; echo $? > seen;"
        "$STATEM_COMMAND goto b --run-id other > moved.txt 2>&1; echo $? > moved;"
        f"{SELF_DRIVEN} sh -c 'echo x >> out; echo x >> out'"
    )
    sweep_id = served.submit("curious", agent, LOOP, agent=ITSELF)
    served.ended(sweep_id)
    attempt = only_attempt(served.trial(sweep_id))
    assert attempt.reason == "success_end"
    workspace = Path(attempt.folder) / "workspace"
    for what in ("seen", "moved"):
        assert (workspace / what).read_text().strip() in ("1", "4"), (workspace / f"{what}.txt").read_text()
    assert served.site.json("cur", "--run-id", "other")["current"] == "a"


# --- the sweeps that are shipped ----------------------------------------------------------------------------------


def copy_of_shipped(sweeps: Sweeps) -> Path:
    """Copy the shipped runbooks into the site, so that a test may make a repository beside them."""
    folder = sweeps.site.folder / "runbooks"
    shutil.copytree(SHIPPED, folder, ignore=shutil.ignore_patterns("example-repository"))
    return folder


def expected_of_terminal_bench() -> dict[str, dict[str, str]]:
    """Return the table of expected results by task."""
    with (ROOT / "tests" / "golden" / "sweeps" / "terminal-bench.csv").open(newline="") as file:
        return {row["task"]: row for row in csv.DictReader(file)}


PIPELINE = {
    "v1.0": ("passed", "passed", "passed"),
    "v1.1": ("passed", "passed", "lint-failed"),
    "v1.2": ("passed", "test-failed", "passed"),
    "v1.3": ("passed", "passed", "test-failed"),
    "v1.4": ("build-failed", "build-failed", "build-failed"),
    "v1.5": ("passed", "passed", "passed"),
}
"""Where the pipeline ends at each commit, without flags, with ``-O`` and with ``-W error``."""


@pytest.mark.slow
def test_the_pipeline_ends_as_its_history_says(sweeps: Sweeps) -> None:
    """Without any agent, every commit comes to its end under each flag, and the logs of its stages are kept."""
    folder = copy_of_shipped(sweeps)
    made = subprocess.run(["sh", folder / "make_example_repository.sh"], capture_output=True, text=True, check=False)
    assert made.returncode == 0, made.stderr
    sweep_id = sweeps.submit_file(folder / "ci.sweep.yaml")
    sweeps.ended(sweep_id)
    grid: dict[str, dict[str, str]] = {}
    for trial in sweeps.trials(sweep_id):
        attempt = only_attempt(trial)
        assert (trial.state == "passed") == (attempt.node == "passed")
        grid.setdefault(trial.planned.cell["commit"], {})[trial.planned.cell["flags"]] = attempt.node
        kept = {path.name for path in (Path(attempt.folder) / "artifacts").rglob("*") if path.is_file()}
        assert "lint.log" in kept
        assert ("tally.pyz" in kept) == (attempt.node in ("passed", "build-failed"))
    # Workspaces are removed after the result is there.
    unwanted = [
        Path(only_attempt(each).folder) / "workspace" for each in sweeps.trials(sweep_id) if each.state == "passed"
    ]
    eventually(lambda: not any(path.exists() for path in unwanted), "workspaces of what has passed are gone")
    assert len(list((sweeps.site.state_dir / "sweeps" / sweep_id).glob("*/trial-1/attempt-1/workspace"))) == 6
    assert {commit: tuple(ends[flags] for flags in ("", "-O", "-W error")) for commit, ends in grid.items()} == PIPELINE


def test_terminal_bench_as_a_user_has_it(site: Site) -> None:
    """One command runs some tasks with a worker of its own, and its scores are those that the rule says."""
    tasks = ("bn-fit-modify", "chess-best-move")
    only = [word for task in tasks for word in ("--only", f"task={task}")]
    data = site.json("sweep", "run", str(SHIPPED / "terminal-bench.sweep.yaml"), "-c", "4", *only, **UNHURRIED)
    rows = expected_of_terminal_bench()
    reasons = {(trial["values"]["task"], trial["repetition"]): trial["reason"] for trial in data["trials"]}
    assert reasons == {(task, n): rows[task][f"trial {n}"] for task in tasks for n in range(1, 6)}
    for score in data["scores"]["tasks"]:
        row = rows[score["values"]["task"]]
        measured = [(at["pass_at"], at["pass_hat"]) for at in score["strict"]["at_k"]]
        told = [(float(row[f"pass@{k}"]), float(row[f"pass^{k}"])) for k in range(1, 6)]
        assert measured == [pytest.approx(pair) for pair in told]


def test_from_a_mistake_to_the_result_by_commands_alone(sweeps: Sweeps) -> None:
    """What could not be judged is mended and tried again, more trials are added, and what had passed is left alone."""
    site = sweeps.site
    agent = '[ "$STATEM_VAR_MODEL" = large ] || exec "$STATEM_SWEEP_DIR/helper.sh"; touch out'
    path = sweeps.write("mended", agent, matrix={"model": ["small", "large"]}, trials=2, retries=0)
    sweep_id = site.json("sweep", "submit", str(path))["sweep"]
    waited = site.json("sweep", "status", sweep_id, "--wait", "60", expect=1)
    assert waited["details"]["counts"]["error"] == waited["details"]["counts"]["passed"] == 2
    helper = site.folder / "helper.sh"
    helper.write_text("#!/bin/sh\ntouch out\n")
    helper.chmod(0o755)
    assert site.json("sweep", "retry", sweep_id, "--errored")["retried"] == 2
    assert site.json("sweep", "status", sweep_id, "--wait", "60")["counts"]["passed"] == 4
    assert site.json("sweep", "extend", sweep_id, "--trials", "3")["added"] == 2
    assert site.json("sweep", "status", sweep_id, "--wait", "60")["counts"]["passed"] == 6
    trials = site.json("sweep", "trials", sweep_id)["trials"]
    assert {trial["number"]: trial["attempts"] for trial in trials} == {1: 2, 2: 1, 3: 2, 4: 1, 5: 1, 6: 1}
    table = list(csv.DictReader(site.run("sweep", "results", sweep_id, "--format", "csv").stdout.splitlines()))
    assert [row["state"] for row in table] == ["passed"] * 6


@pytest.mark.chaos
@pytest.mark.slow
@pytest.mark.timeout(600)
def test_terminal_bench_with_a_worker_that_is_killed(apart: Sweeps) -> None:
    """All 445 trials come to the results that the rule of the stand-in says, each once, and so do their scores."""
    victim = apart.worker(4)
    apart.worker(4)
    sweep_id = apart.submit_file(SHIPPED / "terminal-bench.sweep.yaml")
    eventually(lambda: apart.sweep(sweep_id).ended >= 60, "sixty have ended", lambda: apart.told(sweep_id)[0])
    victim.kill()
    apart.worker(4)
    for quarter in (0.25, 0.5, 0.75, 1):
        wanted = int(445 * quarter)
        eventually(
            lambda: apart.sweep(sweep_id).ended >= wanted,  # noqa: B023
            f"{wanted} have ended",
            lambda: apart.told(sweep_id)[0],
        )
    sweep, trials = apart.ended(sweep_id), apart.trials(sweep_id)
    expected = expected_of_terminal_bench()
    assert {(trial.planned.cell["task"], trial.planned.repetition): results([trial])[0][1] for trial in trials} == {
        (task, repetition): row[f"trial {repetition}"] for task, row in expected.items() for repetition in range(1, 6)
    }
    passed = {
        (trial.planned.cell["task"], trial.planned.repetition): str(trial.attempts[-1].loops)
        for trial in trials
        if trial.state == "passed"
    }
    assert passed == {
        (task, repetition): row[f"repairs {repetition}"]
        for task, row in expected.items()
        for repetition in range(1, 6)
        if row[f"repairs {repetition}"]
    }
    # A slot may have been between two trials.
    assert 1 <= sum(attempt.losses for trial in trials for attempt in trial.attempts) <= 4
    assert sweep.complete
    measured = scores_of(sweep, trials).overall.strict.at_k
    for k, at in enumerate(measured, start=1):
        assert at.pass_at == pytest.approx(sum(float(row[f"pass@{k}"]) for row in expected.values()) / 89)
        assert at.pass_hat == pytest.approx(sum(float(row[f"pass^{k}"]) for row in expected.values()) / 89)
    assert len(measured) == 5
