"""The plan of a sweep: one trial per cell and repetition, numbered once and for all."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from hashlib import sha256
from pathlib import Path

from msgspec import Struct

from statem_dist.sweep.matrix import Cell
from statem_dist.sweep.spec import Sweep

SLUG_LENGTH_MAX = 80
KEY_DIGITS = 8
"""Hex digits of a cell's key in the name of its folder; what makes it unique beside its readable part."""


class Trial(Struct, frozen=True):
    """One run to be driven. ``repetition`` counts from 1 within its cell, ``number`` from 1 within the sweep.

    ``folder`` is its workspace, an absolute path.
    """

    number: int
    run_id: str
    cell: Cell
    repetition: int
    folder: Path


def plan(sweep: Sweep, sweep_id: str, folder: Path) -> list[Trial]:
    """Return every trial of a sweep, cell by cell."""
    trials: list[Trial] = []
    for cell in sweep.cells:
        cell_folder = folder / slug(cell)
        for repetition in range(1, sweep.trials + 1):
            number = len(trials) + 1
            trials.append(
                Trial(
                    number=number,
                    run_id=f"{sweep_id}-{number}",
                    cell=cell,
                    repetition=repetition,
                    folder=cell_folder / f"trial-{repetition}",
                )
            )
    return trials


def select(
    trials: Iterable[Trial], listed: Sequence[str], only: Mapping[str, Sequence[str]], limit: int | None
) -> list[Trial]:
    """Return some of the trials, with the numbers that they have among all.

    Args:
        listed: the axes that make the rows of the report.
        only: per axis the values that are wanted; a trial must have one of them for each axis.
        limit: how many trials of each row are wanted, the first ones; None for all.
    """
    chosen: list[Trial] = []
    taken: Counter[tuple[str, ...]] = Counter()
    for trial in trials:
        row = row_of(trial.cell, listed)
        if all(trial.cell.get(axis) in values for axis, values in only.items()):
            taken[row] += 1
            if limit is None or taken[row] <= limit:
                chosen.append(trial)
    return chosen


def row_of(cell: Cell, listed: Sequence[str]) -> tuple[str, ...]:
    """Return the values of a cell on the listed axes; a missing one is empty."""
    return tuple(cell.get(axis, "") for axis in listed)


def key_of(cell: Cell) -> str:
    """Return the identity of a cell: the sha256 of its canonical JSON, in hex."""
    return sha256(json.dumps(cell, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def slug(cell: Cell) -> str:
    """Return a folder name for a cell: its values as far as they are readable, and a part of its key."""
    words = re.sub(r"[^A-Za-z0-9._-]+", "-", "-".join(cell.values()))[:SLUG_LENGTH_MAX].strip("-.")
    return f"{words or 'cell'}-{key_of(cell)[:KEY_DIGITS]}"
