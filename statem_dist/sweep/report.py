"""What a sweep reports: one JSON document, and a table with a row per combination of the listed axes."""

from __future__ import annotations

import json
import os
from io import StringIO
from pathlib import Path
from typing import Any

from msgspec import Struct
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from statem_dist.files import write_whole
from statem_dist.history import timestamp
from statem_dist.sweep.results import SCORED, Outcome, Row, State, TrialResult, total
from statem_dist.sweep.spec import Sweep

SCHEMA = 1
"""Version of the JSON document."""

PLAIN_COLUMNS = 10_000
"""Width of the table where there is no terminal: no line is wrapped."""

ALWAYS: tuple[State, ...] = ("failed", "stuck", "error")
SOMETIMES: tuple[State, ...] = ("timeout", "cancelled", "running", "pending")
"""States that have a column only where there are such trials."""

TROUBLED: tuple[Outcome, ...] = ("error", "stuck", "timeout")
"""Outcomes whose reasons are told below the table, in this order."""


class Report(Struct, frozen=True, kw_only=True):
    """A sweep that has ended, or was stopped. Times are milliseconds since the epoch."""

    sweep: Sweep
    sweep_id: str
    folder: Path | None
    rows: list[Row]
    results: list[TrialResult]
    interrupted: bool
    started_at: int
    ended_at: int

    @property
    def total(self) -> Row:
        """All rows as one."""
        return total(self.rows, (self.ended_at - self.started_at) / 1000)


def document(report: Report, *, must_pass: bool = False) -> dict[str, Any]:
    """Return the report as JSON-ready data.

    ``ok`` says that every trial was judged or, with ``must_pass``, that every trial has passed.
    ``counts`` has ``planned``, ``scored`` and every state; ``planned`` is the sum of the states. ``rows`` has the same
    per combination of the listed axes, ``trials`` an object per trial that has ended.
    """
    everything = report.total
    return {
        "schema": SCHEMA,
        "ok": everything.states["error"] == 0
        and not report.interrupted
        and not (must_pass and everything.states["passed"] < everything.planned),
        "sweep": report.sweep_id,
        "name": report.sweep.name,
        "runbook": str(report.sweep.runbook_path),
        "runbook_hash": report.sweep.runbook.runbook.hash,
        "complete": everything.scored == everything.planned,
        "interrupted": report.interrupted,
        "started_at": timestamp(report.started_at),
        "ended_at": timestamp(report.ended_at),
        "folder": None if report.folder is None else str(report.folder),
        "counts": _counts(everything),
        "rows": [
            {"values": dict(zip(report.sweep.listed, row.values, strict=True)), **_counts(row)} for row in report.rows
        ],
        "trials": [_trial(result) for result in report.results],
    }


def table(report: Report, *, columns: int | None) -> str:
    """Return the report as a table.

    Args:
        columns: the width of the terminal it is for, which gets lines and colours; None for plain aligned text.
    """
    drawn = Table(box=box.SIMPLE_HEAD if columns else None, pad_edge=False, show_edge=False)
    everything = report.total
    states = (*ALWAYS, *(state for state in SOMETIMES if everything.states[state]))
    for axis in report.sweep.listed or ("sweep",):
        drawn.add_column(Text(axis), no_wrap=columns is None)
    for heading in ("passed", *states, "blocked", "loops", "checks", "time"):
        drawn.add_column(heading, justify="right", no_wrap=True)
    for row in report.rows:
        drawn.add_row(*_cells(row, row.values or (report.sweep.name,), states))
    if len(report.rows) > 1:
        names = ("all", *("" for _ in report.sweep.listed[1:]))
        drawn.add_row(*_cells(everything, names, states), style="bold" if columns else None)
    out = StringIO()
    colours = columns is not None and not os.environ.get("NO_COLOR")
    console = Console(
        file=out, width=columns or PLAIN_COLUMNS, force_terminal=colours, color_system="standard" if colours else None
    )
    console.print(drawn)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines() if line.strip())


def troubles(report: Report, limit: int) -> list[str]:
    """Return a line per reason for which trials could not be judged or came to no end, the commonest first.

    Args:
        limit: the most lines; one more tells how many trials are left out.
    """
    by_reason: dict[tuple[int, str], list[TrialResult]] = {}
    for result in report.results:
        if result.outcome in TROUBLED:
            # Equal reasons differ in the trial's own folder at most.
            reason = f"{result.outcome}: {result.reason.replace(str(result.trial.folder), '.')}"
            by_reason.setdefault((TROUBLED.index(result.outcome), reason), []).append(result)
    found = sorted(by_reason.items(), key=lambda each: (each[0][0], -len(each[1])))
    lines = [
        f"{results[0].trial.run_id if len(results) == 1 else f'{len(results)} trials'}: {reason}"
        for (_, reason), results in found[:limit]
    ]
    if left := sum(len(results) for _, results in found[limit:]):
        lines.append(f"and {left} more")
    return lines


def write(data: dict[str, Any], path: Path) -> None:
    """Write the JSON document of a report to a file, whole or not at all."""
    text = json.dumps(data, ensure_ascii=False, allow_nan=False, indent=1)
    write_whole(path, text + "\n")


def _counts(row: Row) -> dict[str, Any]:
    return {
        "planned": row.planned,
        "scored": row.scored,
        **{str(state): count for state, count in row.states.items()},
        "blocked": row.blocked,
        "loops": row.loops,
        "checks": row.checks,
        "seconds": round(row.seconds, 3),
    }


def _trial(result: TrialResult) -> dict[str, Any]:
    trial = result.trial
    return {
        "number": trial.number,
        "run_id": trial.run_id,
        "values": trial.cell,
        "repetition": trial.repetition,
        "outcome": result.outcome,
        "scored": result.outcome in SCORED,
        "reason": result.reason,
        "node": result.node,
        "steps": result.steps,
        "calls": result.calls,
        "blocked": result.blocked,
        "loops": result.loops,
        "checks": result.checks,
        "started_at": timestamp(result.started_at),
        "seconds": (result.ended_at - result.started_at) / 1000,
        "workspace": str(trial.folder),
    }


def _cells(row: Row, names: tuple[str, ...], states: tuple[State, ...]) -> list[Text]:
    figures = [
        f"{row.states['passed']}/{row.planned}",
        *(str(row.states[state]) for state in states),
        str(row.blocked),
        str(row.loops),
        str(row.checks),
        f"{row.seconds:.1f} s",
    ]
    return [Text(text) for text in (*names, *figures)]
