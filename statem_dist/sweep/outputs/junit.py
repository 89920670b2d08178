"""``junit.xml``: the trials of a sweep as test cases, for the CI systems that show those.

A suite per row of the listed axes, a case per planned trial. The extensions of Maven Surefire tell earlier attempts:
``flakyFailure`` and ``flakyError`` before a passed one, ``rerunFailure`` and ``rerunError`` before any other. GitLab
drops a case whose name another one has, so a name has all values and the trial; it also takes no file of more
than 30 MB, so outputs are cut until the file is smaller.

What a case says: ``failed``, ``stuck`` and ``timeout`` are failures (the work did not get through), ``error`` is an
error (the trial could not be judged), and what is not over or was cancelled is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Literal, TypeAlias
from xml.etree import ElementTree
from xml.etree.ElementTree import Element, SubElement

from statem_dist.sweep.model import SCORED, Attempt, Sweep, Trial, row_of, values_of
from statem_dist.sweep.scores import Score, Scores, deciding, earlier

BYTES_MAX = 30_000_000
"""The largest file that GitLab takes."""

OUTPUT_CHARACTERS: tuple[int, ...] = (65_536, 16_384, 4_096, 1_024, 256, 0)
"""What is kept of the output of an attempt; the next one is tried while the file is too large."""

MESSAGE_CHARACTERS = 500
"""What is kept of the first line of an output as the message of a case."""

FORBIDDEN = re.compile("[^\t\n\r\u0020-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""Characters that XML 1.0 does not have, escaped or not."""

TERMINAL_CODES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
"""Colours and movements of a terminal, which mean nothing here."""

Kind: TypeAlias = Literal["Failure", "Error"]


def junit_xml(sweep: Sweep, trials: Sequence[Trial], scores: Scores, *, bytes_max: int = BYTES_MAX) -> str:
    """Return the text of ``junit.xml``.

    Args:
        sweep: what the trials are of.
        trials: all planned trials, in order of number.
        scores: of these trials.
        bytes_max: the size of the file up to which outputs are kept whole.
    """
    # Limits above the longest output cut nothing, so only the first of them is tried.
    longest = max((len(attempt.detail) for trial in trials for attempt in trial.attempts), default=0)
    text = _text(sweep, trials, scores, OUTPUT_CHARACTERS[0])
    for characters in OUTPUT_CHARACTERS[1:]:
        if len(text.encode()) <= bytes_max:
            break
        if characters < longest or not characters:
            text = _text(sweep, trials, scores, characters)
    return text


def allowed(text: str) -> str:
    """Return text without what XML cannot hold, and without codes for terminals."""
    return FORBIDDEN.sub("", TERMINAL_CODES.sub("", text))


def _text(sweep: Sweep, trials: Sequence[Trial], scores: Scores, characters: int) -> str:
    definition = sweep.definition
    rows: dict[tuple[str, ...], list[Trial]] = {}
    repetitions: dict[tuple[str, ...], int] = {}
    for trial in trials:
        rows.setdefault(row_of(trial.planned.cell, definition.listed), []).append(trial)
        cell = row_of(trial.planned.cell, definition.axes)
        repetitions[cell] = max(repetitions.get(cell, 0), trial.planned.repetition)

    root = Element("testsuites", {"name": allowed(f"{sweep.id} {definition.name}"), **_counts(trials)})
    by_values = {tuple(score.values.values()): score for score in scores.rows}
    taken: set[str] = set()
    for values, members in rows.items():
        name = allowed("__".join(values)) or allowed(definition.name)
        suite = SubElement(root, "testsuite", {"name": name, **_counts(members), **_origin(members)})
        properties = SubElement(suite, "properties")
        for title, value in _figures(sweep, by_values[values]):
            SubElement(properties, "property", name=title, value=allowed(value))
        for trial in members:
            planned = trial.planned
            last = repetitions[row_of(planned.cell, definition.axes)]
            title = allowed(f"{values_of(planned.cell)} [trial {planned.repetition}/{last}]")
            # Names that differed only in what XML cannot hold are told apart by the number.
            title = f"{title} #{planned.number}" if title in taken else title
            taken.add(title)
            _case(suite, trial, title, f"{allowed(definition.name)}.{name}", characters)
    ElementTree.indent(root, " ")
    body = ElementTree.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="UTF-8"?>\n{body}\n'


def _case(suite: Element, trial: Trial, title: str, group: str, characters: int) -> None:
    attempt = deciding(trial)
    case = SubElement(suite, "testcase", classname=group, name=title, time=f"{attempt.seconds if attempt else 0:.3f}")
    match _verdict(trial):
        case "failures":
            _told(case, "failure", attempt, trial.state, characters)
        case "errors":
            _told(case, "error", attempt, trial.state, characters)
        case "skipped":
            SubElement(case, "skipped", message=f"{trial.state}{f': {attempt.reason}' if attempt else ''}")
    prefix = "flaky" if trial.state == "passed" else "rerun"
    for each in earlier(trial):
        if each.outcome == "passed":
            continue
        kind: Kind = "Failure" if each.outcome in SCORED else "Error"
        # The trace is required, so it says at least where the attempt stood.
        trace = SubElement(_told(case, f"{prefix}{kind}", each, each.outcome or "", None), "stackTrace")
        trace.text = _cut(each.detail, characters) or allowed(f"at node {each.node}")
    if attempt is not None and characters:
        lines = [
            f"run {attempt.run_id}, attempt {attempt.attempt}, at node {attempt.node}",
            *(f"{block.node} -> {block.target}: blocked {block.times} x by {block.check}" for block in attempt.blocks),
            *([f"[[ATTACHMENT|{attempt.folder}/result.json]]"] if attempt.ended_at else []),
        ]
        SubElement(case, "system-out").text = allowed("\n".join(lines))


def _told(case: Element, tag: str, attempt: Attempt | None, state: str, characters: int | None) -> Element:
    detail = attempt.detail if attempt else ""
    first = allowed(detail).strip().partition("\n")[0][:MESSAGE_CHARACTERS]
    reason = (attempt.reason if attempt else None) or state
    element = SubElement(case, tag, type=reason, message=first or reason)
    if characters is not None and (text := _cut(detail, characters)):
        element.text = text
    return element


def _cut(text: str, characters: int) -> str:
    text = allowed(text)
    if len(text) <= characters:
        return text
    # The end of an output says most often what went wrong.
    return f"[{len(text) - characters} characters left out]\n{text[-characters:]}" if characters else ""


def _verdict(trial: Trial) -> Literal["passed", "failures", "errors", "skipped"]:
    match trial.state:
        case "passed":
            return "passed"
        case "failed" | "stuck" | "timeout":
            return "failures"
        case "error":
            return "errors"
        case _:
            return "skipped"


def _counts(trials: Sequence[Trial]) -> dict[str, str]:
    verdicts = [_verdict(trial) for trial in trials]
    seconds = sum(attempt.seconds for trial in trials if (attempt := deciding(trial)))
    return {
        "tests": str(len(trials)),
        **{name: str(verdicts.count(name)) for name in ("failures", "errors", "skipped")},
        "time": f"{seconds:.3f}",
    }


def _origin(trials: Sequence[Trial]) -> dict[str, str]:
    """Return when the first attempt began, and the host if there was one alone."""
    attempts = [attempt for trial in trials for attempt in trial.attempts]
    if not attempts:
        return {}
    began = datetime.fromtimestamp(min(attempt.started_at for attempt in attempts) // 1000, tz=UTC)
    hosts = {attempt.host for attempt in attempts}
    return {
        "timestamp": began.strftime("%Y-%m-%dT%H:%M:%SZ"),
        **({"hostname": allowed(hosts.pop())} if len(hosts) == 1 else {}),
    }


def _figures(sweep: Sweep, score: Score) -> list[tuple[str, str]]:
    """Return the scores of a suite as properties; a figure that is undefined has none."""
    found: list[tuple[str, float | None]] = [("statem.coverage", score.coverage)]
    for counted, measure in (("strict", score.strict), ("valid", score.valid)):
        found.append((f"statem.{counted}.rate", measure.rate))
        found += [(f"statem.{counted}.pass@{at.k}", at.pass_at) for at in measure.at_k]
        found += [(f"statem.{counted}.pass^{at.k}", at.pass_hat) for at in measure.at_k]
    identity = [("statem.sweep", sweep.id), ("statem.runbook_hash", sweep.definition.runbook)]
    return identity + [(name, f"{value:.6f}") for name, value in found if value is not None]
