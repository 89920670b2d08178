"""Run several services in the foreground as one: start in order, show their output, end together.

One loop waits in ``select`` for output, for signals (by way of a wakeup descriptor) and for the one deadline
that may stand; nothing polls while all is quiet. Every service leads a process group of its own. A polite stop
goes to the leader alone, because a worker pool wants to end its children itself; what is left of the group once
the leader has gone is killed.
"""

from __future__ import annotations

import os
import selectors
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import TextIO

from msgspec import Struct

GRACE_SECONDS = 10.0
"""How long a service may take to end after SIGTERM."""

READY_TIMEOUT_SECONDS = 60.0
"""How long a service may take until it is ready."""

LINE_BYTES_MAX = 8 * 1024
"""Longer lines are shown in pieces, so that output without line ends cannot fill our memory."""

_READY_POLL_SECONDS = 0.05
_READ_BYTES = 64 * 1024
_DRAIN_READS_MAX = 16
"""A full pipe and more; somebody who left the process group may go on writing to it for ever."""

_STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
_COLOURS = (36, 33, 32, 35, 34)
_OWN_NAME = "statem-dist"


class Service(Struct, frozen=True):
    """One process of the stack.

    ``env`` is its whole environment, None ours. ``ready`` is asked every 50 ms until it returns True; the next
    service starts after that. It must return quickly and not raise.
    """

    name: str
    argv: Sequence[str]
    env: Mapping[str, str] | None = None
    ready: Callable[[], bool] | None = None


def run_foreground(services: Sequence[Service], *, out: TextIO, grace_seconds: float = GRACE_SECONDS) -> int:
    """Run the services until a signal comes or one of them ends, then stop all in reverse order.

    Must be called in the main thread, whose signal handlers it borrows. A second signal kills at once.

    Args:
        services: in starting order; their names are the prefixes of their lines.
        out: where their output and our own words go; coloured on a terminal unless ``NO_COLOR`` is set.
        grace_seconds: how long each service may take to end after SIGTERM before it is killed.

    Returns:
        0 after SIGINT, SIGTERM or SIGHUP; 1 if a service could not start, was not ready in time, or ended by
        itself; ``out`` names it and its exit status. No process of their groups is left either way.
    """
    width = max(len(name) for name in (_OWN_NAME, *(service.name for service in services)))
    with _signals() as wakeup, selectors.DefaultSelector() as selector:
        stack = _Stack(_Printer(out, width), selector, wakeup)
        try:
            return stack.run(services, grace_seconds)
        finally:
            stack.kill()


class LineSplitter:
    """Cuts a stream of bytes into decoded lines of at most ``LINE_BYTES_MAX`` bytes."""

    def __init__(self) -> None:
        self._pending = b""

    def feed(self, data: bytes) -> list[str]:
        """Return the lines that ``data`` completes, without their line ends, and the pieces of overlong ones."""
        *complete, rest = (self._pending + data).split(b"\n")
        lines: list[bytes] = []
        for line in complete:
            lines.extend(_pieces(line.removesuffix(b"\r")))
        *overlong, self._pending = _pieces(rest)
        return [line.decode(errors="replace") for line in (*lines, *overlong)]

    def finish(self) -> list[str]:
        """Return the last line if it has no end."""
        pending, self._pending = self._pending, b""
        return [pending.decode(errors="replace")] if pending else []


def _pieces(line: bytes) -> Iterator[bytes]:
    """Cut a long line before a character rather than inside it (one has at most four bytes)."""
    while len(line) > LINE_BYTES_MAX:
        end = LINE_BYTES_MAX
        while end > LINE_BYTES_MAX - 3 and line[end] & 0xC0 == 0x80:
            end -= 1
        yield line[:end]
        line = line[end:]
    yield line


class _Printer:
    """Writes prefixed lines until the reader has gone away."""

    def __init__(self, out: TextIO, width: int) -> None:
        self._out = out
        self._width = width
        self._coloured = out.isatty() and not os.environ.get("NO_COLOR")
        self._encoding = out.encoding or "utf-8"
        self.broken = False

    def show(self, name: str, lines: Sequence[str], colour: int = 0) -> None:
        prefix = f"{name:<{self._width}} | "
        if self._coloured:
            prefix = f"\x1b[{colour}m{prefix}\x1b[0m"
        text = "".join(f"{prefix}{line}\n" for line in lines)
        try:
            self._out.write(text.encode(self._encoding, "replace").decode(self._encoding))
            self._out.flush()
        except BrokenPipeError:
            self.broken = True


class _Process:
    """A started service: its process group and its output."""

    def __init__(self, service: Service, colour: int) -> None:
        self.name = service.name
        self.colour = colour
        self.lines = LineSplitter()
        self._killed = False
        self._process = subprocess.Popen(
            service.argv,
            env=service.env,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            bufsize=0,
            process_group=0,
        )
        assert self._process.stdout is not None
        self.output = self._process.stdout
        os.set_blocking(self.output.fileno(), False)

    def ended(self) -> bool:
        """Return whether the leader has ended; what it left behind is killed while the group is surely its own."""
        if self._process.poll() is None:
            return False
        self.kill()
        return True

    def describe_end(self) -> str:
        code = self._process.returncode
        if code >= 0:
            return f"{self.name} exited with status {code}"
        return f"{self.name} was killed by {signal.Signals(-code).name}"

    def terminate(self) -> None:
        self._process.terminate()

    def kill(self) -> None:
        """Kill the whole group, once: its number may belong to somebody else later."""
        if self._killed:
            return
        self._killed = True
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()


class _Stack:
    """The services that run, and the loop that serves them."""

    def __init__(self, printer: _Printer, selector: selectors.BaseSelector, wakeup: socket.socket) -> None:
        self._printer = printer
        self._selector = selector
        self._wakeup = wakeup
        self._processes: list[_Process] = []
        self._stop_signals = 0
        selector.register(wakeup, selectors.EVENT_READ)

    def run(self, services: Sequence[Service], grace_seconds: float) -> int:
        failure = self._start(services) or self._wait()
        self._say(f"{failure}; stopping" if failure else "stopping")
        self._stop(grace_seconds)
        return 1 if failure else 0

    def kill(self) -> None:
        """Leave nothing behind, whatever happened."""
        for process in reversed(self._processes):
            process.kill()
            self._drain(process)
            self._close(process)

    def _start(self, services: Sequence[Service]) -> str:
        """Start the services one after another; return why that failed, or an empty text."""
        for position, service in enumerate(services):
            try:
                process = _Process(service, _COLOURS[position % len(_COLOURS)])
            except OSError as error:
                return f"{service.name} cannot be started: {service.argv[0]}: {error.strerror}"
            self._processes.append(process)
            self._selector.register(process.output, selectors.EVENT_READ, process)
            deadline = time.monotonic() + READY_TIMEOUT_SECONDS
            while service.ready is not None and not service.ready():
                self._turn(_READY_POLL_SECONDS)
                if self._must_stop() or (failure := self._first_end()):
                    return "" if self._must_stop() else failure
                if time.monotonic() >= deadline:
                    return f"{service.name} was not ready within {READY_TIMEOUT_SECONDS:.0f} s"
        return ""

    def _wait(self) -> str:
        """Serve until it is time to stop; return who ended by itself, or an empty text after a signal."""
        while not self._must_stop():
            if failure := self._first_end():
                return failure
            self._turn(None)
        return ""

    def _stop(self, grace_seconds: float) -> None:
        """Stop the services, last first; a signal that comes meanwhile ends all politeness."""
        asked = self._stop_signals
        for process in reversed(self._processes):
            process.terminate()
            deadline = time.monotonic() + grace_seconds
            while not process.ended() and self._stop_signals <= asked:
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    self._say(f"{process.name} did not end within {grace_seconds:g} s; killing it")
                    break
                self._turn(remaining)
            process.kill()

    def _turn(self, timeout_seconds: float | None) -> None:
        """Wait for output, a signal or the end of a process, and pass on what there is."""
        for key, _ in self._selector.select(timeout_seconds):
            if key.data is None:
                with suppress(BlockingIOError):
                    self._stop_signals += sum(number in _STOP_SIGNALS for number in self._wakeup.recv(_READ_BYTES))
            else:
                self._show(key.data)

    def _show(self, process: _Process) -> bool:
        """Print what a process has written; return whether there may be more."""
        data = process.output.read(_READ_BYTES)
        if data is None:
            return False
        self._print(process, process.lines.feed(data))
        if not data:
            self._close(process)
        return bool(data)

    def _drain(self, process: _Process) -> None:
        """Print the last words of a process that has ended, without waiting for whoever still holds its pipe."""
        for _ in range(_DRAIN_READS_MAX):
            if process.output.closed or not self._show(process):
                return

    def _close(self, process: _Process) -> None:
        if not process.output.closed:
            self._print(process, process.lines.finish())
            self._selector.unregister(process.output)
            process.output.close()

    def _print(self, process: _Process, lines: list[str]) -> None:
        if lines:
            self._printer.show(process.name, lines, process.colour)

    def _say(self, line: str) -> None:
        self._printer.show(_OWN_NAME, [line])

    def _first_end(self) -> str:
        return next((process.describe_end() for process in self._processes if process.ended()), "")

    def _must_stop(self) -> bool:
        return self._stop_signals > 0 or self._printer.broken


@contextmanager
def _signals() -> Iterator[socket.socket]:
    """Deliver stop signals and SIGCHLD as bytes on a socket, and restore everything afterwards."""
    receiving, sending = socket.socketpair()
    receiving.setblocking(False)
    sending.setblocking(False)
    with receiving, sending:
        previous_wakeup = signal.set_wakeup_fd(sending.fileno(), warn_on_full_buffer=False)
        numbers = (*_STOP_SIGNALS, signal.SIGCHLD)
        previous = [(number, signal.signal(number, lambda *_: None)) for number in numbers]
        try:
            yield receiving
        finally:
            for number, handler in previous:
                signal.signal(number, handler)
            signal.set_wakeup_fd(previous_wakeup)
