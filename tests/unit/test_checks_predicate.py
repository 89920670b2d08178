"""Predicates: what passes, what fails, and how a failure explains itself."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statem_dist.checks.context import CheckContext, Limits
from statem_dist.checks.evaluate import evaluate
from statem_dist.checks.process import Supervisor
from statem_dist.protocol.graph import Check, Predicate
from statem_dist.protocol.outcome import Outcome

FILES: dict[str, str | bytes] = {
    "poem.txt": "A slow river\nat noon, river 12\n",
    "blank.txt": "",
    "crlf.txt": b"one\r\ntwo\r\n",
    "latin.txt": b"caf\xe9",
    "star.txt": "⟪done⟫",
    "form.json": '{"age": 41, "signed": true, "note": null, "tags": ["a", "b"], "place": {"city": "Graz", "zip": 8}}',
    "stock.json": '{"shelf": {"open": false, "boxes": [{"label": "rice"}, {"label": "tea"}], "7": "x"}, "owner": "I"}',
    "broken.json": '{"shelf": ',
    "deep.json": "[" * 100_001,
    "half.json": '{"a": "\\ud800"}',
}


@pytest.fixture(scope="module")
def supervisor() -> Iterator[Supervisor]:
    """A supervisor, started only if a pattern needs one."""
    with Supervisor() as supervisor:
        yield supervisor


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    """A folder with the files of this module."""
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content if isinstance(content, bytes) else content.encode())
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "circle").symlink_to("circle")
    return tmp_path


def outcome_of(workspace: Path, supervisor: Supervisor, cwd: str | None = None, **given: Any) -> Outcome:
    """Evaluate one predicate in the workspace."""
    limits = Limits(predicate_bytes_max=200_000, pattern_text_bytes_max=100_000, pattern_seconds=0.5)
    context = CheckContext("k", str(workspace), {}, "before_transfer", "r", "n", limits=limits)
    return evaluate(Check(Predicate(**given), cwd=cwd), context, supervisor)


@pytest.mark.parametrize(
    "given",
    [
        {"path": "poem.txt"},
        {"path": "poem.txt", "exists": True},
        {"path": "folder", "exists": True},
        {"path": "gone.txt", "exists": False},
        {"path": "poem.txt/inner", "exists": False},
        {"path": "poem.txt", "non_empty": True},
        {"path": "blank.txt", "non_empty": False},
        {"path": "poem.txt", "contains": "river", "not_contains": "ocean"},
        {"path": "poem.txt", "matches": r"ver \d+$"},
        {"path": "poem.txt", "matches": "^A slow"},
        {"path": "poem.txt", "matches": "(?s).{20,}"},
        {"path": "poem.txt", "matches": "(slow|fast) (river|sea)+.*"},
        {"path": "star.txt", "contains": "⟪done⟫", "matches": "^⟪"},
        {"path": "crlf.txt", "contains": "one\ntwo", "matches": "one$|\n"},
        {"path": "form.json", "json_path": "age", "equals": 41},
        {"path": "form.json", "json_path": "age", "equals": 41.0},
        {"path": "form.json", "json_path": "signed", "equals": True},
        {"path": "form.json", "json_path": "signed", "equals": 1},
        {"path": "form.json", "json_path": "note", "equals": None},
        {"path": "form.json", "json_path": "note"},
        {"path": "form.json", "json_path": "tags", "equals": ["a", "b"]},
        {"path": "form.json", "json_path": "place", "equals": {"zip": 8, "city": "Graz"}},
        {"path": "form.json", "json_path": "place.city", "one_of": ("Linz", "Graz")},
        {"path": "form.json", "json_path": "age", "one_of": (40, 41), "equals": 41},
        {"path": "stock.json", "json_path": "shelf.boxes.1.label", "equals": "tea"},
        {"path": "stock.json", "json_path": "shelf.boxes.-1.label", "equals": "tea"},
        {"path": "stock.json", "json_path": "shelf.7", "equals": "x"},
        {"path": "stock.json", "json_path": "shelf.open"},
    ],
    ids=str,
)
def test_passes(workspace: Path, supervisor: Supervisor, given: dict[str, Any]) -> None:
    """A predicate whose conditions all hold passes and says nothing."""
    outcome = outcome_of(workspace, supervisor, **given)
    assert (outcome.passed, outcome.reason, outcome.output) == (True, "passed", "")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"path": "gone.txt"}, ["gone.txt", "does not exist"]),
        ({"path": "gone.txt", "exists": True}, ["gone.txt", "does not exist"]),
        ({"path": "poem.txt", "exists": False}, ["poem.txt", "exists"]),
        ({"path": "blank.txt", "non_empty": True}, ["blank.txt", "empty"]),
        ({"path": "poem.txt", "non_empty": False}, ["poem.txt", "not empty"]),
        ({"path": "folder", "non_empty": True}, ["folder", "directory"]),
        ({"path": "folder", "contains": "x"}, ["folder", "directory", "contains"]),
        ({"path": "pipe", "contains": "x"}, ["pipe", "not a regular file"]),
        ({"path": "circle", "exists": True}, ["circle", "cannot be examined"]),
        ({"path": "n\0ul", "exists": True}, ["cannot be examined"]),
        ({"path": "poem.txt", "contains": "ocean"}, ["ocean"]),
        ({"path": "poem.txt", "not_contains": "river"}, ["river"]),
        ({"path": "gone.txt", "contains": "river"}, ["gone.txt", "river"]),
        ({"path": "gone.txt", "not_contains": "river"}, ["gone.txt"]),
        ({"path": "gone.txt", "non_empty": True}, ["gone.txt"]),
        ({"path": "gone.txt", "exists": False, "contains": "x"}, ["gone.txt", "contains"]),
        ({"path": "poem.txt", "matches": "^at noon"}, ["at noon"]),
        ({"path": "poem.txt", "matches": "^a slow"}, ["a slow"]),
        ({"path": "poem.txt", "matches": "(slow|fast)+ (sea|lake)+"}, ["(sea|lake)"]),
        ({"path": "poem.txt", "matches": "(river"}, ["not a regular expression", "(river"]),
        (
            {"path": "poem.txt", "contains": "ocean", "not_contains": "noon", "matches": r"^\d"},
            ["ocean", "noon", r"^\d"],
        ),
        ({"path": "latin.txt", "contains": "caf"}, ["latin.txt", "UTF-8"]),
        ({"path": "deep.json", "matches": "(a+)+b", "contains": "["}, ["too many"]),
        ({"path": "form.json", "json_path": "age", "equals": "41"}, ["age", "41"]),
        ({"path": "form.json", "json_path": "signed", "equals": "true"}, ["signed"]),
        ({"path": "form.json", "json_path": "age", "equals": None}, ["age", "null"]),
        ({"path": "form.json", "json_path": "note", "equals": ""}, ["note", "null"]),
        ({"path": "form.json", "json_path": "tags", "equals": ["b", "a"]}, ["tags"]),
        ({"path": "form.json", "json_path": "place.city", "one_of": ("Linz", "Wien")}, ["Graz", "Linz", "Wien"]),
        ({"path": "form.json", "json_path": "age", "one_of": ("40", "41")}, ["age"]),
        (
            {"path": "stock.json", "json_path": "shelf.boxes.0.label", "equals": "tea"},
            ["shelf.boxes.0.label", "tea", "rice"],
        ),
        ({"path": "stock.json", "json_path": "shelf.boxes.7.label"}, ["shelf.boxes.7.label"]),
        ({"path": "stock.json", "json_path": "shelf.boxes.first"}, ["shelf.boxes.first"]),
        ({"path": "stock.json", "json_path": "shelf.locked"}, ["shelf.locked"]),
        ({"path": "stock.json", "json_path": "owner.name"}, ["owner.name"]),
        ({"path": "broken.json", "json_path": "shelf"}, ["broken.json", "not JSON"]),
        ({"path": "deep.json", "json_path": "a"}, ["deep.json", "nested too deeply"]),
        ({"path": "half.json", "json_path": "a", "equals": "b"}, ["a is"]),
        ({"path": "absent.json", "json_path": "shelf"}, ["absent.json"]),
    ],
    ids=str,
)
def test_fails_and_says_why(workspace: Path, supervisor: Supervisor, given: dict[str, Any], words: list[str]) -> None:
    """A predicate that does not hold, or cannot be tested, fails in words that name what is wrong."""
    outcome = outcome_of(workspace, supervisor, **given)
    assert (outcome.passed, outcome.reason) == (False, "check_failed")
    assert [word for word in words if word not in outcome.output] == []
    outcome.output.encode()


def test_a_file_that_is_too_large_fails(workspace: Path, supervisor: Supervisor) -> None:
    """A text beyond the limit is not read into memory."""
    with open(workspace / "huge.txt", "wb") as file:
        file.truncate(200_001)
    assert "larger than 200000 bytes" in outcome_of(workspace, supervisor, path="huge.txt", contains="x").output


def test_a_pattern_that_runs_away_is_given_up(workspace: Path, supervisor: Supervisor) -> None:
    """An expression that would search for years fails after its time and names the limit."""
    (workspace / "aaa.txt").write_text("a" * 60)
    outcome = outcome_of(workspace, supervisor, path="aaa.txt", matches="(a+)+b")
    assert outcome.reason == "check_failed"
    assert "longer than 0.5 s" in outcome.output


def test_paths_start_at_the_cwd_of_the_check(workspace: Path, supervisor: Supervisor) -> None:
    """A relative cwd is taken from the workspace, an absolute one and an absolute path as they stand."""
    (workspace / "folder" / "inner.txt").write_text("x")
    assert outcome_of(workspace, supervisor, cwd="folder", path="inner.txt").passed
    assert outcome_of(workspace, supervisor, cwd="folder", path="../poem.txt").passed
    assert outcome_of(workspace, supervisor, cwd=str(workspace / "folder"), path="inner.txt").passed
    assert outcome_of(workspace, supervisor, cwd="folder", path=str(workspace / "poem.txt")).passed
    assert not outcome_of(workspace, supervisor, cwd="nowhere", path="inner.txt").passed
