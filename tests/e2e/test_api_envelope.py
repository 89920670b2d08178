"""What is around every request: who calls is known before a body is read, and whatever happens is a proper answer."""

from __future__ import annotations

import asyncio
import re
import socket
from collections.abc import Iterator
from urllib.parse import urlsplit

import httpx2
import pytest
from starlette.types import Message

from statem_api.app import make_app
from statem_api.options import ApiOptions
from statem_api.service import Service
from statem_dist.embedded import server
from statem_dist.settings import Settings
from tests.support.programs import Site
from tests.support.service import Api, Caller, serve

pytestmark = pytest.mark.e2e

TWO = "initial: a\nnodes: {a: {dynamic_before_transfer: {}}, b: {}}\nedges: [{from: a, to: b}]\n"


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    """The service, in a store that has tokens."""
    site = Site()
    try:
        site.worker()
        yield serve(site)
    finally:
        site.close()


@pytest.fixture(scope="module")
def admin(api: Api) -> Caller:
    """An admin, who has started a run."""
    admin = api.caller("admin")
    admin.start(TWO)
    return admin


def raw(api: Api, request: str) -> str:
    """Send a request as it stands here, and return the answer, of which the service has to end the connection."""
    url = urlsplit(api.url)
    with socket.create_connection((url.hostname, url.port), timeout=30) as connection:
        connection.sendall(request.encode())
        return b"".join(iter(lambda: connection.recv(65536), b"")).decode()


# --- who calls -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["/v1/runs", "/v1/runs/bulk", "/v1/runbooks", "/v1/nothing"])
def test_a_body_without_a_token_is_not_even_parsed(api: Api, admin: Caller, path: str) -> None:
    """Malformed JSON, and none at all, of somebody unknown: 401 with the way in, and no word about the body."""
    for content in (b"{", b"\xff", b"[]," * 100_000):
        response = httpx2.post(f"{api.url}{path}", content=content, headers={"Content-Type": "application/json"})
        assert response.status_code == 401, response.text
        assert response.headers["WWW-Authenticate"].startswith("Bearer")
        assert response.headers["Content-Type"] == "application/problem+json"
        assert response.json()["code"] == "not_authenticated"


def test_who_has_no_token_is_refused_before_the_body_has_come(api: Api, admin: Caller) -> None:
    """The answer is there although the body that was announced never comes."""
    host = urlsplit(api.url).netloc
    request = (
        f"POST /v1/runs HTTP/1.1\r\nHost: {host}\r\nContent-Type: application/json\r\n"
        "Content-Length: 1000\r\nConnection: close\r\n\r\n{"
    )
    assert raw(api, request).startswith("HTTP/1.1 401 ")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/openapi.json", "/problems/not_found"])
def test_what_is_for_everybody_stays_open(api: Api, admin: Caller, path: str) -> None:
    """Nobody needs a token for these."""
    assert httpx2.get(f"{api.url}{path}").status_code == 200


def test_a_service_that_asked_for_a_token_never_stops_to(site: Site) -> None:
    """Also when its store has lost everything: who has no token is nobody, and surely no admin."""
    api = serve(site)
    text = api.token("admin")
    Caller(api.url, text).get("/v1/whoami")
    site.redis("FLUSHALL")
    Caller(api.url).get("/v1/whoami", expect=401)
    Caller(api.url, text).get("/v1/whoami", expect=401)
    Caller(api.url, api.token("admin")).get("/v1/whoami")


# --- what is no proper request ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("headers", [{"Host": "[::1"}, {"Host": "["}, {"Origin": "http://["}, {"Origin": "http://[x"}])
def test_a_malformed_host_or_origin_is_refused(api: Api, admin: Caller, headers: dict[str, str]) -> None:
    """403, for everybody, and no failure of the service."""
    for path in ("/healthz", "/v1/whoami"):
        response = httpx2.get(f"{api.url}{path}", headers=headers)
        assert (response.status_code, response.json()["code"]) == (403, "forbidden_origin")


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", "/v1/runs/r/dynamic", rb'{"checks": [{"type": "manual", "text": "\ud800"}]}'),
        ("PUT", "/v1/runs/r/dynamic", rb'{"checks": [], "basis": {"\udfff": 1}}'),
        ("PUT", "/v1/runs/r/dynamic", b'{"checks": ' + b"[" * 900 + rb'"\ud800"' + b"]" * 900 + b"}"),
        ("POST", "/v1/runs/r/goto", rb'{"target": "b", "\ud800": 1}'),
        ("POST", "/v1/runs/bulk", rb'{"runs": [{"runbook": "x", "labels": {"a": "\ud800"}}]}'),
        (
            "POST",
            "/v1/agui/runs",
            rb'{"threadId": "r", "runId": "x", "messages": [], "forwardedProps": {"goto": "\ud800"}}',
        ),
    ],
)
def test_half_a_surrogate_pair_is_refused(api: Api, admin: Caller, method: str, path: str, body: bytes) -> None:
    """JSON can say it and nothing can keep it: it is a mistake of the body, wherever in it."""
    refused = admin.ask(method, path, expect=422, content=body, headers={"Content-Type": "application/json"}).json()
    assert refused["code"] == "invalid"
    emoji = b'{"checks": [{"type": "manual", "text": "\\ud83d\\ude00"}]}'
    admin.ask("PUT", "/v1/runs/r/dynamic", expect=200, content=emoji, headers={"Content-Type": "application/json"})


def test_methods_that_somebody_invents_are_counted_as_one(api: Api, admin: Caller) -> None:
    """What is counted does not grow with them."""
    for number in range(20):
        httpx2.request(f"M{number}", f"{api.url}/v1/runs")
    text = admin.ask("GET", "/metrics", expect=200).text
    assert 'method="other"' in text
    assert re.search(r'method="M\d', text) is None


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/v1/runs", "GET, POST"),
        ("HEAD", "/v1/runs", "GET, POST"),
        ("PATCH", "/v1/runs/r", "GET"),
        ("INVENTED", "/v1/runbooks", "GET, POST"),
        ("POST", "/openapi.json", "GET, HEAD"),
    ],
)
def test_every_method_of_a_resource_is_allowed(api: Api, admin: Caller, method: str, path: str, allowed: str) -> None:
    """405 lists them all, not those of the first route that has the path."""
    assert admin.ask(method, path, expect=405).headers["Allow"] == allowed


def test_the_status_of_a_run_is_not_that_of_the_answer(api: Api, admin: Caller) -> None:
    """A problem tells both: ``status`` is the one of HTTP."""
    refused = admin.post("/v1/runs/r/resume", expect=409)
    assert (refused["status"], refused["run_status"], refused["current"]) == (409, "active", "a")


# --- defects ---------------------------------------------------------------------------------------------------------


def test_a_defect_is_an_answer_like_any_other(site: Site, caplog: pytest.LogCaptureFixture) -> None:
    """It has its id and the headers of every answer, is counted and logged under its id, and nothing leaves the app."""
    url = server.ensure(site.state_dir, idle_stop_seconds=0).redis_url
    app = make_app(ApiOptions(), Settings(state_dir=site.state_dir, redis_url=url))

    @app.get("/defect")
    async def defect() -> None:
        raise ZeroDivisionError("a secret")

    said: list[Message] = []

    async def receive() -> Message:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Message) -> None:
        said.append(message)

    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": "GET",
        "scheme": "http",
        "path": "/defect",
        "raw_path": b"/defect",
        "query_string": b"",
        "headers": [(b"host", b"localhost"), (b"x-request-id", b"mine")],
    }
    asyncio.run(app(scope, receive, send))
    service = app.state.service
    assert isinstance(service, Service)
    start, body = said[0], said[1]
    assert start["status"] == 500
    headers = dict(start["headers"])
    assert headers[b"x-request-id"] == b"mine"
    assert headers[b"x-content-type-options"] == b"nosniff"
    assert b"secret" not in body["body"]
    assert 'route="/defect",status="500"' in service.metrics.text(service.engine).decode()
    (logged,) = [each for each in caplog.records if each.exc_info]
    assert "mine" in logged.getMessage()
    service.engine.close()
