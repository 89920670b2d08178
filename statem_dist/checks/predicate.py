"""Predicates: declarative tests of one file, evaluated by the host itself.

Every condition that is given must hold, and all that do not are named together. A file that cannot be looked into
(a directory, a pipe, not UTF-8, not JSON, too large) is a failed predicate that says why. Text is read as Python
reads text files, with line ends as ``\\n``, whatever the locale. Values are compared as Python compares them: ``1``
equals ``1.0`` and ``True``, the text ``"1"`` equals neither.
"""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator
from typing import Any

from msgspec import UNSET, structs

from statem_dist.checks.confinement import Unconfinable, UnfitHost
from statem_dist.checks.context import CheckContext
from statem_dist.checks.output import shorten
from statem_dist.checks.patterns import PatternFailure, search
from statem_dist.checks.process import Supervisor
from statem_dist.protocol.graph import Check, Predicate
from statem_dist.protocol.outcome import Outcome, Reason

HAS_DESCRIPTORS = os.path.isdir("/proc/self/fd")
"""Whether the system can say which file is open."""

SHOWN_CHARACTERS_MAX = 200
"""How much of a value a failure shows."""


class Unreadable(Exception):
    """A file that exists and cannot be tested; the message says why, without the path."""


def evaluate_predicate(check: Check, predicate: Predicate, context: CheckContext, supervisor: Supervisor) -> Outcome:
    """Test a file and return the outcome; ``check_failed`` covers files that cannot be tested.

    A file that the rules of the check put out of bounds is not looked at, and is a ``config_error``; where it is the
    workspace itself, a ``spawn_failed``.

    Raises:
        SearchInterrupted: the search for a pattern was kept from answering.
    """
    started = time.monotonic()
    directory = context.directory(check)
    path = os.path.join(directory, predicate.path)
    try:
        looked_at = context.rules.file(context.workspace, directory, path) if context.rules.guard_files else path
    except (Unconfinable, ValueError) as error:
        reason: Reason = "spawn_failed" if isinstance(error, UnfitHost) else "config_error"
        return Outcome(passed=False, reason=reason, output=f"the predicate cannot be evaluated: {error}")
    failures = "\n".join(f"{path}: {failure}" for failure in _failures(predicate, looked_at, context, supervisor))
    # JSON may hold halves of surrogate pairs, which no later encoding of this text would survive.
    output = failures.encode(errors="replace").decode()
    return Outcome(
        passed=not output,
        reason="check_failed" if output else "passed",
        output=shorten(output, context.limits.output_bytes_max),
        duration_ms=round((time.monotonic() - started) * 1000),
    )


def _failures(predicate: Predicate, path: str, context: CheckContext, supervisor: Supervisor) -> Iterator[str]:
    """Yield what is wrong, one sentence per condition that does not hold."""
    try:
        status = os.stat(path)
    except (FileNotFoundError, NotADirectoryError):
        others = ", ".join(_conditions(structs.replace(predicate, exists=None)))
        if predicate.exists is not False or others:
            yield "does not exist" + (f" (to be tested: {others})" if others else "")
        return
    except (OSError, ValueError) as error:
        yield f"cannot be examined: {_reason(error)}"
        return
    if predicate.exists is False:
        yield "exists, and should not"
    try:
        if predicate.non_empty is not None or _needs_text(predicate) or _needs_json(predicate):
            if not stat.S_ISREG(status.st_mode):
                raise Unreadable("is a directory" if stat.S_ISDIR(status.st_mode) else "is not a regular file")
            if predicate.non_empty is not None and (status.st_size > 0) is not predicate.non_empty:
                yield "is empty" if predicate.non_empty else f"is not empty ({status.st_size} bytes)"
        if _needs_text(predicate) or _needs_json(predicate):
            text = _read(path, context.limits.predicate_bytes_max, exactly=context.rules.guard_files)
            yield from _text_failures(predicate, text, context, supervisor)
            if _needs_json(predicate):
                yield from _json_failures(predicate, text)
    except Unreadable as unreadable:
        yield f"{unreadable} (to be tested: {', '.join(_conditions(predicate))})"


def _text_failures(predicate: Predicate, text: str, context: CheckContext, supervisor: Supervisor) -> Iterator[str]:
    if predicate.contains is not None and predicate.contains not in text:
        yield f"does not contain {_shown(predicate.contains)}"
    if predicate.not_contains is not None and predicate.not_contains in text:
        yield f"contains {_shown(predicate.not_contains)}, and should not"
    if predicate.matches is not None:
        try:
            if not search(predicate.matches, text, context, supervisor):
                yield f"does not match the pattern {predicate.matches}"
        except PatternFailure as failure:
            yield str(failure)


def _json_failures(predicate: Predicate, text: str) -> Iterator[str]:
    try:
        value = json.loads(text)
        where = f"json_path {predicate.json_path}" if predicate.json_path else "the document"
        for step in predicate.json_path.split(".") if predicate.json_path else ():
            try:
                value = _follow(value, step)
            except LookupError:
                yield f"{where} leads nowhere: there is no {step!r} in {_shown(value)}"
                return
        if predicate.equals is not UNSET and value != predicate.equals:
            yield f"{where} is {_shown(value)}, not {_shown(predicate.equals)}"
        if predicate.one_of is not None and value not in predicate.one_of:
            yield f"{where} is {_shown(value)}, which is none of {_shown(list(predicate.one_of))}"
    except RecursionError:
        yield "is nested too deeply to be read as JSON"
    except ValueError as error:
        yield f"is not JSON: {error}"


def _follow(value: Any, step: str) -> Any:
    """Return the member of a mapping or list that a step of a ``json_path`` names.

    Raises:
        LookupError: there is none.
    """
    if isinstance(value, dict):
        return value[step]
    if isinstance(value, list):
        try:
            return value[int(step)]
        except ValueError as error:
            raise LookupError(step) from error
    raise LookupError(step)


def _read(path: str, bytes_max: int, *, exactly: bool) -> str:
    """Return the text of a file.

    Args:
        exactly: whether the path, which has no links in it, must not lead elsewhere by now.

    Raises:
        Unreadable: it cannot be opened, is longer than ``bytes_max``, is not UTF-8, or was exchanged.
    """
    try:
        # A pipe may have taken the file's place since it was looked at; opening that must not wait for a writer.
        with open(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK), "rb") as file:
            if exactly and HAS_DESCRIPTORS and os.readlink(f"/proc/self/fd/{file.fileno()}") != path:
                raise Unreadable("was exchanged for something else while it was opened")
            octets = file.read(bytes_max + 1)
    except OSError as error:
        raise Unreadable(f"cannot be read: {_reason(error)}") from error
    if len(octets) > bytes_max:
        raise Unreadable(f"is larger than {bytes_max} bytes")
    try:
        text = octets.decode()
    except UnicodeDecodeError as error:
        raise Unreadable(f"is not UTF-8 (byte {error.start})") from error
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _needs_text(predicate: Predicate) -> bool:
    return predicate.contains is not None or predicate.not_contains is not None or predicate.matches is not None


def _needs_json(predicate: Predicate) -> bool:
    return predicate.json_path is not None or predicate.equals is not UNSET or predicate.one_of is not None


def _conditions(predicate: Predicate) -> Iterator[str]:
    """Yield the conditions that are given, as ``name value``."""
    for name, value in structs.asdict(predicate).items():
        if name != "path" and value is not None and value is not UNSET:
            yield f"{name} {_shown(value)}"
    if predicate.equals is None:
        yield "equals null"


def _shown(value: Any) -> str:
    """Return a value as JSON, shortened."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= SHOWN_CHARACTERS_MAX else f"{text[:SHOWN_CHARACTERS_MAX]}..."


def _reason(error: OSError | ValueError) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
