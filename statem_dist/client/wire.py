"""The seam between what is asked of a service and the sockets by which it is asked."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from typing import Protocol

from msgspec import Struct

CONNECT_SECONDS = 5.0
"""How long it may take to be connected."""


class Request(Struct, frozen=True):
    """One request; ``target`` is its path with the query. The token is not in it: the transport adds that."""

    method: str
    target: str
    headers: dict[str, str] = {}
    body: bytes | None = None


class Reply(Struct, frozen=True):
    """An answer that came whole; the names of headers are in small letters."""

    status: int
    headers: dict[str, str]
    body: bytes


class Lost(Exception):
    """No answer came, or not all of it; whether the request was carried out is unknown. The text says why."""


class Incoming(Protocol):
    """An answer that comes bit by bit; every read may raise ``Lost``."""

    status: int
    headers: dict[str, str]

    def chunks(self) -> Iterator[bytes]:
        """Yield what comes, as it comes."""


class AsyncIncoming(Protocol):
    """The same for an event loop."""

    status: int
    headers: dict[str, str]

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield what comes, as it comes."""


class Transport(Protocol):
    """Sends requests to one service, one at a time in each thread."""

    def send(self, request: Request, seconds: float) -> Reply:
        """Return the answer.

        Args:
            request: what is asked.
            seconds: how long the service may be silent.

        Raises:
            Lost: none came.
        """

    def stream(self, request: Request, seconds: float) -> AbstractContextManager[Incoming]:
        """Open an answer that comes bit by bit. See ``send``."""

    def close(self) -> None:
        """Close every connection."""


class AsyncTransport(Protocol):
    """The same for an event loop."""

    async def send(self, request: Request, seconds: float) -> Reply:
        """Return the answer. See ``Transport.send``."""

    def stream(self, request: Request, seconds: float) -> AbstractAsyncContextManager[AsyncIncoming]:
        """Open an answer that comes bit by bit."""

    async def close(self) -> None:
        """Close every connection."""
