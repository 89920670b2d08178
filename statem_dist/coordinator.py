"""The only loop that changes runs: load, decide, commit, dispatch.

Nothing here holds a transition: whoever records a result decides what follows from it. A lost race is answered
by deciding anew on the newer state, a bounded number of times.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Sequence
from contextlib import suppress

from msgspec import Struct

from statem_dist.dispatch import Dispatcher
from statem_dist.errors import Conflict, HistoryFull, NotFound, StaleVersion, StateRegressed, StoreReset
from statem_dist.protocol.commands import (
    ClaimWork,
    Command,
    ExpireClaim,
    ExpireDecision,
    Goto,
    Import,
    RecordOutcomes,
    Restart,
    Resume,
    ReturnWork,
    Save,
    Start,
)
from statem_dist.protocol.decide import decide
from statem_dist.protocol.events import Event, RunCreated, RunImported
from statem_dist.protocol.evolve import evolve
from statem_dist.protocol.model import Run
from statem_dist.protocol.progress import Batch, pending
from statem_dist.regression import Knowledge, Seen, is_lost, new_operation, state_regressed
from statem_dist.settings import Settings
from statem_dist.store.base import Change, Identity, Overdue, Snapshot, Store
from statem_dist.store.codec import Receipt

REMIND_MS_MAX = 600_000
"""Longest interval between two dispatches of work that waits in a busy queue."""

OWN_KNOWLEDGE = (ClaimWork, RecordOutcomes, ReturnWork, ExpireClaim, ExpireDecision)
"""Commands of those who execute and look after runs. They name what they are about, and what else their process has
seen of the run does not concern them."""

HISTORY_WARNING = 0.8
"""The part of its events that a run may have used before it is warned of their end."""


logger = logging.getLogger(__name__)


class Applied(Struct, frozen=True):
    """What a command led to: the run as it is now, and the events it added (none when it changed nothing).

    ``asked_at`` is when the commit was first sent, on the monotonic clock: no lease that it took began earlier.
    ``operation`` is the one that wrote the run as it is (empty if that is not known).
    """

    run: Run
    events: tuple[Event, ...]
    asked_at: float = 0.0
    operation: str = ""


class Terms(Struct, frozen=True):
    """On what terms a command is carried out.

    ``if_version`` is the only version of the run that it is meant for (None: any). ``request`` is the id that the
    caller has given it, so that a repetition is known for what it is, and ``fingerprint`` stands for what was asked.
    """

    if_version: int | None = None
    request: str = ""
    fingerprint: str = ""


NO_TERMS = Terms()


class Coordinator:
    """Applies commands to stored runs.

    Args:
        store: where runs are kept.
        dispatcher: where work goes that a commit leaves unclaimed.
        settings: limits; the lease and the grace of hints are used here.
    """

    def __init__(self, store: Store, dispatcher: Dispatcher, settings: Settings) -> None:
        self.store = store
        self.dispatcher = dispatcher
        self.settings = settings
        self._lease_ms = round(settings.lease_seconds * 1000)
        self._grace_ms = round(settings.hint_grace_seconds * 1000)
        self.knowledge = Knowledge()
        self._identity: Identity | None = None

    def load(self, run_id: str) -> Snapshot:
        """Return the run.

        Raises:
            NotFound: there is no run of that id.
        """
        snapshot = self._look(run_id)
        if snapshot is None:
            raise self._missing(run_id)
        return snapshot

    def recognise_store(self) -> bool:
        """Remember which store this is, for as long as the process lives; return whether it is another one by now."""
        found = self.store.identity()
        self._identity = self._identity or found
        return found != self._identity

    def refuse_regressed(self, run_id: str) -> None:
        """Refuse whoever means a future of a run that the store was found to have lost.

        Raises:
            StateRegressed: the store is behind what this process has seen of the run; said once.
        """
        self.knowledge.refuse(run_id)

    def apply(self, run_id: str, command: Command, seen: Snapshot | None = None, terms: Terms = NO_TERMS) -> Applied:
        """Decide a command on the stored run and commit what follows.

        Args:
            run_id: the run.
            command: what is asked for.
            seen: the run as the caller has just read it; it is read again only after a lost race.
            terms: when it counts, and what is kept of it.

        Raises:
            NotFound: there is no such run, and the command does not create one.
            HistoryFull: the run has as many events as it may have, and the command would begin something.
            StaleVersion: the run is not at the version that the terms name.
            StateRegressed: the store has lost what the caller, or this process, has seen of the run.
            Conflict: somebody else was faster in every one of the tries; nothing was written.
            StatemError: whatever the decider rejects the command with.
        """
        operation = new_operation()
        for attempt in range(self.settings.conflict_attempts_max):
            if attempt:
                time.sleep(random.uniform(0, 0.002 * 2 ** min(attempt, 6)))
            snapshot = seen if seen is not None and attempt == 0 else self._look(run_id)
            if snapshot is None and not isinstance(command, Start | Import):
                raise self._missing(run_id)
            if snapshot is not None:
                self._refuse_lost(snapshot, seen, command, terms)
            before = snapshot.run if snapshot else None
            if before is not None:
                refuse_stale(before, terms)
            now = snapshot.now if snapshot else self.store.clock()
            events = decide(before, command, now)
            if not events:
                assert before is not None, "a command on nothing creates a run"
                return Applied(run=before, events=(), operation=snapshot.operation if snapshot else "")
            if isinstance(command, Goto | Save | Resume | Restart):
                self._refuse_full(before)
            applied = self._commit(before, events, operation, now, terms, snapshot.operation if snapshot else "")
            if applied is not None:
                self._warn_of_end(before, applied.run)
                return applied
        raise Conflict(
            f"Run {run_id!r} changed {self.settings.conflict_attempts_max} times while this was decided.",
            hint="Try again; nothing was written.",
            details={"run_id": run_id},
        )

    def adopt(self, events: Sequence[Event]) -> Run:
        """Take over a run as the events make it that it had elsewhere; return it.

        Raises:
            Conflict: there is a run of that id already.
        """
        applied = self._commit(None, list(events), new_operation(adoption=True), self.store.clock())
        if applied is None:
            first = events[0]
            assert isinstance(first, RunCreated | RunImported), "a run begins with its creation"
            raise run_exists(first.run_id)
        return applied.run

    def record(self, run: Run, command: RecordOutcomes | ReturnWork, operation: str = "") -> Applied:
        """Record what came of a claim on a run that the caller has written last; it is read again after a lost race.

        Args:
            run: as the caller has written it.
            command: what came of it.
            operation: the one that wrote it, if that is known.

        Raises:
            StateRegressed: the store has lost what the caller has written: its claim was never made.
        """
        operations = f" {operation}:{run.version}" if operation else ""
        try:
            return self.apply(run.id, command, Snapshot(run, self.store.clock(), {}, operations=operations))
        except StateRegressed:
            self.store.count_loss("claim")
            raise

    def tend(self, overdue: Overdue) -> None:
        """Look after a run whose reminder is due: expire lost claims, dispatch again what nobody took."""
        # What the store was found to have lost is told by this; what is stored goes on.
        snapshot = self._look(overdue.run_id)
        if snapshot is None:
            return
        if events := _overdue_events(snapshot):
            # On a lost race nothing is written: whoever was faster has set a new reminder.
            self._commit(snapshot.run, events, new_operation(), snapshot.now, follows=snapshot.operation)
            return
        batches = [batch for batch in pending(snapshot.run) if batch.not_before <= snapshot.now]
        again = self._again_ms(snapshot, hinted=bool(batches))
        pushes = self.dispatcher.pushes(batches)
        if self.store.remind(overdue, snapshot.run.version, again, pushes, hinted=bool(batches)):
            self.dispatcher.send(batches)

    def _look(self, run_id: str) -> Snapshot | None:
        """Return a run as it is stored, and notice if that is behind what this process has seen of it."""
        known = self.knowledge.of(run_id)
        snapshot = self.store.load(run_id)
        if snapshot is not None and self.knowledge.compare(snapshot, known):
            self.store.count_loss("run")
        return snapshot

    def _refuse_lost(self, snapshot: Snapshot, seen: Snapshot | None, command: Command, terms: Terms) -> None:
        """Refuse what was decided on a lost future of the run, and what was found out for a run that is gone."""
        another = seen is not None and seen.run.created_at != snapshot.run.created_at
        if another and isinstance(command, RecordOutcomes | ReturnWork):
            # One that was made anew under its id has the same transitions and tokens.
            raise run_not_found(snapshot.run.id)
        if seen is not None and seen is not snapshot and is_lost(Seen.of(seen), snapshot):
            # What this process has just found out is said by this.
            with suppress(StateRegressed):
                self.knowledge.refuse(snapshot.run.id)
            raise state_regressed(snapshot.run.id, seen.run.version, snapshot.run.version)
        if isinstance(command, OWN_KNOWLEDGE):
            return
        # Who names a version says by that what was seen.
        with suppress(*(() if terms.if_version is None else (StateRegressed,))):
            self.knowledge.refuse(snapshot.run.id)

    def _missing(self, run_id: str) -> NotFound:
        """Return the error for a run that is not there: it never was, was removed, or the store has lost everything."""
        known = self.knowledge.of(run_id)
        if known is None and self._identity is None:
            return run_not_found(run_id)
        found = self.store.identity()
        another = self._identity is not None and found != self._identity
        if another or (known is not None and known.created_at < found.since):
            from statem_dist.history import timestamp

            return StoreReset(
                f"Run not found: {run_id}. The state store was reset: it began anew at {timestamp(found.since)}.",
                hint="What was in it before is gone. Was the append-only log off, or another file put in its place?",
                details={"run_id": run_id, "store": found.id, "store_since": found.since},
            )
        return run_not_found(run_id)

    def _refuse_full(self, run: Run | None) -> None:
        """Refuse to begin something on a run that has as many events as it may have; what is open may go on.

        Raises:
            HistoryFull: it has.
        """
        events_max = self.settings.history_events_max
        if run is not None and run.version >= events_max:
            raise HistoryFull(
                f"Run {run.id!r} has {run.version} events; from {events_max} on a run begins nothing more.",
                hint="Go on with a new run, or raise STATEM_HISTORY_EVENTS_MAX for everybody who begins transitions.",
                details={"run_id": run.id, "version": run.version, "history_events_max": events_max},
            )

    def _warn_of_end(self, before: Run | None, after: Run) -> None:
        """Tell the log of a service or a worker, once, that the events of a run come to their end."""
        told = history_warning(after, self.settings)
        if told is not None and (before is None or history_warning(before, self.settings) is None):
            logger.warning("%s", told)

    def _commit(
        self,
        before: Run | None,
        events: list[Event],
        operation: str,
        now: int,
        terms: Terms = NO_TERMS,
        follows: str = "",
    ) -> Applied | None:
        after = before
        for event in events:
            after = evolve(after, event)
        assert after is not None
        batches = _newly_owed(before, after, now)
        change = Change(
            before=before,
            after=after,
            events=tuple(events),
            operation=operation,
            due_ms=self._due_ms(after, now),
            lease_ms=self._lease_ms,
            pushes=self.dispatcher.pushes(batches),
            receipt=_receipt(after, terms),
            follows=follows,
        )
        asked_at = time.monotonic()
        if self.store.commit(change) is not None:
            return None
        self.knowledge.note(after, operation)
        self.dispatcher.send(batches)
        return Applied(run=after, events=tuple(events), asked_at=asked_at, operation=operation)

    def _due_ms(self, run: Run, now: int) -> int | None:
        """Return when the reaper is to look at a run that was just written, in ms from now."""
        transition = run.in_flight
        if transition is None:
            return None
        waits = [batch.not_before - now if batch.not_before > now else self._grace_ms for batch in pending(run)]
        if transition.claims:
            waits.append(self._lease_ms)
        waits += [expires_at - now for expires_at in transition.awaiting.values() if expires_at]
        idle = bool(transition.awaiting or transition.unknown) or run.paused is not None
        return min(waits, default=None if idle else self._grace_ms)

    def _again_ms(self, snapshot: Snapshot, *, hinted: bool) -> int:
        """Return when to look at an overdue run again: at the next expiry, at the next try, or ever more rarely."""
        waits = [expiry - snapshot.now + 1 for expiry in snapshot.leases.values()]
        awaiting = snapshot.run.in_flight.awaiting if snapshot.run.in_flight else {}
        waits += [expires_at - snapshot.now for expires_at in awaiting.values() if expires_at]
        waits += [b.not_before - snapshot.now for b in pending(snapshot.run) if b.not_before > snapshot.now]
        if hinted:
            waits.append(min(self._grace_ms * 2 ** min(snapshot.hints, 20), REMIND_MS_MAX))
        return max(1, min(waits, default=self._grace_ms))


def history_warning(run: Run, settings: Settings) -> str | None:
    """Return a sentence for whoever moves a run whose events come to their end; None while there is time."""
    if run.version < HISTORY_WARNING * settings.history_events_max:
        return None
    return (
        f"Run {run.id!r} has {run.version} events, and from {settings.history_events_max} on it begins nothing more."
        " Go on with a new run in time."
    )


def run_exists(run_id: str) -> Conflict:
    """Return the error for a run that would be taken over and is there already."""
    return Conflict(
        f"Run {run_id!r} exists already.",
        hint="It cannot be taken over a second time.",
        details={"run_id": run_id},
    )


def run_not_found(run_id: str) -> NotFound:
    """Return the error for a run that does not exist."""
    return NotFound(
        f"Run not found: {run_id}",
        hint="`statem-dist runs` lists the runs that there are.",
        details={"run_id": run_id},
    )


def refuse_stale(run: Run, terms: Terms) -> None:
    """Refuse what was meant for another version of the run, unless it has been carried out already.

    Raises:
        StaleVersion: the run has another version than the terms name.
        StateRegressed: they name one that it has not reached.
    """
    if terms.if_version is None or run.version == terms.if_version or (terms.request and terms.request in run.requests):
        return
    if terms.if_version > run.version:
        raise state_regressed(run.id, terms.if_version, run.version)
    raise StaleVersion(
        f"Run {run.id!r} is at version {run.version}, not {terms.if_version}; it stands on {run.node!r}.",
        hint="Look at the run as it is now, then decide again.",
        details={
            "run_id": run.id,
            "version": run.version,
            "current": run.node,
            "current_entry_id": run.entry_id,
            "run_status": run.status,
        },
    )


def _receipt(after: Run, terms: Terms) -> Receipt | None:
    if not terms.request:
        return None
    return Receipt(terms.request, terms.fingerprint, after.transition.id if after.transition else "")


def _overdue_events(snapshot: Snapshot) -> list[Event]:
    """Return what follows from every lease and every wait for a decision that has run out."""
    transition = snapshot.run.in_flight
    if transition is None:
        return []
    commands: list[Command] = [
        ExpireClaim(transition=transition.id, token=claim.token)
        for claim in transition.claims
        if not _lease_alive(snapshot, claim.token)
    ]
    commands += [
        ExpireDecision(transition=transition.id, check=check)
        for check, expires_at in transition.awaiting.items()
        if 0 < expires_at <= snapshot.now
    ]
    run, events = snapshot.run, list[Event]()
    for command in commands:
        for event in decide(run, command, snapshot.now):
            run = evolve(run, event)
            events.append(event)
    return events


def _lease_alive(snapshot: Snapshot, token: int) -> bool:
    return snapshot.leases.get(token, 0) > snapshot.now


def _newly_owed(before: Run | None, after: Run, now: int) -> list[Batch]:
    """Return the work that a commit leaves unclaimed, due now, and not announced before."""
    # What was not yet due at the last commit was not announced by it.
    announced = [batch for batch in pending(before) if batch.not_before <= before.updated_at] if before else []
    # By transition, because one commit may end a transition and open another with checks of the same ids.
    known = {(batch.transition, batch.checks) for batch in announced}
    return [
        batch for batch in pending(after) if batch.not_before <= now and (batch.transition, batch.checks) not in known
    ]
