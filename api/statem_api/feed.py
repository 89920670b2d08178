"""The feed of all runs: every event of every run, told to whoever listens, filtered by the labels of the run.

One task reads the feed for the whole process and hands what it finds to the listeners. A listener that comes back
names the position that it has reached, reads by itself what it has missed, and then goes on with what was handed to
it meanwhile: without a gap and without a repetition. A position is one entry id per shard.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import json
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Raw, Struct

from statem_api.announcements import Announcements
from statem_dist.errors import Invalid, StatemError, StoredDataUnreadable, Unavailable
from statem_dist.eventlog import event_view
from statem_dist.protocol.events import Event
from statem_dist.store import keys
from statem_dist.store.base import FeedEntry, Snapshot
from statem_dist.store.redis_store import RedisStore

READ_MAX = 200
"""Entries read at a time from one shard."""

HELD_MAX = 1_000
"""Entries that wait for one listener. One that is slower reads by itself what it was not given."""

LOOK_SECONDS = 5.0
"""The feed is read at least that often, whatever was announced."""

RETRY_SECONDS = 1.0
"""Pause before the feed is read again after it could not be."""

_POSITION = re.compile(r"[0-9]{1,20}-[0-9]{1,20}")

Call = Callable[..., Awaitable[Any]]

logger = logging.getLogger(__name__)


class Told(Struct, frozen=True):
    """One commit as every listener is told it, ready as JSON. Without a run, some were missed."""

    shard: int
    position: str
    run_id: str = ""
    labels: dict[str, str] = {}
    message: Raw = Raw()

    @property
    def gap(self) -> bool:
        """Whether this says that something was missed."""
        return not self.run_id


class Feed:
    """Reads the feed once for all listeners of this process.

    Args:
        store: where the runs are kept.
        announcements: hear of new commits.
        call: runs a blocking call elsewhere.
    """

    def __init__(self, store: RedisStore, announcements: Announcements, call: Call) -> None:
        self._store = store
        self._announcements = announcements
        self._call = call
        # None in a queue: what was not handed out is to be read.
        self._listeners: set[asyncio.Queue[Told | None]] = set()
        self._task: asyncio.Task[None] | None = None
        self._wanted = asyncio.Event()
        self._stopping = False

    def start(self) -> None:
        """Begin to read, in a task of the running event loop; nothing is read while nobody listens."""
        self._task = asyncio.create_task(self._read(), name="feed")

    def stop(self) -> None:
        """Let the listeners go."""
        self._stopping = True
        for queue in self._listeners:
            _put(queue, None)

    async def close(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def now(self) -> list[str]:
        """Return the position at which the feed ends now, one entry id per shard."""
        ends: list[str] = await self._call(self._store.feed_ends)
        return ends

    async def listen(self, positions: list[str], heartbeat: float) -> AsyncGenerator[Told | None]:
        """Yield what happens after a position, until the service stops; None where nothing has for a while.

        Args:
            positions: one entry id per shard; moved along with what is yielded.
            heartbeat: seconds without news after which None is yielded.
        """
        queue: asyncio.Queue[Told | None] = asyncio.Queue(HELD_MAX)
        self._listeners.add(queue)
        self._wanted.set()
        behind = True
        try:
            while not self._stopping:
                if behind:
                    # Before anything that was handed out since, also if the store is away for a while.
                    try:
                        async for missed in self._since(positions):
                            yield missed
                        behind = False
                    except Unavailable:
                        yield None
                        await asyncio.sleep(RETRY_SECONDS)
                        continue
                try:
                    async with asyncio.timeout(heartbeat):
                        told = await queue.get()
                except TimeoutError:
                    yield None
                    continue
                if told is None:
                    behind = True
                elif told.gap or _newer(told.position, positions[told.shard]):
                    positions[told.shard] = told.position
                    yield told
        finally:
            self._listeners.discard(queue)
            if not self._listeners:
                self._wanted.clear()

    async def _since(self, positions: list[str]) -> AsyncIterator[Told]:
        """Yield what stands in the feed after positions, and move them along."""
        while True:
            shards: list[list[FeedEntry] | None] = await self._call(self._store.feed_since, positions, READ_MAX)
            if not any(entries is None or entries for entries in shards):
                return
            for shard, entries in enumerate(shards):
                if entries is None:
                    positions[shard] = (await self.now())[shard]
                    yield Told(shard, positions[shard])
                    continue
                for entry in entries:
                    told = await self._told(shard, entry)
                    # Not before it is known what it tells: if that cannot be read now, it is read again.
                    positions[shard] = entry.position
                    if told is not None:
                        yield told

    async def _read(self) -> None:
        """Read what is new whenever something is announced, and hand it to the listeners."""
        while True:
            await self._wanted.wait()
            with suppress(StatemError):
                await self._read_while_wanted()
            await asyncio.sleep(RETRY_SECONDS)

    async def _read_while_wanted(self) -> None:
        with self._announcements.watch_all() as watch:
            positions = await self.now()
            # What was committed between their last look and this position is nobody's otherwise.
            for queue in self._listeners:
                _put(queue, None)
            while self._wanted.is_set():
                await watch.wait(0, LOOK_SECONDS)
                async for told in self._since(positions):
                    self._hand_out(told)

    def _hand_out(self, told: Told) -> None:
        for queue in self._listeners:
            _put(queue, told)

    async def _told(self, shard: int, entry: FeedEntry) -> Told | None:
        """Return what an entry stands for; None for a run that is gone or cannot be read."""
        try:
            found = await self._call(self._look, entry)
        except StoredDataUnreadable as error:
            logger.error("events of the run %s cannot be read: %s", entry.run_id, error)
            return None
        if found is None:
            return None
        labels, events = found
        commit = {"run_id": entry.run_id, "labels": labels, "events": [event_view(*each) for each in events]}
        return Told(shard, entry.position, entry.run_id, labels, Raw(msgspec.json.encode(commit)))

    def _look(self, entry: FeedEntry) -> tuple[dict[str, str], list[tuple[int, Event]]] | None:
        """Return the labels of the run of an entry, and the events of the entry; None for a run that is gone.

        Labels never change, but they are not remembered either: where a store was emptied, another run may have the
        id, and it decides who is told of it.
        """
        found = self._store.load_many([entry.run_id])[0]
        if not isinstance(found, Snapshot):
            return None
        return found.run.labels, self._store.events(entry.run_id, entry.first - 1, entry.last - entry.first + 1)


def reached_by(told: Told, labels: Mapping[str, str]) -> bool:
    """Return whether an entry is of a run with these labels."""
    return labels.items() <= told.labels.items()


def encode_position(positions: Sequence[str]) -> str:
    """Return positions as one word, for the id of an event in a stream."""
    return _word(tuple(positions))


# Most listeners have reached the same position.
@lru_cache(maxsize=64)
def _word(positions: tuple[str, ...]) -> str:
    given = {str(shard): position for shard, position in enumerate(positions) if position != "0-0"}
    return base64.urlsafe_b64encode(json.dumps(given, separators=(",", ":")).encode()).decode().rstrip("=")


def decode_position(text: str) -> list[str]:
    """Return the positions of such a word.

    Raises:
        Invalid: it is none.
    """
    try:
        given = json.loads(base64.urlsafe_b64decode(text + "=" * (-len(text) % 4)))
        positions = [str(given.get(str(shard), "0-0")) for shard in range(keys.SHARDS)]
        for position in positions:
            if _POSITION.fullmatch(position) is None or max(_stamp(position)) >= 2**64:
                raise ValueError(position)
    except (ValueError, AttributeError, RecursionError, binascii.Error) as error:
        raise Invalid(
            "`Last-Event-ID` is no position of the feed.", hint="Leave it out to begin with what comes."
        ) from error
    return positions


def _put(queue: asyncio.Queue[Told | None], told: Told | None) -> None:
    """Hand something to a listener; one that is too slow reads by itself instead what was not handed to it."""
    if queue.full():
        while not queue.empty():
            queue.get_nowait()
        told = None
    queue.put_nowait(told)


def _newer(position: str, than: str) -> bool:
    return _stamp(position) > _stamp(than)


def _stamp(position: str) -> tuple[int, int]:
    milliseconds, _, sequence = position.partition("-")
    return int(milliseconds), int(sequence)
