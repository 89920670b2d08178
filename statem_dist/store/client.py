"""The port between the store and a Redis client, and the choice of one.

A client sends commands and gives replies as they came. It never repeats a command by itself: whether that is safe
is for the store to say. Three implementations share the port. ``redis_client`` is redis-py, for services and for every
kind of URL; ``cluster_client`` is for a Redis Cluster. ``socket_client`` speaks to a unix socket with the standard
library alone, for commands that are over before redis-py has been imported.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol, TypeAlias
from urllib.parse import urlsplit

Argument: TypeAlias = str | bytes | int

REPLY_TIMEOUT_SECONDS = 5.0
"""A reply that takes longer counts as lost. No command of the store blocks."""


class Unreachable(Exception):
    """No reply: the command may have been executed, or not."""


class Refused(Exception):
    """An error reply; nothing was done.

    Args:
        code: its first word, such as ``NOSCRIPT`` or ``OOM``.
        text: the whole reply.
    """

    def __init__(self, code: str, text: str) -> None:
        super().__init__(text)
        self.code = code


class Subscription(Protocol):
    """Channels that somebody listens to, on a connection of their own."""

    def next(self, timeout: float) -> bytes | None:
        """Return the next message, an empty one when the subscription has just taken effect, or None after
        ``timeout`` seconds without any.

        Raises:
            Unreachable: the connection is gone, and messages may have been lost.
        """

    def close(self) -> None:
        """Stop listening."""


class Client(Protocol):
    """What the store needs of a Redis client; usable from several threads."""

    def call(self, *command: Argument) -> Any:
        """Send one command and return its reply: strings as bytes, whatever their kind.

        Raises:
            Unreachable: no reply.
            Refused: an error reply.
        """

    def call_many(self, commands: Iterable[Sequence[Argument]]) -> list[Any]:
        """Send several commands, which are not one transaction, and return their replies.

        One without a key is sent on the connection of the one before it: what WAIT is told is about that one's writes.

        Raises:
            Unreachable: not all replies came.
            Refused: one of them was refused.
        """

    def subscribe(self, channels: Sequence[str]) -> Subscription:
        """Listen to channels.

        Raises:
            Unreachable: no connection.
        """

    def close(self) -> None:
        """Let go of every connection."""


def client_for(url: str, *, quick: bool = False) -> Client:
    """Return a client for a Redis URL.

    Args:
        url: ``redis://``, ``rediss://``, ``unix://``, or one of several servers; see ``topology``.
        quick: prefer the client that is there at once, for a process that sends a few commands.

    Raises:
        Unavailable: it is no URL of a Redis.
    """
    parts = urlsplit(url)
    if quick and parts.scheme == "unix" and not parts.netloc and not parts.query:
        from statem_dist.store.socket_client import SocketClient

        return SocketClient(parts.path)
    from statem_dist.store.redis_client import RedisClient, connect
    from statem_dist.store.topology import topology_of

    topology = topology_of(url)
    if topology is not None and not topology.service:
        from statem_dist.store.cluster_client import ClusterClient

        return ClusterClient(topology)
    return RedisClient(connect(url))
