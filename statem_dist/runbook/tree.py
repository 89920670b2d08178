"""A parsed document as values that know where they stand, and the limits that keep parsing cheap.

YAML and JSON both become this tree; everything behind it is format-agnostic. A ``Scalar`` keeps the text as
it was written next to the value that it stands for, so that ``contains: 1.10`` looks for ``1.10``.

Scalars are read as in YAML 1.2: ``true`` and ``false`` are the only booleans, numbers are decimal, and all
else is text, so ``yes``, ``no``, ``on``, ``1:30``, ``0x1f`` and ``2026-01-31`` stay what the author typed.
Keys are always text. Aliases share one subtree; it is never copied, and only counted as if it were.
"""

from __future__ import annotations

import math
import re
from typing import Any, TypeAlias

from msgspec import Struct

BYTES_MAX = 1024 * 1024
"""Size of a runbook in bytes. The largest real ones are below 50 KiB; this bounds the time to parse."""

DEPTH_MAX = 64
"""Nesting of collections, aliases followed. A runbook needs about ten; this keeps recursion shallow."""

NODES_MAX = 300_000
"""Values in a document once aliases are expanded. A plain block-style file of ``BYTES_MAX`` stays below it, so
only an alias bomb, or a megabyte of single-letter flow items, meets this limit."""

_DIGITS_MAX = 400
"""Characters of a number. Beyond it a float is infinite, and Python's conversion of integers grows quadratic."""

_NULL = frozenset({"", "~", "null", "Null", "NULL"})
_BOOLEANS = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?")
_UNUSABLE = re.compile("[\0\ud800-\udfff]")

Plain: TypeAlias = bool | int | float | str | None
"""What a scalar can stand for."""


class Scalar(Struct, frozen=True):
    """A single value. ``commented`` says that a YAML comment cut the line off right behind it."""

    data: Plain
    text: str
    at: int
    commented: bool = False

    @property
    def words(self) -> str | None:
        """The value where text is wanted: as written, also for numbers and booleans; None for null."""
        if self.data is None:
            return None
        return self.data if isinstance(self.data, str) else self.text


class Sequence(Struct, frozen=True):
    """A list."""

    items: tuple[Value, ...]
    at: int


class Mapping(Struct, frozen=True):
    """A mapping in the order of the file. ``key_at`` holds the offset of each key."""

    entries: dict[str, Value]
    key_at: dict[str, int]
    at: int


Value: TypeAlias = Scalar | Sequence | Mapping


def is_null(value: Value | None) -> bool:
    """Return whether a value is missing or null."""
    return value is None or (isinstance(value, Scalar) and value.data is None)


def plain(value: Value) -> Any:
    """Return the value as plain Python data, without places."""
    match value:
        case Scalar():
            return value.data
        case Sequence():
            return [plain(item) for item in value.items]
        case Mapping():
            return {key: plain(entry) for key, entry in value.entries.items()}


def resolve(text: str) -> Plain:
    """Return what an unquoted YAML scalar stands for.

    Raises:
        ValueError: it is a number that is too large to be held.
    """
    if text in _NULL:
        return None
    if text in _BOOLEANS:
        return _BOOLEANS[text]
    if text[0] in "+-.0123456789":
        if _INTEGER.fullmatch(text):
            return integer(text)
        if _FLOAT.fullmatch(text):
            return decimal(text)
    return text


def integer(text: str) -> int:
    """Return a whole number; ValueError when it is too long to be one that somebody meant."""
    if len(text) > _DIGITS_MAX:
        raise ValueError("the number is too long; put it in quotes if it is text")
    return int(text)


def decimal(text: str) -> float:
    """Return a decimal number; ValueError when it does not fit into a double."""
    number = float(text) if len(text) <= _DIGITS_MAX else math.inf
    if math.isinf(number):
        raise ValueError("the number is out of range; put it in quotes if it is text")
    return number


def unusable_character(text: str) -> str | None:
    """Return the name of a character that no command, path or message can carry, or None."""
    found = _UNUSABLE.search(text)
    return f"U+{ord(found.group()):04X}" if found else None
