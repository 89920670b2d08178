"""What came of one check: the closed list of reasons, the tiers of evidence, and the result itself.

The four tiers are those of the transition theory: what the host evaluated, what a person decided, what the
agent attested, what a model judged. Nothing may present a lower tier as proof, so each result carries its
own, together with who or what gave it.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from statem_dist.protocol.graph import Check, Checklist, EvidenceTier, LlmReview, Manual, Message

Reason: TypeAlias = Literal[
    "passed",
    "check_failed",
    "timed_out",
    "signal",
    "config_error",
    "confirmed",
    "not_confirmed",
    "not_asked",
    "approved",
    "rejected",
    "expired",
    "shown",
    "no_reviewer",
    "cancelled",
    "shutdown",
    "spawn_failed",
    "reviewer_unavailable",
    "worker_lost",
    "hook_outcome_unknown",
]
"""Why a check ended as it did.

``confirmed`` is the caller's own word, ``approved`` and ``rejected`` are decisions by somebody who was asked,
``expired`` is a decision that nobody made in time. ``config_error`` covers a missing working directory and a
program that cannot be executed; ``no_reviewer`` asks the protocol to treat a review as a manual check.
"""

INFRASTRUCTURE: frozenset[Reason] = frozenset(
    {"cancelled", "shutdown", "spawn_failed", "reviewer_unavailable", "worker_lost", "hook_outcome_unknown"}
)
"""Reasons that say nothing about the work under test: never scored as a failure, never as a pass."""

TIERS: tuple[EvidenceTier, ...] = ("verified", "decision", "attestation", "judgment")
"""Evidence tiers, strongest first."""


def tier_of(check: Check) -> EvidenceTier:
    """Return the tier of evidence that a check of this type can give."""
    match check.do:
        case Manual():
            return "decision"
        case Checklist() | Message():
            return "attestation"
        case LlmReview():
            return "judgment"
        case _:
            return "verified"


class Outcome(Struct, frozen=True, omit_defaults=True):
    """What an executor reports of one evaluation.

    ``output`` is decoded text, trimmed, head and tail kept when it was too long; ``output_bytes`` counts what
    was really written and ``dropped_bytes`` what is in neither ``output`` nor ``log``. ``log`` is the longer
    text that is stored apart; it is empty when ``output`` already holds everything. ``begun`` is false for what was
    cut short before it was started at all: it is handed back, whatever it is.
    """

    passed: bool
    reason: Reason
    output: str = ""
    exit_code: int | None = None
    signal: int | None = None
    duration_ms: int = 0
    output_bytes: int = 0
    dropped_bytes: int = 0
    survivors: int = 0
    begun: bool = True
    log: str = ""


class CheckResult(Struct, frozen=True, omit_defaults=True):
    """The settled result of one planned check: the outcome, its evidence tier, and who gave it.

    ``by`` is a worker, or the agent id of whoever confirmed or decided; ``role`` and ``token`` are that of such a
    one (see ``Actor``). ``tries`` counts evaluations, the last included.
    """

    outcome: Outcome
    tier: EvidenceTier
    by: str = ""
    role: str = ""
    tries: int = 1
    token: str = ""

    @property
    def passed(self) -> bool:
        """Whether the check passed."""
        return self.outcome.passed
