"""What a sweep comes to in numbers: rates and how sure they are, pass@k and pass^k, times, usage, and what blocked.

Every figure is counted in two ways, which are always shown together with the coverage:

``strict``
    over all planned trials; one that could not be judged, or is not over, has not passed. This is the headline.
``valid``
    over the scored trials alone. It says more about the agent, and nothing about the trials that are missing.

A *task* is a combination of values of ``Definition.task_axes``. Scores of a group of trials take its tasks as they are
within the group: in the row of one model, a task has the trials of that model. Over several models together, the
trials of a task are those of all of them.

The functions are pure: the same trials give the same scores, to the last digit.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec import Struct

from statem_dist.sweep.model import (
    OUTCOMES,
    SCORED,
    STATES,
    Attempt,
    Cell,
    Reason,
    State,
    Sweep,
    Trial,
    row_of,
)
from statem_dist.sweep.resampling import mean_interval

Counted: TypeAlias = Literal["strict", "valid"]
"""The way in which trials are counted."""

Z95 = 1.959963984540054
"""Half the width of a 95 % interval in standard deviations."""


class AtK(Struct, frozen=True, kw_only=True):
    """What ``k`` trials of a task come to, on average over tasks.

    Attributes:
        k: how many trials of a task are drawn.
        pass_at: pass@k, the chance that at least one of them has passed: the plain mean over the tasks that have at
            least ``k`` trials; None if none has.
        pass_hat: pass^k, the chance that all of them have passed; likewise.
        tasks: how many tasks have at least ``k`` trials.
    """

    k: int
    pass_at: float | None
    pass_hat: float | None
    tasks: int


class Measure(Struct, frozen=True, kw_only=True):
    """The rates of a group of trials, counted in one way.

    Attributes:
        passed: trials that have passed.
        trials: trials that count: the planned ones (``strict``) or the scored ones (``valid``).
        rate: ``passed / trials``; None without trials.
        rate_low, rate_high: its 95 % Wilson interval, which takes trials to be independent.
        mean: the plain mean of the rates of the tasks that have one; None if none has.
        mean_low, mean_high: its 95 % bootstrap interval over tasks; None below two tasks.
        tasks: how many tasks have a rate.
        at_k: pass@k and pass^k for every k from 1 to the largest number of trials that a task has.
    """

    passed: int
    trials: int
    rate: float | None
    rate_low: float | None
    rate_high: float | None
    mean: float | None
    mean_low: float | None
    mean_high: float | None
    tasks: int
    at_k: tuple[AtK, ...]


class Times(Struct, frozen=True, kw_only=True):
    """How long something took, in seconds. A percentile is a measured time (the nearest rank); None without any.

    Attributes:
        count: how many were measured.
        p50, p90, p95, p99: the time within which so many percent were done.
        max: the longest.
        total: the sum.
    """

    count: int
    p50: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None
    total: float


class Used(Struct, frozen=True, kw_only=True):
    """What attempts have used together.

    Attributes:
        input_tokens, output_tokens: tokens.
        cost_usd: US dollars; what an agent called a cost but is no finite number counts as none.
    """

    input_tokens: int
    output_tokens: int
    cost_usd: float


class Score(Struct, frozen=True, kw_only=True):
    """What came of a group of trials.

    Attributes:
        values: the values that its trials share, by axis; empty for all trials together.
        planned: how many trials there are; always the sum of ``states``.
        states: how many are in each state.
        scored: how many have been judged.
        coverage: ``scored / planned``; None without trials.
        tasks: how many tasks they belong to.
        tasks_unscored: how many of these have no scored trial.
        strict, valid: the rates, counted in both ways.
        rerun_after_score: trials that were begun again after an attempt had been scored. Doing so raises rates.
        attempts: how many attempts were begun.
        reasons: why trials ended as they did, by how many.
        earlier_reasons: why attempts ended that were followed by another one, by how many.
        duration: how long attempts took from their start to their end.
        queued: how long the trials of these attempts had waited for a worker; a clock of its own.
        seconds: from the first start of an attempt to the last end of one.
        steps, calls, blocked, loops, checks: sums over all attempts, see ``Attempt``.
        usage: tokens and cost of all attempts, also of those that were followed by another one.
    """

    values: Cell
    planned: int
    states: dict[State, int]
    scored: int
    coverage: float | None
    tasks: int
    tasks_unscored: int
    strict: Measure
    valid: Measure
    rerun_after_score: int
    attempts: int
    reasons: dict[Reason, int]
    earlier_reasons: dict[Reason, int]
    duration: Times
    queued: Times
    seconds: float
    steps: int
    calls: int
    blocked: int
    loops: int
    checks: int
    usage: Used


class Block(Struct, frozen=True, kw_only=True):
    """A check that kept trials at a node.

    Attributes:
        node, target: the transition that it guards.
        check: which check.
        times: how often it blocked, in all attempts.
        trials: in how many trials.
    """

    node: str
    target: str
    check: str
    times: int
    trials: int


class Scores(Struct, frozen=True, kw_only=True):
    """The scores of a sweep.

    Attributes:
        overall: of all trials.
        rows: per combination of the listed axes, in the order of the plan; one row where no axis is listed.
        axes: per axis, of each of its values.
        tasks: per task.
        unscored_tasks: the tasks without a scored trial: they have no place in any ``valid`` figure.
        blocks: what was in the way, the commonest first.
    """

    overall: Score
    rows: tuple[Score, ...]
    axes: dict[str, tuple[Score, ...]]
    tasks: tuple[Score, ...]
    unscored_tasks: tuple[Cell, ...]
    blocks: tuple[Block, ...]

    def as_data(self) -> dict[str, Any]:
        """Return the scores as JSON-ready data, with the attributes as keys; every key is always there."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return data


def scores_of(sweep: Sweep, trials: Sequence[Trial]) -> Scores:
    """Return the scores of a sweep.

    Args:
        sweep: whose definition says what a task is.
        trials: all planned trials of it as they stand, in order of number.
    """
    definition = sweep.definition
    tasks = _groups(trials, definition.task_axes, definition.task_axes)
    return Scores(
        overall=_score({}, trials, definition.task_axes),
        rows=_groups(trials, definition.listed, definition.task_axes) or (_score({}, (), definition.task_axes),),
        axes={axis: _groups(trials, (axis,), definition.task_axes) for axis in definition.axes},
        tasks=tasks,
        unscored_tasks=tuple(task.values for task in tasks if not task.scored),
        blocks=_blocks(trials),
    )


def wilson(passed: int, trials: int) -> tuple[float, float] | None:
    """Return the 95 % interval of a rate by E. B. Wilson, "Probable inference, the law of succession, and statistical
    inference", JASA 22 (1927), without correction for continuity; None without trials."""
    if not trials:
        return None
    rate = passed / trials
    spread = Z95 * Z95 / trials
    centre = rate + spread / 2
    reach = Z95 * math.sqrt((rate * (1 - rate) + spread / 4) / trials)
    # At its ends the interval reaches the end of the scale exactly, which rounding would miss.
    low = 0.0 if passed == 0 else (centre - reach) / (1 + spread)
    high = 1.0 if passed == trials else (centre + reach) / (1 + spread)
    return low, high


def pass_at(trials: int, passed: int) -> list[float]:
    """Return pass@k of a task for each k from 1 to ``trials``; for a greater k there is none.

    The unbiased estimate ``1 - C(n - c, k) / C(n, k)`` of Chen et al., "Evaluating large language models trained on
    code" (2021), equation 1, in its stable form, a product.
    """
    none_passed = 1.0
    found = []
    for drawn in range(trials):
        none_passed *= max(0, trials - passed - drawn) / (trials - drawn)
        found.append(1 - none_passed)
    return found


def pass_hat(trials: int, passed: int) -> list[float]:
    """Return pass^k of a task for each k from 1 to ``trials``; for a greater k there is none.

    The unbiased estimate ``C(c, k) / C(n, k)`` of Yao et al., "tau-bench: A benchmark for tool-agent-user interaction
    in real-world domains" (2024).
    """
    all_passed = 1.0
    found = []
    for drawn in range(trials):
        all_passed *= max(0, passed - drawn) / (trials - drawn)
        found.append(all_passed)
    return found


def deciding(trial: Trial) -> Attempt | None:
    """Return the attempt that a trial is in the midst of or has ended with; None if it is to be begun (again), or was
    withdrawn before it was."""
    last = trial.last
    if last is None or (last.outcome or "running") != trial.state:
        return None
    return last


def earlier(trial: Trial) -> tuple[Attempt, ...]:
    """Return the attempts of a trial that no longer count."""
    return trial.attempts if deciding(trial) is None else trial.attempts[:-1]


def rerun_after_score(trial: Trial) -> bool:
    """Return whether a trial was begun again, or is to be, although an attempt at it had been scored."""
    return any(attempt.outcome in SCORED for attempt in earlier(trial))


def used_by(attempts: Iterable[Attempt]) -> Used:
    """Return what attempts have used together."""
    used = [attempt.usage for attempt in attempts if attempt.usage is not None]
    return Used(
        input_tokens=sum(usage.input_tokens for usage in used),
        output_tokens=sum(usage.output_tokens for usage in used),
        cost_usd=math.fsum(usage.cost_usd for usage in used if math.isfinite(usage.cost_usd)),
    )


def commonest(reasons: dict[Reason, int]) -> list[tuple[Reason, int]]:
    """Return reasons with their counts, the commonest first."""
    return sorted(reasons.items(), key=lambda each: (-each[1], each[0]))


def _groups(trials: Sequence[Trial], axes: tuple[str, ...], task_axes: tuple[str, ...]) -> tuple[Score, ...]:
    members: dict[tuple[str, ...], list[Trial]] = {}
    for trial in trials:
        members.setdefault(row_of(trial.planned.cell, axes), []).append(trial)
    return tuple(_score(dict(zip(axes, values, strict=True)), group, task_axes) for values, group in members.items())


def _score(values: Cell, trials: Sequence[Trial], task_axes: tuple[str, ...]) -> Score:
    states = Counter(trial.state for trial in trials)
    scored = sum(states[state] for state in SCORED)
    tasks: dict[tuple[str, ...], Counter[State]] = {}
    for trial in trials:
        tasks.setdefault(row_of(trial.planned.cell, task_axes), Counter())[trial.state] += 1
    attempts = [attempt for trial in trials for attempt in trial.attempts]
    ended = [attempt for attempt in attempts if attempt.ended_at]
    began = min((attempt.started_at for attempt in ended), default=0)
    judged = [(sum(task[state] for state in SCORED), task["passed"]) for task in tasks.values()]
    return Score(
        values=values,
        planned=len(trials),
        states={state: states[state] for state in STATES},
        scored=scored,
        coverage=_ratio(scored, len(trials)),
        tasks=len(tasks),
        tasks_unscored=sum(not count for count, _ in judged),
        strict=_measure([(task.total(), task["passed"]) for task in tasks.values()]),
        valid=_measure(judged),
        rerun_after_score=sum(rerun_after_score(trial) for trial in trials),
        attempts=len(attempts),
        reasons=_reasons(last for trial in trials if trial.state in OUTCOMES and (last := deciding(trial))),
        earlier_reasons=_reasons(attempt for trial in trials for attempt in earlier(trial)),
        duration=_times(ended, lambda attempt: attempt.seconds),
        queued=_times(ended, lambda attempt: attempt.queued_seconds),
        seconds=(max((attempt.ended_at for attempt in ended), default=0) - began) / 1000,
        steps=sum(attempt.steps for attempt in attempts),
        calls=sum(attempt.calls for attempt in attempts),
        blocked=sum(attempt.blocked for attempt in attempts),
        loops=sum(attempt.loops for attempt in attempts),
        checks=sum(attempt.checks for attempt in attempts),
        usage=used_by(attempts),
    )


def _measure(tasks: Sequence[tuple[int, int]]) -> Measure:
    """Return the rates of tasks, each given by its trials that count and those of them that have passed."""
    trials = sum(count for count, _ in tasks)
    passed = sum(good for _, good in tasks)
    rates = [good / count for count, good in tasks if count]
    low, high = wilson(passed, trials) or (None, None)
    mean_low, mean_high = mean_interval(rates) or (None, None)
    return Measure(
        passed=passed,
        trials=trials,
        rate=_ratio(passed, trials),
        rate_low=low,
        rate_high=high,
        mean=_ratio(math.fsum(rates), len(rates)),
        mean_low=mean_low,
        mean_high=mean_high,
        tasks=len(rates),
        at_k=_at_k(tasks),
    )


def _at_k(tasks: Sequence[tuple[int, int]]) -> tuple[AtK, ...]:
    # Many tasks have the same two numbers, so each pair is worked out once.
    alike = Counter(tasks)
    largest = max((count for count, _ in alike), default=0)
    at: list[list[float]] = [[] for _ in range(largest)]
    hat: list[list[float]] = [[] for _ in range(largest)]
    known = [0] * largest
    for (count, good), times in alike.items():
        for index, (any_passed, all_passed) in enumerate(zip(pass_at(count, good), pass_hat(count, good), strict=True)):
            at[index].append(any_passed * times)
            hat[index].append(all_passed * times)
            known[index] += times
    return tuple(
        AtK(
            k=index + 1,
            pass_at=_ratio(math.fsum(at[index]), known[index]),
            pass_hat=_ratio(math.fsum(hat[index]), known[index]),
            tasks=known[index],
        )
        for index in range(largest)
    )


def _ratio(part: float, whole: int) -> float | None:
    return part / whole if whole else None


def _reasons(attempts: Iterable[Attempt]) -> dict[Reason, int]:
    counted = Counter(attempt.reason for attempt in attempts if attempt.reason is not None)
    return dict(commonest(dict(counted)))


def _times(attempts: Sequence[Attempt], seconds: Callable[[Attempt], float]) -> Times:
    measured = sorted(seconds(attempt) for attempt in attempts)

    def within(percent: int) -> float | None:
        return measured[math.ceil(len(measured) * percent / 100) - 1] if measured else None

    return Times(
        count=len(measured),
        p50=within(50),
        p90=within(90),
        p95=within(95),
        p99=within(99),
        max=within(100),
        total=math.fsum(measured),
    )


def _blocks(trials: Sequence[Trial]) -> tuple[Block, ...]:
    times: Counter[tuple[str, str, str]] = Counter()
    within: dict[tuple[str, str, str], set[int]] = {}
    for trial in trials:
        for attempt in trial.attempts:
            for block in attempt.blocks:
                key = (block.node, block.target, block.check)
                times[key] += block.times
                within.setdefault(key, set()).add(trial.planned.number)
    found = [
        Block(node=node, target=target, check=check, times=times[node, target, check], trials=len(numbers))
        for (node, target, check), numbers in within.items()
    ]
    return tuple(sorted(found, key=lambda each: (-each.times, -each.trials, each.node, each.target, each.check)))
