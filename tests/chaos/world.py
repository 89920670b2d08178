"""The system under test as real processes, and the faults that befall it.

A server with an append-only log, a broker, workers of both pools, the REST service and callers. All of them reach the
server through a proxy of ours. Whatever is killed is started again after a while, as whoever runs such a system would
do.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from msgspec import Struct

from statem_dist.dispatch import TrialsWait, task_message
from statem_dist.embedded.binary import find_server
from statem_dist.protocol.progress import pending
from statem_dist.resp import Connection, ProtocolError, ReplyError
from statem_dist.store.client import client_for
from statem_dist.store.redis_store import RedisStore
from tests.chaos.clock import SHIFT, clock_library
from tests.chaos.load import Files
from tests.chaos.plan import LEASE_SECONDS, Broker, Fault, Kind
from tests.chaos.proxy import Proxy
from tests.support.programs import COMMAND, LEAKING_PREFIXES, Program, alive
from tests.support.servers import free_port

ROOT = Path(__file__).resolve().parents[2]

MARK = "CHAOS_MARK"
"""A variable that every process of a round has, by which it is found whoever its parent is."""

QUEUES = ("checks", "llm", "trials")

WORKERS = ("worker-1", "worker-2", "worker-3", "worker-4")

DISK_MIB = 192
"""Size of the disk of the server's log: more than a round of ten minutes writes."""

START_SECONDS = 60.0


class Role(Struct, frozen=True):
    """A program of the system: its name, and its command line."""

    name: str
    argv: tuple[str, ...]

    @property
    def is_worker(self) -> bool:
        """Whether it executes checks."""
        return self.name.startswith("worker")

    @property
    def is_caller(self) -> bool:
        """Whether it calls."""
        return not self.is_worker and self.name != "service"


class Skipped(Exception):
    """Why a kind of fault cannot be had on this host."""


class Server:
    """A server process of ours, which may be killed and started again on its data.

    Args:
        folder: where its socket and its log of events are.
        data: where its append-only log is; None for one that keeps nothing.
        options: further options.
    """

    def __init__(self, folder: Path, data: Path | None, *options: str) -> None:
        self.port = free_port()
        folder.mkdir()
        self._socket = str(folder / "redis.sock")
        self._log = folder / "server.log"
        kept = (
            ("--appendonly", "yes", "--appendfsync", "everysec", "--dir", str(data)) if data else ("--dir", str(folder))
        )
        self._argv = (
            *(str(find_server().path), "--port", str(self.port), "--bind", "127.0.0.1", "--unixsocket", self._socket),
            *("--save", "", "--maxmemory-policy", "noeviction", "--logfile", str(self._log), *kept, *options),
        )
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process is not None
        return self._process.pid

    def start(self) -> None:
        """Start it, and wait until it has loaded its data."""
        self._process = subprocess.Popen(self._argv, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + START_SECONDS
        while True:
            with contextlib.suppress(OSError, ReplyError, ProtocolError):
                self.call("PING")
                return
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise AssertionError(f"the server does not come up: {self._log.read_text()[-2000:]}")
            time.sleep(0.02)

    def kill(self) -> None:
        """End it at once."""
        assert self._process is not None
        self._process.kill()
        self._process.wait()

    def call(self, *words: str | bytes | int, database: int = 0) -> Any:
        """Send it one command, past the proxy."""
        with Connection(self._socket, timeout_seconds=10.0) as connection:
            if database:
                connection.call("SELECT", database)
            return connection.call(*words)

    def info(self, section: str) -> dict[str, str]:
        """Return a section of what it says of itself."""
        with Connection(self._socket) as connection:
            return connection.info(section)


class Disk:
    """A small disk for the append-only log, which can be filled.

    Args:
        folder: where it is mounted; a plain folder where that is not possible.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.unfit = ""
        if sys.platform != "linux" or os.geteuid() != 0:
            self.unfit = "only root on Linux may mount a small disk"
            return
        words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MIB}m", "tmpfs", str(folder)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        if done.returncode:
            self.unfit = f"no small disk can be mounted here: {done.stderr.strip()}"

    def fill(self) -> None:
        """Leave no byte free."""
        if self.unfit:
            raise Skipped(self.unfit)
        with (self.folder / "filler").open("wb", buffering=0) as filler, contextlib.suppress(OSError):
            while True:
                filler.write(bytes(65_536))
        with (self.folder / "rest").open("wb", buffering=0) as rest, contextlib.suppress(OSError):
            while True:
                rest.write(bytes(512))

    def free(self) -> None:
        """Give the space back."""
        for name in ("filler", "rest"):
            (self.folder / name).unlink(missing_ok=True)

    def close(self) -> None:
        """Unmount it."""
        if not self.unfit:
            subprocess.run(["umount", "-l", str(self.folder)], check=True)


class World:
    """Everything that runs in one round.

    Args:
        files: where the work is described; its folder is that of every process.
        seed: what callers draw from.
        broker: where messages wait.
        package: a folder whose packages come before those that are installed: a copy with a defect, on purpose.
        server_options: further options of the server.
    """

    def __init__(
        self,
        files: Files,
        seed: int,
        broker: Broker,
        package: Path | None = None,
        server_options: tuple[str, ...] = (),
    ) -> None:
        self.files = files
        self.folder = files.folder
        self.broker = broker
        self.mark = f"{files.folder.name}"
        self.frozen: list[tuple[str, float, float]] = []
        self.programs: dict[str, Program] = {}
        self.logs: list[Path] = []
        self._starts: Counter[str] = Counter()
        self._shift: dict[str, str] = {}
        self.disk = Disk(self.folder / "disk")
        self.server = Server(self.folder / "server", self.disk.folder, *server_options)
        self.server.start()
        self.broker_server = self.server
        if broker == "server":
            self.broker_server = Server(self.folder / "broker", None)
            self.broker_server.start()
        # A way of its own for each worker, so that one can be cut off while the others go on.
        self._ways = {name: Proxy(free_port(), self.server.port) for name in ("common", *WORKERS)}
        for way in self._ways.values():
            way.start()
        self._service_port = free_port()
        outer = {name: value for name, value in os.environ.items() if not name.startswith(LEAKING_PREFIXES)}
        self.environment = {
            **outer,
            MARK: self.mark,
            "PYTHONUTF8": "1",
            "PYTHONPATH": os.pathsep.join([*([str(package)] if package else []), str(ROOT)]),
            "STATEM_STATE_DIR": str(self.folder / "state"),
            "STATEM_LEASE_SECONDS": f"{LEASE_SECONDS:g}",
            "STATEM_HINT_GRACE_SECONDS": "1",
            "STATEM_URL": f"http://127.0.0.1:{self._service_port}",
        }
        self.environment |= self._addresses("common")
        self.store = RedisStore(client_for(f"redis://127.0.0.1:{self.server.port}/0"), patience_seconds=30.0)
        python = sys.executable
        kept = ("--pass-env", MARK, "--grace", "3")
        caller = (python, "-m", "tests.chaos.caller")
        self.roles = (
            Role("worker-1", (*COMMAND, "worker", "-Q", "checks,llm", "-c", "3", *kept)),
            Role("worker-2", (*COMMAND, "worker", "-Q", "checks", "-c", "2", "--pool", "prefork", *kept)),
            Role("worker-3", (*COMMAND, "worker", "-Q", "trials,checks", "-c", "3", *kept)),
            Role("worker-4", (*COMMAND, "worker", "-Q", "trials,llm", "-c", "2", "--pool", "prefork", *kept)),
            Role("service", (*COMMAND, "api", "--port", str(self._service_port))),
            Role("rest-1", (*caller, "rest", "rest-1", str(self.folder), str(seed))),
            Role("rest-2", (*caller, "rest", "rest-2", str(self.folder), str(seed))),
            Role("library", (*caller, "engine", "library", str(self.folder), str(seed))),
            Role("commands", (*caller, "command", "commands", str(self.folder), str(seed))),
            Role("approver", (*caller, "approver", "approver", str(self.folder), str(seed))),
        )

    def _addresses(self, way: str) -> dict[str, str]:
        """Return where the server and the broker are for whoever has a way."""
        port = self._ways[way].port
        found = {"STATEM_REDIS_URL": f"redis://127.0.0.1:{port}/0"}
        if self.broker == "database":
            found["STATEM_BROKER_URL"] = f"redis://127.0.0.1:{port}/1"
        elif self.broker == "server":
            found["STATEM_BROKER_URL"] = f"redis://127.0.0.1:{self.broker_server.port}/0"
        return found

    # --- programs --------------------------------------------------------------------------------------------

    def start_all(self) -> str:
        """Start everything, submit the sweep, and return its id."""
        made = self.run("token", "create", "--role", "admin", "--name", "chaos")
        self.environment["STATEM_TOKEN"] = made.strip()
        for role in self.roles:
            self.start(role)
        submitted = self.run("sweep", "submit", str(self.files.sweep), "--json")
        found = re.search(r'"sweep": "([^"]+)"', submitted)
        assert found is not None, submitted
        return found[1]

    def attempt(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command beside the store to its end."""
        environment = {name: value for name, value in self.environment.items() if name != "STATEM_URL"}
        return subprocess.run(
            [*COMMAND, *words], cwd=self.folder, env=environment, capture_output=True, encoding="utf-8", check=False
        )

    def run(self, *words: str) -> str:
        """Run a command beside the store to its end and return what it says; it must succeed."""
        done = self.attempt(*words)
        assert done.returncode == 0, f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    def start(self, role: Role) -> None:
        """Start a program, or start it anew."""
        self._starts[role.name] += 1
        environment = self.environment
        if role.is_worker or role.name in ("service", "library", "commands"):
            # These are beside the store; only who calls the service is told where that is.
            environment = {
                name: value for name, value in environment.items() if name not in ("STATEM_URL", "STATEM_TOKEN")
            }
        if role.is_worker:
            environment |= self._addresses(role.name)
        if role.name in self._shift:
            environment = {**environment, "LD_PRELOAD": clock_library(self.folder), SHIFT: self._shift[role.name]}
        program = Program(role.argv, self.folder, environment, f"{role.name}.{self._starts[role.name]}")
        self.programs[role.name] = program
        self.logs += [program.out, program.err]

    def start_missing(self) -> None:
        """Start whatever has ended."""
        for role in self.roles:
            if not self.programs[role.name].running:
                self.start(role)

    def start_fallen(self) -> list[str]:
        """Start again what has ended by itself, as whoever runs a service does; return how it ended."""
        fallen = []
        for role in self.roles:
            program = self.programs[role.name]
            if not program.running and program.process.returncode not in (0, -signal.SIGKILL):
                fallen.append(
                    f"{role.name} has ended by itself with {program.process.returncode}: {program.stderr[-400:]}"
                )
                self.start(role)
        return fallen

    # --- faults ----------------------------------------------------------------------------------------------

    def inject(self, fault: Fault) -> tuple[str, Callable[[], None] | None]:
        """Let a fault happen; return whom it befalls, and what ends it after its time.

        Raises:
            Skipped: it cannot be had on this host.
        """
        kind: Kind = fault.kind
        draw = random.Random(fault.choice)
        match kind:
            case "worker_killed" | "worker_told_to_stop" | "clock_shifted":
                role = draw.choice([role for role in self.roles if role.is_worker])
                if kind == "clock_shifted":
                    if sys.platform != "linux" or not clock_library(self.folder):
                        raise Skipped("it takes Linux and a C compiler to shift the clock of one process")
                    self._shift[role.name] = draw.choice(["3600", "-3600", "4", "-4", "-86400"])
                return self._end(role, signal.SIGTERM if kind == "worker_told_to_stop" else signal.SIGKILL)
            case "service_killed":
                return self._end(self._role("service"), signal.SIGKILL)
            case "caller_killed":
                return self._end(draw.choice([role for role in self.roles if role.is_caller]), signal.SIGKILL)
            case "worker_frozen_briefly" | "worker_frozen_beyond_its_lease":
                role = draw.choice([role for role in self.roles if role.is_worker])
                return self._freeze(role.name, _tree_of_pool(self.programs[role.name].pid))
            case "service_frozen":
                return self._freeze("service", [self.programs["service"].pid])
            case "caller_frozen":
                role = draw.choice([role for role in self.roles if role.is_caller])
                return self._freeze(role.name, [self.programs[role.name].pid])
            case "worker_child_killed":
                role = draw.choice([role for role in self.roles if "prefork" in role.argv])
                children = _tree_of_pool(self.programs[role.name].pid)[1:]
                if not children:
                    return f"{role.name}, which has no child", None
                child = draw.choice(children)
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, signal.SIGKILL)
                return f"{role.name}, child {child}", None
            case "worker_cut_off_briefly" | "worker_cut_off_beyond_its_lease":
                name = draw.choice(WORKERS)
                self._ways[name].hold()
                return name, self._ways[name].heal
            case "server_killed":
                self.server.kill()
                return "state", self.server.start
            case "server_frozen":
                os.kill(self.server.pid, signal.SIGSTOP)
                return "state", lambda: os.kill(self.server.pid, signal.SIGCONT)
            case "broker_flushed":
                return self._flush_broker(), None
            case "messages_doubled":
                return f"{self._double_messages(draw)} messages", None
            case "scripts_flushed":
                self.server.call("SCRIPT", "FLUSH")
                return "state", None
            case "clients_killed":
                return f"{self.server.call('CLIENT', 'KILL', 'TYPE', 'normal', 'SKIPME', 'yes')} connections", None
            case "replies_dropped" | "replies_swallowed":
                count = 1 + fault.choice % 12
                name = draw.choice(tuple(self._ways))
                self._ways[name].drop_replies(count, cuts=kind == "replies_dropped")
                return f"{count} replies to {name}", None
            case "connections_reset":
                for way in self._ways.values():
                    way.reset()
                return "all connections", None
            case "network_slow":
                seconds = 0.02 + 0.2 * draw.random()
                for way in self._ways.values():
                    way.delay(seconds)
                return "state", self._heal_network
            case "network_held_briefly" | "network_held_beyond_leases":
                for way in self._ways.values():
                    way.hold()
                return "state", self._heal_network
            case "disk_full":
                self.disk.fill()
                return "state", self._free_disk
            case "memory_full":
                self.server.call("CONFIG", "SET", "maxmemory", "1mb")
                return "state", lambda: _nothing(self.server.call("CONFIG", "SET", "maxmemory", "0"))

    def heal(self) -> None:
        """Start what is missing, and wait until the server writes again."""
        self._heal_network()
        self._free_disk()
        self.server.call("CONFIG", "SET", "maxmemory", "0")
        self._shift.clear()
        self.start_missing()

    def _heal_network(self) -> None:
        for way in self._ways.values():
            way.heal()

    def _role(self, name: str) -> Role:
        return next(role for role in self.roles if role.name == name)

    def _end(self, role: Role, how: signal.Signals) -> tuple[str, Callable[[], None]]:
        program = self.programs[role.name]
        with contextlib.suppress(ProcessLookupError):
            os.kill(program.pid, how)

        def again() -> None:
            # Another fault may have ended it as well.
            if self.programs[role.name] is program:
                program.kill()
                self.start(role)

        return role.name, again

    def _freeze(self, name: str, pids: list[int]) -> tuple[str, Callable[[], None]]:
        begun = time.time()
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGSTOP)

        def thaw() -> None:
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)
            self.frozen.append((name, begun, time.time()))

        return name, thaw

    def _flush_broker(self) -> str:
        match self.broker:
            case "state":
                self.server.call("DEL", *QUEUES)
            case "database":
                self.server.call("FLUSHDB", database=1)
            case "server":
                self.broker_server.kill()
                self.broker_server.start()
        return self.broker

    def _double_messages(self, draw: random.Random) -> int:
        """Send again what waits in the queues, and what is owed by runs that were moved a moment ago."""
        database = 1 if self.broker == "database" else 0
        messages: list[tuple[str, bytes]] = []
        for queue in QUEUES:
            for message in self.broker_server.call("LRANGE", queue, 0, 50, database=database):
                messages.append((queue, bytes(message)))
        for run_id, _ in self._open_runs():
            snapshot = self.store.load(run_id)
            for batch in pending(snapshot.run) if snapshot else ():
                messages += [(batch.queue, task_message(batch))] * draw.randint(1, 3)
        messages += [("trials", task_message(TrialsWait("trials")))] * draw.randint(1, 4)
        for queue, message in messages:
            self.broker_server.call("LPUSH", queue, message, database=database)
        return len(messages)

    def _open_runs(self) -> list[tuple[str, float]]:
        found = self.store.marks("moving", 30)
        return [(mark[1], mark[0]) for mark in found]

    def _free_disk(self) -> None:
        self.disk.free()
        deadline = time.monotonic() + 30.0
        while self.server.info("persistence")["aof_last_write_status"] != "ok":
            assert time.monotonic() < deadline, "the server does not write again although there is space"
            time.sleep(0.05)

    # --- the end ---------------------------------------------------------------------------------------------

    def processes(self) -> dict[int, str]:
        """Return every living process with our mark, and its command line."""
        found = {}
        mark = f"{MARK}={self.mark}".encode()
        for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
            with contextlib.suppress(OSError):
                if mark in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") and alive(pid):
                    found[pid] = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        return found

    def orphans(self) -> dict[int, str]:
        """Return the processes with our mark that belong to none of the programs that run."""
        roots = {program.pid for program in self.programs.values() if program.running}
        return {pid: words for pid, words in self.processes().items() if not _descends(pid, roots)}

    def close(self) -> None:
        """End everything, whatever state it is in."""
        for program in self.programs.values():
            with contextlib.suppress(ProcessLookupError):
                os.kill(program.pid, signal.SIGCONT)
            program.kill()
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        self.store.client.close()
        for way in self._ways.values():
            way.close()
        for server in {self.server, self.broker_server}:
            with contextlib.suppress(ProcessLookupError):
                os.kill(server.pid, signal.SIGCONT)
            server.kill()
        if not self.disk.unfit:
            kept = self.folder / "log-of-the-server"
            self.disk.free()
            shutil.copytree(self.disk.folder, kept)
        self.disk.close()


def _tree_of_pool(pid: int) -> list[int]:
    """Return a worker and the children of its pool, but not the supervisor, whose death would be another fault."""
    own = _words(pid)
    return [pid, *(child for child in _children(pid) if _words(child) == own)]


def _children(pid: int) -> list[int]:
    found: list[int] = []
    with contextlib.suppress(OSError):
        # Each thread has children of its own.
        for children in Path(f"/proc/{pid}/task").glob("*/children"):
            found += [int(word) for word in children.read_text().split()]
    return found


def _words(pid: int) -> bytes:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""


def _descends(pid: int, roots: set[int]) -> bool:
    while pid > 1:
        if pid in roots:
            return True
        try:
            pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
        except OSError:
            # It has ended meanwhile.
            return True
    return False


def _nothing(_: object) -> None:
    """Forget a value."""
