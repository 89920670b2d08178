"""``recover``: what an operator does about a check of unknown outcome, and the list of all that needs somebody."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Annotated, Literal

from statem_dist.cli.answer import Answer
from statem_dist.cli.declare import Argument, Option
from statem_dist.cli.session import JsonOption, Session, StateDirOption, session
from statem_dist.errors import ExitCode, NotAuthorised, Usage
from statem_dist.identity import user_name
from statem_dist.protocol.model import Actor, WayOut

if TYPE_CHECKING:
    from statem_dist.follow import Settled
    from statem_dist.recovery import Neglected


def recover(
    run_id: Annotated[
        str | None, Argument(metavar="RUN", help="The run; with --all there is none.", complete="runs")
    ] = None,
    resume: Annotated[
        bool, Option("--resume", help="Execute the check again: look first at what it has done.")
    ] = False,
    abort: Annotated[
        bool, Option("--abort", help="Give the transition up: repair what has a repair, and settle as an error.")
    ] = False,
    mark: Annotated[
        Literal["passed", "failed"] | None, Option("--mark", help="Say what came of the check; --reason says why.")
    ] = None,
    reason: Annotated[str, Option("--reason", metavar="TEXT", help="Kept in the history.")] = "",
    check: Annotated[
        str | None, Option("--check", metavar="CHECK", help="The check, where several are of unknown outcome.")
    ] = None,
    everything: Annotated[
        bool, Option("--all", help="List every run that needs somebody, and do what is safe by itself.")
    ] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="With --all: only list.")] = False,
    by: Annotated[
        str | None, Option("--by", metavar="NAME", help="Who decides (default: the name of this user).")
    ] = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Say how a transition goes on after a hook whose outcome nobody knows, or list what needs somebody.

    Exit codes: 0 it went on, 1 it ended as an error, or something still needs a decision, 2 it is blocked.

    Example: statem-dist recover demo --mark passed --reason "the release is on the server"
    """
    ways: list[WayOut] = [mark] if mark else []
    if resume:
        ways.append("resume")
    if abort:
        ways.append("abort")
    if everything:
        if run_id or ways or reason or check:
            raise Usage("--all is for every run: what to do about one of them is said of that run.")
        return _all(state_dir, dry_run=dry_run)
    if dry_run:
        raise Usage("--dry-run goes with --all.")
    if run_id is None:
        raise Usage("Name a run, or list what needs somebody: statem-dist recover --all --dry-run")
    if len(ways) != 1:
        raise Usage(
            "Say how to go on, in one way: --resume, --abort, or --mark passed|failed.",
            hint=f"`statem-dist cur --run-id {run_id}` tells what happened.",
        )
    if mark and not reason.strip():
        raise Usage("--mark needs a --reason: it is your word that counts.")
    return _one(run_id, ways[0], reason, check, by, state_dir)


def _one(run_id: str, way: WayOut, reason: str, check: str | None, by: str | None, state_dir: str | None) -> Answer:
    from statem_dist.cli.progress import say_waiting

    with session(state_dir) as at:
        actor = _operator(at, by)
        settled = at.engine.recover(at.run_id(run_id), way, reason, actor, check=check, on_waiting=say_waiting)
        waiting = at.engine.waiting_reason(settled.run) if settled.transition.open else ""
    return _told(settled, way, waiting)


def _operator(at: Session, by: str | None) -> Actor:
    """Return who recovers: a person; at a service it is the token that says so.

    Raises:
        NotAuthorised: the caller calls itself an agent.
    """
    agent = os.environ.get("STATEM_AGENT_ID")
    if agent:
        raise NotAuthorised(
            f"The agent {agent} does not decide what follows from an unknown outcome.",
            hint="An operator does: statem-dist recover, without STATEM_AGENT_ID in the environment.",
        )
    if by and at.service is not None:
        raise Usage("--by is not for a service: who decides there is whose token it is.", hint="Leave --by out.")
    return Actor(id=by or user_name(), role="operator")


def _told(settled: Settled, way: WayOut, waiting: str) -> Answer:
    from statem_dist import views
    from statem_dist.cli import text
    from statem_dist.protocol.progress import is_of_unknown_outcome

    run, transition = settled.run, settled.transition
    data = {
        "recovered": way,
        **views.settled_transition(run, transition),
        **({"waiting_reason": waiting} if waiting else {}),
    }
    way_of = f"{transition.source!r} -> {transition.target!r}"

    def as_text() -> str:
        listed = text.results(transition)
        stands = f"Run {run.id}: on {run.node}  [{run.status}]"
        return f"{listed}\n{stands}" if listed else stands

    match transition.outcome:
        case None if is_of_unknown_outcome(run):
            return Answer(data, as_text, ExitCode.ERROR, f"Transition {transition.id}, {way_of}: {waiting}.")
        case None:
            return Answer({"ok": True, **data}, lambda: f"{as_text()}\n  {waiting}")
        case "committed" if transition.stage is None:
            return Answer({"ok": True, **data}, as_text)
        case "error" if way == "abort" and transition.reason == "hook_outcome_unknown":
            # That is what was asked for.
            return Answer({"ok": True, **data}, as_text)
        case outcome:
            why = f": {transition.reason}" if transition.reason else ""
            error = f"Transition {transition.id}, {way_of}, ended as {outcome} at {transition.stage}{why}."
            code = ExitCode.BLOCKED if outcome in ("blocked", "committed") else ExitCode.ERROR
            return Answer(data, as_text, code, error)


def _all(state_dir: str | None, *, dry_run: bool) -> Answer:
    """List what needs somebody, and, unless this is a rehearsal, do first what is safe by itself."""
    from statem_dist.cli.progress import say_unreadable
    from statem_dist.recovery import neglected_view

    done: list[Neglected] = []
    with session(state_dir) as at:
        if at.service is not None:
            raise Usage(
                "--all goes through the store itself, not through a service.",
                hint="At a service: statem-dist runs --status outcome_unknown",
            )
        found = [] if at.nothing_yet else list(at.store_engine.neglected(say_unreadable))
        if not dry_run:
            done = [each for each in found if not each.needs_a_decision]
            for each in done:
                at.store_engine.relieve(each)
            # A claim that was given up may leave a question behind it.
            found = (
                []
                if at.nothing_yet
                else [each for each in at.store_engine.neglected(say_unreadable) if each.needs_a_decision]
            )
    data = {
        "dry_run": dry_run,
        "done": [neglected_view(each) for each in done],
        "found": [neglected_view(each) for each in found],
    }
    undecided = any(each.needs_a_decision for each in found)
    code = ExitCode.ERROR if undecided and not dry_run else ExitCode.DONE

    def as_text() -> str:
        told = [_line(each, "done: ") for each in done] + [_line(each, "") for each in found]
        return "\n".join(told) or "Nothing needs anybody: every open run is in good hands."

    if code is ExitCode.ERROR:
        return Answer(data, as_text, code, "Some runs need a decision.")
    return Answer({"ok": True, **data}, as_text)


def _line(found: Neglected, before: str) -> str:
    from statem_dist.recovery import REMEDIES

    place = f"{found.run_id}/{found.transition} on {found.node}"
    return f"{place}  [{found.trouble}: {before}{REMEDIES[found.trouble]}]\n    {found.told}"
