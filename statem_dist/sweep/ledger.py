"""The ledger of sweeps: which trials are planned, where each stands, and what came of every attempt, in Redis.

A trial is in one place at a time: it waits, or somebody has claimed it, or it has an outcome. Each move is one script
that also moves the counts, so that what is planned is the sum of all states at every read. Whoever works on a trial
holds a claim with a lease and a token; what comes with the token of an earlier claim changes nothing.

Trials wait in lanes, which follow from the definition. Since that may be revised while anybody works, each script that
puts a trial into a lane or takes one from there is told the *binding* by which the lane was found, and does nothing
when the sweep has another one by now.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, Literal, TypeVar
from uuid import uuid4

import msgspec
from msgspec import Struct

from statem_dist.errors import Conflict, NotFound
from statem_dist.store import keys
from statem_dist.store.redis_store import RedisStore, Script
from statem_dist.sweep.lanes import Lane, binding_of, lane_named
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
_REVISE = Script("revise", _LUA)
_MOVE = Script("move", _LUA)
_HOLD = Script("hold", _LUA)
_LOOK = Script("look", _LUA)
_PAGE = Script("page", _LUA)
_NEWS = Script("news", _LUA)
_CENSUS = Script("census", _LUA)

OVER: tuple[Status, ...] = ("stopped", "cancelled", "finished")
"""Statuses in which no trial begins any more."""

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
    """One change that the feed tells: a trial is in a new state, or (``number`` 0) the sweep has a new status.

    ``anew`` says that trials have come or gone with it of which the feed tells nothing.
    """

    position: str
    number: int
    to: str
    anew: bool = False


class News(Struct, frozen=True, kw_only=True):
    """What has changed in a sweep after a position of its feed, and where it stands at that moment.

    ``position`` is that of the last change. ``behind`` says that the feed does not reach back to where one was.
    """

    position: str
    changes: tuple[Change, ...]
    behind: bool
    status: Status
    status_reason: str
    counts: dict[State, int]

    @property
    def over(self) -> bool:
        """Whether nothing runs or will begin by itself."""
        return self.status in OVER and self.counts["running"] == 0

    @property
    def anew(self) -> bool:
        """Whether the changes do not tell everything."""
        return self.behind or any(change.anew for change in self.changes)


class Census(Struct, frozen=True, kw_only=True):
    """The states of all trials of a sweep, by number, at one moment: that of a position of its feed."""

    position: str
    status: Status
    status_reason: str
    counts: dict[State, int]
    trials: list[tuple[int, State]]


class Ledger:
    """The sweeps of one state store. Every method may raise ``Unavailable``."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._definitions: dict[tuple[str, int], Definition] = {}
        self._known_lanes: dict[str, tuple[str, list[str], list[Lane]]] = {}

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
            "binding": binding_of(definition),
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
        """Return the sweep that was submitted last with that content, or None; one that was revised has another."""
        found = self._store.call("GET", keys.sweep_of(fingerprint))
        if found is None or self.fingerprint(found.decode()) != fingerprint:
            return None
        return self.sweep(found.decode())

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
        """Add trials to the plan; those that it has already stay as they are. Call ``steer`` afterwards.

        Args:
            ready_at: when they become ready (ms since the epoch); 0 means with the sweep.

        Returns:
            How many were new.

        Raises:
            NotFound: there is no such sweep.
        """
        return sum(self._add(sweep_id, definition, page, ready_at) for page in _pages(trials))

    def revise(self, sweep_id: str, definition: Definition, fingerprint: str) -> None:
        """Put another definition in the place of a sweep's own.

        Trials that wait find their lanes anew, and those under way count towards the new bounds.

        Raises:
            NotFound: there is no such sweep.
        """
        self.require(sweep_id)
        earlier = self.fingerprint(sweep_id)
        if earlier != fingerprint:
            self._store.call("SET", keys.sweep_of(fingerprint), sweep_id)
        operation = _operation()
        counters: dict[int, tuple[str, ...]] = {}
        missing = [claim.number for claim in self.claims(sweep_id)]
        while True:
            for planned in self._planned(sweep_id, missing):
                counters[planned.number] = tuple(bound.counter for bound in Lane(definition, planned.cell).bounds)
            arguments: list[str | int | bytes] = [
                operation,
                _encode(definition),
                fingerprint,
                binding_of(definition),
            ]
            for number, names in counters.items():
                arguments += [number, len(names), *names]
            key_list = self._keys(sweep_id, "sweep", "running", "slots", "taken")
            missing = self._store.run_script(_REVISE, key_list, arguments)
            if not missing:
                break
            if missing == [-1]:
                raise sweep_not_found(sweep_id)
        self.lanes(sweep_id, definition)
        if earlier != fingerprint:
            self._forget_fingerprint(sweep_id, earlier)
        self.publish(OpenSweep(sweep_id, definition.queue, definition.priority))

    def steer(self, sweep_id: str, status: Status, expected: Sequence[Status], why: str = "") -> Status:
        """Give a sweep another status, and return the one that it had.

        One that is made active with nothing left to do is finished: trials are added or made wait again before.

        Args:
            expected: the statuses from which that is possible; it may also be repeated.
            why: kept with the sweep, for whoever asks.

        Raises:
            NotFound: there is no such sweep.
            Conflict: it has none of the expected statuses.
        """
        found = self.require(sweep_id)
        if status in ("active", "paused") and found.status in (status, *expected):
            self.publish(OpenSweep(sweep_id, found.definition.queue, found.definition.priority))
        arguments: list[str | int] = [_operation(), status, why, FEED_LENGTH, *expected]
        while True:
            lanes = self._lanes(sweep_id) if status == "cancelled" else []
            key_list = [
                *self._keys(sweep_id, "sweep", "running", "counts", "outcomes", "feed"),
                *self._waiting(sweep_id, lanes),
            ]
            done, before = self._store.run_script(_STEER, key_list, arguments)
            if not before:
                raise sweep_not_found(sweep_id)
            if not done:
                raise Conflict(
                    f"The sweep {sweep_id!r} is {before.decode()}: it cannot become {status}.",
                    details={"sweep": sweep_id, "status": before.decode()},
                )
            if done == 1:
                earlier: Status = msgspec.convert(before.decode(), Status)
                return earlier

    def again(self, sweep_id: str, trials: Iterable[Trial]) -> int:
        """Make trials that have ended wait again, and return how many do; call ``steer`` afterwards.

        Raises:
            NotFound: there is no such sweep.
        """
        return sum(self._again(sweep_id, page) for page in _pages(trials))

    def withdraw(self, sweep_id: str, numbers: Iterable[int]) -> int:
        """End trials that wait and that are planned no longer; return how many were.

        Raises:
            NotFound: there is no such sweep.
        """
        return sum(self._withdraw(sweep_id, page) for page in _pages(numbers))

    def withdrawn(self, sweep_id: str) -> set[int]:
        """Return the numbers of the trials that were withdrawn, and were not made to wait again since."""
        return {int(member) for member in self._store.call("SMEMBERS", keys.sweep(sweep_id, "withdrawn"))}

    def remove(self, sweep_id: str) -> None:
        """Remove everything that is stored of a sweep; its runs stay."""
        self._forget_fingerprint(sweep_id, self.fingerprint(sweep_id))
        # First what every script that writes looks for, so that nothing is written behind the removal.
        self._store.call("DEL", keys.sweep(sweep_id, "sweep"))
        parts = ("plan", "lanes", "running", "claims", "holders", "slots", "taken", "outcomes", "counts", "tries")
        rest = ("attempts", "queued", "holds", "feed", "withdrawn")
        waiting = self._waiting(sweep_id, self._lanes(sweep_id))
        self._store.call("UNLINK", *waiting, *self._keys(sweep_id, *parts, *rest))
        self.unpublish(sweep_id)
        self._store.call("ZREM", keys.SWEEPS_SERVED, sweep_id)
        # At last, so that one that was removed in part can be found and removed again.
        self._store.call("ZREM", keys.SWEEPS, sweep_id)
        self._store.call("PUBLISH", keys.SWEEPS_MOVED, sweep_id)

    # --- reading ---------------------------------------------------------------------------------------------------

    def sweep(self, sweep_id: str) -> Sweep | None:
        """Return a sweep as it is now, or None."""
        found, counts, holds = self._store.run_script(_LOOK, self._keys(sweep_id, "sweep", "counts", "holds"), [])
        fields = _text_fields(found)
        if "definition" not in fields or "created_by" not in fields:
            return None
        now = self._store.clock()
        held = {host: msgspec.json.decode(value, type=tuple[int, str]) for host, value in _text_fields(holds).items()}
        return Sweep(
            id=sweep_id,
            definition=_decode_definition(fields["definition"]),
            status=msgspec.convert(fields["status"], Status),
            counts=_counts(counts),
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
        if limit < 1:
            return []
        ids = [member.decode() for member in self._store.call("ZREVRANGE", keys.SWEEPS, 0, limit - 1)]
        return [found for found in map(self.sweep, ids) if found is not None]

    def ids(self) -> list[str]:
        """Return the ids of all sweeps, newest first."""
        return [member.decode() for member in self._store.call("ZREVRANGE", keys.SWEEPS, 0, -1)]

    def marks(self) -> list[tuple[int, str]]:
        """Return when each sweep was created (ms since the epoch) with its id, newest first."""
        found = self._store.call("ZREVRANGE", keys.SWEEPS, 0, -1, "WITHSCORES")
        return [(int(float(found[at + 1])), bytes(found[at]).decode()) for at in range(0, len(found), 2)]

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

    def news(self, sweep_id: str, after: str, limit: int) -> News | None:
        """Return what has changed after a position of the feed, as of one moment; None when there is no such sweep.

        Args:
            after: the position up to which everything is known; ``0-0`` is before the first change.
            limit: how many changes at most.
        """
        found = self._store.run_script(_NEWS, self._keys(sweep_id, "sweep", "counts", "feed"), [f"({after}", limit])
        if not found:
            return None
        status, reason, counts, length, oldest, newest, entries = found
        changes = tuple(_change(position, fields) for position, fields in entries)
        return News(
            position=changes[-1].position if changes else after,
            changes=changes,
            behind=_is_behind(after, length, oldest.decode(), newest.decode()),
            status=msgspec.convert(status.decode(), Status),
            status_reason=reason.decode(),
            counts=_counts(counts),
        )

    def census(self, sweep_id: str) -> Census | None:
        """Return the state of every trial, as of one moment; None when there is no such sweep."""
        parts = ("sweep", "counts", "feed", "plan", "outcomes", "running")
        found = self._store.run_script(_CENSUS, self._keys(sweep_id, *parts), [])
        if not found:
            return None
        status, reason, counts, newest, planned, outcomes, running = found
        states: dict[int, State] = dict.fromkeys(sorted(map(int, planned)), "pending")
        states |= {int(number): "running" for number in running}
        for number, outcome in zip(outcomes[::2], outcomes[1::2], strict=True):
            states[int(number)] = msgspec.convert(outcome.decode(), State)
        return Census(
            position=newest.decode(),
            status=msgspec.convert(status.decode(), Status),
            status_reason=reason.decode(),
            counts=_counts(counts),
            trials=list(states.items()),
        )

    def in_use(self, sweep_id: str) -> dict[str, int]:
        """Return how many trials are under way that share a bound, by the name of its counter."""
        found = _text_fields(self._store.call("HGETALL", keys.sweep(sweep_id, "slots")))
        return {counter: int(number) for counter, number in found.items()}

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
        if not sweep_ids:
            return []
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
            if document is None:
                raise sweep_not_found(sweep_id)
            known = _decode_definition(document)
            self._definitions[sweep_id, int(revision)] = known
        return known, int(revision)

    def lanes(self, sweep_id: str, definition: Definition) -> list[Lane]:
        """Return the lanes of a sweep.

        Where a revision has left trials in lanes of another binding, they are moved before: whoever comes by helps.
        """
        binding = binding_of(definition)
        while True:
            names = self._lanes(sweep_id)
            known = self._known_lanes.get(sweep_id)
            if known is not None and known[:2] == (binding, names):
                return list(known[2])
            found = [lane_named(definition, name) for name in names]
            lanes = [lane for lane in found if lane is not None]
            if len(lanes) == len(names):
                self._known_lanes[sweep_id] = (binding, names, lanes)
                return list(lanes)
            left = (name for name, lane in zip(names, found, strict=True) if lane is None)
            if not all(self._leave(sweep_id, definition, name) for name in left):
                # The definition is not the sweep's any more, and says nothing of where its trials wait.
                return lanes

    def claim(
        self, sweep_id: str, definition: Definition, lanes: Sequence[Lane], holder: str, lease_ms: int
    ) -> Claim | Refusal:
        """Claim the waiting trial with the lowest number that no bound holds back.

        Args:
            lanes: where it may wait, of that definition.
            holder: a name for this claim alone; the same name again gets the same answer.
            lease_ms: how long the claim lasts unless it is renewed.
        """
        arguments: list[str | int] = [
            holder,
            lease_ms,
            definition.concurrency or "",
            FEED_LENGTH,
            binding_of(definition),
        ]
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
        """Prolong leases of trials of one sweep; return its status, and the tokens of the claims that are lost.

        Two of the claims may be of the same trial, of which one is lost.
        """
        arguments: list[str | int] = [lease_ms]
        for claim in claims:
            arguments += [claim.number, claim.token]
        status, *lost = self._store.run_script(_RENEW, self._keys(sweep_id, "sweep", "running", "claims"), arguments)
        # Nothing at all is left of a sweep that was removed.
        return msgspec.convert(status.decode() or "cancelled", Status), {int(token) for token in lost}

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
            used: what an attempt that has ended has used; it is added to the sums of the sweep.
            lapsed: only if the lease has run out.
        """
        parts = ("sweep", "running", "claims", "counts", "slots", "taken", "holders", "outcomes", "tries", "attempts")
        usage = used or Usage()
        common = [
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
        ]

        def try_with(current: Definition) -> int:
            lane = Lane(current, cell).key
            key_list = [
                *self._keys(claim.sweep_id, *parts, "queued", "feed", "lanes"),
                *self._waiting(claim.sweep_id, [lane]),
            ]
            return int(self._store.run_script(_SETTLE, key_list, [*common, lane, binding_of(current)]))

        try:
            return bool(self._by_binding(claim.sweep_id, definition, try_with))
        except NotFound:
            return False

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
        self._store.run_script(_HOLD, self._keys(sweep_id, "sweep", "holds"), [host, _encode((until, why))])

    # --- parts -----------------------------------------------------------------------------------------------------

    def _add(self, sweep_id: str, definition: Definition, page: Sequence[Planned], ready_at: int) -> int:
        operation = _operation()

        def try_with(current: Definition) -> int:
            lanes, places = _sorted_out(current, [planned.cell for planned in page])
            rows: list[str | int | bytes] = []
            for planned, place in zip(page, places, strict=True):
                rows += [planned.number, place, _encode(planned)]
            key_list = [
                *self._keys(sweep_id, "sweep", "plan", "counts", "lanes", "queued", "feed"),
                *self._waiting(sweep_id, lanes),
            ]
            arguments: list[str | int | bytes] = [operation, binding_of(current), ready_at, FEED_LENGTH]
            arguments += [len(lanes), *lanes, *rows]
            return int(self._store.run_script(_PLAN, key_list, arguments))

        return self._by_binding(sweep_id, definition, try_with)

    def _again(self, sweep_id: str, page: Sequence[Trial]) -> int:
        operation = _operation()

        def try_with(current: Definition) -> int:
            lanes, places = _sorted_out(current, [trial.planned.cell for trial in page])
            rows: list[str | int] = []
            for trial, place in zip(page, places, strict=True):
                rows += [trial.planned.number, place, trial.state]
            key_list = [
                *self._keys(sweep_id, "sweep", "counts", "outcomes", "lanes", "queued", "feed", "withdrawn"),
                *self._waiting(sweep_id, lanes),
            ]
            arguments: list[str | int] = [operation, binding_of(current), FEED_LENGTH, len(lanes), *lanes, *rows]
            return int(self._store.run_script(_AGAIN, key_list, arguments))

        return self._by_binding(sweep_id, self.definition(sweep_id)[0], try_with)

    def _withdraw(self, sweep_id: str, page: Sequence[int]) -> int:
        operation = _operation()
        found = self._planned(sweep_id, page)

        def try_with(current: Definition) -> int:
            self.lanes(sweep_id, current)
            lanes, places = _sorted_out(current, [planned.cell for planned in found])
            rows: list[int] = []
            for planned, place in zip(found, places, strict=True):
                rows += [planned.number, place]
            key_list = [
                *self._keys(sweep_id, "sweep", "running", "counts", "outcomes", "feed", "withdrawn"),
                *self._waiting(sweep_id, lanes),
            ]
            arguments: list[str | int] = [operation, binding_of(current), FEED_LENGTH, *rows]
            return int(self._store.run_script(_WITHDRAW, key_list, arguments))

        return self._by_binding(sweep_id, self.definition(sweep_id)[0], try_with)

    def _leave(self, sweep_id: str, definition: Definition, lane: str) -> bool:
        """Move all trials that wait in a lane to those of a definition; False when that is not the sweep's own."""
        left = keys.sweep(sweep_id, f"pending:{lane}")
        while True:
            found = self._planned(sweep_id, [int(number) for number in self._store.call("ZRANGE", left, 0, PAGE - 1)])
            lanes, places = _sorted_out(definition, [planned.cell for planned in found])
            rows: list[int] = []
            for planned, place in zip(found, places, strict=True):
                rows += [planned.number, place]
            key_list = [*self._keys(sweep_id, "sweep", "lanes"), left, *self._waiting(sweep_id, lanes)]
            arguments: list[str | int] = [binding_of(definition), lane, len(lanes), *lanes, *rows]
            answer = self._store.run_script(_MOVE, key_list, arguments)
            if answer:
                return bool(answer == 1)

    def _by_binding(self, sweep_id: str, definition: Definition, try_with: Callable[[Definition], int]) -> int:
        """Return the answer of a script that goes by the lanes of a definition; with the sweep's own if that differs.

        Raises:
            NotFound: there is no such sweep.
        """
        while (answer := try_with(definition)) < 0:
            definition, _ = self.definition(sweep_id)
        return answer

    def _forget_fingerprint(self, sweep_id: str, fingerprint: str) -> None:
        if fingerprint and self._store.call("GET", keys.sweep_of(fingerprint)) == sweep_id.encode():
            self._store.call("DEL", keys.sweep_of(fingerprint))

    def _page(self, sweep_id: str, numbers: Sequence[int]) -> Iterator[Trial]:
        key_list = self._keys(sweep_id, "plan", "outcomes", "claims", "tries", "attempts")
        answer = iter(self._store.run_script(_PAGE, key_list, numbers))
        for planned in answer:
            state: State = msgspec.convert(next(answer).decode(), State)
            attempts = tuple(_decode_attempt(document) for document in islice(answer, next(answer)))
            yield Trial(_decode_planned(planned), state, attempts)

    def _planned(self, sweep_id: str, numbers: Sequence[int]) -> list[Planned]:
        if not numbers:
            return []
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


def _operation() -> str:
    """Return a name for one act, by which a script knows that it is sent again."""
    return uuid4().hex


def _sorted_out(definition: Definition, cells: Iterable[Cell]) -> tuple[list[str], list[int]]:
    """Return the lanes of some cells, and for each cell the place of its own among them, from 1."""
    lanes: dict[str, int] = {}
    places = [lanes.setdefault(Lane(definition, cell).key, len(lanes) + 1) for cell in cells]
    return list(lanes), places


def _change(position: bytes, fields: Sequence[bytes]) -> Change:
    values = {name.decode(): value.decode() for name, value in zip(fields[::2], fields[1::2], strict=True)}
    return Change(
        position.decode(), int(values.get("n", 0)), values.get("s") or values["t"], anew=values.get("r") == "1"
    )


def _counts(flat: Any) -> dict[State, int]:
    """Return how many trials are in each state."""
    number_of = _text_fields(flat)
    return {state: int(number_of.get(state, 0)) for state in STATES}


def _is_behind(position: str, length: int, oldest: str, newest: str) -> bool:
    """Return whether changes after a position may have been dropped from a feed, or are of another one."""
    if position == "0-0":
        # Nothing is ever dropped before there is more than is kept.
        return length >= FEED_LENGTH
    return not _stamp(oldest) <= _stamp(position) <= _stamp(newest)


def _stamp(position: str) -> tuple[int, int]:
    milliseconds, _, sequence = position.partition("-")
    return int(milliseconds), int(sequence)


def _text_fields(flat: Any) -> Mapping[str, str]:
    return {bytes(flat[i]).decode(): bytes(flat[i + 1]).decode() for i in range(0, len(flat), 2)}


def _pages(items: Iterable[Item]) -> Iterator[list[Item]]:
    remaining = iter(items)
    while page := list(islice(remaining, PAGE)):
        yield page
