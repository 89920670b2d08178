"""Transitions that wait for people: who is asked, when, by whom it is settled, and what counts as evidence."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from statem_dist.decisions import decisions_of
from statem_dist.errors import Conflict, NotAuthorised
from statem_dist.laws import Judge
from statem_dist.protocol.commands import Cancel, Decide, ExpireDecision, Goto, Resume, Save
from statem_dist.protocol.events import CheckSettled, DecisionRequested, Event
from statem_dist.protocol.graph import (
    Check,
    Checklist,
    Edge,
    EvidenceTier,
    LlmReview,
    Manual,
    Message,
    Node,
    StageOrder,
    Steps,
)
from statem_dist.protocol.model import REQUESTS_KEPT, Actor, Confirmations, OnManual
from statem_dist.protocol.progress import waits_for_people
from tests.support.builders import (
    AGENT,
    EPOCH,
    EVERYTHING,
    FAILED,
    NOBODY,
    PASSED,
    Desk,
    failure,
    loop,
    one_by_one,
    shell,
)

ALICE = Actor(id="alice", role="operator")
BOB = Actor(id="bob", role="operator")
ROOT = Actor(id="root", role="admin")
REVIEWER = Actor(id="reviewer", role="reviewer")

SURE = Check(do=Manual("sure?"))
LISTED = Check(do=Checklist(("one", "two")))
RELEASE = Check(do=Manual("release?"), by="operator")
FIRST, SECOND = "before_transfer.0", "before_transfer.1"


def waiting(*checks: Check, edge: Edge | None = None, order: StageOrder = "guards_first", hook: Steps = ()) -> Desk:
    """Return a desk whose ``goto`` has these checks before it and may wait for decisions."""
    desk = Desk(loop(Node("a", before_transfer=one_by_one(*checks), out_hook=hook), edge, order=order))
    attempt(desk)
    return desk


def attempt(desk: Desk, confirmations: Confirmations = NOBODY, on_manual: OnManual = "wait") -> list[Event]:
    """Ask for the transition."""
    return desk.apply(
        Goto(runbook=desk.runbook, target="b", by=AGENT, confirmations=confirmations, on_manual=on_manual)
    )


def verdict(desk: Desk, *, approved: bool, check: str = FIRST, by: Actor = ALICE, comment: str = "") -> list[Event]:
    """Decide on a check of the transition; operators are those with that role, and admins."""
    command = Decide(
        transition=desk.transition.id,
        check=check,
        approved=approved,
        comment=comment,
        by=by,
        operator=by.role in ("operator", "admin"),
    )
    return desk.apply(command)


def requested(events: list[Event]) -> list[str]:
    """Return the checks that people were asked about."""
    return [event.check for event in events if isinstance(event, DecisionRequested)]


# --- who is asked, and when -----------------------------------------------------------------------------------


def test_a_question_that_nobody_answered_waits() -> None:
    """The run is ``waiting``, owes no work to anybody, and its one decision says what it is about."""
    desk = waiting(SURE)
    assert (desk.run.status, desk.run.node, desk.transition.outcome) == ("waiting", "a", None)
    assert desk.offered == []
    assert waits_for_people(desk.run)
    (decision,) = decisions_of(desk.run)
    assert decision.id == "r/t2/before_transfer.0"
    assert (decision.question, decision.source, decision.target) == ("sure?", "a", "b")
    assert (decision.entry_id, decision.spec_hash) == (desk.run.entry_id, desk.run.runbook)
    assert (decision.requested_by, decision.requested_at, decision.expires_at) == (AGENT, EPOCH, 0)


def test_without_waiting_it_fails_as_ever() -> None:
    """``on_manual: fail`` is the default: nobody is asked, and the transition is blocked."""
    desk = Desk(loop(Node("a", before_transfer=one_by_one(SURE))))
    assert requested(attempt(desk, on_manual="fail")) == []
    assert desk.reasons == {FIRST: "not_confirmed"}
    assert decisions_of(desk.run) == []


@pytest.mark.parametrize(
    ("confirmations", "reason", "node"),
    [
        (EVERYTHING, "confirmed", "b"),
        (Confirmations(checks=(FIRST,)), "confirmed", "b"),
        (Confirmations(declined={FIRST: "not yet"}), "rejected", "a"),
        (Confirmations(everything=True, declined={FIRST: "not yet"}), "rejected", "a"),
    ],
)
def test_what_was_answered_is_not_asked(confirmations: Confirmations, reason: str, node: str) -> None:
    """A confirmation or a refusal that came with the request settles the check; a refusal wins over ``--yes``."""
    desk = Desk(loop(Node("a", before_transfer=one_by_one(SURE))))
    assert requested(attempt(desk, confirmations)) == []
    assert (desk.reasons[FIRST], desk.run.node) == (reason, node)


def test_a_refusal_keeps_its_reason() -> None:
    """What is declined names who declined it and why; without a reason, what was declined."""
    desk = Desk(loop(Node("a", before_transfer=one_by_one(SURE, LISTED))))
    attempt(desk, Confirmations(declined={FIRST: "not yet", SECOND: ""}))
    first, second = desk.transition.results[FIRST], desk.transition.results[SECOND]
    assert (first.outcome.output, first.by, first.role) == ("not yet", "agent", "executor")
    assert second.outcome.output == "Declined: one; two"


def test_people_are_asked_last_and_all_at_once() -> None:
    """What machines evaluate comes first, wherever it stands in the gate; then every question is open together."""
    edge = Edge("a", "b", condition=one_by_one(LISTED, shell("two")))
    desk = waiting(SURE, shell("one"), edge=edge)
    assert desk.offered == [(SECOND, "condition.1")]
    assert decisions_of(desk.run) == []
    desk.work(PASSED, PASSED)
    assert list(desk.transition.awaiting) == [FIRST, "condition.0"]
    assert desk.offered == []


def test_nobody_is_asked_in_vain() -> None:
    """After a failure that blocks, the questions of the gate are settled as not confirmed, and nobody hears of them."""
    desk = waiting(SURE, shell())
    desk.work(FAILED)
    assert requested(desk.events) == []
    assert desk.reasons == {FIRST: "not_confirmed", SECOND: "check_failed"}
    assert desk.transition.outcome == "blocked"


def test_a_failure_that_does_not_block_keeps_nobody_from_being_asked() -> None:
    """A check that may fail has no say in whether people are asked."""
    desk = waiting(SURE, replace(shell(), on_failure="continue"))
    desk.work(FAILED)
    assert list(desk.transition.awaiting) == [FIRST]


def test_a_parallel_step_offers_its_commands_and_keeps_its_question() -> None:
    """Beside a question, commands are offered at once, and the question waits for them."""
    desk = Desk(loop(Node("a", before_transfer=((SURE, shell("x"), shell("y")),))))
    attempt(desk)
    assert desk.offered == [(SECOND,), ("before_transfer.2",)]
    desk.work(PASSED)
    assert not desk.transition.awaiting
    desk.work(PASSED)
    assert list(desk.transition.awaiting) == [FIRST]


def test_a_question_in_a_hook_waits_at_its_turn() -> None:
    """Hooks keep their order: what stands before the question has run, what stands behind it has not."""
    desk = waiting(hook=one_by_one(shell("before"), SURE, shell("behind")))
    desk.work(PASSED)
    assert list(desk.transition.awaiting) == ["out_hook.1"]
    assert desk.offered == []
    verdict(desk, approved=True, check="out_hook.1")
    assert desk.offered == [("out_hook.2",)]


def test_a_question_beside_a_hook_that_fails_is_not_asked_any_longer() -> None:
    """In a parallel step of a hook the question is open at once, and over when a sibling fails."""
    desk = waiting(hook=((SURE, shell()),))
    assert list(desk.transition.awaiting) == ["out_hook.0"]
    desk.work(FAILED)
    assert (desk.transition.outcome, desk.transition.stage) == ("blocked", "out_hook")
    assert desk.reasons["out_hook.0"] == "not_confirmed"


@pytest.mark.parametrize("check", [Check(do=Message("look")), replace(SURE, confirm=False)])
def test_what_asks_nothing_does_not_wait(check: Check) -> None:
    """Messages, and what has ``confirmation: none``, pass as ever."""
    assert waiting(check).run.node == "b"


def test_a_review_without_reviewer_does_not_wait() -> None:
    """It is settled by what was confirmed with the request: a worker has asked for its result already."""
    desk = waiting(Check(do=LlmReview("good?")))
    desk.work(failure("no_reviewer"))
    assert desk.reasons == {FIRST: "not_confirmed"}


# --- deciding -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("check", [SURE, LISTED, RELEASE], ids=["manual", "checklist", "operator"])
def test_an_approval_lets_the_transition_go_on(check: Check) -> None:
    """The result is a decision by whoever gave it, with the comment as its output."""
    desk = waiting(check)
    verdict(desk, approved=True, comment="read and tried")
    result = desk.transition.results[FIRST]
    assert (result.passed, result.outcome.reason, result.tier) == (True, "approved", "decision")
    assert (result.by, result.role, result.outcome.output) == ("alice", "operator", "read and tried")
    assert (desk.run.node, desk.run.status) == ("b", "active")


def test_a_rejection_blocks_and_spares_the_other_questions() -> None:
    """One refusal is enough: what else was asked is not confirmed, and no longer listed."""
    desk = waiting(SURE, LISTED)
    verdict(desk, approved=False, comment="no rollback")
    assert desk.reasons == {FIRST: "rejected", SECOND: "not_confirmed"}
    assert (desk.transition.outcome, desk.transition.stage) == ("blocked", "before_transfer")
    assert decisions_of(desk.run) == []


def test_a_rejection_that_may_continue_does_not_block() -> None:
    """``on_failure: continue`` counts for people, too; the other question stays open."""
    desk = waiting(replace(SURE, on_failure="continue"), LISTED)
    verdict(desk, approved=False)
    assert list(desk.transition.awaiting) == [SECOND]
    verdict(desk, approved=True, check=SECOND)
    assert desk.run.node == "b"


def test_a_decision_settles_one_check() -> None:
    """Two questions take two decisions."""
    desk = waiting(SURE, LISTED)
    events = verdict(desk, approved=True, check=SECOND)
    assert [event.check for event in events if isinstance(event, CheckSettled)] == [SECOND]
    assert list(desk.transition.awaiting) == [FIRST]
    assert desk.run.status == "waiting"


def test_what_was_evaluated_is_not_evaluated_again() -> None:
    """After the decision only what follows the gate is owed."""
    desk = waiting(SURE, shell(), hook=one_by_one(shell("hook")))
    desk.work(PASSED)
    verdict(desk, approved=True)
    assert desk.offered == [("out_hook.0",)]
    assert desk.transition.results[SECOND].tries == 1


def test_the_first_decision_wins() -> None:
    """Whoever comes second is told who was first; the same decision by the same person changes nothing."""
    desk = waiting(SURE, LISTED)
    verdict(desk, approved=True)
    assert verdict(desk, approved=True) == []
    with pytest.raises(Conflict, match="as approved by alice"):
        verdict(desk, approved=False, by=BOB)
    with pytest.raises(Conflict, match="as approved by alice"):
        verdict(desk, approved=True, by=BOB)
    with pytest.raises(Conflict, match="as approved by alice"):
        verdict(desk, approved=False)


def test_a_decision_is_bound_to_its_transition() -> None:
    """Another attempt is another question: what was decided on the first one does not count for the second."""
    desk = waiting(SURE)
    first = desk.transition.id
    verdict(desk, approved=False)
    attempt(desk)
    late = Decide(transition=first, check=FIRST, approved=True, comment="", by=ALICE, operator=True)
    with pytest.raises(Conflict, match="not the latest"):
        desk.apply(late)
    assert list(desk.transition.awaiting) == [FIRST]


def test_only_what_is_asked_is_decided() -> None:
    """A check of the plan that asks nothing, one that is not there, and one of a cancelled transition are refused."""
    desk = waiting(SURE, shell())
    for check in (SECOND, FIRST):
        with pytest.raises(Conflict, match="nothing waits for it"):
            verdict(desk, approved=True, check=check)
    with pytest.raises(Conflict):
        verdict(desk, approved=True, check="before_transfer.9")
    desk.work(PASSED)
    desk.apply(Cancel(transition=desk.transition.id, reason="enough", by=AGENT))
    with pytest.raises(Conflict, match="the transition is cancelled"):
        verdict(desk, approved=True)
    assert decisions_of(desk.run) == []


def test_a_caller_that_approves_its_own_transition_has_confirmed_it() -> None:
    """An agent cannot turn its own word into somebody's decision by waiting for itself."""
    desk = waiting(SURE, LISTED)
    verdict(desk, approved=True, by=AGENT)
    verdict(desk, approved=True, check=SECOND, by=AGENT)
    told = [(result.outcome.reason, result.tier) for result in desk.transition.results.values()]
    assert told == [("confirmed", "decision"), ("confirmed", "attestation")]


# --- operators ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("confirmations", [EVERYTHING, Confirmations(checks=(FIRST,))])
def test_no_confirmation_counts_for_an_operator(confirmations: Confirmations) -> None:
    """``by: operator`` is not settled by the caller: it fails and says what to do, or waits."""
    desk = Desk(loop(Node("a", before_transfer=one_by_one(RELEASE))))
    attempt(desk, confirmations, on_manual="fail")
    assert desk.reasons == {FIRST: "not_confirmed"}
    assert "--on-manual wait" in desk.transition.results[FIRST].outcome.output
    attempt(desk, confirmations)
    (decision,) = decisions_of(desk.run)
    assert decision.operator


def test_only_an_operator_decides_what_is_an_operators() -> None:
    """Somebody else is not authorised, and the question stays open."""
    desk = waiting(RELEASE)
    for by in (AGENT, REVIEWER):
        with pytest.raises(NotAuthorised, match="for an operator"):
            verdict(desk, approved=True, by=by)
    assert list(desk.transition.awaiting) == [FIRST]
    verdict(desk, approved=True)
    assert desk.run.node == "b"


@pytest.mark.parametrize("by", [ALICE, ROOT], ids=["operator", "admin"])
def test_the_decision_of_whoever_may_is_lawful(by: Actor) -> None:
    """The judge of histories takes the word of an operator and that of an admin, who may do what an operator may."""
    desk = waiting(RELEASE)
    verdict(desk, approved=True, by=by)
    Judge({desk.runbook.hash: desk.runbook}).see(desk.events)


# --- waits that end -------------------------------------------------------------------------------------------


def test_a_wait_may_expire() -> None:
    """A question with a ``timeout`` is open until then, and fails as ``expired``, which nobody gave."""
    desk = waiting(replace(SURE, timeout=90.0), LISTED)
    expire = ExpireDecision(transition=desk.transition.id, check=FIRST)
    assert desk.transition.awaiting == {FIRST: EPOCH + 90_000, SECOND: 0}
    desk.now += 89_999
    assert desk.apply(expire) == []
    desk.now += 1
    assert desk.apply(expire)
    result = desk.transition.results[FIRST]
    assert (result.outcome.reason, result.by, result.tier) == ("expired", "", "decision")
    assert "sure?" in result.outcome.output
    assert desk.transition.outcome == "blocked"
    assert desk.apply(expire) == []


def test_who_decides_too_late_does_not_decide() -> None:
    """When the time is over a decision is refused, whether or not anybody has noticed that it is over."""
    desk = waiting(replace(SURE, timeout=90.0))
    desk.now += 90_000
    with pytest.raises(Conflict, match="too late"):
        verdict(desk, approved=True)
    desk.apply(ExpireDecision(transition=desk.transition.id, check=FIRST))
    with pytest.raises(Conflict, match="as expired"):
        verdict(desk, approved=True)


def test_what_cannot_be_decided_says_why() -> None:
    """A transition that others have followed, and a check that the transition does not have, are told apart."""
    desk = waiting(SURE)
    with pytest.raises(Conflict, match=r"no check of that id \(waiting there: before_transfer.0\)"):
        verdict(desk, approved=True, check="before_transfer.7")
    for earlier in ("t1", "t9"):
        with pytest.raises(Conflict, match="not the latest one of the run, which is t2"):
            desk.apply(Decide(earlier, FIRST, True, "", ALICE, True))


def test_a_wait_without_a_limit_never_expires() -> None:
    """Without a ``timeout`` the question stays open, however late it is."""
    desk = waiting(SURE)
    desk.now += 10**12
    assert desk.apply(ExpireDecision(transition=desk.transition.id, check=FIRST)) == []
    verdict(desk, approved=True)
    assert desk.run.node == "b"


def test_expiries_of_other_transitions_and_checks_decide_to_nothing() -> None:
    """Late and foreign reminders are no error."""
    desk = waiting(replace(SURE, timeout=1.0), shell())
    desk.now += 5_000
    assert desk.apply(ExpireDecision(transition="t1", check=FIRST)) == []
    assert desk.apply(ExpireDecision(transition=desk.transition.id, check=SECOND)) == []
    desk.work(PASSED)
    assert desk.transition.awaiting[FIRST] == desk.now + 1_000, "the wait begins when somebody is asked"


def test_a_waiting_transition_can_be_cancelled() -> None:
    """Nothing waits any longer, and the run is free."""
    desk = waiting(SURE)
    desk.apply(Cancel(transition=desk.transition.id, reason="enough", by=AGENT))
    assert (desk.transition.outcome, desk.transition.awaiting, desk.run.status) == ("cancelled", {}, "active")


# --- evidence that an edge demands ----------------------------------------------------------------------------


def demanding(tier: EvidenceTier, *checks: Check, order: StageOrder = "guards_first") -> Desk:
    """Return a desk whose edge demands that tier; its transition is asked for, and may wait."""
    return waiting(*checks, edge=Edge("a", "b", require_evidence=tier), order=order)


@pytest.mark.parametrize("order", ["guards_first", "persist_first"])
def test_demanded_evidence_is_on_record_before_the_commit(order: StageOrder) -> None:
    """A command that passed is verified evidence: the edge opens, and the demand says what satisfied it."""
    desk = demanding("verified", shell(), order=order)
    desk.work(PASSED)
    assert desk.run.node == "b"
    assert desk.transition.results["condition.0"].outcome.output == "verified: before_transfer.0"


@pytest.mark.parametrize(
    "check",
    [
        Check(do=Message("look")),
        replace(shell(), on_failure="continue"),
    ],
)
def test_what_could_not_have_blocked_is_no_evidence(check: Check) -> None:
    """Messages are not verified, and a check whose failure would not have mattered proves nothing by passing."""
    desk = demanding("verified", check)
    if desk.run.in_flight:
        desk.work(PASSED)
    assert desk.reasons["condition.0"] == "check_failed"
    assert (desk.transition.outcome, desk.run.node) == ("blocked", "a")
    assert "verified" in desk.transition.results["condition.0"].outcome.output


def test_a_hook_is_no_evidence() -> None:
    """An edge that is judged after the ``out_hook`` does not take its success for a proof."""
    edge = Edge("a", "b", require_evidence="verified")
    desk = waiting(edge=edge, order="persist_first", hook=one_by_one(shell()))
    desk.work(PASSED)
    assert (desk.reasons["condition.0"], desk.run.node) == ("check_failed", "a")


def test_one_demand_does_not_satisfy_another() -> None:
    """That a demand was met is recorded, and is itself no evidence: nothing at all leaves the edge shut."""
    desk = demanding("verified")
    assert desk.reasons == {"condition.0": "check_failed"}


def test_a_demanded_decision_takes_somebody_else() -> None:
    """What the caller confirmed itself is attestation; what somebody approved is a decision."""
    edge = Edge("a", "b", require_evidence="decision")
    desk = Desk(loop(Node("a", before_transfer=one_by_one(SURE)), edge))
    attempt(desk, EVERYTHING, on_manual="fail")
    assert desk.reasons == {FIRST: "confirmed", "condition.0": "check_failed"}
    attempt(desk)
    verdict(desk, approved=True, by=AGENT)
    assert (desk.reasons["condition.0"], desk.run.node) == ("check_failed", "a")
    attempt(desk)
    verdict(desk, approved=True, by=REVIEWER)
    assert (desk.reasons["condition.0"], desk.run.node) == ("passed", "b")


def test_a_confirmed_question_is_an_attestation() -> None:
    """The agent's own word satisfies a demand for its own word, whatever it was asked."""
    desk = Desk(loop(Node("a", before_transfer=one_by_one(SURE)), Edge("a", "b", require_evidence="attestation")))
    attempt(desk, EVERYTHING, on_manual="fail")
    assert desk.run.node == "b"


def test_a_demand_is_judged_after_the_people() -> None:
    """Under a wait the demand is the last of the gate, so that it sees their answers."""
    desk = demanding("decision", SURE, shell())
    desk.work(PASSED)
    assert "condition.0" not in desk.transition.results
    verdict(desk, approved=True)
    assert desk.run.node == "b"


# --- requests that come twice, and for another runbook --------------------------------------------------------


def test_a_repeated_request_is_known_however_many_came_between() -> None:
    """The last sixteen request ids are remembered, of every kind, also when other transitions have followed."""
    desk = Desk(loop(Node("a")))
    asked = [Save(runbook=desk.runbook, by=AGENT, request_id=f"q{number}") for number in range(REQUESTS_KEPT)]
    for command in asked:
        assert desk.apply(command)
    assert all(desk.apply(command) == [] for command in asked)
    assert desk.run.requests["q3"] == "t5"
    desk.apply(Save(runbook=desk.runbook, by=AGENT, request_id="one more"))
    assert len(desk.run.requests) == REQUESTS_KEPT
    assert desk.apply(asked[0]), "what was forgotten is a new request"


def test_requests_without_an_id_are_never_repeats() -> None:
    """Two requests that carry no id are two requests."""
    desk = Desk(loop(Node("a")))
    command = Save(runbook=desk.runbook, by=AGENT)
    assert desk.apply(command)
    assert desk.apply(command)
    assert desk.run.requests == {}


def test_a_command_for_another_version_of_the_runbook_is_refused() -> None:
    """Whoever decided on the old runbook decides anew; a resume is how the new one is taken over."""
    desk = Desk(loop(Node("a")))
    old = desk.runbook
    edited = replace(old, hash="h2")
    desk.apply(Resume(runbook=edited, by=AGENT))
    for command in (Goto(runbook=old, target="b", by=AGENT), Save(runbook=old, by=AGENT)):
        with pytest.raises(Conflict, match="another version of its runbook") as caught:
            desk.apply(command)
        assert caught.value.details["spec_hash"] == "h2"
    assert desk.apply(Goto(runbook=edited, target="b", by=AGENT))
