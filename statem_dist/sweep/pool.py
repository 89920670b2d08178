"""Driving many trials at once: a bounded number of threads that take the next trial when they are done with one."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

from statem_dist.sweep.results import Scoreboard, TrialResult
from statem_dist.sweep.trials import Trial


class Pool:
    """The threads of one sweep.

    Args:
        drive: drives one trial to its end; must not raise.
        trials: in the order in which they are begun.
        concurrency: how many are under way at once.
    """

    def __init__(self, drive: Callable[[Trial], TrialResult], trials: Sequence[Trial], concurrency: int) -> None:
        self.board = Scoreboard(trials)
        self._drive = drive
        self._waiting = iter(trials)
        self._lock = threading.Lock()
        self._stopping = False
        # Daemons, so that one that hangs in a system call cannot keep the command from ending.
        self._threads = [
            threading.Thread(target=self._work, name=f"statem-trials-{number}", daemon=True)
            for number in range(min(concurrency, len(trials)))
        ]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Begin no further trial."""
        with self._lock:
            self._stopping = True

    def wait(self, seconds: float) -> bool:
        """Wait until every thread has ended, at most so long; return whether they have."""
        deadline = time.monotonic() + seconds
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))
        return not any(thread.is_alive() for thread in self._threads)

    def _work(self) -> None:
        while (trial := self._take()) is not None:
            self.board.end(self._drive(trial))

    def _take(self) -> Trial | None:
        with self._lock:
            trial = None if self._stopping else next(self._waiting, None)
            if trial is not None:
                self.board.begin(trial)
            return trial
