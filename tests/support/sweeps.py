"""Sweeps and trials as values, for tests of what is made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import product

from statem_dist.sweep.model import (
    OUTCOME_OF,
    STATES,
    Agent,
    Attempt,
    Blocked,
    Cell,
    Definition,
    Planned,
    Reason,
    State,
    Sweep,
    Trial,
    Usage,
)

T0 = 1_790_000_000_000
"""When the sweeps of these tests were submitted, in ms since the epoch."""

HOSTILE = (
    "comma,quote\"apostrophe'newline\nreturn\r=1+1 | pipe `tick` * _ [link](http://x) \u2028 \x00\x1b[31m\x07 "
    "<script>alert(1)</script> ]]> &amp; \ufffe 漢字 \U0001f600"
)
"""Text that breaks out of every format that does not escape it."""

REASON_OF: Mapping[State, Reason] = {
    "passed": "success_end",
    "failed": "failure_end",
    "stuck": "max_steps",
    "timeout": "agent_timeout",
    "error": "check_not_evaluated",
    "cancelled": "sweep_cancelled",
}
"""A reason for each way to end."""


def definition(
    axes: Sequence[str] = ("model", "task"),
    listed: Sequence[str] = ("model",),
    *,
    name: str = "tb",
    trials: int = 5,
    agent: Agent | None = None,
    max_steps: int = 20,
    trial_timeout: float | None = None,
    success: Sequence[str] = ("done",),
    runbook: str = "f00d",
) -> Definition:
    """Return the definition of a sweep."""
    return Definition(
        name=name,
        file=f"/sweeps/{name}.sweep.yaml",
        folder="/sweeps",
        runbook=runbook,
        runbook_path="/sweeps/tb.yaml",
        axes=tuple(axes),
        listed=tuple(listed),
        success=tuple(success),
        trials=trials,
        agent=agent,
        max_steps=max_steps,
        trial_timeout=trial_timeout,
    )


def attempt(
    number: int,
    reason: Reason | None,
    *,
    attempt: int = 1,
    detail: str = "",
    queued: float = 1.0,
    seconds: float = 2.0,
    blocks: Sequence[Blocked] = (),
    usage: Usage | None = None,
) -> Attempt:
    """Return an attempt that has ended for a reason, or is running without one."""
    begun = T0 + 1000 * number + int(queued * 1000)
    return Attempt(
        number=number,
        attempt=attempt,
        run_id=f"run-{number}-{attempt}",
        queued_at=T0 + 1000 * number,
        started_at=begun,
        worker="w1",
        host="h1",
        folder=f"/state/{number}/attempt-{attempt}",
        ended_at=begun + int(seconds * 1000) if reason else 0,
        outcome=OUTCOME_OF[reason] if reason else None,
        reason=reason,
        detail=detail,
        node="work",
        steps=3,
        calls=2,
        blocked=sum(block.times for block in blocks),
        loops=1,
        checks=4,
        blocks=tuple(blocks),
        usage=usage,
    )


def trial(number: int, cell: Cell, repetition: int, state: State, **given: object) -> Trial:
    """Return a trial with the one attempt that its state asks for; ``given`` goes to the attempt."""
    planned = Planned(number=number, cell=cell, repetition=repetition)
    if state == "pending":
        return Trial(planned=planned, state=state)
    made = attempt(number, REASON_OF.get(state), **given)  # type: ignore[arg-type]
    return Trial(planned=planned, state=state, attempts=(made,))


def trials_of(outcomes: Mapping[tuple[str, ...], Iterable[State]], axes: Sequence[str]) -> list[Trial]:
    """Return the trials of cells, each given by the states of its repetitions in order."""
    found: list[Trial] = []
    for values, states in outcomes.items():
        for repetition, state in enumerate(states, 1):
            found.append(trial(len(found) + 1, dict(zip(axes, values, strict=True)), repetition, state))
    return found


def sweep_of(trials: Sequence[Trial], given: Definition | None = None, *, sweep_id: str = "swp-1") -> Sweep:
    """Return the sweep that trials make up."""
    states = [each.state for each in trials]
    counts = {state: states.count(state) for state in STATES}
    over = not counts["pending"] and not counts["running"]
    return Sweep(
        id=sweep_id,
        definition=given or definition(),
        status="finished" if over else "active",
        counts=counts,
        created_at=T0,
        created_by="somebody",
        ended_at=T0 + 3_600_000 if over else 0,
    )


def grid(models: int, tasks: int, repetitions: int, *, hostile: bool = False) -> list[Trial]:
    """Return many trials of every state, with details, blocks and usage."""
    states: tuple[State, ...] = ("passed", "failed", "passed", "stuck", "passed", "timeout", "error", "passed")
    found: list[Trial] = []
    suffix = HOSTILE if hostile else ""
    for model, task, repetition in product(range(models), range(tasks), range(1, repetitions + 1)):
        number = len(found) + 1
        found.append(
            trial(
                number,
                {"model": f"m{model}{suffix}", "task": f"t{task}{suffix}"},
                repetition,
                states[(number * 7 + task) % len(states)],
                detail=f"the agent said: {suffix or 'no more ideas'}",
                seconds=1.5 + number % 17,
                blocks=(Blocked(node=f"review{suffix}", target="done", check="tests", times=number % 3 + 1),),
                usage=Usage(input_tokens=1000, output_tokens=10, cost_usd=0.25),
            )
        )
    return found
