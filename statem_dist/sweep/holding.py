"""Holding the trials that this process drives: their leases, and being told when one is to be given up.

Two clocks, as for the leases of checks. The leases are renewed as long as the store answers. A trial whose last renewal
was asked for too long ago is given up early enough for its agent to be ended before the lease runs out by the server's
clock: what is given up here may be driven by somebody else next.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, TypeAlias

from statem_dist.deadline import Deadline
from statem_dist.errors import StatemError
from statem_dist.leases import INSIST_SECONDS, MARGIN, RENEWAL_SECONDS_MAX, RENEWALS_PER_LEASE
from statem_dist.sweep.ledger import Claim, Ledger

Why: TypeAlias = Literal["", "shutdown", "lost", "cancelled"]
"""Why a trial is given up: this process stops, the claim is lost, or the sweep was cancelled; empty while it is not."""

logger = logging.getLogger(__name__)


class Held:
    """One trial that is being driven here.

    Args:
        claim: the claim on it.
        until: what the driver goes by; it passes when the trial is given up.
        end: ends what is being executed for it; called again and again until the trial is let go.
        renew_more: renews whatever else is held for it.
    """

    def __init__(
        self, claim: Claim, until: Deadline, end: Callable[[Why], object], renew_more: Callable[[], object]
    ) -> None:
        self.claim = claim
        self.until = until
        self.end = end
        self.renew_more = renew_more
        self.why: Why = ""
        self.asked_at = time.monotonic()

    def give_up(self, why: Why) -> None:
        """Give the trial up; the first reason counts."""
        self.why = self.why or why
        self.until.expire()


class Holding:
    """Everything that this process drives.

    Args:
        ledger: must give up an unreachable server within a fraction of the lease.
        lease_seconds: length of a lease.
        kill_grace_seconds: how long a command may take to end.
    """

    def __init__(self, ledger: Ledger, lease_seconds: float, kill_grace_seconds: float) -> None:
        self._ledger = ledger
        self.lease_ms = round(lease_seconds * 1000)
        self._renewal_seconds = min(lease_seconds / RENEWALS_PER_LEASE, RENEWAL_SECONDS_MAX)
        self._trusted_seconds = max(lease_seconds / 2, (1 - MARGIN) * lease_seconds - kill_grace_seconds)
        self._lock = threading.Lock()
        self._held: list[Held] = []
        self._started = False
        self._over: Why = ""
        self._closed = threading.Event()

    @contextmanager
    def hold(self, held: Held) -> Iterator[Held]:
        """Keep the lease of a trial for the length of a ``with`` block."""
        with self._lock:
            self._held.append(held)
            if self._over:
                held.give_up(self._over)
            if not self._started:
                self._started = True
                for name, work in (("statem-trials", self._renew_for_ever), ("statem-trials-clock", self._look)):
                    threading.Thread(target=work, name=name, daemon=True).start()
        try:
            yield held
        finally:
            with self._lock:
                self._held.remove(held)

    def give_up_all(self, why: Why) -> None:
        """Give every trial up, those too that are about to be held."""
        with self._lock:
            self._over = why
        for held in self._everything():
            held.give_up(why)

    def close(self) -> None:
        """End both threads."""
        self._closed.set()

    def renew(self) -> None:
        """Renew every lease that is held, once; give up what is lost or cancelled."""
        by_sweep: dict[str, list[Held]] = {}
        for held in self._everything():
            if held.why in ("", "shutdown"):
                by_sweep.setdefault(held.claim.sweep_id, []).append(held)
        for sweep_id, members in by_sweep.items():
            asked_at = time.monotonic()
            try:
                status, lost = self._ledger.renew(sweep_id, [held.claim for held in members], self.lease_ms)
            except StatemError as error:
                logger.warning("the trials of sweep %s cannot be renewed: %s", sweep_id, error.message)
                return
            for held in members:
                if held.claim.token in lost:
                    held.give_up("lost")
                    continue
                held.asked_at = asked_at
                held.renew_more()
                if status == "cancelled":
                    held.give_up("cancelled")

    def _everything(self) -> list[Held]:
        with self._lock:
            return list(self._held)

    def _renew_for_ever(self) -> None:
        while not self._closed.wait(self._renewal_seconds):
            try:
                self.renew()
            except Exception:
                # A defect must not end the thread that keeps every other trial.
                logger.exception("trials cannot be renewed")

    def _look(self) -> None:
        """Give up what was not renewed in time, and insist on the end of what is given up."""
        while not self._closed.wait(INSIST_SECONDS):
            for held in self._everything():
                if time.monotonic() - held.asked_at >= self._trusted_seconds:
                    held.give_up("lost")
                if held.why:
                    try:
                        held.end(held.why)
                    except Exception:
                        logger.exception("trial %d cannot be ended", held.claim.number)
