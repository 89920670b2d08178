"""Decisions as people make them: from another process, at another time, first or too late."""

from __future__ import annotations

from typing import Any

import pytest

from statem_dist.store import keys
from tests.support.programs import Program, Said, Site, eventually

pytestmark = pytest.mark.e2e

GATED = """
nodes:
  a:
    before_transfer:
      - {type: manual, name: release, text: The release may go out., timeout: TIMEOUT, by: WHO}
      - {run: "echo checked >> checked"}
    out_hook: [{run: "echo left >> left"}]
    next: b
  b: The end.
"""

DECISION = "r/t2/before_transfer.0"

both_ways = pytest.mark.parametrize("with_worker", [False, True], ids=["inline", "worker"])


def gated(timeout: str = "1h", who: str = "anyone") -> str:
    """Return a runbook whose one edge is guarded by a question and a command."""
    return GATED.replace("TIMEOUT", timeout).replace("WHO", who)


def wait_for_people(site: Site, *words: str, runbook: str = "") -> dict[str, Any]:
    """Start the run and ask for the transition, which has to wait; return what ``goto`` answered."""
    site.start(runbook or gated())
    return dict(site.json("goto", "b", "--run-id", "r", "--on-manual", "wait", *words, expect=7))


def waiting_ids(site: Site) -> list[str]:
    """Return the ids of what waits for a decision."""
    return [each["id"] for each in site.json("approvals")["approvals"]]


def reasons(entry: dict[str, Any]) -> dict[str, str]:
    """Return why each check of a history entry ended as it did."""
    results = entry.get("results") or [*entry["before_transfer"], *entry["out_hook"]]
    return {result["id"]: result["reason"] for result in results}


# --- approving ---------------------------------------------------------------------------------------------------


@both_ways
def test_an_approval_from_another_process_lets_the_run_move(site: Site, with_worker: bool) -> None:
    """``goto`` ends with exit code 7 and names the decision; ``approve`` goes on from there and repeats nothing."""
    if with_worker:
        site.worker("-c", "1")
    pending = wait_for_people(site)
    assert DECISION in pending["error"]
    assert DECISION in pending["details"]["waiting_reason"]
    assert site.lines("checked") == ["checked"]
    assert not site.lines("left")
    (listed,) = site.json("approvals")["approvals"]
    assert (listed["id"], listed["question"]) == (DECISION, "The release may go out.")
    assert (listed["from"], listed["to"], listed["operator"]) == ("a", "b", False)
    assert listed["expires_at"] - listed["requested_at"] >= 3_600_000
    approved = site.json("approve", DECISION, "--comment", "read and tried", "--by", "alice")
    assert (approved["outcome"], approved["current"], approved["by"]) == ("committed", "b", "alice")
    assert (site.lines("checked"), site.lines("left")) == (["checked"], ["left"])
    assert waiting_ids(site) == []
    (entry,) = site.history()
    decided = entry["before_transfer"][0]
    assert (decided["reason"], decided["tier"]) == ("approved", "decision")
    assert (decided["by"], decided["role"], decided["output"]) == ("alice", "operator", "read and tried")
    (backing,) = site.json("evidence", "--run-id", "r")["evidence"]
    assert (backing["strongest"], [proof["by"] for proof in backing["decided"]]) == ("verified", ["alice"])
    assert "release (by alice)" in site.run("evidence", "--run-id", "r").stdout


@both_ways
def test_a_run_that_waits_says_so(site: Site, with_worker: bool) -> None:
    """It is listed as ``waiting``, can be looked at, and refuses another transition until the decision."""
    if with_worker:
        site.worker("-c", "1")
    wait_for_people(site)
    assert [run["run_id"] for run in site.json("runs", "--status", "waiting")["runs"]] == ["r"]
    looking = site.json("cur", "--run-id", "r")
    assert (looking["status"], looking["current"], looking["in_flight"]["transition"]) == ("waiting", "a", "t2")
    assert looking["in_flight"]["waiting_reason"] == f"somebody has to decide: {DECISION}"
    listed = site.run("approvals").stdout
    assert f"    statem-dist approve {DECISION}\n" in listed
    assert "asked by agent" in listed
    assert "expires in" in listed
    refused = site.json("goto", "b", "--run-id", "r", "--yes", expect=5)
    assert refused["code"] == "transition_in_flight"
    assert "statem-dist cancel" in refused["hint"]
    assert site.lines("checked") == ["checked"]


def test_a_decision_may_be_named_by_its_run(site: Site) -> None:
    """Where one decision waits the run is enough; where none or several do, they are listed."""
    wait_for_people(site, runbook="nodes: {a: {before_transfer: [One?, Two?], next: b}, b: The end.}")
    unclear = site.json("approve", "r", expect=1)
    assert "before_transfer.0" in unclear["error"]
    assert "before_transfer.1" in unclear["error"]
    told = site.run("approve", "r/t2/before_transfer.9")
    assert (told.exit_code, "no check of that id" in told.stderr) == (5, True)
    first = site.json("approve", DECISION)
    assert (first["outcome"], first["current"]) == ("pending", "a")
    assert first["waiting_reason"] == "somebody has to decide: r/t2/before_transfer.1"
    assert site.json("approve", "r")["current"] == "b"
    assert "none" in site.json("approve", "r", expect=1)["error"]


# --- rejecting ---------------------------------------------------------------------------------------------------


@both_ways
def test_a_rejection_blocks_the_transition(site: Site, with_worker: bool) -> None:
    """The run stays, hooks are not run, and the history tells who refused and why; a new attempt asks anew."""
    if with_worker:
        site.worker("-c", "1")
    wait_for_people(site)
    rejected = site.json("reject", DECISION, "-m", "the plan lacks a rollback", "--by", "bob")
    assert (rejected["outcome"], rejected["stage"], rejected["current"]) == ("blocked", "before_transfer", "a")
    assert not site.lines("left")
    (entry,) = site.history()
    assert (entry["event"], reasons(entry)["before_transfer.0"]) == ("goto_blocked", "rejected")
    assert "rollback" in str(entry["results"])
    site.json("goto", "b", "--run-id", "r", "--on-manual", "wait", expect=7)
    assert waiting_ids(site) == ["r/t3/before_transfer.0"]
    late = site.json("approve", DECISION, expect=5)
    assert "not the latest" in late["error"]
    assert site.json("cur", "--run-id", "r")["current"] == "a"


# --- first wins --------------------------------------------------------------------------------------------------


def test_a_second_decision_is_told_of_the_first(site: Site) -> None:
    """Exit code 5 and the name of who was first, also for the same verdict; nothing changes."""
    wait_for_people(site)
    site.json("approve", DECISION, "--by", "alice")
    for words in (("reject", DECISION, "--by", "bob"), ("approve", DECISION, "--by", "bob")):
        refused = site.json(*words, expect=5)
        assert refused["code"] == "conflict"
        assert "approved by alice" in refused["error"]
    assert site.json("approve", DECISION, "--by", "alice")["current"] == "b", "the same decision again is no error"
    assert site.lines("left") == ["left"]


@pytest.mark.slow
def test_of_two_decisions_at_once_one_wins(site: Site) -> None:
    """One is done and the other refused, with who won; the run has moved or not accordingly."""
    wait_for_people(site)
    both: list[Program] = [
        site.begin("approve", DECISION, "--by", "alice", "--json"),
        site.begin("reject", DECISION, "--by", "bob", "--json"),
    ]
    approved, rejected = said = [each.wait() for each in both]
    assert sorted(each.exit_code for each in said) == [0, 5], said
    loser: Said = rejected if approved.exit_code == 0 else approved
    assert ("alice" if loser is rejected else "bob") in loser.data["error"]
    assert site.events() == ["goto" if loser is rejected else "goto_blocked"]


def test_what_was_never_asked_is_not_decided(site: Site) -> None:
    """A run, a transition or a check that does not exist, and a check that is no question, are refused."""
    wait_for_people(site)
    assert site.json("approve", "nobody/t2/before_transfer.0", expect=1)["code"] == "not_found"
    for wrong in ("r/t9/before_transfer.0", "r/t2/before_transfer.7", "r/t2/before_transfer.1"):
        site.json("approve", wrong, expect=5)
    assert waiting_ids(site) == [DECISION]


# --- operators ---------------------------------------------------------------------------------------------------


def test_an_operator_decides_what_is_an_operators(site: Site) -> None:
    """``--yes`` does not count, an agent's approval is refused with exit code 4, an operator's is taken."""
    site.start(gated(who="operator"))
    for words in (("--yes",), ("--confirm", "release")):
        blocked = site.json("goto", "b", "--run-id", "r", *words, expect=2)
        assert reasons(blocked["details"])["before_transfer.0"] == "not_confirmed"
    pending = site.json("goto", "b", "--run-id", "r", "--yes", "--on-manual", "wait", expect=7)
    decision = f"r/{pending['details']['transition']}/before_transfer.0"
    assert site.json("approvals")["approvals"][0]["operator"] is True
    for by in ((), ("--by", "alice")):
        refused = site.json("approve", decision, *by, expect=4, STATEM_AGENT_ID="impatient")
        assert refused["code"] == "not_authorised"
    assert waiting_ids(site) == [decision]
    assert site.json("approve", decision)["current"] == "b"


def test_an_agent_that_approves_itself_has_confirmed(site: Site) -> None:
    """Its own word is not turned into somebody's decision by waiting for it."""
    site.environment["STATEM_AGENT_ID"] = "impatient"
    wait_for_people(site)
    assert site.json("approve", DECISION)["current"] == "b"
    (backing,) = site.json("evidence", "--run-id", "r")["evidence"]
    assert [(each["by"], each["self_confirmed"]) for each in backing["decided"]] == [("impatient", True)]


# --- answers that come with the request ---------------------------------------------------------------------------


def test_checks_are_confirmed_and_declined_one_by_one(site: Site) -> None:
    """Named by id, name or text; a refusal wins over ``--yes`` and keeps its reason; an unknown name is an error."""
    site.start(
        "nodes: {a: {before_transfer: [{type: manual, name: release, text: It may go out.}, Tests were read.],"
        " next: b}, b: The end.}"
    )
    goto = ("goto", "b", "--run-id", "r")
    partly = site.json(*goto, "--confirm", "release", expect=2)
    assert reasons(partly["details"]) == {"before_transfer.0": "confirmed", "before_transfer.1": "not_confirmed"}
    declined = site.json(*goto, "--yes", "--decline", "release", "--reason", "not on a Friday", expect=2)
    assert reasons(declined["details"]) == {"before_transfer.0": "rejected", "before_transfer.1": "confirmed"}
    assert declined["details"]["results"][0]["output"] == "not on a Friday"
    unknown = site.json(*goto, "--confirm", "relaese", expect=1)
    assert "relaese" in unknown["error"]
    assert "before_transfer.0" in unknown["error"]
    moved = site.json(*goto, "--confirm", "before_transfer.0", "--confirm", "Tests were read.")
    assert moved["current"] == "b"


# --- expiry ------------------------------------------------------------------------------------------------------


def test_a_worker_ends_a_wait_whose_time_is_over(site: Site) -> None:
    """Nobody has to look: the reaper of a worker settles the check as expired, and the transition is blocked."""
    site.worker("-c", "1")
    wait_for_people(site, runbook=gated(timeout="3s"))
    # No command looks at the run meanwhile: a look would end the wait, too.
    index = keys.status(keys.shard_of("r"), "waiting")
    eventually(lambda: site.redis("ZCARD", index) == 0, "the transition has settled")
    (entry,) = site.history()
    assert (entry["event"], reasons(entry)["before_transfer.0"]) == ("goto_blocked", "expired")
    late = site.json("approve", DECISION, expect=5)
    assert "as expired" in late["error"]
    assert waiting_ids(site) == []


def test_without_a_worker_the_next_command_ends_a_wait(site: Site) -> None:
    """In the embedded instance nobody watches the time: whoever looks next finds it over, and too late is too late."""
    pending = wait_for_people(site, runbook=gated(timeout="0.5s"))
    assert pending["details"]["outcome"] == "pending"
    eventually(lambda: waiting_ids(site) == [], "the wait is over")
    (entry,) = site.history()
    assert (entry["event"], reasons(entry)["before_transfer.0"]) == ("goto_blocked", "expired")
    for named in (DECISION, "r"):
        assert "as expired" in site.json("approve", named, expect=5)["error"]
    assert site.json("goto", "b", "--run-id", "r", "--yes")["current"] == "b"


def test_an_approval_that_comes_too_late_is_refused(site: Site) -> None:
    """Also where the approval itself is the first to look: it does not count, and the transition is blocked."""
    wait_for_people(site, runbook=gated(timeout="1s"))
    over_at = int(site.redis("TIME")[0]) + 2
    eventually(lambda: int(site.redis("TIME")[0]) >= over_at, "the time is over")
    assert "expired" in site.json("approve", DECISION, expect=5)["error"]
    assert site.events() == ["goto_blocked"]


# --- demanded evidence -------------------------------------------------------------------------------------------


def test_an_edge_may_demand_somebody_elses_decision(site: Site) -> None:
    """The agent's own ``--yes`` leaves it shut; a decision opens it."""
    site.start("nodes: {a: {before_transfer: [Is it good?], next: {to: b, require_evidence: decision}}, b: The end.}")
    blocked = site.json("goto", "b", "--run-id", "r", "--yes", expect=2)
    assert reasons(blocked["details"]) == {"before_transfer.0": "confirmed", "condition.0": "check_failed"}
    assert "requires decision evidence" in blocked["details"]["results"][1]["output"]
    site.json("goto", "b", "--run-id", "r", "--on-manual", "wait", expect=7)
    assert site.json("approve", "r")["current"] == "b"
    assert site.json("evidence", "--run-id", "r")["evidence"][0]["strongest"] == "decision"
