"""Commands for people who decide: ``approvals``, ``approve``, ``reject``."""

from __future__ import annotations

import os
import shlex
from typing import TYPE_CHECKING, Annotated

from statem_dist.cli.answer import Answer
from statem_dist.cli.declare import Argument, Option
from statem_dist.cli.session import JsonOption, Session, StateDirOption, session
from statem_dist.errors import NotFound, Usage
from statem_dist.identity import user_name
from statem_dist.protocol.model import Actor, Run

if TYPE_CHECKING:
    from statem_dist.decisions import Decision

DECISIONS_MAX = 1000

DecisionArgument = Annotated[
    str,
    Argument(
        metavar="DECISION",
        help="Its id as `approvals` lists it, or the run if only one waits there.",
        complete="decisions",
    ),
]
CommentOption = Annotated[str, Option("--comment", "-m", metavar="TEXT", help="Kept with the decision.")]
ByOption = Annotated[str | None, Option("--by", metavar="NAME", help="Who decides (default: the name of this user).")]


def approvals(state_dir: StateDirOption = None, as_json: JsonOption = False) -> Answer:
    """List what waits for somebody's decision.

    Example: statem-dist approvals
    """
    from statem_dist.cli.progress import say_unreadable
    from statem_dist.decisions import decision_view

    with session(state_dir) as at:
        found = [] if at.nothing_yet else at.engine.decisions(DECISIONS_MAX, say_unreadable)
        now = at.engine.clock() if found else 0
    data = {"ok": True, "approvals": [decision_view(decision) for decision in found]}

    def as_text() -> str:
        return "\n".join(_told(each, now, state_dir) for each in found) or "Nothing waits for a decision."

    return Answer(data, as_text)


def approve(
    decision: DecisionArgument,
    comment: CommentOption = "",
    by: ByOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Approve a check that waits for a decision; the transition goes on.

    Example: statem-dist approve demo/t4/before_transfer.0 -m "read and tried"
    """
    return _settle(decision, comment, by, state_dir, approved=True)


def reject(
    decision: DecisionArgument,
    comment: CommentOption = "",
    by: ByOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Reject a check that waits for a decision; the transition is blocked by it.

    Example: statem-dist reject demo/t4/before_transfer.0 -m "the plan lacks a rollback"
    """
    return _settle(decision, comment, by, state_dir, approved=False)


def _settle(wanted: str, comment: str, by: str | None, state_dir: str | None, *, approved: bool) -> Answer:
    from statem_dist import views
    from statem_dist.cli.progress import say_waiting
    from statem_dist.protocol.answers import question_of

    # Whoever calls as an agent does not decide for an operator. Only tokens of the service can prove more.
    agent = os.environ.get("STATEM_AGENT_ID")
    with session(state_dir) as at:
        if by and at.service is not None:
            raise Usage("--by is not for a service: who decides there is whose token it is.", hint="Leave --by out.")
        actor = Actor(id=by or agent or user_name(), role="agent" if agent else "operator")
        run_id, transition_id, check = _find(at, wanted)
        settled = at.engine.decide(
            run_id,
            transition_id,
            check,
            approved=approved,
            comment=comment,
            by=actor,
            operator=not agent,
            on_waiting=say_waiting,
        )
        run, transition = settled.run, settled.transition
        planned = transition.planned(check)
        assert planned is not None, "a decision is about a planned check"
        waiting = at.engine.waiting_reason(run) if transition.open else ""
        data = {
            "ok": True,
            "decision": f"{run_id}/{transition_id}/{check}",
            "approved": approved,
            "by": result.by if (result := transition.results.get(check)) else actor.id,
            **views.settled_transition(run, transition),
            **({"waiting_reason": waiting} if waiting else {}),
        }
    verdict = "Approved" if approved else "Rejected"
    then = {"committed": f"moved to {run.node}", None: f"still waits, because {waiting}"}.get(
        transition.outcome, str(transition.outcome)
    )
    return Answer(data, lambda: f"{verdict}: {question_of(planned)}\nRun {run.id}: {then}")


def _find(at: Session, wanted: str) -> tuple[str, str, str]:
    """Return run, transition and check of the decision that is meant: by its id, or the only one of a run.

    Raises:
        NotFound: there is no such run, or no decision waits there, or several do.
    """
    from statem_dist.cli.progress import say_unreadable

    run_id, _, rest = wanted.partition("/")
    transition, _, check = rest.partition("/")
    if check:
        # Asked for by its full id it may have been settled already: then the decider says by whom.
        return run_id, transition, check
    found = [each for each in at.engine.decisions(DECISIONS_MAX, say_unreadable) if each.run_id == wanted]
    if not found and (late := _expired(at.engine.run(wanted))) is not None:
        # It is over: then the decider says so.
        return late
    if len(found) != 1:
        listed = ", ".join(each.id for each in found) or "none"
        raise NotFound(
            f"{wanted!r} does not name one decision; waiting there: {listed}",
            hint="`statem-dist approvals` lists what waits for a decision.",
        )
    return found[0].run_id, found[0].transition, found[0].check


def _expired(run: Run) -> tuple[str, str, str] | None:
    """Return run, transition and check of a decision that nobody made in time, if the latest transition had one."""
    transition = run.transition
    if transition is None:
        return None
    late = (check for check, result in transition.results.items() if result.outcome.reason == "expired")
    return next(((run.id, transition.id, check) for check in late), None)


def _told(decision: Decision, now: int, state_dir: str | None) -> str:
    """Return what somebody needs who is to decide: what, who asks and until when, and the command to copy."""
    from statem_dist.cli.text import span

    operator = "  (an operator decides)" if decision.operator else ""
    until = f"expires in {span(decision.expires_at - now)}" if decision.expires_at else "does not expire"
    where = f" --state-dir {shlex.quote(state_dir)}" if state_dir else ""
    return "\n".join(
        [
            f"{decision.id}  {decision.source} -> {decision.target}{operator}",
            *(f"    {line}" for line in decision.question.splitlines()),
            f"    asked by {decision.requested_by.id} {span(now - decision.requested_at)} ago; {until}",
            f"    statem-dist approve {decision.id}{where}",
        ]
    )
