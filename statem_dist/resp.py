"""A small Redis client: one unix socket, one request at a time, RESP2, the standard library only.

It exists because importing a full client costs more than most commands of the CLI take. It knows every RESP2
type but no retries, no pool and no pipelines: after any failure other than an error *reply* the connection is
closed, so that a late answer can never be taken for the answer to the next request.
"""

from __future__ import annotations

import socket
from types import TracebackType
from typing import Any, TypeAlias, Union

Argument: TypeAlias = str | bytes | int | float
Reply: TypeAlias = Union[bytes, int, "ReplyError", "list[Reply]", None]
"""Strings of both kinds are ``bytes``, null is ``None``; an error inside an array is a value."""


_END = b"\r\n"
_CHUNK_BYTES = 64 * 1024


class ReplyError(Exception):
    """The server understood the request and refused it.

    ``code`` is the first word of the reply, such as ``LOADING``, ``MISCONF`` or ``NOSCRIPT``.
    """

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.code = text.split(" ", 1)[0]


class ProtocolError(Exception):
    """The other side does not speak RESP2."""


class Connection:
    """One connection to the server behind a unix socket.

    Args:
        path: the socket, at most about 100 bytes long.
        timeout_seconds: how long connecting, and each wait for bytes of a reply, may take; None waits for ever.

    Raises:
        OSError: nobody listens there (FileNotFoundError, ConnectionRefusedError), or no answer to the connect.
    """

    def __init__(self, path: str, *, timeout_seconds: float | None = 5.0) -> None:
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            self._socket.settimeout(timeout_seconds)
            self._socket.connect(path)
        except BaseException:
            self._socket.close()
            raise
        self._received = bytearray()

    def call(self, *arguments: Argument) -> Reply:
        """Send one command and return its reply.

        Raises:
            ReplyError: the server refused; the connection stays usable.
            OSError: the connection was lost (ConnectionError) or the reply took too long (TimeoutError).
            ProtocolError: the bytes that came back are no RESP2.
        """
        try:
            self._socket.sendall(_encode(arguments))
            reply = self._read()
        except BaseException:
            self.close()
            raise
        if isinstance(reply, ReplyError):
            raise reply
        return reply

    def read(self) -> list[Any]:
        """Return the next reply of a connection that is subscribed to channels.

        Raises:
            As ``call``; ProtocolError also when it is no message of a subscription.
        """
        reply = self._read()
        if not isinstance(reply, list):
            raise ProtocolError(f"{reply!r} is no message of a subscription")
        return reply

    @property
    def buffered(self) -> bool:
        """Whether bytes have arrived already that nobody has read."""
        return bool(self._received)

    def info(self, section: str) -> dict[str, str]:
        """Return one section of INFO as its names and values.

        Raises:
            As ``call``.
        """
        reply = self.call("INFO", section)
        if not isinstance(reply, bytes):
            raise ProtocolError(f"INFO answered {reply!r}")
        pairs = (line.partition(":") for line in reply.decode(errors="replace").splitlines())
        return {name: value for name, colon, value in pairs if colon}

    def shut_down(self, *, timeout_seconds: float) -> None:
        """Ask the server to flush its log and exit, and wait until it has let go of this connection.

        Raises:
            ReplyError: the server refuses, for example because it cannot write its log.
            TimeoutError: it is still there.
        """
        self._socket.settimeout(timeout_seconds)
        try:
            self.call("SHUTDOWN")
        except ConnectionError:
            return

    def fileno(self) -> int:
        """Return the socket's descriptor, for ``select``: readable while no call is under way means closed."""
        return self._socket.fileno()

    def close(self) -> None:
        """Close the connection; closing it again does nothing."""
        self._socket.close()

    def __enter__(self) -> Connection:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _read(self) -> Reply:
        line = self._take_line()
        kind, text = line[:1], line[1:]
        match kind:
            case b"$":
                return self._read_bulk(_integer(text))
            case b":":
                return _integer(text)
            case b"+":
                return bytes(text)
            case b"*":
                count = _integer(text)
                return None if count < 0 else [self._read() for _ in range(count)]
            case b"-":
                return ReplyError(text.decode(errors="replace"))
            case _:
                raise ProtocolError(f"a reply cannot start with {line[:40]!r}")

    def _read_bulk(self, size: int) -> bytes | None:
        return None if size < 0 else self._take(size + len(_END))[: -len(_END)]

    def _take_line(self) -> bytes:
        """Return the next line without its end."""
        searched = 0
        while (end := self._received.find(_END, searched)) < 0:
            searched = max(0, len(self._received) - 1)
            self._receive()
        return self._take(end + len(_END))[: -len(_END)]

    def _take(self, size: int) -> bytes:
        """Return the next bytes, exactly as many."""
        while len(self._received) < size:
            self._receive()
        taken = bytes(self._received[:size])
        del self._received[:size]
        return taken

    def _receive(self) -> None:
        chunk = self._socket.recv(_CHUNK_BYTES)
        if not chunk:
            raise ConnectionResetError("the server closed the connection")
        self._received += chunk


def _encode(arguments: tuple[Argument, ...]) -> bytes:
    parts = [b"*%d\r\n" % len(arguments)]
    for argument in arguments:
        data = argument if isinstance(argument, bytes) else str(argument).encode()
        parts.append(b"$%d\r\n%b\r\n" % (len(data), data))
    return b"".join(parts)


def _integer(text: bytes) -> int:
    try:
        return int(text)
    except ValueError:
        raise ProtocolError(f"{text[:40]!r} is no number") from None
