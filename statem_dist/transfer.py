"""Runs as a file: their events and the runbooks that they have followed, as lines of JSON (``application/x-ndjson``).

Every line is ``{"line": NUMBER, "sha256": HASH, "value": {...}}``. The hash is that of the hash of the line before
(64 zeros before the first) and of the bytes of the value: so it stands for everything up to there, and the first line
that was changed, taken out, put in or put elsewhere is found and named. The values are, by their ``kind``:

===========  =======================================================================================================
``head``     what this is, in which version, and whether the values of variables were left out
``runbook``  a runbook; each stands once, before the first run that has followed it
``run``      which run begins here, and how many events follow
``event``    one event of the run, with its number
``end``      how many runs there were; a file without it was cut off
===========  =======================================================================================================

Brought into another store, the events make the very same run: they are all that a run is. The values of its variables
stay behind in what is passed on, and are kept in an archive.

The hashes tell of accidents and of careless hands, because whoever changes a file can compute them all anew. So nothing
that a file says is believed that can be looked at: a runbook is what its text says, its hash is that of its text, and
every history is judged by the laws before anything of it is written.

A file is written and read one run at a time, so that the memory it takes does not grow with the number of runs.
"""

from __future__ import annotations

import io
import zlib
from collections.abc import Iterable, Iterator
from hashlib import sha256
from pathlib import Path
from typing import IO, Any, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from statem_dist.errors import Conflict, Invalid, NotFound, RunbookInvalid
from statem_dist.eventlog import WITHHELD
from statem_dist.history import events_after
from statem_dist.laws import Judge
from statem_dist.protocol.events import Event, RunCreated, RunImported, RunRebound, RunRestarted
from statem_dist.protocol.graph import Runbook
from statem_dist.protocol.model import SCHEMA, Place, Run
from statem_dist.run_ids import QUEUE_NAME, require_name
from statem_dist.runbook import Format, Parsed, format_of, parse
from statem_dist.store.base import Store
from statem_dist.store.codec import StoredRunbook, encode_event

FORMAT = "statem-dist-runs"

MEDIA_TYPE = "application/x-ndjson"

SUFFIX = ".run.jsonl"
"""How the names of files of runs end, where this project names them; ``.gz`` follows if they are compressed."""

START = "0" * 64
"""What stands for the hash of the line before the first."""

GZIP = b"\x1f\x8b"
"""How a compressed file begins."""

CHUNK = 1 << 16
"""Bytes that are read or compressed at a time."""

LINE_BYTES_MAX = 1 << 26
"""The longest line that is read: many times that of the largest runbook."""

TIME_MAX_MS = 253_402_300_799_999
"""The last millisecond of the year 9999; a later one cannot be shown."""

NESTED = "its values are nested too deeply"

EXPORT_AGAIN = "Export it again."


class Head(Struct, frozen=True, tag_field="kind", tag="head"):
    """The first line. ``withheld`` says that the values of variables were left out."""

    format: str = FORMAT
    schema: int = SCHEMA
    withheld: bool = True


class RunbookLine(Struct, frozen=True, tag_field="kind", tag="runbook"):
    """A runbook that runs of the file have followed."""

    runbook: StoredRunbook


class RunLine(Struct, frozen=True, tag_field="kind", tag="run"):
    """The beginning of a run: its id, and how many events follow."""

    run_id: str
    events: int


class EventLine(Struct, frozen=True, tag_field="kind", tag="event"):
    """An event of the run that began last."""

    number: int
    event: Event


class End(Struct, frozen=True, tag_field="kind", tag="end"):
    """The last line: how many runs there were."""

    runs: int


Line: TypeAlias = Head | RunbookLine | RunLine | EventLine | End


class Parcel(Struct, frozen=True):
    """What a file holds of one run: the runbooks it has followed, its events, and the run that they make.

    ``withheld`` says that the values of its variables were left out.
    """

    runbooks: tuple[StoredRunbook, ...]
    events: tuple[Event, ...]
    run: Run
    withheld: bool = True


class _Sealed(Struct, forbid_unknown_fields=True):
    line: int
    sha256: str
    value: msgspec.Raw


_sealed_decoder = msgspec.json.Decoder(_Sealed)
_line_decoder: msgspec.json.Decoder[Line] = msgspec.json.Decoder(Line)


# --- writing -------------------------------------------------------------------------------------------------------


def pack(store: Store, runs: Iterable[Run], *, withheld: bool = True) -> Iterator[bytes]:
    """Yield the lines of a file.

    Args:
        store: where the runs are kept.
        runs: the runs, each as it is to be told: up to its version.
        withheld: whether the values of variables are left out.

    Raises:
        Conflict: a run has fewer events than it should have; what was yielded until then is no file.
    """
    return seal(_lines(store, runs, withheld))


def seal(values: Iterable[Line]) -> Iterator[bytes]:
    """Yield the lines of a file that holds these values."""
    before = START
    for number, value in enumerate(values, start=1):
        encoded = msgspec.json.encode(value)
        before = _hash(before, encoded)
        yield _line(number, before, encoded)


def compressed(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield the compressed form (gzip) of what comes in chunks; the same input always gives the same output."""
    compressor = zlib.compressobj(wbits=31)
    for chunk in chunks:
        if packed := compressor.compress(chunk):
            yield packed
    yield compressor.flush()


def _lines(store: Store, runs: Iterable[Run], withheld: bool) -> Iterator[Line]:
    yield Head(withheld=withheld)
    told: set[str] = set()
    count = 0
    for run in runs:
        count += 1
        # Twice through the events, so that a long run need not fit into memory.
        for digest in _followed(event for _, event in events_after(store, run, 0)):
            stored = store.runbook(digest) if digest not in told else None
            if stored is not None:
                told.add(digest)
                yield RunbookLine(stored)
        yield RunLine(run.id, run.version)
        number = 0
        for number, event in events_after(store, run, 0):
            yield EventLine(number, without_secrets(event) if withheld else event)
        if number != run.version:
            raise Conflict(
                f"The run {run.id!r} has no event {number + 1}: it was removed while it was written, or is damaged.",
                hint=f"Try again; `statem-dist verify {run.id}` says whether it is damaged.",
                details={"run_id": run.id},
            )
    yield End(count)


# --- reading -------------------------------------------------------------------------------------------------------


def unpack(text: bytes) -> Parcel:
    """Return the one run that a file holds.

    Raises:
        Invalid: see ``read``; or it holds another number of runs.
    """
    parcels = list(read(text.splitlines(keepends=True)))
    if len(parcels) != 1:
        raise Invalid(f"The file holds {len(parcels)} runs, and one is expected.", hint="Import them one by one.")
    return parcels[0]


def read(lines: Iterable[bytes]) -> Iterator[Parcel]:
    """Yield the runs of a file, each once everything that is said of it was looked at.

    Args:
        lines: the lines of the file with their ends, uncompressed.

    Raises:
        Invalid: it is no such file, it was cut off or changed, its events break a law, or they make a run that could
            not go on here; the message names the line.
    """
    reader = _Reader(lines)
    head = reader.next()
    if not isinstance(head, Head):
        raise _at(1, "a file of runs begins with its head")
    if (head.format, head.schema) != (FORMAT, SCHEMA):
        raise Invalid(
            f"Line 1: this is format {head.format!r}, schema {head.schema}; {FORMAT!r}, schema {SCHEMA} can be read.",
            hint="Use the version of statem-dist that wrote it, or a newer one.",
        )
    runbooks: dict[str, StoredRunbook] = {}
    graphs: dict[str, Runbook] = {}
    count = 0
    while True:
        value = reader.next()
        match value:
            case RunbookLine():
                found = _read_again(value.runbook, reader.number)
                runbooks[found.runbook.hash] = found
                graphs[found.runbook.hash] = found.runbook
            case RunLine():
                count += 1
                yield _parcel(reader, value, runbooks, graphs, withheld=head.withheld)
            case End():
                if value.runs != count:
                    raise _at(reader.number, f"the file says that it holds {value.runs} runs, and it holds {count}")
                reader.require_end()
                return
            case _:
                raise _at(reader.number, f"a line of the kind {_kind(value)} has no place here")


def files_below(path: Path) -> Iterator[Path]:
    """Yield the files of runs that are at a path: itself, or those of a folder and of the folders in it, by name.

    Raises:
        NotFound: there is nothing.
    """
    if path.is_dir():
        yield from sorted(each for each in path.rglob("*") if each.name.endswith((SUFFIX, f"{SUFFIX}.gz")))
    elif path.exists():
        yield path
    else:
        raise NotFound(f"There is no {path}.")


def lines_of(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file, which may be compressed; it is read from its beginning, which it must allow.

    Raises:
        Invalid: the compressed file is damaged, or ends too early; the message names the line.
    """
    file.seek(0)
    beginning = file.read(len(GZIP))
    file.seek(0)
    lines = _whole_lines(file) if beginning != GZIP else _split(_decompressed(file))
    for number, line in enumerate(lines, start=1):
        if len(line) > LINE_BYTES_MAX:
            raise _at(number, f"it is longer than {LINE_BYTES_MAX:,} bytes")
        yield line


def _whole_lines(file: IO[bytes]) -> Iterator[bytes]:
    """Yield the lines of a file, and of one that is too long no more than tells that."""
    while line := file.readline(LINE_BYTES_MAX + 1):
        yield line


def _split(chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield the lines of what comes in chunks, and of one that is too long no more than tells that.

    Raises:
        Invalid: the compressed file that it comes from is damaged, or ends too early; the message names the line.
    """
    number, parts, size = 0, list[bytes](), 0
    while True:
        try:
            chunk = next(chunks, None)
        except (EOFError, zlib.error) as error:
            raise _at(number + 1, f"the compressed file is damaged here or was cut off: {error}") from error
        if chunk is None:
            break
        for part in io.BytesIO(chunk):
            parts.append(part)
            size += len(part)
            if part.endswith(b"\n") or size > LINE_BYTES_MAX:
                number += 1
                yield b"".join(parts)
                parts, size = [], 0
    if parts:
        yield b"".join(parts)


def _decompressed(file: IO[bytes]) -> Iterator[bytes]:
    decompressor = zlib.decompressobj(wbits=31)
    while not decompressor.eof:
        packed = file.read(CHUNK)
        if not packed:
            raise EOFError("it ends too early")
        while packed and not decompressor.eof:
            yield decompressor.decompress(packed, CHUNK)
            packed = decompressor.unconsumed_tail
    if decompressor.unused_data or file.read(1):
        raise zlib.error("something follows its end")


class _Reader:
    """Takes a file line by line, and looks at what each says of itself and of those before it."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        self.number = 0
        self._lines = iter(lines)
        self._before = START

    def next(self) -> Line:
        """Return the value of the next line."""
        self.number += 1
        line = next(self._lines, None)
        if line is None:
            raise _at(self.number, "the file ends before this line: it was cut off")
        try:
            sealed = _sealed_decoder.decode(line)
        except RecursionError as error:
            raise _at(self.number, NESTED) from error
        except msgspec.DecodeError as error:
            what = "the file ends within this line: it was cut off" if not line.endswith(b"\n") else str(error)
            raise _at(self.number, what) from error
        value = bytes(sealed.value)
        if sealed.line != self.number:
            raise _at(
                self.number,
                f"this is line {sealed.line} of the file as it was written: "
                "a line was taken out, put in or put elsewhere",
            )
        expected = _hash(self._before, value)
        if sealed.sha256 != expected or line != _line(self.number, expected, value):
            raise _at(self.number, "its SHA-256 is not that of this line and those before it: it was changed")
        self._before = expected
        try:
            return _line_decoder.decode(value)
        except RecursionError as error:
            raise _at(self.number, NESTED) from error
        except msgspec.DecodeError as error:
            raise _at(self.number, str(error)) from error

    def require_end(self) -> None:
        """Refuse a file that goes on."""
        if next(self._lines, None) is not None:
            raise _at(self.number + 1, "something follows the end of the file")


def _parcel(
    reader: _Reader,
    begun: RunLine,
    runbooks: dict[str, StoredRunbook],
    graphs: dict[str, Runbook],
    *,
    withheld: bool,
) -> Parcel:
    """Read the events of a run, and judge each of them."""
    first = reader.number
    judge = Judge(graphs, begun.run_id)
    events: list[Event] = []
    for number in range(1, begun.events + 1):
        value = reader.next()
        if not isinstance(value, EventLine) or value.number != number:
            raise _at(reader.number, f"the event {number} of the run {begun.run_id!r} is expected here")
        if not 0 <= value.event.at <= TIME_MAX_MS:
            raise _at(reader.number, f"the event {number} of the run {begun.run_id!r} has a time that no clock shows")
        violation = judge.judge(value.event)
        if violation is not None:
            raise Invalid(
                f"Line {reader.number}: the event {number} of the run {begun.run_id!r} breaks the law "
                f"{violation.law}: {violation.sentence}",
                hint=EXPORT_AGAIN,
                details={"run": begun.run_id, "event": number, "law": violation.law},
            )
        events.append(value.event)
    run = judge.run
    if run is None or run.id != begun.run_id:
        raise _at(first, f"the events that follow do not make the run {begun.run_id!r}")
    try:
        _require_usable(run)
    except Invalid as error:
        raise Invalid(f"Line {first}: {error.message}", hint=error.hint, details=error.details) from error
    followed = tuple(runbooks[digest] for digest in _followed(events))
    return Parcel(followed, tuple(events), run, withheld)


def _read_again(stored: StoredRunbook, line: int) -> StoredRunbook:
    """Return a runbook as its text says it: what else a file says of it is not to be believed."""
    parsed = _parsed(stored, line)
    if stored.runbook.hash != parsed.runbook.hash:
        raise Invalid(
            f"Line {line}: the hash of the runbook {stored.runbook.name!r} is not the SHA-256 of its text.",
            hint=EXPORT_AGAIN,
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


def _followed(events: Iterable[Event]) -> list[str]:
    """Return the hashes of the runbooks that a run has followed, in that order."""
    bindings = (RunCreated, RunImported, RunRebound, RunRestarted)
    return list(dict.fromkeys(event.runbook for event in events if isinstance(event, bindings)))


def _require_usable(run: Run) -> None:
    """Refuse a run that nobody could ask for, or whose work nobody could do.

    Raises:
        Invalid: its id or its queue cannot be named.
    """
    require_name(run.id, "The run id")
    if run.place.queue is not None and not QUEUE_NAME.fullmatch(run.place.queue):
        raise Invalid(f"The queue {run.place.queue!r} cannot be served.", details={"queue": run.place.queue})


# --- what is there already -------------------------------------------------------------------------------------------


def is_there_already(store: Store, parcel: Parcel) -> bool:
    """Return whether a store has the run of a parcel, as it stands there or further on."""
    snapshot = store.load(parcel.run.id)
    if snapshot is None or snapshot.run.version < parcel.run.version:
        return False
    number = 0
    for number, event in events_after(store, replace(snapshot.run, version=parcel.run.version), 0):
        if _as_passed_on(event, parcel) != _as_passed_on(parcel.events[number - 1], parcel):
            return False
    return number == parcel.run.version


def _as_passed_on(event: Event, parcel: Parcel) -> bytes:
    return encode_event(without_secrets(event) if parcel.withheld else event)


def without_secrets(event: Event) -> Event:
    """Return an event without the values of variables."""
    if isinstance(event, RunCreated | RunImported | RunRestarted):
        return replace(event, place=_without_values(event.place))
    return event


def _without_values(place: Place) -> Place:
    return replace(place, env=dict.fromkeys(place.env, WITHHELD))


def _hash(before: str, value: bytes) -> str:
    return sha256(before.encode() + value).hexdigest()


def _line(number: int, digest: str, value: bytes) -> bytes:
    return b'{"line":%d,"sha256":"%s","value":%s}\n' % (number, digest.encode(), value)


def _kind(value: Line) -> Any:
    return type(value).__struct_config__.tag


def _at(line: int, what: str) -> Invalid:
    return Invalid(f"Line {line}: {what.rstrip('.')}.", hint=EXPORT_AGAIN, details={"line": line})
