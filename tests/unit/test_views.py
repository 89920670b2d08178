"""Answers have the keys of StateM's JSON, in the cases that its commands tell apart."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from statem_dist import views
from statem_dist.protocol.commands import Goto
from statem_dist.protocol.graph import Check, Edge, Node, Unmet
from statem_dist.protocol.model import DynamicCheck, DynamicFacts
from tests.support.builders import AGENT, FAILED, PASSED, Desk, loop, one_by_one, shell


def answer(desk: Desk) -> dict[str, object]:
    """Return the body of a ``goto`` answer."""
    return views.settled_transition(desk.run, desk.transition)


def test_a_blocked_answer_has_the_results_of_the_stage_that_blocked() -> None:
    """What passed in the gates before is not repeated among the results of a failed hook."""
    node = Node("a", before_transfer=one_by_one(shell()), out_hook=one_by_one(shell()))
    desk = Desk(loop(node, Edge("a", "b", hook=one_by_one(shell()))))
    desk.goto()
    desk.work(PASSED)
    desk.work(PASSED)
    desk.work(FAILED)
    told = answer(desk)
    assert told["stage"] == "out_hook", "StateM tells no difference between the two kinds of hook"
    assert [result["purpose"] for result in told["results"]] == ["out_hook", "hook"]  # type: ignore[attr-defined]


def test_a_committed_answer_has_all_results() -> None:
    """A move lists the gates, the hooks and the target's hook, in the order of the protocol."""
    node = Node("a", before_transfer=one_by_one(shell()), out_hook=one_by_one(shell()))
    desk = Desk(loop(node, Edge("a", "b", condition=one_by_one(shell())), in_hook=one_by_one(shell())))
    desk.goto()
    while desk.run.in_flight:
        desk.work(*[PASSED] * len(desk.offered[0]))
    purposes = [result["purpose"] for result in answer(desk)["results"]]  # type: ignore[attr-defined]
    assert purposes == ["before_transfer", "condition", "out_hook", "in_hook"]


def test_failed_dynamic_checks_name_the_gate() -> None:
    """Also where a check of the runbook has failed before them."""
    desk = Desk(loop(Node("a", before_transfer=one_by_one(shell()))))
    unmet = DynamicFacts(checks=(DynamicCheck(Check(do=Unmet("None are registered."))),))
    desk.apply(Goto(runbook=desk.runbook, target="b", by=AGENT, dynamic=unmet))
    desk.work(FAILED)
    assert answer(desk)["stage"] == "dynamic_before_transfer"


def test_only_a_limited_edge_tells_its_attempts() -> None:
    """An edge without ``max_attempts`` counts nothing that a caller has to know."""
    free = Desk(loop(Node("a")))
    free.goto()
    assert not {"attempt", "attempts_used", "max_attempts"} & answer(free).keys()
    limited = Desk(loop(Node("a", before_transfer=one_by_one(shell())), Edge("a", "b", max_attempts=1)))
    limited.goto()
    limited.work(FAILED)
    told = answer(limited)
    assert (told["attempt"], told["attempts_used"], told["attempts_remaining"]) == (1, 1, 0)
    limited.goto()
    told = answer(limited)
    assert "attempt" not in told, "a try that was refused is none"
    assert (told["stage"], told["attempts_used"], told["results"]) == ("max_attempts", 1, [])


def test_a_limited_exit_of_the_current_node_says_how_often_it_was_tried() -> None:
    """In ``cur``, ``next`` and ``ls``; the exits of other nodes were not tried in this entry."""
    desk = Desk(loop(Node("a", before_transfer=one_by_one(shell())), Edge("a", "b", max_attempts=2)))
    told = [views.next_nodes(desk.run, desk.runbook)["next"][0]["attempts_used"]]
    for _ in range(3):
        desk.goto()
        if desk.run.in_flight:
            desk.work(FAILED)
        told.append(views.next_nodes(desk.run, desk.runbook)["next"][0]["attempts_used"])
    assert told == [0, 1, 2, 2]
    (back,) = views.exit_views(desk.run, desk.runbook, "b")
    assert "attempts_used" not in back


def test_where_a_run_stands_includes_how_the_last_attempt_ended() -> None:
    """With what stopped it alone; null before the first attempt, while one is under way, and after a move."""

    def told() -> dict[str, Any]:
        return views.node_status(desk.run, desk.runbook, "agent", "a worker has it")

    gate = one_by_one(replace(shell("lint"), on_failure="continue"), shell("make"))
    desk = Desk(loop(Node("a", before_transfer=gate)))
    assert (told()["last_attempt"], told()["in_flight"]) == (None, None)
    desk.goto()
    assert told()["last_attempt"] is None
    assert told()["in_flight"]["waiting_reason"] == "a worker has it"
    desk.work(FAILED, FAILED)
    last = told()["last_attempt"]
    assert [result["run"] for result in last.pop("results")] == ["make"]
    assert last == {"transition": "t2", "to": "b", "outcome": "blocked", "stage": "before_transfer", "reason": None}
    desk.goto()
    desk.work(PASSED, PASSED)
    assert told()["last_attempt"] is None
