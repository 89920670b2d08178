"""Unknown outcomes and repairs: what an operator may do about a hook that nobody knows the outcome of, and what undoes
the hooks of a transition that does not commit."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from statem_dist.errors import Conflict, TransitionInFlight
from statem_dist.protocol.commands import (
    Cancel,
    CancelRun,
    ExpireClaim,
    Pause,
    RecordOutcomes,
    Recover,
    Restart,
    ReturnWork,
    Unpause,
)
from statem_dist.protocol.decide import STARTS_MAX
from statem_dist.protocol.events import OutcomeUnknown, Recovered, RepairBegun, TransitionSettled, WorkReturned
from statem_dist.protocol.graph import Check, Edge, Node
from statem_dist.protocol.model import Actor, WayOut
from statem_dist.protocol.outcome import Outcome
from statem_dist.protocol.progress import waits_for_people
from tests.support.builders import FAILED, PASSED, PLACE, WORKER, Desk, failure, loop, one_by_one, shell

OPERATOR = Actor(id="alice", role="operator", token="k1")


def repaired(text: str, *undo: str) -> Check:
    """Return a hook and what undoes it."""
    return replace(shell(text), repair=tuple(shell(each) for each in undo or (f"undo {text}",)))


def lose(desk: Desk, check: str | None = None) -> None:
    """Claim a batch and lose its worker."""
    desk.apply(ExpireClaim(transition=desk.transition.id, token=desk.claim(check)))


def recover(desk: Desk, way: WayOut, check: str | None = None) -> None:
    """Recover as an operator."""
    desk.apply(Recover(way=way, reason="I looked", by=OPERATOR, check=check))


def lost_hook(*hooks: Check, edge: Edge | None = None) -> Desk:
    """Return a run whose first hook was lost."""
    desk = Desk(loop(Node("a", out_hook=one_by_one(*(hooks or (shell(),)))), edge))
    desk.goto()
    lose(desk)
    return desk


def settlement(desk: Desk) -> tuple[str | None, str | None, str | None]:
    """Return how the transition has settled."""
    return desk.transition.outcome, desk.transition.stage, desk.transition.reason


# --- the unknown outcome ---------------------------------------------------------------------------------------


def test_an_unknown_outcome_says_what_since_when_whose_and_why() -> None:
    """The state holds what an operator needs to look into it, and the run waits for people alone."""
    desk = lost_hook()
    (event,) = [event for event in desk.events if isinstance(event, OutcomeUnknown)]
    unknown = desk.transition.unknown["out_hook.0"]
    assert (event.check, unknown.worker, unknown.at, unknown.cause) == (
        "out_hook.0",
        WORKER.id,
        desk.now,
        "worker_lost",
    )
    assert (desk.run.status, desk.run.node, desk.offered) == ("outcome_unknown", "a", [])
    assert waits_for_people(desk.run)


@pytest.mark.parametrize(
    ("reason", "cause"), [("shutdown", "shutdown"), ("cancelled", "cut_short"), ("worker_lost", "worker_lost")]
)
def test_a_hook_that_its_own_worker_cuts_short_is_unknown_too(reason: str, cause: str) -> None:
    """A worker that is shut down in the middle of a hook leaves the same question, and says why."""
    desk = Desk(loop(Node("a", out_hook=one_by_one(shell(), shell()))))
    desk.goto()
    desk.work(Outcome(passed=False, reason=reason))  # type: ignore[arg-type]
    assert {check: what.cause for check, what in desk.transition.unknown.items()} == {"out_hook.0": cause}
    assert (desk.run.status, desk.transition.claims) == ("outcome_unknown", ())


def test_a_hook_that_stops_nothing_is_recorded_and_nobody_is_asked() -> None:
    """Where the runbook goes on after a failure, it goes on after an unknown outcome as well."""
    desk = lost_hook(replace(shell(), on_failure="continue"))
    assert (desk.reasons, desk.run.node) == ({"out_hook.0": "hook_outcome_unknown"}, "b")


def test_a_goto_is_refused_and_names_the_way_out() -> None:
    """The transition is still open: the refusal says what to do about it."""
    desk = lost_hook()
    with pytest.raises(TransitionInFlight) as refused:
        desk.goto()
    assert "statem-dist recover r" in (refused.value.hint or "")


def test_resume_executes_the_hook_again() -> None:
    """On the operator's word the hook is offered once more, and the transition goes on with what comes of it."""
    desk = lost_hook(shell(), shell("two"))
    recover(desk, "resume")
    assert (desk.run.status, desk.offered) == ("moving", [("out_hook.0", "out_hook.1")])
    (event,) = [event for event in desk.events if isinstance(event, Recovered)]
    assert (event.way, event.checks, event.reason, event.by) == ("resume", ("out_hook.0",), "I looked", OPERATOR)
    desk.work(PASSED, PASSED)
    assert desk.run.node == "b"


def test_a_resumed_hook_that_is_lost_again_is_unknown_again() -> None:
    """Each execution again needs a word of its own."""
    desk = lost_hook()
    for _ in range(STARTS_MAX + 1):
        recover(desk, "resume")
        lose(desk)
        assert desk.run.status == "outcome_unknown"


def test_abort_settles_as_an_error_of_that_name() -> None:
    """Given up, the transition ends as an error that counts as no attempt, on the source."""
    desk = lost_hook(shell(), edge=Edge("a", "b", max_attempts=1))
    recover(desk, "abort")
    assert settlement(desk) == ("error", "out_hook", "hook_outcome_unknown")
    assert (desk.reasons, desk.run.node, desk.run.status) == ({"out_hook.0": "hook_outcome_unknown"}, "a", "active")
    assert desk.run.attempts == {}


@pytest.mark.parametrize(("way", "node", "reason"), [("passed", "b", "approved"), ("failed", "a", "rejected")])
def test_a_mark_is_the_operators_decision(way: WayOut, node: str, reason: str) -> None:
    """What the operator says is the result: its tier is a decision, and it says who, with which token, and why."""
    desk = lost_hook()
    recover(desk, way)
    result = desk.transition.results["out_hook.0"]
    assert (result.outcome.reason, result.outcome.output, result.tier) == (reason, "I looked", "decision")
    assert (result.by, result.role, result.token) == ("alice", "operator", "k1")
    assert (desk.run.node, desk.transition.outcome) == (node, "committed" if node == "b" else "blocked")


def test_a_recovery_of_nothing_is_refused() -> None:
    """There has to be an unknown outcome, in the transition and of the check that are meant."""
    desk = Desk(loop(Node("a", out_hook=one_by_one(shell()))))
    with pytest.raises(Conflict, match="no check of it is of unknown outcome"):
        recover(desk, "resume")
    desk.goto()
    lose(desk)
    with pytest.raises(Conflict, match=r"what out_hook\.7 did is not in question"):
        recover(desk, "resume", "out_hook.7")
    with pytest.raises(Conflict, match="it is in transition t2 now, not t1"):
        desk.apply(Recover(way="abort", reason="", by=OPERATOR, transition="t1"))


def test_of_several_one_has_to_be_named_to_be_marked() -> None:
    """Nobody says by mistake of two hooks what was found out about one."""
    desk = Desk(loop(Node("a", out_hook=((shell("x"), shell("y")),))))
    desk.goto()
    tokens = [desk.claim("out_hook.0"), desk.claim("out_hook.1")]
    for token in tokens:
        desk.apply(ExpireClaim(transition="t2", token=token))
    with pytest.raises(Conflict, match="several of its checks") as refused:
        recover(desk, "passed")
    assert "--check: out_hook.0, out_hook.1" in (refused.value.hint or "")
    recover(desk, "passed", "out_hook.1")
    assert (desk.run.status, list(desk.transition.unknown)) == ("outcome_unknown", ["out_hook.0"])
    recover(desk, "passed")
    assert desk.run.node == "b"


def test_what_runs_beside_it_ends_first() -> None:
    """A member of the same step goes on, and whoever waits is answered when it has ended."""
    desk = Desk(loop(Node("a", out_hook=((shell("x"), shell("y")),))))
    desk.goto()
    lost, going = desk.claim("out_hook.0"), desk.claim("out_hook.1")
    desk.apply(ExpireClaim(transition="t2", token=lost))
    assert (desk.run.status, waits_for_people(desk.run)) == ("outcome_unknown", False)
    desk.record(going, PASSED)
    assert waits_for_people(desk.run)


@pytest.mark.parametrize("terminate", [False, True])
def test_an_unknown_outcome_keeps_no_run_from_ending(terminate: bool) -> None:
    """Cancelled, terminated or restarted, the run ends; what it left keeps its reason in the history."""
    desk = lost_hook()
    desk.apply(CancelRun(reason="no use", by=OPERATOR, terminate=terminate))
    assert (desk.run.status, settlement(desk)) == ("cancelled", ("cancelled", None, "no use"))
    assert desk.reasons == {"out_hook.0": "hook_outcome_unknown"}


def test_an_unknown_outcome_keeps_nobody_from_cancelling_or_restarting() -> None:
    """Both work as on any open transition."""
    desk = lost_hook()
    desk.apply(Cancel(transition="t2", reason="enough", by=OPERATOR))
    assert (settlement(desk), desk.run.status) == (("cancelled", None, "enough"), "active")
    assert desk.reasons == {"out_hook.0": "hook_outcome_unknown"}
    desk = lost_hook()
    desk.apply(Restart(runbook=desk.runbook, place=PLACE, by=OPERATOR))
    assert (desk.run.node, desk.run.transitions, desk.run.status) == ("a", 3, "active")


def test_a_restart_leaves_an_error_behind_the_commit() -> None:
    """The in_hook of unknown outcome is on record, and the commit stands."""
    desk = Desk(loop(Node("a"), in_hook=one_by_one(shell())))
    desk.goto()
    lose(desk)
    desk.apply(Restart(runbook=desk.runbook, place=PLACE, by=OPERATOR))
    (settled,) = [each for each in desk.events if isinstance(each, TransitionSettled) and each.transition == "t2"]
    assert (settled.outcome, settled.reason) == ("error", "hook_outcome_unknown")


def test_a_paused_run_keeps_the_question_and_takes_the_answer() -> None:
    """A pause hides nothing and loses nothing: what follows from the answer waits for its end."""
    desk = Desk(loop(Node("a", out_hook=one_by_one(shell()))))
    desk.goto()
    token = desk.claim()
    desk.apply(Pause(reason="lunch", by=OPERATOR))
    desk.apply(ExpireClaim(transition="t2", token=token))
    assert (desk.run.status, list(desk.transition.unknown)) == ("paused", ["out_hook.0"])
    recover(desk, "passed")
    assert (desk.run.status, desk.run.node) == ("paused", "a")
    desk.apply(Unpause(by=OPERATOR))
    assert desk.run.node == "b"


# --- repairs ---------------------------------------------------------------------------------------------------


def test_a_failure_is_repaired_in_reverse_order() -> None:
    """Every hook that was begun is undone, the failed one included, the last first; then the transition is blocked."""
    desk = Desk(
        loop(
            Node("a", out_hook=one_by_one(repaired("one"), shell("plain"), repaired("two", "undo a", "undo b"))),
            Edge("a", "b", hook=one_by_one(repaired("three"), repaired("never"))),
        )
    )
    desk.goto()
    desk.work(PASSED, PASSED, PASSED)
    desk.work(FAILED)
    (event,) = [event for event in desk.events if isinstance(event, RepairBegun)]
    assert [(each.id, each.repairs) for each in event.plan] == [
        ("repair.0", "hook.0"),
        ("repair.1", "out_hook.2"),
        ("repair.2", "out_hook.2"),
        ("repair.3", "out_hook.0"),
    ]
    assert (desk.run.status, desk.transition.open) == ("moving", True)
    done = []
    while desk.offered:
        done.append(desk.offered)
        desk.work(PASSED)
    assert done == [[("repair.0",)], [("repair.1",)], [("repair.2",)], [("repair.3",)]]
    assert (settlement(desk), desk.run.node) == (("blocked", "out_hook", None), "a")


def test_what_a_claim_held_behind_the_failure_was_not_begun() -> None:
    """The rest of the claim is given back, and has nothing to be undone."""
    desk = Desk(loop(Node("a", out_hook=one_by_one(repaired("one"), repaired("two")))))
    desk.goto()
    desk.work(FAILED)
    assert [type(event) for event in desk.events[-2:]] == [WorkReturned, RepairBegun]
    assert [each.repairs for each in desk.transition.repairs] == ["out_hook.0"]


def test_a_hook_with_a_repair_needs_no_operator() -> None:
    """Its outcome is unknown, it is undone, and the transition ends as an error of that name."""
    desk = lost_hook(repaired("one"))
    assert (desk.run.status, desk.offered) == ("moving", [("repair.0",)])
    desk.work(PASSED)
    assert settlement(desk) == ("error", "out_hook", "hook_outcome_unknown")


def test_a_transition_that_commits_repairs_nothing() -> None:
    """Neither a success nor a failure that stops nothing is undone, nor what fails behind the commit."""
    harmless = replace(repaired("two"), on_failure="continue")
    desk = Desk(loop(Node("a", out_hook=one_by_one(repaired("one"), harmless)), in_hook=one_by_one(shell())))
    desk.goto()
    desk.work(PASSED, FAILED)
    desk.work(FAILED)
    assert (desk.run.node, desk.transition.outcome, desk.transition.repairs) == ("b", "committed", ())


def test_a_condition_that_is_judged_after_the_hooks_repairs_them() -> None:
    """Where progress is persisted first, what does not commit is taken back as well."""
    edge = Edge("a", "b", condition=one_by_one(shell()))
    desk = Desk(loop(Node("a", out_hook=one_by_one(repaired("one"))), edge, order="persist_first"))
    desk.goto()
    desk.work(PASSED)
    desk.work(FAILED)
    desk.work(PASSED)
    assert settlement(desk) == ("blocked", "condition", None)
    assert desk.reasons["repair.0"] == "passed"


def test_abort_repairs_what_was_begun_before() -> None:
    """The hook of unknown outcome has no repair; the one before it has."""
    desk = Desk(loop(Node("a", out_hook=one_by_one(repaired("one"), shell("two")))))
    desk.goto()
    token = desk.claim()
    desk.record(token, PASSED)
    desk.apply(ExpireClaim(transition="t2", token=token))
    recover(desk, "abort")
    desk.work(PASSED)
    assert settlement(desk) == ("error", "out_hook", "hook_outcome_unknown")


@pytest.mark.parametrize("steered", [False, True])
def test_cancelling_lets_a_hook_end_and_repairs_it(steered: bool) -> None:
    """What is being executed may end; then it is undone, and the transition is cancelled, and the run with it."""
    desk = Desk(loop(Node("a", out_hook=one_by_one(repaired("one"), repaired("two")))))
    desk.goto()
    token = desk.claim()
    if steered:
        desk.apply(CancelRun(reason="enough", by=OPERATOR))
    else:
        desk.apply(Cancel(transition="t2", reason="enough", by=OPERATOR))
        with pytest.raises(Conflict, match="are being repaired"):
            desk.apply(Cancel(transition="t2", reason="enough", by=OPERATOR))
    assert (desk.transition.open, desk.offered) == (True, [])
    desk.record(token, PASSED)
    assert desk.offered == [("repair.0",)]
    desk.work(PASSED)
    assert (settlement(desk), desk.reasons) == (
        ("cancelled", None, "enough"),
        {"out_hook.0": "passed", "repair.0": "passed"},
    )
    assert desk.run.status == ("cancelled" if steered else "active")


def test_a_hook_that_is_lost_while_it_is_cancelled_is_repaired() -> None:
    """Nobody is asked any more: the unknown outcome is recorded and undone."""
    desk = Desk(loop(Node("a", out_hook=one_by_one(repaired("one")))))
    desk.goto()
    token = desk.claim()
    desk.apply(Cancel(transition="t2", reason="enough", by=OPERATOR))
    desk.apply(ExpireClaim(transition="t2", token=token))
    desk.work(PASSED)
    assert (settlement(desk), desk.reasons["out_hook.0"]) == (("cancelled", None, "enough"), "hook_outcome_unknown")


def test_a_hook_that_was_not_begun_is_not_repaired() -> None:
    """A claim that was handed back has done nothing."""
    desk = Desk(loop(Node("a", out_hook=one_by_one(repaired("one")))))
    desk.goto()
    desk.apply(ReturnWork(transition="t2", token=desk.claim()))
    desk.apply(Cancel(transition="t2", reason="enough", by=OPERATOR))
    assert (settlement(desk), desk.transition.repairs) == (("cancelled", None, "enough"), ())


def test_a_failed_repair_is_an_error_and_keeps_no_other_from_running() -> None:
    """The rest of the failed hook's repair is left out; those of other hooks run all the same."""
    desk = Desk(loop(Node("a", out_hook=one_by_one(repaired("one"), repaired("two", "undo a", "undo b")))))
    desk.goto()
    desk.work(PASSED, FAILED)
    desk.work(FAILED)
    assert desk.offered == [("repair.2",)]
    desk.work(PASSED)
    assert settlement(desk) == ("error", "out_hook", "repair_failed")
    assert set(desk.reasons) == {"out_hook.0", "out_hook.1", "repair.0", "repair.2"}


def test_a_repair_is_executed_again_when_its_worker_is_lost() -> None:
    """At least once, but not for ever: what kills its workers is given up."""
    desk = Desk(loop(Node("a", out_hook=one_by_one(repaired("one")))))
    desk.goto()
    desk.work(FAILED)
    for _ in range(STARTS_MAX - 1):
        lose(desk)
        assert desk.offered == [("repair.0",)]
    lose(desk)
    assert (settlement(desk), desk.reasons["repair.0"]) == (("error", "out_hook", "repair_failed"), "worker_lost")


def test_a_repair_is_tried_again_as_its_retry_says() -> None:
    """The platform's own failures are tried again, also while the run is being cancelled."""
    desk = Desk(loop(Node("a", out_hook=one_by_one(repaired("one")))))
    desk.goto()
    token = desk.claim()
    desk.apply(CancelRun(reason="no use", by=OPERATOR))
    desk.record(token, PASSED)
    desk.work(failure("spawn_failed"))
    assert desk.transition.tries == {"repair.0": 1}
    desk.now += 60_000
    desk.work(PASSED)
    assert desk.run.status == "cancelled"


def test_terminating_and_restarting_wait_for_no_repair() -> None:
    """Who terminates a run ends it at once, also in the middle of its repairs."""
    for command in (
        CancelRun(reason="now", by=OPERATOR, terminate=True),
        Restart(runbook=loop(Node("a")), place=PLACE, by=OPERATOR),
    ):
        desk = Desk(loop(Node("a", out_hook=one_by_one(repaired("one")))))
        desk.goto()
        desk.work(FAILED)
        desk.claim()
        desk.apply(command)
        settled = [each for each in desk.events if isinstance(each, TransitionSettled) and each.transition == "t2"]
        assert [each.outcome for each in settled] == ["cancelled"]


def test_a_pause_holds_repairs_back() -> None:
    """Nothing is begun on a paused run, repairs included."""
    desk = Desk(loop(Node("a", out_hook=one_by_one(repaired("one")))))
    desk.goto()
    desk.work(FAILED)
    desk.apply(Pause(reason="lunch", by=OPERATOR))
    assert desk.offered == []
    desk.apply(Unpause(by=OPERATOR))
    assert desk.offered == [("repair.0",)]


def test_a_save_that_fails_is_repaired() -> None:
    """A save has hooks that can be undone, like any transition."""
    desk = Desk(loop(Node("a", out_hook=one_by_one(repaired("one")))))
    desk.save()
    desk.work(FAILED)
    desk.work(PASSED)
    assert settlement(desk) == ("blocked", "out_hook", None)


def test_a_repair_goes_straight_on_in_the_same_worker() -> None:
    """Whoever reports a failure may take the repair of it in the same commit."""
    desk = Desk(loop(Node("a", out_hook=one_by_one(repaired("one", "undo a", "undo b")))))
    desk.goto()
    token = desk.claim()
    desk.record(token, FAILED, claim_more=True)
    assert [claim.checks for claim in desk.transition.claims] == [("repair.0",)]
    desk.apply(RecordOutcomes("t2", desk.transition.token, WORKER, (PASSED,)))
    assert [claim.checks for claim in desk.transition.claims] == [("repair.1",)]
