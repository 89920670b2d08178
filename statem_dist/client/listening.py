"""Listening to a stream of the service over as many connections as it takes, without a gap or a repetition."""

from __future__ import annotations

from collections.abc import Callable
from typing import Generic, TypeVar
from urllib.parse import urlencode

import msgspec

from statem_dist.client.problems import error_of
from statem_dist.client.sse import Frame, Parser
from statem_dist.client.tries import Tries
from statem_dist.client.wire import Lost, Reply, Request
from statem_dist.errors import StatemError

T = TypeVar("T")

SILENCE_SECONDS = 40.0
"""After so long without a byte a connection counts as lost; the service shows every 15 s that it lives."""


class Listening(Generic[T]):
    """What is heard of one stream, and where to go on with it after a lost connection. It may be listened to once.

    Args:
        path: the stream.
        query: what is asked of it.
        decode: makes of a frame what is told.
        last_id: the id of the last event that is known; None begins with the first, or with what is to come.
    """

    def __init__(
        self,
        path: str,
        query: tuple[tuple[str, str], ...],
        decode: Callable[[Frame], T],
        last_id: str | None,
    ) -> None:
        self._target = path + (f"?{urlencode(query)}" if query else "")
        self._decode = decode
        self._last_id = last_id
        self._parser = Parser()
        self._tries = self._once_heard = Tries("", 0.0)
        self.ended = False
        """Whether nothing more is to come: the service has said so."""

    def begin(self, tries: Tries, once_heard: Tries) -> None:
        """Say how long a service that does not answer is borne.

        Args:
            tries: until something was heard; a service that is not there at all is told of soon.
            once_heard: from then on; who listens outlasts a restart of the service, as who waits for a transition does.
        """
        self._tries, self._once_heard = tries, once_heard

    def request(self) -> Request:
        """Return what is sent for the next connection."""
        self._parser = Parser()
        headers = {"Accept": "text/event-stream"}
        if self._last_id is not None:
            headers["Last-Event-ID"] = self._last_id
        return Request("GET", self._target, headers)

    def answered(self, reply: Reply) -> float:
        """Return the seconds to wait before the next connection, after an answer that is no stream.

        Raises:
            StatemError: it tells of a problem that does not pass.
        """
        if reply.status == 204:
            self.ended = True
            return 0.0
        pause = self._tries.passing(reply)
        if pause is None:
            raise error_of(reply)
        return pause

    def lost(self, lost: Lost) -> float:
        """Return the seconds to wait before the next connection, after one that was lost or has ended too early.

        Raises:
            Unavailable: the service has not answered for too long.
        """
        return self._tries.lost(lost)

    def heard(self, piece: bytes) -> list[T]:
        """Return what a piece of the stream tells; nothing for a heartbeat."""
        frames = self._parser.feed(piece)
        if frames or piece.startswith(b":"):
            # What a stream begins with says nothing of whether it goes on.
            self._tries = self._once_heard
            self._tries.forget()
        told: list[T] = []
        for frame in frames:
            if frame.event == "end":
                self.ended = True
                break
            try:
                told.append(self._decode(frame))
            except (msgspec.DecodeError, LookupError) as error:
                raise StatemError(f"An event of {self._target} cannot be understood: {error}.") from error
        if self._parser.last_id is not None:
            self._last_id = self._parser.last_id
        return told
