"""Following one transition: showing its events as they come, and telling when it has settled."""

from __future__ import annotations

import time
from collections.abc import Callable

from msgspec import Struct

from statem_dist.history import find_transition
from statem_dist.identity import is_dead
from statem_dist.protocol.events import Event
from statem_dist.protocol.model import Run, Transition
from statem_dist.protocol.progress import pending, waits_for_people
from statem_dist.store.base import Snapshot, Store

OnEvent = Callable[[int, Event], None]
"""Called with the number and the value of each new event of a run that is being followed."""


class Settled(Struct, frozen=True):
    """A run and the transition that was asked for; the transition may still be open when time was up."""

    run: Run
    transition: Transition


class Deadline:
    """A moment on the monotonic clock, or never.

    Args:
        seconds: from now; None means never.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._at = None if seconds is None else time.monotonic() + seconds

    @property
    def passed(self) -> bool:
        """Whether time is up."""
        return self._at is not None and time.monotonic() >= self._at

    @property
    def remaining(self) -> float | None:
        """Seconds that are left, not below 0; None without a limit."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    def expire(self) -> None:
        """Let it pass now: whoever goes by it stops at the next look."""
        self._at = time.monotonic()

    def bound(self, seconds: float) -> float:
        """Return a pause of at most ``seconds`` that does not go beyond this moment."""
        remaining = self.remaining
        return max(0.0, seconds if remaining is None else min(seconds, remaining))


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
        self._on_event = on_event

    def show_new_events(self) -> None:
        """Hand every event that is new to whoever is shown them."""
        if self._on_event is None:
            return
        for number, event in self._store.events(self.run_id, after=self._shown):
            self._shown = number
            self._on_event(number, event)

    def look(self, run: Run) -> Settled:
        """Return the transition as it is in ``run``, also when later ones have followed it."""
        transition = find_transition(self._store, run, self.transition_id)
        assert transition is not None, "a transition that was opened is in the history"
        return Settled(run=run, transition=transition)


def is_abandoned(snapshot: Snapshot) -> bool:
    """Return whether nobody works on the open transition of a run any more.

    It has no claim of a live worker, and it is not waiting for the time of another try.
    """
    transition = snapshot.run.in_flight
    if transition is None or waits_for_people(snapshot.run):
        return False
    if any(batch.not_before > snapshot.now for batch in pending(snapshot.run)):
        return False
    return all(is_dead(claim.worker) for claim in transition.claims)
