"""The wire protocol of the supervisor, spoken by hand: what is malformed is answered and harms nobody."""

from __future__ import annotations

import base64
import json
import os
import socket
from collections.abc import Iterator
from typing import Any, BinaryIO

import pytest

from statem_dist.checks.process import _spawn_supervisor

pytestmark = pytest.mark.e2e


class Wire:
    """The worker's end of the socket."""

    def __init__(self) -> None:
        self.socket, theirs = socket.socketpair()
        with theirs:
            self.pid = _spawn_supervisor(theirs.fileno(), "token", 100, 100, 0.3)
        self.replies: BinaryIO = self.socket.makefile("rb")

    def send(self, body: bytes) -> None:
        """Send one frame."""
        self.socket.sendall(len(body).to_bytes(4, "big") + body)

    def receive(self) -> dict[str, Any]:
        """Return the next reply."""
        length = int.from_bytes(self.replies.read(4), "big")
        reply: dict[str, Any] = json.loads(self.replies.read(length))
        return reply

    def close(self) -> int:
        """Close the socket; return the exit status of the supervisor."""
        self.replies.close()
        self.socket.close()
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])


@pytest.fixture
def wire() -> Iterator[Wire]:
    """A supervisor that must end well, whatever was said to it."""
    wire = Wire()
    yield wire
    assert wire.close() == 0


def run_request(number: object, **changes: object) -> bytes:
    """Return a request to run ``echo hi``, some members changed."""
    request = {
        "op": "run",
        "id": number,
        "run": base64.b64encode(b"echo hi").decode(),
        "cwd": base64.b64encode(b"/").decode(),
        "environ": base64.b64encode(b"PATH=/usr/bin:/bin").decode(),
        "stdin": None,
        "timeout": None,
    }
    return json.dumps({**request, **changes}).encode()


@pytest.mark.parametrize(
    ("frame", "number"),
    [
        (b"", None),
        (b"{", None),
        (b"\xff\xfe", None),
        (b"[]", None),
        (b"{}", None),
        (b'{"op": "run", "id": "7"}', None),
        (b'{"op": "dance", "id": 7}', 7),
        (b'{"op": "run", "id": 7}', 7),
        (run_request(7, run=1), 7),
        (run_request(7, run="no base64!!"), 7),
        (run_request(7, environ=base64.b64encode(b"=x").decode()), 7),
        (run_request(7, timeout=0), 7),
        (run_request(7, timeout=True), 7),
        (run_request(7, timeout="1"), 7),
        (run_request(7, timeout=float("nan")), 7),
        (run_request(7, stdin=5), 7),
        (run_request(7, limits=5), 7),
        (run_request(7, limits={"sleep": 1}), 7),
        (run_request(7, limits={"cpu": "1"}), 7),
        (run_request(7, limits={"cpu": 0}), 7),
        (run_request(7, limits={"cpu": True}), 7),
        (run_request(7, wrapper=[1]), 7),
        (run_request(7, wrapper={"argv": "x"}), 7),
        (run_request(7, wrapper={"argv": [1]}), 7),
        (run_request(7, wrapper={"argv": ["no base64!!"]}), 7),
        (run_request(7, wrapper={"argv": [], "arguments": 5}), 7),
    ],
)
def test_a_malformed_request_is_answered(wire: Wire, frame: bytes, number: int | None) -> None:
    """Nonsense is refused under its number if it has one, and the next request works."""
    wire.send(frame)
    reply = wire.receive()
    assert reply["id"] == number
    assert reply["finished"]["failure"] == "refused"
    assert reply["finished"]["text"]
    wire.send(run_request(8))
    reply = wire.receive()
    assert (reply["id"], reply["finished"]["exit_code"]) == (8, 0)
    assert base64.b64decode(reply["finished"]["stdout"]["head"]) == b"hi\n"


def test_an_id_in_use_is_refused(wire: Wire) -> None:
    """Two commands never share a number; the first is not disturbed."""
    wire.send(run_request(7, run=base64.b64encode(b"sleep 60").decode()))
    wire.send(run_request(7))
    assert wire.receive()["finished"]["failure"] == "refused"
    wire.send(b'{"op": "cancel", "id": 7, "why": "enough"}')
    assert wire.receive()["finished"]["cancelled"] == "enough"


def test_cancelling_the_unknown_is_no_matter(wire: Wire) -> None:
    """A cancellation that comes too late is not answered."""
    wire.send(b'{"op": "cancel", "id": 99, "why": "late"}')
    wire.send(run_request(8))
    assert wire.receive()["id"] == 8


def test_requests_may_arrive_in_pieces(wire: Wire) -> None:
    """Frames are put together however the socket cuts them."""
    body = run_request(8)
    for octet in len(body).to_bytes(4, "big") + body:
        wire.socket.sendall(bytes([octet]))
    assert wire.receive()["id"] == 8


def test_a_stream_that_makes_no_sense_ends_the_supervisor(wire: Wire) -> None:
    """After an impossible length nothing can be understood: it says so and leaves."""
    wire.socket.sendall(b"\xff\xff\xff\xff")
    assert wire.receive()["finished"]["failure"] == "refused"
    assert wire.replies.read() == b""


def test_results_are_delivered_to_a_worker_that_only_listens(wire: Wire) -> None:
    """A worker that has said its last word still gets the ends of its commands."""
    wire.send(run_request(7, run=base64.b64encode(b"sleep 60").decode()))
    wire.socket.shutdown(socket.SHUT_WR)
    reply = wire.receive()
    assert (reply["id"], reply["finished"]["cancelled"]) == (7, "shutdown")
