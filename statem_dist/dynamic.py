"""Dynamic checks: what agents register for the current entry of a run, and what a ``goto`` makes of it.

A registration belongs to one entry and one agent id; registering again replaces it. It is kept in the store. Where
the state directory is local, a file ``checks.AGENT.json`` that somebody drops into the entry's folder counts as
well, and stands in for what that agent has registered: it is the newer word, because registering removes it.

A transition takes a snapshot when it opens. Whatever is wrong with a registration then (it cannot be read, it uses
a type that the node does not allow, there are too few) is a condition that is unmet, not a crash.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from statem_dist.errors import StatemError
from statem_dist.places import entry_folder
from statem_dist.protocol.graph import Check, DynamicConfig, Manual, Runbook, Unmet
from statem_dist.protocol.model import Actor, Confirmations, DynamicCheck, DynamicFacts, OnManual, Origin, Run
from statem_dist.runbook import CheckList, Format, format_of, read_checks, read_plain, read_text
from statem_dist.runbook.view import check_view
from statem_dist.store.base import Store

CONFIRM_ID = "dynamic_before_transfer.0"
"""Plan id of the question that ``stale_policy: require_confirmation`` asks before the registered checks."""

STILL_CURRENT = "The dynamic checks of this entry are still current."


class Registration(Struct, frozen=True, omit_defaults=True):
    """What one agent has registered for an entry. ``path`` is set for a dropped file.

    ``error`` says why it cannot be used; there are no checks then.
    """

    origin: Origin
    checks: tuple[Check, ...] = ()
    path: str = ""
    error: str = ""


def file_for(run: Run, agent_id: str) -> Path:
    """Return the file by which an agent may drop checks for the current entry."""
    return entry_folder(run) / f"checks.{re.sub(r'[^A-Za-z0-9._-]+', '-', agent_id)}.json"


def config_of(run: Run, runbook: Runbook) -> DynamicConfig | None:
    """Return what the current node accepts, or None if no transition looks at dynamic checks there."""
    node = runbook.node(run.node)
    return None if node is None else node.dynamic


def read(source: Path, config: DynamicConfig) -> CheckList:
    """Return the checks in a file, and what is doubtful about them.

    Args:
        source: a JSON or YAML file: a list of checks, or a mapping with ``checks`` and ``basis``.
        config: what the current node of the run accepts.

    Raises:
        RunbookInvalid: the file cannot be read, or it holds something that the node does not accept.
    """
    return _accepted(read_text(source), str(source), format_of(str(source)), config)


def register(store: Store, run: Run, checks: Sequence[Check], by: Actor, now: int) -> Registration:
    """Register checks for the current entry, in place of the agent's earlier ones.

    Args:
        store: where the run is kept.
        run: the run.
        checks: checks that its current node accepts.
        by: who registers.
        now: milliseconds since the epoch.
    """
    origin = Origin(agent_id=by.id, role=by.role, at=now)
    registration = Registration(origin=origin, checks=tuple(checks))
    store.save_dynamic(run.id, run.entry_id, by.id, msgspec.json.encode(registration))
    file_for(run, by.id).unlink(missing_ok=True)
    return registration


def registrations(store: Store, run: Run, config: DynamicConfig) -> list[Registration]:
    """Return what is registered for the current entry, by agent id, dropped files included."""
    found = {
        agent: msgspec.json.decode(document, type=Registration)
        for agent, document in store.dynamic(run.id, run.entry_id).items()
    }
    for path in sorted(entry_folder(run).glob("checks.*.json")):
        dropped = _dropped(path, config)
        found[dropped.origin.agent_id] = dropped
    return [found[agent] for agent in sorted(found)]


def snapshot(
    config: DynamicConfig,
    registered: Sequence[Registration],
    confirmations: Confirmations,
    on_manual: OnManual = "fail",
) -> DynamicFacts:
    """Return what a transition that opens now has to evaluate.

    Where something is wrong, that alone is evaluated, and never passes. Where the node wants the checks confirmed
    as still current, they are evaluated only if that was done, or if somebody may still do it.
    """
    producers = tuple(each.origin for each in registered)
    checks = tuple(DynamicCheck(check, each.origin) for each in registered for check in each.checks)
    problems = [each.error for each in registered if each.error]
    if config.required and not registered:
        problems.append("This node requires dynamic checks, and none are registered for this entry.")
    if len(checks) < config.min_items:
        problems.append(f"This node requires at least {config.min_items} dynamic checks; {len(checks)} are registered.")
    if problems:
        problems.append("They are registered with: statem-dist dynamic write FILE")
        checks = (DynamicCheck(Check(do=Unmet(" ".join(problems)))),)
    if config.stale_policy == "none":
        return DynamicFacts(producers, checks)
    question = DynamicCheck(Check(do=Manual(STILL_CURRENT)))
    declined = CONFIRM_ID in confirmations.declined
    counted = confirmations.cover(CONFIRM_ID) or (on_manual == "wait" and not declined)
    return DynamicFacts(producers, (question, *checks) if counted else (question,))


def origin_view(origin: Origin) -> dict[str, Any]:
    """Return who registered checks, as commands show it."""
    return {"agent_id": origin.agent_id, "role": origin.role, "at": origin.at}


def registration_view(run: Run, registration: Registration) -> dict[str, Any]:
    """Return a registration, as ``dynamic list`` shows it."""
    view = {
        "producer": origin_view(registration.origin),
        "checks": len(registration.checks),
        "items": [check_view(check) for check in registration.checks],
        "path": registration.path or str(file_for(run, registration.origin.agent_id)),
    }
    return view | ({"error": registration.error} if registration.error else {})


def _dropped(path: Path, config: DynamicConfig) -> Registration:
    """Return what a dropped file registers, or why it cannot be used."""
    origin = Origin(agent_id=path.name.removeprefix("checks.").removesuffix(".json"), at=_written_at(path))
    try:
        text = read_text(path)
        origin = _declared_origin(text, path, origin)
        return Registration(origin, _accepted(text, str(path), "json", config).checks, str(path))
    except StatemError as error:
        return Registration(origin, path=str(path), error=error.message)


def _written_at(path: Path) -> int:
    """Return when a file was written, in ms since the epoch; 0 when it has just vanished, as its reader will find."""
    try:
        return round(path.stat().st_mtime * 1000)
    except OSError:
        return 0


def _declared_origin(text: str, path: Path, named: Origin) -> Origin:
    """Return the producer that a dropped file declares inside; else the one that its name says."""
    document = read_plain(text, source=str(path), format="json")
    producer = document.get("producer") if isinstance(document, dict) else None
    if not isinstance(producer, dict):
        return named
    return Origin(
        agent_id=str(producer.get("agent_id") or named.agent_id), role=str(producer.get("role") or ""), at=named.at
    )


def _accepted(text: str, source: str, format: Format, config: DynamicConfig) -> CheckList:
    """Return the checks of a document that satisfies what the node accepts."""
    return read_checks(
        text,
        source=source,
        format=format,
        allow_types=config.allow_types,
        require_reason=config.require_reason,
        require_basis=config.require_basis,
    )
