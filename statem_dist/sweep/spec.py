"""Sweep files: read with the runbook's reader, validated by pydantic, every problem reported with its place.

Every single value is taken as it is written: ``1.10`` on an axis is the text ``1.10``, which is what an environment
variable and a folder name need. Null counts as absent, as in runbooks.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from math import prod
from pathlib import Path
from typing import Any, TypeAlias
from urllib.parse import urlsplit

from msgspec import Struct
from pydantic import ValidationError

from statem_dist import runbook as runbooks
from statem_dist.checks.environment import RUN_NAMES, SECRET_NAMES
from statem_dist.roots import outside_roots, within_roots
from statem_dist.runbook import Parsed, tree
from statem_dist.runbook.problems import Problems, Suggestion
from statem_dist.runbook.yaml_text import read_yaml
from statem_dist.sweep import form
from statem_dist.sweep.form import OTHERS, PARTS, TRIALS_MAX, SweepFile, ValuesFrom
from statem_dist.sweep.matrix import expand
from statem_dist.sweep.model import (
    Agent,
    Artifacts,
    Cell,
    Definition,
    Limit,
    StopWhen,
    Workspace,
    row_of,
    values_of,
    variable_of,
)
from statem_dist.sweep.sources import PACKAGE_PREFIX, find_names, is_pattern, locate, read_values
from statem_dist.sweep.workspaces import digest_of, placeholders, ref_of

RESERVED_LABELS = frozenset({"attempt", "repetition", "sweep", "trial"})
"""Labels that every trial's run has anyway; no axis can have their names."""

OWN_NAMES = frozenset({"STATEM_SEED", "STATEM_SWEEP", "STATEM_SWEEP_DIR", "STATEM_TRIAL"})
"""Variables that the driver sets for agents and checks, whatever the sweep file says."""

SHOWN_MAX = 10
"""How many of the allowed words a hint lists."""

Location: TypeAlias = Sequence[int | str]


class Loaded(Struct, frozen=True):
    """A validated sweep file: what it defines, the cells of its matrix in order, and its runbook."""

    definition: Definition
    cells: tuple[Cell, ...]
    parsed: Parsed


def load_sweep(path: Path) -> Loaded:
    """Read and validate a sweep file, the files that its axes come from, and its runbook.

    Raises:
        RunbookInvalid: the sweep file or the runbook cannot be used; the message lists every problem.
    """
    return parse_sweep(runbooks.read_text(path), path)


def parse_sweep(text: str, path: Path, roots: Sequence[str] = ()) -> Loaded:
    """Validate the text of a sweep file, and read the files that its axes come from, and its runbook.

    Args:
        text: the whole file.
        path: where it is, or would be: relative paths in it start from its folder.
        roots: folders outside of which it may name no file or folder of this host; none means that it may name any.

    Raises:
        RunbookInvalid: the sweep file or the runbook cannot be used; the message lists every problem.
    """
    text = text.removeprefix("\ufeff")
    problems = Problems(str(path), text)
    root = read_yaml(text, problems)
    if not isinstance(root, tree.Mapping):
        raise problems.fatal(None, "must be a mapping with 'runbook' and 'matrix'")
    if "nodes" in root.entries and "runbook" not in root.entries:
        hint = f"write a sweep file beside it that says `runbook: {path.name}`"
        raise problems.fatal(None, "this is a runbook, not a sweep file", hint=hint)
    reader = _Reader(path.absolute(), root, problems, roots)
    return reader.load(reader.file())


class _Reader:
    """Turns one sweep file into a ``Loaded``; ``problems`` collects what is wrong with it."""

    def __init__(self, path: Path, root: tree.Mapping, problems: Problems, roots: Sequence[str]) -> None:
        self._path = path
        self._folder = path.parent
        self._root = root
        self._problems = problems
        self._roots = roots

    def file(self) -> SweepFile:
        """Return the file's content after pydantic has checked each part by itself."""
        try:
            file = SweepFile.model_validate(_written(self._root))
        except ValidationError as error:
            for problem in error.errors(include_url=False, include_context=False, include_input=False):
                self._note(problem["loc"], problem["type"], problem["msg"])
        self._problems.settle(strict=True)
        return file

    def load(self, file: SweepFile) -> Loaded:
        """Return the sweep after checking how the parts fit together."""
        axes = {name: self._values(name, axis) for name, axis in file.matrix.items()}
        self._check_names(file)
        self._check_exclude(file, axes)
        self._check_size(file, axes)
        # Without its values an axis says nothing about what names them, so these come first.
        self._problems.settle(strict=True)
        cells = expand(axes, file.include, file.exclude) if axes or file.include else [{}]
        known = _values_by_axis(cells, axes)
        self._check_cells(cells)
        self._check_concurrency(file, known)
        self._check_limits(file, known)
        workspace = self._workspace(file, cells, known)
        runbook_path = (self._folder / file.runbook).resolve()
        self._require_within(("runbook",), runbook_path)
        # What lies elsewhere is not even looked at: what is wrong with it would say what is in it.
        self._problems.settle(strict=True)
        parsed = runbooks.load(runbook_path)
        success = self._success(file, parsed)
        self._problems.settle(strict=True)
        total, per = _concurrency(file)
        definition = Definition(
            name=file.name or self._path.stem.removesuffix(".sweep"),
            file=str(self._path),
            folder=str(self._folder),
            runbook=parsed.runbook.hash,
            runbook_path=str(runbook_path),
            axes=tuple(known),
            listed=_listed(file, known, cells),
            success=success,
            trials=file.trials,
            seed=file.seed,
            agent=_agent(file),
            workspace=workspace,
            env=file.env,
            vars=file.vars,
            concurrency=total,
            concurrency_per=per,
            queue=file.queue,
            limits=tuple(
                Limit(name=name, in_flight=limit.in_flight, per_minute=limit.per_minute, when=limit.when)
                for name, limit in file.limits.items()
            ),
            max_steps=file.max_steps,
            trial_timeout=file.timeouts.trial,
            retries=file.retries,
            stop_when=StopWhen(
                errors=file.stop_when.errors, failures=file.stop_when.failures, cost_usd=file.stop_when.cost_usd
            ),
            labels=file.labels,
            priority=file.priority,
            artifacts=_artifacts(file),
            disk_floor_bytes=file.disk_floor,
        )
        return Loaded(definition, tuple(cells), parsed)

    # --- parts by themselves -----------------------------------------------------------------------------------

    def _note(self, location: tuple[int | str, ...], kind: str, message: str) -> None:
        """Note one of pydantic's problems at its place in the file."""
        at, where = self._place(location)
        if kind == "extra_forbidden":
            owner, _, keyword = where.rpartition(".")
            part = PARTS[str(location[0])] if owner else SweepFile
            known = [field.alias or name for name, field in part.model_fields.items()]
            self._problems.unknown_keyword(at, owner or "sweep", keyword, known)
        elif kind == "missing":
            self._problems.error(at, where or "sweep", f"requires '{location[-1]}'")
        else:
            said = re.sub(r"^(Input|String|List|Dictionary) should", "must", message).removeprefix("Value error, ")
            self._problems.error(at, where or "sweep", said[:1].lower() + said[1:])

    def _place(self, location: Location) -> tuple[int, str]:
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

    def _error(self, location: Location, message: str, *, hint: str = "", near: Suggestion | None = None) -> None:
        at, where = self._place(location)
        self._problems.error(at, where, message, hint=hint, near=near)

    def _unknown(self, location: Location, word: str, what: str, known: Collection[str], otherwise: str) -> None:
        """Note a word that is not one of some, with the likely one or all of them as the hint."""
        listed = ", ".join(islice(known, SHOWN_MAX)) + (", ..." if len(known) > SHOWN_MAX else "")
        hint = f"use {listed or otherwise}"
        self._error(location, f"'{word}' is no {what}", hint=hint, near=Suggestion(word, known))

    def _within(self, path: Path) -> bool:
        return not self._roots or within_roots(str(path), self._roots)

    def _require_within(self, location: Location, path: Path) -> bool:
        """Note a path that leads out of the roots; return whether it does not."""
        if not self._within(path):
            self._error(location, outside_roots("the path", str(path), self._roots))
        return self._within(path)

    # --- the matrix --------------------------------------------------------------------------------------------

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
        path = locate(axis.source, self._folder)
        if not axis.source.startswith(PACKAGE_PREFIX) and not self._within(path):
            raise ValueError(outside_roots("the path", str(path), self._roots))
        if is_pattern(axis.source):
            values = find_names(path, self._folder, axis.field)
            if not values:
                raise ValueError(f"no file matches '{axis.source}'")
        else:
            values = list(islice(read_values(path, axis.field), TRIALS_MAX + 1))
            if not values:
                raise ValueError(f"'{path}' holds no value")
        for value in values:
            if unusable := tree.unusable_character(value):
                raise ValueError(f"a value of '{path}' has the character {unusable}, which no variable can hold")
        return values

    def _check_names(self, file: SweepFile) -> None:
        """Check that no two parts of the file speak for the same variable or label."""
        named: list[tuple[Location, str]] = [(("matrix", name), name) for name in file.matrix]
        named += [(("include", number, name), name) for number, entry in enumerate(file.include) for name in entry]
        axes = {name for _, name in named}
        named_by: dict[str, str] = {}
        for location, name in named:
            if name in RESERVED_LABELS:
                self._error(location, f"'{name}' is a label of every trial; choose another name")
            other = named_by.setdefault(variable_of(name), name)
            if other != name:
                self._error(location, f"shares the variable {variable_of(name)} with '{other}'; choose another name")
        for name in file.vars:
            other = named_by.setdefault(variable_of(name), name)
            if other in axes:
                message = f"shares the variable {variable_of(name)} with the axis '{other}'; choose another name"
                self._error(("vars", name), message)
            elif other != name:
                message = f"shares the variable {variable_of(name)} with '{other}'; choose another name"
                self._error(("vars", name), message)
        set_by_us = RUN_NAMES | SECRET_NAMES | OWN_NAMES | named_by.keys()
        for name in file.env:
            if name in set_by_us:
                self._error(("env", name), "is set by statem-dist itself or kept from commands")
        for number, name in enumerate(file.agent.pass_env if file.agent else ()):
            if name in set_by_us:
                message = f"'{name}' is set by statem-dist itself or kept from commands"
                self._error(("agent", "pass_env", number), message)
            elif name in file.env:
                self._error(("agent", "pass_env", number), f"'{name}' has a value of its own under 'env'")
        for name in file.labels:
            if name in RESERVED_LABELS:
                self._error(("labels", name), f"'{name}' is a label of every trial; choose another name")
            elif name in axes:
                self._error(("labels", name), f"'{name}' is an axis, whose value is the label; choose another name")

    def _check_exclude(self, file: SweepFile, axes: Mapping[str, Sequence[str]]) -> None:
        for number, entry in enumerate(file.exclude):
            for name, value in entry.items():
                location = ("exclude", number, name)
                if name not in file.matrix:
                    self._unknown(location, name, "axis of the matrix", file.matrix, "include")
                # A file of tasks may well be shorter than the list of those that are to be left out.
                elif isinstance(file.matrix[name], list) and value not in axes[name]:
                    self._unknown(location, value, f"value of '{name}'", axes[name], "another axis")

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

    # --- what names axes and their values ------------------------------------------------------------------------

    def _check_concurrency(self, file: SweepFile, known: Mapping[str, Collection[str]]) -> None:
        if not isinstance(file.concurrency, form.Concurrency):
            return
        for axis, bounds in file.concurrency.per.items():
            location = ("concurrency", "per", axis)
            if axis not in known:
                self._unknown(location, axis, "axis", known, "total")
            elif isinstance(bounds, dict):
                for value in bounds:
                    if value != OTHERS and value not in known[axis]:
                        allowed = [*known[axis], OTHERS]
                        self._unknown((*location, value), value, f"value of '{axis}'", allowed, OTHERS)

    def _check_limits(self, file: SweepFile, known: Mapping[str, Collection[str]]) -> None:
        for name, limit in file.limits.items():
            for axis, value in limit.when.items():
                location = ("limits", name, "when", axis)
                if axis not in known:
                    self._unknown(location, axis, "axis", known, "no 'when'")
                elif value not in known[axis]:
                    self._unknown(location, value, f"value of '{axis}'", known[axis], "another axis")

    # --- the workspace -------------------------------------------------------------------------------------------

    def _workspace(self, file: SweepFile, cells: Sequence[Cell], known: Mapping[str, Collection[str]]) -> Workspace:
        written = file.workspace
        if not isinstance(written, form.Workspace):
            return Workspace()
        if written.template is not None:
            return self._from_template(written.template, Workspace(keep=written.keep))
        if written.git is None:
            return Workspace(keep=written.keep)
        workspace = Workspace(git=self._repository(written.git), ref=written.ref or Workspace().ref, keep=written.keep)
        location = ("workspace", "ref")
        names = placeholders(workspace.ref)
        for name in names:
            if name not in known:
                self._unknown(location, name, "axis", known, "no placeholder")
        if all(name in known for name in names):
            try:
                for cell in cells:
                    ref_of(workspace, cell)
            except ValueError as error:
                self._error(location, f"{error} (in the cell {values_of(cell) or 'without values'})")
        return workspace

    def _from_template(self, written: str, workspace: Workspace) -> Workspace:
        location = ("workspace", "template")
        template = (self._folder / written).resolve()
        if not self._require_within(location, template):
            return workspace
        if not template.is_dir():
            known = "is no folder" if template.exists() else "does not exist"
            self._error(location, f"'{written}' {known}", hint="it is a folder, from that of the sweep file")
            return workspace
        try:
            return Workspace(template=str(template), digest=digest_of(template), keep=workspace.keep)
        except OSError as error:
            self._error(location, f"'{error.filename or written}' cannot be read: {error.strerror or error}")
            return workspace

    def _repository(self, written: str) -> str:
        """Return the URL of a repository as it is, and the path of one as an absolute path."""
        location = ("workspace", "git")
        if written.startswith("-") or not written.isprintable():
            self._error(location, "is neither a URL nor a path")
        elif "://" in written:
            if urlsplit(written).password:
                hint = "leave it out, and give the hosts of the workers a credential helper"
                self._error(location, "has a password in it, which would be stored with the sweep", hint=hint)
        elif not re.match(r"[^/]+:", written):
            path = (self._folder / written).resolve()
            if self._require_within(location, path) and not path.is_dir():
                self._error(location, f"'{written}' is no folder", hint="give a URL, or the path of a repository")
            return str(path)
        return written

    # --- the runbook ---------------------------------------------------------------------------------------------

    def _success(self, file: SweepFile, parsed: Parsed) -> tuple[str, ...]:
        """Return the ends that count as passed, in the order of the runbook."""
        ends = [node for node in parsed.runbook.nodes if not parsed.runbook.exits(node.name)]
        names = [node.name for node in ends]
        if not ends:
            hint = "a node without outgoing edges is an end"
            self._error(("runbook",), "the runbook has no end, so that no trial could ever pass", hint=hint)
        for number, name in enumerate(file.success or ()):
            if name not in names:
                known = (
                    "is no end: edges lead on from it" if parsed.runbook.node(name) else "is not a node of the runbook"
                )
                hint = f"its ends: {', '.join(sorted(names))}"
                self._error(("success", number), f"'{name}' {known}", hint=hint, near=Suggestion(name, names))
        if file.success is not None:
            return tuple(name for name in names if name in file.success)
        passed = tuple(node.name for node in ends if node.outcome != "failure")
        if ends and not passed:
            hint = "name some under 'success', or mend the runbook"
            self._error(("runbook",), "every end of the runbook is a failure, so that no trial could pass", hint=hint)
        return passed


def _agent(file: SweepFile) -> Agent | None:
    if file.agent is None:
        return None
    given = {} if file.timeouts.agent is None else {"timeout": file.timeouts.agent}
    return Agent(
        run=file.agent.run,
        mode=file.agent.mode,
        continuations=file.agent.continuations,
        pass_env=tuple(file.agent.pass_env),
        **given,
    )


def _concurrency(file: SweepFile) -> tuple[int | None, dict[str, dict[str, int]]]:
    """Return the bound of all trials, and the bounds by axis and value."""
    written = file.concurrency
    if not isinstance(written, form.Concurrency):
        return written, {}
    return written.total, {
        axis: {OTHERS: bounds} if isinstance(bounds, int) else bounds for axis, bounds in written.per.items()
    }


def _artifacts(file: SweepFile) -> Artifacts:
    if isinstance(file.artifacts, form.Kept):
        kept = file.artifacts
        return Artifacts(paths=tuple(kept.paths), file_bytes_max=kept.file_max, total_bytes_max=kept.total_max)
    return Artifacts(paths=tuple(file.artifacts or ()))


def _values_by_axis(cells: Iterable[Cell], axes: Mapping[str, Sequence[str]]) -> dict[str, dict[str, None]]:
    """Return the values that cells have on each axis, in order; axes that ``include`` alone brings come last."""
    known: dict[str, dict[str, None]] = {name: {} for name in axes}
    for cell in cells:
        for name, value in cell.items():
            known.setdefault(name, {})[value] = None
    return known


def _listed(file: SweepFile, known: Iterable[str], cells: Sequence[Cell]) -> tuple[str, ...]:
    """Return the axes that make the rows of a report: those whose values are listed in the file.

    An axis that ``include`` alone brings is one of them if the others decide its value, as in an effort that goes with
    a model; else it says something about tasks, as in the commit that goes with one, and would tear the rows apart.
    """
    listed = tuple(name for name, axis in file.matrix.items() if isinstance(axis, list))
    values: dict[tuple[str, ...], Cell] = {}
    brought = [name for name in known if name not in file.matrix]
    torn: set[str] = set()
    for cell in cells:
        first = values.setdefault(row_of(cell, listed), cell)
        torn.update(name for name in brought if cell.get(name) != first.get(name))
    return (*listed, *(name for name in brought if name not in torn))


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
