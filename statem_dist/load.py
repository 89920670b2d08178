"""How much work waits in which queue, and who serves it."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct

from statem_dist.protocol.progress import CHECKS_QUEUE, REVIEWS_QUEUE
from statem_dist.roster import WorkerCard
from statem_dist.settings import Settings
from statem_dist.store.base import Snapshot
from statem_dist.store.redis_store import RedisStore

MOVING_RUNS_MAX = 200
"""Runs with a transition in flight whose queues are looked at."""


class QueueLoad(Struct, frozen=True):
    """A queue: messages that wait in it (None where the broker is not the store's Redis) and workers that serve it."""

    queue: str
    waiting: int | None
    workers: int


def queue_loads(store: RedisStore, settings: Settings, present: Sequence[WorkerCard]) -> list[QueueLoad]:
    """Return every queue that is known of: the common ones, those of workers, and those to which open work is pinned.

    Args:
        store: where the runs are kept.
        settings: says which broker is used.
        present: the workers that are there.
    """
    served = [queue for card in present for queue in card.queues]
    return [
        QueueLoad(
            queue=queue,
            waiting=int(store.call("LLEN", queue)) if settings.broker_url is None else None,
            workers=served.count(queue),
        )
        for queue in sorted({CHECKS_QUEUE, REVIEWS_QUEUE, *served, *_pinned(store)})
    ]


def _pinned(store: RedisStore) -> set[str]:
    """Return the queues to which runs with a transition in flight are pinned."""
    moving = store.load_many([run_id for _, run_id in store.marks("moving", MOVING_RUNS_MAX)])
    queues = (found.run.place.queue for found in moving if isinstance(found, Snapshot))
    return {queue for queue in queues if queue is not None}
