"""Settling checks without a worker: messages, confirmations, and what is known when their turn comes.

A manual check or a checklist is settled by what the caller of the transition confirmed or declined. Where the
transition may wait for people, it waits instead for somebody's decision, unless that would be in vain because a
stopping failure is on record already.
"""

from __future__ import annotations

from statem_dist.protocol.graph import Checklist, Evidence, EvidenceTier, Manual, Message, Unmet
from statem_dist.protocol.model import PlannedCheck, Transition
from statem_dist.protocol.outcome import CheckResult, Outcome
from statem_dist.protocol.progress import asks
from statem_dist.protocol.stages import HOOK_PURPOSES


def answer(planned: PlannedCheck, transition: Transition) -> CheckResult:
    """Return the result of a check that the protocol itself settles, at its turn."""
    match planned.check.do:
        case Message(text):
            outcome = Outcome(passed=True, reason="shown", output=text)
            return CheckResult(outcome=outcome, tier="attestation")
        case Evidence(tier):
            return _evidence(tier, transition)
        case Unmet(text):
            outcome = Outcome(passed=False, reason="check_failed", output=text)
            return CheckResult(outcome=outcome, tier="verified")
        case _:
            return confirmation(planned, transition)


def waits(planned: PlannedCheck, transition: Transition) -> bool:
    """Return whether a check waits for somebody's decision; once a failure is on record, that would be in vain."""
    answered = _covered(planned, transition) or planned.id in transition.confirmations.declined
    if transition.on_manual == "fail" or not asks(planned) or answered:
        return False
    settled = (each for each in transition.plan if each.id in transition.results)
    return all(transition.results[each.id].passed or not each.check.stops for each in settled)


def question_of(planned: PlannedCheck) -> str:
    """Return what a check asks, in its own words."""
    match planned.check.do:
        case Checklist(items, text):
            listed = "; ".join(items)
            return f"{text}: {listed}" if text else listed
        case Manual(text):
            return text
        case do:
            return str(getattr(do, "prompt", ""))


def confirmation(planned: PlannedCheck, transition: Transition, preface: str = "") -> CheckResult:
    """Settle a question by what the caller confirmed when the transition was requested.

    Args:
        planned: the check that asks.
        transition: what was requested, and with which confirmations.
        preface: why a check asks that is no question by its type; the output begins with it, however it is settled.
    """
    by = transition.by
    text = question_of(planned)
    tier: EvidenceTier = "attestation" if isinstance(planned.check.do, Checklist) else "decision"
    if not planned.check.confirm:
        outcome = Outcome(passed=True, reason="not_asked", output=preface + text)
        return CheckResult(outcome=outcome, tier="attestation")
    if (reason := transition.confirmations.declined.get(planned.id)) is not None:
        outcome = Outcome(passed=False, reason="rejected", output=preface + (reason or f"Declined: {text}"))
        return CheckResult(outcome=outcome, tier=tier, by=by.id, role=by.role, token=by.token)
    if _covered(planned, transition):
        output = f"{preface}Confirmed by {by.id or 'the caller'}: {text}" if preface else text
        outcome = Outcome(passed=True, reason="confirmed", output=output)
        return CheckResult(outcome=outcome, tier=tier, by=by.id, role=by.role, token=by.token)
    way = "confirm with --yes" if planned.check.by == "anyone" else "an operator decides: --on-manual wait"
    output = f"{preface}Not confirmed: {text} ({way})"
    return CheckResult(outcome=Outcome(passed=False, reason="not_confirmed", output=output), tier=tier)


def _covered(planned: PlannedCheck, transition: Transition) -> bool:
    """Return whether the caller's own confirmation settles a question: not where an operator has to decide."""
    return planned.check.by == "anyone" and transition.confirmations.cover(planned.id)


def evidence_of(planned: PlannedCheck, transition: Transition) -> EvidenceTier | None:
    """Return the tier of evidence that a check has given in a transition; None if it gave none.

    Only a check that has passed and would have stopped the transition is evidence: a hook is run for its effect,
    and that it worked says nothing about the work. What the caller confirmed itself is its own word, whatever it was
    asked; and that evidence was demanded, or that something is missing, proves nothing.
    """
    result = transition.results.get(planned.id)
    if result is None or not result.passed or not planned.check.stops:
        return None
    if planned.purpose in HOOK_PURPOSES or isinstance(planned.check.do, Evidence | Unmet):
        return None
    return "attestation" if result.outcome.reason == "confirmed" else result.tier


def _evidence(tier: EvidenceTier, transition: Transition) -> CheckResult:
    """Settle a demand for evidence by what has passed before it in this transition."""
    passed = [planned.id for planned in transition.plan if evidence_of(planned, transition) == tier]
    if passed:
        outcome = Outcome(passed=True, reason="passed", output=f"{tier}: {', '.join(passed)}")
    else:
        text = f"This edge requires {tier} evidence, and no blocking check that passed gives it."
        outcome = Outcome(passed=False, reason="check_failed", output=text)
    return CheckResult(outcome=outcome, tier="verified")
