"""Random runbooks and outcomes, drawn from a ``random.Random``: a seeded one, or one that hypothesis shrinks."""

from __future__ import annotations

from random import Random

from statem_dist.protocol.graph import (
    Check,
    Checklist,
    Command,
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
    Work,
)
from statem_dist.protocol.model import PlannedCheck
from statem_dist.protocol.outcome import Outcome, Reason

NAMES = ("a", "b", "c", "d")

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
            out_hook=_random_steps(rng, 2),
        )
        for name in names
    )
    edges = tuple(
        Edge(
            source,
            target,
            condition=_random_steps(rng, 2),
            hook=_random_steps(rng, 2),
            max_attempts=rng.choice((None, None, 1, 2)),
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


def _random_steps(rng: Random, steps_max: int) -> Steps:
    return tuple(
        tuple(_random_check(rng) for _ in range(rng.choice((1, 1, 1, 2, 3)))) for _ in range(rng.randint(0, steps_max))
    )


def _random_check(rng: Random) -> Check:
    return Check(
        do=_random_work(rng),
        blocking=rng.randint(0, 4) > 0,
        on_failure="continue" if rng.randint(0, 4) == 4 else "block",
        retry=_random_retry(rng),
        idempotent=rng.choice((None, None, True, False)),
        confirm=rng.randint(0, 3) > 0,
    )


def _random_work(rng: Random) -> Work:
    works: tuple[Work, ...] = (
        Command("true"),
        Command("true"),
        Predicate("file", exists=True),
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
