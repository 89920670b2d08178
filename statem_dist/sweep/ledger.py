"""The ledger of sweeps: which trials are planned, where each stands, and what came of every attempt, in Redis.

A trial is in one place at a time: it waits, or somebody has claimed it, or it has an outcome. Each move is one script
that also moves the counts, so that what is planned is the sum of all states at every read. Whoever works on a trial
holds a claim with a lease and a token; what comes with the token of an earlier claim changes nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar

import msgspec
from msgspec import Struct

from statem_dist.errors import Conflict, NotFound
from statem_dist.store import keys
from statem_dist.store.redis_store import RedisStore, Script
from statem_dist.sweep.lanes import Lane, lane_named
from statem_dist.sweep.model import (
    STATES,
    Attempt,
    Cell,
    Definition,
    Outcome,
    Planned,
    Priority,
    State,
    Status,
    Sweep,
    Trial,
    Usage,
)

PAGE = 500
"""Trials that are read or written in one round trip."""

FEED_LENGTH = 5_000
"""About how many changes are kept for those who watch."""

HOLD_SECONDS = 15.0
"""How long a host's word counts that it begins no trial; it is repeated while that is so."""

MICRODOLLARS = 1_000_000

_LUA = Path(__file__).with_name("lua")
_PLAN = Script("plan", _LUA)
_CLAIM = Script("claim", _LUA)
_NOTE = Script("note", _LUA)
_RENEW = Script("renew", _LUA)
_SETTLE = Script("settle", _LUA)
_STEER = Script("steer", _LUA)
_AGAIN = Script("again", _LUA)
_WITHDRAW = Script("withdraw", _LUA)
_RESERVE = Script("reserve", _LUA)

_encode = msgspec.json.Encoder().encode
_decode_definition = msgspec.json.Decoder(Definition).decode
_decode_planned = msgspec.json.Decoder(Planned).decode
_decode_attempt = msgspec.json.Decoder(Attempt).decode

Item = TypeVar("Item")


class OpenSweep(Struct, frozen=True):
    """A sweep that workers look after."""

    id: str
    queue: str
    priority: Priority


class Claim(Struct, frozen=True):
    """A trial that somebody has claimed. ``ready_at`` is when it became ready, in ms since the epoch."""

    sweep_id: str
    number: int
    token: int
    ready_at: int


class Refusal(Struct, frozen=True):
    """Why no trial could be claimed: the sweep takes none now, its own bound or its lanes' hold, or none waits."""

    why: Literal["status", "full", "bounds", "none"]


class Change(Struct, frozen=True):
    """One change that the feed tells: a trial is in a new state, or (``number`` 0) the sweep has a new status."""

    position: str
    number: int
    to: str


class Ledger:
    """The sweeps of one state store. Every method may raise ``Unavailable``."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._definitions: dict[tuple[str, int], Definition] = {}

    def clock(self) -> int:
        """Return the time of the store in ms since the epoch."""
        return self._store.clock()

    # --- submitting ------------------------------------------------------------------------------------------------

    def create(self, sweep_id: str, definition: Definition, fingerprint: str, by: str) -> None:
        """Begin to store a sweep; its trials are added next, and ``steer`` makes it active. May be repeated."""
        now = self._store.clock()
        self._store.call("ZADD", keys.SWEEPS, "NX", now, sweep_id)
        fields: dict[str, str | int | bytes] = {
            "definition": _encode(definition),
            "fingerprint": fingerprint,
            "status": "planning",
            "revision": 1,
            "created_at": now,
            "created_by": by,
        }
        key = keys.sweep(sweep_id, "sweep")
        # Each by itself, so that a repetition neither fails nor changes what is there.
        self._store.call_many(("HSETNX", key, name, value) for name, value in fields.items())
        self._store.call("SET", keys.sweep_of(fingerprint), sweep_id)

    def latest_of(self, fingerprint: str) -> Sweep | None:
        """Return the sweep that was submitted last with that content, or None."""
        found = self._store.call("GET", keys.sweep_of(fingerprint))
        return None if found is None else self.sweep(found.decode())

    def reserve(self, fingerprint: str, instead_of: str, sweep_id: str) -> str:
        """Reserve a content for a sweep that is about to be created, and return whose it is now.

        Args:
            instead_of: the sweep that had it so far; empty for none. If another one has it by now, that one keeps it.
        """
        holder = self._store.run_script(_RESERVE, [keys.sweep_of(fingerprint)], [instead_of, sweep_id])
        return str(holder.decode())

    def holder(self, fingerprint: str) -> str:
        """Return the id for which a content was reserved last, whether that sweep is there or not; empty for none."""
        found = self._store.call("GET", keys.sweep_of(fingerprint))
        return "" if found is None else str(found.decode())

    def fingerprint(self, sweep_id: str) -> str:
        """Return what the content of a sweep was known by when it was submitted, or revised last."""
        found = self._store.call("HGET", keys.sweep(sweep_id, "sweep"), "fingerprint")
        return "" if found is None else str(found.decode())

    def add(self, sweep_id: str, definition: Definition, trials: Iterable[Planned], ready_at: int = 0) -> int:
        """Add trials to the plan; those that it has already stay as they are.

        Args:
            ready_at: when they become ready (ms since the epoch); 0 means with the sweep.

        Returns:
            How many were new.
        """
        added = 0
        for page in _pages(trials):
            lanes: dict[str, int] = {}
            rows: list[str | int | bytes] = []
            for planned in page:
                lane = lanes.setdefault(Lane(definition, planned.cell).key, len(lanes) + 1)
                rows += [planned.number, lane, _encode(planned)]
            key_list = [*self._keys(sweep_id, "plan", "counts", "lanes", "queued"), *self._waiting(sweep_id, lanes)]
            added += self._store.run_script(_PLAN, key_list, [ready_at, len(lanes), *lanes, *rows])
        return added

    def revise(self, sweep_id: str, definition: Definition, fingerprint: str) -> None:
        """Put another definition in the place of a sweep's own; trials that wait find their lanes anew."""
        self.require(sweep_id)
        key = keys.sweep(sweep_id, "sweep")
        self._store.call("HSET", key, "definition", _encode(definition), "fingerprint", fingerprint)
        self._store.call("HINCRBY", key, "revision", 1)
        self._store.call("SET", keys.sweep_of(fingerprint), sweep_id)
        for lane in self._lanes(sweep_id):
            waiting = keys.sweep(sweep_id, f"pending:{lane}")
            numbers = [int(number) for number in self._store.call("ZRANGE", waiting, 0, -1)]
            for page in _pages(numbers):
                for planned in self._plan(sweep_id, page):
                    wanted = Lane(definition, planned.cell).key
                    if wanted != lane:
                        self._store.call("SADD", keys.sweep(sweep_id, "lanes"), wanted)
                        target = keys.sweep(sweep_id, f"pending:{wanted}")
                        self._store.call("ZADD", target, planned.number, planned.number)
                        self._store.call("ZREM", waiting, planned.number)
        self.publish(OpenSweep(sweep_id, definition.queue, definition.priority))

    def steer(self, sweep_id: str, status: Status, expected: Sequence[Status], why: str = "") -> Status:
        """Give a sweep another status, and return the one that it had.

        Args:
            expected: the statuses from which that is possible; it may also be repeated.
            why: kept with the sweep, for whoever asks.

        Raises:
            NotFound: there is no such sweep.
            Conflict: it has none of the expected statuses.
        """
        if status in ("active", "paused"):
            definition = self.require(sweep_id).definition
            self.publish(OpenSweep(sweep_id, definition.queue, definition.priority))
        key_list = [
            *self._keys(sweep_id, "sweep", "running", "counts", "outcomes", "feed"),
            *self._waiting(sweep_id, self._lanes(sweep_id)),
        ]
        done, before = self._store.run_script(_STEER, key_list, [status, why, FEED_LENGTH, *expected])
        if not before:
            raise sweep_not_found(sweep_id)
        if not done:
            raise Conflict(
                f"The sweep {sweep_id!r} is {before.decode()}: it cannot become {status}.",
                details={"sweep": sweep_id, "status": before.decode()},
            )
        earlier: Status = msgspec.convert(before.decode(), Status)
        return earlier

    def again(self, sweep_id: str, trials: Iterable[Trial]) -> int:
        """Make trials that have ended wait again, and return how many do; call ``steer`` afterwards."""
        definition = self.require(sweep_id).definition
        moved = 0
        for page in _pages(trials):
            lanes: dict[str, int] = {}
            rows: list[str | int | bytes] = []
            for trial in page:
                lane = lanes.setdefault(Lane(definition, trial.planned.cell).key, len(lanes) + 1)
                rows += [trial.planned.number, lane, trial.state]
            self._store.call("SADD", keys.sweep(sweep_id, "lanes"), *lanes)
            parts = ("counts", "outcomes", "queued", "feed", "withdrawn")
            key_list = [*self._keys(sweep_id, *parts), *self._waiting(sweep_id, lanes)]
            moved += self._store.run_script(_AGAIN, key_list, [FEED_LENGTH, *rows])
        return moved

    def withdraw(self, sweep_id: str, numbers: Iterable[int]) -> int:
        """End trials that wait and that are planned no longer; return how many were."""
        lanes = self._lanes(sweep_id)
        parts = ("counts", "outcomes", "feed", "withdrawn")
        key_list = [*self._keys(sweep_id, *parts), *self._waiting(sweep_id, lanes)]
        return sum(
            self._store.run_script(_WITHDRAW, key_list, [FEED_LENGTH, *page]) for page in _pages(numbers) if lanes
        )

    def withdrawn(self, sweep_id: str) -> set[int]:
        """Return the numbers of the trials that were withdrawn, and were not made to wait again since."""
        return {int(member) for member in self._store.call("SMEMBERS", keys.sweep(sweep_id, "withdrawn"))}

    def remove(self, sweep_id: str) -> None:
        """Remove everything that is stored of a sweep; its runs stay."""
        fingerprint = self.fingerprint(sweep_id)
        if fingerprint and self._store.call("GET", keys.sweep_of(fingerprint)) == sweep_id.encode():
            self._store.call("DEL", keys.sweep_of(fingerprint))
        parts = ("plan", "lanes", "running", "claims", "holders", "slots", "taken", "outcomes", "counts", "tries")
        rest = ("attempts", "queued", "holds", "feed", "withdrawn", "sweep")
        key_list = [*self._waiting(sweep_id, self._lanes(sweep_id)), *self._keys(sweep_id, *parts, *rest)]
        self._store.call("DEL", *key_list)
        self.unpublish(sweep_id)
        self._store.call("ZREM", keys.SWEEPS_SERVED, sweep_id)
        # At last, so that one that was removed in part can be found and removed again.
        self._store.call("ZREM", keys.SWEEPS, sweep_id)

    # --- reading ---------------------------------------------------------------------------------------------------

    def sweep(self, sweep_id: str) -> Sweep | None:
        """Return a sweep as it is now, or None."""
        found, counts, holds = self._store.call_many(
            [
                ("HGETALL", keys.sweep(sweep_id, "sweep")),
                ("HGETALL", keys.sweep(sweep_id, "counts")),
                ("HGETALL", keys.sweep(sweep_id, "holds")),
            ]
        )
        fields = _text_fields(found)
        if "definition" not in fields or "created_by" not in fields:
            return None
        number_of = {name: int(value) for name, value in _text_fields(counts).items()}
        now = self._store.clock()
        held = {host: msgspec.json.decode(value, type=tuple[int, str]) for host, value in _text_fields(holds).items()}
        return Sweep(
            id=sweep_id,
            definition=_decode_definition(fields["definition"]),
            status=msgspec.convert(fields["status"], Status),
            counts={state: number_of.get(state, 0) for state in STATES},
            created_at=int(fields["created_at"]),
            created_by=fields["created_by"],
            ended_at=int(fields.get("ended_at", 0)),
            status_reason=fields.get("reason", ""),
            revision=int(fields.get("revision", 1)),
            usage=Usage(
                input_tokens=int(fields.get("input", 0)),
                output_tokens=int(fields.get("output", 0)),
                cost_usd=int(fields.get("cost", 0)) / MICRODOLLARS,
            ),
            held={host: why for host, (until, why) in held.items() if until > now},
        )

    def require(self, sweep_id: str) -> Sweep:
        """Return a sweep as it is now.

        Raises:
            NotFound: there is none of that id.
        """
        found = self.sweep(sweep_id)
        if found is None:
            raise sweep_not_found(sweep_id)
        return found

    def listed(self, limit: int) -> list[Sweep]:
        """Return sweeps, newest first."""
        ids = [member.decode() for member in self._store.call("ZREVRANGE", keys.SWEEPS, 0, limit - 1)]
        return [found for found in map(self.sweep, ids) if found is not None]

    def ids(self) -> list[str]:
        """Return the ids of all sweeps, newest first."""
        return [member.decode() for member in self._store.call("ZREVRANGE", keys.SWEEPS, 0, -1)]

    def numbers(self, sweep_id: str) -> list[int]:
        """Return the numbers of the trials that are planned, in order; some may be left out between them."""
        return sorted(int(number) for number in self._store.call("HKEYS", keys.sweep(sweep_id, "plan")))

    def size(self, sweep_id: str) -> int:
        """Return the highest number that a trial of a sweep has."""
        return max(self.numbers(sweep_id), default=0)

    def trials(self, sweep_id: str, numbers: Iterable[int] | None = None) -> Iterator[Trial]:
        """Yield trials with all their attempts, in pages of ``PAGE``.

        Args:
            numbers: which ones; None for all, in order. Those that are not planned are left out.
        """
        wanted = self.numbers(sweep_id) if numbers is None else numbers
        for page in _pages(wanted):
            yield from self._page(sweep_id, page)

    def running(self, sweep_id: str) -> list[Trial]:
        """Return the trials that are under way."""
        members = self._store.call("ZRANGE", keys.sweep(sweep_id, "running"), 0, -1)
        return list(self.trials(sweep_id, [int(member) for member in members]))

    def changes(self, sweep_id: str, after: str, limit: int) -> list[Change]:
        """Return changes after a position of the feed, oldest first; ``0-0`` is before all that are kept."""
        entries = self._store.call("XRANGE", keys.sweep(sweep_id, "feed"), f"({after}", "+", "COUNT", limit)
        return [_change(position, fields) for position, fields in entries]

    def latest_change(self, sweep_id: str) -> str:
        """Return the position of the latest change; ``0-0`` when there is none."""
        entries = self._store.call("XREVRANGE", keys.sweep(sweep_id, "feed"), "+", "-", "COUNT", 1)
        return bytes(entries[0][0]).decode() if entries else "0-0"

    # --- working ---------------------------------------------------------------------------------------------------

    def publish(self, sweep: OpenSweep) -> None:
        """See to it that workers look after a sweep."""
        self._store.call("HSET", keys.SWEEPS_OPEN, sweep.id, _encode((sweep.queue, sweep.priority)))

    def unpublish(self, sweep_id: str) -> None:
        """Let workers forget a sweep that has ended."""
        self._store.call("HDEL", keys.SWEEPS_OPEN, sweep_id)

    def open(self) -> list[OpenSweep]:
        """Return the sweeps that workers look after."""
        found = _text_fields(self._store.call("HGETALL", keys.SWEEPS_OPEN))
        return [
            OpenSweep(sweep_id, *msgspec.json.decode(value, type=tuple[str, Priority]))
            for sweep_id, value in found.items()
        ]

    def served(self, sweep_ids: Sequence[str]) -> list[int]:
        """Return when the last trial of each sweep was taken, as rising numbers; 0 for never."""
        scores = self._store.call("ZMSCORE", keys.SWEEPS_SERVED, *sweep_ids)
        return [0 if score is None else int(float(score)) for score in scores]

    def serve(self, sweep_id: str) -> None:
        """Note that a trial of a sweep has been taken, after all that were taken before."""
        last = self._store.call("ZREVRANGE", keys.SWEEPS_SERVED, 0, 0, "WITHSCORES")
        latest = int(float(last[1])) if last else 0
        self._store.call("ZADD", keys.SWEEPS_SERVED, latest + 1, sweep_id)

    def definition(self, sweep_id: str) -> tuple[Definition, int]:
        """Return the definition of a sweep with its revision; one that was read before is not decoded again.

        Raises:
            NotFound: there is no such sweep.
        """
        key = keys.sweep(sweep_id, "sweep")
        revision = self._store.call("HGET", key, "revision")
        if revision is None:
            raise sweep_not_found(sweep_id)
        known = self._definitions.get((sweep_id, int(revision)))
        if known is None:
            document, revision = self._store.call("HMGET", key, "definition", "revision")
            known = _decode_definition(document)
            self._definitions[sweep_id, int(revision)] = known
        return known, int(revision)

    def lanes(self, sweep_id: str, definition: Definition) -> list[Lane]:
        """Return the lanes of a sweep."""
        return [lane_named(definition, key) for key in self._lanes(sweep_id)]

    def claim(
        self, sweep_id: str, definition: Definition, lanes: Sequence[Lane], holder: str, lease_ms: int
    ) -> Claim | Refusal:
        """Claim the waiting trial with the lowest number that no bound holds back.

        Args:
            lanes: where it may wait.
            holder: a name for this claim alone; the same name again gets the same answer.
            lease_ms: how long the claim lasts unless it is renewed.
        """
        arguments: list[str | int] = [holder, lease_ms, definition.concurrency or "", FEED_LENGTH]
        for lane in lanes:
            arguments.append(len(lane.bounds))
            for bound in lane.bounds:
                arguments += [bound.counter, bound.trials]
        parts = ("sweep", "running", "claims", "counts", "slots", "taken", "holders", "queued", "feed")
        key_list = [*self._keys(sweep_id, *parts), *self._waiting(sweep_id, [lane.key for lane in lanes])]
        number, *rest = self._store.run_script(_CLAIM, key_list, arguments)
        if not number:
            return Refusal(msgspec.convert(rest[0].decode(), Literal["status", "full", "bounds", "none"]))
        token, ready_at = rest
        return Claim(sweep_id, number, token, ready_at)

    def note(self, claim: Claim, attempt: Attempt, lease_ms: int) -> bool:
        """Write what is known of an attempt that is under way, and prolong its lease; False when the claim is lost."""
        return bool(
            self._store.run_script(
                _NOTE,
                self._keys(claim.sweep_id, "running", "claims", "tries", "attempts"),
                [claim.number, claim.token, attempt.attempt, _encode(attempt), lease_ms],
            )
        )

    def renew(self, sweep_id: str, claims: Sequence[Claim], lease_ms: int) -> tuple[Status, set[int]]:
        """Prolong leases of trials of one sweep; return its status, and the numbers whose claims are lost."""
        arguments: list[str | int] = [lease_ms]
        for claim in claims:
            arguments += [claim.number, claim.token]
        status, *lost = self._store.run_script(_RENEW, self._keys(sweep_id, "sweep", "running", "claims"), arguments)
        # Nothing at all is left of a sweep that was removed.
        return msgspec.convert(status.decode() or "cancelled", Status), {int(number) for number in lost}

    def settle(
        self,
        claim: Claim,
        cell: Cell,
        definition: Definition,
        attempt: Attempt | None,
        outcome: Outcome | None,
        *,
        used: Usage | None = None,
        lapsed: bool = False,
    ) -> bool:
        """End a claim, with an outcome or (None) by making its trial wait again; False when it is not there any more.

        Args:
            attempt: what is to be known of the attempt; None if none was begun.
            used: what the attempt has used beyond what was told before; it is added to the sums of the sweep.
            lapsed: only if the lease has run out.
        """
        parts = ("sweep", "running", "claims", "counts", "slots", "taken", "holders", "outcomes", "tries", "attempts")
        lane = Lane(definition, cell).key
        key_list = [
            *self._keys(claim.sweep_id, *parts, "queued", "feed"),
            *self._waiting(claim.sweep_id, [lane]),
        ]
        usage = used or Usage()
        return bool(
            self._store.run_script(
                _SETTLE,
                key_list,
                [
                    claim.number,
                    claim.token,
                    outcome or "",
                    attempt.attempt if attempt else "",
                    _encode(attempt) if attempt else "",
                    self._store.clock(),
                    "lapsed" if lapsed else "any",
                    round(usage.cost_usd * MICRODOLLARS),
                    usage.input_tokens,
                    usage.output_tokens,
                    FEED_LENGTH,
                ],
            )
        )

    def lapsed(self, sweep_id: str) -> list[Claim]:
        """Return the claims of a sweep whose leases have run out."""
        members = self._store.call("ZRANGEBYSCORE", keys.sweep(sweep_id, "running"), "-inf", self._store.clock())
        return self._claims(sweep_id, [int(member) for member in members])

    def claims(self, sweep_id: str) -> list[Claim]:
        """Return all claims of a sweep."""
        members = self._store.call("ZRANGE", keys.sweep(sweep_id, "running"), 0, -1)
        return self._claims(sweep_id, [int(member) for member in members])

    def hold(self, sweep_id: str, host: str, why: str) -> None:
        """Say that a host begins no trial of a sweep for now; what is not repeated is soon forgotten."""
        until = self._store.clock() + round(HOLD_SECONDS * 1000)
        self._store.call("HSET", keys.sweep(sweep_id, "holds"), host, _encode((until, why)))

    # --- parts -----------------------------------------------------------------------------------------------------

    def _page(self, sweep_id: str, numbers: Sequence[int]) -> Iterator[Trial]:
        plan, outcomes, claims, tries = self._store.call_many(
            [("HMGET", keys.sweep(sweep_id, part), *numbers) for part in ("plan", "outcomes", "claims", "tries")]
        )
        names = [
            f"{number}.{attempt}"
            for number, latest in zip(numbers, tries, strict=True)
            for attempt in range(1, int(latest or 0) + 1)
        ]
        documents = self._store.call("HMGET", keys.sweep(sweep_id, "attempts"), *names) if names else []
        attempts: dict[int, list[Attempt]] = {}
        for document in documents:
            attempt = _decode_attempt(document)
            attempts.setdefault(attempt.number, []).append(attempt)
        for number, planned, outcome, claimed in zip(numbers, plan, outcomes, claims, strict=True):
            if planned is not None:
                state: State = _outcome(outcome) if outcome else "running" if claimed else "pending"
                yield Trial(_decode_planned(planned), state, tuple(attempts.get(number, ())))

    def _plan(self, sweep_id: str, numbers: Sequence[int]) -> list[Planned]:
        documents = self._store.call("HMGET", keys.sweep(sweep_id, "plan"), *numbers)
        return [_decode_planned(document) for document in documents if document]

    def _claims(self, sweep_id: str, numbers: Sequence[int]) -> list[Claim]:
        if not numbers:
            return []
        tokens = self._store.call("HMGET", keys.sweep(sweep_id, "claims"), *numbers)
        return [Claim(sweep_id, number, int(token), 0) for number, token in zip(numbers, tokens, strict=True) if token]

    def _lanes(self, sweep_id: str) -> list[str]:
        return sorted(member.decode() for member in self._store.call("SMEMBERS", keys.sweep(sweep_id, "lanes")))

    def _keys(self, sweep_id: str, *parts: str) -> list[str]:
        return [keys.sweep(sweep_id, part) for part in parts]

    def _waiting(self, sweep_id: str, lanes: Iterable[str]) -> list[str]:
        return [keys.sweep(sweep_id, f"pending:{lane}") for lane in lanes]


def sweep_not_found(sweep_id: str) -> NotFound:
    """Return the error for a sweep that does not exist."""
    return NotFound(
        f"Sweep not found: {sweep_id}",
        hint="`statem-dist sweep list` lists the sweeps that there are.",
        details={"sweep": sweep_id},
    )


def _outcome(value: bytes) -> Outcome:
    outcome: Outcome = msgspec.convert(value.decode(), Outcome)
    return outcome


def _change(position: bytes, fields: Sequence[bytes]) -> Change:
    values = {name.decode(): value.decode() for name, value in zip(fields[::2], fields[1::2], strict=True)}
    return Change(position.decode(), int(values.get("n", 0)), values.get("s") or values["t"])


def _text_fields(flat: Any) -> Mapping[str, str]:
    return {bytes(flat[i]).decode(): bytes(flat[i + 1]).decode() for i in range(0, len(flat), 2)}


def _pages(items: Iterable[Item]) -> Iterator[list[Item]]:
    remaining = iter(items)
    while page := list(islice(remaining, PAGE)):
        yield page
