"""Live events over HTTP: the stream of a run, the feed of all runs, and a run as AG-UI tells it."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from itertools import count, groupby, islice
from typing import Any

import pytest
from ag_ui.core import Event as AgUiEvent
from pydantic import TypeAdapter

from statem_api.options import HEARTBEAT_SECONDS
from statem_dist.store import keys
from tests.support.programs import Site
from tests.support.service import WAIT, Api, Caller, Stream, serve

pytestmark = pytest.mark.e2e

TWO = "initial: a\nnodes: {a: {}, b: {}, c: {}}\nedges: [{from: a, to: b}, {from: b, to: a}, {from: b, to: c}]\n"

GATED = """
initial: a
nodes:
  a: {before_transfer: [{type: command, run: 'true'}, {type: manual, text: sure?}, {type: manual, text: really?}]}
  b: {}
edges: [{from: a, to: b}]
"""

AGUI = TypeAdapter(AgUiEvent)


@pytest.fixture
def api(site: Site) -> Api:
    """The service, with a worker; nobody has made a token."""
    site.worker()
    return serve(site)


def go(caller: Caller, *targets: str, run_id: str = "r") -> None:
    """Move a run along its edges."""
    for target in targets:
        assert caller.post(f"/v1/runs/{run_id}/goto{WAIT}", {"target": target})["current"] == target


def until_end(stream: Stream) -> Iterator[dict[str, str]]:
    """Yield the messages of a stream, the one that ends it included."""
    for message in stream.messages():
        yield message
        if message.get("event") == "end":
            return


# --- one run ---------------------------------------------------------------------------------------------------------


def test_a_stream_has_every_event_and_ends_with_the_run(api: Api) -> None:
    """The ids are the numbers of the events, all of them, and then it ends; who comes back is told to stay away."""
    caller = api.caller()
    caller.start(TWO)
    with caller.stream("/v1/runs/r/events") as stream:
        mover = threading.Thread(target=go, args=(caller, "b", "a", "b", "c"))
        mover.start()
        messages = list(until_end(stream))
        mover.join()
    version = caller.get("/v1/runs/r")["version"]
    assert [int(each["id"]) for each in messages[:-1]] == list(range(1, version + 1))
    assert json.loads(messages[-1]["data"]) == {"run_id": "r", "status": "finished", "version": version}
    assert "id" not in messages[-1]
    back = {"Accept": "text/event-stream", "Last-Event-ID": str(version)}
    assert caller.http.get("/v1/runs/r/events", headers=back).status_code == 204


def test_who_comes_back_goes_on_right_after_what_was_seen(api: Api) -> None:
    """Cut off at any event, a reader gets the rest with the next connection: no gap, and nothing twice."""
    caller = api.caller()
    caller.start(TWO)
    go(caller, "b", "a", "b", "a")
    seen: list[int] = []
    while len(seen) < 12:
        headers = {"Last-Event-ID": str(seen[-1])} if seen else {}
        with caller.stream("/v1/runs/r/events", **headers) as stream:
            seen += [int(each["id"]) for each in islice(stream.messages(), 5)]
    assert seen == list(range(1, len(seen) + 1))


def test_pages_and_stream_tell_the_same(api: Api) -> None:
    """A walk through the pages gives the events of the stream."""
    caller = api.caller()
    caller.start(TWO)
    go(caller, "b", "c")
    with caller.stream("/v1/runs/r/events") as stream:
        streamed = [json.loads(each["data"]) for each in until_end(stream)][:-1]
    paged: list[Any] = []
    while page := caller.get(f"/v1/runs/r/events?limit=4&after={paged[-1]['number'] if paged else 0}")["items"]:
        paged += page
    assert paged == streamed


def test_a_nonsense_position_is_refused(api: Api) -> None:
    """A ``Last-Event-ID`` that was never given is a mistake, and no silent beginning."""
    caller = api.caller()
    caller.start(TWO)
    for path in ("/v1/runs/r/events", "/v1/runs/r/agui", "/v1/events"):
        headers = {"Accept": "text/event-stream", "Last-Event-ID": "nonsense!"}
        assert caller.http.get(path, headers=headers).status_code in (400, 422)
    for never_told in ("0.0", "0.9999", "99999.0"):
        headers = {"Accept": "text/event-stream", "Last-Event-ID": never_told}
        assert caller.http.get("/v1/runs/r/agui", headers=headers).status_code == 400


def test_a_stream_ends_when_its_token_is_revoked(api: Api) -> None:
    """Whoever reads under a token that is revoked hears nothing more."""
    admin = api.caller("admin")
    admin.start(TWO)
    text = api.token("viewer")
    token = text.split("_")[1]
    viewer = Caller(api.url, text)
    with viewer.stream("/v1/runs/r/events") as stream, viewer.stream("/v1/events") as feed:
        messages, commits = stream.messages(), feed.messages()
        assert [next(messages)["id"] for _ in range(3)] == ["1", "2", "3"]
        go(admin, "b")
        assert json.loads(next(commits)["data"])["run_id"] == "r"
        assert next(messages)["id"] == "4"
        admin.ask("DELETE", f"/v1/tokens/{token}", expect=200)
        stop = threading.Event()
        mover = threading.Thread(target=save_until, args=(admin, stop))
        mover.start()
        # Both come to their end; what was on its way may still be told.
        numbers = [int(each["id"]) for each in messages]
        assert all("data" in each for each in commits)
        stop.set()
        mover.join()
    assert admin.get("/v1/runs/r")["version"] > max(numbers, default=0)


def test_who_is_revoked_hears_not_even_the_next_commit(api: Api) -> None:
    """Also right after the stream was opened: what is committed after that is not told, and the stream ends."""
    admin = api.caller("admin")
    admin.start(TWO)
    text = api.token("viewer")
    with Caller(api.url, text).stream("/v1/events") as feed:
        messages = iter(feed)
        assert "id" in next(messages)
        admin.ask("DELETE", f"/v1/tokens/{text.split('_')[1]}", expect=200)
        admin.post("/v1/runs/r/save", {"skip_hooks": True})
        assert [each for each in messages if "data" in each] == []


@pytest.mark.parametrize("path", ["/v1/events", "/v1/runs/r/events", "/v1/runs/r/agui"])
def test_a_stream_without_news_ends_when_its_token_is_revoked(api: Api, path: str) -> None:
    """Within seconds, long before anything else would have woken it."""
    admin = api.caller("admin")
    admin.start(TWO)
    text = api.token("viewer")
    with Caller(api.url, text).stream(path) as stream:
        messages = iter(stream)
        next(messages)
        admin.ask("DELETE", f"/v1/tokens/{text.split('_')[1]}", expect=200)
        revoked = time.monotonic()
        assert all("comment" not in each for each in messages)
        assert time.monotonic() - revoked < HEARTBEAT_SECONDS / 2


def save_until(caller: Caller, stop: threading.Event) -> None:
    """Make something happen again and again."""
    while not stop.wait(0.05):
        caller.post("/v1/runs/r/save", {"skip_hooks": True})


# --- all runs --------------------------------------------------------------------------------------------------------


def test_the_feed_tells_each_commit_once(api: Api) -> None:
    """Cut off again and again while runs move, a reader gets each commit of the runs it asked for once."""
    caller = api.caller()
    for number in range(6):
        caller.start(TWO, f"r{number}", labels={"team": "a" if number % 2 else "b"})
    with caller.stream("/v1/events?label=team=a") as stream:
        position = next(iter(stream))["id"]

    def move() -> None:
        for number in range(6):
            go(caller, "b", "a", "b", "c", run_id=f"r{number}")

    mover = threading.Thread(target=move)
    mover.start()
    told: dict[str, list[int]] = {}
    ended = 0
    while ended < 3:
        with caller.stream("/v1/events?label=team=a", **{"Last-Event-ID": position}) as stream:
            for message in islice(stream.messages(), 4):
                position = message["id"]
                commit = json.loads(message["data"])
                assert commit["labels"] == {"team": "a"}
                told.setdefault(commit["run_id"], []).extend(each["number"] for each in commit["events"])
                if {"r1": 1, "r3": 1, "r5": 1}.get(commit["run_id"]) and _finished(caller, commit):
                    ended += 1
                    if ended == 3:
                        break
    mover.join()
    for run_id in ("r1", "r3", "r5"):
        version = caller.get(f"/v1/runs/{run_id}")["version"]
        assert told[run_id] == list(range(4, version + 1))
    assert sorted(told) == ["r1", "r3", "r5"]


def test_labels_are_those_of_the_run_that_there_is_now(api: Api) -> None:
    """Where a store was emptied and another run has the id, those who may hear of the old one hear nothing of it."""
    caller = api.caller()
    with caller.stream("/v1/events?label=team=a") as stream:
        messages = stream.messages()
        caller.start(TWO, labels={"team": "a"})
        assert json.loads(next(messages)["data"])["run_id"] == "r"
        api.site.redis("FLUSHALL")
        caller.start(TWO, labels={"team": "b"})
        assert next(messages)["event"] == "gap"
        # Of this shard everything is told from here on.
        go(caller, "b")
        other = next(name for name in map(str, count()) if keys.shard_of(name) == keys.shard_of("r"))
        caller.start(TWO, other, labels={"team": "a"})
        told = json.loads(next(messages)["data"])
    assert (told["run_id"], told["labels"]) == (other, {"team": "a"})


def _finished(caller: Caller, commit: dict[str, Any]) -> bool:
    """Return whether a commit is the last one of a run that goes to the end."""
    last = commit["events"][-1]
    run = caller.get(f"/v1/runs/{commit['run_id']}")
    return bool(run["status"] == "finished" and last["number"] == run["version"])


# --- AG-UI -----------------------------------------------------------------------------------------------------------


def frames_of(messages: Iterator[dict[str, str]], until: str, count: int = 1) -> list[dict[str, Any]]:
    """Return frames up to the n-th of a type; every one is what AG-UI's own models accept."""
    frames: list[dict[str, Any]] = []
    for message in messages:
        frame = json.loads(message["data"])
        parsed = AGUI.validate_python(frame)
        again = json.loads(parsed.model_dump_json(by_alias=True, exclude_none=True))
        assert {name: again[name] for name in frame} == frame
        frames.append(frame | {"#": message.get("id")})
        if frame["type"] == until:
            count -= 1
            if count == 0:
                return frames
    return frames


def require_lawful(frames: list[dict[str, Any]]) -> None:
    """Check the order that AG-UI asks for: runs hold everything, steps and calls are closed, a snapshot comes first."""
    running, steps, calls = False, set[str](), set[str]()
    for frame in frames:
        kind = frame["type"]
        if kind == "RUN_STARTED":
            assert not running
            running = True
            continue
        assert running, f"{kind} outside of a run"
        if kind == "STEP_STARTED":
            steps.add(frame["stepName"])
        elif kind == "STEP_FINISHED":
            steps.remove(frame["stepName"])
        elif kind == "TOOL_CALL_START":
            calls.add(frame["toolCallId"])
        elif kind == "TOOL_CALL_END":
            calls.remove(frame["toolCallId"])
        elif kind == "RUN_FINISHED":
            assert not steps
            assert not calls
            running = False


def test_a_run_is_told_as_ag_ui_has_it(api: Api) -> None:
    """From its beginning to the end: lawful frames, the gate as an activity, each node a step."""
    caller = api.caller()
    caller.start(TWO)
    with caller.stream("/v1/runs/r/agui") as stream:
        mover = threading.Thread(target=go, args=(caller, "b", "c"))
        mover.start()
        frames = frames_of(stream.messages(), "RUN_FINISHED", 3)
        mover.join()
    require_lawful(frames)
    steps = [each["stepName"] for each in frames if each["type"] == "STEP_STARTED"]
    assert [step for step, _ in groupby(steps)] == ["a", "b", "c"]
    assert frames[-1]["result"] == {"state": "c", "status": "finished"}
    back = {"Accept": "text/event-stream", "Last-Event-ID": frames[-1]["#"]}
    assert caller.http.get("/v1/runs/r/agui", headers=back).status_code == 204


def test_what_waits_for_a_decision_is_an_interrupt(api: Api) -> None:
    """One execution goes to the interrupt with both questions; the next one answers them, and the run moves."""
    caller = api.caller()
    caller.start(GATED)
    first = {"threadId": "r", "runId": "exec-1", "messages": [], "forwardedProps": {"goto": "b"}}
    frames = post_execution(caller, first)
    require_lawful(frames)
    outcome = frames[-1]["outcome"]
    assert outcome["type"] == "interrupt"
    assert [each["message"] for each in outcome["interrupts"]] == ["a -> b: sure?", "a -> b: really?"]
    assert frames[-3]["type"] == "STATE_SNAPSHOT"
    ids = [each["id"] for each in outcome["interrupts"]]

    def resume(*answers: dict[str, Any]) -> dict[str, Any]:
        return {"threadId": "r", "runId": "exec-2", "messages": [], "resume": list(answers)}

    yes = {"status": "resolved", "payload": {"approved": True}}
    partial = post_execution(caller, resume({"interruptId": ids[0], **yes}))
    assert (partial[-1]["type"], partial[-1]["code"]) == ("RUN_ERROR", "statem.invalid")
    unknown = post_execution(caller, resume(*({"interruptId": each, **yes} for each in (*ids, "r/t9/x.0"))))
    assert unknown[-1]["type"] == "RUN_ERROR"
    answers = resume(*({"interruptId": each, **yes} for each in ids))
    frames = post_execution(caller, answers)
    require_lawful(frames)
    assert frames[-1]["outcome"]["type"] == "success"
    assert frames[-1]["result"]["state"] == "b"
    again = post_execution(caller, answers)
    assert again[-1]["outcome"]["type"] == "success", "a repeated answer changes nothing"


def test_a_refusal_is_an_answer(api: Api) -> None:
    """``approved: false`` blocks the transition, and the run stays."""
    caller = api.caller()
    caller.start(GATED)
    begun = post_execution(caller, {"threadId": "r", "runId": "1", "messages": [], "forwardedProps": {"goto": "b"}})
    resume = [
        {"interruptId": each["id"], "status": "resolved", "payload": {"approved": False, "comment": "no"}}
        for each in begun[-1]["outcome"]["interrupts"]
    ]
    frames = post_execution(caller, {"threadId": "r", "runId": "2", "messages": [], "resume": resume})
    assert frames[-1]["result"]["state"] == "a"
    result = next(each for each in frames if each["type"] == "TOOL_CALL_RESULT")
    assert json.loads(result["content"])["outcome"] == "blocked"


def test_frames_go_on_after_the_one_that_was_seen(api: Api) -> None:
    """Cut off after any frame, also in the middle of what one event says, a reader gets the rest and nothing twice."""
    caller = api.caller()
    caller.start(TWO)
    with caller.stream("/v1/runs/r/agui") as stream:
        first = frames_of(stream.messages(), "RUN_FINISHED")
    go(caller, "b", "c")
    back = {"Last-Event-ID": str(first[-1]["#"])}
    with caller.stream("/v1/runs/r/agui", **back) as stream:
        whole = frames_of(stream.messages(), "RUN_FINISHED", 2)
    for cut in range(len(whole) - 1):
        with caller.stream("/v1/runs/r/agui", **{"Last-Event-ID": str(whole[cut]["#"])}) as stream:
            rest = list(islice(stream.messages(), len(whole) - cut - 1))
        assert [each["id"] for each in rest] == [each["#"] for each in whole[cut + 1 :]]


def test_what_was_told_stays_so_when_the_runbook_changes(api: Api) -> None:
    """Each frame names the exits of the runbook that the run followed then, live and to who comes back much later."""
    caller = api.caller()
    begun = caller.start(TWO)["version"]
    back = {"Last-Event-ID": f"{begun}.9999"}
    other = "initial: b\nnodes: {b: {}, d: {}, e: {}}\nedges: [{from: b, to: d}, {from: d, to: e}]\n"
    third = "initial: x\nnodes: {x: {}, y: {}}\nedges: [{from: x, to: y}]\n"

    def move() -> None:
        go(caller, "b")
        caller.post("/v1/runs/r/rebind", {"text": other})
        go(caller, "d")
        caller.post(f"/v1/runs{WAIT}", {"text": third, "run_id": "r", "on_existing": "restart"})
        go(caller, "y")

    with caller.stream("/v1/runs/r/agui", **back) as stream:
        mover = threading.Thread(target=move)
        mover.start()
        live = frames_of(stream.messages(), "never-until-the-end")
        mover.join()
    require_lawful(live)
    with caller.stream("/v1/runs/r/agui", **back) as stream:
        assert frames_of(stream.messages(), "never-until-the-end") == live
    state: dict[str, Any] = {}
    seen: list[tuple[str, list[str]]] = []
    for each in live:
        if each["type"] == "STATE_SNAPSHOT":
            state = dict(each["snapshot"])
        elif each["type"] == "STATE_DELTA":
            state |= {patch["path"].removeprefix("/"): patch["value"] for patch in each["delta"]}
        seen.append((state.get("state", ""), state.get("next", [])))
    told = [at for at, _ in groupby(seen) if at[0]]
    assert told == [("a", ["b"]), ("b", ["a", "c"]), ("b", ["d"]), ("d", ["e"]), ("x", ["y"]), ("y", [])]
    shown = caller.get("/v1/runs/r")
    assert state["runbook"].endswith(shown["spec_hash"])


def post_execution(caller: Caller, body: dict[str, Any]) -> list[dict[str, Any]]:
    """Post an execution, and return its frames, all of them."""
    with caller.http.stream("POST", "/v1/agui/runs", json=body) as response:
        assert response.status_code == 200, response.read()
        return frames_of(Stream(response).messages(), "never")
