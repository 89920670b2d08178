"""Streams of server-sent events: those of a run, the feed of all runs, and those of a sweep.

The id of an event is its place in what is stored, so that a reader who names the last one it has seen gets exactly what
follows. A heartbeat is a comment and has no id. The stream of a run ends with an ``end`` event when the run has ended.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from typing import Any

import msgspec
from fastapi.sse import KEEPALIVE_COMMENT, format_sse_event
from starlette.responses import StreamingResponse

from statem_api.announcements import Watch
from statem_api.callers import Caller, still_counts
from statem_api.feed import RETRY_SECONDS, Told, encode_position, reached_by
from statem_api.options import HEARTBEAT_SECONDS
from statem_api.problems import document_of
from statem_api.service import Service
from statem_api.standing import RECHECK_SECONDS
from statem_api.sweep_feed import Told as SweepTold
from statem_dist.deadline import LOOK_AGAIN_SECONDS
from statem_dist.errors import StateRegressed, Unavailable
from statem_dist.eventlog import event_view
from statem_dist.protocol.events import Event
from statem_dist.protocol.model import Run
from statem_dist.regression import state_regressed

RETRY_MS = 2_000
"""After how long a reader that has lost its connection comes back."""

EVENTS_AT_ONCE = 500
"""Events that are read before the first of them is sent."""

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
        try:
            async for run, events in changed:
                if run is None:
                    yield KEEPALIVE_COMMENT
                    continue
                for number, event in events:
                    yield frame(event_view(number, event), id=str(number))
                if run.status in ENDED and (not events or events[-1][0] >= run.version):
                    yield frame({"run_id": run.id, "status": run.status, "version": run.version}, event="end")
                    return
        except StateRegressed as error:
            # Who comes back with the last id is refused with the same problem.
            yield frame(document_of(error), event="regressed")


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
            if run.version < after:
                raise state_regressed(run_id, after, run.version)
            if events:
                after = events[-1][0]
            yield run, events
            if after < run.version:
                continue
            moved = await _moved(service, caller, watch, run.version)
            if moved is None:
                return
            if not moved:
                yield None, ()


async def _moved(service: Service, caller: Caller, watch: Watch, version: int) -> bool | None:
    """Wait until a run has moved on: False when nothing has happened for a while, None when the caller is to go."""
    quiet_since = time.monotonic()
    while time.monotonic() - quiet_since < HEARTBEAT_SECONDS:
        if await watch.wait(version, RECHECK_SECONDS):
            return True
        if await _counts(service, caller, RECHECK_SECONDS) is False:
            return None
    return False


async def _counts(service: Service, caller: Caller, believed_seconds: float) -> bool | None:
    """Return whether the caller's token still counts; None while the store cannot say."""
    try:
        return await service.standing.counts(caller.token, believed_seconds=believed_seconds)
    except Unavailable:
        return None


async def feed_frames(
    service: Service, caller: Caller, labels: dict[str, str], positions: list[str]
) -> AsyncGenerator[bytes]:
    """Yield the commits of all runs with these labels after a position, and those to come, each with all its events."""
    yield format_sse_event(retry=RETRY_MS, id=encode_position(positions))

    async def said() -> AsyncGenerator[bytes | None]:
        async with aclosing(service.feed.listen(positions, RECHECK_SECONDS)) as heard:
            async for told in heard:
                yield _feed_frame(caller, labels, positions, told)

    async with aclosing(_while_it_counts(service, caller, said())) as frames:
        async for each in frames:
            yield each


async def sweep_frames(service: Service, caller: Caller, sweep_id: str, after: str | None) -> AsyncGenerator[bytes]:
    """Yield what happens to a sweep after a position, and to come, until it has ended; without one, a snapshot first.

    The id of an event is the position after it. It ends also when the sweep is gone, the caller's token does not count
    any more, or the service stops.
    """
    yield format_sse_event(retry=RETRY_MS)

    async def said() -> AsyncGenerator[bytes | None]:
        async with aclosing(service.sweep_feed.listen(sweep_id, after, RECHECK_SECONDS)) as heard:
            async for told in heard:
                yield None if told is None else _sweep_frame(told)

    async with aclosing(_while_it_counts(service, caller, said())) as frames:
        async for each in frames:
            yield each


async def _while_it_counts(
    service: Service, caller: Caller, frames: AsyncGenerator[bytes | None]
) -> AsyncGenerator[bytes]:
    """Yield frames while the caller's token counts, and a heartbeat where there are none for a while.

    Args:
        frames: what is to be said; None comes about once a second where that is nothing.
    """
    said_at = time.monotonic()
    # Before the first frame it is looked anew; what was known when the request came may have changed.
    believed_seconds = 0.0
    async with aclosing(frames):
        async for said in frames:
            counts = await _counts(service, caller, believed_seconds)
            while counts is None and said is not None and not service.stopping:
                # Nothing is told to somebody of whom it cannot be known whether it may still hear it.
                yield KEEPALIVE_COMMENT
                await asyncio.sleep(RETRY_SECONDS)
                counts = await _counts(service, caller, believed_seconds)
            if counts is False or (counts is None and service.stopping):
                return
            believed_seconds = RECHECK_SECONDS
            if said is not None or time.monotonic() - said_at >= HEARTBEAT_SECONDS:
                said_at = time.monotonic()
                yield said or KEEPALIVE_COMMENT


def _sweep_frame(told: SweepTold) -> bytes:
    # An end, or a gap, is no place to come back to.
    return frame(told.data, id=None if told.kind in ("gap", "end") else told.position, event=told.kind)


def _feed_frame(caller: Caller, labels: dict[str, str], positions: Sequence[str], told: Told | None) -> bytes | None:
    """Return what is said of an entry of the feed to a caller that asked for labels; None for nothing."""
    if told is None:
        return None
    if told.gap:
        return frame({"shard": told.shard}, id=encode_position(positions), event="gap")
    if reached_by(told, labels) and caller.reaches(told.labels):
        return frame(told.message, id=encode_position(positions))
    return None
