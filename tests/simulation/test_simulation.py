"""Whole worlds in which everything goes wrong, replayed from a seed; and one small world in which each death is tried.

``make simulate SEEDS=100000`` tries more worlds on all cores; the number in the name of a failed test is its seed, and
``make simulate SEED=123`` prints its whole history.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest

from tests.simulation.faults import KINDS
from tests.simulation.systematic import Setup, deaths, with_death
from tests.simulation.world import World

SEEDS = int(os.environ.get("SEEDS", "200"))

ONCE_BROKEN = (10736, 11337, 15279)


@pytest.mark.parametrize("seed", range(SEEDS))
def test_everything_settles_within_the_law(seed: int) -> None:
    """Whatever fails: each step keeps the laws, and once nothing fails any more, everything comes to rest."""
    World(seed).play()


@pytest.mark.parametrize("seed", ONCE_BROKEN)
def test_what_was_broken_once_holds(seed: int) -> None:
    """Worlds in which a law was broken before the code, or the simulator, was corrected."""
    World(seed).play()


@pytest.mark.parametrize("setup", get_args(Setup))
def test_nobody_dies_at_a_moment_that_matters(setup: Setup) -> None:
    """Each process of a small world dies at each of its switching points in turn, and the run comes to its end."""
    ways = list(deaths(setup))
    assert len(ways) > 50
    for process, point in ways:
        try:
            report = with_death(setup, process, point)
        except AssertionError as error:
            error.add_note(f"{process} died at its switching point {point}")
            raise
        assert sum(report.outcomes.values()) >= 2, "the beginning of the run, and its move"


def test_a_world_is_its_seed() -> None:
    """The same seed makes the same history to the byte, in processes that hash differently."""
    program = "from tests.simulation.world import World; print(World(9, traced=True).play().digest)"
    digests = {
        subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": seed},
            cwd=Path(__file__).parents[2],
            check=True,
            capture_output=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(digests) == 1


def test_every_kind_of_fault_is_injected() -> None:
    """Among the first hundred worlds there is none of the faults that is never met."""
    met = {kind for seed in range(100) for kind in World(seed).play().faults}
    assert met == set(KINDS)
