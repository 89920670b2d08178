"""The trials of a sweep as rows, ``trials.jsonl`` and ``trials.csv``: a row per planned trial, also those not begun."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable
from io import StringIO
from typing import Any

import msgspec

from statem_dist.history import timestamp
from statem_dist.sweep.model import OUTCOMES, SCORED, Attempt, Planned, Sweep, Trial
from statem_dist.sweep.outputs.documents import strict_json, whole_characters
from statem_dist.sweep.scores import deciding, earlier, rerun_after_score, used_by

SCHEMA = 1
"""Version of a row."""

FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""With these a spreadsheet takes a cell for a formula (OWASP, "CSV Injection"); the last four are the wide forms."""

Row = dict[str, Any]


def row(sweep: Sweep, trial: Trial) -> Row:
    """Return a trial as JSON-ready data; every key is always there, in this order.

    ``values`` is the cell. The keys from ``reason`` to ``losses`` are those of the attempt that the trial is in the
    midst of or has ended with, and null where there is none. ``attempts`` counts all, ``earlier_attempts`` has those
    that no longer count, ``input_tokens``, ``output_tokens`` and ``cost_usd`` are sums over all.
    """
    attempt = deciding(trial)
    used = used_by(trial.attempts)
    ended = trial.state in OUTCOMES
    return {
        "schema": SCHEMA,
        "sweep": sweep.id,
        "number": trial.planned.number,
        "values": trial.planned.cell,
        "repetition": trial.planned.repetition,
        "state": trial.state,
        "scored": trial.state in SCORED,
        "passed": trial.state == "passed",
        "ended": ended,
        "attempts": len(trial.attempts),
        "rerun_after_score": rerun_after_score(trial),
        **(dict.fromkeys(NAMES) if attempt is None else facts(attempt)),
        "input_tokens": used.input_tokens,
        "output_tokens": used.output_tokens,
        "cost_usd": used.cost_usd,
        "blocks": [] if attempt is None else [msgspec.to_builtins(block) for block in attempt.blocks],
        "earlier_attempts": [facts(each) for each in earlier(trial)],
    }


def facts(attempt: Attempt) -> Row:
    """Return an attempt as JSON-ready data. Times are ISO 8601 in UTC; times and durations are null for not yet."""
    return {
        "reason": attempt.reason,
        "detail": attempt.detail,
        "node": attempt.node,
        "run_id": attempt.run_id,
        "worker": attempt.worker,
        "host": attempt.host,
        "folder": attempt.folder,
        "revision": attempt.revision,
        "queued_at": timestamp(attempt.queued_at),
        "started_at": timestamp(attempt.started_at),
        "ended_at": timestamp(attempt.ended_at) if attempt.ended_at else None,
        "queued_seconds": attempt.queued_seconds,
        "seconds": attempt.seconds if attempt.ended_at else None,
        "steps": attempt.steps,
        "calls": attempt.calls,
        "blocked": attempt.blocked,
        "loops": attempt.loops,
        "checks": attempt.checks,
        "losses": attempt.losses,
    }


NAMES: tuple[str, ...] = tuple(
    facts(Attempt(number=0, attempt=0, run_id="", queued_at=0, started_at=0, worker="", host="", folder=""))
)
"""The keys of the facts of an attempt."""


def trials_jsonl(sweep: Sweep, trials: Iterable[Trial]) -> str:
    """Return the text of ``trials.jsonl``: one JSON object per line, in order of the trials."""
    return "".join(f"{strict_json(row(sweep, trial))}\n" for trial in trials)


def trials_csv(sweep: Sweep, trials: Iterable[Trial]) -> str:
    """Return the text of ``trials.csv`` (RFC 4180): a head, and the rows of ``trials.jsonl`` without their lists.

    ``values`` is a column per axis, ``values.AXIS``. Null is an empty cell, truth is ``true`` or ``false``. Text that
    a spreadsheet would take for a formula has an apostrophe before it.
    """
    out = StringIO()
    written = csv.writer(out)
    axes = sweep.definition.axes
    # The head is that of a row which is not written, so that a sweep without trials has it too.
    nobody = Trial(planned=Planned(number=0, cell={}, repetition=0), state="pending")
    written.writerow([_cell(name) for name in _flat(row(sweep, nobody), axes)])
    written.writerows([_cell(value) for value in _flat(row(sweep, trial), axes).values()] for trial in trials)
    return out.getvalue()


def _flat(nested: Row, axes: tuple[str, ...]) -> Row:
    flat: Row = {}
    for name, value in nested.items():
        if name == "values":
            flat |= {f"values.{axis}": value.get(axis) for axis in axes}
        elif not isinstance(value, list):
            flat[name] = value
    return flat


def _cell(value: Any) -> str:
    match value:
        case None:
            return ""
        case bool():
            return "true" if value else "false"
        case float() if not math.isfinite(value):
            return ""
        case str():
            text = whole_characters(value)
            return f"'{text}" if text.startswith(FORMULA) else text
        case _:
            return str(value)
