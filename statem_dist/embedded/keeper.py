"""The keeper: a tiny process that is the parent of one server and stops it when nobody has used it for a while.

It runs as ``python -I -S`` with the standard library alone, so that it costs a few megabytes. It may be killed
at any time: the server goes on, only the idle stop is lost until the next start.

Idle means that nobody but the keeper is connected, and nobody has connected since the last look. A command line
may connect at the very moment of the decision; no lock can be asked of it, because looking for the server has to
cost one round trip. So the keeper takes the socket's *name* away first, then looks once more. Whoever connected
before is seen by that look and the name is put back; whoever comes later finds no socket, waits for the start
lock, which the keeper holds meanwhile, and starts a new server.
"""

from __future__ import annotations

import os
import select
import signal
import socket
import sys
import time
from collections.abc import Sequence
from contextlib import suppress

from statem_dist.embedded.locks import FileLock
from statem_dist.resp import Connection, ReplyError

ASIDE_SUFFIX = ".stopping"
"""What the socket's name ends with while an idle stop takes its last look."""

_OWNER_WAIT_SECONDS = 5.0
"""How long a new keeper waits for the last server's lock: longer than a look of the old keeper takes."""

_LOOK_SECONDS_MAX = 2.0
_CALL_TIMEOUT_SECONDS = 5.0
_SHUTDOWN_TIMEOUT_SECONDS = 60.0
_CONNECT_PAUSE_SECONDS = 0.003
_CONNECT_PAUSE_SECONDS_MAX = 0.25


def main(arguments: Sequence[str]) -> None:
    """Detach from the caller, start the server, report once, then keep it until it ends or is idle.

    Args:
        arguments: socket, start lock, owner lock, idle seconds (0: never stop), the descriptor of the pipe to
            report on, and the server's command line. The report is one line: ``ready``, ``busy WHO`` when
            another server has the data open, or ``failed WHY``.
    """
    socket_path, start_lock, owner_lock, idle_seconds, report_descriptor, *command = arguments
    if os.fork():
        os._exit(0)
    os.setsid()
    os.umask(0o077)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
    report = _Report(int(report_descriptor))
    owner = FileLock(owner_lock)
    if not owner.acquire(timeout_seconds=_OWNER_WAIT_SECONDS):
        report.send(f"busy {owner.read_note() or 'another process'}")
        return
    server = _Server(socket_path, command, owner)
    if not server.connect():
        report.send(f"failed it {_describe(server.status)}")
        return
    report.send("ready")
    server.keep(start_lock, float(idle_seconds))


class _Report:
    """The pipe to the command line that waits for the start, if it still does."""

    def __init__(self, descriptor: int) -> None:
        os.set_inheritable(descriptor, False)
        self._descriptor = descriptor

    def send(self, line: str) -> None:
        try:
            os.write(self._descriptor, f"{line}\n".encode())
        except BrokenPipeError:
            pass  # It ran out of patience; the server stays for the next one.
        finally:
            os.close(self._descriptor)


class _Server:
    """The server process and our one connection to it."""

    def __init__(self, socket_path: str, command: list[str], owner: FileLock) -> None:
        self._socket_path = socket_path
        os.set_inheritable(owner.descriptor, True)
        self._pid = os.posix_spawn(command[0], command, os.environ)
        try:
            owner.write_note(f"process {self._pid} on {socket.gethostname()}")
        except OSError as error:
            _log(f"cannot note who owns the data: {error}")  # A full disk; the server may live with it or say so.
        self._connection: Connection | None = None
        self._inode = 0
        self.status: int | None = None

    def connect(self) -> bool:
        """Connect as soon as the server answers with its data loaded; return False if it ended first."""
        pause = _CONNECT_PAUSE_SECONDS
        while not self._ended():
            try:
                self._connection = Connection(self._socket_path, timeout_seconds=_CALL_TIMEOUT_SECONDS)
                self._inode = os.stat(self._socket_path).st_ino
                self._connection.call("PING")
                return True
            except ReplyError as error:
                if error.code != "LOADING":
                    return True  # It cannot write to its disk, and says so; it still answers reads.
                self._link.close()
            except OSError:
                pass  # Not listening yet, or gone.
            time.sleep(pause)
            pause = min(1.5 * pause, _CONNECT_PAUSE_SECONDS_MAX)
        return False

    def keep(self, start_lock: str, idle_seconds: float) -> None:
        """Watch the server until it has ended, of itself or because it was idle for ``idle_seconds``."""
        look_seconds = min(max(idle_seconds / 10, 0.05), _LOOK_SECONDS_MAX) if idle_seconds else _LOOK_SECONDS_MAX
        used_at, connections = time.monotonic(), self._connections_received()
        while True:
            if self._readable(look_seconds) and not self._reconnect():
                if self.status:
                    _log(f"the server {_describe(self.status)}")
                return
            if not self._owns_socket():
                # The directory was cleared under us. A clean exit would remove the socket of our successor,
                # and saves little against a kill: the log is with the kernel but for two seconds of a slow disk.
                self._kill("its socket was removed or replaced")
                return
            now, seen = time.monotonic(), self._connections_received()
            if seen is None or seen != connections:
                used_at, connections = now, seen
            elif idle_seconds and now - used_at >= idle_seconds and self._stop_unless_used(start_lock, seen):
                return

    def _stop_unless_used(self, start_lock: str, connections: int) -> bool:
        """Stop the server if nobody has come since ``connections`` were counted; return whether it has ended."""
        aside = self._socket_path + ASIDE_SUFFIX
        try:
            with FileLock(start_lock) as lock:
                if not lock.try_acquire():
                    return False
                os.rename(self._socket_path, aside)
                # One round trip more than the look itself: the server accepts whoever had already connected.
                self._connections_received()
                if self._connections_received() == connections and self._shut_down():
                    os.unlink(aside)
                    return True
                os.rename(aside, self._socket_path)
        except OSError as error:
            _log(f"cannot decide on the idle stop: {error}")
        return self._ended()

    def _shut_down(self) -> bool:
        try:
            self._link.shut_down(timeout_seconds=_SHUTDOWN_TIMEOUT_SECONDS)
        except (ReplyError, TimeoutError) as error:
            _log(f"the idle server does not stop: {error}")
            return False
        _, self.status = os.waitpid(self._pid, 0)
        return True

    def _connections_received(self) -> int | None:
        """Return how many connections the server has ever had, or None while somebody else is connected."""
        try:
            if int(self._link.info("clients")["connected_clients"]) > 1:
                return None
            return int(self._link.info("stats")["total_connections_received"])
        except (OSError, ReplyError):
            return None  # Too busy to answer us is busy.

    def _owns_socket(self) -> bool:
        try:
            return os.stat(self._socket_path).st_ino == self._inode
        except OSError:
            return False

    @property
    def _link(self) -> Connection:
        assert self._connection is not None, "used only after connect()"
        return self._connection

    def _readable(self, timeout_seconds: float) -> bool:
        if self._link.fileno() < 0:
            return True
        return bool(select.select([self._link], [], [], timeout_seconds)[0])

    def _reconnect(self) -> bool:
        """Replace a connection that was closed; return False if that was because the server ended."""
        self._link.close()
        return self.connect()

    def _kill(self, reason: str) -> None:
        _log(f"killing the server: {reason}")
        os.kill(self._pid, signal.SIGKILL)
        os.waitpid(self._pid, 0)

    def _ended(self) -> bool:
        if self.status is None:
            pid, status = os.waitpid(self._pid, os.WNOHANG)
            self.status = status if pid else None
        return self.status is not None


def _describe(status: int | None) -> str:
    code = os.waitstatus_to_exitcode(status or 0)
    return f"was killed by signal {-code}" if code < 0 else f"exited with status {code}"


def _log(text: str) -> None:
    # The log may be on a disk that is full; keeping the server matters more than telling.
    with suppress(OSError):
        os.write(sys.stderr.fileno(), f"keeper {os.getpid()}: {text}\n".encode())
