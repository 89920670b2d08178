"""Entry point: finds the command, calls it, and turns whatever happens into output and exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from statem_dist.cli.answer import Answer, close_quietly_after_broken_pipe, print_answer, print_error
from statem_dist.cli.commands import COMMANDS, GROUPS, load
from statem_dist.cli.quick import NotPlain, read
from statem_dist.errors import ExitCode, StatemError, Usage

COMPLETION = "_STATEM_DIST_COMPLETE"
"""Set by a shell that asks for completions."""


def main() -> None:
    """Run the command line of this process."""
    sys.exit(run(sys.argv[1:]))


def run(words: Sequence[str]) -> int:
    """Run one command and return its exit code; see ``ExitCode``."""
    as_json = "--json" in words
    try:
        result = _call(words)
        if isinstance(result, Answer):
            print_answer(result, as_json=as_json)
            result = result.exit_code
        sys.stdout.flush()
        return int(result or 0)
    except StatemError as error:
        print_error(error, as_json=as_json)
        return int(error.exit_code)
    except KeyboardInterrupt:
        print("Interrupted.", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        close_quietly_after_broken_pipe()
        return int(ExitCode.ERROR)
    except Exception as error:
        if os.environ.get("STATEM_DEBUG"):
            raise
        defect = StatemError(
            f"{type(error).__name__}: {error}",
            hint="This is a defect of statem-dist. STATEM_DEBUG=1 shows where it happened; please report it.",
        )
        print_error(defect, as_json=as_json)
        return int(defect.exit_code)


def _call(words: Sequence[str]) -> Any:
    """Call the command that the words name, and return what it returns."""
    length = 2 if words and words[0] in GROUPS else 1
    name = " ".join(words[:length])
    if name in COMMANDS and COMPLETION not in os.environ:
        command = load(name)
        try:
            values = read(command, words[length:])
        except NotPlain:
            pass
        else:
            return command(**values)
    return _call_in_full(words)


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
        hint = "`statem-dist --help` lists the commands, COMMAND --help its options."
        raise Usage(error.format_message(), hint=hint) from error
    except Abort as error:
        raise KeyboardInterrupt from error


if __name__ == "__main__":
    main()
