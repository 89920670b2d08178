"""The Stop hook of agent hosts: whether an agent that wants to stop is told to go on with its run.

The decision is a function of three facts: what the host says (``HostCall``), where the run stands (``Standing``), and
what this session was told before (``Told``). The first rule that applies decides:

==  ==============================================================  ========================================
1   it is no end of a turn, or the host waits for background tasks  may stop
2   no run is meant                                                 may stop
3   the run stands on an end, or on a stop state                    may stop
4   it waits for somebody's decision, a check is being executed,    may stop
    or the run is paused or cancelled
5   ``yield_once``, and the host goes on because of a Stop hook     may stop
6   the session was told to go on ``REMINDERS_MAX`` times on this   may stop; the human is told
    visit to the node
7   the host goes on because of a Stop hook, and nothing has        may stop; the human is told
    happened to the run since this session was told to go on
8   otherwise                                                       go on, with the commands to go on with
==  ==============================================================  ========================================

Hosts say by one bit (``stop_hook_active``) that they go on because of some Stop hook. That is not enough to end a loop
without also ending a long run at its second node, so the count is kept here, in the state store: Codex has no limit of
its own, and Claude Code's starts anew with each use of a tool.

The answers use only the fields that both hosts know; Codex refuses others. A host that gets no valid JSON complains,
so that even "may stop" is a document.
"""

from __future__ import annotations

from hashlib import sha256
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from statem_dist.resume import Address

Host: TypeAlias = Literal["claude", "codex"]

REMINDERS_MAX = 6
"""How often a session is told to go on during one visit to a node: enough for repairs, too few to burn a quota."""

STOP_STATES = frozenset({"handoff", "done", "complete", "completed", "finished"})
"""Nodes on which an agent may stop, whatever leads out of them; StateM's own defaults."""

MAY_STOP: dict[str, str] = {}
"""The answer that lets the agent stop; both hosts want a document even then."""


class HostCall(Struct, frozen=True):
    """What is used of the JSON that a host sends; it sends more."""

    session_id: str = ""
    stop_hook_active: bool = False
    hook_event_name: str = "Stop"
    cwd: str = ""
    background_tasks: list[Any] | None = None


class Standing(Struct, frozen=True):
    """Where a run stands. ``busy`` says that the agent has nothing to do: the run waits for a decision, somebody
    executes a check, or the run is paused or cancelled."""

    node: str
    entry_id: str
    version: int
    exits: tuple[str, ...]
    busy: bool
    address: Address


class Told(Struct, frozen=True):
    """What a session was told last: at which version of the run, and how often on which visit."""

    entry_id: str
    version: int
    times: int


class Rules(Struct, frozen=True):
    """What can be chosen: the stop states, and never to tell an agent twice in a row to go on."""

    stop_states: frozenset[str] = STOP_STATES
    yield_once: bool = False


class Verdict(Struct, frozen=True):
    """The document for the host, and what to remember before it gets it; None if nothing changes."""

    answer: dict[str, str]
    told: Told | None = None


def read_call(data: bytes) -> HostCall:
    """Return what a host has sent.

    Raises:
        ValueError: it is no JSON object of that kind.
    """
    try:
        return msgspec.json.decode(data, type=HostCall)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ValueError(f"the host has sent no usable JSON ({error})") from error


def stop_states(text: str | None) -> frozenset[str]:
    """Return the stop states that ``STATEM_AUTOLOOP_STOP_STATES`` names, with commas between; else the defaults.

    An empty text means the defaults, as with StateM; a lone comma means none.
    """
    if not text:
        return STOP_STATES
    return frozenset(name.strip() for name in text.split(",")) - {""}


def session_key(host: Host, session_id: str) -> str:
    """Return a short text for a session that is safe in a key, whatever the host calls it."""
    return sha256(f"{host}:{session_id}".encode(errors="surrogatepass")).hexdigest()[:32]


def encode_told(told: Told) -> bytes:
    """Return the stored form of what a session was told."""
    return msgspec.json.encode(told)


def decode_told(document: bytes | None) -> Told | None:
    """Return what a session was told, as it was stored; None if nothing was, or another version wrote it."""
    try:
        return None if document is None else msgspec.json.decode(document, type=Told)
    except msgspec.DecodeError:
        return None


def judge(call: HostCall, run: Standing | None, told: Told | None, rules: Rules) -> Verdict:
    """Decide whether the agent may stop.

    Args:
        call: what the host says.
        run: the run that is meant, or None.
        told: what the session was told before about this run, or None.
        rules: what was chosen.
    """
    if call.hook_event_name != "Stop" or call.background_tasks:
        return Verdict(MAY_STOP)
    if run is None or not run.exits or run.node in rules.stop_states or run.busy:
        return Verdict(MAY_STOP)
    if call.stop_hook_active and rules.yield_once:
        return Verdict(MAY_STOP)
    times = told.times if told is not None and told.entry_id == run.entry_id else 0
    if times >= REMINDERS_MAX:
        return Verdict(tell_human(f"run {run.address.run_id} still stands on {run.node!r} after {times} reminders"))
    if call.stop_hook_active and (told is None or run.version <= told.version):
        return Verdict(tell_human(f"nothing has happened to run {run.address.run_id} on {run.node!r} since a reminder"))
    return Verdict({"decision": "block", "reason": _reason(run)}, Told(run.entry_id, run.version, times + 1))


def tell_human(why: str) -> dict[str, str]:
    """Return the answer that lets the agent stop and tells the human why."""
    return {"systemMessage": f"statem-dist lets the agent stop: {why}."}


def _reason(run: Standing) -> str:
    """Return what the agent reads as its next prompt."""
    address = run.address
    return f"""\
Run {address.run_id} is not finished: it stands on node {run.node!r} (entry {run.entry_id}). Go on with it.
Look at what this node asks for:
  {address.call("cur")}
Do it, then move on, to {" or ".join(run.exits)}:
  {address.call("goto TARGET")}
A blocked goto names what to mend. If only a person can decide, ask for that with:
  {address.call("goto TARGET --on-manual wait")}"""
