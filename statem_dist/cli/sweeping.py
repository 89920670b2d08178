"""Commands that begin sweeps: ``sweep plan``, ``submit``, ``run``, ``resume``."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Struct
from msgspec.structs import replace

from statem_dist.cli.answer import Answer, printable
from statem_dist.cli.declare import Argument, Option
from statem_dist.cli.session import JsonOption, StateDirOption, caller_name, require_no_service
from statem_dist.cli.sweep_session import (
    AcceptOption,
    ExitStatusOption,
    LimitOption,
    OnlyOption,
    SweepArgument,
    WatchOption,
    desk_of,
    judged,
    results_text,
    selection_of,
    sweep_session,
    told,
)
from statem_dist.deadline import NEVER
from statem_dist.errors import ExitCode, StatemError, Usage
from statem_dist.settings import Settings
from statem_dist.sweep.model import Sweep

if TYPE_CHECKING:
    from statem_dist.engine import Engine
    from statem_dist.sweep.desk import Resumed, SweepDesk
    from statem_dist.sweep.ledger import Ledger
    from statem_dist.sweep.model import Definition, Share
    from statem_dist.sweep.prospect import Prospect
    from statem_dist.sweep.session import StopNote

PLANNED_SHOWN = 5
"""Trials that ``plan`` shows, the first ones."""

WORKER_GRACE_SECONDS = 1.0
"""How long workers of ``run`` let checks go on when they are stopped; their trials are handed back."""

FileArgument = Annotated[Path, Argument(metavar="FILE", help="The sweep file.")]
WorkersOption = Annotated[
    int | None,
    Option("--workers", "-w", metavar="N", min=0, max=64, help="Worker processes for its length."),
]
ConcurrencyOption = Annotated[
    int | None, Option("--concurrency", "-c", metavar="N", min=1, max=1000, help="Trials under way at once.")
]


def plan(
    file: FileArgument,
    only: OnlyOption = None,
    limit: LimitOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Show what a sweep file comes to: trials, cells, time and cost by an earlier sweep of its name. Nothing is stored.

    Example: statem-dist sweep plan tb21.sweep.yaml
    """
    from statem_dist.sweep.prospect import prospect_of
    from statem_dist.sweep.spec import load_sweep

    loaded = load_sweep(file)
    selection = selection_of(only, limit)
    with sweep_session("sweep plan", state_dir) as work:
        prospect = prospect_of(loaded, selection, None if work.at.nothing_yet else work.ledger)
    return Answer(_plan_view(prospect), lambda: _plan_text(prospect))


def submit(
    file: FileArgument,
    id: Annotated[str | None, Option("--id", metavar="ID", help="Its id; default: of its name and the time.")] = None,
    new: Annotated[bool, Option("--new", help="A new sweep, although one of the same content has not ended.")] = False,
    only: OnlyOption = None,
    limit: LimitOption = None,
    concurrency: ConcurrencyOption = None,
    watch: WatchOption = False,
    exit_status: ExitStatusOption = False,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Hand a sweep to the workers. Submitted twice, it is one sweep: the second time attaches to it.

    Example: statem-dist sweep submit tb21.sweep.yaml --watch
    """
    from statem_dist.cli.sweeps import watched
    from statem_dist.sweep.spec import load_sweep
    from statem_dist.sweep.summary import sweep_summary
    from statem_dist.sweep.watching import obstacles_of

    if id is not None and new:
        raise Usage(
            "--id names one sweep, and --new makes another.", hint="With an id that is not there yet, leave out --new."
        )
    loaded = load_sweep(file)
    with sweep_session("sweep submit", state_dir) as work:
        submitted = work.desk.submit(
            loaded,
            by=caller_name(),
            sweep_id=id,
            selection=selection_of(only, limit),
            new=new,
            concurrency=concurrency,
        )
        sweep, fresh = submitted.sweep, submitted.fresh
        if watch:
            print(_submitted(sweep, fresh=fresh), file=sys.stderr)
            answer = watched(work, sweep, NEVER, must_pass=exit_status, from_the_start=fresh)
            return replace(answer, data={**answer.data, "fresh": fresh})
        obstacles = obstacles_of(sweep, work.engine.roster)
    data = {"ok": True, "fresh": fresh, **sweep_summary(sweep), "obstacles": obstacles}
    lines = [_submitted(sweep, fresh=fresh), *(f"  held back: {each}" for each in obstacles)]
    lines.append(f"  to look at it: statem-dist sweep watch {sweep.id}")
    return Answer(data, lambda: "\n".join(lines))


def run(
    file: FileArgument,
    workers: WorkersOption = None,
    concurrency: ConcurrencyOption = None,
    limit: LimitOption = None,
    only: OnlyOption = None,
    out: Annotated[
        Path | None, Option("--out", metavar="FILE", help="Write the JSON document to this file as well.")
    ] = None,
    keep: Annotated[bool, Option("--keep/--no-keep", help="Keep the folder of the sweep.")] = True,
    new: Annotated[bool, Option("--new", help="A new sweep, although one of the same content has not ended.")] = False,
    exit_status: ExitStatusOption = False,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Submit a sweep, work on it with workers of its own, and report when it has ended. Ctrl-C pauses it.

    Exit codes: 0 every trial was judged, 1 some could not be, 6 with --exit-status if not all have passed.

    Example: statem-dist sweep run humaneval.sweep.yaml --workers 2
    """
    from statem_dist.sweep.spec import load_sweep

    require_no_service("sweep run")
    _require_writable(out)
    settings = Settings.from_environment(os.environ, state_dir=state_dir)
    loaded = load_sweep(file)
    selection = selection_of(only, limit)
    if not keep:
        workspace = replace(loaded.definition.workspace, keep="none")
        loaded = replace(loaded, definition=replace(loaded.definition, workspace=workspace))

    def begin(desk: SweepDesk) -> Begun:
        submitted = desk.submit(loaded, by=caller_name(), selection=selection, new=new, concurrency=concurrency)
        sweep = submitted.sweep
        folders = f"; its folders: {desk.folder(sweep.id)}" if keep else ""
        sentence = _submitted(sweep, fresh=submitted.fresh) + folders
        if sweep.status == "paused":
            # Most likely by an earlier `run` that was interrupted; whoever runs it wants it to go on.
            sweep = desk.resume(sweep.id, loaded, concurrency=concurrency).sweep
            sentence += "; it goes on"
        return Begun(sweep, sentence, submitted.fresh)

    return _attended(settings, begin, workers, out=out, keep=keep, must_pass=exit_status)


def resume(
    sweep: SweepArgument,
    workers: WorkersOption = None,
    concurrency: ConcurrencyOption = None,
    accept_changes: AcceptOption = False,
    file: Annotated[
        Path | None, Option("--file", metavar="FILE", help="The sweep file, if it is elsewhere by now.")
    ] = None,
    watch: WatchOption = False,
    out: Annotated[
        Path | None,
        Option("--out", metavar="FILE", help="With --workers: write the JSON document to this file as well."),
    ] = None,
    exit_status: ExitStatusOption = False,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Let a sweep go on that was paused or stopped; with --workers, with workers of its own, as `run` does.

    Example: statem-dist sweep resume tb21 --workers 2
    """
    from statem_dist.cli.sweeps import watched
    from statem_dist.sweep.summary import sweep_summary
    from statem_dist.sweep.watching import obstacles_of

    require_no_service("sweep resume")
    _require_writable(out)
    loaded = None
    if file is not None:
        from statem_dist.sweep.spec import load_sweep

        loaded = load_sweep(file)
    if workers is not None:

        def begin(desk: SweepDesk) -> Begun:
            resumed = desk.resume(desk.find(sweep), loaded, accept_changes=accept_changes, concurrency=concurrency)
            return Begun(resumed.sweep, _resumed(resumed), False)

        settings = Settings.from_environment(os.environ, state_dir=state_dir)
        return _attended(settings, begin, workers, out=out, keep=True, must_pass=exit_status)
    with sweep_session("sweep resume", state_dir, wanted=sweep) as work:
        resumed = work.desk.resume(
            work.desk.find(sweep), loaded, accept_changes=accept_changes, concurrency=concurrency
        )
        now = resumed.sweep
        facts = {
            "before": resumed.before,
            "differences": list(resumed.differences),
            "added": resumed.added,
            "withdrawn": resumed.withdrawn,
        }
        if watch:
            print(_resumed(resumed), file=sys.stderr)
            answer = watched(work, now, NEVER, must_pass=exit_status)
            return replace(answer, data={**answer.data, **facts})
        obstacles = obstacles_of(now, work.engine.roster)
        clock = work.engine.clock()
    lines = [_resumed(resumed), told(now, clock), *(f"  held back: {each}" for each in obstacles)]
    return Answer({"ok": True, **sweep_summary(now), **facts, "obstacles": obstacles}, lambda: "\n".join(lines))


# --- with workers of its own -----------------------------------------------------------------------------------------


class Begun(Struct, frozen=True):
    """A sweep that is about to be worked on, what is told of that, and whether it is new."""

    sweep: Sweep
    told: str
    fresh: bool


def _attended(
    settings: Settings,
    begin: Callable[[SweepDesk], Begun],
    workers: int | None,
    *,
    out: Path | None,
    keep: bool,
    must_pass: bool,
) -> Answer:
    """Begin a sweep, work on it with workers of its own until it has ended or somebody stops that, and report.

    Args:
        begin: submits or resumes it.
        workers: how many processes; None means one, unless somebody serves its queue already.
    """
    from statem_dist.client.address import announced_url
    from statem_dist.embedded.place import Place
    from statem_dist.engine import Engine
    from statem_dist.sweep.desk import has_ended
    from statem_dist.sweep.ledger import Ledger
    from statem_dist.sweep.session import Staff, attend, open_store, stop_signals
    from statem_dist.sweep.watching import Watcher, view_on

    with stop_signals() as stop, ExitStack() as at_end:
        redis_url = open_store(settings, at_end)
        engine = Engine(settings, redis_url, inline=False)
        at_end.callback(engine.close)
        ledger = Ledger(engine.store)
        desk = desk_of(engine, ledger)
        begun = begin(desk)
        sweep = begun.sweep
        number = _workers_for(sweep, workers, engine)
        environment = {**os.environ, "STATEM_STATE_DIR": str(settings.state_dir), "STATEM_REDIS_URL": redis_url}
        service_file = Path(Place.of(settings.state_dir).service_file)
        staff = Staff(
            workers=number,
            command=_worker_command(sweep.definition, number),
            env=environment,
            service=_service_command(sweep.definition, service_file),
            serving=lambda: bool(announced_url(service_file)),
        )
        view = view_on(sys.stderr)
        at_end.callback(view.close)
        view.say(begun.told)
        watcher = Watcher(ledger, engine.roster, engine.clock, sweep.id, from_the_start=begun.fresh)
        try:
            seen = attend(sweep.id, desk, engine, watcher, view, staff, stop)
        except StatemError as error:
            error.hint = "\n".join(filter(None, [error.hint, _how_to_go_on(ledger.require(sweep.id))]))
            raise
        view.close()
        folder = desk.folder(sweep.id)
        if not keep and has_ended(seen):
            shutil.rmtree(folder, ignore_errors=True)
        kept = folder if folder.is_dir() else None
        return _report(ledger, seen, stop, kept, out=out, must_pass=must_pass, clock=engine.clock())


def _workers_for(sweep: Sweep, workers: int | None, engine: Engine) -> int:
    """Return how many workers to start: as many as were asked for, else one where nobody serves the queue."""
    if workers is not None:
        return workers
    return 0 if engine.roster.serves(sweep.definition.queue) else 1


def _worker_command(definition: Definition, workers: int) -> Sequence[str]:
    """Return the command line of the workers of a sweep; they also do what checks its runs put into queues."""
    from statem_dist.cli.services import worker_arguments

    at_once = definition.concurrency or 2 * (os.cpu_count() or 1)
    # The environment of whoever runs a sweep is that of its commands. Workers outlive a `run` that was killed, and end
    # by themselves when there is nothing left to do.
    return worker_arguments(
        queues=f"{definition.queue},checks,llm",
        concurrency=-(-at_once // max(workers, 1)),
        pool="threads",
        pass_env=None,
        grace=WORKER_GRACE_SECONDS,
        events=False,
        log_level="INFO",
        inherit_env=True,
        until_done=True,
    )


def _service_command(definition: Definition, service_file: Path) -> Sequence[str]:
    """Return the command line of a service for self-driven agents; empty where none is needed, or one is there.

    Args:
        service_file: says where the service of the state directory listens.
    """
    from statem_dist.cli.services import api_arguments
    from statem_dist.client.address import announced_url

    if definition.agent is None or definition.agent.mode != "self_driven" or announced_url(service_file):
        return ()
    return api_arguments(
        host="127.0.0.1",
        port=0,
        service_file=str(service_file),
        registered_only=False,
        workspaces=None,
        log_level="WARNING",
        until_done=True,
    )


def _report(
    ledger: Ledger,
    sweep: Sweep,
    stop: StopNote,
    folder: Path | None,
    *,
    out: Path | None,
    must_pass: bool,
    clock: int,
) -> Answer:
    """Return the results of a sweep as the answer of a command that has worked on it."""
    from statem_dist.files import write_whole
    from statem_dist.sweep.desk import has_ended
    from statem_dist.sweep.outputs.documents import strict_json
    from statem_dist.sweep.outputs.tables import row
    from statem_dist.sweep.scores import scores_of
    from statem_dist.sweep.summary import sweep_summary
    from statem_dist.sweep.watching import counted

    trials = list(ledger.trials(sweep.id))
    scores = scores_of(sweep, trials)
    interrupted = stop.wanted and not has_ended(sweep)
    data = {
        **sweep_summary(sweep),
        "interrupted": interrupted,
        "folder": None if folder is None else str(folder),
        "scores": scores.as_data(),
        "trials": [row(sweep, each) for each in trials],
    }
    text = "\n".join([results_text(sweep, trials, scores), printable(told(sweep, clock))])
    answer = replace(judged(sweep, data, text, must_pass=must_pass), drawn=True)
    if interrupted:
        error = f"Interrupted: {counted(sweep)}, of {sweep.planned} planned. {_how_to_go_on(sweep)}"
        answer = replace(answer, exit_code=ExitCode.INTERRUPTED, error=error)
    if out is not None:
        write_whole(out.absolute(), strict_json(answer.data, indent=1) + "\n")
    return answer


def _how_to_go_on(sweep: Sweep) -> str:
    if sweep.status == "active":
        return f"Others go on with it; to look at it: statem-dist sweep watch {sweep.id}"
    return f"To go on: statem-dist sweep resume {sweep.id} --workers 1"


def _require_writable(out: Path | None) -> None:
    if out is not None and not os.access(out.absolute().parent, os.W_OK):
        raise Usage(f"--out {out}: its folder does not exist, or cannot be written to.")


# --- words -----------------------------------------------------------------------------------------------------------


def _submitted(sweep: Sweep, *, fresh: bool) -> str:
    if fresh:
        return f"Sweep {sweep.id}: {sweep.planned} trials"
    return f"Sweep {sweep.id} is {sweep.status} already: {sweep.ended} of {sweep.planned} trials have ended"


def _resumed(resumed: Resumed) -> str:
    lines = [f"Sweep {resumed.sweep.id} was {resumed.before} and is {resumed.sweep.status}"]
    if resumed.sweep.status == "finished":
        lines.append("  nothing is left to do; `retry` and `extend` begin trials again, or more of them")
    lines += [f"  changed: {each}" for each in resumed.differences]
    if resumed.added or resumed.withdrawn:
        lines.append(f"  {resumed.added} trials added, {resumed.withdrawn} withdrawn")
    return "\n".join(lines)


def _plan_view(prospect: Prospect) -> dict[str, Any]:
    definition = prospect.definition
    stop = definition.stop_when
    return {
        "ok": True,
        "name": definition.name,
        "file": definition.file,
        "runbook": definition.runbook,
        "planned": len(prospect.trials),
        "cells": prospect.cells,
        "axes": prospect.values,
        "trials_per_cell": definition.trials,
        "concurrency": definition.concurrency,
        "queue": definition.queue,
        "priority": definition.priority,
        "stop_when": {
            "errors": _share(stop.errors),
            "failures": _share(stop.failures),
            "cost_usd": stop.cost_usd,
        },
        "estimate": {
            "like": prospect.like,
            "trial_seconds": prospect.trial_seconds,
            "seconds": prospect.seconds,
            "cost_usd": prospect.cost_usd,
        },
        "first": [
            {"number": each.number, "values": each.cell, "repetition": each.repetition}
            for each in prospect.trials[:PLANNED_SHOWN]
        ],
    }


def _plan_text(prospect: Prospect) -> str:
    from statem_dist.sweep.model import values_of
    from statem_dist.sweep.outputs.figures import dollars, duration

    definition = prospect.definition
    planned = len(prospect.trials)
    lines = [f"{definition.name}: {planned} trials of {prospect.cells} cells; nothing is stored"]
    if prospect.values:
        lines.append("  axes: " + ", ".join(f"{axis} ({number} values)" for axis, number in prospect.values.items()))
    bound = definition.concurrency or "as many as there are slots"
    lines.append(f"  at once: {bound}; queue {definition.queue}; priority {definition.priority}")
    stop = definition.stop_when
    caps = [
        f"{name} reach {_share(share)}"
        for name, share in (("errors", stop.errors), ("failures", stop.failures))
        if share
    ]
    if stop.cost_usd is not None:
        caps.append(f"cost reaches ${stop.cost_usd:g}")
    lines.append(f"  stops when {' or '.join(caps)}" if caps else "  no rule stops it, and no cap on its cost")
    lines += [
        f"  #{each.number}  {values_of(each.cell) or 'no values'}  ({each.repetition})"
        for each in prospect.trials[:PLANNED_SHOWN]
    ]
    if planned > PLANNED_SHOWN:
        lines.append(f"  and {planned - PLANNED_SHOWN} more")
    if prospect.like is None:
        lines.append("  no estimate: no trial of an earlier sweep of this name has been judged")
    else:
        assert prospect.trial_seconds is not None, "an earlier sweep has a duration"
        each_takes = f"{duration(prospect.trial_seconds)} a trial"
        whole = "" if prospect.seconds is None else f", {duration(prospect.seconds)} in all"
        cost = "" if prospect.cost_usd is None else f", {dollars(prospect.cost_usd)}"
        lines.append(f"  about {each_takes}{whole}{cost}, by {prospect.like}")
    return "\n".join(lines)


def _share(share: Share | None) -> str | None:
    if share is None:
        return None
    return str(share.count) if share.count is not None else f"{share.percent:g}%"
