"""Problems of the service (RFC 9457) as the errors of this project: the same class, message, hint and details."""

from __future__ import annotations

from collections.abc import Iterator
from http import HTTPStatus
from typing import Any

import msgspec

from statem_dist import errors
from statem_dist.client.wire import Reply
from statem_dist.errors import StatemError

STANDARD = frozenset({"type", "title", "status", "code", "detail", "instance", "hint", "errors", "request_id"})
"""Members that every problem may have; all others are details of the error."""

NO_SUCH_RESOURCE = "no_such_resource"
"""The code of an answer to a path that the service does not have."""

_BY_STATUS: dict[int, type[StatemError]] = {
    400: errors.CallerError,
    401: errors.NotAuthenticated,
    403: errors.NotAuthorised,
    404: errors.NotFound,
    409: errors.Conflict,
    412: errors.StaleVersion,
    422: errors.Invalid,
    429: errors.Unavailable,
    502: errors.Unavailable,
    503: errors.Unavailable,
    504: errors.Unavailable,
}
"""What an answer means that comes with no code of ours, from a proxy for example."""


def error_of(reply: Reply) -> StatemError:
    """Return the error that an answer tells of."""
    document = _document(reply)
    if reply.status == 404 and document.get("code") in (None, NO_SUCH_RESOURCE):
        # Nobody of ours says 404 without a code: somebody else answers there, or it is another path.
        return errors.Unavailable(
            "There is no statem-dist service at this URL.",
            hint="Check STATEM_URL: it is that of the service, without what comes behind it.",
        )
    kind = _BY_CODE.get(str(document.get("code", ""))) or _kind_of(reply.status)
    details = {name: value for name, value in document.items() if name not in STANDARD}
    if kind is errors.RunbookInvalid:
        details["problems"] = [_problem_of(each) for each in document.get("errors", ())]
    elif "errors" in document:
        details["errors"] = document["errors"]
    if reply.status >= 500 and (request_id := document.get("request_id")):
        # An operator finds what went wrong by it.
        details["request_id"] = request_id
    return kind(
        str(document.get("detail") or f"The service answered {reply.status} {_phrase(reply.status)}."),
        hint=str(document.get("hint", "")),
        details=details,
    )


def _document(reply: Reply) -> dict[str, Any]:
    try:
        document = msgspec.json.decode(reply.body)
    except msgspec.DecodeError:
        return {}
    return document if isinstance(document, dict) else {}


def _kind_of(status: int) -> type[StatemError]:
    return _BY_STATUS.get(status) or (errors.CallerError if 400 <= status < 500 else StatemError)


def _problem_of(error: dict[str, Any]) -> dict[str, Any]:
    """Return a problem of a runbook as the reader of runbooks tells it."""
    told = {name: error.get(name) for name in ("line", "column", "field", "hint")}
    return {**told, "hint": told["hint"] or "", "message": error.get("detail", "")}


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return ""


def _classes(root: type[StatemError]) -> Iterator[type[StatemError]]:
    yield root
    for each in root.__subclasses__():
        yield from _classes(each)


# Codes belong to the tree in ``errors``; a class that somebody derives elsewhere has none of its own.
_BY_CODE = {kind.code: kind for kind in reversed([*_classes(StatemError)]) if kind.__module__ == errors.__name__}
