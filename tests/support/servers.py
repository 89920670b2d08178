"""Real Redis-compatible servers for tests, each in a folder of its own."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from statem_dist.embedded import server
from statem_dist.embedded.binary import find_server
from statem_dist.errors import Unavailable
from statem_dist.store.client import client_for
from statem_dist.store.redis_store import RedisStore


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
    """

    def __init__(self, folder: Path, *options: tuple[str, str], words: Sequence[str] = (), port: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.port = port or free_port()
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._options = options
        self._words = words
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it, and return when it answers with its data loaded."""
        given = {"port": str(self.port), "bind": "127.0.0.1", "dir": str(self.folder), "save": "", "appendonly": "yes"}
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
