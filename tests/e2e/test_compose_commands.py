"""What the containers of docker-compose.yml would run, run as plain processes.

Each service is started with the command line, the environment and the health check that Docker Compose makes of the
file; only ports, paths and the host name of Redis are those of this host. The server is the one that the project finds
here, under the name ``redis-server``. What this cannot show is what only a container has: its image, its user, its
read-only root and its limits.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from statem_dist.embedded.binary import find_server
from tests.support.compose import ENV_EXAMPLE, ROOT, assignments, instructions, program, resolved
from tests.support.pages import page
from tests.support.programs import HAS_PROC, Program, Site, eventually
from tests.support.servers import free_port

pytestmark = pytest.mark.e2e

WATCHER = "watcher:hush0flower"
SECRETS = {"STATEM_REDIS_PASSWORD": "hush0redis", "STATEM_FLOWER_BASIC_AUTH": WATCHER, "REVIEW_API_KEY": "hush0key"}

REDIS_CLI = """#!{python}
import os, socket, sys
assert (sys.argv[1], sys.argv[3:]) == ("-p", ["ping"])
with socket.create_connection(("127.0.0.1", int(sys.argv[2])), timeout=5) as server:
    server.sendall(f"AUTH {{os.environ['REDISCLI_AUTH']}}\\r\\nPING\\r\\n".encode())
    replies = server.makefile("rb")
    print(replies.readline(), replies.readline())
"""
"""Stands in for ``redis-cli ping`` where this host has none: the package that brings the server brings no client."""

RUNBOOK = """
nodes:
  work:
    before_transfer:
      - {type: command, run: 'test "$STATEM_RUN_ID" = demo'}
      - {type: llm_review, prompt: It is well done., accept_contains: APPROVED}
    next: done
  done: The end.
"""

REVIEWER = 'test "$REVIEW_API_KEY" = hush0key && grep -q "well done" && echo APPROVED'


class Composition:
    """The services of the compose file on this host.

    Args:
        site: where their folders are, and who ends them at the last.
    """

    def __init__(self, site: Site) -> None:
        self._site = site
        self._ports = {port: free_port() for port in (6379, 8080, 5555)}
        variables = {**assignments(ENV_EXAMPLE), **SECRETS}
        # Compose doubles each dollar sign in what it prints, so that the output can be read as a compose file again.
        document = json.dumps(resolved({**variables, "STATEM_LLM_REVIEW_CMD": REVIEWER})).replace("$$", "$")
        self._services: dict[str, Any] = json.loads(document)["services"]
        self._image = dict(
            rest.split("=", 1) for word, line in instructions() if word == "ENV" for rest in line.split()
        )
        self._entrypoint = json.loads(next(rest for word, rest in instructions() if word == "ENTRYPOINT"))
        for folder in ("data", "workspaces", "bin", "home"):
            (site.folder / folder).mkdir()
        site.write("redis.conf", self._here((ROOT / "deploy" / "redis.conf").read_text(encoding="utf-8")))
        (site.folder / "bin" / "redis-server").symlink_to(find_server().path)
        if shutil.which("redis-cli") is None:
            site.write("bin/redis-cli", REDIS_CLI.format(python=sys.executable)).chmod(0o755)

    def start(self, name: str, number: int = 1) -> Program:
        """Start a service and wait until its own health check says that it is healthy."""
        service = self._services[name]
        argv = [self._here(word) for word in [*(service["entrypoint"] or self._entrypoint), *service["command"]]]
        environment = self.environment(name)
        argv[0] = shutil.which(argv[0], path=environment["PATH"]) or argv[0]
        running = self._site.launch(argv, f"{name}-{number}", environment)
        kind, *words = (self._here(word) for word in service["healthcheck"]["test"])
        check = ["sh", "-c", *words] if kind == "CMD-SHELL" else words
        check[0] = shutil.which(check[0], path=environment["PATH"]) or check[0]

        def healthy() -> bool:
            assert running.running, running.stdout + running.stderr
            return subprocess.run(check, env=environment, capture_output=True, check=False).returncode == 0

        eventually(healthy, f"{name} is healthy", lambda: running.stdout + running.stderr)
        return running

    def environment(self, name: str) -> dict[str, str]:
        """Return the whole environment of a service: what the image and the compose file give it, and no more."""
        path = os.pathsep.join([str(self._site.folder / "bin"), str(Path(sys.executable).parent), os.environ["PATH"]])
        image = {} if name == "redis" else self._image
        given = {**image, **self._services[name]["environment"]}
        mapped = {variable: self._here(value) for variable, value in given.items()}
        return {**mapped, "PATH": path, "HOME": str(self._site.folder / "home")}

    def address(self, port: int) -> str:
        """Return where a port of a container is found here."""
        return f"http://127.0.0.1:{self._ports[port]}"

    def _here(self, text: str) -> str:
        """Replace the ports, paths and names of containers by those of this host."""
        folder = str(self._site.folder)
        for container, here in {
            "/usr/local/etc/redis/redis.conf": f"{folder}/redis.conf",
            "dir /data": f"dir {folder}/data",
            "/workspaces": f"{folder}/workspaces",
            "@redis:": "@127.0.0.1:",
            "redis-cli ping": "redis-cli -p 6379 ping",
        }.items():
            text = text.replace(container, here)
        return re.sub(r"\b(6379|8080|5555)\b", lambda found: str(self._ports[int(found[0])]), text)


def by_process(result: Mapping[str, Any]) -> int:
    """Return the process id of the worker that gave a result."""
    return int(result["by"].split(":")[2])


@pytest.mark.slow
def test_the_services_work_together_and_end_when_they_are_told_to(site: Site) -> None:
    """All become healthy; a check and a review are each executed by the right worker; Flower shows the messages to who
    has the password, the REST service the run to who has a token; SIGTERM ends each and leaves nothing."""
    composition = Composition(site)
    running = {"redis": composition.start("redis")}
    site.environment |= {"STATEM_REDIS_URL": composition.environment("worker")["STATEM_REDIS_URL"]}
    without_password = site.run("runs", STATEM_REDIS_URL=composition.address(6379).replace("http", "redis"))
    assert "Authentication required" in without_password.stderr
    # As in the documents: docker compose run --rm api token create --role admin
    token = site.run("token", "create", "--role", "admin").stdout.strip()
    running["api"] = composition.start("api")
    service = composition.address(8080)
    running["flower"] = composition.start("flower")
    running["worker"] = composition.start("worker")
    running["worker-2"] = composition.start("worker", 2)
    running["llm-worker"] = composition.start("llm-worker")
    running["trial-worker"] = composition.start("trial-worker")

    findings = {each["what"]: each for each in site.json("doctor")["findings"]}
    assert [each for each in findings.values() if each["level"] == "error"] == []
    site.start(RUNBOOK, "demo")
    moved = site.json("goto", "done", "--run-id", "demo")
    assert moved["current"] == "done"
    command, review = moved["results"]
    assert by_process(command) in (running["worker"].pid, running["worker-2"].pid)
    assert by_process(review) == running["llm-worker"].pid

    site.write("two.sweep.yaml", "{runbook: ends.yaml, trials: 2, agent: {run: 'true'}}")
    site.write("ends.yaml", "nodes: {work: {prompt: Go., next: done}, done: }")
    watched = site.json("sweep", "submit", "two.sweep.yaml", "--watch")
    assert (watched["status"], watched["counts"]["passed"]) == ("finished", 2)

    assert page(f"{service}/readyz")[0] == 200
    assert page(f"{service}/v1/runs/demo")[0] == 401
    status, text = page(f"{service}/v1/runs/demo", token=token)
    assert (status, json.loads(text)["current"]) == (200, "done")

    flower = composition.address(5555)
    for path in ("/", "/workers", "/tasks", "/broker", "/api/tasks"):
        assert page(flower + path)[0] == 401
        status, text = page(flower + path, WATCHER)
        assert status == 200
        assert "hush" not in text
    eventually(
        lambda: (
            {each["args"].split("'")[1] for each in json.loads(page(f"{flower}/api/tasks", WATCHER)[1]).values()}
            == {"demo", "trials"}
        ),
        "Flower has heard of the messages",
    )
    if HAS_PROC:
        assert not [line for line in site.processes().values() if "hush" in line]

    for name in reversed(running):
        running[name].terminate()
        said = running[name].wait()
        # The server of the REST service gives itself the signal anew when it has shut down.
        assert said.exit_code in ((0, -signal.SIGTERM) if name == "api" else (0,)), (name, said)
        assert "Traceback" not in said.stdout + said.stderr, name
        assert "hush" not in said.stdout + said.stderr, name
    if HAS_PROC:
        assert not site.processes()


def test_a_worker_is_unhealthy_once_it_is_gone(site: Site) -> None:
    """The health check of a queue that nobody here serves says so and exits with 1."""
    composition = Composition(site)
    composition.start("redis")
    worker = composition.start("worker")
    check = [sys.executable, "-m", "statem_workers.health"]
    environment = composition.environment("worker")
    other = subprocess.run([*check, "llm"], env=environment, capture_output=True, text=True, check=False)
    assert (other.returncode, "'llm'" in other.stderr) == (1, True)
    worker.kill()
    gone = subprocess.run([*check, "checks"], env=environment, capture_output=True, text=True, check=False)
    assert gone.returncode == 1


def test_redis_keeps_what_it_was_given_when_its_container_is_replaced(site: Site) -> None:
    """A run is there again after the server was ended and started anew on the same volume."""
    composition = Composition(site)
    first = composition.start("redis")
    site.environment |= {"STATEM_REDIS_URL": composition.environment("worker")["STATEM_REDIS_URL"]}
    site.start(RUNBOOK, "demo")
    first.terminate()
    assert first.wait().exit_code == 0
    composition.start("redis", 2)
    assert site.json("cur", "--run-id", "demo")["current"] == "work"


def test_compose_knows_the_example_of_env(site: Site) -> None:
    """Docker Compose reads a filled-in copy of .env.example as a .env file, quotes and comments included."""
    text = ENV_EXAMPLE.read_text(encoding="utf-8")
    for name in ("STATEM_REDIS_PASSWORD", "STATEM_FLOWER_BASIC_AUTH"):
        text = text.replace(f"\n{name}=\n", f"\n{name}={SECRETS[name]}\n")
    file = site.write(".env", text)
    command = [program("docker-compose"), "--project-directory", str(ROOT), "--env-file", str(file), "config"]
    done = subprocess.run([*command, "--environment"], capture_output=True, text=True, check=True, cwd=ROOT)
    assert "STATEM_REDIS_PASSWORD=hush0redis" in done.stdout.splitlines()
    assert subprocess.run([*command, "--quiet"], cwd=ROOT, capture_output=True, check=False).returncode == 0
