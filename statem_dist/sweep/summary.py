"""Where a sweep stands, as commands and the service show it: plain data, ready for JSON."""

from __future__ import annotations

from typing import Any

from statem_dist.history import timestamp
from statem_dist.sweep.model import Sweep


def sweep_summary(sweep: Sweep) -> dict[str, Any]:
    """Return a sweep as it stands. ``complete`` says whether every planned trial has been judged."""
    definition = sweep.definition
    return {
        "sweep": sweep.id,
        "name": definition.name,
        "status": sweep.status,
        "reason": sweep.status_reason,
        "planned": sweep.planned,
        "ended": sweep.ended,
        "scored": sweep.scored,
        "complete": sweep.complete,
        "counts": dict(sweep.counts),
        "concurrency": definition.concurrency,
        "queue": definition.queue,
        "priority": definition.priority,
        "labels": definition.labels,
        "held": sweep.held,
        "usage": {
            "input_tokens": sweep.usage.input_tokens,
            "output_tokens": sweep.usage.output_tokens,
            "cost_usd": sweep.usage.cost_usd,
        },
        "created_at": timestamp(sweep.created_at),
        "created_by": sweep.created_by,
        "ended_at": timestamp(sweep.ended_at) if sweep.ended_at else None,
        "revision": sweep.revision,
        "file": definition.file,
        "runbook": definition.runbook,
    }
