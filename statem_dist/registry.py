"""Runbooks that were registered by name, for runs that are started from them.

Every runbook that a run was started from is kept in the store under its hash. Registered are those that somebody who
may do so has put there for others: only these are listed, and where a service starts from nothing else, this is the
list of what it starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import Struct

from statem_dist.errors import NotFound
from statem_dist.listing import is_runbook
from statem_dist.store import keys
from statem_dist.store.codec import StoredRunbook
from statem_dist.store.redis_store import RedisStore


class Registration(Struct, frozen=True):
    """One version of a runbook that was registered: under which name, which it is, when (ms since the epoch), by whom.

    ``current`` says that its name stands for this version: it was registered last.
    """

    name: str
    hash: str
    at: int
    by: str
    current: bool = False


class Registry:
    """The registered runbooks of one state store."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store

    def register(self, stored: StoredRunbook, name: str, by: str) -> Registration:
        """Register a runbook under a name; the name stands for it from now on, earlier versions stay.

        The same runbook again changes nothing but which version the name stands for.
        """
        digest = stored.runbook.hash
        made = Registration(name=name, hash=digest, at=self._store.clock(), by=by)
        self._store.save_runbook(stored)
        # The name first: what is registered has its name, also if whoever registers dies in between.
        self._store.call("HSET", keys.NAMED, name, digest)
        self._store.call("HSETNX", keys.REGISTERED, digest, msgspec.json.encode(made))
        return self.find(digest)

    def find(self, wanted: str) -> Registration:
        """Return the runbook of a name, of a hash, or of the beginning of one (eight characters at least).

        Raises:
            NotFound: none is registered, or several begin like that.
        """
        named = self._store.call("HGET", keys.NAMED, wanted)
        exact = wanted if named is None else bytes(named).decode()
        document = self._store.call("HGET", keys.REGISTERED, exact)
        if document is not None:
            return self._with_currency(msgspec.json.decode(document, type=Registration))
        found = [each for each in self.list() if is_runbook(wanted, "", each.hash)]
        if len(found) == 1:
            return found[0]
        raise NotFound(
            f"{len(found)} registered runbooks begin with {wanted!r}." if found else f"No runbook {wanted!r}.",
            hint="Name it by its name or hash as the list of runbooks has them.",
            details={"runbook": wanted},
        )

    def list(self) -> Sequence[Registration]:
        """Return every registered version, by name, the newest first."""
        current = self._names()
        documents = self._store.call("HVALS", keys.REGISTERED)
        found = [msgspec.json.decode(document, type=Registration) for document in documents]
        marked = [msgspec.structs.replace(each, current=current.get(each.name) == each.hash) for each in found]
        return sorted(marked, key=lambda each: (each.name, -each.at))

    def is_registered(self, digest: str) -> bool:
        """Return whether a runbook of that hash is registered."""
        return bool(self._store.call("HEXISTS", keys.REGISTERED, digest))

    def _with_currency(self, found: Registration) -> Registration:
        return msgspec.structs.replace(found, current=self._names().get(found.name) == found.hash)

    def _names(self) -> dict[str, str]:
        flat = self._store.call("HGETALL", keys.NAMED)
        return {bytes(flat[i]).decode(): bytes(flat[i + 1]).decode() for i in range(0, len(flat), 2)}


def registration_view(made: Registration) -> dict[str, Any]:
    """Return a registration as commands and the service show it."""
    return {"name": made.name, "hash": made.hash, "registered_at": made.at, "by": made.by, "current": made.current}
