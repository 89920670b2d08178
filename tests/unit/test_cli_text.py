"""Answers as text: nothing that somebody has to satisfy or confirm is cut, and nothing moves a terminal's cursor."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from statem_dist.cli import text
from statem_dist.cli.answer import Answer, print_answer, printable
from statem_dist.protocol.commands import Cancel, Goto
from statem_dist.protocol.graph import (
    Check,
    Checklist,
    Command,
    DynamicConfig,
    Edge,
    LlmReview,
    Manual,
    Message,
    Node,
    Predicate,
    Unmet,
)
from statem_dist.protocol.model import DynamicCheck, DynamicFacts
from statem_dist.protocol.outcome import Outcome
from statem_dist.views import run_summary
from tests.support.builders import AGENT, EVERYTHING, FAILED, PASSED, Desk, failure, loop, one_by_one, shell

LONG = "word " * 60


def shown(desk: Desk, waiting_reason: str = "") -> list[str]:
    """Return the lines of ``cur``."""
    return text.node_status(desk.run, desk.runbook, waiting_reason).splitlines()


@pytest.mark.parametrize(
    ("check", "lines"),
    [
        (Check(do=Manual(LONG)), [f"  - manual: {LONG.strip()}"]),
        (Check(do=Checklist(("one", "two"), "Look:")), ["  - checklist:", "      Look:", "      - one", "      - two"]),
        (Check(do=Checklist(("one",))), ["  - checklist: one"]),
        (Check(do=Command("set -e\nmake\n")), ["  - command:", "      set -e", "      make"]),
        (Check(do=Predicate("f", exists=True, contains="x")), ["  - predicate: f exists=True contains='x'"]),
        (
            Check(do=Manual("ok?"), name="release", by="operator", timeout=90.0, reason="it is late"),
            ["  - manual: ok?  [name: release; by: operator; timeout: 90 s; reason: it is late]"],
        ),
        (replace(shell(), on_failure="continue"), ["  - command: true  [does not block]"]),
        (Check(do=Message("look"), on_failure="continue"), ["  - message: look"]),
        (Check(do=Manual("ok?"), confirm=False), ["  - manual: ok?  [is not asked]"]),
        (replace(shell(), repair=(shell("undo"), shell("more"))), ["  - command: true  [repair: undo; more]"]),
    ],
)
def test_a_check_is_shown_in_full(check: Check, lines: list[str]) -> None:
    """Its own words to the last one, and what decides what its failure means."""
    assert text.in_full(check) == lines


def test_the_current_node_shows_what_it_says_on_entering_and_asks_before_leaving() -> None:
    """Each list of checks stands under its heading."""
    node = Node(
        "a",
        in_hook=one_by_one(Check(do=Message("Welcome."))),
        before_transfer=one_by_one(shell("make test")),
        out_hook=one_by_one(shell("make save")),
    )
    lines = shown(Desk(loop(node)))
    for heading, check in (
        ("On entering:", "  - message: Welcome."),
        ("Before leaving:", "  - command: make test"),
        ("On leaving:", "  - command: make save"),
    ):
        assert lines[lines.index(heading) + 1] == check


def test_exits_say_what_they_take() -> None:
    """Attempts, demanded evidence, and the checks that may keep somebody from passing; no others."""
    condition = one_by_one(Check(do=Message("hello")), replace(shell("lint"), on_failure="continue"), shell("make"))
    edge = Edge("a", "b", condition=condition, max_attempts=2, require_evidence="verified")
    desk = Desk(loop(Node("a"), edge))
    desk.goto()
    desk.work(*[FAILED] * len(desk.offered[0]))
    lines = shown(desk)
    assert lines[lines.index("Next:") + 1 :] == [
        "  -> b  (1 of 2 attempts used)  (requires verified evidence)",
        "       needs command: make",
    ]
    other = text.one_node(Node("b"), desk.run, replace(desk.runbook, edges=(Edge("b", "a", max_attempts=3),)))
    assert other.splitlines()[-1] == "  -> a  (max_attempts 3)", "attempts are those of the current entry"


def test_an_end_says_what_it_means() -> None:
    """A node with an outcome shows it above its exits, of which it has none."""
    desk = Desk(loop(Node("a")))
    ends = replace(desk.runbook, edges=())
    lines = text.one_node(Node("b", outcome="failure"), desk.run, ends).splitlines()
    assert lines[-2:] == ["Outcome: failure", "Next: (none; this is an end)"]


def test_the_last_attempt_is_told_until_something_else_happens() -> None:
    """What stopped it, with its output; nothing is told after a move."""
    gate = one_by_one(replace(shell("lint"), on_failure="continue"), shell("make"))
    desk = Desk(loop(Node("a", before_transfer=gate)))
    assert not any("Last attempt" in line for line in shown(desk))
    desk.goto()
    desk.work(FAILED, replace(FAILED, output="no rule"))
    lines = shown(desk)
    told = lines.index("Last attempt: -> b blocked at before_transfer")
    assert lines[told + 1 : told + 3] == ["  ✗ before_transfer: command: make  [exit 1]", "      no rule"]
    desk.goto()
    assert not any("Last attempt" in line for line in shown(desk)), "another attempt is under way"
    desk.apply(Cancel(transition=desk.transition.id, reason="enough", by=AGENT))
    assert "Last attempt: -> b cancelled: enough" in shown(desk)
    desk.goto()
    desk.work(PASSED, PASSED)
    assert not any("Last attempt" in line for line in shown(desk))


def test_a_pending_run_says_what_it_waits_for() -> None:
    """The reason is given, and where decisions are listed if it waits for people."""
    desk = Desk(loop(Node("a", before_transfer=one_by_one(Check(do=Manual("ok?"))))))
    desk.apply(Goto(runbook=desk.runbook, target="b", by=AGENT, on_manual="wait"))
    lines = shown(desk, "somebody has to decide: r/t2/before_transfer.0")
    told = lines.index("In flight: t2 a -> b")
    assert lines[told + 1 : told + 3] == [
        "  somebody has to decide: r/t2/before_transfer.0",
        "  listed by: statem-dist approvals",
    ]


def test_a_node_says_which_dynamic_checks_it_wants() -> None:
    """And for the current node how they are registered, and where files may be dropped."""
    config = DynamicConfig(
        required=True,
        min_items=2,
        require_reason=True,
        require_basis=True,
        stale_policy="require_confirmation",
        allow_types=("command", "predicate"),
    )
    node = Node("a", dynamic=config)
    desk = Desk(loop(node))
    lines = shown(desk)
    told = next(number for number, line in enumerate(lines) if line.startswith("Dynamic checks:"))
    assert lines[told] == (
        "Dynamic checks: required; at least 2; each with a reason; with a basis.implementation_summary; "
        "to be confirmed as still current; types: command, predicate"
    )
    assert "statem-dist dynamic write FILE" in lines[told + 1]
    assert lines[told + 2].endswith("runs/r/dynamic/r-e1")
    elsewhere = text.one_node(Node("b", dynamic=DynamicConfig()), desk.run, desk.runbook)
    assert elsewhere.splitlines()[1:3] == ["Dynamic checks: accepted", "Next:"]


def test_what_is_unmet_is_told_once() -> None:
    """It is both the title and the output of its result."""
    desk = Desk(loop(Node("a")))
    unmet = DynamicFacts(checks=(DynamicCheck(Check(do=Unmet("None are registered."))),))
    desk.apply(Goto(runbook=desk.runbook, target="b", by=AGENT, dynamic=unmet))
    assert text.results(desk.transition) == "  ✗ dynamic_before_transfer: None are registered."


def test_a_review_that_nobody_made_says_so() -> None:
    """A mark alone would look like a reviewer's approval."""
    desk = Desk(loop(Node("a", before_transfer=one_by_one(Check(do=LlmReview("good?"))))))
    desk.goto(confirmations=EVERYTHING)
    desk.work(failure("no_reviewer"))
    assert text.results(desk.transition).endswith("[no reviewer is configured; confirmed by agent]")


@pytest.mark.parametrize(
    ("entry", "line"),
    [
        ({"event": "start", "current": "a"}, "start a"),
        ({"event": "in_hook", "node": "a", "reason": "start", "results": []}, "in_hook a"),
        (
            {
                "event": "goto_blocked",
                "from": "a",
                "to": "b",
                "stage": "before_transfer",
                "results": [
                    {"id": "x.0", "passed": False, "continued": True},
                    {"id": "x.1", "passed": False, "continued": False},
                    {"id": "x.2", "passed": False, "continued": False, "name": "lint"},
                    {"id": "x.3", "passed": True},
                ],
            },
            "goto_blocked a -> b at before_transfer (failed: x.1, lint)",
        ),
        (
            {"event": "goto_cancelled", "from": "a", "to": "b", "stage": None, "reason": "enough", "by": "bob"},
            "goto_cancelled a -> b by bob: enough",
        ),
        (
            {"event": "save_blocked", "node": "a", "by": "bob", "token": "3f", "results": []},
            "save_blocked a by bob, token 3f",
        ),
        (
            {
                "event": "goto",
                "from": "a",
                "to": "b",
                "stage": "in_hook",
                "in_hook": [{"id": "in_hook.0", "passed": False}],
            },
            "goto a -> b, but its in_hook did not pass (failed: in_hook.0)",
        ),
        (
            {"event": "goto_blocked", "from": "a", "to": "b", "results": [{"type": "manual", "passed": False}]},
            "goto_blocked a -> b (failed: manual)",
        ),
        (
            {
                "event": "goto",
                "from": "a",
                "to": "b",
                "recovered": [
                    {"way": "resume", "checks": ["out_hook.0"], "by": "bob", "reason": ""},
                    {"way": "passed", "checks": ["out_hook.0"], "by": "bob", "reason": "it is there"},
                ],
            },
            "goto a -> b [out_hook.0 executed again by bob] [out_hook.0 marked passed by bob: it is there]",
        ),
    ],
)
def test_an_entry_of_the_history_says_why(entry: dict[str, Any], line: str) -> None:
    """Who, why, and which checks stopped it; those of StateM have no ids."""
    assert text.history_line({"ts": "now", **entry}) == f"now  {line}"


def test_runs_are_aligned_under_a_heading() -> None:
    """Also where an id is long; each has its age and its labels."""
    short = Desk(loop(Node("a"))).run
    long = replace(short, id="r" * 50, labels={"model": "small", "task": "sort"})
    heading, first, second = text.run_table(
        [run_summary(short), run_summary(long)], short.created_at + 7_200_000
    ).splitlines()
    assert heading.split() == ["run", "status", "node", "age", "runbook", "labels"]
    assert first.split() == ["r", "active", "a", "2", "h", "loop"]
    assert second.endswith("model=small task=sort")
    assert heading.index("status") == first.index("active") == second.index("active")


@pytest.mark.parametrize(
    ("milliseconds", "told"),
    [(-5, "0 s"), (59_999, "59 s"), (60_000, "1 min"), (3_600_000, "1 h"), (172_800_000, "2 d")],
)
def test_spans_of_time_have_one_unit(milliseconds: int, told: str) -> None:
    """The largest that fits."""
    assert text.span(milliseconds) == told


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("plain, ü and 字\n\ttoo", "plain, ü and 字\n\ttoo"),
        ("\x1b[31mred\x1b[0m", "\\x1b[31mred\\x1b[0m"),
        ("a\rb\x07\x00\x7f\x9b2J", "a\\x0db\\x07\\x00\\x7f\\x9b2J"),
    ],
)
def test_control_characters_are_shown_and_not_obeyed(given: str, told: str) -> None:
    """What a check prints cannot clear the screen or overwrite what stands beside it."""
    assert printable(given) == told


def test_the_output_of_a_failed_check_is_shown_from_its_end() -> None:
    """As many lines as are allowed, and how many stand above."""
    desk = Desk(loop(Node("a", before_transfer=one_by_one(shell()))))
    desk.goto()
    output = "\n".join(map(str, range(text.OUTPUT_LINES_MAX + 5)))
    desk.work(Outcome(passed=False, reason="check_failed", output=output, exit_code=1))
    lines = text.results(desk.transition).splitlines()
    assert lines[1].strip() == "… 5 lines above"
    assert len(lines) == text.OUTPUT_LINES_MAX + 2


@pytest.mark.parametrize(("drawn", "printed"), [(True, "\x1b[1mall\x1b[0m\n"), (False, "\\x1b[1mall\\x1b[0m\n")])
def test_codes_reach_the_terminal_where_they_are_our_own(
    drawn: bool, printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """A text that is drawn is printed as it is, and every other one with its codes made visible."""
    print_answer(Answer({}, lambda: "\x1b[1mall\x1b[0m", drawn=drawn), as_json=False)
    assert capsys.readouterr().out == printed
