"""Runbooks: validate, register, list, show, draw."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Path, Query
from starlette.responses import Response

from statem_api import bodies, shapes
from statem_api.answers import Keyed, answer, described
from statem_api.callers import Calling
from statem_api.service import Service, Serving
from statem_dist.errors import NotAuthorised, NotFound
from statem_dist.protocol.graph import Runbook
from statem_dist.registry import Registration, registration_view
from statem_dist.runbook import drawing, parse
from statem_dist.runbook.problems import warnings_view
from statem_dist.runbook.svg import svg
from statem_dist.store.codec import StoredRunbook

router = APIRouter(prefix="/v1/runbooks", tags=["runbooks"])

Reference = Annotated[
    str,
    Path(
        pattern=bodies.NAME, max_length=200, description="Name or hash, or the first eight digits of a hash at least."
    ),
]

DRAWINGS = {"mermaid": "text/plain", "dot": "text/vnd.graphviz", "svg": "image/svg+xml"}
"""The kinds of drawings and their media types."""


@router.post("/validate", responses=described(of_200=shapes.Runbook), summary="Look at a runbook")
async def validate(body: bodies.RunbookValidate, service: Serving, caller: Calling) -> Response:
    """Say what is wrong or doubtful with a runbook; every problem comes with its line, column and field."""
    parsed = await service.call(parse, body.text, source=body.source, format=body.format, strict=body.strict)
    return answer({"ok": True, **runbook_view(parsed.runbook), **warnings_view(parsed.warnings)})


@router.post(
    "", status_code=201, responses=described(of_201=shapes.Runbook, of_200=shapes.Runbook), summary="Register a runbook"
)
async def register(body: bodies.RunbookRegister, service: Serving, caller: Calling, asked: Keyed) -> Response:
    """Register a runbook; its name stands for this version from now on. The same text again answers 200.

    A registered runbook is there for everybody: it takes an admin without labels.
    """
    caller.require("admin", "register runbooks")
    if caller.labels:
        raise NotAuthorised(
            "A token with labels may not register runbooks: they are for the runs of everybody.",
            hint="It takes an admin's token without labels.",
            details={"labels": caller.labels},
        )
    parsed = await service.call(parse, body.text, source=body.source, format=body.format)

    def keep() -> tuple[Registration, bool, bool]:
        repeated = service.engine.require_same_request(asked)
        if repeated and service.registry.is_registered(parsed.runbook.hash):
            # Its name may stand for a later version by now, and has to go on doing so.
            return service.registry.find(parsed.runbook.hash), True, True
        new = not service.registry.is_registered(parsed.runbook.hash)
        stored = StoredRunbook(runbook=parsed.runbook, text=parsed.text, source=body.source)
        return service.registry.register(stored, body.name or parsed.runbook.name, caller.name), new, False

    made, new, replayed = await service.call(keep)
    data = {**registration_view(made), **runbook_view(parsed.runbook), "name": made.name}
    return answer(
        data | warnings_view(parsed.warnings),
        201 if new else 200,
        headers={"Location": f"/v1/runbooks/{parsed.runbook.hash}"}
        | ({"Idempotent-Replayed": "true"} if replayed else {}),
    )


@router.get("", responses=described(of_200=shapes.RunbookList), summary="List the registered runbooks")
async def list_(
    service: Serving,
    caller: Calling,
    versions: Annotated[bool, Query(description="All versions, and not only those that the names stand for.")] = False,
) -> Response:
    """List the registered runbooks by name."""
    found = await service.call(service.registry.list)
    return answer({"items": [registration_view(each) for each in found if versions or each.current]})


@router.get("/{runbook}", responses=described(404, of_200=shapes.Runbook), summary="Show a runbook")
async def show(runbook: Reference, service: Serving, caller: Calling) -> Response:
    """Show a registered runbook with its text."""
    made, stored = await service.call(found_in, service, runbook)
    return answer({**registration_view(made), **runbook_view(stored.runbook), "name": made.name, "text": stored.text})


@router.get(
    "/{runbook}/document", responses=described(404, of_200=shapes.Document), summary="A runbook as it is stored"
)
async def document(runbook: Reference, service: Serving, caller: Calling) -> Response:
    """Give a runbook as it is stored, for programs of the same version; also one that was only started."""

    def find() -> StoredRunbook:
        stored = service.engine.store.runbook(runbook)
        return found_in(service, runbook)[1] if stored is None else stored

    return answer(await service.call(find))


@router.get(
    "/{runbook}/graph",
    responses=described(404)
    | {200: {"description": "The drawing.", "content": {kind: {} for kind in DRAWINGS.values()}}},
    response_class=Response,
    summary="Draw a runbook",
)
async def graph(
    runbook: Reference,
    service: Serving,
    caller: Calling,
    format: Annotated[Literal["mermaid", "dot", "svg"], Query(description="What to draw with.")] = "svg",
) -> Response:
    """Draw a registered runbook."""
    _, stored = await service.call(found_in, service, runbook)
    return drawn(stored.runbook, drawing.NO_MARKS, format)


def found_in(service: Service, wanted: str) -> tuple[Registration, StoredRunbook]:
    """Return a registered runbook.

    Raises:
        NotFound: it is not registered.
    """
    made = service.registry.find(wanted)
    stored = service.engine.store.runbook(made.hash)
    if stored is None:
        raise NotFound(f"The runbook {wanted!r} is registered, but its text is gone.", details={"runbook": wanted})
    return made, stored


def drawn(runbook: Runbook, marks: drawing.Marks, format: str) -> Response:
    """Return a drawing. It shows text of somebody else: nothing in it may run or load anything."""
    draw = {"mermaid": drawing.mermaid, "dot": drawing.dot, "svg": svg}[format]
    headers = {"Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'"}
    return Response(draw(runbook, marks), 200, headers, DRAWINGS[format])


def runbook_view(runbook: Runbook) -> dict[str, Any]:
    """Return the outline of a runbook, as ``validate`` tells it."""
    edges = [
        {"from": edge.source, "to": edge.target}
        | ({"max_attempts": edge.max_attempts} if edge.max_attempts is not None else {})
        for edge in runbook.edges
    ]
    return {
        "name": runbook.name,
        "hash": runbook.hash,
        "initial": runbook.initial,
        "nodes": [node.name for node in runbook.nodes],
        "edges": edges,
    }
