"""``results.json``: a sweep and its scores as one strict JSON document."""

from __future__ import annotations

import hashlib
import json
import math
from typing import Any

import msgspec

from statem_dist.history import timestamp
from statem_dist.sweep.comparison import Comparison
from statem_dist.sweep.model import Definition, Sweep
from statem_dist.sweep.scores import Scores

SCHEMA = 2
"""Version of the document; it rises when a key changes its meaning or goes."""

PLACES = ("file", "folder", "runbook_path")
"""Of a definition, what only says where its files are on the host of its submitter."""


def document(sweep: Sweep, scores: Scores, comparison: Comparison | None = None) -> dict[str, Any]:
    """Return the results as JSON-ready data.

    ``sweep`` identifies it, ``definition`` has a digest of what it was asked to do and what decides whether its
    figures can be compared. ``complete`` says whether every planned trial has been judged. ``counts`` has ``planned``,
    ``scored`` and every state; ``planned`` is the sum of the states. ``scores`` are those of ``Scores``,
    ``comparison`` is null without a baseline. Times are ISO 8601 in UTC, null for not yet.
    """
    definition = sweep.definition
    return {
        "schema": SCHEMA,
        "sweep": {
            "id": sweep.id,
            "name": definition.name,
            "revision": sweep.revision,
            "labels": definition.labels,
            "created_at": timestamp(sweep.created_at),
            "created_by": sweep.created_by,
            "ended_at": timestamp(sweep.ended_at) if sweep.ended_at else None,
        },
        "definition": {
            "digest": digest(definition),
            "runbook": definition.runbook_path,
            "runbook_hash": definition.runbook,
            "axes": list(definition.axes),
            "listed_axes": list(definition.listed),
            "task_axes": list(definition.task_axes),
            "success": list(definition.success),
            "trials": definition.trials,
            "seed": definition.seed,
            "max_steps": definition.max_steps,
            "retries": definition.retries,
            "agent_mode": definition.agent.mode if definition.agent else None,
            "agent_timeout_seconds": definition.agent.timeout if definition.agent else None,
            "trial_timeout_seconds": definition.trial_timeout,
        },
        "status": sweep.status,
        "status_reason": sweep.status_reason,
        "complete": sweep.complete,
        "counts": {"planned": sweep.planned, "scored": sweep.scored, **sweep.counts},
        "scores": scores.as_data(),
        "comparison": None if comparison is None else comparison.as_data(),
    }


def digest(definition: Definition) -> str:
    """Return the SHA-256 of a definition, the same on every host: where its files are is left out."""
    data = {name: value for name, value in msgspec.to_builtins(definition).items() if name not in PLACES}
    canonical = json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).hexdigest()


def strict_json(data: Any, *, indent: int | None = None) -> str:
    """Return data as JSON that every parser takes (RFC 8259), in ASCII.

    A number that is not finite becomes null, and half a surrogate pair the replacement character. Escaping all that
    is not ASCII keeps U+2028 from splitting the lines of JSONL.
    """
    return json.dumps(_strict(data), ensure_ascii=True, allow_nan=False, indent=indent)


def results_json(sweep: Sweep, scores: Scores, comparison: Comparison | None = None) -> str:
    """Return the text of ``results.json``."""
    return strict_json(document(sweep, scores, comparison), indent=1) + "\n"


def whole_characters(text: str) -> str:
    """Return text with the replacement character for each half of a surrogate pair, which no encoding has."""
    return text if text.isascii() else text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _strict(data: Any) -> Any:
    match data:
        case str():
            return whole_characters(data)
        case float():
            return data if math.isfinite(data) else None
        case dict():
            return {whole_characters(str(key)): _strict(value) for key, value in data.items()}
        case list() | tuple():
            return [_strict(value) for value in data]
        case _:
            return data
