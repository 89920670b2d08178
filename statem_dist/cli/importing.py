"""The command that takes over runs, of StateM or of another store: ``import``."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

from statem_dist.cli.answer import Answer
from statem_dist.cli.declare import Argument, Option
from statem_dist.cli.loading import warn
from statem_dist.cli.session import JsonOption, Session, StateDirOption, require_no_service, session, usable_run_id
from statem_dist.errors import Conflict, ExitCode, Invalid, StatemError, Usage

if TYPE_CHECKING:
    from statem_dist.importing import Arrival
    from statem_dist.transfer import Parcel


def import_(
    folder: Annotated[
        Path,
        Argument(metavar="PATH", help="A folder of a run of StateM, or .statem; or what `export` wrote, or -."),
    ],
    run_id: Annotated[
        str | None, Option("--run-id", metavar="ID", help="The run's id here; for one run of StateM.")
    ] = None,
    spec: Annotated[
        Path | None, Option("--spec", metavar="FILE", help="The runbook (default: where StateM had it).")
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Only show what would be imported.")] = False,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Take over runs where they stand: those of StateM, or those of a file or folder that `export` or `archive` wrote.

    Example: statem-dist import .statem --dry-run
    """
    from statem_dist import statem_folders
    from statem_dist.importing import arrival_view, bring

    require_no_service("import")
    if _holds_files_of_runs(folder):
        if run_id is not None or spec is not None:
            raise Usage("--run-id and --spec are for runs of StateM: a file of runs says its own.")
        return _import_files(folder, dry_run, state_dir)
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


def _holds_files_of_runs(path: Path) -> bool:
    """Return whether a path means files that ``export`` or ``archive`` wrote, and no folder of StateM."""
    from statem_dist.transfer import SUFFIX

    if path.is_dir():
        patterns = (f"*{SUFFIX}", f"*{SUFFIX}.gz", f"[0-9a-f][0-9a-f]/*{SUFFIX}.gz")
        return any(True for pattern in patterns for _ in path.glob(pattern))
    return str(path) == "-" or (path.is_file() and path.name != "state.json")


def _import_files(path: Path, dry_run: bool, state_dir: str | None) -> Answer:
    """Take over the runs of one file or of all files of a folder; nothing of a file that is refused is written."""
    from statem_dist import transfer

    imported: list[str] = []
    unchanged: list[str] = []
    refused: list[tuple[str, StatemError]] = []
    with session(state_dir) as at:
        for name, file in _opened(path):
            try:
                # Once to the end before anything is written: a file that was cut off is refused as a whole.
                for _ in transfer.read(transfer.lines_of(file)):
                    pass
                for parcel in transfer.read(transfer.lines_of(file)):
                    try:
                        new = _take_over(at, parcel, dry_run)
                    except Conflict as error:
                        refused.append((parcel.run.id, error))
                    else:
                        (imported if new else unchanged).append(parcel.run.id)
            except Invalid as error:
                refused.append((name, error))
    data: dict[str, Any] = {
        "ok": not refused,
        "dry_run": dry_run,
        "imported": imported,
        "unchanged": unchanged,
        "refused": [
            {"source": source, "error": error.message, "code": error.code, "hint": error.hint}
            for source, error in refused
        ],
    }
    lines = [f"{'Would import' if dry_run else 'Imported'}: {run_id}" for run_id in imported]
    lines += [f"Unchanged: {run_id}; it is there already" for run_id in unchanged]
    lines += [f"Refused: {source}: {error.message}" for source, error in refused]
    if not refused:
        return Answer(data, lambda: "\n".join(lines) or "There are no runs in it.")
    only = refused[0][1] if len(refused) == 1 and not imported and not unchanged else None
    told = f"{len(refused)} of what was found there cannot be imported."
    return Answer(data, lambda: "\n".join(lines), ExitCode.ERROR if only is None else only.exit_code, told)


def _take_over(at: Session, parcel: Parcel, dry_run: bool) -> bool:
    """Take over a run; return False if it is there already, as the file has it or further on.

    Raises:
        Conflict: another run has its id.
    """
    from statem_dist.coordinator import run_exists
    from statem_dist.engine import Engine
    from statem_dist.transfer import is_there_already

    engine = at.engine
    assert isinstance(engine, Engine), "without a service the runs are in a store"
    if is_there_already(engine.store, parcel):
        return False
    if dry_run:
        if engine.find(parcel.run.id) is not None:
            raise run_exists(parcel.run.id)
        return True
    engine.adopt(parcel)
    return True


def _opened(path: Path) -> Iterator[tuple[str, IO[bytes]]]:
    """Yield the name of each file of runs that is meant, and the file; what comes from stdin is kept on disk first."""
    from statem_dist.transfer import files_below

    if str(path) == "-":
        with tempfile.TemporaryFile() as kept:
            shutil.copyfileobj(sys.stdin.buffer, kept)
            yield "stdin", kept
        return
    for each in files_below(path):
        with each.open("rb") as file:
            yield str(each), file


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
