"""Who of many does a duty that one can do for all: a small lease in the store, by the server's clock.

It saves work and guarantees nothing: whoever does the duty must bear that somebody else does it at the same time,
because a process that was frozen may still take itself for the leader.
"""

from __future__ import annotations

from statem_dist.store import keys
from statem_dist.store.redis_store import RedisStore, Script

LEASE_SECONDS = 3.0
"""How long a leader that says nothing is waited for, and so how late another one takes over."""

LEAD = Script("lead")
RESIGN = Script("resign")


class Leadership:
    """The wish of one process to lead in a duty.

    Args:
        store: where leaders are known.
        duty: its name.
        who: a name that no other process has.
    """

    def __init__(self, store: RedisStore, duty: str, who: str) -> None:
        self._store = store
        self._key = keys.leader(duty)
        self._who = who

    def lead(self) -> float:
        """Take the lead, or keep it; return 0.0, or the seconds after which it is worth asking again.

        Raises:
            Unavailable: the store cannot be asked.
        """
        left_ms = self._store.run_script(LEAD, [self._key], [self._who, round(LEASE_SECONDS * 1000)])
        return int(left_ms) / 1000

    def resign(self) -> None:
        """Let somebody else lead; it is nothing if somebody does already.

        Raises:
            Unavailable: the store cannot be asked.
        """
        self._store.run_script(RESIGN, [self._key], [self._who])
