"""Typed access to the keywords of one mapping: the grammar of single values, in one place.

Each accessor returns a usable value whatever it finds. If the value is of the wrong kind the problem is
noted with its place, and the default is returned, so that reading goes on to the next mistake. Null counts
as absent everywhere, except where a caller asks with ``present``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection

from statem_dist.durations import seconds_of
from statem_dist.runbook.problems import Problems, Suggestion
from statem_dist.runbook.tree import Mapping, Scalar, Sequence, Value, is_null

SECONDS_MAX = 366 * 24 * 3600.0
"""Upper bound of any duration: one year, which no check outlives, and which still fits every timer."""

_CLOCK = re.compile(r"[0-9]+(?::[0-9]+)+")
_NOTHING_ASIDE: dict[str, str] = {}


class Fields:
    """The keywords of one mapping.

    Args:
        mapping: what was written.
        where: path of the mapping, the stem of its children's paths.
        label: how problems of the mapping itself name it; ``where`` if not given.
    """

    def __init__(self, mapping: Mapping, where: str, problems: Problems, *, label: str = "") -> None:
        self.mapping = mapping
        self.where = where
        self.label = label or where
        self._problems = problems

    def path(self, key: str) -> str:
        """Return the path of a keyword's value."""
        return f"{self.where}.{key}" if self.where else key

    def present(self, key: str) -> bool:
        """Return whether the keyword is written at all, be it with null."""
        return key in self.mapping.entries

    def get(self, key: str) -> Value | None:
        """Return the value of a keyword, or None when it is absent or null."""
        value = self.mapping.entries.get(key)
        return None if is_null(value) else value

    def first(self, *keys: str) -> tuple[str, Value] | None:
        """Return the first of several spellings that has a value, with that value."""
        return next(((key, value) for key in keys if (value := self.get(key)) is not None), None)

    def wrong(self, message: str, *, hint: str = "") -> None:
        """Note a problem of the mapping as a whole, such as a missing keyword."""
        self._problems.error(self.mapping.at, self.label, message, hint=hint)

    def refuse(self, key: str, message: str, *, hint: str = "", near: Suggestion | None = None) -> None:
        """Note a problem of one keyword's value."""
        self._problems.error(self.mapping.entries[key].at, self.path(key), message, hint=hint, near=near)

    def only(
        self,
        keywords: Collection[str],
        *,
        hint_for: Callable[[str], str] = lambda keyword: "",
        asides: dict[str, str] = _NOTHING_ASIDE,
    ) -> None:
        """Note every keyword that is not in ``keywords``.

        Args:
            keywords: those that this mapping may have.
            hint_for: says what to do about a keyword that is known elsewhere; an empty text for any other.
            asides: what a warning of a keyword says, by the keyword; see ``Problems.unknown_keyword``.
        """
        for key, at in self.mapping.key_at.items():
            if key in self.mapping.entries and key not in keywords:
                hint = hint_for(key)
                self._problems.unknown_keyword(
                    at, self.label, key, () if hint else keywords, hint=hint, aside=asides.get(key, "")
                )

    def text(self, *keys: str) -> str | None:
        """Return the text of the first spelling that is given, numbers as they are written; None if none is."""
        found = self.first(*keys)
        if found is None:
            return None
        key, value = found
        if not isinstance(value, Scalar):
            self.refuse(key, "must be text", hint=_QUOTE_HINT if isinstance(value, Mapping) else "")
            return None
        return value.words

    def required_text(self, complaint: str, *keys: str) -> str:
        """Return a text that must not be blank; ``complaint`` is said of the mapping when it is missing."""
        found = self.first(*keys)
        if found is None or (isinstance(found[1], Scalar) and not (found[1].words or "").strip()):
            self.wrong(complaint)
        return self.text(*keys) or ""

    def name(self, *keys: str) -> str | None:
        """Return a name with surrounding blanks stripped, or None; a blank one is a problem."""
        found = self.first(*keys)
        text = self.text(*keys)
        if found is None or text is None:
            return None
        if not text.strip():
            self.refuse(found[0], "must not be empty")
        return text.strip() or None

    def texts(self, *keys: str) -> tuple[str, ...]:
        """Return a list of texts; one text stands for a list of one."""
        found = self.first(*keys)
        if found is None:
            return ()
        key, value = found
        if isinstance(value, Mapping):
            self.refuse(key, "must be a list of texts")
            return ()
        texts: list[str] = []
        for number, item in enumerate(value.items if isinstance(value, Sequence) else (value,)):
            words = item.words if isinstance(item, Scalar) else None
            if words is not None and words.strip():
                texts.append(words)
                continue
            where = f"{self.path(key)}[{number}]" if isinstance(value, Sequence) else self.path(key)
            if isinstance(item, Scalar):
                self._problems.error(item.at, where, "must not be empty")
            else:
                self._problems.error(
                    item.at, where, "must be text", hint=_QUOTE_HINT if isinstance(item, Mapping) else ""
                )
        return tuple(texts)

    def flag(self, key: str) -> bool | None:
        """Return true or false, or None when absent."""
        value = self.get(key)
        if value is None:
            return None
        if isinstance(value, Scalar) and isinstance(value.data, bool):
            return value.data
        self.refuse(key, "must be true or false")
        return None

    def integer(self, key: str, complaint: str, *, least: int, most: int | None = None) -> int | None:
        """Return a whole number within bounds, or None when absent; a number in quotes is none."""
        value = self.get(key)
        if value is None:
            return None
        number = value.data if isinstance(value, Scalar) else None
        if isinstance(number, int) and not isinstance(number, bool) and number >= least:
            if most is None or number <= most:
                return number
            self.refuse(key, f"must be at most {most}")
        else:
            self.refuse(key, complaint)
        return None

    def number(self, key: str, default: float, *, least: float, most: float) -> float:
        """Return a number within bounds."""
        value = self.get(key)
        if value is None:
            return default
        number = value.data if isinstance(value, Scalar) else None
        if isinstance(number, int | float) and not isinstance(number, bool) and least <= number <= most:
            return float(number)
        self.refuse(key, f"must be a number from {least:g} to {most:g}")
        return default

    def seconds(self, key: str) -> float | None:
        """Return a duration in seconds, written as a number or as ``90s``, ``5m``, ``1h``; None when absent."""
        value = self.get(key)
        if value is None:
            return None
        written = value.data if isinstance(value, Scalar) else None
        seconds = math.nan
        if isinstance(written, int | float) and not isinstance(written, bool):
            seconds = written
        elif isinstance(written, str) and (found := seconds_of(written, "smh")) is not None:
            seconds = found
        if 0 < seconds <= SECONDS_MAX:
            return float(seconds)
        if isinstance(written, str) and _CLOCK.fullmatch(written.strip()):
            message = f"must be a positive number of seconds; '{written}' is a time of day, not a duration"
            self.refuse(key, message, hint="write seconds (90) or a unit (90s, 5m, 1h)")
        elif seconds > SECONDS_MAX:
            self.refuse(key, f"must be at most {SECONDS_MAX:.0f} seconds")
        else:
            self.refuse(key, "must be a positive number of seconds", hint="such as 90, or with a unit 90s, 5m, 1h")
        return None

    def choice(self, key: str, choices: Collection[str], default: str) -> str:
        """Return one of a few words."""
        value = self.get(key)
        if value is None:
            return default
        word = value.words.strip() if isinstance(value, Scalar) and value.words is not None else None
        if word in choices and word is not None:
            return word
        shown = f", not '{word}'" if word is not None else ""
        self.refuse(key, f"must be {' or '.join(choices)}{shown}", near=Suggestion(word, choices) if word else None)
        return default

    def pattern(self, key: str) -> str | None:
        """Return a regular expression that compiles, or None when absent."""
        text = self.text(key)
        if text is None:
            return None
        if why := _pattern_error(text):
            self.refuse(key, f"is no regular expression: {why}")
        return text


_QUOTE_HINT = "quote it, because ': ' outside of quotes makes a mapping"


def _pattern_error(pattern: str) -> str:
    """Return why a pattern does not compile, or an empty text."""
    import warnings

    try:
        with warnings.catch_warnings():
            # A doubtful but valid pattern makes `re` warn about its future; that is no error of the runbook.
            warnings.simplefilter("ignore")
            re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        return str(error) or "it nests too deeply"
    return ""
