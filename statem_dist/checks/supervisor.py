"""The process that owns the commands of one worker: it starts, feeds, times, drains, ends and reaps them.

Why a process of its own. A worker that runs commands itself cannot keep the promises a check needs: a limit that
holds in every pool, no descendant left behind, and the end of all commands when the worker is killed without a
chance to say goodbye. Here one small loop keeps them for all slots of a worker:

* **Orphans come home.** The process is a child sub-reaper, so whatever a command leaves behind (daemons, ``setsid``
  and double ``setsid`` children) is re-parented to it and found with one read of its own list of children.
* **The end of a command is the exit of its shell** plus a short drain, never the end of its output, because any
  daemon may hold a pipe open. What outlives the shell is ended and counted.
* **Ending is a loop, not a shot**: SIGTERM to every descendant, a grace period, then SIGKILL again and again until
  a look at the process table finds nobody.
* **No signal goes astray.** A pid that was found a moment ago may be another process by now; so a process is held by a
  pidfd first, and asked once more whether it is the one that is meant, where the system has such descriptors.
* **The worker's life is the control socket.** When it closes, for whatever reason, everything is ended.
* **Memory is bounded**: of each stream the first and the last bytes are kept and the rest is counted.

It runs on the standard library alone and imports as little of it as it can, because a command line that executes
one check pays for its start. ``posix_spawn`` starts a command in half the time of ``subprocess``; the change of
directory that it lacks is made by this process itself, which has one thread and needs no directory of its own.
Without ``/proc`` or ``prctl`` (macOS) only the command's own process group can be ended.

Wire protocol, both ways: a length (4 bytes, big endian), then that many bytes of JSON. Byte strings are base64::

    -> {"op": "run", "id": 7, "run": b64, "cwd": b64, "environ": b64 of NAME=value joined by NUL,
        "stdin": b64 or null, "timeout": seconds or null, "limits": {name of LIMITS: number},
        "wrapper": null or {"argv": [b64, ...], "arguments": b64 or null, "steady": bool}}
    -> {"op": "cancel", "id": 7, "why": text}
    <- {"id": 7, "finished": {"exit_code": 0, "signal": null, "timed_out": false, "cancelled": null,
        "stdout": {"head": b64, "tail": b64, "written": 3}, "stderr": ..., "duration_ms": 1, "survivors": 0,
        "failure": null, "text": ""}}
    <- {"id": null, "finished": {"failure": ..., "text": ...}}    no request in particular is to blame
"""

from __future__ import annotations

import binascii
import contextlib
import errno
import json
import os
import select
import signal
import sys
import time

TYPE_CHECKING = False  # Mypy takes it for True; importing ``typing`` for it would cost as much as all the rest.
if TYPE_CHECKING:
    from collections.abc import Callable
    from types import ModuleType

CONTROL_DESCRIPTOR = 3
"""Where the process expects its end of the control socket."""

MARKER = "STATEM_SUPERVISED"
"""Environment variable that names the supervisor and the command a process belongs to (``TOKEN.ID``)."""

FRAME_BYTES_MAX = 64 * 1024 * 1024
"""Longest message either side accepts; a longer one can only be a broken stream."""

READ_BYTES = 64 * 1024
"""How much is read at once: what a pipe of Linux holds."""

LAST_READS_MAX = 16
"""How many chunks are read after the end: the largest pipe an ordinary user of Linux can make holds that many."""

DRAIN_SECONDS = 0.25
"""How long after the exit of its shell a command may still write or tidy up (``tee`` behind ``>(...)``)."""

ORPHANED_GRACE_SECONDS = 1.0
"""The longest grace between SIGTERM and SIGKILL once the worker is gone."""

SWEEP_SECONDS = 0.02
"""Pause between two rounds of SIGKILL."""

GIVE_UP_SECONDS = 5.0
"""How long after the first SIGKILL a process that does not die (in the kernel, or not ours to kill) is waited for."""

POLL_SECONDS_MAX = 3600.0

FOREVER = float("inf")

PR_SET_CHILD_SUBREAPER = 36

LIMITS = {"memory": "RLIMIT_AS", "cpu": "RLIMIT_CPU", "processes": "RLIMIT_NPROC", "files": "RLIMIT_NOFILE"}
"""The limits that a command can be started with, and the kernel's names of them."""

CPU_GRACE_SECONDS = 5
"""How much more processor time a process may use after its limit (SIGXCPU) before it is killed."""

OWN_CHILDREN = f"/proc/self/task/{os.getpid()}/children"

HAS_PROC = os.path.exists(OWN_CHILDREN)
"""Whether descendants can be found; without that only a command's own process group can be ended."""

RESET_SIGNALS = sorted(signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP})
"""Signals that a command starts with at their defaults, whatever this process or the worker ignores."""


class Capture:
    """One output stream of a command: its first and last bytes, and how many there were."""

    __slots__ = ("descriptor", "head", "head_bytes", "tail", "tail_bytes", "written")

    def __init__(self, descriptor: int, head_bytes: int, tail_bytes: int) -> None:
        self.descriptor: int | None = descriptor
        self.head_bytes = head_bytes
        self.tail_bytes = tail_bytes
        self.head = bytearray()
        self.tail = bytearray()
        self.written = 0

    def keep(self, chunk: bytes) -> None:
        """Count a chunk and keep what belongs to the head or may belong to the tail."""
        self.written += len(chunk)
        room = self.head_bytes - len(self.head)
        if room > 0:
            self.head += chunk[:room]
            chunk = chunk[room:]
        self.tail += chunk
        # Cutting only at twice the size makes the cost of a cut vanish among the bytes that led to it.
        if len(self.tail) > 2 * self.tail_bytes:
            del self.tail[: len(self.tail) - self.tail_bytes]

    def report(self) -> dict[str, object]:
        """Return what was kept, in the shape of the wire protocol."""
        tail = bytes(self.tail[max(0, len(self.tail) - self.tail_bytes) :])
        return {"head": base64(bytes(self.head)), "tail": base64(tail), "written": self.written}


class Command:
    """One command from its start to its report.

    ``status`` is None while the shell runs; ``kill_at`` is None until somebody decided to end the command.
    ``look_at`` is the next moment at which the loop must look at it even if nothing happens. ``steady`` says that its
    first process is a wrapper which gets no SIGTERM, because everything in it would be killed with it.
    """

    __slots__ = (
        "cancelled",
        "drain_until",
        "exited",
        "kill_at",
        "look_at",
        "number",
        "pid",
        "started",
        "status",
        "stderr",
        "stdout",
        "steady",
        "survivors",
        "timed_out",
    )

    def __init__(
        self, number: int, pid: int, stdout: Capture, stderr: Capture, timeout: float | None, steady: bool
    ) -> None:
        self.number = number
        self.pid = pid
        self.steady = steady
        self.stdout = stdout
        self.stderr = stderr
        self.started = self.exited = time.monotonic()
        self.look_at = FOREVER if timeout is None else self.started + timeout
        self.drain_until = FOREVER
        self.kill_at: float | None = None
        self.status: int | None = None
        self.timed_out = False
        self.cancelled: str | None = None
        self.survivors = 0

    @property
    def silent(self) -> bool:
        """Whether both streams have ended."""
        return self.stdout.descriptor is None and self.stderr.descriptor is None

    def report(self) -> dict[str, object]:
        """Return the command's end in the shape of the wire protocol."""
        status = self.status
        return {
            "exit_code": status if status is not None and status >= 0 else None,
            "signal": -status if status is not None and status < 0 else None,
            "timed_out": self.timed_out,
            "cancelled": self.cancelled,
            "stdout": self.stdout.report(),
            "stderr": self.stderr.report(),
            "duration_ms": round((self.exited - self.started) * 1000),
            "survivors": self.survivors,
        }


class Refusal(Exception):
    """A request that leads to no command; ``failure`` is the word for it on the wire."""

    def __init__(self, failure: str, text: str) -> None:
        super().__init__(text)
        self.failure = failure
        self.text = text


class Loop:
    """The event loop: the control socket, the outputs of all commands, the deaths of children, and timers."""

    def __init__(self, token: str, head_bytes: int, tail_bytes: int, grace_seconds: float) -> None:
        self.token = token
        self.head_bytes = head_bytes
        self.tail_bytes = tail_bytes
        self.grace_seconds = grace_seconds
        self.commands: dict[int, Command] = {}
        self.shells: dict[int, Command] = {}  # By pid, until reaped: these pids cannot be anybody else's.
        self.orphans: dict[int, Command] = {}  # By pid of an adopted child, until reaped.
        self.captures: dict[int, tuple[Command, Capture]] = {}
        self.incoming = bytearray()
        self.outgoing = bytearray()
        self.worker_lives = True
        self.null = os.open(os.devnull, os.O_RDWR)
        self.poll = select.poll()
        os.set_blocking(CONTROL_DESCRIPTOR, False)
        os.set_inheritable(CONTROL_DESCRIPTOR, False)
        self.poll.register(CONTROL_DESCRIPTOR, select.POLLIN)
        self.wakeup, waker = os.pipe()
        os.set_blocking(self.wakeup, False)
        os.set_blocking(waker, False)
        self.poll.register(self.wakeup, select.POLLIN)
        signal.set_wakeup_fd(waker, warn_on_full_buffer=False)

    def run(self) -> None:
        """Serve until the worker is gone and nothing of its commands is left."""
        while self.worker_lives or self.commands or self.outgoing:
            for descriptor, event in self.poll.poll(self._patience_ms()):
                if descriptor == CONTROL_DESCRIPTOR:
                    self._serve_control(event)
                elif descriptor == self.wakeup:
                    drain(self.wakeup)
                    self._reap()
                elif descriptor in self.captures:
                    # One chunk per round, so that a flood of one command never starves the others or the timers.
                    self._read(*self.captures[descriptor])
            now = time.monotonic()
            for command in [command for command in self.commands.values() if command.look_at <= now]:
                self._look(command, now)

    def _patience_ms(self) -> int:
        look_at = min((command.look_at for command in self.commands.values()), default=FOREVER)
        seconds = min(POLL_SECONDS_MAX, max(0.0, look_at - time.monotonic()))
        # Rounded up, lest the loop spin through the last fraction of a millisecond.
        return -int(-seconds * 1000 // 1)

    # --- the control socket -------------------------------------------------------------------------------------

    def _serve_control(self, event: int) -> None:
        if self.outgoing:
            self._flush()
        if self.worker_lives and event & ~select.POLLOUT:
            self._receive()

    def _receive(self) -> None:
        try:
            chunk = os.read(CONTROL_DESCRIPTOR, READ_BYTES)
        except BlockingIOError:
            return
        except OSError:
            chunk = b""
        if not chunk:
            self._worker_gone()
            return
        self.incoming += chunk
        while len(self.incoming) >= 4:
            length = int.from_bytes(self.incoming[:4], "big")
            if length > FRAME_BYTES_MAX:
                self.refuse(None, Refusal("refused", f"a message of {length} bytes is longer than {FRAME_BYTES_MAX}"))
                self._worker_gone()
                return
            if len(self.incoming) < 4 + length:
                return
            frame = bytes(self.incoming[4 : 4 + length])
            del self.incoming[: 4 + length]
            self._handle(frame)

    def _handle(self, frame: bytes) -> None:
        number: int | None = None
        try:
            request = parse(frame)
            number = whole(request, "id")
            match request.get("op"):
                case "run":
                    self._start(number, request)
                case "cancel":
                    self._cancel(number, str(request.get("why", "")))
                case unknown:
                    raise Refusal("refused", f"unknown request {unknown!r}")
        except Refusal as refusal:
            self.refuse(number, refusal)
        except Exception as error:
            self.refuse(number, Refusal("refused", f"{type(error).__name__}: {error}"))

    def refuse(self, number: int | None, refusal: Refusal) -> None:
        """Answer a request that leads to no command."""
        self._send({"id": number, "finished": {"failure": refusal.failure, "text": refusal.text}})

    def _send(self, message: dict[str, object]) -> None:
        body = json.dumps(message).encode()
        self.outgoing += len(body).to_bytes(4, "big") + body
        self._flush()

    def _flush(self) -> None:
        try:
            while self.outgoing:
                del self.outgoing[: os.write(CONTROL_DESCRIPTOR, self.outgoing)]
        except BlockingIOError:
            pass
        except OSError:
            # Nobody reads any more. That the worker is gone is learnt from reading, in its own time.
            self.outgoing.clear()
        # Registering anew replaces what was registered. Nothing to wait for means out of the poll altogether, because
        # a closed socket is reported whether one asked or not.
        wanted = (select.POLLIN if self.worker_lives else 0) | (select.POLLOUT if self.outgoing else 0)
        if wanted:
            self.poll.register(CONTROL_DESCRIPTOR, wanted)
        else:
            with contextlib.suppress(KeyError):
                self.poll.unregister(CONTROL_DESCRIPTOR)

    def _worker_gone(self) -> None:
        self.worker_lives = False
        self.grace_seconds = min(self.grace_seconds, ORPHANED_GRACE_SECONDS)
        self._flush()
        for command in self.commands.values():
            self._cancel(command.number, "shutdown")
            if command.kill_at is None:
                self._end(command, time.monotonic())

    # --- starting -----------------------------------------------------------------------------------------------

    def _start(self, number: int, request: dict[str, object]) -> None:
        if number in self.commands:
            raise Refusal("refused", f"a command with the id {number} is already running")
        run, cwd = octets(request, "run"), octets(request, "cwd")
        environ = dict(split(entry) for entry in octets(request, "environ").split(b"\0") if entry)
        environ[MARKER.encode()] = f"{self.token}.{number}".encode()
        timeout = seconds(request, "timeout")
        limits = limits_of(request)
        wrapper = request.get("wrapper") or {}
        if not isinstance(wrapper, dict):
            raise Refusal("refused", f"wrapper must be an object, not {wrapper!r}")
        argv = [*octet_strings(wrapper, "argv"), b"/bin/sh", b"-c", run]
        ours: list[int] = []
        theirs: list[int] = []
        try:
            stdin = self.null
            if request.get("stdin") is not None:
                stdin = memory_file(octets(request, "stdin"))
                theirs.append(stdin)
            for _ in range(2):
                reader, writer = os.pipe()
                ours.append(reader)
                theirs.append(writer)
                os.set_blocking(reader, False)
            streams = [stdin, theirs[-2], theirs[-1]]
            if wrapper.get("arguments") is not None:
                theirs.append(memory_file(octets(wrapper, "arguments")))
                streams.append(theirs[-1])
            pid = spawn(argv, cwd, environ, streams, limits)
        except OSError as error:
            close(ours)
            raise Refusal("spawn_failed", f"the command could not be started: {error.strerror}") from error
        except BaseException:
            close(ours)
            raise
        finally:
            close(theirs)
        stdout, stderr = (Capture(descriptor, self.head_bytes, self.tail_bytes) for descriptor in ours)
        command = Command(number, pid, stdout, stderr, timeout, bool(wrapper.get("steady")))
        self.commands[number] = self.shells[pid] = command
        for descriptor, capture in zip(ours, (stdout, stderr), strict=True):
            self.captures[descriptor] = (command, capture)
            self.poll.register(descriptor, select.POLLIN)

    # --- output -------------------------------------------------------------------------------------------------

    def _read(self, command: Command, capture: Capture) -> bool:
        """Read one chunk; return whether there may be more at once."""
        if capture.descriptor is None:
            return False
        try:
            chunk = os.read(capture.descriptor, READ_BYTES)
        except BlockingIOError:
            return False
        if chunk:
            capture.keep(chunk)
            return True
        self._stop_reading(capture)
        if command.status is not None:
            command.look_at = 0.0
        return False

    def _catch_up(self, command: Command) -> None:
        """Read what was written before the shell exited, and no more of what a survivor may go on writing."""
        for capture in (command.stdout, command.stderr):
            for _ in range(LAST_READS_MAX):
                if not self._read(command, capture):
                    break

    def _stop_reading(self, capture: Capture) -> None:
        if capture.descriptor is not None:
            self.poll.unregister(capture.descriptor)
            del self.captures[capture.descriptor]
            os.close(capture.descriptor)
            capture.descriptor = None

    # --- the end of a command -----------------------------------------------------------------------------------

    def _reap(self) -> None:
        now = time.monotonic()
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                break
            if pid == 0:
                break
            self.orphans.pop(pid, None)
            command = self.shells.pop(pid, None)
            if command is not None:
                command.status = os.waitstatus_to_exitcode(status)
                command.exited = now
                command.drain_until = now + DRAIN_SECONDS
        for command in self.commands.values():
            if command.status is not None or command.kill_at is not None:
                command.look_at = 0.0

    def _look(self, command: Command, now: float) -> None:
        """Take the command one step further: expire it, end what is left of it, or report it."""
        if command.status is None and command.kill_at is None:
            command.timed_out = True
            self._end(command, now)
            return
        left = self._descendants(command)
        if command.kill_at is None:
            self._catch_up(command)
            if not left and (command.silent or now >= command.drain_until):
                self._finish(command)
            elif now >= command.drain_until:
                command.survivors = len(left)
                self._end(command, now)
            else:
                command.look_at = command.drain_until
        elif (command.status is not None and not left) or now >= command.kill_at + GIVE_UP_SECONDS:
            self._finish(command)
        elif now >= command.kill_at:
            self._signal(command, left, signal.SIGKILL)
            command.look_at = now + SWEEP_SECONDS
        else:
            command.look_at = command.kill_at

    def _cancel(self, number: int, why: str) -> None:
        command = self.commands.get(number)
        # Too late for one whose shell has exited, or that is being ended for another reason.
        if command is not None and command.status is None and command.kill_at is None:
            command.cancelled = why
            self._end(command, time.monotonic())

    def _end(self, command: Command, now: float) -> None:
        command.kill_at = now + self.grace_seconds
        command.look_at = command.kill_at
        self._signal(command, self._descendants(command), signal.SIGTERM)

    def _signal(self, command: Command, pids: list[int], number: int) -> None:
        in_group: set[int] = set()
        descended = {command.pid, *pids}
        if command.steady and number == signal.SIGTERM:
            pids = [pid for pid in pids if pid != command.pid]
        elif command.status is None or not HAS_PROC:
            # Until the shell is reaped, its pid is that of its group and of nobody else: it made the group at birth.
            # Nobody gets the signal twice, because many programs take a second SIGTERM for impatience.
            in_group = {pid for pid in pids if group_of(pid) == command.pid}
            quietly(os.killpg, command.pid, number)
        meant = {pid for pid in pids if pid not in in_group}
        for pid in meant:
            if pid == command.pid or pid in self.orphans:
                # Nobody but this process collects its children, and it has not.
                quietly(os.kill, pid, number)
            else:
                signal_if(pid, number, lambda pid: parent_of(pid) in descended or pid in set(own_children()))

    def _finish(self, command: Command) -> None:
        self._catch_up(command)
        self._stop_reading(command.stdout)
        self._stop_reading(command.stderr)
        if command.status is None:
            command.exited = time.monotonic()
        self.shells.pop(command.pid, None)
        del self.commands[command.number]
        if not HAS_PROC:
            quietly(os.killpg, command.pid, signal.SIGKILL)
        self._send({"id": command.number, "finished": command.report()})

    # --- who belongs to whom ------------------------------------------------------------------------------------

    def _descendants(self, command: Command) -> list[int]:
        """Return the pids of everything of the command that still runs, its shell included."""
        found = [] if command.status is not None else [command.pid]
        for pid in own_children():
            if pid not in self.shells and self._owner(pid) is command:
                found.append(pid)
        for pid in found:  # Grows while it is walked.
            found.extend(children_of(pid))
        return found

    def _owner(self, pid: int) -> Command | None:
        """Return the command that an adopted child belongs to: by its session, its environment, or by elimination."""
        owner = self.orphans.get(pid) or self._by_session(pid) or self._by_environment(pid)
        if owner is None or owner.number not in self.commands:
            # Whoever hides well belongs to the only command there is; next to others it waits until they have gone.
            owner = next(iter(self.commands.values())) if len(self.commands) == 1 else None
        if owner is not None:
            # Remembered, because a later setsid or exec may take the evidence away.
            self.orphans[pid] = owner
        return owner

    def _by_session(self, pid: int) -> Command | None:
        try:
            session = os.getsid(pid)
        except OSError:
            return None
        return next((command for command in self.commands.values() if command.pid == session), None)

    def _by_environment(self, pid: int) -> Command | None:
        prefix = f"{MARKER}={self.token}.".encode()
        numbers = [entry[len(prefix) :] for entry in environment_of(pid) if entry.startswith(prefix)]
        # Compared as it is written: a command may have put anything there.
        return next((self.commands[each] for each in self.commands if numbers[:1] == [b"%d" % each]), None)


# --- processes ----------------------------------------------------------------------------------------------------


def spawn(
    argv: list[bytes], cwd: bytes, environ: dict[bytes, bytes], streams: list[int], limits: dict[str, int]
) -> int:
    """Start a program in its own session with signals as a login shell has them; return its pid.

    Raises:
        Refusal: the directory cannot be entered, or the command can be started nowhere (too long, a NUL in it).
        OSError: the system has no room for another process right now.
    """
    try:
        os.chdir(cwd)
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise Refusal("cwd_missing", f"{cwd.decode(errors='replace')}: {reason}") from error
    try:
        if limits:
            return fork_and_execute(argv, environ, streams, limits)
        return os.posix_spawn(
            argv[0],
            argv,
            environ,
            file_actions=[(os.POSIX_SPAWN_DUP2, source, target) for target, source in enumerate(streams)],
            setsid=True,
            setsigmask=(),
            setsigdef=RESET_SIGNALS,
        )
    except OSError as error:
        if error.errno == errno.E2BIG:
            raise Refusal("refused", "the command and its environment are longer than the system allows") from error
        raise
    finally:
        os.chdir("/")


def fork_and_execute(argv: list[bytes], environ: dict[bytes, bytes], streams: list[int], limits: dict[str, int]) -> int:
    """Do what ``posix_spawn`` does for a process with limits, which it cannot set; return the pid.

    Raises:
        OSError: no process can be had, a limit cannot be set, or the program cannot be executed.
    """
    if any(b"\0" in word for word in argv):
        raise ValueError("embedded null byte")
    import resource

    bounds = [bounded(resource, name, value) for name, value in limits.items()]
    reader, writer = os.pipe()
    try:
        pid = os.fork()
        if pid == 0:
            try:
                os.setsid()
                for target, source in enumerate(streams):
                    os.dup2(source, target)
                for number in RESET_SIGNALS:
                    signal.signal(number, signal.SIG_DFL)
                signal.pthread_sigmask(signal.SIG_SETMASK, ())
                for which, soft_and_hard in bounds:
                    resource.setrlimit(which, soft_and_hard)
                os.execve(argv[0], argv, environ)
            except Exception as error:
                # A value that the system does not take, or a limit of memory that leaves no room for this.
                other = errno.EINVAL if isinstance(error, ValueError) else errno.ENOMEM
                code = error.errno if isinstance(error, OSError) else other
                os.write(writer, str(code).encode())
            finally:
                os._exit(127)
    finally:
        os.close(writer)
        # Closed by a successful execve: then there is nothing to read.
        failed = os.read(reader, 16)
        os.close(reader)
    if failed:
        os.waitpid(pid, 0)
        raise OSError(int(failed), os.strerror(int(failed)))
    return pid


def bounded(resource: ModuleType, name: str, value: int) -> tuple[int, tuple[int, int]]:
    """Return a limit as ``setrlimit`` takes it, not above what this process has itself."""
    which: int = getattr(resource, LIMITS[name])
    _, most = resource.getrlimit(which)
    hard = value + CPU_GRACE_SECONDS if name == "cpu" else value
    hard = hard if most == resource.RLIM_INFINITY else min(hard, most)
    return which, (min(value, hard), hard)


def own_children() -> list[int]:
    """Return the pids of this process's children, zombies included. Exact, because nobody else reaps them."""
    return pids_in(OWN_CHILDREN)


def children_of(pid: int) -> list[int]:
    """Return the pids of another process's children, as good as one look can tell."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return []
    return [child for thread in threads for child in pids_in(f"/proc/{pid}/task/{thread}/children")]


def pids_in(path: str) -> list[int]:
    """Return the pids that a file of ``/proc`` lists, or none when the process is gone."""
    return [int(word) for word in contents(path).split()]


def environment_of(pid: int) -> list[bytes]:
    """Return the ``NAME=value`` entries that a process was started with, or none when they cannot be read."""
    return contents(f"/proc/{pid}/environ").split(b"\0")


def group_of(pid: int) -> int:
    """Return the process group of a process, or 0 when it is gone."""
    try:
        return os.getpgid(pid)
    except OSError:
        return 0


def parent_of(pid: int) -> int:
    """Return the parent of a process, or 0 when it is gone."""
    fields = contents(f"/proc/{pid}/stat").rpartition(b")")[2].split()
    return int(fields[1]) if len(fields) > 1 else 0


def contents(path: str) -> bytes:
    """Return the bytes of a file of ``/proc``, or nothing when it is gone or not ours to read."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return b""
    try:
        chunks = []
        while chunk := os.read(descriptor, READ_BYTES):
            chunks.append(chunk)
        return b"".join(chunks)
    except OSError:
        return b""
    finally:
        os.close(descriptor)


def quietly(send: Callable[[int, int], None], target: int, number: int) -> None:
    """Send a signal to somebody who may just have left, or may not be ours to signal."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        send(target, number)


class ProcessHandle:
    """A process that is meant, and no other that gets its pid after it; just the pid where there are no pidfds."""

    __slots__ = ("descriptor", "let_go", "pid")

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.let_go = False
        self.descriptor: int | None = None
        # None on macOS and on kernels before 5.3, and where a filter of system calls forbids it.
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                self.descriptor = os.pidfd_open(pid)

    def send(self, number: int) -> None:
        """Send a signal, if the process is still there and ours to signal."""
        if self.let_go:
            return
        if self.descriptor is None:
            quietly(os.kill, self.pid, number)
        else:
            quietly(signal.pidfd_send_signal, self.descriptor, number)

    def close(self) -> None:
        """Let go of the process: no signal is sent to it any more."""
        self.let_go = True
        descriptor, self.descriptor = self.descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def signal_if(pid: int, number: int, meant: Callable[[int], bool]) -> None:
    """Send a signal to a process that was found by its pid, unless that is somebody else's by now.

    Args:
        pid: what was found.
        number: the signal.
        meant: whether the process of a pid is one that is to get it.
    """
    process = ProcessHandle(pid)
    try:
        # Asked while it is held: from here on a signal reaches this process or nobody.
        if meant(pid):
            process.send(number)
    finally:
        process.close()


def become_subreaper() -> None:
    """Adopt orphaned descendants, where the system can do that."""
    if sys.platform != "linux":
        return
    # An interpreter built without libffi has no ctypes: then orphans go to pid 1, and only groups can be ended.
    with contextlib.suppress(ImportError, AttributeError):
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


# --- small change -------------------------------------------------------------------------------------------------


def base64(octets: bytes) -> str:
    """Return bytes as base64 text."""
    return binascii.b2a_base64(octets, newline=False).decode("ascii")


def parse(frame: bytes) -> dict[str, object]:
    """Return the mapping in a frame.

    Raises:
        Refusal: the frame is not a JSON object.
    """
    request = json.loads(frame)
    if not isinstance(request, dict):
        raise Refusal("refused", "a request must be a JSON object")
    return request


def whole(request: dict[str, object], name: str) -> int:
    """Return an integer of a request."""
    value = request.get(name)
    if type(value) is not int:
        raise Refusal("refused", f"{name} must be an integer, not {value!r}")
    return value


def octets(request: dict[str, object], name: str) -> bytes:
    """Return a byte string of a request."""
    value = request.get(name)
    if not isinstance(value, str):
        raise Refusal("refused", f"{name} must be base64 text, not {value!r}")
    return binascii.a2b_base64(value, strict_mode=True)


def octet_strings(request: dict[str, object], name: str) -> list[bytes]:
    """Return a list of byte strings of a request, empty when there is none."""
    values = request.get(name) or []
    if not isinstance(values, list):
        raise Refusal("refused", f"{name} must be a list, not {values!r}")
    return [octets({name: value}, name) for value in values]


def limits_of(request: dict[str, object]) -> dict[str, int]:
    """Return the limits of a request, none when it has none."""
    values = request.get("limits") or {}
    if not isinstance(values, dict) or not all(
        name in LIMITS and type(value) is int and value > 0 for name, value in values.items()
    ):
        raise Refusal("refused", f"limits must be positive numbers by the names {', '.join(LIMITS)}, not {values!r}")
    return values


def seconds(request: dict[str, object], name: str) -> float | None:
    """Return a positive number of seconds of a request, or None."""
    value = request.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value > 0:
        raise Refusal("refused", f"{name} must be a positive number of seconds, not {value!r}")
    return float(value)


def split(entry: bytes) -> tuple[bytes, bytes]:
    """Return name and value of one ``NAME=value``."""
    name, _, value = entry.partition(b"=")
    return name, value


def memory_file(data: bytes) -> int:
    """Return a descriptor that reads ``data`` from its start: a file, because a full pipe would block both sides."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("stdin")
    else:
        import tempfile

        with tempfile.TemporaryFile() as file:
            descriptor = os.dup(file.fileno())
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(descriptor, view) :]
        os.lseek(descriptor, 0, os.SEEK_SET)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def drain(descriptor: int) -> None:
    """Read a non-blocking descriptor empty."""
    try:
        while os.read(descriptor, READ_BYTES):
            pass
    except BlockingIOError:
        pass


def close(descriptors: list[int]) -> None:
    """Close descriptors that are known to be open."""
    for descriptor in descriptors:
        os.close(descriptor)


def close_strangers() -> None:
    """Close what the worker leaked: a command must not hold a worker's sockets open."""
    for name in os.listdir("/dev/fd") if os.path.isdir("/dev/fd") else ():
        if int(name) > CONTROL_DESCRIPTOR:
            with contextlib.suppress(OSError):  # One of them is the listing itself, closed by now.
                os.close(int(name))


def main() -> None:
    """Run the supervisor. Arguments: token, head bytes, tail bytes, grace seconds; the socket is descriptor 3."""
    token, head_bytes, tail_bytes, grace_seconds = sys.argv[1:]
    close_strangers()
    # A handler that does nothing, not SIG_IGN, which the commands would inherit. Ctrl-C in a terminal, or a polite
    # kill of everything, is the worker's to answer: it cancels, or it leaves and its socket closes.
    for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, lambda _number, _frame: None)
    become_subreaper()
    os.chdir("/")
    loop = Loop(token, int(head_bytes), int(tail_bytes), float(grace_seconds))
    try:
        loop.run()
    except Exception as error:
        # The last words tell the worker why; it ends the commands by their marker when the socket closes.
        loop.refuse(None, Refusal("supervisor_lost", f"the supervisor failed: {error!r}"))
        raise
