"""URLs that name several servers, and those that do not; and the levels of durability as they are written."""

from __future__ import annotations

import pytest

from statem_dist.durability import EVERYSEC, Durability, read_durability
from statem_dist.errors import Unavailable, Usage
from statem_dist.store.topology import Topology, topology_of


@pytest.mark.parametrize("url", ["redis://h:1/0", "rediss://h", "unix:///s", "redis+socket:///s", "amqp://h//"])
def test_one_server_is_no_topology(url: str) -> None:
    """Also where kombu's own scheme has a plus in it."""
    assert topology_of(url) is None


def test_sentinels_with_credentials() -> None:
    """Those of Redis before the places, those of the sentinels behind; ports and database have defaults."""
    found = topology_of("rediss+sentinel://me:p%40ss@a:1,b,[::1]:3/main/2?sentinel_password=watch")
    assert found == Topology(
        servers=(("a", 1), ("b", 26379), ("::1", 3)),
        service="main",
        database=2,
        username="me",
        password="p@ss",
        sentinel_password="watch",
        tls=True,
    )
    assert found.broker_url.startswith("sentinel://me:p%40ss@a:1;")
    assert found.broker_url.endswith("/2")
    assert found.broker_options["master_name"] == "main"


def test_nodes_of_a_cluster() -> None:
    """They have no service."""
    assert topology_of("redis+cluster://a,b:7001") == Topology(servers=(("a", 6379), ("b", 7001)))


@pytest.mark.parametrize(
    "url", ["redis+sentinel://a", "redis+cluster://", "redis+sentinel://a/s/x", "redis+cluster://a/s"]
)
def test_what_names_no_servers_is_refused(url: str) -> None:
    """With the forms that there are in the hint, and without the URL, which may hold a password."""
    with pytest.raises(Unavailable) as error:
        topology_of(url)
    assert "redis+sentinel://" in error.value.hint
    assert url not in error.value.message


@pytest.mark.parametrize(
    ("text", "level"),
    [
        (None, EVERYSEC),
        ("everysec", EVERYSEC),
        ("always", Durability("always")),
        ("replicas:2", Durability("replicas", 2)),
        ("replicas-fsynced:1:4000", Durability("replicas-fsynced", 1, 4000)),
    ],
)
def test_levels(text: str | None, level: Durability) -> None:
    """As they are written in ``STATEM_DURABILITY``."""
    assert read_durability(text) == level


@pytest.mark.parametrize("text", ["never", "replicas", "replicas:0", "replicas:1:4001", "replicas:1:", "always:1"])
def test_what_is_no_level_is_refused(text: str) -> None:
    """Also a wait that is longer than a reply may take."""
    with pytest.raises(Usage):
        read_durability(text)
