"""Commands that move a run: ``start``, ``goto`` (``transfer``), ``save``."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from statem_dist.cli.answer import Answer
from statem_dist.cli.declare import Argument, Option
from statem_dist.cli.session import (
    AgentIdOption,
    AgentRoleOption,
    JsonOption,
    RunIdOption,
    Session,
    StateDirOption,
    YesOption,
    pairs,
    session,
    usable_run_id,
    variables_here,
)
from statem_dist.errors import CancelledRun, Conflict, ExitCode, Invalid, NotFound, PausedRun, StatemError, Usage
from statem_dist.protocol.model import Confirmations
from statem_dist.protocol.progress import is_of_unknown_outcome
from statem_dist.run_ids import NAME_PATTERN, QUEUE_NAME

if TYPE_CHECKING:
    from statem_dist.follow import Settled
    from statem_dist.protocol.events import RunRebound
    from statem_dist.protocol.graph import Runbook
    from statem_dist.protocol.model import Run
    from statem_dist.store.base import EventLog

HASH_SHOWN = 12
"""Characters of a runbook's hash that people are shown; the JSON has all of it."""

WaitOption = Annotated[bool, Option("--wait/--no-wait", help="Wait for the end, or only submit.")]
TimeoutOption = Annotated[
    float | None, Option("--timeout", metavar="SECONDS", min=0, help="Wait at most that long (exit 7 then).")
]

ConfirmOption = Annotated[
    list[str] | None,
    Option("--confirm", metavar="CHECK", help="Confirm this check, by id or name; repeatable."),
]
DeclineOption = Annotated[
    list[str] | None,
    Option("--decline", metavar="CHECK", help="Decline this check, by id or name; repeatable."),
]
ReasonOption = Annotated[str, Option("--reason", metavar="TEXT", help="Why it is declined.")]
OnManualOption = Annotated[
    Literal["fail", "wait"],
    Option("--on-manual", help="What a check does that nobody confirmed: fail, or wait for a decision."),
]


def start(
    spec: Annotated[Path, Argument(metavar="RUNBOOK", help="The runbook file, or at a service a registered name.")],
    run_id: RunIdOption = None,
    fresh: Annotated[bool, Option("--fresh", help="Make a new run even if one is active.")] = False,
    on_existing: Annotated[
        Literal["resume", "fail", "restart"],
        Option("--on-existing", help="What to do with a run that exists: resume it, fail, or begin it anew."),
    ] = "resume",
    workspace: Annotated[
        Path | None,
        Option("--workspace", metavar="DIR", help="Where checks work (default: the runbook's folder)."),
    ] = None,
    queue: Annotated[
        str | None, Option("--queue", metavar="NAME", help="Pin all work of the run to one queue.")
    ] = None,
    executor: Annotated[
        str | None,
        Option("--executor", metavar="docker:NAME", help="Execute its commands in this container."),
    ] = None,
    label: Annotated[list[str] | None, Option("--label", metavar="KEY=VALUE", help="Repeatable.")] = None,
    env: Annotated[
        list[str] | None, Option("--env", metavar="NAME=VALUE", help="For its commands; repeatable.")
    ] = None,
    pass_env: Annotated[
        list[str] | None, Option("--pass-env", metavar="NAME", help="The same, taken from here.")
    ] = None,
    timeout: TimeoutOption = None,
    yes: YesOption = False,
    agent_id: AgentIdOption = None,
    agent_role: AgentRoleOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Create a run, resume it or begin it anew, and show the node it stands on.

    Example: statem-dist start runbook.yaml --run-id demo
    """
    from statem_dist.cli.loading import load_telling, warn
    from statem_dist.cli.progress import say_waiting
    from statem_dist.deadline import Deadline
    from statem_dist.engine import StartRequest
    from statem_dist.places import workspace_of
    from statem_dist.protocol.model import Place
    from statem_dist.run_ids import new_run_id

    if fresh and on_existing != "resume":
        raise Usage("--fresh makes a new run; --on-existing says what to do with an old one. Leave one of them out.")
    path = Path(os.path.abspath(spec))
    wanted = None if run_id is None else usable_run_id(run_id)
    _require_queue_name(queue)
    with session(state_dir) as at:
        runbook = _registered(at, str(spec))
        if runbook is None:
            parsed = load_telling(path)
            runbook, source, origin, folder = parsed.runbook, str(path), str(path), workspace_of(path)
        else:
            # Of a registered runbook nothing is here: the service gives each of its runs a folder.
            parsed, source, origin, folder = None, "", f"runbook {spec}", ""
        if executor is not None:
            _require_executor(executor, runbook)
        if workspace is not None:
            folder = _workspace(at, workspace)
        engine = at.engine
        if parsed is not None:
            runbook = engine.register(parsed, source)
        scopes = (at.scope, f"{at.scope}|{origin}")
        known = None if fresh else engine.active(scopes[1])
        target = wanted or known or new_run_id(runbook.name)
        if (existing := engine.find(target)) is not None:
            if fresh or on_existing == "fail":
                option = "--fresh" if fresh else "--on-existing fail"
                raise Conflict(
                    f"Run {target!r} exists already; it stands on {existing.node!r}.",
                    hint=f"Choose another --run-id, or leave {option} out to resume it.",
                    details={"run_id": target, "current": existing.node},
                )
            if on_existing == "restart":
                if label:
                    warn(
                        f"run {target!r} keeps the labels that it was started with; --label counts for a new run only."
                    )
            elif workspace or queue or executor or label or env or pass_env:
                warn(
                    f"run {target!r} is resumed where and with what it was started; "
                    "--workspace, --queue, --executor, --label, --env and --pass-env count for a new run only."
                )
        request = StartRequest(
            runbook=runbook,
            run_id=target,
            place=Place(
                workspace=folder,
                spec=source,
                state_dir=at.scope,
                queue=queue,
                env=pairs(env, "--env") | variables_here(pass_env),
                executor=executor or "",
            ),
            by=at.actor(agent_id, agent_role),
            confirmations=Confirmations(everything=yes),
            labels=pairs(label, "--label"),
        )
        previous = engine.active(at.scope)
        # Before the in_hook, so that an interrupted start is resumed by the next one.
        engine.activate(scopes, target)
        try:
            begin = engine.restart if existing is not None and on_existing == "restart" else engine.start
            settled = begin(request, Deadline(timeout), on_waiting=say_waiting)
        except StatemError as error:
            never_begun = engine.find(target) is None or isinstance(error, PausedRun | CancelledRun)
            if never_begun and previous is not None:
                engine.activate((at.scope,), previous)
            raise
        rebinding = _rebinding(engine.log, existing, settled.run) if existing else None
        if rebinding is not None:
            warn(*_told_of(rebinding, target))
        return _started(at, settled, rebinding, agent_id, agent_role)


def goto(
    target: Annotated[str, Argument(metavar="TARGET", help="The node to move to.", complete="targets")],
    run_id: RunIdOption = None,
    wait: WaitOption = True,
    timeout: TimeoutOption = None,
    yes: YesOption = False,
    confirm: ConfirmOption = None,
    decline: DeclineOption = None,
    reason: ReasonOption = "",
    on_manual: OnManualOption = "fail",
    agent_id: AgentIdOption = None,
    agent_role: AgentRoleOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Attempt a checked transition: it commits only when every required check passes.

    Exit codes: 0 moved, 2 blocked, 5 another transition is in flight, 7 still pending when the wait ran out.

    Example: statem-dist goto review --run-id demo
    """
    from statem_dist.cli.loading import warn
    from statem_dist.cli.progress import Ticker, ask_questions, say_waiting
    from statem_dist.coordinator import history_warning
    from statem_dist.deadline import Deadline
    from statem_dist.questions import confirmations_of

    if reason and not decline:
        raise Usage("--reason says why a check is declined; name that check with --decline.")
    with session(state_dir) as at:
        run = at.engine.run(at.run_id(run_id))
        by = at.actor(agent_id, agent_role, run)
        at_terminal = not yes and not as_json and sys.stdin.isatty() and on_manual == "fail"
        if confirm or decline or at_terminal:
            questions = at.engine.questions(run, target)
            confirmations = confirmations_of(
                questions, confirm or (), dict.fromkeys(decline or (), reason), everything=yes
            )
            if at_terminal:
                confirmations = ask_questions(questions, confirmations)
        else:
            confirmations = Confirmations(everything=yes)
        ticker = None if as_json or not sys.stderr.isatty() else Ticker()
        try:
            settled = at.engine.goto(
                run.id,
                target,
                by,
                confirmations,
                on_manual=on_manual,
                # Answers that name checks are for the questions of this entry, and for no other.
                from_entry=run.entry_id if confirmations.checks or confirmations.declined else None,
                wait=wait,
                deadline=Deadline(timeout),
                on_event=ticker,
                on_waiting=say_waiting,
            )
        except KeyboardInterrupt:
            finishes = "" if at.service else ", and finishes it where no worker does"
            goes_on = "goes on at the service" if at.service else "is not settled yet"
            print(
                f"\nThe transition of run {run.id!r} {goes_on}. `statem-dist cur --run-id {run.id}` shows it{finishes};"
                f" `statem-dist cancel --run-id {run.id}` ends it instead.",
                file=sys.stderr,
            )
            raise
        if told := history_warning(settled.run, at.settings):
            warn(told)
        waiting = at.engine.waiting_reason(settled.run) if settled.transition.open else ""
        return _moved(settled, waiting, submitted=not wait, shown=ticker is not None)


def save(
    run_id: RunIdOption = None,
    skip_hooks: Annotated[bool, Option("--skip-hooks", help="Only record it.")] = False,
    timeout: TimeoutOption = None,
    yes: YesOption = False,
    agent_id: AgentIdOption = None,
    agent_role: AgentRoleOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Run the current node's out_hook without moving.

    Example: statem-dist save --run-id demo
    """
    from statem_dist import views
    from statem_dist.cli import text
    from statem_dist.cli.progress import say_waiting
    from statem_dist.deadline import Deadline

    with session(state_dir) as at:
        run = at.engine.run(at.run_id(run_id))
        by = at.actor(agent_id, agent_role, run)
        settled = at.engine.save(
            run.id,
            by,
            Confirmations(everything=yes),
            skip_hooks=skip_hooks,
            deadline=Deadline(timeout),
            on_waiting=say_waiting,
        )
        waiting = at.engine.waiting_reason(settled.run) if settled.transition.open else ""
    transition = settled.transition
    data = views.settled_transition(settled.run, transition)
    if transition.outcome == "committed":
        return Answer({"ok": True, **data}, lambda: text.saved(settled))
    told = f"{transition.outcome} at {transition.stage}" if transition.outcome else f"is still pending: {waiting}"
    error = f"Save of run {settled.run.id!r} on {transition.source!r} {told}."
    return Answer(data, lambda: text.results(transition), _exit_code(settled), error)


def _require_queue_name(queue: str | None) -> None:
    """Refuse a name that no worker could be told to serve: its option has commas between names."""
    if queue is not None and not QUEUE_NAME.fullmatch(queue):
        raise Invalid(f"The queue {queue!r} cannot be served.", hint="Use letters, digits, '.', '_' and '-'.")


def _registered(at: Session, name: str) -> Runbook | None:
    """Return the registered runbook that ``start`` means; None if it means a file.

    Only a service has a default for where its runs work, so only there a name is enough. A file goes first.

    Raises:
        NotFound: there is neither.
    """
    if at.service is None or os.path.lexists(name) or not re.fullmatch(NAME_PATTERN, name):
        return None
    try:
        return at.remote.registered(name)
    except NotFound as error:
        raise NotFound(
            f"There is no file {name!r} here, and no runbook of that name at the service.",
            hint="`statem-dist runbook list` lists the registered runbooks.",
            details={"runbook": name},
        ) from error


def _require_executor(executor: str, runbook: Runbook) -> None:
    """Refuse an executor that there is none of, or that would take commands out of the sandbox of their runbook."""
    from statem_dist.runbook.confinement import CONTAINER_NAME

    kind, _, name = executor.partition(":")
    if kind != "docker" or not CONTAINER_NAME.fullmatch(name):
        raise Usage(f"--executor takes docker:NAME, the name of a running container, not {executor!r}.")
    if runbook.confinement.sandbox is not None:
        raise Invalid(
            f"The runbook {runbook.name!r} demands a sandbox; a command in a container would be outside of it.",
            hint="Leave --executor out.",
        )


def _workspace(at: Session, given: Path) -> str:
    """Return the absolute path of a workspace.

    With a store elsewhere it need not be a folder of this host: those who work there are the workers.
    """
    if at.embedded and not given.is_dir():
        raise Invalid(f"The workspace {given} is no directory.", hint="Make it first, or name another.")
    return os.path.abspath(given)


def _rebinding(log: EventLog, before: Run, after: Run) -> RunRebound | None:
    """Return the event by which a resumed run came to follow another version of its runbook, if it did."""
    if before.runbook == after.runbook:
        return None
    from statem_dist.protocol.events import RunRebound

    events = (event for _, event in log.events(before.id, after=before.version))
    return next((event for event in events if isinstance(event, RunRebound)), None)


def _told_of(rebinding: RunRebound, run_id: str) -> list[str]:
    """Return what a resumed run has to do with the edited runbook, in sentences."""
    versions = f"{rebinding.previous[:HASH_SHOWN]} -> {rebinding.runbook[:HASH_SHOWN]}"
    told = [f"the runbook was edited; run {run_id!r} follows it as it is now ({versions})."]
    if rebinding.migrated_from is not None:
        gone, node = rebinding.migrated_from, rebinding.node
        told.append(f"run {run_id!r} stood on {gone!r}, which is gone; it is on {node!r} now, the initial node.")
    return told


def _started(
    at: Session, settled: Settled, rebinding: RunRebound | None, agent_id: str | None, agent_role: str | None
) -> Answer:
    from statem_dist import views
    from statem_dist.cli import text

    run, transition = settled.run, settled.transition
    runbook = at.engine.runbook(run.runbook)
    facts = {
        "rebound": {"previous_hash": rebinding.previous, "spec_hash": rebinding.runbook} if rebinding else None,
        "migrated_from": rebinding.migrated_from if rebinding else None,
    }
    data = views.node_status(run, runbook, at.actor(agent_id, agent_role, run).id) | facts
    if transition.outcome == "committed" and transition.stage is None:
        return Answer(data, lambda: text.node_status(run, runbook))
    waiting = at.engine.waiting_reason(run) if transition.open else ""
    told = f"has not ended yet: {waiting}" if transition.open else "did not pass"
    error = f"Run {run.id!r} stands on {run.node!r}, but its in_hook {told}."
    details = views.settled_transition(run, transition) | facts
    code = ExitCode.BLOCKED if transition.outcome == "committed" else _exit_code(settled)
    return Answer(details, lambda: text.results(transition), code, error)


def _moved(settled: Settled, waiting: str, *, submitted: bool, shown: bool) -> Answer:
    """Answer for a goto that has settled, or not yet."""
    from statem_dist import views
    from statem_dist.cli import text

    run, transition = settled.run, settled.transition
    data = views.settled_transition(run, transition) | ({"waiting_reason": waiting} if waiting else {})
    way = f"{transition.source!r} -> {transition.target!r}"
    listed = "" if shown else text.results(transition)
    if transition.outcome == "committed" and transition.stage is None:
        return Answer({"ok": True, **data}, lambda: text.moved(settled, listed))
    if transition.outcome is None and submitted:
        return Answer({"ok": True, **data}, lambda: f"Submitted: transition {transition.id} of {run.id}, {way}.")
    match transition.outcome:
        case "committed":
            error = f"Run {run.id!r} has moved to {run.node!r}, but its in_hook did not pass."
        case "blocked" if transition.stage == "max_attempts":
            error = f"Transition {way} is blocked: max_attempts ({transition.max_attempts}) are used up."
        case "blocked":
            error = f"Transition {way} is blocked at {transition.stage}."
        case None if is_of_unknown_outcome(run):
            error = f"Transition {transition.id} of run {run.id!r}, {way}, stands still: {waiting}."
        case None:
            error = f"Transition {transition.id} of run {run.id!r}, {way}, is still pending: {waiting}."
        case outcome:
            reason = transition.reason or "no reason given"
            error = f"Transition {way} ended as {outcome} at {transition.stage or 'request'}: {reason}."
    return Answer(data, lambda: listed, _exit_code(settled), error)


def _exit_code(settled: Settled) -> ExitCode:
    match settled.transition.outcome:
        case None if is_of_unknown_outcome(settled.run):
            return ExitCode.ERROR
        case None:
            return ExitCode.PENDING
        case "blocked" | "committed":
            return ExitCode.BLOCKED
        case _:
            return ExitCode.ERROR
