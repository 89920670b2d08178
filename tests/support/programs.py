"""The real programs, started and watched from outside, as a user has them.

A ``Site`` is one user's corner: a folder with runbooks, a state directory, the settings in the environment, and
every process that was started there. Whatever a test does, ``close`` ends all of it and then finds nothing left.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from statem_dist.embedded import server
from statem_dist.embedded.place import Place
from statem_dist.resp import Connection

PATIENCE_SECONDS = 30.0
"""How long a condition may take to come true; only a failure takes that long."""

LOOK_SECONDS = 0.03

COMMAND = (sys.executable, "-m", "statem_dist.cli.main")
"""The command line; the console script imports the same module."""

QUICK = {"STATEM_LEASE_SECONDS": "1.5", "STATEM_HINT_GRACE_SECONDS": "0.5"}
"""Settings under which a lost worker is noticed within seconds."""

LEAKING_PREFIXES = ("CELERY_", "STATEM_", "COLUMNS", "FORCE_COLOR", "GITHUB_ACTIONS", "PY_COLORS", "TERMINAL_WIDTH")
"""Variables of the caller that change what our programs do or how wide and colourful they print."""

HAS_PROC = os.path.isdir("/proc/self")

Found = TypeVar("Found")


@dataclass(frozen=True)
class Said:
    """What a command that has ended left: its exit code and its two outputs."""

    exit_code: int
    stdout: str
    stderr: str

    @property
    def data(self) -> dict[str, Any]:
        """The one JSON document on stdout; anything before or after it is an error."""
        document = json.loads(self.stdout)
        assert isinstance(document, dict)
        return document


class Program:
    """A process that runs in a session of its own, as under a terminal of its own; its outputs go to files."""

    def __init__(self, argv: Sequence[str], folder: Path, environment: Mapping[str, str], name: str) -> None:
        self.out = folder / f"{name}.out"
        self.err = folder / f"{name}.err"
        with self.out.open("wb") as out, self.err.open("wb") as err:
            self.process = subprocess.Popen(
                argv,
                cwd=folder,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
        self.pid = self.process.pid
        self.peak_kib = 0

    @property
    def stderr(self) -> str:
        """What it has written to stderr so far."""
        return self.err.read_text(errors="replace")

    @property
    def stdout(self) -> str:
        """What it has written to stdout so far."""
        return self.out.read_text(errors="replace")

    @property
    def running(self) -> bool:
        """Whether it has not ended yet."""
        return self.process.poll() is None

    def wait(self) -> Said:
        """Wait until it has ended by itself; note the most memory that it ever had, as far as could be seen."""
        eventually(self._collected, f"process {self.pid} ends\n{self.stdout}\n{self.stderr}")
        return Said(self.process.returncode, self.stdout, self.stderr)

    def interrupt(self) -> None:
        """Press Ctrl-C: the terminal signals the whole foreground process group."""
        os.killpg(self.pid, signal.SIGINT)

    def terminate(self) -> None:
        """Ask it to stop."""
        self.process.terminate()

    def kill(self) -> None:
        """End it without a chance to tidy up (``kill -9``), and wait until it is gone."""
        if self.running:
            self.process.kill()
            self.process.wait()

    def _collected(self) -> bool:
        if HAS_PROC and self.running:
            # Not what the kernel accounts to an ended child: that begins with the memory of the test that forked it.
            self.peak_kib = max(self.peak_kib, peak_kib(self.pid))
        return not self.running


class Site:
    """One user's folder, state directory and processes.

    Args:
        settings: environment variables, next to those of the caller that are not ours.
    """

    def __init__(self, **settings: str) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="statem-e2e-")).resolve()
        self.state_dir = self.folder / "state"
        outer = {name: value for name, value in os.environ.items() if not name.startswith(LEAKING_PREFIXES)}
        self.environment = {**outer, **QUICK, "PYTHONUTF8": "1", "STATEM_STATE_DIR": str(self.state_dir), **settings}
        self._programs: list[Program] = []

    # --- files -----------------------------------------------------------------------------------------------

    def write(self, name: str, text: str = "") -> Path:
        """Write a file into the folder."""
        path = self.folder / name
        path.write_text(text)
        return path

    def lines(self, name: str) -> list[str]:
        """Return the lines of a file of the folder; a missing one has none."""
        try:
            return (self.folder / name).read_text().splitlines()
        except FileNotFoundError:
            return []

    # --- commands --------------------------------------------------------------------------------------------

    def run(self, *words: str, **settings: str) -> Said:
        """Run a command to its end."""
        done = subprocess.run(
            [*COMMAND, *words],
            cwd=self.folder,
            env={**self.environment, **settings},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            timeout=2 * PATIENCE_SECONDS,
        )
        return Said(done.returncode, done.stdout, done.stderr)

    def json(self, *words: str, expect: int = 0, **settings: str) -> dict[str, Any]:
        """Run a command with ``--json`` to its end and return its document; its exit code must be as expected."""
        said = self.run(*words, "--json", **settings)
        assert said.exit_code == expect, f"{words}: exit {said.exit_code}\n{said.stdout}\n{said.stderr}"
        return said.data

    def start(self, runbook: str, run_id: str = "r", *words: str, **settings: str) -> dict[str, Any]:
        """Write a runbook file, start a run of it, and return where it stands."""
        path = self.write(f"{run_id}.yaml", runbook)
        said = self.run("start", str(path), "--run-id", run_id, *words, "--json", **settings)
        assert said.exit_code == 0, f"{said.stdout}\n{said.stderr}"
        return said.data

    def history(self, run_id: str = "r") -> list[dict[str, Any]]:
        """Return the entries of a run's history that are about ``goto``."""
        entries = self.json("history", "--run-id", run_id)["history"]
        return [entry for entry in entries if entry["event"].startswith("goto")]

    def events(self, run_id: str = "r") -> list[str]:
        """Return what became of each ``goto`` of a run, oldest first."""
        return [entry["event"] for entry in self.history(run_id)]

    def begin(self, *words: str, **settings: str) -> Program:
        """Start a command and leave it running."""
        return self.launch([*COMMAND, *words], f"command-{len(self._programs)}", {**self.environment, **settings})

    def launch(self, argv: Sequence[str], name: str, environment: Mapping[str, str]) -> Program:
        """Start any program with this environment and no other, and leave it running."""
        program = Program(argv, self.folder, environment, name)
        self._programs.append(program)
        return program

    def worker(self, *words: str, **settings: str) -> Program:
        """Start a worker and wait until it takes work."""
        worker = self.begin("worker", *words, **settings)
        eventually(lambda: "ready: " in worker.stderr or not worker.running, "the worker is ready or has ended")
        assert worker.running, worker.stderr
        return worker

    def api(self, *words: str, **settings: str) -> str:
        """Start the REST service and return its URL once it serves; commands go there with ``STATEM_URL``."""
        service = self.begin("api", "--port", "0", *words, **settings)
        eventually(lambda: "Serving: " in service.stdout or not service.running, "the service serves or has ended")
        assert service.running, service.stderr
        return service.stdout.partition("Serving: ")[2].split()[0]

    def many(self, *commands: Sequence[str]) -> None:
        """Run many commands that must succeed, a few at a time."""
        with ThreadPoolExecutor(4) as pool:
            for _ in pool.map(lambda words: self.json(*words), commands):
                pass

    # --- what is there ---------------------------------------------------------------------------------------

    def redis(self, *words: str) -> Any:
        """Send one command to the embedded server, which must run."""
        with Connection(Place.of(self.state_dir).socket) as connection:
            return connection.call(*words)

    @property
    def server_pid(self) -> int:
        """The process id of the embedded server."""
        pid = server.status(self.state_dir).pid
        assert pid is not None
        return pid

    def processes(self, word: str = "") -> dict[int, str]:
        """Return the living processes that belong to this site, by their environment or their command line.

        Args:
            word: only those with this word in their command line.
        """
        mark = os.fsencode(self.folder)
        found = {}
        for pid in [int(name) for name in os.listdir("/proc") if name.isdigit()]:
            command_line = _contents(f"/proc/{pid}/cmdline")
            if pid == os.getpid() or not alive(pid) or word.encode() not in command_line:
                continue
            if mark in command_line or mark in _contents(f"/proc/{pid}/environ"):
                found[pid] = command_line.replace(b"\0", b" ").decode(errors="replace").strip()
        return found

    # --- the end ---------------------------------------------------------------------------------------------

    def close(self) -> None:
        """End everything that was started here; raise if something then goes on all the same."""
        try:
            for program in self._programs:
                program.kill()
            server.stop(self.state_dir)
            if HAS_PROC:
                eventually(lambda: not self.processes(), "nothing is left", self.processes)
        finally:
            for pid in self.processes() if HAS_PROC else ():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            short_dir = Place.of(self.state_dir).short_dir
            shutil.rmtree(self.folder, ignore_errors=True)
            if short_dir is not None:
                shutil.rmtree(short_dir, ignore_errors=True)


def eventually(condition: Callable[[], Found], what: str, explain: Callable[[], object] | None = None) -> Found:
    """Wait until a condition holds and return what it gave; fail, and say what was waited for, if it never does."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not (found := condition()):
        if time.monotonic() >= deadline:
            raise AssertionError(f"not within {PATIENCE_SECONDS:.0f} s: {what} {explain() if explain else ''}")
        time.sleep(LOOK_SECONDS)
    return found


def alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    return _contents(f"/proc/{pid}/stat").rpartition(b")")[2].split()[:1] not in ([], [b"Z"])


def peak_kib(pid: int) -> int:
    """Return the most memory that a living process has ever had; 0 for one that has ended."""
    lines = _contents(f"/proc/{pid}/status").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith(b"VmHWM")), 0)


def _contents(path: str) -> bytes:
    try:
        with open(path, "rb") as file:
            return file.read()
    except OSError:
        return b""
