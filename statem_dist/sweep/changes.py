"""Whether two readings of a sweep file ask for the same results, and what is different where they do not.

A sweep that is resumed or extended must be the sweep that it was: trials under another prompt, agent or seed are not
trials of the same thing. What decides results is listed once, in ``_deciding``; all else (how many run at once, where,
in which order, when to stop, what is kept) may change from one day to the next.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from hashlib import sha256
from typing import TypeAlias

from statem_dist.sweep.model import Cell, Definition, values_of
from statem_dist.sweep.plan import key_of
from statem_dist.sweep.spec import Loaded

CELLS_SHOWN_MAX = 5
"""How many cells a sentence names; the number of the others is said."""

TEXT_SHOWN_MAX = 200
"""Characters of a text that is shown before and after; a longer one is only said to have changed."""

Value: TypeAlias = str | int | float | list[str] | None

_DIGESTS = {
    "runbook": "its text has changed",
    "workspace.template": "the content of the folder has changed",
}
"""What is said of values that nobody can read."""


def fingerprint(loaded: Loaded) -> str:
    """Return the sha256, in hex, of everything in a sweep file, its runbook and its template that decides results.

    Of a repository it is the ``ref`` that counts: a branch that has moved is the same branch.
    """
    deciding = {**_deciding(loaded.definition), "cells": sorted(map(key_of, loaded.cells))}
    return sha256(json.dumps(deciding, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


def differences(old: Definition, old_cells: Iterable[Cell], new: Loaded) -> list[str]:
    """Return what of a sweep that decides results is different in a newly read file, one sentence each.

    The list is empty exactly when the fingerprints are the same.

    Args:
        old: the sweep as it was submitted.
        old_cells: the cells that it has trials of.
        new: the file as it is now.
    """
    before, after = _deciding(old), _deciding(new.definition)
    said = [_cells(old_cells, new.cells)]
    if (old.agent is None) != (new.definition.agent is None):
        before, after = _without_agent(before), _without_agent(after)
        said.append(
            "agent: there was one, and there is none" if old.agent else "agent: there was none, and there is one"
        )
    for name in dict.fromkeys([*before, *after]):
        if name not in before:
            said.append(f"{name} is new" + ("" if name in _DIGESTS else f": {_shown(after[name])}"))
        elif name not in after:
            said.append(f"{name} is gone" + ("" if name in _DIGESTS else f"; it was {_shown(before[name])}"))
        elif before[name] != after[name]:
            said.append(f"{name}: {_change(name, before[name], after[name])}")
    return [sentence for sentence in said if sentence]


def _deciding(definition: Definition) -> dict[str, Value]:
    """Return what decides results, by the keywords of the file; cells are compared apart."""
    agent, workspace = definition.agent, definition.workspace
    deciding: dict[str, Value] = {
        "runbook": definition.runbook,
        "success": sorted(definition.success),
        "trials": definition.trials,
        "seed": definition.seed,
        "max_steps": definition.max_steps,
        "timeouts.trial": definition.trial_timeout,
    }
    if agent is not None:
        deciding |= {
            "agent.run": agent.run,
            "agent.mode": agent.mode,
            "agent.continuations": agent.continuations,
            "agent.pass_env": sorted(set(agent.pass_env)),
            "timeouts.agent": agent.timeout,
        }
    if workspace.template is not None:
        # Where the folder lies decides nothing: the same sweep may be read from another checkout.
        deciding["workspace.template"] = workspace.digest
    if workspace.git is not None:
        deciding |= {"workspace.git": workspace.git, "workspace.ref": workspace.ref}
    deciding |= {f"env.{name}": value for name, value in definition.env.items()}
    deciding |= {f"vars.{name}": value for name, value in definition.vars.items()}
    return deciding


def _without_agent(deciding: Mapping[str, Value]) -> dict[str, Value]:
    return {
        name: value for name, value in deciding.items() if name != "timeouts.agent" and not name.startswith("agent.")
    }


def _change(name: str, before: Value, after: Value) -> str:
    if name in _DIGESTS:
        return _DIGESTS[name]
    if max(len(_shown(before)), len(_shown(after))) > TEXT_SHOWN_MAX:
        return "has changed"
    return f"{_shown(before)} -> {_shown(after)}"


def _shown(value: Value) -> str:
    match value:
        case None:
            return "none"
        case float():
            return f"{value:g} s"
        case list():
            return ", ".join(value) or "none"
        case str() if len(value) > TEXT_SHOWN_MAX:
            return f"{value[:TEXT_SHOWN_MAX]!r}..."
        case _:
            return repr(value)


def _cells(old: Iterable[Cell], new: Iterable[Cell]) -> str:
    """Return in one sentence which cells have come and gone; an empty text if none has."""
    before, after = {key_of(cell): cell for cell in old}, {key_of(cell): cell for cell in new}
    come = [cell for key, cell in after.items() if key not in before]
    gone = [cell for key, cell in before.items() if key not in after]
    return "; ".join(_counted(cells, word) for cells, word in ((come, "new"), (gone, "gone")) if cells)


def _counted(cells: list[Cell], word: str) -> str:
    named = "; ".join(values_of(cell) or "the one without values" for cell in cells[:CELLS_SHOWN_MAX])
    more = f"; and {len(cells) - CELLS_SHOWN_MAX} more" if len(cells) > CELLS_SHOWN_MAX else ""
    return f"{len(cells)} {'cell is' if len(cells) == 1 else 'cells are'} {word}: {named}{more}"
