"""Pausing a run, ending it and beginning it anew: one readable example of each rule."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from statem_dist.errors import CancelledRun, Conflict, PausedRun, StatemError
from statem_dist.protocol.commands import (
    Cancel,
    CancelRun,
    Decide,
    ExpireClaim,
    Goto,
    Pause,
    Restart,
    Resume,
    ReturnWork,
    Save,
    Start,
    Unpause,
)
from statem_dist.protocol.events import (
    CheckSettled,
    Event,
    NodeEntered,
    RunCancelled,
    RunPaused,
    RunRestarted,
    RunUnpaused,
    TransitionOpened,
    TransitionSettled,
    WorkReturned,
)
from statem_dist.protocol.evolve import replay
from statem_dist.protocol.graph import Check, Edge, Manual, Node, Retry, Runbook
from statem_dist.protocol.model import Actor, Ending, Paused, Place
from statem_dist.protocol.progress import waits_for_people
from statem_dist.store.codec import decode_run
from tests.support.builders import AGENT, FAILED, PASSED, PLACE, WORKER, Desk, loop, one_by_one, shell

BOSS = Actor(id="boss", role="operator")
SURE = Check(do=Manual("sure?"))

BOOK = Runbook(
    hash="h1",
    name="book",
    initial="a",
    nodes=(
        Node("a", before_transfer=one_by_one(shell("x"), shell("y"))),
        Node("b", in_hook=one_by_one(shell(), shell())),
        Node("end"),
    ),
    edges=(Edge("a", "b"), Edge("a", "end", condition=one_by_one(SURE)), Edge("b", "a")),
)
"""Two checks before ``a`` is left, two hooks when ``b`` is entered, and a question before the end."""


def pause(desk: Desk, reason: str = "lunch") -> list[Event]:
    """Pause a run."""
    return desk.apply(Pause(reason=reason, by=BOSS))


def unpause(desk: Desk) -> list[Event]:
    """Let a run go on."""
    return desk.apply(Unpause(by=BOSS))


def cancel_run(desk: Desk) -> list[Event]:
    """End a run."""
    return desk.apply(CancelRun(reason="no use", by=BOSS))


def terminate(desk: Desk) -> list[Event]:
    """End a run at once."""
    return desk.apply(CancelRun(reason="burns money", by=BOSS, terminate=True))


def restart(desk: Desk, runbook: Runbook | None = None, request_id: str = "") -> list[Event]:
    """Begin a run anew."""
    return desk.apply(Restart(runbook=runbook or desk.runbook, place=PLACE, by=BOSS, request_id=request_id))


def wait_for_decision(desk: Desk) -> None:
    """Attempt the transition to the end, as far as it goes without a decision."""
    desk.apply(Goto(runbook=desk.runbook, target="end", by=AGENT, on_manual="wait"))
    desk.work(PASSED, PASSED)


def executing() -> Desk:
    """Return a run whose first check is being executed, and whose second one the same worker has claimed."""
    desk = Desk(BOOK)
    desk.goto()
    desk.claim()
    return desk


def lost() -> Desk:
    """Return a run that stands because the worker of its ``out_hook`` was lost."""
    first, *others = BOOK.nodes
    hooked = replace(first, before_transfer=(), out_hook=one_by_one(shell()))
    desk = Desk(replace(BOOK, nodes=(hooked, *others)))
    desk.goto()
    desk.apply(ExpireClaim(transition=desk.transition.id, token=desk.claim()))
    return desk


def entered() -> Desk:
    """Return a run that has moved to ``b``, where its ``in_hook`` is being executed."""
    desk = executing()
    desk.record(desk.transition.token, PASSED, PASSED)
    desk.claim()
    return desk


# --- every verb in every state --------------------------------------------------------------------------------

VERBS: dict[str, Callable[[Desk], list[Event]]] = {
    "goto": lambda desk: desk.goto(),
    "start": lambda desk: desk.apply(Resume(runbook=desk.runbook, by=AGENT)),
    "save": lambda desk: desk.save(),
    "cancel": lambda desk: desk.apply(Cancel(transition=desk.transition.id, reason="enough", by=AGENT)),
    "cancel --run": cancel_run,
    "terminate": terminate,
    "pause": pause,
    "resume": unpause,
    "start --on-existing restart": restart,
}


def _after(desk: Desk, *steps: Callable[[Desk], object]) -> Desk:
    for step in steps:
        step(desk)
    return desk


STATES: dict[str, Callable[[], Desk]] = {
    "active": lambda: Desk(BOOK),
    "moving, nothing is being executed": lambda: _after(Desk(BOOK), Desk.goto),
    "moving, a check is being executed": executing,
    "moving, entered, its `in_hook` is being executed": entered,
    "outcome_unknown": lost,
    "waiting": lambda: _after(Desk(BOOK), wait_for_decision),
    "paused": lambda: _after(Desk(BOOK), pause),
    "paused, a check is being executed": lambda: _after(executing(), pause),
    "cancelled, a check is being executed": lambda: _after(executing(), cancel_run),
    "cancelled": lambda: _after(Desk(BOOK), cancel_run),
    "finished": lambda: _after(Desk(BOOK), wait_for_decision, lambda desk: decide(desk, approved=True)),
}


def decide(desk: Desk, *, approved: bool) -> list[Event]:
    """Answer the question before the end."""
    check = next(iter(desk.transition.awaiting))
    return desk.apply(Decide(desk.transition.id, check, approved, "", BOSS, operator=True))


def documented() -> dict[tuple[str, str], str]:
    """Return what the reference says each verb does in each state: the status afterwards, or the code of an error."""
    text = (Path(__file__).resolve().parents[2] / "docs" / "cli.md").read_text(encoding="utf-8")
    section = text.partition("## Holding, ending, beginning anew\n")[2].partition("\n### ")[0]
    table = section.partition("| state |")[2]
    head, _, *lines = [[cell.strip() for cell in line.strip("| ").split(" | ")] for line in table.splitlines() if line]
    verbs = [cell.strip("`") for cell in head]
    rows = [line for line in lines if len(line) == len(verbs) + 1]
    return {(row[0], verb): cell for row in rows for verb, cell in zip(verbs, row[1:], strict=True)}


DOCUMENTED = documented()


def test_the_reference_has_every_verb_in_every_state() -> None:
    """The table of the reference is complete, and names nothing else."""
    assert set(DOCUMENTED) == {(state, verb) for state in STATES for verb in VERBS}


@pytest.mark.parametrize(("state", "verb"), sorted(DOCUMENTED))
def test_every_verb_in_every_state_does_what_is_documented(state: str, verb: str) -> None:
    """It changes the run and leaves the documented status, or it fails with the documented code and changes nothing."""
    desk = STATES[state]()
    assert desk.run.status == state.partition(",")[0] or state.startswith("cancelled, "), "the state is what it says"
    version, expected = desk.run.version, DOCUMENTED[state, verb]
    if not expected.startswith("`"):
        assert VERBS[verb](desk)
        assert desk.run.version > version, "nothing succeeds without a change"
        assert desk.run.status == expected
    else:
        with pytest.raises(StatemError) as caught:
            VERBS[verb](desk)
        assert caught.value.code == expected.strip("`")
        assert desk.run.version == version
        assert caught.value.details["run_id"] == "r"
    assert replay(desk.events) == desk.run


# --- pausing ----------------------------------------------------------------------------------------------------


def test_a_pause_lets_the_running_check_end_and_begins_nothing() -> None:
    """The result is recorded, the rest of the claim is released, and nothing is on offer until the run goes on."""
    desk = executing()
    pause(desk)
    assert desk.run.paused == Paused(at=desk.now, reason="lunch", by=BOSS)
    recorded = desk.record(desk.transition.token, PASSED, PASSED, claim_more=True)
    assert [type(event) for event in recorded] == [CheckSettled, WorkReturned]
    assert (desk.reasons, desk.transition.claims, desk.offered) == ({"before_transfer.0": "passed"}, (), [])
    assert desk.transition.starts["before_transfer.1"] == 0, "what was released was not begun"
    assert [type(event) for event in unpause(desk)] == [RunUnpaused]
    assert desk.offered == [("before_transfer.1",)]
    desk.work(PASSED)
    desk.work(PASSED, PASSED)
    assert (desk.run.node, desk.run.status) == ("b", "active")
    assert sum(isinstance(event, NodeEntered) for event in desk.events) == 1


def test_a_pause_that_ends_first_leaves_a_claim_as_it_was() -> None:
    """The worker goes on with its second check, as if nothing had been."""
    desk = executing()
    pause(desk)
    unpause(desk)
    token = desk.transition.token
    desk.record(token, PASSED)
    assert desk.transition.claims[0].checks == ("before_transfer.1",)
    desk.record(token, PASSED)
    assert desk.run.node == "b"


def test_a_paused_run_does_not_move() -> None:
    """When the last result is there, the commit waits for the end of the pause, and comes with it."""
    desk = executing()
    token = desk.transition.token
    desk.record(token, PASSED)
    pause(desk)
    desk.record(token, PASSED)
    assert (desk.run.node, desk.run.status, len(desk.reasons)) == ("a", "paused", 2)
    assert [type(event) for event in unpause(desk)] == [RunUnpaused, NodeEntered]
    assert desk.offered == [("in_hook.0", "in_hook.1")]


def test_a_paused_transition_is_not_judged() -> None:
    """What is blocked is blocked when the run goes on."""
    desk = executing()
    token = desk.transition.token
    desk.record(token, FAILED)
    pause(desk)
    desk.record(token, PASSED)
    assert desk.transition.open
    unpause(desk)
    assert (desk.transition.outcome, desk.run.status) == ("blocked", "active")


def test_decisions_on_a_paused_run_count_when_it_goes_on() -> None:
    """People need not know of a pause; what follows from their decision waits for its end."""
    desk = Desk(BOOK)
    wait_for_decision(desk)
    pause(desk)
    assert desk.run.status == "paused"
    assert [type(event) for event in decide(desk, approved=True)] == [CheckSettled]
    assert not waits_for_people(desk.run)
    assert desk.run.node == "a"
    unpause(desk)
    assert (desk.run.node, desk.run.status) == ("end", "finished")


def test_questions_of_a_paused_run_are_asked_when_it_goes_on() -> None:
    """Nobody is asked while the run is paused."""
    desk = Desk(BOOK)
    desk.apply(Goto(runbook=desk.runbook, target="end", by=AGENT, on_manual="wait"))
    token = desk.claim()
    desk.record(token, PASSED)
    pause(desk)
    desk.record(token, PASSED)
    assert desk.transition.awaiting == {}
    unpause(desk)
    assert list(desk.transition.awaiting) == ["condition.0"]


@pytest.mark.parametrize("lost", [True, False])
def test_a_claim_of_a_paused_run_ends_without_another_being_offered(lost: bool) -> None:
    """A lost lease and a claim that is handed back are known for what they are; the work is offered again later."""
    desk = executing()
    pause(desk)
    desk.apply((ExpireClaim if lost else ReturnWork)(transition=desk.transition.id, token=desk.transition.token))
    assert (desk.transition.claims, desk.offered) == ((), [])
    unpause(desk)
    assert desk.offered == [("before_transfer.0", "before_transfer.1")]


def test_another_try_waits_for_the_end_of_a_pause() -> None:
    """A check that is to be tried again is offered when the run goes on, and not before its time."""
    check = replace(shell(), retry=Retry(on=("failed",), initial_interval=1.0, jitter=0.0))
    desk = Desk(loop(Node("a", before_transfer=one_by_one(check))))
    desk.goto()
    token = desk.claim()
    pause(desk)
    desk.record(token, FAILED)
    desk.now += 5_000
    assert desk.offered == []
    unpause(desk)
    desk.work(PASSED)
    assert desk.run.node == "b"


def test_errors_of_a_paused_run_say_who_and_why_and_what_to_do() -> None:
    """A refused request names the pause, and the command that ends it."""
    desk = Desk(BOOK)
    pause(desk, "the licence server is down")
    with pytest.raises(PausedRun, match=r"paused by boss \(the licence server is down\)") as caught:
        desk.goto()
    assert "statem-dist resume" in caught.value.hint
    assert caught.value.details["by"] == "boss"


# --- ending -----------------------------------------------------------------------------------------------------


def test_a_cancelled_run_waits_for_what_is_being_executed() -> None:
    """The result is recorded, then the transition is cancelled with the reason of the run."""
    desk = executing()
    assert [type(event) for event in cancel_run(desk)] == [RunCancelled]
    assert (desk.run.status, desk.run.ended) == ("moving", False)
    recorded = desk.record(desk.transition.token, PASSED, PASSED, claim_more=True)
    assert [type(event) for event in recorded] == [CheckSettled, WorkReturned, TransitionSettled]
    assert (desk.transition.outcome, desk.transition.reason) == ("cancelled", "no use")
    assert (desk.run.status, desk.run.ended, desk.run.node) == ("cancelled", True, "a")
    assert desk.run.attempts == {}, "what was cancelled was no attempt"
    assert desk.run.ending == Ending(at=desk.now, reason="no use", by=BOSS)


def test_the_last_result_of_a_cancelled_run_does_not_move_it() -> None:
    """All checks have passed, and yet the run stays where it was when it was cancelled."""
    desk = executing()
    token = desk.transition.token
    desk.record(token, PASSED)
    cancel_run(desk)
    desk.record(token, PASSED)
    assert (desk.transition.outcome, desk.run.node) == ("cancelled", "a")


def test_what_failed_on_a_cancelled_run_is_not_tried_again() -> None:
    """The failure is the result, whatever the check's ``retry`` says."""
    check = replace(shell(), retry=Retry(on=("failed",), maximum_attempts=3))
    desk = Desk(loop(Node("a", before_transfer=one_by_one(check))))
    desk.goto()
    token = desk.claim()
    cancel_run(desk)
    desk.record(token, FAILED)
    assert (desk.reasons, desk.run.status) == ({"before_transfer.0": "check_failed"}, "cancelled")


def test_siblings_that_are_being_executed_may_all_end() -> None:
    """The transition settles with the last of them."""
    desk = Desk(loop(Node("a", before_transfer=((shell("x"), shell("y"), shell("z"), SURE),))))
    desk.apply(Goto(runbook=desk.runbook, target="b", by=AGENT))
    first, second = desk.claim("before_transfer.0"), desk.claim("before_transfer.1")
    cancel_run(desk)
    assert desk.offered == [], "the third one is not begun any more"
    desk.record(first, PASSED)
    assert desk.transition.open
    desk.apply(ReturnWork(transition=desk.transition.id, token=second))
    assert (desk.transition.outcome, desk.run.status) == ("cancelled", "cancelled")


def test_a_lost_worker_does_not_keep_a_cancelled_run_open() -> None:
    """Its lease runs out, and the transition settles."""
    desk = executing()
    cancel_run(desk)
    desk.apply(ExpireClaim(transition=desk.transition.id, token=desk.transition.token))
    assert (desk.transition.outcome, desk.run.status) == ("cancelled", "cancelled")


def test_a_cancelled_run_that_is_still_busy_asks_nobody_any_more() -> None:
    """In an effect a question stands beside a command: the command may end, the question is gone at once."""
    desk = Desk(loop(Node("a", out_hook=((shell("x"), SURE),))))
    desk.apply(Goto(runbook=desk.runbook, target="b", by=AGENT, on_manual="wait"))
    desk.claim("out_hook.0")
    assert desk.run.status == "waiting"
    cancel_run(desk)
    assert (desk.transition.awaiting, desk.run.status) == ({}, "moving")


def test_a_cancelled_run_asks_nobody_any_more() -> None:
    """The wait for a decision is over, and a decision that comes too late is told why."""
    desk = Desk(BOOK)
    wait_for_decision(desk)
    cancel_run(desk)
    assert (desk.transition.outcome, desk.transition.awaiting, desk.run.status) == ("cancelled", {}, "cancelled")
    with pytest.raises(Conflict, match="the run was cancelled"):
        desk.apply(Decide(desk.transition.id, "condition.0", True, "", BOSS, operator=True))


def test_a_terminated_run_waits_for_nothing() -> None:
    """Its claim is gone at once, so that the worker loses the lease; a late result decides to nothing."""
    desk = executing()
    token = desk.transition.token
    assert [type(event) for event in terminate(desk)] == [RunCancelled, TransitionSettled]
    assert (desk.transition.claims, desk.run.status) == ((), "cancelled")
    assert desk.record(token, PASSED) == []
    assert desk.run.ending is not None
    assert desk.run.ending.terminated


def test_an_end_can_be_hastened_once() -> None:
    """After a cancellation that still waits, the run can be terminated, and then there is nothing left to end."""
    desk = executing()
    cancel_run(desk)
    terminate(desk)
    assert desk.run.ending == Ending(at=desk.now, reason="burns money", by=BOSS, terminated=True)
    with pytest.raises(CancelledRun, match="has ended already"):
        terminate(desk)


@pytest.mark.parametrize("end", [terminate, restart])
def test_what_is_already_true_stays_true(end: Callable[[Desk], list[Event]]) -> None:
    """A run that had moved when it was ended in its ``in_hook`` has moved: the transition is committed and says why."""
    desk = entered()
    settled = next(event for event in end(desk) if isinstance(event, TransitionSettled))
    assert (settled.outcome, settled.stage) == ("committed", "in_hook")
    assert settled.reason in ("burns money", "restarted")
    assert settled.by == BOSS


@pytest.mark.parametrize("outcomes", [(PASSED, PASSED), (FAILED,)])
def test_an_in_hook_that_came_to_its_end_is_not_cut_off(outcomes: tuple[object, ...]) -> None:
    """When its last check was being executed, a cancelled run that had moved has nothing left undone."""
    desk = Desk(loop(Node("a"), in_hook=one_by_one(shell())))
    desk.goto()
    token = desk.claim()
    cancel_run(desk)
    desk.record(token, *outcomes)  # type: ignore[arg-type]
    assert (desk.transition.outcome, desk.transition.reason) == ("committed", None)
    assert (desk.transition.stage, desk.run.node) == (None if outcomes[0] is PASSED else "in_hook", "b")
    assert desk.run.status == "cancelled"


# --- beginning anew -----------------------------------------------------------------------------------------------


def test_a_restart_begins_anew_and_forgets_nothing() -> None:
    """Node, attempts, pause and end are as at a start; numbers, labels and history go on."""
    desk = executing()
    old, entry = desk.transition, desk.run.entry_id
    begun = restart(desk, request_id="q1")
    assert [type(event) for event in begun] == [TransitionSettled, RunRestarted, TransitionOpened, TransitionSettled]
    assert (begun[0].outcome, begun[0].reason) == ("cancelled", "restarted")  # type: ignore[union-attr]
    assert (desk.run.node, desk.run.attempts, desk.run.by) == ("a", {}, BOSS)
    assert (desk.transition.id, desk.transition.kind, desk.run.entry_id) == ("t3", "start", "r-e2")
    assert entry == "r-e1"
    assert desk.transition.token == old.token, "tokens go on rising, so that what is late stays late"
    assert restart(desk, request_id="q1") == [], "the same request twice is one request"


@pytest.mark.parametrize("before", [pause, cancel_run, terminate])
def test_a_restart_ends_a_pause_and_an_end(before: Callable[[Desk], list[Event]]) -> None:
    """The run is as free as a new one."""
    desk = executing()
    before(desk)
    restart(desk)
    assert (desk.run.paused, desk.run.ending, desk.run.status) == (None, None, "active")
    desk.goto()
    assert desk.offered == [("before_transfer.0", "before_transfer.1")]


def test_a_restart_may_follow_another_runbook_elsewhere() -> None:
    """The run is bound to the runbook and the place of the restart, and its first node's ``in_hook`` is owed."""
    desk = Desk(BOOK)
    other = Runbook(hash="h2", name="other", initial="z", nodes=(Node("z", in_hook=one_by_one(shell())),))
    place = Place(workspace="/elsewhere", queue="pinned")
    desk.apply(Restart(runbook=other, place=place, by=BOSS, worker=WORKER))
    assert (desk.run.runbook, desk.run.runbook_name, desk.run.place) == ("h2", "other", place)
    assert desk.offered == [("in_hook.0",)], "the caller does not serve the new queue"
    desk.work(PASSED)
    assert desk.run.final


# --- stored documents -----------------------------------------------------------------------------------------------


def test_documents_without_the_new_fields_are_read() -> None:
    """A run that was stored before there were pauses is neither paused nor cancelled."""
    document = (
        b'{"id":"r","runbook":"h1","runbook_name":"loop","place":{"workspace":"/work"},"node":"a","entry_id":"r-e1",'
        b'"created_at":1,"updated_at":1,"version":3,"schema":1}'
    )
    run = decode_run(document)
    assert (run.paused, run.ending, run.held, run.status) == (None, None, False, "active")


def test_a_start_that_is_repeated_after_the_end_changes_nothing() -> None:
    """A client that asks again whether its run was created gets no refusal because it was cancelled meanwhile."""
    desk = Desk(BOOK)
    start = Start(run_id="r", runbook=BOOK, place=PLACE, by=AGENT, request_id="")
    with pytest.raises(Conflict, match="exists already"):
        desk.apply(start)
    desk.goto(request_id="q7")
    terminate(desk)
    assert desk.goto(request_id="q7") == []
    with pytest.raises(CancelledRun):
        desk.apply(Save(runbook=BOOK, by=AGENT))
    assert isinstance(desk.events[-2], RunCancelled)
    assert not any(isinstance(event, RunPaused) for event in desk.events)
