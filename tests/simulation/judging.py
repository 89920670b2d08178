"""The laws, looked at whenever something is written, begun or answered: nothing else can break them.

The history of a run is judged by ``Judge``, which knows the protocol without asking the decider. What only the world
around the runs can know is judged here: what was executed, what was answered, what a reader has seen, who lost a claim
and why.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from statem_dist.follow import Settled
from statem_dist.laws import Judge, may_repeat
from statem_dist.protocol.events import (
    CheckSettled,
    Event,
    Recovered,
    RepairBegun,
    TransitionOpened,
    TransitionSettled,
    WorkClaimed,
    WorkLost,
)
from statem_dist.protocol.graph import Command, LlmReview
from statem_dist.protocol.model import PlannedCheck
from statem_dist.store import keys
from statem_dist.store.codec import decode_event, decode_run
from tests.simulation.effects import Execution
from tests.simulation.kernel import Crashed, Process

if TYPE_CHECKING:
    from tests.simulation.world import World

TIME_IS_OUT_OF_JOINT = frozenset({"freeze", "monotonic clock jumps", "monotonic clock stands still"})
"""Troubles of a process after which its commands may outlive its leases."""


class Case:
    """One run before the judge.

    Args:
        judge: of its history.
    """

    def __init__(self, judge: Judge) -> None:
        self.judge = judge
        self.seen = 0
        self.plans: dict[str, dict[str, PlannedCheck]] = {}
        self.claims: dict[int, WorkClaimed] = {}
        self.claimed_us: dict[int, int] = {}
        self.requests: dict[str, str] = {}
        self.settled: set[tuple[str, str]] = set()


class Laws:
    """Judges one world.

    Args:
        world: what is judged.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.cases: dict[str, Case] = {}
        self.broken: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self.transitions = 0

    def require(self, holds: bool, law: str) -> None:
        """End the simulation where a law is broken; nobody around can swallow that."""
        if not holds:
            self._world.kernel.note(f"LAW BROKEN: {law}")
            self._world.kernel.fail(AssertionError(law))

    # --- history ----------------------------------------------------------------------------------------------

    def judge_events(self, run_id: str) -> None:
        """Judge what was just written to the stream of a run: each event, and that the document is their fold."""
        case = self.cases.setdefault(run_id, Case(Judge(self._world.runbooks)))
        for number, event in self._stored(run_id)[case.seen :]:
            self._judge(run_id, case, number, event)
        document = self._world.server.value(keys.run(run_id))
        self.require(document is not None, f"{run_id} has events and no document")
        self.require(decode_run(document[b"doc"]) == case.judge.run, f"the document of {run_id} is not its history")
        self.require(int(document[b"v"]) == case.seen, f"{run_id} is at version {document[b'v']!r} after {case.seen}")
        live = {b"lease:%d" % claim.token for claim in _claims(case)}
        kept = {field for field in document if field.startswith(b"lease:")}
        self.require(live == kept, f"{run_id} has the claims {sorted(live)} and the leases {sorted(kept)}")

    def judge_rollback(self) -> None:
        """Begin anew with what is left of each history: the lost events have never been."""
        for run_id in list(self.cases):
            case = Case(Judge(self._world.runbooks))
            old, self.cases[run_id] = self.cases[run_id], case
            stored = self._stored(run_id)
            if not stored:
                del self.cases[run_id]
            for number, event in stored:
                self._judge(run_id, case, number, event, again=True)
            case.claimed_us = old.claimed_us
            for execution in self._world.effects.executions:
                if execution.run == run_id and not self._is_on_record(case, execution):
                    execution.forgotten = True

    def _stored(self, run_id: str) -> list[tuple[int, Event]]:
        stream = self._world.server.value(keys.events(run_id)) or []
        return [(int(entry_id.split(b"-")[0]), decode_event(fields[1])) for entry_id, fields in stream]

    def _judge(self, run_id: str, case: Case, number: int, event: Event, *, again: bool = False) -> None:
        self.require(number == case.seen + 1, f"event {number} of {run_id} follows event {case.seen}")
        before = case.judge.run
        try:
            case.judge.see([event])
        except Crashed:
            raise
        except Exception as error:
            self.require(False, f"event {number} of {run_id}, {event}: {error!r}")
        case.seen = number
        self._world.kernel.note(f"{run_id} {number} {event}")
        if isinstance(event, CheckSettled):
            case.settled.add((event.transition, event.check))
        match event:
            case TransitionOpened():
                case.plans[event.transition] = {planned.id: planned for planned in event.plan}
                known = case.requests.setdefault(event.request_id, event.transition)
                self.require(known == event.transition, f"request {event.request_id} has opened {known} and another")
            case WorkClaimed():
                case.claims[event.token] = event
                case.claimed_us[event.token] = self._world.kernel.now
            case RepairBegun():
                case.plans[event.transition].update({planned.id: planned for planned in event.plan})
            case Recovered() if event.way == "resume" and not again:
                # To execute it again is on the responsibility of whoever said so.
                for check in event.checks:
                    for execution in self._world.effects.of((run_id, event.transition, check)):
                        execution.forgotten = True
            case CheckSettled() if not again:
                assert before is not None
                self._judge_result(run_id, case, event)
            case WorkLost() if not again:
                self._judge_loss(run_id, case, event)
            case TransitionSettled() if not again:
                self.transitions += 1
                self.outcomes[event.outcome] += 1
            case _:
                pass

    def _judge_result(self, run_id: str, case: Case, event: CheckSettled) -> None:
        """Require that what is on record as evaluated was evaluated, with that result."""
        planned = case.plans[event.transition][event.check]
        outcome = event.result.outcome
        if not isinstance(planned.check.do, Command | LlmReview) or outcome.reason not in ("passed", "check_failed"):
            return
        gave = [
            each
            for each in self._world.effects.of((run_id, event.transition, event.check))
            if each.cut_short is None and (each.finished.exit_code == 0) == outcome.passed
        ]
        self.require(bool(gave), f"{event.check} of {run_id} {event.transition} is on record as {outcome.reason}; "
                     "no execution gave that")  # fmt: skip

    def _judge_loss(self, run_id: str, case: Case, event: WorkLost) -> None:
        """Require that a claim is only lost by a worker that something has befallen."""
        claim = case.claims[event.token]
        process = self._world.process_of(claim.worker)
        since = case.claimed_us[event.token]
        excused = (
            not process.alive
            or bool(process.troubles)
            or self._world.troubled_us >= since
            or self._world.store_away_until >= since
        )
        self.require(excused, f"{claim.worker} has lost its claim {event.token} on {run_id}, and nothing befell it")

    # --- effects ----------------------------------------------------------------------------------------------

    def judge_execution(self, execution: Execution, earlier: list[Execution]) -> None:
        """Judge that something is executed, when it begins."""
        run_id, transition, check = execution.name
        case = self.cases.get(run_id)
        planned = case.plans.get(transition, {}).get(check) if case else None
        counted = [each for each in earlier if not each.forgotten]
        if case is None or planned is None or not self._is_on_record(case, execution):
            # Whoever begins it knows a history that the store has lost.
            self.require(bool(self._world.rollbacks), f"that {check} of {run_id} {transition} begins is on no record")
            execution.forgotten = True
            return
        if not may_repeat(planned):
            self.require(not counted, f"the hook {check} of {run_id} {transition} is executed a second time")
        now = self._world.kernel.now
        for each in counted:
            excused = bool((each.process.troubles | execution.process.troubles) & TIME_IS_OUT_OF_JOINT)
            self.require(
                not each.is_live(now) or excused or self._world.clock_jumps > 0 or self._world.rollbacks > 0,
                f"{check} of {run_id} {transition} is executed twice at the same time",
            )

    def _is_on_record(self, case: Case, execution: Execution) -> bool:
        """Return whether the history knows that something was begun: it was claimed, and what comes before it in the
        claim has settled."""
        claim = case.claims.get(execution.token)
        if (
            claim is None
            or claim.transition != execution.transition
            or execution.check not in claim.checks
            or self._world.process_of(claim.worker) is not execution.process
        ):
            return False
        before = claim.checks[: claim.checks.index(execution.check)]
        return all((execution.transition, check) in case.settled for check in before)

    # --- answers ----------------------------------------------------------------------------------------------

    def judge_answer(self, run_id: str, request: str, settled: Settled, rollbacks: int) -> None:
        """Judge what a request was answered: the transition that it has opened.

        A caller who finishes by itself what a killed one has left may be answered with that, if it is as good. What the
        store has lost since it was asked (``rollbacks`` is how often it had lost something then) nobody can know.
        """
        case = self.cases.get(run_id)
        known = case.requests.get(request) if case else None
        transition = settled.transition
        taken_up = self._world.scenario.inline and case is not None and transition.id in case.plans
        self.require(
            known == transition.id or taken_up or self._world.rollbacks > rollbacks,
            f"request {request} on {run_id} was answered with {transition.id}; it has opened {known}",
        )

    def judge_refusal(self, run_id: str, request: str, error: Exception) -> None:
        """Judge that a request was refused: then it has opened nothing."""
        case = self.cases.get(run_id)
        known = case.requests.get(request) if case else None
        self.require(known is None, f"request {request} on {run_id} was refused ({error}); it has opened {known}")

    # --- the end ----------------------------------------------------------------------------------------------

    def judge_the_end(self) -> None:
        """Judge what is left when nobody has anything to do any more: nothing."""
        server = self._world.server
        for run_id, case in self.cases.items():
            run = case.judge.run
            assert run is not None
            self.require(run.in_flight is None, f"{run_id} is not at rest: {run.in_flight}")
        for shard in range(keys.SHARDS):
            due = server.value(keys.due(shard))
            self.require(not due, f"somebody is still reminded: {due}")
        live = self._world.effects.live()
        self.require(not live, f"{len(live)} commands are still executed")


def _claims(case: Case) -> tuple[WorkClaimed, ...]:
    run = case.judge.run
    transition = run.transition if run is not None else None
    return tuple(case.claims[claim.token] for claim in transition.claims) if transition else ()


def identity_of(process: Process, role: str) -> str:
    """Return how a process calls itself in the store."""
    return f"{role}:{process.host}:{process.pid}:{process.started}"
