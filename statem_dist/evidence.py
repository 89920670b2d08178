"""What stood behind the transitions of a run: which evidence, how strong, and by whom.

Only checks count, not hooks: those that passed before the run moved and whose failure would have kept it where it
was. That is the same evidence by which an edge's ``require_evidence`` is judged. It is grouped by who gave it:
evaluated by the host, decided by a person, attested by the agent, judged by a model. A question that the caller of the
transition answered itself stands among the decisions and says so, and is no stronger than an attestation.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from msgspec import Struct

from statem_dist.columns import aligned
from statem_dist.history import Move, Told, timestamp
from statem_dist.protocol.answers import evidence_of
from statem_dist.protocol.graph import EvidenceTier
from statem_dist.protocol.model import PlannedCheck
from statem_dist.protocol.outcome import TIERS, CheckResult
from statem_dist.runbook.view import check_text, check_title
from statem_dist.views import origin_view, token_fact, with_token

GROUPS: dict[EvidenceTier, str] = {
    "verified": "verified",
    "decision": "decided",
    "attestation": "attested",
    "judgment": "judged",
}
"""What a result of each tier is called in the report."""

TITLE_LENGTH_MAX = 40
"""Characters of the title of a check without a name, in the table."""


class Proof(Struct, frozen=True):
    """A check that passed before a transition committed, and its result."""

    planned: PlannedCheck
    result: CheckResult

    @property
    def name(self) -> str:
        """Its id in the plan, and what the runbook calls the check, else its title."""
        check = self.planned.check
        return f"{self.planned.id} {check.name or check_title(check, TITLE_LENGTH_MAX)}"

    @property
    def self_confirmed(self) -> bool:
        """Whether the caller of the transition answered for itself."""
        return self.result.outcome.reason == "confirmed"


class Backing(Struct, frozen=True):
    """A transition that moved the run, and what stood behind it: ``strongest`` is None when nothing did."""

    move: Move
    strongest: EvidenceTier | None
    proofs: tuple[Proof, ...]

    def of(self, tier: EvidenceTier) -> tuple[Proof, ...]:
        """Return the proofs whose results are of one tier."""
        return tuple(proof for proof in self.proofs if proof.result.tier == tier)


def backings(told: Iterable[Told]) -> list[Backing]:
    """Return what stood behind every transition that moved the run, oldest first.

    Args:
        told: what happened to the run, newest first, as ``history.moves`` yields it.
    """
    made = [each for each in told if isinstance(each, Move) and each.entry_id is not None]
    return [_backing(move) for move in reversed(made)]


def backing_view(backing: Backing) -> dict[str, Any]:
    """Return one transition and its evidence, as ``evidence --json`` shows it."""
    transition = backing.move.transition
    return {
        "transition": transition.id,
        "number": backing.move.number,
        "ts": timestamp(transition.settled_at or transition.opened_at),
        "from": transition.source,
        "to": transition.target,
        "current_entry_id": backing.move.entry_id,
        "by": transition.by.id,
        **token_fact(transition.by.token),
        "strongest": backing.strongest,
        **{name: [_proof_view(proof) for proof in backing.of(tier)] for tier, name in GROUPS.items()},
    }


def table(found: Sequence[Backing]) -> str:
    """Return the transitions and their evidence as aligned text, one line each."""
    rows = [("transition", "from -> to", "strongest", *GROUPS.values())]
    for backing in found:
        transition = backing.move.transition
        groups = (", ".join(map(_words, backing.of(tier))) or "-" for tier in GROUPS)
        way = f"{transition.source} -> {transition.target}"
        rows.append((transition.id, way, backing.strongest or "none", *groups))
    return aligned(rows)


def _backing(move: Move) -> Backing:
    transition = move.transition
    given = {planned.id: tier for planned in transition.plan if (tier := evidence_of(planned, transition))}
    return Backing(
        move=move,
        strongest=min(given.values(), key=TIERS.index, default=None),
        proofs=tuple(
            Proof(planned, transition.results[planned.id]) for planned in transition.plan if planned.id in given
        ),
    )


def _proof_view(proof: Proof) -> dict[str, Any]:
    planned, result = proof.planned, proof.result
    view: dict[str, Any] = {
        "id": planned.id,
        "type": planned.check.type,
        "purpose": planned.purpose,
        "text": check_text(planned.check),
        "reason": result.outcome.reason,
        "by": result.by,
        "self_confirmed": proof.self_confirmed,
    }
    if planned.check.name:
        view["name"] = planned.check.name
    if result.role:
        view["role"] = result.role
    view |= token_fact(result.token)
    if planned.origin is not None:
        view["registered_by"] = origin_view(planned.origin)
    return view


def _words(proof: Proof) -> str:
    """Return a proof in a few words: who answered is named where somebody did."""
    result = proof.result
    if proof.self_confirmed:
        return f"{proof.name} (by {with_token(f'{result.by} itself', result.token)})"
    return f"{proof.name} (by {with_token(result.by, result.token)})" if result.tier == "decision" else proof.name
