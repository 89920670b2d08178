"""How long runs stay in the store once they have ended, and who moves them out of it.

By default they stay for ever. With ``STATEM_RETAIN_DAYS`` or ``STATEM_RETAIN_RUNS`` workers look once a minute for
those whose time is over, and take a bounded number of them out: into ``STATEM_ARCHIVE_DIR``, or, without one, for good.
One worker does so at a time: of those that look, the one that comes first.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator

from statem_dist.archive import Archive, Ended, ended_runs, take_out
from statem_dist.errors import NotFound, StatemError, Unavailable
from statem_dist.settings import Settings
from statem_dist.store import keys
from statem_dist.store.redis_store import RedisStore
from statem_dist.sweep.ledger import Ledger

INTERVAL_SECONDS = 60.0
"""Pause between two looks."""

RUNS_PER_LOOK = 100
"""Runs that are taken out at most in one look."""

FAILURES_PER_LOOK = 10
"""Runs that cannot be taken out, after which a look ends: if the disk of the archive is full, none can be."""

AGAIN_SECONDS = 3600.0
"""After how long a run that could not be taken out is tried again."""

DAY_MS = 24 * 3600 * 1000

logger = logging.getLogger(__name__)


class OpenSweeps:
    """Says of runs whether they belong to a sweep that is still open: its results may still be asked for."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger
        self._known: dict[str, bool] = {}

    def has(self, labels: dict[str, str]) -> bool:
        """Return whether a run with these labels is that of a trial of an open sweep."""
        sweep_id = labels.get("sweep")
        if sweep_id is None or "trial" not in labels:
            return False
        if sweep_id not in self._known:
            sweep = self._ledger.sweep(sweep_id)
            over = sweep is None or (
                sweep.status in ("stopped", "cancelled", "finished") and sweep.counts["running"] == 0
            )
            self._known[sweep_id] = not over
        return self._known[sweep_id]


def may_go(store: RedisStore, *, older_than_ms: int, keep: int) -> Iterator[Ended]:
    """Yield the runs that may be taken out: those that have ended, and are of no open sweep. See ``ended_runs``."""
    open_sweeps = OpenSweeps(Ledger(store))
    for ended in ended_runs(store, older_than_ms=older_than_ms, keep=keep):
        snapshot = store.load(ended.run_id)
        if snapshot is not None and not open_sweeps.has(snapshot.run.labels):
            yield ended


class Retention:
    """Takes out runs whose time is over, again and again, in a thread of its own.

    Args:
        store: where they are.
        settings: how long they stay, and where they go.
    """

    def __init__(self, store: RedisStore, settings: Settings) -> None:
        self._store = store
        self._settings = settings
        self._failed: dict[Ended, float] = {}
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._look_for_ever, name="statem-retention", daemon=True)

    @property
    def demanded(self) -> bool:
        """Whether anything is ever taken out."""
        return self._settings.retain_days is not None or self._settings.retain_runs is not None

    def start(self) -> None:
        """Begin, if anything is ever taken out."""
        if self.demanded:
            self._thread.start()

    def close(self) -> None:
        """Stop, after the run that is being taken out."""
        self._closed.set()

    def look(self) -> int:
        """Take out what may go, up to a bound; return how many runs that were."""
        settings = self._settings
        archive = None if settings.archive_dir is None else Archive(settings.archive_dir)
        older_than_ms = round((settings.retain_days or 0) * DAY_MS)
        found = may_go(self._store, older_than_ms=older_than_ms, keep=settings.retain_runs or 0)
        now = time.monotonic()
        self._failed = {ended: at for ended, at in self._failed.items() if now - at < AGAIN_SECONDS}
        taken = failures = 0
        for ended in found:
            if self._closed.is_set() or taken == RUNS_PER_LOOK or failures == FAILURES_PER_LOOK:
                break
            if ended in self._failed:
                # It could not be taken out, and must not stand in the way of those behind it.
                continue
            try:
                take_out(self._store, ended.run_id, archive, ended.at)
            except NotFound:
                continue
            except Unavailable:
                raise
            except (StatemError, OSError) as error:
                failures += 1
                self._failed[ended] = now
                logger.error("the run %s cannot be taken out: %s", ended.run_id, error)
                continue
            taken += 1
        if taken:
            self._store.release_pointers()
            where = "for good" if archive is None else f"to {archive.folder}"
            logger.info("%d runs that had ended were taken out %s", taken, where)
        return taken

    def _look_for_ever(self) -> None:
        while not self._closed.is_set():
            try:
                # Whoever sets it looks; it is gone by itself before the next look.
                claim = ("SET", keys.RETENTION, "1", "NX", "PX", round(INTERVAL_SECONDS * 900))
                if self._store.call(*claim) is not None:
                    self.look()
            except Unavailable as error:
                logger.warning("%s %s", error.message, error.hint)
            except Exception:
                # A defect must not end the thread.
                logger.exception("the retention of runs stumbled")
            self._closed.wait(INTERVAL_SECONDS)
