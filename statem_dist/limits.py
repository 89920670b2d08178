"""The limits that can be set on commands: their names, and how their values are written.

Runbooks, options of a worker and environment variables name the same four limits and write them the same way; this is
the one place that reads them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

NAMES = ("memory", "cpu", "processes", "files")
"""Every limit, in the order in which messages list them."""

VALUE_MAX = 2**62
"""No limit is larger: the kernel's numbers have 64 bits, and the largest of them mean that there is no limit."""

_SIZE = re.compile(r"([0-9]{1,18})\s*([KMGT]?)(?:i?B)?", re.IGNORECASE)
_SIZE_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}
_SECONDS = re.compile(r"([0-9]{1,18})\s*([smh]?)")
_SECOND_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}
_COUNT = re.compile(r"([0-9]{1,18})()")

_FORMS = {
    "memory": (_SIZE, _SIZE_UNITS, "a size, such as 512M or 2G"),
    "cpu": (_SECONDS, _SECOND_UNITS, "a whole number of seconds, such as 600 or 10m"),
    "processes": (_COUNT, {"": 1}, "a positive whole number"),
    "files": (_COUNT, {"": 1}, "a positive whole number"),
}


def limit_value(name: str, written: str) -> int:
    """Return the value of a limit: bytes of memory, seconds of processor time, or a number.

    Raises:
        ValueError: it is none; the message says what it must be.
    """
    form, units, wanted = _FORMS[name]
    found = form.fullmatch(written.strip())
    value = int(found.group(1)) * units[found.group(2).upper() if name == "memory" else found.group(2)] if found else 0
    if not 0 < value <= VALUE_MAX:
        raise ValueError(f"must be {wanted}")
    return value


def size_of(written: str) -> int:
    """Return a size in bytes, written as a limit of memory is: ``512M``, ``2G``, or bytes alone.

    Raises:
        ValueError: it is none; the message says what it must be.
    """
    return limit_value("memory", written)


def read_limits(given: Iterable[str]) -> dict[str, int]:
    """Return the limits that are given as ``NAME=VALUE``, by their names; empty texts are passed over.

    Raises:
        ValueError: there is no limit of that name, or its value is none; the message quotes it.
    """
    limits: dict[str, int] = {}
    for text in filter(None, (each.strip() for each in given)):
        name, sign, written = (part.strip() for part in text.partition("="))
        if not sign or name not in NAMES:
            raise ValueError(f"{text!r} is no limit: write NAME=VALUE with one of {', '.join(NAMES)}")
        try:
            limits[name] = limit_value(name, written)
        except ValueError as error:
            raise ValueError(f"{text!r}: {name} {error}") from None
    return limits
