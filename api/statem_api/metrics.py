"""What the service counts about itself and sees of the queues, in the text format of Prometheus."""

from __future__ import annotations

import platform

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

from statem_dist import __version__
from statem_dist.engine import Engine
from statem_dist.listing import STATUSES
from statem_dist.load import queue_loads

MEDIA_TYPE = CONTENT_TYPE_LATEST


class Metrics:
    """The metrics of one process. No label holds a run, a task or a user: their number has no bound."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.requests = Histogram(
            "statem_http_request_duration_seconds",
            "Time from a request to the beginning of its answer.",
            ["route", "method", "status"],
            registry=self._registry,
        )
        self.sse_clients = Gauge("statem_sse_clients", "Streams of events that are open.", registry=self._registry)
        self.refused = Counter(
            "statem_http_refused_total", "Requests refused for want of a token or a right.", registry=self._registry
        )
        self._runs = Gauge("statem_runs", "Runs by status.", ["status"], registry=self._registry)
        self._depth = Gauge("statem_queue_depth", "Messages that wait.", ["queue"], registry=self._registry)
        self._workers = Gauge("statem_workers", "Workers that serve a queue.", ["queue"], registry=self._registry)
        self._slots = Gauge("statem_worker_slots", "Batches that workers can execute at once.", registry=self._registry)
        self._overdue = Gauge("statem_runs_due", "Runs that a reaper will look at.", registry=self._registry)
        self._losses = Gauge(
            "statem_store_losses",
            "How often the store was found to have lost writes, by what: a run, a claim, everything.",
            ["what"],
            registry=self._registry,
        )
        Gauge("statem_build_info", "Which build this is.", ["version", "python"], registry=self._registry).labels(
            __version__, platform.python_version()
        ).set(1)

    def text(self, engine: Engine) -> bytes:
        """Return everything as text, with what the store says at this moment.

        Raises:
            Unavailable: the store cannot be asked.
        """
        counts = engine.store.counts(STATUSES)
        for status in STATUSES:
            self._runs.labels(status).set(counts[status])
        self._overdue.set(counts["due"])
        for what, count in engine.store.losses().items():
            self._losses.labels(what).set(count)
        present = engine.roster.present()
        self._slots.set(sum(card.slots for card in present))
        self._depth.clear()
        self._workers.clear()
        for load in queue_loads(engine.store, engine.settings, present):
            self._workers.labels(load.queue).set(load.workers)
            if load.waiting is not None:
                self._depth.labels(load.queue).set(load.waiting)
        return generate_latest(self._registry)
