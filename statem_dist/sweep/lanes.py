"""Which bounds hold for a trial: trials that the same bounds hold for wait in the same lane."""

from __future__ import annotations

from functools import cached_property

import msgspec

from statem_dist.sweep.model import Cell, Definition, Limit

EVERY_VALUE = "*"
"""Stands in ``concurrency_per`` for every value that is not named."""

Values = dict[str, str | None]
"""The values that decide what binds a trial by the name of their axis; None where its cell has no such axis."""


class Bound(msgspec.Struct, frozen=True):
    """How many trials may run at once that share a counter."""

    counter: str
    trials: int


class Lane:
    """The trials of a sweep that share the values which decide what binds them.

    Args:
        definition: of the sweep.
        cell: the cell of one of them, or those values alone.
    """

    def __init__(self, definition: Definition, cell: Cell | Values) -> None:
        self._definition = definition
        self.values: Values = {axis: cell.get(axis) for axis in sorted(_deciding(definition))}

    @cached_property
    def key(self) -> str:
        """Its name in the store: JSON of its values."""
        return msgspec.json.encode(self.values).decode()

    @cached_property
    def bounds(self) -> tuple[Bound, ...]:
        """The bounds of the sweep's own that hold here."""
        bounds: list[Bound] = []
        for axis, by_value in self._definition.concurrency_per.items():
            value = self.values[axis]
            trials = None if value is None else by_value.get(value, by_value.get(EVERY_VALUE))
            if trials is not None:
                bounds.append(Bound(msgspec.json.encode({axis: value}).decode(), trials))
        return tuple(bounds)

    @cached_property
    def limits(self) -> tuple[Limit, ...]:
        """The shared limits that hold here."""
        return tuple(limit for limit in self._definition.limits if limit.when.items() <= self.values.items())


def lane_named(definition: Definition, key: str) -> Lane | None:
    """Return the lane of a key of the store; None for a lane of another binding, where trials are yet to be moved."""
    lane = Lane(definition, msgspec.json.decode(key, type=Values))
    return lane if lane.key == key else None


def binding_of(definition: Definition) -> str:
    """Return what of a definition decides which lanes there are and what holds in them, as text to be compared."""
    deciding = (definition.concurrency, definition.concurrency_per, definition.limits)
    return msgspec.json.encode(deciding, order="deterministic").decode()


def _deciding(definition: Definition) -> set[str]:
    """Return the axes whose values decide what binds a trial."""
    return {*definition.concurrency_per, *(axis for limit in definition.limits for axis in limit.when)}
