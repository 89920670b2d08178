"""The plan of a sweep, and choosing from it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statem_dist.sweep.model import Cell, Planned
from statem_dist.sweep.plan import extension, key_of, planned, seed_of, select, slug

CELLS: list[Cell] = [{"agent": agent, "task": task} for agent in ("a", "b") for task in ("t/1", "t/2")]

names = st.text("abcXYZ-_", min_size=1, max_size=4)
some_cells = st.lists(
    st.dictionaries(names, st.text(max_size=6), max_size=3), max_size=8, unique_by=lambda cell: key_of(cell)
)


@pytest.fixture
def trials() -> list[Planned]:
    """The eight trials of two agents, two tasks, two repetitions."""
    return list(planned(CELLS, 2))


def test_the_first_repetition_of_every_cell_comes_first(trials: list[Planned]) -> None:
    """Trials are numbered through, and no cell is repeated before all have had their turn."""
    assert [(trial.number, trial.cell["agent"], trial.cell["task"], trial.repetition) for trial in trials[1:6]] == [
        (2, "a", "t/2", 1),
        (3, "b", "t/1", 1),
        (4, "b", "t/2", 1),
        (5, "a", "t/1", 2),
        (6, "a", "t/2", 2),
    ]


@given(cells=some_cells, trials=st.integers(0, 5), first=st.integers(1, 10**6))
def test_a_plan_has_each_cell_as_often_as_asked(cells: list[Cell], trials: int, first: int) -> None:
    """Numbers are consecutive, each pair of cell and repetition is there once, and progress is even at every point."""
    plan = list(planned(cells, trials, first))
    assert [trial.number for trial in plan] == list(range(first, first + len(cells) * trials))
    assert {(key_of(trial.cell), trial.repetition) for trial in plan} == {
        (key_of(cell), repetition) for cell in cells for repetition in range(1, trials + 1)
    }
    assert [trial.repetition for trial in plan] == sorted(trial.repetition for trial in plan)


@given(cells=some_cells, old=st.integers(0, 4), more=st.integers(0, 4))
def test_an_extended_plan_is_the_larger_plan(cells: list[Cell], old: int, more: int) -> None:
    """What is planned first and what is added later make exactly the plan that would have been made at once."""
    before = list(planned(cells, old))
    added = list(extension(cells, old, old + more, len(before) + 1))
    assert before + added == list(planned(cells, old + more))


def test_cells_that_read_alike_have_different_folders() -> None:
    """Characters that no folder name has are replaced, and still no two cells share a folder."""
    cells = [{"x": "a/b"}, {"x": "a-b"}, {"y": "a-b"}, {"x": "a", "y": "b"}, {"x": ".."}, {"x": "ü" * 300}, {}]
    slugs = {slug(cell) for cell in cells}
    assert len(slugs) == len(cells)
    assert all(len(name) < 100 and name.isascii() and "/" not in name and name[0] != "." for name in slugs)


def test_the_order_of_axes_does_not_change_a_cell() -> None:
    """A cell's key is that of its values, so that a sorted sweep file finds the same cells, with the same seeds."""
    one, other = {"x": "1", "y": "2"}, {"y": "2", "x": "1"}
    assert (key_of(one), seed_of(7, one, 1)) == (key_of(other), seed_of(7, other, 1))


def test_seeds_are_the_same_for_ever() -> None:
    """A seed is published with results, so that no version may give another one; repetitions and sweeps differ."""
    assert seed_of(0, {"task": "t/1"}, 1) == 814842359
    assert len({seed_of(seed, cell, turn) for seed in (0, 1) for cell in CELLS for turn in (1, 2, 3)}) == 24


@given(seed=st.integers(0, 2**63 - 1), cell=st.dictionaries(names, st.text()), repetition=st.integers(1, 10**5))
def test_a_seed_fits_into_31_bits(seed: int, cell: Cell, repetition: int) -> None:
    """Any program takes such a number as its seed."""
    assert 0 <= seed_of(seed, cell, repetition) < 2**31


def test_a_limit_holds_for_each_row(trials: list[Planned]) -> None:
    """A row is a combination of the listed axes, here an agent; each keeps its first trials."""
    assert [trial.number for trial in select(trials, ("agent",), {}, 3)] == [1, 2, 3, 4, 5, 7]


def test_only_chooses_by_value(trials: list[Planned]) -> None:
    """Several values of one axis are alternatives, several axes must all agree; numbers stay what they are."""
    only = {"task": ["t/2"], "agent": ["a", "b"]}
    assert [trial.number for trial in select(trials, ("agent",), only, None)] == [2, 4, 6, 8]
    assert select(trials, ("agent",), {"agent": ["c"]}, None) == []
