"""Regular expressions of a runbook, searched so that none can hold up the worker.

Python's ``re`` keeps the interpreter to itself until it has an answer, and for some expressions that is never. No
thread can interrupt it. So a search runs in this process only where it provably ends soon: a short text, and an
expression with at most one place where matching can branch, which costs at most the square of the text's length.
Any other search runs as a command of the supervisor, with a time limit; it costs the start of an interpreter.
"""

from __future__ import annotations

import os
import re
import sys

from statem_dist.checks.command import reason_of_cancellation
from statem_dist.checks.context import CheckContext
from statem_dist.checks.output import text_of
from statem_dist.checks.process import Supervisor
from statem_dist.protocol.outcome import Reason

QUICK_TEXT_MAX = 16 * 1024
"""The longest text, in characters, that is searched in this process: at worst some tenths of a second."""

_GLOBAL_FLAGS = re.compile(r"^\(\?[aiLmsux]+\)")
_BRANCHES = re.compile(r"[*+?{|]")
_BACK_REFERENCES = re.compile(r"\\[1-9]|\(\?P=")

_FOUND, _NOT_FOUND = 10, 11
_PROGRAM = f"""
import re, sys
pattern, text = sys.stdin.buffer.read().split(b"\\0", 1)
pattern = bytes.fromhex(pattern.decode()).decode()
sys.exit({_FOUND} if re.search(pattern, text.decode()) else {_NOT_FOUND})
"""


class PatternFailure(Exception):
    """A search without an answer, which fails the check; the message says why."""


class SearchInterrupted(Exception):
    """A search that was kept from answering, which says nothing about the check; ``reason`` says by what."""

    def __init__(self, reason: Reason, message: str) -> None:
        super().__init__(message)
        self.reason = reason


def search(pattern: str, text: str, context: CheckContext, supervisor: Supervisor) -> bool:
    """Return whether ``re.search(pattern, text)`` finds anything. No flags but those inside the pattern.

    Raises:
        PatternFailure: the pattern is no regular expression, the text is too long, or the search took too long.
        SearchInterrupted: the search was cancelled, or no process could be had for it.
    """
    try:
        compiled = re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise PatternFailure(f"{pattern!r} is not a regular expression: {error}") from error
    if is_quick(pattern, text):
        return compiled.search(text) is not None
    return _search_outside(pattern, text, context, supervisor)


def is_quick(pattern: str, text: str) -> bool:
    """Return whether a search is sure to end soon. Doubtful cases count as slow."""
    body = _GLOBAL_FLAGS.sub("", pattern)
    return len(text) <= QUICK_TEXT_MAX and len(_BRANCHES.findall(body)) <= 1 and not _BACK_REFERENCES.search(body)


def _search_outside(pattern: str, text: str, context: CheckContext, supervisor: Supervisor) -> bool:
    limits = context.limits
    encoded = text.encode(errors="replace")
    if len(encoded) > limits.pattern_text_bytes_max:
        raise PatternFailure(
            f"{len(encoded)} bytes are too many for a regular expression (at most {limits.pattern_text_bytes_max})"
        )
    finished = supervisor.run(
        context.key,
        'exec "$PATTERN_PYTHON" -I -S -c "$PATTERN_PROGRAM"',
        cwd=os.path.sep,
        env={**context.environ, "PATTERN_PYTHON": sys.executable, "PATTERN_PROGRAM": _PROGRAM},
        stdin=pattern.encode(errors="replace").hex().encode() + b"\0" + encoded,
        timeout=limits.pattern_seconds,
    )
    if finished.exit_code in (_FOUND, _NOT_FOUND):
        return finished.exit_code == _FOUND
    if finished.timed_out:
        raise PatternFailure(f"searching for {pattern!r} took longer than {limits.pattern_seconds:g} s; simplify it")
    if finished.cancelled is not None:
        raise SearchInterrupted(reason_of_cancellation(finished.cancelled), f"ended early: {finished.cancelled}")
    if finished.failure is not None:
        # Also where the supervisor died: unlike a command, a search does nothing that must not be done twice.
        raise SearchInterrupted("spawn_failed", finished.text)
    raise PatternFailure(f"searching for {pattern!r} failed: {text_of(finished) or f'signal {finished.signal}'}")
