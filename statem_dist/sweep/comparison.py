"""Two sweeps side by side, task by task: what was gained and lost, and whether it may be chance.

Tasks are paired by their values on ``Definition.task_axes``; each has all trials of its task, over all rows of its
sweep. A difference is always other less baseline, so that a positive one is a gain.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from fractions import Fraction
from typing import Any

import msgspec
from msgspec import Struct

from statem_dist.sweep.model import SCORED, Cell, Definition, Sweep, Trial, row_of
from statem_dist.sweep.resampling import mcnemar_p, mean_interval, sign_flip_p
from statem_dist.sweep.scores import Counted


class Side(Struct, frozen=True, kw_only=True):
    """One of the two sweeps.

    Attributes:
        id, name: which.
        planned, scored: its trials, all of them.
        mean: the plain mean of the rates of the paired tasks; None without any.
    """

    id: str
    name: str
    planned: int
    scored: int
    mean: float | None


class Pair(Struct, frozen=True, kw_only=True):
    """A task in both sweeps.

    Attributes:
        values: which task.
        baseline_passed, baseline_trials, other_passed, other_trials: its trials that count, and that have passed.
        difference: of the two rates.
    """

    values: Cell
    baseline_passed: int
    baseline_trials: int
    other_passed: int
    other_trials: int
    difference: float


class Flips(Struct, frozen=True, kw_only=True):
    """Tasks whose verdict has changed: ``gained`` are solved in the other sweep alone, ``lost`` in the baseline."""

    gained: tuple[Cell, ...]
    lost: tuple[Cell, ...]


class Comparison(Struct, frozen=True, kw_only=True):
    """What a sweep has changed against a baseline.

    Attributes:
        counted: the way in which trials are counted, see ``statem_dist.sweep.scores``.
        baseline, other: the two sweeps.
        pairs: the tasks that both have, and that both can be judged on.
        only_in_baseline, only_in_other: tasks that the other one does not have.
        unscored: tasks that both have, of which one has no trial that counts; they are in no figure.
        majority: flips where a task is solved if more than half of its trials have passed.
        any_passed: flips where a task is solved if any of its trials has passed.
        difference: of the means; None without pairs.
        difference_low, difference_high: its 95 % bootstrap interval over paired tasks; None below two.
        mcnemar_p: p-value of the exact McNemar test on the flips by majority; None without pairs.
        sign_flip_p: p-value of a sign-flip permutation test on the differences of rates; None without pairs.
        warnings: what makes the comparison doubtful.
    """

    counted: Counted
    baseline: Side
    other: Side
    pairs: tuple[Pair, ...]
    only_in_baseline: tuple[Cell, ...]
    only_in_other: tuple[Cell, ...]
    unscored: tuple[Cell, ...]
    majority: Flips
    any_passed: Flips
    difference: float | None
    difference_low: float | None
    difference_high: float | None
    mcnemar_p: float | None
    sign_flip_p: float | None
    warnings: tuple[str, ...]

    def as_data(self) -> dict[str, Any]:
        """Return the comparison as JSON-ready data, with the attributes as keys; every key is always there."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return data


COMPARED: tuple[tuple[str, Callable[[Definition], object]], ...] = (
    ("the axes of a task", lambda definition: ", ".join(definition.task_axes)),
    ("trials per cell", lambda definition: definition.trials),
    ("max_steps", lambda definition: definition.max_steps),
    ("the timeout of an agent call", lambda definition: definition.agent and definition.agent.timeout),
    ("the timeout of a trial", lambda definition: definition.trial_timeout),
    ("the mode of the agent", lambda definition: definition.agent and definition.agent.mode),
    ("the continuations of the agent", lambda definition: definition.agent and definition.agent.continuations),
    ("the ends that count as success", lambda definition: ", ".join(sorted(definition.success))),
)
"""What two sweeps must have in common to be compared, and how to read it."""


def compare(
    baseline: Sweep,
    baseline_trials: Sequence[Trial],
    other: Sweep,
    other_trials: Sequence[Trial],
    *,
    counted: Counted = "strict",
) -> Comparison:
    """Return how a sweep did against a baseline.

    Args:
        baseline, other: the sweeps.
        baseline_trials, other_trials: all their planned trials.
        counted: whether a trial that could not be judged counts as not passed (``strict``) or not at all (``valid``).
    """
    before = _tasks(baseline.definition, baseline_trials, counted)
    after = _tasks(other.definition, other_trials, counted)
    both = [task for task in before if task in after]
    judged = [task for task in both if before[task][1] and after[task][1]]
    rates = [(Fraction(*before[task]), Fraction(*after[task])) for task in judged]
    differences = [new - old for old, new in rates]
    majority = _flips(judged, [(old * 2 > 1, new * 2 > 1) for old, new in rates])
    low, high = mean_interval(map(float, differences)) or (None, None)
    return Comparison(
        counted=counted,
        baseline=_side(baseline, [old for old, _ in rates]),
        other=_side(other, [new for _, new in rates]),
        pairs=tuple(
            Pair(
                values=dict(task),
                baseline_passed=before[task][0],
                baseline_trials=before[task][1],
                other_passed=after[task][0],
                other_trials=after[task][1],
                difference=float(difference),
            )
            for task, difference in zip(judged, differences, strict=True)
        ),
        only_in_baseline=tuple(dict(task) for task in before if task not in after),
        only_in_other=tuple(dict(task) for task in after if task not in before),
        unscored=tuple(dict(task) for task in both if not (before[task][1] and after[task][1])),
        majority=majority,
        any_passed=_flips(judged, [(old > 0, new > 0) for old, new in rates]),
        difference=_mean(differences),
        difference_low=low,
        difference_high=high,
        mcnemar_p=mcnemar_p(len(majority.lost), len(majority.gained)) if judged else None,
        sign_flip_p=sign_flip_p(differences),
        warnings=_warnings(baseline, other),
    )


_Task = tuple[tuple[str, str], ...]


def _tasks(definition: Definition, trials: Sequence[Trial], counted: Counted) -> dict[_Task, tuple[int, int]]:
    """Return how many trials of each task have passed, and how many count."""
    found: dict[_Task, tuple[int, int]] = {}
    axes = definition.task_axes
    for trial in trials:
        task = tuple(zip(axes, row_of(trial.planned.cell, axes), strict=True))
        passed, count = found.get(task, (0, 0))
        counts = counted == "strict" or trial.state in SCORED
        found[task] = (passed + (trial.state == "passed"), count + counts)
    return found


def _side(sweep: Sweep, rates: Sequence[Fraction]) -> Side:
    return Side(id=sweep.id, name=sweep.definition.name, planned=sweep.planned, scored=sweep.scored, mean=_mean(rates))


def _mean(values: Sequence[Fraction]) -> float | None:
    return math.fsum(map(float, values)) / len(values) if values else None


def _flips(tasks: Sequence[_Task], solved: Sequence[tuple[bool, bool]]) -> Flips:
    verdicts = list(zip(tasks, solved, strict=True))
    return Flips(
        gained=tuple(dict(task) for task, (old, new) in verdicts if new and not old),
        lost=tuple(dict(task) for task, (old, new) in verdicts if old and not new),
    )


def _warnings(baseline: Sweep, other: Sweep) -> tuple[str, ...]:
    found = [
        f"{what}: {_told(old)} in the baseline, {_told(new)} here"
        for what, read in COMPARED
        if (old := read(baseline.definition)) != (new := read(other.definition))
    ]
    found += [
        f"{sweep.id} is not complete: {sweep.scored} of {sweep.planned} trials are scored"
        for sweep in (baseline, other)
        if not sweep.complete
    ]
    return tuple(found)


def _told(value: object) -> str:
    return "none" if value is None else str(value)
