"""LLM reviews: a command gets a brief on its standard input and answers with an exit status and some text.

A review has three outcomes and fails closed. It passes only when the reviewer exited with 0, everything that must be
in its answer is there, and nothing that rejects is. It fails when the reviewer said so. When the reviewer could not be
asked (no process, no answer in time, killed, exit status 75, or one that ``retry.exit_status`` lists) it is neither:
``reviewer_unavailable`` is tried again and never scored. With text cut out of the answer, a rejecting text may be in
the part that nobody kept, so such an answer does not pass.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from statem_dist.checks.command import execute, judge, outcome_of
from statem_dist.checks.context import CheckContext
from statem_dist.checks.output import text_of
from statem_dist.checks.patterns import PatternFailure, search
from statem_dist.checks.process import Finished, Supervisor
from statem_dist.protocol.graph import Check, LlmReview
from statem_dist.protocol.outcome import Outcome, Reason


def evaluate_llm_review(check: Check, review: LlmReview, context: CheckContext, supervisor: Supervisor) -> Outcome:
    """Ask the reviewer and return the outcome; ``no_reviewer`` when the host and the check name none.

    Raises:
        SearchInterrupted: the search for a pattern was kept from answering.
    """
    command = review.run or context.reviewer_command
    if not command:
        return Outcome(
            passed=False,
            reason="no_reviewer",
            output="no reviewer is configured: give the check a run, or set STATEM_LLM_REVIEW_CMD",
        )
    stdin = brief(review, context).encode(errors="replace") if review.stdin else None
    # The host's own reviewer is the operator's program: it needs the network, and is none of the runbook's commands.
    rules = context.rules if review.run else context.rules.of_operator()
    finished = execute(command, check, context, supervisor, rules, stdin)
    reason, note = _verdict(finished, check, review, context, supervisor)
    return outcome_of(finished, reason, note, context)


def brief(review: LlmReview, context: CheckContext) -> str:
    """Return what a reviewer reads: what to judge, and about which run and node."""
    facts = {"run": context.run_id, "runbook": context.spec, "node": context.node, "purpose": context.purpose}
    lines = "\n".join(f"{name}: {value}" for name, value in facts.items() if value)
    parts = [f"# Review\n\n{review.prompt}", f"# Context\n\n{lines}"]
    if context.node_prompt:
        parts.append(f"# Prompt of node {context.node}\n\n{context.node_prompt}")
    return "\n\n".join(parts) + "\n"


def _verdict(
    finished: Finished, check: Check, review: LlmReview, context: CheckContext, supervisor: Supervisor
) -> tuple[Reason, str]:
    reason, note = judge(finished, check, context)
    if finished.exit_code == os.EX_TEMPFAIL and reason == "check_failed":
        return "reviewer_unavailable", f"exit status {os.EX_TEMPFAIL}: the reviewer is unavailable for now"
    if reason in ("timed_out", "signal", "spawn_failed"):
        return "reviewer_unavailable", note
    if reason != "passed":
        return reason, note
    try:
        objections = list(_objections(review, finished, context, supervisor))
    except PatternFailure as failure:
        objections = [str(failure)]
    return ("check_failed", "\n".join(objections)) if objections else ("passed", "")


def _objections(review: LlmReview, finished: Finished, context: CheckContext, supervisor: Supervisor) -> Iterator[str]:
    """Yield why the answer of a reviewer that exited with 0 is no approval."""
    answer = text_of(finished)
    if review.accept_contains is not None and review.accept_contains not in answer:
        yield f"the review does not contain the accepting text {review.accept_contains!r}"
    if review.accept_regex is not None and not search(review.accept_regex, answer, context, supervisor):
        yield f"the review does not match the accepting pattern {review.accept_regex!r}"
    if review.reject_contains is not None and review.reject_contains in answer:
        yield f"the review contains the rejecting text {review.reject_contains!r}"
    if review.reject_regex is not None and search(review.reject_regex, answer, context, supervisor):
        yield f"the review matches the rejecting pattern {review.reject_regex!r}"
    if finished.dropped_bytes and (review.reject_contains is not None or review.reject_regex is not None):
        yield f"the review is too long to be searched for rejecting text: {finished.dropped_bytes} bytes were not kept"
