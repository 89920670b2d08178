"""Waiting for runs and sweeps to change, without a thread for whoever waits: one subscription serves the whole process.

A wait never trusts an announcement to arrive. Whoever waits reads the run after it has begun to watch, and every
reconnection wakes everybody, so that a lost announcement costs a look and never a hang.
"""

from __future__ import annotations

import asyncio
import logging
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from redis.asyncio import Redis
from redis.asyncio.client import PubSub
from redis.asyncio.retry import Retry
from redis.asyncio.sentinel import Sentinel
from redis.backoff import NoBackoff
from redis.exceptions import RedisError

from statem_dist.store import keys
from statem_dist.store.topology import topology_of

POLL_SECONDS = 1.0
"""How often the subscription looks whether its connection still lives."""

PAUSE_SECONDS_MAX = 2.0
"""Longest pause before another try to subscribe."""

_CHANNELS = (*(keys.moved(shard) for shard in range(keys.SHARDS)), keys.SWEEPS_MOVED)
_SWEEPS = keys.SWEEPS_MOVED.encode()

logger = logging.getLogger(__name__)


class Watch:
    """Interest in one run, or in all of them. Belongs to one task of the event loop."""

    def __init__(self) -> None:
        self._called = asyncio.Event()
        self._announced = 0
        self._woken = False

    async def wait(self, after: int, seconds: float) -> bool:
        """Wait until a version above ``after`` was announced, or somebody woke everybody; False when time is up.

        What was announced is reported once: a store that has lost writes may stay behind it.

        Args:
            after: the version that the caller has read.
            seconds: how long at most.
        """
        try:
            async with asyncio.timeout(seconds):
                while not (self._announced > after or self._woken):
                    self._called.clear()
                    await self._called.wait()
        except TimeoutError:
            return False
        self._woken = False
        self._announced = 0
        return True

    async def woken(self, seconds: float) -> bool:
        """Wait until somebody wakes everybody, whatever is announced; False when time is up."""
        return await self.wait(sys.maxsize, seconds)

    def announce(self, version: int) -> None:
        """Tell that the run has this version now."""
        self._announced = max(self._announced, version)
        self._called.set()

    def wake(self) -> None:
        """Make whoever waits look for itself."""
        self._woken = True
        self._called.set()


class Moved:
    """Gathers which sweeps have changed, for the one task that looks after them."""

    def __init__(self) -> None:
        self._called = asyncio.Event()
        self._sweeps: set[str] = set()
        self._all = False

    def announce(self, sweep_id: str) -> None:
        """Tell that a sweep has changed."""
        self._sweeps.add(sweep_id)
        self._called.set()

    def wake(self) -> None:
        """Tell that any sweep may have changed."""
        self._all = True
        self._called.set()

    async def wait(self, seconds: float) -> set[str] | None:
        """Wait until something has changed, and return which sweeps; None for all, also when time is up.

        Args:
            seconds: how long at most.
        """
        try:
            async with asyncio.timeout(seconds):
                await self._called.wait()
        except TimeoutError:
            self._all = True
        sweeps = None if self._all else self._sweeps
        self._called.clear()
        self._sweeps, self._all = set(), False
        return sweeps


class Announcements:
    """Hears of every commit, and of every change of a sweep, and tells those who wait.

    ``away`` says that the store cannot be listened to right now; when it can again, everybody is woken.

    Args:
        redis_url: the state store.
    """

    def __init__(self, redis_url: str) -> None:
        self._redis_url = redis_url
        self._watches: dict[str, set[Watch]] = {}
        self._of_all: set[Watch] = set()
        self._task: asyncio.Task[None] | None = None
        self.sweeps = Moved()
        self.away = False

    def start(self) -> None:
        """Begin to listen, in a task of the running event loop."""
        self._task = asyncio.create_task(self._listen(), name="announcements")

    async def close(self) -> None:
        """Stop listening."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    @contextmanager
    def watch(self, run_id: str) -> Iterator[Watch]:
        """Watch a run for the length of a ``with`` block; read the run inside, then wait."""
        watch = Watch()
        self._watches.setdefault(run_id, set()).add(watch)
        try:
            yield watch
        finally:
            self._watches[run_id].discard(watch)
            if not self._watches[run_id]:
                del self._watches[run_id]

    @contextmanager
    def watch_all(self) -> Iterator[Watch]:
        """Watch all runs for the length of a ``with`` block; each commit wakes."""
        watch = Watch()
        self._of_all.add(watch)
        try:
            yield watch
        finally:
            self._of_all.discard(watch)

    async def _listen(self) -> None:
        pause = 0.05
        client = _client(self._redis_url)
        try:
            while True:
                try:
                    async with client.pubsub() as subscription:
                        await subscription.subscribe(*_CHANNELS)
                        pause = 0.05
                        await self._deliver_all(subscription)
                except (RedisError, OSError) as error:
                    if not self.away:
                        logger.warning("the state store is away: %s", error)
                    self.away = True
                await asyncio.sleep(pause)
                pause = min(2 * pause, PAUSE_SECONDS_MAX)
        finally:
            await client.aclose()

    async def _deliver_all(self, subscription: PubSub) -> None:
        """Pass on what is announced until the connection is lost."""
        while True:
            message = await subscription.get_message(timeout=POLL_SECONDS)
            if message is None:
                continue
            if message["type"] == "message" and message["channel"] == _SWEEPS:
                self.sweeps.announce(bytes(message["data"]).decode())
            elif message["type"] == "message":
                run_id, _, version = bytes(message["data"]).decode().rpartition(" ")
                for watch in self._watches.get(run_id, ()):
                    watch.announce(int(version))
                for watch in self._of_all:
                    watch.wake()
            elif message["data"] == len(_CHANNELS):
                # Subscribed to all of them: whatever was announced before is to be looked for.
                if self.away:
                    logger.info("the state store is back")
                self.away = False
                self.wake_all()

    def wake_all(self) -> None:
        """Make everybody who waits look for themselves."""
        for watches in [*self._watches.values(), self._of_all]:
            for watch in watches:
                watch.wake()
        self.sweeps.wake()


def _client(url: str) -> Redis:
    """Return the client that listens. In a Cluster every node hears of what is announced anywhere."""
    topology = topology_of(url)
    retry = Retry(NoBackoff(), 0)
    if topology is None:
        return Redis.from_url(url, retry=retry, protocol=2)
    if topology.service:
        watchers = Sentinel(topology.servers, sentinel_kwargs=topology.sentinel_credentials)  # type: ignore[no-untyped-call]
        primary: Redis = watchers.master_for(
            topology.service, db=topology.database, retry=retry, protocol=2, **topology.credentials
        )
        return primary
    host, port = random.choice(topology.servers)
    return Redis(host=host, port=port, retry=retry, protocol=2, **topology.credentials)
