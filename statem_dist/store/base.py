"""The port between the coordinator and whatever keeps the runs."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal, Protocol, TypeAlias

from msgspec import Struct

from statem_dist.errors import StoredDataUnreadable
from statem_dist.protocol.events import Event
from statem_dist.protocol.model import Run
from statem_dist.store.codec import Receipt, StoredRunbook


class Snapshot(Struct, frozen=True):
    """A run as it was stored at one moment.

    ``now`` is the server's clock in ms; ``leases`` maps the token of each claim to the expiry of its lease
    (server ms); ``hints`` counts how often the work that is owed now was dispatched again. ``operations`` are the last
    operation ids with the versions that they wrote, each as `` ID:VERSION``, the oldest first.
    """

    run: Run
    now: int
    leases: dict[int, int]
    hints: int = 0
    operations: str = ""

    @property
    def operation(self) -> str:
        """The operation that wrote this version; empty if that is not known."""
        return self.operations.rpartition(" ")[2].partition(":")[0]


Mark: TypeAlias = tuple[int, str]
"""Where a run stands in the order of creation: when it was created (ms since the epoch), and its id."""


class Push(Struct, frozen=True):
    """A ready-made message for a queue of the broker that lives in the same Redis."""

    queue: str
    message: bytes


class Change(Struct, frozen=True):
    """One decision to be committed: the run before and after, and the events between.

    ``due_ms`` is when the reaper is to look at the run, in ms from now, or None when nothing is owed. ``follows`` is
    the operation that wrote ``before`` (empty if that is not known): what has the same version in another future of the
    run, because the store has lost writes, is not what was decided on.
    """

    before: Run | None
    after: Run
    events: tuple[Event, ...]
    operation: str
    due_ms: int | None
    lease_ms: int
    pushes: tuple[Push, ...] = ()
    receipt: Receipt | None = None
    follows: str = ""


class Identity(Struct, frozen=True):
    """Which store this is: a random id, and when it was first used (server ms). A store that has lost everything gets
    another one."""

    id: str
    since: int


class Leftovers(Struct, frozen=True):
    """What is kept of a run beside its document and its events, as far as its history tells.

    ``entries`` are the ids of its entries, for which dynamic checks may be registered; ``logs`` are transition and
    check of each output that may be kept; ``requests`` have ids of their own, and may have a receipt.
    """

    entries: tuple[str, ...] = ()
    logs: tuple[tuple[str, str], ...] = ()
    requests: tuple[str, ...] = ()


class FeedEntry(Struct, frozen=True):
    """One commit, as the feed of all runs tells it: the run, and the numbers of the first and last of its events.

    ``position`` is where it stands in the feed of the run's shard.
    """

    run_id: str
    first: int
    last: int
    position: str


class Overdue(Struct, frozen=True):
    """A run that the reaper is to look at; ``score`` identifies the reminder."""

    run_id: str
    score: str


class EventLog(Protocol):
    """The events of runs, for whoever reads them. Every method may raise ``Unavailable``."""

    def events(self, run_id: str, after: int = 0, limit: int | None = None) -> list[tuple[int, Event]]:
        """Return events with their numbers, oldest first, those after the given number."""

    def latest_events(self, run_id: str, before: int | None, limit: int) -> list[tuple[int, Event]]:
        """Return events with their numbers, newest first, those before the given number."""


class Store(EventLog, Protocol):
    """What the coordinator needs. Every method may raise ``Unavailable``."""

    def clock(self) -> int:
        """Return the server's time in ms."""

    def identity(self) -> Identity:
        """Return which store this is; the first to ask makes it known."""

    def count_loss(self, what: str) -> None:
        """Count for everybody that the store was found to have lost something; ``what`` is a word for it."""

    def load(self, run_id: str) -> Snapshot | None:
        """Return the run, or None when there is none of that id."""

    def commit(self, change: Change) -> int | None:
        """Write one decision atomically.

        Returns:
            None when it was committed (also by an earlier try of the same operation); else the version that
            the run has now, 0 when it does not exist.
        """

    def confirm(self, run_id: str) -> bool:
        """Wait until all that is known of a run is as safe as the level of durability says; False if not in time."""

    def renew(self, run_id: str, token: int, lease_ms: int, operation: str = "") -> bool:
        """Prolong a lease; False when it has run out or ended, or is another's.

        Args:
            run_id: the run.
            token: the token of the claim.
            lease_ms: how long it lasts from now on.
            operation: the one that made the claim. The token alone may be that of another claim, if the store has lost
                writes; it decides where the operation is not known.
        """

    def overdue(self, limit: int) -> Sequence[Overdue]:
        """Return runs whose reminder is due, oldest first within each shard."""

    def remind(self, overdue: Overdue, version: int, again_ms: int, pushes: Sequence[Push], *, hinted: bool) -> bool:
        """Move a reminder and send messages once more; False when somebody was faster.

        ``hinted`` counts it as a dispatch, also where the messages go another way than ``pushes``.
        """

    def postpone(self, run_id: str, again_ms: int) -> None:
        """Move a reminder, whatever its run is by now: for one that cannot be looked after."""

    def forget(self, run_id: str) -> None:
        """Remove a reminder if there is no such run any more."""

    def remove(self, run: Run, leftovers: Leftovers) -> bool:
        """Remove a run that has ended, with everything that is kept of it, all at once.

        Args:
            run: the run as it was read; it must have ended.
            leftovers: what is kept of it under keys of its own.

        Returns:
            False when it is not at that version any more, or not there: then nothing was removed.
        """

    def save_runbook(self, stored: StoredRunbook) -> None:
        """Register a runbook under its hash; the same hash again changes nothing."""

    def runbook(self, digest: str) -> StoredRunbook | None:
        """Return a registered runbook, or None."""

    def load_many(self, run_ids: Sequence[str]) -> list[Snapshot | StoredDataUnreadable | None]:
        """Return runs as ``load`` does, in one round trip; one that cannot be read does not keep the others back."""

    def receipt(self, run_id: str, request: str) -> Receipt | None:
        """Return what is kept of a request, for a day after its commit."""

    def claim_request(self, request: str, fingerprint: str) -> Literal["new", "repeated", "another"]:
        """Say what a request is that no run is known for yet, for a day; return whether that was said before."""

    def marks(
        self,
        status: str | None,
        limit: int,
        *,
        label: tuple[str, str] | None = None,
        before: Mark | None = None,
        after: Mark | None = None,
    ) -> Sequence[Mark]:
        """Return where runs stand in the order of their creation, newest first; oldest first with ``after``.

        Args:
            status: only runs of this status. With a label it is the label's index that is read.
            limit: how many at most.
            label: only runs with this label, given as key and value.
            before: the mark of a run, there or not: only those that were created before it.
            after: the mark of a run, there or not: only those that were created after it, oldest first.
        """

    def active(self, scope: str) -> str | None:
        """Return the run that a scope (a state directory, or that and a runbook) points to."""

    def activate(self, scopes: Iterable[str], run_id: str) -> None:
        """Point scopes to a run."""

    def dynamic(self, run_id: str, entry_id: str) -> dict[str, bytes]:
        """Return the dynamic checks that were registered for an entry, by agent id."""

    def save_dynamic(self, run_id: str, entry_id: str, agent_id: str, document: bytes) -> None:
        """Keep what an agent registers for an entry, in place of what it had registered."""

    def stops(self, run_id: str, session: str) -> bytes | None:
        """Return what is kept of a session of an agent host that wanted to stop, or None."""

    def save_stops(self, run_id: str, session: str, document: bytes) -> None:
        """Keep that for some days, in place of what was kept."""

    def save_log(self, run_id: str, transition: str, check: str, text: str) -> None:
        """Keep the longer output of a check."""

    def log(self, run_id: str, transition: str, check: str) -> str | None:
        """Return the longer output of a check, or None."""
