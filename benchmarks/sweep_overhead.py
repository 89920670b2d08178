"""What a trial costs beside the commands that it runs: a sweep whose agent and only check are `true`, against xargs.

    python benchmarks/sweep_overhead.py [--trials 200] [--rounds 3] [-P 4]

Both run twice as many commands as there are trials, `sh -c true`, so many at a time: `xargs -P` by itself; the sweep
with a claim, a workspace, a run, a transition, a result and everything that is kept of them per trial. Rounds are taken
in turn, so that what else the machine does hits both alike. Times are medians; the machine decides the milliseconds.
Below stands where the sweep's time goes: processor time per trial by process, and commands of Redis per trial.
"""

from __future__ import annotations

import argparse
import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from statem_dist.dispatch import dispatcher_for
from statem_dist.embedded import server
from statem_dist.engine import Engine
from statem_dist.settings import Settings
from statem_dist.sweep.desk import SweepDesk, has_ended
from statem_dist.sweep.hints import Hints
from statem_dist.sweep.ledger import Ledger
from statem_dist.sweep.spec import load_sweep

RUNBOOK = "nodes: {work: {prompt: Go., before_transfer: [{run: 'true'}], next: done}, done: }\n"
SWEEP = "runbook: sweep.yaml\ntrials: {trials}\nagent: {{run: 'true'}}\n"

LOOK_SECONDS = 0.02
TICKS = os.sysconf("SC_CLK_TCK")


def main() -> int:
    """Measure, and print a table; return 1 if a trial did not pass."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200, metavar="N")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("-P", dest="parallel", type=int, default=4, metavar="N", help="trials at a time")
    options = parser.parse_args()
    trials, parallel = options.trials, options.parallel
    plain: list[tuple[float, float]] = []
    swept: list[tuple[float, float, float]] = []
    with tempfile.TemporaryDirectory(prefix="statem-bench-") as folder, stack(Path(folder), parallel) as at:
        at.sweep(max(parallel * 2, 10))
        at.reset()
        for _ in range(options.rounds):
            plain.append(xargs(2 * trials, parallel))
            swept.append(at.sweep(trials))
        commands = at.commands()
    total = trials * options.rounds
    print(f"{trials} trials, {parallel} at a time, {options.rounds} rounds\n")
    print(f"{'':<22}{'seconds':>9}{'ms/trial':>10}{'CPU ms/trial':>14}")
    base = statistics.median(seconds for seconds, _ in plain)
    row("xargs", base, statistics.median(cpu for _, cpu in plain), trials)
    mine = statistics.median(each[0] for each in swept)
    worker = statistics.median(each[1] for each in swept)
    redis = statistics.median(each[2] for each in swept)
    row("sweep", mine, worker + redis, trials)
    print(f"{'  of it worker':<41}{1000 * worker / trials:>14.1f}")
    print(f"{'  of it Redis':<41}{1000 * redis / trials:>14.1f}")
    print(f"\nratio {mine / base:.1f}, {1000 * (mine - base) / trials:.1f} ms per trial more\n")
    print(f"{'Redis command':<22}{'per trial':>10}{'us each':>10}{'us/trial':>10}")
    for name, (calls, microseconds) in sorted(commands.items(), key=lambda item: -item[1][1]):
        if calls / total >= 0.05:
            print(f"{name:<22}{calls / total:>10.1f}{microseconds / calls:>10.1f}{microseconds / total:>10.1f}")
    print(f"{'all':<22}{sum(calls for calls, _ in commands.values()) / total:>10.1f}")
    return 0


def row(name: str, seconds: float, cpu: float, trials: int) -> None:
    """Print a line of the table."""
    print(f"{name:<22}{seconds:>9.2f}{1000 * seconds / trials:>10.1f}{1000 * cpu / trials:>14.1f}")


def xargs(commands: int, parallel: int) -> tuple[float, float]:
    """Run so many commands; return the seconds that took, and those of processor time."""
    lines = "".join(f"{number}\n" for number in range(commands))
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    began = time.perf_counter()
    subprocess.run(["xargs", "-P", str(parallel), "-n", "1", "sh", "-c", "true"], input=lines, text=True, check=True)
    seconds = time.perf_counter() - began
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


class Stack:
    """A server with one worker, and sweeps on it."""

    def __init__(self, folder: Path, engine: Engine, worker: int, redis: int) -> None:
        self._folder = folder
        self._engine = engine
        self._worker = worker
        self._redis = redis
        self._ledger = Ledger(engine.store)
        hints = Hints(engine.store, dispatcher_for(engine.settings, engine.redis_url))
        self._desk = SweepDesk(self._ledger, engine, hints, engine.settings.state_dir)
        (folder / "sweep.yaml").write_text(RUNBOOK)

    def sweep(self, trials: int) -> tuple[float, float, float]:
        """Run a sweep; return the seconds from its submission to its end, and those of the processor: worker, Redis."""
        path = self._folder / "sweep.sweep.yaml"
        path.write_text(SWEEP.format(trials=trials))
        before = processor_seconds(self._worker), processor_seconds(self._redis)
        began = time.perf_counter()
        sweep_id = self._desk.submit(load_sweep(path), by="bench", new=True).sweep.id
        while not has_ended(sweep := self._ledger.require(sweep_id)):
            time.sleep(LOOK_SECONDS)
        seconds = time.perf_counter() - began
        if sweep.counts["passed"] != trials:
            sys.exit(f"not all trials have passed: {sweep.counts}")
        return seconds, processor_seconds(self._worker) - before[0], processor_seconds(self._redis) - before[1]

    def reset(self) -> None:
        """Count the commands of Redis from here."""
        self._engine.store.call("CONFIG", "RESETSTAT")

    def commands(self) -> dict[str, tuple[int, int]]:
        """Return how often each command of Redis was called, and the microseconds that took."""
        text = self._engine.store.call("INFO", "commandstats").decode()
        return {
            found[1]: (int(found[2]), int(found[3]))
            for found in re.finditer(r"cmdstat_(\S+?):calls=(\d+),usec=(\d+)", text)
        }


@contextmanager
def stack(folder: Path, parallel: int) -> Iterator[Stack]:
    """Start a server and a worker for the length of a ``with`` block."""
    settings = Settings(state_dir=folder / "state")
    url = server.ensure(settings.state_dir, idle_stop_seconds=0).redis_url
    redis = server.status(settings.state_dir).pid
    assert redis is not None
    argv = [sys.executable, "-m", "statem_dist.cli.main", "worker", "-Q", "trials", "-c", str(parallel)]
    log = folder / "worker.log"
    with log.open("wb") as file:
        environ = {**os.environ, "STATEM_STATE_DIR": str(settings.state_dir)}
        worker = subprocess.Popen([*argv, "--inherit-env"], env=environ, stdout=file, stderr=file)
    engine = Engine(settings, url, inline=False)
    try:
        while "ready: " not in log.read_text() and worker.poll() is None:
            time.sleep(LOOK_SECONDS)
        yield Stack(folder, engine, worker.pid, redis)
    finally:
        engine.close()
        worker.send_signal(signal.SIGTERM)
        worker.wait()
        server.stop(settings.state_dir)


def processor_seconds(root: int) -> float:
    """Return what a process has used of the processor, with its living descendants and those that were waited for."""
    ticks, parents = {}, {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            parents[int(name)] = int(fields[1])
            ticks[int(name)] = sum(map(int, fields[11:15]))
    family = {root}
    while more := {pid for pid, parent in parents.items() if parent in family} - family:
        family |= more
    return sum(ticks.get(pid, 0) for pid in family) / TICKS


if __name__ == "__main__":
    sys.exit(main())
