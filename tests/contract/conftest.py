"""The stores that the contract suite runs against: in memory, on fakeredis, on a real server by either client."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any

import fakeredis
import pytest
import redis

from statem_dist.store import keys
from statem_dist.store.base import Store
from statem_dist.store.client import Client, client_for
from statem_dist.store.redis_client import RedisClient, connect
from statem_dist.store.redis_store import RedisStore
from statem_dist.store.socket_client import SocketClient
from tests.support.builders import EPOCH
from tests.support.memory_store import MemoryStore
from tests.support.servers import RealServer, real_server

PATIENCE_SECONDS = 30.0


class Bench(ABC):
    """A store, and what is needed to look behind it."""

    store: Store

    @abstractmethod
    def messages(self, queue: str) -> list[bytes]:
        """Return the messages of a queue in the order in which workers get them."""

    @abstractmethod
    def due(self, run_id: str) -> int | None:
        """Return when the reaper is to look at a run, in ms by the clock of the store."""

    @abstractmethod
    def let_pass(self, moment: int) -> None:
        """Return when the clock of the store is beyond a moment, in ms."""


class MemoryBench(Bench):
    """Dictionaries."""

    def __init__(self) -> None:
        self.memory = MemoryStore(EPOCH)
        self.store = self.memory

    def messages(self, queue: str) -> list[bytes]:
        """Return the messages of a queue in the order in which workers get them."""
        return self.memory.queues[queue][::-1]

    def due(self, run_id: str) -> int | None:
        """Return when the reaper is to look at a run."""
        return self.memory.due.get(run_id)

    def let_pass(self, moment: int) -> None:
        """Move the clock."""
        self.memory.now = max(self.memory.now, moment + 1)


class RedisBench(Bench):
    """A Redis, real or not.

    Args:
        client: looks behind the store.
        port: what the store itself speaks through; redis-py where it is left out.
    """

    def __init__(self, client: redis.Redis, port: Client | None = None) -> None:
        self.client = client
        self.redis_store = RedisStore(port or RedisClient(client), patience_seconds=PATIENCE_SECONDS)
        self.store = self.redis_store

    def call(self, *command: str | int | bytes) -> Any:
        """Send any command."""
        return self.redis_store.call(*command)

    def messages(self, queue: str) -> list[bytes]:
        """Return the messages of a queue in the order in which workers get them."""
        return list(self.call("LRANGE", queue, 0, -1))[::-1]

    def due(self, run_id: str) -> int | None:
        """Return when the reaper is to look at a run."""
        score = self.call("ZSCORE", keys.due(keys.shard_of(run_id)), run_id)
        return None if score is None else int(score)

    def let_pass(self, moment: int) -> None:
        """Wait for the server's clock, which nobody can move."""
        while True:
            seconds, microseconds = self.call("TIME")
            if int(seconds) * 1000 + int(microseconds) // 1000 > moment:
                return


@pytest.fixture(scope="session")
def real_server_url() -> Iterator[str]:
    """The URL of a real server that the tests of this process share."""
    with real_server() as shared:
        yield shared.url


@pytest.fixture
def private_server() -> Iterator[RealServer]:
    """A real server of this test alone."""
    with real_server() as private:
        yield private


@pytest.fixture(params=["memory", "fakeredis", "real", "socket"])
def bench(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Each store in turn, empty."""
    if request.param == "memory":
        yield MemoryBench()
    else:
        yield from _redis_bench(request)


@pytest.fixture(params=["fakeredis", "real", "socket"])
def redis_bench(request: pytest.FixtureRequest) -> Iterator[RedisBench]:
    """Each Redis in turn, empty."""
    yield from _redis_bench(request)


@pytest.fixture
def real_bench(real_server_url: str) -> Iterator[RedisBench]:
    """The real Redis, empty."""
    with connect(real_server_url) as client:
        client.flushall()
        yield RedisBench(client)


def _redis_bench(request: pytest.FixtureRequest) -> Iterator[RedisBench]:
    client: redis.Redis
    port: Client | None = None
    if request.param == "fakeredis":
        client = fakeredis.FakeRedis(server=fakeredis.FakeServer(), protocol=2)
        client.response_callbacks.clear()
    else:
        url = request.getfixturevalue("real_server_url")
        client = connect(url)
        if request.param == "socket":
            port = client_for(url, quick=True)
            assert isinstance(port, SocketClient)
    with client:
        client.flushall()
        yield RedisBench(client, port)
    if port is not None:
        port.close()
