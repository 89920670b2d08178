"""Runs that are held, ended and begun anew while real commands are being executed, by workers and by callers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.programs import Program, Site, eventually

pytestmark = pytest.mark.e2e

GATED = """
nodes:
  a:
    before_transfer:
      - {run: "echo one >> begun; until [ -e opened ]; do sleep 0.05; done; echo one >> ended"}
      - {run: "echo two >> begun"}
    next: b
  b: The end.
"""
"""The first check ends when somebody opens the gate; the second one says that it was begun."""

HANGS = """
nodes:
  a: {before_transfer: [{run: "echo $$ >> begun; sleep 613"}, {run: "echo two >> begun"}], next: b}
  b: The end.
"""

ASKING = "nodes: {a: {before_transfer: [{type: manual, text: Good?}], next: b}, b: The end.}"

by_whomever = pytest.mark.parametrize("with_worker", [False, True], ids=["inline", "worker"])


def begun(site: Site, runbook: str, *, with_worker: bool) -> tuple[Program, Program | None]:
    """Start a run and a ``goto``; return the caller and the worker when the first check is being executed."""
    site.start(runbook)
    worker = site.worker("-c", "2") if with_worker else None
    caller = site.begin("goto", "b", "--run-id", "r", "--json")
    eventually(lambda: site.lines("begun") or not caller.running, "the first check is begun")
    return caller, worker


def raw(site: Site, run_id: str = "r") -> list[str]:
    """Return the kinds of the events of a run."""
    return [event["event"] for event in site.json("history", "--raw", "--run-id", run_id)["events"]]


def glance(site: Site) -> dict[str, Any]:
    """Return the run in a line, without touching what somebody may have left of it."""
    (run,) = site.json("runs")["runs"]
    assert isinstance(run, dict)
    return run


def nothing_is_wrong(worker: Program | None) -> None:
    """Assert that a worker has logged neither an error nor a defect."""
    assert worker is None or not {"ERROR", "Traceback", "CRITICAL"} & set(worker.stderr.replace(":", " ").split())


@by_whomever
def test_a_cancelled_run_lets_the_running_check_end(site: Site, with_worker: bool) -> None:
    """Its result is kept, nothing else is begun, the run ends on its node, and whoever waits is told."""
    caller, worker = begun(site, GATED, with_worker=with_worker)
    ending = site.json("cancel", "--run", "--run-id", "r", "--reason", "no use", "--agent-id", "boss")
    assert (ending["status"], ending["ending"]["by"], ending["ending"]["reason"]) == ("moving", "boss", "no use")
    assert "before_transfer.0 is being executed by" in ending["in_flight"]["waiting_reason"]
    assert site.json("goto", "b", "--run-id", "r", expect=5)["code"] == "run_cancelled"
    site.write("opened")
    said = caller.wait()
    settled = said.data["details"]
    assert (said.exit_code, settled["outcome"], settled["reason"]) == (1, "cancelled", "no use")
    assert (site.lines("begun"), site.lines("ended")) == (["one"], ["one"])
    (entry,) = site.history()
    assert [result["reason"] for result in entry["results"]] == ["passed"]
    assert (entry["event"], entry["by"]) == ("goto_cancelled", "boss")
    assert site.json("history", "--tail", "1")["history"][0]["event"] == "run_cancelled"
    assert (glance(site)["status"], glance(site)["current"]) == ("cancelled", "a")
    nothing_is_wrong(worker)


@by_whomever
@pytest.mark.parametrize("first_gently", [False, True], ids=["at once", "after a cancellation"])
def test_a_terminated_run_ends_the_running_command(site: Site, with_worker: bool, first_gently: bool) -> None:
    """The command and its child are gone, the caller is told, and there is nothing left to end."""
    caller, worker = begun(site, HANGS, with_worker=with_worker)
    eventually(lambda: site.processes("sleep\x00613"), "the command sleeps")
    if first_gently:
        site.json("cancel", "--run", "--run-id", "r")
        assert site.json("cancel", "--run", "--run-id", "r", expect=5)["code"] == "run_cancelled"
    ended = site.json("terminate", "--run-id", "r", "--reason", "burns money")
    assert (ended["status"], ended["in_flight"], ended["ending"]["terminated"]) == ("cancelled", None, True)
    said = caller.wait()
    assert (said.exit_code, said.data["details"]["reason"]) == (1, "burns money")
    eventually(lambda: not site.processes("sleep\x00613"), "the command is gone", site.processes)
    assert len(site.lines("begun")) == 1
    assert "has ended already" in site.json("terminate", "--run-id", "r", expect=5)["error"]
    nothing_is_wrong(worker)


@by_whomever
def test_a_pause_holds_the_next_check_back(site: Site, with_worker: bool) -> None:
    """The running check ends, the next one waits for ``resume``, the caller waits for both, and one commit follows."""
    caller, worker = begun(site, GATED, with_worker=with_worker)
    paused = site.json("pause", "--run-id", "r", "--reason", "lunch", "--agent-id", "boss")
    assert (paused["status"], paused["paused"]["reason"]) == ("paused", "lunch")
    site.write("opened")
    eventually(lambda: glance(site)["in_flight"]["settled"] == 1, "the first check has ended")
    looked = site.json("cur", "--run-id", "r")
    assert looked["in_flight"]["waiting_reason"] == "the run is paused by boss: lunch"
    assert (caller.running, site.lines("begun")) == (True, ["one"])
    assert site.json("goto", "b", "--run-id", "r", expect=5)["code"] == "run_paused"
    assert site.json("pause", "--run-id", "r", expect=5)["code"] == "run_paused"
    site.json("resume", "--run-id", "r")
    said = caller.wait()
    assert (said.exit_code, said.data["current"]) == (0, "b")
    assert (site.lines("begun"), site.events()) == (["one", "two"], ["goto"])
    told = raw(site)
    assert told[told.index("run_paused") :] == [
        "run_paused",
        "check_settled",
        "work_returned",
        "run_unpaused",
        "work_claimed",
        "check_settled",
        "node_entered",
        "transition_settled",
    ]
    entries = site.json("history", "--tail", "3")["history"]
    assert [entry["event"] for entry in entries] == ["goto", "paused", "unpaused"]
    nothing_is_wrong(worker)


def test_who_waits_for_a_paused_run_is_told_why_and_may_give_up(site: Site) -> None:
    """The reason stands on stderr; after ``resume`` the next command finishes what the caller has left."""
    site.start(GATED)
    site.json("pause", "--run-id", "r")
    assert site.json("start", str(site.folder / "r.yaml"), "--run-id", "r", expect=5)["code"] == "run_paused"
    assert site.json("resume", "--run-id", "r")["status"] == "active"
    assert site.json("resume", "--run-id", "r", expect=5)["code"] == "conflict"
    caller = site.begin("goto", "b", "--run-id", "r", "--json", "--timeout", "600")
    eventually(lambda: site.lines("begun"), "the first check is begun")
    site.json("pause", "--run-id", "r", "--reason", "lunch", "--agent-id", "boss")
    site.write("opened")
    eventually(lambda: glance(site)["in_flight"]["settled"] == 1, "the first check has ended")
    eventually(lambda: "paused by boss: lunch" in caller.stderr, "whoever waits is told", lambda: caller.stderr)
    caller.interrupt()
    assert caller.wait().exit_code == 130
    resumed = site.json("resume", "--run-id", "r")
    assert "the next command on the run goes on with it" in resumed["in_flight"]["waiting_reason"]
    assert site.json("cur", "--run-id", "r")["current"] == "b"


def test_decisions_on_a_paused_run_are_listed_and_kept(site: Site) -> None:
    """``approve`` does not wait for the end of the pause; the run moves with ``resume``."""
    site.start(ASKING)
    site.json("goto", "b", "--run-id", "r", "--on-manual", "wait", expect=7)
    site.json("pause", "--run-id", "r", "--reason", "lunch", "--agent-id", "boss")
    (asked,) = site.json("approvals")["approvals"]
    approved = site.json("approve", asked["id"])
    assert (approved["outcome"], approved["waiting_reason"]) == ("pending", "the run is paused by boss: lunch")
    assert glance(site)["current"] == "a"
    assert site.json("resume", "--run-id", "r")["status"] == "finished"


def test_what_a_killed_caller_left_does_not_keep_a_cancelled_run_open(site: Site) -> None:
    """Nobody executes its check any more, so the run is at its end at once."""
    caller, _ = begun(site, HANGS, with_worker=False)
    caller.kill()
    assert site.json("cancel", "--run", "--run-id", "r")["status"] == "cancelled"
    eventually(lambda: not site.processes("sleep\x00613"), "the command is gone", site.processes)


@by_whomever
def test_a_run_begins_anew_under_its_id(site: Site, with_worker: bool) -> None:
    """What it did ends at once, also its command; its version and its history go on, and it can be moved again."""
    caller, worker = begun(site, HANGS, with_worker=with_worker)
    version = glance(site)["version"]
    path = str(site.write("other.yaml", "nodes: {z: {in_hook: [{run: echo z >> begun}], next: b}, b: The end.}"))
    assert site.json("start", path, "--run-id", "r", "--on-existing", "fail", expect=5)["code"] == "conflict"
    assert site.run("start", path, "--fresh", "--on-existing", "restart").exit_code == 64
    again = site.json("start", path, "--run-id", "r", "--on-existing", "restart", "--agent-id", "boss")
    assert (again["current"], again["current_entry_id"], again["status"]) == ("z", "r-e2", "active")
    assert again["version"] > version
    said = caller.wait()
    settled = said.data["details"]
    assert (said.exit_code, settled["transition"], settled["reason"]) == (1, "t2", "restarted")
    eventually(lambda: not site.processes("sleep\x00613"), "the command is gone", site.processes)
    assert site.lines("begun")[1:] == ["z"]
    told = [entry["event"] for entry in site.json("history", "--run-id", "r")["history"]]
    assert told == ["start", "in_hook", "goto_cancelled", "restart", "start", "in_hook"]
    site.json("terminate", "--run-id", "r")
    site.json("start", path, "--run-id", "r", "--on-existing", "restart")
    assert site.json("goto", "b", "--run-id", "r")["transition"] == "t5"
    nothing_is_wrong(worker)


@pytest.mark.parametrize("way", ["resume", "fail", "restart"])
def test_a_run_that_does_not_exist_is_created_in_any_case(site: Site, way: str) -> None:
    """What to do with one that exists is another question."""
    assert site.start(ASKING, "new", "--on-existing", way)["current"] == "a"
    assert raw(site, "new") == ["run_created", "transition_opened", "transition_settled"]


def test_following_ends_with_a_cancelled_run(site: Site) -> None:
    """``history --follow`` tells the end and ends itself."""
    site.start(ASKING)
    watching = site.begin("history", "--follow", "--run-id", "r")
    eventually(lambda: watching.stdout or not watching.running, "the past is told")
    site.json("cancel", "--run", "--run-id", "r", "--reason", "no use", "--agent-id", "boss")
    said = watching.wait()
    assert (said.exit_code, said.stdout.splitlines()[-1].split("  ")[1]) == (0, "run_cancelled by boss: no use")


def test_the_active_run_stays_when_another_cannot_be_resumed(site: Site) -> None:
    """A start that is refused because that run is paused or cancelled has begun nothing."""
    site.start(ASKING, "first")
    site.json("pause", "--run-id", "first")
    site.start(ASKING, "second")
    site.json("start", str(site.folder / "first.yaml"), "--run-id", "first", expect=5)
    assert site.json("cur")["run_id"] == "second"


def test_text_says_what_has_become_of_a_run(site: Site) -> None:
    """Each command says where the run stands, and who holds or ended it; so does the prompt for an agent."""
    site.start(ASKING)
    assert site.run("pause", "--run-id", "r", "--reason", "lunch", "--agent-id", "boss").stdout.splitlines() == [
        "Run: r on a  [paused]",
        "Paused by boss: lunch",
    ]
    assert "Paused by boss: lunch" in site.run("cur", "--run-id", "r").stdout.splitlines()
    assert "\nIt is paused by boss (lunch): wait until" in site.run("prompt", "--run-id", "r").stdout
    assert site.run("resume", "--run-id", "r").stdout == "Run: r on a  [active]\n"
    said = site.run("cancel", "--run", "--run-id", "r", "--agent-id", "boss")
    assert said.stdout.splitlines() == ["Run: r on a  [cancelled]", "Cancelled by boss"]
    assert "\nIt was cancelled by boss: do not go on with it." in site.run("prompt", "--run-id", "r").stdout
    assert [run["run_id"] for run in site.json("runs", "--status", "cancelled")["runs"]] == ["r"]
