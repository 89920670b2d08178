"""The ``Client`` port on a unix socket, with nothing but the standard library."""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from statem_dist.resp import Connection, ProtocolError, ReplyError
from statem_dist.store.client import REPLY_TIMEOUT_SECONDS, Argument, Refused, Unreachable


class SocketClient:
    """One connection to the server behind a socket, opened when needed, shared by threads one call at a time.

    Args:
        path: the socket.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()
        self._connection: Connection | None = None

    def call(self, *command: Argument) -> Any:
        """Send one command and return its reply; see ``Client.call``."""
        (reply,) = self.call_many([command])
        return reply

    def call_many(self, commands: Iterable[Sequence[Argument]]) -> list[Any]:
        """Send several commands one after another, all on one connection; see ``Client.call_many``."""
        with self._lock, _translated():
            connection = self._connection or Connection(self._path, timeout_seconds=REPLY_TIMEOUT_SECONDS)
            self._connection = connection
            try:
                return [connection.call(*command) for command in commands]
            except ReplyError:
                raise
            except BaseException:
                # It has closed itself, so that a late reply is never taken for the next one.
                self._connection = None
                raise

    def subscribe(self, channels: Sequence[str]) -> SocketSubscription:
        """Listen to channels on a connection of their own."""
        with _translated():
            return SocketSubscription(Connection(self._path, timeout_seconds=REPLY_TIMEOUT_SECONDS), channels)

    def close(self) -> None:
        """Close the connection; the next call opens another."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
                self._connection = None


class SocketSubscription:
    """Channels listened to on one connection."""

    def __init__(self, connection: Connection, channels: Sequence[str]) -> None:
        self._connection = connection
        self._connection.call("SUBSCRIBE", *channels)
        # One confirmation comes per channel, the first of them as the reply.
        self._unconfirmed = len(channels) - 1
        self._told = False

    def next(self, timeout: float) -> bytes | None:
        """Return the next message; see ``Subscription.next``."""
        deadline = time.monotonic() + timeout
        if not (self._unconfirmed or self._told):
            self._told = True
            return b""
        with _translated():
            while self._connection.buffered or self._readable(deadline):
                kind, _, data = self._connection.read()
                if kind == b"message":
                    return bytes(data)
                self._unconfirmed -= 1
                if not self._unconfirmed:
                    self._told = True
                    return b""
        return None

    def close(self) -> None:
        """Stop listening."""
        self._connection.close()

    def _readable(self, deadline: float) -> bool:
        ready, _, _ = select.select([self._connection], [], [], max(0.0, deadline - time.monotonic()))
        return bool(ready)


@contextmanager
def _translated() -> Iterator[None]:
    """Turn what the connection raises into what the port promises."""
    try:
        yield
    except ReplyError as error:
        raise Refused(error.code, str(error)) from error
    except (OSError, ProtocolError, ValueError) as error:
        raise Unreachable(str(error) or type(error).__name__) from error
