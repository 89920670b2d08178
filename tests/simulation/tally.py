"""What came of many worlds, counted together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from msgspec import Struct, field

from tests.simulation.world import World


class Tally(Struct):
    """What came of some worlds."""

    seeds: int = 0
    steps: int = 0
    seconds: float = 0.0
    executions: int = 0
    detected: int = 0
    transitions: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    broken: int | None = None

    def add(self, other: Tally) -> None:
        """Count what came of further worlds."""
        self.seeds += other.seeds
        self.steps += other.steps
        self.seconds += other.seconds
        self.executions += other.executions
        self.detected += other.detected
        self.transitions += other.transitions
        self.outcomes.update(other.outcomes)
        self.faults.update(other.faults)
        if other.broken is not None:
            self.broken = other.broken if self.broken is None else min(self.broken, other.broken)


def play(seeds: Iterable[int]) -> Tally:
    """Play worlds until one breaks a law."""
    tally = Tally()
    for seed in seeds:
        world = World(seed)
        try:
            world.play()
        except Exception:
            tally.broken = seed
        report = world.report()
        tally.seeds += 1
        tally.steps += report.steps
        tally.seconds += report.seconds
        tally.executions += report.executions
        tally.detected += report.detected
        tally.transitions += report.transitions
        tally.outcomes.update(report.outcomes)
        tally.faults.update(report.faults)
        if tally.broken is not None:
            break
    return tally
