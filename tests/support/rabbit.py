"""A real RabbitMQ for tests, with a folder and ports of its own; where none is installed the test is skipped."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.programs import eventually
from tests.support.servers import free_port

PLACES = ("/usr/lib/rabbitmq/bin/rabbitmq-server", "/opt/rabbitmq/sbin/rabbitmq-server")
"""Where the server is that runs as whoever starts it; what packages put on ``PATH`` changes to a user of its own."""


class Rabbit:
    """A broker that may be killed, and started again on the same queues.

    Args:
        program: of the server.
        folder: where its files are.
    """

    def __init__(self, program: str, folder: Path) -> None:
        self._program = program
        self._folder = folder
        self._process: subprocess.Popen[bytes] | None = None
        self._port, self._names, between = free_port(), free_port(), free_port()
        self.url = f"amqp://guest:guest@127.0.0.1:{self._port}//"
        self._environment = {
            **os.environ,
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(self._names),
            "ERL_EPMD_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODENAME": "statemtest@localhost",
            "RABBITMQ_NODE_IP_ADDRESS": "127.0.0.1",
            "RABBITMQ_NODE_PORT": str(self._port),
            "RABBITMQ_DIST_PORT": str(between),
            "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
            "RABBITMQ_LOG_BASE": str(folder / "log"),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
        }

    def start(self) -> None:
        """Start it, and return when it answers."""
        with (self._folder / "server.log").open("ab") as log:
            self._process = subprocess.Popen(
                [self._program],
                env=self._environment,
                cwd=self._folder,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        eventually(self._answers, "RabbitMQ answers", lambda: (self._folder / "server.log").read_text()[-2000:])

    def kill(self) -> None:
        """End it at once."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
            self._process = None

    def close(self) -> None:
        """End it, and the service of names that it has started."""
        self.kill()
        names = shutil.which("epmd")
        if names is not None:
            subprocess.run([names, "-kill"], env=self._environment, capture_output=True, check=False)

    def _answers(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1) as connection:
                connection.sendall(b"AMQP\x00\x00\x09\x01")
                return bool(connection.recv(8))
        except OSError:
            return False


@contextmanager
def rabbit() -> Iterator[Rabbit]:
    """Run a broker for the length of a ``with`` block."""
    program = next((place for place in PLACES if os.access(place, os.X_OK)), None)
    if program is None:
        pytest.skip("RabbitMQ is not installed (Debian: apt-get install rabbitmq-server)")
    with tempfile.TemporaryDirectory(prefix="statem-test-") as folder:
        running = Rabbit(program, Path(folder))
        try:
            running.start()
            yield running
        finally:
            running.close()
