"""What a command answers, and how answers and errors reach the caller.

Data goes to stdout and talk to stderr. With ``--json`` stdout is exactly one JSON document, whatever happens.
"""

from __future__ import annotations

import json
import os
import select
import sys
from collections.abc import Callable
from typing import Any

from msgspec import Struct

from statem_dist.errors import ExitCode, StatemError


class Answer(Struct, frozen=True):
    """The result of a command.

    ``data`` is what ``--json`` prints. ``text`` makes what is printed without it; it is called only then. For an
    answer that is no success, ``error`` says so in a sentence, and ``data`` becomes its ``details``.
    """

    data: dict[str, Any]
    text: Callable[[], str]
    exit_code: ExitCode = ExitCode.DONE
    error: str = ""


def print_answer(answer: Answer, *, as_json: bool) -> None:
    """Print an answer to stdout; the sentence of an unsuccessful one goes to stderr without ``--json``."""
    if as_json:
        print_json({"ok": False, "error": answer.error, "details": answer.data} if answer.error else answer.data)
        return
    if text := answer.text():
        print(text)
    if answer.error:
        sys.stdout.flush()
        print(answer.error, file=sys.stderr)


def print_error(error: StatemError, *, as_json: bool) -> None:
    """Print an error: one JSON document on stdout, or message and hint on stderr."""
    if as_json:
        document = {"ok": False, "error": error.message, "code": error.code, "details": error.details}
        print_json(document | ({"hint": error.hint} if error.hint else {}))
    else:
        print(f"Error: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"Hint: {error.hint}", file=sys.stderr)


def print_json(document: dict[str, Any]) -> None:
    """Print one JSON document; text in any script stays readable."""
    print(json.dumps(document, ensure_ascii=False, indent=2 if sys.stdout.isatty() else None))


def print_line(document: dict[str, Any]) -> None:
    """Print a document as one line of JSON, at once: one of many, for a reader who waits for each."""
    print(json.dumps(document, ensure_ascii=False), flush=True)


def require_reader() -> None:
    """Raise ``BrokenPipeError`` if the reader of stdout has gone, which a command that only waits would not notice."""
    poll = select.poll()
    poll.register(sys.stdout.fileno(), 0)
    if poll.poll(0):
        raise BrokenPipeError


def close_quietly_after_broken_pipe() -> None:
    """Let the interpreter end without a complaint after the reader of stdout has gone."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())
