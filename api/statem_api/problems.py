"""Errors as the service tells them: problem+json (RFC 9457), one shape for everything that goes wrong.

``type`` is the path of a page of this service that explains the kind of problem; it never changes for a kind. ``code``
is the same as a word, that of the command line's JSON. ``errors`` has one item for each field that is wrong, with a
JSON Pointer to it (RFC 6901). What went wrong inside of the service is logged under the request's id and not told.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any

import msgspec
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.routing import Match

from statem_dist.errors import RunbookInvalid, StatemError, Unavailable

MEDIA_TYPE = "application/problem+json"

METHODS = ("DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT")
"""The methods of HTTP that a resource of this service may have. A caller may send others, as many as it invents."""

RETRY_AFTER_SECONDS = 2
"""When a caller may try again while the state store is away."""

KINDS: dict[str, str] = {
    "bad_request": "The request cannot be understood: malformed JSON, a malformed header, an unusable query.",
    "usage": "The request contradicts itself.",
    "invalid": "A value cannot be used; `errors` or the text says which, and what would do.",
    "runbook_invalid": (
        "The runbook, or the sweep file, cannot be used. `errors` lists every problem with its line, column and field."
    ),
    "not_authenticated": "No token, or one that is unknown, expired or revoked. Send `Authorization: Bearer TOKEN`.",
    "not_authorised": "The token's role does not allow this.",
    "no_such_resource": "There is no such resource: `GET /openapi.json` names all that there are.",
    "not_found": "There is no such thing, or the token's labels do not reach it.",
    "store_was_reset": (
        "There is no such run, and the state store is another one than this service has seen before: its data was lost."
    ),
    "method_not_allowed": "The resource has no such method; the header `Allow` lists those that it has.",
    "unknown_target": "No edge leads from the current node to the target; `allowed` lists those that do.",
    "conflict": "The run or the sweep is not in a state in which this can be done, or somebody else was faster.",
    "transition_in_flight": "Another transition is open; `transition` says which. Wait for it, or cancel it.",
    "run_paused": "The run is paused; nothing begins until it is resumed.",
    "run_cancelled": "The run was ended for good.",
    "history_full": "The run has as many events as it may have, and begins nothing more.",
    "stale_version": "`If-Match` names another version than the run has now; `version` and `current` say where it is.",
    "state_regressed": (
        "The state store is behind what the caller, or this service, has seen of the run: it has lost writes. "
        "`version` is what it has now, `seen` what was seen. Look at the run, and decide anew; what is stored counts."
    ),
    "body_too_large": (
        "The body of the request is larger than the service accepts. `statem-dist api --body-limit MIB` raises that."
    ),
    "unsupported_media_type": "The body is not JSON, or its `Content-Type` does not say so.",
    "idempotency_key_reused": "The `Idempotency-Key` was used before, for a request that differs from this one.",
    "forbidden_origin": "A page of another site, or a name that is not this host's, must not use this service.",
    "unavailable": "The state store or the broker cannot be used right now. Try again after `Retry-After`.",
    "redis_refuses": "Redis refuses for a reason of its own. Nothing was written. Try again after `Retry-After`.",
    "redis_out_of_memory": (
        "Redis has used up its `maxmemory`. Nothing was written, and what is stored can be read. Try again after "
        "`Retry-After`."
    ),
    "redis_not_persisting": "Redis cannot write its files and takes no writes. Nothing was written; reads go on.",
    "redis_read_only": "This Redis is a replica, as during a failover. Nothing was written; reads go on.",
    "redis_loading": "Redis has been started and still reads its files.",
    "redis_primary_away": "This Redis is a replica whose primary is away.",
    "redis_too_few_replicas": "Redis has fewer replicas than its `min-replicas-to-write`. Nothing was written.",
    "redis_busy": "A script of somebody else keeps Redis from all other work.",
    "redis_cluster_down": "A part of the Redis Cluster is away, or is being moved.",
    "not_confirmed": (
        "It is written and takes effect (`written` is true), but fewer replicas than `STATEM_DURABILITY` asks for have "
        "said so in time. The same request with the same `Idempotency-Key` does nothing twice and asks them again."
    ),
    "unsafe_surroundings": "A setting of Redis or of the broker with which runs would be lost.",
    "stored_data_unreadable": "What is stored was written by a newer version, or is damaged; an operator has to look.",
    "error": "A defect of the service. It is logged under the request's id.",
}
"""Every kind of problem by its code, and what it means."""

_CODES_OF_STATUS = {
    400: "bad_request",
    404: "no_such_resource",
    405: "method_not_allowed",
    413: "body_too_large",
    415: "unsupported_media_type",
}

logger = logging.getLogger(__name__)


def problem(
    status: int,
    code: str,
    detail: str,
    *,
    hint: str = "",
    errors: Iterable[Mapping[str, Any]] = (),
    extra: Mapping[str, Any] | None = None,
    about: tuple[str, str] = ("", ""),
    headers: Mapping[str, str] | None = None,
) -> Response:
    """Return the response that tells of a problem.

    Args:
        status: the HTTP status.
        code: one of ``KINDS``.
        detail: what is wrong, in a sentence.
        hint: what to do about it.
        errors: each field that is wrong.
        extra: further members of the document.
        about: path and id of the request.
        headers: further headers.
    """
    instance, request_id = about
    listed = list(errors)
    document: dict[str, Any] = {
        **(extra or {}),
        "type": f"/problems/{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": code,
        "detail": detail,
        **({"instance": instance} if instance else {}),
        **({"hint": hint} if hint else {}),
        **({"errors": listed} if listed else {}),
        **({"request_id": request_id} if request_id else {}),
    }
    return Response(msgspec.json.encode(document), status, dict(headers or {}), MEDIA_TYPE)


def document_of(error: StatemError) -> dict[str, Any]:
    """Return the problem that a deliberate error is, as one answer among several."""
    document: dict[str, Any] = msgspec.json.decode(problem_of(error).body)
    return document


def problem_of(error: StatemError, request: Request | None = None) -> Response:
    """Return the response for a deliberate error."""
    headers: dict[str, str] = {}
    if error.http_status == HTTPStatus.UNAUTHORIZED:
        headers["WWW-Authenticate"] = 'Bearer realm="statem-dist"'
    if isinstance(error, Unavailable):
        headers["Retry-After"] = str(RETRY_AFTER_SECONDS)
    return problem(
        error.http_status,
        error.code,
        error.message,
        hint=error.hint,
        errors=_errors_of_runbook(error) if isinstance(error, RunbookInvalid) else (),
        extra={name: value for name, value in error.details.items() if name not in ("problems", "pointers", "errors")},
        about=_of_request(request),
        headers=headers,
    )


def install(app: FastAPI) -> None:
    """Make an application tell its errors as problems."""
    app.add_exception_handler(StatemError, _on_statem_error)
    app.add_exception_handler(RequestValidationError, _on_validation_error)
    app.add_exception_handler(HTTPException, _on_http_exception)


async def _on_statem_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StatemError)
    return problem_of(error, request)


async def _on_validation_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    found = error.errors()
    if any(each["type"] == "json_invalid" for each in found):
        reason = found[0].get("ctx", {}).get("error", "it is no JSON")
        return problem(
            400,
            "bad_request",
            f"The body cannot be read: {reason}.",
            about=_of_request(request),
        )
    kind = request.headers.get("content-type", "")
    if kind and "json" not in kind and any(each["loc"] == ("body",) for each in found):
        detail = f"The body is said to be {kind[:100]!r}; it has to be JSON."
        hint = "Send `Content-Type: application/json`."
        return problem(415, "unsupported_media_type", detail, hint=hint, about=_of_request(request))
    told = "; ".join(f"{_place(each['loc'])}: {each['msg']}" for each in found[:3])
    more = f" (and {len(found) - 3} more)" if len(found) > 3 else ""
    return problem(422, "invalid", f"{told}{more}.", about=_of_request(request), errors=map(_field, found))


async def _on_http_exception(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    code = _CODES_OF_STATUS.get(error.status_code, "bad_request")
    detail = KINDS[code] if error.detail == HTTPStatus(error.status_code).phrase else str(error.detail)
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED:
        headers["Allow"] = ", ".join(_methods(request))
    return problem(error.status_code, code, detail, about=_of_request(request), headers=headers)


def _methods(request: Request) -> list[str]:
    """Return the methods of the path of a request, those of all its routes."""
    found: set[str] = set()
    for method in METHODS:
        scope = {**request.scope, "method": method}
        if any(route.matches(scope)[0] is Match.FULL for route in request.app.routes):
            found.add(method)
    return sorted(found)


def defect(request: Request, error: Exception) -> Response:
    """Return the response for an error that nobody meant, and log what it was."""
    logger.error("request %s failed", _of_request(request)[1], exc_info=error)
    return problem(
        500, "error", "The service failed to answer this request.", hint=KINDS["error"], about=_of_request(request)
    )


def _of_request(request: Request | None) -> tuple[str, str]:
    """Return path and id of a request."""
    return ("", "") if request is None else (request.scope["path"], getattr(request.state, "request_id", ""))


def _errors_of_runbook(error: StatemError) -> list[dict[str, Any]]:
    """Return the problems of a runbook or a sweep file with their places.

    Where several files may be meant, ``pointers`` of the error say which field of the request holds which of them; what
    is wrong with another file has its name.
    """
    found = error.details.get("problems", [])
    pointers = error.details.get("pointers")

    def place(source: str) -> dict[str, Any]:
        if pointers is None:
            return {"pointer": "/text"}
        return {"pointer": pointers[source]} if source in pointers else {"source": source}

    return [
        {
            **place(each["source"]),
            "line": each["line"],
            "column": each["column"],
            "field": each["field"],
            "detail": each["message"],
            **({"hint": each["hint"]} if each.get("hint") else {}),
        }
        for each in map(dict, found)
    ]


def _field(error: Mapping[str, Any]) -> dict[str, Any]:
    """Return one field that is wrong: where it is, and why."""
    place, *path = error["loc"]
    if place == "body":
        return {"pointer": "".join(f"/{_escaped(part)}" for part in path), "detail": error["msg"]}
    return {"parameter": str(path[0]) if path else str(place), "in": str(place), "detail": error["msg"]}


def _place(location: Iterable[Any]) -> str:
    place, *path = location
    return ".".join(map(str, path)) or str(place)


def _escaped(part: Any) -> str:
    return str(part).replace("~", "~0").replace("/", "~1")
