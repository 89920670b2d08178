"""The application: every resource under one roof."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from fastapi import Depends, FastAPI
from fastapi.openapi.utils import get_openapi
from fastapi.routing import APIRoute

from statem_api import problems, shapes
from statem_api.envelope import Envelope
from statem_api.options import ApiOptions
from statem_api.queries import refuse_unknown
from statem_api.routes import events, health, runbooks, runs, sweeps, tokens, transitions
from statem_api.service import Service
from statem_dist import __version__
from statem_dist.settings import Settings

DESCRIPTION = """\
Runbooks as a service: start runs, attempt checked transitions, follow what happens, decide what waits.

Every error is `application/problem+json`; its `type` leads to a page that explains it. A run's ETag is its version:
send it as `If-Match` to change nothing that you have not seen. Send an `Idempotency-Key` with every POST, and repeat a
request whose answer was lost with the same one. Requests carry `Authorization: Bearer TOKEN`.
"""


def make_app(options: ApiOptions, settings: Settings) -> FastAPI:
    """Return the application for one process.

    Args:
        options: how the service was started.
        settings: limits and places; they name the state store.
    """
    service = Service(options, settings)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        await service.open()
        try:
            yield
        finally:
            await service.close()

    app = FastAPI(
        title="statem-dist",
        version=__version__,
        description=DESCRIPTION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        generate_unique_id_function=_operation_id,
        redirect_slashes=False,
    )
    app.state.service = service
    app.add_middleware(Envelope, service=service)
    problems.install(app)
    for router in (
        runbooks.router,
        # Before runs, whose paths hold ids.
        events.router,
        runs.router,
        transitions.router,
        transitions.inbox,
        sweeps.router,
        tokens.router,
        health.router,
    ):
        app.include_router(router, dependencies=[Depends(refuse_unknown)])
    app.openapi = lambda: openapi(app)  # type: ignore[method-assign]
    return app


def openapi(app: FastAPI) -> dict[str, Any]:
    """Return the OpenAPI document of the application."""
    if app.openapi_schema is None:
        document = get_openapi(
            title=app.title, version=app.version, description=app.description, routes=app.routes, license_info=_LICENSE
        )
        schemas = document["components"]["schemas"]
        for shape in (shapes.Problem, shapes.EventPage):
            schemas[shape.__name__] = shape.model_json_schema(ref_template="#/components/schemas/{model}")
        for name in ("HTTPValidationError", "ValidationError"):
            schemas.pop(name, None)
        app.openapi_schema = document
    return app.openapi_schema


_LICENSE = {"name": "Apache-2.0", "identifier": "Apache-2.0"}


def _operation_id(route: APIRoute) -> str:
    """Return the name of an operation: its function, after the noun that it is about."""
    noun = str(route.tags[0]) if route.tags else "service"
    return f"{noun}_{route.name.strip('_')}"
