"""Looking after open sweeps: what makes them independent of any process that works on them.

Every worker process has a keeper, and any number of them may run: what each acts on is compared inside the scripts. A
keeper hands on trials whose worker is gone, stops a sweep when one of its rules says so, wakes slots for trials that
wait, and lets workers forget sweeps that have ended.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable

from statem_dist.checks.process import outlive_commands
from statem_dist.errors import Unavailable
from statem_dist.identity import is_dead, process_here
from statem_dist.roster import Roster
from statem_dist.sweep.budget import lost
from statem_dist.sweep.hints import Hints
from statem_dist.sweep.ledger import Claim, Ledger, OpenSweep
from statem_dist.sweep.model import Sweep, Trial
from statem_dist.sweep.stopping import stop_if_due

INTERVAL_SECONDS = 0.5
"""Pause between two looks at the open sweeps; bounds how late a lost hint is made up for."""

DEAD_EVERY = 4
"""Every so many looks it is asked whether the workers of this host live; leases tell of the others."""

logger = logging.getLogger(__name__)


class Keeper:
    """Looks after open sweeps, again and again, in a thread of its own.

    Args:
        ledger: where they are.
        hints: wakes slots.
        roster: the workers that are there.
    """

    def __init__(self, ledger: Ledger, hints: Hints, roster: Roster) -> None:
        self._ledger = ledger
        self._hints = hints
        self._roster = roster
        self._looks = 0
        self._told: set[str] = set()
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look_for_ever, name="statem-keeper", daemon=True)

    def start(self) -> None:
        """Begin."""
        self._thread.start()

    def close(self) -> None:
        """Stop, after the look that is under way."""
        self._closed.set()

    def look(self) -> None:
        """Look after every open sweep once."""
        self._looks += 1
        ready: dict[str, int] = {}
        for each in self._ledger.open():
            try:
                ready[each.queue] = ready.get(each.queue, 0) + self._look_after(each)
            except Unavailable:
                raise
            except Exception as error:
                # What a newer version has written, or what is damaged, must not keep the others waiting.
                if each.id not in self._told:
                    self._told.add(each.id)
                    logger.error("the sweep %s cannot be looked after: %s", each.id, error, exc_info=error)
        for queue, trials in ready.items():
            self._wake(queue, trials)

    def _look_after(self, each: OpenSweep) -> int:
        """Look after one sweep; return how many of its trials may begin now."""
        sweep = self._ledger.sweep(each.id)
        if sweep is None:
            self._ledger.unpublish(each.id)
            return 0
        self._hand_on(sweep, ask_for_dead=self._looks % DEAD_EVERY == 1)
        if sweep.counts["running"] == 0 and sweep.status in ("finished", "cancelled", "stopped"):
            self._forget(each)
        elif sweep.status == "active" and not stop_if_due(self._ledger, sweep.id, sweep.definition):
            return _may_begin(sweep)
        return 0

    def _forget(self, each: OpenSweep) -> None:
        """Let workers forget a sweep that has ended, unless it is taken up again in this moment."""
        self._ledger.unpublish(each.id)
        now = self._ledger.sweep(each.id)
        if now is not None and now.status in ("active", "paused"):
            self._ledger.publish(each)

    def _wake(self, queue: str, trials: int) -> None:
        """See to it that there are messages for as many slots as can begin a trial."""
        slots = sum(card.slots for card in self._roster.present() if queue in card.queues)
        missing = min(trials, slots) - self._hints.waiting(queue)
        if missing > 0:
            self._hints.send(queue, missing)

    # --- lost workers ----------------------------------------------------------------------------------------------

    def _hand_on(self, sweep: Sweep, *, ask_for_dead: bool) -> None:
        """Let trials go on whose claim has run out, or whose worker of this host is dead."""
        if sweep.counts["running"] == 0:
            return
        lapsed = {claim.number: claim for claim in self._ledger.lapsed(sweep.id)}
        self._settle(sweep, lapsed.values(), lapsed=True)
        if ask_for_dead:
            others = [claim for claim in self._ledger.claims(sweep.id) if claim.number not in lapsed]
            self._settle(sweep, others, lapsed=False)

    def _settle(self, sweep: Sweep, claims: Iterable[Claim], *, lapsed: bool) -> None:
        by_number = {claim.number: claim for claim in claims}
        for trial in self._ledger.trials(sweep.id, by_number):
            attempt = trial.last
            begun = attempt is not None and attempt.outcome is None
            claim = by_number[trial.planned.number]
            # Whoever has just claimed it has not said so yet where the last word is of an earlier claim.
            said = attempt is not None and begun and attempt.claim == claim.token
            if lapsed or (attempt is not None and said and is_dead(attempt.worker)):
                self._settle_one(sweep, trial, claim, lapsed=lapsed)

    def _settle_one(self, sweep: Sweep, trial: Trial, claim: Claim, *, lapsed: bool) -> None:
        attempt = trial.last
        if attempt is None or attempt.outcome is not None:
            # Its worker was lost before it had begun.
            self._ledger.settle(claim, trial.planned.cell, sweep.definition, None, None, lapsed=lapsed)
            return
        if is_dead(attempt.worker) and (process := process_here(attempt.worker)) is not None:
            # Nobody else is to work beside what it may have left.
            outlive_commands(process)
        told, outcome = lost(attempt, self._ledger.clock(), sweep.definition.retries)
        used = None if outcome is None else told.usage
        if self._ledger.settle(claim, trial.planned.cell, sweep.definition, told, outcome, used=used, lapsed=lapsed):
            what = "another one goes on with it" if outcome is None else "it has ended as error"
            logger.warning(
                "the worker %s was lost under trial %d of sweep %s; %s", attempt.worker, claim.number, sweep.id, what
            )

    def _look_for_ever(self) -> None:
        while not self._closed.wait(INTERVAL_SECONDS):
            try:
                self.look()
            except Unavailable as error:
                logger.warning("%s %s", error.message, error.hint)
            except Exception:
                # A defect must not end the thread that sweeps go on by.
                logger.exception("the keeper stumbled")


def _may_begin(sweep: Sweep) -> int:
    """Return how many trials the bound of a sweep lets begin now."""
    bound = sweep.definition.concurrency
    waiting = sweep.counts["pending"]
    return waiting if bound is None else max(0, min(waiting, bound - sweep.counts["running"]))
