"""A small world, and every way to die in it: each process crashes at each of its switching points in turn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal, TypeAlias

from statem_dist.protocol.graph import Check, Edge, Node, Runbook
from statem_dist.protocol.graph import Command as ShellCommand
from tests.simulation.world import QUEUES, Report, Scenario, World
from tests.support.builders import one_by_one, shell

SEED = 1

RUNBOOK = Runbook(
    hash="s" * 64,
    name="small",
    initial="a",
    nodes=(
        Node("a", before_transfer=one_by_one(shell("check")), out_hook=one_by_one(shell("save"))),
        Node("b", in_hook=one_by_one(Check(do=ShellCommand("enter"), idempotent=True))),
    ),
    edges=(Edge("a", "b", hook=one_by_one(shell("deploy"))), Edge("b", "a")),
)
"""A gate, a hook before the commit, one on the edge, and one after the commit that may be repeated."""

Setup: TypeAlias = Literal["caller alone", "one worker", "two workers"]

SETUPS: dict[Setup, tuple[tuple[str, ...], ...]] = {
    "caller alone": (),
    "one worker": (QUEUES,),
    "two workers": (QUEUES, QUEUES),
}


def scenario(setup: Setup) -> Scenario:
    """Return a world in which one agent begins a run and moves it once."""
    return Scenario(
        runbooks=(RUNBOOK,),
        runs=(None,),
        workers=SETUPS[setup],
        slots=1,
        inline=not SETUPS[setup],
        own_broker=False,
        storm_seconds=1.0,
        script=("b",),
        people=0,
        operators=0,
        observers=1,
    )


def undisturbed(setup: Setup) -> World:
    """Return the world after everything went well: its processes know how many switching points each has had."""
    world = World(SEED, scenario=scenario(setup), kinds=frozenset())
    world.play()
    return world


def deaths(setup: Setup) -> Iterator[tuple[str, int]]:
    """Yield every way to die: a process and one of its switching points."""
    for process in undisturbed(setup).kernel.processes:
        if not process.immortal:
            yield from ((process.name, point) for point in range(1, process.points + 1))


def with_death(setup: Setup, process: str, point: int, *, traced: bool = False) -> Report:
    """Play the world in which one process dies at one switching point.

    Raises:
        AssertionError: a law was broken, or something never came to rest.
    """
    world = World(SEED, scenario=scenario(setup), kinds=frozenset(), traced=traced)
    world.kernel.deaths[process] = point
    return world.play()
