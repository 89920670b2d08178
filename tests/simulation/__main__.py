"""Try many worlds on all cores, or look at one: what ``make simulate`` runs."""

from __future__ import annotations

import argparse
import multiprocessing
import os
import sys
import time
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from itertools import islice

from tests.simulation.faults import KINDS
from tests.simulation.tally import Tally, play
from tests.simulation.world import World

TRACE_LINES = 60
"""How much of the history of a world is shown in which a law was broken."""

BATCH = 20
"""Worlds that a process plays before it reports."""


def show(seed: int, lines: int | None) -> int:
    """Play one world and print its history, or the last lines of it; return an exit code."""
    world = World(seed, traced=True)
    failure: Exception | None = None
    try:
        world.play()
    except Exception as error:
        failure = error
    trace = world.kernel.trace or []
    print("\n".join(trace if lines is None else trace[-lines:]))
    report = world.report()
    print(f"seed {seed}: {report.steps} steps, {report.transitions} transitions, digest {report.digest}")
    if failure is None:
        return 0
    print(f"LAW BROKEN: {failure}")
    return 1


def summary(tally: Tally, took: float) -> str:
    """Return what came of all worlds, in some lines."""
    outcomes = ", ".join(f"{count} {name}" for name, count in sorted(tally.outcomes.items()))
    lines = [
        f"{tally.seeds} seeds in {took:.0f} s ({tally.seeds / took:.1f}/s), {tally.steps} steps, "
        f"{tally.seconds / 3600:.0f} hours of simulated time",
        f"{tally.transitions} transitions: {outcomes}; {tally.executions} commands executed",
        f"{sum(tally.faults.values())} faults:",
        *(f"  {kind}: {tally.faults[kind]}" for kind in KINDS),
        f"told of lost writes: {tally.detected} callers and readers",
        f"laws broken: {0 if tally.broken is None else 1}",
    ]
    return "\n".join(lines)


def try_many(first: int, count: int, processes: int) -> int:
    """Play worlds on several cores, tell how far they are, and stop at the first broken law; return an exit code."""
    began = time.monotonic()
    tally = Tally()
    seeds = iter(range(first, first + count))
    batches = iter(lambda: list(islice(seeds, BATCH)), [])
    shown = 0.0
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        # No more are asked for than are played soon, so that a broken law ends the whole of it at once.
        asked = {pool.submit(play, batch) for batch in islice(batches, 2 * processes)}
        while asked and tally.broken is None:
            done, asked = wait(asked, return_when=FIRST_COMPLETED)
            for played in done:
                tally.add(played.result())
            asked |= {pool.submit(play, batch) for batch in islice(batches, len(done))}
            if time.monotonic() - shown > 1:
                shown = time.monotonic()
                rate = tally.seeds / (shown - began)
                print(f"\r{tally.seeds} of {count} seeds, {rate:.0f}/s", end="", file=sys.stderr, flush=True)
        pool.shutdown(cancel_futures=True)
    print(file=sys.stderr)
    print(summary(tally, time.monotonic() - began))
    if tally.broken is None:
        return 0
    print(f"\nThe last {TRACE_LINES} lines of the history of seed {tally.broken}:")
    show(tally.broken, TRACE_LINES)
    print(f"\nPlay it again, and see all of it: make simulate SEED={tally.broken}")
    return 1


def main() -> int:
    """Read the command line; return an exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seeds", type=int, default=1000, help="how many worlds (default: 1000)")
    parser.add_argument("--first", type=int, default=0, help="the first seed (default: 0)")
    parser.add_argument("--seed", type=int, help="play this world alone, and print its history")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1, help="default: one per core")
    options = parser.parse_args()
    if options.seed is not None:
        return show(options.seed, None)
    return try_many(options.first, options.seeds, options.processes)


if __name__ == "__main__":
    sys.exit(main())
