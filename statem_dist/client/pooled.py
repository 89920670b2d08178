"""The transports of the library's clients, on the connection pools of httpx2."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import httpx2

from statem_dist.client.address import Address
from statem_dist.client.wire import CONNECT_SECONDS, AsyncIncoming, Incoming, Lost, Reply, Request


class PooledTransport:
    """Keeps connections for all threads of a process.

    Args:
        address: the service.
    """

    def __init__(self, address: Address) -> None:
        self._url = address.url
        # A proxy that is meant for the world outside does not reach a service of this host.
        self._client = httpx2.Client(headers=_token(address), trust_env=not address.loopback)

    def send(self, request: Request, seconds: float) -> Reply:
        """Return the answer. See ``Transport.send``."""
        try:
            found = self._client.request(
                request.method,
                self._url + request.target,
                content=request.body,
                headers=request.headers,
                timeout=_timeout(seconds),
            )
        except httpx2.RequestError as error:
            raise Lost(_reason(error)) from error
        return Reply(found.status_code, _headers(found), found.content)

    @contextmanager
    def stream(self, request: Request, seconds: float) -> Iterator[Incoming]:
        """Open an answer that comes bit by bit."""
        try:
            with self._client.stream(
                request.method, self._url + request.target, headers=request.headers, timeout=_timeout(seconds)
            ) as found:
                yield _Incoming(found)
        except httpx2.RequestError as error:
            raise Lost(_reason(error)) from error

    def close(self) -> None:
        """Close every connection."""
        self._client.close()


class AsyncPooledTransport:
    """The same for an event loop.

    Args:
        address: the service.
    """

    def __init__(self, address: Address) -> None:
        self._url = address.url
        self._client = httpx2.AsyncClient(headers=_token(address), trust_env=not address.loopback)

    async def send(self, request: Request, seconds: float) -> Reply:
        """Return the answer. See ``Transport.send``."""
        try:
            found = await self._client.request(
                request.method,
                self._url + request.target,
                content=request.body,
                headers=request.headers,
                timeout=_timeout(seconds),
            )
        except httpx2.RequestError as error:
            raise Lost(_reason(error)) from error
        return Reply(found.status_code, _headers(found), found.content)

    @asynccontextmanager
    async def stream(self, request: Request, seconds: float) -> AsyncIterator[AsyncIncoming]:
        """Open an answer that comes bit by bit."""
        try:
            async with self._client.stream(
                request.method, self._url + request.target, headers=request.headers, timeout=_timeout(seconds)
            ) as found:
                yield _AsyncIncoming(found)
        except httpx2.RequestError as error:
            raise Lost(_reason(error)) from error

    async def close(self) -> None:
        """Close every connection."""
        await self._client.aclose()


class _Incoming:
    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.headers = _headers(response)

    def chunks(self) -> Iterator[bytes]:
        return self._response.iter_bytes()


class _AsyncIncoming:
    def __init__(self, response: httpx2.Response) -> None:
        self._response = response
        self.status = response.status_code
        self.headers = _headers(response)

    def chunks(self) -> AsyncIterator[bytes]:
        return self._response.aiter_bytes()


def _token(address: Address) -> dict[str, str]:
    return {"Authorization": f"Bearer {address.token}"} if address.token else {}


def _timeout(seconds: float) -> httpx2.Timeout:
    return httpx2.Timeout(seconds, connect=CONNECT_SECONDS, pool=seconds)


def _headers(response: httpx2.Response) -> dict[str, str]:
    return {name.lower(): value for name, value in response.headers.items()}


def _reason(error: httpx2.RequestError) -> str:
    if isinstance(error, httpx2.TimeoutException):
        return "it did not answer in time"
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and cause.strerror:
            return cause.strerror
        cause = cause.__cause__ or cause.__context__
    return str(error) or type(error).__name__
