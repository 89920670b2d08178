"""A stand-in for Docker: a daemon that executes in "containers", and a client by the name of ``docker``.

What matters of the real one is kept. The process belongs to the daemon and not to the client, has a session and an
environment of its own, and goes on when the client is killed. Exit statuses and messages are those of Docker 28.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

from tests.support.programs import alive

CLIENT = """\
#!{python} -IS
import json, os, socket, sys

words = sys.argv[1:]
assert words.pop(0) == "exec", sys.argv
where, env = "/", {{}}
while words[0].startswith("-"):
    option = words.pop(0)
    if option == "-w":
        where = words.pop(0)
    elif option == "-e":
        name, sign, value = words.pop(0).partition("=")
        env[name] = value if sign else os.environ[name]
    else:
        assert option == "-i", option
host = os.environ.get("DOCKER_HOST", "unix:///nowhere/docker.sock")
daemon = socket.socket(socket.AF_UNIX)
try:
    daemon.connect(host.removeprefix("unix://"))
except OSError:
    sys.exit(f"Cannot connect to the Docker daemon at {{host}}. Is the docker daemon running?")
request = json.dumps({{"container": words[0], "argv": words[1:], "cwd": where, "env": env}}).encode()
socket.send_fds(daemon, [len(request).to_bytes(4, "big") + request], [0, 1, 2])
answer = json.loads(daemon.makefile().readline())
if answer["error"]:
    print(answer["error"], file=sys.stderr)
sys.exit(answer["status"])
"""


class StandInDocker:
    """The daemon, in threads of this process.

    Args:
        folder: where its socket and the client's folder are; ``environment`` leads a program to both.
        containers: the names of the containers that run.
    """

    def __init__(self, folder: Path, *containers: str) -> None:
        self.containers = set(containers)
        self.client = folder / "docker-bin" / "docker"
        self.begun: list[subprocess.Popen[bytes]] = []
        self.client.parent.mkdir()
        self.client.write_text(CLIENT.format(python=sys.executable))
        self.client.chmod(0o755)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / "docker.sock"))
        self._listener.listen()
        self.environment = {
            "PATH": f"{self.client.parent}{os.pathsep}{os.environ['PATH']}",
            "DOCKER_HOST": f"unix://{folder / 'docker.sock'}",
        }
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        """End whatever is still executed, and serve no more."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        while left := self.executed():
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        for process in self.begun:
            process.wait()

    def executed(self) -> list[int]:
        """Return the processes of commands that live, whatever session they are in."""
        engine = os.fsencode(f"ENGINE={self.client.parent}\0")
        found = []
        for name in filter(str.isdigit, os.listdir("/proc")):
            with contextlib.suppress(OSError):
                environ = Path("/proc", name, "environ").read_bytes()
                if engine in environ and b"STATEM_CONTAINER_COMMAND=" in environ and alive(int(name)):
                    found.append(int(name))
        return found

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            threading.Thread(target=self._answer, args=(connection,), daemon=True).start()

    def _answer(self, connection: socket.socket) -> None:
        with connection:
            data, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 3)
            while len(data) < 4 or len(data) < 4 + int.from_bytes(data[:4], "big"):
                data += connection.recv(1 << 20)
            status, error = self._execute(json.loads(data[4:]), descriptors)
            with contextlib.suppress(OSError):  # The client may be gone, which changes nothing.
                connection.sendall(json.dumps({"status": status, "error": error}).encode() + b"\n")

    def _execute(self, request: dict[str, Any], descriptors: list[int]) -> tuple[int, str]:
        try:
            if request["container"] not in self.containers:
                return 1, f"Error response from daemon: No such container: {request['container']}"
            if not os.path.isdir(request["cwd"]):
                return 126, f'OCI runtime exec failed: exec failed: chdir to cwd ("{request["cwd"]}") failed'
            stdin, stdout, stderr = descriptors
            process = subprocess.Popen(
                request["argv"],
                cwd=request["cwd"],
                env={"PATH": "/usr/bin:/bin", "ENGINE": str(self.client.parent), **request["env"]},
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
        finally:
            for descriptor in descriptors:
                os.close(descriptor)
        self.begun.append(process)
        status = process.wait()
        return (128 - status if status < 0 else status), ""
