"""The command that takes over runs of StateM: ``import``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from statem_dist.cli.answer import Answer
from statem_dist.cli.declare import Argument, Option
from statem_dist.cli.loading import warn
from statem_dist.cli.session import JsonOption, StateDirOption, require_no_service, session, usable_run_id
from statem_dist.errors import ExitCode, StatemError, Usage

if TYPE_CHECKING:
    from statem_dist.importing import Arrival


def import_(
    folder: Annotated[Path, Argument(metavar="DIR", help="A run's folder of StateM, or a whole .statem folder.")],
    run_id: Annotated[str | None, Option("--run-id", metavar="ID", help="The run's id here; for one run.")] = None,
    spec: Annotated[
        Path | None, Option("--spec", metavar="FILE", help="The runbook (default: where StateM had it).")
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Only show what would be imported.")] = False,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Take over runs of StateM where they stand: node, visit, tries, history and dynamic checks.

    Example: statem-dist import .statem --dry-run
    """
    from statem_dist import statem_folders
    from statem_dist.importing import arrival_view, bring

    require_no_service("import")
    files = statem_folders.find(Path(os.path.abspath(folder)))
    if run_id is not None and len(files) > 1:
        raise Usage(
            f"--run-id names one run, and {folder} holds {len(files)}.", hint="Name the folder of the one you mean."
        )
    arrived: list[tuple[Path, Arrival]] = []
    refused: list[tuple[Path, StatemError]] = []
    asked_for = None if run_id is None else usable_run_id(run_id)
    with session(state_dir) as at:
        for file in files:
            try:
                found = statem_folders.read(file)
                arrival = bring(at.store, at.settings, found, run_id=asked_for, spec=spec, dry_run=dry_run)
            except StatemError as error:
                if len(files) == 1 or error.exit_code == ExitCode.UNREACHABLE:
                    raise
                refused.append((file, error))
            else:
                arrived.append((file, arrival))
                warn(*(f"{arrival.command.run_id}: {warning}" for warning in arrival.warnings))
    data: dict[str, Any] = {
        "ok": not refused,
        "dry_run": dry_run,
        "runs": [arrival_view(arrival, file) for file, arrival in arrived],
        "refused": [
            {"source": str(file), "error": error.message, "code": error.code, "hint": error.hint}
            for file, error in refused
        ],
    }
    lines = [_line(arrival) for _, arrival in arrived]
    lines += [_refusal(file, error) for file, error in refused]
    if not refused:
        return Answer(data, lambda: "\n".join(lines))
    told = f"{len(refused)} of {len(files)} runs cannot be imported."
    return Answer(data, lambda: "\n".join(lines), ExitCode.ERROR, told)


def _refusal(file: Path, error: StatemError) -> str:
    """Return why a run was refused and what to do about it, under the name of its folder: its id with StateM."""
    hint = f"\n    {error.hint}" if error.hint else ""
    return f"Refused: {file.parent.name}: {error.message}{hint}"


def _line(arrival: Arrival) -> str:
    """Return what came of one run, in a line."""
    run = arrival.command
    what = f"{run.run_id} on {run.node}, {len(run.history)} history entries"
    match arrival.outcome:
        case "imported":
            return f"Imported: {what}{' (active)' if arrival.active else ''}"
        case "unchanged":
            return f"Unchanged: {what}; it was imported before"
        case "planned":
            return f"Would import: {what}{' (active)' if arrival.active else ''}"
