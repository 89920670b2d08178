"""Sweeps and trials as commands and the service show them: plain data, ready for JSON."""

from __future__ import annotations

from typing import Any

from statem_dist.history import timestamp
from statem_dist.sweep.model import SCORED, Attempt, Sweep, Trial


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


def trial_summary(trial: Trial) -> dict[str, Any]:
    """Return a trial as it stands, with what its latest attempt came to."""
    last = trial.last
    return {
        "number": trial.planned.number,
        "values": trial.planned.cell,
        "repetition": trial.planned.repetition,
        "state": trial.state,
        "scored": trial.state in SCORED,
        "attempts": len(trial.attempts),
        "attempt": None if last is None else attempt_summary(last),
    }


def attempt_summary(attempt: Attempt) -> dict[str, Any]:
    """Return one attempt at a trial."""
    usage = attempt.usage
    return {
        "attempt": attempt.attempt,
        "run_id": attempt.run_id,
        "outcome": attempt.outcome,
        "reason": attempt.reason,
        "detail": attempt.detail,
        "node": attempt.node,
        "steps": attempt.steps,
        "calls": attempt.calls,
        "blocked": attempt.blocked,
        "loops": attempt.loops,
        "checks": attempt.checks,
        "queued_seconds": attempt.queued_seconds,
        "seconds": attempt.seconds if attempt.ended_at else None,
        "started_at": timestamp(attempt.started_at),
        "ended_at": timestamp(attempt.ended_at) if attempt.ended_at else None,
        "worker": attempt.worker,
        "host": attempt.host,
        "folder": attempt.folder,
        "revision": attempt.revision,
        "losses": attempt.losses,
        "usage": None
        if usage is None
        else {
            "input_tokens": usage.input_tokens,
            "output_tokens": usage.output_tokens,
            "cost_usd": usage.cost_usd,
        },
    }
