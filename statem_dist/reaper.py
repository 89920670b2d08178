"""The reaper finds what somebody owes and nobody does: lost claims, lost messages, tries whose time has come.

Any number may run, and each worker embeds one. What it acts on is compared inside the scripts, so that two
reapers that see the same thing do it once. Its cost grows with what is due, not with the number of runs; and because
one of them looks for all, it does not grow with the number of workers either.
"""

from __future__ import annotations

import logging
import threading
import time
from contextlib import suppress

from statem_dist.coordinator import Coordinator
from statem_dist.errors import StatemError, Unavailable
from statem_dist.leadership import LEASE_SECONDS, Leadership
from statem_dist.store.base import Overdue

INTERVAL_SECONDS = 0.5
"""Pause between two looks at the due-index; bounds how late a retry or a lost message is noticed."""

LOOK_MAX = 100
"""Runs taken up per shard and look."""

PUSHED_BACK_MS = 10_000
"""When to look again at a run that could not be looked after."""

RENEW_SECONDS = LEASE_SECONDS / 3
"""How often a long look says that its reaper still leads."""

RESIGN_SECONDS = 60.0
"""How often at most a reaper that cannot look after some run lets another one try, which may be of a newer version."""

DUTY = "reaper"

logger = logging.getLogger(__name__)


class Reaper:
    """Looks after overdue runs, again and again, in a thread of its own.

    Args:
        coordinator: decides and commits what follows.
        leadership: whether this one is to look; None: always.
    """

    def __init__(self, coordinator: Coordinator, leadership: Leadership | None = None) -> None:
        self._coordinator = coordinator
        self._leadership = leadership
        self._led_at = 0.0
        self._resigned_at = -RESIGN_SECONDS
        self._stuck = False
        self._closed = threading.Event()
        self._seen: frozenset[Overdue] = frozenset()
        self._told: set[str] = set()
        self._thread = threading.Thread(target=self._reap_for_ever, name="statem-reaper", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """Stop, after the look that is under way."""
        self._closed.set()

    def reap_once(self) -> int:
        """Look after every run that is due now; return how many there were.

        Raises:
            Unavailable: the store cannot be used; what was not looked after is found again.
        """
        store = self._coordinator.store
        overdue = store.overdue(LOOK_MAX)
        for reminder in overdue:
            if time.monotonic() - self._led_at > RENEW_SECONDS and self._ask_for_lead():
                # Somebody else leads by now, and finds what is left.
                break
            if reminder in self._seen:
                # Looking at it has not moved it: somebody else was faster, or its run is gone.
                store.forget(reminder.run_id)
            try:
                self._coordinator.tend(reminder)
            except Exception as error:
                # If it is the store that cannot be used, this finds it away as well, and the look ends.
                self._push_back(reminder.run_id, error)
        self._seen = frozenset(overdue)
        return len(overdue)

    def _push_back(self, run_id: str, error: Exception) -> None:
        """Keep a run that cannot be looked after from standing in the way of others; say so once."""
        self._stuck = True
        if run_id not in self._told:
            self._told.add(run_id)
            defect = None if isinstance(error, StatemError) else error
            logger.error("run %s cannot be looked after: %s", run_id, error, exc_info=defect)
        self._coordinator.store.postpone(run_id, PUSHED_BACK_MS)

    def look(self) -> float:
        """Look after what is due if this reaper leads; return the seconds until it is to be called again.

        Raises:
            Unavailable: the store cannot be used.
        """
        if wait := self._ask_for_lead():
            return wait
        self.reap_once()
        return INTERVAL_SECONDS + self._resign_if_stuck()

    def _ask_for_lead(self) -> float:
        """Return 0.0 if this reaper leads, else the seconds until it should ask again."""
        if self._leadership is None:
            return 0.0
        wait = self._leadership.lead()
        self._led_at = time.monotonic()
        return wait

    def _resign_if_stuck(self) -> float:
        """Let another reaper try, now and then, what this one could not do; return how long to stand back for it."""
        stuck, self._stuck = self._stuck, False
        now = time.monotonic()
        if self._leadership is None or not stuck or now - self._resigned_at < RESIGN_SECONDS:
            return 0.0
        self._resigned_at = now
        self._leadership.resign()
        # By then each of the others has asked once.
        return LEASE_SECONDS

    def _reap_for_ever(self) -> None:
        wait = INTERVAL_SECONDS
        while not self._closed.wait(wait):
            wait = INTERVAL_SECONDS
            try:
                wait = self.look()
            except Unavailable as error:
                logger.warning("%s %s", error.message, error.hint)
            except Exception:
                # A defect must not end the one thread that recovers from defects.
                logger.exception("the reaper stumbled")
        if self._leadership is not None:
            with suppress(Unavailable):
                self._leadership.resign()
