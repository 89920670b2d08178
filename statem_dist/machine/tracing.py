"""A finished run as text."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from statem_dist.machine.context import Context, ResultEntry

RULE = "-" * 80
NAME_WIDTH = 26


def show_transitions(ctx: Context[Any]) -> str:
    """Return what happened in a run, hop by hop, with what each guard and action gave.

    Args:
        ctx: the context of the run, as its guards and actions were given it.

    Returns:
        Lines without a newline at the end. A state that was entered several times has its results where they belong.
    """
    hops = len(ctx.history) - 1
    lines = [f"Transitions ({hops} hop{'' if hops == 1 else 's'}):", RULE]
    visits = _results_by_visit(ctx)
    for number in range(hops):
        lines.append(f"hop {number + 1}: {ctx.history[number]} -> {ctx.history[number + 1]}")
        lines += [*_rows(visits[number]), RULE]
    return "\n".join([*lines, f"Final state: {ctx.history[-1]}", *_rows(visits[-1]), RULE])


def _results_by_visit(ctx: Context[Any]) -> list[list[ResultEntry]]:
    """Return the results of each state of the history."""
    if len(ctx._marks) == len(ctx.history) - 1:
        bounds = [0, *ctx._marks, len(ctx.results)]
        return [ctx.results[begin:end] for begin, end in pairwise(bounds)]
    # Somebody has put the context together by hand: then the name of the state is all that is known.
    return [[entry for entry in ctx.results if entry.state == state] for state in ctx.history]


def _rows(entries: Sequence[ResultEntry]) -> list[str]:
    """Return a line for each result; the hook is named where it changes."""
    rows, source = [], ""
    for entry in entries:
        shown = "" if entry.source == source else entry.source
        source = entry.source
        rows.append(f"  {shown:<6} {entry.kind:<6} : {entry.name:<{NAME_WIDTH - 1}} = {entry.value!r}")
    return rows
