"""Entry point: finds the command, calls it, and turns whatever happens into output and exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from io import StringIO
from typing import Any

from statem_dist.cli.answer import Answer, close_quietly, print_answer, print_error, print_json
from statem_dist.cli.commands import COMMANDS, FAIL_OPEN, GROUPS, load
from statem_dist.cli.quick import NotPlain, read
from statem_dist.errors import ExitCode, StatemError, Usage

COMPLETION = "_STATEM_DIST_COMPLETE"
"""Set by a shell that asks for completions."""


def main() -> None:
    """Run the command line of this process."""
    sys.exit(run(sys.argv[1:]))


def run(words: Sequence[str]) -> int:
    """Run one command and return its exit code; see ``ExitCode``."""
    if sys.stdout is None:
        # Started with a closed stdout (`>&-`): whatever would go there has no reader.
        sys.stdout = StringIO()
    as_json = "--json" in words
    code = ExitCode.DONE
    try:
        code, show = _outcome(words)
        show(as_json)
        sys.stdout.flush()
    except BrokenPipeError:
        # Whoever read has read enough; what the command did is done, and its code stands.
        close_quietly()
    except OSError as error:
        close_quietly()
        print(f"Error: stdout cannot be written: {error.strerror}.", file=sys.stderr)
        return int(code or ExitCode.ERROR)
    return int(code)


def _outcome(words: Sequence[str]) -> tuple[ExitCode, Callable[[bool], None]]:
    """Call the command, and return its exit code with how to show what came of it (as JSON or not)."""
    try:
        result = _call(words)
    except StatemError as error:
        if " ".join(words[:2]) in FAIL_OPEN:
            return ExitCode.DONE, partial(_let_go, error)
        return error.exit_code, partial(_show_error, error)
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED, _show_interruption
    except BrokenPipeError:
        raise
    except Exception as error:
        if os.environ.get("STATEM_DEBUG"):
            raise
        defect = StatemError(
            f"{type(error).__name__}: {error}",
            hint="This is a defect of statem-dist. STATEM_DEBUG=1 shows where it happened; please report it.",
        )
        return defect.exit_code, partial(_show_error, defect)
    if isinstance(result, Answer):
        return result.exit_code, partial(_show_answer, result)
    return ExitCode(result or 0), lambda as_json: None


def _show_answer(answer: Answer, as_json: bool) -> None:
    print_answer(answer, as_json=as_json)


def _show_error(error: StatemError, as_json: bool) -> None:
    print_error(error, as_json=as_json)


def _let_go(error: StatemError, as_json: bool) -> None:
    print_json({"systemMessage": f"statem-dist: {error.message}"})


def _show_interruption(as_json: bool) -> None:
    if as_json:
        print_json({"ok": False, "error": "Interrupted.", "code": "interrupted", "details": {}})
    else:
        print("Interrupted.", file=sys.stderr)


def _call(words: Sequence[str]) -> Any:
    """Call the command that the words name, and return what it returns."""
    name = _name(words)
    if name in COMMANDS and COMPLETION not in os.environ:
        command = load(name)
        try:
            values = read(command, words[len(name.split()) :])
        except NotPlain:
            pass
        else:
            return command(**values)
    return _call_in_full(words)


def _name(words: Sequence[str]) -> str:
    """Return what would be the name of a command: the first word, or two where the first one is that of a group."""
    return " ".join(words[: 2 if words and words[0] in GROUPS else 1])


def _call_in_full(words: Sequence[str]) -> Any:
    """Leave the words to the full application: help, completion, and mistakes."""
    from typer.exceptions import Abort, TyperException
    from typer.main import get_command

    from statem_dist.cli.full import make_app

    try:
        return get_command(make_app()).main(args=list(words), prog_name="statem-dist", standalone_mode=False)
    except TyperException as error:
        if not error.format_message():
            # Without a command the application has shown its help, which says it all.
            return ExitCode.USAGE
        # Where pydantic found the mistake, Typer passes on its words with the kind of error before them.
        raise Usage(error.format_message().replace("Value error, ", ""), hint=_usage_hint(words)) from error
    except Abort as error:
        raise KeyboardInterrupt from error


def _usage_hint(words: Sequence[str]) -> str:
    """Return where help is: that of the command, if the words name one, else that of its group."""
    name = _name(words)
    if name in COMMANDS:
        return f"`statem-dist {name} --help` shows how it is called."
    group = name.partition(" ")[0]
    return f"`statem-dist {f'{group} ' if group in GROUPS else ''}--help` lists the commands."


if __name__ == "__main__":
    main()
