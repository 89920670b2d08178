"""Why something waits: whatever is not done yet says what it waits for, and what would help."""

from __future__ import annotations

from statem_dist.decisions import decisions_of
from statem_dist.follow import lost_claims, queues_of_work
from statem_dist.history import timestamp
from statem_dist.protocol.model import Run, UnknownCause
from statem_dist.protocol.progress import pending, waits_for_people
from statem_dist.roster import Roster
from statem_dist.settings import Settings
from statem_dist.store.redis_store import RedisStore

LOST: dict[UnknownCause, str] = {
    "worker_lost": "was lost while it ran",
    "shutdown": "was shut down while it ran",
    "cut_short": "ended it before its time",
}
"""What became of the worker of a check whose outcome is unknown."""


def unknown_reason(run: Run) -> str:
    """Return that nobody knows what a check did, since when, whose it was, and the ways out; empty if all is known."""
    transition = run.in_flight
    if transition is None or not transition.unknown:
        return ""
    told = [
        f"nobody knows what {check} did: its worker {what.worker} {LOST[what.cause]} ({timestamp(what.at)})"
        for check, what in transition.unknown.items()
    ]
    ways = "--resume to execute it again, --abort to give the transition up, or --mark passed|failed with a --reason"
    return f"{'; '.join(told)}. An operator says how to go on: statem-dist recover {run.id} {ways}"


class WaitingReasons:
    """Tells why open transitions have not settled yet.

    Args:
        store: where the runs are kept.
        roster: the workers that are there.
        settings: says which broker is used.
        inline: whether a caller executes what nobody serves.
    """

    def __init__(self, store: RedisStore, roster: Roster, settings: Settings, *, inline: bool) -> None:
        self._store = store
        self._roster = roster
        self._settings = settings
        self._inline = inline

    def of(self, run: Run) -> str:
        """Return why the open transition of a run has not settled yet, in a sentence; empty if none is open."""
        transition = run.in_flight
        if transition is None:
            return ""
        if run.paused is not None:
            because = f": {run.paused.reason}" if run.paused.reason else ""
            return f"the run is paused by {run.paused.by.id or 'somebody'}{because}"
        if transition.unknown:
            return unknown_reason(run)
        if transition.unwinding is not None:
            ends = f"before it ends as {transition.unwinding.outcome}"
            return f"hooks are being repaired {ends}; {self._work_reason(run)}"
        if waits_for_people(run):
            decisions = decisions_of(run)
            who = "an operator" if all(decision.operator for decision in decisions) else "somebody"
            return f"{who} has to decide: {', '.join(decision.id for decision in decisions)}"
        return self._work_reason(run)

    def _work_reason(self, run: Run) -> str:
        """Return who executes what a run owes, or why nobody does."""
        if run.in_flight is not None and run.in_flight.claims:
            return self._claim_reason(run.id)
        for batch in pending(run):
            if (wait := batch.not_before - self._store.clock()) > 0:
                return f"{batch.checks[0]} is tried again in {wait / 1000:.1f} s"
            if not self._roster.serves(batch.queue):
                return self._help_reason(batch.queue)
            return f"{batch.checks[0]} waits for a free slot in the queue {batch.queue!r}{self._ahead(batch.queue)}"
        return "its last result is being recorded"

    def _ahead(self, queue: str) -> str:
        """Return how much waits in a queue, in parentheses; empty where the broker is not the store's Redis."""
        if self._settings.broker_url is not None:
            return ""
        return f" (messages waiting there: {int(self._store.call('LLEN', queue))})"

    def _claim_reason(self, run_id: str) -> str:
        """Return who executes a run's first claimed check, or that nobody does any more; empty if none is claimed."""
        snapshot = self._store.load(run_id)
        if snapshot is None or snapshot.run.in_flight is None or not snapshot.run.in_flight.claims:
            return ""
        transition = snapshot.run.in_flight
        lost = lost_claims(snapshot)
        if not lost:
            claim = transition.claims[0]
            return f"{claim.checks[0]} is being executed by {claim.worker}"
        claim = lost[0]
        silence = f"{claim.checks[0]} was begun by {claim.worker}, which has died or is silent"
        unserved = [queue for queue in sorted(queues_of_work(snapshot)) if not self._roster.serves(queue)]
        return f"{silence}; {self._help_reason(unserved[0]) if unserved else 'another worker takes it over'}"

    def _help_reason(self, queue: str) -> str:
        """Return what it takes to get work done in a queue that no worker serves."""
        if self._inline:
            return "nobody works on it now; the next command on the run goes on with it"
        return f"no worker serves the queue {queue!r} (start one: statem-dist worker -Q {queue})"
