"""What goes wrong, how often, and how often it has.

Each world draws which kinds of faults there are in it and how frequent each is, so that some worlds know one kind
alone: what hides behind a storm of everything is found there, and laws that hold only in the absence of a fault are
tested.
"""

from __future__ import annotations

from collections import Counter
from random import Random
from typing import Literal, TypeAlias, get_args

from tests.simulation.kernel import Kernel

Kind: TypeAlias = Literal[
    "crash",
    "crash in a command",
    "freeze",
    "interrupt",
    "stop",
    "monotonic clock jumps",
    "monotonic clock stands still",
    "store clock jumps",
    "store away",
    "store out of memory",
    "store rolled back",
    "scripts flushed",
    "request lost",
    "request late",
    "reply lost",
    "announcement lost",
    "connection of a listener lost",
    "broker wiped",
    "message dropped",
    "message doubled",
    "message reordered",
    "message delayed",
    "supervisor lost",
    "command cannot start",
]

KINDS: tuple[Kind, ...] = get_args(Kind)

RATES: dict[Kind, tuple[float, ...]] = {
    "crash": (0.001, 0.004, 0.015),
    "crash in a command": (0.05, 0.3),
    "freeze": (0.0005, 0.002),
    "monotonic clock jumps": (0.0005, 0.001),
    "request lost": (0.005, 0.03),
    "request late": (0.003, 0.02),
    "reply lost": (0.005, 0.03, 0.1),
    "announcement lost": (0.05, 0.5),
    "connection of a listener lost": (0.02,),
    "message dropped": (0.05, 0.3),
    "message doubled": (0.05, 0.3),
    "message reordered": (0.2,),
    "message delayed": (0.1,),
    "supervisor lost": (0.03,),
    "command cannot start": (0.03, 0.1),
    "interrupt": (0.05,),
    "stop": (0.05,),
    "monotonic clock stands still": (0.5,),
}
"""How often a fault strikes, of the occasions that it has: the steps of a process for the first three, the requests,
the messages, the commands, the freezes. What is not listed comes with the weather, a few times in a storm."""

WEATHER: tuple[Kind, ...] = (
    "store clock jumps",
    "store away",
    "store out of memory",
    "store rolled back",
    "scripts flushed",
    "broker wiped",
)


class Faults:
    """The faults of one world.

    Args:
        rng: decides which there are, and when they strike.
        kinds: which there are; None draws them.
    """

    def __init__(self, rng: Random, kinds: frozenset[Kind] | None = None) -> None:
        self.counts: Counter[Kind] = Counter()
        self.calm = False
        self._rng = rng
        share = rng.choice((0.15, 0.4, 0.7))
        drawn = frozenset(kind for kind in KINDS if rng.random() < share)
        self.kinds = drawn if kinds is None else kinds
        self._rates = {kind: rng.choice(rates) for kind, rates in RATES.items() if kind in self.kinds}

    def strikes(self, kind: Kind) -> bool:
        """Return whether a fault strikes now, and count it if it does."""
        if self.calm:
            return False
        rate = self._rates.get(kind)
        if rate is None or self._rng.random() >= rate:
            return False
        self.counts[kind] += 1
        return True

    def happened(self, kind: Kind) -> None:
        """Count a fault that somebody has brought about."""
        self.counts[kind] += 1

    def on_point(self, kernel: Kernel) -> str:
        """Return what befalls the process that is at a switching point: mostly nothing."""
        if self.calm:
            return ""
        for kind in ("crash", "freeze", "monotonic clock jumps"):
            rate = self._rates.get(kind)
            if rate is not None and self._rng.random() < rate:
                return kind
        return ""
