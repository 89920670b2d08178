"""Flower as an operator has it: who may look, what is shown, and what is not."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

import pytest

from tests.support.pages import page
from tests.support.programs import HAS_PROC, Program, Site, eventually
from tests.support.servers import tcp_server

pytestmark = pytest.mark.e2e

RUNBOOK = "nodes: {a: {before_transfer: [{run: 'true'}], next: b}, b: The end.}"
STORE_PASSWORD = "hush-store-7d1f"
WATCHER = "watcher:hush-page-90ab"
CHECK_SECRET = "hush-check-33c0"
PAGES = ("/", "/workers", "/tasks", "/broker", "/api/workers", "/api/tasks", "/api/queues/length")


@pytest.fixture
def far(site: Site) -> Iterator[Site]:
    """A site whose state is in a Redis on a port, behind a password."""
    with tcp_server(STORE_PASSWORD) as url:
        site.environment["STATEM_REDIS_URL"] = url
        yield site
        site.close()


def listening(program: Program) -> str:
    """Wait until Flower listens, and return its address."""
    said = eventually(
        lambda: re.search(r"Flower is on (http://[^/ ]+)/", program.stderr + program.stdout) or not program.running,
        "Flower listens",
    )
    assert isinstance(said, re.Match), program.stderr + program.stdout
    return said[1]


@pytest.mark.slow
def test_pages_show_messages_to_who_has_the_password_and_no_secret_to_anybody(far: Site) -> None:
    """Without the password every page is refused; with it a message is readable, and no password is on any page or in
    any command line. Nothing can be ordered there, and when Flower is killed runs go on."""
    flower = far.begin("flower", "--port", "0", STATEM_FLOWER_BASIC_AUTH=WATCHER)
    address = listening(flower)
    worker = far.worker("-c", "1", "--events")
    far.start(RUNBOOK, "demo", "--env", f"TOKEN={CHECK_SECRET}")
    assert far.json("goto", "b", "--run-id", "demo")["current"] == "b"

    for path in PAGES:
        assert page(address + path)[0] == 401, path
        assert page(address + path, "watcher:wrong")[0] == 401, path
    eventually(lambda: '"SUCCESS"' in page(f"{address}/api/tasks", WATCHER)[1], "Flower has heard of the message")
    (task,) = json.loads(page(f"{address}/api/tasks", WATCHER)[1]).values()
    assert (task["name"], task["kwargs"]) == ("statem.execute", "{}")
    assert re.fullmatch(r"\('demo', 't\d+', 'before_transfer\.0'\)", task["args"])

    def workers() -> list[str]:
        # Flower waits a second for answers, and a busy worker may take longer.
        return list(json.loads(page(f"{address}/api/workers?refresh=1", WATCHER)[1]))

    (name,) = eventually(workers, "the worker has answered Flower")
    details = (f"/task/{task['uuid']}", f"/worker/{name}", "/api/workers?refresh=1", "/metrics", "/healthcheck")
    for path in (*PAGES, *details):
        status, text = page(address + path, WATCHER)
        assert status == 200, path
        assert "hush" not in text, path
    assert "redis://:**@127.0.0.1" in page(f"{address}/broker", WATCHER)[1]
    assert page(f"{address}/api/worker/shutdown/{name}", WATCHER, data=b"")[0] == 403
    assert page(f"{address}/api/task/send-task/statem.execute", WATCHER, data=b'{"args": []}')[0] == 403
    if HAS_PROC:
        assert not [each for each in far.processes().values() if "hush" in each]
    assert "hush" not in flower.stderr + worker.stderr

    flower.kill()
    far.start(RUNBOOK, "later")
    assert far.json("goto", "b", "--run-id", "later")["current"] == "b"


def test_flower_ends_on_request_while_its_broker_is_away(site: Site) -> None:
    """SIGTERM ends it with exit code 0, also when nobody answers it any more."""
    with tcp_server(STORE_PASSWORD) as url:
        flower = site.begin("flower", "--port", "0", STATEM_REDIS_URL=url)
        listening(flower)
    flower.terminate()
    assert flower.wait().exit_code == 0
    assert STORE_PASSWORD not in flower.stderr


def test_up_runs_flower_beside_its_worker(site: Site) -> None:
    """``up --flower`` shows what its worker does, and ends both with exit code 0."""
    stack = site.begin("up", "-c", "1", "--flower", "--flower-port", "0")
    address = listening(stack)
    assert address.startswith("http://127.0.0.1:")
    eventually(lambda: "ready: queues checks" in stack.stdout or not stack.running, "the worker is ready")
    site.start(RUNBOOK)
    assert site.json("goto", "b", "--run-id", "r")["current"] == "b"
    # Without a password the pages are open to this host, and the API is closed by Flower itself.
    assert page(f"{address}/tasks")[0] == 200
    assert page(f"{address}/api/tasks")[0] == 401
    eventually(lambda: 'task="statem.execute"' in page(f"{address}/metrics")[1], "its events arrive")
    stack.interrupt()
    assert stack.wait().exit_code == 0
    if HAS_PROC:
        assert not site.processes()


@pytest.mark.parametrize("address", ["0.0.0.0", "::", "example.invalid", ""])
def test_other_hosts_are_asked_for_a_password(site: Site, address: str) -> None:
    """An address that others may reach is refused without one, with exit code 64 and the name of the variable."""
    with tcp_server(STORE_PASSWORD) as url:
        said = site.run("flower", "--port", "0", "--address", address, STATEM_REDIS_URL=url)
    assert said.exit_code == 64
    assert "STATEM_FLOWER_BASIC_AUTH" in said.stderr


def test_a_broker_that_is_away_is_said_at_once(site: Site) -> None:
    """Exit code 8, with the address and without the password."""
    settings = {"STATEM_REDIS_URL": f"redis://:{STORE_PASSWORD}@127.0.0.1:1/0", "STATEM_PATIENCE_SECONDS": "0.5"}
    said = site.run("flower", "--port", "0", **settings)
    assert said.exit_code == 8
    assert "127.0.0.1:1" in said.stderr
    assert STORE_PASSWORD not in said.stderr


def test_a_port_that_is_taken_is_named(far: Site) -> None:
    """Exit code 8, and the hint names the option."""
    first = far.begin("flower", "--port", "0")
    port = listening(first).rpartition(":")[2]
    said = far.run("flower", "--port", port)
    assert said.exit_code == 8
    assert f"127.0.0.1:{port}" in said.stderr
    assert "--port" in said.stderr
