"""Whether an agent that wants to stop is told to go on: every rule, and the shape of the answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from statem_dist.resume import Address
from statem_dist.settings import Settings
from statem_dist.stophook import (
    REMINDERS_MAX,
    STOP_STATES,
    HostCall,
    Rules,
    Standing,
    Told,
    Verdict,
    decode_told,
    encode_told,
    judge,
    read_call,
    session_key,
    stop_states,
    tell_human,
)

ADDRESS = Address.of(Settings(state_dir=Path("/here/.statem")), "demo", None)
RUN = Standing(node="plan", entry_id="e1", version=10, exits=("build", "drop"), busy=False, address=ADDRESS)
FIRST = HostCall(session_id="s")
AGAIN = HostCall(session_id="s", stop_hook_active=True)
RULES = Rules()

FIELDS_OF_BOTH = {"continue", "decision", "reason", "stopReason", "suppressOutput", "systemMessage"}
"""What an answer may hold: Codex refuses a document with anything else."""

CLAUDE_CALL = {
    "session_id": "0f",
    "transcript_path": "/t.jsonl",
    "cwd": "/work",
    "hook_event_name": "Stop",
    "stop_hook_active": False,
    "permission_mode": "default",
    "background_tasks": [],
    "session_crons": [],
    "effort": {"level": "high"},
}
CODEX_CALL = {
    "cwd": "/work",
    "hook_event_name": "Stop",
    "last_assistant_message": None,
    "model": "m",
    "permission_mode": "default",
    "session_id": "0f",
    "stop_hook_active": True,
    "transcript_path": None,
    "turn_id": "t",
}


def told(**changes: Any) -> Told:
    """Return what the session was told at the version at which the run stands."""
    return replace(Told(entry_id=RUN.entry_id, version=RUN.version, times=1), **changes)


def kind(verdict: Verdict) -> str:
    """Return what an answer means: go on, stop, or stop with a word to the human; its shape must be that of one."""
    answer = verdict.answer
    assert set(answer) <= FIELDS_OF_BOTH
    assert json.loads(json.dumps(answer)) == answer
    if "decision" in answer:
        assert set(answer) == {"decision", "reason"}
        assert answer["decision"] == "block"
        assert answer["reason"].strip()
        assert verdict.told is not None, "what is said is remembered"
        return "go on"
    assert verdict.told is None
    if answer:
        assert set(answer) == {"systemMessage"}
        return "told"
    return "stop"


@pytest.mark.parametrize(
    ("call", "run", "before", "rules", "expected"),
    [
        (FIRST, RUN, None, RULES, "go on"),
        (FIRST, None, None, RULES, "stop"),
        (FIRST, replace(RUN, exits=()), None, RULES, "stop"),
        (FIRST, replace(RUN, node="done"), None, RULES, "stop"),
        (FIRST, replace(RUN, node="done"), None, Rules(frozenset({"plan"})), "go on"),
        (FIRST, RUN, None, Rules(frozenset({"plan"})), "stop"),
        (FIRST, replace(RUN, busy=True), None, RULES, "stop"),
        (replace(FIRST, background_tasks=[{"id": "b1"}]), RUN, None, RULES, "stop"),
        (replace(FIRST, background_tasks=[]), RUN, None, RULES, "go on"),
        (replace(FIRST, hook_event_name="SubagentStop"), RUN, None, RULES, "stop"),
        (AGAIN, RUN, None, RULES, "told"),
        (AGAIN, RUN, told(), RULES, "told"),
        (AGAIN, RUN, told(version=9), RULES, "go on"),
        (AGAIN, RUN, told(version=9, entry_id="e0", times=REMINDERS_MAX), RULES, "go on"),
        (AGAIN, RUN, told(version=9, times=REMINDERS_MAX - 1), RULES, "go on"),
        (AGAIN, RUN, told(version=9, times=REMINDERS_MAX), RULES, "told"),
        (FIRST, RUN, told(), RULES, "go on"),
        (FIRST, RUN, told(version=9, times=REMINDERS_MAX), RULES, "told"),
        (AGAIN, RUN, told(version=9), Rules(yield_once=True), "stop"),
        (FIRST, RUN, told(version=9), Rules(yield_once=True), "go on"),
    ],
)
def test_each_rule_decides_as_the_table_says(
    call: HostCall, run: Standing | None, before: Told | None, rules: Rules, expected: str
) -> None:
    """The first rule that applies decides; the answer is of a shape that both hosts accept."""
    assert kind(judge(call, run, before, rules)) == expected


def test_a_host_that_never_ends_is_ended() -> None:
    """However often a host asks during one visit, and whatever happens to the run, the agent may stop at last."""
    for call in (FIRST, AGAIN):
        before: Told | None = told(times=0, version=0)
        kinds = []
        for version in range(1, 20):
            verdict = judge(call, replace(RUN, version=version), before, RULES)
            kinds.append(kind(verdict))
            before = verdict.told or before
        assert kinds == ["go on"] * REMINDERS_MAX + ["told"] * (19 - REMINDERS_MAX)


def test_a_new_visit_counts_anew() -> None:
    """What a session was told on one node does not count on the next."""
    verdict = judge(AGAIN, RUN, told(entry_id="e0", version=3, times=REMINDERS_MAX), RULES)
    assert verdict.told == Told(entry_id="e1", version=10, times=1)


def test_the_reason_is_a_prompt_to_go_on_with() -> None:
    """It names run, node and exits, and the commands with the run and the state directory."""
    reason = judge(FIRST, RUN, None, RULES).answer["reason"]
    for part in (
        "Run demo",
        "'plan'",
        "build or drop",
        "statem-dist cur --run-id demo --state-dir /here/.statem",
        "statem-dist goto TARGET --run-id demo --state-dir /here/.statem",
    ):
        assert part in reason


def test_the_reason_calls_the_tool_as_it_is_called_here() -> None:
    """Another command line is used where one is given; with a Redis there is no state directory to name."""
    settings = Settings(state_dir=Path("/here/.statem"), redis_url="redis://r")
    run = replace(RUN, address=Address.of(settings, "demo", "uvx statem-dist"))
    assert "  uvx statem-dist cur --run-id demo\n" in judge(FIRST, run, None, RULES).answer["reason"]


@pytest.mark.parametrize("sent", [CLAUDE_CALL, CODEX_CALL], ids=["claude", "codex"])
def test_what_hosts_send_is_read(sent: dict[str, Any]) -> None:
    """The documents of both hosts are understood, with all their other fields."""
    call = read_call(json.dumps(sent).encode())
    assert (call.session_id, call.stop_hook_active, call.cwd) == ("0f", sent["stop_hook_active"], "/work")


@pytest.mark.parametrize(
    "data",
    [b"", b"  ", b"{", b"[]", b"null", b'{"stop_hook_active": "yes"}', b'{"session_id": 7}', b"\xff", b"[" * 100_000],
)
def test_what_is_no_call_is_refused(data: bytes) -> None:
    """Anything else is an error with a sentence, never another exception."""
    with pytest.raises(ValueError, match="no usable JSON"):
        read_call(data)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (None, STOP_STATES),
        ("", STOP_STATES),
        (",", frozenset()),
        ("review", frozenset({"review"})),
        (" a , b,,", frozenset({"a", "b"})),
    ],
)
def test_stop_states_are_named_with_commas(text: str | None, expected: frozenset[str]) -> None:
    """A list replaces the defaults; a variable that is empty counts as not set."""
    assert stop_states(text) == expected


def test_sessions_have_different_keys() -> None:
    """The same session always has the same key, which is plain text whatever the host calls the session."""
    keys = {session_key("claude", "s"), session_key("codex", "s"), session_key("claude", "\ud800 \n*")}
    assert len(keys) == 3
    assert all(key.isalnum() and key.isascii() for key in keys)
    assert session_key("claude", "s") in keys


def test_what_was_told_is_stored_and_found() -> None:
    """It comes back as it was; what another version wrote counts as nothing."""
    assert decode_told(encode_told(told())) == told()
    assert decode_told(None) is None
    assert decode_told(b"{}") is None


def test_the_human_is_told_why() -> None:
    """The sentence is the whole answer."""
    assert tell_human("x") == {"systemMessage": "statem-dist lets the agent stop: x."}
