"""Lists of runs, newest first, filtered and in pages.

One index is read: that of a label if one is asked for, else that of a status, else that of all runs. Whatever else is
asked for is looked for in the runs themselves, and a page looks at a bounded number of them: it may hold fewer runs
than asked for, or none, and still say where to go on.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Iterator
from typing import get_args

from msgspec import Struct

from statem_dist.errors import Invalid
from statem_dist.protocol.model import Run, RunStatus
from statem_dist.store.base import Mark, Snapshot, Store

CHUNK = 50
"""Runs read at a time."""

LOOKED_AT_MAX = 1_000
"""Runs that a page looks at, at most."""

STATUSES: tuple[str, ...] = get_args(RunStatus)
"""Every status of a run."""

OnUnreadable = Callable[[str, Exception], None]
"""Called with the id of a stored run that cannot be read, and why."""


class RunFilter(Struct, frozen=True):
    """Which runs are wanted; what is left empty does not matter.

    ``runbook`` is the name of the runbook or the beginning of its hash (eight characters at least).
    """

    status: str | None = None
    labels: dict[str, str] = {}
    runbook: str | None = None
    node: str | None = None

    def admits(self, run: Run) -> bool:
        """Return whether a run is one of those wanted."""
        return (
            self.status in (None, run.status)
            and self.node in (None, run.node)
            and self.labels.items() <= run.labels.items()
            and (self.runbook is None or is_runbook(self.runbook, run.runbook_name, run.runbook))
        )


class Page(Struct, frozen=True):
    """Some runs, and the cursor of the next page; None if this is the last one."""

    runs: tuple[Snapshot, ...]
    next_cursor: str | None


def is_runbook(wanted: str, name: str, digest: str) -> bool:
    """Return whether a runbook of this name and hash is the one that is wanted."""
    return wanted == name or (len(wanted) >= 8 and digest.startswith(wanted))


def listed(
    store: Store, wanted: RunFilter, on_unreadable: OnUnreadable, before: Mark | None = None
) -> Iterator[Snapshot]:
    """Yield every run that is wanted, newest first; one that was removed meanwhile is left out.

    Args:
        store: where the runs are kept.
        wanted: which ones.
        on_unreadable: told of each run that cannot be read, for which the others are not kept back.
        before: creation time and id of the run after which to begin.
    """
    for _, snapshot in _candidates(store, wanted, on_unreadable, before):
        if snapshot is not None and wanted.admits(snapshot.run):
            yield snapshot


def page(store: Store, wanted: RunFilter, cursor: str | None, limit: int, on_unreadable: OnUnreadable) -> Page:
    """Return a page of runs.

    Args:
        store: where the runs are kept.
        wanted: which ones.
        cursor: that of the page, None for the first one.
        limit: how many at most.
        on_unreadable: see ``listed``.

    Raises:
        Invalid: the cursor is none that a page gave.
    """
    before = None if cursor is None else _mark_of(cursor)
    found: list[Snapshot] = []
    for looked_at, (mark, snapshot) in enumerate(_candidates(store, wanted, on_unreadable, before), start=1):
        if snapshot is not None and wanted.admits(snapshot.run):
            found.append(snapshot)
        if len(found) == limit or looked_at == LOOKED_AT_MAX:
            return Page(tuple(found), _cursor_of(mark))
    return Page(tuple(found), None)


def _candidates(
    store: Store, wanted: RunFilter, on_unreadable: OnUnreadable, before: Mark | None
) -> Iterator[tuple[Mark, Snapshot | None]]:
    """Yield the places of the index that is read for a filter, each with its run; none where it cannot be read."""
    label = next(iter(wanted.labels.items()), None)
    while True:
        marks = store.marks(wanted.status, CHUNK, label=label, before=before)
        for mark, found in zip(marks, store.load_many([run_id for _, run_id in marks]), strict=True):
            # The walk goes on behind it whatever stands there.
            before = mark
            if isinstance(found, Snapshot):
                yield mark, found
                continue
            if found is not None:
                on_unreadable(mark[1], found)
            yield mark, None
        if len(marks) < CHUNK:
            return


def _cursor_of(mark: Mark) -> str:
    created_at, run_id = mark
    return base64.urlsafe_b64encode(f"{created_at}:{run_id}".encode()).decode().rstrip("=")


def _mark_of(cursor: str) -> Mark:
    try:
        text = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4)).decode()
        created_at, sign, run_id = text.partition(":")
        if sign and run_id:
            return int(created_at), run_id
    except (ValueError, binascii.Error):
        pass
    raise Invalid("The cursor is none that a page gave.", hint="Take `next_cursor` of the page before, unchanged.")
