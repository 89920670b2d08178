"""Runs that have ended, moved out of the store into files.

One compressed file per run, in the format of ``transfer``: so a run goes and comes back alone, a file that is damaged
costs one run, and nothing that is written is ever rewritten for the sake of another run. A file is named by the run's
id and creation, ``ID@MILLISECONDS.run.jsonl.gz``, because an id may be used again once its run is gone; it lies in one
of 256 folders, so that looking for a run does not mean listing all of them. Values of variables are kept, so files are
for their owner alone.

The order makes it safe to die at any point: the file is written and is on the disk, it is read back and judged, and
then one script removes the run if it is still at the version that the file holds. Whoever died before that finds the
run in the store, and writes the same file again.
"""

from __future__ import annotations

import glob
import re
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from hashlib import sha256
from heapq import merge
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec import Struct

from statem_dist import transfer
from statem_dist.errors import Invalid, NotFound, StatemError
from statem_dist.files import write_chunks
from statem_dist.history import events_after
from statem_dist.protocol.events import (
    Event,
    NodeEntered,
    RepairBegun,
    RunCreated,
    RunImported,
    RunRebound,
    RunRestarted,
    TransitionOpened,
)
from statem_dist.protocol.model import Run
from statem_dist.store.base import Leftovers, Mark, Snapshot, Store

if TYPE_CHECKING:
    from statem_dist.store.redis_store import RedisStore

SUFFIX = f"{transfer.SUFFIX}.gz"

NAME = re.compile(r"(?P<run>.+)@(?P<created>\d+)" + re.escape(SUFFIX))

CHUNK = 50
"""Runs read at a time."""

ENDED = ("finished", "cancelled")
"""Statuses of runs that may be archived and removed."""

LOGS_MS = 8 * 24 * 3600 * 1000
"""Outputs of checks that are older have expired by themselves."""

RECEIPTS_MS = 2 * 24 * 3600 * 1000
"""So have receipts."""


TORN_SECONDS = 3600.0
"""Nobody takes as long to write a file: what is older was left by somebody who was killed."""


class Ended(Struct, frozen=True):
    """A run that has ended: when it did (ms; the time of its last event), and its id."""

    at: int
    run_id: str


class Archive:
    """A folder of runs that have ended.

    Args:
        folder: where the files are; it is made when the first run is put there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def path_of(self, run: Run) -> Path:
        """Return where the file of a run is, or would be."""
        return self._shelf(run.id) / f"{run.id}@{run.created_at}{SUFFIX}"

    def find(self, run_id: str) -> Path:
        """Return the file of a run; of several of that id, the one that was created last.

        Raises:
            NotFound: there is none.
        """
        shelf = self._shelf(run_id)
        names = (NAME.fullmatch(path.name) for path in shelf.iterdir()) if shelf.is_dir() else iter(())
        created = [int(name["created"]) for name in names if name is not None and name["run"] == run_id]
        if not created:
            raise NotFound(
                f"The archive {self.folder} has no run {run_id!r}.",
                hint="`statem-dist runs --archive` lists those that it has.",
                details={"run_id": run_id, "archive": str(self.folder)},
            )
        return shelf / f"{run_id}@{max(created)}{SUFFIX}"

    def files(self) -> list[Path]:
        """Return all files, those of the runs that were created last first."""
        if not self.folder.is_dir():
            return []
        shelves = (shelf for shelf in self.folder.iterdir() if re.fullmatch("[0-9a-f]{2}", shelf.name))
        found = ((NAME.fullmatch(path.name), path) for shelf in shelves for path in shelf.iterdir())
        named = [(int(name["created"]), name["run"], path) for name, path in found if name is not None]
        return [path for _, _, path in sorted(named, reverse=True)]

    def load(self, path: Path) -> transfer.Parcel:
        """Return what a file holds, once it has been judged.

        Raises:
            Invalid: it is damaged; the message names the file and the line.
        """
        with path.open("rb") as file:
            try:
                (parcel,) = transfer.read(transfer.lines_of(file))
            except Invalid as error:
                raise Invalid(f"{path}: {error.message}", hint=error.hint, details=error.details) from error
            except ValueError as error:
                raise Invalid(f"{path}: the file does not hold one run.") from error
        return parcel

    def put(self, store: Store, run: Run) -> Path:
        """Write a run into the archive, read it back and judge it; return its file.

        Raises:
            Invalid: what was read is not what is stored: then the run stays where it is.
            OSError: the file cannot be written.
        """
        path = self.path_of(run)
        self._tidy(path)
        write_chunks(path, transfer.compressed(transfer.pack(store, [run], withheld=False)), mode=0o600)
        parcel = self.load(path)
        if parcel.run != run:
            raise Invalid(
                f"What is stored of the run {run.id!r} is not what its events make; it stays where it is.",
                hint=f"`statem-dist verify {run.id}` says more.",
                details={"run_id": run.id},
            )
        return path

    def _tidy(self, path: Path) -> None:
        """Remove what somebody left who was killed while the file was written, and not what is being written now."""
        for left in path.parent.glob(f".{glob.escape(path.name[:200])}.*"):
            with suppress(FileNotFoundError):
                if left.stat().st_mtime < time.time() - TORN_SECONDS:
                    left.unlink()

    def _shelf(self, run_id: str) -> Path:
        return self.folder / sha256(run_id.encode()).hexdigest()[:2]


class ArchivedEvents:
    """The events of one archived run, for whoever reads logs. See ``EventLog``."""

    def __init__(self, events: tuple[Event, ...]) -> None:
        self._numbered = list(enumerate(events, start=1))

    def events(self, run_id: str, after: int = 0, limit: int | None = None) -> list[tuple[int, Event]]:
        """Return events with their numbers, oldest first, those after the given number."""
        return self._numbered[after:] if limit is None else self._numbered[after : after + limit]

    def latest_events(self, run_id: str, before: int | None, limit: int) -> list[tuple[int, Event]]:
        """Return events with their numbers, newest first, those before the given number."""
        earlier = self._numbered if before is None else self._numbered[: before - 1]
        return earlier[::-1][:limit]


def ended_runs(store: RedisStore, *, older_than_ms: int = 0, keep: int = 0) -> Iterator[Ended]:
    """Yield runs that have ended and may go, those that were created first first.

    What is read is what may go by its age and number, and not what stays for being young or among the last.

    Args:
        store: where they are.
        older_than_ms: only those that ended at least as long ago, by the store's clock.
        keep: not the so many that were created last, of those that are finished or cancelled.
    """
    latest = store.clock() - older_than_ms
    excess = sum(store.counts(ENDED)[status] for status in ENDED) - keep
    oldest = merge(*(_oldest(store, status) for status in ENDED))
    may_go = islice(oldest, max(0, excess))
    while page := list(islice(may_go, CHUNK)):
        for mark, found in zip(page, store.load_many([run_id for _, run_id in page]), strict=True):
            if mark[0] > latest:
                # No run ends before it is created, nor does any that follows.
                return
            # What cannot be read stays; `verify` tells of it.
            if isinstance(found, Snapshot) and found.run.ended and found.run.updated_at <= latest:
                yield Ended(found.run.updated_at, found.run.id)


def take_out(store: Store, run_id: str, archive: Archive | None, ended_at: int | None = None) -> Path | None:
    """Remove a run that has ended from the store, after it was put into an archive, if one is given.

    Args:
        store: where it is.
        run_id: the run.
        archive: where it goes.
        ended_at: when it had ended (ms) that was found to be old enough; None if its age does not matter.

    Returns:
        The file; None without an archive.

    Raises:
        NotFound: there is no such run any more.
        Invalid: it has not ended, or it moved while it was archived: it stays where it is.
    """
    snapshot = store.load(run_id)
    if snapshot is None:
        raise NotFound(f"Run not found: {run_id}", details={"run_id": run_id})
    run = snapshot.run
    require_ended(run)
    if ended_at is not None and run.updated_at != ended_at:
        raise _moved(run_id)
    path = None if archive is None else archive.put(store, run)
    if not store.remove(run, leftovers_of(store, run, snapshot.now)):
        raise _moved(run_id)
    return path


def _moved(run_id: str) -> Invalid:
    return Invalid(
        f"The run {run_id!r} moved while it was taken out; it stays where it is.", details={"run_id": run_id}
    )


def require_ended(run: Run) -> None:
    """Refuse a run that may go on.

    Raises:
        Invalid: it is not finished, nor cancelled and at rest.
    """
    if not run.ended:
        raise Invalid(
            f"The run {run.id!r} is {run.status}: only what is finished, or cancelled and at rest, can go.",
            details={"run_id": run.id, "status": run.status},
        )


def leftovers_of(store: Store, run: Run, now: int) -> Leftovers:
    """Return what may be kept of a run beside its document and events: what of it has not expired by itself."""
    entries: list[str] = []
    logs: list[tuple[str, str]] = []
    requests: list[str] = []
    for _, event in events_after(store, run, 0):
        match event:
            case RunCreated() | RunImported() | RunRebound() | RunRestarted() | NodeEntered():
                entries.append(event.entry_id)
            case TransitionOpened():
                if now - event.at < RECEIPTS_MS and event.request_id:
                    requests.append(event.request_id)
                if now - run.updated_at < LOGS_MS:
                    logs += [(event.transition, planned.id) for planned in event.plan]
            case RepairBegun():
                if now - run.updated_at < LOGS_MS:
                    logs += [(event.transition, planned.id) for planned in event.plan]
            case _:
                pass
    return Leftovers(tuple(dict.fromkeys(entries)), tuple(logs), tuple(requests))


def archived_runs(archive: Archive, paths: Iterable[Path]) -> Iterator[tuple[Path, Run | StatemError]]:
    """Yield what the files of an archive hold, one at a time; for one that cannot be read, why."""
    for path in paths:
        try:
            yield path, archive.load(path).run
        except StatemError as error:
            yield path, error


def _oldest(store: Store, status: str) -> Iterator[Mark]:
    """Yield where the runs of a status stand, oldest first."""
    after = (0, "")
    while marks := store.marks(status, CHUNK, after=after):
        yield from marks
        after = marks[-1]
