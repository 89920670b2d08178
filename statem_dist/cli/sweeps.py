"""Commands that look at sweeps: ``sweep status``, ``watch``, ``list``, ``trials``, ``logs``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated, Any

from statem_dist.cli.answer import Answer
from statem_dist.cli.declare import Argument, Option
from statem_dist.cli.session import JsonOption, StateDirOption, pairs
from statem_dist.cli.sweep_session import (
    ExitStatusOption,
    SweepArgument,
    SweepSession,
    judged,
    sweep_session,
    told,
)
from statem_dist.deadline import Deadline
from statem_dist.errors import ExitCode, NotFound, Usage
from statem_dist.sweep.model import State, Sweep, Trial

LOG_LINES_MAX = 200
"""Lines of one output of an agent that are shown; the file has them all."""


def status(
    sweep: SweepArgument,
    wait: Annotated[
        float | None, Option("--wait", metavar="SECONDS", min=0, help="Wait for its end, at most that long.")
    ] = None,
    exit_status: ExitStatusOption = False,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Show where a sweep stands; with --wait, once it has ended.

    Exit codes with --wait: 0 every trial was judged, 1 some could not be, 7 the wait ran out.

    Example: statem-dist sweep status tb21 --wait 3600
    """
    from statem_dist.sweep.desk import has_ended
    from statem_dist.sweep.summary import sweep_summary
    from statem_dist.sweep.watching import obstacles_of

    with sweep_session("sweep status", state_dir, wanted=sweep) as work:
        found = work.sweep(sweep)
        if wait is not None:
            found = work.desk.wait(found.id, Deadline(wait))
        clock = work.engine.clock()
        obstacles = obstacles_of(found, work.engine.roster)
    text = "\n".join([told(found, clock), *(f"  held back: {each}" for each in obstacles)])
    data = {"ok": True, **sweep_summary(found), "obstacles": obstacles}
    if wait is None and not (exit_status and has_ended(found)):
        return Answer(data, lambda: text)
    return judged(found, data, text, must_pass=exit_status)


def watch(
    sweep: SweepArgument,
    timeout: Annotated[
        float | None, Option("--timeout", metavar="SECONDS", min=0, help="Watch at most that long.")
    ] = None,
    exit_status: ExitStatusOption = False,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Show a sweep until it has ended; Ctrl-C ends the watching alone.

    Exit codes: 0 every trial was judged, 1 some could not be, 7 the time ran out.

    Example: statem-dist sweep watch tb21
    """
    with sweep_session("sweep watch", state_dir, wanted=sweep) as work:
        return watched(work, work.sweep(sweep), Deadline(timeout), must_pass=exit_status)


def watched(
    work: SweepSession, sweep: Sweep, deadline: Deadline, *, must_pass: bool = False, from_the_start: bool = False
) -> Answer:
    """Show a sweep on stderr until it has ended, and answer with where it stands."""
    from statem_dist.sweep.summary import sweep_summary
    from statem_dist.sweep.watching import Watcher, view_on
    from statem_dist.sweep.watching import watch as look_on

    engine = work.engine
    view = view_on(sys.stderr)
    watcher = Watcher(work.ledger, engine.roster, engine.clock, sweep.id, from_the_start=from_the_start)
    try:
        seen = look_on(watcher, view, deadline=deadline)
    except KeyboardInterrupt:
        view.close()
        now = work.ledger.require(sweep.id)
        text = told(now, engine.clock())
        error = f"Nobody watches any more; the sweep goes on. To look again: statem-dist sweep watch {sweep.id}"
        return Answer(sweep_summary(now), lambda: text, ExitCode.INTERRUPTED, error)
    finally:
        view.close()
    text = told(seen, engine.clock())
    return judged(seen, sweep_summary(seen), text, must_pass=must_pass)


def list_(
    limit: Annotated[int, Option("--limit", "-n", metavar="N", min=1, max=1000, help="At most N sweeps.")] = 50,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """List sweeps, newest first.

    Example: statem-dist sweep list
    """
    from statem_dist.sweep.summary import sweep_summary

    with sweep_session("sweep list", state_dir) as work:
        found = [] if work.at.nothing_yet else work.ledger.listed(limit)
        clock = work.engine.clock() if found else 0
    data = {"ok": True, "sweeps": [sweep_summary(each) for each in found]}
    return Answer(data, lambda: _sweep_table(found, clock) if found else "There are no sweeps.")


def trials(
    sweep: SweepArgument,
    state: Annotated[State | None, Option("--state", help="Only trials in this state.")] = None,
    where: Annotated[
        list[str] | None, Option("--where", metavar="KEY=VALUE", help="Only trials with this value; repeatable.")
    ] = None,
    limit: Annotated[int, Option("--limit", "-n", metavar="N", min=1, max=100_000, help="At most N trials.")] = 100,
    after: Annotated[int, Option("--after", metavar="NUMBER", min=0, help="Only trials beyond this number.")] = 0,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """List the trials of a sweep in order of their numbers: where each stands, and what came of it.

    Example: statem-dist sweep trials tb21 --state failed --where model=opus
    """
    from statem_dist.sweep.outputs.tables import row

    wanted = pairs(where, "--where")
    found: list[Trial] = []
    more = False
    with sweep_session("sweep trials", state_dir, wanted=sweep) as work:
        at = work.sweep(sweep)
        if unknown := sorted(set(wanted) - set(at.definition.axes)):
            hint = f"It has: {', '.join(at.definition.axes)}." if at.definition.axes else "It has none."
            raise Usage(f"--where: the sweep has no axis {unknown[0]!r}.", hint=hint)
        for trial in work.ledger.trials(at.id, range(after + 1, work.ledger.size(at.id) + 1)):
            if state in (None, trial.state) and wanted.items() <= trial.planned.cell.items():
                if len(found) == limit:
                    more = True
                    break
                found.append(trial)
        clock = work.engine.clock()
    last = found[-1].planned.number if found else after
    data: dict[str, Any] = {
        "ok": True,
        "sweep": at.id,
        "trials": [row(at, each) for each in found],
        "next_after": last if more else None,
    }

    def as_text() -> str:
        if not found:
            return "No trial of the sweep is like that."
        table = _trial_table(found, clock)
        return f"{table}\nMore: statem-dist sweep trials {at.id} --after {last}" if more else table

    return Answer(data, as_text)


def logs(
    sweep: SweepArgument,
    number: Annotated[str, Argument(metavar="NUMBER", help="Number of the trial.")],
    attempt: Annotated[
        int | None, Option("--attempt", metavar="N", min=1, help="Which attempt (default: the latest).")
    ] = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Show what an attempt at a trial left: what the agent printed, and the checks that did not pass.

    Example: statem-dist sweep logs tb21 12
    """
    from statem_dist.cli.sweep_steering import numbers_of
    from statem_dist.sweep.outputs.tables import facts

    numbers = numbers_of([number])
    if len(numbers) != 1:
        raise Usage("The logs of one trial are shown at a time.")
    with sweep_session("sweep logs", state_dir, wanted=sweep) as work:
        at = work.sweep(sweep)
        trial = next(iter(work.ledger.trials(at.id, numbers)), None)
        if trial is None:
            raise NotFound(
                f"The sweep {at.id} has no trial {numbers[0]}.",
                hint=f"`statem-dist sweep trials {at.id}` lists its trials.",
                details={"sweep": at.id, "number": numbers[0]},
            )
        found = trial.last if attempt is None else next((e for e in trial.attempts if e.attempt == attempt), None)
        if found is None:
            which = "was not begun yet" if attempt is None else f"has no attempt {attempt}"
            raise NotFound(
                f"Trial {numbers[0]} of {at.id} {which}.",
                hint=f"It has {len(trial.attempts)} attempts.",
                details={"sweep": at.id, "number": numbers[0], "attempts": len(trial.attempts)},
            )
        failed = _failed_checks(work, found.run_id)
    folder = Path(found.folder)
    outputs = _outputs(folder / "agent")
    here = folder.is_dir()
    data = {
        "ok": True,
        "sweep": at.id,
        "number": numbers[0],
        "attempt": found.attempt,
        "outcome": found.outcome,
        **facts(found),
        "here": here,
        "outputs": [{"file": str(path), "text": text, "lines_left_out": left} for path, text, left in outputs],
        "failed_checks": failed,
    }

    def as_text() -> str:
        from statem_dist.sweep.watching import name_of, reason_of

        how = (
            f"{found.outcome}: {reason_of(found)}" if found.outcome else f"is under way, at {found.node or 'its start'}"
        )
        lines = [f"{name_of(trial)}, attempt {found.attempt}: {how}", f"  run {found.run_id}; {found.worker}; {folder}"]
        for path, text, left in outputs:
            lines.append(f"--- {path.name}" + (f" ({left} lines before these)" if left else ""))
            lines.append(text.rstrip("\n"))
        if not outputs:
            lines.append(_no_outputs(found.host, here=here))
        for check in failed:
            lines.append(f"--- {check['where']}: {check['check']}: {check['reason']}")
            if check["output"]:
                lines.append(check["output"].rstrip("\n"))
        return "\n".join(lines)

    return Answer(data, as_text)


def _no_outputs(host: str, *, here: bool) -> str:
    return "No agent has printed anything." if here else f"Its folder is not on this host; it was made on {host}."


def _outputs(folder: Path) -> list[tuple[Path, str, int]]:
    """Return the outputs in a folder, oldest first: path, last lines, and how many lines are before these."""
    found = []
    for path in sorted((each for each in folder.glob("*") if each.is_file()), key=lambda each: each.stat().st_mtime_ns):
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
        found.append((path, "\n".join(lines[-LOG_LINES_MAX:]), max(0, len(lines) - LOG_LINES_MAX)))
    return found


def _failed_checks(work: SweepSession, run_id: str) -> list[dict[str, Any]]:
    """Return the checks of a run that did not pass, oldest first; none where the run is not there any more."""
    from statem_dist.history import Move, moves
    from statem_dist.views import result_views

    run = work.engine.find(run_id)
    if run is None:
        return []
    found = []
    for move in moves(work.engine.log, run):
        if isinstance(move, Move):
            for view in result_views(move.transition):
                if not view["passed"]:
                    found.append(
                        {
                            "where": f"{move.transition.source} -> {move.transition.target}",
                            "check": view.get("name") or view["id"],
                            "reason": view["reason"],
                            "output": view["output"],
                        }
                    )
    return found


def _sweep_table(found: list[Sweep], now: int) -> str:
    from statem_dist.cli.text import span
    from statem_dist.columns import aligned
    from statem_dist.sweep.watching import counted

    rows = [("sweep", "status", "ended", "age", "trials")]
    for each in found:
        age = span(now - each.created_at)
        rows.append((each.id, each.status, f"{each.ended}/{each.planned}", age, counted(each)))
    return aligned(rows)


def _trial_table(found: list[Trial], now: int) -> str:
    from statem_dist.columns import aligned
    from statem_dist.sweep.model import values_of
    from statem_dist.sweep.outputs.figures import GLYPHS

    rows = [("number", "values", "rep", "state", "attempt", "node", "reason", "seconds", "run", "worker")]
    for each in found:
        planned, last = each.planned, each.last
        state = f"{GLYPHS[each.state]} {each.state}"
        if last is None:
            told_of = ("", "", "", "", "", "")
        else:
            seconds = last.seconds if last.ended_at else (now - last.started_at) / 1000
            reason = last.reason or ""
            told_of = (str(last.attempt), last.node, reason, f"{seconds:.1f}", last.run_id, last.worker)
        rows.append((str(planned.number), values_of(planned.cell) or "-", str(planned.repetition), state, *told_of))
    return aligned(rows)
