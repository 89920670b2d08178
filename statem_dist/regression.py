"""Telling that the state store has lost writes: after a failover, or a restart from an older file.

A version that somebody has seen ahead of what is stored cannot be explained otherwise. So every process remembers, of
the runs that it has to do with, the latest version that it has read or written and the operation that wrote it. Two
futures of a run may reach the same version, so that the number alone does not tell them
apart; the operation id, which is random, does.

Whoever holds newer knowledge is refused, once, and told both versions. What is stored counts, and everybody else
goes on from it. A result of the lost future decides nothing and is kept as evidence.

A run that comes back from a file is the same run, and nobody has lost anything: the operation that brings it in is
known for what it is by its length, and says nothing of the operations that wrote the run where it was before.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import OrderedDict

from msgspec import Struct

from statem_dist.errors import StateRegressed
from statem_dist.protocol.model import Run
from statem_dist.store.base import Snapshot

RUNS_MAX = 10_000
"""Runs that a process remembers; a kilobyte or less for each."""

OPERATION_BYTES = 6
"""48 random bits are plenty among the 16 operations that a run remembers."""

ADOPTION_BYTES = 8
"""So many has the operation that brings in a run which was elsewhere before."""

logger = logging.getLogger(__name__)


def new_operation(*, adoption: bool = False) -> str:
    """Return a new operation id: of one that brings in a run that was elsewhere before, or of any other."""
    return os.urandom(ADOPTION_BYTES if adoption else OPERATION_BYTES).hex()


class Seen(Struct, frozen=True):
    """What is known of a run: when it was created (so that one that was made anew is another), its version, and the
    operation that wrote it (empty if that is not known)."""

    created_at: int
    version: int
    operation: str = ""

    @classmethod
    def of(cls, snapshot: Snapshot) -> Seen:
        """Return what a snapshot tells."""
        return cls(snapshot.run.created_at, snapshot.run.version, snapshot.operation)


def is_lost(seen: Seen, snapshot: Snapshot) -> bool:
    """Return whether what was seen of a run is not in the past of what is stored of it.

    Among the operations that a run remembers, the one that was seen must be there under its version. If all of them are
    later, or the first one has brought in the run at that version, nothing can be said, and nothing is.
    """
    run = snapshot.run
    if run.created_at != seen.created_at:
        return False
    if run.version < seen.version:
        return True
    if not seen.operation or not snapshot.operations:
        return False
    first, _, at = snapshot.operations.split(" ", 2)[1].rpartition(":")
    oldest = int(at) + (len(first) == 2 * ADOPTION_BYTES and first != seen.operation)
    return oldest <= seen.version and f" {seen.operation}:{seen.version} " not in f"{snapshot.operations} "


def state_regressed(run_id: str, seen: int, version: int) -> StateRegressed:
    """Return the error for somebody who has seen more of a run than there is.

    Args:
        run_id: the run.
        seen: the version that was seen.
        version: the one that is stored.
    """
    there = f"is at version {version}" if version != seen else "is at another version of that number"
    return StateRegressed(
        f"Version {seen} of run {run_id!r} was seen, and it {there}: the state store has lost writes.",
        hint="What is stored counts. Look at the run as it is now, then decide again.",
        details={"run_id": run_id, "version": version, "seen": seen},
    )


class Knowledge:
    """What one process has seen of the runs of a store; safe to use from several threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seen: OrderedDict[str, Seen] = OrderedDict()
        self._refusals: dict[str, StateRegressed] = {}

    def of(self, run_id: str) -> Seen | None:
        """Return what is known of a run."""
        with self._lock:
            return self._seen.get(run_id)

    def note(self, run: Run, operation: str) -> None:
        """Remember a version of a run that this process has just written."""
        with self._lock:
            self._keep(run.id, Seen(run.created_at, run.version, operation))

    def compare(self, snapshot: Snapshot, known: Seen | None) -> bool:
        """Remember a run as it was just read; return whether the store is found to have lost what was known of it.

        That is logged, and whoever next wants to change the run is refused.

        Args:
            snapshot: what was read.
            known: what ``of`` said before the read was asked for. What others have learnt meanwhile may be newer.
        """
        run = snapshot.run
        with self._lock:
            if known is None or not is_lost(known, snapshot):
                self._keep(run.id, Seen.of(snapshot))
                return False
            if self._seen.get(run.id) != known:
                # Another thread has found that out before.
                return False
            self._seen[run.id] = Seen.of(snapshot)
            error = state_regressed(run.id, known.version, run.version)
            self._refusals[run.id] = error
            while len(self._refusals) > RUNS_MAX:
                del self._refusals[next(iter(self._refusals))]
        logger.error("%s", error.message)
        return True

    def refuse(self, run_id: str) -> None:
        """Refuse, once, what was meant for a future of a run that is lost.

        Raises:
            StateRegressed: the store was found to have lost what this process knew of the run.
        """
        with self._lock:
            error = self._refusals.pop(run_id, None)
        if error is not None:
            raise error

    def _keep(self, run_id: str, seen: Seen) -> None:
        known = self._seen.get(run_id)
        if known is not None and known.created_at == seen.created_at and known.version > seen.version:
            return
        if known is not None and known.created_at != seen.created_at:
            # What was lost of a run concerns nobody who has to do with the one that was made anew.
            self._refusals.pop(run_id, None)
        self._seen[run_id] = seen
        self._seen.move_to_end(run_id)
        if len(self._seen) > RUNS_MAX:
            self._seen.popitem(last=False)
