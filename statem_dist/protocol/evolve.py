"""Folding events into the state of a run. ``replay`` of a run's events gives its stored document, always."""

from __future__ import annotations

from collections.abc import Iterable
from typing import assert_never

from msgspec.structs import replace

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
from statem_dist.protocol.model import (
    REPAIRED_PURPOSES,
    REQUESTS_KEPT,
    SCHEMA,
    Claim,
    Ending,
    Paused,
    Run,
    Transition,
    Unknown,
    Unwinding,
)


def replay(events: Iterable[Event]) -> Run:
    """Return the run that these events made. The first one is ``RunCreated`` or ``RunImported``."""
    run: Run | None = None
    for event in events:
        run = evolve(run, event)
    assert run is not None, "a run has at least one event"
    return run


def evolve(run: Run | None, event: Event) -> Run:
    """Return the run after one event; its version is one higher."""
    if isinstance(event, RunCreated | RunImported):
        assert run is None, "a run is created once"
        return _created(event) if isinstance(event, RunCreated) else _imported(event)
    assert run is not None, "the first event of a run creates it"
    run = replace(run, version=run.version + 1, updated_at=event.at)
    match event:
        case RunRebound():
            return _rebound(run, event)
        case RunRestarted():
            return _restarted(run, event)
        case RunPaused():
            return replace(run, paused=Paused(at=event.at, reason=event.reason, by=event.by))
        case RunUnpaused():
            return replace(run, paused=None)
        case RunCancelled():
            return _cancelled(run, event)
        case TransitionOpened():
            return _opened(run, event)
        case _:
            transition = run.transition
    assert transition is not None and transition.id == event.transition, "events belong to the latest transition"
    match event:
        case WorkClaimed():
            return replace(run, transition=_claimed(transition, event))
        case CheckSettled():
            return replace(run, transition=_settled_check(transition, event))
        case CheckRetrying():
            return replace(run, transition=_retrying(transition, event))
        case DecisionRequested():
            awaiting = {**transition.awaiting, event.check: event.expires_at}
            return replace(run, transition=replace(transition, awaiting=awaiting))
        case WorkReturned():
            return replace(run, transition=_released(transition, event.token, begun=-1))
        case WorkLost():
            return replace(run, transition=_released(transition, event.token, begun=0))
        case OutcomeUnknown():
            return replace(run, transition=_unknown(transition, event))
        case Recovered():
            return replace(run, transition=_recovered(transition, event))
        case RepairBegun():
            return replace(run, transition=_unwinding(transition, event))
        case NodeEntered():
            return _entered(run, transition, event)
        case TransitionSettled():
            settled = replace(
                transition,
                outcome=event.outcome,
                stage=event.stage,
                reason=event.reason,
                settled_at=event.at,
                claims=(),
                awaiting={},
                unknown={},
            )
            return replace(run, transition=settled, attempts=_attempts_after(run, settled))
        case _:
            assert_never(event)


def _created(event: RunCreated) -> Run:
    return Run(
        id=event.run_id,
        runbook=event.runbook,
        runbook_name=event.runbook_name,
        place=event.place,
        node=event.node,
        entry_id=event.entry_id,
        created_at=event.at,
        updated_at=event.at,
        version=1,
        final=event.final,
        labels=event.labels,
        by=event.by,
        schema=SCHEMA,
    )


def _imported(event: RunImported) -> Run:
    return Run(
        id=event.run_id,
        runbook=event.runbook,
        runbook_name=event.runbook_name,
        place=event.place,
        node=event.node,
        entry_id=event.entry_id,
        created_at=event.created_at,
        updated_at=event.at,
        version=1,
        final=event.final,
        attempts=event.attempts,
        by=event.by,
        schema=SCHEMA,
    )


def _rebound(run: Run, event: RunRebound) -> Run:
    moved = event.migrated_from is not None
    return replace(
        run,
        runbook=event.runbook,
        runbook_name=event.runbook_name,
        node=event.node,
        entry_id=event.entry_id,
        entries=run.entries + 1 if moved else run.entries,
        attempts={} if moved else run.attempts,
        final=event.final,
    )


def _restarted(run: Run, event: RunRestarted) -> Run:
    return replace(
        run,
        runbook=event.runbook,
        runbook_name=event.runbook_name,
        node=event.node,
        entry_id=event.entry_id,
        entries=run.entries + 1,
        place=event.place,
        by=event.by,
        final=event.final,
        attempts={},
        paused=None,
        ending=None,
    )


def _cancelled(run: Run, event: RunCancelled) -> Run:
    ending = Ending(at=event.at, reason=event.reason, by=event.by, terminated=event.terminated)
    transition = run.in_flight
    # Nobody is waited for any more; what is being executed stays claimed until it has ended.
    left = run.transition if transition is None else replace(transition, awaiting={})
    return replace(run, ending=ending, paused=None, transition=left)


def _opened(run: Run, event: TransitionOpened) -> Run:
    transition = Transition(
        id=event.transition,
        kind=event.kind,
        source=event.source,
        target=event.target,
        plan=event.plan,
        opened_at=event.at,
        order=event.order,
        by=event.by,
        request_id=event.request_id,
        confirmations=event.confirmations,
        attempt=event.attempt,
        max_attempts=event.max_attempts,
        final=event.final,
        skip_hooks=event.skip_hooks,
        on_manual=event.on_manual,
        dynamic_producers=event.dynamic_producers,
        confinement=event.confinement,
        # Tokens go on rising, so that a worker of a transition that is over cannot keep a newer lease alive.
        token=run.transition.token if run.transition else 0,
    )
    attempts = run.attempts
    if event.kind == "goto" and not transition.exhausted:
        attempts = {**attempts, event.target: event.attempt}
    return replace(
        run,
        transition=transition,
        transitions=run.transitions + 1,
        attempts=attempts,
        requests=_remember(run.requests, event.request_id, event.transition),
    )


def _remember(requests: dict[str, str], request_id: str, transition: str) -> dict[str, str]:
    """Return the request ids of the latest transitions, the newest last."""
    if not request_id:
        return requests
    return dict([*requests.items(), (request_id, transition)][-REQUESTS_KEPT:])


def _claimed(transition: Transition, event: WorkClaimed) -> Transition:
    claim = Claim(token=event.token, checks=event.checks, worker=event.worker, at=event.at)
    return replace(
        transition,
        token=event.token,
        claims=(*transition.claims, claim),
        starts=_count(transition.starts, event.checks[0], 1),
    )


def _settled_check(transition: Transition, event: CheckSettled) -> Transition:
    transition = replace(
        transition,
        results={**transition.results, event.check: event.result},
        not_before={check: at for check, at in transition.not_before.items() if check != event.check},
        awaiting={check: at for check, at in transition.awaiting.items() if check != event.check},
        unknown={check: what for check, what in transition.unknown.items() if check != event.check},
    )
    claim = transition.claim_on(event.check)
    if claim is None:
        return transition
    assert claim.checks[0] == event.check, "the checks of a claim settle in order"
    rest = claim.checks[1:]
    if not rest:
        return replace(transition, claims=tuple(c for c in transition.claims if c is not claim))
    kept = tuple(replace(c, checks=rest) if c is claim else c for c in transition.claims)
    return replace(transition, claims=kept, starts=_count(transition.starts, rest[0], 1))


def _retrying(transition: Transition, event: CheckRetrying) -> Transition:
    return replace(
        transition,
        claims=tuple(claim for claim in transition.claims if event.check not in claim.checks),
        starts={check: count for check, count in transition.starts.items() if check != event.check},
        tries={**transition.tries, event.check: event.tries},
        not_before={**transition.not_before, event.check: event.not_before},
    )


def _released(transition: Transition, token: int, begun: int) -> Transition:
    claim = transition.claim(token)
    assert claim is not None, "only a live claim is released"
    return replace(
        transition,
        claims=tuple(other for other in transition.claims if other is not claim),
        starts=_count(transition.starts, claim.checks[0], begun),
    )


def _unknown(transition: Transition, event: OutcomeUnknown) -> Transition:
    what = Unknown(at=event.at, worker=event.worker, cause=event.cause)
    return replace(
        transition,
        unknown={**transition.unknown, event.check: what},
        claims=tuple(claim for claim in transition.claims if event.check not in claim.checks),
    )


def _recovered(transition: Transition, event: Recovered) -> Transition:
    if event.way != "resume":
        # What the checks are taken for follows as their results.
        return transition
    return replace(
        transition,
        unknown={check: what for check, what in transition.unknown.items() if check not in event.checks},
        starts={check: count for check, count in transition.starts.items() if check not in event.checks},
    )


def _unwinding(transition: Transition, event: RepairBegun) -> Transition:
    unwinding = Unwinding(
        at=event.at, plan=event.plan, outcome=event.outcome, stage=event.stage, reason=event.reason, by=event.by
    )
    # A hook that is being executed may end first, and nothing else of its claim is begun.
    executing = (claim for claim in transition.claims if _is_hook(transition, claim.checks[0]))
    return replace(
        transition,
        unwinding=unwinding,
        claims=tuple(replace(claim, checks=claim.checks[:1]) for claim in executing),
        awaiting={},
    )


def _is_hook(transition: Transition, check: str) -> bool:
    planned = transition.planned(check)
    return planned is not None and planned.purpose in REPAIRED_PURPOSES


def _entered(run: Run, transition: Transition, event: NodeEntered) -> Run:
    return replace(
        run,
        node=event.node,
        entry_id=event.entry_id,
        entries=run.entries + 1,
        final=event.final,
        attempts={},
        transition=replace(transition, entered=True),
    )


def _attempts_after(run: Run, settled: Transition) -> dict[str, int]:
    """Return the attempts once a transition has settled: one that was cancelled or could not be evaluated is none.

    After the commit there is nothing to take back: the new entry began with none.
    """
    counted = settled.kind == "goto" and not settled.exhausted and not settled.entered
    if not counted or settled.outcome not in ("cancelled", "error"):
        return run.attempts
    others = {target: count for target, count in run.attempts.items() if target != settled.target}
    return others | ({settled.target: settled.attempt - 1} if settled.attempt > 1 else {})


def _count(counts: dict[str, int], key: str, change: int) -> dict[str, int]:
    return {**counts, key: counts.get(key, 0) + change}
