"""A state store of several servers: a primary that fails under load behind Sentinel, and a Redis Cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from statem_dist.store.client import Refused, Unreachable, client_for
from statem_dist.store.keys import shard_of
from statem_dist.store.redis_store import LOAD
from tests.support.programs import HAS_PROC, Site, eventually
from tests.support.servers import OwnRedis, Watched, own_redis, redis_cluster, watched_redis
from tests.support.service import WAIT, serve

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.chaos,
    pytest.mark.skipif(not HAS_PROC, reason="what is left of a process tree can be seen in /proc only"),
]

RUNBOOK = """
nodes:
  a: {before_transfer: [{run: "echo $STATEM_RUN_ID >> begun; sleep 0.2"}], next: b}
  b: {before_transfer: [{run: "true"}], next: c}
  c: The end.
"""

RUNS = [f"r{number}" for number in range(8)]


@pytest.fixture
def watched() -> Iterator[Watched]:
    """A primary with a replica behind three sentinels."""
    with watched_redis() as running:
        yield running


def test_a_primary_that_dies_under_load_behind_sentinel(watched: Watched) -> None:
    """Eight ``goto`` wait for two slots when it dies: each commits once, on the replica, and the worker lives.

    The replica has all runs, because their start was acknowledged only then.
    """
    site = Site(
        STATEM_REDIS_URL=watched.url,
        STATEM_DURABILITY="replicas:1:2000",
        STATEM_LEASE_SECONDS="10",
        STATEM_PATIENCE_SECONDS="30",
    )
    try:
        worker = site.worker("-c", "2")
        path = str(site.write("r.yaml", RUNBOOK))
        site.many(*(("start", path, "--run-id", run_id) for run_id in RUNS))
        # From here on there is nobody who could confirm: the replica becomes the primary.
        site.environment["STATEM_DURABILITY"] = "everysec"
        waiting = [site.begin("goto", "b", "--run-id", run_id, "--json") for run_id in RUNS]
        eventually(lambda: site.lines("begun"), "the first check is begun")
        watched.primary.kill()
        eventually(lambda: watched.primary_port() == watched.replica.port, "the replica is made the primary")
        for each in waiting:
            said = each.wait()
            # Replication is asynchronous: who was told nothing yet may find the request lost, and is told that.
            if said.exit_code == 5:
                assert said.data["code"] == "state_regressed"
            else:
                assert (said.exit_code, said.data["outcome"]) == (0, "committed"), said
        for run_id in RUNS:
            if site.json("cur", "--run-id", run_id)["current"] == "a":
                site.json("goto", "b", "--run-id", run_id)
            assert site.events(run_id) == ["goto"]
        assert worker.running, worker.stderr
    finally:
        site.close()


def test_the_service_and_doctor_go_through_sentinel(watched: Watched) -> None:
    """The service hears of commits by the primary that there is; ``doctor`` finds nothing wrong."""
    site = Site(STATEM_REDIS_URL=watched.url)
    try:
        site.worker()
        caller = serve(site).caller()
        caller.start(RUNBOOK, workspace=str(site.folder))
        assert caller.post(f"/v1/runs/r/goto{WAIT}", {"target": "b"})["outcome"] == "committed"
        assert site.json("doctor")["ok"]
    finally:
        site.close()


@pytest.fixture(scope="module")
def nodes() -> Iterator[list[OwnRedis]]:
    """A Redis Cluster of three primaries."""
    with redis_cluster() as running:
        yield running


@pytest.fixture
def cluster_site(nodes: list[OwnRedis]) -> Iterator[Site]:
    """A site whose state is in a Cluster, and whose broker is a Redis of its own."""
    with own_redis() as broker:
        site = Site(
            STATEM_REDIS_URL=f"redis+cluster://127.0.0.1:{nodes[0].port},127.0.0.1:{nodes[1].port}",
            STATEM_BROKER_URL=broker.url,
        )
        try:
            yield site
        finally:
            site.close()


def test_the_state_lives_in_a_cluster(cluster_site: Site, nodes: list[OwnRedis]) -> None:
    """Runs of all shards, lists and counts over them, the service with its streams, tokens, and ``doctor``."""
    site = cluster_site
    worker = site.worker("-c", "4")
    path = str(site.write("r.yaml", RUNBOOK))
    site.many(*(("start", path, "--run-id", run_id, "--label", "team=a") for run_id in RUNS))
    assert len({shard_of(run_id) for run_id in RUNS}) > 1
    site.many(*(("goto", "b", "--run-id", run_id) for run_id in RUNS))
    listed = site.json("runs", "--label", "team=a")["runs"]
    assert {run["run_id"] for run in listed} == set(RUNS)
    assert all(int(node.call("DBSIZE")) > 0 for node in nodes)
    caller = serve(site).caller()
    with caller.stream("/v1/events") as feed:
        assert caller.post(f"/v1/runs/r1/goto{WAIT}", {"target": "c"})["outcome"] == "committed"
        assert json.loads(next(feed.messages())["data"])["run_id"] == "r1"
    assert "statem_runs" in caller.ask("GET", "/metrics", expect=200).text
    site.run("token", "create", "--role", "admin", "--name", "one")
    assert len(site.json("token", "list")["tokens"]) == 1
    assert site.json("doctor")["ok"]
    assert worker.running


def test_slots_that_move_take_nobody_along(cluster_site: Site, nodes: list[OwnRedis]) -> None:
    """A client follows a key to the node that has its slot by now, alone and among others."""
    url = cluster_site.environment["STATEM_REDIS_URL"]
    client = client_for(url)
    assert client.call("SET", "{x}k", "v") == b"OK"
    slot = int(nodes[0].call("CLUSTER", "KEYSLOT", "{x}k"))
    ids = [bytes(node.call("CLUSTER", "MYID")).decode() for node in nodes]
    source = next(at for at, node in enumerate(nodes) if 16384 * at // 3 <= slot < 16384 * (at + 1) // 3)
    target = (source + 1) % 3
    nodes[target].call("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[source])
    nodes[source].call("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[target])
    nodes[source].call("MIGRATE", "127.0.0.1", nodes[target].port, "{x}k", 0, 5000)
    # Under way: the old node sends us on for this one question.
    assert client.call("GET", "{x}k") == b"v"
    for node in nodes:
        node.call("CLUSTER", "SETSLOT", slot, "NODE", ids[target])
    # Replicas of the old node know nothing of a write that has gone to the new one: that is never taken for an answer.
    with pytest.raises(Unreachable, match="moved"):
        client.call_many([("SET", "{x}k", "v"), ("WAIT", 0, 100)])
    assert client.call_many([("SET", "{x}k", "v"), ("WAIT", 0, 100)]) == [b"OK", 0]
    assert client.call_many([("GET", "{x}k"), ("GET", "{y}k"), ("TIME",)])[:2] == [b"v", None]
    with pytest.raises(Refused) as unknown:
        client.call("EVALSHA", "0" * 40, 1, "{x}k")
    assert unknown.value.code == "NOSCRIPT"
    client.call("SCRIPT", "LOAD", LOAD.source)
    assert client.call("EVALSHA", LOAD.sha, 1, "{x}none")[1] == []
    client.close()


def test_a_cluster_without_another_broker_is_refused(cluster_site: Site) -> None:
    """In a sentence, by services and by commands."""
    for words in (("worker",), ("runs",)):
        said = cluster_site.run(*words, STATEM_BROKER_URL="")
        assert said.exit_code == 8
        assert "Redis Cluster cannot be Celery's broker" in said.stderr
        assert "Traceback" not in said.stderr
