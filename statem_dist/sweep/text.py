"""The scores of a sweep as text for terminals: a table with a line per row of the report, and what to say below it."""

from __future__ import annotations

import os
from collections.abc import Sequence
from io import StringIO

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from statem_dist.sweep.model import Attempt, Outcome, State, Sweep, Trial, row_of
from statem_dist.sweep.outputs.figures import at, between, dollars, percent
from statem_dist.sweep.scores import Score, Scores, deciding

PLAIN_COLUMNS = 10_000
"""Width of the table where there is no terminal: no line is wrapped."""

ALWAYS: tuple[State, ...] = ("failed", "stuck", "error")
SOMETIMES: tuple[State, ...] = ("timeout", "cancelled", "running", "pending")
"""States that have a column only where there are such trials."""

DISPENSABLE = ("checks", "loops", "blocked", "pass^", "95 %", "time", "pass@", "valid", "stuck", "failed")
"""Columns that a terminal goes without where there is no room for all of them, the least missed first."""

GAP = 3
"""Between two columns on a terminal."""

TROUBLED: tuple[Outcome, ...] = ("error", "stuck", "timeout")
"""Outcomes whose reasons are told below the table, in this order."""

DETAIL_CHARACTERS = 300
"""What is shown of an attempt's output: its first line, so far."""


def table(sweep: Sweep, scores: Scores, *, columns: int | None) -> str:
    """Return the scores as a table.

    Args:
        sweep: what the scores are of.
        scores: its scores.
        columns: the width of the terminal it is for, which gets lines and colours, and no more figures than fit; None
            for plain aligned text.
    """
    definition, overall = sweep.definition, scores.overall
    states = (*ALWAYS, *(state for state in SOMETIMES if overall.states[state]))
    largest = max(len(row.strict.at_k) for row in scores.rows)
    at_k = (f"pass@{largest}", f"pass^{largest}") if largest > 1 else ()
    listed = definition.listed or ("sweep",)
    headings = ("passed", *states, "strict", "95 %", "valid", *at_k, "blocked", "loops", "checks", "time")
    lines = [[*map(_shown, listed), *map(Text, headings)]]
    for row in scores.rows:
        names = row_of(row.values, definition.listed) or (definition.name,)
        lines.append(_cells(row, names, states, largest))
    if len(scores.rows) > 1:
        names = ("all", *("" for _ in definition.listed[1:]))
        lines.append(_cells(overall, names, states, largest))
    widths = [max(cell.cell_len for cell in column) for column in zip(*lines, strict=True)]
    kept = _fitting(widths, [str(heading) for heading in lines[0]], len(listed), columns)
    drawn = Table(box=box.SIMPLE_HEAD if columns else None, pad_edge=False, show_edge=False)
    for at_column in kept:
        is_name = at_column < len(listed)
        drawn.add_column(
            lines[0][at_column],
            justify="left" if is_name else "right",
            no_wrap=not is_name or columns is None,
        )
    for number, line in enumerate(lines[1:], start=1):
        last = number == len(lines) - 1 and len(scores.rows) > 1
        drawn.add_row(*(line[at_column] for at_column in kept), style="bold" if columns and last else None)
    out = StringIO()
    colours = columns is not None and not os.environ.get("NO_COLOR")
    console = Console(
        file=out, width=columns or PLAIN_COLUMNS, force_terminal=colours, color_system="standard" if colours else None
    )
    console.print(drawn)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines() if line.strip())


def headline(scores: Scores) -> str:
    """Return both rates with the coverage, and the cost if there is one, in a line."""
    overall = scores.overall
    strict, valid = overall.strict, overall.valid
    interval = between(strict.rate_low, strict.rate_high)
    parts = [
        f"strict {percent(strict.rate)} of {overall.planned} planned{f' ({interval})' if interval else ''}",
        f"valid only {percent(valid.rate)} of {overall.scored} scored",
        f"coverage {percent(overall.coverage)}",
        *([dollars(overall.usage.cost_usd)] if overall.usage.cost_usd else []),
    ]
    return ", ".join(parts)


def troubles(trials: Sequence[Trial], limit: int) -> list[str]:
    """Return a line per reason for which trials could not be judged or came to no end, the commonest first.

    Args:
        trials: the trials of the sweep.
        limit: the most lines; one more tells how many trials are left out.
    """
    by_reason: dict[tuple[int, str], list[Attempt]] = {}
    for trial in trials:
        attempt = deciding(trial)
        if attempt is not None and attempt.outcome in TROUBLED:
            # Equal details differ in the attempt's own folder at most.
            told = _first_line(attempt.detail.replace(attempt.folder, ".") if attempt.folder else attempt.detail)
            reason = f"{attempt.outcome}: {attempt.reason}{f': {told}' if told else ''}"
            by_reason.setdefault((TROUBLED.index(attempt.outcome), reason), []).append(attempt)
    found = sorted(by_reason.items(), key=lambda each: (each[0][0], -len(each[1])))
    lines = [
        f"{attempts[0].run_id if len(attempts) == 1 else f'{len(attempts)} trials'}: {reason}"
        for (_, reason), attempts in found[:limit]
    ]
    if left := sum(len(attempts) for _, attempts in found[limit:]):
        lines.append(f"and {left} more")
    return lines


def _fitting(widths: Sequence[int], headings: Sequence[str], names: int, columns: int | None) -> list[int]:
    """Return which columns a terminal has room for: the names always, figures by how much they are missed."""
    kept = list(range(len(widths)))
    for heading in DISPENSABLE:
        if columns is None or sum(widths[at_column] + GAP for at_column in kept) - GAP <= columns:
            break
        kept = [at_column for at_column in kept if at_column < names or not headings[at_column].startswith(heading)]
    return kept


def _cells(score: Score, names: Sequence[str], states: Sequence[State], largest: int) -> list[Text]:
    strict = score.strict
    drawn = at(strict.at_k, largest)
    at_k = (percent(drawn.pass_at if drawn else None), percent(drawn.pass_hat if drawn else None))
    figures = [
        f"{strict.passed}/{score.planned}",
        *(str(score.states[state]) for state in states),
        percent(strict.rate),
        between(strict.rate_low, strict.rate_high),
        percent(score.valid.rate),
        *(at_k if largest > 1 else ()),
        str(score.blocked),
        str(score.loops),
        str(score.checks),
        f"{score.seconds:.1f} s",
    ]
    return [*map(_shown, names), *map(Text, figures)]


def _shown(text: str) -> Text:
    """Return text of somebody else in one line, without codes that a terminal would obey."""
    return Text("".join(character if character.isprintable() else " " for character in text))


def _first_line(text: str) -> str:
    line = text.strip().partition("\n")[0]
    return _shown(line if len(line) <= DETAIL_CHARACTERS else f"{line[: DETAIL_CHARACTERS - 1]}…").plain
