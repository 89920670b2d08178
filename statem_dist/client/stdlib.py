"""The transport of short commands: ``http.client`` is imported in a fraction of the time that a pool takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPException, HTTPResponse, HTTPSConnection
from urllib.parse import urlsplit

from statem_dist.client.address import Address
from statem_dist.client.wire import CONNECT_SECONDS, Lost, Reply, Request

CHUNK_BYTES = 64 * 1024


class StdlibTransport:
    """One connection, kept for the next request; for one thread. Proxies of the environment are not used.

    Args:
        address: the service.
    """

    def __init__(self, address: Address) -> None:
        self._address = address
        parts = urlsplit(address.url)
        self._secure = parts.scheme == "https"
        self._host = parts.hostname or ""
        self._port = parts.port
        self._prefix = parts.path
        self._headers = {"Authorization": f"Bearer {address.token}"} if address.token else {}
        self._connection: HTTPConnection | None = None

    def send(self, request: Request, seconds: float) -> Reply:
        """Return the answer. See ``Transport.send``."""
        response = self._asked(request, seconds)
        try:
            body = response.read()
        except (OSError, HTTPException) as error:
            raise self._lost(error) from error
        return Reply(response.status, _headers(response), body)

    @contextmanager
    def stream(self, request: Request, seconds: float) -> Iterator[StdlibIncoming]:
        """Open an answer that comes bit by bit, on a connection of its own."""
        own = StdlibTransport(self._address)
        try:
            yield StdlibIncoming(own._asked(request, seconds))
        finally:
            own.close()

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _asked(self, request: Request, seconds: float) -> HTTPResponse:
        """Send a request and return the head of its answer."""
        try:
            if self._connection is None or self._connection.sock is None:
                # The service closes one that was idle for long, or when it stops.
                self._connection = self._connect()
            connection = self._connection
            connection.sock.settimeout(seconds)
            connection.request(
                request.method, self._prefix + request.target, request.body, {**self._headers, **request.headers}
            )
            return connection.getresponse()
        except (OSError, HTTPException) as error:
            raise self._lost(error) from error
        except BaseException:
            # Interrupted, its answer may still come: it must not be taken for that to the next request.
            self.close()
            raise

    def _connect(self) -> HTTPConnection:
        kind = HTTPSConnection if self._secure else HTTPConnection
        connection = kind(self._host, self._port, timeout=CONNECT_SECONDS)
        connection.connect()
        return connection

    def _lost(self, error: Exception) -> Lost:
        self.close()
        return Lost(reason(error))


class StdlibIncoming:
    """An answer that comes bit by bit."""

    def __init__(self, response: HTTPResponse) -> None:
        self._response = response
        self.status = response.status
        self.headers = _headers(response)

    def chunks(self) -> Iterator[bytes]:
        """Yield what comes, as it comes."""
        try:
            while chunk := self._response.read1(CHUNK_BYTES):
                yield chunk
        except (OSError, HTTPException) as error:
            raise Lost(reason(error)) from error


def reason(error: Exception) -> str:
    """Return why no answer came, in a few words."""
    if isinstance(error, TimeoutError):
        return "it did not answer in time"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    return str(error) or type(error).__name__


def _headers(response: HTTPResponse) -> dict[str, str]:
    return {name.lower(): value for name, value in response.getheaders()}
