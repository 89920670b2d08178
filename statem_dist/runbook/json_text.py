"""JSON text to the same positioned tree as YAML.

The standard decoder keeps no places and takes the last of two equal keys without a word, so the structure is
walked here, and only single strings and numbers are left to ``json``. Strict RFC 8259: no NaN, no comments.
"""

from __future__ import annotations

import json
import re

from statem_dist.errors import RunbookInvalid
from statem_dist.runbook import tree
from statem_dist.runbook.problems import Problems
from statem_dist.runbook.tree import Mapping, Scalar, Sequence, Value

_BLANKS = re.compile(r"[ \t\n\r]*")
_SCALAR_STARTS = frozenset('"-0123456789tfn')


def read_json(text: str, problems: Problems) -> Value | None:
    """Return the tree of a JSON text, or None when it is blank.

    Duplicate keys and unusable strings are noted in ``problems``.

    Raises:
        RunbookInvalid: the text is no JSON, or exceeds a limit.
    """
    reader = _Reader(text, problems)
    start = reader.skip(0)
    if start == len(text):
        return None
    value, end = reader.value(start, 0)
    end = reader.skip(end)
    if end != len(text):
        raise problems.fatal(end, "there is text after the end of the JSON value")
    return value


def _refuse_constant(name: str) -> float:
    raise ValueError(f"{name} is no JSON number")


class _Reader:
    def __init__(self, text: str, problems: Problems) -> None:
        self._text = text
        self._problems = problems
        self._scalars = json.JSONDecoder(
            parse_int=tree.integer, parse_float=tree.decimal, parse_constant=_refuse_constant
        )
        self._nodes = 0

    def skip(self, at: int) -> int:
        """Return the offset of the next character that is no blank."""
        found = _BLANKS.match(self._text, at)
        return found.end() if found else at

    def value(self, at: int, depth: int) -> tuple[Value, int]:
        """Return the value that starts at an offset, and the offset behind it."""
        self._nodes += 1
        if self._nodes > tree.NODES_MAX:
            raise self._problems.fatal(at, f"more than {tree.NODES_MAX:,} values")
        first = self._text[at : at + 1]
        if first and first in "{[":
            if depth >= tree.DEPTH_MAX:
                raise self._problems.fatal(at, f"nested deeper than {tree.DEPTH_MAX} levels")
            return self._mapping(at, depth) if first == "{" else self._sequence(at, depth)
        return self._scalar(at)

    def _scalar(self, at: int) -> tuple[Scalar, int]:
        if self._text[at : at + 1] not in _SCALAR_STARTS:
            raise self._expected(at, "a value")
        try:
            data, end = self._scalars.raw_decode(self._text, at)
        except json.JSONDecodeError as error:
            raise self._problems.fatal(error.pos, error.msg[:1].lower() + error.msg[1:]) from None
        except ValueError as error:
            raise self._problems.fatal(at, str(error)) from None
        text = data if isinstance(data, str) else self._text[at:end]
        if name := tree.unusable_character(text):
            self._problems.error(at, "", f"the text contains the character {name}, which nothing can carry")
        return Scalar(data, text, at), end

    def _sequence(self, start: int, depth: int) -> tuple[Sequence, int]:
        items: list[Value] = []
        at = self.skip(start + 1)
        if self._text[at : at + 1] == "]":
            return Sequence((), start), at + 1
        while True:
            item, at = self.value(at, depth + 1)
            items.append(item)
            at, ended = self._separator(at, "]")
            if ended:
                return Sequence(tuple(items), start), at

    def _mapping(self, start: int, depth: int) -> tuple[Mapping, int]:
        entries: dict[str, Value] = {}
        key_at: dict[str, int] = {}
        at = self.skip(start + 1)
        if self._text[at : at + 1] == "}":
            return Mapping({}, {}, start), at + 1
        while True:
            if self._text[at : at + 1] != '"':
                raise self._expected(at, "a key in double quotes")
            key, end = self._scalar(at)
            colon = self.skip(end)
            if self._text[colon : colon + 1] != ":":
                raise self._expected(colon, "':'")
            value, end = self.value(self.skip(colon + 1), depth + 1)
            if key.text in key_at:
                self._problems.duplicate(at, "", f"key '{key.text}'", first_at=key_at[key.text])
            else:
                entries[key.text], key_at[key.text] = value, at
            at, ended = self._separator(end, "}")
            if ended:
                return Mapping(entries, key_at, start), at

    def _separator(self, at: int, closing: str) -> tuple[int, bool]:
        """Return the offset of the next item and False, or the offset behind the closing bracket and True."""
        at = self.skip(at)
        found = self._text[at : at + 1]
        if found == closing:
            return at + 1, True
        if found != ",":
            raise self._expected(at, f"',' or '{closing}'")
        return self.skip(at + 1), False

    def _expected(self, at: int, what: str) -> RunbookInvalid:
        found = f"'{self._text[at]}'" if at < len(self._text) else "the end of the text"
        return self._problems.fatal(at, f"expected {what}, found {found}")
