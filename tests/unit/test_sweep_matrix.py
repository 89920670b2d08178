"""Matrices expand as GitHub's do."""

from __future__ import annotations

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from statem_dist.sweep.matrix import expand
from statem_dist.sweep.model import Cell

FRUIT_AND_ANIMALS = {"fruit": ["apple", "pear"], "animal": ["cat", "dog"]}


def test_the_first_axis_varies_slowest() -> None:
    """Cells come in the order of nested loops, the first axis being the outermost."""
    assert [tuple(cell.values()) for cell in expand(FRUIT_AND_ANIMALS)] == [
        ("apple", "cat"),
        ("apple", "dog"),
        ("pear", "cat"),
        ("pear", "dog"),
    ]


def test_include_extends_cells_or_makes_new_ones() -> None:
    """The example of GitHub's documentation gives the six jobs that it lists there."""
    include = [
        {"color": "green"},
        {"color": "pink", "animal": "cat"},
        {"fruit": "apple", "shape": "circle"},
        {"fruit": "banana"},
        {"fruit": "banana", "animal": "cat"},
    ]
    assert expand(FRUIT_AND_ANIMALS, include) == [
        {"fruit": "apple", "animal": "cat", "color": "pink", "shape": "circle"},
        {"fruit": "apple", "animal": "dog", "color": "green", "shape": "circle"},
        {"fruit": "pear", "animal": "cat", "color": "pink"},
        {"fruit": "pear", "animal": "dog", "color": "green"},
        {"fruit": "banana"},
        {"fruit": "banana", "animal": "cat"},
    ]


def test_exclude_needs_only_some_of_the_values() -> None:
    """An entry removes every cell that has all of its values, whatever the others are."""
    assert [tuple(cell.values()) for cell in expand(FRUIT_AND_ANIMALS, exclude=[{"animal": "dog"}])] == [
        ("apple", "cat"),
        ("pear", "cat"),
    ]


def test_exclude_comes_before_include() -> None:
    """What was excluded can be included again, as a cell of its own at the end."""
    cells = expand(FRUIT_AND_ANIMALS, [{"fruit": "apple", "animal": "cat"}], [{"fruit": "apple"}])
    assert [tuple(cell.values()) for cell in cells] == [("pear", "cat"), ("pear", "dog"), ("apple", "cat")]


def test_without_axes_there_is_what_include_says() -> None:
    """A matrix of include entries alone has one cell for each."""
    assert expand({}, [{"site": "one"}, {"site": "two"}]) == [{"site": "one"}, {"site": "two"}]


NAMES = ("a", "b", "c")
VALUES = ("1", "2", "3")
axes_of = st.dictionaries(st.sampled_from(NAMES), st.lists(st.sampled_from(VALUES), min_size=1, unique=True))
entries = st.lists(
    st.dictionaries(st.sampled_from((*NAMES, "x", "y")), st.sampled_from(VALUES), min_size=1, max_size=3), max_size=5
)


def expand_literally(axes: dict[str, list[str]], include: list[Cell], exclude: list[Cell]) -> list[Cell]:
    """Do what the words of GitHub's documentation say, entry by entry and cell by cell."""
    combinations = [dict(zip(axes, values, strict=True)) for values in product(*axes.values())] if axes else []
    originals = [
        cell
        for cell in combinations
        if not any(all(name in cell and cell[name] == value for name, value in entry.items()) for entry in exclude)
    ]
    cells = [dict(cell) for cell in originals]
    added = []
    for entry in include:
        fits = False
        for original, cell in zip(originals, cells, strict=True):
            if all(original[name] == value for name, value in entry.items() if name in original):
                cell.update(entry)
                fits = True
        if not fits:
            added.append(dict(entry))
    return cells + added


@given(axes=axes_of, include=entries, exclude=entries)
def test_the_quick_way_gives_what_the_words_say(
    axes: dict[str, list[str]], include: list[Cell], exclude: list[Cell]
) -> None:
    """Looking entries up by their values changes nothing about the cells, their order, or the order of their values."""
    quick, literal = expand(axes, include, exclude), expand_literally(axes, include, exclude)
    assert [list(cell.items()) for cell in quick] == [list(cell.items()) for cell in literal]


@given(axes=axes_of, include=entries, exclude=entries)
def test_original_values_are_never_replaced(
    axes: dict[str, list[str]], include: list[Cell], exclude: list[Cell]
) -> None:
    """The cells that ``exclude`` leaves come first, each with the values that it had."""
    originals = expand(axes, (), exclude)
    cells = expand(axes, include, exclude)
    assert all(original.items() <= cell.items() for original, cell in zip(originals, cells, strict=False))
    assert len(originals) <= len(cells) <= len(originals) + len(include)
