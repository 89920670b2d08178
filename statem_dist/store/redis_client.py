"""The ``Client`` port on redis-py, with its own retries off."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import redis
from redis.backoff import NoBackoff
from redis.client import PubSub
from redis.exceptions import BusyLoadingError, RedisError, ResponseError
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import TimeoutError as RedisTimeoutError
from redis.retry import Retry
from redis.sentinel import Sentinel

from statem_dist.errors import Unavailable
from statem_dist.store.client import REPLY_TIMEOUT_SECONDS, Argument, Refused, Unreachable
from statem_dist.store.topology import FORMS, Topology, topology_of


def connect(url: str) -> redis.Redis:
    """Return a redis-py client that never repeats a command by itself and gives replies as they came.

    Raises:
        Unavailable: it is no URL of a Redis.
    """
    options: dict[str, Any] = {
        "retry": Retry(NoBackoff(), 0),
        "socket_timeout": REPLY_TIMEOUT_SECONDS,
        "socket_connect_timeout": REPLY_TIMEOUT_SECONDS,
        "health_check_interval": 0,
        "protocol": 2,
    }
    topology = topology_of(url)
    try:
        client = redis.Redis.from_url(url, **options) if topology is None else _primary(topology, options)
    except ValueError as error:
        raise Unavailable(f"The state store cannot be used: {str(error).rstrip('.')}.", hint=FORMS) from error
    client.response_callbacks.clear()
    return client


def _primary(topology: Topology, options: Mapping[str, Any]) -> redis.Redis:
    """Return a client of whatever the sentinels say is the primary, asked anew for each connection."""
    watchers = Sentinel(
        topology.servers,
        sentinel_kwargs={**options, **topology.sentinel_credentials},
    )  # type: ignore[no-untyped-call]
    primary: redis.Redis = watchers.master_for(  # type: ignore[no-untyped-call]
        topology.service, db=topology.database, **options, **topology.credentials
    )
    return primary


class RedisClient:
    """Commands and subscriptions on a pool of redis-py.

    Args:
        client: as ``connect`` makes it.
    """

    def __init__(self, client: redis.Redis) -> None:
        self._client = client

    def call(self, *command: Argument) -> Any:
        """Send one command and return its reply; see ``Client.call``."""
        with translated():
            return self._client.execute_command(*command)  # type: ignore[no-untyped-call]

    def call_many(self, commands: Iterable[Sequence[Argument]]) -> list[Any]:
        """Send several commands in one round trip; see ``Client.call_many``."""
        with translated():
            pipeline = self._client.pipeline(transaction=False)
            for command in commands:
                pipeline.execute_command(*command)  # type: ignore[no-untyped-call]
            return list(pipeline.execute())

    def subscribe(self, channels: Sequence[str]) -> RedisSubscription:
        """Listen to channels on a connection of their own."""
        with translated():
            subscription = self._client.pubsub()  # type: ignore[no-untyped-call]
            subscription.subscribe(*channels)
            return RedisSubscription(subscription)

    def close(self) -> None:
        """Close what nobody uses. A subscription is closed by whoever reads it, and a call by its end."""
        self._client.connection_pool.disconnect(inuse_connections=False)


class RedisSubscription:
    """Channels listened to by redis-py."""

    def __init__(self, subscription: PubSub) -> None:
        self._subscription = subscription

    def next(self, timeout: float) -> bytes | None:
        """Return the next message; see ``Subscription.next``."""
        with translated():
            message = self._subscription.get_message(timeout=timeout)
            if message is None:
                if not self._subscription.subscribed:
                    raise Unreachable("the subscription ended")
                return None
            return bytes(message["data"]) if message["type"] == "message" else b""

    def close(self) -> None:
        """Stop listening."""
        self._subscription.close()


@contextmanager
def translated() -> Iterator[None]:
    """Turn what redis-py raises into what the port promises."""
    try:
        yield
    except BusyLoadingError as error:
        # For redis-py that is a connection that has failed.
        raise Refused("LOADING", str(error)) from error
    except (RedisConnectionError, RedisTimeoutError) as error:
        raise Unreachable(str(error) or type(error).__name__) from error
    except ResponseError as error:
        raise Refused(_code(error), str(error)) from error
    except RedisError as error:
        raise Unreachable(str(error) or type(error).__name__) from error


def _code(error: ResponseError) -> str:
    """Return the first word of an error reply, which redis-py cuts off for errors with a class of their own."""
    if error.status_code:
        return str(error.status_code)
    # In a pipeline redis-py puts the command before what the server said.
    return str(error).rpartition(" caused error: ")[2].partition(" ")[0]
