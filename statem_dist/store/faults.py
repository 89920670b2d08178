"""What the error replies of a server mean to whoever works with runs: the class of each, and what to do about it.

A reply that begins with one of these words is the server's trouble and not ours. Nothing was written, whatever can be
read is read, and all of them pass: by themselves, or when an operator has seen to it. Nobody has to be started anew.
"""

from __future__ import annotations

from msgspec import Struct

from statem_dist.errors import (
    StatemError,
    StoreBusy,
    StoreClusterDown,
    StoredDataUnreadable,
    StoreFault,
    StoreLoading,
    StoreNotPersisting,
    StoreOutOfMemory,
    StorePrimaryAway,
    StoreReadOnly,
    StoreTooFewReplicas,
    Unavailable,
)
from statem_dist.store.client import Refused, Unreachable

UNREACHABLE_HINT = "Check that Redis runs and that STATEM_REDIS_URL is right."


class Fault(Struct, frozen=True):
    """One kind of refusal.

    ``passes`` says whether it passes by itself within seconds, so that everybody waits for it as long as for a server
    that is away. The others need an operator; only who holds results that nobody else has waits for those.
    ``elsewhere`` says that another server may be the right one by now, so that connections are made anew.
    """

    error: type[StoreFault]
    what: str
    fix: str
    passes: bool = False
    elsewhere: bool = False


FAULTS: dict[str, Fault] = {
    "OOM": Fault(
        StoreOutOfMemory,
        "Redis is out of memory",
        "Raise its maxmemory, or remove what is not needed. Nothing was written.",
    ),
    "MISCONF": Fault(
        StoreNotPersisting,
        "Redis cannot persist to disk and refuses writes",
        "Free its disk, or mend the rights of its folder; its log says why. Nothing was written.",
    ),
    "NOREPLICAS": Fault(
        StoreTooFewReplicas,
        "Redis has too few replicas (min-replicas-to-write) and refuses writes",
        "Bring its replicas back. Nothing was written.",
    ),
    "READONLY": Fault(
        StoreReadOnly,
        "this Redis is a read-only replica",
        "It is one during a failover; if it stays so, point STATEM_REDIS_URL to the primary. Nothing was written.",
        passes=True,
        elsewhere=True,
    ),
    "MASTERDOWN": Fault(
        StorePrimaryAway,
        "this Redis is a replica, and its primary is away",
        "It is one during a failover; if it stays so, point STATEM_REDIS_URL to the primary.",
        passes=True,
        elsewhere=True,
    ),
    "LOADING": Fault(StoreLoading, "Redis is loading its data", "Try again in a moment.", passes=True),
    "BUSY": Fault(
        StoreBusy,
        "a script of somebody else keeps Redis busy",
        "If it stays so: SCRIPT KILL, or FUNCTION KILL, on that Redis.",
        passes=True,
    ),
    "TRYAGAIN": Fault(StoreClusterDown, "the cluster is moving these keys", "Try again in a moment.", passes=True),
    "CLUSTERDOWN": Fault(
        StoreClusterDown,
        "a part of the cluster is away",
        "`redis-cli --cluster check` says which.",
        passes=True,
    ),
}
"""Every refusal that is the server's trouble, by the first word of the reply."""


def fault_of(error: Unreachable | Refused) -> Fault | None:
    """Return what kind of trouble of the server an error is, or None."""
    return FAULTS.get(error.code) if isinstance(error, Refused) else None


def error_of(error: Unreachable | Refused) -> StatemError:
    """Return the error of this project for what a client has raised, with what to do about it."""
    said = str(error).rstrip(".")
    fault = fault_of(error)
    if fault is not None:
        return fault.error(f"The state store cannot be used: {fault.what} ({said}).", hint=fault.fix)
    if isinstance(error, Refused) and error.code == "WRONGTYPE":
        return StoredDataUnreadable(
            f"What is stored under a key of ours is of another kind than we write ({said}).",
            hint="Somebody else writes into this database, or it is damaged: give statem-dist one of its own.",
        )
    return Unavailable(f"The state store cannot be used: {said}.", hint=UNREACHABLE_HINT)
