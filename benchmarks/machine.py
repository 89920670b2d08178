"""Signals per second of the event-driven machine, beside other libraries on the same graph.

    python benchmarks/machine.py [SIGNALS]

Two states, two signals; the first is refused by one guard and passed by the next, an entry and a transition action
count, one of them asynchronous. ``statem`` and ours have both ways measured: many signals in one run, and a run for
each signal. Everything happens in one process, in rounds that take turns; the best round of each counts.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Awaitable, Callable
from typing import Any

import statem
from statemachine import State as PlainState
from statemachine import StateChart
from transitions.extensions.asyncio import AsyncMachine

import statem_dist.machine

ROUNDS = 7

CONFIG = {
    "idle": {
        "on": {
            "START": [
                {"target": "busy", "guard": "refuses"},
                {"target": "busy", "guard": "passes", "actions": ["count"]},
            ]
        }
    },
    "busy": {"entry": ["count"], "on": {"STOP": {"target": "idle", "actions": ["count_later"]}}},
}

Drive = Callable[[int], Awaitable[int]]
"""Sends so many signals and returns how often something was counted."""


def by_config(library: Any, one_run: bool) -> Drive:
    """Return how to drive a machine of ``statem`` or of ours."""

    def count(ctx: Any, signal: Any) -> None:
        ctx.session["count"] += 1

    async def count_later(ctx: Any, signal: Any) -> None:
        ctx.session["count"] += 1

    machine = library.StateMachine.from_dict(
        CONFIG,
        {"count": count, "count_later": count_later},
        {"refuses": lambda ctx, signal: False, "passes": lambda ctx, signal: True},
    )
    start, stop = library.Signal(event="START"), library.Signal(event="STOP")

    async def drive(signals: int) -> int:
        session = {"count": 0}
        if one_run:
            await machine.run(state_name="idle", events=[start, stop] * (signals // 2), session=session)
        else:
            state = "idle"
            for number in range(signals):
                state = await machine.run(state_name=state, events=stop if number % 2 else start, session=session)
        return session["count"]

    return drive


def by_transitions() -> Drive:
    """Return how to drive ``transitions``, with its asynchronous machine."""

    class Model:
        """What the machine hangs its triggers on."""

        counted = 0

        async def count(self) -> None:
            """Count."""
            self.counted += 1

        async def passes(self) -> bool:
            """Pass."""
            return True

        async def refuses(self) -> bool:
            """Refuse."""
            return False

    async def drive(signals: int) -> int:
        model: Any = Model()
        machine = AsyncMachine(model, states=["idle", {"name": "busy", "on_enter": "count"}], initial="idle")
        machine.add_transition("start", "idle", "busy", conditions="refuses")
        machine.add_transition("start", "idle", "busy", conditions="passes", before="count")
        machine.add_transition("stop", "busy", "idle", before="count")
        for number in range(signals):
            await (model.stop() if number % 2 else model.start())
        return int(model.counted)

    return drive


def by_statemachine() -> Drive:
    """Return how to drive ``python-statemachine``; one asynchronous action makes its engine asynchronous."""

    class Chart(StateChart[Any]):
        """The same graph."""

        idle = PlainState(initial=True)
        busy = PlainState()
        start = idle.to(busy, cond="refuses") | idle.to(busy, cond="passes", on="count")
        stop = busy.to(idle, on="count_later")
        counted = 0

        def passes(self) -> bool:
            """Pass."""
            return True

        def refuses(self) -> bool:
            """Refuse."""
            return False

        def count(self) -> None:
            """Count."""
            self.counted += 1

        async def count_later(self) -> None:
            """Count."""
            self.counted += 1

        def on_enter_busy(self) -> None:
            """Count."""
            self.counted += 1

    async def drive(signals: int) -> int:
        chart = Chart()
        await chart.activate_initial_state()
        for number in range(signals):
            await chart.send("stop" if number % 2 else "start")
        return int(chart.counted)

    return drive


async def _awaited(wanted: Awaitable[int]) -> int:
    return await wanted


def main(signals: int) -> None:
    """Measure, and print a line for each."""
    ways: dict[str, Drive] = {
        "statem_dist, one run": by_config(statem_dist.machine, one_run=True),
        "statem, one run": by_config(statem, one_run=True),
        "statem_dist, a run each": by_config(statem_dist.machine, one_run=False),
        "statem, a run each": by_config(statem, one_run=False),
        "transitions": by_transitions(),
        "python-statemachine": by_statemachine(),
    }
    best = dict.fromkeys(ways, float("inf"))
    for _ in range(ROUNDS):
        for name, drive in ways.items():
            began = time.perf_counter()
            counted = asyncio.run(_awaited(drive(signals)))
            best[name] = min(best[name], time.perf_counter() - began)
            assert counted == signals // 2 * 3, f"{name}: {counted}"
    for name, seconds in best.items():
        print(f"{name:24} {signals / seconds:10,.0f} signals per second  {1e6 * seconds / signals:7.2f} us each")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 2_000)
