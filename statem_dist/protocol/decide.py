"""The decider: from a run and a command to the events that follow, or a typed rejection.

Who may send what, and what it leads to:

================  ============================================  ==============================================
command           allowed when                                  otherwise
================  ============================================  ==============================================
Start             the run does not exist                        decides to nothing when it is a repeat
Import            the run does not exist                        Conflict
Goto              no transition is open; the edge exists; the   TransitionInFlight; UnknownTarget; Conflict;
                  run is neither paused nor cancelled           PausedRun; CancelledRun
Resume, Save      the same, without the edge                    TransitionInFlight; PausedRun; CancelledRun
ClaimWork         the batch is owed and nobody has it; a held   decides to nothing
                  run owes none
RecordOutcomes    token and worker are those of a live claim    decides to nothing
Decide            the check waits for a decision                Conflict; NotAuthorised
ExpireDecision    the check has waited for too long             decides to nothing
ReturnWork        the token is that of a live claim             decides to nothing
ExpireClaim       the token is that of a live claim             decides to nothing
Recover           a check is of unknown outcome                 Conflict
Cancel            that transition is open, did not commit and   Conflict
                  is not being repaired already
CancelRun         the run has not ended and was not cancelled;  CancelledRun; Conflict
                  with ``terminate``, a transition may be open
Pause             the run is not paused and has not ended       PausedRun; CancelledRun; Conflict
Unpause           the run is paused                             CancelledRun; Conflict
Restart           always                                        decides to nothing when it is a repeat
================  ============================================  ==============================================

*Held* is a run that is paused, or that was cancelled and has a transition open in which something is being executed:
the check that runs may end and its result is recorded, the rest of its claim is released, and nothing more is begun.
A paused run stands where it is, also when the last result is there: judging, entering and settling wait for
``Unpause``; what people decide meanwhile is recorded. A cancelled run asks nobody any more, and its transition settles
as soon as nothing is being executed, or at once when it is terminated or restarted: as ``cancelled``, or as
``committed`` if it had entered its target, or had nothing left to do.

=========  ======================================================================================================
held by    then
=========  ======================================================================================================
Pause      Unpause goes on; Cancel ends the transition alone; CancelRun and Restart end the pause
CancelRun  CancelRun with ``terminate`` does not wait for what is being executed; Restart begins the run anew
=========  ======================================================================================================

What must not run twice and has lost its worker, or was cut short, is of *unknown outcome*: its transition stays where
it is, open and owing nothing, until somebody says how to go on (``Recover``), or ends it. That holds for what may stop
a transition; otherwise the unknown outcome is only recorded. It is recorded, too, where nobody is asked: while a run
ends, while hooks are repaired, and for a hook that has a repair, which then needs no operator.

A transition that does not commit first *unwinds*: the repairs of every hook that was begun run one by one, the last
hook's first, and then it settles as it would have, or as ``error``, ``repair_failed``. A hook that is being executed
may end before. ``Restart`` and ``terminate`` wait for nothing, and repair nothing.

A late, repeated or foreign message is no error: it decides to nothing. After the events that a command asks
for, the decider goes on with everything that needs nobody else: it settles messages and confirmations, judges
stages, enters the target. It stops where a worker owes a result, or at the end.
"""

from __future__ import annotations

from typing import assert_never

from statem_dist.errors import CancelledRun, Conflict, NotAuthorised, PausedRun, TransitionInFlight, UnknownTarget
from statem_dist.protocol.answers import answer, confirmation, question_of, waits
from statem_dist.protocol.commands import (
    Cancel,
    CancelRun,
    ClaimWork,
    Command,
    Decide,
    ExpireClaim,
    ExpireDecision,
    Goto,
    Import,
    Pause,
    RecordOutcomes,
    Recover,
    Restart,
    Resume,
    ReturnWork,
    Save,
    Start,
    Unpause,
)
from statem_dist.protocol.events import (
    CheckRetrying,
    CheckSettled,
    DecisionRequested,
    Event,
    NodeEntered,
    OutcomeUnknown,
    Recovered,
    RepairBegun,
    RunCancelled,
    RunCreated,
    RunImported,
    RunPaused,
    RunRebound,
    RunRestarted,
    RunUnpaused,
    TransitionOpened,
    TransitionSettled,
    WorkClaimed,
    WorkLost,
    WorkReturned,
)
from statem_dist.protocol.evolve import evolve
from statem_dist.protocol.graph import Retry, Runbook
from statem_dist.protocol.model import Actor, PlannedCheck, Run, Transition, UnknownCause, Worker
from statem_dist.protocol.outcome import INFRASTRUCTURE, CheckResult, Outcome, Reason, tier_of
from statem_dist.protocol.plan import plan_goto, plan_in_hook, plan_out_hook, plan_repairs
from statem_dist.protocol.progress import (
    Committing,
    Complete,
    Repaired,
    Stopped,
    Waiting,
    decided_here,
    pending,
    repeatable,
    walk,
)
from statem_dist.protocol.stages import HOOK_PURPOSES, IN_HOOK

CAUSES: dict[Reason, UnknownCause] = {
    "shutdown": "shutdown",
    "cancelled": "cut_short",
    "worker_lost": "worker_lost",
    "hook_outcome_unknown": "cut_short",
}
"""Reasons by which a worker says that it, or the supervisor of its commands, ended a check, and why nobody knows then
what a hook did."""

UNKNOWN_BECAUSE: dict[UnknownCause, str] = {
    "worker_lost": "The worker was lost while this ran",
    "shutdown": "The worker was shut down while this ran",
    "cut_short": "The worker ended this before its time",
}
"""How an unknown outcome is put into words."""

NOBODY = Actor()

STARTS_MAX = 3
"""How often the execution of one check may be begun before its dying workers are taken for its fault."""


def decide(run: Run | None, command: Command, now: int) -> list[Event]:
    """Return the events that a command leads to; an empty list when it changes nothing.

    Args:
        run: the run as stored, or None when there is none yet.
        command: what is asked for.
        now: milliseconds since the epoch, by the clock of the store.

    Raises:
        TransitionInFlight: another transition of the run is open.
        UnknownTarget: no edge leads from the current node to the target.
        Conflict: the caller's view of the run is stale, or the command would change nothing.
        PausedRun: the run is paused.
        CancelledRun: the run was cancelled.
        NotAuthorised: somebody else has to decide this.
    """
    if isinstance(command, Start):
        return _start(run, command, now)
    if isinstance(command, Import):
        return _import(run, command, now)
    assert run is not None, "every other command is for a run that exists"
    match command:
        case Goto():
            return _goto(run, command, now)
        case Resume():
            return _resume(run, command, now)
        case Save():
            return _save(run, command, now)
        case ClaimWork():
            return _claim(run, command, now)
        case RecordOutcomes():
            return _record(run, command, now)
        case Decide():
            return _decide(run, command, now)
        case ExpireDecision():
            return _expire_decision(run, command, now)
        case ReturnWork():
            return _return(run, command, now)
        case ExpireClaim():
            return _expire(run, command, now)
        case Recover():
            return _recover(run, command, now)
        case Cancel():
            return _cancel(run, command, now)
        case CancelRun():
            return _cancel_run(run, command, now)
        case Pause():
            return _pause(run, command, now)
        case Unpause():
            return _unpause(run, command.by, now)
        case Restart():
            return _restart(run, command, now)
        case _:
            assert_never(command)


# --- opening a transition -------------------------------------------------------------------------------------


def _start(run: Run | None, command: Start, now: int) -> list[Event]:
    if run is not None:
        _refuse_unless_repeated(run, command.request_id)
        return []
    runbook = command.runbook
    created = RunCreated(
        at=now,
        run_id=command.run_id,
        runbook=runbook.hash,
        runbook_name=runbook.name,
        node=runbook.initial,
        entry_id=f"{command.run_id}-e1",
        place=command.place,
        by=command.by,
        final=not runbook.exits(runbook.initial),
        labels=command.labels,
    )
    return _follow(None, [created, _opened_start(command, "t1", now)], now, command.worker)


def _opened_start(command: Start | Restart, transition: str, now: int) -> TransitionOpened:
    """Return the opening of the transition by which a run begins, for the first time or anew."""
    runbook = command.runbook
    return TransitionOpened(
        at=now,
        transition=transition,
        kind="start",
        source=runbook.initial,
        target=runbook.initial,
        plan=plan_in_hook(runbook, runbook.initial),
        by=command.by,
        request_id=command.request_id,
        confirmations=command.confirmations,
        final=not runbook.exits(runbook.initial),
        confinement=runbook.confinement,
    )


def _import(run: Run | None, command: Import, now: int) -> list[Event]:
    if run is not None:
        raise _exists(run)
    runbook = command.runbook
    imported = RunImported(
        at=now,
        run_id=command.run_id,
        runbook=runbook.hash,
        runbook_name=runbook.name,
        node=command.node,
        entry_id=command.entry_id,
        place=command.place,
        created_at=command.created_at or now,
        by=command.by,
        final=not runbook.exits(command.node),
        attempts=command.attempts,
        history=command.history,
        left_out=command.left_out,
        recorded_hash=command.recorded_hash,
        source=command.source,
    )
    return [imported]


def _goto(run: Run, command: Goto, now: int) -> list[Event]:
    if _is_repeat(run, command.request_id):
        return []
    _refuse_held(run)
    _refuse_in_flight(run)
    if command.from_entry is not None and command.from_entry != run.entry_id:
        raise Conflict(
            f"Run {run.id!r} has moved on: it stands on {run.node!r}, entry {run.entry_id}, not {command.from_entry}.",
            hint="Look at the current node first, then decide again.",
            details={"run_id": run.id, "current": run.node, "current_entry_id": run.entry_id},
        )
    runbook = command.runbook
    _refuse_other_runbook(run, runbook)
    edge = runbook.edge(run.node, command.target)
    if edge is None:
        raise unknown_target(run, [exit_.target for exit_ in runbook.exits(run.node)], command.target)
    attempt = run.attempts.get(edge.target, 0) + 1
    exhausted = edge.max_attempts is not None and attempt > edge.max_attempts
    opened = TransitionOpened(
        at=now,
        transition=f"t{run.transitions + 1}",
        kind="goto",
        source=edge.source,
        target=edge.target,
        plan=() if exhausted else plan_goto(runbook, edge, command.dynamic),
        order=runbook.order,
        by=command.by,
        request_id=command.request_id,
        confirmations=command.confirmations,
        attempt=attempt,
        max_attempts=edge.max_attempts,
        final=not runbook.exits(edge.target),
        on_manual=command.on_manual,
        dynamic_producers=command.dynamic.producers if command.dynamic else None,
        confinement=runbook.confinement,
    )
    return _follow(run, [opened], now, command.worker)


def _resume(run: Run, command: Resume, now: int) -> list[Event]:
    if _is_repeat(run, command.request_id):
        return []
    _refuse_held(run)
    _refuse_in_flight(run)
    runbook = command.runbook
    if not command.rebind:
        _refuse_other_runbook(run, runbook)
    events: list[Event] = []
    if runbook.hash != run.runbook:
        rebound = _rebind(run, command, now)
        events.append(rebound)
        run_then = evolve(run, rebound)
    else:
        run_then = run
    opened = TransitionOpened(
        at=now,
        transition=f"t{run.transitions + 1}",
        kind="resume",
        source=run_then.node,
        target=run_then.node,
        plan=plan_in_hook(runbook, run_then.node),
        by=command.by,
        request_id=command.request_id,
        confirmations=command.confirmations,
        final=run_then.final,
        confinement=runbook.confinement,
    )
    return _follow(run, [*events, opened], now, command.worker)


def _rebind(run: Run, command: Resume, now: int) -> RunRebound:
    """Bind a run to an edited runbook; where its node is gone, it goes back to the initial one."""
    runbook = command.runbook
    gone = runbook.node(run.node) is None
    node = runbook.initial if gone else run.node
    return RunRebound(
        at=now,
        runbook=runbook.hash,
        runbook_name=runbook.name,
        node=node,
        entry_id=f"{run.id}-e{run.entries + 1}" if gone else run.entry_id,
        by=command.by,
        previous=run.runbook,
        migrated_from=run.node if gone else None,
        final=not runbook.exits(node),
    )


def _save(run: Run, command: Save, now: int) -> list[Event]:
    if _is_repeat(run, command.request_id):
        return []
    _refuse_held(run)
    _refuse_in_flight(run)
    _refuse_other_runbook(run, command.runbook)
    opened = TransitionOpened(
        at=now,
        transition=f"t{run.transitions + 1}",
        kind="save",
        source=run.node,
        target=run.node,
        plan=() if command.skip_hooks else plan_out_hook(command.runbook, run.node),
        by=command.by,
        request_id=command.request_id,
        confirmations=command.confirmations,
        final=run.final,
        skip_hooks=command.skip_hooks,
        confinement=command.runbook.confinement,
    )
    return _follow(run, [opened], now, command.worker)


def unknown_target(run: Run, allowed: list[str], target: str) -> UnknownTarget:
    """Return the error for a ``goto`` along an edge that does not exist."""
    named = ", ".join(allowed) or "(none)"
    return UnknownTarget(
        f"No edge leads from {run.node!r} to {target!r}. Allowed targets: {named}",
        hint="Choose one of the allowed targets." if allowed else "The current node is an end of the runbook.",
        details={"run_id": run.id, "current": run.node, "target": target, "allowed": allowed},
    )


def _is_repeat(run: Run, request_id: str) -> bool:
    """Return whether this very request was accepted already, so that its repetition changes nothing."""
    return request_id in run.requests


def _refuse_unless_repeated(run: Run, request_id: str) -> None:
    if not _is_repeat(run, request_id):
        raise _exists(run)


def _exists(run: Run) -> Conflict:
    return Conflict(
        f"Run {run.id!r} exists already; it stands on {run.node!r}.",
        hint="Resume it, or choose another run id.",
        details={"run_id": run.id, "current": run.node},
    )


def _refuse_other_runbook(run: Run, runbook: Runbook) -> None:
    """Refuse a command that was made for another version of the runbook than the run follows now."""
    if runbook.hash != run.runbook:
        raise Conflict(
            f"Run {run.id!r} follows another version of its runbook since this was asked for.",
            hint="Look at the current node first, then decide again.",
            details={"run_id": run.id, "spec_hash": run.runbook},
        )


def _refuse_held(run: Run) -> None:
    """Refuse what would begin something on a run that is paused or was cancelled."""
    if run.ending is not None:
        raise _was_cancelled(run, "and has ended" if run.in_flight is None else "and is about to end")
    if run.paused is not None:
        raise _is_paused(run)


def _was_cancelled(run: Run, how_far: str) -> CancelledRun:
    ending = run.ending
    assert ending is not None
    verb = "terminated" if ending.terminated else "cancelled"
    return CancelledRun(
        f"Run {run.id!r} was {verb} by {ending.by.id or 'somebody'}{_because(ending.reason)}, {how_far}.",
        hint="`statem-dist start RUNBOOK --on-existing restart` begins it anew; another run id begins another run.",
        details={
            "run_id": run.id,
            "current": run.node,
            "reason": ending.reason,
            "by": ending.by.id,
            "at": ending.at,
            "terminated": ending.terminated,
        },
    )


def _is_paused(run: Run) -> PausedRun:
    paused = run.paused
    assert paused is not None
    return PausedRun(
        f"Run {run.id!r} is paused by {paused.by.id or 'somebody'}{_because(paused.reason)}.",
        hint="`statem-dist resume` lets it go on.",
        details={
            "run_id": run.id,
            "current": run.node,
            "reason": paused.reason,
            "by": paused.by.id,
            "at": paused.at,
        },
    )


def _because(reason: str) -> str:
    return f" ({reason})" if reason else ""


def _refuse_in_flight(run: Run) -> None:
    transition = run.in_flight
    if transition is None:
        return
    way = f"{transition.source} -> {transition.target}" if transition.kind == "goto" else transition.kind
    hint = "Wait until it has settled, then look at the current node; `statem-dist cancel` ends it instead."
    if transition.unknown:
        hint = (
            f"Nobody knows what {', '.join(transition.unknown)} did: `statem-dist recover {run.id}` says how to go on."
        )
    raise TransitionInFlight(
        f"Run {run.id!r} is in transition {transition.id} ({way}), begun by {transition.by.id or 'somebody'}.",
        hint=hint,
        details={
            "run_id": run.id,
            "current": run.node,
            "transition": transition.id,
            "from": transition.source,
            "to": transition.target,
            "kind": transition.kind,
        },
    )


# --- work ----------------------------------------------------------------------------------------------------


def _claim(run: Run, command: ClaimWork, now: int) -> list[Event]:
    for batch in pending(run):
        if batch.transition == command.transition and batch.checks[0] == command.check and batch.not_before <= now:
            assert run.transition is not None
            token = run.transition.token + 1
            return [WorkClaimed(now, batch.transition, token, batch.checks, command.worker.id)]
    return []


def _record(run: Run, command: RecordOutcomes, now: int) -> list[Event]:
    claimed = _live_claim(run, command.transition, command.token)
    if claimed is None or _claimant(claimed[0], command.token) != command.worker.id:
        return []
    transition, checks = claimed
    events: list[Event] = []
    # On a held run only the first check of a claim counts as begun; what else was reported is evaluated again.
    reported = command.outcomes[:1] if run.held else command.outcomes
    ends = run.ending is not None or transition.unwinding is not None
    for check_id, outcome in zip(checks, reported, strict=False):
        planned = transition.planned(check_id)
        assert planned is not None, "claims cover planned checks"
        tries = transition.tries.get(check_id, 0) + 1
        if outcome.reason in CAUSES and not repeatable(planned):
            cut_short = _outcome_unknown(run, transition, planned, command.worker.id, CAUSES[outcome.reason], now)
            events.append(cut_short)
            if isinstance(cut_short, OutcomeUnknown):
                return _follow(run, events, now, None)
            break
        if (planned.purpose == "repair" or not ends) and _to_be_retried(planned, outcome, tries):
            not_before = now + _interval_ms(planned.check.retry, tries, command.jitter)
            events.append(CheckRetrying(now, transition.id, check_id, tries, not_before, outcome))
            return _follow(run, events, now, None)
        result = _result(planned, transition, outcome, command.worker.id, tries)
        events.append(CheckSettled(now, transition.id, check_id, result))
        if planned.purpose in HOOK_PURPOSES and planned.check.stops and not result.passed:
            # An effect ends with its first failure, also if its worker went on before it reported.
            break
    finished = len(events) == len(checks)
    if run.held and events and not finished:
        events.append(WorkReturned(now, transition.id, command.token))
    return _follow(run, events, now, command.worker if finished and command.claim_more else None)


def _return(run: Run, command: ReturnWork, now: int) -> list[Event]:
    if _live_claim(run, command.transition, command.token) is None:
        return []
    return _follow(run, [WorkReturned(now, command.transition, command.token)], now, None)


def _expire(run: Run, command: ExpireClaim, now: int) -> list[Event]:
    claimed = _live_claim(run, command.transition, command.token)
    if claimed is None:
        return []
    transition, checks = claimed
    begun = transition.planned(checks[0])
    assert begun is not None, "claims cover planned checks"
    events: list[Event] = [WorkLost(now, transition.id, command.token)]
    starts = transition.starts.get(begun.id, 0)
    if not repeatable(begun):
        worker = _claimant(transition, command.token) or ""
        events.append(_outcome_unknown(run, transition, begun, worker, "worker_lost", now))
    elif starts >= STARTS_MAX:
        lost = Outcome(
            passed=False,
            reason="worker_lost",
            output=f"Its worker was lost {starts} times in a row while this ran.",
        )
        events.append(CheckSettled(now, transition.id, begun.id, _result(begun, transition, lost, "", starts)))
    return _follow(run, events, now, None)


def _outcome_unknown(
    run: Run, transition: Transition, planned: PlannedCheck, worker: str, cause: UnknownCause, now: int
) -> OutcomeUnknown | CheckSettled:
    """Return what follows when nobody knows what a check did: somebody has to say, unless that would be in vain."""
    ends = run.ending is not None or transition.unwinding is not None
    if planned.check.stops and not planned.check.repair and not ends:
        return OutcomeUnknown(now, transition.id, planned.id, worker, cause)
    return _settled_unknown(transition, planned, UNKNOWN_BECAUSE[cause], now)


def _settled_unknown(
    transition: Transition, planned: PlannedCheck, because: str, now: int, by: Actor = NOBODY
) -> CheckSettled:
    outcome = Outcome(
        passed=False,
        reason="hook_outcome_unknown",
        output=f"{because}, and it must not run twice: nobody knows what it did.",
    )
    result = CheckResult(
        outcome=outcome,
        tier=tier_of(planned.check),
        by=by.id,
        role=by.role,
        token=by.token,
        tries=max(1, transition.starts.get(planned.id, 1)),
    )
    return CheckSettled(now, transition.id, planned.id, result)


def _left_unknown(transition: Transition, now: int, by: Actor = NOBODY) -> list[Event]:
    """Return the results of the checks whose outcome stays unknown, because nobody is asked for it any more."""
    return [
        _settled_unknown(transition, planned, UNKNOWN_BECAUSE[transition.unknown[planned.id].cause], now, by)
        for planned in transition.plan
        if planned.id in transition.unknown
    ]


def _live_claim(run: Run, transition_id: str, token: int) -> tuple[Transition, tuple[str, ...]] | None:
    transition = run.in_flight
    if transition is None or transition.id != transition_id:
        return None
    claim = transition.claim(token)
    return None if claim is None else (transition, claim.checks)


def _claimant(transition: Transition, token: int) -> str | None:
    claim = transition.claim(token)
    return None if claim is None else claim.worker


def _to_be_retried(planned: PlannedCheck, outcome: Outcome, tries: int) -> bool:
    retry = planned.check.retry
    if outcome.passed or outcome.reason in ("no_reviewer", "cancelled") or tries >= retry.maximum_attempts:
        return False
    if outcome.reason == "spawn_failed":
        return "infrastructure" in retry.on
    if not repeatable(planned):
        return False
    if outcome.reason in INFRASTRUCTURE:
        return "infrastructure" in retry.on
    return ("timed_out" if outcome.reason == "timed_out" else "failed") in retry.on


def _interval_ms(retry: Retry, tries: int, jitter: float) -> int:
    seconds = min(retry.initial_interval * retry.backoff_coefficient ** (tries - 1), retry.maximum_interval)
    return round(1000 * seconds * (1 + retry.jitter * jitter))


def _result(planned: PlannedCheck, transition: Transition, outcome: Outcome, by: str, tries: int) -> CheckResult:
    if outcome.reason == "no_reviewer":
        # Without a reviewer a review is what it would be without a model: a question to a person.
        return confirmation(planned, transition, "No reviewer is configured (STATEM_LLM_REVIEW_CMD). ")
    return CheckResult(outcome=outcome, tier=tier_of(planned.check), by=by, tries=tries)


# --- what needs nobody else ------------------------------------------------------------------------------------


def _follow(run: Run | None, events: list[Event], now: int, worker: Worker | None) -> list[Event]:
    """Add to the events of a command everything that follows from them, and a claim for ``worker``."""
    for event in events:
        run = evolve(run, event)
    assert run is not None
    while (following := _next_event(run, now)) is not None:
        events.append(following)
        run = evolve(run, following)
    if worker is not None and run.transition is not None:
        for batch in pending(run):
            if batch.queue in worker.queues and batch.not_before <= now:
                events.append(WorkClaimed(now, batch.transition, run.transition.token + 1, batch.checks, worker.id))
                break
    return events


def comes_by_itself(run: Run) -> bool:
    """Return whether more follows from what has happened to a run, without anybody: its last commit goes on."""
    return _next_event(run, run.updated_at) is not None


def _next_event(run: Run, now: int) -> Event | None:
    transition = run.in_flight
    if transition is None or run.paused is not None:
        return None
    if run.ending is not None:
        if transition.claims and not run.ending.terminated:
            return None
        if transition.unknown:
            return _left_unknown(transition, now)[0]
        if run.ending.terminated or transition.unwinding is None:
            how = "terminated" if run.ending.terminated else "cancelled"
            settled = _cut_off(transition, run.ending.reason or f"the run was {how}", run.ending.by, now)
            return settled if run.ending.terminated else _settle(transition, settled)
    if transition.exhausted:
        return TransitionSettled(now, transition.id, "blocked", stage="max_attempts")
    match walk(transition):
        case Waiting(steps):
            return _next_decision(steps[0], transition, now)
        case Stopped(stage, failures):
            settled = _stopped(transition, stage.report([planned.purpose for planned in failures]), failures, now)
            follows = _settle(transition, settled)
            if isinstance(follows, RepairBegun) and transition.claims:
                # What stands behind a failure in the same claim was not begun, and has nothing to be repaired.
                return WorkReturned(now, transition.id, transition.claims[0].token)
            return follows
        case Repaired(failures):
            return _repaired(transition, failures, now)
        case Committing():
            entry_id = f"{run.id}-e{run.entries + 1}"
            return NodeEntered(now, transition.id, transition.target, entry_id, transition.final)
        case Complete():
            return TransitionSettled(now, transition.id, "committed")
        case position:
            assert_never(position)


def _next_decision(step: tuple[PlannedCheck, ...], transition: Transition, now: int) -> Event | None:
    """Return what the protocol itself has to say to the checks that are up next, if anything."""
    for planned in step:
        if not decided_here(planned):
            continue
        if waits(planned, transition):
            if planned.id not in transition.awaiting:
                expires_at = now + round(planned.check.timeout * 1000) if planned.check.timeout else 0
                return DecisionRequested(now, transition.id, planned.id, expires_at)
        else:
            return CheckSettled(now, transition.id, planned.id, answer(planned, transition))
    return None


def _stopped(transition: Transition, stage: str, failures: tuple[PlannedCheck, ...], now: int) -> TransitionSettled:
    reasons = [transition.results[planned.id].outcome.reason for planned in failures]
    unevaluated = [reason for reason in reasons if reason in INFRASTRUCTURE]
    if len(unevaluated) == len(reasons):
        return TransitionSettled(now, transition.id, "error", stage=stage, reason=unevaluated[0])
    # What is already true stays true: after the commit, and for a run that exists, a failing hook is reported.
    moved = transition.entered or transition.kind in ("start", "resume")
    return TransitionSettled(now, transition.id, "committed" if moved else "blocked", stage=stage)


def _settle(transition: Transition, settled: TransitionSettled) -> Event:
    """Return what comes next when a transition is to settle so: one that does not commit is repaired first."""
    if settled.outcome == "committed" or transition.entered or not (due := plan_repairs(transition)):
        return settled
    return RepairBegun(
        at=settled.at,
        transition=transition.id,
        plan=due,
        outcome=settled.outcome,
        stage=settled.stage,
        reason=settled.reason,
        by=settled.by,
    )


def _repaired(transition: Transition, failures: tuple[PlannedCheck, ...], now: int) -> TransitionSettled:
    unwinding = transition.unwinding
    assert unwinding is not None, "only an unwinding transition has repairs"
    return TransitionSettled(
        at=now,
        transition=transition.id,
        outcome="error" if failures else unwinding.outcome,
        stage=unwinding.stage,
        reason="repair_failed" if failures else unwinding.reason,
        by=unwinding.by,
    )


# --- unknown outcomes ------------------------------------------------------------------------------------------


def _recover(run: Run, command: Recover, now: int) -> list[Event]:
    transition = run.in_flight
    if transition is None or not transition.unknown:
        raise _unrecoverable(run, "no check of it is of unknown outcome", "`statem-dist cur` says where it stands.")
    if command.transition not in (None, transition.id):
        raise _unrecoverable(run, f"it is in transition {transition.id} now, not {command.transition}", "Look again.")
    unknown = tuple(transition.unknown)
    if command.check is not None and command.check not in unknown:
        raise _unrecoverable(run, f"what {command.check} did is not in question", f"In question: {', '.join(unknown)}")
    checks = unknown if command.check is None or command.way == "abort" else (command.check,)
    if command.way in ("passed", "failed") and len(checks) > 1:
        raise _unrecoverable(
            run, "several of its checks are of unknown outcome", f"Name one with --check: {', '.join(checks)}"
        )
    events: list[Event] = [Recovered(now, transition.id, command.way, checks, command.reason, command.by)]
    if command.way == "abort":
        events += _left_unknown(transition, now, command.by)
    elif command.way != "resume":
        events.append(_marked(transition, checks[0], command, now))
    return _follow(run, events, now, command.worker)


def _marked(transition: Transition, check: str, command: Recover, now: int) -> CheckSettled:
    """Return the result that an operator gives a check of unknown outcome: it is that person's decision."""
    passed, by = command.way == "passed", command.by
    outcome = Outcome(passed=passed, reason="approved" if passed else "rejected", output=command.reason)
    result = CheckResult(outcome=outcome, tier="decision", by=by.id, role=by.role, token=by.token)
    return CheckSettled(now, transition.id, check, result)


def _unrecoverable(run: Run, why: str, hint: str) -> Conflict:
    return Conflict(
        f"Run {run.id!r} cannot be recovered: {why}.",
        hint=hint,
        details={"run_id": run.id, "current": run.node, "run_status": run.status},
    )


# --- decisions -------------------------------------------------------------------------------------------------


def _decide(run: Run, command: Decide, now: int) -> list[Event]:
    transition = run.transition
    if transition is None or transition.id != command.transition:
        latest = f", which is {transition.id}" if transition else ""
        raise _stale(run, command, f"that transition is not the latest one of the run{latest}")
    planned = transition.planned(command.check)
    if planned is None:
        listed = ", ".join(transition.awaiting) or "nothing"
        raise _stale(run, command, f"the transition has no check of that id (waiting there: {listed})")
    if (result := transition.results.get(planned.id)) is not None:
        if result.by == command.by.id and result.passed == command.approved:
            return []
        whose = f" by {result.by}" if result.by else ""
        raise _stale(run, command, f"it has ended before, as {result.outcome.reason}{whose}")
    if run.ending is not None:
        raise _stale(run, command, "the run was cancelled")
    if not transition.open or planned.id not in transition.awaiting:
        raise _stale(run, command, f"nothing waits for it (the transition is {transition.outcome or 'open'})")
    if _has_expired(transition, planned.id, now):
        raise _stale(run, command, "it comes too late, the time to decide is over")
    if planned.check.by == "operator" and not command.operator:
        raise NotAuthorised(
            f"The check {planned.id} of run {run.id!r} is for an operator to decide.",
            hint="Ask an operator: statem-dist approvals",
            details={"run_id": run.id, "transition": transition.id, "check": planned.id},
        )
    # Who approves what it was asked itself has only confirmed it: that is no decision by somebody else.
    itself = command.by.id == transition.by.id and not command.operator
    passing: Reason = "confirmed" if itself else "approved"
    outcome = Outcome(
        passed=command.approved,
        reason=passing if command.approved else "rejected",
        output=command.comment or question_of(planned),
    )
    tier = tier_of(planned.check) if itself else "decision"
    by = command.by
    result = CheckResult(outcome=outcome, tier=tier, by=by.id, role=by.role, token=by.token)
    return _follow(run, [CheckSettled(now, transition.id, planned.id, result)], now, command.worker)


def _expire_decision(run: Run, command: ExpireDecision, now: int) -> list[Event]:
    transition = run.in_flight
    if transition is None or transition.id != command.transition:
        return []
    if not _has_expired(transition, command.check, now):
        return []
    planned = transition.planned(command.check)
    assert planned is not None, "only planned checks are waited for"
    outcome = Outcome(passed=False, reason="expired", output=f"Nobody decided in time: {question_of(planned)}")
    result = CheckResult(outcome=outcome, tier="decision")
    return _follow(run, [CheckSettled(now, transition.id, planned.id, result)], now, None)


def _has_expired(transition: Transition, check: str, now: int) -> bool:
    return 0 < transition.awaiting.get(check, 0) <= now


def _stale(run: Run, command: Decide, why: str) -> Conflict:
    return Conflict(
        f"The decision on {command.check} of run {run.id!r}, transition {command.transition}, does not count: {why}.",
        hint="`statem-dist approvals` lists what waits for a decision now.",
        details={"run_id": run.id, "transition": command.transition, "check": command.check},
    )


# --- ending it from outside ------------------------------------------------------------------------------------


def _cancel(run: Run, command: Cancel, now: int) -> list[Event]:
    transition = run.transition
    if transition is None or transition.id != command.transition or not transition.open:
        raise Conflict(
            f"Transition {command.transition} of run {run.id!r} is not open.",
            details={"run_id": run.id, "transition": command.transition},
        )
    if transition.entered:
        raise Conflict(
            f"Transition {command.transition} of run {run.id!r} has committed; the run stands on {run.node!r}.",
            details={"run_id": run.id, "transition": command.transition, "current": run.node},
        )
    if transition.unwinding is not None:
        raise Conflict(
            f"Transition {command.transition} of run {run.id!r} ends already: its hooks are being repaired.",
            hint="`statem-dist terminate` ends the run without waiting for that.",
            details={"run_id": run.id, "transition": command.transition, "current": run.node},
        )
    settled = TransitionSettled(now, transition.id, "cancelled", reason=command.reason, by=command.by)
    unknown = _left_unknown(transition, now)
    return _follow(run, [*unknown, _settle(transition, settled)], now, None)


def _cut_off(transition: Transition, reason: str, by: Actor, now: int) -> TransitionSettled:
    """Return how a transition settles that is left where it is because its run ends, or begins anew."""
    match walk(transition):
        case Complete():
            return TransitionSettled(now, transition.id, "committed")
        case Stopped(stage, failures) if transition.entered:
            return _stopped(transition, stage.report([planned.purpose for planned in failures]), failures, now)
        case _ if transition.entered:
            # What is already true stays true.
            return TransitionSettled(now, transition.id, "committed", stage=IN_HOOK.name, reason=reason, by=by)
        case _:
            return TransitionSettled(now, transition.id, "cancelled", reason=reason, by=by)


def _cancel_run(run: Run, command: CancelRun, now: int) -> list[Event]:
    if run.ending is not None:
        if run.in_flight is None:
            raise _was_cancelled(run, "and has ended already")
        if not command.terminate:
            raise _was_cancelled(run, "and is about to end already; `statem-dist terminate` does not wait")
    _refuse_finished(run)
    cancelled = RunCancelled(now, command.reason, command.by, terminated=command.terminate)
    return _follow(run, [cancelled], now, None)


def _pause(run: Run, command: Pause, now: int) -> list[Event]:
    _refuse_held(run)
    _refuse_finished(run)
    return [RunPaused(now, command.reason, command.by)]


def _unpause(run: Run, by: Actor, now: int) -> list[Event]:
    if run.paused is None:
        if run.ending is not None:
            _refuse_held(run)
        raise Conflict(
            f"Run {run.id!r} is not paused.",
            hint="To take up a run again, `statem-dist start` it.",
            details={"run_id": run.id, "current": run.node, "run_status": run.status},
        )
    return _follow(run, [RunUnpaused(now, by)], now, None)


def _refuse_finished(run: Run) -> None:
    if run.status == "finished":
        raise Conflict(
            f"Run {run.id!r} has finished already, on {run.node!r}: there is nothing to hold or to end.",
            details={"run_id": run.id, "current": run.node, "run_status": run.status},
        )


# --- beginning anew --------------------------------------------------------------------------------------------


def _restart(run: Run, command: Restart, now: int) -> list[Event]:
    if _is_repeat(run, command.request_id):
        return []
    runbook = command.runbook
    restarted = RunRestarted(
        at=now,
        runbook=runbook.hash,
        runbook_name=runbook.name,
        node=runbook.initial,
        entry_id=f"{run.id}-e{run.entries + 1}",
        place=command.place,
        by=command.by,
        previous=run.runbook,
        final=not runbook.exits(runbook.initial),
    )
    before, left = run, run.in_flight
    cut_off: list[Event] = []
    if left is not None:
        for event in _left_unknown(left, now):
            run, cut_off = evolve(run, event), [*cut_off, event]
        assert run.transition is not None
        cut_off.append(_cut_off(run.transition, "restarted", command.by, now))
    opened = _opened_start(command, f"t{run.transitions + 1}", now)
    return _follow(before, [*cut_off, restarted, opened], now, command.worker)
