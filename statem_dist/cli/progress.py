"""What a person at a terminal sees of a transition under way: questions before, checks as they settle."""

from __future__ import annotations

import sys
from collections.abc import Iterable

from statem_dist.cli.text import check_line
from statem_dist.engine import Question
from statem_dist.protocol.events import CheckRetrying, CheckSettled, Event, TransitionOpened, WorkClaimed, WorkLost
from statem_dist.protocol.model import PlannedCheck


class Ticker:
    """Prints each check to stderr as it settles."""

    def __init__(self) -> None:
        self._plan: dict[str, PlannedCheck] = {}

    def __call__(self, number: int, event: Event) -> None:
        """Print what an event means for somebody who watches."""
        match event:
            case TransitionOpened():
                self._plan = {planned.id: planned for planned in event.plan}
            case WorkClaimed():
                self._print(f"  · {event.worker} takes {len(event.checks)} checks")
            case CheckSettled():
                self._print(check_line(self._plan[event.check], event.result))
            case CheckRetrying():
                self._print(f"  ↻ {event.check}: {event.outcome.reason}, next try follows (was try {event.tries})")
            case WorkLost():
                self._print("  ! the worker was lost; another one takes over")
            case _:
                pass

    def _print(self, line: str) -> None:
        print(line, file=sys.stderr, flush=True)


def say_waiting(reason: str) -> None:
    """Tell on stderr why nothing happens."""
    print(f"  … {reason}", file=sys.stderr, flush=True)


def ask_questions(questions: Iterable[Question]) -> tuple[str, ...]:
    """Ask a person at the terminal; return the ids of what was confirmed."""
    confirmed: list[str] = []
    for question in questions:
        print(f"Confirm: {question.text} [y/N] ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() in ("y", "yes"):
            confirmed.append(question.check)
    return tuple(confirmed)
