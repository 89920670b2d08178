"""A Redis that is restarted from an older file: everybody who has seen more is told so, and the rest goes on.

The older file is a copy that is taken while the server runs, as a backup or a replica that lags behind would be.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator

import pytest

from tests.support.programs import HAS_PROC, Program, Site, eventually
from tests.support.servers import OwnRedis, own_redis
from tests.support.service import WAIT, serve

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
  b: {next: c}
  c: The end.
"""


@pytest.fixture
def redis() -> Iterator[OwnRedis]:
    """A Redis of a user."""
    with own_redis() as running:
        yield running


@pytest.fixture
def site(redis: OwnRedis) -> Iterator[Site]:
    """A site whose state is in that Redis; what a worker has begun it keeps for long."""
    site = Site(STATEM_REDIS_URL=redis.url, STATEM_LEASE_SECONDS="30")
    try:
        yield site
    finally:
        site.close()


class Past:
    """The files of a server as they are now, to be put in the place of later ones."""

    def __init__(self, redis: OwnRedis) -> None:
        self._redis = redis
        self._kept = redis.folder / "kept"
        shutil.copytree(redis.folder / "appendonlydir", self._kept)

    def come_back(self) -> None:
        """Kill the server, and start it again on these files."""
        self._redis.kill()
        shutil.rmtree(self._redis.folder / "appendonlydir")
        shutil.copytree(self._kept, self._redis.folder / "appendonlydir")
        self._redis.start()


def begun(site: Site, times: int = 1) -> None:
    """Wait until the check has been begun that many times."""
    eventually(lambda: len(site.lines("begun")) == times, f"the check is begun {times} times")


def refused(waiting: Program) -> None:
    """Expect that a command ends with the exit code of a conflict, and says both versions."""
    said = waiting.wait()
    assert (said.exit_code, said.data["code"]) == (5, "state_regressed"), said
    assert said.data["details"]["version"] < said.data["details"]["seen"]


def refused_follower(following: Program) -> None:
    """Expect the same of one who prints a line of JSON for each event."""
    said = following.wait()
    assert said.exit_code == 5, said
    assert json.loads(said.stdout.splitlines()[-1])["code"] == "state_regressed"


def test_who_waits_is_told_and_who_comes_goes_on(site: Site, redis: OwnRedis) -> None:
    """A waiting ``goto``, one who follows the history, and the worker with its result of a claim that is lost.

    The same transition is opened again meanwhile, under the same id, and claimed by the same worker under the same
    token; the result of the lost one does not count for it.
    """
    worker = site.worker("-c", "2")
    site.start(RUNBOOK)
    past = Past(redis)
    waiting = site.begin("goto", "b", "--run-id", "r", "--json")
    begun(site)
    following = site.begin("history", "--follow", "--run-id", "r", "--json")
    eventually(lambda: following.stdout, "the history is followed")
    past.come_back()
    refused(waiting)
    refused_follower(following)
    again = site.begin("goto", "b", "--run-id", "r", "--json")
    begun(site, 2)
    site.write("opened")
    said = again.wait()
    assert (said.exit_code, said.data["outcome"], said.data["transition"]) == (0, "committed", "t2")
    eventually(lambda: "the state store has lost writes" in worker.stderr, "the worker says so", lambda: worker.stderr)
    assert site.events() == ["goto"]
    eventually(lambda: redis.call("HGET", "statem:losses", "claim") == b"1", "the lost claim is counted")
    assert site.json("goto", "c", "--run-id", "r")["outcome"] == "committed"


GOTO = f"/v1/runs/r/goto{WAIT}"


def test_callers_of_the_service_are_told(site: Site, redis: OwnRedis) -> None:
    """``If-Match``, ``Last-Event-ID`` and an open stream ahead of the store."""
    caller = serve(site).caller()
    site.worker()
    site.write("opened")
    caller.start(RUNBOOK, workspace=str(site.folder))
    past = Past(redis)
    moved = caller.ask("POST", GOTO, expect=200, json={"target": "b"})
    seen = moved.json()["version"]
    stream_of = {"Accept": "text/event-stream", "Last-Event-ID": str(seen)}
    with caller.stream("/v1/runs/r/events", **stream_of) as stream:
        past.come_back()
        last = [*stream.messages()][-1]
    assert (last["event"], json.loads(last["data"])["code"]) == ("regressed", "state_regressed")
    late = caller.get("/v1/runs/r/events", expect=409, headers=stream_of)
    assert (late["code"], late["seen"]) == ("state_regressed", seen)
    assert caller.get(f"/v1/runs/r/events?after={seen}", expect=409)["code"] == "state_regressed"
    matched = caller.post(GOTO, {"target": "b"}, expect=409, headers={"If-Match": f'"{seen}"'})
    assert (matched["code"], matched["seen"]) == ("state_regressed", seen)
    # The service itself knew more, and has said so by that; it goes on from what is stored.
    there = caller.ask("GET", "/v1/runs/r", expect=200)
    assert there.json()["current"] == "a"
    went_on = caller.post(GOTO, {"target": "b"}, headers={"If-Match": there.headers["etag"]})
    assert went_on["outcome"] == "committed"
    assert 'statem_store_losses{what="run"}' in caller.ask("GET", "/metrics", expect=200).text


def test_a_plain_request_is_refused_once_by_a_service_that_knows_more(site: Site, redis: OwnRedis) -> None:
    """It may come from somebody who has seen the lost future; asked again it is carried out on what is stored."""
    caller = serve(site).caller()
    site.worker()
    site.write("opened")
    caller.start(RUNBOOK, workspace=str(site.folder))
    past = Past(redis)
    caller.post(GOTO, {"target": "b"})
    past.come_back()
    assert caller.post(GOTO, {"target": "b"}, expect=409)["code"] == "state_regressed"
    assert caller.post(GOTO, {"target": "b"})["outcome"] == "committed"


def test_a_store_that_has_lost_everything_is_told_as_such(site: Site, redis: OwnRedis) -> None:
    """A restart without files: 404 and exit code 1 as ``store_was_reset``; service and worker live on with new runs."""
    url = serve(site).url
    worker = site.worker()
    site.start(RUNBOOK)
    redis.kill()
    shutil.rmtree(redis.folder / "appendonlydir")
    redis.start()
    said = site.json("cur", "--run-id", "r", STATEM_URL=url, expect=1)
    assert said["code"] == "store_was_reset"
    eventually(lambda: "the state store was reset" in worker.stderr, "the worker says so", lambda: worker.stderr)
    site.write("opened")
    site.start(RUNBOOK, "s")
    assert site.json("goto", "b", "--run-id", "s")["outcome"] == "committed"
    assert worker.running
