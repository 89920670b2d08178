"""Tokens: make, list, revoke; and who one is oneself."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Path
from starlette.responses import Response

from statem_api import bodies, shapes
from statem_api.answers import REQUEST_ID_OF_KEY, Keyed, answer, described
from statem_api.callers import Calling
from statem_api.service import Serving
from statem_api.starting import labels_within
from statem_dist.tokens import token_not_found, token_view

router = APIRouter(prefix="/v1", tags=["tokens"])

TokenId = Annotated[str, Path(pattern=r"^[A-Za-z0-9][A-Za-z0-9-]{0,63}$", description="Id of the token, not its text.")]


@router.get("/whoami", responses=described(of_200=shapes.Me), summary="Who is calling")
async def whoami(caller: Calling) -> Response:
    """Say whose token this is, what it may do, and which runs it reaches."""
    return answer({"name": caller.name, "role": caller.role, "labels": caller.labels, "token": caller.token})


@router.post("/tokens", status_code=201, responses=described(409, of_201=shapes.TokenMade), summary="Make a token")
async def create(body: bodies.TokenCreate, service: Serving, caller: Calling, asked: Keyed) -> Response:
    """Make a token. Its text is in this answer and nowhere else: a repeated request answers 409 and shows nothing.

    The token of an admin with labels makes tokens that have these labels, too.
    """
    caller.require("admin", "make tokens")
    labels = labels_within(caller, body.labels)

    def make() -> dict[str, Any]:
        service.engine.require_same_request(asked)
        own_id = asked.request.removeprefix(REQUEST_ID_OF_KEY)[:24] or None
        token, text = service.tokens.create(body.name, body.role, labels, body.expires_in, caller.name, token_id=own_id)
        return {**token_view(token, service.engine.store.clock()), "token": text}

    return answer(await service.call(make), 201, headers={"Cache-Control": "no-store"})


@router.get("/tokens", responses=described(of_200=shapes.TokenList), summary="List the tokens")
async def list_(service: Serving, caller: Calling) -> Response:
    """List the tokens, newest first, without their texts; an admin with labels sees those that have all of them."""
    caller.require("admin", "list tokens")

    def look() -> list[dict[str, Any]]:
        now = service.engine.store.clock()
        return [token_view(token, now) for token in service.tokens.list() if caller.reaches(token.labels)]

    return answer({"items": await service.call(look)})


@router.delete("/tokens/{token}", responses=described(404, of_200=shapes.Token), summary="Revoke a token")
async def revoke(token: TokenId, service: Serving, caller: Calling) -> Response:
    """End a token at once, also where a stream is open under it. Once more changes nothing.

    For an admin with labels there are only the tokens that have all of them.
    """
    caller.require("admin", "revoke tokens")

    def end() -> dict[str, Any]:
        found = service.tokens.get(token)
        if found is None or not caller.reaches(found.labels):
            raise token_not_found(token)
        return token_view(service.tokens.revoke(token, caller.name), service.engine.store.clock())

    return answer(await service.call(end))
