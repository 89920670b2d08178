"""Commands that look, from ``validate`` and ``cur`` to ``history``, ``evidence`` and the prompts."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from statem_dist.cli.answer import Answer, print_line, printable, require_reader
from statem_dist.cli.declare import Argument, Option
from statem_dist.cli.session import (
    AgentIdOption,
    JsonOption,
    RunIdOption,
    Session,
    StateDirOption,
    pairs,
    require_no_service,
    session,
    usable_run_id,
)
from statem_dist.errors import NotFound, Usage
from statem_dist.protocol.model import Run, RunStatus

if TYPE_CHECKING:
    from statem_dist.listing import RunFilter
    from statem_dist.resume import Address
    from statem_dist.store.base import EventLog

CommandOption = Annotated[
    str | None,
    Option("--command", metavar="COMMAND", help="How to call this tool (default: STATEM_COMMAND)."),
]

TailOption = Annotated[
    int | None, Option("--tail", "--limit", "-n", metavar="N", min=0, help="Only the last N entries.")
]
AfterOption = Annotated[
    int | None,
    Option("--after", metavar="NUMBER", min=0, help="Only what began after this event; --limit then pages."),
]

ArchiveOption = Annotated[
    bool,
    Option("--archive", help="Look in the archive (STATEM_ARCHIVE_DIR, else in the state directory)."),
]


def validate(
    spec: Annotated[Path, Argument(metavar="RUNBOOK", help="The runbook file, YAML or JSON.")],
    strict: Annotated[bool, Option("--strict", help="Unknown keywords are errors.")] = False,
    as_json: JsonOption = False,
) -> Answer:
    """Check a runbook; every problem is reported at once, with its place.

    Example: statem-dist validate runbook.yaml --strict
    """
    from statem_dist.cli import text
    from statem_dist.cli.loading import load_telling
    from statem_dist.runbook import confinement_view, warnings_view

    path = Path(os.path.abspath(spec))
    parsed = load_telling(path, strict=strict, silent=as_json)
    found = parsed.runbook
    edges = [
        {"from": edge.source, "to": edge.target}
        | ({"max_attempts": edge.max_attempts} if edge.max_attempts is not None else {})
        for edge in found.edges
    ]
    data = {
        "ok": True,
        "spec": str(path),
        "strict": strict,
        "name": found.name,
        "hash": found.hash,
        "initial": found.initial,
        "nodes": [node.name for node in found.nodes],
        "edges": edges,
        **confinement_view(found.confinement),
        **warnings_view(parsed.warnings),
    }
    return Answer(data, lambda: text.validated(found))


def cur(
    run_id: RunIdOption = None,
    agent_id: AgentIdOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Show the current node: its prompt, its checks, and the ways out.

    Example: statem-dist cur --run-id demo
    """
    from statem_dist import views
    from statem_dist.cli import text

    with session(state_dir) as at:
        run = at.settled_run(run_id)
        runbook = at.engine.runbook(run.runbook)
        waiting = at.engine.waiting_reason(run)
        data = views.node_status(run, runbook, at.actor(agent_id, None, run).id, waiting)
    return Answer(data, lambda: text.node_status(run, runbook, waiting))


def state(run_id: RunIdOption = None, state_dir: StateDirOption = None, as_json: JsonOption = False) -> Answer:
    """Show the whole graph and where the run stands in it.

    Example: statem-dist state --run-id demo
    """
    from statem_dist import views
    from statem_dist.cli import text

    with session(state_dir) as at:
        run = at.settled_run(run_id)
        runbook = at.engine.runbook(run.runbook)
    return Answer(views.graph_status(run, runbook), lambda: text.graph(run, runbook))


def ls(
    node: Annotated[str, Argument(metavar="NODE", help="Name of a node.", complete="nodes")],
    run_id: RunIdOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Show one node of the runbook.

    Example: statem-dist ls review
    """
    from statem_dist import views
    from statem_dist.cli import text

    with session(state_dir) as at:
        run = at.settled_run(run_id)
        runbook = at.engine.runbook(run.runbook)
    found = runbook.node(node)
    if found is None:
        names = ", ".join(each.name for each in runbook.nodes)
        raise NotFound(f"Unknown node: {node!r}. The runbook has: {names}", details={"node": node, "run_id": run.id})
    return Answer(views.one_node(run, runbook, found), lambda: text.one_node(found, run, runbook))


def next_(run_id: RunIdOption = None, state_dir: StateDirOption = None, as_json: JsonOption = False) -> Answer:
    """Show the edges out of the current node.

    Example: statem-dist next --run-id demo
    """
    from statem_dist import views
    from statem_dist.cli import text

    with session(state_dir) as at:
        run = at.settled_run(run_id)
        runbook = at.engine.runbook(run.runbook)
    return Answer(views.next_nodes(run, runbook), lambda: text.exits(run, runbook))


def history(
    run_id: RunIdOption = None,
    tail: TailOption = None,
    after: AfterOption = None,
    raw: Annotated[bool, Option("--raw", help="Every event of the log, instead of an entry per move.")] = False,
    follow: Annotated[
        bool, Option("--follow", "-f", help="Go on until the run has ended; with --json a line per entry.")
    ] = False,
    archive: ArchiveOption = False,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer | None:
    """Show what happened to the run, oldest first.

    Example: statem-dist history --tail 5
    """
    from statem_dist import eventlog, views
    from statem_dist import history as told
    from statem_dist.cli import text

    if follow and after is not None and tail is not None:
        raise Usage("A page (--after with --limit) ends.", hint="Leave out --limit or --follow.")
    if follow and archive:
        raise Usage("Nothing happens any more to a run of the archive.", hint="Leave out --follow.")
    with session(state_dir) as at:
        run, log = _archived(at, run_id) if archive else (at.settled_run(run_id), None)
        if follow:
            _follow(at, run, tail, after, raw=raw, as_json=as_json)
            return None
        read = eventlog.event_log if raw else told.history
        entries = read(log or at.engine.log, run, tail, after)
    data = {
        "ok": True,
        "run_id": run.id,
        "current": run.node,
        "version": run.version,
        "in_flight": views.transition_reference(run.in_flight),
        "events" if raw else "history": entries,
    }
    line = text.event_line if raw else text.history_line
    return Answer(data, lambda: "\n".join(line(entry) for entry in entries))


def _follow(at: Session, run: Run, tail: int | None, after: int | None, *, raw: bool, as_json: bool) -> None:
    """Print what happened to a run and what happens to it, entry by entry or event by event, as it comes."""
    from statem_dist import eventlog
    from statem_dist import history as told
    from statem_dist.cli import text

    def show(entries: list[dict[str, Any]]) -> None:
        for entry in entries:
            if as_json:
                print_line(entry)
            else:
                print(printable(text.event_line(entry) if raw else text.history_line(entry)), flush=True)
        require_reader()

    log = at.engine.log
    if tail is not None:
        show(eventlog.event_log(log, run, tail) if raw else told.history(log, run, tail))
        after = run.version if raw else told.last_told(log, run)
    tell: eventlog.Tell = (lambda number, event: [eventlog.event_view(number, event)]) if raw else told.Teller(run).tell
    for entries in eventlog.follow(at.engine.new_events(run.id, after or 0), tell):
        show(entries)


def _archived(at: Session, run_id: str | None) -> tuple[Run, EventLog]:
    """Return a run of the archive, and its events."""
    from statem_dist.archive import Archive, ArchivedEvents
    from statem_dist.cli.records import archive_folder

    require_no_service("history --archive")
    given = run_id or os.environ.get("STATEM_RUN_ID")
    if not given:
        raise Usage("Which run of the archive is meant?", hint="Name it with --run-id.")
    place = Archive(archive_folder(at.settings))
    parcel = place.load(place.find(usable_run_id(given)))
    return parcel.run, ArchivedEvents(parcel.events)


def evidence(
    run_id: RunIdOption = None,
    archive: ArchiveOption = False,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Show what stood behind each transition: verified, decided, attested or judged, and by whom.

    Example: statem-dist evidence --run-id demo
    """
    from statem_dist import evidence as evidences
    from statem_dist.history import moves

    with session(state_dir) as at:
        run, log = _archived(at, run_id) if archive else (at.settled_run(run_id), None)
        found = evidences.backings(moves(log or at.engine.log, run))
    data = {
        "ok": True,
        "run_id": run.id,
        "current": run.node,
        "evidence": [evidences.backing_view(backing) for backing in found],
    }
    return Answer(data, lambda: evidences.table(found) if found else "No transition was made yet.")


def runs(
    status: Annotated[
        RunStatus | None,
        Option("--status", help="Only runs of this status."),
    ] = None,
    label: Annotated[
        list[str] | None, Option("--label", metavar="KEY=VALUE", help="Only runs with this label; repeatable.")
    ] = None,
    limit: Annotated[int, Option("--limit", "-n", metavar="N", min=1, max=1000, help="At most N runs.")] = 50,
    archive: ArchiveOption = False,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """List runs, newest first.

    Example: statem-dist runs --status active --label team=blue
    """
    from statem_dist.cli import text
    from statem_dist.cli.progress import say_unreadable
    from statem_dist.listing import RunFilter

    with session(state_dir) as at:
        wanted = RunFilter(status=status, labels=pairs(label, "--label"))
        if archive:
            return _archived_runs(at, wanted, limit)
        found = [] if at.nothing_yet else at.engine.summaries(wanted, limit, say_unreadable)
        now = at.engine.clock() if found else 0
    data = {"ok": True, "runs": found}

    def as_text() -> str:
        return text.run_table(found, now) if found else f"No runs. {at.nothing_yet}".rstrip()

    return Answer(data, as_text)


def _archived_runs(at: Session, wanted: RunFilter, limit: int) -> Answer:
    from statem_dist.archive import Archive, archived_runs
    from statem_dist.cli import text
    from statem_dist.cli.progress import say_unreadable
    from statem_dist.cli.records import archive_folder
    from statem_dist.errors import StatemError
    from statem_dist.views import run_summary

    require_no_service("runs --archive")
    place = Archive(archive_folder(at.settings))
    found: list[dict[str, Any]] = []
    for path, run in archived_runs(place, place.files()):
        if isinstance(run, StatemError):
            say_unreadable(path.name, run)
        elif wanted.admits(run):
            found.append(run_summary(run))
        if len(found) == limit:
            break
    now = round(time.time() * 1000)
    return Answer({"ok": True, "runs": found}, lambda: text.run_table(found, now) if found else "No runs.")


def prompt(
    run_id: RunIdOption = None,
    command: CommandOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Print the prompt that brings an agent back to the run after its context was cleared.

    Example: statem-dist prompt --run-id demo
    """
    from statem_dist.resume import resume_prompt

    with session(state_dir) as at:
        run = at.settled_run(run_id)
        text = resume_prompt(run, at.engine.runbook(run.runbook), _address(at, run, command))
    return _prompt_answer(run, text, at.scope)


def compact_prompt(
    run_id: RunIdOption = None,
    command: CommandOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Print the instruction by which a conversation is compacted without losing the run.

    Example: statem-dist compact-prompt --run-id demo
    """
    from statem_dist import resume

    with session(state_dir) as at:
        run = at.settled_run(run_id)
        text = resume.compact_prompt(run, _address(at, run, command))
    return _prompt_answer(run, text, at.scope)


def _address(at: Session, run: Run, command: str | None) -> Address:
    from statem_dist.resume import Address

    given = command or os.environ.get("STATEM_COMMAND")
    return Address.of(at.settings, run.id, given, service=at.service is not None)


def _prompt_answer(run: Run, text: str, state_dir: str) -> Answer:
    data = {
        "ok": True,
        "run_id": run.id,
        "current": run.node,
        "current_entry_id": run.entry_id,
        "spec": run.place.spec,
        "state_dir": state_dir,
        "prompt": text,
    }
    return Answer(data, lambda: text.rstrip("\n"))
