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
    answer that is no success, ``error`` says so in a sentence, and ``data`` becomes its ``details``. ``drawn`` says
    that the text is drawn for this terminal, with codes of our own, and that nobody else's are in it.
    """

    data: dict[str, Any]
    text: Callable[[], str]
    exit_code: ExitCode = ExitCode.DONE
    error: str = ""
    drawn: bool = False


def print_answer(answer: Answer, *, as_json: bool) -> None:
    """Print an answer to stdout; the sentence of an unsuccessful one goes to stderr without ``--json``."""
    if as_json:
        print_json({"ok": False, "error": answer.error, "details": answer.data} if answer.error else answer.data)
        return
    if text := answer.text():
        print(text if answer.drawn else printable(text))
    if answer.error:
        sys.stdout.flush()
        print(printable(answer.error), file=sys.stderr)


def print_error(error: StatemError, *, as_json: bool) -> None:
    """Print an error: one JSON document on stdout, or message and hint on stderr."""
    if as_json:
        document = {"ok": False, "error": error.message, "code": error.code, "details": error.details}
        print_json(document | ({"hint": error.hint} if error.hint else {}))
    else:
        print(printable(f"Error: {error.message}"), file=sys.stderr)
        if error.hint:
            print(printable(f"Hint: {error.hint}"), file=sys.stderr)


def printable(text: str) -> str:
    """Return text with its control characters, newline and tab excepted, as visible escapes such as ``\\x1b``.

    Outputs of checks and texts of runbooks are somebody else's: they must not move the cursor of a terminal, or hide
    what is beside them.
    """
    return text.translate(_ESCAPES)


_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(0x20), *range(0x7F, 0xA0)) if chr(code) not in "\n\t"}


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


def close_quietly() -> None:
    """Let the interpreter end without a complaint about a stdout that cannot be written any more."""
    sink = os.open(os.devnull, os.O_WRONLY)
    os.dup2(sink, sys.stdout.fileno())
