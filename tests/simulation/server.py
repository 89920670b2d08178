"""A Redis in memory that runs the project's own Lua scripts, by the clock of the simulation.

It knows the commands that runs need and refuses every other one. What it adds to a Redis is what a simulator wants: it
takes back its last writes, as a server does that comes up with an older file; it runs out of memory; and it tells of
every event that was written, when it was written.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import cache, partial
from hashlib import sha1
from typing import Any, TypeAlias

from lupa import lua51

from statem_dist.store.client import Argument, Refused

EVENTS_KEY = re.compile(rb"^statem:\{\d+\}:events:(.*)$")

WRITES_KEPT = 40
"""How many of the last writes can be taken back."""

Hash: TypeAlias = dict[bytes, bytes]
Stream: TypeAlias = list[tuple[bytes, list[bytes]]]
Undo: TypeAlias = Callable[[], object]


class Server:
    """One server.

    Args:
        clock_us: its clock, in microseconds since the epoch.
        on_events: told of every stream of a run that a command has appended to, by the run's id.
        on_message: told of a queue that a message was pushed to.
    """

    def __init__(
        self, clock_us: Callable[[], int], on_events: Callable[[str], None], on_message: Callable[[str], None]
    ) -> None:
        self.out_of_memory = False
        self.writes = 0
        self._clock_us = clock_us
        self._on_events = on_events
        self._on_message = on_message
        self._values: dict[bytes, Any] = {}
        self._expiries: dict[bytes, int] = {}
        self._channels: dict[bytes, dict[Callable[[bytes], None], None]] = {}
        self._known: set[str] = set()
        self._undone: list[list[Undo]] = []
        self._undo: list[Undo] = []
        self._moved: list[str] = []
        self._pushed: list[str] = []

    # --- from outside -----------------------------------------------------------------------------------------

    def execute(self, command: Sequence[Argument]) -> Any:
        """Carry out a command and return its reply.

        Raises:
            Refused: the server does not do that, now or ever; nothing was done.
        """
        self._undo, self._moved, self._pushed = [], [], []
        try:
            reply = self._dispatch([_bytes(word) for word in command])
        except Refused:
            assert not self._undo, "a script is refused before its first write, or not at all"
            raise
        if self._undo:
            self.writes += 1
            self._undone.append(self._undo)
            del self._undone[:-WRITES_KEPT]
        for run_id in self._moved:
            self._on_events(run_id)
        for queue in self._pushed:
            self._on_message(queue)
        return reply

    def take_back(self, count: int) -> None:
        """Forget the last writes."""
        for _ in range(min(count, len(self._undone))):
            for undo in reversed(self._undone.pop()):
                undo()

    def subscribe(self, channels: Sequence[str], hear: Callable[[bytes], None]) -> Callable[[], None]:
        """Have somebody hear of what is published; return what ends that."""
        for channel in channels:
            self._channels.setdefault(channel.encode(), {})[hear] = None

        def end() -> None:
            for channel in channels:
                self._channels[channel.encode()].pop(hear, None)

        return end

    def value(self, key: str) -> Any:
        """Return what is kept under a key, for whoever looks behind the server; None if nothing is."""
        return self._get(key.encode())

    def keys(self, beginning: str) -> list[str]:
        """Return the keys that begin so."""
        return [key.decode() for key in self._values if key.startswith(beginning.encode())]

    def messages(self, queue: str) -> list[bytes]:
        """Return the messages of a queue, newest first, for whoever takes one."""
        found: list[bytes] = self._values.get(queue.encode(), [])
        return found

    def put_message(self, queue: str, message: bytes) -> None:
        """Put a message into a queue, unseen by the undo of writes: the queue is the broker's."""
        self._values.setdefault(queue.encode(), []).insert(0, message)
        self._on_message(queue)

    def drop_messages(self, queues: Sequence[str]) -> None:
        """Empty queues, as a broker does that was wiped."""
        for queue in queues:
            self._values.pop(queue.encode(), None)

    # --- commands ---------------------------------------------------------------------------------------------

    def _dispatch(self, words: list[bytes]) -> Any:
        name = words[0].decode().upper()
        if self.out_of_memory and name in DENIED_WITHOUT_MEMORY:
            raise Refused("OOM", "OOM command not allowed when used memory > 'maxmemory'.")
        carry_out = COMMANDS.get(name)
        if carry_out is None:
            raise AssertionError(f"the simulated server does not know {name}: {words!r}")
        return carry_out(self, words)

    def _get(self, key: bytes) -> Any:
        expiry = self._expiries.get(key)
        if expiry is not None and expiry <= self._now_ms():
            self._values.pop(key, None)
            del self._expiries[key]
        return self._values.get(key)

    def _now_ms(self) -> int:
        return self._clock_us() // 1000

    def _restore(self, key: bytes) -> None:
        """Keep what is needed to take back a write to a key whose value is small."""
        old, expiry = self._get(key), self._expiries.get(key)
        kept = old.copy() if isinstance(old, dict | list) else old

        def undo() -> None:
            self._values.pop(key, None)
            self._expiries.pop(key, None)
            if kept is not None:
                self._values[key] = kept
            if expiry is not None:
                self._expiries[key] = expiry

        self._undo.append(undo)

    def _evalsha(self, words: list[bytes]) -> Any:
        sha = words[1].decode()
        if sha not in self._known:
            raise Refused("NOSCRIPT", "NOSCRIPT No matching script. Please use EVAL.")
        return self._run(_SOURCES[sha], words)

    def _eval(self, words: list[bytes]) -> Any:
        sha = sha1(words[1], usedforsecurity=False).hexdigest()
        _SOURCES[sha] = words[1]
        self._known.add(sha)
        return self._run(words[1], words)

    def _script(self, words: list[bytes]) -> Any:
        if words[1].upper() == b"FLUSH":
            self._known.clear()
            return b"OK"
        sha = sha1(words[2], usedforsecurity=False).hexdigest()
        _SOURCES[sha] = words[2]
        self._known.add(sha)
        return sha.encode()

    def _run(self, source: bytes, words: list[bytes]) -> Any:
        count = int(words[2])
        with _calling(self):
            reply = _compiled(source)(
                _RUNTIME.table_from(words[3 : 3 + count]), _RUNTIME.table_from(words[3 + count :])
            )
        return _from_lua(reply)

    def _time(self, words: list[bytes]) -> Any:
        seconds, microseconds = divmod(self._clock_us(), 1_000_000)
        return [b"%d" % seconds, b"%d" % microseconds]

    def _exists(self, words: list[bytes]) -> int:
        return sum(self._get(key) is not None for key in words[1:])

    def _del(self, words: list[bytes]) -> int:
        found = [key for key in words[1:] if self._get(key) is not None]
        for key in found:
            self._restore(key)
            del self._values[key]
            self._expiries.pop(key, None)
        return len(found)

    def _pttl(self, words: list[bytes]) -> int:
        if self._get(words[1]) is None:
            return -2
        expiry = self._expiries.get(words[1])
        return -1 if expiry is None else expiry - self._now_ms()

    def _read(self, words: list[bytes]) -> Any:
        return self._get(words[1])

    def _set(self, words: list[bytes]) -> Any:
        options = [word.upper() for word in words[3:]]
        if b"NX" in options and self._get(words[1]) is not None:
            return None
        self._restore(words[1])
        self._values[words[1]] = words[2]
        self._expiries.pop(words[1], None)
        for unit, factor in ((b"EX", 1000), (b"PX", 1)):
            if unit in options:
                self._expiries[words[1]] = self._now_ms() + factor * int(options[options.index(unit) + 1])
        return b"OK"

    # --- hashes -----------------------------------------------------------------------------------------------

    def _hget(self, words: list[bytes]) -> Any:
        found: Hash = self._get(words[1]) or {}
        return found.get(words[2])

    def _hmget(self, words: list[bytes]) -> Any:
        found: Hash = self._get(words[1]) or {}
        return [found.get(field) for field in words[2:]]

    def _hgetall(self, words: list[bytes]) -> Any:
        found: Hash = self._get(words[1]) or {}
        return [part for pair in found.items() for part in pair]

    def _hset(self, words: list[bytes]) -> int:
        self._restore(words[1])
        found: Hash = self._values.setdefault(words[1], {})
        before = len(found)
        found.update(zip(words[2::2], words[3::2], strict=True))
        return len(found) - before

    def _hdel(self, words: list[bytes]) -> int:
        found: Hash = self._get(words[1]) or {}
        fields = [field for field in words[2:] if field in found]
        if fields:
            self._restore(words[1])
            for field in fields:
                del self._values[words[1]][field]
            if not self._values[words[1]]:
                del self._values[words[1]]
        return len(fields)

    def _hincrby(self, words: list[bytes]) -> int:
        number = int(self._hget(words) or 0) + int(words[3])
        self._hset([b"HSET", words[1], words[2], b"%d" % number])
        return number

    # --- sorted sets ------------------------------------------------------------------------------------------

    def _zadd(self, words: list[bytes]) -> int:
        only_old = words[2].upper() == b"XX"
        scores = words[3:] if only_old else words[2:]
        found: dict[bytes, float] = self._get(words[1]) or {}
        new = {member: float(score) for score, member in zip(scores[::2], scores[1::2], strict=True)}
        if only_old:
            new = {member: score for member, score in new.items() if member in found}
        if new:
            self._restore(words[1])
            self._values.setdefault(words[1], {}).update(new)
        return len(new.keys() - found.keys())

    def _zrem(self, words: list[bytes]) -> int:
        return self._hdel(words)

    def _zscore(self, words: list[bytes]) -> Any:
        score = (self._get(words[1]) or {}).get(words[2])
        return None if score is None else _number(score)

    def _zcard(self, words: list[bytes]) -> int:
        return len(self._get(words[1]) or {})

    def _zcount(self, words: list[bytes]) -> int:
        return len(self._within(words[1], words[2], words[3]))

    def _zrangebyscore(self, words: list[bytes]) -> Any:
        return self._page(self._within(words[1], words[2], words[3]), words[4:])

    def _zrevrangebyscore(self, words: list[bytes]) -> Any:
        return self._page(self._within(words[1], words[3], words[2])[::-1], words[4:])

    def _zremrangebyscore(self, words: list[bytes]) -> int:
        return self._hdel([b"", words[1], *(member for member, _ in self._within(words[1], words[2], words[3]))])

    def _within(self, key: bytes, least: bytes, most: bytes) -> list[tuple[bytes, float]]:
        found: dict[bytes, float] | None = self._get(key)
        if not found:
            return []
        low, high = float(least), float(most)
        inside = [(score, member) for member, score in found.items() if low <= score <= high]
        return [(member, score) for score, member in sorted(inside)]

    def _page(self, found: list[tuple[bytes, float]], options: list[bytes]) -> list[bytes]:
        upper = [option.upper() for option in options]
        if b"LIMIT" in upper:
            at = upper.index(b"LIMIT")
            first, count = int(options[at + 1]), int(options[at + 2])
            found = found[first:] if count < 0 else found[first : first + count]
        if b"WITHSCORES" in upper:
            return [part for member, score in found for part in (member, _number(score))]
        return [member for member, _ in found]

    # --- streams, lists, channels -------------------------------------------------------------------------------

    def _xadd(self, words: list[bytes]) -> bytes:
        key, at, longest = words[1], 2, 0
        if words[2].upper() == b"MAXLEN":
            longest, at = int(words[4]), 5
        stream: Stream = self._values.setdefault(key, [])
        entry_id = words[at]
        if entry_id == b"*":
            last = int(stream[-1][0].split(b"-")[0]) if stream else 0
            entry_id = b"%d-0" % max(self._now_ms(), last + 1)
        elif stream and _place(entry_id) <= _place(stream[-1][0]):
            raise AssertionError(f"{key!r}: {entry_id!r} comes after {stream[-1][0]!r}")
        stream.append((entry_id, words[at + 1 :]))
        self._undo.append(stream.pop)
        if longest:
            del stream[: -2 * longest]
        if match := EVENTS_KEY.match(key):
            run_id = match[1].decode()
            if run_id not in self._moved:
                self._moved.append(run_id)
        return entry_id

    def _xrange(self, words: list[bytes]) -> Any:
        return self._entries(words[1], words[2], words[3], words[4:])

    def _xrevrange(self, words: list[bytes]) -> Any:
        return self._entries(words[1], words[3], words[2], words[4:], backwards=True)

    def _entries(
        self, key: bytes, first: bytes, last: bytes, options: list[bytes], *, backwards: bool = False
    ) -> list[Any]:
        stream: Stream = self._get(key) or []
        found = [entry for entry in stream if _is_behind(entry[0], first) and _is_before(entry[0], last)]
        if backwards:
            found.reverse()
        return [[entry_id, fields] for entry_id, fields in (found[: int(options[1])] if options else found)]

    def _lpush(self, words: list[bytes]) -> int:
        messages: list[bytes] = self._values.setdefault(words[1], [])
        for message in words[2:]:
            messages.insert(0, message)
        # A queue is taken from behind the scenes; what was pushed and taken cannot be taken back.
        self._undo.append(partial(_take_out, messages, words[2:]))
        self._pushed.append(words[1].decode())
        return len(messages)

    def _llen(self, words: list[bytes]) -> int:
        return len(self._get(words[1]) or [])

    def _publish(self, words: list[bytes]) -> int:
        listeners = list(self._channels.get(words[1], ()))
        for hear in listeners:
            hear(words[2])
        return len(listeners)


DENIED_WITHOUT_MEMORY = frozenset({"SET", "HSET", "HINCRBY", "ZADD", "XADD", "LPUSH"})

COMMANDS: dict[str, Callable[[Server, list[bytes]], Any]] = {
    "DEL": Server._del,
    "EVAL": Server._eval,
    "EVALSHA": Server._evalsha,
    "EXISTS": Server._exists,
    "GET": Server._read,
    "HDEL": Server._hdel,
    "HGET": Server._hget,
    "HGETALL": Server._hgetall,
    "HINCRBY": Server._hincrby,
    "HMGET": Server._hmget,
    "HSET": Server._hset,
    "LLEN": Server._llen,
    "LPUSH": Server._lpush,
    "PTTL": Server._pttl,
    "PUBLISH": Server._publish,
    "SCRIPT": Server._script,
    "SET": Server._set,
    "TIME": Server._time,
    "XADD": Server._xadd,
    "XRANGE": Server._xrange,
    "XREVRANGE": Server._xrevrange,
    "ZADD": Server._zadd,
    "ZCARD": Server._zcard,
    "ZCOUNT": Server._zcount,
    "ZRANGEBYSCORE": Server._zrangebyscore,
    "ZREM": Server._zrem,
    "ZREMRANGEBYSCORE": Server._zremrangebyscore,
    "ZREVRANGEBYSCORE": Server._zrevrangebyscore,
    "ZSCORE": Server._zscore,
}

# --- Lua ------------------------------------------------------------------------------------------------------

_RUNTIME = lua51.LuaRuntime(encoding=None, unpack_returned_tuples=False)
_SOURCES: dict[str, bytes] = {}
_CALLEE: list[Server] = []


def _redis_call(*words: Any) -> Any:
    """``redis.call``, as a script calls it."""
    reply = _CALLEE[-1]._dispatch([_bytes(word) for word in words])
    return _to_lua(reply)


_RUNTIME.globals()[b"redis"] = _RUNTIME.table_from({b"call": _redis_call})


@contextmanager
def _calling(server: Server) -> Iterator[None]:
    _CALLEE.append(server)
    try:
        yield
    finally:
        _CALLEE.pop()


@cache
def _compiled(source: bytes) -> Any:
    return _RUNTIME.eval(b"function(KEYS, ARGV)\n" + source + b"\nend")


def _to_lua(reply: Any) -> Any:
    """Return a reply as a script sees it: what is not there is false."""
    if reply is None:
        return False
    if isinstance(reply, list):
        return _RUNTIME.table_from([_to_lua(part) for part in reply])
    return reply


def _from_lua(reply: Any) -> Any:
    """Return what a script gives back as a client sees it."""
    if lua51.lua_type(reply) == "table":
        return [_from_lua(reply[index]) for index in range(1, len(reply) + 1)]
    if isinstance(reply, float):
        return int(reply)
    if isinstance(reply, bool):
        return 1 if reply else None
    return reply


def _take_out(messages: list[bytes], pushed: list[bytes]) -> None:
    for message in pushed:
        if message in messages:
            messages.remove(message)


def _bytes(word: Any) -> bytes:
    if isinstance(word, bytes):
        return word
    if isinstance(word, float):
        return _number(word)
    return str(word).encode()


def _number(value: float) -> bytes:
    return b"%d" % value if value == int(value) else repr(value).encode()


def _place(entry_id: bytes) -> tuple[int, int]:
    milliseconds, _, sequence = entry_id.partition(b"-")
    return int(milliseconds), int(sequence or 0)


def _is_behind(entry_id: bytes, first: bytes) -> bool:
    if first == b"-":
        return True
    return _place(entry_id) > _place(first[1:]) if first.startswith(b"(") else _place(entry_id) >= _place(first)


def _is_before(entry_id: bytes, last: bytes) -> bool:
    if last == b"+":
        return True
    return _place(entry_id) < _place(last[1:]) if last.startswith(b"(") else _place(entry_id) <= _place(last)
