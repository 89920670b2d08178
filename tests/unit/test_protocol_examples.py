"""The rules of a transition, one readable example each."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from statem_dist.errors import Conflict, TransitionInFlight, UnknownTarget
from statem_dist.protocol.commands import Cancel, ClaimWork, ExpireClaim, Recover, Resume, ReturnWork, Start
from statem_dist.protocol.decide import STARTS_MAX, decide
from statem_dist.protocol.events import (
    CheckRetrying,
    CheckSettled,
    NodeEntered,
    RunRebound,
    TransitionOpened,
    TransitionSettled,
    WorkClaimed,
)
from statem_dist.protocol.evolve import replay
from statem_dist.protocol.graph import (
    Check,
    Checklist,
    Edge,
    LlmReview,
    Manual,
    Message,
    Node,
    Predicate,
    Retry,
    Runbook,
)
from statem_dist.protocol.model import Actor, Confirmations, Worker
from statem_dist.protocol.outcome import INFRASTRUCTURE, Outcome, Reason
from statem_dist.protocol.progress import CHECKS_QUEUE, REVIEWS_QUEUE, pending
from tests.support.builders import (
    AGENT,
    EPOCH,
    EVERYTHING,
    FAILED,
    NOBODY,
    PASSED,
    PLACE,
    WORKER,
    Desk,
    failure,
    loop,
    one_by_one,
    shell,
)

# --- stages ---------------------------------------------------------------------------------------------------


def test_gates_are_evaluated_to_the_end() -> None:
    """Every check of the gates is evaluated after a failure, the condition included; no hook is begun."""
    gates = one_by_one(shell("one"), shell("two"))
    edge = Edge("a", "b", condition=one_by_one(shell("three")), hook=one_by_one(shell("never")))
    desk = Desk(loop(Node("a", before_transfer=gates, out_hook=one_by_one(shell("never"))), edge))
    desk.goto()
    assert desk.offered == [("before_transfer.0", "before_transfer.1", "condition.0")]
    desk.work(FAILED, PASSED, FAILED)
    assert desk.reasons == {
        "before_transfer.0": "check_failed",
        "before_transfer.1": "passed",
        "condition.0": "check_failed",
    }
    assert (desk.transition.outcome, desk.transition.stage, desk.run.node) == ("blocked", "before_transfer", "a")


def test_condition_failure_is_reported_under_before_transfer_with_guards_first() -> None:
    """Judged together with ``before_transfer``, a failed condition is reported under that name, as StateM does."""
    desk = Desk(loop(Node("a"), Edge("a", "b", condition=one_by_one(shell()))))
    desk.goto()
    desk.work(FAILED)
    assert desk.transition.stage == "before_transfer"


@pytest.mark.parametrize("purpose", ["out_hook", "hook"])
def test_effects_stop_at_the_first_failure(purpose: str) -> None:
    """After a hook item has failed, the next one is not begun, and an outcome reported for it is not taken."""
    steps = one_by_one(shell("one"), shell("two"))
    node, edge = Node("a"), Edge("a", "b")
    if purpose == "out_hook":
        node = replace(node, out_hook=steps)
    else:
        edge = replace(edge, hook=steps)
    desk = Desk(loop(node, edge))
    desk.goto()
    assert desk.offered == [(f"{purpose}.0", f"{purpose}.1")]
    desk.work(FAILED, PASSED)
    assert list(desk.reasons) == [f"{purpose}.0"]
    assert (desk.transition.outcome, desk.transition.stage, desk.run.node) == ("blocked", "out_hook", "a")


def test_a_failure_that_may_continue_does_not_stop_an_effect() -> None:
    """``on_failure: continue`` keeps the failure in the results and lets the run move."""
    steps = one_by_one(*(replace(shell(), on_failure="continue") for _ in range(2)), shell())
    desk = Desk(loop(Node("a", out_hook=steps)))
    desk.goto()
    desk.work(FAILED, FAILED, PASSED)
    assert desk.run.node == "b"
    assert desk.transition.outcome == "committed"
    assert desk.transition.stage is None
    assert list(desk.reasons.values()) == ["check_failed", "check_failed", "passed"]


def test_guards_first_order() -> None:
    """Gates, then the node's ``out_hook``, the edge's ``hook``, the commit, the target's ``in_hook``."""
    node = Node("a", before_transfer=one_by_one(shell()), out_hook=one_by_one(shell()))
    edge = Edge("a", "b", condition=one_by_one(shell()), hook=one_by_one(shell()))
    desk = Desk(loop(node, edge, in_hook=one_by_one(shell())))
    order: list[tuple[str, ...]] = []
    desk.goto()
    while desk.run.in_flight:
        order += desk.offered
        desk.work(*[PASSED] * len(desk.offered[0]))
    assert order == [("before_transfer.0", "condition.0"), ("out_hook.0",), ("hook.0",), ("in_hook.0",)]


def test_persist_first_order() -> None:
    """With ``persist_first`` the ``out_hook`` runs before the edge is judged, and the condition is its own stage."""
    node = Node("a", before_transfer=one_by_one(shell()), out_hook=one_by_one(shell()))
    edge = Edge("a", "b", condition=one_by_one(shell()), hook=one_by_one(shell()))
    desk = Desk(loop(node, edge, order="persist_first"))
    desk.goto()
    desk.work(PASSED)
    assert desk.offered == [("out_hook.0",)]
    desk.work(PASSED)
    assert desk.offered == [("condition.0",)]
    desk.work(FAILED)
    assert (desk.transition.outcome, desk.transition.stage) == ("blocked", "condition")


def test_commit_comes_between_hooks_and_in_hook() -> None:
    """The run stands on the target, with a new entry, while the target's ``in_hook`` is still owed."""
    desk = Desk(loop(Node("a"), in_hook=one_by_one(shell())))
    entry = desk.run.entry_id
    desk.goto()
    assert (desk.run.node, desk.run.status) == ("b", "moving")
    assert desk.run.entry_id != entry
    desk.work(FAILED)
    assert (desk.transition.outcome, desk.transition.stage, desk.run.node) == ("committed", "in_hook", "b")


def test_a_goto_with_nothing_to_check_is_one_decision() -> None:
    """Without checks one command opens, commits and settles."""
    desk = Desk(loop(Node("a")))
    assert [type(event) for event in desk.goto()] == [TransitionOpened, NodeEntered, TransitionSettled]


def test_start_reports_a_failing_in_hook_and_the_run_exists() -> None:
    """A failing ``in_hook`` of the initial node leaves the run where it is: started, and told so."""
    desk = Desk(loop(Node("a", in_hook=one_by_one(shell()))))
    desk.work(FAILED)
    assert (desk.transition.kind, desk.transition.outcome, desk.transition.stage) == ("start", "committed", "in_hook")
    assert desk.run.status == "active"


def test_a_node_without_exits_finishes_the_run() -> None:
    """A run on a node that no edge leaves is finished, whatever the node is called."""
    runbook = Runbook(hash="h", name="n", initial="a", nodes=(Node("a"), Node("b")), edges=(Edge("a", "b"),))
    desk = Desk(runbook)
    statuses = [desk.run.status]
    desk.goto()
    assert [*statuses, desk.run.status] == ["active", "finished"]


# --- questions ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("check", "confirmations", "passed", "reason", "tier"),
    [
        (Check(do=Message("hello")), NOBODY, True, "shown", "attestation"),
        (Check(do=Manual("sure?")), NOBODY, False, "not_confirmed", "decision"),
        (Check(do=Manual("sure?")), EVERYTHING, True, "confirmed", "decision"),
        (Check(do=Manual("sure?")), Confirmations(checks=("before_transfer.0",)), True, "confirmed", "decision"),
        (Check(do=Manual("sure?")), Confirmations(checks=("before_transfer.1",)), False, "not_confirmed", "decision"),
        (Check(do=Manual("sure?"), confirm=False), NOBODY, True, "not_asked", "attestation"),
        (Check(do=Checklist(("x", "y"))), NOBODY, False, "not_confirmed", "attestation"),
        (Check(do=Checklist(("x", "y"))), EVERYTHING, True, "confirmed", "attestation"),
        (Check(do=Checklist(("x", "y")), confirm=False), NOBODY, True, "not_asked", "attestation"),
    ],
)
def test_questions_are_settled_without_a_worker(
    check: Check, confirmations: Confirmations, passed: bool, reason: str, tier: str
) -> None:
    """Messages pass; manual checks and checklists pass when confirmed, or when the runbook asks for nothing."""
    desk = Desk(loop(Node("a", before_transfer=one_by_one(check))))
    desk.goto(confirmations=confirmations)
    result = desk.transition.results["before_transfer.0"]
    assert (result.passed, result.outcome.reason, result.tier) == (passed, reason, tier)
    assert desk.run.node == ("b" if passed else "a")


def test_a_confirmation_names_who_gave_it() -> None:
    """The result of a confirmed check carries the agent and its role; an unconfirmed one says what was asked."""
    desk = Desk(loop(Node("a", before_transfer=one_by_one(Check(do=Checklist(("x", "y"), "Did you"))))))
    desk.goto()
    refused = desk.transition.results["before_transfer.0"]
    assert "Did you: x; y" in refused.outcome.output
    assert refused.by == ""
    desk.goto(confirmations=EVERYTHING)
    given = desk.transition.results["before_transfer.0"]
    assert (given.by, given.role) == ("agent", "executor")


@pytest.mark.parametrize(("confirmations", "reason"), [(NOBODY, "not_confirmed"), (EVERYTHING, "confirmed")])
def test_a_review_without_reviewer_becomes_a_question(confirmations: Confirmations, reason: str) -> None:
    """``no_reviewer`` is settled by the caller's confirmation: a decision, no judgment, and it is not tried again."""
    retry = Retry(maximum_attempts=5, on=("infrastructure", "failed"))
    desk = Desk(loop(Node("a", before_transfer=one_by_one(Check(do=LlmReview("good?"), retry=retry)))))
    desk.goto(confirmations=confirmations)
    desk.work(failure("no_reviewer"))
    result = desk.transition.results["before_transfer.0"]
    assert (result.outcome.reason, result.tier) == (reason, "decision")
    assert "good?" in result.outcome.output
    assert result.outcome.output.startswith("No reviewer is configured"), "also where it was confirmed"


@pytest.mark.parametrize(
    ("check", "tier"),
    [
        (shell(), "verified"),
        (Check(do=Predicate("f", exists=True)), "verified"),
        (Check(do=LlmReview("?")), "judgment"),
    ],
)
def test_executed_checks_carry_their_tier_and_worker(check: Check, tier: str) -> None:
    """What a worker evaluated says how strong it is as evidence, and which worker that was."""
    desk = Desk(loop(Node("a", before_transfer=one_by_one(check))))
    desk.goto()
    desk.work(PASSED)
    result = desk.transition.results["before_transfer.0"]
    assert (result.tier, result.by, result.tries) == (tier, WORKER.id, 1)


# --- what was not evaluated -----------------------------------------------------------------------------------


@pytest.mark.parametrize("reason", sorted(INFRASTRUCTURE - {"hook_outcome_unknown", "worker_lost"}))
def test_infrastructure_failures_alone_are_an_error(reason: Reason) -> None:
    """Where nothing said that the work was wrong, the transition ends in ``error`` and names the reason."""
    check = replace(shell(), retry=Retry(maximum_attempts=1))
    desk = Desk(loop(Node("a", before_transfer=one_by_one(check, shell()))))
    desk.goto()
    desk.work(failure(reason), PASSED)
    assert (desk.transition.outcome, desk.transition.reason) == ("error", reason)
    assert desk.transition.stage == "before_transfer"
    assert desk.run.node == "a"


def test_one_real_failure_blocks_whatever_else_could_not_be_evaluated() -> None:
    """With a real failure among infrastructure failures the answer is ``blocked``."""
    check = replace(shell(), retry=Retry(maximum_attempts=1))
    desk = Desk(loop(Node("a", before_transfer=one_by_one(check, shell()))))
    desk.goto()
    desk.work(failure("spawn_failed"), FAILED)
    assert (desk.transition.outcome, desk.transition.reason) == ("blocked", None)


@pytest.mark.parametrize(
    ("purpose", "idempotent", "unknown"),
    [
        ("before_transfer", None, False),
        ("before_transfer", True, False),
        ("before_transfer", False, True),
        ("out_hook", None, True),
        ("out_hook", True, False),
        ("out_hook", False, True),
    ],
)
def test_what_must_not_run_twice_is_unknown_after_its_worker_was_lost(
    purpose: str, idempotent: bool | None, unknown: bool
) -> None:
    """A lost check is offered again, a lost hook is not, unless ``idempotent`` says otherwise."""
    steps = one_by_one(replace(shell(), idempotent=idempotent))
    node = Node("a", before_transfer=steps) if purpose == "before_transfer" else Node("a", out_hook=steps)
    desk = Desk(loop(node))
    desk.goto()
    token = desk.claim()
    desk.apply(ExpireClaim(transition=desk.transition.id, token=token))
    if unknown:
        assert list(desk.transition.unknown) == [f"{purpose}.0"]
        assert (desk.run.status, desk.offered, desk.reasons) == ("outcome_unknown", [], {})
    else:
        assert desk.offered == [(f"{purpose}.0",)]


def test_a_lost_predicate_hook_is_offered_again() -> None:
    """A predicate has no effect, so that it may be evaluated again wherever it stands."""
    desk = Desk(loop(Node("a", out_hook=one_by_one(Check(do=Predicate("f", exists=True))))))
    desk.goto()
    desk.apply(ExpireClaim(transition=desk.transition.id, token=desk.claim()))
    assert desk.offered == [("out_hook.0",)]


def test_only_the_check_that_was_begun_is_unknown() -> None:
    """Of a lost batch of hooks, those behind the one that ran were never begun: they may still run."""
    steps = one_by_one(replace(shell(), on_failure="continue"), shell("two"))
    desk = Desk(loop(Node("a", out_hook=steps)))
    desk.goto()
    desk.apply(ExpireClaim(transition=desk.transition.id, token=desk.claim()))
    assert desk.reasons == {"out_hook.0": "hook_outcome_unknown"}
    assert desk.offered == [("out_hook.1",)]
    desk.work(PASSED)
    assert desk.run.node == "b"


def test_what_kills_its_workers_is_given_up() -> None:
    """After ``STARTS_MAX`` lost workers in a row the check itself is taken for the cause."""
    desk = Desk(loop(Node("a", before_transfer=one_by_one(shell()))))
    desk.goto()
    for _ in range(STARTS_MAX):
        assert desk.run.in_flight
        desk.apply(ExpireClaim(transition=desk.transition.id, token=desk.claim()))
    assert desk.reasons == {"before_transfer.0": "worker_lost"}
    assert desk.transition.outcome == "error"


def test_work_that_is_returned_costs_nothing() -> None:
    """A worker that is shut down gives its claim back as often as it likes; also a hook that was not begun."""
    desk = Desk(loop(Node("a", out_hook=one_by_one(shell()))))
    desk.goto()
    for _ in range(STARTS_MAX + 1):
        desk.apply(ReturnWork(transition=desk.transition.id, token=desk.claim()))
    assert desk.transition.starts == {"out_hook.0": 0}
    desk.work(PASSED)
    assert desk.run.node == "b"


# --- another try ----------------------------------------------------------------------------------------------


def test_retry_intervals_grow_to_their_cap() -> None:
    """The interval is multiplied each time, and never longer than ``maximum_interval``."""
    retry = Retry(
        maximum_attempts=5,
        initial_interval=1.0,
        backoff_coefficient=3.0,
        maximum_interval=10.0,
        on=("failed",),
    )
    desk = Desk(loop(Node("a", before_transfer=one_by_one(replace(shell(), retry=retry)))))
    desk.goto()
    intervals: list[int] = []
    for _ in range(4):
        desk.record(desk.claim(), FAILED)
        batch = pending(desk.run)[0]
        intervals.append(batch.not_before - desk.now)
        early = ClaimWork(transition=batch.transition, check=batch.checks[0], worker=WORKER)
        assert desk.apply(early) == [], "nobody gets it before its time"
        desk.now = batch.not_before
    assert intervals == [1000, 3000, 9000, 10_000]
    desk.work(FAILED)
    assert desk.transition.outcome == "blocked"
    assert desk.transition.results["before_transfer.0"].tries == 5


@pytest.mark.parametrize(("jitter", "interval"), [(0.0, 2000), (0.5, 2200), (0.999, 2400)])
def test_jitter_only_prolongs(jitter: float, interval: int) -> None:
    """The random part of an interval is a fraction of it, added, so that a herd comes apart."""
    retry = Retry(initial_interval=2.0, jitter=0.2)
    desk = Desk(loop(Node("a", before_transfer=one_by_one(replace(shell(), retry=retry)))))
    desk.goto()
    desk.record(desk.claim(), failure("spawn_failed"), jitter=jitter)
    assert pending(desk.run)[0].not_before == EPOCH + interval


@pytest.mark.parametrize(
    ("reason", "on", "again"),
    [
        ("check_failed", ("infrastructure",), False),
        ("check_failed", ("failed",), True),
        ("config_error", ("failed",), True),
        ("signal", ("failed",), True),
        ("timed_out", ("failed",), False),
        ("timed_out", ("timed_out",), True),
        ("spawn_failed", ("infrastructure",), True),
        ("spawn_failed", ("failed", "timed_out"), False),
        ("reviewer_unavailable", ("infrastructure",), True),
        ("cancelled", ("infrastructure", "failed", "timed_out"), False),
    ],
)
def test_what_is_tried_again(reason: Reason, on: tuple[str, ...], again: bool) -> None:
    """Only outcomes that the runbook names are tried again; a cancelled check never is."""
    retry = Retry(on=on)  # type: ignore[arg-type]
    desk = Desk(loop(Node("a", before_transfer=one_by_one(replace(shell(), retry=retry)))))
    desk.goto()
    events = desk.record(desk.claim(), failure(reason))
    assert isinstance(events[0], CheckRetrying if again else CheckSettled)


@pytest.mark.parametrize(("reason", "again"), [("check_failed", False), ("timed_out", False), ("spawn_failed", True)])
def test_a_hook_is_tried_again_only_if_it_did_not_begin(reason: Reason, again: bool) -> None:
    """A hook that ran is not repeated, whatever its retry policy says; one that could not be spawned is."""
    retry = Retry(on=("infrastructure", "failed", "timed_out"))
    desk = Desk(loop(Node("a", out_hook=one_by_one(replace(shell(), retry=retry)))))
    desk.goto()
    events = desk.record(desk.claim(), failure(reason))
    assert isinstance(events[0], CheckRetrying) is again


def test_a_retry_gives_the_rest_of_the_batch_back() -> None:
    """What stands behind a check that is to be tried again is not settled ahead of it."""
    retry = Retry(on=("failed",), jitter=0.0)
    checks = one_by_one(shell("one"), replace(shell("two"), retry=retry), shell("three"))
    desk = Desk(loop(Node("a", before_transfer=checks)))
    desk.goto()
    desk.work(PASSED, FAILED, PASSED)
    assert list(desk.reasons) == ["before_transfer.0"]
    assert desk.transition.claims == ()
    assert desk.offered == [("before_transfer.1", "before_transfer.2")]


# --- work and workers -----------------------------------------------------------------------------------------


def test_parallel_steps_fan_out() -> None:
    """Members of a parallel step are batches of their own, and the step behind waits for the last of them."""
    steps = ((shell("x"), shell("y"), shell("z")), (shell("then"),))
    desk = Desk(loop(Node("a", before_transfer=steps)))
    desk.goto()
    assert desk.offered == [("before_transfer.0",), ("before_transfer.1",), ("before_transfer.2",)]
    tokens = [desk.claim(f"before_transfer.{number}") for number in (2, 0, 1)]
    assert desk.offered == []
    for token in tokens[:2]:
        desk.record(token, PASSED)
        assert desk.offered == []
    desk.record(tokens[2], PASSED)
    assert desk.offered == [("before_transfer.3",)]


def test_a_parallel_member_stays_alone_when_its_siblings_are_done() -> None:
    """The last member of a parallel step that waits for another try takes nothing of the next step along."""
    retry = Retry(on=("failed",), initial_interval=0.0)
    steps = ((replace(shell("x"), retry=retry), shell("y")), (shell("then"),))
    desk = Desk(loop(Node("a", before_transfer=steps)))
    desk.goto()
    desk.record(desk.claim("before_transfer.1"), PASSED)
    desk.record(desk.claim("before_transfer.0"), FAILED)
    assert desk.offered == [("before_transfer.0",)]


def test_batches_end_where_the_queue_changes() -> None:
    """Reviews go to a queue of their own, so that a batch ends before one and begins anew after it."""
    steps = one_by_one(shell(), Check(do=Predicate("f", exists=True)), Check(do=LlmReview("?")), shell())
    desk = Desk(loop(Node("a", before_transfer=steps)))
    desk.goto()
    queues: list[tuple[str, int]] = []
    while desk.run.in_flight:
        queues += [(batch.queue, len(batch.checks)) for batch in pending(desk.run)]
        desk.work(*[PASSED] * len(desk.offered[0]))
    assert queues == [(CHECKS_QUEUE, 2), (REVIEWS_QUEUE, 1), (CHECKS_QUEUE, 1)]


def test_a_pinned_run_keeps_everything_on_its_queue() -> None:
    """``queue`` pins reviews, too: one worker on the right host gets the whole stage in one batch."""
    steps = one_by_one(shell(), Check(do=LlmReview("?")), shell())
    desk = Desk(loop(Node("a", before_transfer=steps)), place=replace(PLACE, queue="gpu"))
    desk.goto()
    assert [(batch.queue, len(batch.checks)) for batch in pending(desk.run)] == [("gpu", 3)]


def test_a_worker_goes_straight_on_with_what_follows() -> None:
    """Whoever records the last result of a stage claims the next batch of its queues in the same decision."""
    desk = Desk(loop(Node("a", before_transfer=one_by_one(shell()), out_hook=one_by_one(shell()))))
    opened = desk.goto(worker=WORKER)
    assert isinstance(opened[-1], WorkClaimed)
    events = desk.record(desk.transition.token, PASSED, claim_more=True)
    assert [type(event) for event in events] == [CheckSettled, WorkClaimed]
    events = desk.record(desk.transition.token, PASSED, claim_more=True)
    assert [type(event) for event in events] == [CheckSettled, NodeEntered, TransitionSettled]


def test_a_worker_takes_only_its_own_queues() -> None:
    """What belongs to another queue is left on offer."""
    desk = Desk(loop(Node("a", before_transfer=one_by_one(Check(do=LlmReview("?"))))))
    desk.goto(worker=Worker("w", (CHECKS_QUEUE,)))
    assert desk.transition.claims == ()
    assert desk.offered == [("before_transfer.0",)]


def test_a_partial_report_keeps_the_claim() -> None:
    """A worker records as it goes; its claim shrinks to what is left, and the token stays good."""
    desk = Desk(loop(Node("a", before_transfer=one_by_one(shell("one"), shell("two")))))
    desk.goto()
    token = desk.claim()
    desk.record(token, PASSED, claim_more=True)
    claim = desk.transition.claim(token)
    assert claim is not None
    assert claim.checks == ("before_transfer.1",)
    assert desk.record(token) == [], "no outcome says nothing"
    desk.record(token, PASSED)
    assert desk.run.node == "b"


def test_a_late_result_is_refused() -> None:
    """After its claim expired, a worker's result decides to nothing, before and after somebody else has settled it."""
    desk = Desk(loop(Node("a", before_transfer=one_by_one(shell()))))
    desk.goto()
    late = desk.claim()
    desk.apply(ExpireClaim(transition=desk.transition.id, token=late))
    assert desk.record(late, FAILED) == []
    other = Worker("other", (CHECKS_QUEUE,))
    second = desk.claim(worker=other)
    assert second > late
    assert desk.record(late, FAILED) == []
    assert desk.record(second, FAILED) == [], "the token of somebody else does not help"
    desk.record(second, PASSED, worker=other)
    assert desk.record(late, FAILED) == []
    assert desk.run.node == "b"


def test_tokens_go_on_rising_across_transitions() -> None:
    """A token of a transition that is over is never given out again: its worker could keep a stranger's lease alive."""
    desk = Desk(loop(Node("a", before_transfer=one_by_one(shell()))))
    desk.goto()
    first = desk.claim()
    desk.apply(Cancel(transition=desk.transition.id, reason="enough", by=AGENT))
    desk.goto()
    assert desk.claim() > first


# --- opening --------------------------------------------------------------------------------------------------


def test_an_unknown_target_names_the_allowed_ones() -> None:
    """A ``goto`` along no edge changes nothing and says where edges lead."""
    desk = Desk(loop(Node("a")))
    with pytest.raises(UnknownTarget, match="b") as caught:
        desk.goto("c")
    assert caught.value.details["allowed"] == ["b"]


def test_max_attempts_counts_before_any_check() -> None:
    """The attempt after the last is blocked with nothing evaluated, and leaves the count where it is."""
    desk = Desk(loop(Node("a", before_transfer=one_by_one(shell())), Edge("a", "b", max_attempts=2)))
    for _ in range(2):
        desk.goto()
        desk.work(FAILED)
    for _ in range(2):
        events = desk.goto(worker=WORKER)
        assert [type(event) for event in events] == [TransitionOpened, TransitionSettled]
        assert (desk.transition.outcome, desk.transition.stage) == ("blocked", "max_attempts")
        assert desk.transition.plan == ()
    assert desk.run.attempts == {"b": 2}


def test_what_was_cancelled_or_could_not_be_evaluated_is_no_attempt() -> None:
    """Only what was judged counts: another try after a cancellation and an error is still the first."""
    check = replace(shell(), retry=Retry(maximum_attempts=1))
    desk = Desk(loop(Node("a", before_transfer=one_by_one(check)), Edge("a", "b", max_attempts=2)))
    desk.goto()
    assert desk.run.attempts == {"b": 1}
    desk.apply(Cancel(transition=desk.transition.id, reason="", by=AGENT))
    assert desk.run.attempts == {}
    desk.goto()
    desk.work(FAILED)
    desk.goto()
    desk.work(failure("spawn_failed"))
    assert desk.transition.outcome == "error"
    assert desk.run.attempts == {"b": 1}


def test_attempts_count_per_entry() -> None:
    """Entering a node anew, also from itself, begins the counts anew."""
    runbook = Runbook(
        hash="h",
        name="n",
        initial="a",
        nodes=(Node("a", before_transfer=one_by_one(shell())), Node("b")),
        edges=(Edge("a", "a"), Edge("a", "b", max_attempts=1)),
    )
    desk = Desk(runbook)
    desk.goto("b")
    desk.work(FAILED)
    desk.goto("a")
    desk.work(PASSED)
    assert desk.run.attempts == {}
    desk.goto("b")
    desk.work(PASSED)
    assert desk.run.node == "b"


def test_one_transition_at_a_time() -> None:
    """While one is open, every other command that would open one is a conflict that names it."""
    desk = Desk(loop(Node("a", before_transfer=one_by_one(shell()))))
    desk.goto()
    with pytest.raises(TransitionInFlight) as caught:
        desk.goto()
    assert caught.value.details["transition"] == "t2"
    with pytest.raises(TransitionInFlight):
        desk.save()
    with pytest.raises(TransitionInFlight):
        desk.apply(Resume(runbook=desk.runbook, by=AGENT))


def test_a_repeated_request_is_one_request() -> None:
    """The same request id again, while it is open or when it has settled, adds nothing."""
    desk = Desk(loop(Node("a", before_transfer=one_by_one(shell()))))
    assert desk.goto(request_id="q")
    assert desk.goto(request_id="q") == []
    desk.work(FAILED)
    assert desk.goto(request_id="q") == []
    assert desk.goto(request_id="another")


def test_a_repeated_start_is_one_start() -> None:
    """The same start again adds nothing; another one for the same run id is a conflict."""
    start = Start(run_id="r", runbook=loop(Node("a")), place=PLACE, by=AGENT, request_id="q")
    run = replay(decide(None, start, EPOCH))
    assert decide(run, start, EPOCH) == []
    with pytest.raises(Conflict):
        decide(run, replace(start, request_id="another"), EPOCH)


def test_a_stale_view_is_a_conflict() -> None:
    """A ``goto`` that was decided on an earlier entry is refused."""
    desk = Desk(loop(Node("a")))
    entry = desk.run.entry_id
    desk.goto("b", from_entry=entry)
    with pytest.raises(Conflict):
        desk.goto("a", from_entry=entry)


# --- resume, save, cancel -------------------------------------------------------------------------------------


def test_resume_runs_the_in_hook_of_the_current_node() -> None:
    """A resumed run stays on its node and entry, and runs the ``in_hook`` again."""
    desk = Desk(loop(Node("a", in_hook=one_by_one(shell()))))
    desk.work(PASSED)
    entry = desk.run.entry_id
    events = desk.apply(Resume(runbook=desk.runbook, by=AGENT))
    assert [type(event) for event in events] == [TransitionOpened]
    assert desk.offered == [("in_hook.0",)]
    desk.work(PASSED)
    assert (desk.run.node, desk.run.entry_id) == ("a", entry)


def test_resume_rebinds_to_an_edited_runbook() -> None:
    """With the node still there, the run keeps node, entry and attempts, and follows the new text."""
    desk = Desk(loop(Node("a", before_transfer=one_by_one(shell())), Edge("a", "b", max_attempts=3)))
    desk.goto()
    desk.work(FAILED)
    entry = desk.run.entry_id
    edited = Runbook(hash="h2", name="edited", initial="z", nodes=(Node("z"), Node("a")))
    events = desk.apply(Resume(runbook=edited, by=Actor("editor")))
    assert isinstance(events[0], RunRebound)
    assert (events[0].previous, events[0].by.id) == ("h1", "editor")
    assert (desk.run.runbook, desk.run.runbook_name) == ("h2", "edited")
    assert (desk.run.node, desk.run.entry_id, desk.run.attempts) == ("a", entry, {"b": 1})
    assert desk.run.status == "finished", "no edge leaves the node any more"


def test_resume_migrates_where_the_node_is_gone() -> None:
    """Without its node in the new runbook, the run begins a new entry on the initial one and runs its ``in_hook``."""
    desk = Desk(loop(Node("a")))
    entry = desk.run.entry_id
    edited = Runbook(hash="h2", name="edited", initial="z", nodes=(Node("z", in_hook=one_by_one(shell())),))
    events = desk.apply(Resume(runbook=edited, by=AGENT))
    assert isinstance(events[0], RunRebound)
    assert events[0].migrated_from == "a"
    assert (desk.run.node, desk.run.attempts) == ("z", {})
    assert desk.run.entry_id != entry
    assert desk.offered == [("in_hook.0",)]


def test_save_runs_the_out_hook_and_does_not_move() -> None:
    """A save executes what would run on leaving, and stays; a failure blocks it."""
    desk = Desk(loop(Node("a", out_hook=one_by_one(shell()))))
    desk.save()
    desk.work(PASSED)
    assert (desk.transition.kind, desk.transition.outcome, desk.run.node) == ("save", "committed", "a")
    desk.save()
    desk.work(FAILED)
    assert (desk.transition.outcome, desk.transition.stage, desk.run.node) == ("blocked", "out_hook", "a")


def test_save_may_skip_hooks() -> None:
    """``--skip-hooks`` records a save at once and says that it skipped."""
    desk = Desk(loop(Node("a", out_hook=one_by_one(shell()))))
    desk.save(skip_hooks=True)
    assert (desk.transition.outcome, desk.transition.skip_hooks) == ("committed", True)
    assert desk.transition.results == {}


def test_cancel_ends_an_open_transition() -> None:
    """Nothing that a cancelled transition would still do is done: claims end, and late results count for nothing."""
    desk = Desk(loop(Node("a", before_transfer=one_by_one(shell()))))
    desk.goto()
    token = desk.claim()
    desk.apply(Cancel(transition="t2", reason="changed my mind", by=AGENT))
    assert (desk.transition.outcome, desk.transition.reason) == ("cancelled", "changed my mind")
    assert desk.events[-1].by == AGENT, "the log says who did it"  # type: ignore[union-attr]
    assert desk.run.status == "active"
    assert desk.offered == []
    assert desk.record(token, PASSED) == []


def test_cancel_is_refused_after_the_commit() -> None:
    """What has happened cannot be cancelled: the run stands on the target."""
    desk = Desk(loop(Node("a"), in_hook=one_by_one(shell())))
    desk.goto()
    with pytest.raises(Conflict, match="has committed"):
        desk.apply(Cancel(transition="t2", reason="", by=AGENT))
    desk.work(PASSED)
    assert desk.transition.outcome == "committed"


@pytest.mark.parametrize("transition", ["t1", "t2", "t3"])
def test_cancel_is_refused_for_any_other_transition(transition: str) -> None:
    """Only the transition that is open can be cancelled."""
    desk = Desk(loop(Node("a")))
    desk.goto()
    with pytest.raises(Conflict, match="not open"):
        desk.apply(Cancel(transition=transition, reason="", by=AGENT))


def test_a_lost_worker_after_the_commit_is_an_error_on_the_target() -> None:
    """A hook of unknown outcome behind the commit does not undo it, whatever an operator does about it."""
    desk = Desk(loop(Node("a"), in_hook=one_by_one(shell())))
    desk.goto()
    desk.apply(ExpireClaim(transition="t2", token=desk.claim()))
    assert (desk.run.status, desk.run.node) == ("outcome_unknown", "b")
    desk.apply(Recover(way="abort", reason="", by=Actor()))
    assert (desk.transition.outcome, desk.run.node) == ("error", "b")
    assert desk.transition.results["in_hook.0"].outcome == Outcome(
        passed=False,
        reason="hook_outcome_unknown",
        output="The worker was lost while this ran, and it must not run twice: nobody knows what it did.",
    )
