"""What the REST service costs beside the library and beside Celery, and what it bears.

Everything runs on one machine and shares its cores: the embedded Redis, one API process, one worker and the callers,
which speak HTTP over plain sockets of asyncio, because an HTTP library would spend more than the service it measures.
Each figure is the median of several rounds that are measured in turn, so that what else the machine does hits all rows
alike. Ratios are what counts; the machine decides the milliseconds.

    python benchmarks/rest_api.py [--rounds 3] [--seconds 3] [--streams 500] [--only verbs,reads,streams]
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

RUNBOOK = """
nodes:
  start: {next: [plain, looked, ran]}
  plain: {next: plain2}
  plain2: {next: plain}
  looked: {before_transfer: [{type: predicate, path: there.txt, exists: true}], next: looked2}
  looked2: {before_transfer: [{type: predicate, path: there.txt, exists: true}], next: looked}
  ran: {before_transfer: [{type: command, run: "true"}], next: ran2}
  ran2: {before_transfer: [{type: command, run: "true"}], next: ran}
"""

KINDS = {"no checks": "plain", "one predicate": "looked", "one command (true)": "ran"}
"""What a ``goto`` is measured with, and the node between which and its twin it moves."""

CALLERS = (1, 16)

CELERY = """
from celery import Celery

app = Celery("noop", broker={broker!r}, backend={backend!r})
app.conf.update(task_ignore_result=True, worker_hijack_root_logger=False)

@app.task(name="noop", ignore_result=True)
def noop():
    pass

@app.task(name="answered", ignore_result=False)
def answered():
    pass
"""

TICKS = os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=3, help="how often each row is measured")
    parser.add_argument("--seconds", type=float, default=3.0, help="length of one measurement")
    parser.add_argument("--streams", type=int, default=500, help="idle readers of events")
    parser.add_argument("--only", default="verbs,reads,streams", help="parts to measure")
    options = parser.parse_args()
    parts = options.only.split(",")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    print(f"{os.cpu_count()} cores, load before: {os.getloadavg()[0]:.1f}, Python {sys.version.split()[0]}")
    with tempfile.TemporaryDirectory(prefix="statem-bench-") as folder, Bench(Path(folder)) as bench:
        if "verbs" in parts:
            verbs(bench, options.rounds, options.seconds)
        if "reads" in parts:
            reads(bench, options.rounds, options.seconds)
        if "streams" in parts:
            asyncio.run(streams(bench, options.streams, options.rounds))
        faults = [line for line in bench.log() if re.search(r" (WARNING|ERROR|CRITICAL) |Traceback", line)]
        print(f"\nLines of the API's log that tell of trouble: {len(faults)}")
        print("".join(f"  {line}\n" for line in faults[:10]), end="")
        print(f"load after: {os.getloadavg()[0]:.1f}")


class Bench:
    """The programs that are measured, in a folder of their own.

    Args:
        folder: empty; everything that is started here works there.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._programs: list[subprocess.Popen[bytes]] = []

    def __enter__(self) -> Bench:
        from statem_dist.embedded import server
        from statem_dist.engine import Engine
        from statem_dist.runbook import parse
        from statem_dist.settings import Settings
        from statem_dist.tokens import Tokens

        for name in [name for name in os.environ if name.startswith(("STATEM_", "CELERY_"))]:
            del os.environ[name]
        os.environ["STATEM_STATE_DIR"] = str(self.folder / "state")
        (self.folder / "there.txt").touch()
        self.settings = Settings.from_environment(os.environ)
        endpoint = server.ensure(self.settings.state_dir, idle_stop_seconds=0)
        self.redis_url, self.broker_url, self.socket = endpoint.redis_url, endpoint.broker_url, str(endpoint.socket)
        self.engine = Engine(self.settings, self.redis_url, inline=False)
        self.runbook = self.engine.register(parse(RUNBOOK, source="bench.yaml", format="yaml"), "bench.yaml")
        _, self.token = Tokens(self.engine.store).create("bench", "admin", {}, None, "bench")
        self.worker = self.begin("worker.log", *statem("worker"))
        self.api = self.begin("api.log", *statem("api", "--port", "0"))
        until(lambda: "ready: " in self._text("worker.log"), "the worker is ready")
        until(lambda: "Serving: " in self._text("api.log"), "the service is ready")
        found = re.search(r"Serving: http://127\.0\.0\.1:(\d+)", self._text("api.log"))
        assert found is not None
        self.port = int(found[1])
        return self

    def __exit__(self, *_: object) -> None:
        from statem_dist.embedded import server

        for program in reversed(self._programs):
            self.end(program)
        self.engine.close()
        server.stop(self.settings.state_dir)

    def begin(self, log: str, *words: str) -> subprocess.Popen[bytes]:
        """Start a program; its output goes to a file."""
        with (self.folder / log).open("wb") as out:
            program = subprocess.Popen(words, cwd=self.folder, stdout=out, stderr=subprocess.STDOUT)
        self._programs.append(program)
        return program

    def end(self, program: subprocess.Popen[bytes]) -> float:
        """Ask a program to stop; return the seconds that it took."""
        began = time.perf_counter()
        if program.poll() is None:
            program.send_signal(signal.SIGTERM)
            try:
                program.wait(20)
            except subprocess.TimeoutExpired:
                program.kill()
                program.wait()
        return time.perf_counter() - began

    def log(self) -> list[str]:
        """Return the log of the API."""
        return self._text("api.log").splitlines()

    def start(self, run_id: str, node: str | None = None, **labels: str) -> None:
        """Start a run in process, and move it to a node."""
        from statem_dist.engine import StartRequest
        from statem_dist.protocol.model import Actor, Place

        place = Place(workspace=str(self.folder), spec="", state_dir=str(self.settings.state_dir))
        self.engine.create(StartRequest(self.runbook, run_id, place, Actor("bench"), labels=labels))
        if node is not None:
            self.engine.goto(run_id, node, Actor("bench"))

    def redis(self, *words: str) -> Any:
        """Send one command to the server."""
        from statem_dist.resp import Connection

        with Connection(self.socket) as connection:
            return connection.call(*words)

    def _text(self, log: str) -> str:
        return (self.folder / log).read_text(errors="replace")


# --- verbs -----------------------------------------------------------------------------------------------------------


def verbs(bench: Bench, rounds: int, seconds: float) -> None:
    """Print what a ``goto`` costs by HTTP and in process, and a task of Celery beside it."""
    for node in KINDS.values():
        for caller in range(max(CALLERS)):
            bench.start(f"{node}-http-{caller}", node)
            bench.start(f"{node}-engine-{caller}", node)
    rows: dict[tuple[str, str, int], list[Measured]] = {}
    ways: dict[str, Callable[[str, int], Measured]] = {
        "POST goto?wait=30": lambda node, callers: by_http(bench, gotos(bench, node), callers, seconds),
        "Engine.goto": lambda node, callers: in_process(bench, node, callers, seconds),
    }
    for _ in range(rounds):
        for kind, node in KINDS.items():
            for callers in CALLERS:
                for way, measure in ways.items():
                    rows.setdefault((way, kind, callers), []).append(measure(node, callers))
    commands = {kind: commands_of_a_goto(bench, node) for kind, node in KINDS.items()}
    print(f"\n{'':<20}{'':<20}{'callers':>8}{'per s':>9}{'p50':>10}{'p99':>10}{'CPU, API':>11}{'Redis commands':>16}")
    for (way, kind, callers), found in rows.items():
        http = way.startswith("POST")
        cpu = f"{median(each.cpu_ms for each in found):>8.2f} ms" if http else " " * 11
        asked = f"{commands[kind]:>16.1f}" if http and callers == 1 else ""
        print(f"{way:<20}{kind:<20}{callers:>8}{latencies(found)}{cpu}{asked}")
    celery(bench, rounds)


def gotos(bench: Bench, node: str) -> Callable[[int], Iterator[bytes]]:
    """Return what each caller asks in turn: its own run moves to and fro."""

    def asked(caller: int) -> Iterator[bytes]:
        run_id = f"{node}-http-{caller}"
        there = f"{node}2" if bench.engine.run(run_id).node == node else node
        while True:
            yield request(bench, "POST", f"/v1/runs/{run_id}/goto?wait=30", {"target": there})
            there = node if there != node else f"{node}2"

    return asked


def in_process(bench: Bench, node: str, callers: int, seconds: float) -> Measured:
    """Measure the same verb of the library, one thread per caller, the work left to the worker."""
    from statem_dist.protocol.model import Actor

    end = time.perf_counter() + seconds

    def call(caller: int) -> list[float]:
        run_id, taken = f"{node}-engine-{caller}", []
        there = f"{node}2" if bench.engine.run(run_id).node == node else node
        while (began := time.perf_counter()) < end:
            settled = bench.engine.goto(run_id, there, Actor("bench"))
            assert settled.transition.outcome == "committed"
            taken.append(time.perf_counter() - began)
            there = node if there != node else f"{node}2"
        return taken

    with ThreadPoolExecutor(callers) as pool:
        return Measured([each for found in pool.map(call, range(callers)) for each in found], seconds, 0.0)


def commands_of_a_goto(bench: Bench, node: str, times: int = 50) -> float:
    """Return how many commands Redis gets per ``goto``, of the API and the worker together, by MONITOR."""
    import redis

    seen: list[str] = []
    watching = redis.Redis.from_url(bench.redis_url)
    with watching.monitor() as monitor:
        listener = threading.Thread(target=_listen, args=(monitor, seen), daemon=True)
        listener.start()

        async def call() -> None:
            async with Connection(bench.port) as connection:
                for _, asked in zip(range(times), gotos(bench, node)(0), strict=False):
                    status, _ = await connection.ask(asked)
                    assert status == 200

        asyncio.run(call())
        bench.redis("ECHO", "end-of-measurement")
        listener.join(10)
    # A worker looks for messages once a second and says every three that it is there; that is not counted.
    idle = ("BRPOP", "ZADD", "ZREM", "ZRANGEBYSCORE", "ECHO", "PING", "MULTI", "EXEC", "ZREVRANGEBYSCORE")
    return sum(each.split(" ")[0].upper() not in idle for each in seen) / times


def _listen(monitor: Any, seen: list[str]) -> None:
    for each in monitor.listen():
        if "end-of-measurement" in each["command"]:
            return
        if each["client_type"] != "lua":
            seen.append(each["command"])


def celery(bench: Bench, rounds: int, tasks: int = 2_000) -> None:
    """Print what empty tasks of Celery cost on the same server: published, run, and with an answer waited for."""
    module = CELERY.format(broker=bench.broker_url, backend=bench.redis_url.replace("unix://", "redis+socket://"))
    (bench.folder / "noop.py").write_text(module)
    sys.path.insert(0, str(bench.folder))
    import noop

    published: list[float] = []
    executed: list[float] = []
    answered: dict[int, list[Measured]] = {callers: [] for callers in CALLERS}
    for _ in range(rounds):
        began = time.perf_counter()
        for _ in range(tasks):
            noop.noop.delay()
        published.append(tasks / (time.perf_counter() - began))
        began = time.perf_counter()
        words = (
            "-m",
            "celery",
            "-A",
            "noop",
            "worker",
            "-P",
            "threads",
            "-c",
            "4",
            "-l",
            "WARNING",
            "--without-mingle",
        )
        worker = bench.begin("celery.log", sys.executable, *words, "--without-gossip", "--without-heartbeat")
        until(lambda: bench.redis("LLEN", "celery") < tasks, "a task is taken")
        began = time.perf_counter()
        until(lambda: bench.redis("LLEN", "celery") == 0, "every task is taken")
        executed.append(tasks / (time.perf_counter() - began))
        for callers in CALLERS:
            answered[callers].append(with_answers(noop.answered, callers, 2.0))
        bench.end(worker)
    print(f"{'Celery':<20}{'published':<20}{1:>8}{median(published):>9.0f}")
    print(f"{'Celery':<20}{'taken by 4 threads':<20}{'':>8}{median(executed):>9.0f}")
    for callers, found in answered.items():
        print(f"{'Celery':<20}{'delay() and get()':<20}{callers:>8}{latencies(found)}")


def with_answers(task: Any, callers: int, seconds: float) -> Measured:
    """Measure tasks whose results are waited for, one thread per caller."""
    end = time.perf_counter() + seconds

    def call(_: int) -> list[float]:
        taken = []
        while (began := time.perf_counter()) < end:
            task.delay().get(timeout=30)
            taken.append(time.perf_counter() - began)
        return taken

    with ThreadPoolExecutor(callers) as pool:
        return Measured([each for found in pool.map(call, range(callers)) for each in found], seconds, 0.0)


# --- reads -----------------------------------------------------------------------------------------------------------


def reads(bench: Bench, rounds: int, seconds: float) -> None:
    """Print what it costs to show and to list runs, and to start many at once."""
    bulk: list[float] = []
    for round_ in range(10):
        wanted = [
            {"runbook": bench.runbook.hash, "run_id": f"bulk-{round_}-{n}", "workspace": str(bench.folder)}
            for n in range(1_000)
        ]
        began = time.perf_counter()
        status, body = asyncio.run(ask_once(bench, request(bench, "POST", "/v1/runs/bulk", {"runs": wanted})))
        bulk.append(time.perf_counter() - began)
        assert (status, json.loads(body)["created"]) == (200, 1_000), body[:500]
    rows = {
        "GET run": "/v1/runs/bulk-0-7",
        "GET 50 of 10,000": "/v1/runs?limit=50",
        "GET 50 by status": "/v1/runs?limit=50&status=active",
        "GET page of events": "/v1/runs/bulk-0-7/events",
        "GET healthz": "/healthz",
    }
    found: dict[tuple[str, int], list[Measured]] = {}
    for _ in range(rounds):
        for name, path in rows.items():
            for callers in CALLERS:
                ask = request(bench, "GET", path)
                measured = by_http(bench, lambda _, ask=ask: iter(lambda: ask, None), callers, seconds)
                found.setdefault((name, callers), []).append(measured)
    print(f"\n{'':<20}{'callers':>8}{'per s':>9}{'p50':>10}{'p99':>10}{'CPU, API':>11}")
    for (name, callers), each in found.items():
        print(f"{name:<20}{callers:>8}{latencies(each)}{median(one.cpu_ms for one in each):>8.2f} ms")
    print(f"{'POST bulk, 1,000':<20}{1:>8}{1_000 / median(bulk):>9.0f}   runs per s (median of 10 requests)")


# --- streams ---------------------------------------------------------------------------------------------------------


async def streams(bench: Bench, count: int, rounds: int) -> None:
    """Print what idle readers cost the API, whether all comes back, and how soon an event arrives."""
    for number in range(count):
        bench.start(f"idle-{number}", "plain")
    print(f"\n{'':<34}{'threads':>8}{'Redis':>7}{'RSS':>11}{'p50':>10}{'p99':>10}{'CPU idle':>10}")
    print(f"{'before':<34}{state_of(bench)}")
    for _ in range(rounds):
        readers = await asyncio.gather(*(Reader.open(bench, f"/v1/runs/idle-{n}/events?after=1") for n in range(count)))
        await asyncio.gather(*(reader.until_quiet() for reader in readers))
        delays = [await a_move(bench, number % count, [readers[number % count]]) for number in range(200)]
        cpu = await idle_cpu(bench)
        print(f"{f'{count} streams of runs':<34}{state_of(bench)}{delayed(delays)}{cpu:>8.1f} %")
        await close_all(bench, readers)
        print(f"{'  closed':<34}{state_of(bench)}")
    for _ in range(rounds):
        readers = await asyncio.gather(*(Reader.open(bench, "/v1/events") for _ in range(count)))
        await a_move(bench, 0, readers)
        await asyncio.gather(*(reader.until_quiet() for reader in readers))
        delays = [await a_move(bench, number, readers) for number in range(50)]
        cpu = await idle_cpu(bench)
        print(f"{f'{count} readers of the feed':<34}{state_of(bench)}{delayed(delays)}{cpu:>8.1f} %")
        await close_all(bench, readers)
        print(f"{'  closed':<34}{state_of(bench)}")
    readers = await asyncio.gather(*(Reader.open(bench, f"/v1/runs/idle-{n}/events") for n in range(count)))
    taken = await asyncio.to_thread(bench.end, bench.api)
    print(f"SIGTERM with {count} streams open: ended after {taken:.1f} s, exit code {bench.api.returncode}")
    for reader in readers:
        await reader.close()


class Reader:
    """One reader of a stream of events, on a plain socket."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, bench: Bench, path: str) -> Reader:
        """Begin to read a stream, and return once it has begun."""
        reader, writer = await asyncio.open_connection("127.0.0.1", bench.port)
        writer.write(request(bench, "GET", path, accept="text/event-stream"))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        opened = cls(reader, writer)
        await reader.readuntil(b"retry: ")
        return opened

    async def until_quiet(self) -> None:
        """Read what is there already."""
        with suppress(TimeoutError):
            while True:
                async with asyncio.timeout(1.0):
                    await self._reader.read(65_536)

    async def arrival(self, of: bytes) -> float:
        """Return when a text has arrived."""
        await self._reader.readuntil(of)
        return time.perf_counter()

    async def close(self) -> None:
        """Leave."""
        self._writer.close()
        with suppress(ConnectionError):
            await self._writer.wait_closed()


async def a_move(bench: Bench, number: int, readers: Sequence[Reader]) -> list[float]:
    """Move a run; return the seconds after which each reader has the event that says so."""
    from statem_dist.protocol.model import Actor

    run_id = f"idle-{number}"

    def move() -> float:
        run = bench.engine.run(run_id)
        began = time.perf_counter()
        bench.engine.goto(run_id, "plain2" if run.node == "plain" else "plain", Actor("bench"), wait=False)
        return began

    arrivals = asyncio.gather(*(reader.arrival(b"transition_settled") for reader in readers))
    began = await asyncio.to_thread(move)
    return [arrived - began for arrived in await arrivals]


async def close_all(bench: Bench, readers: Sequence[Reader]) -> None:
    """Close streams, and return when the API has noticed."""
    for reader in readers:
        await reader.close()
    while True:
        _, text = await ask_once(bench, request(bench, "GET", "/metrics"))
        if re.search(rb"^statem_sse_clients 0\.0$", text, re.MULTILINE):
            return
        await asyncio.sleep(0.05)


async def idle_cpu(bench: Bench, seconds: float = 16.0) -> float:
    """Return the percentage of a core that the API uses while nothing happens, a heartbeat of each stream included."""
    before = cpu_seconds(bench.api.pid)
    await asyncio.sleep(seconds)
    return 100 * (cpu_seconds(bench.api.pid) - before) / seconds


def state_of(bench: Bench) -> str:
    """Return threads and memory of the API, and how many connections Redis has, all programs together."""
    status = Path(f"/proc/{bench.api.pid}/status").read_text()
    threads = re.search(r"^Threads:\s+(\d+)", status, re.MULTILINE)
    memory = re.search(r"^VmRSS:\s+(\d+)", status, re.MULTILINE)
    assert threads is not None
    assert memory is not None
    connections = len(bench.redis("CLIENT", "LIST").splitlines())
    return f"{threads[1]:>8}{connections:>7}{int(memory[1]) / 1024:>7.1f} MiB"


def delayed(delays: Sequence[Sequence[float]]) -> str:
    """Return median and 99th percentile of delays."""
    flat = sorted(each for some in delays for each in some)
    return f"{1000 * flat[len(flat) // 2]:>7.1f} ms{1000 * flat[int(len(flat) * 0.99)]:>7.1f} ms"


# --- measuring -------------------------------------------------------------------------------------------------------


class Measured:
    """One measurement: how long each request took, and what the API spent.

    Args:
        taken: seconds of each request.
        seconds: how long was measured.
        cpu_seconds: processor time of the API meanwhile.
    """

    def __init__(self, taken: Sequence[float], seconds: float, cpu_seconds: float) -> None:
        in_order = sorted(taken)
        self.per_second = len(in_order) / seconds
        self.p50 = in_order[len(in_order) // 2]
        self.p99 = in_order[int(len(in_order) * 0.99)]
        self.cpu_ms = 1000 * cpu_seconds / len(in_order)


def by_http(bench: Bench, asked: Callable[[int], Iterator[bytes]], callers: int, seconds: float) -> Measured:
    """Measure requests over connections that are kept alive, one per caller."""
    before = cpu_seconds(bench.api.pid)

    async def call(caller: int, end: float) -> list[float]:
        taken = []
        async with Connection(bench.port) as connection:
            for ask in asked(caller):
                if (began := time.perf_counter()) >= end:
                    break
                status, body = await connection.ask(ask)
                assert status == 200, body
                taken.append(time.perf_counter() - began)
        return taken

    async def call_all() -> list[list[float]]:
        end = time.perf_counter() + seconds
        return await asyncio.gather(*(call(caller, end) for caller in range(callers)))

    taken = [each for found in asyncio.run(call_all()) for each in found]
    return Measured(taken, seconds, cpu_seconds(bench.api.pid) - before)


class Connection:
    """A kept-alive connection to the service."""

    def __init__(self, port: int) -> None:
        self._port = port

    async def __aenter__(self) -> Connection:
        self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port, limit=2**24)
        return self

    async def __aexit__(self, *_: object) -> None:
        self._writer.close()

    async def ask(self, request: bytes) -> tuple[int, bytes]:
        """Send a request; return status and body of its answer."""
        self._writer.write(request)
        head = await self._reader.readuntil(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head, re.IGNORECASE)
        assert length is not None, head
        return int(head[9:12]), await self._reader.readexactly(int(length[1]))


async def ask_once(bench: Bench, asked: bytes) -> tuple[int, bytes]:
    """Send one request over a connection of its own."""
    async with Connection(bench.port) as connection:
        return await connection.ask(asked)


def request(bench: Bench, method: str, path: str, body: Any = None, accept: str = "*/*") -> bytes:
    """Return a request as it goes over the wire."""
    sent = b"" if body is None else json.dumps(body).encode()
    length = f"Content-Type: application/json\r\nContent-Length: {len(sent)}\r\n" if sent else ""
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAccept: {accept}\r\nAuthorization: Bearer {bench.token}\r\n"
    return f"{head}{length}\r\n".encode() + sent


def cpu_seconds(pid: int) -> float:
    """Return the processor time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


def latencies(found: Sequence[Measured]) -> str:
    """Return the columns of a row: medians over the rounds."""
    per_second, p50, p99 = (median(getattr(each, name) for each in found) for name in ("per_second", "p50", "p99"))
    return f"{per_second:>9.0f}{1000 * p50:>7.1f} ms{1000 * p99:>7.1f} ms"


def median(numbers: Any) -> float:
    """Return the median."""
    return float(statistics.median(numbers))


def until(condition: Callable[[], bool], what: str) -> None:
    """Wait until a condition holds."""
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end, f"in vain: {what}"
        time.sleep(0.01)


def statem(*words: str) -> list[str]:
    """Return the words of a command line as the console script runs it."""
    return [str(Path(sys.executable).with_name("statem-dist")), *words]


if __name__ == "__main__":
    main()
