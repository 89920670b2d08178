"""Where a transition stands, derived from its plan and its results and stored nowhere.

``walk`` answers the one question that both the decider and the dispatcher ask: is the transition waiting for
checks, stopped by failures, about to commit, or complete?
"""

from __future__ import annotations

from itertools import groupby
from typing import TypeAlias

from msgspec import Struct

from statem_dist.protocol.graph import Checklist, Evidence, LlmReview, Manual, Message, Unmet
from statem_dist.protocol.model import Place, PlannedCheck, Run, Transition
from statem_dist.protocol.stages import COMMIT, HOOK_PURPOSES, Stage, stages_of

CHECKS_QUEUE = "checks"
"""Queue of commands and predicates of runs that are not pinned to a queue of their own."""

REVIEWS_QUEUE = "llm"
"""Queue of LLM reviews, with a concurrency of its own, for runs that are not pinned."""


class Waiting(Struct, frozen=True):
    """Checks are owed. ``steps`` are the unfinished steps of the current stage; only the first may begin."""

    steps: tuple[tuple[PlannedCheck, ...], ...]


class Stopped(Struct, frozen=True):
    """A stage is through and these checks, which may stop a transition, did not pass."""

    stage: Stage
    failures: tuple[PlannedCheck, ...]


class Repaired(Struct, frozen=True):
    """The repairs are through; these, whose failure counts, did not pass."""

    failures: tuple[PlannedCheck, ...]


class Committing(Struct, frozen=True):
    """Every gate and hook before the commit has passed."""


class Complete(Struct, frozen=True):
    """Nothing is left to do."""


Position: TypeAlias = Waiting | Stopped | Repaired | Committing | Complete


class Batch(Struct, frozen=True):
    """Work that must be under way now: consecutive checks of one queue, executed in order by one worker.

    ``not_before`` is a time in milliseconds since the epoch, or 0.
    """

    run: str
    transition: str
    checks: tuple[str, ...]
    queue: str
    not_before: int = 0


def walk(transition: Transition) -> Position:
    """Return where an open transition stands."""
    if transition.unwinding is not None:
        return _walk_repairs(transition)
    for stage in stages_of(transition.kind, transition.order):
        if stage is COMMIT:
            if not transition.entered:
                return Committing()
            continue
        failures: list[PlannedCheck] = []
        steps = _steps(transition, stage)
        for number, members in enumerate(steps):
            if unsettled := tuple(planned for planned in members if planned.id not in transition.results):
                return Waiting((unsettled, *steps[number + 1 :]))
            failures += [p for p in members if p.check.stops and not transition.results[p.id].passed]
            if failures and not stage.evaluate_all:
                break
        if failures:
            return Stopped(stage, tuple(failures))
    return Complete()


def pending(run: Run) -> tuple[Batch, ...]:
    """Return the work of a run that is owed now and that nobody has claimed.

    That is none while the run is held, but for the repairs of one that was cancelled.
    """
    unwinding = run.in_flight is not None and run.in_flight.unwinding is not None
    if run.paused is not None or (run.ending is not None and not unwinding):
        return ()
    return _unclaimed(run)


def _unclaimed(run: Run) -> tuple[Batch, ...]:
    """Return the work that nobody has claimed, also what is held back by a pause."""
    transition = run.in_flight
    if transition is None or transition.exhausted:
        return ()
    if transition.unwinding is not None and transition.claims:
        # Repairs run one by one, and not before the hooks have ended that were under way.
        return ()
    match walk(transition):
        case Waiting(steps):
            return _batches(run, transition, steps)
        case _:
            return ()


def waits_for_people(run: Run) -> bool:
    """Return whether the open transition of a run waits for people and for nothing else: for decisions, or for an
    operator to say how it goes on after an unknown outcome."""
    transition = run.in_flight
    if transition is None or not (transition.awaiting or transition.unknown):
        return False
    return not transition.claims and not _unclaimed(run)


def is_of_unknown_outcome(run: Run) -> bool:
    """Return whether the open transition of a run waits for an operator to say what follows from an unknown outcome."""
    return waits_for_people(run) and run.in_flight is not None and bool(run.in_flight.unknown)


def decided_here(planned: PlannedCheck) -> bool:
    """Return whether the protocol itself settles this check, without a worker."""
    return isinstance(planned.check.do, Message | Manual | Checklist | Unmet | Evidence)


def asks(planned: PlannedCheck) -> bool:
    """Return whether this check is a question to somebody."""
    return isinstance(planned.check.do, Manual | Checklist) and planned.check.confirm


def repeatable(planned: PlannedCheck) -> bool:
    """Return whether a check may be executed again when it is unknown whether an earlier execution took effect.

    Checks may, unless marked ``idempotent: false``; hooks may not, unless marked ``idempotent: true``. Repairs may
    always: they are executed at least once.
    """
    if planned.check.idempotent is not None:
        return planned.check.idempotent
    return planned.purpose not in HOOK_PURPOSES or planned.check.type == "predicate"


def queue_of(planned: PlannedCheck, place: Place) -> str:
    """Return the queue that a check of a run belongs to."""
    if place.queue is not None:
        return place.queue
    return REVIEWS_QUEUE if isinstance(planned.check.do, LlmReview) else CHECKS_QUEUE


def _steps(transition: Transition, stage: Stage) -> tuple[tuple[PlannedCheck, ...], ...]:
    """Return the steps of a stage. In a gate that may wait for people, they are asked last, and all at once:
    nobody is asked in vain, and what a machine has found is not found again because a person took a day."""
    inside = (planned for planned in transition.plan if planned.purpose in stage.purposes)
    steps = tuple(tuple(members) for _, members in groupby(inside, key=lambda planned: planned.step))
    if transition.on_manual == "fail" or not stage.evaluate_all:
        return steps
    questions = tuple(planned for members in steps for planned in members if asks(planned))
    if not questions:
        return steps
    others = [tuple(planned for planned in members if not asks(planned)) for members in steps]
    # A demand for evidence looks back at everything, the answers of people included.
    last = tuple(members for members in others if members and isinstance(members[0].check.do, Evidence))
    automatic = tuple(members for members in others if members and members not in last)
    return (*automatic, questions, *last)


def _walk_repairs(transition: Transition) -> Position:
    """Return where the repairs of a transition stand. What fails ends the repair of its hook, not those of others."""
    failures: list[PlannedCheck] = []
    for planned in transition.repairs:
        if any(failed.repairs == planned.repairs for failed in failures):
            continue
        if planned.id not in transition.results:
            return Waiting(((planned,),))
        if planned.check.stops and not transition.results[planned.id].passed:
            failures.append(planned)
    return Repaired(tuple(failures))


def _batches(run: Run, transition: Transition, steps: tuple[tuple[PlannedCheck, ...], ...]) -> tuple[Batch, ...]:
    first = steps[0]
    if len(first) > 1 or transition.unwinding is not None or _has_siblings(transition, first[0]):
        groups: list[tuple[PlannedCheck, ...]] = [(planned,) for planned in first if not decided_here(planned)]
    else:
        # A question that waits for somebody's decision is offered to no worker: the sequence is empty.
        groups = [sequence] if (sequence := _sequence(run, steps)) else []
    return tuple(
        Batch(
            run=run.id,
            transition=transition.id,
            checks=tuple(planned.id for planned in group),
            queue=queue_of(group[0], run.place),
            not_before=transition.not_before.get(group[0].id, 0),
        )
        for group in groups
        if transition.claim_on(group[0].id) is None and group[0].id not in transition.unknown
    )


def _sequence(run: Run, steps: tuple[tuple[PlannedCheck, ...], ...]) -> tuple[PlannedCheck, ...]:
    """Take the checks from the front that one worker can execute in one go."""
    queue = queue_of(steps[0][0], run.place)
    taken: list[PlannedCheck] = []
    for members in steps:
        if len(members) > 1 or decided_here(members[0]) or queue_of(members[0], run.place) != queue:
            break
        taken.append(members[0])
    return tuple(taken)


def _has_siblings(transition: Transition, planned: PlannedCheck) -> bool:
    return any(other.step == planned.step and other.id != planned.id for other in transition.plan)
