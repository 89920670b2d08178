"""How many messages a worker takes, and what becomes of those that it took and did not begin.

Without acknowledgements Celery's prefetch limit does nothing: a worker would take every message of its queues
into memory. ``BoundedIntake`` lets it take what its slots can begin, and a few more, so that a slot that falls
free finds work at once. When the worker stops, it returns the unbegun ones to their queues.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from queue import Empty
from typing import Any

from celery import bootsteps, signals
from celery.worker import state
from celery.worker.consumer.tasks import Tasks

LOOK_AHEAD = 2
"""Messages held beyond the slots. Each can wait no longer than the shortest of the checks before it."""

_READ = "BRPOP"
"""The command by which kombu's Redis transport takes messages, and the name of what it does with the answer."""

handed_back: set[str] = set()
"""Ids of the messages that this worker has returned to their queues; a slot that falls free now leaves them alone."""

logger = logging.getLogger(__name__)


class BoundedIntake(bootsteps.StartStopStep):
    """Consumer step: take no more while as many messages are held as slots and look-ahead allow, none at the end."""

    requires = (Tasks,)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._taken: list[Any] = []
        self._away = False
        self._bounded = True
        signals.task_received.connect(self._note, weak=False)

    def start(self, consumer: Any) -> None:
        """Bound the intake of the consumer's channel; called again after each reconnection."""
        if self._away:
            self._away = False
            logger.info("the broker is back")
        channel = consumer.task_consumer.channel
        self._bounded = hasattr(channel, "qos")
        if not self._bounded:
            # RabbitMQ bounds this itself: its queues are consumed with acknowledgements.
            return
        within_prefetch = channel.qos.can_consume
        held_max = consumer.pool.num_processes + LOOK_AHEAD

        def can_consume() -> bool:
            return state.should_stop is None and len(state.requests) < held_max and bool(within_prefetch())

        channel.qos.can_consume = can_consume
        if _READ in getattr(channel, "handlers", ()):
            channel.handlers[_READ] = _dropping_nonsense(channel.handlers[_READ], consumer)

    def stop(self, consumer: Any) -> None:
        """Hand back what was taken and not begun, when the worker stops; called at each reconnection too."""
        if state.should_stop is None:
            if not self._away:
                self._away = True
                logger.warning("the broker %s is away; trying until it is back", consumer.conninfo.as_uri())
            return
        if not self._bounded:
            # What was taken and not begun is not acknowledged: the broker gives it to somebody else.
            return
        # A request for one more message may wait in the server. Left there, it would be given the very message that
        # is handed back next, and nobody would ever read it.
        channel = consumer.task_consumer.channel if consumer.task_consumer else None
        if getattr(channel, "_in_poll", None):
            with suppress(Empty, *consumer.connection_errors):
                channel.handlers[_READ]()
        _hand_back(consumer.app, self._unbegun())

    def _note(self, request: Any, **_: Any) -> None:
        """Remember a message that has just been taken. Celery does so too, and forgets it first in a shutdown."""
        if not self._bounded:
            return
        # Kombu knows of a consumer that it acknowledges nothing, and forgets that when the connection is lost. What
        # waits for a slot meanwhile would then be acknowledged on a channel that is gone, which ends the worker.
        request.message.ack = _nothing
        self._taken = [*self._unbegun(), request]

    def _unbegun(self) -> list[Any]:
        return [request for request in self._taken if request.time_start is None]


def _nothing(**_: object) -> None:
    """Acknowledge nothing."""


def _hand_back(app: Any, requests: list[Any]) -> None:
    """Return messages to their queues."""
    if not requests:
        return
    handed_back.update(request.id for request in requests)
    with app.connection_for_write() as connection, connection.Producer() as producer:
        for request in requests:
            producer.publish(
                request.body,
                exchange="",
                routing_key=request.delivery_info["routing_key"],
                headers=request.message.headers,
                content_type=request.content_type,
                content_encoding=request.content_encoding,
                correlation_id=request.correlation_id,
            )


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
