"""A worker dies in the middle of a hook, or is stopped there: what the operator sees, and each way out; and repairs."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import HAS_PROC, Program, Site, eventually
from tests.support.service import WAIT, Api, serve

pytestmark = [pytest.mark.e2e, pytest.mark.chaos]

HANGS_ONCE = """
nodes:
  a:
    out_hook:
      - {run: "echo $STATEM_CHECK_KEY $STATEM_FENCING_TOKEN >> begun; [ $(wc -l < begun) -gt 1 ] || sleep 617"}
    next: b
  b: The end.
"""
"""A hook that hangs the first time that it is executed, and then does not."""

REPAIRED = """
nodes:
  a:
    out_hook:
      - {run: "echo one >> log", repair: {run: "echo undo $STATEM_REPAIRS $STATEM_REPAIRS_KEY >> log"}}
      - run: "echo two $STATEM_CHECK_KEY >> log; touch begun; sleep 617"
        repair:
          - {run: "echo undo $STATEM_REPAIRS $STATEM_REPAIRS_KEY >> log"}
          - {run: "echo $STATEM_PURPOSE $STATEM_CHECK_KEY >> log"}
    next: b
  b: The end.
"""

PLAIN_AFTER_REPAIRED = """
nodes:
  a:
    out_hook:
      - {run: "echo one >> log", repair: {run: "echo undo one >> log"}}
      - {run: "echo two >> log; touch begun; sleep 617"}
    next: b
  b: The end.
"""


def begun(place: Path) -> None:
    """Wait until the hook has been begun."""
    eventually((place / "begun").exists, "the hook has been begun")


def killed_in_a_hook(site: Site, runbook: str) -> Program:
    """Kill a worker in the middle of a hook of the run ``r``; return the caller that waits for its transition."""
    site.start(runbook)
    worker = site.worker("-c", "1")
    caller = site.begin("goto", "b", "--run-id", "r", "--json")
    begun(site.folder)
    os.kill(worker.pid, signal.SIGKILL)
    site.worker("-c", "1")
    return caller


def outcome(site: Site) -> tuple[str, str | None]:
    """Return how the last ``goto`` ended, and why."""
    entry = site.history()[-1]
    return entry["event"], entry.get("reason")


@pytest.mark.skipif(not HAS_PROC, reason="what is left of a process tree can be seen in /proc only")
def test_the_state_is_visible_and_whoever_waits_is_answered(site: Site) -> None:
    """The caller exits with 1 and is told the way out; every reading command shows the state, and nothing runs."""
    said = killed_in_a_hook(site, HANGS_ONCE).wait()
    assert said.exit_code == 1
    assert "statem-dist recover r" in said.data["error"]
    (unknown,) = said.data["details"]["outcome_unknown"]
    assert (unknown["check"], unknown["cause"], said.data["details"]["outcome"]) == (
        "out_hook.0",
        "worker_lost",
        "pending",
    )
    looked = site.json("cur", "--run-id", "r")
    assert (looked["status"], looked["current"]) == ("outcome_unknown", "a")
    assert looked["in_flight"]["outcome_unknown"] == [unknown]
    assert unknown["worker"] in looked["in_flight"]["waiting_reason"]
    assert [run["run_id"] for run in site.json("runs", "--status", "outcome_unknown")["runs"]] == ["r"]
    shown = site.run("cur", "--run-id", "r").stdout
    for way in ("--resume", "--abort", "--mark passed|failed"):
        assert way in shown
    refused = site.json("goto", "b", "--run-id", "r", expect=5)
    assert "statem-dist recover r" in refused["hint"]
    assert site.history() == []
    eventually(lambda: not site.processes("sleep\x00617"), "the hook has ended", site.processes)


def test_resume_executes_the_hook_again_with_the_same_key(site: Site) -> None:
    """The worker that is there takes it; key and environment are those of the first execution, the token is newer."""
    killed_in_a_hook(site, HANGS_ONCE).wait()
    done = site.json("recover", "r", "--resume", "--by", "alice")
    assert (done["recovered"], done["outcome"], done["current"]) == ("resume", "committed", "b")
    (first, token), (second, newer) = (line.split() for line in site.lines("begun"))
    assert first == second == "r-e1.t2.out_hook.0"
    assert int(token) < int(newer)
    (entry,) = site.history()
    assert [(each["way"], each["checks"], each["by"]) for each in entry["recovered"]] == [
        ("resume", ["out_hook.0"], "alice")
    ]


def test_abort_gives_the_transition_up(site: Site) -> None:
    """It ends as an error of the name that it always had; the hook is not executed again."""
    killed_in_a_hook(site, HANGS_ONCE).wait()
    done = site.json("recover", "r", "--abort", "--reason", "better not")
    assert (done["outcome"], done["reason"], done["current"]) == ("error", "hook_outcome_unknown", "a")
    assert outcome(site) == ("goto_error", "hook_outcome_unknown")
    assert len(site.lines("begun")) == 1
    assert site.json("recover", "r", "--abort", expect=5)["code"] == "conflict"


@pytest.mark.parametrize(("mark", "code", "node"), [("passed", 0, "b"), ("failed", 2, "a")])
def test_a_mark_is_recorded_as_a_decision(site: Site, mark: str, code: int, node: str) -> None:
    """Who said it and why is the result of the check, and the transition goes by it."""
    killed_in_a_hook(site, HANGS_ONCE).wait()
    assert "--reason" in site.json("recover", "r", "--mark", mark, expect=64)["error"]
    site.json("recover", "r", "--mark", mark, "--reason", "I looked", "--by", "alice", expect=code)
    assert site.json("cur", "--run-id", "r")["current"] == node
    (entry,) = site.history()
    results = entry["out_hook"] if mark == "passed" else entry["results"]
    assert [(each["tier"], each["by"], each["output"], each["passed"]) for each in results] == [
        ("decision", "alice", "I looked", mark == "passed")
    ]
    assert len(site.lines("begun")) == 1


def test_a_hook_with_a_repair_needs_no_operator(site: Site) -> None:
    """What was begun is undone in reverse order, with the keys of the hooks; the caller gets the end of it."""
    said = killed_in_a_hook(site, REPAIRED).wait()
    assert (said.exit_code, said.data["details"]["reason"]) == (1, "hook_outcome_unknown")
    assert site.lines("log") == [
        "one",
        "two r-e1.t2.out_hook.1",
        "undo out_hook.1 r-e1.t2.out_hook.1",
        "repair r-e1.t2.repair.1",
        "undo out_hook.0 r-e1.t2.out_hook.0",
    ]
    (entry,) = site.history()
    repairs = [
        (each["id"], each["repairs"], each["passed"]) for each in entry["results"] if each["purpose"] == "repair"
    ]
    assert repairs == [
        ("repair.0", "out_hook.1", True),
        ("repair.1", "out_hook.1", True),
        ("repair.2", "out_hook.0", True),
    ]


def test_abort_repairs_what_was_begun_before(site: Site) -> None:
    """The hook of unknown outcome has no repair, and the one before it has."""
    killed_in_a_hook(site, PLAIN_AFTER_REPAIRED).wait()
    assert site.lines("log") == ["one", "two"]
    assert site.json("recover", "r", "--abort")["reason"] == "hook_outcome_unknown"
    assert site.lines("log") == ["one", "two", "undo one"]


def test_a_repair_whose_worker_is_killed_is_executed_again(site: Site) -> None:
    """At least once: the next worker begins it anew, and the transition ends as it would have."""
    site.start(
        "nodes: {a: {out_hook: [{run: 'exit 1', repair: {run: 'echo $$ >> begun; "
        "[ $(wc -l < begun) -gt 1 ] || sleep 617'}}], next: b}, b: The end.}"
    )
    worker = site.worker("-c", "1")
    caller = site.begin("goto", "b", "--run-id", "r", "--json")
    begun(site.folder)
    os.kill(worker.pid, signal.SIGKILL)
    site.worker("-c", "1")
    assert caller.wait().exit_code == 2
    assert (site.events(), len(site.lines("begun"))) == (["goto_blocked"], 2)


def test_a_killed_caller_without_a_worker_leaves_the_same(site: Site) -> None:
    """In the embedded instance the next command finds the outcome unknown; resuming executes it in the caller."""
    site.start(HANGS_ONCE)
    caller = site.begin("goto", "b", "--run-id", "r")
    begun(site.folder)
    caller.kill()
    assert site.json("cur", "--run-id", "r")["status"] == "outcome_unknown"
    assert site.json("recover", "r", "--resume")["current"] == "b"
    assert len(site.lines("begun")) == 2


def test_a_worker_that_is_stopped_in_a_hook_says_so(site: Site) -> None:
    """After its grace the hook is ended; the state is the same, and names the shutdown."""
    site.start(HANGS_ONCE)
    worker = site.worker("-c", "1", "--grace", "0.2")
    caller = site.begin("goto", "b", "--run-id", "r", "--json")
    begun(site.folder)
    worker.terminate()
    said = caller.wait()
    assert said.exit_code == 1
    assert [each["cause"] for each in said.data["details"]["outcome_unknown"]] == ["shutdown"]
    assert "was shut down while it ran" in said.data["error"]


def test_recover_all_lists_and_does_what_is_safe(site: Site) -> None:
    """Dead claims and what nobody began are found in a rehearsal, and nothing changes; then they are seen to."""
    site.start(HANGS_ONCE)
    site.start(HANGS_ONCE, "idle")
    site.start(HANGS_ONCE, "held")
    site.json("goto", "b", "--run-id", "held", "--no-wait")
    site.json("pause", "--run-id", "held")
    worker = site.worker("-c", "1")
    site.json("goto", "b", "--run-id", "r", "--no-wait")
    begun(site.folder)
    os.kill(worker.pid, signal.SIGKILL)
    eventually(lambda: not worker.running, "the worker is gone")
    site.json("goto", "b", "--run-id", "idle", "--no-wait")

    def found(*words: str, expect: int = 0) -> list[tuple[str, str]]:
        said = site.json("recover", "--all", *words, expect=expect)
        return sorted((each["run_id"], each["trouble"]) for each in said.get("details", said)["found"])

    both = [("idle", "not_begun"), ("r", "claim_lost")]
    eventually(lambda: found("--dry-run") == both, "both are found", lambda: found("--dry-run"))
    before_it = site.json("runs")
    assert found("--dry-run") == both
    assert site.json("runs") == before_it, "a rehearsal changes nothing"
    before = int(site.redis("LLEN", "checks"))
    said = site.json("recover", "--all", expect=1)["details"]
    assert {each["run_id"] for each in said["done"]} >= {"idle"}
    assert [(each["run_id"], each["remedy"]) for each in said["found"]] == [("r", "an operator decides")]
    assert int(site.redis("LLEN", "checks")) > before, "what is owed was sent once more"
    assert found("--dry-run")[-1] == ("r", "outcome_unknown")


# --- through the service ------------------------------------------------------------------------------------------


@pytest.fixture
def api(site: Site) -> Api:
    """A service on the site."""
    return serve(site)


def unknown_run(site: Site, api: Api) -> dict[str, Any]:
    """Return the answer to a ``goto`` that waits, whose worker is killed in the middle of the hook."""
    admin = api.caller("admin")
    admin.start(HANGS_ONCE, workspace=str(site.folder))
    worker = site.worker("-c", "1")
    admin.post("/v1/runs/r/goto", {"target": "b"}, expect=202)
    begun(site.folder)
    os.kill(worker.pid, signal.SIGKILL)
    site.worker("-c", "1")
    answer: dict[str, Any] = admin.get(f"/v1/runs/r/transitions/t2{WAIT}")
    return answer


def test_the_service_shows_it_and_takes_an_operators_word(site: Site, api: Api) -> None:
    """A wait is cut short with the reason; agents may not recover; version and key count as for any other change."""
    seen = unknown_run(site, api)
    assert (seen["outcome"], [each["check"] for each in seen["outcome_unknown"]]) == ("pending", ["out_hook.0"])
    assert "statem-dist recover r" in seen["waiting_reason"]
    admin, agent, url = api.caller("admin"), api.caller("agent"), "/v1/runs/r/recover"
    assert admin.get("/v1/runs/r")["status"] == "outcome_unknown"
    assert [run["run_id"] for run in admin.get("/v1/runs?status=outcome_unknown")["items"]] == ["r"]
    mark = {"way": "passed", "reason": "I looked", "check": "out_hook.0", "transition": "t2"}
    assert agent.post(url, mark, expect=403)["code"] == "not_authorised"
    assert admin.post(url, {"way": "passed"}, expect=422)["code"] == "invalid"
    assert admin.post(url, mark, expect=412, headers={"If-Match": '"1"'})["code"] == "stale_version"
    terms = {"If-Match": f'"{seen["version"]}"', "Idempotency-Key": "k"}
    moved = api.caller("operator").post(url, mark, headers=terms)
    assert (moved["outcome"], moved["current"], moved["ok"]) == ("committed", "b", True)
    assert admin.post(url, mark, expect=409)["code"] == "conflict"
    told = admin.get("/v1/runs/r/history")["history"][-1]
    assert [(each["way"], each["by"]) for each in told["recovered"]] == [("passed", "operator")]


def test_a_repeated_recovery_is_answered_and_not_done_again(site: Site, api: Api) -> None:
    """The idempotency key stands for the first answer."""
    unknown_run(site, api)
    admin, url = api.caller("admin"), "/v1/runs/r/recover"
    first, second = (
        admin.post(url, {"way": "abort", "reason": "no"}, headers={"Idempotency-Key": "k"}) for _ in range(2)
    )
    assert first["outcome"] == second["outcome"] == "error"
    assert first["version"] == second["version"]
    reused = admin.post(url, {"way": "resume"}, expect=422, headers={"Idempotency-Key": "k"})
    assert reused["code"] == "idempotency_key_reused"


def test_the_remote_command_line_recovers(site: Site, api: Api) -> None:
    """The same command, and a service says who it was."""
    unknown_run(site, api)
    site.environment |= {"STATEM_URL": api.url, "STATEM_TOKEN": api.token("admin")}
    refused = site.json("recover", "--all", expect=64)
    assert "runs --status outcome_unknown" in refused["hint"]
    waiting = site.json("goto", "b", "--run-id", "r", expect=5)
    assert "statem-dist recover r" in waiting["hint"]
    site.environment["STATEM_TOKEN"] = api.token("operator")
    done = site.json("recover", "r", "--resume")
    assert (done["outcome"], done["current"]) == ("committed", "b")


def test_live_streams_tell_of_it(site: Site, api: Api) -> None:
    """The event is in the log of the run, and AG-UI ends the execution with an error that says who can go on."""
    unknown_run(site, api)
    events = [each["event"] for each in site.json("history", "--raw", "--run-id", "r")["events"]]
    assert events[-2:] == ["work_lost", "outcome_unknown"]
    with api.caller("admin").stream("/v1/runs/r/agui") as stream:
        frames = (json.loads(message["data"]) for message in stream.messages())
        broken = next(frame for frame in frames if frame["type"] in ("RUN_ERROR", "RUN_FINISHED"))
    assert (broken["type"], broken["code"]) == ("RUN_ERROR", "statem.outcome_unknown")
