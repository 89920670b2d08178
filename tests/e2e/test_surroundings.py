"""What services refuse to begin on, what they only warn of, and what the levels of durability wait for."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from statem_dist.store.client import client_for
from tests.support.programs import HAS_PROC, Site, eventually
from tests.support.servers import OwnRedis, own_redis
from tests.support.service import WAIT, serve

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.skipif(not HAS_PROC, reason="what is left of a process tree can be seen in /proc only"),
]

RUNBOOK = "nodes: {a: {before_transfer: [{run: 'true'}], next: b}, b: {next: c}, c: The end.}"

SERVICES = (("worker",), ("api", "--port", "0"), ("up", "--no-api", "--trials", "0"))


@pytest.fixture
def redis() -> Iterator[OwnRedis]:
    """A Redis of a user."""
    with own_redis() as running:
        yield running


@pytest.fixture
def site(redis: OwnRedis) -> Iterator[Site]:
    """A site whose state is in that Redis."""
    site = Site(STATEM_REDIS_URL=redis.url)
    try:
        yield site
    finally:
        site.close()


def findings(site: Site, expect: int, **settings: str) -> dict[str, dict[str, str]]:
    """Return what ``doctor`` has found, by what it has looked at."""
    said = site.json("doctor", expect=expect, **settings)
    return {each["what"]: each for each in (said if expect == 0 else said["details"])["findings"]}


@pytest.mark.parametrize("command", SERVICES, ids=lambda words: words[0])
def test_nothing_begins_where_runs_are_evicted(site: Site, redis: OwnRedis, command: tuple[str, ...]) -> None:
    """One sentence, the fix in the hint, and exit code 8; with the risk accepted by name it is a warning."""
    redis.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    said = site.run(*command)
    assert said.exit_code == 8, said
    assert "eviction: the maxmemory-policy is allkeys-lru." in said.stderr
    assert "maxmemory-policy noeviction" in said.stderr
    assert "Traceback" not in said.stderr
    assert findings(site, 1)["eviction"]["level"] == "error"
    assert findings(site, 0, STATEM_ACCEPT_RISKS="eviction")["eviction"]["level"] == "warning"


def test_a_worker_begins_at_an_accepted_risk(site: Site, redis: OwnRedis) -> None:
    """And says so in its log."""
    redis.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    worker = site.worker(STATEM_ACCEPT_RISKS="eviction")
    assert "allkeys-lru (accepted)" in worker.stderr


def test_an_append_only_log_that_is_off_is_a_warning(site: Site, redis: OwnRedis) -> None:
    """For the default level; who asks for ``always`` is refused, until both settings of the server say so."""
    redis.call("CONFIG", "SET", "appendonly", "no")
    assert "the append-only log is off" in site.worker().stderr
    assert findings(site, 0)["persistence"]["level"] == "warning"
    assert findings(site, 1, STATEM_DURABILITY="always")["durability"]["level"] == "error"
    redis.call("CONFIG", "SET", "appendonly", "yes")
    said = site.run("worker", STATEM_DURABILITY="always")
    assert said.exit_code == 8
    assert "appendfsync is everysec" in said.stderr
    redis.call("CONFIG", "SET", "appendfsync", "always")
    assert findings(site, 0, STATEM_DURABILITY="always")["durability"]["level"] == "ok"


def test_what_a_managed_server_does_not_tell_is_said(site: Site, redis: OwnRedis) -> None:
    """Where CONFIG is forbidden, that is a warning, and the worker works."""
    redis.call("ACL", "SETUSER", "managed", "on", ">secret", "~*", "&*", "+@all", "-config")
    url = f"redis://managed:secret@127.0.0.1:{redis.port}/0"
    worker = site.worker(STATEM_REDIS_URL=url)
    assert "does not say its appendfsync" in worker.stderr
    site.start(RUNBOOK)
    assert site.json("goto", "b", "--run-id", "r")["outcome"] == "committed"


def test_a_redis_cluster_is_no_broker(site: Site) -> None:
    """Neither as ``STATEM_BROKER_URL`` nor as a state store that would be the broker: a sentence, not a stack trace."""
    with own_redis(("cluster-enabled", "yes")) as node:
        as_broker = site.run("worker", STATEM_BROKER_URL=node.url)
        as_state = site.run("worker", STATEM_REDIS_URL=node.url)
    assert (as_broker.exit_code, as_state.exit_code) == (8, 8)
    assert "a Redis Cluster cannot be Celery's broker" in as_broker.stderr
    assert "this Redis is a node of a Redis Cluster" in as_state.stderr
    assert "Traceback" not in as_broker.stderr + as_state.stderr


def test_no_visibility_timeout_can_repeat_a_check(site: Site, redis: OwnRedis) -> None:
    """Queues are consumed without acknowledgements: nothing waits in the broker for one while a check is executed."""
    broker = {"STATEM_BROKER_URL": f"redis://127.0.0.1:{redis.port}/1"}
    site.worker(**broker)
    site.start(RUNBOOK.replace("'true'", "'echo begun >> begun; until [ -e opened ]; do sleep 0.05; done'"))
    waiting = site.begin("goto", "b", "--run-id", "r", "--json", **broker)
    eventually(lambda: site.lines("begun"), "the check is begun")
    messages = client_for(broker["STATEM_BROKER_URL"])
    assert messages.call("EXISTS", "unacked", "unacked_index", "checks") == 0
    assert messages.call("DBSIZE") > 0
    messages.close()
    site.write("opened")
    assert waiting.wait().data["outcome"] == "committed"


@pytest.fixture
def replica(redis: OwnRedis) -> Iterator[OwnRedis]:
    """A replica of it, in step."""
    with own_redis(("replicaof", f"127.0.0.1 {redis.port}")) as running:
        eventually(lambda: b"state=online" in redis.call("INFO", "replication"), "the replica is in step")
        yield running


@pytest.mark.parametrize("level", ["replicas:1:500", "replicas-fsynced:1:3000"])
def test_a_commit_is_acknowledged_when_replicas_have_it(
    site: Site, redis: OwnRedis, replica: OwnRedis, level: str
) -> None:
    """With the replica frozen the caller is told that it is written and not confirmed; a repetition confirms it."""
    settings = {"STATEM_DURABILITY": level}
    api = serve(site, **settings)
    caller = api.caller()
    site.worker(**settings)
    caller.start(RUNBOOK, workspace=str(site.folder))
    replica.freeze()
    try:
        said = site.json("goto", "b", "--run-id", "r", expect=8, **settings)
        assert said["code"] == "not_confirmed"
        assert said["details"]["written"] is True
        assert caller.get("/v1/runs/r")["current"] == "b"
        key = {"Idempotency-Key": "once"}
        unsure = caller.ask("POST", f"/v1/runs/r/goto{WAIT}", expect=503, json={"target": "c"}, headers=key)
        assert unsure.json()["code"] == "not_confirmed"
        assert int(unsure.headers["retry-after"]) > 0
    finally:
        replica.thaw()
    sure = caller.post(f"/v1/runs/r/goto{WAIT}", {"target": "c"}, headers=key)
    assert (sure["outcome"], sure["current"]) == ("committed", "c")
    assert site.events() == ["goto", "goto"]


def test_too_few_replicas_are_a_reason_not_to_begin(site: Site) -> None:
    """No commit would be confirmed."""
    said = site.run("worker", STATEM_DURABILITY="replicas:1")
    assert said.exit_code == 8
    assert "0 of 1 replicas are connected" in said.stderr


def test_a_hook_that_must_not_run_twice_waits_for_the_replicas(site: Site, redis: OwnRedis, replica: OwnRedis) -> None:
    """Its claim has to be confirmed first: a replica that takes over must know that it was begun."""
    settings = {"STATEM_DURABILITY": "replicas:1:300"}
    site.worker(**settings)
    site.start("nodes: {a: {out_hook: [{run: 'echo begun >> begun'}], next: b}, b: The end.}", "r", **settings)
    replica.freeze()
    waiting = site.begin("goto", "b", "--run-id", "r", "--json", **settings)
    eventually(lambda: b"work_claimed" in b"".join(events(redis)), "the hook is claimed")
    assert site.lines("begun") == []
    replica.thaw()
    assert waiting.wait().data["outcome"] == "committed"
    assert site.lines("begun") == ["begun"]


def events(redis: OwnRedis) -> list[bytes]:
    """Return the events of the run as they are stored."""
    (name,) = redis.call("KEYS", "statem:*:events:r")
    return [fields[1] for _, fields in redis.call("XRANGE", name.decode(), "-", "+")]
