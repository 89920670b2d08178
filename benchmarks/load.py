"""What the whole bears for minutes: many live runs, many callers at once, many readers, and workers that never rest.

Runs lie in the store and are live; some of them are moved to and fro through the REST service, one kept-alive
connection for each, by a ``goto`` with a command check that workers execute; streams of events are read all the while.
Every few seconds it is noted what each process and Redis take. It fails, with exit status 1, if

* an answer was a 5xx, a transition did not commit, or a stream told an event twice, out of order, or not at all;
* a queue, an open transition, a reminder or a lease is left when the callers have stopped;
* memory is not flat: the mean of the proportional set size of a process over the last quarter of the time is more than
  a tenth and 4 MiB above its mean over the second quarter (the first one is for warming up). Redis grows with what it
  is told: there it is the memory for each event that counts (``--event-bytes``);
* threads, open files or connections in the last quarter are more than a tenth and 8 above those in the second.

Everything runs on one machine and shares its cores with the callers, so that ratios and growth are what counts.

    python benchmarks/load.py [--only idle,load,history,lists,worker] [--minutes 3] [--runs 10000] [--callers 1000]
        [--watchers 500] [--workers 2]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

from rest_api import TICKS, Bench, Connection, ask_once, cpu_seconds, request, statem, until

SAMPLE_SECONDS = 3.0
CHECKED = "ran"
"""A node of the runbook of ``rest_api`` that is left behind a command, ``true``."""


class Failures(list[str]):
    """What was not as it must be."""

    def unless(self, condition: object, text: str) -> None:
        """Note something down that does not hold."""
        if not condition:
            self.append(text)
            print(f"  FAILED: {text}")


def main() -> None:
    """Measure, print, and exit with 1 if something was not as it must be."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="idle,load,history,lists,worker", help="parts to measure")
    parser.add_argument("--minutes", type=float, default=3.0, help="length of the load")
    parser.add_argument("--runs", type=int, default=10_000, help="live runs in the store")
    parser.add_argument("--callers", type=int, default=1_000, help="callers, each with a run of its own")
    parser.add_argument("--watchers", type=int, default=500, help="streams of events of those runs")
    parser.add_argument("--workers", type=int, default=2, help="worker processes, four slots each")
    parser.add_argument("--event-bytes", type=int, default=1_500, help="memory of Redis for each event at the most")
    parser.add_argument("--transitions", type=int, default=10_000, help="transitions of the long history")
    parser.add_argument("--finished", type=int, default=50_000, help="finished runs in the lists")
    parser.add_argument("--checks", type=int, default=5_000, help="checks that one worker executes")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    print(f"{os.cpu_count()} cores, load before: {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}")
    parts = {"idle": idle, "load": load, "history": history, "lists": lists, "worker": worker_memory}
    failures = Failures()
    for name in options.only.split(","):
        with tempfile.TemporaryDirectory(prefix="statem-load-") as folder, Bench(Path(folder)) as bench:
            print(f"\n--- {name}")
            parts[name](bench, options, failures)
            for log in sorted(Path(folder).glob("*.log")):
                text = log.read_text(errors="replace")
                trouble = re.findall(r"^.* (?:ERROR|CRITICAL) .*$|^Traceback.*$", text, re.MULTILINE)
                failures.unless(not trouble, f"{log.name} tells of {len(trouble)} errors, such as {trouble[:1]}")
    print(f"\nload after: {os.getloadavg()[0]:.1f}; {len(failures)} failures")
    sys.exit(1 if failures else 0)


# --- idle ------------------------------------------------------------------------------------------------------------


def idle(bench: Bench, options: argparse.Namespace, failures: Failures, seconds: float = 15.0) -> None:
    """Print what workers without work ask of Redis."""
    for count in (1, 20):
        more = [bench.begin(f"idle-{number}.log", *statem("worker")) for number in range(count - 1)]
        until(lambda: len(bench.redis("ZRANGE", "statem:workers", "0", "-1")) == count, "the workers are there")  # noqa: B023
        time.sleep(5.0)
        before = calls(bench)
        time.sleep(seconds)
        per_second = {name: (after - before.get(name, 0)) / seconds for name, after in calls(bench).items()}
        most = sorted(per_second.items(), key=lambda each: -each[1])[:6]
        told = ", ".join(f"{name} {rate:.0f}" for name, rate in most)
        print(f"{count:>3} idle workers: {sum(per_second.values()):>6.0f} commands/s ({told})")
        for program in more:
            program.send_signal(signal.SIGTERM)
        for program in more:
            program.wait(30)


def calls(bench: Bench) -> dict[str, int]:
    """Return how often each command was executed so far, those inside of scripts included."""
    statistics = bench.redis("INFO", "commandstats").decode()
    return {name: int(count) for name, count in re.findall(r"cmdstat_(\S+?):calls=(\d+)", statistics)}


# --- load ------------------------------------------------------------------------------------------------------------


class Sample(NamedTuple):
    """What one moment takes: per process and, under ``redis``, what the server says of itself. Memory is MiB."""

    at: float
    memory: dict[str, float]
    resident: dict[str, float]
    counts: dict[str, int]


class Caller:
    """One caller: moves its run to and fro over one connection, and notes how long that took."""

    def __init__(self, bench: Bench, number: int) -> None:
        self.run_id = f"moved-{number}"
        self.accepted: list[tuple[float, float]] = []
        self.settled: list[tuple[float, float]] = []
        self.troubles: list[str] = []
        self.errors = 0
        self._bench = bench

    async def call(self, end: float) -> None:
        """Attempt one transition after the other until the end, each accepted first and then waited for."""
        bench, there = self._bench, f"{CHECKED}2"
        async with Connection(bench.port) as connection:
            while time.perf_counter() < end:
                began = time.perf_counter()
                path = f"/v1/runs/{self.run_id}"
                status, body = await connection.ask(request(bench, "POST", f"{path}/goto", {"target": there}))
                self.accepted.append((began, time.perf_counter() - began))
                while status == 202:
                    transition = json.loads(body)["transition"]
                    status, body = await connection.ask(
                        request(bench, "GET", f"{path}/transitions/{transition}?wait=60")
                    )
                    if json.loads(body).get("outcome"):
                        break
                self.settled.append((began, time.perf_counter() - began))
                if status >= 500:
                    self.errors += 1
                if status != 200 or json.loads(body)["outcome"] != "committed":
                    self.troubles.append(f"{self.run_id}: {status} {body[:300]!r}")
                    return
                there = CHECKED if there != CHECKED else f"{CHECKED}2"


class Watcher:
    """One reader of the events of a run: notes their numbers."""

    def __init__(self, bench: Bench, number: int) -> None:
        self.run_id = f"moved-{number}"
        self.numbers: list[int] = []
        self._bench = bench

    async def read(self) -> None:
        """Read until cancelled."""
        reader, writer = await asyncio.open_connection("127.0.0.1", self._bench.port)
        try:
            writer.write(request(self._bench, "GET", f"/v1/runs/{self.run_id}/events", accept="text/event-stream"))
            while line := await reader.readline():
                if found := re.match(rb"id: ?(\d+)", line):
                    self.numbers.append(int(found[1]))
        finally:
            writer.close()


def load(bench: Bench, options: argparse.Namespace, failures: Failures) -> None:
    """Let everything work at once, and judge what it took."""
    bench.end(bench.worker)
    workers = [bench.begin(f"worker-{number}.log", *statem("worker", "-c", "4")) for number in range(options.workers)]
    until(lambda: len(bench.redis("ZRANGE", "statem:workers", "0", "-1")) == options.workers, "the workers are there")
    names = [f"moved-{number}" for number in range(options.callers)]
    names += [f"live-{number}" for number in range(options.runs - options.callers)]
    for at in range(0, len(names), 1_000):
        wanted = [
            {"runbook": bench.runbook.hash, "run_id": name, "workspace": str(bench.folder)}
            for name in names[at : at + 1_000]
        ]
        status, body = asyncio.run(ask_once(bench, request(bench, "POST", "/v1/runs/bulk", {"runs": wanted})))
        assert (status, json.loads(body)["created"]) == (200, len(wanted)), body[:500]
    for name in names[: options.callers]:
        bench.engine.goto(name, CHECKED, bench_actor())
    before, events_before = used_memory(bench), count_events(bench, names)
    spent_before, calls_before = spent(bench, workers), calls(bench)
    samples, callers, watchers = asyncio.run(at_full_tilt(bench, options, workers))
    spent_after, calls_after = spent(bench, workers), calls(bench)
    settled = [each for caller in callers for each in caller.settled]
    accepted = [each for caller in callers for each in caller.accepted]
    seconds = 60 * options.minutes
    print(f"{options.runs} live runs, {options.callers} callers, {options.watchers} streams, {options.workers} workers")
    print(f"{len(settled)} transitions in {seconds:.0f} s: {len(settled) / seconds:.0f} per second")
    for what, found in (("accepted", accepted), ("settled", settled)):
        for name, share in (("all", found), ("last quarter", late(found))):
            taken = sorted(each for _, each in share)
            p50, p99 = taken[len(taken) // 2], taken[int(len(taken) * 0.99)]
            print(f"  {what:<9}{name:<14}p50 {1000 * p50:>7.0f} ms   p99 {1000 * p99:>7.0f} ms")
    sent = {name: calls_after[name] - calls_before.get(name, 0) for name in calls_after}
    each = ", ".join(
        f"{name} {1000 * (spent_after[name] - was) / len(settled):.1f} ms" for name, was in spent_before.items()
    )
    print(
        f"  for each transition: {sum(sent.values()) / len(settled):.1f} commands of Redis, those in scripts included,"
    )
    print(f"    {sent.get('evalsha', 0) / len(settled):.1f} scripts; processor time: {each}")
    told(samples)
    errors = sum(caller.errors for caller in callers)
    print(f"  5xx answers: {errors}")
    failures.unless(errors == 0, f"{errors} answers were 5xx")
    troubles = [trouble for caller in callers for trouble in caller.troubles]
    failures.unless(not troubles, f"{len(troubles)} transitions did not commit, such as {troubles[:1]}")
    missed = [watcher.run_id for watcher in watchers if not told_all(bench, watcher)]
    failures.unless(not missed, f"{len(missed)} of {len(watchers)} streams were not whole, such as {missed[:3]}")
    events = count_events(bench, names) - events_before
    bytes_each = (used_memory(bench) - before) / max(1, events)
    print(f"  {events} events written; Redis grew by {bytes_each:.0f} bytes for each")
    failures.unless(bytes_each <= options.event_bytes, f"Redis grew by {bytes_each:.0f} bytes for each event")
    left = {
        "messages": bench.redis("LLEN", "checks"),
        "moving": bench.engine.store.counts(["moving"])["moving"],
        "reminders": bench.engine.store.counts([])["due"],
        "leases": count_leases(bench, names[: options.callers]),
    }
    failures.unless(not any(left.values()), f"something is left: {left}")
    judge(samples, failures)


async def at_full_tilt(
    bench: Bench, options: argparse.Namespace, workers: Sequence[subprocess.Popen[bytes]]
) -> tuple[list[Sample], list[Caller], list[Watcher]]:
    """Call, read and take samples for as long as was asked for, and then until all is done."""
    callers = [Caller(bench, number) for number in range(options.callers)]
    watchers = [Watcher(bench, number) for number in range(options.watchers)]
    reading = [asyncio.create_task(watcher.read()) for watcher in watchers]
    samples: list[Sample] = []
    end = time.perf_counter() + 60 * options.minutes

    async def sampling() -> None:
        while time.perf_counter() < end:
            samples.append(await asyncio.to_thread(take, bench, workers))
            await asyncio.sleep(SAMPLE_SECONDS)

    await asyncio.gather(sampling(), *(caller.call(end) for caller in callers))
    await asyncio.to_thread(until, lambda: bench.engine.store.counts(["moving"])["moving"] == 0, "all has settled")
    for _ in range(100):
        if all(told_all(bench, watcher) for watcher in watchers[::50]):
            break
        await asyncio.sleep(0.1)
    await asyncio.sleep(1.0)
    for task in reading:
        task.cancel()
    with suppress(asyncio.CancelledError):
        await asyncio.gather(*reading, return_exceptions=True)
    return samples, callers, watchers


def take(bench: Bench, workers: Sequence[subprocess.Popen[bytes]]) -> Sample:
    """Return what everything takes now."""
    memory, resident, counts = {}, {}, {}
    for name, pid in processes(bench, workers).items():
        with suppress(OSError):
            rollup = Path(f"/proc/{pid}/smaps_rollup").read_text()
            status = Path(f"/proc/{pid}/status").read_text()
            memory[name] = number_in(rollup, "Pss") / 1024
            resident[name] = number_in(rollup, "Rss") / 1024
            counts[f"{name} threads"] = number_in(status, "Threads")
            counts[f"{name} files"] = len(os.listdir(f"/proc/{pid}/fd"))
    counts["connections of Redis"] = number_in(bench.redis("INFO", "clients").decode(), "connected_clients")
    counts["messages waiting"] = bench.redis("LLEN", "checks")
    numbers = bench.engine.store.counts(["moving"])
    counts["transitions open"], counts["reminders"] = numbers["moving"], numbers["due"]
    return Sample(time.perf_counter(), memory, resident, counts)


def processes(bench: Bench, workers: Sequence[subprocess.Popen[bytes]]) -> dict[str, int]:
    """Return the pids of the programs, and of the supervisors of the workers."""
    found = {"service": bench.api.pid, "redis": number_in(bench.redis("INFO", "server").decode(), "process_id")}
    for number, worker in enumerate(workers):
        found[f"worker {number}"] = worker.pid
        for child in Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split() + children(worker.pid):
            found[f"supervisor {number}"] = int(child)
    return found


def children(pid: int) -> list[str]:
    """Return the children of every thread of a process."""
    return [child for task in Path(f"/proc/{pid}/task").iterdir() for child in (task / "children").read_text().split()]


def number_in(text: str, name: str) -> int:
    """Return the number behind a name and a colon."""
    found = re.search(rf"^{name}:\s*(\d+)", text, re.MULTILINE)
    assert found is not None, name
    return int(found[1])


def told(samples: Sequence[Sample]) -> None:
    """Print what was taken at the beginning, in the middle and at the end."""
    first, middle, last = samples[1 if len(samples) > 2 else 0], samples[len(samples) // 2], samples[-1]
    print(f"  {'':<24}{'start':>9}{'middle':>9}{'end':>9}")
    for name in last.memory:
        values = "".join(f"{each.memory.get(name, 0):>9.1f}" for each in (first, middle, last))
        print(f"  {f'{name}, PSS in MiB':<24}{values}   (RSS {last.resident[name]:.1f})")
    for name in last.counts:
        values = "".join(f"{each.counts.get(name, 0):>9}" for each in (first, middle, last))
        most = max(each.counts.get(name, 0) for each in samples)
        print(f"  {name:<24}{values}   (most {most})")


def judge(samples: Sequence[Sample], failures: Failures) -> None:
    """Say of what there was more in the last quarter than in the second."""
    quarter = len(samples) // 4
    second, last = samples[quarter : 2 * quarter] or samples, samples[-quarter:] or samples
    for name in last[-1].memory:
        if name == "redis":
            continue
        was, now = (fmean(each.memory[name] for each in some if name in each.memory) for some in (second, last))
        print(f"  {name}: {was:.1f} MiB in the second quarter, {now:.1f} MiB in the last ({now - was:+.1f})")
        failures.unless(now <= 1.1 * was + 4, f"the memory of {name} grew from {was:.1f} to {now:.1f} MiB")
    for name in last[-1].counts:
        if name.endswith((" threads", " files")) or name.startswith("connections"):
            was, now = (max(each.counts.get(name, 0) for each in some) for some in (second, last))
            failures.unless(now <= 1.1 * was + 8, f"{name} grew from {was} to {now}")


def late(found: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return those that began in the last quarter of the time."""
    first, last = min(found)[0], max(found)[0]
    return [each for each in found if each[0] >= last - (last - first) / 4]


def spent(bench: Bench, workers: Sequence[subprocess.Popen[bytes]]) -> dict[str, float]:
    """Return the processor time of each kind of process; that of supervisors includes the commands."""
    found = {"service": 0.0, "workers": 0.0, "supervisors and commands": 0.0, "Redis": 0.0}
    for name, pid in processes(bench, workers).items():
        kind = name.split()[0]
        if kind == "supervisor":
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            found["supervisors and commands"] += sum(int(fields[at]) for at in (11, 12, 13, 14)) / TICKS
        else:
            found[{"redis": "Redis", "worker": "workers"}.get(kind, kind)] += cpu_seconds(pid)
    return found


def used_memory(bench: Bench) -> int:
    """Return the bytes that Redis holds."""
    return number_in(bench.redis("INFO", "memory").decode(), "used_memory")


def count_events(bench: Bench, names: Sequence[str]) -> int:
    """Return how many events these runs have."""
    from statem_dist.store import keys

    return sum(bench.engine.store.call_many(["XLEN", keys.events(name)] for name in names))


def count_leases(bench: Bench, names: Sequence[str]) -> int:
    """Return how many leases these runs have."""
    from statem_dist.store import keys

    replies = bench.engine.store.call_many(["HKEYS", keys.run(name)] for name in names)
    return sum(field.startswith(b"lease:") for fields in replies for field in fields)


def told_all(bench: Bench, watcher: Watcher) -> bool:
    """Return whether a reader was told every event of its run once, in order."""
    return watcher.numbers == list(range(1, bench.engine.run(watcher.run_id).version + 1))


def bench_actor() -> Any:
    """Return who moves runs in process."""
    from statem_dist.protocol.model import Actor

    return Actor("bench")


# --- long histories, long lists --------------------------------------------------------------------------------------


def traffic(bench: Bench, do: Callable[[], object]) -> tuple[int, int, float]:
    """Return how many commands the server got while something was done, how many bytes it answered, and how long it
    took, in seconds."""

    def counted() -> tuple[int, int]:
        text = bench.redis("INFO", "stats").decode()
        return number_in(text, "total_commands_processed"), number_in(text, "total_net_output_bytes")

    idle_bytes = counted()[1]
    idle_bytes = counted()[1] - idle_bytes
    commands, sent = counted()
    began = time.perf_counter()
    do()
    taken = time.perf_counter() - began
    now = counted()
    return now[0] - commands - 1, now[1] - sent - idle_bytes, taken


def history(bench: Bench, options: argparse.Namespace, failures: Failures) -> None:
    """Print what it costs to look at a run with a long history, and what its events take."""
    from statem_dist.history import history as told_history
    from statem_dist.store import keys

    bench.end(bench.worker)
    bench.end(bench.api)
    bench.start("long")
    store, engine = bench.engine.store, bench.engine
    looks: dict[str, Callable[[], object]] = {
        "cur": lambda: engine.run("long"),
        "history --tail 5": lambda: told_history(engine.log, engine.run("long"), 5),
    }
    made, steps = 0, sorted({100, options.transitions // 10, options.transitions})
    print(f"{'transitions':>12}{'events':>9}{'bytes/event':>13}   what it costs to look")
    for step in steps:
        began = time.perf_counter()
        for number in range(made, step):
            engine.goto("long", "plain2" if number % 2 else "plain", bench_actor())
        each = 1000 * (time.perf_counter() - began) / max(1, step - made)
        made = step
        events = store.call("XLEN", keys.events("long"))
        bytes_each = store.call("MEMORY", "USAGE", keys.events("long"), "SAMPLES", 0) / events
        costs = {name: traffic(bench, look) for name, look in looks.items()}
        shown = ", ".join(
            f"{name}: {n} commands, {sent} bytes, {1000 * s:.1f} ms" for name, (n, sent, s) in costs.items()
        )
        print(f"{made:>12}{events:>9}{bytes_each:>13.0f}   {shown}; goto {each:.2f} ms")
        failures.unless(all(n <= 4 and sent < 50_000 for n, sent, _ in costs.values()), f"a look costs {shown}")


def lists(bench: Bench, options: argparse.Namespace, failures: Failures) -> None:
    """Print what lists of many runs cost, and what the server took long for."""
    bench.end(bench.worker)
    live = 2_000
    for at in range(0, options.finished + live, 1_000):
        wanted = [
            {"runbook": bench.runbook.hash, "run_id": f"listed-{at + n}", "workspace": str(bench.folder)}
            for n in range(1_000)
        ]
        status, body = asyncio.run(ask_once(bench, request(bench, "POST", "/v1/runs/bulk", {"runs": wanted})))
        assert (status, json.loads(body)["created"]) == (200, 1_000), body[:500]
    for number in range(options.finished):
        bench.engine.cancel_run(f"listed-{number}", "", bench_actor())
    bench.redis("CONFIG", "SET", "slowlog-log-slower-than", "20000")
    bench.redis("SLOWLOG", "RESET")
    paths = ("/v1/runs?limit=50", "/v1/runs?limit=50&status=active", "/v1/runs?limit=50&status=cancelled", "/metrics")
    for path in paths:
        asked = request(bench, "GET", path)
        asyncio.run(ask_once(bench, asked))
        commands, sent, taken = traffic(bench, lambda: asyncio.run(ask_once(bench, asked)))  # noqa: B023
        print(f"{path:<38}{commands:>5} commands{sent:>9} bytes{1000 * taken:>8.1f} ms")
        failures.unless(commands < 400 and taken < 0.2, f"{path}: {commands} commands, {1000 * taken:.0f} ms")
    slow = bench.redis("SLOWLOG", "GET", "10")
    failures.unless(not slow, f"commands that took longer than 20 ms: {slow}")


# --- one worker ------------------------------------------------------------------------------------------------------


def worker_memory(bench: Bench, options: argparse.Namespace, failures: Failures) -> None:
    """Print the memory of a worker over many trivial checks; it is to stay within a fifth of what it was after 500."""
    runs = 50
    for number in range(runs):
        bench.start(f"many-{number}", CHECKED)
    done, at = 0, sorted({500, options.checks // 2, options.checks})
    sizes = []
    for step in at:
        while done < step:
            there = f"{CHECKED}2" if (done // runs) % 2 == 0 else CHECKED
            opened = [bench.engine.goto(f"many-{number}", there, bench_actor(), wait=False) for number in range(runs)]
            for each in opened:
                bench.engine.see_through(each.run.id, deadline())
            done += runs
        pids = processes(bench, [bench.worker])
        sizes.append({name: pss(pid) for name, pid in pids.items() if name in ("worker 0", "supervisor 0")})
        print(f"after {done:>6} checks: " + ", ".join(f"{name} {size:.1f} MiB" for name, size in sizes[-1].items()))
    for name, first in sizes[0].items():
        failures.unless(sizes[-1][name] <= 1.2 * first, f"{name} grew from {first:.1f} to {sizes[-1][name]:.1f} MiB")


def deadline() -> Any:
    """Return the time that a check may take to settle."""
    from statem_dist.deadline import Deadline

    return Deadline(60.0)


def pss(pid: int) -> float:
    """Return the proportional set size of a process in MiB."""
    return number_in(Path(f"/proc/{pid}/smaps_rollup").read_text(), "Pss") / 1024


if __name__ == "__main__":
    main()
