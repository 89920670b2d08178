"""How owed work reaches a worker: the port, and the way that needs no broker client at all.

A message is a hint. It says which batch of which run is owed; what is to be done is read from the state. Where
the broker is the Redis that holds the state, the commit script pushes the ready-made task message itself, so
that commit and dispatch are one atomic step. Any other broker is served by ``statem_dist.publish`` after
the commit, and the reaper covers the gap between the two.
"""

from __future__ import annotations

import json
from base64 import b64encode
from collections.abc import Sequence
from typing import Any, Protocol

from statem_dist.protocol.progress import Batch
from statem_dist.settings import Settings
from statem_dist.store.base import Push

TASK_NAME = "statem.execute"
"""Name of the one Celery task; its arguments are a run id, a transition id and the id of a planned check."""


class Dispatcher(Protocol):
    """Where owed batches go."""

    def pushes(self, batches: Sequence[Batch]) -> tuple[Push, ...]:
        """Return messages that the commit itself is to push."""

    def send(self, batches: Sequence[Batch]) -> None:
        """Send messages after the commit. A failure is no error: the reaper sends them again."""


class NoDispatch:
    """For whoever executes what it commits: nothing is sent."""

    def pushes(self, batches: Sequence[Batch]) -> tuple[Push, ...]:
        """Return nothing."""
        return ()

    def send(self, batches: Sequence[Batch]) -> None:
        """Do nothing."""


class DispatchOthers:
    """For whoever executes the work of some queues: only that of the others is sent.

    Args:
        dispatcher: sends it.
        own: the queues whose work is not sent.
    """

    def __init__(self, dispatcher: Dispatcher, own: Sequence[str]) -> None:
        self._dispatcher = dispatcher
        self._own = frozenset(own)

    def pushes(self, batches: Sequence[Batch]) -> tuple[Push, ...]:
        """Return the messages about the work of others."""
        return self._dispatcher.pushes(self._others(batches))

    def send(self, batches: Sequence[Batch]) -> None:
        """Send the messages about the work of others."""
        self._dispatcher.send(self._others(batches))

    def _others(self, batches: Sequence[Batch]) -> list[Batch]:
        return [batch for batch in batches if batch.queue not in self._own]


class PushWithCommit:
    """Messages travel in the commit script, into the lists that Celery workers on the same Redis consume."""

    def pushes(self, batches: Sequence[Batch]) -> tuple[Push, ...]:
        """Return one message per batch."""
        return tuple(Push(queue=batch.queue, message=task_message(batch)) for batch in batches)

    def send(self, batches: Sequence[Batch]) -> None:
        """Do nothing: the commit has sent them."""


def task_parts(batch: Batch) -> tuple[dict[str, Any], list[Any]]:
    """Return headers and body of the task message for a batch, in Celery's message protocol, version 2."""
    arguments = [batch.run, batch.transition, batch.checks[0]]
    task_id = _new_id()
    headers = {
        "lang": "py",
        "task": TASK_NAME,
        "id": task_id,
        "root_id": task_id,
        "parent_id": None,
        "group": None,
        "eta": None,
        "expires": None,
        "retries": 0,
        "timelimit": [None, None],
        "argsrepr": repr(tuple(arguments)),
        "kwargsrepr": "{}",
        "origin": "statem-dist",
        "ignore_result": True,
    }
    return headers, [arguments, {}, {"callbacks": None, "errbacks": None, "chain": None, "chord": None}]


def task_message(batch: Batch) -> bytes:
    """Return the message that kombu's Redis transport would put on the queue for this batch."""
    headers, body = task_parts(batch)
    envelope = {
        "body": b64encode(json.dumps(body).encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": headers,
        "properties": {
            "correlation_id": headers["id"],
            "reply_to": "",
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": batch.queue},
            "priority": 0,
            "body_encoding": "base64",
            "delivery_tag": _new_id(),
        },
    }
    return json.dumps(envelope).encode()


def _new_id() -> str:
    """Return a random UUID; the module is imported by whoever sends something."""
    from uuid import uuid4

    return str(uuid4())


def dispatcher_for(settings: Settings, redis_url: str) -> Dispatcher:
    """Return how work is dispatched: with the commit where the broker is the store's Redis, else after it."""
    if settings.broker_url is None or settings.broker_url == redis_url:
        return PushWithCommit()
    from statem_dist.publish import PublishAfterCommit

    return PublishAfterCommit(settings.broker_url)
