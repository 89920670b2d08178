"""Whether the service lives, whether it can do its work, what it counts, and what its problems mean."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from starlette.responses import PlainTextResponse, Response

from statem_api import metrics, shapes
from statem_api.answers import answer, described
from statem_api.callers import Calling
from statem_api.problems import KINDS
from statem_api.service import Service, Serving
from statem_dist import __version__
from statem_dist.errors import NotFound, StatemError
from statem_dist.load import queue_loads

router = APIRouter(tags=["health"])


@router.get("/healthz", responses={200: {"model": shapes.Health}}, summary="Whether the process lives")
async def healthz() -> Response:
    """Answer, which is all that this asks."""
    return answer({"ok": True, "version": __version__})


@router.get(
    "/readyz",
    responses={200: {"model": shapes.Health}, 503: {"model": shapes.Health}},
    summary="Whether the service can do its work",
)
async def readyz(service: Serving) -> Response:
    """Say whether Redis answers, a script runs there, and a worker is there for each queue in which work waits.

    503 names what is wrong.
    """
    checks = await service.call(_checks, service)
    ok = all(each["ok"] for each in checks)
    return answer({"ok": ok, "checks": checks}, 200 if ok else 503)


def _checks(service: Service) -> list[dict[str, Any]]:
    store = service.engine.store
    try:
        store.load("readyz")
        present = service.engine.roster.present()
        loads = queue_loads(store, service.settings, present)
    except StatemError as error:
        return [{"check": "redis", "ok": False, "found": error.message, "fix": error.hint}]
    checks: list[dict[str, Any]] = [{"check": "redis", "ok": True, "found": "answers, and runs scripts"}]
    for load in loads:
        if load.waiting or load.workers:
            workers = "1 worker" if load.workers == 1 else f"{load.workers} workers"
            found = workers if load.waiting is None else f"{workers}, messages waiting: {load.waiting}"
            check: dict[str, Any] = {"check": f"queue {load.queue}", "ok": load.workers > 0, "found": found}
            if load.workers == 0:
                check["fix"] = f"Start a worker: statem-dist worker -Q {load.queue}"
            checks.append(check)
    return checks


@router.get(
    "/metrics",
    responses=described() | {200: {"description": "Metrics for Prometheus.", "content": {"text/plain": {}}}},
    response_class=PlainTextResponse,
    summary="Metrics",
)
async def metrics_(service: Serving, caller: Calling) -> Response:
    """Give what the service counts, in the text format of Prometheus. Takes a token of any role."""
    text = await service.call(service.metrics.text, service.engine)
    return Response(text, media_type=metrics.MEDIA_TYPE)


@router.get(
    "/problems/{code}",
    responses=described(404) | {200: {"description": "What it means.", "content": {"text/plain": {}}}},
    response_class=PlainTextResponse,
    summary="What a kind of problem means",
)
async def problem(code: Annotated[str, Path(max_length=100)]) -> Response:
    """Explain a kind of problem: the page that the `type` of a problem names."""
    if code not in KINDS:
        raise NotFound(f"There is no kind of problem {code!r}.")
    return PlainTextResponse(f"{code}\n\n{KINDS[code]}\n")
