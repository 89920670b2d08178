"""Keeping the leases of all claims that this process holds.

Two threads. One renews, and may be held up by a store that does not answer. The other looks at the clock alone: a
claim whose last renewal was asked for too long ago is given up early enough for its command to be ended before the
lease runs out by the server's clock. What is given up here may be taken over by somebody else.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from statem_dist.errors import StatemError
from statem_dist.store.base import Store

RENEWALS_PER_LEASE = 4
"""A lease survives that many missed renewals less one."""

RENEWAL_SECONDS_MAX = 2.0
"""Longest pause between two renewals: as late may a worker learn that its transition was cancelled."""

MARGIN = 0.1
"""Fraction of a lease that is kept for everything between giving up and the end of the command."""

INSIST_SECONDS = 0.5
"""How often whoever holds a lost claim is told again, until it lets go."""

logger = logging.getLogger(__name__)


class Held:
    """One claim that is being worked on. ``lost`` turns true when it must be given up.

    ``asked_at`` is when the last renewal that was granted was asked for, on the monotonic clock: the lease began no
    earlier than that.
    """

    def __init__(
        self, run_id: str, token: int, on_lost: Callable[[], object], asked_at: float, operation: str = ""
    ) -> None:
        self.run_id = run_id
        self.token = token
        self.operation = operation
        self.on_lost = on_lost
        self.asked_at = asked_at
        self.lost = False


class LeaseKeeper:
    """Renews leases for as long as they are held.

    Args:
        store: must give up an unreachable server within a fraction of the lease.
        lease_seconds: length of a lease.
        kill_grace_seconds: how long a command may take to end.
    """

    def __init__(self, store: Store, lease_seconds: float, kill_grace_seconds: float = 0.0) -> None:
        self._store = store
        self._lease_ms = round(lease_seconds * 1000)
        self._renewal_seconds = min(lease_seconds / RENEWALS_PER_LEASE, RENEWAL_SECONDS_MAX)
        # A lease that is not much longer than the grace leaves half of itself for work all the same.
        self._trusted_seconds = max(lease_seconds / 2, (1 - MARGIN) * lease_seconds - kill_grace_seconds)
        self._changed = threading.Condition()
        self._held: list[Held] = []
        self._started = False
        self._closed = threading.Event()

    @contextmanager
    def hold(
        self,
        run_id: str,
        token: int,
        on_lost: Callable[[], object],
        asked_at: float | None = None,
        operation: str = "",
    ) -> Iterator[Held]:
        """Keep a lease for the length of a ``with`` block.

        Args:
            run_id: the run of the claim.
            token: the claim's fencing token; the lease has just been taken.
            on_lost: called from another thread when the claim must be given up, again and again until it is.
            asked_at: when the lease was asked for, on the monotonic clock; now if that is not known. A claim that
                took long to be answered may be somebody else's by now: then it is lost from the beginning.
            operation: the one that made the claim, if that is known.
        """
        now = time.monotonic()
        held = Held(run_id, token, on_lost, now if asked_at is None else asked_at, operation)
        if now - held.asked_at > self._renewal_seconds:
            self._renew(held)
        with self._changed:
            self._held.append(held)
            self._changed.notify_all()
            if not self._started:
                self._started = True
                self._start()
        try:
            yield held
        finally:
            with self._changed:
                self._held.remove(held)

    def close(self) -> None:
        """End both threads."""
        self._closed.set()
        with self._changed:
            self._changed.notify_all()

    def _start(self) -> None:
        """Begin to renew and to watch the clock; called when the first lease is held."""
        for name, work in (("statem-leases", self._renew_again_and_again), ("statem-clock", self._watch_the_clock)):
            threading.Thread(target=work, name=name, daemon=True).start()

    def renew(self) -> None:
        """Renew every lease that is held, once."""
        with self._changed:
            everything = list(self._held)
        for held in everything:
            if not held.lost and not self._renew(held):
                # A store that has just been found away is not asked again for each of the others.
                break

    def give_up_overdue(self) -> float | None:
        """Give up what has not been renewed in time, and insist on what was given up.

        Returns:
            After how many seconds to look again, or None when nothing is held.
        """
        with self._changed:
            now = time.monotonic()
            for held in self._held:
                held.lost = held.lost or now - held.asked_at >= self._trusted_seconds
            lost = [held for held in self._held if held.lost]
            ends = [held.asked_at + self._trusted_seconds - now for held in self._held if not held.lost]
        for held in lost:
            held.on_lost()
        return min([*ends, *([INSIST_SECONDS] if lost else [])], default=None)

    def _renew(self, held: Held) -> bool:
        """Renew one lease, or learn that it is lost; return whether the store answered."""
        asked_at = time.monotonic()
        try:
            if self._store.renew(held.run_id, held.token, self._lease_ms, held.operation):
                held.asked_at = asked_at
                return True
        except StatemError as error:
            logger.warning("the lease of run %s cannot be renewed: %s", held.run_id, error.message)
            return False
        except Exception:
            # A defect must not end the thread that keeps every other claim.
            logger.exception("the lease of run %s cannot be renewed", held.run_id)
            return False
        held.lost = True
        with self._changed:
            self._changed.notify_all()
        return True

    def _renew_again_and_again(self) -> None:
        while not self._closed.wait(self._renewal_seconds):
            self.renew()

    def _watch_the_clock(self) -> None:
        while not self._closed.is_set():
            pause = self.give_up_overdue()
            with self._changed:
                self._changed.wait(pause)
