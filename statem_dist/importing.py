"""Taking over runs that StateM began: a team moves over with its runs.

A run arrives as one event, ``RunImported``, with its node, its visit, its tries and its history, and goes on from there
by the same rules as any other. Nothing is executed. The runbook is read from where StateM had it, or from where the
caller says; an edited one is taken all the same, because StateM would do so, too.
"""

from __future__ import annotations

import os
from hashlib import sha256
from pathlib import Path
from typing import Any, Literal, TypeAlias

from msgspec import Struct
from msgspec.structs import replace

from statem_dist import dynamic
from statem_dist.coordinator import Coordinator
from statem_dist.dispatch import NoDispatch
from statem_dist.errors import Conflict, Invalid, RunbookInvalid
from statem_dist.places import workspace_of
from statem_dist.protocol.commands import Import
from statem_dist.protocol.decide import decide
from statem_dist.protocol.events import RunImported
from statem_dist.protocol.evolve import replay
from statem_dist.protocol.model import Actor, Place, Run
from statem_dist.run_ids import clean_run_id
from statem_dist.runbook import Parsed, load
from statem_dist.settings import Settings
from statem_dist.statem_folders import ForeignRun, checks_of
from statem_dist.store.base import Store
from statem_dist.store.codec import StoredRunbook

OTHER_SPEC_HINT = "Name the runbook with --spec."

Outcome: TypeAlias = Literal["imported", "unchanged", "planned"]
"""``unchanged``: the same was imported before. ``planned``: it would be imported, were this no dry run."""


class Arrival(Struct, frozen=True):
    """What came of the import of one run. ``active`` says that it became the active one of the state directory."""

    outcome: Outcome
    command: Import
    active: bool
    warnings: tuple[str, ...]


def bring(
    store: Store, settings: Settings, found: ForeignRun, *, run_id: str | None, spec: Path | None, dry_run: bool
) -> Arrival:
    """Import one run. It becomes the active one of the state directory if it was that with StateM, and none is yet.

    Args:
        store: where to.
        settings: limits, and the state directory.
        found: the run as StateM left it.
        run_id: its id from now on, if not the one it had.
        spec: its runbook, if not the one it had.
        dry_run: change nothing.

    Raises:
        RunbookInvalid: its runbook cannot be read.
        Invalid: its runbook lacks the node on which it stands.
        Conflict: there is another run of that id.
    """
    path = _spec_path(found, spec)
    parsed = _parsed(path)
    warnings = list(found.warnings)
    if parsed.runbook.node(found.node) is None:
        raise Invalid(
            f"{found.path}: the run stands on {found.node!r}, and {path} has no such node.",
            hint=f"{OTHER_SPEC_HINT} It must be the version that the run follows.",
            details={"run_id": found.run_id, "current": found.node, "spec": str(path)},
        )
    if found.spec_hash and found.spec_hash not in _hashes(parsed):
        warnings.append(f"{path} was edited since StateM used it for this run; the run follows it as it is now")
    scope = str(settings.state_dir)
    command = _command(found, clean_run_id(run_id or found.run_id), parsed, path, scope)
    existing = store.load(command.run_id)
    if existing is not None:
        _require_equal(store, existing.run, command)
        return Arrival("unchanged", command, active=False, warnings=tuple(warnings))
    active = found.active and _may_activate(store, scope, warnings)
    if dry_run:
        return Arrival("planned", command, active, tuple(warnings))
    # The checks come before the run: nobody can pass it by before they count.
    warnings += _take_checks(store, command, found)
    store.save_runbook(StoredRunbook(runbook=parsed.runbook, text=parsed.text, source=str(path)))
    Coordinator(store, NoDispatch(), settings).apply(command.run_id, command)
    if active:
        store.activate((scope, f"{scope}|{path}"), command.run_id)
    return Arrival("imported", command, active, tuple(warnings))


def arrival_view(arrival: Arrival, source: Path) -> dict[str, Any]:
    """Return what came of an import, as the command shows it."""
    command = arrival.command
    return {
        "outcome": arrival.outcome,
        "source": str(source),
        "run_id": command.run_id,
        "spec": command.place.spec,
        "spec_hash": command.runbook.hash,
        "recorded_hash": command.recorded_hash,
        "current": command.node,
        "current_entry_id": command.entry_id,
        "attempts": command.attempts,
        "agent_id": command.by.id,
        "entries": len(command.history),
        "left_out": command.left_out,
        "active": arrival.active,
        "warnings": list(arrival.warnings),
    }


def _spec_path(found: ForeignRun, spec: Path | None) -> Path:
    if spec is None and not found.spec_path:
        raise Invalid(f"{found.path} does not say where the runbook is.", hint=OTHER_SPEC_HINT)
    return Path(os.path.abspath(spec or Path(found.spec_path).expanduser()))


def _parsed(path: Path) -> Parsed:
    try:
        return load(path)
    except RunbookInvalid as error:
        raise RunbookInvalid(error.message, hint=error.hint or OTHER_SPEC_HINT, details=error.details) from error


def _hashes(parsed: Parsed) -> set[str]:
    """Return what StateM may have recorded for this text: it reads any line end as ``\\n``, and hashes that."""
    told = parsed.text.replace("\r\n", "\n").replace("\r", "\n")
    return {parsed.runbook.hash, sha256(told.encode()).hexdigest()}


def _command(found: ForeignRun, run_id: str, parsed: Parsed, path: Path, scope: str) -> Import:
    # Ids of our own form are made anew, so that a later visit never gets the id of this one.
    entry_id = "" if found.entry_id.startswith(f"{run_id}-e") else found.entry_id
    return Import(
        run_id=run_id,
        runbook=parsed.runbook,
        place=Place(workspace=workspace_of(path), spec=str(path), state_dir=scope),
        by=Actor(found.agent_id),
        node=found.node,
        entry_id=entry_id or f"{run_id}-e1",
        created_at=found.created_at,
        attempts=found.attempts,
        history=found.history,
        left_out=found.left_out,
        recorded_hash=found.spec_hash,
        source=str(found.path),
    )


def _require_equal(store: Store, run: Run, command: Import) -> None:
    """Refuse a run id that is taken, unless by the same import; what the run did since then does not matter."""
    ((_, first),) = store.events(run.id, limit=1)
    if isinstance(first, RunImported):
        again = replace(command, created_at=first.created_at, source=first.source)
        if decide(None, again, first.at) == [first]:
            return
    raise Conflict(
        f"Run {run.id!r} exists already; it stands on {run.node!r}.",
        hint="Import it under another id, with --run-id.",
        details={"run_id": run.id, "current": run.node},
    )


def _may_activate(store: Store, scope: str, warnings: list[str]) -> bool:
    """Return whether no run is active in the state directory yet: an import takes nobody's run away."""
    taken = store.active(scope)
    if taken is None:
        return True
    warnings.append(f"{taken} stays the active run of {scope}; --run-id names this one")
    return False


def _take_checks(store: Store, command: Import, found: ForeignRun) -> list[str]:
    """Register the dynamic checks of the current entry; return what could not be taken over."""
    now = store.clock()
    run = replay(decide(None, command, now))
    node = command.runbook.node(run.node)
    assert node is not None, "a run stands on a node of its runbook"
    warnings = []
    for checks in checks_of(found):
        if node.dynamic is None:
            warnings.append(f"{checks.path}: node {run.node!r} accepts no dynamic checks; left out")
            continue
        try:
            found_there = dynamic.read(checks.path, node.dynamic)
        except RunbookInvalid as error:
            warnings.append(f"these dynamic checks are left out: {error.message}")
        else:
            warnings += map(str, found_there.warnings)
            dynamic.register(store, run, found_there.checks, checks.by, now)
    return warnings
