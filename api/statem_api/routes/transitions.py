"""Transitions: attempt, look at, decide, cancel; and what else changes a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from fastapi import APIRouter
from msgspec.structs import replace
from starlette.responses import Response

from statem_api import bodies, shapes
from statem_api.answers import Asked, Versioned, Waiting, answer, described, transition_url, transition_view
from statem_api.callers import Caller, Calling
from statem_api.routes.runs import reached, reached_snapshot, run_view
from statem_api.service import Service, Serving, log_unreadable
from statem_api.starting import runbook_for
from statem_dist import dynamic
from statem_dist.coordinator import Terms, refuse_stale
from statem_dist.deadline import Deadline
from statem_dist.decisions import decision_view
from statem_dist.engine import StartRequest
from statem_dist.errors import Conflict, NotAuthorised, NotFound
from statem_dist.follow import Settled
from statem_dist.protocol.graph import DynamicConfig
from statem_dist.protocol.model import Confirmations, Run
from statem_dist.questions import confirmations_of
from statem_dist.store.base import Snapshot

router = APIRouter(prefix="/v1/runs/{run_id}", tags=["transitions"])
inbox = APIRouter(prefix="/v1/approvals", tags=["approvals"])

DECISIONS_MAX = 1_000

NO_WAIT = Deadline(0)
"""For verbs that leave the work to workers: whoever waits does so in the event loop."""


@router.post(
    "/goto",
    responses=described(404, 409, 412, of_200=shapes.Transition, of_202=shapes.Transition),
    summary="Attempt a transition",
)
async def goto(
    run_id: bodies.RunId, body: bodies.Goto, service: Serving, caller: Calling, asked: Asked, waiting: Waiting
) -> Response:
    """Attempt a checked transition: it commits only when every required check passes.

    200 with `outcome` `committed` or `blocked` and the results, once it has settled; 202 with the place to look at
    while it is pending. A transition that is blocked is an outcome and no error.
    """
    caller.require("agent", "move runs")

    def attempt(seen: Snapshot) -> Settled:
        return service.engine.goto(
            run_id,
            body.target,
            caller.actor(body.agent_id, body.agent_role),
            _confirmations(service, seen.run, body, body.target),
            from_entry=body.from_entry or (seen.run.entry_id if _names_checks(body) else None),
            on_manual=body.on_manual,
            wait=False,
            terms=asked,
            seen=seen,
        )

    return await carried_out(service, caller, run_id, asked, waiting, attempt)


@router.post(
    "/save",
    responses=described(404, 409, 412, of_200=shapes.Transition, of_202=shapes.Transition),
    summary="Run the out_hook without moving",
)
async def save(
    run_id: bodies.RunId, body: bodies.Save, service: Serving, caller: Calling, asked: Asked, waiting: Waiting
) -> Response:
    """Run the current node's out_hook, and stay."""
    caller.require("agent", "save runs")

    def attempt(seen: Snapshot) -> Settled:
        by = caller.actor(body.agent_id, body.agent_role)
        confirmations = Confirmations(everything=body.confirm is True)
        return service.engine.save(
            run_id, by, confirmations, skip_hooks=body.skip_hooks, deadline=NO_WAIT, terms=asked, seen=seen
        )

    return await carried_out(service, caller, run_id, asked, waiting, attempt)


@router.post(
    "/rebind",
    responses=described(404, 409, 412, of_200=shapes.Transition, of_202=shapes.Transition),
    summary="Follow another version of the runbook",
)
async def rebind(
    run_id: bodies.RunId, body: bodies.Rebind, service: Serving, caller: Calling, asked: Asked, waiting: Waiting
) -> Response:
    """Bind a run to another version of its runbook, and run the in_hook of its node again.

    If its node is gone there, the run goes to the initial one.
    """
    caller.require("operator", "bind runs to another runbook")

    def attempt(seen: Snapshot) -> Settled:
        request = StartRequest(
            runbook=runbook_for(service, caller, body)[0],
            run_id=run_id,
            place=seen.run.place,
            by=caller.actor(body.agent_id, body.agent_role),
            confirmations=Confirmations(everything=body.confirm is True),
        )
        return service.engine.start(request, NO_WAIT, terms=asked)

    return await carried_out(service, caller, run_id, asked, waiting, attempt)


@router.get(
    "/transitions/{transition}", responses=described(404, of_200=shapes.Transition), summary="Look at a transition"
)
async def show(
    run_id: bodies.RunId, transition: bodies.TransitionId, service: Serving, caller: Calling, waiting: Waiting
) -> Response:
    """Show what has come of a transition; with `wait`, once it has settled or time is up."""
    with service.announcements.watch(run_id) as watch:
        settled = await service.call(_reached_transition, service, caller, run_id, transition)
        settled = await service.seen_through(settled, watch, waiting)
    data = transition_view(settled, await service.waiting_reason(settled))
    return answer(data, version=settled.run.version)


def _reached_transition(service: Service, caller: Caller, run_id: str, transition: str) -> Settled:
    """Return a transition of a run that the caller's labels reach.

    Raises:
        NotFound: there is no such run, they do not reach it, or it has not made such a transition.
    """
    return service.engine.look(run_id, transition, reached_snapshot(service, caller, run_id))


@router.get(
    "/transitions/{transition}/document",
    responses=described(404, of_200=shapes.Document),
    summary="A transition as it is stored",
)
async def document(
    run_id: bodies.RunId, transition: bodies.TransitionId, service: Serving, caller: Calling
) -> Response:
    """Give a transition with all that is stored of it, for programs of the same version."""
    settled = await service.call(_reached_transition, service, caller, run_id, transition)
    return answer(settled.transition, version=settled.run.version)


@router.get(
    "/transitions/{transition}/checks/{check}/log",
    responses=described(404, of_200=shapes.Log),
    summary="The longer output of a check",
)
async def log(
    run_id: bodies.RunId,
    transition: bodies.TransitionId,
    check: bodies.CheckId,
    service: Serving,
    caller: Calling,
) -> Response:
    """Give the longer output of a check, which is kept for a week; results have the beginning and the end of it."""
    await service.call(reached, service, caller, run_id)
    text = await service.call(service.engine.store.log, run_id, transition, check)
    if text is None:
        raise NotFound(
            f"No log of {check} is kept for transition {transition} of run {run_id!r}.",
            hint="Short output is in the result itself; logs are kept for a week.",
        )
    return answer({"run_id": run_id, "transition": transition, "check": check, "text": text})


@router.post(
    "/transitions/{transition}/cancel",
    responses=described(404, 409, 412, of_200=shapes.Transition, of_202=shapes.Transition),
    summary="Cancel a transition",
)
async def cancel(
    run_id: bodies.RunId,
    transition: bodies.TransitionId,
    body: bodies.Why,
    service: Serving,
    caller: Calling,
    asked: Asked,
) -> Response:
    """End a transition that is open; a running command is ended, and the run stays on its node.

    Hooks that were begun and have a repair are repaired first: then the answer is 202.
    """
    caller.require("operator", "cancel transitions")

    def attempt(seen: Snapshot) -> Settled:
        run = seen.run
        if run.in_flight is None or run.in_flight.id != transition:
            raise Conflict(
                f"Transition {transition} of run {run_id!r} is not open.",
                details={"run_id": run_id, "transition": transition, "current": run.node},
            )
        by = caller.decider()
        return service.engine.cancel(run_id, body.reason or f"cancelled by {by.id}", by, asked, transition=transition)

    return await carried_out(service, caller, run_id, asked, 0.0, attempt)


@router.post(
    "/transitions/{transition}/decisions/{check}",
    responses=described(404, 409, 412, of_200=shapes.Transition, of_202=shapes.Transition),
    summary="Decide",
    tags=["approvals"],
)
async def decide(
    run_id: bodies.RunId,
    transition: bodies.TransitionId,
    check: bodies.CheckId,
    body: bodies.Decision,
    service: Serving,
    caller: Calling,
    asked: Asked,
    waiting: Waiting,
) -> Response:
    """Approve or reject a check that waits for a decision; the transition goes on. The first decision wins."""
    caller.require("operator", "decide")

    def attempt(seen: Snapshot) -> Settled:
        return service.engine.decide(
            run_id,
            transition,
            check,
            approved=body.approved,
            comment=body.comment,
            by=caller.decider() if body.as_agent is None else caller.actor(body.as_agent, "agent"),
            operator=body.as_agent is None,
            deadline=NO_WAIT,
            terms=asked,
            seen=seen,
        )

    return await carried_out(service, caller, run_id, asked, waiting, attempt)


@router.post(
    "/recover",
    responses=described(404, 409, 412, of_200=shapes.Transition, of_202=shapes.Transition),
    summary="Recover from an unknown outcome",
)
async def recover(
    run_id: bodies.RunId, body: bodies.Recovery, service: Serving, caller: Calling, asked: Asked, waiting: Waiting
) -> Response:
    """Say how a transition goes on that stands because nobody knows what one of its checks did.

    `resume` executes the check again, `abort` repairs what has a repair and settles the transition as an error, and
    `passed` or `failed` is the caller's decision about what came of the check.
    """
    caller.require("operator", "recover runs")

    def attempt(seen: Snapshot) -> Settled:
        return service.engine.recover(
            run_id,
            body.way,
            body.reason,
            caller.decider(),
            check=body.check,
            transition=body.transition,
            deadline=NO_WAIT,
            terms=asked,
            seen=seen,
        )

    return await carried_out(service, caller, run_id, asked, waiting, attempt)


@inbox.get("", responses=described(of_200=shapes.Items), summary="What waits for a decision")
async def approvals(service: Serving, caller: Calling) -> Response:
    """List what waits for somebody's decision, in the runs that the caller reaches."""
    found = await service.call(service.engine.decisions, DECISIONS_MAX, log_unreadable, caller.labels)
    items = [
        decision_view(each) | {"url": f"{transition_url(each.run_id, each.transition)}/decisions/{each.check}"}
        for each in found
    ]
    return answer({"items": items})


# --- holding and ending ----------------------------------------------------------------------------------------------


@router.post("/cancel", responses=described(404, 409, 412, of_200=shapes.Run), summary="Cancel a run", tags=["runs"])
async def cancel_run(
    run_id: bodies.RunId, body: bodies.Why, service: Serving, caller: Calling, asked: Asked
) -> Response:
    """End a run for good. What is being executed may end first; nothing more begins."""
    caller.require("operator", "cancel runs")

    def end() -> Run:
        return service.engine.cancel_run(run_id, body.reason, caller.decider(), terms=asked)

    return await changed(service, caller, run_id, asked, end)


@router.post(
    "/terminate", responses=described(404, 409, 412, of_200=shapes.Run), summary="Terminate a run", tags=["runs"]
)
async def terminate(
    run_id: bodies.RunId, body: bodies.Why, service: Serving, caller: Calling, asked: Asked
) -> Response:
    """End a run for good and at once: what is being executed is killed."""
    caller.require("operator", "terminate runs")

    def end() -> Run:
        return service.engine.cancel_run(run_id, body.reason, caller.decider(), terminate=True, terms=asked)

    return await changed(service, caller, run_id, asked, end)


@router.post("/pause", responses=described(404, 409, 412, of_200=shapes.Run), summary="Pause a run", tags=["runs"])
async def pause(run_id: bodies.RunId, body: bodies.Why, service: Serving, caller: Calling, asked: Asked) -> Response:
    """Hold a run where it is. What is being executed may end; nothing more begins until it is resumed."""
    caller.require("operator", "pause runs")

    def hold() -> Run:
        return service.engine.pause(run_id, body.reason, caller.decider(), asked)

    return await changed(service, caller, run_id, asked, hold)


@router.post("/resume", responses=described(404, 409, 412, of_200=shapes.Run), summary="Resume a run", tags=["runs"])
async def resume(run_id: bodies.RunId, service: Serving, caller: Calling, asked: Asked) -> Response:
    """Let a paused run go on."""
    caller.require("operator", "resume runs")

    def let_go() -> Run:
        return service.engine.unpause(run_id, caller.decider(), asked)

    return await changed(service, caller, run_id, asked, let_go)


# --- dynamic checks --------------------------------------------------------------------------------------------------


@router.get("/dynamic", responses=described(404, of_200=shapes.Items), summary="Dynamic checks of the current entry")
async def dynamic_list(run_id: bodies.RunId, service: Serving, caller: Calling) -> Response:
    """Show who has registered checks for the current entry, and which."""

    def look() -> tuple[Run, list[dict[str, Any]]]:
        run = reached(service, caller, run_id)
        config = _config(service, run) or DynamicConfig()
        return run, service.engine.registered_checks(run, config)

    run, items = await service.call(look)
    data = {"ok": True, "run_id": run.id, "current": run.node, "current_entry_id": run.entry_id, "items": items}
    return answer(data, version=run.version)


@router.put(
    "/dynamic",
    responses=described(404, 409, 412, of_200=shapes.Items),
    summary="Register dynamic checks",
)
async def dynamic_write(
    run_id: bodies.RunId, body: bodies.DynamicChecks, service: Serving, caller: Calling, asked: Versioned
) -> Response:
    """Register checks for the current entry, in place of those that this agent has registered before.

    They belong to the entry that is current now: should the run move on meanwhile, they count for nothing.
    """
    caller.require("agent", "register dynamic checks")

    def write() -> tuple[Run, dict[str, Any]]:
        run = reached(service, caller, run_id)
        refuse_stale(run, asked)
        config = _config(service, run) or (DynamicConfig() if body.unused else None)
        if config is None:
            raise Conflict(
                f"Node {run.node!r} accepts no dynamic checks.",
                hint="A node that does says so with dynamic_before_transfer.",
                details={"run_id": run_id, "current": run.node},
            )
        if service.options.registered_only and not caller.operates:
            allowed = tuple(each for each in config.allow_types if each in service.options.agent_check_types)
            config = replace(config, allow_types=allowed)
        text, format = body.text, body.format
        if text is None:
            document = {"checks": body.checks, **({"basis": body.basis} if body.basis else {})}
            text, format = msgspec.json.encode(document).decode(), "json"
        by = caller.actor(body.agent_id, body.agent_role)
        _refuse_foreign_registration(service, caller, run, config, by.id)
        made, warnings = service.engine.register_checks(run, text, body.source, format, config, by)
        return run, made | {"warnings": warnings}

    run, made = await service.call(write)
    data = {"ok": True, "run_id": run.id, "current": run.node, "current_entry_id": run.entry_id, "items": [made]}
    return answer(data, version=run.version)


def _refuse_foreign_registration(
    service: Service, caller: Caller, run: Run, config: DynamicConfig, agent_id: str
) -> None:
    """Refuse to replace what somebody else has registered under the name of the same agent.

    Raises:
        NotAuthorised: another token has, and the caller is no operator.
    """
    if caller.operates:
        return
    for found in dynamic.registrations(service.engine.store, run, config):
        if found.origin.agent_id == agent_id and found.origin.token != caller.token:
            raise NotAuthorised(
                f"The checks of {agent_id!r} were registered with another token, and only that one may replace them.",
                hint="Register them under an agent id of your own: `agent_id`.",
                details={"agent_id": agent_id},
            )


def _config(service: Service, run: Run) -> DynamicConfig | None:
    return dynamic.config_of(run, service.engine.runbook(run.runbook))


# --- carrying out ----------------------------------------------------------------------------------------------------


async def carried_out(
    service: Service,
    caller: Caller,
    run_id: str,
    terms: Terms,
    wait: float,
    attempt: Callable[[Snapshot], Settled],
) -> Response:
    """Do something to a run that the caller reaches, once per request, and answer with the transition it led to.

    Args:
        service: what is worked with.
        caller: who asks.
        run_id: the run.
        terms: on what terms; a request that was answered before is answered again and not done again.
        wait: seconds to wait for the transition to settle.
        attempt: does it to the run as it was just read, and returns at once.
    """

    def act() -> tuple[Settled, bool]:
        seen = reached_snapshot(service, caller, run_id)
        earlier = service.engine.answered(run_id, terms)
        if earlier is not None:
            return earlier, True
        # Looked at first, so that whoever is late learns that and nothing else; the commit looks at it again.
        refuse_stale(seen.run, terms)
        try:
            return attempt(seen), False
        except Conflict:
            # Perhaps it was this very request, sent twice, that was faster.
            earlier = service.engine.answered(run_id, terms)
            if earlier is None:
                raise
            return earlier, True

    with service.announcements.watch(run_id) as watch:
        settled, replayed = await service.call(act)
        if wait:
            settled = await service.seen_through(settled, watch, wait)
    data = transition_view(settled, await service.waiting_reason(settled))
    headers = {"Idempotent-Replayed": "true"} if replayed else {}
    if wait:
        headers["Preference-Applied"] = f"wait={wait:g}"
    if settled.transition.open:
        headers |= {"Location": transition_url(run_id, settled.transition.id), "Retry-After": "1"}
    return answer(data, 202 if settled.transition.open else 200, version=settled.run.version, headers=headers)


async def changed(service: Service, caller: Caller, run_id: str, terms: Terms, change: Callable[[], Run]) -> Response:
    """Change a run that the caller reaches, once per request, and answer with the run. See ``carried_out``."""

    def act() -> tuple[dict[str, Any], int, bool]:
        run, replayed = reached(service, caller, run_id), service.engine.was_carried_out(run_id, terms)
        if not replayed:
            refuse_stale(run, terms)
            try:
                run = change()
            except Conflict:
                if not service.engine.was_carried_out(run_id, terms):
                    raise
                run, replayed = service.engine.run(run_id), True
        return run_view(service, caller, run), run.version, replayed

    data, version, replayed = await service.call(act)
    return answer(data, version=version, headers={"Idempotent-Replayed": "true"} if replayed else {})


def _names_checks(body: bodies.Confirming) -> bool:
    """Return whether the answers of a request name checks; then they are for the questions of one entry."""
    return isinstance(body.confirm, list) or bool(body.decline)


def _confirmations(service: Service, run: Run, body: bodies.Confirming, target: str) -> Confirmations:
    if not _names_checks(body):
        return Confirmations(everything=body.confirm is True)
    named = body.confirm if isinstance(body.confirm, list) else []
    questions = service.engine.questions(run, target)
    return confirmations_of(questions, named, body.decline, everything=body.confirm is True)
