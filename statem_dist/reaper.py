"""The reaper finds what somebody owes and nobody does: lost claims, lost messages, tries whose time has come.

Any number may run, and each worker embeds one. What it acts on is compared inside the scripts, so that two
reapers that see the same thing do it once. Its cost grows with what is due, not with the number of runs.
"""

from __future__ import annotations

import logging
import threading

from statem_dist.coordinator import Coordinator
from statem_dist.errors import StatemError, Unavailable
from statem_dist.store.base import Overdue

INTERVAL_SECONDS = 0.5
"""Pause between two looks at the due-index; bounds how late a retry or a lost message is noticed."""

LOOK_MAX = 100
"""Runs taken up per shard and look."""

PUSHED_BACK_MS = 10_000
"""When to look again at a run that could not be looked after."""

logger = logging.getLogger(__name__)


class Reaper:
    """Looks after overdue runs, again and again, in a thread of its own."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
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
        """Look after every run that is due now; return how many there were."""
        store = self._coordinator.store
        overdue = store.overdue(LOOK_MAX)
        for reminder in overdue:
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
        if run_id not in self._told:
            self._told.add(run_id)
            defect = None if isinstance(error, StatemError) else error
            logger.error("run %s cannot be looked after: %s", run_id, error, exc_info=defect)
        self._coordinator.store.postpone(run_id, PUSHED_BACK_MS)

    def _reap_for_ever(self) -> None:
        while not self._closed.wait(INTERVAL_SECONDS):
            try:
                self.reap_once()
            except Unavailable as error:
                logger.warning("%s %s", error.message, error.hint)
            except Exception:
                # A defect must not end the one thread that recovers from defects.
                logger.exception("the reaper stumbled")
