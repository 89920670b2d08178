"""Waiting for runs to change: one subscription per process serves all who wait in it.

A wait never trusts an announcement to arrive. Whoever waits reads the run after it has begun to watch, and
every reconnection wakes everybody, so that a lost announcement costs a look and never a hang.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from statem_dist.store import keys
from statem_dist.store.client import Client, Refused, Unreachable

POLL_SECONDS = 1.0
"""How often the listening thread looks whether it is to end; announcements arrive at once."""


class Watch:
    """Interest in one run. ``wait`` returns when the run may have a newer version than the one given."""

    def __init__(self) -> None:
        self._condition = threading.Condition()
        self._announced = 0
        self._wakes = 0

    def wait(self, after: int, timeout: float) -> bool:
        """Block until a version above ``after`` was announced, somebody woke everybody, or time is up.

        Returns False in the last case. What was announced is reported once: a store that has lost writes may stay
        behind it, and whoever waits for that run would not wait at all.

        Args:
            after: the version that the caller has read.
            timeout: seconds.
        """
        with self._condition:
            wakes = self._wakes
            heard = self._condition.wait_for(lambda: self._announced > after or self._wakes != wakes, timeout)
            self._announced = 0
            return heard

    def announce(self, version: int) -> None:
        """Tell that the run has this version now."""
        with self._condition:
            self._announced = max(self._announced, version)
            self._condition.notify_all()

    def wake(self) -> None:
        """Make whoever waits look for itself."""
        with self._condition:
            self._wakes += 1
            self._condition.notify_all()


class Watcher:
    """Listens to the announcements of all shards on one connection, in one thread that starts when needed.

    Args:
        client: how the state store is reached.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._lock = threading.Lock()
        self._watches: dict[str, list[Watch]] = {}
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    @contextmanager
    def watch(self, run_id: str) -> Iterator[Watch]:
        """Watch a run for the length of a ``with`` block; read the run inside, then wait."""
        watch = Watch()
        with self._lock:
            self._watches.setdefault(run_id, []).append(watch)
            if self._thread is None:
                self._thread = threading.Thread(target=self._listen, name="statem-watcher", daemon=True)
                self._thread.start()
        try:
            yield watch
        finally:
            with self._lock:
                self._watches[run_id].remove(watch)
                if not self._watches[run_id]:
                    del self._watches[run_id]

    def close(self) -> None:
        """Tell the listening thread to end, which it does within a second; nobody has to wait for that."""
        self._closed.set()

    def _listen(self) -> None:
        pause = 0.05
        while not self._closed.is_set():
            with suppress(Unreachable, Refused):
                self._listen_once()
            self._wake_all()
            self._closed.wait(pause)
            pause = min(2 * pause, POLL_SECONDS)

    def _listen_once(self) -> None:
        subscription = self._client.subscribe([keys.moved(shard) for shard in range(keys.SHARDS)])
        try:
            while not self._closed.is_set():
                message = subscription.next(POLL_SECONDS)
                if message:
                    self._deliver(message)
                elif message is not None:
                    # Subscribed: whatever was announced before is to be looked for.
                    self._wake_all()
        finally:
            subscription.close()

    def _deliver(self, data: bytes) -> None:
        run_id, _, version = data.decode().rpartition(" ")
        with self._lock:
            watches = list(self._watches.get(run_id, ()))
        for watch in watches:
            watch.announce(int(version))

    def _wake_all(self) -> None:
        with self._lock:
            everybody = [watch for watches in self._watches.values() for watch in watches]
        for watch in everybody:
            watch.wake()
