"""The ``Client`` port on a Redis Cluster.

redis-py knows which node has which slot; the commands themselves go to the nodes one by one, so that nothing is
repeated here but what a node has refused because it has not, or not any more, what was asked for. Which keys a command
or a script names is known by its form: every command of ours has its first key at the same place, and all keys of a
script share a slot.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import AskError, MovedError, RedisClusterException, RedisError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry

from statem_dist.store.client import REPLY_TIMEOUT_SECONDS, Argument, Unreachable
from statem_dist.store.redis_client import RedisSubscription, translated
from statem_dist.store.topology import Topology

KEYLESS = frozenset({"COMMAND", "CONFIG", "INFO", "PING", "PUBLISH", "TIME", "WAIT", "WAITAOF"})
"""Commands of ours that name no key; any node answers them, or the one that was spoken to just before."""

MOVES_MAX = 8
"""How often a command follows its key from node to node."""


class ClusterClient:
    """Commands and subscriptions on the nodes of a Cluster.

    Args:
        topology: some of the nodes.
    """

    def __init__(self, topology: Topology) -> None:
        self._topology = topology
        self._known: RedisCluster | None = None

    def call(self, *command: Argument) -> Any:
        """Send one command and return its reply; see ``Client.call``. A script is loaded into every primary."""
        with translated():
            if command[0] == "SCRIPT":
                return [self._on(node).execute_command(*command) for node in self._cluster.get_primaries()][-1]  # type: ignore[no-untyped-call]
            return self._scan(command) if command[0] == "SCAN" else self._follow(command)

    def call_many(self, commands: Iterable[Sequence[Argument]]) -> list[Any]:
        """Send several commands, in one round trip per node; see ``Client.call_many``.

        One without a key goes where the one before it went, on the same connection.
        """
        prepared = list(commands)
        with translated():
            groups: dict[str, list[int]] = {}
            nodes: dict[str, ClusterNode] = {}
            name = ""
            for position, command in enumerate(prepared):
                if not name or _key(command) is not None:
                    node = self._node(command)
                    name = str(node.name)
                    nodes[name] = node
                groups.setdefault(name, []).append(position)
            replies: list[Any] = [None] * len(prepared)
            for name, positions in groups.items():
                found = self._together(nodes[name], [prepared[position] for position in positions])
                for position, reply in zip(positions, found, strict=True):
                    replies[position] = reply
            for position, reply in enumerate(replies):
                if isinstance(reply, MovedError | AskError):
                    if position + 1 < len(prepared) and _key(prepared[position + 1]) is None:
                        # What was said to the next one is about a connection that this one was not sent on in the end.
                        self.close()
                        raise Unreachable("a key has moved to another node")
                    replies[position] = reply = self._follow(prepared[position], reply)
                if isinstance(reply, Exception):
                    raise reply
            return replies

    def subscribe(self, channels: Sequence[str]) -> RedisSubscription:
        """Listen to channels, at any node: what is announced at one is announced at all."""
        with translated():
            nodes = self._cluster.get_nodes()  # type: ignore[no-untyped-call]
            subscription = self._on(random.choice(list(nodes))).pubsub()  # type: ignore[no-untyped-call]
            subscription.subscribe(*channels)
            return RedisSubscription(subscription)

    def close(self) -> None:
        """Close what nobody uses, and learn anew which node has what."""
        known, self._known = self._known, None
        if known is not None:
            for node in known.get_nodes():  # type: ignore[no-untyped-call]
                if node.redis_connection is not None:
                    node.redis_connection.connection_pool.disconnect(inuse_connections=False)

    @property
    def _cluster(self) -> RedisCluster:
        if self._known is None:
            try:
                self._known = RedisCluster(
                    startup_nodes=[_node(host, port) for host, port in self._topology.servers],
                    retry=Retry(NoBackoff(), 0),
                    socket_timeout=REPLY_TIMEOUT_SECONDS,
                    socket_connect_timeout=REPLY_TIMEOUT_SECONDS,
                    protocol=2,
                    **self._topology.credentials,
                )
            except RedisClusterException as error:
                raise Unreachable(str(error)) from error
        return self._known

    def _on(self, node: ClusterNode) -> redis.Redis:
        client: redis.Redis = self._cluster.get_redis_connection(node)
        client.response_callbacks.clear()
        return client

    def _node(self, command: Sequence[Argument]) -> ClusterNode:
        key = _key(command)
        try:
            found = (
                self._cluster.get_default_node()  # type: ignore[no-untyped-call]
                if key is None
                else self._cluster.get_node_from_key(key)  # type: ignore[no-untyped-call]
            )
        except RedisClusterException as error:
            raise Unreachable(str(error)) from error
        if found is None:
            self.close()
            raise Unreachable("no node has the slot of that key")
        return found  # type: ignore[no-any-return]

    def _scan(self, command: Sequence[Argument]) -> list[Any]:
        """Take a step of a scan of all primaries, one after another; the cursor says as well which of them it is at."""
        nodes = sorted(self._cluster.get_primaries(), key=lambda node: str(node.name))  # type: ignore[no-untyped-call]
        inner, at = divmod(int(command[1]), len(nodes))
        cursor, found = self._on(nodes[at]).execute_command("SCAN", inner, *command[2:])  # type: ignore[no-untyped-call]
        if int(cursor) == 0:
            at += 1
        over = at == len(nodes)
        return [b"0" if over else str(int(cursor) * len(nodes) + at).encode(), found]

    def _follow(self, command: Sequence[Argument], moved: Exception | None = None) -> Any:
        """Send a command to the node that has its key, wherever that is by now."""
        for _ in range(MOVES_MAX):
            try:
                if isinstance(moved, AskError):
                    asked = _node(moved.host, moved.port)
                    there = self._cluster.get_node(node_name=asked.name)  # type: ignore[no-untyped-call]
                    reply = self._together(there or asked, [("ASKING",), command])[1]
                else:
                    (reply,) = self._together(self._node(command), [command])
                if isinstance(reply, Exception):
                    raise reply
                return reply
            except MovedError as error:
                # Somebody has moved slots, or a replica has taken over: all of it is learnt anew.
                self.close()
                moved = error
            except AskError as error:
                moved = error
        raise Unreachable(str(moved))

    def _together(self, node: ClusterNode, commands: Sequence[Sequence[Argument]]) -> list[Any]:
        """Send commands to one node on one connection; an error reply is given in its place."""
        try:
            pipeline = self._on(node).pipeline(transaction=False)
            for command in commands:
                pipeline.execute_command(*command)  # type: ignore[no-untyped-call]
            return list(pipeline.execute(raise_on_error=False))
        except (RedisConnectionError, RedisTimeoutError):
            # The node may be gone, and another in its place.
            self.close()
            raise
        except (AttributeError, RedisClusterException) as error:
            self.close()
            raise RedisError(str(error)) from error


def _node(host: str, port: int) -> ClusterNode:
    return ClusterNode(host, port)  # type: ignore[no-untyped-call]


def _key(command: Sequence[Argument]) -> str | None:
    """Return the first key that a command names; None if it names none."""
    name = str(command[0]).upper()
    if name in KEYLESS:
        return None
    return str(command[3]) if name in ("EVAL", "EVALSHA") else str(command[1])
