"""The laws of a run, judged from its events alone.

The judge does not ask ``walk`` or ``pending`` what is right: it has its own, slower idea of the protocol, read
off the order of the plan, so that a mistake in those is seen from outside.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from statem_dist.protocol.decide import STARTS_MAX
from statem_dist.protocol.events import (
    CheckRetrying,
    CheckSettled,
    DecisionRequested,
    Event,
    NodeEntered,
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
from statem_dist.protocol.graph import Checklist, Evidence, EvidenceTier, Manual, Predicate, Runbook, Unmet
from statem_dist.protocol.model import PlannedCheck, Purpose, Run, Transition
from statem_dist.protocol.progress import decided_here, pending, queue_of
from statem_dist.store.codec import decode_event, decode_run, encode_event, encode_run

GATES: frozenset[Purpose] = frozenset({"before_transfer", "dynamic_before_transfer", "condition"})


HOOKS: frozenset[Purpose] = frozenset({"out_hook", "hook", "in_hook"})


def may_repeat(planned: PlannedCheck) -> bool:
    """Return whether a check may be executed twice: what has an effect may not, unless its runbook allows it."""
    if planned.check.idempotent is None:
        return planned.purpose not in HOOKS or isinstance(planned.check.do, Predicate)
    return planned.check.idempotent


def is_question(planned: PlannedCheck) -> bool:
    """Return whether somebody has to answer this check."""
    return isinstance(planned.check.do, Manual | Checklist) and planned.check.confirm


def has_failed(transition: Transition) -> bool:
    """Return whether a failure is on record that keeps the transition from going on."""
    return any(
        planned.check.stops and planned.id in transition.results and not transition.results[planned.id].passed
        for planned in transition.plan
    )


def evidence_given(transition: Transition) -> set[EvidenceTier]:
    """Return the tiers of evidence on record; what the agent confirmed itself is its own word and no decision."""
    found: set[EvidenceTier] = set()
    for planned in transition.plan:
        result = transition.results.get(planned.id)
        gates = planned.purpose in ("before_transfer", "dynamic_before_transfer", "condition")
        proves = gates and planned.check.stops and not isinstance(planned.check.do, Evidence | Unmet)
        if proves and result is not None and result.passed:
            found.add("attestation" if result.outcome.reason == "confirmed" else result.tier)
    return found


class Judge:
    """Folds the events of one run and asserts, event by event, that each was lawful.

    Args:
        runbooks: every runbook that the run is ever bound to, by hash.
    """

    def __init__(self, runbooks: Mapping[str, Runbook]) -> None:
        self.run: Run | None = None
        self._runbooks = runbooks
        self._tokens = 0
        self._begun: Counter[str] = Counter()
        self._starts: Counter[str] = Counter()
        self._to_be_returned: int | None = None

    def see(self, events: Iterable[Event]) -> None:
        """Judge events that follow those seen before."""
        for event in events:
            assert decode_event(encode_event(event)) == event
            before = self.run
            self._judge(before, event)
            self.run = evolve(before, event)
            assert self.run.version == (before.version + 1 if before else 1)
            assert decode_run(encode_run(self.run)) == self.run
            _judge_state(self.run, event)

    def _judge(self, run: Run | None, event: Event) -> None:
        if isinstance(event, RunCreated):
            assert run is None
            return
        if isinstance(event, RunImported):
            assert run is None
            assert self._runbooks[event.runbook].node(event.node) is not None
            return
        assert run is not None
        if self._to_be_returned is not None:
            assert isinstance(event, WorkReturned), "what a held run has not begun is released at once"
            assert event.token == self._to_be_returned
            self._to_be_returned = None
        match event:
            case RunRebound():
                self._judge_rebinding(run, event)
                return
            case RunRestarted():
                self._judge_restart(run, event)
                return
            case RunPaused() | RunUnpaused() | RunCancelled():
                _judge_steering(run, event)
                return
            case TransitionOpened():
                self._judge_opening(run, event)
                return
            case _:
                transition = run.in_flight
        assert transition is not None, "a settled transition does not go on"
        assert transition.id == event.transition
        if run.held:
            self._judge_while_held(run, transition, event)
        match event:
            case WorkClaimed():
                self._judge_claim(run, transition, event)
            case CheckSettled():
                self._judge_result(transition, event)
            case CheckRetrying():
                self._judge_retry(transition, event)
            case DecisionRequested():
                self._judge_request(transition, event)
            case WorkReturned():
                claim = transition.claim(event.token)
                assert claim is not None
                self._begun[claim.checks[0]] -= 1
                self._starts[claim.checks[0]] -= 1
            case WorkLost():
                assert transition.claim(event.token) is not None
            case NodeEntered():
                self._judge_commit(run, transition, event)
            case TransitionSettled():
                _judge_settlement(run, transition, event)

    def _judge_while_held(self, run: Run, transition: Transition, event: Event) -> None:
        """Assert that nothing is begun, asked or moved on a run that is paused or was cancelled."""
        match event:
            case WorkClaimed() | DecisionRequested() | NodeEntered():
                raise AssertionError(f"a held run stands still, and yet: {event}")
            case CheckRetrying():
                assert run.ending is None, "what has ended is not tried again"
            case CheckSettled():
                claim = transition.claim_on(event.check)
                lost = event.result.outcome.reason in ("hook_outcome_unknown", "worker_lost")
                assert claim or lost or event.check in transition.awaiting, "only what was begun or asked is recorded"
                if claim is not None and len(claim.checks) > 1:
                    self._to_be_returned = claim.token
            case TransitionSettled() if run.paused is not None:
                cut_off = event.outcome == "cancelled" or event.reason == "restarted"
                complete = event.outcome == "committed" and len(transition.results) == len(transition.plan)
                assert cut_off or complete or transition.entered, "a pause is no end"
            case _:
                pass

    def _judge_restart(self, run: Run, event: RunRestarted) -> None:
        assert run.in_flight is None, "what was open has settled"
        assert event.node == self._runbooks[event.runbook].initial
        assert event.previous == run.runbook
        assert event.entry_id != run.entry_id

    def _judge_rebinding(self, run: Run, event: RunRebound) -> None:
        assert run.in_flight is None
        assert not run.held
        runbook = self._runbooks[event.runbook]
        if event.migrated_from is None:
            assert (event.node, event.entry_id) == (run.node, run.entry_id)
        else:
            assert event.migrated_from == run.node
            assert runbook.node(run.node) is None
            assert event.node == runbook.initial
            assert event.entry_id != run.entry_id

    def _judge_opening(self, run: Run, event: TransitionOpened) -> None:
        assert run.in_flight is None
        assert not run.held, "no transition opens on a run that is paused or was cancelled"
        assert event.transition == f"t{run.transitions + 1}"
        assert event.source == run.node
        assert all(planned.purpose == "dynamic_before_transfer" for planned in event.plan if planned.origin)
        self._begun.clear()
        self._starts.clear()
        if event.kind != "goto":
            assert event.target == run.node
            return
        edge = self._runbooks[run.runbook].edge(run.node, event.target)
        assert edge is not None, "a goto goes along an edge of the runbook that the run is bound to"
        if edge.max_attempts is not None and event.attempt > edge.max_attempts:
            assert not event.plan, "an attempt too many checks nothing"
            assert run.attempts[event.target] >= edge.max_attempts, "only what was evaluated counts"

    def _judge_claim(self, run: Run, transition: Transition, event: WorkClaimed) -> None:
        assert event.token > self._tokens, "tokens rise for as long as the run lives"
        self._tokens = event.token
        taken = {check for claim in transition.claims for check in claim.checks}
        assert not taken & set(event.checks), "claims never overlap"
        planned = [_planned(transition, check) for check in event.checks]
        self._require_frontier(transition, planned[0])
        assert all(not decided_here(one) and one.id not in transition.results for one in planned)
        assert len({queue_of(one, run.place) for one in planned}) == 1
        if len(planned) > 1:
            working = [one for one in transition.plan if not (_asks_last(transition, one) and is_question(one))]
            first = working.index(planned[0])
            assert working[first : first + len(planned)] == planned, "a batch leaves no check out"
            assert len({one.step for one in planned}) == len(planned), "members of a parallel step go one by one"
            assert len({_stage_of(transition, one) for one in planned}) == 1, "a batch ends with its stage"
        assert transition.not_before.get(planned[0].id, 0) <= event.at
        self._begin(planned[0])

    def _judge_result(self, transition: Transition, event: CheckSettled) -> None:
        planned = _planned(transition, event.check)
        assert planned.id not in transition.results, "a check settles once"
        self._require_frontier(transition, planned)
        if is_question(planned):
            _judge_answer(transition, planned, event)
        match planned.check.do:
            case Evidence(tier):
                assert event.result.passed == (tier in evidence_given(transition)), "what is demanded is on record"
            case Unmet():
                assert not event.result.passed, "what is known to be unmet never passes"
        claim = transition.claim_on(planned.id)
        if claim is not None:
            assert not decided_here(planned)
            assert claim.checks[0] == planned.id
            if len(claim.checks) > 1:
                self._begin(_planned(transition, claim.checks[1]))
        else:
            lost = event.result.outcome.reason in ("hook_outcome_unknown", "worker_lost")
            assert decided_here(planned) or lost, "somebody else's check settles only by the loss of its worker"

    def _judge_retry(self, transition: Transition, event: CheckRetrying) -> None:
        planned = _planned(transition, event.check)
        claim = transition.claim_on(planned.id)
        assert claim is not None
        assert claim.checks[0] == planned.id
        assert event.tries == transition.tries.get(planned.id, 0) + 1 < planned.check.retry.maximum_attempts
        assert may_repeat(planned) or event.outcome.reason == "spawn_failed"
        self._starts[planned.id] = 0
        if event.outcome.reason == "spawn_failed":
            self._begun[planned.id] -= 1

    def _judge_request(self, transition: Transition, event: DecisionRequested) -> None:
        planned = _planned(transition, event.check)
        assert transition.on_manual == "wait"
        assert is_question(planned)
        assert planned.id not in transition.results
        assert planned.id not in transition.awaiting, "nobody is asked twice"
        assert planned.id not in transition.confirmations.declined
        assert planned.check.by == "operator" or not transition.confirmations.cover(planned.id), "it was answered"
        self._require_frontier(transition, planned)
        assert not has_failed(transition), "nobody is asked in vain"
        waits_ms = round(planned.check.timeout * 1000) if planned.check.timeout else 0
        assert event.expires_at == (event.at + waits_ms if waits_ms else 0)

    def _judge_commit(self, run: Run, transition: Transition, event: NodeEntered) -> None:
        assert transition.kind == "goto"
        assert not transition.entered, "a transition commits once"
        assert (run.node, event.node) == (transition.source, transition.target)
        edge = self._runbooks[run.runbook].edge(run.node, event.node)
        assert edge is not None
        demanded = edge.require_evidence
        assert demanded is None or demanded in evidence_given(transition), "no commit without the demanded evidence"
        assert event.entry_id != run.entry_id
        for planned in transition.plan:
            if planned.purpose != "in_hook":
                result = transition.results[planned.id]
                assert result.passed or not planned.check.stops, "what stops a transition has passed"

    def _begin(self, planned: PlannedCheck) -> None:
        self._begun[planned.id] += 1
        self._starts[planned.id] += 1
        assert self._starts[planned.id] <= STARTS_MAX, "what kills its workers is not begun for ever"
        assert self._begun[planned.id] <= 1 or may_repeat(planned), "a hook is begun at most once"

    def _require_frontier(self, transition: Transition, planned: PlannedCheck) -> None:
        """Assert that it is the turn of a check: what stands before it has settled and has not stopped anything."""
        turn = _turn(transition, planned)
        for earlier in transition.plan:
            if _turn(transition, earlier) >= turn:
                continue
            result = transition.results.get(earlier.id)
            assert result is not None, "earlier steps have settled"
            if not result.passed and earlier.check.stops:
                assert earlier.purpose in GATES, "an effect ends with its first failure"
                assert _stage_of(transition, earlier) == _stage_of(transition, planned), (
                    "a failed gate is the last stage"
                )


def _judge_answer(transition: Transition, planned: PlannedCheck, event: CheckSettled) -> None:
    """Assert that a question was settled by whoever may, while it could be, and for no other reason."""
    result, reason = event.result, event.result.outcome.reason
    expires_at = transition.awaiting.get(planned.id)
    if reason == "not_confirmed":
        assert transition.on_manual == "fail" or has_failed(transition), "who waits is answered, unless it is in vain"
    elif reason == "expired":
        assert expires_at is not None
        assert 0 < expires_at <= event.at, "a wait ends when its time is over, and not before"
    elif expires_at is None:
        confirmed = planned.check.by == "anyone" and transition.confirmations.cover(planned.id)
        assert reason == ("confirmed" if confirmed else "rejected")
        assert confirmed or planned.id in transition.confirmations.declined
        assert result.by == transition.by.id
    else:
        assert reason in ("approved", "rejected", "confirmed")
        assert expires_at == 0 or event.at < expires_at, "who decides too late does not decide"
        assert planned.check.by == "anyone" or result.role == "operator", "an operator was asked for"
        assert (reason == "confirmed") <= (result.by == transition.by.id), "only the caller can confirm for itself"


def _judge_state(run: Run, event: Event) -> None:
    """Assert what holds of a run after an event."""
    transition = run.transition
    assert (run.status == "paused") == (run.paused is not None)
    assert (run.status == "waiting") == bool(run.in_flight and run.in_flight.awaiting and not run.paused)
    assert (run.status == "cancelled") == (run.ending is not None and run.in_flight is None)
    assert not run.held or not pending(run), "a held run offers no work"
    assert run.paused is None or run.ending is None
    assert run.ending is None or not (run.in_flight and run.in_flight.awaiting), "a cancelled run asks nobody"
    match event:
        case CheckRetrying():
            assert transition is not None
            assert transition.claim_on(event.check) is None, "a new try needs a new claim"
        case NodeEntered():
            assert not run.attempts, "attempts are counted per entry"
        case TransitionSettled():
            assert transition is not None
            assert not transition.claims
            assert not transition.awaiting
            assert run.in_flight is None
        case _:
            pass


def _judge_steering(run: Run, event: RunPaused | RunUnpaused | RunCancelled) -> None:
    """Assert that a run is only held, let go on or ended where that changes something."""
    match event:
        case RunPaused():
            assert not run.held
            assert run.status != "finished"
        case RunUnpaused():
            assert run.paused is not None
        case RunCancelled():
            assert run.status not in ("finished", "cancelled")
            assert run.ending is None or (event.terminated and not run.ending.terminated), "an end is only hastened"


def _judge_settlement(run: Run, transition: Transition, event: TransitionSettled) -> None:
    cut_off = event.reason == "restarted" or run.ending is not None
    assert not transition.awaiting or event.outcome == "cancelled" or cut_off, "who was asked is not passed over"
    if run.ending is not None and event.reason == run.ending.reason:
        assert not transition.claims or run.ending.terminated, "what is being executed may end first"
    stopping = [
        planned
        for planned in transition.plan
        if planned.check.stops and planned.id in transition.results and not transition.results[planned.id].passed
    ]
    settled = len(transition.results) == len(transition.plan)
    match event.outcome:
        case "committed":
            assert transition.entered or transition.kind != "goto"
            if cut_off and event.reason is not None:
                assert transition.entered
                assert (event.stage, settled) == ("in_hook", False), "what is already true stays true"
                return
            assert settled if event.stage is None else stopping
            assert not stopping or event.stage is not None
        case "blocked":
            assert not transition.entered
            assert stopping or event.stage == "max_attempts"
        case "error":
            assert stopping
            assert event.reason is not None
        case "cancelled":
            assert not transition.entered


def _planned(transition: Transition, check: str) -> PlannedCheck:
    planned = transition.planned(check)
    assert planned is not None
    return planned


def _asks_last(transition: Transition, planned: PlannedCheck) -> bool:
    """Return whether a check is judged in a gate that asks people when everything else is known."""
    return planned.purpose in GATES and transition.on_manual == "wait"


def _turn(transition: Transition, planned: PlannedCheck) -> tuple[int, int, int]:
    """Return when it is the turn of a check: what is smaller comes before, what is equal comes side by side."""
    stage = next(one.step for one in transition.plan if _stage_of(transition, one) == _stage_of(transition, planned))
    if not _asks_last(transition, planned):
        return stage, 0, planned.step
    if is_question(planned):
        return stage, 1, 0
    return stage, 2 if isinstance(planned.check.do, Evidence) else 0, planned.step


def _stage_of(transition: Transition, planned: PlannedCheck) -> str:
    """Return a name that two checks share when they are judged together."""
    if planned.purpose in GATES and transition.order == "guards_first":
        return "gate"
    return "before_transfer" if planned.purpose == "dynamic_before_transfer" else planned.purpose
