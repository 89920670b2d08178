"""What is around every request: its id, who calls, a limit to its body, what browsers may, and what is counted.

Whoever has no token is refused before anything of a body is read, and a defect is answered here, so that it has the
same headers as every other answer and is counted like one.
"""

from __future__ import annotations

import logging
import os
import re
import time
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from statem_api.callers import caller_named
from statem_api.problems import KINDS, METHODS, defect, problem, problem_of
from statem_api.service import Service
from statem_dist.errors import StatemError

REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")
"""What a caller may call its request."""

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

SAFE = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
}

logger = logging.getLogger(__name__)


class Envelope:
    """ASGI middleware around the whole service.

    Args:
        app: what answers.
        service: the service, for its options and metrics.
    """

    def __init__(self, app: ASGIApp, service: Service) -> None:
        self._app = app
        self._service = service

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass a request on, or refuse it."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        given = headers.get("x-request-id", "")
        request_id = given if REQUEST_ID.fullmatch(given) else f"req_{os.urandom(8).hex()}"
        scope.setdefault("state", {})["request_id"] = request_id
        began = time.monotonic()
        begun = False

        async def answered(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                out = MutableHeaders(scope=message)
                out["X-Request-Id"] = request_id
                for name, value in SAFE.items():
                    out.setdefault(name, value)
                self._count(scope, message["status"], time.monotonic() - began)
            await send(message)

        body = _LimitedBody(receive, self._service.options.body_bytes_max)
        try:
            if (why := self._refusal(headers)) is not None:
                refusal = problem(403, "forbidden_origin", why, about=(scope["path"], request_id))
                await refusal(scope, receive, answered)
            elif body.announced_too_large(headers):
                await self._too_large(scope, receive, answered, request_id)
            else:
                if _needs_caller(scope["path"]):
                    scope["state"]["caller"] = await caller_named(self._service, headers)
                await self._app(scope, body.receive, answered)
        except _BodyTooLarge:
            # Nobody in between has answered it.
            await self._too_large(scope, receive, answered, request_id)
        except StatemError as error:
            if begun:
                raise
            await problem_of(error, Request(scope))(scope, receive, answered)
        except Exception as error:
            if begun:
                # Half of an answer is out; the server has to break it off.
                raise
            await defect(Request(scope), error)(scope, receive, answered)

    async def _too_large(self, scope: Scope, receive: Receive, send: Send, request_id: str) -> None:
        limit = self._service.options.body_bytes_max
        refusal = problem(
            413,
            "body_too_large",
            f"The body of this request is larger than {limit:,} bytes.",
            hint=KINDS["body_too_large"],
            about=(scope["path"], request_id),
            headers={"Connection": "close"},
        )
        await refusal(scope, receive, send)

    def _refusal(self, headers: Headers) -> str | None:
        """Return why a browser may not send this, if it is one that sends it for a page that is not ours.

        A page of another site can make its visitor's browser call services of this host, under any name that it has
        made to mean this host. A service that only this host reaches answers to its own names alone.
        """
        host = _host(headers.get("host", ""))
        if host is None:
            return "The header `Host` holds no name of a host."
        if self._service.options.loopback and host not in LOOPBACK_NAMES:
            return f"This service is reached under a name of this host, not as {host!r}."
        origin = headers.get("origin")
        if origin is not None and origin != "null" and _netloc(origin) != headers.get("host"):
            return f"Pages of {origin} must not use this service."
        return KINDS["forbidden_origin"] if origin == "null" else None

    def _count(self, scope: Scope, status: int, seconds: float) -> None:
        route = getattr(scope.get("route"), "path", "(none)")
        method = scope["method"] if scope["method"] in METHODS else "other"
        self._service.metrics.requests.labels(route, method, str(status)).observe(seconds)
        if status in (401, 403):
            self._service.metrics.refused.inc()
        logger.info(
            "%s %s %d %.1f ms %s",
            scope["method"],
            # Nothing of a query is logged, and no character that would begin a line of its own.
            scope["path"].encode("unicode_escape").decode(),
            status,
            seconds * 1000,
            scope["state"]["request_id"],
        )


class _BodyTooLarge(HTTPException):
    """More came than is accepted. This kind is let through by whoever reads a body in between."""

    def __init__(self) -> None:
        super().__init__(413, headers={"Connection": "close"})


class _LimitedBody:
    """Counts what comes of a body, and gives up where it is too much."""

    def __init__(self, receive: Receive, limit: int) -> None:
        self._receive = receive
        self._limit = limit
        self._seen = 0

    def announced_too_large(self, headers: Headers) -> bool:
        """Return whether the body is known to be too large before it is read."""
        length = headers.get("content-length", "")
        return length.isdecimal() and int(length) > self._limit

    async def receive(self) -> Message:
        """Return the next part."""
        message = await self._receive()
        if message["type"] == "http.request":
            self._seen += len(message.get("body", b""))
            if self._seen > self._limit:
                raise _BodyTooLarge
        return message


def _needs_caller(path: str) -> bool:
    """Return whether a path is for those alone of whom it is known who they are."""
    return path.startswith("/v1/") or path == "/metrics"


def _host(given: str) -> str | None:
    """Return the name of a ``Host`` header without its port; None if it is malformed."""
    try:
        return urlsplit(f"//{given}").hostname or ""
    except ValueError:
        return None


def _netloc(origin: str) -> str | None:
    """Return the host and port of an origin; None if it is malformed."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None
