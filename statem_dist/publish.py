"""Dispatch for a broker that is not the state's own Redis: messages are published after the commit."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import suppress

from kombu import Connection, Queue
from kombu.utils.url import maybe_sanitize_url

from statem_dist.dispatch import Owed, task_parts
from statem_dist.errors import Unavailable
from statem_dist.store.base import Push
from statem_dist.store.client import REPLY_TIMEOUT_SECONDS
from statem_dist.store.topology import topology_of

logger = logging.getLogger(__name__)


class PublishAfterCommit:
    """Publishes task messages by kombu, to any broker that Celery knows.

    Args:
        broker_url: kombu URL, such as ``amqp://host//`` or ``redis://host/1``.

    Raises:
        Unavailable: there is no transport for such a URL, or its client library is not installed.
    """

    def __init__(self, broker_url: str) -> None:
        try:
            topology = topology_of(broker_url)
            options = {} if topology is None else topology.broker_options
            url = broker_url if topology is None else topology.broker_url
            if url.startswith(("redis", "sentinel")):
                # A Redis that has gone silent would else be waited for without end, by everybody who sends.
                options = {"socket_timeout": REPLY_TIMEOUT_SECONDS, **options}
            self._connection = Connection(url, connect_timeout=5, transport_options=options)
        except (ImportError, KeyError, ValueError) as error:
            raise broker_unavailable(broker_url, error) from error
        self._declared: set[str] = set()
        self._lock = threading.Lock()

    def pushes(self, batches: Sequence[Owed]) -> tuple[Push, ...]:
        """Return nothing: this broker is not reached by the commit script."""
        return ()

    def send(self, batches: Sequence[Owed]) -> None:
        """Publish one message per batch; what cannot be sent is left to the reaper."""
        with self._lock:
            try:
                for batch in batches:
                    self._send(batch)
            except Exception as error:
                # Whatever it is, the commit has happened: who asked for it must not hear of a failure.
                reason = str(error) or type(error).__name__
                logger.warning("the broker cannot be reached, the reaper will send again: %s", reason)
                self._declared.clear()
                with suppress(Exception):
                    self._connection.close()

    def _send(self, batch: Owed) -> None:
        headers, body = task_parts(batch)
        producer = self._connection.Producer(serializer="json")
        declare = [] if batch.queue in self._declared else [Queue(batch.queue, routing_key=batch.queue)]
        producer.publish(
            body,
            exchange="",
            routing_key=batch.queue,
            headers=headers,
            correlation_id=headers["id"],
            declare=declare,
            retry=True,
            retry_policy={"max_retries": 2, "interval_start": 0.1},
        )
        self._declared.add(batch.queue)


def broker_unavailable(broker_url: str, error: Exception) -> Unavailable:
    """Return the error for a broker that cannot be used; a password in its URL is not shown."""
    # A KeyError shows its text in quotes, and some of these texts are whole sentences.
    reason = str(error.args[0] if isinstance(error, KeyError) else error).rstrip(".")
    return Unavailable(
        f"The broker {maybe_sanitize_url(broker_url)} cannot be used: {reason}.",
        hint="Check STATEM_BROKER_URL; without it the broker is the state's own Redis.",
    )
