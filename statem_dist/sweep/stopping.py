"""Rules by which a sweep ends early: what ``stop_when`` says, by the counts as they are now."""

from __future__ import annotations

from contextlib import suppress

from statem_dist.errors import Conflict
from statem_dist.sweep.ledger import Ledger
from statem_dist.sweep.model import SCORED, Definition, StopWhen, Sweep

NO_RULES = StopWhen()


def reason_to_stop(sweep: Sweep) -> str:
    """Return why a sweep is to begin no more trials, in a sentence; empty if it may go on."""
    rules, counts, planned = sweep.definition.stop_when, sweep.counts, sweep.planned
    failures = sum(counts[state] for state in SCORED if state != "passed")
    if rules.errors is not None and rules.errors.reached(counts["error"], planned):
        return f"{counts['error']} of {planned} trials could not be judged (stop_when.errors)"
    if rules.failures is not None and rules.failures.reached(failures, planned):
        return f"{failures} of {planned} trials have not passed (stop_when.failures)"
    if rules.cost_usd is not None and sweep.usage.cost_usd >= rules.cost_usd:
        return f"the agents have used {sweep.usage.cost_usd:.2f} of {rules.cost_usd:.2f} USD (stop_when.cost_usd)"
    return ""


def stop_if_due(ledger: Ledger, sweep_id: str, definition: Definition) -> bool:
    """Stop a sweep if one of its rules says so; return whether one did. Trials under way go on to their end."""
    if definition.stop_when == NO_RULES:
        return False
    sweep = ledger.sweep(sweep_id)
    if sweep is None or sweep.status != "active":
        return False
    if why := reason_to_stop(sweep):
        # Somebody may have paused or cancelled it in this moment.
        with suppress(Conflict):
            ledger.steer(sweep_id, "stopped", ("active",), why)
    return bool(why)
