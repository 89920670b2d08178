"""Random runbooks and outcomes, drawn from a ``random.Random``: a seeded one, or one that hypothesis shrinks."""

from __future__ import annotations

from random import Random

from statem_dist.protocol.graph import (
    Check,
    Checklist,
    Command,
    DecidedBy,
    Edge,
    LlmReview,
    Manual,
    Message,
    Node,
    Predicate,
    Retry,
    RetryOn,
    Runbook,
    StageOrder,
    Steps,
    Unmet,
    Work,
)
from statem_dist.protocol.model import Actor, Confirmations, DynamicCheck, DynamicFacts, OnManual, Origin, PlannedCheck
from statem_dist.protocol.outcome import TIERS, Outcome, Reason

NAMES = ("a", "b", "c", "d")

OPERATOR = Actor(id="alice", role="operator")
"""Somebody who may decide what an operator has to decide; no agent has this role."""

FAILURES: tuple[Reason, ...] = (
    "check_failed",
    "timed_out",
    "signal",
    "config_error",
    "spawn_failed",
    "cancelled",
    "shutdown",
)


def random_runbook(rng: Random, digest: str, nodes_max: int = 4) -> Runbook:
    """Return a runbook with up to ``nodes_max`` nodes, any edges (to itself, too), and every kind of check."""
    names = NAMES[: rng.randint(1, nodes_max)]
    nodes = tuple(
        Node(
            name,
            in_hook=_random_steps(rng, 2),
            before_transfer=_random_steps(rng, 3),
            out_hook=_random_steps(rng, 2, repaired=True),
        )
        for name in names
    )
    edges = tuple(
        Edge(
            source,
            target,
            condition=_random_steps(rng, 2),
            hook=_random_steps(rng, 2, repaired=True),
            max_attempts=rng.choice((None, None, 1, 2)),
            require_evidence=rng.choice(TIERS) if rng.randint(0, 3) == 0 else None,
        )
        for source in names
        for target in names
        if rng.randint(0, 2)
    )
    orders: tuple[StageOrder, ...] = ("guards_first", "persist_first")
    return Runbook(hash=digest, name=digest, initial="a", nodes=nodes, edges=edges, order=rng.choice(orders))


def random_outcome(rng: Random, planned: PlannedCheck) -> Outcome:
    """Return what may come of one evaluation of a check; three in four pass."""
    if rng.randint(0, 3):
        return Outcome(passed=True, reason="passed")
    reviewer: tuple[Reason, ...] = ("no_reviewer", "reviewer_unavailable")
    own = reviewer if isinstance(planned.check.do, LlmReview) else ()
    return Outcome(passed=False, reason=rng.choice((*FAILURES, *own)))


def random_confirmations(rng: Random) -> Confirmations:
    """Return what a caller may confirm: nothing, everything, or this and that, and what it may decline."""
    declined = {"before_transfer.0": "not now"} if rng.randint(0, 7) == 0 else {}
    checks = () if rng.randint(0, 2) else ("condition.0", "out_hook.0")
    return Confirmations(everything=bool(rng.randint(0, 1)), checks=checks, declined=declined)


def random_on_manual(rng: Random) -> OnManual:
    """Return whether questions that nobody answered fail or wait."""
    ways: tuple[OnManual, ...] = ("fail", "wait")
    return rng.choice(ways)


def random_dynamic(rng: Random) -> DynamicFacts | None:
    """Return what may be registered for an entry: mostly nothing, else a few checks, or that something is missing."""
    match rng.randint(0, 5):
        case 0:
            return DynamicFacts()
        case 1:
            return DynamicFacts(checks=(DynamicCheck(Check(do=Unmet("none are registered"))),))
        case 2 | 3:
            origin = Origin(agent_id="implementer", role="executor", at=1)
            checks = tuple(DynamicCheck(_random_check(rng), origin) for _ in range(rng.randint(1, 3)))
            return DynamicFacts(producers=(origin,), checks=checks)
        case _:
            return None


def _random_steps(rng: Random, steps_max: int, *, repaired: bool = False) -> Steps:
    return tuple(
        tuple(_random_check(rng, repaired=repaired) for _ in range(rng.choice((1, 1, 1, 2, 3))))
        for _ in range(rng.randint(0, steps_max))
    )


def _random_check(rng: Random, *, repaired: bool = False) -> Check:
    work = _random_work(rng)
    deciders: tuple[DecidedBy, ...] = ("anyone", "anyone", "operator")
    asks = isinstance(work, Manual | Checklist)
    return Check(
        do=work,
        blocking=rng.randint(0, 4) > 0,
        on_failure="continue" if rng.randint(0, 4) == 4 else "block",
        retry=_random_retry(rng),
        idempotent=rng.choice((None, None, True, False)),
        confirm=rng.randint(0, 3) > 0,
        by=rng.choice(deciders) if asks else "anyone",
        timeout=rng.choice((None, 4.0)) if asks else None,
        repair=_random_repair(rng) if repaired and isinstance(work, Command) else (),
    )


def _random_repair(rng: Random) -> tuple[Check, ...]:
    """Return what undoes a hook: nothing, or a command or two, whose failure counts or not."""
    return tuple(
        Check(do=Command("undo"), on_failure=rng.choice(("block", "block", "continue")), retry=_random_retry(rng))
        for _ in range(rng.choice((0, 1, 1, 2)))
    )


def _random_work(rng: Random) -> Work:
    works: tuple[Work, ...] = (
        Command("true"),
        Command("true"),
        Predicate("file", exists=rng.randint(0, 2) == 0),
        Message("look"),
        Manual("sure?"),
        Checklist(("one", "two")),
        LlmReview("judge"),
    )
    return rng.choice(works)


def _random_retry(rng: Random) -> Retry:
    reasons: tuple[RetryOn, ...] = ("infrastructure", "failed", "timed_out")
    return Retry(
        maximum_attempts=rng.randint(1, 3),
        initial_interval=rng.choice((0.0, 1.0)),
        on=tuple(reason for reason in reasons if rng.randint(0, 1)),
    )
