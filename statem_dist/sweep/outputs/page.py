"""``report.html``: a sweep as one page that needs nothing else, neither a network nor a service.

The page is whole without its script, which adds filters to the legend and arrow keys to the map of trials. Its
policy lets no other script run, whatever a name holds.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined, Template
from markupsafe import Markup
from msgspec import Struct

from statem_dist.history import timestamp
from statem_dist.sweep.comparison import Comparison
from statem_dist.sweep.model import (
    OUTCOME_OF,
    STATES,
    Attempt,
    Definition,
    Reason,
    State,
    Sweep,
    Trial,
    row_of,
    values_of,
)
from statem_dist.sweep.outputs import figures
from statem_dist.sweep.outputs.documents import digest
from statem_dist.sweep.outputs.junit import allowed
from statem_dist.sweep.scores import Scores, commonest, deciding

FOLDER = Path(__file__).parent

LISTED_MAX = 100
"""Entries of a list or a table on the page; the rest is counted, and is in ``results.json``."""

TOLD_MAX = 1_000
"""Trials that have not passed which are told one by one; the rest is in ``trials.csv``."""

SLOWEST = 10

OUTPUT_CHARACTERS = 600
"""What is shown of the output of an attempt: its end."""

TITLE_CHARACTERS = 160
"""What is shown of a cell's values and reason in its title, of which there is one per trial."""

LETTERS: dict[State, str] = {
    "pending": "w",
    "running": "r",
    "passed": "p",
    "failed": "f",
    "stuck": "s",
    "timeout": "t",
    "error": "e",
    "cancelled": "c",
}
"""The class of a state: short, because a page has it once per trial."""


class Mark(Struct, frozen=True):
    """A trial on the map: the class and sign of its state, what is said of it, and where more is."""

    letter: str
    glyph: str
    title: str
    target: str


class Line(Struct, frozen=True):
    """A line of the map: its values, its trials by column, and how many of them have passed."""

    names: tuple[str, ...]
    groups: list[list[Mark]]
    passed: int
    planned: int


class Map(Struct, frozen=True):
    """The map of trials: the axes of its lines, the heads of its columns, and its lines."""

    axes: tuple[str, ...]
    columns: list[str]
    lines: list[Line]


def report_html(sweep: Sweep, trials: Sequence[Trial], scores: Scores, comparison: Comparison | None = None) -> str:
    """Return the text of ``report.html``.

    Args:
        sweep: what is reported.
        trials: all its planned trials, in order of number.
        scores: of these trials.
        comparison: of it with a baseline, if there is one.
    """
    definition = sweep.definition
    overall = scores.overall
    not_passed = [trial for trial in trials if trial.state not in ("passed", "pending")]
    told = not_passed[:TOLD_MAX]
    return _template().render(
        sweep=sweep,
        definition=definition,
        digest=digest(definition),
        scores=scores,
        overall=overall,
        comparison=comparison,
        states=STATES,
        shown_states=[state for state in STATES if state != "passed" and overall.states[state]],
        k_shown=figures.shown_k(overall.strict),
        # An axis that alone makes the rows or the tasks has been shown as such.
        axes=[
            (axis, values)
            for axis, values in scores.axes.items()
            if (axis,) not in (definition.listed, definition.task_axes)
        ],
        map=_map(trials, _map_axes(definition), {trial.planned.number for trial in told}),
        slowest=_slowest(trials),
        reasons=_reasons(scores),
        told=[(trial, deciding(trial)) for trial in told],
        told_left=len(not_passed) - len(told),
        style=Markup(_asset("report.css")),
        script=Markup(f"\n{_asset('report.js')}"),
        policy=Markup(content_policy()),
    )


@cache
def content_policy() -> str:
    """Return the policy that the page keeps (Content Security Policy), for whoever serves it: nothing but its own."""
    script, style = (_hash(f"\n{_asset(name)}") for name in ("report.js", "report.css"))
    return f"default-src 'none'; img-src data:; style-src '{style}'; script-src '{script}'"


def _hash(text: str) -> str:
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@cache
def _template() -> Template:
    environment = Environment(
        loader=FileSystemLoader(FOLDER),
        autoescape=True,
        undefined=StrictUndefined,
        finalize=_clean,
        keep_trailing_newline=True,
    )
    environment.globals |= {
        "at": figures.at,
        "between": figures.between,
        "cut": _cut,
        "dollars": figures.dollars,
        "duration": figures.duration,
        "glyphs": figures.GLYPHS,
        "letters": LETTERS,
        "listed_max": LISTED_MAX,
        "name_of": _name_of,
        "p_value": figures.p_value,
        "percent": figures.percent,
        "points": figures.points,
        "timestamp": timestamp,
        "values_of": values_of,
    }
    return environment.get_template("report.html.j2")


@cache
def _asset(name: str) -> str:
    return (FOLDER / name).read_text(encoding="utf-8")


def _clean(value: Any) -> Any:
    """Return a value of the template without characters that a document cannot hold."""
    return allowed(value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _map_axes(definition: Definition) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the axes of the lines and of the columns of the map: tasks, and what they are tried with.

    Where all axes are listed, none tells tasks from the rest; then the last one makes the lines.
    """
    if definition.task_axes != definition.axes or len(definition.axes) < 2:
        return definition.task_axes, tuple(axis for axis in definition.listed if axis not in definition.task_axes)
    return definition.axes[-1:], definition.axes[:-1]


def _map(trials: Sequence[Trial], axes: tuple[tuple[str, ...], tuple[str, ...]], told: set[int]) -> Map:
    across, down = dict[tuple[str, ...], int](), dict[tuple[str, ...], list[Trial]]()
    for trial in trials:
        down.setdefault(row_of(trial.planned.cell, axes[0]), []).append(trial)
        across.setdefault(row_of(trial.planned.cell, axes[1]), len(across))
    lines = []
    for names, members in down.items():
        groups: list[list[Mark]] = [[] for _ in across]
        for trial in members:
            groups[across[row_of(trial.planned.cell, axes[1])]].append(_mark(trial, told))
        passed = sum(trial.state == "passed" for trial in members)
        lines.append(Line(names=names, groups=groups, passed=passed, planned=len(members)))
    return Map(axes=axes[0], columns=[", ".join(values) or "trials" for values in across], lines=lines)


def _mark(trial: Trial, told: set[int]) -> Mark:
    attempt = deciding(trial)
    facts: list[str] = [trial.state]
    if attempt is not None and attempt.reason is not None:
        facts = [f"{trial.state} ({attempt.reason})", figures.duration(attempt.seconds)]
    if len(trial.attempts) > 1:
        facts.append(f"{len(trial.attempts)} attempts")
    name = _name_of(trial)
    name = name if len(name) <= TITLE_CHARACTERS else f"{name[: TITLE_CHARACTERS - 1]}…"
    return Mark(
        letter=LETTERS[trial.state],
        glyph=figures.GLYPHS[trial.state],
        title=f"{name}: {', '.join(facts)}",
        target=f"t{trial.planned.number}" if trial.planned.number in told else "trials",
    )


def _name_of(trial: Trial) -> str:
    return f"{values_of(trial.planned.cell)}, trial {trial.planned.repetition}"


def _cut(text: str) -> str:
    return text if len(text) <= OUTPUT_CHARACTERS else f"…{text[1 - OUTPUT_CHARACTERS :]}"


def _slowest(trials: Sequence[Trial]) -> list[tuple[Trial, Attempt]]:
    ended = [(trial, attempt) for trial in trials for attempt in trial.attempts if attempt.ended_at]
    return sorted(ended, key=lambda each: (-each[1].seconds, each[1].number))[:SLOWEST]


def _reasons(scores: Scores) -> list[tuple[Reason, State, int, int]]:
    now, before = scores.overall.reasons, scores.overall.earlier_reasons
    together = {reason: now.get(reason, 0) + before.get(reason, 0) for reason in (*now, *before)}
    return [
        (reason, OUTCOME_OF[reason], now.get(reason, 0), before.get(reason, 0)) for reason, _ in commonest(together)
    ]
