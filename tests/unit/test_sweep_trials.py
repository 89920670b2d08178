"""The plan of a sweep, and choosing from it."""

from __future__ import annotations

from pathlib import Path

import pytest

from statem_dist.sweep.spec import load_sweep
from statem_dist.sweep.trials import Trial, plan, select, slug

SWEEP = """\
runbook: loop.yaml
matrix:
  agent: [a, b]
  task: {from: tasks.txt}
trials: 2
"""


@pytest.fixture
def trials(tmp_path: Path) -> list[Trial]:
    """The eight trials of two agents, two tasks, two repetitions."""
    (tmp_path / "loop.yaml").write_text("nodes: [only]\n")
    (tmp_path / "tasks.txt").write_text("t/1\nt/2\n")
    (tmp_path / "sweep.yaml").write_text(SWEEP)
    return plan(load_sweep(tmp_path / "sweep.yaml"), "night-1", tmp_path / "out")


def test_every_cell_is_repeated(trials: list[Trial]) -> None:
    """Trials are numbered through, and a number is all that tells their runs apart."""
    assert [(trial.number, trial.cell["agent"], trial.cell["task"], trial.repetition) for trial in trials[:4]] == [
        (1, "a", "t/1", 1),
        (2, "a", "t/1", 2),
        (3, "a", "t/2", 1),
        (4, "a", "t/2", 2),
    ]
    assert [trial.run_id for trial in trials] == [f"night-1-{number}" for number in range(1, 9)]


def test_every_trial_has_a_folder_of_its_own(trials: list[Trial], tmp_path: Path) -> None:
    """Repetitions lie side by side in the folder of their cell, whose name can be read."""
    assert len({trial.folder for trial in trials}) == len(trials)
    assert trials[1].folder.name == "trial-2"
    assert trials[1].folder.parent == trials[0].folder.parent
    assert trials[0].folder.relative_to(tmp_path / "out").as_posix().startswith("a-t-1-")


def test_cells_that_read_alike_have_different_folders() -> None:
    """Characters that no folder name has are replaced, and still no two cells share a folder."""
    cells = [{"x": "a/b"}, {"x": "a-b"}, {"y": "a-b"}, {"x": "a", "y": "b"}, {"x": ".."}, {"x": "ü" * 300}, {}]
    slugs = {slug(cell) for cell in cells}
    assert len(slugs) == len(cells)
    assert all(len(name) < 100 and name.isascii() and "/" not in name and name[0] != "." for name in slugs)


def test_the_order_of_axes_does_not_change_a_cell() -> None:
    """A cell's key is that of its values, so that a sorted sweep file finds the same cells."""
    assert slug({"x": "1", "y": "1"}) == slug({"y": "1", "x": "1"})


def test_a_limit_holds_for_each_row(trials: list[Trial]) -> None:
    """A row is a combination of the listed axes, here an agent; each keeps its first trials."""
    assert [trial.number for trial in select(trials, ("agent",), {}, 3)] == [1, 2, 3, 5, 6, 7]


def test_only_chooses_by_value(trials: list[Trial]) -> None:
    """Several values of one axis are alternatives, several axes must all agree; numbers stay what they are."""
    assert [trial.number for trial in select(trials, ("agent",), {"task": ["t/2"], "agent": ["a", "b"]}, None)] == [
        3,
        4,
        7,
        8,
    ]
    assert select(trials, ("agent",), {"agent": ["c"]}, None) == []
