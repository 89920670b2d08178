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
from typing import Any, Protocol, TypeAlias

from msgspec import Struct

from statem_dist.errors import UnsafeSurroundings
from statem_dist.protocol.progress import Batch
from statem_dist.settings import Settings
from statem_dist.store.base import Push

TASK_NAME = "statem.execute"
"""The Celery task that executes checks; its arguments are a run id, a transition id and the id of a planned check."""

DRIVE_TASK_NAME = "statem.drive"
"""The Celery task that takes a trial of a sweep and drives it; its argument is the name of the queue."""


class TrialsWait(Struct, frozen=True):
    """That trials of sweeps may wait to be taken by whoever serves a queue."""

    queue: str


Owed: TypeAlias = Batch | TrialsWait
"""What a message is about."""


class Dispatcher(Protocol):
    """Where owed batches go."""

    def pushes(self, batches: Sequence[Owed]) -> tuple[Push, ...]:
        """Return messages that the commit itself is to push."""

    def send(self, batches: Sequence[Owed]) -> None:
        """Send messages after the commit. A failure is no error: the reaper sends them again."""


class NoDispatch:
    """For whoever executes what it commits: nothing is sent."""

    def pushes(self, batches: Sequence[Owed]) -> tuple[Push, ...]:
        """Return nothing."""
        return ()

    def send(self, batches: Sequence[Owed]) -> None:
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

    def pushes(self, batches: Sequence[Owed]) -> tuple[Push, ...]:
        """Return the messages about the work of others."""
        return self._dispatcher.pushes(self._others(batches))

    def send(self, batches: Sequence[Owed]) -> None:
        """Send the messages about the work of others."""
        self._dispatcher.send(self._others(batches))

    def _others(self, batches: Sequence[Owed]) -> list[Owed]:
        return [batch for batch in batches if batch.queue not in self._own]


class PushWithCommit:
    """Messages travel in the commit script, into the lists that Celery workers on the same Redis consume."""

    def pushes(self, batches: Sequence[Owed]) -> tuple[Push, ...]:
        """Return one message per batch."""
        return tuple(Push(queue=batch.queue, message=task_message(batch)) for batch in batches)

    def send(self, batches: Sequence[Owed]) -> None:
        """Do nothing: the commit has sent them."""


def task_parts(owed: Owed) -> tuple[dict[str, Any], list[Any]]:
    """Return headers and body of the task message for what is owed, in Celery's message protocol, version 2."""
    match owed:
        case Batch():
            name, arguments = TASK_NAME, [owed.run, owed.transition, owed.checks[0]]
        case TrialsWait():
            name, arguments = DRIVE_TASK_NAME, [owed.queue]
    task_id = _new_id()
    headers = {
        "lang": "py",
        "task": name,
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


def task_message(owed: Owed) -> bytes:
    """Return the message that kombu's Redis transport would put on the queue for what is owed."""
    headers, body = task_parts(owed)
    envelope = {
        "body": b64encode(json.dumps(body).encode()).decode(),
        "content-encoding": "utf-8",
        "content-type": "application/json",
        "headers": headers,
        "properties": {
            "correlation_id": headers["id"],
            "reply_to": "",
            "delivery_mode": 2,
            "delivery_info": {"exchange": "", "routing_key": owed.queue},
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
    """Return how work is dispatched: with the commit where the broker is the store's Redis, else after it.

    Raises:
        UnsafeSurroundings: the state is in a Redis Cluster, and no other broker is named.
    """
    if settings.on_cluster and settings.broker_url is None:
        raise UnsafeSurroundings(
            "A Redis Cluster cannot be Celery's broker.",
            hint="Set STATEM_BROKER_URL to a Redis that is no cluster, or to RabbitMQ.",
        )
    if settings.broker_url is None or settings.broker_url == redis_url:
        return PushWithCommit()
    from statem_dist.publish import PublishAfterCommit

    return PublishAfterCommit(settings.broker_url)
