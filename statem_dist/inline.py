"""Executing a run's work in the caller: for the embedded instance that no worker serves, and for trials of a sweep.

The caller is a worker for the length of one command: it claims, keeps leases and records like any other. If it
is killed in the middle, its claim is found by the next command on the same host, which sees that the process
is gone and settles what is left by the same rules.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress

from statem_dist.checks.environment import inline_environment
from statem_dist.checks.process import Supervisor, end_commands, outlive_commands
from statem_dist.coordinator import NO_TERMS, Applied, Coordinator, Terms
from statem_dist.deadline import Deadline
from statem_dist.dispatch import Dispatcher, DispatchOthers
from statem_dist.errors import Conflict
from statem_dist.executor import Executor
from statem_dist.follow import Follower, Settled, lost_claims
from statem_dist.identity import is_dead, process_here, this_process
from statem_dist.leases import LeaseKeeper
from statem_dist.protocol.commands import Command, ExpireClaim, Recover
from statem_dist.protocol.model import Actor, Place, Worker
from statem_dist.protocol.progress import is_of_unknown_outcome, pending, waits_for_people
from statem_dist.settings import Settings
from statem_dist.store.base import Snapshot
from statem_dist.store.redis_store import RedisStore

LOOK_SECONDS = 0.1
"""Pause before another look at work that somebody else on this host has in hand."""

PAUSE_SECONDS_MAX = 0.5
"""Longest pause before another look at a run whose check waits for the time of its next try."""


class InlineWorker:
    """A worker that lives as long as its caller.

    Args:
        executor: executes for it; what it commits in its own queues is to be sent to nobody.
        alone: whether there is no worker for any other queue of its runs.
        asks_nobody: whether a transition of unknown outcome is given up, instead of waiting for an operator.
        at_close: called at the end, in this order.
    """

    def __init__(
        self,
        executor: Executor,
        *,
        alone: bool,
        asks_nobody: bool = False,
        at_close: Sequence[Callable[[], object]] = (),
    ) -> None:
        self.worker = executor.worker
        self.coordinator = executor.coordinator
        self.alone = alone
        self._executor = executor
        self._asks_nobody = asks_nobody
        self._at_close = at_close

    def close(self) -> None:
        """End every command that still runs, if they are this worker's own."""
        for end in self._at_close:
            end()

    def carry_out(self, applied: Applied, follower: Follower, deadline: Deadline) -> Settled:
        """Execute a transition that was just opened, and perhaps claimed; see ``finish`` for how far."""
        transition = applied.run.transition
        assert transition is not None
        follower.show_new_events()
        if not transition.open:
            return Settled(run=applied.run, transition=transition)
        run = self._executor.carry_on(applied, deadline, follower.show_new_events)
        settled = follower.look(run)
        return self.finish(follower, deadline) if settled.transition.open else settled

    def finish(self, follower: Follower, deadline: Deadline) -> Settled:
        """Execute whatever a transition still owes, until it has settled, waits for people alone, or time is up.

        Where nobody is asked, what is of unknown outcome is given up.

        It is returned open, too, once nothing of it is being executed any more because the run is paused.

        Where workers serve some of its queues, it is also returned open as soon as all that is left is theirs.
        """
        while True:
            snapshot = self.coordinator.load(follower.run_id)
            settled = follower.look(snapshot.run)
            if self._asks_nobody and is_of_unknown_outcome(snapshot.run):
                with suppress(Conflict):
                    # Somebody else may have decided in this moment.
                    given_up = Recover(way="abort", reason="a sweep waits for nobody", by=Actor("sweep"))
                    self.apply(follower.run_id, given_up)
                continue
            paused = snapshot.run.paused is not None and not settled.transition.claims
            if not settled.transition.open or paused or waits_for_people(snapshot.run) or deadline.passed:
                follower.show_new_events()
                return settled
            ours = [batch for batch in pending(snapshot.run) if batch.queue in self.worker.queues]
            ready = next((batch for batch in ours if batch.not_before <= snapshot.now), None)
            if ready is not None:
                self._executor.execute(ready.run, ready.transition, ready.checks[0], deadline, follower.show_new_events)
            elif not self.expire_lost_claims(snapshot):
                if not ours and not self.alone:
                    follower.show_new_events()
                    return settled
                waits = [(batch.not_before - snapshot.now) / 1000 for batch in ours]
                # In slices, because the transition may be cancelled, or settled by somebody else, in the meantime.
                time.sleep(deadline.bound(min([*waits, PAUSE_SECONDS_MAX]) if waits else LOOK_SECONDS))

    def expire_lost_claims(self, snapshot: Snapshot) -> bool:
        """Expire the claims that nobody works on, after the end of their commands; return whether there were any."""
        run = snapshot.run
        lost = lost_claims(snapshot)
        for claim in lost:
            assert run.in_flight is not None, "a claim belongs to an open transition"
            process = process_here(claim.worker)
            if process is not None and is_dead(claim.worker):
                outlive_commands(process)
            elif process is not None:
                end_commands(process, run.id)
            self.apply(run.id, ExpireClaim(transition=run.in_flight.id, token=claim.token))
        return bool(lost)

    def apply(self, run_id: str, command: Command, seen: Snapshot | None = None, terms: Terms = NO_TERMS) -> Applied:
        """Apply a command; what it owes in the queues of this worker is sent to nobody."""
        return self.coordinator.apply(run_id, command, seen, terms)


def worker_for_caller(
    store: RedisStore,
    renewals: RedisStore,
    settings: Settings,
    environ: Mapping[str, str],
    queues: tuple[str, ...],
    dispatcher: Dispatcher,
    *,
    alone: bool,
    store_url: str,
) -> InlineWorker:
    """Return a command line as a worker for the queues of its runs that nobody else serves.

    Args:
        store: where runs are kept.
        renewals: the same store for renewing leases; it must give up early.
        settings: limits.
        environ: the caller's environment, which commands get.
        queues: the queues.
        dispatcher: sends the work of the other queues to workers.
        alone: whether there are no other queues.
        store_url: where the store is.
    """
    supervisor = Supervisor(kill_grace_seconds=settings.kill_grace_seconds)
    leases = LeaseKeeper(renewals, settings.lease_seconds, settings.kill_grace_seconds)

    def environment(place: Place, variables: dict[str, str]) -> dict[str, str]:
        return inline_environment({**environ, **place.env}, variables)

    executor = Executor(
        Coordinator(store, DispatchOthers(dispatcher, queues), settings),
        Worker(id=this_process("cli"), queues=queues),
        supervisor,
        leases,
        environment,
        settings,
        store_url=store_url,
    )
    return InlineWorker(executor, alone=alone, at_close=(leases.close, supervisor.close, renewals.client.close))
