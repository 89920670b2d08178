"""Commands that hold a run or end something of it: ``pause``, ``resume``, ``cancel``, ``terminate``.

Four words for four things: a transition is cancelled and its run goes on; a run is cancelled and what is being executed
may end first; a run is terminated and nothing is waited for; a run is paused until it is resumed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from statem_dist.cli.answer import Answer
from statem_dist.cli.declare import Option
from statem_dist.cli.session import (
    AgentIdOption,
    AgentRoleOption,
    JsonOption,
    RunIdOption,
    Session,
    StateDirOption,
    session,
)

if TYPE_CHECKING:
    from statem_dist.protocol.model import Actor, Run

ReasonOption = Annotated[str, Option("--reason", metavar="TEXT", help="Kept in the history.")]


def cancel(
    run_id: RunIdOption = None,
    whole_run: Annotated[
        bool, Option("--run", help="End the run itself for good; a check that is being executed may end first.")
    ] = False,
    reason: ReasonOption = "",
    agent_id: AgentIdOption = None,
    agent_role: AgentRoleOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """End the transition that is in flight; the run stays on its node, and a running command is ended.

    Example: statem-dist cancel --run-id demo --reason "wrong target"
    """
    from statem_dist import views

    with session(state_dir) as at:
        run, by = _meant(at, run_id, agent_id, agent_role)
        if whole_run:
            return _steered(at, at.engine.cancel_run(run.id, reason, by))
        settled = at.engine.cancel(run.id, reason or f"cancelled by {by.id}", by)
        transition = settled.transition
        waiting = at.engine.waiting_reason(settled.run) if transition.open else ""
    data = {"ok": True, **views.settled_transition(settled.run, transition)}
    way = f"{transition.source} -> {transition.target}"
    told = f"transition {transition.id} ({way}) of run {run.id}"
    if transition.open:
        # Hooks that were begun are repaired first.
        data["waiting_reason"] = waiting
        return Answer(data, lambda: f"Being cancelled: {told}\n  {waiting}")
    return Answer(data, lambda: f"Cancelled: {told}: {transition.reason}")


def terminate(
    run_id: RunIdOption = None,
    reason: ReasonOption = "",
    agent_id: AgentIdOption = None,
    agent_role: AgentRoleOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """End a run for good and at once; a running command is ended.

    Example: statem-dist terminate --run-id demo --reason "burns money"
    """
    with session(state_dir) as at:
        run, by = _meant(at, run_id, agent_id, agent_role)
        return _steered(at, at.engine.cancel_run(run.id, reason, by, terminate=True))


def pause(
    run_id: RunIdOption = None,
    reason: ReasonOption = "",
    agent_id: AgentIdOption = None,
    agent_role: AgentRoleOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Hold a run where it is until it is resumed; a check that is being executed may end.

    Example: statem-dist pause --run-id demo --reason "the licence server is down"
    """
    with session(state_dir) as at:
        run, by = _meant(at, run_id, agent_id, agent_role)
        return _steered(at, at.engine.pause(run.id, reason, by))


def resume(
    run_id: RunIdOption = None,
    agent_id: AgentIdOption = None,
    agent_role: AgentRoleOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Let a paused run go on with whatever it was doing. To take up a run that is not paused, start it.

    Example: statem-dist resume --run-id demo
    """
    with session(state_dir) as at:
        run, by = _meant(at, run_id, agent_id, agent_role)
        return _steered(at, at.engine.unpause(run.id, by))


def _meant(at: Session, run_id: str | None, agent_id: str | None, agent_role: str | None) -> tuple[Run, Actor]:
    """Return the run that a command means, as it is, and who is asking."""
    run = at.engine.run(at.run_id(run_id))
    return run, at.actor(agent_id, agent_role, run)


def _steered(at: Session, run: Run) -> Answer:
    """Answer where a run stands, and what its open transition waits for."""
    from statem_dist import views
    from statem_dist.cli import text

    waiting = at.engine.waiting_reason(run)
    return Answer(views.steered(run, waiting), lambda: text.steered(run, waiting))
