"""Commands as a worker sees them: ``Supervisor.run`` blocks until a command has ended and says how.

The commands themselves belong to one supervisor process per worker process (``supervisor.py`` says why). Here is its
other side: it is started with the first command, spoken to over a socket that only this process holds, and replaced
when it dies. Any number of threads may call ``run``; one reader thread hands each its answer.

Three deaths are provided for. If *this process* dies, the socket closes and the supervisor ends everything. If the
*supervisor* dies, whoever waits is told so, after every process that carries the marker of that supervisor in its
environment has been killed; the next command starts a new one. A command that had company is not blamed for it: where
it may be run twice, it is run again under a supervisor of its own, which dies by nobody else's doing. If this process
*forks* (a prefork pool), the child drops what it inherited, so that it neither talks to its parent's supervisor nor
keeps its socket open.

A supervisor that hangs is taken for dead: whoever waits for a command knows by when it must have ended, and kills a
supervisor that has said nothing long after that.

No handler for SIGCHLD is installed and nobody but the supervisor process is waited for, so that the worker's own
pool and libraries keep their children.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from types import TracebackType
from typing import Literal, TypeAlias
from weakref import WeakSet

import msgspec
from msgspec import Struct

from statem_dist.checks.environment import SECRET_NAMES
from statem_dist.checks.supervisor import (
    CONTROL_DESCRIPTOR,
    FRAME_BYTES_MAX,
    GIVE_UP_SECONDS,
    MARKER,
    ORPHANED_GRACE_SECONDS,
    ProcessHandle,
    contents,
    environment_of,
    signal_if,
)
from statem_dist.identity import own_process

HEAD_BYTES = 64 * 1024
TAIL_BYTES = 192 * 1024
"""What is kept of each stream by default: enough for a log; the end of one usually says more than its beginning."""

KILL_GRACE_SECONDS = 2.0
"""Default time between SIGTERM and SIGKILL."""

SHUTDOWN = "shutdown"
"""The ``why`` of a cancellation because the worker stops."""

CONNECT_TRIES_MAX = 3
"""How many supervisors are tried for one command, when those before it were found dead on sending."""

SWEEP_ROUNDS_MAX = 50
SWEEP_SECONDS = 0.02

KILL_MARGIN_SECONDS = 1.0
"""How long a supervisor that has lost its worker may take for SIGKILL and for itself, after its grace."""

SILENCE_SECONDS = 15.0
"""How long after the end of a command, its grace included, its supervisor may say nothing. Far longer than a supervisor
needs that has next to no processor time: killing one costs every command that it has under way."""

LOOK_SECONDS = 0.5
"""How often whoever waits for a command looks whether its supervisor has hung."""

NOTHING: Mapping[str, int] = {}

RUN_ID = "STATEM_RUN_ID"
"""Environment variable that names the run for which a command is executed."""

Failure: TypeAlias = Literal["cwd_missing", "spawn_failed", "unfit", "refused", "supervisor_lost"]
"""Why there is no exit status: the working directory cannot be entered; the system has no room for a process right
now; this host is not fit for it; the request itself can never work; the supervisor died, and what the command had done
by then is unknown."""


class Captured(Struct, frozen=True, omit_defaults=True):
    """One output stream: its first bytes, its last bytes if there were more, and how many were written."""

    head: bytes = b""
    tail: bytes = b""
    written: int = 0

    @property
    def dropped(self) -> int:
        """How many bytes between head and tail were not kept."""
        return self.written - len(self.head) - len(self.tail)


class Finished(Struct, frozen=True, omit_defaults=True):
    """How a command ended.

    Exactly one of ``exit_code``, ``signal`` and ``failure`` is set, except that neither of the first two is when a
    command could not even be killed. ``timed_out`` and ``cancelled`` (the ``why`` of it) say that it was ended
    on purpose. ``survivors`` counts processes that outlived the shell and were ended after it. ``duration_ms``
    runs from the start to the exit of the shell. ``text`` explains a ``failure``. ``company`` is how many other
    commands were lost with the same supervisor. ``secrets`` is what must not be shown of its output.
    ``begun`` is false for a command that was cancelled before any supervisor was told of it.
    """

    exit_code: int | None = None
    signal: int | None = None
    timed_out: bool = False
    cancelled: str | None = None
    stdout: Captured = Captured()
    stderr: Captured = Captured()
    duration_ms: int = 0
    survivors: int = 0
    failure: Failure | None = None
    text: str = ""
    company: int = 0
    secrets: tuple[str, ...] = ()
    begun: bool = True

    @property
    def written_bytes(self) -> int:
        """How many bytes both streams had together."""
        return self.stdout.written + self.stderr.written

    @property
    def dropped_bytes(self) -> int:
        """How many of them were not kept."""
        return self.stdout.dropped + self.stderr.dropped


class Wrapper(Struct, frozen=True):
    """A program that is started in place of a command's shell, and starts it where the command is to run.

    ``argv`` are its words, before those of the shell. ``arguments`` is what it finds on descriptor 3: what others
    must not read in the list of processes. ``steady`` says that it outlives SIGTERM by not being sent it.
    """

    argv: tuple[bytes, ...]
    arguments: bytes | None = None
    steady: bool = False


class _Run(Struct, tag_field="op", tag="run"):
    id: int
    run: bytes
    cwd: bytes
    environ: bytes
    stdin: bytes | None
    timeout: float | None
    limits: dict[str, int]
    wrapper: Wrapper | None


class _Cancel(Struct, tag_field="op", tag="cancel"):
    id: int
    why: str


class _Reply(Struct):
    id: int | None
    finished: Finished


_encode = msgspec.json.Encoder().encode
_decode_reply = msgspec.json.Decoder(_Reply).decode


class _Call:
    """A thread that waits for a command. ``answer`` receives one ``Finished``; ``why`` is that of a cancellation.

    ``ends_by`` is when, on the monotonic clock, a supervisor that does its work has answered; none for a command that
    may take as long as it likes.
    """

    __slots__ = ("answer", "ends_by", "key", "why")

    def __init__(self, key: str) -> None:
        self.key = key
        self.why: str | None = None
        self.ends_by: float | None = None
        self.answer: SimpleQueue[Finished] = SimpleQueue()

    def begins(self, seconds: float | None) -> None:
        """Note that the command is given to a supervisor, which has to answer within so many seconds, if any."""
        self.ends_by = None if seconds is None else time.monotonic() + seconds

    def hasten(self, seconds: float) -> None:
        """Note that the command is being ended: the answer has to come within so many seconds."""
        soon = time.monotonic() + seconds
        self.ends_by = soon if self.ends_by is None else min(self.ends_by, soon)


class _Link:
    """One supervisor process, the socket to it, and the calls that wait for it.

    Its token begins with the name of this process, so that who finds it dead finds its commands as well.
    """

    def __init__(self, head_bytes: int, tail_bytes: int, kill_grace_seconds: float, ending_seconds: float) -> None:
        self._ending_seconds = ending_seconds
        self.token = f"{own_process()}:{os.urandom(8).hex()}"
        self.lock = threading.Lock()
        self.calls: dict[int, _Call] = {}
        self.started = 0
        self.lost = False
        self.last_words = ""
        self.socket, theirs = socket.socketpair()
        try:
            with theirs:
                pid = _spawn_supervisor(theirs.fileno(), self.token, head_bytes, tail_bytes, kill_grace_seconds)
            self.process = ProcessHandle(pid)
            self.replies = self.socket.makefile("rb")
            self.reader = threading.Thread(target=self._read, name="statem-supervisor-reader", daemon=True)
            self.reader.start()
        except BaseException:
            self.socket.close()
            raise

    def start(self, call: _Call, request: _Run) -> bool:
        """Send a command; return False if no supervisor can have seen it."""
        with self.lock:
            if self.lost:
                return False
            self.started += 1
            request.id = self.started
            self.calls[request.id] = call
            try:
                self._send(request)
            except OSError:
                del self.calls[request.id]
                self.lost = True
                return False
            except BaseException:
                # Ctrl-C in the middle of a message: nothing that followed it could be understood.
                self.lost = True
                self.socket.shutdown(socket.SHUT_RDWR)
                raise
            return True

    def answer(self, call: _Call) -> Finished:
        """Wait for the end of a command, or of a supervisor that does not tell of it."""
        while True:
            looked_at = time.monotonic()
            try:
                return call.answer.get(timeout=LOOK_SECONDS)
            except Empty:
                now = time.monotonic()
            if call.ends_by is None:
                continue
            # What this process itself was held up for (by SIGSTOP, say) is not the supervisor's silence.
            call.ends_by += max(0.0, now - looked_at - 2 * LOOK_SECONDS)
            if now >= call.ends_by:
                call.ends_by = None
                self._give_up()

    def _give_up(self) -> None:
        """Kill a supervisor that hangs; its end is found by the reader, and told to everyone who waits."""
        # Without the lock, which a thread may hold that cannot get its message to this supervisor.
        if not self.lost:
            self.last_words = "after it had not answered for too long"
            self.process.send(signal.SIGKILL)

    def abandon(self, call: _Call) -> None:
        """End the command of a call that nobody will wait for any more."""
        with self.lock:
            numbers = [number for number, each in self.calls.items() if each is call]
        self.cancel(numbers, "interrupted")

    def cancel(self, numbers: list[int], why: str) -> None:
        """Ask for the end of commands; those that have ended already are no matter."""
        with self.lock, contextlib.suppress(OSError):
            for number in numbers:
                if number in self.calls:
                    self.calls[number].hasten(self._ending_seconds)
                self._send(_Cancel(number, why))

    def numbers_of(self, key: str | None) -> list[int]:
        """Return the commands under way, all of them or those that were started under a key."""
        with self.lock:
            return [number for number, call in self.calls.items() if key is None or call.key == key]

    def close(self, patience_seconds: float) -> None:
        """Let the supervisor end everything and leave; kill it if it does not within the patience."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_WR)
        self.reader.join(patience_seconds)
        if self.reader.is_alive():
            # The reader may be collecting it just now, and its pid be somebody else's a moment later.
            self.process.send(signal.SIGKILL)
            self.reader.join()

    def forget(self) -> None:
        """Drop the inherited descriptor, in the child of a fork, without a word to the supervisor."""
        # Not ``close``, which waits for the file that the reader, a thread that does not exist here, made of it.
        descriptor = self.socket.detach()
        if descriptor >= 0:
            os.close(descriptor)
        self.process.close()

    def _send(self, message: _Run | _Cancel) -> None:
        body = _encode(message)
        self.socket.sendall(len(body).to_bytes(4, "big") + body)

    def _read(self) -> None:
        try:
            while header := self.replies.read(4):
                self._dispatch(self.replies.read(int.from_bytes(header, "big")))
        except (OSError, msgspec.DecodeError) as error:
            self.last_words = self.last_words or str(error)
        self._bury()

    def _dispatch(self, frame: bytes) -> None:
        reply = _decode_reply(frame)
        if reply.id is None:
            self.last_words = reply.finished.text
            return
        with self.lock:
            call = self.calls.pop(reply.id, None)
        if call is not None:
            call.answer.put(reply.finished)

    def _bury(self) -> None:
        """Reap the supervisor, end what it left, and tell everyone who still waits."""
        with self.lock:
            self.lost = True
            orphaned = list(self.calls.values())
            self.calls.clear()
        self.replies.close()
        self.socket.close()
        status = 0
        # It closes its socket only by dying, unless the stream is broken: then it must not go on either.
        if self.last_words:
            self.process.send(signal.SIGKILL)
        with contextlib.suppress(ChildProcessError):
            status = os.waitstatus_to_exitcode(os.waitpid(self.process.pid, 0)[1])
        self.process.close()
        if orphaned or status:
            end_marked(self.token)
        text = f"the process that supervises commands ended with status {status} {self.last_words}".rstrip()
        for call in orphaned:
            call.answer.put(Finished(failure="supervisor_lost", text=text, company=len(orphaned) - 1))


class Supervisor:
    """Runs shell commands for any number of threads of this process.

    Args:
        head_bytes, tail_bytes: how much of the beginning and the end of each output stream is kept.
        kill_grace_seconds: time between SIGTERM and SIGKILL.
        silence_seconds: how long a supervisor may say nothing of a command that must have ended by then.

    To be closed at the end, or used in a ``with`` statement; what is forgotten ends with this process.
    """

    def __init__(
        self,
        *,
        head_bytes: int = HEAD_BYTES,
        tail_bytes: int = TAIL_BYTES,
        kill_grace_seconds: float = KILL_GRACE_SECONDS,
        silence_seconds: float = SILENCE_SECONDS,
    ) -> None:
        self._ending_seconds = kill_grace_seconds + silence_seconds
        self._options = (head_bytes, tail_bytes, kill_grace_seconds, self._ending_seconds)
        self._patience_seconds = kill_grace_seconds + GIVE_UP_SECONDS + 1.0
        self._lock = threading.Lock()
        self._link: _Link | None = None
        self._closed = False
        self._calls: set[_Call] = set()
        self._solitary: set[_Link] = set()
        _SUPERVISORS.add(self)

    def run(
        self,
        key: str,
        command: str,
        *,
        cwd: str,
        env: Mapping[str, str],
        stdin: bytes | None = None,
        timeout: float | None = None,
        limits: Mapping[str, int] = NOTHING,
        wrapper: Wrapper | None = None,
        again: bool = False,
    ) -> Finished:
        """Run ``/bin/sh -c command`` and wait for its end.

        Args:
            key: a name under which ``cancel`` finds the command.
            cwd: an absolute path.
            env: the whole environment of the command.
            stdin: what it can read; None is an empty input.
            timeout: seconds of wall-clock time, or None.
            limits: what each of its processes is kept within, by the names of ``supervisor.LIMITS``.
            wrapper: what starts its shell, if not the supervisor itself; limits hold for both.
            again: whether it may be run a second time. It is, alone, when its supervisor died while it had company,
                because any of those commands may have been what killed it.

        Returns:
            How it ended. A command that cannot be run is a ``Finished`` with a ``failure``, never an exception.
        """
        try:
            block = environment_block(env)
            request = _Run(0, os.fsencode(command), os.fsencode(cwd), block, stdin, timeout, dict(limits), wrapper)
        except ValueError as error:
            return Finished(failure="refused", text=str(error))
        if len(stdin or b"") > FRAME_BYTES_MAX // 2:
            return Finished(failure="refused", text=f"a standard input of {len(stdin or b'')} bytes is too long")
        call = _Call(key)
        self._calls.add(call)
        try:
            finished = self._run(call, request, self._connect)
            if not again or finished.failure != "supervisor_lost" or not finished.company:
                return finished
            if call.why is not None:
                return Finished(cancelled=call.why)
            return self._run(call, request, self._connect_alone)
        finally:
            self._calls.discard(call)

    def _run(self, call: _Call, request: _Run, connect: Callable[[], _Link | None]) -> Finished:
        """Run a command under the supervisor that ``connect`` returns, and wait for its end."""
        call.begins(None if request.timeout is None else request.timeout + self._ending_seconds)
        for _ in range(CONNECT_TRIES_MAX):
            try:
                link = connect()
            except (OSError, RuntimeError) as error:
                return Finished(failure="spawn_failed", text=f"no supervisor of commands could be started: {error}")
            if link is None:
                return Finished(cancelled=SHUTDOWN, begun=False)
            try:
                if link.start(call, request):
                    if call.why is not None:
                        # It was cancelled between two supervisors, when there was no command to be ended.
                        link.cancel(link.numbers_of(call.key), call.why)
                    return link.answer(call)
            except BaseException:
                # Ctrl-C, or an exception thrown into this thread: nobody will want the result any more.
                link.abandon(call)
                raise
            finally:
                if link in self._solitary:
                    self._solitary.discard(link)
                    link.close(self._patience_seconds)
        return Finished(failure="spawn_failed", text="the supervisor of commands ends as soon as it is started")

    def cancel(self, key: str, why: str) -> bool:
        """End the commands that run under a key; return whether there were any."""
        return self._cancel(key, why)

    def cancel_all(self, why: str) -> bool:
        """End every command; return whether there were any."""
        return self._cancel(None, why)

    def close(self) -> None:
        """End every command and the supervisor process; later calls of ``run`` return as cancelled."""
        with self._lock:
            self._closed = True
            links = [*self._solitary, *([self._link] if self._link is not None else [])]
            self._link = None
        for link in links:
            link.cancel(link.numbers_of(None), SHUTDOWN)
        for link in links:
            link.close(self._patience_seconds)

    def __enter__(self) -> Supervisor:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _connect(self) -> _Link | None:
        with self._lock:
            if self._closed:
                return None
            if self._link is None or self._link.lost:
                self._link = _Link(*self._options)
            return self._link

    def _connect_alone(self) -> _Link | None:
        """Start a supervisor for one command."""
        with self._lock:
            if self._closed:
                return None
            link = _Link(*self._options)
            self._solitary.add(link)
            return link

    def _cancel(self, key: str | None, why: str) -> bool:
        calls = [call for call in list(self._calls) if key is None or call.key == key]
        for call in calls:
            # For one that is between two supervisors, or not with its first one yet: it is ended when it has begun.
            call.why = why
        for link in [*self._solitary, *([self._link] if self._link is not None else [])]:
            if numbers := link.numbers_of(key):
                link.cancel(numbers, why)
        return bool(calls)

    def _forget_parent(self) -> None:
        """Start afresh in the child of a fork: the locks may be held by threads that do not exist here."""
        self._lock = threading.Lock()
        links = [*self._solitary, *([self._link] if self._link is not None else [])]
        self._link = None
        self._calls, self._solitary = set(), set()
        for link in links:
            link.forget()


_SUPERVISORS: WeakSet[Supervisor] = WeakSet()


def _forget_parents() -> None:
    for supervisor in _SUPERVISORS:
        supervisor._forget_parent()


os.register_at_fork(after_in_child=_forget_parents)


def end_marked(token: str) -> None:
    """Kill every process that a supervisor of this token started, until none is found (only where ``/proc`` is)."""
    _kill_all(_carries(f"{MARKER}={token}."))


def outlive_commands(process: str) -> None:
    """Wait until nothing is left of the commands of a process of this host that has died.

    Its supervisor ends them, within its grace for orphans; what is there after that, the supervisor too, is killed.

    Args:
        process: the dead owner, as ``identity.own_process`` named it.
    """

    supervises, carries = _supervises(process), _carries(f"{MARKER}={process}:")

    def left(pid: int) -> bool:
        return supervises(pid) or carries(pid)

    deadline = time.monotonic() + ORPHANED_GRACE_SECONDS + KILL_MARGIN_SECONDS
    while any(left(pid) for pid in _others()):
        if time.monotonic() >= deadline:
            _kill_all(left)
            return
        time.sleep(SWEEP_SECONDS)


def end_commands(process: str, run_id: str) -> None:
    """Kill what a process of this host executes for a run, when it lives but has let its lease run out.

    Args:
        process: the silent owner, as ``identity.own_process`` named it.
        run_id: the run; what it executes for others is no concern.
    """
    _kill_all(_carries(f"{MARKER}={process}:", f"{RUN_ID}={run_id}\0"))


def end_agents(process: str, run_id: str) -> None:
    """Kill the agent commands that a process of this host has under way for a run, and leave its checks alone.

    Args:
        process: whoever had the run before, as ``identity.own_process`` named it.
        run_id: the run.
    """
    _kill_all(_carries(f"{MARKER}={process}:", f"{RUN_ID}={run_id}\0", "STATEM_PURPOSE=agent\0"))


def _kill_all(meant: Callable[[int], bool]) -> None:
    """Kill every process that ``meant`` says yes to, again and again until there is none."""
    for _ in range(SWEEP_ROUNDS_MAX):
        found = [pid for pid in _others() if meant(pid)]
        if not found:
            return
        for pid in found:
            signal_if(pid, signal.SIGKILL, meant)
        time.sleep(SWEEP_SECONDS)


def _carries(*beginnings: str) -> Callable[[int], bool]:
    """Return what asks whether the environment of a process has, for each of these, an entry that begins with it.

    Each entry ends with a NUL here, so that a beginning can also be a whole entry.
    """
    wanted = [os.fsencode(beginning) for beginning in beginnings]

    def carries(pid: int) -> bool:
        entries = [entry + b"\0" for entry in environment_of(pid)]
        return all(any(entry.startswith(beginning) for entry in entries) for beginning in wanted)

    return carries


def _supervises(process: str) -> Callable[[int], bool]:
    """Return what asks whether a process supervises for another one: its token, an argument, begins with that name."""
    beginning = os.fsencode(f"{process}:")
    return lambda pid: any(word.startswith(beginning) for word in contents(f"/proc/{pid}/cmdline").split(b"\0"))


def _others() -> list[int]:
    """Return the pids of all processes but this one; none where there is no ``/proc``."""
    names = os.listdir("/proc") if os.path.isdir("/proc") else []
    return [int(name) for name in names if name.isdigit() and int(name) != os.getpid()]


def environment_block(env: Mapping[str, str]) -> bytes:
    """Return the environment as ``NAME=value`` entries joined by NUL, as the kernel keeps it.

    Raises:
        ValueError: a name or value that no environment can hold. A NUL must not smuggle in a variable.
    """
    for name, value in env.items():
        if not name or "=" in name or "\0" in name or "\0" in value:
            raise ValueError(f"the environment variable {name!r} cannot be set: its name or value is not allowed")
    return b"\0".join(os.fsencode(f"{name}={value}") for name, value in env.items())


def _spawn_supervisor(descriptor: int, token: str, head_bytes: int, tail_bytes: int, grace_seconds: float) -> int:
    """Start the supervisor process; return its pid.

    Its folder is *appended* to the path of an isolated interpreter: the standard library wins over the modules here,
    nothing installed is imported, and the compiled form of ``supervisor.py`` is reused, which running it as a file
    would not do. Its own session keeps Ctrl-C in a terminal away from it.
    """
    folder = os.path.dirname(os.path.abspath(__file__))
    program = f"import sys; sys.path.append({folder!r}); import supervisor; supervisor.main()"
    options = [token, str(head_bytes), str(tail_bytes), str(grace_seconds)]
    return os.posix_spawn(
        sys.executable,
        [sys.executable, "-I", "-S", "-c", program, *options],
        # Commands can read the environment of their parent in /proc, so this one holds no secrets either.
        {name: value for name, value in os.environ.items() if name not in SECRET_NAMES},
        file_actions=[
            (os.POSIX_SPAWN_DUP2, descriptor, CONTROL_DESCRIPTOR),
            *((os.POSIX_SPAWN_OPEN, target, os.devnull, os.O_RDWR, 0) for target in range(CONTROL_DESCRIPTOR)),
        ],
        setsid=True,
        setsigmask=(),
    )
