"""StateM's own state folders, read as values.

A run of StateM is one file, ``.statem/runs/ID/state.json``, which it writes anew on each event. ``.statem/active_run``
names the run that was started last, and ``nodes/NODE/ENTRY/dynamic_before_transfer/checks.AGENT.json`` beside the file
holds the dynamic checks of an entry. What the file holds, in format version 1:

====================  =================================================================================
key                   value
====================  =================================================================================
``version``           1
``run_id``            the run's id; the folder has the same name
``spec_path``         where the runbook lay, absolute
``spec_hash``         SHA-256 of the runbook's text, with line ends as ``\\n``
``current``           the node on which the run stands
``current_entry_id``  the id of its visit to that node
``agent_id``          who is asking, unless somebody says otherwise
``created_at``        ISO 8601 in UTC; ``updated_at`` likewise
``history``           entries with ``event``, ``ts`` and the fields of their kind, oldest first
``edge_attempts``     entry id, source, target: tries of an edge that has ``max_attempts``
====================  =================================================================================

A run cannot go on without its node and its runbook, so those are required. Anything else may be missing. What is
not understood is left out, and said.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import Meta, Struct, field

from statem_dist.errors import Invalid, NotFound
from statem_dist.protocol.model import Actor

FORMAT_VERSION = 1

STATE_BYTES_MAX = 64 << 20
"""A larger file is refused: it is read into memory as a whole."""

HISTORY_BYTES_MAX = 4 << 20
"""What is taken along of a history, the newest entries first: it becomes one event, which readers load as a whole."""

_KNOWN = {
    "version",
    "run_id",
    "spec_path",
    "spec_hash",
    "current",
    "current_entry_id",
    "agent_id",
    "created_at",
    "updated_at",
    "history",
    "edge_attempts",
}
_ENTRY_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,199}")
"""An entry id becomes part of keys and of paths."""

Attempts = dict[str, dict[str, dict[str, Annotated[int, Meta(ge=0)]]]]

Value = TypeVar("Value")


class ForeignRun(Struct, frozen=True):
    """A run as StateM left it.

    ``entry_id`` is empty and ``created_at`` (ms since the epoch) is 0 when the file does not say it. ``attempts``
    counts tries per target on this visit. ``left_out`` counts entries of the history that were not taken along.
    ``active`` says that it is the one to which ``active_run`` points. ``warnings`` names what was not understood.
    """

    path: Path
    run_id: str
    spec_path: str
    spec_hash: str
    node: str
    entry_id: str
    agent_id: str
    created_at: int
    attempts: dict[str, int]
    history: tuple[dict[str, Any], ...]
    left_out: int
    active: bool
    warnings: tuple[str, ...]


class ForeignChecks(Struct, frozen=True):
    """A file of dynamic checks for the current entry, and who wrote it."""

    path: Path
    by: Actor


class _Result(Struct):
    passed: bool


class _Entry(Struct):
    """What is relied on when a history is shown; every other field of an entry is taken as it is."""

    event: str
    ts: str
    source: str | None = field(name="from", default=None)
    to: str | None = None
    node: str | None = None
    current: str | None = None
    stage: str | None = None
    results: list[_Result] = []


class _Producer(Struct):
    agent_id: str = ""
    role: str = ""


class _Checks(Struct):
    producer: _Producer = field(default_factory=_Producer)


def find(place: Path) -> list[Path]:
    """Return the state files in a place: a run's folder, or a whole ``.statem`` folder.

    Raises:
        NotFound: there is none.
    """
    own = place / "state.json"
    found = [own] if own.is_file() else sorted(place.glob("runs/*/state.json"))
    if not found:
        raise NotFound(
            f"There is no run of StateM in {place}.",
            hint="Name a run's folder, which holds state.json, or a .statem folder, which holds runs/ID/state.json.",
            details={"folder": str(place)},
        )
    return found


def read(path: Path) -> ForeignRun:
    """Return the run of a state file.

    Raises:
        Invalid: the file cannot be read, is no state of StateM, or does not say where the run stands.
    """
    document = _document(path)
    reader = _Reader(path, document)
    version = reader.optional("version", Any, FORMAT_VERSION)
    if version != FORMAT_VERSION:
        raise Invalid(
            f"{path}: format version {version!r} is not known; this version of statem-dist reads {FORMAT_VERSION}.",
            hint="Use a newer version of statem-dist.",
        )
    node = reader.required("current", "the node on which the run stands")
    recorded_entry = reader.optional("current_entry_id", str, "")
    entry_id = recorded_entry if _ENTRY_ID.fullmatch(recorded_entry) else ""
    if not entry_id:
        reader.warn("current_entry_id is missing or no usable id; the run gets a new one")
    attempts = reader.optional("edge_attempts", Attempts, {}).get(recorded_entry, {}).get(node, {})
    history, left_out = reader.history()
    if unknown := sorted(set(document) - _KNOWN):
        reader.warn(f"not understood, and left out: {', '.join(unknown)}")
    run_id = reader.optional("run_id", str, "") or path.parent.name
    return ForeignRun(
        path=path,
        run_id=run_id,
        spec_path=reader.optional("spec_path", str, ""),
        spec_hash=reader.optional("spec_hash", str, ""),
        node=node,
        entry_id=entry_id,
        agent_id=reader.optional("agent_id", str, ""),
        created_at=reader.moment("created_at"),
        attempts=attempts,
        history=history,
        left_out=left_out,
        active=_active_run(path) == run_id,
        warnings=tuple(reader.warnings),
    )


def checks_of(found: ForeignRun) -> list[ForeignChecks]:
    """Return the files of dynamic checks that were registered for the current entry of a run."""
    if not found.entry_id:
        return []
    files = found.path.parent.glob(f"nodes/*/{found.entry_id}/dynamic_before_transfer/checks.*.json")
    return [ForeignChecks(path, _producer(path)) for path in sorted(files)]


class _Reader:
    """Takes a document apart, and notes what it does not understand."""

    def __init__(self, path: Path, document: dict[str, Any]) -> None:
        self.warnings: list[str] = []
        self._path = path
        self._document = document

    def warn(self, text: str) -> None:
        """Note something."""
        self.warnings.append(f"{self._path}: {text}")

    def required(self, key: str, meaning: str) -> str:
        """Return a text that has to be there."""
        value = self._document.get(key)
        if not isinstance(value, str) or not value:
            raise Invalid(f"{self._path}: {key} must be a text, {meaning}.", hint="Is it the state of a run of StateM?")
        return value

    def optional(self, key: str, kind: type[Value], default: Value) -> Value:
        """Return a value that may be missing; one of another type counts as missing, with a warning."""
        value = self._document.get(key)
        if value is None:
            return default
        try:
            return msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            self.warn(f"{key} is not understood ({error})")
            return default

    def moment(self, key: str) -> int:
        """Return a time in ms since the epoch, 0 when it is not given."""
        text = self.optional(key, str, "")
        try:
            at = datetime.fromisoformat(text) if text else None
        except ValueError:
            at = None
        if at is None or at.year < 1970:
            self.warn(f"{key} gives no time; now is taken instead")
            return 0
        return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)

    def history(self) -> tuple[tuple[dict[str, Any], ...], int]:
        """Return the newest entries of the history, oldest first, and how many are left out."""
        entries = self.optional("history", list[Any], [])
        taken: list[dict[str, Any]] = []
        not_understood: list[str] = []
        size = 0
        for position in reversed(range(len(entries))):
            size += len(msgspec.json.encode(entries[position]))
            if size > HISTORY_BYTES_MAX:
                self.warn(f"the history is long; its oldest {position + 1} entries are left out")
                break
            if _is_entry(entries[position]):
                taken.append(entries[position])
            else:
                not_understood.insert(0, f"history[{position}]")
        if not_understood:
            self.warn(f"no entries of a history, and left out: {', '.join(not_understood)}")
        return tuple(reversed(taken)), len(entries) - len(taken)


def _is_entry(value: Any) -> bool:
    try:
        entry = msgspec.convert(value, _Entry)
    except msgspec.ValidationError:
        return False
    return entry.source is None or entry.to is not None


def _document(path: Path) -> dict[str, Any]:
    try:
        with path.open("rb") as file:
            data = file.read(STATE_BYTES_MAX + 1)
    except OSError as error:
        raise Invalid(f"{path} cannot be read: {error.strerror or error}.") from error
    if len(data) > STATE_BYTES_MAX:
        raise Invalid(f"{path} is larger than {STATE_BYTES_MAX >> 20} MiB.", hint="Shorten its history first.")
    try:
        return msgspec.json.decode(data, type=dict[str, Any])
    except (msgspec.DecodeError, RecursionError) as error:
        raise Invalid(
            f"{path} is no state of StateM: {error}.", hint="It must hold one JSON object, as StateM writes it."
        ) from error


def _active_run(path: Path) -> str:
    """Return the run to which StateM points in the state folder of a state file."""
    try:
        return (path.parent.parent.parent / "active_run").read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _producer(path: Path) -> Actor:
    """Return who wrote a file of checks: it says so itself, else its name does."""
    named = path.name.removeprefix("checks.").removesuffix(".json")
    try:
        producer = msgspec.json.decode(path.read_bytes(), type=_Checks).producer
    except (OSError, msgspec.DecodeError):
        # Whoever registers the checks reads the file again, and says what is wrong with it.
        return Actor(named)
    return Actor(producer.agent_id or named, producer.role)
