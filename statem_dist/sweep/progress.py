"""Progress of a sweep on stderr: a live bar on a terminal, a line every few seconds anywhere else."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Protocol, TextIO

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from statem_dist.sweep.results import State

LINE_SECONDS = 5.0
"""Time between two lines where there is no terminal."""


class Shown(Protocol):
    """Shows how far a sweep is."""

    def update(self, counts: Mapping[State, int]) -> None:
        """Show where the trials stand."""

    def say(self, sentence: str) -> None:
        """Tell something that happened on the way."""

    def close(self) -> None:
        """Show nothing more."""


class Bar:
    """A progress bar with the counts behind it."""

    def __init__(self, stream: TextIO, planned: int) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(file=stream),
        )
        self._task = self._progress.add_task("starting", total=planned)
        self._progress.start()

    def update(self, counts: Mapping[State, int]) -> None:
        """Show where the trials stand."""
        self._progress.update(self._task, completed=ended(counts), description=escape(described(counts)))

    def say(self, sentence: str) -> None:
        """Print a sentence above the bar."""
        self._progress.console.print(sentence, markup=False, highlight=False)

    def close(self) -> None:
        """Leave the bar as it is."""
        self._progress.stop()


class Lines:
    """A line now and then, as a log wants it."""

    def __init__(self, stream: TextIO, planned: int) -> None:
        self._stream = stream
        self._planned = planned
        self._began = self._told = time.monotonic()

    def update(self, counts: Mapping[State, int]) -> None:
        """Print where the trials stand if it is time to."""
        now = time.monotonic()
        if now - self._told >= LINE_SECONDS:
            self._told = now
            self.say(f"{now - self._began:5.0f} s  {ended(counts)}/{self._planned} ended  {described(counts)}")

    def say(self, sentence: str) -> None:
        """Print a sentence."""
        print(sentence, file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing is left to do."""


def progress_on(stream: TextIO, planned: int) -> Shown:
    """Return what shows the progress of ``planned`` trials on a stream."""
    return Bar(stream, planned) if stream.isatty() else Lines(stream, planned)


def ended(counts: Mapping[State, int]) -> int:
    """Return how many trials are neither pending nor running."""
    return sum(counts.values()) - counts["pending"] - counts["running"]


def described(counts: Mapping[State, int]) -> str:
    """Return the states in which there are trials, with their counts, those that wait left out."""
    return ", ".join(f"{count} {state}" for state, count in counts.items() if count and state != "pending")
