"""Following one transition: showing its events as they come, and telling when it has settled."""

from __future__ import annotations

from collections.abc import Callable

from msgspec import Struct

from statem_dist.history import find_transition
from statem_dist.identity import is_dead
from statem_dist.protocol.events import Event, WorkClaimed
from statem_dist.protocol.model import Claim, Run, Transition
from statem_dist.protocol.progress import pending, queue_of, waits_for_people
from statem_dist.regression import state_regressed
from statem_dist.store.base import Snapshot, Store

OnEvent = Callable[[int, Event], None]
"""Called with the number and the value of each new event of a run that is being followed."""

CLAIM_EVENTS_MAX = 100
"""How many of a run's latest events are searched for its last claim: more than the siblings of one step report."""


class Settled(Struct, frozen=True):
    """A run and the transition that was asked for; the transition may still be open when time was up."""

    run: Run
    transition: Transition


class Follower:
    """Follows one transition of a run.

    Args:
        store: where the run is kept.
        run_id: the run.
        transition_id: the transition.
        after: number of the last event that is known already.
        on_event: who is shown the new ones; None if nobody is.
    """

    def __init__(self, store: Store, run_id: str, transition_id: str, after: int, on_event: OnEvent | None) -> None:
        self.run_id = run_id
        self.transition_id = transition_id
        self._store = store
        self._shown = after
        self._opened = after + 1
        self._on_event = on_event

    def show_new_events(self) -> None:
        """Hand every event that is new to whoever is shown them."""
        if self._on_event is None:
            return
        for number, event in self._store.events(self.run_id, after=self._shown):
            self._shown = number
            self._on_event(number, event)

    def look(self, run: Run) -> Settled:
        """Return the transition as it is in ``run``, also when later ones have followed it.

        Raises:
            StateRegressed: it was opened, and the store has lost that.
        """
        transition = find_transition(self._store, run, self.transition_id)
        if transition is None:
            raise state_regressed(run.id, self._opened, run.version)
        return Settled(run=run, transition=transition)


def lost_claims(snapshot: Snapshot) -> tuple[Claim, ...]:
    """Return the claims of the open transition that nobody works on: their lease has run out, which the owner's own
    clock has told it before, or their owner is known to be dead on this host."""
    transition = snapshot.run.in_flight
    if transition is None:
        return ()
    return tuple(
        claim
        for claim in transition.claims
        if snapshot.leases.get(claim.token, 0) <= snapshot.now or is_dead(claim.worker)
    )


def is_abandoned(store: Store, snapshot: Snapshot) -> bool:
    """Return whether nobody works on the open transition of a run any more.

    It does not wait for people or for the end of a pause, and none of its claims is kept alive. While a check waits
    for the time of its next try nobody claims it; then whoever tried it last is taken for the one who waits.
    """
    run = snapshot.run
    transition = run.in_flight
    if transition is None or waits_for_people(run) or (run.paused is not None and not transition.claims):
        return False
    if len(lost_claims(snapshot)) < len(transition.claims):
        return False
    if any(batch.not_before > snapshot.now for batch in pending(run)):
        return is_dead(_last_claimant(store, run, transition))
    return True


def queues_of_work(snapshot: Snapshot) -> set[str]:
    """Return the queues of what the open transition of a run owes and of what a lost claim has left."""
    run = snapshot.run
    left = (run.transition.planned(claim.checks[0]) for claim in lost_claims(snapshot) if run.transition)
    return {batch.queue for batch in pending(run)} | {queue_of(planned, run.place) for planned in left if planned}


def _last_claimant(store: Store, run: Run, transition: Transition) -> str:
    """Return who claimed work of a transition last; empty if that is too long ago to be worth knowing."""
    latest = store.latest_events(run.id, None, CLAIM_EVENTS_MAX)
    claims = (event for _, event in latest if isinstance(event, WorkClaimed) and event.transition == transition.id)
    claim = next(claims, None)
    return claim.worker if claim else ""
