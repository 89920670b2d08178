"""A run as AG-UI 1.0 tells it, for user interfaces that speak that protocol.

The thread is the run. What AG-UI calls a run is one execution: it goes from a request until the run has nothing under
way, waits for people, or has ended. A ``goto`` is a tool call, its checks are an activity, a node is a step, and a
check that waits for somebody's decision is an interrupt. Shapes and rules are those of the package ``ag-ui-protocol``
1.0; the tests parse everything that is said here with its models.

``Teller`` is a fold over events, and reads nothing but runbooks by their hash, which never change: a reader who comes
back gets the same frames in the same order.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing
from datetime import UTC, datetime
from functools import cache
from typing import Any

import msgspec
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event

from statem_api.callers import Caller
from statem_api.service import Service
from statem_api.streams import ENDED, RETRY_MS, changes, frame
from statem_dist.decisions import Decision, decisions_of
from statem_dist.engine import Engine
from statem_dist.errors import NotFound, StatemError, StateRegressed
from statem_dist.history import events_after
from statem_dist.protocol.decide import comes_by_itself
from statem_dist.protocol.events import (
    CheckRetrying,
    CheckSettled,
    DecisionRequested,
    Event,
    NodeEntered,
    OutcomeUnknown,
    RepairBegun,
    RunRebound,
    RunRestarted,
    TransitionOpened,
    TransitionSettled,
    WorkClaimed,
    WorkLost,
)
from statem_dist.protocol.evolve import evolve
from statem_dist.protocol.model import PlannedCheck, Run
from statem_dist.protocol.progress import is_of_unknown_outcome, waits_for_people
from statem_dist.waiting import unknown_reason

PROTOCOL_VERSION = "1.0"

ACTIVITY = "STATEM_GATE"
"""Type of the activity that shows the checks of a transition."""

DECISION_SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"approved": {"type": "boolean"}, "comment": {"type": "string"}},
    "required": ["approved"],
}
"""What answers an interrupt."""

FRAMES_MAX = 9_999
"""More frames than one event has; the place of a frame that stands for everything before it."""

Frame = dict[str, Any]


class Teller:
    """Tells the events of a run as AG-UI frames.

    What a node leads to is said by the runbook that the run followed when it stood there, whatever it follows now.

    Args:
        thread: the run's id.
        exits_of: returns the targets of each node's edges, by its name, of the runbook with a hash; may block.
    """

    def __init__(self, thread: str, exits_of: Callable[[str], Mapping[str, list[str]]]) -> None:
        self._thread = thread
        self._exits_of = exits_of
        self._node = ""
        self._exits: Mapping[str, list[str]] = {}
        self._checks: list[str] = []

    def tell(self, number: int, event: Event) -> list[Frame]:
        """Return the frames of one event."""
        match event:
            case TransitionOpened():
                return [*self._opened(event), self._seq(number)]
            case WorkClaimed():
                return self._mark(event.transition, event.checks[0], "running")
            case CheckSettled():
                status = "passed" if event.result.passed else "failed"
                return self._mark(event.transition, event.check, status, event.result.outcome.reason)
            case CheckRetrying():
                return self._mark(event.transition, event.check, "retrying", event.outcome.reason)
            case DecisionRequested():
                return self._mark(event.transition, event.check, "waiting")
            case OutcomeUnknown():
                return self._mark(event.transition, event.check, "outcome_unknown", event.cause)
            case RepairBegun():
                return [*self._repairs(event), self._seq(number)]
            case WorkLost():
                return [{"type": "CUSTOM", "name": "statem.worker_lost", "value": {"transition": event.transition}}]
            case NodeEntered():
                return self._moved(event.node, event.entry_id, number)
            case RunRebound() | RunRestarted():
                self._exits = self._exits_of(event.runbook)
                followed = {
                    "op": "replace",
                    "path": "/runbook",
                    "value": _named(event.runbook_name, event.runbook),
                }
                return self._moved(event.node, event.entry_id, number, followed)
            case TransitionSettled():
                return [*self._settled(number, event), self._seq(number)]
            case _:
                return [self._seq(number)]

    def begin(self, execution: str, run: Run) -> list[Frame]:
        """Return how an execution begins: where the run stands, whole."""
        self._node = run.node
        self._exits = self._exits_of(run.runbook)
        return [
            {
                "type": "RUN_STARTED",
                "threadId": self._thread,
                "runId": execution,
                "protocolVersion": PROTOCOL_VERSION,
            },
            {"type": "STATE_SNAPSHOT", "snapshot": self.snapshot(run)},
            {"type": "STEP_STARTED", "stepName": run.node},
        ]

    def end(self, execution: str, run: Run) -> list[Frame]:
        """Return how an execution ends, with what it waits for if that is people's decisions."""
        decisions = decisions_of(run)
        outcome: dict[str, Any] = {"type": "success"}
        before: list[Frame] = []
        if is_of_unknown_outcome(run):
            # No answer of a user goes on with it: an operator recovers the run.
            broken = {"type": "RUN_ERROR", "message": unknown_reason(run), "code": "statem.outcome_unknown"}
            return [{"type": "STEP_FINISHED", "stepName": self._node}, broken]
        if run.status == "cancelled":
            outcome = {"type": "cancelled"}
        elif decisions:
            outcome = {"type": "interrupt", "interrupts": [interrupt(decision) for decision in decisions]}
            before = [{"type": "STATE_SNAPSHOT", "snapshot": self.snapshot(run)}]
        finished: Frame = {
            "type": "RUN_FINISHED",
            "threadId": self._thread,
            "runId": execution,
            "outcome": outcome,
        }
        if outcome["type"] == "success":
            finished["result"] = {"state": run.node, "status": run.status}
        return [*before, {"type": "STEP_FINISHED", "stepName": self._node}, finished]

    def snapshot(self, run: Run) -> dict[str, Any]:
        """Return the state that deltas change."""
        return {
            "runId": run.id,
            "runbook": _named(run.runbook_name, run.runbook),
            "state": run.node,
            "entryId": run.entry_id,
            "seq": run.version,
            "next": self._exits.get(run.node, []),
        }

    def _opened(self, event: TransitionOpened) -> list[Frame]:
        self._checks = [planned.id for planned in event.plan]
        activity: Frame = {
            "type": "ACTIVITY_SNAPSHOT",
            "messageId": self._id(event.transition),
            "activityType": ACTIVITY,
            "content": {
                "kind": event.kind,
                "from": event.source,
                "to": event.target,
                "checks": [_pending(each) for each in event.plan],
            },
            "replace": True,
        }
        call = self._id(event.transition)
        arguments = {"target": event.target} if event.kind == "goto" else {}
        return [
            {"type": "TOOL_CALL_START", "toolCallId": call, "toolCallName": f"statem.{event.kind}"},
            {"type": "TOOL_CALL_ARGS", "toolCallId": call, "delta": msgspec.json.encode(arguments).decode()},
            {"type": "TOOL_CALL_END", "toolCallId": call},
            activity,
        ]

    def _repairs(self, event: RepairBegun) -> list[Frame]:
        """Return the repairs as further checks of the same activity."""
        self._checks += [planned.id for planned in event.plan]
        return [
            {
                "type": "ACTIVITY_DELTA",
                "messageId": self._id(event.transition),
                "activityType": ACTIVITY,
                "patch": [{"op": "add", "path": "/checks/-", "value": _pending(each)} for each in event.plan],
            }
        ]

    def _mark(self, transition: str, check: str, status: str, reason: str = "") -> list[Frame]:
        if check not in self._checks:
            return []
        place = f"/checks/{self._checks.index(check)}"
        patch = [{"op": "replace", "path": f"{place}/status", "value": status}]
        if reason:
            patch.append({"op": "add", "path": f"{place}/reason", "value": reason})
        return [
            {
                "type": "ACTIVITY_DELTA",
                "messageId": self._id(transition),
                "activityType": ACTIVITY,
                "patch": patch,
            }
        ]

    def _moved(self, node: str, entry_id: str, number: int, *further: Mapping[str, Any]) -> list[Frame]:
        left, self._node = self._node, node
        patch = [
            {"op": "replace", "path": "/state", "value": node},
            {"op": "replace", "path": "/entryId", "value": entry_id},
            {"op": "replace", "path": "/next", "value": self._exits.get(node, [])},
            {"op": "replace", "path": "/seq", "value": number},
            *further,
        ]
        return [
            {"type": "STEP_FINISHED", "stepName": left},
            {"type": "STATE_DELTA", "delta": patch},
            {"type": "STEP_STARTED", "stepName": node},
        ]

    def _settled(self, number: int, event: TransitionSettled) -> list[Frame]:
        content = {
            "ok": event.outcome == "committed" and event.stage is None,
            "outcome": event.outcome,
            "current": self._node,
            **({"stage": event.stage} if event.stage else {}),
            **({"reason": event.reason} if event.reason else {}),
        }
        return [
            {
                "type": "TOOL_CALL_RESULT",
                "messageId": f"{self._id(event.transition)}#{number}",
                "toolCallId": self._id(event.transition),
                "content": msgspec.json.encode(content).decode(),
                "role": "tool",
            }
        ]

    def _seq(self, number: int) -> Frame:
        return {"type": "STATE_DELTA", "delta": [{"op": "replace", "path": "/seq", "value": number}]}

    def _id(self, transition: str) -> str:
        return f"{self._thread}/{transition}"


def teller_of(run: Run, engine: Engine) -> Teller:
    """Return who tells a run; it reads from the store what runbook the run followed when."""

    @cache
    def exits_of(runbook: str) -> Mapping[str, list[str]]:
        try:
            found = engine.runbook(runbook)
        except NotFound:
            # A run that was imported, or whose store has lost it: the rest can be told all the same.
            return {}
        return {node.name: [edge.target for edge in found.exits(node.name)] for node in found.nodes}

    return Teller(run.id, exits_of)


def _pending(planned: PlannedCheck) -> dict[str, Any]:
    """Return a check that has not begun, as the activity shows it."""
    shown = {"id": planned.id, "kind": planned.check.type, "name": planned.check.name or "", "status": "pending"}
    return shown | ({"repairs": planned.repairs} if planned.repairs else {})


def _named(name: str, digest: str) -> str:
    return f"{name}@sha256:{digest}"


def interrupt(decision: Decision) -> dict[str, Any]:
    """Return a decision that is waited for as an interrupt."""
    expires = datetime.fromtimestamp(decision.expires_at / 1000, tz=UTC).isoformat() if decision.expires_at else None
    return {
        "id": decision.id,
        "reason": "confirmation",
        "message": f"{decision.source} -> {decision.target}: {decision.question}",
        "responseSchema": DECISION_SCHEMA,
        **({"expiresAt": expires} if expires else {}),
    }


def at_rest(run: Run) -> bool:
    """Return whether an execution ends here: nothing is under way but what waits for people."""
    return run.in_flight is None or (waits_for_people(run) and not comes_by_itself(run))


class Narrator:
    """Tells a run from its first event on, with the beginnings and ends of its executions between.

    Args:
        teller: what it says of each event.
    """

    def __init__(self, teller: Teller) -> None:
        self._teller = teller
        self._execution = ""
        self.run: Run | None = None

    def tell(self, number: int, event: Event) -> list[Frame]:
        """Return the frames of the next event."""
        before = self.run
        after = self.run = evolve(before, event)
        if before is None:
            self._teller.begin("", after)
            return []
        frames: list[Frame] = []
        if at_rest(before):
            self._execution = f"exec_{number}"
            frames = self._teller.begin(self._execution, before)
        frames += self._teller.tell(number, event)
        return [*frames, *self._teller.end(self._execution, after)] if at_rest(after) else frames

    def now(self) -> list[Frame]:
        """Return where the run stands, for somebody who has seen nothing of it."""
        assert self.run is not None, "a run is told from its first event on"
        execution = self._execution or f"exec_{self.run.version}"
        frames = self._teller.begin(execution, self.run)
        return [*frames, *self._teller.end(execution, self.run)] if at_rest(self.run) else frames


async def narration(
    service: Service, caller: Caller, run_id: str, seen: tuple[int, int] | None
) -> AsyncGenerator[bytes]:
    """Yield a run as AG-UI tells it, from where it stands now, or from the last frame that was seen.

    Args:
        service: what is read from.
        caller: who listens.
        run_id: the run.
        seen: number of the event and place among its frames, as the id of a frame gives them.
    """
    yield format_sse_event(retry=RETRY_MS)
    narrator, told = await service.call(_told_until, service, run_id, seen[0] if seen else None)
    assert narrator.run is not None
    after = narrator.run.version
    if seen is None:
        for told_now in narrator.now():
            yield frame(told_now, id=f"{after}.{FRAMES_MAX}")
    else:
        for place, missed in enumerate(told[seen[1] + 1 :], start=seen[1] + 1):
            yield frame(missed, id=f"{after}.{place}")
    async with aclosing(changes(service, caller, run_id, after)) as changed:
        try:
            async for run, events in changed:
                if run is None:
                    yield KEEPALIVE_COMMENT
                    continue
                for number, event in events:
                    for place, said in enumerate(await service.call(narrator.tell, number, event)):
                        yield frame(said, id=f"{number}.{place}")
                if run.status in ENDED and narrator.run.version >= run.version:
                    return
        except StateRegressed as error:
            yield frame(_run_error(error))


def _run_error(error: StatemError) -> Frame:
    return {"type": "RUN_ERROR", "message": error.message, "code": f"statem.{error.code}"}


def all_seen(service: Service, run_id: str, seen: tuple[int, int]) -> bool:
    """Return whether a frame is the last one of all that there is to tell of a run so far."""
    narrator, told = _told_until(service, run_id, seen[0])
    latest = service.engine.run(run_id).version
    return narrator.run is not None and narrator.run.version >= latest and seen[1] + 1 >= len(told)


def _told_until(service: Service, run_id: str, number: int | None) -> tuple[Narrator, list[Frame]]:
    """Return who has told a run up to an event (None: all), and the frames of that event."""
    engine = service.engine
    run = engine.run(run_id)
    narrator = Narrator(teller_of(run, engine))
    last: list[Frame] = []
    for at, event in events_after(engine.store, run, 0):
        if number is not None and at > number:
            break
        last = narrator.tell(at, event)
    return narrator, last


async def execution(
    service: Service, caller: Caller, run_id: str, execution_id: str, act: Callable[[Run], Run]
) -> AsyncGenerator[bytes]:
    """Yield one execution: where the run stands, what is asked of it, and what comes of that.

    Args:
        service: what is read from.
        caller: who asks.
        run_id: the run.
        execution_id: what the caller calls the execution.
        act: does what is asked, and returns the run after it.
    """
    engine = service.engine
    run = await service.call(engine.run, run_id)
    teller = teller_of(run, engine)
    for said in await service.call(teller.begin, execution_id, run):
        yield frame(said)
    try:
        acted = await service.call(act, run)
    except StatemError as error:
        yield frame(_run_error(error))
        return
    if at_rest(run) and acted.version == run.version:
        for said in teller.end(execution_id, run):
            yield frame(said)
        return
    async with aclosing(changes(service, caller, run_id, run.version)) as changed:
        try:
            async for now, events in changed:
                if now is None:
                    yield KEEPALIVE_COMMENT
                for number, event in events:
                    run = evolve(run, event)
                    for said in await service.call(teller.tell, number, event):
                        yield frame(said, id=str(number))
                    if number >= acted.version and at_rest(run):
                        for said in teller.end(execution_id, run):
                            yield frame(said)
                        return
        except StateRegressed as error:
            yield frame(_run_error(error))
