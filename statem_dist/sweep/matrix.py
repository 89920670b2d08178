"""From axes to cells, with the semantics of GitHub's ``strategy.matrix``.

The cells are the product of the axes, the first axis varying slowest. ``exclude`` entries remove every cell that has
all their values. ``include`` entries come after that: an entry is added to every original cell whose original values
it does not contradict, where it may replace what an earlier entry added; an entry that fits none is a cell of its own,
which no later entry joins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import TypeAlias

Cell: TypeAlias = dict[str, str]
"""The values of one cell by the name of their axis."""


def expand(
    axes: Mapping[str, Sequence[str]],
    include: Iterable[Mapping[str, str]] = (),
    exclude: Sequence[Mapping[str, str]] = (),
) -> list[Cell]:
    """Return the cells of a matrix in order; without axes, only those that ``include`` makes."""
    combinations = product(*axes.values()) if axes else ()
    everything = [dict(zip(axes, values, strict=True)) for values in combinations]
    originals = [cell for cell in everything if not any(entry.items() <= cell.items() for entry in exclude)]
    cells = [dict(original) for original in originals]
    added: list[Cell] = []
    for entry in include:
        fitting = [
            cell
            for cell, original in zip(cells, originals, strict=True)
            if all(original.get(name, value) == value for name, value in entry.items())
        ]
        for cell in fitting:
            cell.update(entry)
        if not fitting:
            added.append(dict(entry))
    return cells + added
