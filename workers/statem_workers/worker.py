"""Running a worker: one Celery worker with its reaper and its announcements, until it is told to stop."""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import warnings
from contextlib import suppress
from typing import Any

from celery import signals
from celery.exceptions import CPendingDeprecationWarning, SecurityWarning

from statem_dist import __version__
from statem_dist.checks.confinement import require_policy
from statem_dist.errors import Unavailable, Usage
from statem_dist.identity import this_process
from statem_dist.leadership import Leadership
from statem_dist.reaper import DUTY, Reaper
from statem_dist.retention import Retention
from statem_dist.roster import ANNOUNCE_SECONDS, Roster, WorkerCard
from statem_dist.settings import Settings
from statem_dist.store.client import client_for
from statem_dist.store.redis_store import RedisStore
from statem_dist.surroundings import require_surroundings
from statem_dist.sweep.keeper import Keeper
from statem_dist.sweep.lingering import linger
from statem_workers.app import broker_url_for, make_app, require_broker
from statem_workers.intake import BoundedIntake, handed_back
from statem_workers.runtime import WorkerOptions, configure, runtime, store_url

POOLS = ("threads", "prefork", "solo")
"""Pools that run commands well. Gevent spends ten times the processor time per command and is refused."""

CHILD_STOP = signal.SIGUSR2
"""What a child of the prefork pool is told to stop with: its pool only waits, and would do so for ever."""

BROKER_AWAY = ("consumer: Connection to broker lost", "consumer: Cannot connect to", "Frequent restarts detected")
"""How Celery's many lines about a broker that is away, or refuses, begin."""

LOG_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"

logger = logging.getLogger(__name__)


def run_worker(options: WorkerOptions, settings: Settings) -> int:
    """Run a worker in the foreground until SIGTERM or SIGINT; return its exit code.

    Raises:
        Usage: a pool that is not supported.
        Invalid: a sandbox is demanded of this host that it cannot make.
        Unavailable: the state store or the broker cannot be reached at the start.
        UnsafeSurroundings: runs would be lost on them.
    """
    if options.pool not in POOLS:
        raise Usage(f"The pool {options.pool!r} is not supported. Choose one of: {', '.join(POOLS)}.")
    require_policy(settings)
    logging.basicConfig(level=options.log_level, format=LOG_FORMAT, stream=sys.stderr)
    # Celery tells of every message; what users follow is told by the executor.
    for noisy in ("celery.worker.strategy", "celery.app.trace", "celery.apps.worker"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    # That the broker is away, and back, is told by the intake, in a line each.
    logging.getLogger("celery.worker.consumer.connection").setLevel(logging.WARNING)
    consumer_log = logging.getLogger("celery.worker.consumer.consumer")
    consumer_log.setLevel(logging.WARNING)
    consumer_log.addFilter(lambda record: not record.getMessage().startswith(BROKER_AWAY))
    # Celery warns root because of pickled tasks; this application accepts JSON alone.
    warnings.simplefilter("ignore", SecurityWarning)
    app = make_app(settings.broker_url or broker_url_for(store_url(settings)), options.queues, events=options.events)
    require_surroundings(
        RedisStore(client_for(store_url(settings)), patience_seconds=settings.patience_seconds), settings
    )
    require_broker(app, settings)
    app.steps["consumer"].add(BoundedIntake)
    configure(options, settings)
    presence = Presence(options, settings)
    reaper = Reaper(runtime().coordinator, Leadership(runtime().store, DUTY, this_process("worker")))
    keeper = Keeper(runtime().ledger, runtime().hints, Roster(runtime().store))
    retention = Retention(runtime().store, settings)
    if options.until_done:
        linger(runtime().store)

    def ready(**_: Any) -> None:
        # At a loss of the broker Celery warns of a default of its next version. Its logging has just asked to see that.
        warnings.simplefilter("ignore", CPendingDeprecationWarning)
        presence.start()
        reaper.start()
        keeper.start()
        retention.start()
        logger.info("ready: queues %s, %d slots (%s)", ", ".join(options.queues), options.concurrency, options.pool)

    def shutting_down(**_: Any) -> None:
        logger.info("stopping: running checks get %g s", options.grace_seconds)
        presence.close()
        reaper.close()
        keeper.close()
        retention.close()
        runtime().stop(options.grace_seconds)
        for child in _children(worker):
            with suppress(ProcessLookupError):
                os.kill(child, CHILD_STOP)

    def forked(**_: Any) -> None:
        signal.signal(CHILD_STOP, lambda *_: runtime().stop(options.grace_seconds))

    signals.worker_ready.connect(ready, weak=False)
    signals.worker_shutting_down.connect(shutting_down, weak=False)
    signals.worker_process_init.connect(forked, weak=False)
    worker = app.Worker(
        concurrency=options.concurrency,
        pool=options.pool,
        hostname=f"statem-{this_process('w')}".replace(":", "-"),
        loglevel=options.log_level,
        without_gossip=True,
        without_mingle=True,
        without_heartbeat=not options.events,
        quiet=True,
    )
    worker.start()
    logger.info("stopped; %d unbegun messages handed back", len(handed_back))
    return int(worker.exitcode or 0)


class Presence:
    """Announces this worker to the roster, in a thread of its own."""

    def __init__(self, options: WorkerOptions, settings: Settings) -> None:
        store = RedisStore(client_for(store_url(settings)), patience_seconds=ANNOUNCE_SECONDS)
        self._roster = Roster(store)
        self._card = WorkerCard(
            id=this_process("worker"),
            queues=options.queues,
            slots=options.concurrency,
            pool=options.pool,
            started_at=store.clock(),
            version=__version__,
        )
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._announce, name="statem-presence", daemon=True)

    def start(self) -> None:
        """Announce now, and again and again."""
        try:
            self._roster.announce(self._card)
            runtime().coordinator.recognise_store()
        except Unavailable as error:
            # It is repeated in any case, and nothing that starts after it may be kept from that.
            logger.warning("%s", error.message)
        self._thread.start()

    def close(self) -> None:
        """Say goodbye, so that nobody waits for this worker any more."""
        self._closed.set()
        if self._thread.is_alive():
            # An announcement that is under way must not bring this worker back on the list.
            self._thread.join(timeout=2 * ANNOUNCE_SECONDS)
        try:
            self._roster.leave(self._card.id)
        except Unavailable as error:
            logger.warning("%s", error.message)

    def _announce(self) -> None:
        away = told = False
        while not self._closed.wait(ANNOUNCE_SECONDS):
            try:
                self._roster.announce(self._card)
                if runtime().coordinator.recognise_store() and not told:
                    told = True
                    logger.error("the state store was reset: it is another one than when this worker was started")
                    runtime().store.count_loss("everything")
            except Unavailable as error:
                if not away:
                    logger.warning("%s", error.message)
                away = True
            else:
                if away:
                    logger.info("the state store is back")
                away = False


def _children(worker: Any) -> list[int]:
    """Return the pids of the children of a prefork pool; other pools have none."""
    return list(worker.pool.info.get("processes", ()))
