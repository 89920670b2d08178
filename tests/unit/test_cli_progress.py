"""What a person at a terminal is asked and told of a transition under way."""

from __future__ import annotations

import io

import pytest
from msgspec.structs import replace

from statem_dist.cli.progress import Ticker, ask_questions, say_finishing
from statem_dist.protocol.commands import CancelRun, Pause, Unpause
from statem_dist.protocol.graph import Node
from statem_dist.protocol.model import Actor, Confirmations
from statem_dist.questions import Question
from tests.support.builders import FAILED, Desk, loop, one_by_one, shell


def asked(monkeypatch: pytest.MonkeyPatch, typed: str, *questions: Question) -> Confirmations:
    """Return the answers of somebody who types this."""
    monkeypatch.setattr("sys.stdin", io.StringIO(typed))
    return ask_questions(questions, Confirmations())


@pytest.mark.parametrize(
    ("typed", "confirmed", "times"),
    [
        ("y\n", True, 1),
        ("YES\n", True, 1),
        ("n\n", False, 1),
        ("no\n", False, 1),
        ("\n", False, 1),
        ("", False, 1),
        ("ja\nyep\ny\n", True, 3),
        ("what?\n", False, 2),
    ],
)
def test_a_question_is_asked_until_it_is_answered(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], typed: str, confirmed: bool, times: int
) -> None:
    """What is neither yes nor no is asked again; an empty line and the end of the input mean no."""
    answers = asked(monkeypatch, typed, Question("before_transfer.0", "", "sure?", operator=False))
    assert answers.checks == (("before_transfer.0",) if confirmed else ())
    assert capsys.readouterr().err.count("Confirm: sure? [y/N]") == times


def test_only_what_a_caller_may_answer_is_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """What an operator decides is nobody else's question."""
    assert asked(monkeypatch, "y\n", Question("before_transfer.0", "", "sure?", operator=True)).checks == ()
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("count", "told"), [(1, "· 1 check begun by"), (3, "· 3 checks begun by")])
def test_a_claim_is_told_in_plain_words(capsys: pytest.CaptureFixture[str], count: int, told: str) -> None:
    """How many checks are executed, and by whom; each is told as it settles."""
    desk = Desk(loop(Node("a", before_transfer=one_by_one(*[shell()] * count))))
    seen = len(desk.events)
    desk.goto()
    desk.work(*[replace(FAILED, output="\x1b[2J")] * count)
    ticker = Ticker()
    for number, event in enumerate(desk.events[seen:]):
        ticker(number, event)
    said = capsys.readouterr().err
    assert told in said
    assert said.count("✗ before_transfer: command: true") == count
    assert "\x1b" not in said


def test_what_is_finished_first_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    """With the way to end it instead, while there is one."""
    desk = Desk(loop(Node("a", before_transfer=one_by_one(shell()))))
    desk.goto()
    say_finishing("r", desk.transition)
    assert capsys.readouterr().err == (
        "Finishing transition t2 (a -> b) that was left; to end it instead: statem-dist cancel --run-id r\n"
    )
    say_finishing("r", replace(desk.transition, entered=True))
    assert capsys.readouterr().err == "Finishing transition t2 (a -> b) that was left\n"


def test_whoever_watches_sees_who_holds_and_ends_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    """A pause, its end and the end of the run are told with who did it, and why if that is known."""
    desk = Desk(loop(Node("a", before_transfer=one_by_one(shell()))))
    desk.goto()
    boss = Actor("boss")
    for command in (Pause("lunch", boss), Unpause(boss), CancelRun("", boss), CancelRun("slow", boss, terminate=True)):
        if isinstance(command, CancelRun) and not command.terminate:
            desk.claim()
        desk.apply(command)
    ticker = Ticker()
    for number, event in enumerate(desk.events, start=1):
        ticker(number, event)
    assert capsys.readouterr().err.splitlines() == [
        "  ‖ the run is paused by boss: lunch",
        "  ▸ boss lets the run go on",
        "  · 1 check begun by worker-1",
        "  ■ the run is cancelled by boss",
        "  ■ the run is terminated by boss: slow",
    ]
