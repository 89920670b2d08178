"""Entry point: builds the command tree, runs one command, and turns whatever happens into output and exit code."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence

import typer
from typer.exceptions import Abort, TyperException

from statem_dist import __version__
from statem_dist.cli import deciding, drawing, dynamic, hook, importing, moving, reading, services, sweeping
from statem_dist.cli.answer import Answer, close_quietly_after_broken_pipe, print_answer, print_error
from statem_dist.errors import ExitCode, StatemError, Usage

app = typer.Typer(
    name="statem-dist",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Runbooks for long agent runs: checked, recoverable transitions, on as many workers as there are.",
)
moving.add_to(app)
dynamic.add_to(app)
deciding.add_to(app)
reading.add_to(app)
drawing.add_to(app)
importing.add_to(app)
hook.add_to(app)
services.add_to(app)
sweeping.add_to(app)


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: bool = typer.Option(False, "--version", help="Print the version and exit."),
) -> Answer | None:
    """Runbooks for long agent runs: checked, recoverable transitions, on as many workers as there are."""
    if version:
        print(f"statem-dist {__version__}")
        raise typer.Exit
    return None


def main() -> None:
    """Run the command line of this process."""
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command and return its exit code; see ``ExitCode``."""
    as_json = "--json" in arguments
    try:
        result = typer.main.get_command(app).main(args=list(arguments), prog_name="statem-dist", standalone_mode=False)
        if isinstance(result, Answer):
            print_answer(result, as_json=as_json)
            result = result.exit_code
        sys.stdout.flush()
        return int(result or 0)
    except StatemError as error:
        print_error(error, as_json=as_json)
        return int(error.exit_code)
    except TyperException as error:
        usage = Usage(
            error.format_message(), hint="`statem-dist --help` lists the commands, COMMAND --help its options."
        )
        print_error(usage, as_json=as_json)
        return int(usage.exit_code)
    except (KeyboardInterrupt, Abort):
        print("Interrupted.", file=sys.stderr)
        return int(ExitCode.INTERRUPTED)
    except BrokenPipeError:
        close_quietly_after_broken_pipe()
        return int(ExitCode.ERROR)
    except Exception as error:
        if os.environ.get("STATEM_DEBUG"):
            traceback.print_exc()
        defect = StatemError(
            f"{type(error).__name__}: {error}",
            hint="This is a defect of statem-dist. STATEM_DEBUG=1 shows where it happened; please report it.",
        )
        print_error(defect, as_json=as_json)
        return int(defect.exit_code)


if __name__ == "__main__":
    main()
