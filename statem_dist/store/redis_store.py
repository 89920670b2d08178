"""Runs in Redis: one script per atomic act, and nothing that depends on the state of a connection.

Every script is safe to repeat: reads change nothing, ``commit`` carries an operation id, ``renew`` and
``remind`` compare what they were decided on. So a lost reply is answered by sending the same script again for
as long as the caller has patience; redis-py's own retries, which repeat anything, are off.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from hashlib import sha1
from pathlib import Path
from typing import Any, Literal, TypeVar

from statem_dist.durability import EVERYSEC, Durability
from statem_dist.errors import StoredDataUnreadable, Unavailable
from statem_dist.protocol.events import Event
from statem_dist.protocol.model import Run
from statem_dist.store import keys
from statem_dist.store.base import Change, FeedEntry, Identity, Leftovers, Mark, Overdue, Push, Snapshot
from statem_dist.store.client import Argument, Client, Refused, Unreachable
from statem_dist.store.codec import (
    Receipt,
    StoredRunbook,
    decode_event,
    decode_receipt,
    decode_run,
    decode_runbook,
    encode_event,
    encode_receipt,
    encode_run,
    encode_runbook,
)
from statem_dist.store.faults import error_of, fault_of

LOG_SECONDS = 7 * 24 * 3600
"""How long the longer output of a check is kept."""

RECEIPT_SECONDS = 24 * 3600
"""How long a repeated request is known for what it is."""

FEED_LENGTH = 2_000
"""About how many commits the feed of a shard keeps: what a reader may miss while its connection is down."""

STOPS_SECONDS = 7 * 24 * 3600
"""How long it is remembered that a session was told to go on: longer than a session lasts."""

CLOCK_SECONDS = 10.0
"""How long the server's time is carried on by the local clock: that of a host which slept, or a server whose clock was
set, is right again after as long."""

PAUSE_SECONDS_MAX = 1.0
"""Longest pause between two tries of an unreachable server."""

Answer = TypeVar("Answer")


SCRIPTS = Path(__file__).with_name("lua")


class Script:
    """One Lua file and its SHA-1, by which a server that knows it is asked to run it.

    Args:
        name: of the file, without its suffix.
        folder: where it is.
    """

    def __init__(self, name: str, folder: Path = SCRIPTS) -> None:
        self.name = name
        self.source = (folder / f"{name}.lua").read_text(encoding="utf-8")
        self.sha = sha1(self.source.encode(), usedforsecurity=False).hexdigest()


COMMIT = Script("commit")
LOAD = Script("load")
RENEW = Script("renew")
REMIND = Script("remind")
FORGET = Script("forget")
REMOVE = Script("remove")
RELEASE = Script("release")


class RedisStore:
    """The ``Store`` port on Redis 6.2 or newer, or Valkey.

    Args:
        client: how the server is spoken to.
        patience_seconds: how long an unreachable server is tried again before ``Unavailable`` is raised.
        durability: how safe a commit is to be before ``confirm`` says so.
        bears_faults: whether a server that refuses for want of memory or disk is borne with as long, too: for
            whoever holds results that nobody else has.
    """

    def __init__(
        self,
        client: Client,
        *,
        patience_seconds: float,
        durability: Durability = EVERYSEC,
        bears_faults: bool = False,
    ) -> None:
        self.client = client
        self.durability = durability
        self._bears_faults = bears_faults
        self._patience_seconds = patience_seconds
        self._clock_offset_ms: int | None = None
        self._synchronised_at = 0.0

    # --- runs ----------------------------------------------------------------------------------------------

    def clock(self) -> int:
        """Return the server's time in ms, carried on by the local monotonic clock since the last reading."""
        if self._clock_offset_ms is None or time.monotonic() - self._synchronised_at > CLOCK_SECONDS:
            seconds, microseconds = self.call("TIME")
            self._synchronise(int(seconds) * 1000 + int(microseconds) // 1000)
        assert self._clock_offset_ms is not None
        return _monotonic_ms() + self._clock_offset_ms

    def knows(self, command: str) -> bool:
        """Return whether the server has a command."""
        return self.call("COMMAND", "INFO", command) not in ([None], [], None)

    def identity(self) -> Identity:
        """Return which store this is. See ``Store.identity``."""
        mine = f"{os.urandom(8).hex()} {self.clock()}"
        _, kept = self.call_many([("SET", keys.STORE, mine, "NX"), ("GET", keys.STORE)])
        name, _, since = bytes(kept).decode().partition(" ")
        return Identity(name, int(since))

    def count_loss(self, what: str) -> None:
        """Count what the store was found to have lost, by a word for it."""
        self.call("HINCRBY", keys.LOSSES, what, 1)

    def losses(self) -> dict[str, int]:
        """Return how often the store was found to have lost what, since it was first used."""
        flat = self.call("HGETALL", keys.LOSSES)
        return {bytes(flat[at]).decode(): int(flat[at + 1]) for at in range(0, len(flat), 2)}

    def load(self, run_id: str) -> Snapshot | None:
        """Return the run, or None when there is none of that id; one round trip."""
        now, flat = self.run_script(LOAD, [keys.run(run_id)], [])
        self._synchronise(now)
        return _snapshot(now, flat)

    def load_many(self, run_ids: Sequence[str]) -> list[Snapshot | StoredDataUnreadable | None]:
        """Return runs in one round trip. See ``Store.load_many``."""
        commands = [("EVALSHA", LOAD.sha, 1, keys.run(run_id)) for run_id in run_ids]

        def ask() -> list[Any]:
            try:
                return self.client.call_many(commands)
            except Refused as refusal:
                if refusal.code != "NOSCRIPT":
                    raise
                self.client.call("SCRIPT", "LOAD", LOAD.source)
                return self.client.call_many(commands)

        found: list[Snapshot | StoredDataUnreadable | None] = []
        for now, flat in self._patiently(ask) if commands else []:
            try:
                found.append(_snapshot(now, flat))
            except StoredDataUnreadable as error:
                found.append(error)
        return found

    def receipt(self, run_id: str, request: str) -> Receipt | None:
        """Return what is kept of a request, for ``RECEIPT_SECONDS`` after its commit."""
        document = self.call("GET", keys.receipt(run_id, request))
        return None if document is None else decode_receipt(document)

    def commit(self, change: Change) -> int | None:
        """Write one decision atomically; one round trip. See ``Store.commit``."""
        run, before = change.after, change.before
        shard = keys.shard_of(run.id)
        left = before.status if before else ""
        labels = [] if before else [keys.label(shard, key, value) for key, value in run.labels.items()]
        taken, ended = _leases(before, run)
        key_list = [
            keys.run(run.id),
            keys.events(run.id),
            keys.due(shard),
            keys.runs(shard),
            keys.status(shard, left or run.status),
            keys.status(shard, run.status),
            keys.feed(shard),
            *labels,
            *(push.queue for push in change.pushes),
            *([keys.receipt(run.id, change.receipt.request)] if change.receipt else []),
        ]
        arguments: list[str | int | bytes] = [
            run.id,
            change.operation,
            before.version if before else 0,
            run.version,
            encode_run(run),
            "" if change.due_ms is None else change.due_ms,
            left,
            run.created_at,
            keys.moved(shard),
            len(labels),
            len(change.events),
            len(taken),
            len(ended),
            len(change.pushes),
            FEED_LENGTH,
            encode_receipt(change.receipt) if change.receipt else "",
            RECEIPT_SECONDS,
            change.follows,
            *(encode_event(event) for event in change.events),
        ]
        for token in taken:
            arguments += [token, change.lease_ms]
        arguments += [*ended, *(push.message for push in change.pushes)]
        done, version = self.run_script(COMMIT, key_list, arguments)
        return None if done else int(version)

    def confirm(self, run_id: str) -> bool:
        """Wait until replicas have all that was written of a run so far, by whomever. See ``Store.confirm``.

        What is waited for is a write of its own: replicas have it after all that was written before it, and a commit
        that is known already, or was made by somebody else, is none of this connection's.
        """
        wanted = self.durability
        if not wanted.replicas:
            return True
        wait: tuple[str | int, ...] = ("WAIT", wanted.replicas, wanted.wait_ms)
        if wanted.fsynced:
            wait = ("WAITAOF", 1, wanted.replicas, wanted.wait_ms)
        _, found = self.call_many([("SET", keys.barrier(keys.shard_of(run_id)), ""), wait])
        if wanted.fsynced:
            return bool(found[0] >= 1 and found[1] >= wanted.replicas)
        return bool(found >= wanted.replicas)

    def renew(self, run_id: str, token: int, lease_ms: int, operation: str = "") -> bool:
        """Prolong a lease. See ``Store.renew``."""
        return bool(self.run_script(RENEW, [keys.run(run_id)], [token, lease_ms, operation]))

    def events(self, run_id: str, after: int = 0, limit: int | None = None) -> list[tuple[int, Event]]:
        """Return events with their numbers, oldest first, those after the given number."""
        count = () if limit is None else ("COUNT", limit)
        entries = self.call("XRANGE", keys.events(run_id), f"({after}-0" if after else "-", "+", *count)
        return _numbered(entries)

    def latest_events(self, run_id: str, before: int | None, limit: int) -> list[tuple[int, Event]]:
        """Return events with their numbers, newest first, those before the given number."""
        end = "+" if before is None else f"({before}-0"
        return _numbered(self.call("XREVRANGE", keys.events(run_id), end, "-", "COUNT", limit))

    def claim_request(self, request: str, fingerprint: str) -> Literal["new", "repeated", "another"]:
        """Say what a request is that no run is known for yet. See ``Store.claim_request``."""
        key = keys.request(request)
        if self.call("SET", key, fingerprint, "NX", "EX", RECEIPT_SECONDS) is not None:
            return "new"
        kept = self.call("GET", key)
        return "repeated" if kept is None or bytes(kept).decode() == fingerprint else "another"

    def answer_to(self, request: str) -> bytes | None:
        """Return what a request was answered whose answer was kept, or None."""
        kept = self.call("GET", keys.answer(request))
        return None if kept is None else bytes(kept)

    def keep_answer(self, request: str, document: bytes) -> None:
        """Keep what a request was answered, for a day; of two that do so, the first one counts."""
        self.call("SET", keys.answer(request), document, "NX", "EX", RECEIPT_SECONDS)

    def marks(
        self,
        status: str | None,
        limit: int,
        *,
        label: tuple[str, str] | None = None,
        before: Mark | None = None,
        after: Mark | None = None,
    ) -> list[Mark]:
        """Return where runs stand, newest first; oldest first with ``after``. See ``Store.marks``."""
        indices = [_index(shard, status, label) for shard in range(keys.SHARDS)]
        edge = before if after is None else after
        if edge is None:
            start, same = "+inf", [0] * len(indices)
        else:
            # Runs of the very same millisecond stand on both sides of the one where the last page ended.
            start = str(edge[0])
            same = self.call_many(["ZCOUNT", key, start, start] for key in indices)
        order, end = ("ZREVRANGEBYSCORE", "-inf") if after is None else ("ZRANGEBYSCORE", "+inf")
        replies = self.call_many(
            [order, key, start, end, "WITHSCORES", "LIMIT", 0, limit + int(ties)]
            for key, ties in zip(indices, same, strict=True)
        )
        found = sorted(
            ((int(score), member) for flat in replies for member, score in _scored(flat)), reverse=after is None
        )
        if after is not None:
            return [mark for mark in found if mark > after][:limit]
        return [mark for mark in found if before is None or mark < before][:limit]

    def counts(self, statuses: Sequence[str]) -> dict[str, int]:
        """Return how many runs there are of each status, and under ``due`` how many a reaper will look at."""
        indices = [[keys.status(shard, status) for shard in range(keys.SHARDS)] for status in statuses]
        indices.append([keys.due(shard) for shard in range(keys.SHARDS)])
        replies = iter(self.call_many(["ZCARD", key] for keys_of_one in indices for key in keys_of_one))
        return {name: sum(int(next(replies)) for _ in range(keys.SHARDS)) for name in (*statuses, "due")}

    # --- the feed of all runs -------------------------------------------------------------------------------

    def feed_ends(self) -> list[str]:
        """Return the position of the last entry of each shard's feed, ``0-0`` where there is none."""
        replies = self.call_many(["XREVRANGE", keys.feed(shard), "+", "-", "COUNT", 1] for shard in range(keys.SHARDS))
        return [bytes(reply[0][0]).decode() if reply else "0-0" for reply in replies]

    def feed_since(self, positions: Sequence[str], limit: int) -> list[list[FeedEntry] | None]:
        """Return the entries of each shard's feed after a position, oldest first.

        None for a shard whose feed no longer reaches back to the position: entries between were dropped.

        Args:
            positions: one per shard.
            limit: how many at most per shard.
        """
        commands: list[Sequence[Argument]] = []
        for shard, position in enumerate(positions):
            commands.append(("XRANGE", keys.feed(shard), "-", "+", "COUNT", 1))
            commands.append(("XRANGE", keys.feed(shard), f"({position}", "+", "COUNT", limit))
        replies = self.call_many(commands)
        return [
            None if _is_behind(position, oldest) else [_feed_entry(*entry) for entry in entries]
            for position, oldest, entries in zip(positions, replies[::2], replies[1::2], strict=True)
        ]

    # --- reminders -----------------------------------------------------------------------------------------

    def overdue(self, limit: int) -> list[Overdue]:
        """Return runs whose reminder is due; the cost grows with what is due, not with the number of runs."""
        now = self.clock()
        replies = self.call_many(
            ["ZRANGEBYSCORE", keys.due(shard), "-inf", now, "WITHSCORES", "LIMIT", 0, limit]
            for shard in range(keys.SHARDS)
        )
        return [Overdue(run_id=member, score=f"{score:.0f}") for flat in replies for member, score in _scored(flat)]

    def remind(self, overdue: Overdue, version: int, again_ms: int, pushes: Sequence[Push], *, hinted: bool) -> bool:
        """Move a reminder and send messages once more; False when somebody was faster."""
        shard = keys.shard_of(overdue.run_id)
        key_list = [keys.run(overdue.run_id), keys.due(shard), *(push.queue for push in pushes)]
        arguments: list[str | int | bytes] = [overdue.run_id, version, again_ms, overdue.score, int(hinted)]
        arguments += [push.message for push in pushes]
        return bool(self.run_script(REMIND, key_list, arguments))

    def reminder(self, run_id: str) -> Overdue:
        """Return the reminder of a run, whether it is due or not; one that is missing is made."""
        due = keys.due(keys.shard_of(run_id))
        _, score = self.call_many([["ZADD", due, "NX", self.clock(), run_id], ["ZSCORE", due, run_id]])
        return Overdue(run_id=run_id, score=f"{float(score):.0f}")

    def postpone(self, run_id: str, again_ms: int) -> None:
        """Move a reminder, whatever its run is by now. See ``Store.postpone``."""
        self.call("ZADD", keys.due(keys.shard_of(run_id)), "XX", self.clock() + again_ms, run_id)

    def forget(self, run_id: str) -> None:
        """Remove a reminder if there is no such run any more."""
        self.run_script(FORGET, [keys.run(run_id), keys.due(keys.shard_of(run_id))], [run_id])

    # --- removing ------------------------------------------------------------------------------------------

    def remove(self, run: Run, leftovers: Leftovers) -> bool:
        """Remove a run that has ended, with everything that is kept of it. See ``Store.remove``."""
        assert run.ended, "only what has ended is removed"
        shard = keys.shard_of(run.id)
        labels = [keys.label(shard, key, value) for key, value in run.labels.items()]
        key_list = [
            keys.run(run.id),
            keys.events(run.id),
            keys.status(shard, run.status),
            keys.due(shard),
            keys.runs(shard),
            *labels,
            *(keys.dynamic(run.id, entry) for entry in leftovers.entries),
            *(keys.log(run.id, transition, check) for transition, check in leftovers.logs),
            *(keys.receipt(run.id, request) for request in leftovers.requests),
        ]
        return bool(self.run_script(REMOVE, key_list, [run.id, run.version, len(labels)]))

    def release_pointers(self) -> None:
        """Let go of scopes that point to a run which is not there any more.

        On a Redis Cluster they stay: their key lies elsewhere, and a command that follows one finds no run.
        """
        cursor = "0"
        while True:
            found, flat = self.call("HSCAN", keys.ACTIVE, cursor, "COUNT", 500)
            run_keys = [keys.run(bytes(run_id).decode()) for run_id in flat[1::2]]
            there = self.call_many(("EXISTS", run_key) for run_key in run_keys)
            for scope, run_id, run_key, exists in zip(flat[::2], flat[1::2], run_keys, there, strict=True):
                if not exists:
                    with suppress(Unavailable):
                        self.run_script(RELEASE, [keys.ACTIVE, run_key], [scope, run_id])
            cursor = bytes(found).decode()
            if cursor == "0":
                return

    # --- runbooks, pointers, logs ---------------------------------------------------------------------------

    def save_runbook(self, stored: StoredRunbook) -> None:
        """Register a runbook under its hash; the same hash again changes nothing."""
        self.call("SET", keys.runbook(stored.runbook.hash), encode_runbook(stored), "NX")

    def runbook(self, digest: str) -> StoredRunbook | None:
        """Return a registered runbook, or None."""
        document = self.call("GET", keys.runbook(digest))
        return None if document is None else decode_runbook(document)

    def active(self, scope: str) -> str | None:
        """Return the run that a scope points to."""
        found = self.call("HGET", keys.ACTIVE, scope)
        return None if found is None else found.decode()

    def activate(self, scopes: Iterable[str], run_id: str) -> None:
        """Point scopes to a run."""
        self.call("HSET", keys.ACTIVE, *(part for scope in scopes for part in (scope, run_id)))

    def dynamic(self, run_id: str, entry_id: str) -> dict[str, bytes]:
        """Return the dynamic checks that were registered for an entry, by agent id."""
        flat = self.call("HGETALL", keys.dynamic(run_id, entry_id))
        return {bytes(flat[i]).decode(): bytes(flat[i + 1]) for i in range(0, len(flat), 2)}

    def save_dynamic(self, run_id: str, entry_id: str, agent_id: str, document: bytes) -> None:
        """Keep what an agent registers for an entry, in place of what it had registered."""
        self.call("HSET", keys.dynamic(run_id, entry_id), agent_id, document)

    def stops(self, run_id: str, session: str) -> bytes | None:
        """Return what is kept of a session of an agent host that wanted to stop, or None."""
        document: bytes | None = self.call("GET", keys.stops(run_id, session))
        return document

    def save_stops(self, run_id: str, session: str, document: bytes) -> None:
        """Keep that for ``STOPS_SECONDS``, in place of what was kept."""
        self.call("SET", keys.stops(run_id, session), document, "EX", STOPS_SECONDS)

    def save_log(self, run_id: str, transition: str, check: str, text: str) -> None:
        """Keep the longer output of a check for ``LOG_SECONDS``."""
        self.call("SET", keys.log(run_id, transition, check), text, "EX", LOG_SECONDS)

    def log(self, run_id: str, transition: str, check: str) -> str | None:
        """Return the longer output of a check, or None."""
        found = self.call("GET", keys.log(run_id, transition, check))
        return None if found is None else found.decode()

    def _synchronise(self, now: int) -> None:
        self._clock_offset_ms = now - _monotonic_ms()
        self._synchronised_at = time.monotonic()

    # --- talking to the server --------------------------------------------------------------------------------

    def run_script(self, script: Script, key_list: Sequence[str], arguments: Sequence[str | int | bytes]) -> Any:
        def ask() -> Any:
            try:
                return self.client.call("EVALSHA", script.sha, len(key_list), *key_list, *arguments)
            except Refused as refusal:
                if refusal.code != "NOSCRIPT":
                    raise
                return self.client.call("EVAL", script.source, len(key_list), *key_list, *arguments)

        return self._patiently(ask)

    def call(self, *command: str | int | bytes) -> Any:
        """Send a command that may be repeated, and return the reply as the server sent it."""
        return self._patiently(lambda: self.client.call(*command))

    def call_many(self, commands: Iterable[Sequence[Argument]]) -> list[Any]:
        """Send commands that may be repeated, in one round trip where the client can."""
        prepared = list(commands)
        return self._patiently(lambda: self.client.call_many(prepared))

    def _waits_for(self, error: Unreachable | Refused) -> bool:
        """Return whether an error may pass by itself while the caller has patience."""
        fault = fault_of(error)
        return isinstance(error, Unreachable) or (fault is not None and (fault.passes or self._bears_faults))

    def _patiently(self, ask: Callable[[], Answer]) -> Answer:
        deadline = time.monotonic() + self._patience_seconds
        pause = 0.01
        while True:
            try:
                return ask()
            except (Unreachable, Refused) as error:
                worth_waiting = self._waits_for(error)
                if not worth_waiting or time.monotonic() + pause >= deadline:
                    raise error_of(error) from error
                if (fault := fault_of(error)) is not None and fault.elsewhere:
                    # Behind the same name there may be another server by now.
                    self.client.close()
            time.sleep(pause)
            pause = min(2 * pause, PAUSE_SECONDS_MAX)


def _monotonic_ms() -> int:
    return time.monotonic_ns() // 1_000_000


def _leases(before: Run | None, after: Run) -> tuple[list[int], list[int]]:
    """Return the tokens of claims that began and of claims that ended between two versions of a run."""
    old = {claim.token for claim in before.transition.claims} if before and before.transition else set[int]()
    new = {claim.token for claim in after.transition.claims} if after.transition else set[int]()
    return sorted(new - old), sorted(old - new)


def _snapshot(now: int, flat: Any) -> Snapshot | None:
    """Return a run from the fields of its hash; None if there are none."""
    fields = dict(zip(flat[::2], flat[1::2], strict=True))
    if not fields:
        return None
    leases = {
        int(name.removeprefix(b"lease:")): int(lease.partition(b" ")[0])
        for name, lease in fields.items()
        if name.startswith(b"lease:")
    }
    return Snapshot(
        run=decode_run(fields[b"doc"]),
        now=now,
        leases=leases,
        hints=int(fields.get(b"hints", 0)),
        operations=fields.get(b"ops", b"").decode(),
    )


def _index(shard: int, status: str | None, label: tuple[str, str] | None) -> str:
    if label is not None:
        return keys.label(shard, *label)
    return keys.status(shard, status) if status else keys.runs(shard)


def _feed_entry(position: Any, fields: Any) -> FeedEntry:
    values = dict(zip(fields[::2], fields[1::2], strict=True))
    return FeedEntry(
        run_id=bytes(values[b"r"]).decode(),
        first=int(values[b"a"]),
        last=int(values[b"v"]),
        position=bytes(position).decode(),
    )


def _is_behind(position: str, oldest: Any) -> bool:
    """Return whether entries may have been dropped between a position and the oldest entry that is left."""
    if not oldest or position == "0-0":
        return False
    return _stamp(position) < _stamp(bytes(oldest[0][0]).decode())


def _stamp(position: str) -> tuple[int, int]:
    milliseconds, _, sequence = position.partition("-")
    return int(milliseconds), int(sequence)


def _numbered(entries: Any) -> list[tuple[int, Event]]:
    return [(int(bytes(number).split(b"-")[0]), decode_event(fields[1])) for number, fields in entries]


def _scored(flat: Any) -> list[tuple[str, float]]:
    return [(bytes(flat[i]).decode(), float(flat[i + 1])) for i in range(0, len(flat), 2)]
