"""Durations as people write them: a number and its unit."""

from __future__ import annotations

import re

UNIT_SECONDS = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*([a-z])")


def seconds_of(text: str, units: str) -> float | None:
    """Return a duration such as ``90s`` or ``1.5h`` in seconds; None if the text is none.

    Args:
        text: what was written.
        units: the letters that count, of ``UNIT_SECONDS``.
    """
    found = _DURATION.fullmatch(text.strip())
    if found is None or found.group(2) not in units:
        return None
    return float(found.group(1)) * UNIT_SECONDS[found.group(2)]
