"""How long somebody waits: a moment on the monotonic clock, or for ever."""

from __future__ import annotations

import time

LOOK_AGAIN_SECONDS = 5.0
"""A waiting caller looks at the run at least that often, whatever was announced."""

OUTAGE_SECONDS = 60.0
"""How long a caller that waits for a transition bears a store or a service that is away."""


class Deadline:
    """A moment on the monotonic clock, or never.

    Args:
        seconds: from now; None means never.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._at = None if seconds is None else time.monotonic() + seconds

    @property
    def passed(self) -> bool:
        """Whether time is up."""
        return self._at is not None and time.monotonic() >= self._at

    @property
    def remaining(self) -> float | None:
        """Seconds that are left, not below 0; None without a limit."""
        return None if self._at is None else max(0.0, self._at - time.monotonic())

    def expire(self) -> None:
        """Let it pass now: whoever goes by it stops at the next look."""
        self._at = time.monotonic()

    def bound(self, seconds: float) -> float:
        """Return a pause of at most ``seconds`` that does not go beyond this moment."""
        remaining = self.remaining
        return max(0.0, seconds if remaining is None else min(seconds, remaining))


NEVER = Deadline()
"""For whoever waits as long as it takes; nobody expires it."""
