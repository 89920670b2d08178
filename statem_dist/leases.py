"""Keeping the leases of all claims that this process holds, in one thread.

A worker that cannot renew a lease ends its own command before the lease ends, so that no check runs twice at
once: whoever takes the claim over finds it stopped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from statem_dist.errors import Unavailable
from statem_dist.store.base import Store

RENEWALS_PER_LEASE = 4
"""A lease survives that many missed renewals less one."""

SAFETY = 0.8
"""Fraction of a lease after which an unrenewed claim is given up, so that its command is gone in time."""


class Held:
    """One claim that is being worked on. ``lost`` turns true when it must be given up."""

    def __init__(self, run_id: str, token: int, on_lost: Callable[[], object]) -> None:
        self.run_id = run_id
        self.token = token
        self.on_lost = on_lost
        self.renewed_at = time.monotonic()
        self.lost = False


class LeaseKeeper:
    """Renews leases for as long as they are held.

    Args:
        store: must give up an unreachable server within a fraction of the lease.
        lease_seconds: length of a lease.
    """

    def __init__(self, store: Store, lease_seconds: float) -> None:
        self._store = store
        self._lease_seconds = lease_seconds
        self._lock = threading.Lock()
        self._held: list[Held] = []
        self._thread: threading.Thread | None = None
        self._closed = threading.Event()

    @contextmanager
    def hold(self, run_id: str, token: int, on_lost: Callable[[], object]) -> Iterator[Held]:
        """Keep a lease for the length of a ``with`` block.

        Args:
            run_id: the run of the claim.
            token: the claim's fencing token; the lease has just been taken.
            on_lost: called once, from another thread, when the claim must be given up.
        """
        held = Held(run_id, token, on_lost)
        with self._lock:
            self._held.append(held)
            if self._thread is None:
                self._thread = threading.Thread(target=self._keep, name="statem-leases", daemon=True)
                self._thread.start()
        try:
            yield held
        finally:
            with self._lock:
                self._held.remove(held)

    def close(self) -> None:
        """End the renewing thread."""
        self._closed.set()

    def _keep(self) -> None:
        while not self._closed.wait(self._lease_seconds / RENEWALS_PER_LEASE):
            with self._lock:
                everything = list(self._held)
            reachable = True
            for held in everything:
                # A store that has just been found away is not asked again for each of the others.
                reachable = self._renew(held, reachable)

    def _renew(self, held: Held, reachable: bool) -> bool:
        """Renew one lease, or judge it by time alone; return whether the store can be reached."""
        if held.lost:
            return reachable
        alive = time.monotonic() - held.renewed_at < SAFETY * self._lease_seconds
        if reachable:
            try:
                alive = self._store.renew(held.run_id, held.token, round(self._lease_seconds * 1000))
                held.renewed_at = time.monotonic()
            except Unavailable:
                reachable = False
                alive = time.monotonic() - held.renewed_at < SAFETY * self._lease_seconds
        if not alive:
            held.lost = True
            held.on_lost()
        return reachable
