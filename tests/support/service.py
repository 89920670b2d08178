"""The REST service as a real program, and a caller for it that keeps to plain requests."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import httpx2

from statem_dist.embedded import server
from statem_dist.engine import Engine
from statem_dist.settings import Settings
from tests.support.programs import Program, Site, eventually

WAIT = "?wait=30"
"""Waits for a transition longer than any of the tests' checks takes."""


class Caller:
    """Somebody who calls the service, with a token or without one.

    Args:
        url: where the service is.
        token: the text of a token.
    """

    def __init__(self, url: str, token: str = "") -> None:
        self.url = url
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        # Nothing is kept open between requests: nobody has to close a caller.
        none_kept = httpx2.Limits(max_keepalive_connections=0)
        self.http = httpx2.Client(base_url=url, headers=headers, timeout=60, limits=none_kept)

    def get(self, path: str, *, expect: int = 200, **options: Any) -> Any:
        """Return the JSON of an answer, whose status is the one expected."""
        return self.ask("GET", path, expect=expect, **options).json()

    def post(self, path: str, body: Any = None, *, expect: int = 200, **options: Any) -> Any:
        """Post a JSON body, and return the JSON of the answer."""
        return self.ask("POST", path, expect=expect, json={} if body is None else body, **options).json()

    def ask(self, method: str, path: str, *, expect: int, **options: Any) -> httpx2.Response:
        """Return an answer, whose status is the one expected."""
        response = self.http.request(method, path, **options)
        assert response.status_code == expect, f"{method} {path}: {response.status_code} {response.text}"
        return response

    def start(self, text: str, run_id: str = "r", *, expect: int = 201, **fields: Any) -> Any:
        """Start a run from the text of a runbook."""
        return self.post(f"/v1/runs{WAIT}", {"text": text, "run_id": run_id, **fields}, expect=expect)

    @contextmanager
    def stream(self, path: str, **headers: str) -> Iterator[Stream]:
        """Open a stream of events for the length of a ``with`` block."""
        with self.http.stream("GET", path, headers={"Accept": "text/event-stream", **headers}) as response:
            assert response.status_code == 200, response.read()
            yield Stream(response)


class Stream:
    """A stream of server-sent events, read message by message."""

    def __init__(self, response: httpx2.Response) -> None:
        self._lines = response.iter_lines()

    def __iter__(self) -> Iterator[dict[str, str]]:
        """Yield messages as their fields, those with data or a comment of their own."""
        fields: dict[str, str] = {}
        for line in self._lines:
            if not line:
                if fields:
                    yield fields
                fields = {}
                continue
            name, _, value = line.partition(":")
            value = value.removeprefix(" ")
            fields[name or "comment"] = f"{fields[name]}\n{value}" if name == "data" and name in fields else value

    def messages(self) -> Iterator[dict[str, str]]:
        """Yield the messages that have data."""
        return (fields for fields in self if "data" in fields)


@contextmanager
def library(site: Site) -> Iterator[Engine]:
    """The verbs in this process, on the store of a site."""
    url = server.ensure(site.state_dir, idle_stop_seconds=0).redis_url
    engine = Engine(Settings.from_environment(site.environment), url, {}, inline=False)
    try:
        yield engine
    finally:
        engine.close()


class Api:
    """The service as a program of a site."""

    def __init__(self, site: Site, program: Program, url: str) -> None:
        self.site = site
        self.program = program
        self.url = url

    def caller(self, role: str = "", *options: str) -> Caller:
        """Return somebody with a new token of a role; without a role, somebody without a token."""
        if not role:
            return Caller(self.url)
        return Caller(self.url, self.token(role, *options))

    def token(self, role: str, *options: str) -> str:
        """Make a token, and return its text."""
        return self.site.run("token", "create", "--role", role, "--name", role, *options).stdout.strip()


def serve(site: Site, *options: str, **settings: str) -> Api:
    """Start the service on a free port, and return it once it answers."""
    program = site.begin("api", "--port", "0", *options, **settings)
    found = eventually(
        lambda: re.search(r"Serving: (http://\S+)/v1", program.stdout) or not program.running,
        "the service listens",
        lambda: program.stderr,
    )
    assert isinstance(found, re.Match), program.stderr
    url = found[1]

    def answers() -> bool:
        try:
            return httpx2.get(f"{url}/healthz").status_code == 200
        except httpx2.TransportError:
            return False

    eventually(answers, "the service answers", lambda: program.stderr)
    return Api(site, program, url)
