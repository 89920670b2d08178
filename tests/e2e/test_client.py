"""The Python clients against the real service with a real worker."""

from __future__ import annotations

import asyncio
import os
import re
import threading
from collections.abc import Iterator
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path

import pytest

from statem_dist import AsyncClient, Client, NewRun
from statem_dist.client.stdlib import StdlibTransport
from statem_dist.errors import (
    Conflict,
    NotAuthenticated,
    NotAuthorised,
    NotFound,
    RequestReused,
    RunbookInvalid,
    StaleVersion,
    TransitionInFlight,
    UnknownTarget,
)
from statem_dist.protocol.model import Actor
from tests.support.programs import Site, eventually

pytestmark = pytest.mark.e2e

API_PAGE = Path(__file__).parents[2] / "docs" / "api.md"

RUNBOOK = """
name: guarded
nodes:
  a:
    prompt: Read.
    before_transfer:
      - {run: "echo $$ >> begun; until [ -e opened ]; do sleep 0.05; done", name: gate}
      - {type: manual, text: May it go?, name: may}
    dynamic_before_transfer: {}
    next: b
  b: The end.
"""

PLAIN = "nodes: {a: {before_transfer: [{run: 'test -e allowed'}], next: b}, b: The end.}"


class Serviced:
    """A service, and where its runs work."""

    def __init__(self, site: Site) -> None:
        self.site = site
        site.worker("-c", "2")
        self.url = site.api()

    def new(self, text: str = RUNBOOK, run_id: str = "r", **labels: str) -> NewRun:
        """Return a run that works in the folder of the site."""
        return NewRun(text=text, run_id=run_id, workspace=str(self.site.folder), labels=labels)

    def open(self) -> None:
        """Let the gate of the runbook pass."""
        self.site.write("opened")

    def kill(self) -> None:
        """End the service as if its host had died."""
        for pid in self.site.processes("statem_api"):
            os.kill(pid, 9)
        eventually(lambda: not self.site.processes("statem_api"), "the service is gone")

    def bring_back(self) -> None:
        """Start it again where it was."""
        again = self.site.begin("api", "--port", self.url.rpartition(":")[2].partition("/")[0])
        eventually(lambda: "Serving: " in again.stdout, "the service is back", lambda: again.stderr)


@pytest.fixture
def service(site: Site) -> Serviced:
    """A service with a worker."""
    return Serviced(site)


@pytest.fixture
def client(service: Serviced) -> Iterator[Client]:
    """A client of it, let in because it is on this host."""
    with Client(service.url, token="") as client:
        yield client


def test_the_page_on_python_tells_the_truth(service: Serviced, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its program runs as it stands, and prints what happened."""
    (program,) = re.findall(r"^```python\n(.*?)^```$", API_PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    monkeypatch.setenv("STATEM_URL", service.url)
    monkeypatch.delenv("STATEM_TOKEN", raising=False)
    said = StringIO()
    with redirect_stdout(said):
        exec(compile(program, str(API_PAGE), "exec"), {})
    lines = said.getvalue().splitlines()
    assert lines[0] == "fix ('done',)"
    assert lines[1].startswith("before_transfer [")
    assert lines[2] == "from-python active"
    assert lines[-1].endswith("run_cancelled")


def test_a_run_from_start_to_end(service: Serviced, client: Client) -> None:
    """Every verb on the way of one run, with what each answers."""
    me = Actor("me", "dev")
    assert client.whoami().role == "admin"
    assert client.readiness().ok
    begun = client.start(service.new(team="blue"), wait=30)
    assert (begun.status, begun.targets, begun.prompt) == ("active", ("b",), "Read.")
    assert begun.transition is not None
    assert begun.transition.committed
    assert [each.target for each in client.next("r")] == ["b"]
    assert client.node("r", "b")["prompt"] == "The end."
    assert [each.name for each in client.questions("r", "b")] == ["may"]
    assert client.graph("r").current == "a"
    assert client.drawing("r").startswith("flowchart")
    assert client.drawing("r", "svg").startswith("<svg")
    assert "the service at STATEM_URL" in client.prompt("r") + client.compact_prompt("r")
    assert client.document("r").node == "a"

    written = client.write_dynamic("r", [{"type": "manual", "text": "New?", "reason": "new"}], by=me)
    assert (written.checks, written.producer["agent_id"]) == (1, "me")
    assert [each.producer["agent_id"] for each in client.dynamic("r")] == ["me"]

    submitted = client.goto("r", "b", confirm=True, by=me)
    assert submitted.pending
    eventually(lambda: service.site.lines("begun"), "the worker has begun")
    with pytest.raises(TransitionInFlight) as caught:
        client.goto("r", "b")
    assert caught.value.details["transition"] == submitted.transition
    assert client.wait("r", submitted.transition, 0.2).pending
    cancelled = client.cancel_transition("r", submitted.transition, reason="wrong")
    assert (cancelled.outcome, cancelled.reason) == ("cancelled", "wrong")

    service.open()
    waiting = client.goto("r", "b", on_manual="wait", wait=60, by=me)
    assert (waiting.pending, len(waiting.decisions)) == (True, 2)
    assert [each.question for each in client.approvals()] == ["May it go?", "New?"]
    half = client.approve(waiting.decisions[0], comment="read")
    assert half.pending
    moved = client.reject(waiting.decisions[1], comment="no", wait=30)
    assert (moved.blocked, [check.output for check in moved.results if not check.passed]) == (True, ["no"])

    assert client.goto("r", "b", confirm=["may"], decline={"New?": "old"}, wait=30).blocked
    assert client.goto("r", "b", confirm=["may", "New?"], wait=30).moved
    assert client.run("r").ended
    assert [each["event"] for each in client.history("r", limit=2).history] == ["dynamic_before_transfer", "goto"]
    assert client.evidence("r")[-1]["strongest"] == "verified"
    assert [each.run_id for each in client.runs(status="finished", labels={"team": "blue"})] == ["r"]
    assert list(client.runs(labels={"team": "red"})) == []


def test_runs_are_held_and_ended(service: Serviced, client: Client) -> None:
    """Four words for four things, each refused where it would change nothing."""
    client.start(service.new(PLAIN))
    paused = client.pause("r", reason="lunch")
    assert paused.paused is not None
    assert (paused.status, paused.paused.reason) == ("paused", "lunch")
    with pytest.raises(Conflict):
        client.goto("r", "b")
    assert client.resume("r").status == "active"
    assert client.save("r", wait=10).committed
    other = PLAIN.replace("The end.", "The very end.")
    assert client.rebind("r", text=other, wait=10).committed
    with pytest.raises(StaleVersion) as caught:
        client.cancel("r", if_version=1)
    assert caught.value.details["current"] == "a"
    ended = client.cancel("r", reason="enough", if_version=client.run("r").version)
    assert ended.ending is not None
    assert (ended.status, ended.ending.by) == ("cancelled", "local")
    client.start(service.new(PLAIN, "other"))
    assert client.terminate("other").ended


def test_many_runs_and_their_pages(service: Serviced, client: Client) -> None:
    """A bulk start answers each run, and a walk in small pages meets each once."""
    wanted = [service.new(PLAIN, f"r{number}") for number in range(7)]
    made = client.start_many([*wanted, service.new("nodes: [", "bad"), wanted[0]])
    assert (made.created, made.failed) == (7, 2)
    problems = [each.problem["code"] for each in made.items if each.problem]
    assert problems == ["runbook_invalid", "conflict"]
    assert sorted(each.run_id for each in client.runs(page_size=2)) == [each.run_id for each in wanted]


def test_runbooks_are_registered(service: Serviced, client: Client) -> None:
    """Looked at, registered by name, listed and started from."""
    assert client.validate(PLAIN, source="x.yaml").nodes == ("a", "b")
    with pytest.raises(RunbookInvalid) as caught:
        client.validate("nodes: {a: {next: nowhere}}")
    assert caught.value.details["problems"][0]["line"] == 1
    made = client.register(PLAIN, name="plain")
    assert [each.name for each in client.runbooks()] == ["plain"]
    assert client.runbook("plain").text == PLAIN
    begun = client.start(NewRun(runbook="plain"), wait=10)
    assert begun.spec_hash == made.hash
    assert begun.workspace.endswith(begun.run_id)


def test_errors_are_those_of_the_library(service: Serviced, client: Client) -> None:
    """With their hints and details."""
    client.start(service.new(PLAIN))
    with pytest.raises(UnknownTarget) as unknown:
        client.goto("r", "z")
    assert unknown.value.details["allowed"] == ["b"]
    with pytest.raises(NotFound):
        client.run("nobody")
    with pytest.raises(Conflict) as taken:
        client.start(service.new(PLAIN))
    assert "r" in taken.value.message
    client.goto("r", "b", key="mine", wait=10)
    with pytest.raises(RequestReused):
        client.goto("r", "b", key="mine", confirm=True, wait=10)


def test_a_call_of_another_process_is_known_by_its_key(service: Serviced, client: Client) -> None:
    """The same key from another client is the same call: it starts nothing and moves nothing again."""
    first = client.start(service.new(PLAIN), key="start-1")
    blocked = client.goto("r", "b", key="goto-1", wait=30)
    service.site.write("allowed")
    with Client(service.url, token="") as other:
        assert other.start(service.new(PLAIN), key="start-1").run_id == first.run_id
        again = other.goto("r", "b", key="goto-1", wait=30)
    assert (again.transition, again.blocked) == (blocked.transition, True)
    assert client.run("r").current == "a"


def test_tokens_bound_what_a_client_may(service: Serviced, client: Client) -> None:
    """Roles and labels count, a revocation counts at once, also for an open stream, and no text shows a token."""
    admin = client.create_token("admin", name="chief")
    assert admin.token.startswith("stm_")
    assert admin.token not in repr(admin)
    with pytest.raises(NotAuthenticated):
        client.whoami()
    with Client(service.url, admin.token) as chief:
        viewer = chief.create_token("viewer", labels={"team": "blue"}, expires_in=3600)
        chief.start(service.new(PLAIN, "blue", team="blue"), wait=10)
        chief.start(service.new(PLAIN, "red", team="red"), wait=10)
        with Client(service.url, viewer.token) as watching:
            assert [each.run_id for each in watching.runs()] == ["blue"]
            with pytest.raises(NotFound):
                watching.run("red")
            with pytest.raises(NotAuthorised) as caught:
                watching.pause("blue")
            assert viewer.token.rpartition("_")[2] not in f"{caught.value.message} {caught.value.details} {watching!r}"
            heard = watching.events("blue")
            assert next(heard).event == "run_created"
            assert chief.revoke_token(viewer.id).state == "revoked"
            # The stream ends when something is to be told, and who comes back is not let in.
            chief.pause("blue")
            with pytest.raises(NotAuthenticated):
                list(heard)
        assert {each.id: each.state for each in chief.tokens()} == {admin.id: "live", viewer.id: "revoked"}


# --- live ------------------------------------------------------------------------------------------------------------

LISTENERS = [None, StdlibTransport]


@pytest.mark.parametrize("transport", LISTENERS, ids=["pooled", "stdlib"])
def test_events_are_heard_once_though_the_service_dies(service: Serviced, client: Client, transport: object) -> None:
    """A listener sees each event once, in order, over a service that was killed and came back in the middle."""
    client.start(service.new(PLAIN), wait=10)
    heard: list[int] = []
    ended: list[str] = []

    def listen() -> None:
        with Client(service.url, token="", patience_seconds=30, transport=transport) as listener:  # type: ignore[arg-type]
            for event in listener.events("r"):
                heard.append(event.number)
        ended.append("with the run")

    thread = threading.Thread(target=listen, daemon=True)
    thread.start()
    eventually(lambda: heard, "the listener hears the past")
    service.kill()
    # Beside the service, while it is away.
    service.site.run("goto", "b", "--run-id", "r")
    service.bring_back()
    service.site.write("allowed")
    assert client.goto("r", "b", wait=30).moved
    eventually(lambda: ended, "the stream ends with the run", lambda: heard)
    assert heard == list(range(1, client.run("r").version + 1))


def test_the_same_is_heard_in_an_event_loop(service: Serviced, client: Client) -> None:
    """Several listeners at once, one of them killed and gone on with, and the feed of all runs beside them."""

    async def scenario() -> tuple[list[list[int]], list[str]]:
        async with AsyncClient(service.url, token="", patience_seconds=30) as client:
            await asyncio.gather(*(client.start(service.new(PLAIN, name, team="a"), wait=10) for name in ("r", "s")))

            async def numbers(run_id: str) -> list[int]:
                return [event.number async for event in client.events(run_id)]

            async def fed() -> list[str]:
                runs: list[str] = []
                async for commit in client.feed(labels={"team": "a"}):
                    runs.append(commit.run_id)
                    if len(set(runs)) == 2:
                        break
                return runs

            listening = [asyncio.create_task(numbers(run_id)) for run_id in ("r", "s")]
            feeding = asyncio.create_task(fed())
            await asyncio.sleep(0)
            service.site.write("allowed")
            moving = asyncio.gather(*(client.goto(run_id, "b", wait=30) for run_id in ("r", "s")))
            assert all(each.moved for each in await moving)
            number = 0
            while not feeding.done():
                # The feed begins when it is opened, which may have been after those commits.
                await client.start(service.new(PLAIN, f"more-{number}", team="a"))
                number += 1
            return [await each for each in listening], await feeding

    heard, fed = asyncio.run(scenario())
    versions = [client.run(run_id).version for run_id in ("r", "s")]
    assert heard == [list(range(1, version + 1)) for version in versions]
    assert len(set(fed)) == 2


def test_the_feed_goes_on_from_a_position(service: Serviced, client: Client) -> None:
    """What happened while nobody listened is heard by who comes back with the position."""
    client.start(service.new(PLAIN, "first", team="a"), wait=10)
    client.start(service.new(PLAIN, "other", team="b"), wait=10)
    listening = threading.Event()

    def stir() -> None:
        """Let something happen to both runs until somebody has heard of it: nobody knows when a feed is open."""
        while not listening.is_set():
            for run_id in ("first", "other"):
                client.pause(run_id)
                client.resume(run_id)

    thread = threading.Thread(target=stir, daemon=True)
    thread.start()
    first = next(client.feed(labels={"team": "a"}))
    listening.set()
    thread.join()
    version = client.run("first").version
    heard = [first]
    back = client.feed(labels={"team": "a"}, position=first.position)
    while heard[-1].events[-1].number < version:
        heard.append(next(back))
    assert {each.run_id for each in heard} == {"first"}
    begun = first.events[0].number
    assert [event.number for each in heard for event in each.events] == list(range(begun, version + 1))


def test_a_long_wait_bears_a_restart(service: Serviced, client: Client) -> None:
    """``goto`` with a wait asks again until the service is back, and the transition was made once."""
    client.start(service.new())
    outcome: list[bool] = []

    def move() -> None:
        with Client(service.url, token="", patience_seconds=30) as mover:
            outcome.append(mover.goto("r", "b", confirm=True, wait=60).moved)

    thread = threading.Thread(target=move, daemon=True)
    thread.start()
    eventually(lambda: service.site.lines("begun"), "the worker has begun")
    service.kill()
    service.open()
    service.bring_back()
    eventually(lambda: outcome, "the outcome is told")
    assert outcome == [True]
    assert len(service.site.lines("begun")) == 1
    assert service.site.events() == ["goto"]
