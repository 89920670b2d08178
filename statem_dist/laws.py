"""The laws of a run: an independent judge of a history, event by event.

The judge does not ask ``walk``, ``pending`` or ``decide`` what is right: it has its own, slower idea of the protocol,
read off the order of the plan, so that a mistake in those is seen from outside. It folds the events as everybody does
(``evolve``), because what the fold gives is compared with what is stored by whoever reads both.

Every law has a short name that stays (``claims_overlap``); scripts and dashboards may count by it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping

from msgspec import Struct

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
from statem_dist.protocol.graph import (
    Checklist,
    Edge,
    Evidence,
    EvidenceTier,
    LlmReview,
    Manual,
    Message,
    Predicate,
    Runbook,
    Unmet,
)
from statem_dist.protocol.model import Place, PlannedCheck, Purpose, Run, Transition

STARTS_MAX = 3
"""How often a check is begun that ends with its worker each time; the judge's own number, not the decider's."""

GATES: frozenset[Purpose] = frozenset({"before_transfer", "dynamic_before_transfer", "condition"})
"""Purposes whose checks are all evaluated, also after a failure."""

HOOKS: frozenset[Purpose] = frozenset({"out_hook", "hook", "in_hook"})
"""Purposes whose commands are executed for their effect."""

REPAIRED: frozenset[Purpose] = frozenset({"out_hook", "hook"})
"""Purposes of hooks whose effect can be taken back: those before the commit."""

OPERATORS = frozenset({"operator", "admin"})
"""Roles whose word settles what is for an operator: whoever is above an operator may do what that may."""

UNFOLDABLE = (AssertionError, AttributeError, LookupError, TypeError, ValueError)
"""What the fold raises for events that make no run."""


class Violation(Struct, frozen=True):
    """One law that a history breaks: in which run, at which event (its number; 0 for none), and how, in a sentence."""

    run: str
    event: int
    law: str
    sentence: str

    def __str__(self) -> str:
        """Return the violation as a line of text."""
        place = f", event {self.event}" if self.event else ""
        return f"{self.run}{place}: {self.law}: {self.sentence}"


class Unlawful(Exception):
    """A history breaks a law; ``violation`` says which, and where."""

    def __init__(self, violation: Violation) -> None:
        super().__init__(str(violation))
        self.violation = violation


class _Broken(Exception):
    def __init__(self, law: str, sentence: str) -> None:
        super().__init__(sentence)
        self.law = law
        self.sentence = sentence


def _require(holds: object, law: str, sentence: str) -> None:
    if not holds:
        raise _Broken(law, sentence)


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
        proves = planned.purpose in GATES and planned.check.stops and not isinstance(planned.check.do, Evidence | Unmet)
        if proves and result is not None and result.passed:
            found.add("attestation" if result.outcome.reason == "confirmed" else result.tier)
    return found


def owes_work(run: Run) -> bool:
    """Return whether a check of an open transition has to be begun that nobody holds."""
    transition = run.in_flight
    if transition is None or transition.exhausted or transition.unknown or run.paused is not None:
        return False
    if transition.unwinding is not None:
        # A hook that is still being executed ends first; its claim is looked after.
        return any(_is_owed(transition, planned) for planned in transition.repairs)
    return run.ending is None and any(_is_owed(transition, planned) for planned in transition.plan)


class Judge:
    """Folds the events of one run and judges each by what came before.

    After a broken law the judge goes on as long as the events can be folded at all (``lost`` is False): one violation
    per event is told, the first.

    Args:
        runbooks: every runbook that the run is ever bound to, by hash.
        run_id: the run, for violations of a history whose first event does not say it.
    """

    def __init__(self, runbooks: Mapping[str, Runbook], run_id: str = "") -> None:
        self.run: Run | None = None
        self.lost = False
        self._run_id = run_id
        self._runbooks = runbooks
        self._seen = 0
        self._tokens = 0
        self._entries: set[str] = set()
        self._begun: Counter[str] = Counter()
        self._starts: Counter[str] = Counter()
        self._to_be_returned: int | None = None
        self._marked: set[str] = set()

    def see(self, events: Iterable[Event]) -> None:
        """Judge events that follow those seen before.

        Raises:
            Unlawful: at the first event that breaks a law.
        """
        for event in events:
            violation = self.judge(event)
            if violation is not None:
                raise Unlawful(violation)

    def judge(self, event: Event, number: int | None = None) -> Violation | None:
        """Judge the event that follows those seen before; return the law that it breaks, or None.

        Nothing is judged any more once the events could not be folded.

        Args:
            event: the event.
            number: its number, where that is not one more than that of the event before.
        """
        if self.lost:
            return None
        self._seen = self._seen + 1 if number is None else number
        before, broken = self.run, None
        try:
            self._judge(before, event)
        except _Broken as found:
            broken = found
        except UNFOLDABLE as error:
            broken = _Broken("no_run", f"it cannot be judged: {_told(error)}")
        try:
            self.run = evolve(before, event)
        except UNFOLDABLE as error:
            self.lost = True
            broken = broken or _Broken("no_run", f"the events make no run any more: {_told(error)}")
        if broken is None and self.run is not None:
            try:
                _judge_state(self.run, event)
            except _Broken as found:
                broken = found
        return None if broken is None else self._violation(broken)

    def _violation(self, broken: _Broken) -> Violation:
        run_id = self.run.id if self.run is not None else self._run_id
        return Violation(run=run_id, event=self._seen, law=broken.law, sentence=f"{broken.sentence}.")

    def _judge(self, run: Run | None, event: Event) -> None:
        if isinstance(event, RunCreated | RunImported):
            _require(run is None, "begins_once", "a run begins once, and it had begun")
            _require(event.run_id, "begins_once", "a run has an id")
            runbook = self._runbook(event.runbook)
            _require(runbook.node(event.node), "node_known", f"the runbook has no node {event.node!r}")
            self._enter(event.entry_id)
            return
        if run is None:
            raise _Broken("begins_once", "the first event of a history creates its run")
        if self._to_be_returned is not None:
            token, self._to_be_returned = self._to_be_returned, None
            returned = isinstance(event, WorkReturned) and event.token == token
            _require(returned, "held_returns_work", "what a held run has not begun is released at once")
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
        if transition is None:
            raise _Broken("settled_is_settled", "no transition is open, and a settled one does not go on")
        _require(
            transition.id == event.transition,
            "settled_is_settled",
            f"it belongs to the transition {event.transition}, and {transition.id} is open",
        )
        if run.held:
            self._judge_while_held(run, transition, event)
        if transition.unwinding is not None:
            _judge_while_unwinding(transition, event)
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
                if claim is None:
                    raise _Broken("claim_live", f"the work of token {event.token} is given back, and nobody holds it")
                self._begun[claim.checks[0]] -= 1
                self._starts[claim.checks[0]] -= 1
            case WorkLost():
                _require(
                    transition.claim(event.token), "claim_live", f"the work of token {event.token} was held by nobody"
                )
            case OutcomeUnknown():
                self._judge_unknown(run, transition, event)
            case Recovered():
                self._judge_recovery(transition, event)
            case RepairBegun():
                self._judge_repair(run, transition, event)
            case NodeEntered():
                self._judge_commit(run, transition, event)
            case TransitionSettled():
                left = run.ending is not None and run.ending.terminated
                if event.reason != "restarted" and not left:
                    self._require_repaired(transition, event)
                _judge_settlement(run, transition, event)

    def _judge_while_held(self, run: Run, transition: Transition, event: Event) -> None:
        """Require that nothing is begun, asked or moved on a run that is paused or was cancelled."""
        match event:
            case WorkClaimed() if run.ending is not None and transition.unwinding is not None:
                # What is taken is judged where it is unwound: repairs, and nothing else.
                pass
            case WorkClaimed() | DecisionRequested() | NodeEntered():
                raise _Broken("held_stands_still", "a run that is paused or was cancelled stands still")
            case OutcomeUnknown():
                _require(run.ending is None, "held_stands_still", "a run that ends asks nobody")
            case CheckRetrying():
                repairs = _planned(transition, event.check).purpose == "repair"
                _require(run.ending is None or repairs, "held_stands_still", "what has ended is not tried again")
            case CheckSettled():
                claim = transition.claim_on(event.check)
                lost = event.result.outcome.reason in ("hook_outcome_unknown", "worker_lost")
                recorded = claim or lost or event.check in transition.awaiting or event.check in transition.unknown
                _require(recorded, "held_stands_still", "a held run records only what was begun or asked")
                if claim is not None and len(claim.checks) > 1:
                    self._to_be_returned = claim.token
            case TransitionSettled() if run.paused is not None:
                cut_off = event.outcome == "cancelled" or event.reason == "restarted"
                complete = event.outcome == "committed" and len(transition.results) == len(transition.plan)
                _require(cut_off or complete or transition.entered, "held_stands_still", "a pause is no end")
            case _:
                pass

    def _judge_restart(self, run: Run, event: RunRestarted) -> None:
        _require(run.in_flight is None, "one_transition", "what was open settles before a restart")
        runbook = self._runbook(event.runbook)
        _require(event.node == runbook.initial, "node_known", "a restart begins on the initial node")
        _require(event.previous == run.runbook, "runbook_known", "it names the runbook that the run followed")
        self._enter(event.entry_id)

    def _judge_rebinding(self, run: Run, event: RunRebound) -> None:
        _require(run.in_flight is None, "one_transition", "a run is not bound anew while a transition is open")
        _require(not run.held, "held_stands_still", "a run that is paused or was cancelled stands still")
        runbook = self._runbook(event.runbook)
        if event.migrated_from is None:
            stays = (event.node, event.entry_id) == (run.node, run.entry_id)
            _require(stays, "moves_by_commit", "a run that is bound anew stays on its node, in its entry")
        else:
            _require(event.migrated_from == run.node, "moves_by_commit", "a run migrates from where it stands")
            _require(runbook.node(run.node) is None, "moves_by_commit", "a run stays on a node that is still there")
            _require(event.node == runbook.initial, "moves_by_commit", "a run migrates to the initial node")
            self._enter(event.entry_id)

    def _judge_opening(self, run: Run, event: TransitionOpened) -> None:
        _require(run.in_flight is None, "one_transition", "a transition opens when none is open")
        _require(not run.held, "held_stands_still", "no transition opens on a run that is paused or was cancelled")
        expected = f"t{run.transitions + 1}"
        _require(event.transition == expected, "transition_numbers", f"the next transition is {expected}")
        _require(event.source == run.node, "moves_by_commit", f"it opens from where the run stands, {run.node!r}")
        foreign = [planned for planned in event.plan if planned.origin and planned.purpose != "dynamic_before_transfer"]
        _require(not foreign, "plan", "only dynamic checks come from an agent")
        _require(len({planned.id for planned in event.plan}) == len(event.plan), "plan", "ids of a plan are unique")
        request = event.request_id
        _require(not request or request not in run.requests, "request_once", "a request opens one transition")
        self._begun.clear()
        self._starts.clear()
        self._marked.clear()
        if event.kind != "goto":
            _require(event.target == run.node, "moves_by_commit", f"a {event.kind} stays where it is")
            return
        edge = self._edge(run, run.node, event.target)
        if edge.max_attempts is not None and event.attempt > edge.max_attempts:
            _require(not event.plan, "attempts", "an attempt too many checks nothing")
            counted = run.attempts.get(event.target, 0)
            _require(counted >= edge.max_attempts, "attempts", "only attempts that were evaluated count")

    def _judge_claim(self, run: Run, transition: Transition, event: WorkClaimed) -> None:
        highest, self._tokens = self._tokens, max(self._tokens, event.token)
        _require(
            event.token > highest,
            "token_rises",
            f"the fencing token {event.token} is not above {highest}, and tokens rise for as long as a run lives",
        )
        _require(event.checks, "claims_overlap", "a claim names what it takes")
        taken = {check for claim in transition.claims for check in claim.checks}
        _require(not taken & set(event.checks), "claims_overlap", "a check is held by one worker at a time")
        planned = [_planned(transition, check) for check in event.checks]
        _require_turn(transition, planned[0])
        for one in planned:
            _require(one.id not in transition.results, "settles_once", f"{one.id} is claimed, and has settled")
            _require(not _decided_by_protocol(one), "claim_of_work", f"{one.id} is nothing that a worker does")
        _require(len({_queue(one, run.place) for one in planned}) == 1, "claim_of_work", "a claim is of one queue")
        if len(planned) > 1:
            working = [one for one in transition.plan if not (_asks_last(transition, one) and is_question(one))]
            first = working.index(planned[0])
            in_order = working[first : first + len(planned)] == planned
            _require(in_order, "claim_of_work", "a claim leaves no check out")
            apart = len({one.step for one in planned}) == len(planned)
            _require(apart, "claim_of_work", "members of a parallel step are claimed one by one")
            stages = {_stage_of(transition, one) for one in planned}
            _require(len(stages) == 1, "claim_of_work", "a claim ends with its stage")
        ready = transition.not_before.get(planned[0].id, 0)
        _require(ready <= event.at, "retry_waits", f"{planned[0].id} is begun before the time of its next try")
        self._begin(planned[0])

    def _judge_result(self, transition: Transition, event: CheckSettled) -> None:
        planned = _planned(transition, event.check)
        _require(planned.id not in transition.results, "settles_once", f"{planned.id} settles once, and had settled")
        _require_turn(transition, planned)
        if is_question(planned):
            _judge_answer(transition, planned, event)
        match planned.check.do:
            case Evidence(tier):
                given = tier in evidence_given(transition)
                _require(event.result.passed == given, "evidence", f"evidence of the tier {tier} is on record or not")
            case Unmet():
                _require(not event.result.passed, "evidence", "what is known to be unmet never passes")
        claim = transition.claim_on(planned.id)
        if claim is not None:
            _require(not _decided_by_protocol(planned), "claim_of_work", "what no worker does is held by none")
            _require(claim.checks[0] == planned.id, "order", "the checks of a claim settle in their order")
            if len(claim.checks) > 1:
                self._begin(_planned(transition, claim.checks[1]))
        else:
            lost = event.result.outcome.reason in ("hook_outcome_unknown", "worker_lost")
            marked = planned.id in self._marked and event.result.tier == "decision"
            _require(
                _decided_by_protocol(planned) or lost or marked,
                "result_of_claim",
                f"{planned.id} settles, and nobody held it",
            )
        unknown = event.result.outcome.reason == "hook_outcome_unknown"
        _require(not unknown or not may_repeat(planned), "unknown", f"{planned.id} could have been executed again")
        decided = planned.id not in transition.unknown or planned.id in self._marked or unknown
        _require(decided, "unknown", f"nobody knows what {planned.id} did, and nobody has said how to go on")

    def _judge_unknown(self, run: Run, transition: Transition, event: OutcomeUnknown) -> None:
        planned = _planned(transition, event.check)
        _require(not may_repeat(planned), "unknown", f"{planned.id} can be executed again")
        _require(planned.check.stops, "unknown", f"{planned.id} stops nothing, whatever it did")
        _require(not planned.check.repair, "unknown", f"{planned.id} is repaired, and nobody is asked")
        _require(self._begun[planned.id] > 0, "unknown", f"{planned.id} was not begun")
        _require(planned.id not in transition.results, "settles_once", f"{planned.id} was settled")
        _require(planned.id not in transition.unknown, "unknown", f"what {planned.id} did was unknown before")
        claim = transition.claim_on(planned.id)
        _require(claim is None or claim.checks[0] == planned.id, "unknown", f"{planned.id} was not begun")

    def _judge_recovery(self, transition: Transition, event: Recovered) -> None:
        _require(event.checks, "recovery", "a recovery is of something")
        for check in event.checks:
            _require(check in transition.unknown, "recovery", f"what {check} did is known, or was never in question")
        if event.way in ("passed", "failed"):
            _require(len(event.checks) == 1, "recovery", "an operator says of one check what came of it")
        if event.way == "resume":
            for check in event.checks:
                self._begun[check] = self._starts[check] = 0
        else:
            self._marked |= set(event.checks)

    def _judge_repair(self, run: Run, transition: Transition, event: RepairBegun) -> None:
        law = "repair"
        _require(not transition.entered, law, "what has committed is not taken back")
        _require(transition.kind in ("goto", "save"), law, f"a {transition.kind} has no hooks that are repaired")
        _require(event.outcome != "committed", law, "what commits is not repaired")
        _require(not transition.unknown, law, "what is unknown is decided before the repairs")
        heard = not transition.awaiting or event.outcome == "cancelled"
        _require(heard, law, "who was asked is not passed over")
        expected = [(hook.id, check) for hook in reversed(self._repairable(transition)) for check in hook.check.repair]
        planned = [(one.repairs, one.check) for one in event.plan]
        _require(planned == expected, law, "what was begun is repaired, the last hook first, and nothing else")
        _require({one.purpose for one in event.plan} == {"repair"}, law, "a repair is one")
        known = {one.id for one in (*transition.plan, *event.plan)}
        _require(len(known) == len(transition.plan) + len(event.plan), "plan", "ids of a plan are unique")

    def _repairable(self, transition: Transition) -> list[PlannedCheck]:
        """Return the hooks with a repair that were begun, in the order of the plan."""
        return [
            planned
            for planned in transition.plan
            if planned.check.repair
            and planned.purpose in REPAIRED
            and (self._begun[planned.id] > 0 or planned.id in transition.results or planned.id in transition.tries)
        ]

    def _require_repaired(self, transition: Transition, event: TransitionSettled) -> None:
        """Require that what does not commit has taken back its hooks, and settles as it began to."""
        law, unwinding = "repair", transition.unwinding
        if unwinding is None:
            committed = event.outcome == "committed" or transition.entered
            _require(committed or not self._repairable(transition), law, "the hooks that were begun are not repaired")
            return
        failed = {one.repairs for one in transition.repairs if _fails(transition, one)}
        for one in transition.repairs:
            done = one.id in transition.results or one.repairs in failed
            _require(done, law, f"{one.id}, the repair of {one.repairs}, is not done")
        if failed:
            _require((event.outcome, event.reason) == ("error", "repair_failed"), law, "a repair has failed")
        else:
            as_begun = (event.outcome, event.stage, event.reason) == (
                unwinding.outcome,
                unwinding.stage,
                unwinding.reason,
            )
            _require(as_begun, law, "it settles otherwise than it began to")

    def _judge_retry(self, transition: Transition, event: CheckRetrying) -> None:
        planned = _planned(transition, event.check)
        claim = transition.claim_on(planned.id)
        if claim is None or claim.checks[0] != planned.id:
            raise _Broken("result_of_claim", f"{planned.id} is to be tried again, and nobody was executing it")
        next_try = transition.tries.get(planned.id, 0) + 1
        _require(event.tries == next_try, "retry_counts", f"this was try {next_try}, not {event.tries}")
        _require(event.tries < planned.check.retry.maximum_attempts, "retry_counts", "the tries were used up")
        repeats = may_repeat(planned) or event.outcome.reason == "spawn_failed"
        _require(repeats, "effect_once", "a hook is not tried again, unless it never began")
        self._starts[planned.id] = 0
        if event.outcome.reason == "spawn_failed":
            self._begun[planned.id] -= 1

    def _judge_request(self, transition: Transition, event: DecisionRequested) -> None:
        planned = _planned(transition, event.check)
        _require(transition.on_manual == "wait", "asks_rightly", "the caller did not want to wait for anybody")
        _require(is_question(planned), "asks_rightly", f"{planned.id} is no question")
        _require(planned.id not in transition.results, "settles_once", f"{planned.id} was settled")
        _require(planned.id not in transition.awaiting, "asks_rightly", "nobody is asked twice")
        _require(planned.id not in transition.confirmations.declined, "asks_rightly", "the caller has declined it")
        answered = planned.check.by != "operator" and transition.confirmations.cover(planned.id)
        _require(not answered, "asks_rightly", "the caller has confirmed it")
        _require_turn(transition, planned)
        _require(not has_failed(transition), "asks_rightly", "nobody is asked in vain")
        waits_ms = round(planned.check.timeout * 1000) if planned.check.timeout else 0
        expected = event.at + waits_ms if waits_ms else 0
        _require(event.expires_at == expected, "asks_rightly", "a wait is as long as the check says")

    def _judge_commit(self, run: Run, transition: Transition, event: NodeEntered) -> None:
        _require(transition.kind == "goto", "moves_by_commit", f"a {transition.kind} moves no run")
        _require(not transition.entered, "commits_once", "a transition commits once, and it had committed")
        way = (run.node, event.node) == (transition.source, transition.target)
        _require(way, "moves_by_commit", "a commit leads from the source of its transition to the target")
        demanded = self._edge(run, run.node, event.node).require_evidence
        given = demanded is None or demanded in evidence_given(transition)
        _require(given, "evidence", f"the edge demands evidence of the tier {demanded}, and there is none")
        for planned in transition.plan:
            if planned.purpose == "in_hook":
                continue
            result = transition.results.get(planned.id)
            if result is None:
                raise _Broken("checked_before_commit", f"the run moved before {planned.id} had settled")
            passed = result.passed or not planned.check.stops
            _require(passed, "checked_before_commit", f"the run moved although {planned.id} had not passed")
        self._enter(event.entry_id)

    def _begin(self, planned: PlannedCheck) -> None:
        self._begun[planned.id] += 1
        self._starts[planned.id] += 1
        few = self._starts[planned.id] <= STARTS_MAX
        _require(few, "starts_bounded", f"{planned.id} ended with its worker {STARTS_MAX} times and is begun again")
        once = self._begun[planned.id] <= 1 or may_repeat(planned)
        _require(once, "effect_once", f"the hook {planned.id} is begun a second time")

    def _enter(self, entry_id: str) -> None:
        _require(entry_id not in self._entries, "entry_is_new", f"the entry {entry_id} is not new")
        self._entries.add(entry_id)

    def _runbook(self, digest: str) -> Runbook:
        found = self._runbooks.get(digest)
        if found is None:
            raise _Broken("runbook_known", f"the runbook {digest} that the run follows is missing, or cannot be read")
        return found

    def _edge(self, run: Run, source: str, target: str) -> Edge:
        edge = self._runbook(run.runbook).edge(source, target)
        if edge is None:
            raise _Broken("edge_known", f"the runbook has no edge from {source!r} to {target!r}")
        return edge


def _require_turn(transition: Transition, planned: PlannedCheck) -> None:
    """Require that it is the turn of a check: what stands before it has settled and has not stopped anything."""
    if planned.purpose == "repair":
        _require_repair_turn(transition, planned)
        return
    turn = _turn(transition, planned)
    for earlier in transition.plan:
        if _turn(transition, earlier) >= turn:
            continue
        result = transition.results.get(earlier.id)
        if result is None:
            raise _Broken("order", f"{earlier.id} stands before {planned.id} and has not settled")
        if not result.passed and earlier.check.stops:
            _require(earlier.purpose in GATES, "order", f"{planned.id} comes after {earlier.id}, which has failed")
            same_stage = _stage_of(transition, earlier) == _stage_of(transition, planned)
            _require(same_stage, "order", f"{planned.id} comes after the gate of {earlier.id}, which has failed")


def _fails(transition: Transition, planned: PlannedCheck) -> bool:
    result = transition.results.get(planned.id)
    return result is not None and not result.passed and planned.check.stops


def _require_repair_turn(transition: Transition, planned: PlannedCheck) -> None:
    """Require that it is the turn of a repair: those before it are through, and its own hook's have not failed."""
    earlier = transition.repairs[: transition.repairs.index(planned)]
    failed = {one.repairs for one in earlier if _fails(transition, one)}
    _require(planned.repairs not in failed, "repair", f"an earlier repair of {planned.repairs} has failed")
    for one in earlier:
        done = one.id in transition.results or one.repairs in failed
        _require(done, "repair", f"{one.id} comes before {planned.id} and has not settled")


def _judge_while_unwinding(transition: Transition, event: Event) -> None:
    """Require that nothing but repairs is begun once the hooks of a transition are being repaired."""
    match event:
        case NodeEntered() | DecisionRequested() | OutcomeUnknown() | Recovered() | RepairBegun():
            raise _Broken("repair", "a transition that is being repaired only settles")
        case WorkClaimed():
            _require(not transition.claims, "repair", "repairs run one by one, after what was still being executed")
            _require(len(event.checks) == 1, "repair", "repairs are claimed one by one")
            planned = _planned(transition, event.checks[0])
            _require(planned.purpose == "repair", "repair", f"{planned.id} is begun while hooks are being repaired")
        case CheckRetrying():
            planned = _planned(transition, event.check)
            _require(planned.purpose == "repair", "repair", f"{planned.id} is tried again, and it is being taken back")
        case _:
            pass


def _judge_answer(transition: Transition, planned: PlannedCheck, event: CheckSettled) -> None:
    """Require that a question was settled by whoever may, while it could be, and for no other reason."""
    result, reason = event.result, event.result.outcome.reason
    expires_at = transition.awaiting.get(planned.id)
    passed = reason in ("confirmed", "approved")
    _require(result.passed == passed, "answers", f"the answer is {reason}, and the result does not say so")
    if reason == "not_confirmed":
        in_vain = transition.on_manual == "fail" or has_failed(transition)
        _require(in_vain, "answers", "who waits is answered, unless it is in vain")
    elif reason == "expired":
        over = expires_at is not None and 0 < expires_at <= event.at
        _require(over, "answers", "a wait ends when its time is over, and not before")
    elif expires_at is None:
        confirmed = planned.check.by == "anyone" and transition.confirmations.cover(planned.id)
        expected = "confirmed" if confirmed else "rejected"
        _require(reason == expected, "answers", f"nobody was asked, and the caller's word means {expected}")
        said = confirmed or planned.id in transition.confirmations.declined
        _require(said, "answers", "nobody has answered")
        _require(result.by == transition.by.id, "answers", "only the caller can have answered")
    else:
        decided = reason in ("approved", "rejected", "confirmed")
        _require(decided, "answers", f"{reason} is no answer of somebody who was asked")
        in_time = expires_at == 0 or event.at < expires_at
        _require(in_time, "answers", "who decides too late does not decide")
        may = planned.check.by == "anyone" or result.role in OPERATORS
        _require(may, "answers", "an operator was asked for")
        own = reason != "confirmed" or result.by == transition.by.id
        _require(own, "answers", "only the caller can confirm for itself")


def _judge_state(run: Run, event: Event) -> None:
    """Require what holds of a run after an event."""
    transition = run.transition
    asks = bool(run.in_flight and run.in_flight.awaiting)
    unknown = bool(run.in_flight and run.in_flight.unknown)
    _require((run.status == "paused") == (run.paused is not None), "status", "a run is paused or not")
    waits = asks and not unknown and not run.paused
    _require((run.status == "waiting") == waits, "status", "a run waits for people or not")
    stands = unknown and not run.paused
    _require((run.status == "outcome_unknown") == stands, "status", "an outcome is unknown or not")
    _require(not unknown or _claimless(run), "status", "what is of unknown outcome is held by nobody")
    at_its_end = run.ending is not None and run.in_flight is None
    _require((run.status == "cancelled") == at_its_end, "status", "a run is cancelled or not")
    _require(run.paused is None or run.ending is None, "status", "a cancelled run is not paused")
    _require(run.ending is None or not asks, "status", "a cancelled run asks nobody")
    match event:
        case CheckRetrying():
            held = transition is not None and transition.claim_on(event.check) is not None
            _require(not held, "result_of_claim", "a new try needs a new claim")
        case NodeEntered():
            _require(not run.attempts, "attempts", "attempts are counted per entry")
        case TransitionSettled():
            at_rest = transition is not None and not (transition.claims or transition.awaiting or transition.unknown)
            _require(at_rest, "settled_is_settled", "a settled transition holds no work and asks nobody")
            _require(run.in_flight is None, "settled_is_settled", "a settled transition is not open")
        case _:
            pass


def _claimless(run: Run) -> bool:
    transition = run.in_flight
    return transition is None or not any(transition.claim_on(check) for check in transition.unknown)


def _judge_steering(run: Run, event: RunPaused | RunUnpaused | RunCancelled) -> None:
    """Require that a run is only held, let go on or ended where that changes something."""
    match event:
        case RunPaused():
            _require(not run.held, "steering", "a run is paused that was paused or cancelled")
            _require(run.status != "finished", "steering", "a finished run is not paused")
        case RunUnpaused():
            _require(run.paused is not None, "steering", "a run goes on that was not paused")
        case RunCancelled():
            _require(not run.ended, "steering", "a run is cancelled that has ended")
            hastened = run.ending is None or (event.terminated and not run.ending.terminated)
            _require(hastened, "steering", "an end is only hastened")


def _judge_settlement(run: Run, transition: Transition, event: TransitionSettled) -> None:
    law = "settlement"
    cut_off = event.reason == "restarted" or run.ending is not None
    heard = not transition.awaiting or event.outcome == "cancelled" or cut_off
    _require(heard, law, "who was asked is not passed over")
    if run.ending is not None and event.reason == run.ending.reason:
        may_end = not transition.claims or run.ending.terminated
        _require(may_end, law, "what is being executed may end first")
    stopping = [
        planned
        for planned in transition.plan
        if planned.check.stops and planned.id in transition.results and not transition.results[planned.id].passed
    ]
    settled = all(planned.id in transition.results for planned in transition.plan)
    match event.outcome:
        case "committed":
            _require(transition.entered or transition.kind != "goto", law, "it is committed, and the run has not moved")
            if cut_off and event.reason is not None:
                _require(transition.entered, law, "it is committed, and the run has not moved")
                _require((event.stage, settled) == ("in_hook", False), law, "what is already true stays true")
                return
            if event.stage is None:
                _require(settled, law, "it is committed, and not all of its checks have settled")
                _require(not stopping, law, "it is committed without a failure, and one of its checks has failed")
            else:
                _require(stopping, law, "it names a stage that failed, and nothing has failed")
        case "blocked":
            _require(not transition.entered, law, "it is blocked, and the run has moved")
            _require(stopping or event.stage == "max_attempts", law, "it is blocked, and nothing has failed")
        case "error":
            failed = stopping or event.reason == "repair_failed"
            _require(failed, law, "it is an error, and nothing has failed")
            _require(event.reason is not None, law, "an error has a reason")
        case "cancelled":
            _require(not transition.entered, law, "it is cancelled, and the run has moved")


def _told(error: Exception) -> str:
    return f"{type(error).__name__} {error}".strip()


def _planned(transition: Transition, check: str) -> PlannedCheck:
    planned = transition.planned(check)
    if planned is None:
        raise _Broken("plan", f"the plan of {transition.id} has no check {check}")
    return planned


def _is_owed(transition: Transition, planned: PlannedCheck) -> bool:
    taken = planned.id in transition.results or planned.id in transition.awaiting or transition.claim_on(planned.id)
    if taken or _decided_by_protocol(planned):
        return False
    try:
        _require_turn(transition, planned)
    except _Broken:
        return False
    return True


def _decided_by_protocol(planned: PlannedCheck) -> bool:
    """Return whether no worker executes a check: it is shown, asked, or looked up."""
    return isinstance(planned.check.do, Message | Manual | Checklist | Unmet | Evidence)


def _queue(planned: PlannedCheck, place: Place) -> str:
    """Return what two checks share that may be in one claim."""
    if place.queue is not None:
        return place.queue
    return "reviews" if isinstance(planned.check.do, LlmReview) else "others"


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
