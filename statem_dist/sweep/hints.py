"""Messages that wake the slots of workers when trials wait.

They carry nothing but the name of a queue: which trial is next is decided in the store, when a slot takes it. One that
comes too often finds nothing and ends; one that is lost is made up for by a keeper.
"""

from __future__ import annotations

from statem_dist.dispatch import Dispatcher, TrialsWait
from statem_dist.store.redis_store import RedisStore


class Hints:
    """Sends such messages.

    Args:
        store: also the broker, where no other is configured.
        dispatcher: how messages reach workers.
    """

    def __init__(self, store: RedisStore, dispatcher: Dispatcher) -> None:
        self._store = store
        self._dispatcher = dispatcher

    def send(self, queue: str, count: int = 1) -> None:
        """Send so many messages to a queue."""
        owed = [TrialsWait(queue)] * count
        if not owed:
            return
        if pushes := self._dispatcher.pushes(owed):
            self._store.call("LPUSH", queue, *(push.message for push in pushes))
        else:
            self._dispatcher.send(owed)

    def waiting(self, queue: str) -> int:
        """Return how many messages of any kind wait in a queue; 0 where the broker is not the store's Redis."""
        return int(self._store.call("LLEN", queue))
