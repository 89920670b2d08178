"""What stood behind the transitions of a run."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from statem_dist.evidence import Backing, backing_view, backings, table
from statem_dist.history import Move, Rebinding
from statem_dist.protocol.commands import Cancel, Decide, Goto
from statem_dist.protocol.events import RunRebound
from statem_dist.protocol.graph import Check, Checklist, Edge, LlmReview, Manual, Message, Node, Steps
from statem_dist.protocol.model import Actor, Confirmations, DynamicCheck, DynamicFacts, OnManual, Origin
from tests.support.builders import (
    AGENT,
    EVERYTHING,
    FAILED,
    NOBODY,
    PASSED,
    WORKER,
    Desk,
    loop,
    one_by_one,
    shell,
)

SURE = Check(do=Manual("sure?"))
LISTED = Check(do=Checklist(("one", "two")))
REVIEW = Check(do=LlmReview("good?"))
GATE = "before_transfer.0"


def moved(
    *checks: Check,
    confirmations: Confirmations = NOBODY,
    on_manual: OnManual = "fail",
    dynamic: DynamicFacts | None = None,
    edge: Edge | None = None,
    out_hook: Steps = (),
    in_hook: Steps = (),
) -> Desk:
    """Return a desk whose transition has been asked for, and all that workers owe has passed."""
    desk = Desk(loop(Node("a", before_transfer=one_by_one(*checks), out_hook=out_hook), edge, in_hook=in_hook))
    goto = Goto(
        runbook=desk.runbook, target="b", by=AGENT, confirmations=confirmations, on_manual=on_manual, dynamic=dynamic
    )
    desk.apply(goto)
    while desk.offered:
        desk.work(*[PASSED] * len(desk.offered[0]))
    return desk


def approve(desk: Desk, by: Actor) -> None:
    """Approve the question of the transition."""
    transition = desk.transition
    desk.apply(Decide(transition.id, next(iter(transition.awaiting)), True, "", by, by.role == "operator"))


def move_of(desk: Desk, number: int = 1) -> Move:
    """Return the last transition of a desk, as the history tells it."""
    return Move(number, desk.transition, desk.run.entry_id if desk.transition.entered else None)


def backing_of(desk: Desk) -> Backing:
    """Return what stood behind the last transition of a desk."""
    (backing,) = backings([move_of(desk)])
    return backing


@pytest.mark.parametrize(
    ("checks", "strongest", "groups"),
    [
        ((shell(),), "verified", {"verified": [GATE]}),
        ((REVIEW,), "judgment", {"judged": [GATE]}),
        ((LISTED,), "attestation", {"attested": [GATE]}),
        ((SURE,), "attestation", {"decided": [GATE]}),
        ((Check(do=Message("look")),), "attestation", {"attested": [GATE]}),
        (
            (REVIEW, LISTED, shell()),
            "verified",
            {"judged": [GATE], "attested": ["before_transfer.1"], "verified": ["before_transfer.2"]},
        ),
        ((REVIEW, LISTED), "attestation", {"judged": [GATE], "attested": ["before_transfer.1"]}),
        ((), None, {}),
    ],
)
def test_checks_stand_under_their_tier(
    checks: tuple[Check, ...], strongest: str | None, groups: dict[str, list[str]]
) -> None:
    """Each check that passed is told once, under who gave its evidence; the strongest tier is the transition's."""
    view = backing_view(backing_of(moved(*checks, confirmations=EVERYTHING)))
    assert view["strongest"] == strongest
    told = {name: [proof["id"] for proof in view[name]] for name in ("verified", "decided", "attested", "judged")}
    assert {name: ids for name, ids in told.items() if ids} == groups


def test_a_decision_says_whose_it_was() -> None:
    """Somebody else's approval makes the transition as strong as a decision; names and roles are told."""
    desk = moved(replace(SURE, name="release"), on_manual="wait")
    approve(desk, Actor(id="alice", role="operator"))
    view = backing_view(backing_of(desk))
    assert (view["strongest"], view["by"]) == ("decision", "agent")
    assert view["decided"] == [
        {
            "id": GATE,
            "type": "manual",
            "purpose": "before_transfer",
            "text": "sure?",
            "reason": "approved",
            "by": "alice",
            "self_confirmed": False,
            "name": "release",
            "role": "operator",
        }
    ]


def test_a_token_stands_beside_whom_it_spoke_for() -> None:
    """Whoever came by the service is told with the id of the token; whoever did not is told without."""
    desk = moved(SURE, LISTED, on_manual="wait")
    approve(desk, Actor(id="alice", role="operator", token="3f"))
    approve(desk, Actor(id="bob", role="operator"))
    backing = backing_of(desk)
    view = backing_view(backing)
    first, second = view["decided"] + view["attested"]
    assert (first["by"], first["token"], second["by"]) == ("alice", "3f", "bob")
    assert "token" not in second.keys() | view.keys()
    assert "(by alice, token 3f)" in table([backing])
    assert "(by bob)" in table([backing])


def test_the_token_of_the_caller_is_told() -> None:
    """Of the transition, and of what the caller confirmed itself."""
    desk = Desk(loop(Node("a", before_transfer=one_by_one(SURE))))
    by = Actor(id="agent", token="3f")
    desk.apply(Goto(runbook=desk.runbook, target="b", by=by, confirmations=EVERYTHING))
    backing = backing_of(desk)
    view = backing_view(backing)
    assert (view["by"], view["token"], view["decided"][0]["token"]) == ("agent", "3f", "3f")
    assert "(by agent itself, token 3f)" in table([backing])


@pytest.mark.parametrize("way", ["yes", "own approval"])
def test_what_the_caller_confirmed_itself_says_so(way: str) -> None:
    """It stands among the decisions, and counts as no more than an attestation."""
    if way == "yes":
        desk = moved(SURE, confirmations=EVERYTHING)
    else:
        desk = moved(SURE, on_manual="wait")
        approve(desk, AGENT)
    backing = backing_of(desk)
    (proof,) = backing_view(backing)["decided"]
    assert (proof["reason"], proof["by"], proof["self_confirmed"]) == ("confirmed", "agent", True)
    assert backing.strongest == "attestation"


def test_what_could_not_have_blocked_is_no_evidence() -> None:
    """A check whose failure would not have mattered is left out."""
    assert backing_of(moved(replace(shell(), on_failure="continue"))).strongest is None


def test_a_hook_is_no_evidence() -> None:
    """Hooks are run for their effect, before the move as well as after it: that they worked proves nothing."""
    edge = Edge("a", "b", hook=one_by_one(shell()))
    backing = backing_of(moved(edge=edge, out_hook=one_by_one(shell()), in_hook=one_by_one(shell())))
    assert (backing.strongest, backing.proofs) == (None, ())


def test_a_demand_for_evidence_is_none() -> None:
    """That an edge demanded a decision, and got one, makes nothing verified."""
    desk = moved(SURE, on_manual="wait", edge=Edge("a", "b", require_evidence="decision"))
    approve(desk, Actor(id="alice", role="operator"))
    backing = backing_of(desk)
    assert (backing.strongest, len(backing.proofs)) == ("decision", 1)


def test_a_dynamic_check_says_who_registered_it() -> None:
    """Whoever reads that something was verified sees that the agent chose the check."""
    origin = Origin(agent_id="implementer", role="executor", at=7)
    desk = moved(dynamic=DynamicFacts((origin,), (DynamicCheck(shell(), origin),)))
    (proof,) = backing_view(backing_of(desk))["verified"]
    assert proof["registered_by"] == {"agent_id": "implementer", "role": "executor", "at": 7}
    assert proof["by"] == WORKER.id


def test_only_what_moved_the_run_is_told_oldest_first() -> None:
    """Blocked and cancelled transitions, starts, saves and changes of the runbook moved nothing."""
    desk = Desk(loop(Node("a", before_transfer=one_by_one(shell()))))
    told: list[Move | Rebinding] = [move_of(desk)]
    desk.goto()
    desk.work(FAILED)
    told.append(move_of(desk, 3))
    desk.goto()
    desk.apply(Cancel(transition=desk.transition.id, reason="enough", by=AGENT))
    told.append(move_of(desk, 6))
    told.append(Rebinding(8, RunRebound(1, "h2", "loop", "a", "r-e1")))
    desk.save()
    told.append(move_of(desk, 9))
    desk.goto()
    desk.work(PASSED)
    told.append(move_of(desk, 11))
    desk.goto("a")
    told.append(move_of(desk, 17))
    assert [each.move.number for each in backings(reversed(told))] == [11, 17]


def test_a_transition_whose_in_hook_failed_has_moved_the_run() -> None:
    """It is told like any other: the evidence let the run move."""
    desk = Desk(loop(Node("a", before_transfer=one_by_one(shell())), in_hook=one_by_one(shell())))
    desk.goto()
    desk.work(PASSED)
    assert backing_view(backing_of(desk))["strongest"] == "verified", "also while the in_hook is owed"
    desk.work(FAILED)
    assert backing_of(desk).strongest == "verified"


def test_the_table_is_aligned() -> None:
    """One line per transition; columns begin at the same place, and nothing trails."""
    named = moved(replace(SURE, name="release"), LISTED, shell(), confirmations=EVERYTHING)
    bare = moved()
    lines = table(backings([move_of(bare), move_of(named)])).splitlines()
    assert lines[0].split() == [
        "transition",
        "from",
        "->",
        "to",
        "strongest",
        "verified",
        "decided",
        "attested",
        "judged",
    ]
    assert "before_transfer.0 release (by agent itself)" in lines[1]
    assert "before_transfer.2 command: true" in lines[1], "a check without a name is told by what it runs"
    assert lines[2].split() == ["t2", "a", "->", "b", "none", "-", "-", "-", "-"]
    for heading in ("strongest", "verified", "decided", "attested", "judged"):
        column = lines[0].index(heading)
        assert all(line[column - 1] == " " and line[column] != " " for line in lines)
    assert all(line == line.rstrip() for line in lines)
