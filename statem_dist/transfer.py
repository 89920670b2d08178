"""A run as a file: its events and the runbooks that it has followed, as lines of JSON (``application/x-ndjson``).

The first line says what follows, then come the runbooks, then the events in order, and the last line holds the SHA-256
of everything before it. Brought into another store, the events make the very same run: they are all that a run is. The
values of its variables stay behind, because a file is passed on.

The SHA-256 tells of accidents alone, because whoever changes a file can compute it anew. So nothing that a file says is
believed that can be looked at: a runbook is what its text says, and its hash is that of its text.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from hashlib import sha256
from typing import Any, Literal

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from statem_dist.errors import Invalid, RunbookInvalid
from statem_dist.eventlog import WITHHELD
from statem_dist.history import events_after
from statem_dist.protocol.events import Event, RunCreated, RunImported, RunRebound, RunRestarted
from statem_dist.protocol.evolve import replay
from statem_dist.protocol.model import SCHEMA, Place, Run
from statem_dist.run_ids import QUEUE_NAME, require_name
from statem_dist.runbook import Format, Parsed, format_of, parse
from statem_dist.store.base import Store
from statem_dist.store.codec import StoredRunbook

FORMAT = "statem-dist-run"

MEDIA_TYPE = "application/x-ndjson"


class Head(Struct, frozen=True):
    """The first line: which run this is, and how many runbooks and events follow."""

    run_id: str
    runbooks: int
    events: int
    format: str = FORMAT
    schema: int = SCHEMA


class Foot(Struct, frozen=True):
    """The last line: the SHA-256, in hexadecimal digits, of all bytes before it."""

    sha256: str
    end: Literal[True] = True


class Parcel(Struct, frozen=True):
    """What a file holds: the runbooks, the events, and the run that they make."""

    runbooks: tuple[StoredRunbook, ...]
    events: tuple[Event, ...]
    run: Run


_head_decoder = msgspec.json.Decoder(Head)
_foot_decoder = msgspec.json.Decoder(Foot)
_runbook_decoder = msgspec.json.Decoder(StoredRunbook)
_event_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def pack(store: Store, run: Run) -> Iterator[bytes]:
    """Yield the lines of a run's file.

    Args:
        store: where the run is kept.
        run: the run; the file ends with its version.
    """
    events = [_without_secrets(event) for _, event in events_after(store, run, 0)]
    stored = [found for digest in _followed(events) if (found := store.runbook(digest)) is not None]
    hashed = sha256()
    lines: list[Any] = [Head(run_id=run.id, runbooks=len(stored), events=len(events)), *stored, *events]
    for line in lines:
        encoded = msgspec.json.encode(line) + b"\n"
        hashed.update(encoded)
        yield encoded
    yield msgspec.json.encode(Foot(hashed.hexdigest())) + b"\n"


def unpack(text: bytes) -> Parcel:
    """Return what a file holds.

    Raises:
        Invalid: it is no such file, it was cut off or changed, its events make no run, or a run that could not go on
            here; the message names the line, or what is missing.
    """
    lines = text.split(b"\n")
    if lines and not lines[-1]:
        lines.pop()
    head = _decoded(_head_decoder, lines, 0)
    if (head.format, head.schema) != (FORMAT, SCHEMA):
        raise Invalid(
            f"Line 1: this is format {head.format!r}, schema {head.schema}; {FORMAT!r}, schema {SCHEMA} can be read.",
            hint="Use the version of statem-dist that wrote it, or a newer one.",
        )
    expected = 1 + head.runbooks + head.events + 1
    if len(lines) != expected:
        raise Invalid(
            f"Line {len(lines)}: the file ends here and says that it has {expected} lines: it was cut off or changed.",
            hint="Export the run again.",
        )
    body = b"".join(line + b"\n" for line in lines[:-1])
    if sha256(body).hexdigest() != _decoded(_foot_decoder, lines, expected - 1).sha256:
        raise Invalid(
            f"Line {expected}: the SHA-256 there is not that of the lines before: the file was changed.",
            hint="Export the run again.",
        )
    runbooks = tuple(
        _read_again(_decoded(_runbook_decoder, lines, 1 + number), 2 + number) for number in range(head.runbooks)
    )
    events = tuple(_decoded(_event_decoder, lines, 1 + head.runbooks + number) for number in range(head.events))
    run = _run_of(head, events)
    _require_usable(run, events, runbooks)
    return Parcel(runbooks, events, run)


def _run_of(head: Head, events: Sequence[Event]) -> Run:
    if not events or not isinstance(events[0], RunCreated | RunImported) or events[0].run_id != head.run_id:
        raise Invalid(f"Line {2 + head.runbooks}: the first event does not begin the run {head.run_id!r}.")
    try:
        return replay(events)
    except (AssertionError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise Invalid(f"The events make no run: {error}.", hint="Export the run again.") from error


def _read_again(stored: StoredRunbook, line: int) -> StoredRunbook:
    """Return a runbook as its text says it: what else a file says of it is not to be believed."""
    parsed = _parsed(stored, line)
    if stored.runbook.hash != parsed.runbook.hash:
        raise Invalid(
            f"Line {line}: the hash of the runbook {stored.runbook.name!r} is not the SHA-256 of its text.",
            hint="Export the run again.",
            details={"hash": stored.runbook.hash, "expected": parsed.runbook.hash},
        )
    return replace(stored, runbook=parsed.runbook)


def _parsed(stored: StoredRunbook, line: int) -> Parsed:
    # The language is not kept with a text; mostly its name tells it.
    first = format_of(stored.source)
    second: Format = "yaml" if first == "json" else "json"
    try:
        return parse(stored.text, source=stored.source, format=first)
    except RunbookInvalid as error:
        try:
            return parse(stored.text, source=stored.source, format=second)
        except RunbookInvalid:
            raise Invalid(f"Line {line}: the text there is no runbook: {error.message}") from error


def _followed(events: Sequence[Event]) -> list[str]:
    """Return the hashes of the runbooks that a run has followed, in that order."""
    bindings = (RunCreated, RunImported, RunRebound, RunRestarted)
    return list(dict.fromkeys(event.runbook for event in events if isinstance(event, bindings)))


def _require_usable(run: Run, events: Sequence[Event], runbooks: Sequence[StoredRunbook]) -> None:
    """Refuse a run that nobody could ask for, or that could not be shown.

    Raises:
        Invalid: its id or its queue cannot be named, or its runbook or its node is missing.
    """
    require_name(run.id, "The run id")
    if run.place.queue is not None and not QUEUE_NAME.fullmatch(run.place.queue):
        raise Invalid(f"The queue {run.place.queue!r} cannot be served.", details={"queue": run.place.queue})
    by_hash = {stored.runbook.hash: stored.runbook for stored in runbooks}
    if missing := [digest for digest in _followed(events) if digest not in by_hash]:
        raise Invalid(
            f"The runbook {missing[0]!r}, which the run has followed, is not in the file.",
            hint="Export the run again.",
            details={"missing": missing},
        )
    runbook = by_hash[run.runbook]
    nodes = [run.node] if run.in_flight is None else [run.node, run.in_flight.source, run.in_flight.target]
    for name in nodes:
        if runbook.node(name) is None:
            raise Invalid(
                f"The run stands on {name!r} or leads there, and its runbook has no such node.",
                hint="Export the run again.",
                details={"node": name},
            )


def _decoded(decoder: msgspec.json.Decoder[Any], lines: Sequence[bytes], number: int) -> Any:
    try:
        return decoder.decode(lines[number])
    except (msgspec.DecodeError, IndexError) as error:
        raise Invalid(f"Line {number + 1}: {error}.", hint="This is no file of an exported run.") from error


def _without_secrets(event: Event) -> Event:
    """Return an event without the values of variables."""
    if isinstance(event, RunCreated | RunImported | RunRestarted):
        return replace(event, place=_without_values(event.place))
    return event


def _without_values(place: Place) -> Place:
    return replace(place, env=dict.fromkeys(place.env, WITHHELD))
