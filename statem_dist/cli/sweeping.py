"""Commands on sweeps: ``sweep run``."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from statem_dist.cli.answer import Answer
from statem_dist.cli.declare import Argument, Option
from statem_dist.cli.session import JsonOption, StateDirOption, require_no_service
from statem_dist.errors import ExitCode, Usage
from statem_dist.settings import Settings

if TYPE_CHECKING:
    from statem_dist.sweep.report import Report
    from statem_dist.sweep.spec import Sweep
    from statem_dist.sweep.trials import Trial

TROUBLES_MAX = 10
"""Reasons that are told below the table; those of all trials are in the JSON."""


def run(
    file: Annotated[Path, Argument(metavar="FILE", help="The sweep file.")],
    workers: Annotated[
        int, Option("--workers", "-w", metavar="N", min=0, max=64, help="Worker processes for its length.")
    ] = 0,
    concurrency: Annotated[
        int | None,
        Option("--concurrency", "-c", metavar="N", min=1, max=1000, help="Trials under way at once."),
    ] = None,
    limit: Annotated[
        int | None, Option("--limit", metavar="N", min=1, help="Only the first N trials of each row.")
    ] = None,
    only: Annotated[
        list[str] | None,
        Option("--only", metavar="KEY=VALUE", help="Only trials with this value; repeatable."),
    ] = None,
    out: Annotated[
        Path | None, Option("--out", metavar="FILE", help="Write the JSON document to this file as well.")
    ] = None,
    keep: Annotated[bool, Option("--keep/--no-keep", help="Keep the workspaces of the trials.")] = True,
    exit_status: Annotated[bool, Option("--exit-status", help="Exit with 6 unless every trial has passed.")] = False,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Drive every trial of a sweep to its end, and report.

    Exit codes: 0 every trial was judged, 1 some could not be, 6 with --exit-status if not all have passed.

    Example: statem-dist sweep run humaneval.sweep.yaml --workers 2
    """
    from statem_dist.cli.services import worker_arguments
    from statem_dist.sweep import report as reports
    from statem_dist.sweep.progress import progress_on
    from statem_dist.sweep.session import Options, run_sweep
    from statem_dist.sweep.spec import load_sweep

    require_no_service("sweep run")
    if out is not None and not os.access(out.absolute().parent, os.W_OK):
        raise Usage(f"--out {out}: its folder does not exist, or cannot be written to.")
    settings = Settings.from_environment(os.environ, state_dir=state_dir)
    found = load_sweep(file)
    wanted = _wanted(only, found)

    def select(trials: list[Trial]) -> list[Trial]:
        from statem_dist.sweep.trials import select

        chosen = select(trials, found.listed, wanted, limit)
        if not chosen:
            raise Usage("No trial of the sweep has all the values that --only asks for.")
        return chosen

    def worker_command(slots: int) -> Sequence[str]:
        return worker_arguments(
            queues=found.queue or "checks,llm",
            concurrency=slots,
            pool="threads",
            pass_env=None,
            grace=1.0,
            events=False,
            log_level="INFO",
        )

    report = run_sweep(
        found,
        select,
        settings,
        Options(workers=workers, worker_command=worker_command, concurrency=concurrency, keep=keep),
        lambda planned: progress_on(sys.stderr, planned),
        os.environ,
    )
    answer = _answer(report, exit_status=exit_status)
    if out is not None:
        reports.write(answer.data, out.absolute())
    return answer


def _wanted(only: list[str] | None, found: Sweep) -> dict[str, list[str]]:
    """Return the values that ``--only`` asks for, by axis."""
    axes = {name for cell in found.cells for name in cell}
    wanted: dict[str, list[str]] = {}
    for pair in only or ():
        name, separator, value = pair.partition("=")
        if not separator:
            raise Usage(f"--only takes KEY=VALUE, not {pair!r}.")
        if name not in axes:
            raise Usage(f"--only {pair}: the sweep has no {name!r}.", hint=f"It has: {', '.join(sorted(axes))}.")
        wanted.setdefault(name, []).append(value)
    return wanted


def _answer(report: Report, *, exit_status: bool) -> Answer:
    from statem_dist.sweep.progress import described
    from statem_dist.sweep.report import document, table, troubles

    everything = report.total
    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    data = document(report, must_pass=exit_status)

    def as_text() -> str:
        return "\n".join([table(report, columns=columns), *troubles(report, TROUBLES_MAX)])

    if report.interrupted:
        waiting = f", {pending} not begun" if (pending := everything.states["pending"]) else ""
        error = f"Interrupted: {described(everything.states)}{waiting}, of {everything.planned} planned."
        return Answer(data, as_text, ExitCode.INTERRUPTED, error)
    if errors := everything.states["error"]:
        error = f"{errors} of {everything.planned} trials could not be judged."
        return Answer(data, as_text, ExitCode.ERROR, error)
    if exit_status and (missed := everything.planned - everything.states["passed"]):
        error = f"{missed} of {everything.planned} trials have not passed."
        return Answer(data, as_text, ExitCode.UNSUCCESSFUL, error)
    return Answer(data, as_text)
