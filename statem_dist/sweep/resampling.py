"""Bootstrap and permutation over tasks, fast enough for every row of a report in plain Python.

The scores of tasks take few distinct values: a task of five trials has one of six rates. How often each value is
drawn is therefore drawn itself, as a multinomial count made of a chain of binomial ones, instead of task by task: a
thousand tasks cost what a handful of values cost. Every result depends on its arguments alone, since the seed is fixed.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import lru_cache
from itertools import accumulate

DRAWS = 10_000
"""Resamples of a bootstrap, and sign patterns of a permutation test."""

SEED = 20_260_101
"""Seed of both, so that the same trials always have the same intervals."""

TAIL = math.ceil(DRAWS * 0.025)
"""Resamples that are left out at each end of a 95 % interval."""

NEGLIGIBLE = 1e-18
"""Binomial probabilities below this share of the largest are left out of a table: no draw would meet them."""

DRAWS_PER_VALUE = 8
"""Drawing a task by itself costs about an eighth of drawing a binomial count for a value."""


def mean_interval(values: Iterable[float]) -> tuple[float, float] | None:
    """Return the 95 % percentile bootstrap interval of a mean (Efron 1979); None below two values.

    Args:
        values: one value per task.
    """
    counts = Counter(values)
    size = counts.total()
    if size < 2:
        return None
    return _interval(tuple(sorted(counts.items())), size)


def sign_flip_p(differences: Iterable[Fraction]) -> float | None:
    """Return the two-sided p-value of a sign-flip permutation test of paired differences; None where there is none.

    Under the hypothesis each difference might as well have had the other sign. The share of sign patterns whose sum
    is as far from zero is estimated from ``DRAWS`` random ones, and the observed pattern counts as one of them
    (Phipson and Smyth 2010), so that it is never 0.

    Args:
        differences: one per task, as exact fractions, so that ties are ties.
    """
    given = list(differences)
    if not given:
        return None
    common = math.lcm(*(difference.denominator for difference in given))
    whole = [int(difference * common) for difference in given]
    observed = abs(sum(whole))
    sizes = sorted(Counter(abs(number) for number in whole if number).items())
    chance = random.Random(SEED)
    extreme = sum(
        abs(sum(size * (2 * chance.getrandbits(count).bit_count() - count) for size, count in sizes)) >= observed
        for _ in range(DRAWS)
    )
    return (extreme + 1) / (DRAWS + 1)


def mcnemar_p(lost: int, gained: int) -> float:
    """Return the two-sided p-value of the exact McNemar test (McNemar 1947): of ``lost + gained`` changes, each might
    as well have gone the other way. 1 where nothing has changed."""
    changes = lost + gained
    tail = sum(math.comb(changes, count) for count in range(min(lost, gained) + 1))
    return float(min(Fraction(1), Fraction(2 * tail, 2**changes)))


@lru_cache(maxsize=4096)
def _interval(counted: tuple[tuple[float, int], ...], size: int) -> tuple[float, float]:
    if len(counted) == 1:
        return counted[0][0], counted[0][0]
    chance = random.Random(SEED)
    few = len(counted) * DRAWS_PER_VALUE < size
    sums = sorted(_by_value(counted, size, chance) if few else _by_task(counted, size, chance))
    return sums[TAIL - 1] / size, sums[DRAWS - TAIL] / size


def _by_task(counted: Sequence[tuple[float, int]], size: int, chance: random.Random) -> list[float]:
    values = [value for value, count in counted for _ in range(count)]
    return [sum(chance.choices(values, k=size)) for _ in range(DRAWS)]


def _by_value(counted: Sequence[tuple[float, int]], size: int, chance: random.Random) -> list[float]:
    sums = [0.0] * DRAWS
    left = [size] * DRAWS
    unseen = size
    for value, count in counted[:-1]:
        by_left: dict[int, list[int]] = {}
        for draw, tasks in enumerate(left):
            by_left.setdefault(tasks, []).append(draw)
        for tasks, draws in by_left.items():
            first, weights = _binomial(tasks, count / unseen)
            numbers = range(first, first + len(weights))
            for draw, times in zip(draws, chance.choices(numbers, cum_weights=weights, k=len(draws)), strict=True):
                sums[draw] += value * times
                left[draw] -= times
        unseen -= count
    last = counted[-1][0]
    return [total + last * tasks for total, tasks in zip(sums, left, strict=True)]


def _binomial(tries: int, probability: float) -> tuple[int, list[float]]:
    """Return the smallest number that is worth drawing, and the cumulated weights of it and its successors."""
    mode = min(tries, int((tries + 1) * probability))
    odds = probability / (1 - probability)
    upwards = [1.0]
    while mode + len(upwards) <= tries and upwards[-1] > NEGLIGIBLE:
        number = mode + len(upwards)
        upwards.append(upwards[-1] * odds * (tries - number + 1) / number)
    downwards: list[float] = []
    weight = 1.0
    for number in range(mode, 0, -1):
        weight *= number / (odds * (tries - number + 1))
        if weight < NEGLIGIBLE:
            break
        downwards.append(weight)
    return mode - len(downwards), list(accumulate([*reversed(downwards), *upwards]))
