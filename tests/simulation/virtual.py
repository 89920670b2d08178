"""Stand-ins for time, threads, chance and the process table, and the one place where they are put in.

The code under test asks the modules ``time``, ``threading``, ``random``, ``os`` and ``socket`` of the standard library,
as it does in earnest. While a simulation runs, the names by which its modules know them lead here, and everything that
depends on them is decided by the kernel. Modules that are written later are included without a word.
"""

from __future__ import annotations

import os
import random
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import ModuleType
from typing import Any

from tests.simulation.kernel import MICROSECONDS, Crashed, Kernel, Process, Task, Waiters

PACKAGES = ("statem_dist.", "statem_workers.")

UNTOUCHED = ("statem_dist.checks.process", "statem_dist.checks.supervisor", "statem_dist.embedded", "statem_dist.cli")
"""Modules that no actor runs: the simulator has a supervisor and a server of its own."""


class _World:
    """The kernel that the stand-ins belong to; one at a time."""

    kernel: Kernel


def kernel() -> Kernel:
    """Return the kernel that is running."""
    return _World.kernel


def here() -> Process:
    """Return the process of whoever runs."""
    task = _World.kernel.current
    assert task is not None, "only actors act"
    return task.process


class Lock:
    """``threading.Lock``. Taking it is a switching point only where it is taken already."""

    def __init__(self) -> None:
        self._owner: Task | None = None
        self._waiters: Waiters = {}

    def acquire(self, blocking: bool = True, timeout: float = -1) -> bool:
        """Take it, or wait for it."""
        until = None if timeout < 0 else _moment(timeout)
        while self._owner is not None:
            if not here().alive:
                raise Crashed
            if not blocking or (until is not None and kernel().now >= until):
                return False
            kernel().wait(self._waiters, until)
        self._owner = kernel().current
        return True

    def release(self) -> None:
        """Let go of it."""
        self._owner = None
        kernel().notify(self._waiters, 1)

    def __enter__(self) -> bool:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class Condition:
    """``threading.Condition``."""

    def __init__(self, lock: Lock | None = None) -> None:
        self._lock = lock or Lock()
        self._waiters: Waiters = {}

    def __enter__(self) -> bool:
        return self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Let go of the lock until somebody notifies or time is up."""
        self._lock.release()
        notified = kernel().wait(self._waiters, _moment(timeout))
        self._lock.acquire()
        return notified

    def wait_for(self, predicate: Callable[[], bool], timeout: float | None = None) -> bool:
        """Wait until something is so, or time is up."""
        until = _moment(timeout)
        while not predicate():
            if until is not None and kernel().now >= until:
                return False
            self._lock.release()
            kernel().wait(self._waiters, until)
            self._lock.acquire()
        return True

    def notify(self, n: int = 1) -> None:
        """Wake some of those that wait."""
        kernel().notify(self._waiters, n)

    def notify_all(self) -> None:
        """Wake everybody who waits."""
        kernel().notify(self._waiters)


class Event:
    """``threading.Event``."""

    def __init__(self) -> None:
        self._set = False
        self._waiters: Waiters = {}

    def is_set(self) -> bool:
        """Return whether it has happened."""
        return self._set

    def set(self) -> None:
        """Make it happen."""
        self._set = True
        kernel().notify(self._waiters)

    def clear(self) -> None:
        """Make it not have happened."""
        self._set = False

    def wait(self, timeout: float | None = None) -> bool:
        """Wait until it happens or time is up."""
        kernel().point("wait")
        until = _moment(timeout)
        while not self._set and (until is None or kernel().now < until):
            kernel().wait(self._waiters, until)
        return self._set


class Thread:
    """``threading.Thread``: another task of the same process."""

    def __init__(
        self,
        group: None = None,
        target: Callable[..., object] | None = None,
        name: str | None = None,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
        *,
        daemon: bool | None = None,
    ) -> None:
        self._target = target
        self._arguments = args, kwargs or {}
        self.name = name or "thread"
        self.daemon = daemon
        self._task: Task | None = None

    def start(self) -> None:
        """Begin."""
        self._task = kernel().spawn(here(), self.name, self.run)

    def run(self) -> None:
        """Do what it is for."""
        if self._target is not None:
            positional, named = self._arguments
            self._target(*positional, **named)

    def is_alive(self) -> bool:
        """Return whether it has begun and not ended."""
        return self._task is not None and not self._task.ended

    def join(self, timeout: float | None = None) -> None:
        """Wait for its end, or until time is up."""
        until = _moment(timeout)
        while self._task is not None and not self._task.ended and (until is None or kernel().now < until):
            kernel().wait(self._task.joiners, until)


class Timer(Thread):
    """``threading.Timer``."""

    def __init__(
        self, interval: float, function: Callable[..., object], args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> None:
        super().__init__(target=function, name="timer", args=tuple(args), kwargs=kwargs)
        self._interval = interval
        self._finished = Event()

    def cancel(self) -> None:
        """Do nothing when the time comes."""
        self._finished.set()

    def run(self) -> None:
        """Wait, then do it."""
        if not self._finished.wait(self._interval):
            super().run()


def _moment(seconds: float | None) -> int | None:
    return None if seconds is None else kernel().now + max(0, round(seconds * MICROSECONDS))


def monotonic_us() -> int:
    """Return the monotonic clock of the process that runs, in microseconds."""
    return kernel().now + here().clock_us


def _monotonic() -> float:
    kernel().point("monotonic")
    return monotonic_us() / MICROSECONDS


def _random_bytes(count: int) -> bytes:
    return kernel().rng.randbytes(count)


class _Stand:
    """A module of which some names lead elsewhere."""

    def __init__(self, module: ModuleType, **names: object) -> None:
        self.__dict__.update(names)
        self._module = module

    def __getattr__(self, name: str) -> Any:
        return getattr(self._module, name)


STANDS: dict[str, tuple[ModuleType, _Stand]] = {
    "time": (
        time,
        _Stand(
            time,
            monotonic=_monotonic,
            monotonic_ns=lambda: round(_monotonic() * MICROSECONDS) * 1000,
            perf_counter=_monotonic,
            time=lambda: kernel().now / MICROSECONDS,
            sleep=lambda seconds: kernel().sleep(seconds),
        ),
    ),
    "threading": (
        threading,
        _Stand(threading, Lock=Lock, Condition=Condition, Event=Event, Thread=Thread, Timer=Timer),
    ),
    "random": (
        random,
        _Stand(
            random,
            random=lambda: kernel().rng.random(),
            uniform=lambda a, b: kernel().rng.uniform(a, b),
        ),
    ),
    "os": (os, _Stand(os, urandom=_random_bytes, getpid=lambda: here().pid)),
    "socket": (socket, _Stand(socket, gethostname=lambda: here().host)),
}
"""What the modules under test know by which name, and what they get instead."""


@contextmanager
def installed(running: Kernel, replacements: Mapping[str, object]) -> Iterator[None]:
    """Put the stand-ins in for the length of a ``with`` block.

    Args:
        running: the kernel that they ask.
        replacements: further names, each written ``MODULE:NAME``, and what they lead to meanwhile.
    """
    _World.kernel = running
    changed: list[tuple[object, str, object]] = []

    def put(module: object, name: str, value: object) -> None:
        changed.append((module, name, getattr(module, name)))
        setattr(module, name, value)

    for module in [module for name, module in sorted(sys.modules.items()) if _is_under_test(name)]:
        for name, (real, stand) in STANDS.items():
            if getattr(module, name, None) is real:
                put(module, name, stand)
    for path, replacement in replacements.items():
        module_name, _, name = path.partition(":")
        put(sys.modules[module_name], name, replacement)
    try:
        yield
    finally:
        for changed_module, name, value in reversed(changed):
            setattr(changed_module, name, value)


def _is_under_test(name: str) -> bool:
    return name.startswith(PACKAGES) and not name.startswith(UNTOUCHED)
