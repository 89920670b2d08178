"""Sweep files: read with the runbook's reader, validated by pydantic, every problem reported with its place.

Every single value is taken as it is written: ``1.10`` on an axis is the text ``1.10``, which is what an environment
variable and a folder name need. Null counts as absent, as in runbooks.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from math import prod
from pathlib import Path
from typing import Annotated, Any

from msgspec import Struct
from pydantic import BaseModel, ConfigDict, Discriminator, Field, StringConstraints, Tag, ValidationError

from statem_dist import runbook as runbooks
from statem_dist.checks.environment import RUN_NAMES, SECRET_NAMES
from statem_dist.runbook import Parsed, tree
from statem_dist.runbook.problems import Problems, Suggestion
from statem_dist.runbook.yaml_text import read_yaml
from statem_dist.sweep.matrix import Cell, expand
from statem_dist.sweep.sources import locate, read_values

TRIALS_MAX = 100_000
"""Trials of one sweep, counted before ``exclude``. More are a mistake in the matrix, and would fill a disk."""

RESERVED_AXES = frozenset({"sweep", "trial"})
"""Labels that every trial's run has anyway."""

OWN_NAMES = frozenset({"STATEM_TRIAL", "STATEM_SWEEP_DIR"})
"""Variables that the driver sets for agents and checks, whatever the sweep file says."""

AGENT_TIMEOUT_SECONDS = 3600.0

AxisName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$", max_length=100)]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Text = Annotated[str, StringConstraints(min_length=1)]
Seconds = Annotated[float, Field(gt=0, le=366 * 24 * 3600)]
Count = Annotated[int, Field(ge=1, le=TRIALS_MAX)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class ValuesFrom(_Part):
    """An axis whose values stand in a file; see ``sources``."""

    source: Text = Field(alias="from")
    field: Text | None = None


class Agent(_Part):
    """What works at the nodes: a shell command, and how many seconds one call of it may take."""

    run: Text
    timeout: Seconds = AGENT_TIMEOUT_SECONDS


def _kind_of_axis(value: object) -> str | None:
    return "a list" if isinstance(value, list) else "a file" if isinstance(value, dict) else None


Axis = Annotated[
    Annotated[list[str], Field(min_length=1), Tag("a list")] | Annotated[ValuesFrom, Tag("a file")],
    Discriminator(
        _kind_of_axis,
        custom_error_type="axis",
        custom_error_message="must be a list of values, or a mapping with 'from' and 'field'",
    ),
]
Entry = Annotated[dict[AxisName, str], Field(min_length=1)]


class SweepFile(_Part):
    """A sweep file as it is written."""

    runbook: Text
    name: Text | None = None
    matrix: dict[AxisName, Axis] = {}
    include: list[Entry] = []
    exclude: list[Entry] = []
    trials: Count = 1
    agent: Agent | None = None
    concurrency: Annotated[int, Field(ge=1, le=1000)] | None = None
    max_steps: Count = 20
    env: dict[VariableName, str] = {}
    success: Annotated[list[str], Field(min_length=1)] | None = None
    queue: Text | None = None
    labels: dict[Text, str] = {}


class Sweep(Struct, frozen=True):
    """A validated sweep.

    ``listed`` names the axes whose values are listed in the file itself, the rows of its report. ``success`` names
    the ends of the runbook that count as passed. ``folder`` is that of the sweep file; it and ``runbook_path`` are
    absolute.
    """

    name: str
    folder: Path
    runbook_path: Path
    runbook: Parsed
    listed: tuple[str, ...]
    cells: tuple[Cell, ...]
    trials: int
    agent: Agent | None
    concurrency: int | None
    max_steps: int
    env: dict[str, str]
    success: frozenset[str]
    queue: str | None
    labels: dict[str, str]


def load_sweep(path: Path) -> Sweep:
    """Read and validate a sweep file, the files that its axes come from, and its runbook.

    Raises:
        RunbookInvalid: the sweep file or the runbook cannot be used; the message lists every problem.
    """
    text = runbooks.read_text(path).removeprefix("\ufeff")
    problems = Problems(str(path), text)
    root = read_yaml(text, problems)
    if not isinstance(root, tree.Mapping):
        raise problems.fatal(None, "must be a mapping with 'runbook' and 'matrix'")
    if "nodes" in root.entries and "runbook" not in root.entries:
        hint = f"write a sweep file beside it that says `runbook: {path.name}`"
        raise problems.fatal(None, "this is a runbook, not a sweep file", hint=hint)
    reader = _Reader(path, root, problems)
    return reader.sweep(reader.file())


def variable_of(axis: str) -> str:
    """Return the environment variable that carries the value of an axis."""
    return f"STATEM_VAR_{axis.upper().replace('-', '_')}"


class _Reader:
    """Turns one sweep file into a ``Sweep``; ``problems`` collects what is wrong with it."""

    def __init__(self, path: Path, root: tree.Mapping, problems: Problems) -> None:
        self._path = path
        self._root = root
        self._problems = problems

    def file(self) -> SweepFile:
        """Return the file's content after pydantic has checked each part by itself."""
        try:
            file = SweepFile.model_validate(_written(self._root))
        except ValidationError as error:
            for problem in error.errors(include_url=False, include_context=False, include_input=False):
                self._note(problem["loc"], problem["type"], problem["msg"])
        self._problems.settle(strict=True)
        return file

    def sweep(self, file: SweepFile) -> Sweep:
        """Return the sweep after checking how the parts fit together."""
        axes = {name: self._values(name, axis) for name, axis in file.matrix.items()}
        self._check_names(file)
        self._check_size(file, axes)
        self._problems.settle(strict=True)
        cells = expand(axes, file.include, file.exclude) if axes or file.include else [{}]
        self._check_cells(cells)
        runbook_path = (self._path.absolute().parent / file.runbook).resolve()
        parsed = runbooks.load(runbook_path)
        success = self._success(file, parsed)
        self._problems.settle(strict=True)
        return Sweep(
            name=file.name or self._path.stem.removesuffix(".sweep"),
            folder=self._path.absolute().parent,
            runbook_path=runbook_path,
            runbook=parsed,
            listed=tuple(name for name, axis in file.matrix.items() if isinstance(axis, list)),
            cells=tuple(cells),
            trials=file.trials,
            agent=file.agent,
            concurrency=file.concurrency,
            max_steps=file.max_steps,
            env=file.env,
            success=success,
            queue=file.queue,
            labels=file.labels,
        )

    # --- parts by themselves -----------------------------------------------------------------------------------

    def _note(self, location: tuple[int | str, ...], kind: str, message: str) -> None:
        """Note one of pydantic's problems at its place in the file."""
        at, where = self._place(location)
        if kind == "extra_forbidden":
            owner, _, keyword = where.rpartition(".")
            models: dict[str, type[BaseModel]] = {"": SweepFile, "agent": Agent}
            fields = models.get(owner, ValuesFrom).model_fields
            known = [field.alias or name for name, field in fields.items()]
            self._problems.unknown_keyword(at, owner or "sweep", keyword, known)
        elif kind == "missing":
            self._problems.error(at, where or "sweep", f"requires '{location[-1]}'")
        else:
            said = re.sub(r"^(Input|String|List|Dictionary) should", "must", message)
            self._problems.error(at, where or "sweep", said[:1].lower() + said[1:])

    def _place(self, location: Sequence[int | str]) -> tuple[int, str]:
        """Follow a location as far as the file has it; parts that it has not are pydantic's own, such as tags."""
        value: tree.Value = self._root
        at, where = value.at, ""
        for part in location:
            if isinstance(value, tree.Mapping) and part in value.entries:
                name = str(part)
                at, value = value.key_at[name], value.entries[name]
                where = f"{where}.{name}" if where else name
            elif isinstance(value, tree.Sequence) and isinstance(part, int):
                value = value.items[part]
                at, where = value.at, f"{where}[{part}]"
        return at, where

    def _error(
        self, location: Sequence[int | str], message: str, *, hint: str = "", near: Suggestion | None = None
    ) -> None:
        at, where = self._place(location)
        self._problems.error(at, where, message, hint=hint, near=near)

    # --- parts together ----------------------------------------------------------------------------------------

    def _values(self, name: str, axis: list[str] | ValuesFrom) -> list[str]:
        """Return the values of an axis, each once."""
        values: list[str] = []
        try:
            values = axis if isinstance(axis, list) else self._read(axis)
        except ValueError as error:
            self._error(("matrix", name), str(error))
        known: set[str] = set()
        for number, value in enumerate(values):
            if value in known:
                location = ("matrix", name, number) if isinstance(axis, list) else ("matrix", name)
                self._error(location, f"the value '{value}' is given twice", hint="use 'trials' to repeat a cell")
            known.add(value)
        return values

    def _read(self, axis: ValuesFrom) -> list[str]:
        path = locate(axis.source, self._path.absolute().parent)
        values = list(islice(read_values(path, axis.field), TRIALS_MAX + 1))
        if not values:
            raise ValueError(f"'{path}' holds no value")
        for value in values:
            if unusable := tree.unusable_character(value):
                raise ValueError(f"a value of '{path}' has the character {unusable}, which no variable can hold")
        return values

    def _check_names(self, file: SweepFile) -> None:
        named: list[tuple[tuple[str | int, ...], str]] = [(("matrix", name), name) for name in file.matrix]
        named += [(("include", number, name), name) for number, entry in enumerate(file.include) for name in entry]
        axis_of: dict[str, str] = {}
        for location, name in named:
            if name in RESERVED_AXES:
                self._error(location, f"'{name}' is a label of every trial; choose another name")
            other = axis_of.setdefault(variable_of(name), name)
            if other != name:
                self._error(location, f"shares the variable {variable_of(name)} with '{other}'; choose another name")
        for number, entry in enumerate(file.exclude):
            for name in entry:
                if name not in file.matrix:
                    self._error(
                        ("exclude", number, name),
                        f"'{name}' is no axis of the matrix",
                        hint=f"use {', '.join(file.matrix) or 'include'}",
                        near=Suggestion(name, file.matrix),
                    )
        for name in file.env:
            if name in RUN_NAMES or name in SECRET_NAMES or name in axis_of or name in OWN_NAMES:
                self._error(("env", name), "is set by statem-dist itself or kept from commands")

    def _check_size(self, file: SweepFile, axes: Mapping[str, Sequence[str]]) -> None:
        combinations = prod(len(values) for values in axes.values()) if axes else 0
        planned = max(combinations + len(file.include), 1) * file.trials
        if planned > TRIALS_MAX:
            self._error(("matrix",), f"makes up to {planned:,} trials; {TRIALS_MAX:,} are allowed")

    def _check_cells(self, cells: Sequence[Cell]) -> None:
        if not cells:
            self._error(("exclude",), "leaves no cell of the matrix")
        seen: set[frozenset[tuple[str, str]]] = set()
        for cell in cells:
            values = frozenset(cell.items())
            if values in seen:
                named = ", ".join(f"{name}: {value}" for name, value in cell.items())
                self._error(("include",), f"makes the cell {{{named}}} twice", hint="use 'trials' to repeat a cell")
            seen.add(values)

    def _success(self, file: SweepFile, parsed: Parsed) -> frozenset[str]:
        """Return the ends that count as passed."""
        ends = {node.name for node in parsed.runbook.nodes if not parsed.runbook.exits(node.name)}
        if not ends:
            hint = "a node without outgoing edges is an end"
            self._error(("runbook",), "the runbook has no end, so that no trial could ever pass", hint=hint)
        for number, name in enumerate(file.success or ()):
            if name not in ends:
                known = (
                    "is no end: edges lead on from it" if parsed.runbook.node(name) else "is not a node of the runbook"
                )
                hint = f"its ends: {', '.join(sorted(ends))}"
                self._error(("success", number), f"'{name}' {known}", hint=hint, near=Suggestion(name, ends))
        return frozenset(ends if file.success is None else file.success)


def _written(value: tree.Value) -> Any:
    """Return a value with all text as it is written, and without what is null."""
    match value:
        case tree.Scalar():
            return value.words
        case tree.Sequence():
            return [_written(item) for item in value.items]
        case tree.Mapping():
            return dict(_present(value))


def _present(mapping: tree.Mapping) -> Iterator[tuple[str, Any]]:
    for key, entry in mapping.entries.items():
        if not tree.is_null(entry):
            yield key, _written(entry)
