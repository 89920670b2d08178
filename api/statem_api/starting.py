"""Starting runs: which runbook, under which id, where, with what, and what if there is one already.

A request that has been answered before is answered from what it led to, before anything else of it is looked at: what
it names may stand for something else by now.
"""

from __future__ import annotations

import os
from pathlib import Path

from msgspec import Struct

from statem_api import bodies
from statem_api.answers import REQUEST_ID_OF_KEY
from statem_api.callers import Caller
from statem_api.service import Service
from statem_dist.checks.environment import decides_what_runs
from statem_dist.coordinator import Terms
from statem_dist.deadline import Deadline
from statem_dist.engine import StartRequest
from statem_dist.errors import Conflict, Invalid, NotAuthorised, NotFound
from statem_dist.follow import Settled
from statem_dist.protocol.graph import Runbook
from statem_dist.protocol.model import Confirmations, Place, Run
from statem_dist.run_ids import new_run_id
from statem_dist.runbook import parse

TRIES = 3
"""How often a start is tried anew that found no run of its id, and found one when it came to make it."""

NO_WAIT = Deadline(0)


class Started(Struct, frozen=True):
    """What came of a request for a run: the run and its latest transition, whether it was made just now, whether the
    request was answered before, and what is doubtful about it, in sentences."""

    settled: Settled
    created: bool
    replayed: bool = False
    warnings: tuple[str, ...] = ()


def start(service: Service, caller: Caller, body: bodies.RunCreate, terms: Terms) -> Started:
    """Start a run, or do with the one of its id what was asked for.

    Raises:
        RunbookInvalid: the text is no runbook.
        NotFound: the runbook is not registered.
        NotAuthorised: the caller may not start this, or not so.
        Invalid: a value cannot be used.
        Conflict: there is a run of that id, and nothing else was asked for; or it is not in a state for that.
        RequestReused: the idempotency key stands for another request.
    """
    # A repeated request must find the run that the first one made, whatever its runbook is called by now.
    named = body.run_id or (f"run-{terms.request.removeprefix(REQUEST_ID_OF_KEY)[:20]}" if terms.request else None)
    if named is not None and (earlier := _answered(service, caller, named, terms)) is not None:
        return earlier
    runbook, warnings = runbook_for(service, caller, body)
    warnings += _queue_warnings(service, caller, body)
    _refuse_variables(service, caller, body)
    labels = labels_within(caller, body.labels)
    service.engine.require_same_request(terms)
    run_id = named or new_run_id(runbook.name)
    for attempt in range(TRIES):
        try:
            return _start(service, caller, body, runbook, run_id, labels, terms, tuple(warnings))
        except Conflict:
            if (earlier := _answered(service, caller, run_id, terms)) is not None:
                return earlier
            # Somebody has made it meanwhile: then it is for what was asked for in that case.
            if attempt == TRIES - 1 or body.on_existing == "fail":
                raise
    raise AssertionError("the last try returns or raises")


def _answered(service: Service, caller: Caller, run_id: str, terms: Terms) -> Started | None:
    """Return the answer to a request that was carried out before."""
    earlier = service.engine.answered(run_id, terms)
    if earlier is None:
        return None
    caller.require_reach(earlier.run)
    return Started(earlier, created=earlier.transition.id == "t1", replayed=True)


def _start(
    service: Service,
    caller: Caller,
    body: bodies.RunCreate,
    runbook: Runbook,
    run_id: str,
    labels: dict[str, str],
    terms: Terms,
    warnings: tuple[str, ...],
) -> Started:
    engine = service.engine
    existing = engine.store.load(run_id)
    if existing is not None:
        if not caller.reaches(existing.run.labels):
            raise _taken(run_id)
        if body.on_existing == "use_existing":
            return Started(engine.latest(run_id), created=False, warnings=warnings)
    rebinds = existing is not None and existing.run.runbook != runbook.hash
    if existing is not None and rebinds and body.on_existing == "resume":
        caller.require("operator", "bind runs to another runbook")
    request = StartRequest(
        runbook=runbook,
        run_id=run_id,
        place=_place(service, body, run_id, existing.run if existing else None),
        by=caller.actor(body.agent_id, body.agent_role),
        confirmations=_all_or_nothing(body),
        labels=labels,
        # The run may be bound to another one while this is on its way; who may not do that must not do it by that.
        rebind=caller.operates,
    )
    if existing is not None and body.on_existing == "resume":
        return Started(engine.start(request, NO_WAIT, terms=terms), created=False, warnings=warnings)
    if existing is not None and body.on_existing == "restart":
        caller.require("operator", "restart runs")
        return Started(engine.restart(request, NO_WAIT, terms=terms), created=False, warnings=warnings)
    try:
        return Started(engine.create(request, NO_WAIT, terms), created=True, warnings=warnings)
    except Conflict:
        there = engine.store.load(run_id)
        if there is not None and not caller.reaches(there.run.labels):
            # Where it stands is not for this caller to know.
            raise _taken(run_id) from None
        raise


def runbook_for(service: Service, caller: Caller, body: bodies.RunCreate | bodies.Rebind) -> tuple[Runbook, list[str]]:
    """Return the runbook that a request names or holds, and what is doubtful about a text.

    Raises:
        RunbookInvalid: the text is no runbook.
        NotFound: it is not registered.
        NotAuthorised: the caller may start from registered runbooks only, and this is none.
    """
    only_registered = service.options.registered_only or not caller.operates
    if body.text is not None:
        parsed = parse(body.text, source=body.source, format=body.format)
        if only_registered and not service.registry.is_registered(parsed.runbook.hash):
            raise NotAuthorised(
                "This runbook is not registered, and runs start from registered ones only"
                + (" here." if service.options.registered_only else f" for the role {caller.role}."),
                hint="An admin registers runbooks: POST /v1/runbooks.",
                details={"hash": parsed.runbook.hash},
            )
        return service.engine.register(parsed, body.source), [str(each) for each in parsed.warnings]
    assert body.runbook is not None, "a body names a runbook or holds one"
    try:
        return service.engine.runbook(service.registry.find(body.runbook).hash), []
    except NotFound:
        if only_registered:
            raise
        stored = service.engine.store.runbook(body.runbook)
        if stored is None:
            raise
        return stored.runbook, []


def _queue_warnings(service: Service, caller: Caller, body: bodies.RunCreate) -> list[str]:
    """Return what is doubtful about the queue of a new run.

    Raises:
        Invalid: nobody serves it, and the caller is none who could see to that.
    """
    if body.queue is None or service.engine.roster.serves(body.queue):
        return []
    if not caller.operates:
        # Work that waits for a misspelt queue waits for ever, and makes the service look ill.
        raise Invalid(f"No worker serves the queue {body.queue!r}.", hint="Leave `queue` out, or ask an operator.")
    return [f"no worker serves the queue {body.queue!r} now"]


def _refuse_variables(service: Service, caller: Caller, body: bodies.RunCreate) -> None:
    """Refuse what would make the commands of a runbook others than they are.

    Raises:
        NotAuthorised: the caller may start the runbook as it is, and no more.
    """
    if body.executor is not None:
        caller.require("operator", "choose where commands are executed")
    if caller.operates and not service.options.registered_only:
        return
    if named := sorted(filter(decides_what_runs, body.vars)):
        raise NotAuthorised(
            f"The variable {named[0]} decides which code a command runs.",
            hint="Choose another name: who starts registered runbooks must not change what their commands are.",
            details={"variables": named},
        )


def labels_within(caller: Caller, asked: dict[str, str]) -> dict[str, str]:
    """Return the labels of something new: those that are asked for, and those of its maker.

    Raises:
        Invalid: another value of a label is asked for than the caller has.
    """
    for key, value in caller.labels.items():
        if asked.get(key, value) != value:
            raise Invalid(
                f"The label {key}={asked[key]} is not for this token, whose runs have {key}={value}.",
                hint=f"Leave {key} out: what a token makes has the labels of that token.",
            )
    return {**asked, **caller.labels}


def _place(service: Service, body: bodies.RunCreate, run_id: str, existing: Run | None) -> Place:
    """Return where a run works: where the request says, else where it has worked before, else in a new folder.

    Raises:
        Invalid: it cannot work there.
    """
    if body.workspace is not None:
        workspace = os.path.normpath(body.workspace)
        service.require_within_roots(workspace)
    elif existing is not None:
        workspace = existing.place.workspace
    else:
        folder = Path(service.options.scratch or service.settings.state_dir / "workspaces") / run_id
        service.require_within_roots(str(folder), "Name a `workspace`, or start the service with --workspaces DIR.")
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise Invalid(
                f"The folder {folder} for this run cannot be made: {error.strerror}.",
                hint="Name a `workspace`, or start the service with --workspaces DIR.",
            ) from error
        workspace = str(folder)
    return Place(
        workspace=workspace,
        spec=body.spec,
        state_dir=str(service.settings.state_dir),
        queue=body.queue,
        env=dict(body.vars),
        executor=body.executor or "",
    )


def _all_or_nothing(body: bodies.Confirming) -> Confirmations:
    """Return the confirmations for an in_hook, whose checks nobody could name in advance.

    Raises:
        Invalid: the request names checks.
    """
    if not isinstance(body.confirm, bool) or body.decline:
        raise Invalid(
            "What asks at the start of a run is confirmed as a whole.", hint="Give `confirm` as true or false."
        )
    return Confirmations(everything=body.confirm)


def _taken(run_id: str) -> Conflict:
    return Conflict(f"The run id {run_id!r} is taken.", hint="Choose another one.", details={"run_id": run_id})
