"""Executing a run's work in the caller, for the embedded instance that no worker serves.

The caller is a worker for the length of one command: it claims, keeps leases and records like any other. If it
is killed in the middle, its claim is found by the next command on the same host, which sees that the process
is gone and settles what is left by the same rules.
"""

from __future__ import annotations

import time
from collections.abc import Mapping

from statem_dist.checks.environment import inline_environment
from statem_dist.checks.process import Supervisor
from statem_dist.coordinator import Applied, Coordinator
from statem_dist.dispatch import NoDispatch
from statem_dist.executor import Executor
from statem_dist.follow import Deadline, Follower, Settled
from statem_dist.identity import is_dead, this_process
from statem_dist.leases import LeaseKeeper
from statem_dist.protocol.commands import Command, ExpireClaim
from statem_dist.protocol.model import Place, Run, Worker
from statem_dist.protocol.progress import CHECKS_QUEUE, REVIEWS_QUEUE, pending, waits_for_people
from statem_dist.settings import Settings
from statem_dist.store.base import Snapshot
from statem_dist.store.redis_store import RedisStore

LOOK_SECONDS = 0.1
"""Pause before another look at work that somebody else on this host has in hand."""


class InlineWorker:
    """A worker that lives as long as its caller.

    Args:
        store: where runs are kept.
        renewals: the same store for renewing leases; it must give up early.
        settings: limits.
        environ: the caller's environment, which commands get.
        queue: the queue that runs are pinned to, or None for the common ones.
    """

    def __init__(
        self,
        store: RedisStore,
        renewals: RedisStore,
        settings: Settings,
        environ: Mapping[str, str],
        queue: str | None,
    ) -> None:
        self.worker = Worker(
            id=this_process("cli"), queues=(CHECKS_QUEUE, REVIEWS_QUEUE) if queue is None else (queue,)
        )
        self.coordinator = Coordinator(store, NoDispatch(), settings)
        self._supervisor = Supervisor(kill_grace_seconds=settings.kill_grace_seconds)
        self._leases = LeaseKeeper(renewals, settings.lease_seconds, settings.kill_grace_seconds)

        def environment(place: Place, variables: dict[str, str]) -> dict[str, str]:
            return inline_environment({**environ, **place.env}, variables)

        self._executor = Executor(self.coordinator, self.worker, self._supervisor, self._leases, environment, settings)

    def close(self) -> None:
        """End every command that still runs."""
        self._leases.close()
        self._supervisor.close()

    def carry_out(self, applied: Applied, follower: Follower, deadline: Deadline) -> Settled:
        """Execute a transition that was just opened, and claimed, to its end or until time is up."""
        transition = applied.run.transition
        assert transition is not None
        follower.show_new_events()
        if not transition.open:
            return Settled(run=applied.run, transition=transition)
        run = self._executor.carry_on(applied, deadline, follower.show_new_events)
        settled = follower.look(run)
        return self.finish(follower, deadline) if settled.transition.open else settled

    def finish(self, follower: Follower, deadline: Deadline) -> Settled:
        """Execute whatever a transition still owes, until it has settled, waits for people alone, or time is up."""
        while True:
            snapshot = self.coordinator.load(follower.run_id)
            settled = follower.look(snapshot.run)
            if not settled.transition.open or waits_for_people(snapshot.run) or deadline.passed:
                follower.show_new_events()
                return settled
            owed = pending(snapshot.run)
            ready = next((batch for batch in owed if batch.not_before <= snapshot.now), None)
            if ready is not None:
                self._executor.execute(ready.run, ready.transition, ready.checks[0], deadline, follower.show_new_events)
            elif not self.expire_dead_claims(settled.run):
                waits = [(batch.not_before - snapshot.now) / 1000 for batch in owed]
                time.sleep(deadline.bound(min(waits, default=LOOK_SECONDS)))

    def expire_dead_claims(self, run: Run) -> bool:
        """Expire the claims of workers that are known to be dead; return whether there were any."""
        transition = run.in_flight
        dead = [claim for claim in transition.claims if is_dead(claim.worker)] if transition else []
        for claim in dead:
            assert transition is not None
            self.apply(run.id, ExpireClaim(transition=transition.id, token=claim.token))
        return bool(dead)

    def apply(self, run_id: str, command: Command, seen: Snapshot | None = None) -> Applied:
        """Apply a command without sending its work to anybody else."""
        return self.coordinator.apply(run_id, command, seen)
