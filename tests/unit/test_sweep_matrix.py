"""Matrices expand as GitHub's do."""

from __future__ import annotations

from statem_dist.sweep.matrix import expand

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
