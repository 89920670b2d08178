"""Runs: start, list, show; and everything that is read of one run."""

from __future__ import annotations

import logging
from hashlib import sha256
from typing import Annotated, Any, Literal

import msgspec
from fastapi import APIRouter, Query, Request
from fastapi import Path as PathParameter
from msgspec.structs import replace
from starlette.responses import Response

from statem_api import bodies, problems, shapes, starting
from statem_api.answers import REQUEST_ID_OF_KEY, Keyed, Waiting, answer, described, transition_view
from statem_api.callers import Caller, Calling
from statem_api.routes.runbooks import drawn
from statem_api.service import Service, Serving, log_unreadable
from statem_dist import evidence as evidences
from statem_dist import resume as prompts
from statem_dist import transfer, views
from statem_dist.coordinator import Terms
from statem_dist.errors import Invalid, NotAuthorised, NotFound, StatemError
from statem_dist.eventlog import WITHHELD
from statem_dist.follow import Settled
from statem_dist.history import history as told_history
from statem_dist.history import moves, visited_nodes
from statem_dist.listing import RunFilter
from statem_dist.protocol.graph import Runbook
from statem_dist.protocol.model import Run
from statem_dist.runbook import drawing
from statem_dist.store.base import Snapshot

logger = logging.getLogger(__name__)

router = APIRouter(prefix="/v1/runs", tags=["runs"])

PAGE_MAX = 500

logger = logging.getLogger(__name__)


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
    started = await service.call(starting.start, service, caller, body, asked)
    settled, run_id = started.settled, started.settled.run.id
    if waiting and settled.transition.open:
        with service.announcements.watch(run_id) as watch:
            # Read again: what happened before the watch began was announced to nobody here.
            settled = await service.call(service.engine.look, run_id, settled.transition.id)
            settled = await service.seen_through(settled, watch, waiting)
    data = await service.call(run_view, service, caller, settled.run, settled)
    if started.warnings:
        data["warnings"] = started.warnings
    headers = {"Location": f"/v1/runs/{run_id}"} | ({"Idempotent-Replayed": "true"} if started.replayed else {})
    return answer(data, 201 if started.created else 200, version=settled.run.version, headers=headers)


@router.post("/bulk", responses=described(of_200=shapes.RunsCreated), summary="Start many runs")
async def create_many(body: bodies.RunsCreate, service: Serving, caller: Calling, asked: Keyed) -> Response:
    """Start up to 1,000 runs in one request; each has an answer of its own, in the order of the request.

    A repeated request (`Idempotency-Key`) starts nothing twice.
    """
    caller.require("agent", "start runs")
    await service.call(service.engine.require_same_request, asked)

    def start_one(number: int, wanted: bodies.RunCreate) -> dict[str, Any]:
        terms = Terms()
        if asked.request:
            own = sha256(f"{asked.request}#{number}".encode()).hexdigest()[:32]
            terms = Terms(request=REQUEST_ID_OF_KEY + own, fingerprint=asked.fingerprint)
        try:
            started = starting.start(service, caller, wanted, terms)
        except StatemError as error:
            return {"problem": problems.document_of(error)}
        except Exception:
            # Those before it have started: their answers must not be lost over it.
            logger.exception("run %d of a bulk request could not be started", number)
            defect = problems.problem(
                500, "error", "The service failed to start this run.", hint=problems.KINDS["error"]
            )
            return {"problem": msgspec.json.decode(defect.body)}
        return {
            "run": views.run_summary(started.settled.run),
            "created": started.created,
            **({"replayed": True} if started.replayed else {}),
            **({"warnings": started.warnings} if started.warnings else {}),
        }

    items = [await service.call(start_one, number, wanted) for number, wanted in enumerate(body.runs)]
    failed = sum("problem" in item for item in items)
    # What failed was not kept, and was tried again.
    replayed = any("replayed" in item for item in items)
    return answer(
        {"items": items, "created": sum(bool(item.get("created")) for item in items), "failed": failed},
        headers={"Idempotent-Replayed": "true"} if replayed else {},
    )


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
        return b"".join(transfer.pack(service.engine.store, [reached(service, caller, run_id)]))

    name = f'attachment; filename="{run_id}{transfer.SUFFIX}"'
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
