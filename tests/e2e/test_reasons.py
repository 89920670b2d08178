"""Why a check ended as it did: each reason of the closed list, brought about by the real thing, as an export has it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any, get_args

import pytest

from statem_dist.protocol.outcome import INFRASTRUCTURE, Reason
from tests.support.programs import Site, eventually
from tests.support.service import WAIT, Api, Caller, serve

pytestmark = pytest.mark.e2e

ONCE = "retry: {maximum_attempts: 1}"

CHECKS = {
    "passed": "{run: 'true'}",
    "check_failed": "{run: 'exit 1'}",
    "timed_out": "{run: 'sleep 618', timeout: 0.2}",
    "signal": "{run: 'kill -9 $$'}",
    "config_error": "{run: 'no-such-program'}",
    "spawn_failed": "{run: 'exit 75', retry: {exit_status: [75], maximum_attempts: 1}}",
    "reviewer_unavailable": f"{{type: llm_review, prompt: Good?, run: 'exit 75', {ONCE}}}",
    "worker_lost": f"{{run: 'kill -9 $PPID; sleep 618', {ONCE}}}",
    "confirmed": "{type: manual, text: Sure?}",
    "rejected": "{type: manual, text: Declined?}",
    "not_confirmed": "{type: manual, text: Unanswered?}",
    "not_asked": "{type: manual, text: Nobody is asked., confirmation: none}",
    "shown": "{type: message, text: Read this.}",
    "approved": "{type: manual, text: Sure?}",
    "expired": "{type: manual, text: Sure?, timeout: 0.5}",
}
"""A check that ends so, when it is all that stands before a move."""

ANSWERS: dict[str, dict[str, Any]] = {
    "confirmed": {"confirm": True},
    "rejected": {"decline": {"Declined?": "no"}},
    "approved": {"on_manual": "wait"},
    "expired": {"on_manual": "wait"},
}

NOT_OF_A_SETTLED_CHECK = {
    "cancelled",  # It is the reason of its transition: what was being executed has no result any more.
    "shutdown",  # What a stopping worker executed is handed back, and executed again.
    "no_reviewer",  # Such a review becomes a question, and has the reason of that.
    "hook_outcome_unknown",  # Of hooks alone; ``test_faults.py`` and ``test_recovery.py`` bring it about.
}


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    """A site with a worker and the service."""
    site = Site()
    try:
        site.worker("-c", "2")
        yield serve(site)
    finally:
        site.close()


def exported(caller: Caller, run_id: str) -> list[dict[str, Any]]:
    """Return the events of a run as its file has them."""
    lines = caller.ask("GET", f"/v1/runs/{run_id}/export", expect=200).text.splitlines()
    values = [json.loads(line)["value"] for line in lines]
    return [value["event"] for value in values if value["kind"] == "event"]


def test_every_reason_of_a_check_is_tested_here() -> None:
    """The list is closed: a reason that is added has to be brought about."""
    assert {*CHECKS, *NOT_OF_A_SETTLED_CHECK} == set(get_args(Reason))
    assert CHECKS.keys().isdisjoint(NOT_OF_A_SETTLED_CHECK)


@pytest.mark.parametrize("reason", CHECKS)
def test_a_reason_stands_in_the_export(api: Api, reason: str) -> None:
    """Of one check, ended in one way: exactly this reason, and the outcome that follows from it."""
    caller, run_id = api.caller("admin"), reason.replace("_", "-")
    text = f"nodes: {{a: {{before_transfer: [{CHECKS[reason]}], next: b}}, b: The end.}}"
    caller.start(text, run_id, workspace=str(api.site.folder))
    pending = caller.http.post(f"/v1/runs/{run_id}/goto{WAIT}", json={"target": "b", **ANSWERS.get(reason, {})})
    if reason == "approved":
        assert pending.status_code == 202
        other = api.caller("operator")
        other.post(f"/v1/runs/{run_id}/transitions/t2/decisions/before_transfer.0{WAIT}", {"approved": True})
    eventually(lambda: not caller.get(f"/v1/runs/{run_id}")["in_flight"], "the transition has settled")
    (settled,) = [event for event in exported(caller, run_id) if event["event"] == "check_settled"]
    assert settled["result"]["outcome"]["reason"] == reason
    passes = settled["result"]["outcome"]["passed"]
    shown = caller.get(f"/v1/runs/{run_id}/transitions/t2")
    assert shown["outcome"] == ("committed" if passes else "error" if reason in INFRASTRUCTURE else "blocked")


def test_why_a_transition_was_cancelled_stands_in_the_export(api: Api) -> None:
    """With who did it; what was being executed has no result, and its process is gone."""
    caller = api.caller("admin")
    text = "nodes: {a: {before_transfer: [{run: 'echo >> begun; sleep 619'}], next: b}, b: The end.}"
    caller.start(text, "stopped", workspace=str(api.site.folder))
    caller.post("/v1/runs/stopped/goto", {"target": "b"}, expect=202)
    eventually(lambda: api.site.lines("begun"), "the check is begun")
    caller.post("/v1/runs/stopped/transitions/t2/cancel", {"reason": "no use"})
    events = exported(caller, "stopped")
    settled = next(event for event in reversed(events) if event["event"] == "transition_settled")
    assert (settled["outcome"], settled["reason"]) == ("cancelled", "no use")
    assert not [event for event in events if event["event"] == "check_settled"]
    eventually(lambda: not api.site.processes("sleep\x00619"), "the command is gone", api.site.processes)
