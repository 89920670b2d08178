"""Driving one trial: what an agent does by hand with ``start``, ``cur`` and ``goto``, until the run has ended.

One step is: call the agent command where there is something for it to do (the node has a prompt, or the step before
was blocked here), then try the edges in the order of the runbook until one commits. Who is to blame decides the
outcome. What the agent did is judged by the checks; what the host could not do is an ``error`` and never a failure:
checks that could not be evaluated, an agent command that could not be started, a node's ``in_hook`` that did not pass.
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from msgspec import Struct

from statem_dist.checks.command import CANNOT_EXECUTE
from statem_dist.checks.environment import inline_environment, statem_variables
from statem_dist.checks.output import text_of
from statem_dist.checks.process import Finished, Supervisor
from statem_dist.deadline import Deadline
from statem_dist.engine import Engine, StartRequest
from statem_dist.errors import CancelledRun, PausedRun, StatemError
from statem_dist.follow import Settled
from statem_dist.protocol.graph import Node
from statem_dist.protocol.model import Actor, Place, Run
from statem_dist.protocol.progress import decided_here
from statem_dist.sweep.results import Outcome, TrialResult
from statem_dist.sweep.spec import Agent, Sweep, variable_of
from statem_dist.sweep.trials import Trial
from statem_dist.views import result_views, settled_transition

DRIVER = Actor(id="sweep", role="driver")

REASON_LENGTH_MAX = 500
"""Characters of a reason; the whole story is in the run's history and in the agent's output."""


class Verdict(Struct, frozen=True):
    """How a trial ended, and why."""

    outcome: Outcome
    reason: str


NOT_STARTED_HINT = '(it runs in the folder of its trial; name a file beside the sweep file as "$STATEM_SWEEP_DIR/FILE")'

INTERRUPTED = Verdict("cancelled", "the sweep was stopped")


class Driver:
    """Drives trials of one sweep; safe to use from several threads.

    Args:
        sweep: what is driven.
        sweep_id: the label of its runs.
        engine: where its runs are kept and moved.
        agents: runs the agent command.
        until: when it passes, trials under way are given up.
        environ: the environment that agents get.
    """

    def __init__(
        self,
        sweep: Sweep,
        sweep_id: str,
        engine: Engine,
        agents: Supervisor,
        until: Deadline,
        environ: Mapping[str, str],
    ) -> None:
        self.sweep = sweep
        self.sweep_id = sweep_id
        self.engine = engine
        self.agents = agents
        self.until = until
        self.environ = environ
        self.runbook = engine.register(sweep.runbook, str(sweep.runbook_path))

    def drive(self, trial: Trial) -> TrialResult:
        """Drive a trial to its end; whatever happens is a result."""
        journey = _Journey(self, trial)
        started_at = now_ms()
        try:
            verdict = journey.travel()
        except CancelledRun as error:
            verdict = Verdict("cancelled", error.message)
        except StatemError as error:
            verdict = Verdict("error", error.message)
        except Exception as error:
            # A defect or a full disk: it must cost this trial and no other, and be seen.
            verdict = Verdict("error", f"{type(error).__name__}: {error}")
        if self.until.passed and verdict.outcome == "error":
            # What is torn down under a trial says nothing about it.
            verdict = INTERRUPTED
        return TrialResult(
            trial=trial,
            outcome=verdict.outcome,
            reason=verdict.reason[:REASON_LENGTH_MAX],
            node=journey.node,
            steps=journey.steps,
            calls=journey.calls,
            blocked=journey.blocked,
            loops=max(journey.visits.values(), default=1) - 1,
            checks=journey.checks,
            started_at=started_at,
            ended_at=now_ms(),
        )

    def place(self, trial: Trial) -> Place:
        """Return where the checks of a trial are executed, and with which variables."""
        variables = {variable_of(axis): value for axis, value in trial.cell.items()}
        return Place(
            workspace=str(trial.folder),
            spec=str(self.sweep.runbook_path),
            state_dir=str(self.engine.settings.state_dir),
            queue=self.sweep.queue,
            # Checks in Python want the interpreter that has the sweep's packages, wherever their worker came from.
            env={
                "STATEM_PYTHON": sys.executable,
                **self.sweep.env,
                **variables,
                "STATEM_TRIAL": str(trial.repetition),
                "STATEM_SWEEP_DIR": str(self.sweep.folder),
            },
        )

    def labels(self, trial: Trial) -> dict[str, str]:
        """Return the labels of a trial's run."""
        return {**self.sweep.labels, **trial.cell, "sweep": self.sweep_id, "trial": str(trial.repetition)}


class _Journey:
    """One trial under way, and the count of what happened on it."""

    def __init__(self, driver: Driver, trial: Trial) -> None:
        self._driver = driver
        self._engine = driver.engine
        self._trial = trial
        self._place = driver.place(trial)
        self.node = ""
        self.steps = self.calls = self.blocked = self.checks = 0
        self.visits: Counter[str] = Counter()

    def travel(self) -> Verdict:
        """Start the run and move it until there is a verdict."""
        self._trial.folder.mkdir(parents=True)
        run = self._start()
        calls_here = 0
        refusals: list[Settled] = []
        while not isinstance(run, Verdict):
            if run.final:
                outcome: Outcome = "passed" if run.node in self._driver.sweep.success else "failed"
                return Verdict(outcome, f"ended on '{run.node}'")
            if self._driver.until.passed:
                return INTERRUPTED
            agent = self._driver.sweep.agent
            if self.steps >= self._driver.sweep.max_steps or (refusals and agent is None):
                return Verdict("stuck", _stuck(run, refusals, self.steps))
            self.steps += 1
            entry = run.entry_id
            node = self._driver.runbook.node(run.node)
            assert node is not None, "a run stands on a node of its runbook"
            if agent is not None and (node.prompt or refusals):
                calls_here += 1
                if verdict := self._ask(agent, node, run, calls_here, refusals):
                    return verdict
                run = self._engine.run(run.id)
            moved = self._leave(run) if run.entry_id == entry else run
            if isinstance(moved, list):
                refusals = moved
                continue
            run, refusals, calls_here = moved, [], 0
            if isinstance(run, Run):
                self._visit(run)
        return run

    def _start(self) -> Run | Verdict:
        request = StartRequest(
            runbook=self._driver.runbook,
            run_id=self._trial.run_id,
            place=self._place,
            by=DRIVER,
            labels=self._driver.labels(self._trial),
        )
        settled = self._engine.start(request, self._driver.until)
        self._visit(settled.run)
        return self._arrived(settled)

    # --- leaving a node ----------------------------------------------------------------------------------------

    def _leave(self, run: Run) -> Run | Verdict | list[Settled]:
        """Try the edges in order; return where that led, or what every one of them was blocked by."""
        refusals: list[Settled] = []
        for edge in self._driver.runbook.exits(run.node):
            settled = self._goto(run, edge.target)
            if settled.transition.outcome != "blocked":
                return self._arrived(settled)
            self.checks += _executions(settled)
            self.blocked += 1
            refusals.append(settled)
        return refusals

    def _goto(self, run: Run, target: str) -> Settled:
        """Attempt the transition to a target; while the run is paused, wait until it is not."""
        until = self._driver.until
        while True:
            try:
                return self._engine.goto(run.id, target, DRIVER, from_entry=run.entry_id, deadline=until)
            except PausedRun:
                if until.passed:
                    raise
                self._engine.wait_while_paused(run.id, until)

    def _arrived(self, settled: Settled) -> Run | Verdict:
        """Return the run after a transition that was not blocked, or why the trial ends with it."""
        transition = settled.transition
        self.checks += _executions(settled)
        way = f"'{transition.source}' -> '{transition.target}'" if transition.kind == "goto" else transition.kind
        match transition.outcome:
            case "committed" if transition.stage is None:
                return settled.run
            case "committed":
                return Verdict("error", f"the in_hook of '{transition.target}' did not pass: {_first_failure(settled)}")
            case None:
                return INTERRUPTED
            case "cancelled" if (ending := self._engine.run(settled.run.id).ending) is not None:
                return Verdict("cancelled", f"the run was cancelled: {ending.reason}")
            case outcome:
                why = transition.reason or _first_failure(settled)
                return Verdict("error", f"{way} ended as {outcome} at {transition.stage}: {why}")

    def _visit(self, run: Run) -> None:
        self.node = run.node
        self.visits[run.node] += 1

    # --- calling the agent -------------------------------------------------------------------------------------

    def _ask(self, agent: Agent, node: Node, run: Run, attempt: int, refusals: list[Settled]) -> Verdict | None:
        """Call the agent command; return a verdict if the trial ends with that."""
        self.calls += 1
        # Beside the workspace and not in it, so that a repository there stays clean.
        desk = self._trial.folder.with_suffix(".agent")
        desk.mkdir(exist_ok=True)
        finished = self._driver.agents.run(
            run.id,
            agent.run,
            cwd=str(self._trial.folder),
            env=self._environment(desk, node, run, attempt, refusals),
            stdin=node.prompt.encode(),
            timeout=agent.timeout,
        )
        if output := text_of(finished):
            (desk / f"output-{self.steps}.txt").write_text(output, encoding="utf-8")
        return _judge(finished, agent, node)

    def _environment(self, desk: Path, node: Node, run: Run, attempt: int, refusals: list[Settled]) -> dict[str, str]:
        """Return the environment of the agent command, with the files written that it names."""
        prompt_file = desk / "prompt.md"
        prompt_file.write_text(node.prompt, encoding="utf-8")
        variables = statem_variables(
            run_id=run.id,
            spec=self._place.spec,
            state_dir=self._place.state_dir,
            current=run.node,
            purpose="agent",
            entry_id=run.entry_id,
            agent_id=DRIVER.id,
            agent_role=DRIVER.role,
            check_key=f"{run.entry_id}.agent.{attempt}",
        )
        variables |= {"STATEM_PROMPT_FILE": str(prompt_file), "STATEM_ATTEMPT": str(attempt)}
        if refusals:
            blocked_file = desk / "blocked.json"
            blocked_file.write_text(json.dumps(_told(run, refusals), ensure_ascii=False, indent=1), encoding="utf-8")
            variables["STATEM_BLOCKED_FILE"] = str(blocked_file)
        return inline_environment({**self._driver.environ, **self._place.env}, variables)


def _judge(finished: Finished, agent: Agent, node: Node) -> Verdict | None:
    """Return the verdict on a call of the agent, or None when the checks are to judge its work."""
    if finished.cancelled is not None:
        return INTERRUPTED
    if finished.timed_out:
        return Verdict("timeout", f"the agent took longer than {agent.timeout:g} s at '{node.name}'")
    if finished.failure is not None:
        return Verdict("error", f"the agent command could not be run: {finished.text}")
    if finished.exit_code in CANNOT_EXECUTE:
        said = text_of(finished).strip().rpartition("\n")[2]
        why = f"the agent command could not be started (exit {finished.exit_code}): {said}"
        return Verdict("error", f"{why} {NOT_STARTED_HINT}")
    return None


def _told(run: Run, refusals: list[Settled]) -> dict[str, Any]:
    """Return what an agent is told of the edges that were blocked at the last step of this entry."""
    return {
        "run_id": run.id,
        "current": run.node,
        "current_entry_id": run.entry_id,
        "blocked": [settled_transition(settled.run, settled.transition) for settled in refusals],
    }


def _stuck(run: Run, refusals: list[Settled], steps: int) -> str:
    if not refusals:
        return f"on '{run.node}' after {steps} steps"
    last = refusals[-1]
    return f"on '{run.node}' after {steps} steps; '{last.transition.target}' was refused: {_first_failure(last)}"


def _first_failure(settled: Settled) -> str:
    """Return what kept a transition from going on, in a line."""
    for view in result_views(settled.transition):
        if not view["passed"] and not view["continued"]:
            said = " ".join(str(view["output"]).split())
            return f"{view['id']} {view['reason']}{': ' + said if said else ''}"
    return settled.transition.stage or "no check failed"


def _executions(settled: Settled) -> int:
    """Return how many executions of checks and hooks a transition has taken."""
    transition = settled.transition
    return sum(
        transition.results[planned.id].tries
        for planned in transition.plan
        if planned.id in transition.results and not decided_here(planned)
    )


def now_ms() -> int:
    """Return the time in ms since the epoch, as results record it."""
    return time.time_ns() // 1_000_000
