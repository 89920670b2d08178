"""Which workers are there: each announces itself again and again, and is forgotten soon after it stops."""

from __future__ import annotations

import time

import msgspec

from statem_dist.identity import is_dead
from statem_dist.store import keys
from statem_dist.store.redis_store import RedisStore

ANNOUNCE_SECONDS = 3.0
"""How often a worker announces itself."""

PRESENCE_SECONDS = 10.0
"""How long after its last announcement a worker counts as present."""

GLANCE_SECONDS = 0.5
"""How long one look at the roster is good for, for a process that asks again and again."""


class WorkerCard(msgspec.Struct, frozen=True):
    """What a worker says of itself. ``slots`` is how many batches it executes at once."""

    id: str
    queues: tuple[str, ...]
    slots: int
    pool: str
    started_at: int
    version: str


class Roster:
    """The workers of one state store."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._seen: tuple[float, list[WorkerCard]] | None = None

    def announce(self, card: WorkerCard) -> None:
        """Say that a worker is there."""
        life_ms = round(PRESENCE_SECONDS * 1000)
        self._store.call("SET", keys.worker(card.id), msgspec.json.encode(card), "PX", life_ms)
        self._store.call("ZADD", keys.WORKERS, self._store.clock() + life_ms, card.id)
        self._store.call("ZREMRANGEBYSCORE", keys.WORKERS, "-inf", self._store.clock() - life_ms)

    def leave(self, worker_id: str) -> None:
        """Say that a worker is gone."""
        self._store.call("ZREM", keys.WORKERS, worker_id)
        self._store.call("DEL", keys.worker(worker_id))

    def present(self) -> list[WorkerCard]:
        """Return the workers that are there now; one of this host whose process has ended is not."""
        members = self._store.call("ZRANGEBYSCORE", keys.WORKERS, self._store.clock(), "+inf")
        living = [worker for worker in map(bytes.decode, members) if not is_dead(worker)]
        documents = [self._store.call("GET", keys.worker(worker)) for worker in living]
        return [msgspec.json.decode(document, type=WorkerCard) for document in documents if document]

    def serves(self, queue: str) -> bool:
        """Return whether a worker that is there serves a queue; what was read a moment ago still counts."""
        now = time.monotonic()
        if self._seen is None or now - self._seen[0] > GLANCE_SECONDS:
            self._seen = (now, self.present())
        return any(queue in card.queues for card in self._seen[1])
