"""How many messages a worker takes, and what becomes of those that it took and did not begin.

Without acknowledgements Celery's prefetch limit does nothing: a worker would take every message of its queues
into memory. ``BoundedIntake`` lets it take what its slots can begin, and a few more, so that a slot that falls
free finds work at once. ``hand_back`` returns the unbegun ones to their queues when the worker stops.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from queue import Empty
from typing import Any

from celery import bootsteps
from celery.worker import state
from celery.worker.consumer.tasks import Tasks

LOOK_AHEAD = 2
"""Messages held beyond the slots. Each can wait no longer than the shortest of the checks before it."""

_READ = "BRPOP"
"""The command by which kombu's Redis transport takes messages, and the name of what it does with the answer."""

logger = logging.getLogger(__name__)


class BoundedIntake(bootsteps.StartStopStep):
    """Consumer step: consume no more while as many messages are held as slots and look-ahead allow, or at the end."""

    requires = (Tasks,)

    def start(self, consumer: Any) -> None:
        """Bound the intake of the consumer's channel; called again after each reconnection."""
        channel = consumer.task_consumer.channel
        qos = channel.qos
        within_prefetch = qos.can_consume
        held_max = consumer.pool.num_processes + LOOK_AHEAD

        def can_consume() -> bool:
            return state.should_stop is None and len(state.requests) < held_max and bool(within_prefetch())

        qos.can_consume = can_consume
        if _READ in getattr(channel, "handlers", ()):
            channel.handlers[_READ] = _dropping_nonsense(channel.handlers[_READ], consumer)

    def stop(self, consumer: Any) -> None:
        """Take the answer to the last request for a message, when the worker stops.

        Such a request waits in the server. Left there, it would be given the very message that is handed back next,
        and nobody would ever read it.
        """
        channel = consumer.task_consumer.channel if consumer.task_consumer else None
        if state.should_stop is not None and getattr(channel, "_in_poll", None):
            with suppress(Empty, *consumer.connection_errors):
                channel.handlers[_READ]()


def _dropping_nonsense(read: Callable[[], object], consumer: Any) -> Callable[[], object]:
    """Return a reader that survives a message which no version of Celery has sent.

    Without it, whoever writes into the wrong list ends every worker that serves it, one after another.
    """
    of_the_connection = (Empty, *consumer.connection_errors, *consumer.channel_errors)

    def read_or_drop() -> object:
        try:
            return read()
        except of_the_connection:
            raise
        except Exception:
            logger.exception("a message that cannot be understood is dropped")
            return True

    return read_or_drop


def hand_back(app: Any) -> int:
    """Return messages that were taken and not begun to their queues; give how many there were."""
    unbegun = [request for request in list(state.requests.values()) if request not in state.active_requests]
    if not unbegun:
        return 0
    with app.connection_for_write() as connection, connection.Producer() as producer:
        for request in unbegun:
            queue = request.delivery_info["routing_key"]
            producer.publish(
                request.body,
                exchange="",
                routing_key=queue,
                headers=request.message.headers,
                content_type=request.content_type,
                content_encoding=request.content_encoding,
                correlation_id=request.correlation_id,
            )
    logger.info("handed %d unbegun messages back", len(unbegun))
    return len(unbegun)
