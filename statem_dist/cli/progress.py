"""What a person at a terminal sees of a transition under way: questions before, checks as they settle."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from statem_dist.cli.answer import printable
from statem_dist.cli.text import check_line
from statem_dist.protocol.events import (
    CheckRetrying,
    CheckSettled,
    DecisionRequested,
    Event,
    OutcomeUnknown,
    Recovered,
    RepairBegun,
    RunCancelled,
    RunPaused,
    RunUnpaused,
    TransitionOpened,
    WorkClaimed,
    WorkLost,
)
from statem_dist.protocol.model import Confirmations, PlannedCheck, Transition
from statem_dist.questions import Question


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
                self._print(f"  · {_counted(len(event.checks), 'check')} begun by {event.worker}")
            case CheckSettled():
                self._print(check_line(self._plan[event.check], event.result))
            case DecisionRequested():
                self._print(f"  ? {event.check} waits for a decision: statem-dist approvals")
            case CheckRetrying():
                self._print(f"  ↻ {event.check}: {event.outcome.reason}, next try follows (was try {event.tries})")
            case WorkLost():
                self._print("  ! the worker was lost")
            case OutcomeUnknown():
                self._print(f"  ! nobody knows what {event.check} did: statem-dist recover")
            case Recovered():
                self._print(f"  ▸ {event.by.id} says how to go on: {event.way} {', '.join(event.checks)}")
            case RepairBegun():
                self._plan |= {planned.id: planned for planned in event.plan}
                self._print(f"  ↩ {_counted(len(event.plan), 'repair')} begin before it ends as {event.outcome}")
            case RunPaused():
                self._print(f"  ‖ the run is paused by {event.by.id}{_because(event.reason)}")
            case RunUnpaused():
                self._print(f"  ▸ {event.by.id} lets the run go on")
            case RunCancelled():
                how = "terminated" if event.terminated else "cancelled"
                self._print(f"  ■ the run is {how} by {event.by.id}{_because(event.reason)}")
            case _:
                pass

    def _print(self, line: str) -> None:
        print(printable(line), file=sys.stderr, flush=True)


def _because(reason: str) -> str:
    return f": {reason}" if reason else ""


def say_waiting(reason: str) -> None:
    """Tell on stderr why nothing happens."""
    print(printable(f"  … {reason}"), file=sys.stderr, flush=True)


def say_unreadable(run_id: str, error: Exception) -> None:
    """Tell on stderr that a stored run is left out of a list."""
    print(printable(f"Warning: the run {run_id} cannot be read and is left out: {error}"), file=sys.stderr)


def say_finishing(run_id: str, transition: Transition) -> None:
    """Tell on stderr that a transition which a killed or interrupted command has left is finished first."""
    way = f"{transition.source} -> {transition.target}" if transition.kind == "goto" else transition.kind
    instead = "" if transition.entered else f"; to end it instead: statem-dist cancel --run-id {run_id}"
    print(f"Finishing transition {transition.id} ({way}) that was left{instead}", file=sys.stderr, flush=True)


def ask_questions(questions: Sequence[Question], given: Confirmations) -> Confirmations:
    """Ask a person at the terminal what is not answered yet; return all answers."""
    confirmed = list(given.checks)
    for question in questions:
        if question.operator or question.check in confirmed or question.check in given.declined:
            continue
        if _is_confirmed(question):
            confirmed.append(question.check)
    return Confirmations(checks=tuple(confirmed), declined=given.declined)


def _is_confirmed(question: Question) -> bool:
    """Ask until the answer is yes or no; an empty one, and the end of the input, mean no."""
    while True:
        print(printable(f"Confirm: {question.text} [y/N] "), end="", file=sys.stderr, flush=True)
        answer = sys.stdin.readline().strip().lower()
        if answer in ("y", "yes"):
            return True
        if answer in ("", "n", "no"):
            return False
        print("Please answer yes or no.", file=sys.stderr, flush=True)


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}" if count == 1 else f"{count} {thing}s"
