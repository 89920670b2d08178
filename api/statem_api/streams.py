"""Streams of server-sent events: those of a run, and the feed of all runs.

The id of an event is its place in what is stored, so that a reader who names the last one it has seen gets exactly what
follows. A heartbeat is a comment and has no id. The stream of a run ends with an ``end`` event when the run has ended.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing, suppress
from typing import Any

import msgspec
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from starlette.responses import StreamingResponse

from statem_api.callers import Caller, still_counts
from statem_api.feed import encode_position, reached_by
from statem_api.options import HEARTBEAT_SECONDS
from statem_api.service import Service
from statem_dist.deadline import LOOK_AGAIN_SECONDS
from statem_dist.errors import Unavailable
from statem_dist.eventlog import event_view
from statem_dist.protocol.events import Event
from statem_dist.protocol.model import Run

RETRY_MS = 2_000
"""After how long a reader that has lost its connection comes back."""

EVENTS_AT_ONCE = 500
"""Events that are read before the first of them is sent."""

RECHECK_SECONDS = 1.0
"""How often it is looked whether the token of whoever reads the feed still counts."""

ENDED = ("finished", "cancelled")
"""Statuses after which nothing follows."""


class EventStream(StreamingResponse):
    """A stream of server-sent events, made of frames that are ready to be sent."""

    media_type = "text/event-stream"


def streamed(service: Service, frames: AsyncGenerator[bytes]) -> EventStream:
    """Return the response that sends frames as they come."""

    async def counted() -> AsyncIterator[bytes]:
        with service.metrics.sse_clients.track_inprogress():
            async with aclosing(frames):
                async for frame in frames:
                    yield frame

    return EventStream(counted(), headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"})


def frame(data: Any, *, id: str | None = None, event: str | None = None) -> bytes:
    """Return one event of a stream."""
    return format_sse_event(data_str=msgspec.json.encode(data).decode(), event=event, id=id)


async def run_frames(service: Service, caller: Caller, run_id: str, after: int) -> AsyncGenerator[bytes]:
    """Yield the events of a run after a number, and those to come, until it has ended."""
    yield format_sse_event(retry=RETRY_MS)
    async with aclosing(changes(service, caller, run_id, after)) as changed:
        async for run, events in changed:
            if run is None:
                yield KEEPALIVE_COMMENT
                continue
            for number, event in events:
                yield frame(event_view(number, event), id=str(number))
            if run.status in ENDED and (not events or events[-1][0] >= run.version):
                yield frame({"run_id": run.id, "status": run.status, "version": run.version}, event="end")
                return


async def changes(
    service: Service, caller: Caller, run_id: str, after: int
) -> AsyncGenerator[tuple[Run | None, Sequence[tuple[int, Event]]]]:
    """Yield a run with those of its events that are new, again and again; no run after a time without any.

    It outlasts a store that is away, without looking for it: that would take the threads from those who want to be
    told so. It ends when the run is gone, the caller's token does not count any more, or the service stops.

    Args:
        service: what is read from.
        caller: who listens.
        run_id: the run.
        after: number of the last event that is known.
    """
    store = service.engine.store

    def look(after: int) -> tuple[Run, list[tuple[int, Event]]] | None:
        if not still_counts(service, caller):
            return None
        snapshot = store.load(run_id)
        if snapshot is None:
            return None
        found = (
            store.events(run_id, after, min(EVENTS_AT_ONCE, snapshot.run.version - after))
            if (snapshot.run.version > after)
            else []
        )
        return snapshot.run, found

    with service.announcements.watch(run_id) as watch:
        while not service.stopping:
            if service.announcements.away:
                await watch.woken(HEARTBEAT_SECONDS)
                yield None, ()
                continue
            try:
                seen = await service.call(look, after)
            except Unavailable:
                await watch.woken(LOOK_AGAIN_SECONDS)
                continue
            if seen is None:
                return
            run, events = seen
            if events:
                after = events[-1][0]
            yield run, events
            if after < run.version:
                continue
            if not await watch.wait(run.version, HEARTBEAT_SECONDS):
                yield None, ()


async def feed_frames(
    service: Service, caller: Caller, labels: dict[str, str], positions: list[str]
) -> AsyncGenerator[bytes]:
    """Yield the commits of all runs with these labels after a position, and those to come, each with all its events."""
    yield format_sse_event(retry=RETRY_MS, id=encode_position(positions))
    looked_at = time.monotonic()
    async with aclosing(service.feed.listen(positions, HEARTBEAT_SECONDS)) as heard:
        async for told in heard:
            if time.monotonic() - looked_at > RECHECK_SECONDS:
                looked_at = time.monotonic()
                with suppress(Unavailable):
                    if not await service.call(still_counts, service, caller):
                        return
            if told is None:
                yield KEEPALIVE_COMMENT
            elif told.gap:
                yield frame({"shard": told.shard}, id=encode_position(positions), event="gap")
            elif reached_by(told, labels) and caller.reaches(told.labels):
                yield frame(told.message, id=encode_position(positions))
