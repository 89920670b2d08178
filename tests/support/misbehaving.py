"""A real HTTP server that misbehaves as it is told: it drops connections, answers late, or answers nonsense."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Literal

import msgspec
from msgspec import Struct


class Asked(Struct, frozen=True):
    """A request as it came."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes


class Act(Struct, frozen=True):
    """What the server does with the next request.

    ``drop`` closes the connection: ``before`` anything is done, ``after`` the work was done but nothing is said, or in
    the ``middle`` of the answer.
    """

    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = {}
    drop: Literal["", "before", "after", "middle"] = ""


class Misbehaving:
    """What the server was asked, and what its requests have led to: one effect for each idempotency key, or request."""

    def __init__(self, acts: Sequence[Act]) -> None:
        self.asked: list[Asked] = []
        self.effects: list[str] = []
        self._acts = list(acts)
        self._lock = threading.Lock()
        self.url = ""

    def handle(self, asked: Asked) -> Act:
        """Note a request, do its work, and return what to answer; the last act is repeated for ever."""
        with self._lock:
            self.asked.append(asked)
            act = self._acts.pop(0) if len(self._acts) > 1 else self._acts[0]
            effect = asked.headers.get("idempotency-key", f"request {len(self.asked)}")
            if act.drop != "before" and act.status < 400 and effect not in self.effects:
                self.effects.append(effect)
            return act


def json_act(document: Any, status: int = 200, **headers: str) -> Act:
    """Return the act of answering with a document."""
    given = {name.replace("_", "-"): value for name, value in headers.items()}
    return Act(status, msgspec.json.encode(document), given)


@contextmanager
def misbehaving(*acts: Act) -> Iterator[Misbehaving]:
    """Run such a server for the length of a ``with`` block."""
    world = Misbehaving(acts)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def answer(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            headers = {name.lower(): value for name, value in self.headers.items()}
            act = world.handle(Asked(self.command, self.path, headers, body))
            if act.drop in ("before", "after"):
                self.hang_up()
                return
            self.send_response(act.status)
            for name, value in act.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(act.body)))
            self.end_headers()
            if act.drop == "middle":
                self.wfile.write(act.body[: len(act.body) // 2])
                self.wfile.flush()
                self.hang_up()
                return
            self.wfile.write(act.body)

        def hang_up(self) -> None:
            self.close_connection = True
            with suppress(OSError):
                self.connection.shutdown(socket.SHUT_RDWR)

        def log_message(self, format: str, *words: Any) -> None:
            """Say nothing."""

        do_GET = do_POST = do_PUT = do_DELETE = answer

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        world.url = f"http://127.0.0.1:{server.server_address[1]}"
        try:
            yield world
        finally:
            server.shutdown()
            thread.join()
