"""Reading a runbook file for a command that tells what is doubtful about it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from statem_dist.runbook import Parsed


def load_telling(path: Path, *, strict: bool = False, silent: bool = False) -> Parsed:
    """Read a runbook, and print its warnings to stderr, also when it turns out to be invalid.

    A misspelt keyword is a warning, and often the cause of the errors beside it.

    Args:
        path: the file.
        strict: whether unknown keywords are errors.
        silent: print nothing; for a command whose JSON document has the warnings.

    Raises:
        RunbookInvalid: the file cannot be read or is no valid runbook.
    """
    from statem_dist import runbook as runbooks
    from statem_dist.errors import RunbookInvalid

    try:
        parsed = runbooks.load(path, strict=strict)
    except RunbookInvalid as error:
        if not silent:
            warn(*error.details["warnings"])
        raise
    if not silent:
        warn(*(str(warning) for warning in parsed.warnings))
    return parsed


def warn(*sentences: str) -> None:
    """Print sentences to stderr, each as a warning of its own."""
    for sentence in sentences:
        print(f"Warning: {sentence}", file=sys.stderr)
