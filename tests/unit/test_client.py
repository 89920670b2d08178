"""The clients of the service: their calls, what they make of answers, when they try again, and streams."""

from __future__ import annotations

import asyncio
import inspect
import socket
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest

import statem_dist
from statem_dist import AsyncClient, Client, NewRun, errors
from statem_dist.client import calls
from statem_dist.client.address import Address, address_from, base_url
from statem_dist.client.problems import error_of
from statem_dist.client.sse import Frame, Parser
from statem_dist.client.stdlib import StdlibTransport
from statem_dist.client.wire import Reply, Transport
from statem_dist.errors import StatemError, Unavailable, Usage
from statem_dist.protocol.model import Actor
from tests.support.misbehaving import Act, Misbehaving, json_act, misbehaving

TOKEN = "stm_0123456789abcdef_verysecretverysecretverysecret"

ME = {"name": "n", "role": "agent", "labels": {}, "token": "t"}

MOVED = {
    "ok": True,
    "run_id": "r",
    "transition": "t2",
    "outcome": "committed",
    "current": "b",
    "current_entry_id": "r-e2",
    "version": 9,
    "from": "a",
    "to": "b",
    "stage": None,
    "results": [],
    "added_by_a_newer_service": 1,
}
PENDING = MOVED | {"ok": False, "outcome": "pending", "current": "a", "version": 5}

TRANSPORTS: list[Callable[[Address], Transport] | None] = [None, StdlibTransport]


@pytest.fixture(params=TRANSPORTS, ids=["pooled", "stdlib"])
def transport(request: pytest.FixtureRequest) -> Callable[[Address], Transport] | None:
    """Both ways in which a blocking client sends its requests."""
    made: Callable[[Address], Transport] | None = request.param
    return made


def public(kind: type) -> dict[str, str]:
    """Return the public methods of a client with what they take."""
    return {
        name: str(inspect.signature(member).replace(return_annotation=inspect.Signature.empty))
        for name, member in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


# --- the surface -----------------------------------------------------------------------------------------------------


def test_both_clients_have_the_same_methods() -> None:
    """Each has every verb under the same name, with the same parameters and the same text."""
    blocking, awaited = public(Client), public(AsyncClient)
    assert blocking == awaited
    assert len(blocking) > 40
    for name in blocking:
        assert inspect.getdoc(getattr(Client, name)) == inspect.getdoc(getattr(AsyncClient, name)) or name == "listen"


def test_every_method_says_what_it_does() -> None:
    """Its text and its parameters are those of the call that it makes."""
    assert str(inspect.signature(Client.run)) == "(self, run_id: 'str')"
    assert all(inspect.getdoc(getattr(Client, name)) for name in public(Client))


def test_the_front_door_names_what_it_has() -> None:
    """What ``statem_dist`` exports can be had, and nothing else."""
    assert sorted(statem_dist.__all__) == statem_dist.__all__
    assert all(hasattr(statem_dist, name) for name in statem_dist.__all__)
    with pytest.raises(AttributeError, match="no attribute 'Server'"):
        _ = statem_dist.Server


def test_names_in_paths_lead_nowhere_else() -> None:
    """Whatever stands in an id is one part of the path; what would be a way up is refused."""
    assert calls.run("a/../b?x#y").path == "/v1/runs/a%2F..%2Fb%3Fx%23y"
    for text in ("", ".", ".."):
        with pytest.raises(errors.Invalid):
            calls.run(text)
    with pytest.raises(errors.Invalid, match="no id of a decision"):
        next(calls.decide("r/t2", approved=True))


def test_a_call_says_everything_that_is_sent() -> None:
    """Method, path, query, body, terms and the key that names it."""
    call = calls.goto_call("r", "b", confirm=["x"], decline={"y": "no"}, by=Actor("me", "dev"), if_version=7, wait=2)
    request = call.request("key-1")
    assert (request.method, request.target) == ("POST", "/v1/runs/r/goto?wait=2.000")
    assert msgspec.json.decode(request.body or b"") == {
        "target": "b",
        "on_manual": "fail",
        "confirm": ["x"],
        "decline": {"y": "no"},
        "agent_id": "me",
        "agent_role": "dev",
    }
    assert request.headers["If-Match"] == '"7"'
    assert request.headers["Idempotency-Key"] == "key-1"
    assert "Idempotency-Key" not in calls.run("r").request("key-1").headers


def test_a_new_run_sends_what_was_said_and_no_more() -> None:
    """What is left out is left to the service."""
    assert NewRun(runbook="release", confirm=True).body() == {
        "runbook": "release",
        "on_existing": "fail",
        "spec": "",
        "labels": {},
        "vars": {},
        "confirm": True,
    }


# --- where the service is --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "base"),
    [
        ("http://127.0.0.1:8080", "http://127.0.0.1:8080"),
        ("http://127.0.0.1:8080/v1", "http://127.0.0.1:8080"),
        ("https://statem.example/team/", "https://statem.example/team"),
        ("https://statem.example/team/v1/", "https://statem.example/team"),
        ("http://[::1]:8080", "http://[::1]:8080"),
    ],
)
def test_a_url_is_taken_as_people_have_it(given: str, base: str) -> None:
    """With or without a slash at the end or the ``/v1`` that the service prints."""
    assert base_url(given, "STATEM_URL") == base


@pytest.mark.parametrize(
    "given", ["127.0.0.1:8080", "ftp://x", "http://", "http://x:99999999", "http://x/?a=1", "http://x:y"]
)
def test_what_is_no_url_is_refused(given: str) -> None:
    """The complaint names the variable and shows how one looks; its exit code is that of wrong usage."""
    with pytest.raises(Usage, match="STATEM_URL") as caught:
        address_from({"STATEM_URL": given})
    assert "http://127.0.0.1:8080" in caught.value.hint


def test_a_password_in_a_url_is_refused_and_not_shown() -> None:
    """Whoever reads the complaint does not learn it."""
    with pytest.raises(Usage) as caught:
        address_from({"STATEM_URL": "http://user:hunter2@x"})
    assert "hunter2" not in caught.value.message + caught.value.hint


def test_the_token_is_shown_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither a client nor an address nor an error has it in its text."""
    monkeypatch.setenv("STATEM_TOKEN", TOKEN)
    client = Client("http://127.0.0.1:1", patience_seconds=0)
    with pytest.raises(Unavailable) as caught:
        client.whoami()
    shown = f"{client!r} {caught.value.message} {caught.value.hint} {caught.value.details} {caught.value.__cause__!r}"
    assert "verysecret" not in shown + repr(address_from({"STATEM_URL": "http://x", "STATEM_TOKEN": TOKEN}))
    with pytest.raises(Usage) as refused:
        address_from({"STATEM_URL": "http://x", "STATEM_TOKEN": f"{TOKEN}\nX-Other: 1"})
    assert "verysecret" not in str(refused.value)


# --- errors ----------------------------------------------------------------------------------------------------------


def every_error() -> Iterator[type[StatemError]]:
    """Yield each class of the tree."""
    waiting = [StatemError]
    while waiting:
        kind = waiting.pop()
        yield kind
        waiting += [each for each in kind.__subclasses__() if each.__module__ == errors.__name__]


@pytest.mark.parametrize("kind", [*every_error()], ids=lambda kind: kind.__name__)
def test_a_problem_is_the_error_that_the_service_met(kind: type[StatemError]) -> None:
    """Class, message, hint and details come through, so that exit codes and texts are the same as without a service."""
    document = {
        "type": f"/problems/{kind.code}",
        "status": kind.http_status,
        "code": kind.code,
        "detail": "What.",
        "hint": "Do.",
        "current": "a",
    }
    error = error_of(Reply(kind.http_status, {}, msgspec.json.encode(document)))
    assert type(error) is kind
    assert (error.message, error.hint, error.details["current"]) == ("What.", "Do.", "a")
    assert "detail" not in error.details


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (401, errors.NotAuthenticated),
        (403, errors.NotAuthorised),
        (404, errors.Unavailable),
        (405, errors.CallerError),
        (409, errors.Conflict),
        (412, errors.StaleVersion),
        (502, errors.Unavailable),
        (500, StatemError),
        (302, StatemError),
    ],
)
def test_an_answer_that_is_not_ours_is_known_by_its_status(status: int, kind: type[StatemError]) -> None:
    """As that of a proxy: HTML, or a list, or nothing."""
    for body in (b"<html>", b"[1]", b""):
        error = error_of(Reply(status, {}, body))
        assert type(error) is kind
        assert status == 404 or str(status) in error.message


def test_a_path_that_is_none_of_the_service_is_no_missing_run() -> None:
    """Neither somebody else's 404 nor that of another path may be taken for a run that does not exist."""
    for body in (b"<html>", b'{"code": "no_such_resource", "detail": "no", "status": 404}'):
        error = error_of(Reply(404, {}, body))
        assert type(error) is errors.Unavailable
        assert "STATEM_URL" in error.hint
    ours = error_of(Reply(404, {}, b'{"code": "not_found", "detail": "Run not found: r"}'))
    assert type(ours) is errors.NotFound


def test_the_problems_of_a_runbook_keep_their_places() -> None:
    """They are where the reader of runbooks puts them."""
    place = {"pointer": "/text", "line": 3, "column": 5, "field": "nodes.a", "detail": "no"}
    document = {"code": "runbook_invalid", "detail": "Invalid spec", "errors": [place]}
    error = error_of(Reply(422, {}, msgspec.json.encode(document)))
    assert error.details["problems"] == [{"line": 3, "column": 5, "field": "nodes.a", "hint": "", "message": "no"}]


def test_an_answer_that_makes_no_sense_is_an_error(transport: Callable[[Address], Transport] | None) -> None:
    """Whatever answers there is no service of ours."""
    with misbehaving(json_act({"hello": "world"})) as world, Client(world.url, transport=transport) as client:
        with pytest.raises(StatemError, match="cannot be understood") as caught:
            client.whoami()
        assert type(caught.value) is StatemError


# --- trying again ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drop", ["after", "middle"])
def test_a_lost_answer_leaves_one_effect(transport: Callable[[Address], Transport] | None, drop: Any) -> None:
    """The work was done and the connection died: the same key comes again, and the service knows it by that."""
    first = msgspec.structs.replace(json_act(MOVED), drop=drop)
    with misbehaving(first, first, json_act(MOVED)) as world, Client(world.url, transport=transport) as client:
        assert client.goto("r", "b").moved
        keys = [asked.headers["idempotency-key"] for asked in world.asked]
        assert len(keys) == 3
        assert world.effects == [keys[0]]
        assert client.goto("r", "b").moved
        assert len(world.effects) == 2, "another call has another key"


def test_the_same_holds_for_an_event_loop() -> None:
    """The asynchronous driver tries as often, with the same key."""

    async def ask(url: str) -> bool:
        async with AsyncClient(url) as client:
            return (await client.goto("r", "b")).moved

    with misbehaving(
        Act(drop="before"), msgspec.structs.replace(json_act(MOVED), drop="after"), json_act(MOVED)
    ) as world:
        assert asyncio.run(ask(world.url))
        assert (len(world.asked), len(world.effects)) == (3, 1)


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_what_passes_is_tried_again(transport: Callable[[Address], Transport] | None, status: int) -> None:
    """The answer of a service that has too much to do, or is just away, is not the last word."""
    with misbehaving(Act(status), json_act(ME)) as world, Client(world.url, transport=transport) as client:
        assert client.whoami().name == "n"
        assert len(world.asked) == 2


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 412, 422, 500])
def test_every_other_answer_is_the_answer(transport: Callable[[Address], Transport] | None, status: int) -> None:
    """Nothing that is wrong with the call itself is asked again."""
    with misbehaving(Act(status)) as world, Client(world.url, transport=transport) as client:
        with pytest.raises(StatemError):
            client.goto("r", "b")
        assert len(world.asked) == 1


def test_a_service_may_say_when_to_come_back() -> None:
    """``Retry-After`` is waited for if there is time, and else the answer is told at once."""
    busy = json_act({"code": "unavailable", "detail": "Redis is away."}, 503, Retry_After="0")
    later = json_act({"code": "unavailable", "detail": "Redis is away."}, 503, Retry_After="3600")
    date = Act(503, headers={"Retry-After": "Wed, 21 Oct 2015 07:28:00 GMT"})
    with misbehaving(busy, date, json_act(ME)) as world, Client(world.url) as client:
        assert client.whoami().name == "n"
    with misbehaving(later) as world, Client(world.url, patience_seconds=60) as client:
        with pytest.raises(Unavailable, match="Redis is away"):
            client.whoami()
        assert len(world.asked) == 1


def test_patience_ends(transport: Callable[[Address], Transport] | None) -> None:
    """A service that is not there is told as such, with where it was looked for and what to do."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
    client = Client(url, patience_seconds=0.3, transport=transport)
    with client, pytest.raises(Unavailable, match="refused") as caught:
        client.whoami()
    assert url in caught.value.message
    assert "statem-dist up" in caught.value.hint
    assert caught.value.exit_code == errors.ExitCode.UNREACHABLE


def test_a_service_that_hangs_up_for_ever_is_given_up(transport: Callable[[Address], Transport] | None) -> None:
    """Every try of one call carries the same key, to the last one."""
    with (
        misbehaving(Act(drop="after")) as world,
        Client(world.url, patience_seconds=0.3, transport=transport) as client,
    ):
        with pytest.raises(Unavailable):
            client.pause("r")
        assert len(world.asked) > 1
        assert len(world.effects) == 1


def test_a_connection_that_was_closed_is_no_trouble(transport: Callable[[Address], Transport] | None) -> None:
    """A service may close each connection after its answer; the next request takes another one."""
    closing = json_act(ME, Connection="close")
    with misbehaving(closing, closing, json_act(ME)) as world, Client(world.url, transport=transport) as client:
        assert [client.whoami().name for _ in range(3)] == ["n"] * 3
        assert len(world.asked) == 3, "none was tried again"


# --- waiting and paging ----------------------------------------------------------------------------------------------


def test_a_long_wait_is_spent_in_short_requests() -> None:
    """The first request waits, and then the transition is asked for until it has settled."""
    with misbehaving(json_act(PENDING, 202), json_act(PENDING), json_act(MOVED)) as world, Client(world.url) as client:
        assert client.goto("r", "b", wait=300).committed
        assert [asked.method for asked in world.asked] == ["POST", "GET", "GET"]
        assert world.asked[0].target == "/v1/runs/r/goto?wait=30.000"
        assert world.asked[1].target == "/v1/runs/r/transitions/t2?wait=30.000"


def test_nobody_waits_for_people_in_vain() -> None:
    """Where only decisions are left to wait for, the wait ends and says which."""
    asking = PENDING | {"decisions": ["r/t2/before_transfer.0"]}
    with misbehaving(json_act(asking, 202)) as world, Client(world.url) as client:
        seen = client.goto("r", "b", on_manual="wait", wait=300)
        assert (seen.pending, seen.decisions) == (True, ("r/t2/before_transfer.0",))
        assert len(world.asked) == 1


def test_pages_are_asked_for_one_by_one() -> None:
    """Who stops early has not asked for the rest."""

    def page(name: str, cursor: str | None) -> Act:
        item = {
            "run_id": name,
            "spec_name": "s",
            "status": "active",
            "current": "a",
            "version": 1,
            "labels": {},
            "created_at": 0,
            "updated_at": 0,
        }
        return json_act({"items": [item], "next_cursor": cursor})

    with misbehaving(page("a", "c1"), page("b", None)) as world, Client(world.url) as client:
        found = client.runs(labels={"k": "v w"}, page_size=1)
        assert next(found).run_id == "a"
        assert len(world.asked) == 1
        assert [each.run_id for each in found] == ["b"]
        assert [asked.target for asked in world.asked] == [
            "/v1/runs?limit=1&label=k%3Dv+w",
            "/v1/runs?limit=1&cursor=c1&label=k%3Dv+w",
        ]


# --- streams ---------------------------------------------------------------------------------------------------------

STREAM = (
    b"\xef\xbb\xbf: hello\r\nretry: 1500\r\n\r\n"
    b"id: 1\r\nevent: a\r\ndata: one\r\ndata:two\r\n\r\n"
    b": ping\n\n"
    b"id: 2\ndata: \xc3\xa4\n\n"
    b"data\n\n"
    b"id: x\0y\rdata: three\r\r"
    b"unknown: field\nevent: only\n\n"
    b"data: cut off"
)
FRAMES = [
    Frame("one\ntwo", "a", "1"),
    Frame("ä", "message", "2"),
    Frame("", "message", "2"),
    Frame("three", "message", "2"),
]


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 1000])
def test_a_stream_means_the_same_in_whatever_pieces_it_comes(size: int) -> None:
    """Ends of lines of all three kinds, comments, data of several lines, ids that stay, and what is not whole."""
    parser = Parser()
    pieces = [STREAM[start : start + size] for start in range(0, len(STREAM), size)]
    assert [frame for piece in pieces for frame in parser.feed(piece)] == FRAMES
    assert parser.retry_seconds == 1.5


def event(number: int) -> bytes:
    """Return an event of a run as the service sends it."""
    told = {"number": number, "ts": "2030-01-01T00:00:00.000+00:00", "event": "run_paused", "at": 1}
    return b"id: %d\ndata: %s\n\n" % (number, msgspec.json.encode(told))


def streamed(*parts: bytes, drop: Any = "") -> Act:
    """Return the act of sending a stream, whole or not."""
    return Act(200, b"retry: 2000\n\n" + b"".join(parts), {"Content-Type": "text/event-stream"}, drop)


END = b'event: end\ndata: {"status": "finished"}\n\n'


def numbers(world: Misbehaving, transport: Callable[[Address], Transport] | None) -> list[int]:
    """Return the numbers of the events that a blocking client hears."""
    with Client(world.url, transport=transport) as client:
        return [each.number for each in client.events("r")]


async def awaited_numbers(world: Misbehaving) -> list[int]:
    """Return the numbers of the events that an asynchronous client hears."""
    async with AsyncClient(world.url) as client:
        return [each.number async for each in client.events("r")]


def test_a_lost_stream_goes_on_where_it_was_lost(transport: Callable[[Address], Transport] | None) -> None:
    """Each connection names the last event that was heard, and the stream ends with the run."""
    acts = (streamed(event(1), event(2)), Act(503), Act(drop="before"), streamed(event(3), END))
    with misbehaving(*acts) as world:
        assert numbers(world, transport) == [1, 2, 3]
        assert [asked.headers.get("last-event-id") for asked in world.asked] == [None, "2", "2", "2"]
    with misbehaving(*acts) as world:
        assert asyncio.run(awaited_numbers(world)) == [1, 2, 3]


def test_an_event_that_was_cut_off_comes_again_whole(transport: Callable[[Address], Transport] | None) -> None:
    """Half an event is none."""
    half = streamed(event(1), event(2), drop="middle")
    with misbehaving(half, streamed(event(1), event(2), END)) as world:
        found = numbers(world, transport)
        assert found[-2:] in ([1, 2], [2])
        assert sorted(set(found)) == [1, 2]


def test_who_comes_back_after_the_end_is_told_so(transport: Callable[[Address], Transport] | None) -> None:
    """204 says that there is nothing to come back for."""
    with misbehaving(streamed(event(1)), Act(204, b"")) as world:
        assert numbers(world, transport) == [1]


def test_a_stream_that_is_refused_is_an_error(transport: Callable[[Address], Transport] | None) -> None:
    """As when the token was revoked meanwhile."""
    refused = json_act({"code": "not_authenticated", "detail": "The token is unknown, expired or revoked."}, 401)
    with misbehaving(streamed(event(1)), refused) as world, Client(world.url, transport=transport) as client:
        heard = client.events("r")
        assert next(heard).number == 1
        with pytest.raises(errors.NotAuthenticated):
            next(heard)


def test_a_stream_that_never_begins_is_given_up(transport: Callable[[Address], Transport] | None) -> None:
    """A service that opens streams and closes them at once is not asked for ever."""
    with misbehaving(streamed()) as world, Client(world.url, patience_seconds=0.3, transport=transport) as client:
        with pytest.raises(Unavailable, match="too early"):
            next(client.events("r"))
        assert 1 < len(world.asked) < 20


def test_who_has_listened_bears_an_outage(transport: Callable[[Address], Transport] | None) -> None:
    """What was heard before is waited for much longer than what was never there, also without patience for requests."""
    acts = (streamed(event(1)), Act(503), Act(drop="before"), streamed(event(2), END))
    with misbehaving(*acts) as world, Client(world.url, patience_seconds=0, transport=transport) as client:
        assert [each.number for each in client.events("r")] == [1, 2]

    async def awaited(url: str) -> list[int]:
        async with AsyncClient(url, patience_seconds=0) as client:
            return [each.number async for each in client.events("r")]

    with misbehaving(*acts) as world:
        assert asyncio.run(awaited(world.url)) == [1, 2]


def test_an_outage_is_not_borne_for_ever(transport: Callable[[Address], Transport] | None) -> None:
    """After the time that was given for it, and at once where nothing was heard before."""
    options: Any = {"patience_seconds": 0, "outage_seconds": 0.3, "transport": transport}
    with misbehaving(streamed(event(1)), Act(503)) as world, Client(world.url, **options) as client:
        heard = client.events("r")
        assert next(heard).number == 1
        with pytest.raises(Unavailable):
            next(heard)
        assert len(world.asked) > 2
    with misbehaving(Act(503)) as world, Client(world.url, **options) as client:
        with pytest.raises(Unavailable):
            next(client.events("r"))
        assert len(world.asked) == 1
