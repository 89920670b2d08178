"""The way from a process to the store and back, on which requests and replies get lost and come late."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from statem_dist.store.client import REPLY_TIMEOUT_SECONDS, Argument, Refused, Unreachable
from statem_dist.store.redis_store import COMMIT, FORGET, LOAD, REMIND, RENEW
from tests.simulation import virtual
from tests.simulation.kernel import MICROSECONDS, Process, Waiters

if TYPE_CHECKING:
    from tests.simulation.world import World

SCRIPT_NAMES: dict[Argument, str] = {script.sha: script.name for script in (COMMIT, LOAD, RENEW, REMIND, FORGET)}

LATENCY_US = (50, 400)
"""Shortest and longest time that a round trip takes."""


class SimulatedClient:
    """Stands in for a Redis client of one process.

    Args:
        world: where the server is.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._process = virtual.here()

    def call(self, *command: Argument) -> Any:
        """Send one command and return its reply."""
        return self._exchange(_label(command), lambda: self._world.server.execute(command))

    def call_many(self, commands: Iterable[Sequence[Argument]]) -> list[Any]:
        """Send several commands and return their replies."""
        prepared = list(commands)
        reply: list[Any] = self._exchange(
            f"{_label(prepared[0])} and {len(prepared) - 1} more" if prepared else "nothing",
            lambda: [self._world.server.execute(command) for command in prepared],
        )
        return reply

    def subscribe(self, channels: Sequence[str]) -> Listener:
        """Listen to channels."""
        self._world.kernel.point("subscribe")
        self._require_store()
        return Listener(self._world, self._process, channels)

    def close(self) -> None:
        """Let go of every connection."""

    def _exchange(self, label: str, carry_out: Callable[[], Any]) -> Any:
        world, kernel, faults = self._world, self._world.kernel, self._world.faults
        kernel.point(f"ask {label}")
        if faults.strikes("request lost"):
            self._lose("no reply: the request was lost")
        if faults.strikes("request late"):
            world.later(kernel.rng.uniform(0.001, 12.0), label, carry_out)
            self._lose("no reply: the request is under way")
        self._require_store()
        kernel.now += kernel.rng.randrange(*LATENCY_US)
        reply = carry_out()
        kernel.point(f"hear {label}")
        if faults.strikes("reply lost"):
            self._lose("no reply: it was lost")
        return reply

    def _require_store(self) -> None:
        if self._world.store_away_until > self._world.kernel.now:
            self._world.kernel.sleep(0.001)
            raise Unreachable("the store is away")

    def _lose(self, text: str) -> None:
        kernel = self._world.kernel
        kernel.sleep(kernel.rng.choice((0.001, 0.001, REPLY_TIMEOUT_SECONDS)))
        raise Unreachable(text)


class Listener:
    """A subscription."""

    def __init__(self, world: World, process: Process, channels: Sequence[str]) -> None:
        self._world = world
        self._heard: deque[bytes] = deque([b""])
        self._waiters: Waiters = {}
        self._end = world.server.subscribe(channels, self._hear)
        process.at_end.append(self._end)

    def next(self, timeout: float) -> bytes | None:
        """Return the next message, or None when there is none in time."""
        kernel = self._world.kernel
        kernel.point("listen")
        if self._world.faults.strikes("connection of a listener lost"):
            raise Unreachable("the connection was lost")
        until = kernel.now + round(timeout * MICROSECONDS)
        while not self._heard and kernel.now < until:
            kernel.wait(self._waiters, until)
        return self._heard.popleft() if self._heard else None

    def close(self) -> None:
        """Stop listening."""
        self._end()

    def _hear(self, message: bytes) -> None:
        if not self._world.faults.strikes("announcement lost"):
            self._heard.append(message)
            self._world.kernel.notify(self._waiters)


def carried_out_late(carry_out: Callable[[], Any]) -> None:
    """Carry out a request whose sender hears nothing of it any more."""
    with suppress(Refused):
        carry_out()


def _label(command: Sequence[Argument]) -> str:
    """Return what a line of the trace calls a command."""
    if command[0] in ("EVALSHA", "EVAL"):
        return f"{SCRIPT_NAMES.get(command[1], 'script')} {command[3]!s}"
    return " ".join(str(word) for word in command[:2])
