"""Answers: JSON with the version of the run as its ETag, and what the OpenAPI document says of them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from hashlib import sha256
from http import HTTPStatus
from typing import Annotated, Any

import msgspec
from fastapi import Depends, Header, Query, Request
from msgspec.structs import replace
from starlette.responses import Response

from statem_api import problems, shapes
from statem_api.callers import Calling
from statem_api.options import WAIT_SECONDS_MAX
from statem_dist.coordinator import Terms
from statem_dist.decisions import decisions_of
from statem_dist.errors import CallerError
from statem_dist.follow import Settled
from statem_dist.protocol.progress import waits_for_people
from statem_dist.views import settled_transition

_IF_MATCH = re.compile(r'"(\d{1,15})"')
_PREFER_WAIT = re.compile(r"(?:^|[,;\s])wait\s*=\s*\"?(\d{1,6})\"?(?=$|[,;\s])", re.IGNORECASE)

REQUEST_ID_OF_KEY = "key_"
"""What the id of a request begins with that its caller has named by an idempotency key."""


class BadRequest(CallerError):
    """A header that cannot be understood."""


def answer(
    data: Any, status: int = 200, *, version: int | None = None, headers: Mapping[str, str] | None = None
) -> Response:
    """Return data as JSON.

    Args:
        data: what ``msgspec`` can encode.
        status: the HTTP status.
        version: that of the run the answer is about; it becomes the ETag.
        headers: more of them.
    """
    given = dict(headers or {})
    if version is not None:
        given["ETag"] = f'"{version}"'
    return Response(msgspec.json.encode(data), status, given, "application/json")


def transition_view(settled: Settled, waiting: str) -> dict[str, Any]:
    """Return a transition as the service shows it.

    Args:
        settled: the transition and its run.
        waiting: what it waits for, empty if it is not open.
    """
    run, transition = settled.run, settled.transition
    moved = transition.outcome == "committed" and transition.stage is None
    decisions = [each.id for each in decisions_of(run)] if transition.open and waits_for_people(run) else []
    return {
        "ok": moved,
        "version": run.version,
        **settled_transition(run, transition),
        **({"waiting_reason": waiting} if waiting else {}),
        **({"decisions": decisions} if decisions else {}),
    }


def transition_url(run_id: str, transition_id: str) -> str:
    """Return where a transition is found."""
    return f"/v1/runs/{run_id}/transitions/{transition_id}"


async def version_of(
    if_match: Annotated[
        str | None,
        Header(description='The only version of the run that this is meant for, as an ETag: `"7"`.', examples=['"7"']),
    ] = None,
) -> Terms:
    """Return for which version of its run a request is meant.

    Raises:
        BadRequest: the header cannot be understood.
    """
    if if_match is None or if_match.strip() == "*":
        return Terms()
    found = _IF_MATCH.fullmatch(if_match.strip())
    if found is None:
        raise BadRequest("`If-Match` holds no version.", hint='Send the ETag of the run as it was given, like "7".')
    return Terms(if_version=int(found[1]))


async def key_of(
    request: Request,
    caller: Calling,
    idempotency_key: Annotated[
        str | None,
        Header(
            min_length=1,
            max_length=255,
            description="Names this request, so that a repetition is answered like the first one; kept for 24 hours.",
        ),
    ] = None,
) -> Terms:
    """Return the id that a request has been given.

    A key belongs to the token and the resource. The fingerprint is that of the query and the body.
    """
    if idempotency_key is None:
        return Terms()
    scope = "\0".join((caller.token, request.method, request.url.path, idempotency_key))
    asked = request.url.query.encode() + b"\0" + await request.body()
    return Terms(
        request=REQUEST_ID_OF_KEY + sha256(scope.encode()).hexdigest()[:32],
        fingerprint=sha256(asked).hexdigest(),
    )


async def terms_of(version: Annotated[Terms, Depends(version_of)], key: Annotated[Terms, Depends(key_of)]) -> Terms:
    """Return on what terms a request is meant: its version, and its own id."""
    return replace(key, if_version=version.if_version)


async def new_terms_of(request: Request, key: Annotated[Terms, Depends(key_of)]) -> Terms:
    """Return the same of a request that is about nothing that has a version.

    Raises:
        BadRequest: it names a version all the same, and would be carried out whatever that is.
    """
    if "if-match" in request.headers:
        raise BadRequest(
            "`If-Match` has no meaning here: this request is about no version of a run.", hint="Leave it out."
        )
    return key


async def wait_of(
    wait: Annotated[
        float | None,
        Query(ge=0, le=3_600, description=f"Seconds to wait for the outcome, {WAIT_SECONDS_MAX:.0f} at most."),
    ] = None,
    prefer: Annotated[str | None, Header(description="`wait=SECONDS` does the same (RFC 7240).")] = None,
) -> float:
    """Return how many seconds a request wants to wait; a longer wish than is granted is cut."""
    if wait is None and prefer is not None and (found := _PREFER_WAIT.search(prefer)) is not None:
        wait = float(found[1])
    return min(wait or 0.0, WAIT_SECONDS_MAX)


Asked = Annotated[Terms, Depends(terms_of)]
"""On what terms a request is meant, as a parameter of a route."""

Keyed = Annotated[Terms, Depends(new_terms_of)]
"""The same of a request that is about no run that there is."""

Versioned = Annotated[Terms, Depends(version_of)]
"""The same of a request that does nothing more when it is repeated."""

Waiting = Annotated[float, Depends(wait_of)]
"""How long it wants to wait, as a parameter of a route."""


def described(*statuses: int, **answers: type[shapes.Shape]) -> dict[int | str, dict[str, Any]]:
    """Return what the OpenAPI document says of the answers of a route.

    Args:
        statuses: those of its problems, next to the ones that every route has.
        answers: the shape of each answer, by its status after ``of_``, such as ``of_200``.
    """
    told: dict[int | str, dict[str, Any]] = {
        int(name.removeprefix("of_")): {"model": shape} for name, shape in answers.items()
    }
    for status in sorted({400, 401, 403, 413, 415, 422, 500, 503, *statuses}):
        told[status] = {
            "description": HTTPStatus(status).phrase,
            "content": {problems.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}},
        }
    return told
