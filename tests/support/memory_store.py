"""The ``Store`` port on dictionaries, with a clock that tests move: what the scripts do, in Python.

The contract suite runs against it as against Redis, so that what a simulation finds out on it is true of both.
"""

from __future__ import annotations

from collections import Counter, defaultdict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from statem_dist.errors import StoredDataUnreadable
from statem_dist.protocol.events import Event
from statem_dist.protocol.model import Claim, Run
from statem_dist.store.base import Change, Identity, Leftovers, Mark, Overdue, Push, Snapshot
from statem_dist.store.codec import Receipt, StoredRunbook

OPERATIONS_KEPT = 16


@dataclass
class StoredRun:
    """What is kept of one run."""

    run: Run
    operations: deque[tuple[str, int]] = field(default_factory=lambda: deque(maxlen=OPERATIONS_KEPT))
    leases: dict[int, int] = field(default_factory=dict)
    holders: dict[int, str] = field(default_factory=dict)
    hints: int = 0
    events: list[Event] = field(default_factory=list)


class MemoryStore:
    """A store for one thread.

    Attributes:
        now: the time in ms; it only moves when somebody moves it.
        runs: every run, by id.
        queues: messages of the broker that lives beside the runs, newest first as in a Redis list.
        due: when the reaper is to look at a run, in ms.
    """

    def __init__(self, now: int) -> None:
        self.now = now
        self.runs: dict[str, StoredRun] = {}
        self.queues: dict[str, list[bytes]] = defaultdict(list)
        self.due: dict[str, int] = {}
        self.registered: dict[tuple[str, str], dict[str, bytes]] = {}
        self.losses: Counter[str] = Counter()
        self._since = now
        self._runbooks: dict[str, StoredRunbook] = {}
        self._active: dict[str, str] = {}
        self._stops: dict[tuple[str, str], bytes] = {}
        self._receipts: dict[tuple[str, str], Receipt] = {}
        self._requests: dict[str, str] = {}
        self._logs: dict[tuple[str, str, str], str] = {}

    def clock(self) -> int:
        """Return the time."""
        return self.now

    def identity(self) -> Identity:
        """Return which store this is."""
        return Identity("memory", self._since)

    def count_loss(self, what: str) -> None:
        """Count what the store was found to have lost."""
        self.losses[what] += 1

    def load(self, run_id: str) -> Snapshot | None:
        """Return the run, or None."""
        stored = self.runs.get(run_id)
        if stored is None:
            return None
        operations = "".join(f" {operation}:{version}" for operation, version in stored.operations)
        return Snapshot(stored.run, self.now, dict(stored.leases), stored.hints, operations)

    def commit(self, change: Change) -> int | None:
        """Write one decision if the run has the version that it was decided on."""
        after = change.after
        stored = self.runs.get(after.id)
        if stored is not None and any(operation == change.operation for operation, _ in stored.operations):
            return None
        current = stored.run.version if stored else 0
        if current != (change.before.version if change.before else 0):
            return current
        if stored is not None and change.follows and stored.operations[-1][0] != change.follows:
            return current
        if stored is None:
            stored = self.runs[after.id] = StoredRun(after)
        before_claims = {claim.token for claim in _claims(change.before)}
        after_claims = {claim.token for claim in _claims(after)}
        stored.run = after
        stored.operations.append((change.operation, after.version))
        stored.hints = 0
        stored.events += change.events
        for token in after_claims - before_claims:
            stored.leases[token] = self.now + change.lease_ms
            stored.holders[token] = change.operation
        for token in before_claims - after_claims:
            stored.leases.pop(token, None)
        if change.due_ms is None:
            self.due.pop(after.id, None)
        else:
            self.due[after.id] = self.now + change.due_ms
        self._push(change.pushes)
        if change.receipt is not None:
            self._receipts[after.id, change.receipt.request] = change.receipt
        return None

    def confirm(self, run_id: str) -> bool:
        """Say that all is as safe as it gets."""
        return True

    def renew(self, run_id: str, token: int, lease_ms: int, operation: str = "") -> bool:
        """Prolong a lease that has not run out."""
        stored = self.runs.get(run_id)
        if stored is None or stored.leases.get(token, 0) <= self.now:
            return False
        if operation and operation != stored.holders[token]:
            return False
        stored.leases[token] = self.now + lease_ms
        return True

    def overdue(self, limit: int) -> Sequence[Overdue]:
        """Return runs whose reminder is due."""
        found = sorted((score, run_id) for run_id, score in self.due.items() if score <= self.now)
        return [Overdue(run_id=run_id, score=str(score)) for score, run_id in found[:limit]]

    def remind(self, overdue: Overdue, version: int, again_ms: int, pushes: Sequence[Push], *, hinted: bool) -> bool:
        """Move a reminder and send messages once more, if nothing has changed."""
        stored = self.runs.get(overdue.run_id)
        if stored is None or stored.run.version != version or str(self.due.get(overdue.run_id)) != overdue.score:
            return False
        self.due[overdue.run_id] = self.now + again_ms
        self._push(pushes)
        stored.hints += hinted
        return True

    def postpone(self, run_id: str, again_ms: int) -> None:
        """Move a reminder, whatever its run is by now."""
        if run_id in self.due:
            self.due[run_id] = self.now + again_ms

    def forget(self, run_id: str) -> None:
        """Remove a reminder if there is no such run any more."""
        if run_id not in self.runs:
            self.due.pop(run_id, None)

    def remove(self, run: Run, leftovers: Leftovers) -> bool:
        """Remove a run that has ended, if it is at that version."""
        stored = self.runs.get(run.id)
        if stored is None or stored.run.version != run.version or stored.leases:
            return False
        del self.runs[run.id]
        self.due.pop(run.id, None)
        for entry in leftovers.entries:
            self.registered.pop((run.id, entry), None)
        for transition, check in leftovers.logs:
            self._logs.pop((run.id, transition, check), None)
        for request in leftovers.requests:
            self._receipts.pop((run.id, request), None)
        return True

    def dynamic(self, run_id: str, entry_id: str) -> dict[str, bytes]:
        """Return the dynamic checks that were registered for an entry."""
        return dict(self.registered.get((run_id, entry_id), {}))

    def save_dynamic(self, run_id: str, entry_id: str, agent_id: str, document: bytes) -> None:
        """Keep what an agent registers for an entry."""
        self.registered.setdefault((run_id, entry_id), {})[agent_id] = document

    def events(self, run_id: str, after: int = 0, limit: int | None = None) -> list[tuple[int, Event]]:
        """Return events with their numbers, oldest first."""
        numbered = self._numbered(run_id)[after:]
        return numbered if limit is None else numbered[:limit]

    def latest_events(self, run_id: str, before: int | None, limit: int) -> list[tuple[int, Event]]:
        """Return events with their numbers, newest first."""
        numbered = self._numbered(run_id)
        return (numbered if before is None else numbered[: before - 1])[::-1][:limit]

    def save_runbook(self, stored: StoredRunbook) -> None:
        """Register a runbook."""
        self._runbooks.setdefault(stored.runbook.hash, stored)

    def runbook(self, digest: str) -> StoredRunbook | None:
        """Return a registered runbook, or None."""
        return self._runbooks.get(digest)

    def load_many(self, run_ids: Sequence[str]) -> list[Snapshot | StoredDataUnreadable | None]:
        """Return runs, in the order of their ids."""
        return [self.load(run_id) for run_id in run_ids]

    def receipt(self, run_id: str, request: str) -> Receipt | None:
        """Return what is kept of a request, or None."""
        return self._receipts.get((run_id, request))

    def claim_request(self, request: str, fingerprint: str) -> Literal["new", "repeated", "another"]:
        """Say what a request is."""
        if request not in self._requests:
            self._requests[request] = fingerprint
            return "new"
        return "repeated" if self._requests[request] == fingerprint else "another"

    def marks(
        self,
        status: str | None,
        limit: int,
        *,
        label: tuple[str, str] | None = None,
        before: Mark | None = None,
        after: Mark | None = None,
    ) -> Sequence[Mark]:
        """Return where runs stand, newest first; oldest first with ``after``."""
        runs = [stored.run for stored in self.runs.values()]
        if label is not None:
            runs = [run for run in runs if run.labels.get(label[0]) == label[1]]
        elif status is not None:
            runs = [run for run in runs if run.status == status]
        marks = sorted(((run.created_at, run.id) for run in runs), reverse=after is None)
        if after is not None:
            return [mark for mark in marks if mark > after][:limit]
        return [mark for mark in marks if before is None or mark < before][:limit]

    def active(self, scope: str) -> str | None:
        """Return the run that a scope points to."""
        return self._active.get(scope)

    def activate(self, scopes: Iterable[str], run_id: str) -> None:
        """Point scopes to a run."""
        self._active.update(dict.fromkeys(scopes, run_id))

    def stops(self, run_id: str, session: str) -> bytes | None:
        """Return what is kept of a session that wanted to stop, or None."""
        return self._stops.get((run_id, session))

    def save_stops(self, run_id: str, session: str, document: bytes) -> None:
        """Keep that, in place of what was kept."""
        self._stops[run_id, session] = document

    def save_log(self, run_id: str, transition: str, check: str, text: str) -> None:
        """Keep the longer output of a check."""
        self._logs[run_id, transition, check] = text

    def log(self, run_id: str, transition: str, check: str) -> str | None:
        """Return the longer output of a check, or None."""
        return self._logs.get((run_id, transition, check))

    def _numbered(self, run_id: str) -> list[tuple[int, Event]]:
        stored = self.runs.get(run_id)
        return list(enumerate(stored.events, start=1)) if stored else []

    def _push(self, pushes: Iterable[Push]) -> None:
        for push in pushes:
            self.queues[push.queue].insert(0, push.message)


def _claims(run: Run | None) -> tuple[Claim, ...]:
    return run.transition.claims if run is not None and run.transition is not None else ()
