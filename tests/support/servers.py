"""Real Redis-compatible servers for tests, each in a folder of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from statem_dist.embedded import server
from statem_dist.embedded.binary import find_server
from statem_dist.errors import Unavailable
from statem_dist.store.client import client_for
from statem_dist.store.redis_store import RedisStore
from tests.support.programs import eventually

CLUSTER_PORT_MAX = 55_535
"""A node of a Cluster speaks to the others on a port that is 10,000 higher."""


class RealServer:
    """A server that may be stopped, killed, and started again on the same data.

    Args:
        state_dir: where it lives; its path must be short, because that of its socket must.
    """

    def __init__(self, state_dir: Path) -> None:
        self._state_dir = state_dir
        endpoint = server.ensure(state_dir, idle_stop_seconds=0)
        self.url = endpoint.redis_url
        self.broker_url = endpoint.broker_url

    def start(self) -> None:
        """Start it again."""
        server.ensure(self._state_dir, idle_stop_seconds=0)

    def stop(self) -> None:
        """End it in good order."""
        server.stop(self._state_dir)

    def kill(self) -> None:
        """End it at once, and return when it is gone."""
        pid = server.status(self._state_dir).pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        while self._listens():
            pass

    def _listens(self) -> bool:
        try:
            return server.status(self._state_dir).running
        except Unavailable:  # It died while it was asked.
            return True


def require_server() -> None:
    """Skip the test where no server binary is installed; on CI it fails, because nothing would be tested."""
    try:
        find_server()
    except Unavailable as error:
        if os.environ.get("CI"):
            pytest.fail(f"{error.message} {error.hint}")
        pytest.skip(error.message)


@contextmanager
def real_server() -> Iterator[RealServer]:
    """Run a server for the length of a ``with`` block.

    Where no server binary is installed the test is skipped; on CI it fails, because nothing would be tested.
    """
    require_server()
    with tempfile.TemporaryDirectory(prefix="statem-test-") as folder:
        running = RealServer(Path(folder).resolve() / "state")
        try:
            yield running
        finally:
            running.stop()


@contextmanager
def tcp_server(password: str) -> Iterator[str]:
    """Run a server on a port of this host that asks for a password, and give its URL, which holds the password."""
    port = free_port()
    with tempfile.TemporaryDirectory(prefix="statem-test-") as folder:
        argv = [str(find_server().path), "-", "--port", str(port), "--bind", "127.0.0.1", "--dir", folder]
        with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL) as process:
            try:
                assert process.stdin is not None
                process.stdin.write(f"requirepass {password}\nappendonly yes\nsave ''\n".encode())
                process.stdin.close()
                url = f"redis://:{password}@127.0.0.1:{port}/0"
                RedisStore(client_for(url), patience_seconds=30.0).clock()
                yield url
            finally:
                process.terminate()


def free_port() -> int:
    """Return a port of this host on which nobody listens now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class OwnRedis:
    """A server of a user: on a port of this host, with options, stopped, killed and started again on the same data.

    Args:
        folder: where its files are.
        options: of its configuration, each as name and value.
        words: what comes first on its command line, such as ``--sentinel`` behind a file.
        bare: whether it keeps no data, and has no options for that.
    """

    def __init__(
        self, folder: Path, *options: tuple[str, str], words: Sequence[str] = (), port: int = 0, bare: bool = False
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = port or free_port()
        while ("cluster-enabled", "yes") in options and self.port > CLUSTER_PORT_MAX:
            self.port = free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._options = options
        self._words = words
        self._bare = bare
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and return when it answers with its data loaded."""
        given = {"port": str(self.port), "bind": "127.0.0.1", "dir": str(self.folder)}
        if not self._bare:
            given |= {"save": "", "appendonly": "yes"}
        argv = [str(find_server().path), *self._words]
        for name, value in (given | dict(self._options)).items():
            argv += [f"--{name}", *([value] if value or name == "save" else [])]
        with (self.folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(argv, cwd=self.folder, stdout=log, stderr=log, start_new_session=True)
        RedisStore(client_for(self.url), patience_seconds=30.0).call("PING")

    def call(self, *words: str | int) -> Any:
        """Send one command, and give the reply as it came."""
        client = client_for(self.url)
        try:
            return client.call(*words)
        finally:
            client.close()

    def freeze(self) -> None:
        """Make it do nothing at all until ``thaw``; its connections stay."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Let it go on."""
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def kill(self) -> None:
        """End it at once, and return when it is gone."""
        self._end(signal.SIGKILL)

    def stop(self) -> None:
        """End it in good order."""
        self._end(signal.SIGTERM)

    def _end(self, how: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(how)
            self._process.wait()
            self._process = None


@contextmanager
def own_redis(*options: tuple[str, str]) -> Iterator[OwnRedis]:
    """Run a server of a user for the length of a ``with`` block."""
    require_server()
    with tempfile.TemporaryDirectory(prefix="statem-test-") as folder:
        running = OwnRedis(Path(folder), *options)
        running.start()
        try:
            yield running
        finally:
            running.kill()


class Watched:
    """A primary with a replica, and three sentinels that watch them.

    Args:
        folder: where all their files are.
    """

    SERVICE = "state"

    def __init__(self, folder: Path) -> None:
        self.primary = OwnRedis(folder / "primary")
        self.replica = OwnRedis(folder / "replica", ("replicaof", f"127.0.0.1 {self.primary.port}"))
        self.sentinels = [self._sentinel(folder / f"sentinel-{number}") for number in range(3)]
        places = ",".join(f"127.0.0.1:{sentinel.port}" for sentinel in self.sentinels)
        self.url = f"redis+sentinel://{places}/{self.SERVICE}/0"

    def start(self) -> None:
        """Start all of them, and return when everybody knows of everybody."""
        self.primary.start()
        self.replica.start()
        eventually(lambda: b"state=online" in self.primary.call("INFO", "replication"), "the replica is in step")
        for sentinel in self.sentinels:
            sentinel.start()
        for sentinel in self.sentinels:
            eventually(partial(self._knows, sentinel), "a sentinel knows the others")

    def kill(self) -> None:
        """End all of them."""
        for each in (*self.sentinels, self.replica, self.primary):
            each.kill()

    def primary_port(self) -> int:
        """Return the port of whoever is the primary for the sentinels."""
        return int(self.sentinels[0].call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self.SERVICE)[1])

    def _knows(self, sentinel: OwnRedis) -> bool:
        flat = sentinel.call("SENTINEL", "MASTER", self.SERVICE)
        facts = dict(zip(flat[::2], flat[1::2], strict=True))
        return (facts[b"num-other-sentinels"], facts[b"num-slaves"]) == (b"2", b"1")

    def _sentinel(self, folder: Path) -> OwnRedis:
        folder.mkdir(parents=True)
        file = folder / "sentinel.conf"
        file.write_text(
            f"sentinel monitor {self.SERVICE} 127.0.0.1 {self.primary.port} 2\n"
            f"sentinel down-after-milliseconds {self.SERVICE} 1000\n"
            f"sentinel failover-timeout {self.SERVICE} 5000\n"
        )
        return OwnRedis(folder, words=(str(file), "--sentinel"), bare=True)


@contextmanager
def watched_redis() -> Iterator[Watched]:
    """Run a primary, a replica and three sentinels for the length of a ``with`` block."""
    require_server()
    with tempfile.TemporaryDirectory(prefix="statem-test-") as folder:
        watched = Watched(Path(folder))
        try:
            watched.start()
            yield watched
        finally:
            watched.kill()


def _is_clustered(node: OwnRedis) -> bool:
    said = node.call("CLUSTER", "INFO")
    return b"cluster_state:ok" in said and b"cluster_known_nodes:3" in said


@contextmanager
def redis_cluster() -> Iterator[list[OwnRedis]]:
    """Run a Redis Cluster of three primaries for the length of a ``with`` block."""
    require_server()
    with tempfile.TemporaryDirectory(prefix="statem-test-") as folder:
        nodes = [OwnRedis(Path(folder) / str(number), ("cluster-enabled", "yes")) for number in range(3)]
        try:
            for number, node in enumerate(nodes):
                node.start()
                first, last = 16384 * number // 3, 16384 * (number + 1) // 3 - 1
                node.call("CLUSTER", "ADDSLOTSRANGE", first, last)
            for node in nodes[1:]:
                node.call("CLUSTER", "MEET", "127.0.0.1", nodes[0].port)
            for node in nodes:
                eventually(partial(_is_clustered, node), "the nodes are a cluster")
            yield nodes
        finally:
            for node in nodes:
                node.kill()
