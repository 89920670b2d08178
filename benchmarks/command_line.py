"""What a cold command costs, and whether a long history makes it dearer.

Two tables. The first compares ``cur``, ``next`` and a ``goto`` behind a message with ``python -c "import redis"``,
run in turn on the same machine. The second compares ``cur`` and a blocked ``goto`` on a run with a short history and
on one with a long one. Ratios are what counts; the machine decides the milliseconds.

    python benchmarks/command_line.py [--rounds 15] [--events 10000]
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

RUNBOOK = """
nodes:
  a: {before_transfer: [{type: message, text: Go on.}], next: [b, {to: c, condition: {path: never.txt, exists: true}}]}
  b: {before_transfer: [{type: message, text: Come back.}], next: a}
  c: The end.
"""


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15, help="runs of each command")
    parser.add_argument("--events", type=int, default=10_000, help="length of the long history")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="statem-bench-") as folder:
        os.chdir(folder)
        os.environ["STATEM_STATE_DIR"] = str(Path(folder) / "state")
        Path("loop.yaml").write_text(RUNBOOK, encoding="utf-8")
        statem("start", "loop.yaml", "--run-id", "short")
        statem("start", "loop.yaml", "--run-id", "long")
        try:
            cold(options.rounds)
            lengthen("long", options.events)
            histories(options.rounds)
        finally:
            statem("down")


def cold(rounds: int) -> None:
    """Print the cost of short commands beside that of importing redis-py."""
    there_and_back = iter(["b", "a"] * rounds)
    rivals = {
        "python -c 'import redis'": lambda: [sys.executable, "-c", "import redis"],
        "cur": lambda: command("cur", "--run-id", "short"),
        "next": lambda: command("next", "--run-id", "short"),
        "goto (message)": lambda: command("goto", next(there_and_back), "--run-id", "short"),
    }
    times: dict[str, list[float]] = {name: [] for name in rivals}
    for _ in range(rounds):
        for name, words in rivals.items():
            times[name].append(timed(words()))
    base = statistics.median(times["python -c 'import redis'"])
    print(f"{'command':<26}{'median':>10}{'ratio':>8}")
    for name, taken in times.items():
        print(f"{name:<26}{1000 * statistics.median(taken):>7.0f} ms{statistics.median(taken) / base:>8.2f}")


def histories(rounds: int) -> None:
    """Print the cost of the same commands on a short and on a long history."""
    print(f"\n{'command':<26}{'short':>10}{'long':>10}{'ratio':>8}")
    for name, words in {"cur": ("cur",), "goto (blocked)": ("goto", "c")}.items():
        short, long = [], []
        for _ in range(rounds):
            short.append(timed(command(*words, "--run-id", "short")))
            long.append(timed(command(*words, "--run-id", "long")))
        medians = statistics.median(short), statistics.median(long)
        print(f"{name:<26}{1000 * medians[0]:>7.0f} ms{1000 * medians[1]:>7.0f} ms{medians[1] / medians[0]:>8.2f}")


def lengthen(run_id: str, events: int) -> None:
    """Move a run to and fro until its history has that many events."""
    from statem_dist.embedded.server import ensure
    from statem_dist.engine import Engine
    from statem_dist.protocol.model import Actor
    from statem_dist.settings import Settings

    settings = Settings.from_environment(os.environ)
    engine = Engine(settings, ensure(settings.state_dir).redis_url, inline=True)
    while (run := engine.run(run_id)).version < events:
        engine.goto(run_id, "b" if run.node == "a" else "a", Actor("bench"))
    if run.node != "a":
        engine.goto(run_id, "a", Actor("bench"))
    engine.close()


def timed(words: Sequence[str]) -> float:
    """Return the seconds that a process takes from start to end."""
    began = time.perf_counter()
    subprocess.run(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False)
    return time.perf_counter() - began


def command(*words: str) -> list[str]:
    """Return the words of a command line as the console script runs it."""
    script = Path(sys.executable).with_name("statem-dist")
    return [str(script), *words] if script.exists() else [sys.executable, "-m", "statem_dist.cli.main", *words]


def statem(*words: str) -> None:
    """Run a command that must succeed."""
    subprocess.run(command(*words), check=True, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
