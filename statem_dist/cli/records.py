"""Commands on what is stored: ``verify``, ``export``, ``archive``, ``prune``."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from statem_dist.cli.answer import Answer, printable
from statem_dist.cli.declare import Argument, Option
from statem_dist.cli.session import JsonOption, Session, StateDirOption, require_no_service, session
from statem_dist.errors import ExitCode, Invalid, NotFound, StatemError, Unavailable, Usage

if TYPE_CHECKING:
    from statem_dist.archive import Archive
    from statem_dist.laws import Violation
    from statem_dist.protocol.model import Run
    from statem_dist.settings import Settings

TOLD_MAX = 1_000
"""Violations that are told one by one; more are counted."""

PROGRESS_SECONDS = 0.5
"""Pause between two lines of progress at a terminal."""

RunsArgument = Annotated[
    list[str] | None, Argument(metavar="RUN", help="Ids of runs; several may be given.", complete="runs")
]
AllOption = Annotated[bool, Option("--all", help="All of them.")]
ToOption = Annotated[
    Path | None,
    Option(
        "--to", metavar="DIR", help="The archive (default: STATEM_ARCHIVE_DIR, else archive/ in the state directory)."
    ),
]
OlderOption = Annotated[
    str | None, Option("--older-than", metavar="TIME", help="Only what ended so long ago: 30d, 12h, 30m, 45s.")
]
KeepOption = Annotated[
    int, Option("--keep", metavar="N", min=0, help="Not the N runs that were created last (default: 0).")
]
DryRunOption = Annotated[bool, Option("--dry-run", help="Only say which runs would go.")]


def verify(
    run: RunsArgument = None,
    all_: Annotated[bool, Option("--all", help="Every run, every sweep, every index.")] = False,
    file: Annotated[
        Path | None, Option("--file", metavar="PATH", help="A file of runs, or a folder of them, such as an archive.")
    ] = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Judge stored histories by the laws, and everything else that is stored by the histories.

    Example: statem-dist verify --all --json
    """
    if sum((bool(run), all_, file is not None)) != 1:
        raise Usage("Say what is to be verified.", hint="Name runs, or give --all, or --file PATH.")
    told = _Told()
    if file is not None:
        _verify_files(file, told)
        return told.answer(str(file))
    require_no_service("verify")
    with session(state_dir) as at:
        if at.nothing_yet:
            if run:
                raise NotFound(f"Run not found: {run[0]}", hint=at.nothing_yet)
            return told.answer(at.nothing_yet)
        _verify_store(at, run, told)
    return told.answer("the store")


def _verify_store(at: Session, run_ids: list[str] | None, told: _Told) -> None:
    from statem_dist import verification
    from statem_dist.sweep import audit

    store = at.store
    runbooks = verification.StoredRunbooks(store)
    for run_id in run_ids or verification.run_ids(store):
        found = verification.verify_run(store, run_id, runbooks)
        if not found.there and run_ids:
            raise NotFound(f"Run not found: {run_id}", details={"run_id": run_id})
        told.saw_run(found.events, found.violations)
    if run_ids:
        return
    told.saw(verification.strays(store))
    for sweep_id in audit.sweep_ids(store):
        told.saw_sweep(audit.verify_sweep(store, sweep_id))
    told.saw(audit.verify_limits(store))


def _verify_files(path: Path, told: _Told) -> None:
    from statem_dist import transfer
    from statem_dist.laws import Violation

    for file in transfer.files_below(path):
        try:
            with file.open("rb") as opened:
                for parcel in transfer.read(transfer.lines_of(opened)):
                    told.saw_run(parcel.run.version, [])
        except Invalid as error:
            known = error.details
            law, event = str(known.get("law", "file")), int(known.get("event", 0))
            told.saw([Violation(str(known.get("run", file)), event, law, f"{file}: {error.message}")])


class _Told:
    """What was verified so far, told to whoever watches at a terminal."""

    def __init__(self) -> None:
        self.runs = self.events = self.sweeps = self.violations = 0
        self.first: list[Violation] = []
        self._meter = _Meter()

    def saw_run(self, events: int, violations: Iterable[Violation]) -> None:
        """Count a run that was judged."""
        self.runs += 1
        self.events += events
        self.saw(violations)

    def saw_sweep(self, violations: Iterable[Violation]) -> None:
        """Count a sweep that was judged."""
        self.sweeps += 1
        self.saw(violations)

    def saw(self, violations: Iterable[Violation]) -> None:
        """Take down violations."""
        for violation in violations:
            if violation in self.first:
                continue
            self.violations += 1
            if len(self.first) < TOLD_MAX:
                self.first.append(violation)
        self._meter.say(f"{self.runs} runs, {self.events} events, {self.violations} violations")

    def answer(self, what: str) -> Answer:
        """Return what came of it."""
        self._meter.close()
        data: dict[str, Any] = {
            "ok": not self.violations,
            "runs": self.runs,
            "events": self.events,
            "sweeps": self.sweeps,
            "violation_count": self.violations,
            "violations": [
                {"run": each.run, "event": each.event, "law": each.law, "sentence": each.sentence}
                for each in self.first
            ],
        }
        lines = [str(each) for each in self.first]
        if len(self.first) < self.violations:
            lines.append(f"... and {self.violations - len(self.first)} more.")
        judged = f"{_counted(self.runs, 'run')}, {_counted(self.events, 'event')}, {_counted(self.sweeps, 'sweep')}"
        summary = f"Judged in {what}: {judged}"
        if not self.violations:
            return Answer(data, lambda: f"{summary}; all lawful.")
        return Answer(
            data, lambda: "\n".join(lines), ExitCode.ERROR, f"{summary}; {_counted(self.violations, 'violation')}."
        )


class _Meter:
    """Says on stderr how far a long command has come, if that is a terminal."""

    def __init__(self) -> None:
        self._wanted = sys.stderr.isatty()
        self._next = time.monotonic() + PROGRESS_SECONDS
        self._said = False

    def say(self, text: str) -> None:
        """Say it, unless something was said just now."""
        if self._wanted and time.monotonic() >= self._next:
            self._next = time.monotonic() + PROGRESS_SECONDS
            self._said = True
            print(f"\r\x1b[K{printable(text)}", end="", file=sys.stderr, flush=True)

    def close(self) -> None:
        """Leave the line as it was."""
        if self._said:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)


def export(
    run: RunsArgument = None,
    all_: AllOption = False,
    output: Annotated[
        Path | None,
        Option(
            "--output", "-o", metavar="FILE", help="One file for all; compressed if it ends in .gz (default: stdout)."
        ),
    ] = None,
    folder: Annotated[Path | None, Option("--folder", metavar="DIR", help="A file for each run.")] = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer | None:
    """Write runs to a file, from which `import` makes the same runs in another store.

    Values of variables are left out.

    Example: statem-dist export demo --output demo.run.jsonl
    """
    from statem_dist import transfer

    require_no_service("export")
    if bool(run) == all_:
        raise Usage("Say which runs are to be exported.", hint="Name them, or give --all.")
    if output is not None and folder is not None:
        raise Usage("--output is one file for all runs, and --folder one for each: give one of them.")
    if as_json and output is None and folder is None:
        raise Usage("Without --output or --folder the file itself is what is printed.", hint="Leave out --json.")
    count = 0
    with session(state_dir) as at:
        found = _all_runs(at) if not run else [at.engine.run(at.run_id(run_id)) for run_id in run]
        meter = _Meter()

        def counted() -> Iterator[Run]:
            nonlocal count
            for each in found:
                count += 1
                meter.say(f"{count} runs")
                yield each

        if folder is not None:
            for each in counted():
                chunks = transfer.compressed(transfer.pack(at.store, [each]))
                _write(folder / f"{each.id}{transfer.SUFFIX}.gz", chunks)
        elif output is not None:
            lines = transfer.pack(at.store, counted())
            chunks = transfer.compressed(lines) if output.suffix == ".gz" else lines
            _write(output, chunks)
        else:
            for line in transfer.pack(at.store, counted()):
                sys.stdout.buffer.write(line)
            sys.stdout.buffer.flush()
            return None
        meter.close()
    where = folder or output
    data = {"ok": True, "runs": count, "to": str(where)}
    return Answer(data, lambda: f"Exported to {where}: {_counted(count, 'run')}")


def _write(path: Path, chunks: Iterable[bytes]) -> None:
    """Write a file whole or not at all.

    Raises:
        Unavailable: it cannot be written.
    """
    from statem_dist.files import write_chunks

    try:
        write_chunks(path, chunks, mode=0o666)
    except OSError as error:
        raise Unavailable(
            f"{path} cannot be written: {error.strerror}.", hint="An old file of that name is there as it was."
        ) from error


def _all_runs(at: Session) -> Iterator[Run]:
    """Yield all runs that can be read, each as it is when its turn comes."""
    from statem_dist.cli.progress import say_unreadable
    from statem_dist.listing import RunFilter, listed

    if not at.nothing_yet:
        for snapshot in listed(at.store, RunFilter(), say_unreadable):
            yield snapshot.run


def archive(
    run: RunsArgument = None,
    all_: AllOption = False,
    older_than: OlderOption = None,
    keep: KeepOption = 0,
    to: ToOption = None,
    dry_run: DryRunOption = False,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Move runs that have ended out of the store, into files that `history --archive` and `import` read.

    Example: statem-dist archive --older-than 30d --keep 1000
    """
    from statem_dist.archive import Archive

    require_no_service("archive")
    with session(state_dir) as at:
        place = Archive(to.absolute() if to is not None else archive_folder(at.settings))
        return _take_out(at, run, all_, older_than, keep, place, dry_run)


def prune(
    run: RunsArgument = None,
    all_: AllOption = False,
    older_than: OlderOption = None,
    keep: KeepOption = 0,
    dry_run: DryRunOption = False,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Remove runs that have ended for good. Nothing is kept of them; `archive` keeps them.

    Example: statem-dist prune --older-than 365d --dry-run
    """
    require_no_service("prune")
    with session(state_dir) as at:
        return _take_out(at, run, all_, older_than, keep, None, dry_run)


def archive_folder(settings: Settings) -> Path:
    """Return the folder of the archive: that of the settings, else one in the state directory."""
    return settings.archive_dir or settings.state_dir / "archive"


def _take_out(
    at: Session,
    run_ids: list[str] | None,
    all_: bool,
    older_than: str | None,
    keep: int,
    place: Archive | None,
    dry_run: bool,
) -> Answer:
    chosen = all_ or older_than is not None or keep > 0
    if bool(run_ids) == chosen:
        raise Usage("Say which runs are meant.", hint="Name them, or give --all, --older-than or --keep.")
    older_than_ms = _milliseconds(older_than)
    gone: list[dict[str, Any]] = []
    refused: list[dict[str, Any]] = []
    meter = _Meter()
    if not at.nothing_yet:
        for run_id, ended_at in _candidates(at, run_ids, older_than_ms, keep, refused):
            try:
                gone.append(_take_one(at, run_id, ended_at, place, dry_run))
            except Unavailable:
                raise
            except (StatemError, OSError) as error:
                refused.append({"run_id": run_id, "error": str(error)})
            meter.say(f"{len(gone)} runs")
        if not dry_run:
            at.store.release_pointers()
    meter.close()
    verb = ("Would archive" if dry_run else "Archived") if place else ("Would remove" if dry_run else "Removed")
    data: dict[str, Any] = {"ok": not refused, "dry_run": dry_run, "runs": gone, "refused": refused}
    if place is not None:
        data["archive"] = str(place.folder)

    def as_text() -> str:
        lines = [f"{verb}: {each['run_id']}" for each in gone]
        lines += [f"Left: {each['run_id']}: {each['error']}" for each in refused]
        return "\n".join(lines) or "No run may go."

    if not refused:
        return Answer(data, as_text)
    return Answer(data, as_text, ExitCode.ERROR, f"{len(refused)} runs stay where they are.")


def _candidates(
    at: Session, run_ids: list[str] | None, older_than_ms: int, keep: int, refused: list[dict[str, Any]]
) -> Iterator[tuple[str, int | None]]:
    """Yield the runs that are meant, and when those had ended that were chosen by that."""
    from statem_dist.retention import OpenSweeps, may_go
    from statem_dist.sweep.ledger import Ledger

    if not run_ids:
        for ended in may_go(at.store, older_than_ms=older_than_ms, keep=keep):
            yield ended.run_id, ended.at
        return
    open_sweeps = OpenSweeps(Ledger(at.store))
    for run_id in run_ids:
        if open_sweeps.has(at.engine.run(at.run_id(run_id)).labels):
            refused.append({"run_id": run_id, "error": "it is that of a trial of a sweep that is still open"})
        else:
            yield run_id, None


def _take_one(at: Session, run_id: str, ended_at: int | None, place: Archive | None, dry_run: bool) -> dict[str, Any]:
    from statem_dist.archive import require_ended, take_out

    if dry_run:
        require_ended(at.engine.run(run_id))
        return {"run_id": run_id}
    path = take_out(at.store, run_id, place, ended_at)
    return {"run_id": run_id} | ({} if path is None else {"file": str(path)})


def _milliseconds(text: str | None) -> int:
    from statem_dist.durations import seconds_of

    if text is None:
        return 0
    seconds = seconds_of(text, "smhd")
    if seconds is None:
        raise Usage(f"--older-than takes a duration, not {text!r}.", hint="Such as 30d, 12h, 30m, 45s.")
    return round(seconds * 1000)


def _counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"
