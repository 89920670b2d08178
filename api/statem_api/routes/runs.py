"""Runs: start, list, show; and everything that is read of one run."""

from __future__ import annotations

import logging
import os
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi import Path as PathParameter
from msgspec import Struct
from msgspec.structs import replace
from starlette.responses import Response

from statem_api import bodies, problems, shapes
from statem_api.answers import Keyed, Waiting, answer, described, transition_view
from statem_api.callers import Caller, Calling
from statem_api.routes.runbooks import drawn
from statem_api.service import Service, Serving, log_unreadable
from statem_dist import evidence as evidences
from statem_dist import resume as prompts
from statem_dist import transfer, views
from statem_dist.checks.environment import decides_what_runs
from statem_dist.coordinator import Terms
from statem_dist.deadline import Deadline
from statem_dist.engine import StartRequest
from statem_dist.errors import Conflict, Invalid, NotAuthorised, NotFound, StatemError
from statem_dist.eventlog import WITHHELD
from statem_dist.follow import Settled
from statem_dist.history import history as told_history
from statem_dist.history import moves, visited_nodes
from statem_dist.listing import RunFilter
from statem_dist.protocol.graph import Runbook
from statem_dist.protocol.model import Confirmations, Place, Run
from statem_dist.run_ids import new_run_id
from statem_dist.runbook import drawing, parse
from statem_dist.store.base import Snapshot

router = APIRouter(prefix="/v1/runs", tags=["runs"])

PAGE_MAX = 500

logger = logging.getLogger(__name__)


class Started(Struct, frozen=True):
    """What came of a request for a run: the run, its latest transition, whether it was made just now, and whether the
    request was answered before."""

    settled: Settled
    created: bool
    replayed: bool = False


def reached(service: Service, caller: Caller, run_id: str) -> Run:
    """Return a run that the caller's labels reach.

    Raises:
        NotFound: there is none, or they do not.
    """
    return reached_snapshot(service, caller, run_id).run


def reached_snapshot(service: Service, caller: Caller, run_id: str) -> Snapshot:
    """Return a run that the caller's labels reach, as a verb takes it that is not to read it again.

    Raises:
        NotFound: there is none, or they do not.
    """
    snapshot = service.engine.snapshot(run_id)
    caller.require_reach(snapshot.run)
    return snapshot


# --- starting --------------------------------------------------------------------------------------------------------


@router.post(
    "",
    status_code=201,
    responses=described(404, 409, of_201=shapes.Run, of_200=shapes.Run),
    summary="Start a run",
)
async def create(body: bodies.RunCreate, service: Serving, caller: Calling, asked: Keyed, waiting: Waiting) -> Response:
    """Start a run of a registered runbook or of a text; 200 where there was one already and that was asked for.

    With `wait` the answer comes when the in_hook of its first node has settled.
    """
    caller.require("agent", "start runs")
    run_id, runbook, warnings = await service.call(_planned, service, caller, body, asked)
    with service.announcements.watch(run_id) as watch:
        started = await service.call(_start, service, caller, body, runbook, run_id, asked)
        settled = await service.seen_through(started.settled, watch, waiting)
    data = await service.call(run_view, service, caller, settled.run, settled)
    if warnings:
        data["warnings"] = warnings
    headers = {"Location": f"/v1/runs/{run_id}"} | ({"Idempotent-Replayed": "true"} if started.replayed else {})
    return answer(data, 201 if started.created else 200, version=settled.run.version, headers=headers)


@router.post("/bulk", responses=described(of_200=shapes.RunsCreated), summary="Start many runs")
async def create_many(
    request: Request, body: bodies.RunsCreate, service: Serving, caller: Calling, asked: Keyed
) -> Response:
    """Start up to 1,000 runs in one request; each has an answer of its own, in the order of the request.

    A repeated request (`Idempotency-Key`) starts nothing twice.
    """
    caller.require("agent", "start runs")

    def start_one(number: int, wanted: bodies.RunCreate) -> dict[str, Any]:
        terms = Terms()
        if asked.request:
            own = sha256(f"{asked.request}#{number}".encode()).hexdigest()[:32]
            content = sha256(wanted.model_dump_json().encode()).hexdigest()
            terms = Terms(request=f"{asked.request[:4]}{own}", fingerprint=content)
        try:
            run_id, runbook, warnings = _planned(service, caller, wanted, terms)
            started = _start(service, caller, wanted, runbook, run_id, terms)
        except StatemError as error:
            return {"problem": problems.document_of(error)}
        except Exception:
            # The runs before it were started: a defect in one of them must not hide what came of the others.
            logger.exception("request %s failed at its run %d", request.state.request_id, number)
            defect = problems.problem(
                500, "error", "The service failed to start this run.", hint=problems.KINDS["error"]
            )
            return {"problem": msgspec.json.decode(defect.body)}
        made = {
            "run": views.run_summary(started.settled.run),
            "created": started.created,
            **({"replayed": True} if started.replayed else {}),
        }
        return made | ({"warnings": warnings} if warnings else {})

    items = [await service.call(start_one, number, wanted) for number, wanted in enumerate(body.runs)]
    failed = sum("problem" in item for item in items)
    # What failed was not kept, and was tried again.
    replayed = any("replayed" in item for item in items)
    return answer(
        {"items": items, "created": sum(bool(item.get("created")) for item in items), "failed": failed},
        headers={"Idempotent-Replayed": "true"} if replayed else {},
    )


def _planned(service: Service, caller: Caller, body: bodies.RunCreate, terms: Terms) -> tuple[str, Runbook, list[str]]:
    """Return the id that a run will have, the runbook that it will follow, and what is doubtful about it."""
    runbook, warnings = runbook_for(service, caller, body)
    service.engine.require_same_request(terms)
    if body.queue is not None and not service.engine.roster.serves(body.queue):
        warnings = [*warnings, f"no worker serves the queue {body.queue!r} now"]
        if not caller.operates:
            # Work that waits for a misspelt queue waits for ever, and makes the service look ill.
            raise Invalid(f"No worker serves the queue {body.queue!r}.", hint="Leave `queue` out, or ask an operator.")
    if body.run_id is not None:
        return body.run_id, runbook, warnings
    # A repeated request must find the run that the first one made.
    name = new_run_id(runbook.name)
    return (f"{name.rsplit('-', 3)[0]}-{terms.request[4:24]}" if terms.request else name), runbook, warnings


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


def _start(
    service: Service, caller: Caller, body: bodies.RunCreate, runbook: Runbook, run_id: str, terms: Terms
) -> Started:
    engine = service.engine
    _refuse_variables(service, caller, body)
    if body.executor is not None:
        caller.require("operator", "choose where commands are executed")
    existing = engine.store.load(run_id)
    if existing is not None:
        if not caller.reaches(existing.run.labels):
            raise Conflict(f"The run id {run_id!r} is taken.", hint="Choose another one.", details={"run_id": run_id})
        earlier = engine.answered(run_id, terms)
        if earlier is not None:
            return Started(earlier, created=earlier.transition.id == "t1", replayed=True)
        if body.on_existing == "use_existing":
            return Started(engine.latest(run_id), created=False)
    request = StartRequest(
        runbook=runbook,
        run_id=run_id,
        place=_place(service, body, run_id, existing.run if existing else None),
        by=caller.actor(body.agent_id, body.agent_role),
        confirmations=_all_or_nothing(body),
        labels=labels_within(caller, body.labels),
    )
    if body.on_existing == "resume" and existing is not None:
        if existing.run.runbook != runbook.hash:
            caller.require("operator", "bind runs to another runbook")
        return Started(engine.start(request, Deadline(0), terms=terms), created=False)
    if body.on_existing == "restart" and existing is not None:
        caller.require("operator", "restart runs")
        return Started(engine.restart(request, Deadline(0), terms=terms), created=False)
    return Started(engine.create(request, Deadline(0), terms), created=True)


def _refuse_variables(service: Service, caller: Caller, body: bodies.RunCreate) -> None:
    """Refuse variables by which commands would be others than those of the runbook.

    Raises:
        NotAuthorised: the caller may start the runbook as it is, and no more.
    """
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
    """Return where a run works: where the request says, else where it has worked before, else in a new folder."""
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
                details={"workspace": str(folder)},
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


# --- lists -----------------------------------------------------------------------------------------------------------


@router.get("", responses=described(of_200=shapes.RunPage), summary="List runs")
async def list_(
    service: Serving,
    caller: Calling,
    status: Annotated[shapes.RunStatusName | None, Query(description="Only runs of this status.")] = None,
    label: Annotated[
        list[str] | None, Query(description="Only runs with this label, as `KEY=VALUE`; repeatable.", max_length=20)
    ] = None,
    runbook: Annotated[str | None, Query(description="Name of the runbook, or beginning of its hash.")] = None,
    node: Annotated[str | None, Query(description="Only runs that stand on this node.")] = None,
    cursor: Annotated[str | None, Query(max_length=500, description="`next_cursor` of the page before.")] = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 50,
) -> Response:
    """List runs, newest first. A page may hold fewer runs than asked for and still have a next one."""
    asked = labels_of(label)
    wanted = RunFilter(status=status, labels={**asked, **caller.labels}, runbook=runbook, node=node)
    if asked.items() - wanted.labels.items():
        # Of another value of a label than the caller reaches.
        return answer({"items": [], "next_cursor": None})
    found = await service.call(service.engine.page, wanted, cursor, limit, log_unreadable)
    items = [views.run_summary(each.run) for each in found.runs]
    return answer({"items": items, "next_cursor": found.next_cursor})


def labels_of(given: list[str] | None) -> dict[str, str]:
    """Return labels given as ``KEY=VALUE``.

    Raises:
        Invalid: one of them is not.
    """
    found: dict[str, str] = {}
    for text in given or ():
        key, sign, value = text.partition("=")
        if not key or not sign:
            raise Invalid(f"The label {text!r} is not of the form KEY=VALUE.")
        found[key] = value
    return found


# --- one run ---------------------------------------------------------------------------------------------------------


@router.get("/{run_id}", responses=described(404, of_200=shapes.Run), summary="Show a run")
async def show(run_id: bodies.RunId, service: Serving, caller: Calling) -> Response:
    """Show where a run stands: its node with prompt and checks, the ways out, and what it waits for."""

    def look() -> tuple[dict[str, Any], int]:
        run = reached(service, caller, run_id)
        return run_view(service, caller, run), run.version

    data, version = await service.call(look)
    return answer(data, version=version)


def run_view(service: Service, caller: Caller, run: Run, settled: Settled | None = None) -> dict[str, Any]:
    """Return a run as the service shows it, with the transition that a request has led to, if it has."""
    waiting = service.engine.waiting_reason(run)
    return {
        **views.node_status(run, service.engine.runbook(run.runbook), caller.name, waiting),
        "labels": run.labels,
        "by": run.by,
        "created_at": run.created_at,
        "updated_at": run.updated_at,
        "workspace": run.place.workspace,
        "queue": run.place.queue,
        **({"waiting_reason": waiting} if waiting else {}),
        **({"transition": transition_view(settled, waiting if settled.transition.open else "")} if settled else {}),
    }


@router.get(
    "/{run_id}/export",
    responses=described(404)
    | {200: {"description": "Lines of JSON.", "content": {transfer.MEDIA_TYPE: {"schema": {"type": "string"}}}}},
    response_class=Response,
    summary="A run as a file",
)
async def export(run_id: bodies.RunId, service: Serving, caller: Calling) -> Response:
    """Give a run as a file, its events and its runbooks, to be taken over by another store.

    Values of its variables stay behind.
    """
    caller.require("operator", "export runs")

    def write() -> bytes:
        return b"".join(transfer.pack(service.engine.store, reached(service, caller, run_id)))

    name = f'attachment; filename="{run_id}.jsonl"'
    return Response(await service.call(write), 200, {"Content-Disposition": name}, transfer.MEDIA_TYPE)


@router.post(
    "/import",
    status_code=201,
    responses=described(409, of_201=shapes.Run),
    openapi_extra={"requestBody": {"required": True, "content": {transfer.MEDIA_TYPE: {"schema": {"type": "string"}}}}},
    summary="Take over a run from a file",
)
async def import_(request: Request, service: Serving, caller: Calling) -> Response:
    """Take over a run from a file that `export` gave, and go on with it. A file that was cut off or changed is refused.

    So is one that lacks a runbook that the run has followed, or has one whose hash is not that of its text. The file of
    a long run may be larger than the bodies that the service accepts: `statem-dist api --body-limit MIB` raises that.
    Where runs start from registered runbooks alone, one of another runbook is refused, too.
    """
    caller.require("admin", "import runs")
    body = await request.body()

    def take_over() -> tuple[dict[str, Any], int]:
        parcel = transfer.unpack(body)
        caller.require_reach(parcel.run)
        if service.options.registered_only and not service.registry.is_registered(parcel.run.runbook):
            raise NotAuthorised(
                "The runbook of this run is not registered, and runs start from registered ones only here.",
                hint="An admin registers runbooks: POST /v1/runbooks.",
                details={"hash": parcel.run.runbook},
            )
        service.require_within_roots(parcel.run.place.workspace)
        run = service.engine.adopt(parcel)
        return run_view(service, caller, run), run.version

    data, version = await service.call(take_over)
    return answer(data, 201, version=version, headers={"Location": f"/v1/runs/{data['run_id']}"})


@router.get("/{run_id}/document", responses=described(404, of_200=shapes.Document), summary="A run as it is stored")
async def document(run_id: bodies.RunId, service: Serving, caller: Calling) -> Response:
    """Give a run as it is stored, for programs of the same version. Values of its variables are withheld."""
    run = await service.call(reached, service, caller, run_id)
    return answer(shown_document(run), version=run.version)


def shown_document(run: Run) -> Run:
    """Return a run without the values of its variables."""
    return replace(run, place=replace(run.place, env=dict.fromkeys(run.place.env, WITHHELD)))


@router.get("/{run_id}/next", responses=described(404, of_200=shapes.ExitList), summary="The ways out")
async def next_(run_id: bodies.RunId, service: Serving, caller: Calling) -> Response:
    """Show the edges out of the current node."""
    run = await service.call(reached, service, caller, run_id)
    data = views.next_nodes(run, await service.call(service.engine.runbook, run.runbook))
    return answer({**data, "items": data["next"]}, version=run.version)


@router.get(
    "/{run_id}/graph",
    responses=described(404, of_200=shapes.Graph),
    summary="The graph of a run",
)
async def graph(
    run_id: bodies.RunId,
    service: Serving,
    caller: Calling,
    format: Annotated[Literal["json", "mermaid", "dot", "svg"], Query(description="What to answer.")] = "json",
) -> Response:
    """Show the graph with marks where the run stands and where it was, as data or drawn."""

    def look() -> tuple[Run, Runbook, drawing.Marks]:
        run = reached(service, caller, run_id)
        marks = drawing.Marks(current=run.node, visited=visited_nodes(service.engine.store, run))
        return run, service.engine.runbook(run.runbook), marks

    run, runbook, marks = await service.call(look)
    if format != "json":
        return drawn(runbook, marks, format)
    return answer({**views.graph_status(run, runbook), **drawing.graph_view(runbook, marks)}, version=run.version)


@router.get("/{run_id}/nodes/{node}", responses=described(404, of_200=shapes.NodeShape), summary="One node")
async def node(
    run_id: bodies.RunId,
    node: Annotated[str, PathParameter(min_length=1, max_length=500, description="Name of the node.")],
    service: Serving,
    caller: Calling,
) -> Response:
    """Show one node of the run's runbook with its checks and exits."""
    run = await service.call(reached, service, caller, run_id)
    runbook = await service.call(service.engine.runbook, run.runbook)
    found = runbook.node(node)
    if found is None:
        names = ", ".join(each.name for each in runbook.nodes)
        raise NotFound(f"Unknown node: {node!r}. The runbook has: {names}", details={"node": node, "run_id": run.id})
    return answer(views.one_node(run, runbook, found), version=run.version)


@router.get(
    "/{run_id}/questions", responses=described(404, of_200=shapes.QuestionList), summary="What a transition would ask"
)
async def questions(
    run_id: bodies.RunId,
    target: Annotated[str, Query(min_length=1, max_length=500, description="Where the transition would lead.")],
    service: Serving,
    caller: Calling,
) -> Response:
    """Show which checks of a transition would ask somebody, so that they can be answered in its request.

    The answers are for the entry that this answer names: send it as `from_entry` together with them.
    """

    def look() -> tuple[Run, list[dict[str, Any]]]:
        run = reached(service, caller, run_id)
        return run, [msgspec.to_builtins(each) for each in service.engine.questions(run, target)]

    run, items = await service.call(look)
    data = {"ok": True, "run_id": run.id, "current": run.node, "current_entry_id": run.entry_id, "items": items}
    return answer(data, version=run.version)


@router.get("/{run_id}/history", responses=described(404, of_200=shapes.HistoryPage), summary="What happened")
async def history(
    run_id: bodies.RunId,
    service: Serving,
    caller: Calling,
    after: Annotated[int | None, Query(ge=0, le=2**53, description="Only what began after this event.")] = None,
    limit: Annotated[int | None, Query(ge=0, le=1_000, description="Without `after` the last entries.")] = None,
) -> Response:
    """Tell what happened to a run, one entry per move, oldest first."""

    def look() -> tuple[Run, list[dict[str, Any]]]:
        run = reached(service, caller, run_id)
        return run, told_history(service.engine.store, run, 1_000 if limit is None else limit, after)

    run, entries = await service.call(look)
    data = {
        "ok": True,
        "run_id": run.id,
        "current": run.node,
        "version": run.version,
        "in_flight": views.transition_reference(run.in_flight),
        "history": entries,
    }
    return answer(data, version=run.version)


@router.get("/{run_id}/evidence", responses=described(404, of_200=shapes.BackingList), summary="What stood behind it")
async def evidence(run_id: bodies.RunId, service: Serving, caller: Calling) -> Response:
    """Tell what stood behind each transition: verified, decided, attested or judged, and by whom."""

    def look() -> tuple[Run, list[dict[str, Any]]]:
        run = reached(service, caller, run_id)
        return run, [evidences.backing_view(each) for each in evidences.backings(moves(service.engine.store, run))]

    run, found = await service.call(look)
    return answer({"ok": True, "run_id": run.id, "current": run.node, "items": found}, version=run.version)


@router.get("/{run_id}/prompt", responses=described(404, of_200=shapes.Text), summary="The prompt to come back by")
async def prompt(run_id: bodies.RunId, service: Serving, caller: Calling) -> Response:
    """Give the prompt that brings an agent back to the run after its context was cleared."""
    run = await service.call(reached, service, caller, run_id)
    runbook = await service.call(service.engine.runbook, run.runbook)
    return _prompt(service, run, prompts.resume_prompt(run, runbook, _address(service, run)))


@router.get(
    "/{run_id}/compact-prompt", responses=described(404, of_200=shapes.Text), summary="The prompt to compact by"
)
async def compact_prompt(run_id: bodies.RunId, service: Serving, caller: Calling) -> Response:
    """Give the instruction by which a conversation is compacted without losing the run."""
    run = await service.call(reached, service, caller, run_id)
    return _prompt(service, run, prompts.compact_prompt(run, _address(service, run)))


def _address(service: Service, run: Run) -> prompts.Address:
    return prompts.Address("statem-dist", run.id, str(service.settings.state_dir), at="service")


def _prompt(service: Service, run: Run, text: str) -> Response:
    data = {
        "ok": True,
        "run_id": run.id,
        "current": run.node,
        "current_entry_id": run.entry_id,
        "spec": run.place.spec,
        "prompt": text,
    }
    return answer(data, version=run.version)
