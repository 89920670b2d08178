"""A Redis that answers and refuses: each reason has a name, nothing is written, all of it heals without a restart."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterator
from email.message import Message
from pathlib import Path
from threading import Event, Thread
from typing import Any

import pytest

from statem_dist.store import keys
from tests.support.programs import HAS_PROC, Site, eventually
from tests.support.servers import OwnRedis, own_redis

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.chaos,
    pytest.mark.skipif(not HAS_PROC, reason="what is left of a process tree can be seen in /proc only"),
]

RUNBOOK = """
nodes:
  a:
    before_transfer: [{run: "echo $$ >> begun; until [ -e opened ]; do sleep 0.05; done; echo through"}]
    next: b
  b: {before_transfer: [{run: "echo again"}], next: c}
  c: The end.
"""
"""A check that waits for a file, and one that does not."""


@pytest.fixture
def redis() -> Iterator[OwnRedis]:
    """A Redis of a user."""
    with own_redis() as running:
        yield running


@pytest.fixture
def site(redis: OwnRedis) -> Iterator[Site]:
    """A site whose state is in that Redis; callers give up soon."""
    site = Site(STATEM_REDIS_URL=redis.url, STATEM_PATIENCE_SECONDS="0.5")
    try:
        yield site
    finally:
        site.close()


def asked(url: str, path: str, body: dict[str, Any] | None = None) -> tuple[int, dict[str, Any], dict[str, str]]:
    """Ask the service; return status, document and headers."""
    request = urllib.request.Request(
        url + path,
        data=None if body is None else json.dumps(body).encode(),
        headers={"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=30) as answer:
            return answer.status, json.load(answer), lower(answer.headers)
    except urllib.error.HTTPError as problem:
        return problem.code, json.load(problem), lower(problem.headers)


def lower(headers: Message) -> dict[str, str]:
    """Return headers under names in lower case."""
    return {name.lower(): value for name, value in headers.items()}


def refused_and_healed(site: Site, url: str, code: str, heal: Any) -> None:
    """Expect that writes are refused under a name while reads go on, and that all goes on after ``heal``.

    A check is being executed meanwhile, and what it says counts although it ended while nothing could be written.
    """
    before = site.json("cur", "--run-id", "r")
    path = str(site.folder / "r.yaml")
    refused = site.json("start", path, "--run-id", "other", expect=8)
    assert refused["code"] == code
    status, problem, headers = asked(url, "/runs", {"text": Path(path).read_text(), "run_id": "third"})
    assert (status, problem["code"]) == (503, code)
    assert int(headers["retry-after"]) > 0
    site.write("opened")
    assert asked(url, "/runs/r")[0] == 200
    assert site.json("cur", "--run-id", "r")["version"] == before["version"]
    heal()


@pytest.fixture
def under_way(site: Site) -> tuple[str, Any, Any]:
    """A service, a worker, and a ``goto`` whose check is being executed."""
    url = site.api(STATEM_LEASE_SECONDS="20")
    worker = site.worker("-c", "2", STATEM_LEASE_SECONDS="20")
    site.start(RUNBOOK)
    waiting = site.begin("goto", "b", "--run-id", "r", "--json")
    eventually(lambda: site.lines("begun"), "the check is begun")
    return url, worker, waiting


def ends_well(site: Site, worker: Any, waiting: Any) -> None:
    """Expect that the ``goto`` has committed with its check executed once, and that the same worker does the next."""
    said = waiting.wait()
    assert (said.exit_code, said.data["outcome"]) == (0, "committed"), said
    assert len(site.lines("begun")) == 1
    assert site.json("goto", "c", "--run-id", "r")["outcome"] == "committed"
    assert site.events() == ["goto", "goto"]
    assert worker.running, worker.stderr


def test_out_of_memory_in_the_middle_of_a_goto(site: Site, redis: OwnRedis, under_way: tuple[str, Any, Any]) -> None:
    """Writes answer 503 and exit 8 as ``redis_out_of_memory``, reads go on; with more memory the run does, too."""
    url, worker, waiting = under_way
    redis.call("CONFIG", "SET", "maxmemory", 1)
    refused_and_healed(site, url, "redis_out_of_memory", lambda: redis.call("CONFIG", "SET", "maxmemory", 0))
    ends_well(site, worker, waiting)


def test_redis_cannot_write_its_files(site: Site, redis: OwnRedis, under_way: tuple[str, Any, Any]) -> None:
    """The same as ``redis_not_persisting`` while its snapshots fail; the broker in it gives no messages meanwhile."""
    url, worker, waiting = under_way
    # A folder in the place of the file: that stops root as well.
    in_the_way = redis.folder / "dump.rdb"
    in_the_way.mkdir()
    redis.call("CONFIG", "SET", "save", "3600 1")
    redis.call("BGSAVE")
    eventually(lambda: b"rdb_last_bgsave_status:err" in redis.call("INFO", "persistence"), "a snapshot has failed")

    def heal() -> None:
        in_the_way.rmdir()
        redis.call("BGSAVE")

    refused_and_healed(site, url, "redis_not_persisting", heal)
    ends_well(site, worker, waiting)


def test_a_primary_becomes_a_replica_for_a_while(site: Site, redis: OwnRedis, under_way: tuple[str, Any, Any]) -> None:
    """The same as ``redis_read_only``, as in a failover; the worker consumes again by itself."""
    url, worker, waiting = under_way
    redis.call("CONFIG", "SET", "replica-serve-stale-data", "yes")
    redis.call("REPLICAOF", "127.0.0.1", 1)
    refused_and_healed(site, url, "redis_read_only", lambda: redis.call("REPLICAOF", "NO", "ONE"))
    ends_well(site, worker, waiting)


def test_data_of_somebody_else_is_told_as_such(site: Site, redis: OwnRedis) -> None:
    """A key of ours that holds something of another kind is no outage: exit code 1, and what to do."""
    site.start(RUNBOOK)
    redis.call("RENAME", keys.run("r"), "elsewhere")
    redis.call("SET", keys.run("r"), "foreign")
    said = site.json("cur", "--run-id", "r", expect=1)
    assert said["code"] == "stored_data_unreadable"
    assert "one of its own" in said["hint"]


def test_a_script_cache_that_is_emptied_all_the_time_is_nobodys_trouble(site: Site, redis: OwnRedis) -> None:
    """``SCRIPT FLUSH`` every 200 ms while runs are started and moved: no error reaches a user."""
    site.worker("-c", "4")
    path = str(site.write("r.yaml", "nodes: {a: {before_transfer: [{run: 'true'}], next: b}, b: The end.}"))
    runs = [f"r{number}" for number in range(10)]
    done = Event()
    flushed = 0

    def flush() -> None:
        nonlocal flushed
        while not done.wait(0.2):
            redis.call("SCRIPT", "FLUSH")
            flushed += 1

    flushing = Thread(target=flush)
    flushing.start()
    try:
        site.many(*(("start", path, "--run-id", run_id) for run_id in runs))
        site.many(*(("goto", "b", "--run-id", run_id) for run_id in runs))
        listed = site.json("runs")["runs"]
    finally:
        done.set()
        flushing.join()
    assert flushed > 0
    assert {run["run_id"]: run["current"] for run in listed} == dict.fromkeys(runs, "b")
