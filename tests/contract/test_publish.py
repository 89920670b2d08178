"""Messages for a broker that is not the state's own Redis: what cannot be sent is nobody's failure."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from statem_dist.protocol.progress import Batch
from statem_dist.publish import PublishAfterCommit
from statem_dist.store.client import client_for
from tests.support.servers import real_server

BATCH = Batch(run="r", transition="t2", checks=("before_transfer.0",), queue="checks")


@contextmanager
def silent_server() -> Iterator[str]:
    """Listen, and never say a word; give the URL."""
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        listening.listen()
        yield f"redis://127.0.0.1:{listening.getsockname()[1]}/0"


def test_a_broker_that_refuses_is_left_to_the_reaper() -> None:
    """While it is out of memory nothing is raised: the commit has happened. After that messages go out again."""
    with real_server() as server:
        client = client_for(server.url)
        publisher = PublishAfterCommit(server.broker_url)
        client.call("CONFIG", "SET", "maxmemory", "1")
        publisher.send([BATCH])
        client.call("CONFIG", "SET", "maxmemory", "0")
        assert client.call("LLEN", "checks") == 0
        publisher.send([BATCH])
        assert client.call("LLEN", "checks") == 1
        client.close()


@pytest.mark.slow
def test_a_silent_broker_does_not_hold_everybody_up() -> None:
    """Its answer is not waited for without end: whoever commits holds a lock meanwhile."""
    with silent_server() as url:
        PublishAfterCommit(url).send([BATCH])
