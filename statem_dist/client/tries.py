"""Whether a call is tried again, and when. Every call may be: a POST carries a key by which the service knows it again.

What is tried again: no answer at all, and the answers 429, 502, 503 and 504, which say that nothing is wrong with the
call itself. Every other answer is the answer.
"""

from __future__ import annotations

import random
import time

from statem_dist.client.problems import error_of
from statem_dist.client.wire import Lost, Reply
from statem_dist.deadline import Deadline
from statem_dist.errors import StatemError, Unavailable

PASSING = frozenset({429, 502, 503, 504})
"""Answers after which the same call is tried again."""

FIRST_PAUSE_SECONDS = 0.1

PAUSE_SECONDS_MAX = 2.0


class Tries:
    """The tries of one call. Time is counted from the first one that failed.

    Args:
        url: the service, for what is said of it.
        patience_seconds: how long to go on trying.
    """

    def __init__(self, url: str, patience_seconds: float) -> None:
        self._url = url
        self._patience_seconds = patience_seconds
        self._end: Deadline | None = None
        self._pause = FIRST_PAUSE_SECONDS

    def lost(self, lost: Lost) -> float:
        """Return the seconds to wait before the next try, after one without an answer.

        Raises:
            Unavailable: there is no time for another try.
        """
        return self._again(None, unreachable(self._url, str(lost)))

    def passing(self, reply: Reply) -> float | None:
        """Return the same after an answer; None if it is the answer to the call.

        Raises:
            StatemError: it tells of a passing problem, and there is no time for another try.
        """
        if reply.status not in PASSING:
            return None
        return self._again(_retry_after(reply), error_of(reply))

    def forget(self) -> None:
        """Begin anew: it works again."""
        self._end, self._pause = None, FIRST_PAUSE_SECONDS

    def _again(self, asked_for: float | None, error: StatemError) -> float:
        if self._end is None:
            self._end = Deadline(self._patience_seconds)
        # So that callers who failed together do not come back together.
        pause = self._pause * (0.5 + random.random() / 2) if asked_for is None else asked_for
        self._pause = min(2 * self._pause, PAUSE_SECONDS_MAX)
        remaining = self._end.remaining
        if remaining is not None and pause >= remaining:
            raise error
        return pause


def unreachable(url: str, why: str) -> Unavailable:
    """Return the error for a service that does not answer."""
    return Unavailable(
        f"The service at {url} cannot be reached: {why}.",
        hint="Is it running (`statem-dist up`, `statem-dist api`)? STATEM_URL says where commands look for it.",
    )


def _retry_after(reply: Reply) -> float | None:
    """Return the seconds that an answer asks to wait, given as such or as a date."""
    given = reply.headers.get("retry-after", "").strip()
    if given.isascii() and given.isdecimal():
        return float(given)
    if not given:
        return None
    from email.utils import parsedate_to_datetime

    try:
        return max(0.0, parsedate_to_datetime(given).timestamp() - time.time())
    except ValueError:
        return None
