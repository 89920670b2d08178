"""From axes to cells, with the semantics of GitHub's ``strategy.matrix``.

The cells are the product of the axes, the first axis varying slowest. ``exclude`` entries remove every cell that has
all their values. ``include`` entries come after that: an entry is added to every original cell whose original values
it does not contradict, where it may replace what an earlier entry added; an entry that fits none is a cell of its own,
which no later entry joins.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product

from statem_dist.sweep.model import Cell


def expand(
    axes: Mapping[str, Sequence[str]],
    include: Iterable[Mapping[str, str]] = (),
    exclude: Iterable[Mapping[str, str]] = (),
) -> list[Cell]:
    """Return the cells of a matrix in order; without axes, only those that ``include`` makes.

    It takes time in proportion to the cells and the entries, not to their product: tasks by the thousand come with an
    entry for each.
    """
    combinations = product(*axes.values()) if axes else ()
    originals = _without([dict(zip(axes, values, strict=True)) for values in combinations], exclude)
    cells = [dict(original) for original in originals]
    found: dict[tuple[str, ...], dict[tuple[str, ...], list[Cell]]] = {}
    added: list[Cell] = []
    for entry in include:
        names = tuple(name for name in entry if name in axes)
        if names not in found:
            found[names] = {}
            for cell, original in zip(cells, originals, strict=True):
                found[names].setdefault(_values(original, names), []).append(cell)
        fitting = found[names].get(_values(entry, names), [])
        for cell in fitting:
            cell.update(entry)
        if not fitting:
            added.append(dict(entry))
    return cells + added


def _without(cells: list[Cell], exclude: Iterable[Mapping[str, str]]) -> list[Cell]:
    """Return the cells that no entry names; all of them have the same axes."""
    excluded: dict[tuple[str, ...], set[tuple[str, ...]]] = {}
    for entry in exclude:
        names = tuple(entry)
        if cells and cells[0].keys() >= entry.keys():
            excluded.setdefault(names, set()).add(_values(entry, names))
    return [cell for cell in cells if not any(_values(cell, names) in values for names, values in excluded.items())]


def _values(cell: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(cell[name] for name in names)
