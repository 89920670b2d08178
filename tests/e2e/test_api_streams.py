"""Streams of the service under strain: a store that goes away, readers that do not read, an end amid all of it."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Iterator
from contextlib import ExitStack, closing
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path

import pytest

from statem_dist.embedded import server
from statem_dist.engine import Engine
from statem_dist.protocol.model import Actor
from tests.support.programs import HAS_PROC, Program, Site, eventually
from tests.support.service import library

pytestmark = pytest.mark.e2e

RUNBOOK = "nodes: {a: {next: [b, end]}, b: {next: [a, end]}, end: {}}"

READERS = 100


class Api(ExitStack):
    """A service that runs, and what is asked of it; connections are closed at its end.

    Args:
        site: where it runs; its store and a run ``r`` are there already.
        settings: further environment variables of its process.
    """

    def __init__(self, site: Site, **settings: str) -> None:
        super().__init__()
        self.program: Program = site.begin("api", "--port", "0", **settings)
        serving = eventually(lambda: re.findall(r"http://127\.0\.0\.1:(\d+)", self.program.stdout), "it serves")
        self.port = int(serving[0])

    def connection(self) -> HTTPConnection:
        """Return a new connection."""
        return self.enter_context(closing(HTTPConnection("127.0.0.1", self.port, timeout=60)))

    def open(self, path: str, receive_bytes: int | None = None) -> HTTPResponse:
        """Begin to read an answer; the stream of a run or of the feed has begun when this returns.

        Args:
            path: what to read.
            receive_bytes: size of the buffer in which the kernel keeps what was not read.
        """
        connection = self.connection()
        if receive_bytes is not None:
            connection.sock = socket.socket()
            connection.sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_bytes)
            connection.sock.connect(("127.0.0.1", self.port))
        connection.request("GET", path, headers={"Accept": "text/event-stream"})
        response = self.enter_context(connection.getresponse())
        assert response.status == 200
        return response

    def readers(self) -> int:
        """Return how many streams the service has open."""
        metrics = self.open("/metrics").read().decode()
        return int(re.findall(r"^statem_sse_clients (\d+)", metrics, re.MULTILINE)[0])

    def until_logged(self, text: str, times: int) -> None:
        """Wait until its log has a text so often."""
        eventually(lambda: self.program.stderr.count(text) >= times, text)

    @property
    def trouble(self) -> list[str]:
        """Lines of its log that tell of errors."""
        return [line for line in self.program.stderr.splitlines() if re.search(r" (ERROR|CRITICAL) |Traceback", line)]


def messages(response: HTTPResponse) -> Iterator[tuple[str, str, str]]:
    """Yield id, event and data of each message of a stream; it ends where the service ends it in good order."""
    fields = {"id": "", "event": "", "data": ""}
    while line := response.readline().decode():
        name, _, value = line.rstrip("\n").partition(": ")
        if name in fields:
            fields[name] = value
        elif not name and fields["data"]:
            yield fields["id"], fields["event"], fields["data"]
            fields = {"id": "", "event": "", "data": ""}


def numbers_to_the_end(response: HTTPResponse) -> list[int]:
    """Return the numbers of the events of a run's stream, which ends because the run does."""
    found = list(messages(response))
    assert found[-1][1] == "end"
    return [int(id_) for id_, _, _ in found[:-1]]


def numbers_of_feed(response: HTTPResponse, last: int) -> list[int]:
    """Return the numbers of the events that the feed tells, until the one of this number has come."""
    found: list[int] = []
    for _, event, data in messages(response):
        assert event == ""
        found += [each["number"] for each in json.loads(data)["events"]]
        if found[-1] >= last:
            break
    return found


def move(engine: Engine, times: int) -> int:
    """Move the run ``r`` to and fro; return its version."""
    for _ in range(times):
        target = "b" if engine.run("r").node == "a" else "a"
        engine.goto("r", target, Actor("test"), wait=False)
    return engine.run("r").version


@pytest.fixture
def started(site: Site) -> Site:
    """A site with a run."""
    site.start(RUNBOOK)
    return site


def test_streams_end_with_the_service(started: Site) -> None:
    """Every reader is told the end of its stream, a request that waits is answered, and nothing is logged as wrong."""
    asking = "nodes: {a: {before_transfer: [{type: command, run: 'true'}], next: b}, b: {}}"
    started.start(asking, "w", "--queue", "nobody")
    with Api(started) as api, library(started) as engine:
        paths = ["/v1/runs/r/events", "/v1/events", "/v1/runs/r/agui"]
        streams = [api.open(path) for path in paths for _ in range(READERS)]
        assert api.readers() == len(streams)
        waiting = api.connection()
        waiting.request("POST", "/v1/runs/w/goto?wait=60", '{"target": "b"}', {"Content-Type": "application/json"})
        eventually(lambda: engine.run("w").in_flight, "the transition is open")
        api.program.terminate()
        for stream in streams:
            for _ in messages(stream):
                pass
        with waiting.getresponse() as answered:
            assert answered.status == 202
        api.program.wait()
        assert api.trouble == []


@pytest.mark.chaos
def test_streams_outlast_the_store(started: Site) -> None:
    """While the store is away, for longer than a request bears, streams stay; then they go on without a gap."""
    with Api(started, STATEM_PATIENCE_SECONDS="0.1") as api:
        streams = [api.open("/v1/runs/r/events") for _ in range(READERS)]
        feeds = [api.open("/v1/events") for _ in range(READERS)]
        with library(started) as engine:
            begun = engine.run("r").version
            move(engine, 3)
        for times in (1, 2):
            server.stop(started.state_dir)
            api.until_logged("the state store is away", times)
            with library(started) as engine:
                move(engine, 5)
            api.until_logged("the state store is back", times)
        with library(started) as engine:
            engine.goto("r", "end", Actor("test"), wait=False)
            last = engine.run("r").version
        for stream in streams:
            assert numbers_to_the_end(stream) == list(range(1, last + 1))
        for feed in feeds:
            assert numbers_of_feed(feed, last) == list(range(begun + 1, last + 1))
        assert api.trouble == []


@pytest.mark.slow
@pytest.mark.skipif(not HAS_PROC, reason="reads /proc")
def test_who_does_not_read_costs_no_memory(started: Site) -> None:
    """What a reader does not take is not kept for it; when it reads at last, it gets everything, once."""
    with Api(started) as api, library(started) as engine:
        readers = [api.open("/v1/events", receive_bytes=4096) for _ in range(20)]
        begun = engine.run("r").version
        move(engine, 100)
        before = resident_mib(api.program.pid)
        last = move(engine, 1_500)
        late = api.open("/v1/events")
        move(engine, 1)
        assert numbers_of_feed(late, last + 1)[-1] > last
        assert resident_mib(api.program.pid) - before < 16
        for reader in readers[:2]:
            assert numbers_of_feed(reader, last) == list(range(begun + 1, last + 1))
        api.close()
        eventually(lambda: api.readers() == 0, "the service has noticed that nobody listens")
        assert api.trouble == []


def resident_mib(pid: int) -> float:
    """Return the memory that a process has."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGESIZE") / 2**20
