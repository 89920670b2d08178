"""Queries: a parameter that a resource does not have is refused, because a misspelt filter would show too much."""

from __future__ import annotations

from difflib import get_close_matches

from fastapi import Request

from statem_dist.errors import Invalid


async def refuse_unknown(request: Request) -> None:
    """Refuse a query with a parameter that the resource does not have, by the OpenAPI document.

    Raises:
        Invalid: it has one, and the hint names the closest that there is.
    """
    if not request.url.query:
        return
    operation = request.app.openapi()["paths"][request.scope["route"].path][request.method.lower()]
    known = {each["name"] for each in operation.get("parameters", ()) if each["in"] == "query"}
    for name in request.query_params:
        if name not in known:
            close = next(iter(get_close_matches(name[:100], known, n=1)), None)
            listed = ", ".join(sorted(known)) or "none"
            raise Invalid(
                f"There is no query parameter {name[:100]!r} here.",
                hint=f"Did you mean {close!r}?" if close else f"There are: {listed}.",
            )
