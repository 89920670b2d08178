"""The one door to the executors: a check and its context in, an outcome out."""

from __future__ import annotations

from statem_dist.checks.command import evaluate_command
from statem_dist.checks.context import CheckContext
from statem_dist.checks.llm_review import evaluate_llm_review
from statem_dist.checks.patterns import SearchInterrupted
from statem_dist.checks.predicate import evaluate_predicate
from statem_dist.checks.process import Supervisor
from statem_dist.protocol.graph import Check, Checklist, Command, Evidence, LlmReview, Manual, Message, Predicate, Unmet
from statem_dist.protocol.outcome import Outcome


def evaluate(check: Check, context: CheckContext, supervisor: Supervisor) -> Outcome:
    """Evaluate one check and block until its outcome is known; blocked threads are ended by ``supervisor.cancel``.

    Raises:
        TypeError: the check is settled by the protocol (manual, checklist, message and the like), not by a host.
    """
    try:
        match check.do:
            case Command() as command:
                return evaluate_command(check, command, context, supervisor)
            case Predicate() as predicate:
                return evaluate_predicate(check, predicate, context, supervisor)
            case LlmReview() as review:
                return evaluate_llm_review(check, review, context, supervisor)
            case Manual() | Checklist() | Message() | Unmet() | Evidence():
                raise TypeError(f"a {check.type} check is settled by the protocol and has nothing to evaluate")
    except SearchInterrupted as interruption:
        return Outcome(passed=False, reason=interruption.reason, output=str(interruption))
