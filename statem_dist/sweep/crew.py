"""Worker processes for the length of a sweep: started together, watched, and gone at its end whatever happens.

Each leads a session of its own, so that Ctrl-C in the terminal reaches the sweep alone, which then stops them in
order. A worker's own commands end with it.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from statem_dist.errors import Unavailable
from statem_dist.roster import Roster

READY_SECONDS = 60.0
"""How long workers may take to come up; a cold start on a busy machine takes several seconds."""

STOP_SECONDS = 10.0
"""How long a worker may take to end after SIGTERM before it is killed."""

LOOK_SECONDS = 0.1

LOG_LINES = 5
"""Lines of a failed worker's log that are shown."""


class Crew:
    """Some worker processes.

    Args:
        argv: the command line of each.
        count: how many.
        env: their environment.
        log_folder: where each writes its log; made if missing, and added to by whoever works on the sweep later.
        service: the command line of a service that they need, which is started first; empty if they need none.
        serving: whether it listens.
    """

    def __init__(
        self,
        argv: Sequence[str],
        count: int,
        env: Mapping[str, str],
        log_folder: Path,
        service: Sequence[str] = (),
        serving: Callable[[], bool] = lambda: True,
    ) -> None:
        self._argv = argv
        self._service_argv = service
        self._serving = serving
        self._service: subprocess.Popen[bytes] | None = None
        self._count = count
        self._env = env
        self._log_folder = log_folder
        self._processes: list[subprocess.Popen[bytes]] = []
        self._mourned: set[int] = set()

    def start(self, roster: Roster, stopping: Callable[[], bool]) -> None:
        """Start the workers and wait until they take work, or until ``stopping`` says that nobody wants them.

        Raises:
            Unavailable: one of them ended, or they are not ready in time.
        """
        if self._count and self._service_argv:
            self._service = self._spawn(self._service_argv, self._log_folder / "service.log")
            self._wait("The service was", self._serving, stopping)
        for number in range(1, self._count + 1):
            self._processes.append(self._spawn(self._argv, self._log(number)))
        self._wait("The workers were", lambda: self._ready(roster), stopping)

    def _wait(self, who: str, ready: Callable[[], bool], stopping: Callable[[], bool]) -> None:
        deadline = time.monotonic() + READY_SECONDS
        while not (stopping() or ready()):
            if ended := self.lost():
                raise Unavailable(ended[0], hint=self.last_words())
            if time.monotonic() >= deadline:
                raise Unavailable(f"{who} not ready within {READY_SECONDS:g} s.", hint=self.last_words())
            time.sleep(LOOK_SECONDS)

    def lost(self) -> list[str]:
        """Return a sentence for each worker that has ended by itself and was not reported before."""
        told = []
        if self._service is not None and 0 not in self._mourned and (status := self._service.poll()) is not None:
            self._mourned.add(0)
            log = self._log_folder / "service.log"
            told.append(f"The service of its agents ended with status {status}; its log: {log}")
        for number, process in enumerate(self._processes, start=1):
            status = process.poll()
            if status is not None and number not in self._mourned:
                self._mourned.add(number)
                told.append(f"Worker {number} ended with status {status}; its log: {self._log(number)}")
        return told

    @property
    def gone(self) -> bool:
        """Whether there were some, and all of them have ended."""
        return bool(self._processes) and all(process.poll() is not None for process in self._processes)

    def last_words(self) -> str:
        """Return the last lines of every log."""
        words = []
        for number in range(1, len(self._processes) + 1):
            lines = self._log(number).read_text(errors="replace").splitlines()[-LOG_LINES:]
            words += [f"worker {number}: {line}" for line in lines]
        return "\n".join(words)

    def close(self) -> None:
        """Stop the workers, then their service; those that do not end in time are killed."""
        _stop(self._processes)
        if self._service is not None:
            _stop([self._service])

    def _spawn(self, argv: Sequence[str], log_file: Path) -> subprocess.Popen[bytes]:
        self._log_folder.mkdir(parents=True, exist_ok=True)
        with log_file.open("ab") as log:
            return subprocess.Popen(
                argv, env=self._env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )

    def _ready(self, roster: Roster) -> bool:
        ours = {f"worker:{socket.gethostname()}:{process.pid}" for process in self._processes}
        present = {card.id.rpartition(":")[0] for card in roster.present()}
        return ours <= present

    def _log(self, number: int) -> Path:
        return self._log_folder / f"worker-{number}.log"


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    """Tell processes to end, and kill those that do not in time."""
    for process in processes:
        process.terminate()
    deadline = time.monotonic() + STOP_SECONDS
    for process in processes:
        with suppress(subprocess.TimeoutExpired):
            process.wait(max(0.0, deadline - time.monotonic()))
    for process in processes:
        if process.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
