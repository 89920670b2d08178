"""Watching a sweep: what is going on in it, as a live view on a terminal and as lines anywhere else.

A look takes a few commands to the store, however many trials there are: the counts, the trials under way, and what has
changed since the last look. Trials that went wrong are told as it happens.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Protocol, TextIO

from msgspec import Struct

from statem_dist.columns import aligned
from statem_dist.deadline import NEVER, Deadline
from statem_dist.errors import NotFound
from statem_dist.sweep.desk import has_ended
from statem_dist.sweep.ledger import Change, Ledger
from statem_dist.sweep.model import STATES, Attempt, State, Sweep, Trial, values_of
from statem_dist.sweep.outputs.figures import GLYPHS, dollars, duration

if TYPE_CHECKING:
    from rich.console import Console, Group

COLOURS: Mapping[State, str] = {
    "pending": "dim",
    "running": "cyan",
    "passed": "green",
    "failed": "red",
    "stuck": "yellow",
    "timeout": "yellow",
    "error": "bold magenta",
    "cancelled": "dim",
}

TROUBLES: tuple[State, ...] = ("failed", "stuck", "timeout", "error")
"""States of trials that are told as soon as they have come to them."""

LOOK_SECONDS = 0.5
"""How often a watched sweep is looked at."""

LINE_SECONDS = 10.0
"""Time between two lines where there is no terminal."""

SHOWN_MAX = 5
"""Running trials, and troubles, that the live view shows."""

CHANGES_MAX = 1_000
"""Changes that are read at once."""

TOLD_MAX = 20
"""Troubles that one look tells; of more, the number is told."""

SEEN_MIN = 3
"""Trials that must have ended under a watcher's eyes before it says how long the rest will take."""


class ServesQueue(Protocol):
    """Says whether workers are there."""

    def serves(self, queue: str) -> bool:
        """Return whether a worker that is there serves a queue."""


class Look(Struct, frozen=True, kw_only=True):
    """A sweep at one moment (``now``, in ms by the store's clock).

    ``slowest`` are running trials, those that began first. ``news`` are sentences about what has gone wrong since the
    last look, ``troubles`` the latest of all of them. ``obstacles`` say what holds the sweep back. ``seconds_left`` is
    an estimate, None while there is nothing to go by.
    """

    sweep: Sweep
    now: int
    slowest: tuple[Trial, ...] = ()
    news: tuple[str, ...] = ()
    troubles: tuple[str, ...] = ()
    obstacles: tuple[str, ...] = ()
    seconds_left: float | None = None

    @property
    def seconds(self) -> float:
        """How long the sweep takes, or took."""
        return ((self.sweep.ended_at or self.now) - self.sweep.created_at) / 1000


class Watcher:
    """Looks at one sweep again and again.

    Args:
        ledger: where it is kept.
        workers: which queues are served.
        clock: the store's clock, in ms.
        sweep_id: which sweep.
        from_the_start: whether troubles from before the first look are news.
    """

    def __init__(
        self,
        ledger: Ledger,
        workers: ServesQueue,
        clock: Callable[[], int],
        sweep_id: str,
        *,
        from_the_start: bool = False,
    ) -> None:
        self._ledger = ledger
        self._workers = workers
        self._clock = clock
        self._sweep_id = sweep_id
        self._position = "0-0"
        self._past = not from_the_start
        self._troubles: deque[str] = deque(maxlen=SHOWN_MAX)
        self._first: tuple[int, int] | None = None

    def look(self) -> Look:
        """Return the sweep as it is now.

        Raises:
            NotFound: it is not there any more.
        """
        sweep = self._ledger.require(self._sweep_id)
        running = self._ledger.running(self._sweep_id)
        news = self._news()
        now = self._clock()
        return Look(
            sweep=sweep,
            now=now,
            slowest=tuple(sorted((each for each in running if each.last), key=_began)[:SHOWN_MAX]),
            news=tuple(news),
            troubles=tuple(self._troubles),
            obstacles=tuple(obstacles_of(sweep, self._workers)),
            seconds_left=self._seconds_left(sweep, now),
        )

    def _news(self) -> list[str]:
        """Return what has gone wrong since the last look."""
        changes: list[Change] = []
        while page := self._ledger.changes(self._sweep_id, self._position, CHANGES_MAX):
            self._position = page[-1].position
            changes += page
        numbers: dict[int, str] = {}
        for change in changes:
            # "pending" after an attempt means that it came to nothing and there will be another one.
            numbers.pop(change.number, None)
            if change.number and (change.to in TROUBLES or change.to == "pending"):
                numbers[change.number] = change.to
        latest = list(numbers)[-TOLD_MAX:]
        told = [
            trouble
            for trial in self._ledger.trials(self._sweep_id, latest)
            if (trouble := trouble_of(trial, numbers[trial.planned.number]))
        ]
        self._troubles.extend(told)
        left = sum(numbers[number] in TROUBLES for number in list(numbers)[:-TOLD_MAX])
        if self._past:
            self._past = False
            return []
        return [*([f"{left} more trials have not passed"] if left else []), *told]

    def _seconds_left(self, sweep: Sweep, now: int) -> float | None:
        """Return how long the rest takes at the pace since the first look."""
        if self._first is None or sweep.status != "active" or self._first[1] > sweep.ended:
            self._first = (now, sweep.ended)
        since, before = self._first
        seen = sweep.ended - before
        if seen < SEEN_MIN or now <= since:
            return None
        return (sweep.planned - sweep.ended) * (now - since) / 1000 / seen


class View(Protocol):
    """Shows what a watcher sees."""

    def show(self, look: Look) -> None:
        """Show the sweep as it is."""

    def say(self, sentence: str) -> None:
        """Tell something that happened on the way."""

    def close(self) -> None:
        """Show nothing more."""


class LiveView:
    """A view that is drawn again and again at the bottom of a terminal, with what happens told above it."""

    def __init__(self, console: Console) -> None:
        from rich.live import Live

        self._live = Live(console=console, auto_refresh=False, transient=False)
        self._live.start()

    def show(self, look: Look) -> None:
        """Draw the sweep as it is."""
        for sentence in look.news:
            self.say(sentence)
        self._live.update(drawn(look), refresh=True)

    def say(self, sentence: str) -> None:
        """Print a sentence above the view."""
        from statem_dist.cli.answer import printable

        self._live.console.print(printable(sentence), markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Leave the view as it is."""
        self._live.stop()


class LineView:
    """A line now and then, as a log wants it."""

    def __init__(self, stream: TextIO, seconds: float = LINE_SECONDS) -> None:
        self._stream = stream
        self._seconds = seconds
        self._told_at = time.monotonic()
        self._obstacles: tuple[str, ...] = ()

    def show(self, look: Look) -> None:
        """Print what has gone wrong, what has begun to hold the sweep back, and now and then where it stands."""
        for sentence in look.news:
            self.say(sentence)
        for obstacle in look.obstacles:
            if obstacle not in self._obstacles:
                self.say(f"Held back: {obstacle}")
        self._obstacles = look.obstacles
        now = time.monotonic()
        if now - self._told_at >= self._seconds:
            self._told_at = now
            self.say(one_line(look))

    def say(self, sentence: str) -> None:
        """Print a sentence."""
        from statem_dist.cli.answer import printable

        print(printable(sentence), file=self._stream, flush=True)

    def close(self) -> None:
        """Nothing is left to do."""


def view_on(stream: TextIO) -> View:
    """Return what shows a sweep on a stream."""
    if not stream.isatty():
        return LineView(stream)
    from rich.console import Console

    return LiveView(Console(file=stream))


def watch(
    watcher: Watcher,
    view: View,
    *,
    stopping: Callable[[], bool] = lambda: False,
    deadline: Deadline = NEVER,
    meanwhile: Callable[[], Sequence[str]] = tuple,
) -> Sweep:
    """Show a sweep until it has ended, somebody wants to stop, or time is up; return it as it was seen last.

    Args:
        meanwhile: called at every look; what it returns is told.

    Raises:
        NotFound: it was removed.
    """
    seen: Sweep | None = None
    while True:
        try:
            look = watcher.look()
        except NotFound:
            # One that has ended can be removed before it is looked at again.
            if seen is None or not has_ended(seen):
                raise
            return seen
        for sentence in meanwhile():
            view.say(sentence)
        view.show(look)
        seen = look.sweep
        if has_ended(seen) or stopping() or deadline.passed:
            return seen
        time.sleep(deadline.bound(LOOK_SECONDS))


# --- words ---------------------------------------------------------------------------------------------------------


def obstacles_of(sweep: Sweep, workers: ServesQueue) -> list[str]:
    """Return what holds a sweep back, one sentence each."""
    found = [f"{host} begins no trial: {why}" for host, why in sorted(sweep.held.items())]
    because = f": {sweep.status_reason}" if sweep.status_reason else ""
    if sweep.status == "planning":
        found.append("its trials are being stored; if whoever did that is gone, submit it again")
    elif sweep.status == "paused":
        found.append(f"paused{because}; to go on: statem-dist sweep resume {sweep.id}")
    elif sweep.status == "stopped":
        found.append(f"stopped{because}; to go on all the same: statem-dist sweep resume {sweep.id}")
    elif sweep.status == "active" and sweep.counts["pending"] and not sweep.counts["running"]:
        queue = sweep.definition.queue
        if not workers.serves(queue):
            found.append(f"no worker serves the queue {queue!r}: statem-dist worker -Q {queue}")
    return found


def trouble_of(trial: Trial, state: str) -> str:
    """Return what has gone wrong with a trial in a sentence, or nothing if it only waits.

    Args:
        state: what it has come to: one of ``TROUBLES``, or ``pending``.
    """
    last = trial.last
    if state == "pending":
        if last is None or last.reason is None:
            return ""
        return f"↻ {name_of(trial)}: {reason_of(last)}; attempt {last.attempt + 1} follows"
    glyph = next(sign for known, sign in GLYPHS.items() if known == state)
    return f"{glyph} {name_of(trial)}: {state}" + (f", {reason_of(last)}" if last is not None else "")


def name_of(trial: Trial) -> str:
    """Return how people call a trial: its number, its values and its repetition."""
    planned = trial.planned
    values = f"{values_of(planned.cell)} " if planned.cell else ""
    return f"#{planned.number} {values}({planned.repetition})"


def reason_of(attempt: Attempt) -> str:
    """Return why an attempt ended as it did, in one line."""
    detail = " ".join(attempt.detail.split())
    reason = attempt.reason or ""
    return f"{reason}: {detail}" if detail else str(reason)


def counted(sweep: Sweep, *, glyphs: bool = False) -> str:
    """Return the states in which there are trials, with their counts."""
    order: tuple[State, ...] = (*STATES[2:], "running", "pending")
    return ", ".join(
        f"{f'{GLYPHS[state]} ' if glyphs else ''}{sweep.counts[state]} {state}"
        for state in order
        if sweep.counts[state]
    )


def slots_of(sweep: Sweep) -> str:
    """Return how many trials run, of how many that may."""
    bound = sweep.definition.concurrency
    return f"{sweep.counts['running']}/{bound}" if bound else str(sweep.counts["running"])


def one_line(look: Look) -> str:
    """Return where a sweep stands, in one line."""
    sweep = look.sweep
    took = duration(look.seconds)
    left = "" if look.seconds_left is None else f"; about {duration(look.seconds_left)} left"
    spent = f"; {dollars(sweep.usage.cost_usd)}" if sweep.usage.cost_usd else ""
    status = "" if sweep.status == "active" else f"{sweep.status}; "
    return f"{took}  {status}{sweep.ended}/{sweep.planned} ended  {counted(sweep)}{left}{spent}"


# --- drawing -------------------------------------------------------------------------------------------------------


def drawn(look: Look) -> Group:
    """Return the live view of a sweep."""
    from rich.console import Group
    from rich.padding import Padding
    from rich.progress_bar import ProgressBar
    from rich.text import Text

    from statem_dist.cli.answer import printable

    sweep = look.sweep
    head = Text(overflow="ellipsis", no_wrap=True)
    head.append(sweep.id, style="bold")
    head.append(f"  {sweep.status}  {sweep.ended}/{sweep.planned} ended")
    head.append(f"  {duration(look.seconds)}")
    if look.seconds_left is not None:
        head.append(f", about {duration(look.seconds_left)} left")
    figures = Text(overflow="ellipsis", no_wrap=True)
    for state in (*STATES[2:], "running", "pending"):
        if sweep.counts[state]:
            figures.append(f"{GLYPHS[state]} {sweep.counts[state]} {state}  ", style=COLOURS[state])
    figures.append(f"slots {slots_of(sweep)}")
    if sweep.usage.cost_usd:
        figures.append(f"  {dollars(sweep.usage.cost_usd)}")
    # Alone, the bar would leave its line open for what follows.
    bar = Padding(ProgressBar(total=max(1, sweep.planned), completed=sweep.ended), 0)
    parts: list[Text | Padding] = [head, bar, figures]
    if look.slowest:
        parts.append(Text("Longest under way", style="bold"))
        rows = aligned([_running_row(trial, look.now) for trial in look.slowest]).splitlines()
        parts += [Text(f"  {printable(row)}", overflow="ellipsis", no_wrap=True) for row in rows]
    if look.troubles:
        parts.append(Text("Latest troubles", style="bold"))
        parts += [Text(f"  {printable(each)}", overflow="ellipsis", no_wrap=True) for each in look.troubles]
    if look.obstacles:
        parts.append(Text("Held back", style="bold yellow"))
        parts += [Text(f"  {printable(each)}") for each in look.obstacles]
    return Group(*parts)


def _running_row(trial: Trial, now: int) -> tuple[str, ...]:
    last = trial.last
    assert last is not None, "only trials with an attempt are shown"
    return (name_of(trial), last.node or "begins", duration((now - last.started_at) / 1000), last.worker)


def _began(trial: Trial) -> int:
    assert trial.last is not None
    return trial.last.started_at
