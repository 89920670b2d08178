"""The small Redis client against canned bytes."""

from __future__ import annotations

import os
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from threading import Thread

import pytest

from statem_dist.resp import Connection, ProtocolError, Reply, ReplyError

Serve = Callable[[bytes], str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Serve one connection with the given bytes after its first request, then close it; returns the socket's path."""
    threads: list[Thread] = []
    with tempfile.TemporaryDirectory() as directory:

        def start(answer: bytes) -> str:
            path = f"{directory}/{len(threads)}"
            listener = socket.socket(socket.AF_UNIX)
            listener.bind(path)
            listener.listen()

            def answer_once() -> None:
                with listener, closing(listener.accept()[0]) as peer:
                    Path(path + ".request").write_bytes(peer.recv(65536))
                    peer.sendall(answer)

            threads.append(Thread(target=answer_once))
            threads[-1].start()
            return path

        yield start
        for thread in threads:
            thread.join()


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (b"+OK\r\n", b"OK"),
        (b":-42\r\n", -42),
        (b"$5\r\na\r\nbc\r\n", b"a\r\nbc"),
        (b"$0\r\n\r\n", b""),
        (b"$-1\r\n", None),
        (b"*-1\r\n", None),
        (b"*0\r\n", []),
        (b"*3\r\n:1\r\n*2\r\n$1\r\nx\r\n$-1\r\n+y\r\n", [1, [b"x", None], b"y"]),
    ],
)
def test_every_reply_type_is_decoded(serve: Serve, answer: bytes, expected: Reply) -> None:
    """Each RESP2 type becomes its Python value, also when nested, empty or null."""
    with Connection(serve(answer)) as connection:
        assert connection.call("ANY") == expected


def test_arguments_are_sent_as_bulk_strings(serve: Serve) -> None:
    """Text goes out as UTF-8, bytes as they are, numbers as decimals, each with its length in bytes."""
    path = serve(b"+OK\r\n")
    with Connection(path) as connection:
        connection.call("SET", "ü", b"\x00\r\n", 7, 1.5)
    expected = b"*5\r\n$3\r\nSET\r\n$2\r\n\xc3\xbc\r\n$3\r\n\x00\r\n\r\n$1\r\n7\r\n$3\r\n1.5\r\n"
    assert Path(path + ".request").read_bytes() == expected


def test_an_error_reply_is_raised_with_its_code(serve: Serve) -> None:
    """The first word of an error tells a program what happened, and the connection is not closed over it."""
    with Connection(serve(b"-NOSCRIPT No matching script\r\n")) as connection:
        with pytest.raises(ReplyError, match="No matching script") as caught:
            connection.call("EVALSHA")
        assert caught.value.code == "NOSCRIPT"
        assert connection.fileno() >= 0


def test_an_error_inside_an_array_is_a_value(serve: Serve) -> None:
    """One failed command of a transaction does not hide the results of the others."""
    with Connection(serve(b"*2\r\n+OK\r\n-ERR no\r\n")) as connection:
        reply = connection.call("EXEC")
    assert isinstance(reply, list)
    assert reply[0] == b"OK"
    assert isinstance(reply[1], ReplyError)


@pytest.mark.parametrize("answer", [b"", b"$10\r\nhalf", b"*2\r\n+one\r\n", b"+no end"])
def test_a_lost_connection_is_an_error_and_closes_ours(serve: Serve, answer: bytes) -> None:
    """Half a reply is never returned, and the connection cannot be used for another request."""
    with Connection(serve(answer)) as connection:
        with pytest.raises(ConnectionError):
            connection.call("GET", "x")
        assert connection.fileno() == -1


@pytest.mark.parametrize("answer", [b"HTTP/1.1 400 Bad Request\r\n", b":many\r\n", b"$x\r\n"])
def test_another_protocol_is_recognised(serve: Serve, answer: bytes) -> None:
    """Bytes that are no RESP2 raise ProtocolError rather than something accidental."""
    with Connection(serve(answer)) as connection, pytest.raises(ProtocolError):
        connection.call("PING")


def test_nobody_listening_leaks_no_descriptor(tmp_path: Path) -> None:
    """A connect that fails raises FileNotFoundError and closes its socket."""
    before = os.listdir("/dev/fd")
    with pytest.raises(FileNotFoundError):
        Connection(str(tmp_path / "none"))
    assert len(os.listdir("/dev/fd")) == len(before)
