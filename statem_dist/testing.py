"""Walking a runbook with scripted outcomes: no server, no worker, nothing is executed.

    from statem_dist.testing import simulate

    walk = simulate("release.yaml", {"tests": [False, True]})
    assert walk.path == ("build", "repair", "build", "done")
    assert not walk.untaken

The rules are those of real runs: the same decider walks the same plan, with virtual time for retries. Checks that
agents register while a run stands on a node are no part of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct

from statem_dist.errors import Invalid, UnknownTarget
from statem_dist.protocol.commands import ClaimWork, Command, Decide, Goto, RecordOutcomes, Recover, Start
from statem_dist.protocol.decide import decide
from statem_dist.protocol.evolve import evolve
from statem_dist.protocol.graph import Runbook
from statem_dist.protocol.model import Actor, Place, PlannedCheck, Run, Settlement, Transition, Worker
from statem_dist.protocol.outcome import Outcome, Reason
from statem_dist.protocol.plan import plan_goto, plan_in_hook
from statem_dist.protocol.progress import pending
from statem_dist.runbook import load
from statem_dist.runbook.nodes import reach

Answer: TypeAlias = bool | Reason | Outcome
"""What came of a check: whether it passed, the reason why it did not, or all of it."""

Script: TypeAlias = Answer | Sequence[Answer]
"""An answer for every time that a check is evaluated, or one for each time in turn, the last one for ever after."""

Route: TypeAlias = Sequence[str] | Callable[[Run], str | None]
"""Where to go: targets one after another, or a function that is asked on every node; None ends the walk."""

Ending: TypeAlias = Literal["ended", "stuck", "error", "route_ended", "endless"]
"""How a walk came to its end: on an end of the runbook; where no edge can be taken; by a check that could not be
evaluated; because the route says no more; after too many steps."""

STEPS_MAX = 200

EPOCH_MS = 1_750_000_000_000
"""The time at which a walk begins."""

AGENT = Actor(id="agent", role="executor")
OPERATOR = Actor(id="operator", role="operator")


class Step(Struct, frozen=True):
    """One attempt of a transition: the edge, how it settled, and what came of each check by its plan id."""

    source: str
    target: str
    outcome: Settlement
    results: dict[str, Outcome]


class Walk(Struct, frozen=True):
    """What came of a walk.

    Attributes:
        steps: every attempt of a transition.
        path: the nodes on which the run stood, in order.
        ending: how the walk came to its end.
        unentered: nodes on which it never stood.
        untaken: edges that it never went along, as source and target.
        unreachable: nodes to which no way leads from the initial one, whatever the checks say.
        traps: nodes that can be reached and from which no way leads to an end, if the runbook has ends at all.
    """

    steps: tuple[Step, ...]
    path: tuple[str, ...]
    ending: Ending
    unentered: tuple[str, ...]
    untaken: tuple[tuple[str, str], ...]
    unreachable: tuple[str, ...]
    traps: tuple[str, ...]


def simulate(
    runbook: Runbook | Path | str,
    outcomes: Mapping[str, Script] | None = None,
    *,
    route: Route | None = None,
    steps_max: int = STEPS_MAX,
) -> Walk:
    """Walk a runbook as far as it goes.

    Args:
        runbook: a validated one, or the path of its file.
        outcomes: what comes of checks, hooks, questions and reviews, by name or by plan id (``before_transfer.0``), for
            one edge alone as ``SOURCE -> TARGET: CHECK``, the most exact key first. What is not named passes.
        route: where to go. By default the graph leads: the edges of a node are tried in order until one can be taken,
            and the walk is stuck where every one of them is blocked twice for the same reasons.
        steps_max: attempts of transitions after which a walk counts as endless.

    Raises:
        RunbookInvalid: the file is no valid runbook.
        UnknownTarget: the route leads where no edge leads.
        Invalid: an outcome is for a check that the runbook does not have; the message lists the names that it has.
    """
    graph = runbook if isinstance(runbook, Runbook) else load(Path(runbook)).runbook
    scripts = dict(outcomes or {})
    _refuse_unknown(graph, scripts)
    return _Walker(graph, scripts, route, steps_max).walk()


class _Walker:
    def __init__(self, runbook: Runbook, scripts: Mapping[str, Script], route: Route | None, steps_max: int) -> None:
        self._runbook = runbook
        self._scripts = scripts
        self._told = dict.fromkeys(scripts, 0)
        self._route = route
        self._steps_max = steps_max
        self._now = EPOCH_MS
        self._numbers = count(1)
        self._run: Run | None = None
        self._steps: list[Step] = []
        self._path: list[str] = []

    def walk(self) -> Walk:
        """Begin a run, and move it to the end of the walk."""
        place = Place(workspace="/")
        ending = self._apply_and_settle(Start(run_id="simulated", runbook=self._runbook, place=place, by=AGENT))
        self._path.append(self._standing.node)
        planned = iter(self._route) if isinstance(self._route, Sequence) else None
        refused: list[tuple[str, ...]] = []
        while ending is None:
            run = self._standing
            if run.ended:
                ending = "ended"
            elif len(self._steps) >= self._steps_max:
                ending = "endless"
            elif self._route is not None:
                target = next(planned, None) if planned is not None else self._route(run)  # type: ignore[operator]
                ending = "route_ended" if target is None else self._go(target)
            else:
                ending, refused = self._lead(refused)
        return self._report(ending)

    @property
    def _standing(self) -> Run:
        assert self._run is not None, "the run has begun"
        return self._run

    def _lead(self, refused: list[tuple[str, ...]]) -> tuple[Ending | None, list[tuple[str, ...]]]:
        """Try the edges of the node in order; return how the walk ends, if it does, and why none could be taken."""
        source, entry = self._standing.node, self._standing.entry_id
        reasons = []
        for edge in self._runbook.exits(source):
            if len(self._steps) >= self._steps_max:
                return "endless", []
            ending = self._go(edge.target)
            if ending is not None or self._standing.entry_id != entry:
                return ending, []
            last = self._steps[-1]
            failed = (f"{check} {outcome.reason}" for check, outcome in last.results.items() if not outcome.passed)
            reasons.append((edge.target, *failed))
        return ("stuck" if reasons == refused else None), reasons

    def _go(self, target: str) -> Ending | None:
        """Attempt a transition; return how the walk ends, if it does."""
        before = self._standing
        if self._runbook.edge(before.node, target) is None:
            allowed = ", ".join(edge.target for edge in self._runbook.exits(before.node)) or "(none)"
            raise UnknownTarget(
                f"The route leads from {before.node!r} to {target!r}, and no edge does. Allowed targets: {allowed}"
            )
        request = f"walk-{next(self._numbers)}"
        ending = self._apply_and_settle(
            Goto(runbook=self._runbook, target=target, by=AGENT, request_id=request, on_manual="wait")
        )
        transition = self._standing.transition
        assert transition is not None, "a goto opens a transition"
        assert transition.outcome is not None, "it has been settled"
        results = {check: result.outcome for check, result in transition.results.items()}
        self._steps.append(Step(before.node, target, transition.outcome, results))
        if self._standing.entry_id != before.entry_id:
            self._path.append(self._standing.node)
        return ending

    def _apply_and_settle(self, command: Command) -> Ending | None:
        """Carry a command out and give every check that it leads to what is scripted."""
        self._apply(command)
        while (transition := self._standing.in_flight) is not None:
            if transition.unknown:
                # A hook was said to be of unknown outcome: nobody is there to find out.
                self._apply(Recover(way="abort", reason="", by=OPERATOR))
            elif transition.awaiting:
                self._decide(transition, next(iter(transition.awaiting)))
            else:
                self._work(transition)
        settled = self._standing.transition
        return "error" if settled is not None and settled.outcome == "error" else None

    def _apply(self, command: Command) -> None:
        for event in decide(self._run, command, self._now):
            self._run = evolve(self._run, event)

    def _work(self, transition: Transition) -> None:
        """Evaluate the first check that is owed."""
        batch = pending(self._standing)[0]
        self._now = max(self._now, batch.not_before)
        worker = Worker("simulated", (batch.queue,))
        self._apply(ClaimWork(transition=transition.id, check=batch.checks[0], worker=worker))
        claimed = self._standing.in_flight
        assert claimed is not None
        token = claimed.token
        for check in batch.checks:
            open_now = self._standing.in_flight
            if open_now is None or open_now.claim(token) is None:
                return
            planned = open_now.planned(check)
            assert planned is not None
            outcome = self._outcome_of(open_now, planned)
            self._apply(RecordOutcomes(open_now.id, token, worker, (outcome,), claim_more=False))

    def _decide(self, transition: Transition, check: str) -> None:
        planned = transition.planned(check)
        assert planned is not None
        outcome = self._outcome_of(transition, planned)
        self._apply(
            Decide(
                transition=transition.id,
                check=check,
                approved=outcome.passed,
                comment=outcome.output,
                by=OPERATOR,
                operator=True,
            )
        )

    def _outcome_of(self, transition: Transition, planned: PlannedCheck) -> Outcome:
        """Return what is scripted for a check, and count that it was told."""
        names = [each for each in (planned.check.name, planned.id) if each]
        keys = [*(f"{transition.source} -> {transition.target}: {name}" for name in names), *names]
        key = next((each for each in keys if each in self._scripts), None)
        if key is None:
            return Outcome(passed=True, reason="passed")
        script = self._scripts[key]
        if isinstance(script, str | bool | Outcome):
            return _outcome(script)
        number = min(self._told[key], len(script) - 1)
        self._told[key] += 1
        return _outcome(script[number])

    def _report(self, ending: Ending) -> Walk:
        names = [node.name for node in self._runbook.nodes]
        edges = [(edge.source, edge.target) for edge in self._runbook.edges]
        taken = {(step.source, step.target) for step in self._steps if step.outcome == "committed"}
        exits: dict[str, list[str]] = {}
        entrances: dict[str, list[str]] = {}
        for source, target in edges:
            exits.setdefault(source, []).append(target)
            entrances.setdefault(target, []).append(source)
        reached = reach([self._runbook.initial], exits)
        ends = [name for name in names if name not in exits]
        lead_on = reach(ends, entrances) if ends else set(names)
        return Walk(
            steps=tuple(self._steps),
            path=tuple(self._path),
            ending=ending,
            unentered=tuple(name for name in names if name not in self._path),
            untaken=tuple(edge for edge in edges if edge not in taken),
            unreachable=tuple(name for name in names if name not in reached),
            traps=tuple(name for name in names if name in reached and name not in lead_on),
        )


def _outcome(answer: Answer) -> Outcome:
    if isinstance(answer, Outcome):
        return answer
    if isinstance(answer, bool):
        return Outcome(passed=answer, reason="passed" if answer else "check_failed")
    return Outcome(passed=answer in ("passed", "confirmed", "approved"), reason=answer)


def _refuse_unknown(runbook: Runbook, scripts: Mapping[str, Script]) -> None:
    """Refuse scripts for checks that the runbook does not have, and those that say nothing.

    Raises:
        Invalid: there are some.
    """
    known: dict[str, None] = {}
    for node in runbook.nodes:
        known |= dict.fromkeys(name for planned in plan_in_hook(runbook, node.name) for name in _names(planned))
    for edge in runbook.edges:
        for planned in plan_goto(runbook, edge, None):
            for name in _names(planned):
                known |= {name: None, f"{edge.source} -> {edge.target}: {name}": None}
    if unknown := [key for key in scripts if key not in known]:
        plain = ", ".join(key for key in known if " -> " not in key) or "(none)"
        raise Invalid(f"The runbook {runbook.name!r} has no check {unknown[0]!r}.", hint=f"Its checks: {plain}")
    for key, script in scripts.items():
        if not isinstance(script, str | bool | Outcome) and not script:
            raise Invalid(f"The outcomes of {key!r} are an empty list.", hint="Leave it out: then it passes.")


def _names(planned: PlannedCheck) -> list[str]:
    repairs = [name for repair in planned.check.repair for name in ([repair.name] if repair.name else [])]
    return [each for each in (planned.check.name, planned.id, *repairs) if each]
