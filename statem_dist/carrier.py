"""Seeing a command through: in the caller, in workers, or in both.

Where a worker serves a run's queue, the work is left to it, and the caller waits for the run's events. Where nobody
does and the store is the embedded one, the caller executes the work itself: the same decisions, claims, leases and
events, so that whoever comes next can settle what a killed caller has left.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from statem_dist.coordinator import NO_TERMS, Applied, Coordinator, Terms
from statem_dist.deadline import LOOK_AGAIN_SECONDS, Deadline
from statem_dist.errors import NotConfirmed, Unavailable
from statem_dist.follow import Follower, OnEvent, Settled, is_abandoned, queues_of_work
from statem_dist.leases import RENEWALS_PER_LEASE
from statem_dist.protocol.commands import Command
from statem_dist.protocol.model import Run, Transition
from statem_dist.protocol.progress import CHECKS_QUEUE, REVIEWS_QUEUE, is_of_unknown_outcome, waits_for_people
from statem_dist.roster import Roster
from statem_dist.settings import Settings
from statem_dist.store.base import Snapshot
from statem_dist.store.client import client_for
from statem_dist.store.redis_store import RedisStore
from statem_dist.store.watch import Watch, Watcher
from statem_dist.waiting import WaitingReasons

if TYPE_CHECKING:
    from statem_dist.inline import InlineWorker

OUTAGE_SECONDS = 60.0
"""How long a caller that waits for a transition bears a store that is away."""

OnWaiting = Callable[[str], None]
"""Called now and then while nothing happens, with the reason why."""

OnLeftover = Callable[[Transition], None]
"""Called with the transition that a caller has left, before it is finished."""


class Carrier:
    """Sees commands through for one process; usable from several threads.

    Args:
        settings: limits.
        redis_url: the state store.
        store: the same, opened.
        roster: the workers that are there.
        watcher: hears of commits.
        coordinator: applies commands whose work is left to workers.
        reasons: tells why something waits.
        environ: what commands get that the caller executes.
        inline: whether the caller executes work that nobody serves.
        quick: see ``client_for``.
        own: what executes the work of the caller's runs, whoever else serves its queues.
    """

    def __init__(
        self,
        settings: Settings,
        redis_url: str,
        store: RedisStore,
        roster: Roster,
        watcher: Watcher,
        coordinator: Coordinator,
        reasons: WaitingReasons,
        environ: Mapping[str, str],
        *,
        inline: bool,
        quick: bool,
        own: InlineWorker | None = None,
    ) -> None:
        self._settings = settings
        self._redis_url = redis_url
        self._store = store
        self._roster = roster
        self._watcher = watcher
        self._coordinator = coordinator
        self._reasons = reasons
        self._environ = environ
        self._inline = inline
        self._quick = quick
        self._own = own
        self._inline_workers: dict[tuple[str, ...], InlineWorker] = {}
        self._inline_lock = threading.Lock()

    def close(self) -> None:
        """End what was begun for commands that the caller executes."""
        for inline in self._inline_workers.values():
            inline.close()

    def carry_out(
        self,
        run_id: str,
        command: Command,
        inline: InlineWorker | None,
        deadline: Deadline,
        on_event: OnEvent | None,
        *,
        on_waiting: OnWaiting | None = None,
        seen: Snapshot | None = None,
        terms: Terms = NO_TERMS,
    ) -> Settled:
        """Apply a command that opens a transition, and see it through in the caller, in workers, or in both.

        Raises:
            NotConfirmed: what came of it is written, and too few replicas have said in time that they have it.
        """
        settled = self._carried_out(run_id, command, inline, deadline, on_event, on_waiting, seen, terms)
        self.acknowledge(settled.run)
        return settled

    def acknowledge(self, run: Run) -> None:
        """Let a caller know of a run only when it is as safe as the level of durability says.

        Raises:
            NotConfirmed: it is written, and too few replicas have said in time that they have it.
        """
        if self._store.confirm(run.id):
            return
        wanted = self._store.durability
        raise NotConfirmed(
            f"Run {run.id!r} is at version {run.version}: that is written, but {wanted.replicas} replicas have not "
            f"confirmed it within {wanted.wait_ms} ms.",
            hint="It takes effect, and nothing has to be done again; asked again with the same idempotency key, it is "
            "confirmed anew. Look after the replicas: `statem-dist doctor`.",
            details={"run_id": run.id, "version": run.version, "written": True, "replicas": wanted.replicas},
        )

    def _carried_out(
        self,
        run_id: str,
        command: Command,
        inline: InlineWorker | None,
        deadline: Deadline,
        on_event: OnEvent | None,
        on_waiting: OnWaiting | None,
        seen: Snapshot | None,
        terms: Terms,
    ) -> Settled:
        if inline is not None and inline.alone:
            applied = inline.apply(run_id, command, seen, terms)
            follower = self._follower(applied, on_event, terms)
            settled = inline.carry_out(applied, follower, deadline)
            if settled.run.paused is None or not settled.transition.open:
                return settled
            with self._watcher.watch(run_id) as watch:
                # Read again: what happened before the watch began was announced to nobody here.
                return self._wait(self._coordinator.load(run_id).run, follower, watch, deadline, on_waiting)
        if inline is None and deadline.passed:
            applied = self._coordinator.apply(run_id, command, seen, terms)
            return self._follower(applied, on_event, terms).look(applied.run)
        with self._watcher.watch(run_id) as watch:
            coordinator = self._coordinator if inline is None else inline.coordinator
            applied = coordinator.apply(run_id, command, seen, terms)
            run, follower = applied.run, self._follower(applied, on_event, terms)
            if inline is not None:
                run = inline.carry_out(applied, follower, deadline).run
            return self._wait(run, follower, watch, deadline, on_waiting)

    def _wait(
        self,
        run: Run,
        follower: Follower,
        watch: Watch,
        deadline: Deadline,
        on_waiting: OnWaiting | None,
    ) -> Settled:
        """Wait until a transition that workers carry out has settled or time is up.

        What no worker serves, or serves any more, is executed by the caller.
        """
        while True:
            follower.show_new_events()
            settled = follower.look(run)
            given_up = self._own is not None and is_of_unknown_outcome(run)
            if not settled.transition.open or (waits_for_people(run) and not given_up) or deadline.passed:
                return settled
            version = run.version
            heard = watch.wait(version, deadline.bound(LOOK_AGAIN_SECONDS))
            snapshot = self._look_again(follower.run_id, deadline)
            run = snapshot.run
            if self.is_left_to_us(snapshot) and (inline := self.inline_worker(run.place.queue)):
                run = inline.finish(follower, deadline).run
            elif run.version == version and run.in_flight is not None and on_waiting is not None and not heard:
                on_waiting(self._reasons.of(run))

    def _look_again(self, run_id: str, deadline: Deadline) -> Snapshot:
        """Load a run that workers have in hand. They outlast a restart of the store, and so does who waits for them.

        Raises:
            StateRegressed: the store has lost what the caller has seen of the run.
        """
        outage = Deadline(deadline.bound(OUTAGE_SECONDS))
        while True:
            try:
                snapshot = self._coordinator.load(run_id)
                self._coordinator.refuse_regressed(run_id)
                return snapshot
            except Unavailable:
                if outage.passed:
                    raise

    def settle_leftover(
        self, snapshot: Snapshot, deadline: Deadline, on_leftover: OnLeftover | None = None
    ) -> Settled | None:
        """Do what nobody else will of the open transition of a run; return it as it is then, settled as a rule."""
        run = snapshot.run
        if run.in_flight is None or not self.is_left_to_us(snapshot):
            return None
        inline = self.inline_worker(run.place.queue)
        if inline is None:
            return None
        if on_leftover is not None:
            on_leftover(run.in_flight)
        return inline.finish(Follower(self._store, run.id, run.in_flight.id, run.version, None), deadline)

    def see_through(self, run_id: str, deadline: Deadline) -> Settled | None:
        """Wait until the open transition of a run has settled or time is up, and do of it what nobody else does.

        None if there is none.
        """
        with self._watcher.watch(run_id) as watch:
            snapshot = self._coordinator.load(run_id)
            transition = snapshot.run.in_flight
            if transition is None:
                return None
            follower = Follower(self._store, run_id, transition.id, snapshot.run.version, None)
            run, inline = snapshot.run, self._own
            if inline is not None:
                run = inline.finish(follower, deadline).run
            return self._wait(run, follower, watch, deadline, None)

    def _follower(self, applied: Applied, on_event: OnEvent | None, terms: Terms) -> Follower:
        transition = applied.run.transition
        assert transition is not None, "a verb opens a transition, or goes on with one"
        before = applied.run.version - len(applied.events)
        # A repeated request has changed nothing; it means the transition that it opened the first time.
        transition_id = applied.run.requests.get(terms.request, transition.id)
        return Follower(self._store, applied.run.id, transition_id, before, on_event)

    def is_left_to_us(self, snapshot: Snapshot) -> bool:
        """Return whether the open transition of a run owes something that only a caller will execute."""
        if self._own is not None and is_of_unknown_outcome(snapshot.run):
            return True
        if not (self._inline or self._own) or not is_abandoned(self._store, snapshot):
            return False
        if self._own is not None:
            return not queues_of_work(snapshot).isdisjoint(self._own.worker.queues)
        return any(not self._roster.serves(queue) for queue in queues_of_work(snapshot))

    def inline_worker(self, pinned: str | None) -> InlineWorker | None:
        """Return the caller as a worker for those queues of a run that no other serves; None if all are served.

        Args:
            pinned: the queue that the run is pinned to, or None for the common ones.
        """
        if self._own is not None:
            return self._own
        if not self._inline:
            return None
        everything = (CHECKS_QUEUE, REVIEWS_QUEUE) if pinned is None else (pinned,)
        unserved = tuple(queue for queue in everything if not self._roster.serves(queue))
        if not unserved:
            return None
        with self._inline_lock:
            if unserved not in self._inline_workers:
                # Only who executes checks pays for what executes them.
                from statem_dist.inline import worker_for_caller

                patience = self._settings.lease_seconds / (2 * RENEWALS_PER_LEASE)
                self._inline_workers[unserved] = worker_for_caller(
                    self._store,
                    RedisStore(client_for(self._redis_url, quick=self._quick), patience_seconds=patience),
                    self._settings,
                    self._environ,
                    unserved,
                    self._coordinator.dispatcher,
                    alone=unserved == everything,
                    store_url=self._redis_url,
                )
            return self._inline_workers[unserved]
