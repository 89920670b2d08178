"""How figures are written for people, the same in the table, the page and the summary."""

from __future__ import annotations

from collections.abc import Sequence

from statem_dist.sweep.model import State
from statem_dist.sweep.scores import AtK, Measure

NONE = "-"
"""Stands for a figure that is undefined."""

GLYPHS: dict[State, str] = {
    "pending": "·",
    "running": "▶",
    "passed": "✓",
    "failed": "✗",
    "stuck": "∞",
    "timeout": "◷",
    "error": "!",
    "cancelled": "⊘",
}
"""A sign for each state, so that none is told by colour alone."""

SHOWN_K_MAX = 10
"""So many k have a column; of more, the first few and round ones are chosen."""


def percent(rate: float | None) -> str:
    """Return a rate as a percentage with one digit behind the point."""
    return NONE if rate is None else f"{rate * 100:.1f} %"


def between(low: float | None, high: float | None) -> str:
    """Return an interval of rates as percentages; empty without one."""
    return "" if low is None or high is None else f"{low * 100:.1f} to {high * 100:.1f} %"


def points(difference: float | None) -> str:
    """Return a difference of rates in percentage points, with its sign."""
    return NONE if difference is None else f"{difference * 100:+.1f} points"


def p_value(probability: float | None) -> str:
    """Return a p-value with three significant digits."""
    return NONE if probability is None else f"{probability:.3g}"


def duration(seconds: float | None) -> str:
    """Return a duration in its two largest units."""
    if seconds is None:
        return NONE
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02} min"


def dollars(cost: float) -> str:
    """Return a cost in US dollars."""
    return f"${cost:,.2f}"


def shown_k(*measures: Measure) -> list[int]:
    """Return the k that have a column: all up to ``SHOWN_K_MAX`` of them, or the first five, tens, and the last."""
    largest = max((len(measure.at_k) for measure in measures), default=0)
    if largest <= SHOWN_K_MAX:
        return list(range(1, largest + 1))
    chosen = {1, 2, 3, 4, 5, 10, 20, 50, 100, 1000, largest}
    return sorted(k for k in chosen if k <= largest)


def at(measures: Sequence[AtK], k: int) -> AtK | None:
    """Return what is known for one k; None if no task has as many trials."""
    return measures[k - 1] if 1 <= k <= len(measures) else None
