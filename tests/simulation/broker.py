"""Messages on their way from a queue to a worker, which get lost, doubled, mixed up and late; and another broker."""

from __future__ import annotations

import json
from base64 import b64decode
from collections import defaultdict
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from statem_dist.dispatch import Owed, task_message
from statem_dist.store.base import Push
from tests.simulation.kernel import MICROSECONDS, Waiters

if TYPE_CHECKING:
    from tests.simulation.world import World

TAKE_SECONDS = 1.0
"""How long a worker waits for a message before it asks again."""


class Broker:
    """The queues of a world: those of the store's server, or of a broker beside it.

    Args:
        world: where it is.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._own: dict[str, list[bytes]] = defaultdict(list)
        self._waiters: Waiters = {}
        self._queues: set[str] = set()

    def announce(self) -> None:
        """Tell workers that wait that a message came."""
        self._world.kernel.notify(self._waiters)

    def put(self, queue: str, message: bytes) -> None:
        """Put a message at the end of a queue."""
        if self._world.scenario.own_broker:
            self._own[queue].insert(0, message)
            self.announce()
        else:
            self._world.server.put_message(queue, message)

    def take(self, queues: Sequence[str]) -> tuple[str, str, str] | None:
        """Wait for a message of some queues; return run, transition and check, or None when there was none in time."""
        kernel, faults = self._world.kernel, self._world.faults
        kernel.point("take")
        for queue in queues:
            if not self._count(queue):
                continue
            reordered = self._count(queue) > 1 and faults.strikes("message reordered")
            message = self._pop(queue, kernel.rng.randrange(20) if reordered else 0)
            if faults.strikes("message dropped"):
                return None
            if faults.strikes("message delayed"):
                self._world.later(kernel.rng.uniform(0.1, 30), "late message", partial(self.put, queue, message))
                return None
            if faults.strikes("message doubled"):
                self.put(queue, message)
            run_id, transition, check = json.loads(b64decode(json.loads(message)["body"]))[0]
            kernel.note(f"message: {run_id} {transition} {check}")
            return run_id, transition, check
        kernel.wait(self._waiters, kernel.now + round(TAKE_SECONDS * MICROSECONDS))
        return None

    def wipe(self) -> None:
        """Lose every message."""
        self._own.clear()
        self._world.server.drop_messages(("checks", "llm", "pinned"))

    def _count(self, queue: str) -> int:
        return len(self._messages(queue))

    def _pop(self, queue: str, index: int) -> bytes:
        """Take a message: with index 0 the oldest one."""
        messages = self._messages(queue)
        return messages.pop(len(messages) - 1 - index % len(messages))

    def _messages(self, queue: str) -> list[bytes]:
        return self._own[queue] if self._world.scenario.own_broker else self._world.server.messages(queue)


class PublishLater:
    """Dispatches to a broker of its own, after the commit; what gets lost on the way is nobody's error.

    Args:
        world: whose broker it is.
    """

    def __init__(self, world: World) -> None:
        self._world = world

    def pushes(self, batches: Sequence[Owed]) -> tuple[Push, ...]:
        """Return nothing: the commit carries no message."""
        return ()

    def send(self, batches: Sequence[Owed]) -> None:
        """Publish messages."""
        for batch in batches:
            self._world.kernel.point("publish")
            if not self._world.faults.strikes("message dropped"):
                self._world.broker.put(batch.queue, task_message(batch))
