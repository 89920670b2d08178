"""The reaper finds what somebody owes and nobody does: lost claims, lost messages, tries whose time has come.

Any number may run, and each worker embeds one. What it acts on is compared inside the scripts, so that two
reapers that see the same thing do it once. Its cost grows with what is due, not with the number of runs.
"""

from __future__ import annotations

import logging
import threading

from statem_dist.coordinator import Coordinator
from statem_dist.errors import StatemError, Unavailable

INTERVAL_SECONDS = 0.5
"""Pause between two looks at the due-index; bounds how late a retry or a lost message is noticed."""

LOOK_MAX = 100
"""Runs taken up per shard and look."""

logger = logging.getLogger(__name__)


class Reaper:
    """Looks after overdue runs, again and again, in a thread of its own."""

    def __init__(self, coordinator: Coordinator) -> None:
        self._coordinator = coordinator
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._reap_for_ever, name="statem-reaper", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """Stop, after the look that is under way."""
        self._closed.set()

    def reap_once(self) -> int:
        """Look after every run that is due now; return how many there were."""
        overdue = self._coordinator.store.overdue(LOOK_MAX)
        for reminder in overdue:
            try:
                self._coordinator.tend(reminder)
            except Unavailable:
                raise
            except StatemError as error:
                # One run that cannot be read must not keep the others waiting.
                logger.error("run %s cannot be looked after: %s", reminder.run_id, error.message)
        return len(overdue)

    def _reap_for_ever(self) -> None:
        while not self._closed.wait(INTERVAL_SECONDS):
            try:
                self.reap_once()
            except Unavailable as error:
                logger.warning("%s %s", error.message, error.hint)
            except Exception:
                # A defect must not end the one thread that recovers from defects.
                logger.exception("the reaper stumbled")
