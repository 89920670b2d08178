"""The plan of a sweep: one trial per cell and repetition, numbered once and for all.

Every cell has its first repetition before any has its second. So a sweep that is looked at, or ended, halfway has tried
everything about equally often: a broken cell shows in the first round, and what has ended can be compared. Cell by
cell, half of the tasks would have all their repetitions and the others none.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from hashlib import sha256
from itertools import count

from statem_dist.sweep.model import Cell, Planned, row_of

SLUG_LENGTH_MAX = 80
KEY_DIGITS = 8
"""Hex digits of a cell's key in the name of its folder; what makes it unique beside its readable part."""

SEED_BITS = 31
"""A seed fits into a signed 32-bit integer, which is what most programs take."""


def planned(cells: Sequence[Cell], trials: int, first_number: int = 1) -> Iterator[Planned]:
    """Yield every trial of some cells, repetition by repetition, numbered from ``first_number``."""
    return extension(cells, 0, trials, first_number)


def extension(cells: Sequence[Cell], old_trials: int, new_trials: int, first_number: int) -> Iterator[Planned]:
    """Yield what some cells lack when they are to be tried ``new_trials`` times and were ``old_trials`` times.

    Args:
        first_number: the number of the first one; numbers that were given before stay what they are.
    """
    numbers = count(first_number)
    for repetition in range(old_trials + 1, new_trials + 1):
        for cell in cells:
            yield Planned(next(numbers), cell, repetition)


def select(
    trials: Iterable[Planned], listed: tuple[str, ...], only: Mapping[str, Sequence[str]], limit: int | None
) -> list[Planned]:
    """Return some of the trials, with the numbers that they have among all.

    Args:
        listed: the axes that make the rows of the report.
        only: per axis the values that are wanted; a trial must have one of them for each axis.
        limit: how many trials of each row are wanted, the first ones; None for all.
    """
    chosen: list[Planned] = []
    taken: Counter[tuple[str, ...]] = Counter()
    for trial in trials:
        if all(trial.cell.get(axis) in values for axis, values in only.items()):
            row = row_of(trial.cell, listed)
            taken[row] += 1
            if limit is None or taken[row] <= limit:
                chosen.append(trial)
    return chosen


def key_of(cell: Cell) -> str:
    """Return the identity of a cell: the sha256 of its canonical JSON, in hex."""
    return sha256(json.dumps(cell, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def seed_of(seed: int, cell: Cell, repetition: int) -> int:
    """Return the seed of a trial, from 0 to 2**31 - 1: the same for the same seed of the sweep, cell and repetition."""
    digest = sha256(f"{seed}:{key_of(cell)}:{repetition}".encode()).digest()
    return int.from_bytes(digest[:4], "big") >> (32 - SEED_BITS)


def slug(cell: Cell) -> str:
    """Return a folder name for a cell: its values as far as they are readable, and a part of its key."""
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(cell.values()))[:SLUG_LENGTH_MAX].strip("-.")
    return f"{words or 'cell'}-{key_of(cell)[:KEY_DIGITS]}"
