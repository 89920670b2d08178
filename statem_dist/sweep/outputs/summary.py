"""A summary in Markdown for the page of a CI job (``$GITHUB_STEP_SUMMARY``) or a comment."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from statem_dist.sweep.comparison import Comparison
from statem_dist.sweep.model import STATES, Cell, Sweep, values_of
from statem_dist.sweep.outputs.documents import whole_characters
from statem_dist.sweep.outputs.figures import GLYPHS, at, between, dollars, duration, p_value, percent, points, shown_k
from statem_dist.sweep.scores import Score, Scores, commonest

LISTED_MAX = 20
"""Lines of any list; the rest is counted. GitHub takes no summary of more than 1 MiB."""

NAME_CHARACTERS = 200
"""What is shown of a name."""

SPECIAL = re.compile(r"[^\w .,/=]|_")
"""What Markdown or HTML might take for markup: all but letters, digits and a few that never are."""


def escaped(text: str) -> str:
    """Return text that stands for itself in a line or a cell of Markdown, cut where it is very long.

    Character references are what every place understands: a cell of a table does not end at them, and no link, no
    mention and no tag is made of them.
    """
    text = " ".join(whole_characters(text).split())
    cut = text if len(text) <= NAME_CHARACTERS else f"{text[: NAME_CHARACTERS - 1]}…"
    return SPECIAL.sub(lambda found: f"&#{ord(found[0])};" if found[0].isprintable() else "", cut)


def summary_markdown(sweep: Sweep, scores: Scores, comparison: Comparison | None = None) -> str:
    """Return the summary: the headline, a table with a line per row, and lists of what stands out."""
    overall = scores.overall
    strict, valid = overall.strict, overall.valid
    blocks = [
        f"## Sweep {escaped(sweep.definition.name)} ({escaped(sweep.id)})",
        f"**{percent(strict.rate)} of {overall.planned} planned trials passed** "
        f"(strict, {between(strict.rate_low, strict.rate_high) or 'no interval'}); "
        f"{percent(valid.rate)} of {overall.scored} scored (valid only); coverage {percent(overall.coverage)}. "
        f"Status: {sweep.status}{'' if sweep.complete else ', not complete'}.",
        " ".join(f"{GLYPHS[state]} {overall.states[state]} {state}" for state in STATES if overall.states[state]),
        _table(sweep, scores),
    ]
    if overall.rerun_after_score:
        blocks.append(
            f"{overall.rerun_after_score} trials were begun again after an attempt had been scored, which raises rates."
        )
    if comparison is not None:
        blocks += _compared(comparison)
    reasons = [(reason, count) for reason, count in commonest(overall.reasons) if reason != "success_end"]
    blocks += _list("Reasons", [f"{count} x {reason}" for reason, count in reasons])
    blocks += _list(
        "What blocked",
        [
            f"{each.times} x in {each.trials} trials: {escaped(each.node)} to {escaped(each.target)}, "
            f"{escaped(each.check)}"
            for each in scores.blocks
        ],
    )
    blocks += _list("Tasks without a scored trial", _cells(scores.unscored_tasks))
    return "\n\n".join(block for block in blocks if block) + "\n"


def _table(sweep: Sweep, scores: Scores) -> str:
    listed = sweep.definition.listed or ("sweep",)
    several = len(scores.rows) > 1
    every: Sequence[Score] = (*scores.rows, scores.overall) if several else scores.rows
    columns = [k for k in shown_k(scores.overall.strict) if k > 1]
    head = [
        *map(escaped, listed),
        "passed", "strict", "95 %", "valid only", "coverage",
        *(f"pass@{k}" for k in columns),
        *(f"pass^{k}" for k in columns),
        "p50", "cost",
    ]  # fmt: skip
    lines = [head, ["---"] * len(listed) + ["---:"] * (len(head) - len(listed))]
    for score in every:
        names = list(score.values.values()) or [sweep.definition.name]
        if several and score is scores.overall:
            names = ["all", *[""] * (len(listed) - 1)]
        strict = score.strict
        found = [at(strict.at_k, k) for k in columns]
        lines.append(
            [
                *map(escaped, names),
                f"{strict.passed}/{score.planned}",
                percent(strict.rate),
                between(strict.rate_low, strict.rate_high),
                percent(score.valid.rate),
                percent(score.coverage),
                *(percent(each.pass_at if each else None) for each in found),
                *(percent(each.pass_hat if each else None) for each in found),
                duration(score.duration.p50),
                dollars(score.usage.cost_usd),
            ]
        )
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _compared(comparison: Comparison) -> list[str]:
    interval = ""
    if comparison.difference_low is not None and comparison.difference_high is not None:
        interval = f" ({points(comparison.difference_low)} to {points(comparison.difference_high)})"
    return [
        f"### Against {escaped(comparison.baseline.name)} ({escaped(comparison.baseline.id)})",
        f"{points(comparison.difference)}{interval} over {len(comparison.pairs)} tasks, {comparison.counted}; "
        f"McNemar p = {p_value(comparison.mcnemar_p)}, sign flip p = {p_value(comparison.sign_flip_p)}.",
        *_list("Gained", _cells(comparison.majority.gained)),
        *_list("Lost", _cells(comparison.majority.lost)),
        *_list("Warnings", [escaped(warning) for warning in comparison.warnings]),
    ]


def _cells(cells: Iterable[Cell]) -> list[str]:
    return [escaped(values_of(cell)) for cell in cells]


def _list(title: str, lines: Sequence[str]) -> list[str]:
    if not lines:
        return []
    more = [f"and {len(lines) - LISTED_MAX} more"] if len(lines) > LISTED_MAX else []
    return [f"**{title}**", "\n".join(f"- {line}" for line in [*lines[:LISTED_MAX], *more])]
