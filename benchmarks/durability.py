"""What each level of durability costs: milliseconds and commands of a ``goto`` without checks, on this host.

Run ``python benchmarks/durability.py``. A primary with a replica is started for each level, both with their logs on
this disk; the library moves one run to and fro, and the same calls are made at each level.
"""

from __future__ import annotations

import re
import statistics
import sys
import tempfile
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from statem_dist.durability import read_durability
from statem_dist.engine import Engine, StartRequest
from statem_dist.protocol.model import Actor, Place
from statem_dist.runbook import parse
from statem_dist.settings import Settings
from tests.support.programs import eventually
from tests.support.servers import OwnRedis

GOTOS = 200

LEVELS = (
    ("everysec", "everysec"),
    ("always", "always"),
    ("replicas:1", "everysec"),
    ("replicas-fsynced:1:4000", "everysec"),
    ("replicas-fsynced:1:4000", "always"),
)
"""Levels, each with the ``appendfsync`` of the primary and the replica."""

RUNBOOK = "nodes: {a: {next: b}, b: {next: a}}"


def measure(level: str, appendfsync: str, gotos: int) -> tuple[float, float, dict[str, float]]:
    """Return the median and the 95th percentile of a ``goto`` in ms, and how often each command was sent for one."""
    durability = read_durability(level)
    with tempfile.TemporaryDirectory(prefix="statem-bench-", dir=".") as folder:
        fsync = ("appendfsync", appendfsync)
        primary = OwnRedis(Path(folder).resolve() / "primary", fsync)
        replica = OwnRedis(Path(folder).resolve() / "replica", fsync, ("replicaof", f"127.0.0.1 {primary.port}"))
        try:
            primary.start()
            replica.start()
            eventually(lambda: b"state=online" in primary.call("INFO", "replication"), "the replica is in step")
            settings = Settings(state_dir=Path(folder), redis_url=primary.url, durability=durability)
            engine = Engine(settings, primary.url, {}, inline=False)
            by = Actor("bench")
            runbook = engine.register(parse(RUNBOOK, source="bench.yaml"), "bench.yaml")
            engine.start(StartRequest(runbook, "r", Place(workspace=folder, state_dir=folder), by))
            taken = []
            primary.call("CONFIG", "RESETSTAT")
            for number in range(gotos):
                began = time.perf_counter()
                engine.goto("r", "b" if number % 2 == 0 else "a", by)
                taken.append(1000 * (time.perf_counter() - began))
            said = primary.call("INFO", "commandstats").decode()
            counted = re.findall(r"cmdstat_(\w+):calls=(\d+)", said)
            engine.close()
        finally:
            replica.kill()
            primary.kill()
    commands = {name: int(calls) / gotos for name, calls in counted if name in ("evalsha", "wait", "waitaof", "set")}
    return statistics.median(taken), statistics.quantiles(taken, n=20)[-1], commands


def main() -> None:
    """Print a row of a table for each level."""
    print("| level | appendfsync | median ms | p95 ms | times everysec | commands sent per goto |")
    print("|---|---|---|---|---|---|")
    least = 0.0
    for level, appendfsync in LEVELS:
        median, high, commands = measure(level, appendfsync, 20 if "fsynced" in level else GOTOS)
        least = least or median
        sent = ", ".join(f"{name} {count:.2g}" for name, count in sorted(commands.items()))
        print(f"| `{level}` | {appendfsync} | {median:.2f} | {high:.2f} | {median / least:.1f} | {sent} |", flush=True)


if __name__ == "__main__":
    main()
