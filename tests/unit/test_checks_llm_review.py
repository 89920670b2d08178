"""LLM reviews: the brief, the verdict, and that doubt never passes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statem_dist.checks.context import CheckContext
from statem_dist.checks.evaluate import evaluate
from statem_dist.checks.process import Supervisor
from statem_dist.protocol.graph import Check, LlmReview, Retry
from statem_dist.protocol.outcome import INFRASTRUCTURE, Outcome


@pytest.fixture(scope="module")
def supervisor() -> Iterator[Supervisor]:
    """A supervisor that keeps little output."""
    with Supervisor(head_bytes=1000, tail_bytes=1000) as supervisor:
        yield supervisor


def outcome_of(workspace: Path, supervisor: Supervisor, reviewer: str | None = None, **given: Any) -> Outcome:
    """Evaluate one review; names of ``Check`` go to the check, all others to the review."""
    check = {name: given.pop(name) for name in ("timeout", "retry", "cwd") if name in given}
    context = CheckContext(
        key="k",
        workspace=str(workspace),
        environ={"PATH": os.environ["PATH"]},
        purpose="condition",
        run_id="essay-31",
        node="outline",
        node_prompt="Outline three arguments.",
        spec="/books/essay.yaml",
        reviewer_command=reviewer,
    )
    return evaluate(Check(LlmReview(**{"prompt": "Taste it.", **given}), **check), context, supervisor)


@pytest.mark.parametrize(
    ("given", "reason", "exit_code", "words"),
    [
        ({"run": "echo GOOD enough", "accept_contains": "GOOD"}, "passed", 0, ["GOOD enough"]),
        ({"run": "echo fine"}, "passed", 0, ["fine"]),
        ({"run": "echo bland", "accept_contains": "GOOD"}, "check_failed", 0, ["GOOD", "bland"]),
        (
            {"run": "echo GOOD but BURNT", "accept_contains": "GOOD", "reject_contains": "BURNT"},
            "check_failed",
            0,
            ["rejecting", "GOOD but BURNT"],
        ),
        ({"run": "echo score 8 of 10", "accept_regex": "score (7|8|9)"}, "passed", 0, ["score 8"]),
        ({"run": "echo score 3 of 10", "accept_regex": "score (7|8|9)"}, "check_failed", 0, ["(7|8|9)", "score 3"]),
        ({"run": "echo no way", "reject_regex": "no (way|chance)"}, "check_failed", 0, ["no way"]),
        ({"run": "echo yes", "accept_regex": "(yes"}, "check_failed", 0, ["not a regular expression", "yes"]),
        ({"run": "echo GOOD; exit 4", "accept_contains": "GOOD"}, "check_failed", 4, ["GOOD"]),
        ({"run": "echo GOOD >&2", "accept_contains": "GOOD"}, "passed", 0, ["GOOD"]),
        ({"run": "echo busy; exit 75", "accept_contains": "busy"}, "reviewer_unavailable", 75, ["75", "busy"]),
        ({"run": "exit 9", "retry": Retry(exit_status=(9,))}, "reviewer_unavailable", 9, ["could-not-run"]),
        ({"run": "kill -9 $$"}, "reviewer_unavailable", None, ["SIGKILL"]),
        ({"run": "exec sleep 60", "timeout": 0.2}, "reviewer_unavailable", None, ["timed out after 0.2 s"]),
        ({"run": "no-such-reviewer"}, "config_error", 127, ["no-such-reviewer"]),
        ({"run": "true", "cwd": "nowhere"}, "config_error", None, ["nowhere"]),
        ({"run": "head -c 9999 /dev/zero; echo OK", "accept_contains": "OK"}, "passed", 0, ["OK"]),
        (
            {"run": "head -c 9999 /dev/zero; echo OK", "accept_contains": "OK", "reject_contains": "NO"},
            "check_failed",
            0,
            ["too long"],
        ),
    ],
    ids=str,
)
def test_verdicts(
    tmp_path: Path,
    supervisor: Supervisor,
    given: dict[str, Any],
    reason: str,
    exit_code: int | None,
    words: list[str],
) -> None:
    """A review passes, fails or is unavailable, and its result holds the reviewer's own words."""
    outcome = outcome_of(tmp_path, supervisor, **given)
    assert (outcome.reason, outcome.exit_code) == (reason, exit_code)
    assert outcome.passed is (reason == "passed")
    assert [word for word in words if word not in outcome.output] == []


def test_an_unavailable_reviewer_is_no_verdict() -> None:
    """The protocol counts it neither as a pass nor as a failure."""
    assert "reviewer_unavailable" in INFRASTRUCTURE


def test_the_reviewer_reads_prompt_and_context(tmp_path: Path, supervisor: Supervisor) -> None:
    """The brief holds the prompt, the run, the runbook, the node, the purpose and the node's own prompt."""
    assert outcome_of(tmp_path, supervisor, run="cat > asked.txt", prompt="Judge the ⟪sources⟫.").passed
    asked = (tmp_path / "asked.txt").read_text(encoding="utf-8")
    for words in ("Judge the ⟪sources⟫.", "essay-31", "essay.yaml", "outline", "condition", "Outline three arguments."):
        assert words in asked


def test_nothing_is_sent_when_stdin_is_off(tmp_path: Path, supervisor: Supervisor) -> None:
    """``stdin: false`` gives the reviewer an empty input."""
    assert outcome_of(tmp_path, supervisor, run="cat > asked.txt", stdin=False).passed
    assert (tmp_path / "asked.txt").read_text() == ""


def test_a_reviewer_need_not_read(tmp_path: Path, supervisor: Supervisor) -> None:
    """A brief larger than any pipe does not block a reviewer that ignores it."""
    assert outcome_of(tmp_path, supervisor, run="echo fine", prompt="x" * 1_000_000).passed


def test_the_host_may_name_the_reviewer(tmp_path: Path, supervisor: Supervisor) -> None:
    """Without a command of its own, a review uses the host's; its own wins."""
    assert outcome_of(tmp_path, supervisor, reviewer="grep -q Taste && echo ADDS UP", accept_contains="ADDS UP").passed
    assert outcome_of(tmp_path, supervisor, reviewer="exit 1", run="true").passed


def test_without_a_reviewer_nothing_passes(tmp_path: Path, supervisor: Supervisor) -> None:
    """A review that nobody can give is left to the protocol, with a hint."""
    outcome = outcome_of(tmp_path, supervisor)
    assert (outcome.passed, outcome.reason) == (False, "no_reviewer")
    assert "STATEM_LLM_REVIEW_CMD" in outcome.output
