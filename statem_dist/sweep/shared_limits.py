"""Limits that all sweeps of a store share by name: how many trials run at once, how many begin within a minute.

A place is taken under a lease, so that one whose holder has died is free again by itself. The server's clock counts.
"""

from __future__ import annotations

from pathlib import Path

from msgspec import Struct

from statem_dist.store import keys
from statem_dist.store.redis_store import RedisStore, Script
from statem_dist.sweep.model import Limit

_LUA = Path(__file__).with_name("lua")
_TAKE = Script("limit", _LUA)
_RENEW = Script("limit_renew", _LUA)
_RELEASE = Script("limit_release", _LUA)


class Wait(Struct, frozen=True):
    """No place is free: ``used`` are taken; in ``wait_ms`` the next may begin (0: when a holder releases its own)."""

    used: int
    wait_ms: int


class LimitUsage(Struct, frozen=True):
    """How much of a limit is in use: places that are taken now, and beginnings within the last 60 seconds."""

    in_flight: int
    last_minute: int


class SharedLimits:
    """The shared limits of one state store. Every method may raise ``Unavailable``, and may be repeated."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    def take(self, limit: Limit, holder: str, lease_ms: int) -> Wait | None:
        """Take a place of a limit.

        Args:
            limit: its bounds are those of whoever asks; what is in use is shared by its name.
            holder: who takes it. One that has a place already keeps it, and its lease, as they are.
            lease_ms: how long the place is kept unless that is renewed.

        Returns:
            None when the holder has a place, or how long there will be none.
        """
        key_list = [keys.limit(limit.name, "held"), keys.limit(limit.name, "begun")]
        bounds = ["" if bound is None else bound for bound in (limit.in_flight, limit.per_minute)]
        taken, used, wait_ms = self._store.run_script(_TAKE, key_list, [holder, lease_ms, *bounds])
        return None if taken else Wait(used, wait_ms)

    def renew(self, name: str, holder: str, lease_ms: int) -> bool:
        """Prolong the lease of a holder's place; False when it has none any more."""
        return bool(self._store.run_script(_RENEW, [keys.limit(name, "held")], [holder, lease_ms]))

    def release(self, name: str, holder: str, *, unused: bool = False) -> None:
        """Give a place back, if the holder has one.

        Args:
            unused: nothing was begun with it, so that it does not count for the minute either.
        """
        if unused:
            self._store.run_script(_RELEASE, [keys.limit(name, "held"), keys.limit(name, "begun")], [holder])
        else:
            self._store.call("ZREM", keys.limit(name, "held"), holder)

    def usage(self, name: str) -> LimitUsage:
        """Return how much of a limit is in use."""
        now = self._store.clock()
        held, begun = self._store.call_many(
            [
                ("ZCOUNT", keys.limit(name, "held"), f"({now}", "+inf"),
                ("ZCOUNT", keys.limit(name, "begun"), f"({now - 60_000}", "+inf"),
            ]
        )
        return LimitUsage(in_flight=int(held), last_minute=int(begun))
