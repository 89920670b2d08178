"""Driving one attempt at a trial, until its run has ended or there is a reason to end it.

A driver is not a process that must live: what it knows is written to the ledger before every step, its run is moved by
the same transitions as any other, and whoever claims the trial next goes on where it stood. What may happen twice is
one call of the agent, the one that was under way.

One step is: call the agent command where there is something for it to do (the node has a prompt, or the step before
was blocked here), then try the edge that it names, else the edges in the order of the runbook, until one commits. Who
is to blame decides the outcome. What the agent did is judged by the checks; what the host could not do is an
``error`` and never a failure: checks that could not be evaluated, an agent command that could not be started, a node's
``in_hook`` that did not pass.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from typing import Any, Protocol

from msgspec.structs import replace

from statem_dist.checks.output import shown_text
from statem_dist.checks.process import Finished
from statem_dist.deadline import Deadline
from statem_dist.engine import Engine, StartRequest
from statem_dist.errors import CancelledRun, Conflict, PausedRun, TransitionInFlight
from statem_dist.follow import Settled
from statem_dist.protocol.graph import Edge, Runbook
from statem_dist.protocol.model import Actor, Place, Run
from statem_dist.protocol.progress import decided_here
from statem_dist.sweep import agents
from statem_dist.sweep.agents import Desk, Verdict
from statem_dist.sweep.model import Agent, Attempt, Blocked, Definition, Position, Reason
from statem_dist.views import result_views, settled_transition

DRIVER = Actor(id="sweep", role="driver")

DETAIL_LENGTH_MAX = 500
"""Characters of what is told of a reason; the whole story is in the run's history and in the agent's output."""

SAME_BLOCK_MAX = 3
"""How often in a row an entry may be blocked by the same checks with the same results: more is no progress."""

OTHERS_MAX = 20
"""How often a driver waits for somebody else, such as the agent itself, who attempts transitions of its run."""

TIMED_OUT = Verdict("trial_timeout", "the trial took longer than its timeout")


class GivenUp(Exception):
    """The attempt is not to be driven any further here; the ledger, or whoever stops this process, says why."""


class Bench(Protocol):
    """What a driver needs of the process that it works in."""

    engine: Engine

    def call_agent(
        self, agent: Agent, run: Run, place: Place, variables: dict[str, str], stdin: str, timeout: float
    ) -> Finished:
        """Run the agent command of a trial where its run stands, and wait for its end."""


class Journey:
    """One attempt under way, and the count of what happened on it.

    Args:
        bench: where it is driven.
        definition: of its sweep.
        runbook: what its run follows.
        place: where its checks and its agent work.
        labels: of its run.
        attempt: as it stood when it was claimed.
        fresh: whether it is new, so that it has no run yet.
        desk: the files between driver and agent.
        until: when it passes, the attempt is given up, or its time is over.
        given_up: whether it is to be given up.
        note: writes the attempt to the ledger; raises ``GivenUp`` when the claim is lost.
    """

    def __init__(
        self,
        bench: Bench,
        definition: Definition,
        runbook: Runbook,
        place: Place,
        labels: Mapping[str, str],
        attempt: Attempt,
        fresh: bool,
        desk: Desk,
        until: Deadline,
        given_up: Callable[[], bool],
        note: Callable[[Attempt], None],
    ) -> None:
        self.attempt = attempt
        self.place = place
        self.until = until
        self.definition = definition
        self.runbook = runbook
        self.engine = bench.engine
        self.desk = desk
        self._bench = bench
        self._fresh = fresh
        self._labels = dict(labels)
        self._given_up = given_up
        self._note = note
        position = attempt.position or Position()
        self._entry, self._calls_here, self._answered = position.entry, position.calls, position.answered
        self._block, self._same = position.block, position.same
        self._stepping = False
        self._interrupted_on = position.entry if position.stepping else ""
        self.stops = position.stops
        self._spent = self._noted_spent = position.spent
        self._begun = time.monotonic()
        self._visits = dict(position.visits)
        self._blocks = {(block.node, block.target, block.check): block.times for block in attempt.blocks}

    # --- the way ---------------------------------------------------------------------------------------------------

    def travel(self) -> Verdict:
        """Start the run or take it up again, and move it until there is a verdict.

        Raises:
            GivenUp: it is to be driven no further here.
        """
        run, refusals = self.begin()
        if isinstance(run, Run) and run.entry_id == self._interrupted_on:
            # The step that was under way is begun again, and counts once.
            self.attempt = replace(self.attempt, steps=self.attempt.steps - 1)
        while not isinstance(run, Verdict):
            if verdict := self._verdict_on(run, refusals):
                return verdict
            self.attempt = replace(self.attempt, steps=self.attempt.steps + 1)
            self._stepping = True
            wish: str | None = None
            agent = self.definition.agent
            node = self.runbook.node(run.node)
            assert node is not None, "a run stands on a node of its runbook"
            if agent is not None and (node.prompt or refusals):
                if not self._answered:
                    if verdict := self._ask(agent, run, node.prompt, refusals):
                        return verdict
                    entry, run = run.entry_id, self.engine.run(run.id)
                    if run.entry_id != entry:
                        # It has moved the run itself.
                        refusals = []
                        self.visit(run)
                        self._stepping = False
                        continue
                wish = self.desk.wish()
            moved = self._leave(run, wish)
            self._answered = self._stepping = False
            if isinstance(moved, list):
                refusals = moved
                continue
            run, refusals = moved, []
            if isinstance(run, Run):
                self.visit(run)
        return run

    def begin(self) -> tuple[Run | Verdict, list[Settled]]:
        """Start the run, or see through what was under way; return it with what blocked it where it stands."""
        run = None if self._fresh else self.engine.find(self.attempt.run_id)
        if run is None:
            settled = self.engine.create(self._request(), self.until)
            self._visit_if_new(settled.run)
            return self.arrived(settled), []
        left = self.engine.see_through(run.id, self.until)
        if left is None:
            left = None if run.transition is None else Settled(run=run, transition=run.transition)
        if left is None:
            return run, []
        self._visit_if_new(left.run)
        if left.transition.outcome == "blocked":
            return left.run, [left] if left.run.entry_id == self._entry else []
        return self.arrived(left), []

    def ended(self, run: Run) -> Verdict | None:
        """Return the verdict on a run that has reached an end, or was cancelled and is at rest; else None."""
        if not run.final:
            return cancelled(run) if run.ended else None
        reason: Reason = "success_end" if run.node in self.definition.success else "failure_end"
        return Verdict(reason, f"ended on '{run.node}'")

    def check_time(self) -> Verdict | None:
        """Return the verdict on a trial whose time is over, or None.

        Raises:
            GivenUp: it is to be driven no further here.
        """
        if self._given_up():
            raise GivenUp
        return TIMED_OUT if self.until.passed else None

    def _verdict_on(self, run: Run, refusals: list[Settled]) -> Verdict | None:
        """Return why the attempt ends where it stands, or None."""
        # A result that is there counts, whatever the clock says by now.
        if (verdict := self.ended(run)) or (verdict := self.check_time()):
            return verdict
        if self.attempt.steps >= self.definition.max_steps:
            return Verdict("max_steps", _stuck(run, refusals, self.attempt.steps))
        if refusals and (self.definition.agent is None or self._same >= SAME_BLOCK_MAX):
            return Verdict("no_progress", _stuck(run, refusals, self.attempt.steps))
        return None

    def _request(self) -> StartRequest:
        return StartRequest(
            runbook=self.runbook,
            run_id=self.attempt.run_id,
            place=self.place,
            by=DRIVER,
            labels=self._labels,
        )

    # --- leaving a node --------------------------------------------------------------------------------------------

    def _leave(self, run: Run, wish: str | None) -> Run | Verdict | list[Settled]:
        """Try the edges; return where that led, or what every one of them was blocked by."""
        refusals: list[Settled] = []
        for edge in self._edges(run, wish):
            try:
                settled = self._goto(run, edge.target)
            except CancelledRun as error:
                return Verdict("run_cancelled", error.message)
            except PausedRun:
                if verdict := self.check_time():
                    return verdict
                raise
            except Conflict:
                # Somebody else moves the run, and is to blame for where it goes.
                left = self.engine.see_through(run.id, self.until)
                now = self.engine.run(run.id)
                if now.entry_id == run.entry_id and left is None:
                    raise
                return now if left is None or left.transition.outcome == "committed" else self.arrived(left)
            if settled.transition.outcome != "blocked":
                return self.arrived(settled)
            self.count_blocked(settled)
            refusals.append(settled)
        self._compare(refusals)
        return refusals

    def _edges(self, run: Run, wish: str | None) -> tuple[Edge, ...]:
        """Return the edges that are to be tried: the one that the agent wants if there is such, else all in order."""
        edges = self.runbook.exits(run.node)
        wanted = tuple(edge for edge in edges if edge.target == wish)
        return wanted or edges

    def _goto(self, run: Run, target: str) -> Settled:
        """Attempt the transition to a target.

        While the run is paused, or somebody else attempts one from here in vain, wait until that is over.
        """
        others = 0
        while True:
            try:
                return self.engine.goto(run.id, target, DRIVER, from_entry=run.entry_id, deadline=self.until)
            except PausedRun:
                if self.until.passed:
                    raise
                self.engine.wait_while_paused(run.id, self.until)
            except TransitionInFlight:
                left = self.engine.see_through(run.id, self.until)
                in_vain = left is None or left.transition.outcome == "blocked"
                others += 1
                if not in_vain or others > OTHERS_MAX or self.engine.run(run.id).entry_id != run.entry_id:
                    raise

    def arrived(self, settled: Settled) -> Run | Verdict:
        """Return the run after a transition that was not blocked, or why the trial ends with it."""
        transition = settled.transition
        self.attempt = replace(self.attempt, checks=self.attempt.checks + executions(settled))
        way = f"'{transition.source}' -> '{transition.target}'" if transition.kind == "goto" else transition.kind
        match transition.outcome:
            case "committed" if transition.stage is None:
                return settled.run
            case "committed":
                why = f"the in_hook of '{transition.target}' did not pass: {first_failure(settled)}"
                return Verdict("hook_failed", why)
            case None:
                if verdict := self.check_time():
                    return verdict
                return Verdict("internal_error", f"{way} came to no end")
            case "cancelled":
                by_run = cancelled(self.engine.run(settled.run.id))
                return by_run or Verdict("run_cancelled", f"{way} was cancelled")
            case outcome:
                why = transition.reason or first_failure(settled)
                unknown = any(r.outcome.reason == "hook_outcome_unknown" for r in transition.results.values())
                reason: Reason = "hook_outcome_unknown" if unknown else "check_not_evaluated"
                return Verdict(reason, f"{way} ended as {outcome} at {transition.stage}: {why}")

    # --- counting --------------------------------------------------------------------------------------------------

    def count_blocked(self, settled: Settled) -> None:
        """Count a transition that was blocked, and by which checks."""
        transition = settled.transition
        for view in result_views(transition):
            if not view["passed"] and not view["continued"]:
                key = (transition.source, transition.target, str(view.get("name") or view["id"]))
                self._blocks[key] = self._blocks.get(key, 0) + 1
        self.attempt = replace(
            self.attempt,
            blocked=self.attempt.blocked + 1,
            checks=self.attempt.checks + executions(settled),
            blocks=tuple(Blocked(*key, times) for key, times in sorted(self._blocks.items())),
        )

    def visit(self, run: Run) -> None:
        """Count that the run has entered a node."""
        self._entry, self._calls_here, self._answered = run.entry_id, 0, False
        self._block, self._same = "", 0
        self._visits[run.node] = self._visits.get(run.node, 0) + 1
        loops = max(self._visits.values()) - 1
        self.attempt = replace(self.attempt, node=run.node, loops=loops)

    def _visit_if_new(self, run: Run) -> None:
        if run.entry_id != self._entry:
            self.visit(run)

    def _compare(self, refusals: list[Settled]) -> None:
        """Note whether this entry was blocked in the same way as at the step before."""
        told = [
            (settled.transition.target, view["id"], view["reason"], view["output"])
            for settled in refusals
            for view in result_views(settled.transition)
            if not view["passed"] and not view["continued"]
        ]
        block = sha256(repr(told).encode()).hexdigest()[:16]
        self._same = self._same + 1 if block == self._block else 1
        self._block = block

    def note(self) -> None:
        """Write where the attempt stands.

        Raises:
            GivenUp: somebody else has the trial by now.
        """
        self._noted_spent = self._spent + time.monotonic() - self._begun
        self.attempt = self.standing()
        self._note(self.attempt)

    def standing(self) -> Attempt:
        """Return the attempt with where it stands, for whoever goes on with it."""
        position = Position(
            entry=self._entry,
            calls=self._calls_here,
            answered=self._answered,
            visits=dict(self._visits),
            block=self._block,
            same=self._same,
            stepping=self._stepping,
            stops=self.stops,
            spent=self._noted_spent,
        )
        return replace(self.attempt, position=position)

    # --- calling the agent -----------------------------------------------------------------------------------------

    def _ask(self, agent: Agent, run: Run, prompt: str, refusals: list[Settled]) -> Verdict | None:
        """Call the agent command; return a verdict if the trial ends with that."""
        self._calls_here += 1
        told = blocked_facts(run, refusals) if refusals else None
        verdict = self.call(agent, run, agents.filled_in(prompt, self.place.env), told)
        if verdict is None:
            self._answered = True
            self.note()
        return verdict

    def call(self, agent: Agent, run: Run, prompt: str, told: Mapping[str, Any] | None) -> Verdict | None:
        """Call the agent command once and wait for it; return a verdict if the trial ends with that.

        Raises:
            GivenUp: it was ended because the attempt is to be driven no further here.
        """
        if verdict := self.check_time():
            return verdict
        variables, timeout = self.before_call(agent, run, prompt, told)
        finished = self._bench.call_agent(agent, run, self.place, variables, prompt, timeout)
        return self.after_call(agent, run, finished, timeout)

    def before_call(
        self, agent: Agent, run: Run, prompt: str, told: Mapping[str, Any] | None
    ) -> tuple[dict[str, str], float]:
        """Count a call of the agent, and put down what it is told; return its variables, and its timeout in seconds.

        Raises:
            GivenUp: somebody else has the trial by now.
        """
        self.attempt = replace(self.attempt, calls=self.attempt.calls + 1)
        self.note()
        variables = self.desk.lay_out(prompt, told) | {"STATEM_ATTEMPT": str(max(self._calls_here, 1))}
        return variables, self.until.bound(agent.timeout)

    def after_call(self, agent: Agent, run: Run, finished: Finished, timeout: float) -> Verdict | None:
        """Keep what a call of the agent has left; return a verdict if the trial ends with that.

        Raises:
            GivenUp: it was ended because the attempt is to be driven no further here.
        """
        self.desk.keep_output(self.attempt.calls, shown_text(finished))
        self.attempt = replace(self.attempt, usage=agents.added(self.attempt.usage, self.desk.usage()))
        if finished.cancelled is not None or (finished.timed_out and timeout < agent.timeout):
            if verdict := self.check_time():
                return verdict
            if finished.cancelled is not None:
                # Somebody has terminated the run under it, unless it is given up.
                if verdict := cancelled(self.engine.run(run.id)):
                    return verdict
                raise GivenUp
        return agents.judge(finished, run.node, timeout)


def cancelled(run: Run) -> Verdict | None:
    """Return the verdict on a run that was cancelled, or None."""
    if run.ending is None:
        return None
    because = f": {run.ending.reason}" if run.ending.reason else ""
    return Verdict("run_cancelled", f"the run was cancelled{because}")


def blocked_facts(run: Run, refusals: list[Settled]) -> dict[str, Any]:
    """Return what an agent is told of the edges that were blocked at the last step of this entry."""
    return {
        "run_id": run.id,
        "current": run.node,
        "current_entry_id": run.entry_id,
        "blocked": [settled_transition(settled.run, settled.transition) for settled in refusals],
    }


def first_failure(settled: Settled) -> str:
    """Return what kept a transition from going on, in a line."""
    for view in result_views(settled.transition):
        if not view["passed"] and not view["continued"]:
            said = " ".join(str(view["output"]).split())
            return f"{view['id']} {view['reason']}{': ' + said if said else ''}"
    return settled.transition.stage or "no check failed"


def executions(settled: Settled) -> int:
    """Return how many executions of checks and hooks a transition has taken."""
    transition = settled.transition
    return sum(
        transition.results[planned.id].tries
        for planned in transition.plan
        if planned.id in transition.results and not decided_here(planned)
    )


def _stuck(run: Run, refusals: list[Settled], steps: int) -> str:
    if not refusals:
        return f"on '{run.node}' after {steps} steps"
    last = refusals[-1]
    return f"on '{run.node}' after {steps} steps; '{last.transition.target}' was refused: {first_failure(last)}"
