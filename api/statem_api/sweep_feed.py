"""The feeds of sweeps: what happens to their trials, told to whoever listens, a few times a second at most.

One task reads for the whole process, and only the feeds of sweeps that somebody listens to. Whoever begins gets a
snapshot of all trials; whoever comes back names the position that it has reached and gets what follows, or a snapshot
where the feed does not reach back that far. A position is the id of an entry of the sweep's feed.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Raw, Struct

from statem_api.announcements import Announcements
from statem_dist.errors import StatemError, Unavailable
from statem_dist.sweep.ledger import Census, Change, Ledger, News

BATCH_SECONDS = 0.25
"""Time between two looks at the feeds: what happens meanwhile is told at once."""

LOOK_SECONDS = 5.0
"""The feeds are read at least that often, whatever was announced."""

RETRY_SECONDS = 1.0
"""Pause before the feeds are read again after they could not be."""

CHANGES_MAX = 2_000
"""Changes that are read, and told, at once."""

HELD_MAX = 100
"""Batches that wait for one listener. One that is slower reads by itself what it was not given."""

CENSUS_SECONDS = 1.0
"""How long a snapshot is given to those who come after the one for whom it was made."""

POSITION = re.compile(r"[0-9]{1,15}-[0-9]{1,15}")

Kind: TypeAlias = Literal["snapshot", "gap", "trials", "status", "end"]
Call = Callable[..., Awaitable[Any]]

_START = "0-0"


class Told(Struct, frozen=True):
    """One event as every listener is told it, its data ready as JSON.

    ``position`` is what is known once it was read.
    """

    kind: Kind
    position: str
    data: Raw


class _Batch(Struct, frozen=True):
    """What one look at a feed has found after ``before``; no news when the sweep is gone."""

    before: str
    news: News | None
    told: tuple[Told, ...] = ()


class _Followed:
    """A sweep that somebody listens to. ``position`` is how far its feed was read, None before it was."""

    def __init__(self) -> None:
        # None in a queue: what was not handed out is to be read.
        self.queues: set[asyncio.Queue[_Batch | None]] = set()
        self.position: str | None = None

    def hand_out(self, batch: _Batch | None) -> None:
        """Give a batch to all listeners; one that is too slow reads by itself instead what was not given to it."""
        for queue in self.queues:
            given = batch
            if queue.full():
                while not queue.empty():
                    queue.get_nowait()
                given = None
            queue.put_nowait(given)


class SweepFeed:
    """Reads the feeds of sweeps once for all listeners of this process.

    Args:
        ledger: where sweeps are kept.
        announcements: hear of changes.
        call: runs a blocking call elsewhere.
    """

    def __init__(self, ledger: Ledger, announcements: Announcements, call: Call) -> None:
        self._ledger = ledger
        self._announcements = announcements
        self._call = call
        self._followed: dict[str, _Followed] = {}
        self._censuses: dict[str, tuple[float, asyncio.Future[Told | None]]] = {}
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._stopping = False

    def start(self) -> None:
        """Begin to read, in a task of the running event loop; nothing is read while nobody listens."""
        self._task = asyncio.create_task(self._read(), name="sweep feeds")

    def stop(self) -> None:
        """Let the listeners go."""
        self._stopping = True
        for followed in self._followed.values():
            followed.hand_out(None)

    async def close(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def all_told(self, sweep_id: str, after: str) -> bool:
        """Return whether a sweep has ended, and nothing has happened to it after a position.

        Raises:
            Unavailable: the store cannot say.
        """
        news: News | None = await self._call(self._ledger.news, sweep_id, after, 1)
        return news is not None and news.over and not news.changes and not news.behind

    async def listen(self, sweep_id: str, after: str | None, heartbeat: float) -> AsyncGenerator[Told | None]:
        """Yield what happens to a sweep until it has ended, is gone, or the service stops.

        None comes where nothing has happened for a while.

        Args:
            sweep_id: the sweep.
            after: the position up to which everything is known; None begins with a snapshot.
            heartbeat: seconds without news after which None is yielded.
        """
        queue: asyncio.Queue[_Batch | None] = asyncio.Queue(HELD_MAX)
        followed = self._followed.setdefault(sweep_id, _Followed())
        followed.queues.add(queue)
        self._wanted.set()
        if followed.position is None:
            self._announcements.sweeps.announce(sweep_id)
        position, behind = after, True
        try:
            while not self._stopping:
                if behind:
                    # Before anything that was handed out since, also if the store is away for a while.
                    try:
                        async for told in self._since(sweep_id, position):
                            position = told.position
                            yield told
                            if told.kind == "end":
                                return
                    except Unavailable:
                        yield None
                        await asyncio.sleep(RETRY_SECONDS)
                        continue
                    except _Gone:
                        return
                    behind = False
                try:
                    async with asyncio.timeout(heartbeat):
                        batch = await queue.get()
                except TimeoutError:
                    yield None
                    continue
                if batch is None or batch.news is None or batch.news.anew or position is None:
                    behind = True
                    continue
                for told in batch.told if batch.before == position else _told(sweep_id, batch.news, position):
                    position = told.position
                    yield told
                    if told.kind == "end":
                        return
        finally:
            followed.queues.discard(queue)
            if not followed.queues and self._followed.get(sweep_id) is followed:
                del self._followed[sweep_id]
            if not self._followed:
                self._wanted.clear()

    async def _since(self, sweep_id: str, position: str | None) -> AsyncIterator[Told]:
        """Yield what has happened after a position until now; a snapshot where that cannot be told otherwise.

        Raises:
            _Gone: there is no such sweep.
        """
        not_before = _START
        while True:
            if position is None:
                snapshot = await self._snapshot(sweep_id, not_before)
                position = snapshot.position
                yield snapshot
            news: News | None = await self._call(self._ledger.news, sweep_id, position, CHANGES_MAX)
            if news is None:
                raise _Gone
            if news.behind:
                yield Told("gap", position, _json({"sweep": sweep_id}))
            if news.anew:
                # One that was made before these changes would lead here again.
                position, not_before = None, news.changes[-1].position if news.changes else _START
                continue
            for told in _told(sweep_id, news, position):
                yield told
            position = news.position
            if len(news.changes) < CHANGES_MAX:
                return

    async def _snapshot(self, sweep_id: str, not_before: str) -> Told:
        """Return a snapshot of a sweep, made now or a moment ago for somebody else.

        Args:
            not_before: a position that it has to have reached.

        Raises:
            _Gone: there is no such sweep.
        """
        while True:
            now = time.monotonic()
            made_at, taken = self._censuses.get(sweep_id, (0.0, None))
            if taken is None or now - made_at >= CENSUS_SECONDS:
                for other, (at, _) in list(self._censuses.items()):
                    if now - at >= CENSUS_SECONDS:
                        del self._censuses[other]
                taken = asyncio.ensure_future(self._take_census(sweep_id))
                self._censuses[sweep_id] = (now, taken)
            # One who goes away takes the answer from nobody else.
            told = await asyncio.shield(taken)
            if told is None:
                raise _Gone
            if _stamp(told.position) >= _stamp(not_before):
                return told
            if self._censuses.get(sweep_id, (0.0, None))[1] is taken:
                del self._censuses[sweep_id]

    async def _take_census(self, sweep_id: str) -> Told | None:
        def take() -> Told | None:
            census = self._ledger.census(sweep_id)
            return None if census is None else Told("snapshot", census.position, _snapshot_data(sweep_id, census))

        told: Told | None = await self._call(take)
        return told

    async def _read(self) -> None:
        """Read what is new whenever something is announced, and hand it to the listeners."""
        while True:
            await self._wanted.wait()
            with suppress(StatemError):
                await self._read_while_wanted()
            await asyncio.sleep(RETRY_SECONDS)

    async def _read_while_wanted(self) -> None:
        for followed in self._followed.values():
            followed.position = None
        self._announcements.sweeps.wake()
        while self._wanted.is_set():
            moved = await self._announcements.sweeps.wait(LOOK_SECONDS)
            for sweep_id, followed in list(self._followed.items()):
                if moved is None or sweep_id in moved:
                    await self._advance(sweep_id, followed)
            await asyncio.sleep(BATCH_SECONDS)

    async def _advance(self, sweep_id: str, followed: _Followed) -> None:
        """Read what is new in the feed of a sweep, and hand it out."""
        if followed.position is None:
            followed.position = await self._call(self._ledger.latest_change, sweep_id)
            # What happened between the last look of a listener and this position is nobody's otherwise.
            followed.hand_out(None)
        while True:
            before = followed.position
            news: News | None = await self._call(self._ledger.news, sweep_id, before, CHANGES_MAX)
            if news is None:
                followed.hand_out(_Batch(before, None))
                return
            if news.behind:
                followed.position = await self._call(self._ledger.latest_change, sweep_id)
                followed.hand_out(_Batch(before, news))
                return
            if not news.changes:
                return
            followed.position = news.position
            followed.hand_out(_Batch(before, news, tuple(_told(sweep_id, news, before))))
            if len(news.changes) < CHANGES_MAX:
                return


class _Gone(Exception):
    """There is no such sweep any more."""


def _told(sweep_id: str, news: News, position: str) -> list[Told]:
    """Return the events that tell what is new after a position: trials together, and where the sweep's status changed.

    The order is that of the feed, so that whoever has read an event has missed nothing before its position.
    """
    told: list[Told] = []
    new = [change for change in news.changes if _stamp(change.position) > _stamp(position)]
    while new:
        of_trials = new[0].number > 0
        length = next((at for at, change in enumerate(new) if (change.number > 0) is not of_trials), len(new))
        together, new = new[:length], new[length:]
        data = _trials_data(together) if of_trials else _status_data(sweep_id, news)
        told.append(Told("trials" if of_trials else "status", together[-1].position, data))
    if news.over and len(news.changes) < CHANGES_MAX:
        end = {"sweep": sweep_id, "status": news.status, "reason": news.status_reason, "counts": news.counts}
        told.append(Told("end", told[-1].position if told else position, _json(end)))
    return told


def _trials_data(changes: Sequence[Change]) -> Raw:
    return _json([(change.number, change.to) for change in changes])


def _status_data(sweep_id: str, news: News) -> Raw:
    return _json({"sweep": sweep_id, "status": news.status, "reason": news.status_reason})


def _snapshot_data(sweep_id: str, census: Census) -> Raw:
    return _json(
        {
            "sweep": sweep_id,
            "status": census.status,
            "reason": census.status_reason,
            "planned": len(census.trials),
            "counts": census.counts,
            "trials": census.trials,
        }
    )


def _json(data: Any) -> Raw:
    return Raw(msgspec.json.encode(data))


def _stamp(position: str) -> tuple[int, int]:
    milliseconds, _, sequence = position.partition("-")
    return int(milliseconds), int(sequence)
