"""Dynamic checks: what agents register for the current entry of a run, and what a ``goto`` makes of it.

A registration belongs to one entry and one agent id; registering again replaces it. It is kept in the store. Where
the state directory is local, a file ``checks.AGENT.json`` that somebody drops into the entry's folder counts as
well, and stands in for what that agent has registered: it is the newer word, because registering removes it. A file
that was seen once and is gone without being replaced blocks: nobody gets rid of a check by deleting its file.

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
from statem_dist.views import origin_view

CONFIRM_ID = "dynamic_before_transfer.0"
"""Plan id of the question that ``stale_policy: require_confirmation`` asks before the registered checks."""

SEEN = "\0"
"""What the field of the store begins with that says when a file of an agent, named after it, was written. No agent id
begins like this: neither an argument nor an environment variable can hold it."""

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
    return entry_folder(run) / _file_name(agent_id)


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
    return accepted(read_text(source), str(source), format_of(str(source)), config)


def register(store: Store, run: Run, checks: Sequence[Check], by: Actor, now: int) -> Registration:
    """Register checks for the current entry, in place of the agent's earlier ones.

    Args:
        store: where the run is kept.
        run: the run.
        checks: checks that its current node accepts.
        by: who registers.
        now: milliseconds since the epoch.
    """
    origin = Origin(agent_id=by.id, role=by.role, at=now, token=by.token)
    registration = Registration(origin=origin, checks=tuple(checks))
    store.save_dynamic(run.id, run.entry_id, by.id, msgspec.json.encode(registration))
    file = file_for(run, by.id)
    file.unlink(missing_ok=True)
    if SEEN + file.name in store.dynamic(run.id, run.entry_id):
        # Replaced, not vanished, whatever the clocks of the file and of the store say.
        store.save_dynamic(run.id, run.entry_id, SEEN + file.name, b"0")
    return registration


def registrations(store: Store, run: Run, config: DynamicConfig) -> list[Registration]:
    """Return what is registered for the current entry, by agent id, dropped files included.

    Which usable files were there is kept in the store: what is seen here must not just vanish. One that never was of
    use may be taken away.
    """
    kept = store.dynamic(run.id, run.entry_id)
    stored = {agent: _stored(agent, document) for agent, document in kept.items() if not agent.startswith(SEEN)}
    seen = {name.removeprefix(SEEN): int(written) for name, written in kept.items() if name.startswith(SEEN)}
    owners = {_file_name(agent): agent for agent in stored}
    found = dict(stored)
    paths = {path.name: path for path in sorted(entry_folder(run).glob("checks.*.json"))}
    for name, path in paths.items():
        agent = owners.get(name) or _agent_of(name)
        dropped = _dropped(path, config, agent)
        author = dropped.origin.agent_id
        if author != agent and (author in found or _file_name(author) in paths):
            dropped = _impostor(dropped, agent)
        found[dropped.origin.agent_id] = dropped
        if not dropped.error and seen.get(name) != dropped.origin.at:
            store.save_dynamic(run.id, run.entry_id, SEEN + name, str(dropped.origin.at).encode())
    for name, written in seen.items():
        agent = owners.get(name) or _agent_of(name)
        if name not in paths and (agent not in stored or stored[agent].origin.at < written):
            found[agent] = _vanished(agent, entry_folder(run) / name, written)
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
    if lacking := _lacking(config, registered, len(checks)):
        problems += [*lacking, "They are registered with: statem-dist dynamic write FILE"]
    if problems:
        checks = (DynamicCheck(Check(do=Unmet(" ".join(problems)))),)
    if config.stale_policy == "none":
        return DynamicFacts(producers, checks)
    question = DynamicCheck(Check(do=Manual(STILL_CURRENT)))
    declined = CONFIRM_ID in confirmations.declined
    counted = confirmations.cover(CONFIRM_ID) or (on_manual == "wait" and not declined)
    return DynamicFacts(producers, (question, *checks) if counted else (question,))


def _lacking(config: DynamicConfig, registered: Sequence[Registration], count: int) -> list[str]:
    """Return what is missing of the checks that a node requires, in sentences."""
    lacking = []
    if config.required and not registered:
        lacking.append("This node requires dynamic checks, and none are registered for this entry.")
    if count < config.min_items:
        lacking.append(f"This node requires at least {config.min_items} dynamic checks; {count} are registered.")
    return lacking


def registration_view(run: Run, registration: Registration) -> dict[str, Any]:
    """Return a registration, as ``dynamic list`` shows it."""
    view = {
        "producer": origin_view(registration.origin),
        "checks": len(registration.checks),
        "items": [check_view(check) for check in registration.checks],
        "path": registration.path or str(file_for(run, registration.origin.agent_id)),
    }
    return view | ({"error": registration.error} if registration.error else {})


def _file_name(agent_id: str) -> str:
    return f"checks.{re.sub(r'[^A-Za-z0-9._-]+', '-', agent_id)}.json"


def _agent_of(file_name: str) -> str:
    """Return the agent that the name of a dropped file says."""
    return file_name.removeprefix("checks.").removesuffix(".json")


def _stored(agent: str, document: bytes) -> Registration:
    """Return a registration as it is kept, or why it cannot be used."""
    try:
        return msgspec.json.decode(document, type=Registration)
    except msgspec.DecodeError as error:
        text = f"What {agent} has registered cannot be read ({error}); it has to register again."
        return Registration(Origin(agent_id=agent), error=text)


def _impostor(dropped: Registration, agent: str) -> Registration:
    """Return what a dropped file is worth that speaks for an agent who has spoken for itself."""
    author = dropped.origin.agent_id
    text = f"{dropped.path} names {author} as its producer, who has registered checks; only {author} may replace them."
    return Registration(Origin(agent_id=agent, at=dropped.origin.at), path=dropped.path, error=text)


def _vanished(agent: str, path: Path, written: int) -> Registration:
    """Return what is left of a dropped file that is gone."""
    text = f"{path} was dropped by {agent} and has vanished; put it back, or register checks as {agent} in its place."
    return Registration(Origin(agent_id=agent, at=written), path=str(path), error=text)


def _dropped(path: Path, config: DynamicConfig, agent: str) -> Registration:
    """Return what a dropped file registers, or why it cannot be used; ``agent`` is whom its name says."""
    origin = Origin(agent_id=agent, at=_written_at(path))
    try:
        text = read_text(path)
        origin = _declared_origin(text, path, origin)
        return Registration(origin, accepted(text, str(path), "json", config).checks, str(path))
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


def accepted(text: str, source: str, format: Format, config: DynamicConfig) -> CheckList:
    """Return the checks of a document that satisfies what the node accepts. See ``read``."""
    return read_checks(
        text,
        source=source,
        format=format,
        allow_types=config.allow_types,
        require_reason=config.require_reason,
        require_basis=config.require_basis,
    )
