"""What came of trials, and the count of them that always adds up.

==========  ==================================================================  ======
state       meaning                                                             scored
==========  ==================================================================  ======
pending     not begun                                                           no
running     being driven                                                        no
passed      ended on a node that counts as success                              yes
failed      ended on another end of the runbook                                 yes
stuck       no edge let it out within the steps it had                          yes
timeout     a call of the agent took too long                                   yes
error       could not be judged: the checks, the agent command or a hook of     no
            the host did not work
cancelled   the sweep was stopped while it ran                                  no
==========  ==================================================================  ======

``planned`` is the sum of all states at every moment, because a trial only ever moves from one state to another.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from typing import Literal, TypeAlias, get_args

from msgspec import Struct

from statem_dist.sweep.matrix import Cell
from statem_dist.sweep.trials import Trial, row_of

Outcome: TypeAlias = Literal["passed", "failed", "stuck", "timeout", "error", "cancelled"]
State: TypeAlias = Literal["pending", "running"] | Outcome

STATES: tuple[State, ...] = ("pending", "running", *get_args(Outcome))
SCORED: tuple[Outcome, ...] = ("passed", "failed", "stuck", "timeout")


class TrialResult(Struct, frozen=True, kw_only=True):
    """One trial that has ended.

    ``steps`` counts rounds of agent and edges, ``calls`` those in which the agent was called, ``blocked``
    transitions that were blocked, ``loops`` how often the node that was entered most was entered again, ``checks``
    executions of checks and hooks. ``started_at`` and ``ended_at`` are milliseconds since the epoch.
    """

    trial: Trial
    outcome: Outcome
    reason: str
    node: str
    steps: int
    calls: int
    blocked: int
    loops: int
    checks: int
    started_at: int
    ended_at: int


class Row(Struct, frozen=True, kw_only=True):
    """The trials of one combination of the listed axes together.

    ``states`` counts them by state, ``seconds`` is the time from the first start to the last end.
    """

    values: tuple[str, ...]
    states: dict[State, int]
    blocked: int
    loops: int
    checks: int
    seconds: float

    @property
    def planned(self) -> int:
        """How many trials there are."""
        return sum(self.states.values())

    @property
    def scored(self) -> int:
        """How many of them have been judged."""
        return sum(self.states[state] for state in SCORED)


class Scoreboard:
    """Where each trial stands; told by the threads that drive them, read by anybody."""

    def __init__(self, trials: Sequence[Trial]) -> None:
        self._lock = threading.Lock()
        self._trials = trials
        self._states: dict[int, State] = {trial.number: "pending" for trial in trials}
        self._counts = Counter[State]({"pending": len(trials)})
        self._results: list[TrialResult] = []

    def begin(self, trial: Trial) -> None:
        """Note that a trial is being driven."""
        with self._lock:
            self._move(trial, "running")

    def end(self, result: TrialResult) -> None:
        """Note what came of a trial."""
        with self._lock:
            self._results.append(result)
            self._move(result.trial, result.outcome)

    def counts(self) -> dict[State, int]:
        """Return how many trials are in each state; together they are all that are planned."""
        with self._lock:
            return {state: self._counts[state] for state in STATES}

    def results(self) -> list[TrialResult]:
        """Return what has ended so far, by number."""
        with self._lock:
            return sorted(self._results, key=lambda result: result.trial.number)

    def rows(self, listed: Sequence[str]) -> list[Row]:
        """Return the trials summed up per combination of the listed axes, in the order of the plan."""
        with self._lock:
            states = dict(self._states)
        members: dict[tuple[str, ...], list[State]] = {}
        for trial in self._trials:
            members.setdefault(row_of(trial.cell, listed), []).append(states[trial.number])
        ended: dict[tuple[str, ...], list[TrialResult]] = {values: [] for values in members}
        for result in self.results():
            ended[row_of(result.trial.cell, listed)].append(result)
        return [_row(values, members[values], ended[values]) for values in members]

    def _move(self, trial: Trial, state: State) -> None:
        self._counts[self._states[trial.number]] -= 1
        self._counts[state] += 1
        self._states[trial.number] = state


def total(rows: Sequence[Row], seconds: float) -> Row:
    """Return all rows as one; it took ``seconds``."""
    return Row(
        values=(),
        states={state: sum(row.states[state] for row in rows) for state in STATES},
        blocked=sum(row.blocked for row in rows),
        loops=sum(row.loops for row in rows),
        checks=sum(row.checks for row in rows),
        seconds=seconds,
    )


def values_of(cell: Cell) -> str:
    """Return the values of a cell as people write them."""
    return ", ".join(f"{name}={value}" for name, value in cell.items())


def _row(values: tuple[str, ...], states: list[State], ended: list[TrialResult]) -> Row:
    first = min((result.started_at for result in ended), default=0)
    last = max((result.ended_at for result in ended), default=0)
    return Row(
        values=values,
        states={state: states.count(state) for state in STATES},
        blocked=sum(result.blocked for result in ended),
        loops=sum(result.loops for result in ended),
        checks=sum(result.checks for result in ended),
        seconds=(last - first) / 1000,
    )
