"""What both clients of Redis promise, on a real server."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from statem_dist.store.client import Client, Refused, client_for


@pytest.fixture(params=[False, True], ids=["redis-py", "socket"])
def client(request: pytest.FixtureRequest, real_server_url: str) -> Iterator[Client]:
    """Each client in turn."""
    client = client_for(real_server_url, quick=request.param)
    client.call("FLUSHALL")
    yield client
    client.close()


def test_replies_come_as_they_were_sent(client: Client) -> None:
    """Bytes, integers, nothing, lists: none is made into anything else."""
    assert client.call_many([["SET", "k", b"\xff\r\n"], ["GET", "k"], ["GET", "none"]]) == [b"OK", b"\xff\r\n", None]
    assert client.call("RPUSH", "l", "a", 2) == 2
    assert client.call("LRANGE", "l", 0, -1) == [b"a", b"2"]


def test_a_refusal_has_its_code(client: Client) -> None:
    """Alone and among others, and the client goes on after it."""
    with pytest.raises(Refused) as alone:
        client.call("EVALSHA", "0" * 40, 0)
    with pytest.raises(Refused) as among:
        client.call_many([["SET", "k", "v"], ["LPUSH", "k", "x"]])
    assert (alone.value.code, among.value.code) == ("NOSCRIPT", "WRONGTYPE")
    assert client.call("GET", "k") == b"v"


def test_closing_leaves_a_listener_alone(client: Client) -> None:
    """A subscription that another thread reads hears on, and the next call opens a connection again."""
    subscription = client.subscribe(["news", "more"])
    client.close()
    assert client.call("PUBLISH", "more", "heard") == 1
    # Empty messages say that the subscription took effect.
    while not (heard := subscription.next(timeout=5)):
        assert heard is not None
    assert heard == b"heard"
    subscription.close()
