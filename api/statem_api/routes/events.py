"""Events: the log of a run, live or in pages; the feed of all runs; and a run as AG-UI tells it."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query
from pydantic import ConfigDict, Field
from pydantic.alias_generators import to_camel
from starlette.responses import Response

from statem_api import agui, bodies
from statem_api.answers import BadRequest, answer, described
from statem_api.callers import Caller, Calling
from statem_api.feed import decode_position
from statem_api.routes.runs import labels_of, reached
from statem_api.service import Service, Serving
from statem_api.streams import ENDED, EventStream, feed_frames, run_frames, streamed
from statem_dist.deadline import Deadline
from statem_dist.decisions import decisions_of
from statem_dist.errors import Invalid
from statem_dist.eventlog import event_log
from statem_dist.protocol.model import Run
from statem_dist.regression import state_regressed

router = APIRouter(prefix="/v1", tags=["events"])

PAGE_MAX = 1_000

STREAM = "text/event-stream"

LastEventId = Annotated[
    str | None, Header(description="The `id` of the last event that was seen; the stream goes on right after it.")
]
Accept = Annotated[str, Header(description=f"`{STREAM}` for a live stream.")]

_FRAME_ID = re.compile(r"([0-9]{1,15})\.([0-9]{1,4})")

_STREAMS: dict[int | str, dict[str, Any]] = {
    200: {
        "description": "Events as they come.",
        "content": {STREAM: {"schema": {"type": "string"}}},
    },
    204: {"description": "The run has ended and every event was seen: there is nothing to come back for."},
}


@router.get(
    "/runs/{run_id}/events",
    responses=described(404, 409)
    | {
        200: {
            "description": "A page of events, or a stream of them.",
            "content": {
                "application/json": {"schema": {"$ref": "#/components/schemas/EventPage"}},
                STREAM: {"schema": {"type": "string"}},
            },
        },
        204: _STREAMS[204],
    },
    response_class=Response,
    summary="The event log of a run",
)
async def run_events(
    run_id: bodies.RunId,
    service: Serving,
    caller: Calling,
    accept: Accept = "*/*",
    last_event_id: LastEventId = None,
    after: Annotated[int, Query(ge=0, le=2**53, description="Number of the last event that is known.")] = 0,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX, description="Of a page.")] = 200,
) -> Response:
    """Give the events of a run: as JSON in pages, or live with `Accept: text/event-stream`.

    The `id` of an event is its number, and `Last-Event-ID` goes on right after it. A heartbeat comes as a comment. The
    stream ends with an `end` event when the run has ended; who comes back after that gets 204. A stream that finds the
    run behind its last event, because the state store has lost writes, ends with a `regressed` event, whose data is the
    problem; who names an event that the run has not got to is refused with it (409).
    """
    run = await service.call(reached, service, caller, run_id)
    if STREAM in accept and last_event_id is not None:
        after = _number(last_event_id)
    if after > run.version:
        raise state_regressed(run_id, after, run.version)
    if STREAM in accept:
        if last_event_id is not None and run.status in ENDED and after >= run.version:
            return Response(status_code=204)
        return streamed(service, run_frames(service, caller, run_id, after))
    items = await service.call(event_log, service.engine.store, run, limit, after)
    next_after = items[-1]["number"] if items else after
    return answer({"items": items, "next_after": next_after, "version": run.version}, version=run.version)


@router.get(
    "/events",
    responses=described() | {200: _STREAMS[200]},
    response_class=EventStream,
    summary="The feed of all runs",
)
async def feed(
    service: Serving,
    caller: Calling,
    label: Annotated[list[str] | None, Query(max_length=20, description="`KEY=VALUE`; repeatable.")] = None,
    last_event_id: LastEventId = None,
) -> Response:
    """Tell of every commit of every run that the caller reaches, live, filtered by labels.

    Each message is one commit: `run_id`, `labels` and its `events`. A `gap` event says that some were missed, because
    the reader was away for too long; whoever needs them reads the event logs of the runs.
    """
    wanted = labels_of(label)
    positions = await service.feed.now() if last_event_id is None else decode_position(last_event_id)
    return streamed(service, feed_frames(service, caller, wanted, positions))


# --- AG-UI -----------------------------------------------------------------------------------------------------------


class Camel(bodies.Text):
    """AG-UI's bodies: camel case, and more fields than we know are no mistake."""

    model_config = ConfigDict(extra="allow", alias_generator=to_camel, populate_by_name=True)


class Resumption(Camel):
    """The answer to one interrupt."""

    interrupt_id: str = Field(max_length=500)
    status: str = Field("resolved", pattern="^(resolved|cancelled)$")
    payload: dict[str, Any] | None = None


class RunAgentInput(Camel):
    """What starts an execution (AG-UI 1.0). The thread is the run."""

    thread_id: bodies.NewRunId
    run_id: Annotated[str, Field(min_length=1, max_length=200)]
    messages: list[dict[str, Any]] = Field(max_length=1_000)
    protocol_version: str | None = None
    forwarded_props: dict[str, Any] | None = Field(
        None, description="`{goto: TARGET}` attempts a transition; what asks is then waited for as an interrupt."
    )
    resume: Annotated[list[Resumption], Field(max_length=100)] | None = None


@router.get(
    "/runs/{run_id}/agui",
    responses=described(404) | _STREAMS,
    response_class=EventStream,
    summary="A run as AG-UI tells it",
)
async def run_agui(
    run_id: bodies.RunId, service: Serving, caller: Calling, last_event_id: LastEventId = None
) -> Response:
    """Tell a run live as AG-UI 1.0 does: from where it stands now, or on from `Last-Event-ID`."""
    run = await service.call(reached, service, caller, run_id)
    seen = None
    if last_event_id is not None:
        found = _FRAME_ID.fullmatch(last_event_id)
        if found is None or not 1 <= int(found[1]) <= run.version:
            raise BadRequest(
                "`Last-Event-ID` is none of this stream.", hint="Leave it out to begin with where it stands."
            )
        seen = (int(found[1]), int(found[2]))
        if run.status in ENDED and await service.call(agui.all_seen, service, run_id, seen):
            return Response(status_code=204)
    return streamed(service, agui.narration(service, caller, run_id, seen))


@router.post(
    "/agui/runs",
    responses=described(404) | {200: _STREAMS[200]},
    response_class=EventStream,
    summary="An AG-UI execution",
)
async def run_agent(body: RunAgentInput, service: Serving, caller: Calling) -> Response:
    """Do what an AG-UI client asks of a run, and tell what comes of it until the run is at rest.

    `resume` answers every open interrupt at once; `forwardedProps.goto` attempts a transition.
    """
    if body.resume is None:
        caller.require("agent", "move runs")
    else:
        caller.require("operator", "answer interrupts")
    await service.call(reached, service, caller, body.thread_id)
    return streamed(
        service,
        agui.execution(service, caller, body.thread_id, body.run_id, lambda run: _act(service, caller, body, run)),
    )


def _act(service: Service, caller: Caller, body: RunAgentInput, run: Run) -> Run:
    """Do what is asked, and return the run after it."""
    engine, no_wait = service.engine, Deadline(0)
    if body.resume is not None:
        return _resume(service, caller, body.resume, run)
    target = (body.forwarded_props or {}).get("goto")
    if target is None:
        return run
    return engine.goto(run.id, str(target), caller.actor(), on_manual="wait", wait=False, deadline=no_wait).run


def _resume(service: Service, caller: Caller, resume: Sequence[Resumption], run: Run) -> Run:
    """Answer every open interrupt; a repeated answer to what is settled already changes nothing.

    Raises:
        Invalid: an answer is to nothing, or one is missing, or says nothing.
    """
    given = {each.interrupt_id: each for each in resume}
    open_ = {decision.id: decision for decision in decisions_of(run)}
    settled = (
        set() if run.transition is None else {f"{run.id}/{run.transition.id}/{id_}" for id_ in run.transition.results}
    )
    if unknown := sorted(given.keys() - open_.keys() - settled):
        raise Invalid(f"No interrupt is open that is called {unknown[0]!r}.")
    if missing := sorted(open_.keys() - given.keys()):
        raise Invalid(f"Every open interrupt has to be answered at once; {missing[0]!r} is not.")
    for interrupt_id, each in given.items():
        if interrupt_id in open_ and all(decision.id != interrupt_id for decision in decisions_of(run)):
            # An answer before it has blocked the transition: nothing asks any more.
            continue
        payload = each.payload or {}
        approved = payload.get("approved", False if each.status == "cancelled" else None)
        if not isinstance(approved, bool):
            raise Invalid(f"The answer to {interrupt_id!r} does not say whether it is approved.")
        _, transition, check = interrupt_id.rsplit("/", 2)
        run = service.engine.decide(
            run.id,
            transition,
            check,
            approved=approved,
            comment=str(payload.get("comment", "")),
            by=caller.decider(),
            operator=True,
            deadline=Deadline(0),
        ).run
    return run


def _number(last_event_id: str) -> int:
    if not re.fullmatch(r"\d{1,15}", last_event_id):
        raise BadRequest("`Last-Event-ID` is no number of an event.", hint="Leave it out to begin with the first.")
    return int(last_event_id)
