"""What is wrong with a runbook, and where: the list that every reader of this package writes into.

A reader never stops at the first mistake. It notes the problem, goes on with a harmless stand-in, and
``Problems.settle`` raises once at the end, with everything in file order. Only text that cannot be taken
apart at all (``Problems.fatal``) ends the reading at once.

Places are kept as character offsets while reading, because that is one integer per value; they become lines
and columns (both counted from 1) only for the few values that turn out to be wrong.

Unknown keywords are a class of their own: StateM ignores them in permissive mode, and under ``--strict``
it reports them first and alone, since a misspelt keyword is usually the cause of whatever else is wrong.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Collection, Sequence
from typing import Any

from msgspec import Struct, to_builtins

from statem_dist.errors import RunbookInvalid

PROBLEMS_MAX = 100
"""How many problems of one kind are listed. A generated file with thousands of them is wrong in one way, and
the answer has to fit on a screen and into a response; the number of those left out is stated."""

_SUGGESTED_LENGTH_MAX = 64
"""Longer words get no "did you mean": comparing them is slow, and they are no typing error of a keyword."""

_LINE_END = re.compile(r"\r\n?|\n")


class Problem(Struct, frozen=True):
    """One thing that is wrong or doubtful in a runbook.

    ``line`` and ``column`` count from 1; both are 0 when the problem is the file as a whole. ``field`` says
    which part of the runbook is meant, such as ``nodes.plan.before_transfer[0].timeout`` or ``node 'plan'``;
    it is empty where the text could not be read far enough to tell.
    """

    source: str
    line: int
    column: int
    field: str
    message: str
    hint: str = ""

    def __str__(self) -> str:
        place = f"{self.source}:{self.line}:{self.column}" if self.line else self.source
        said = f"{self.field}: {self.message}" if self.field else self.message
        return f"{place}: {said}; {self.hint}" if self.hint else f"{place}: {said}"


class Problems:
    """Collects the problems of one text.

    Args:
        source: what to call the text in messages, usually its path as the user gave it.
        text: the text itself, for turning offsets into lines and columns.
    """

    def __init__(self, source: str, text: str = "") -> None:
        self.source = source
        self._text = text
        self._line_starts: list[int] = []
        self._errors: list[Problem] = []
        self._unknown: list[Problem] = []
        self._ignored: list[Problem] = []
        self._warnings: list[Problem] = []
        self._advice: list[Problem] = []
        self._left_out = 0

    def error(self, at: int, field: str, message: str, *, hint: str = "", near: Suggestion | None = None) -> None:
        """Note something that makes the runbook unusable. ``near`` adds a "did you mean" in place of a hint."""
        self._note(self._errors, at, field, message, hint, near)

    def unknown_keyword(
        self, at: int, field: str, keyword: str, known: Collection[str], *, hint: str = "", aside: str = ""
    ) -> None:
        """Note a keyword that nothing reads: an error under strict, a warning otherwise.

        ``aside`` is said in place of the hint where it is a warning: a refusal keeps to the words of StateM.
        """
        message, near = f"unknown keyword '{keyword}'", Suggestion(keyword, known)
        self._note(self._unknown, at, field, message, hint, near)
        self._note(self._ignored, at, field, message, aside or hint, None if aside else near)

    def warning(self, at: int, field: str, message: str, *, hint: str = "") -> None:
        """Note something that is allowed and probably not meant."""
        self._note(self._warnings, at, field, message, hint, None)

    def advice(self, at: int, field: str, message: str, *, hint: str = "") -> None:
        """Note something that is worth a look; it is reported under strict only."""
        self._note(self._advice, at, field, message, hint, None)

    def duplicate(self, at: int, field: str, what: str, *, first_at: int) -> None:
        """Note something that is given twice, naming both lines. ``what`` is such as ``key 'plan'``."""
        first, _ = self.place(first_at)
        second, _ = self.place(at)
        self.error(at, field, f"duplicate {what} on line {second}, first given on line {first}")

    def fatal(self, at: int | None, message: str, *, hint: str = "") -> RunbookInvalid:
        """Return the error to raise for a text that cannot be read any further.

        It also carries what was found before. ``at`` is None when the file as a whole is meant.
        """
        line, column = (0, 0) if at is None else self.place(at)
        found = [*self._errors, Problem(self.source, line, column, "", message, hint)]
        return self._invalid(found, [*self._ignored, *self._warnings])

    def settle(self, *, strict: bool) -> tuple[Problem, ...]:
        """Return the warnings, in file order, of a text without errors.

        Raises:
            RunbookInvalid: there are errors, or under strict unknown keywords, which are then reported alone.
        """
        if strict and self._unknown:
            raise self._invalid(self._unknown, self._warnings)
        if self._errors:
            raise self._invalid(self._errors, [*self._ignored, *self._warnings])
        return tuple(_in_file_order([*self._ignored, *self._warnings, *(self._advice if strict else ())]))

    def place(self, at: int) -> tuple[int, int]:
        """Return line and column, counted from 1, of a character offset."""
        if not self._line_starts:
            self._line_starts = [0, *(end.end() for end in _LINE_END.finditer(self._text))]
        line = bisect_right(self._line_starts, at)
        return line, at - self._line_starts[line - 1] + 1

    def _note(self, kind: list[Problem], at: int, field: str, message: str, hint: str, near: Suggestion | None) -> None:
        if len(kind) >= PROBLEMS_MAX:
            self._left_out += kind is self._errors or kind is self._unknown
            return
        line, column = self.place(at)
        suggested = f"did you mean '{word}'?" if near and (word := near.word()) else ""
        kind.append(Problem(self.source, line, column, field, message, suggested or hint))

    def _invalid(self, found: list[Problem], warnings: list[Problem]) -> RunbookInvalid:
        found = _in_file_order(found)
        lines = [f"- {problem}" for problem in found]
        if self._left_out:
            lines.append(f"- and {self._left_out} more")
        details = {"problems": to_builtins(found), **warnings_view(_in_file_order(warnings))}
        return RunbookInvalid("\n".join(["Invalid spec:", *lines]), details=details)


class Suggestion(Struct, frozen=True):
    """A word that was not found, and the words that it may have been meant for."""

    wrong: str
    known: Collection[str]

    def word(self) -> str | None:
        """Return the likely word, or None when nothing is close."""
        if len(self.wrong) > _SUGGESTED_LENGTH_MAX:
            return None
        # Imported here because valid runbooks, the usual case, never need it.
        from difflib import get_close_matches

        return next(iter(get_close_matches(self.wrong, self.known, n=1, cutoff=0.75)), None)


def warnings_view(warnings: Sequence[Problem]) -> dict[str, Any]:
    """Return warnings as JSON shows them, beside errors or without any: as sentences, and taken apart."""
    return {"warnings": [str(warning) for warning in warnings], "warning_details": to_builtins(warnings)}


def _in_file_order(problems: list[Problem]) -> list[Problem]:
    return sorted(problems, key=lambda problem: (problem.line, problem.column))
