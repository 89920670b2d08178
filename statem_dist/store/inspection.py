"""What is stored of a run, as it is stored: for whoever judges it instead of using it.

Nothing is decoded here, so that what cannot be read is found too.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import get_args

from msgspec import Struct

from statem_dist.protocol.model import RunStatus
from statem_dist.store import keys
from statem_dist.store.redis_store import RedisStore, Script

PAGE = 200
"""Events read at a time."""

SCAN_COUNT = 1_000
"""About how many keys a step of a scan looks at."""

INSPECT = Script("inspect")

STATUSES: tuple[str, ...] = get_args(RunStatus)


class Inspected(Struct, frozen=True):
    """What the store says of one run at one moment, besides its events.

    ``document`` is None where there is no hash of the run. ``last`` is the id of the newest event, empty for none, and
    ``length`` how many there are. ``leases`` has the text behind each ``lease:`` as it stands. The scores of the run in
    the indices are None where it is not in one: ``due``, ``listed`` (the list of runs), ``statuses``, ``labels``.
    """

    now: int
    document: bytes | None
    version: str
    leases: frozenset[str]
    last: str
    length: int
    due: float | None
    listed: float | None
    statuses: dict[str, float]
    labels: dict[tuple[str, str], float]

    @property
    def last_number(self) -> int:
        """The number of the newest event, 0 for none."""
        return number_of(self.last)


def inspect(store: RedisStore, run_id: str, labels: Iterable[tuple[str, str]]) -> Inspected:
    """Return what is stored of a run; one round trip.

    Args:
        store: where it is.
        run_id: the run.
        labels: those whose indices are looked at.
    """
    shard, wanted = keys.shard_of(run_id), tuple(labels)
    key_list = [
        keys.run(run_id),
        keys.events(run_id),
        keys.due(shard),
        keys.runs(shard),
        *(keys.status(shard, status) for status in STATUSES),
        *(keys.label(shard, key, value) for key, value in wanted),
    ]
    now, flat, last, length, *found = store.run_script(INSPECT, key_list, [run_id])
    fields = {bytes(flat[i]): bytes(flat[i + 1]) for i in range(0, len(flat), 2)}
    scores = [float(score) if score else None for score in found]
    in_statuses = zip(STATUSES, scores[2 : 2 + len(STATUSES)], strict=True)
    in_labels = zip(wanted, scores[2 + len(STATUSES) :], strict=True)
    return Inspected(
        now=int(now),
        document=None if not fields else fields.get(b"doc", b""),
        version=fields.get(b"v", b"").decode(errors="replace"),
        leases=frozenset(
            name.removeprefix(b"lease:").decode(errors="replace") for name in fields if name.startswith(b"lease:")
        ),
        last=bytes(last).decode(),
        length=int(length),
        due=scores[0],
        listed=scores[1],
        statuses={status: score for status, score in in_statuses if score is not None},
        labels={label: score for label, score in in_labels if score is not None},
    )


def stored_events(store: RedisStore, run_id: str, after: int) -> list[tuple[str, bytes]]:
    """Return a page of the events of a run after a number, oldest first: the id of each entry, and its document."""
    start = f"({after}-18446744073709551615" if after else "-"
    entries = store.call("XRANGE", keys.events(run_id), start, "+", "COUNT", PAGE)
    return [(bytes(entry).decode(), bytes(fields[1])) for entry, fields in entries]


def number_of(entry: str) -> int:
    """Return the number of the event with that id in its stream; 0 for an empty id."""
    return int(entry.partition("-")[0]) if entry else 0


def run_ids(store: RedisStore) -> Iterator[str]:
    """Yield the id of every run that has a document, and of every other that has events; one may come more than once.

    Memory is bounded by a page.
    """
    for key in scan(store, "statem:{*}:run:*"):
        yield key.partition("}:run:")[2]
    for key in scan(store, "statem:{*}:events:*"):
        run_id = key.partition("}:events:")[2]
        if not store.call("EXISTS", keys.run(run_id)):
            yield run_id


def index_entries(store: RedisStore) -> Iterator[tuple[str, list[str]]]:
    """Yield pages of every index of runs, the due-index included: its key, and ids that stand in it."""
    for kind in ("due", "runs", "status:*", "label:*"):
        for key in scan(store, f"statem:{{*}}:{kind}"):
            yield from ((key, page) for page in _members(store, key))


def scan(store: RedisStore, pattern: str) -> Iterator[str]:
    """Yield the names of the keys that match a pattern; one may come more than once."""
    cursor = "0"
    while True:
        found, names = store.call("SCAN", cursor, "MATCH", pattern, "COUNT", SCAN_COUNT)
        yield from (bytes(name).decode(errors="replace") for name in names)
        cursor = bytes(found).decode()
        if cursor == "0":
            return


def _members(store: RedisStore, key: str) -> Iterator[list[str]]:
    cursor = "0"
    while True:
        found, flat = store.call("ZSCAN", key, cursor, "COUNT", SCAN_COUNT)
        yield [bytes(member).decode(errors="replace") for member in flat[::2]]
        cursor = bytes(found).decode()
        if cursor == "0":
            return
