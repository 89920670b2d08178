"""Ids of runs: how they are made, which ones can be used, and what is said where none is meant."""

from __future__ import annotations

import os
import re
import time

from statem_dist.errors import Invalid, NotFound

RUN_ID_LENGTH_MAX = 200
"""Characters of a run id; it becomes part of keys, file names and environment variables."""

QUEUE_NAME = re.compile(r"[A-Za-z0-9._-]+")
"""What the whole name of a queue must match."""

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._-]*$"
"""Ids and queue names at the service: letters, digits, ``.``, ``_`` and ``-``; they become parts of keys and paths."""


def no_active_run(state_dir: str, why: str = "") -> NotFound:
    """Return the error for a command that names no run where none was started; ``why`` begins its hint."""
    return NotFound(
        "No active run.",
        hint=f"{why} Start one with `statem-dist start RUNBOOK`, or name one with --run-id.".lstrip(),
        details={"state_dir": state_dir},
    )


def clean_run_id(text: str) -> str:
    """Return a run id of safe characters: trimmed, and each stretch of others turned into a hyphen.

    Raises:
        Invalid: nothing is left, or it is too long.
    """
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", text.strip()).strip("-")
    if not cleaned.strip("."):
        raise Invalid(f"The run id {text!r} has no usable character.", hint="Use letters, digits, '.', '_' and '-'.")
    if len(cleaned) > RUN_ID_LENGTH_MAX:
        raise Invalid(
            f"The run id is {len(cleaned)} characters long; {RUN_ID_LENGTH_MAX} are allowed.",
            hint="Choose a shorter one, and keep the rest in labels.",
        )
    return cleaned


def require_name(text: str, what: str) -> None:
    """Refuse a name that came from elsewhere and that the service could not be asked for.

    Args:
        text: the name.
        what: what it is, as the beginning of a sentence.

    Raises:
        Invalid: it has other characters than a name may have, or too many.
    """
    if len(text) > RUN_ID_LENGTH_MAX or not re.fullmatch(NAME_PATTERN, text):
        raise Invalid(
            f"{what} {text[:RUN_ID_LENGTH_MAX]!r} cannot be used.",
            hint=f"Up to {RUN_ID_LENGTH_MAX} letters, digits, '.', '_' and '-', the first one a letter or a digit.",
        )


def new_run_id(name: str) -> str:
    """Return a run id for a new run of a runbook: its name, the time in UTC, and 48 random bits."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"
    return f"{stem[:80]}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.urandom(6).hex()}"
