"""One simulated world: a store, a broker, hosts with workers, people and agents with command lines, and the weather.

The actors run the real ``Engine`` (so ``Carrier``, ``InlineWorker``, ``Coordinator`` and the decider), the real
``Runtime`` of a worker (so ``Executor``, ``LeaseKeeper``), the real ``Reaper``, ``Roster``, ``Watcher`` and
``RedisStore``, on a server that executes the real Lua scripts. Simulated are the server's commands, the network, the
broker between queue and worker, the supervisor of commands, time, threads, chance and death.
"""

from __future__ import annotations

import hashlib
import logging
import os
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

from msgspec import Struct

# What is loaded on demand in earnest has to be there before the stand-ins are put in.
import statem_dist.dynamic
import statem_dist.inline  # noqa: F401
from statem_dist.checks.process import Captured, Finished
from statem_dist.dispatch import Dispatcher, NoDispatch, PushWithCommit
from statem_dist.errors import StatemError
from statem_dist.protocol.graph import Runbook
from statem_dist.protocol.model import Place
from statem_dist.protocol.progress import CHECKS_QUEUE, REVIEWS_QUEUE
from statem_dist.settings import Settings
from statem_dist.store import keys
from statem_dist.store.codec import StoredRunbook, encode_runbook
from tests.simulation import virtual
from tests.simulation.actors import Director
from tests.simulation.broker import Broker, PublishLater
from tests.simulation.effects import Effects, Execution, Supervisor
from tests.simulation.faults import Faults, Kind
from tests.simulation.judging import Laws
from tests.simulation.kernel import MICROSECONDS, Kernel, Process
from tests.simulation.network import SimulatedClient, carried_out_late
from tests.simulation.server import Server
from tests.support.random_worlds import random_runbook

URL = "redis://simulated"
OTHER_BROKER = "amqp://simulated"
QUEUES = (CHECKS_QUEUE, REVIEWS_QUEUE, "pinned")


class Scenario(Struct, frozen=True):
    """What a world is made of. Times are virtual seconds.

    ``runs`` are the queues that the runs are pinned to, None for the common ones. ``workers`` names the queues of each
    worker; without any, callers execute for themselves. ``inline`` says whether callers execute what nobody serves.
    ``script`` are the targets to which each run is moved; without any, agents do what they like for as long as the
    storm lasts.
    """

    runbooks: tuple[Runbook, ...]
    runs: tuple[str | None, ...]
    workers: tuple[tuple[str, ...], ...]
    slots: int
    inline: bool
    own_broker: bool
    storm_seconds: float
    script: tuple[str, ...] = ()
    people: int = 1
    operators: int = 1
    observers: int = 1
    reviewer: bool = True
    lease_seconds: float = 10.0
    think_seconds: float = 3.0


class Report(Struct):
    """What came of one world."""

    seed: int
    steps: int
    seconds: float
    transitions: int
    outcomes: dict[str, int]
    faults: dict[str, int]
    executions: int
    detected: int
    trace: list[str]
    broken: str = ""

    @property
    def digest(self) -> str:
        """A short name for the whole history."""
        return hashlib.sha256("\n".join(self.trace).encode()).hexdigest()


def random_scenario(rng: Random) -> Scenario:
    """Return a scenario drawn from a seed: from one caller alone to workers on two hosts with a broker of their own."""
    runbooks = tuple(random_runbook(rng, digest * 16) for digest in ("h1b2", "h2c3"))
    count = rng.choice((0, 1, 2, 2, 3))
    inline = not count or rng.random() < 0.3
    # Where callers execute nothing, somebody has to serve every queue.
    workers = tuple(
        QUEUES if (number == 0 and not inline) or rng.randint(0, 3) else (CHECKS_QUEUE,) for number in range(count)
    )
    return Scenario(
        runbooks=runbooks,
        runs=tuple(rng.choice((None, None, "pinned")) for _ in range(rng.randint(1, 3))),
        workers=workers,
        slots=rng.randint(1, 3),
        inline=inline,
        own_broker=rng.random() < 0.3,
        storm_seconds=rng.choice((20.0, 60.0)),
        observers=rng.randint(0, 1),
        reviewer=rng.random() < 0.7,
    )


class World:
    """One world, from its seed.

    Args:
        seed: where every choice comes from.
        scenario: what it is made of; None draws it.
        kinds: which faults there are in it; None draws them.
        traced: whether to keep a line per step.
    """

    def __init__(
        self,
        seed: int,
        *,
        scenario: Scenario | None = None,
        kinds: frozenset[Kind] | None = None,
        traced: bool = False,
    ) -> None:
        self.seed = seed
        self.rng = Random(seed)
        self.scenario = scenario or random_scenario(self.rng)
        self.faults = Faults(self.rng, kinds)
        self.kernel = Kernel(self.rng, traced=traced)
        self.kernel.on_point = self._befall
        self.clock_us = 0
        self.clock_jumps = 0
        self.rollbacks = 0
        self.detected: Counter[str] = Counter()
        self.troubled_us = 0
        self.store_away_until = 0
        self.server = Server(self.store_clock_us, self._written, self._message_came)
        self.broker = Broker(self)
        self.effects = Effects(self)
        self.laws = Laws(self)
        self.runbooks = {runbook.hash: runbook for runbook in self.scenario.runbooks}
        self.settings = Settings(
            state_dir=Path("/nowhere"),
            redis_url=URL,
            broker_url=OTHER_BROKER if self.scenario.own_broker else None,
            lease_seconds=self.scenario.lease_seconds,
            hint_grace_seconds=2.0,
            kill_grace_seconds=1.0,
            reviewer_command="review" if self.scenario.reviewer else None,
        )
        self.network = self.kernel.process("network", "nowhere")
        self.network.immortal = True
        self.director = Director(self)
        self._by_pid: dict[int, Process] = {}
        for runbook in self.scenario.runbooks:
            document = encode_runbook(StoredRunbook(runbook=runbook, text="", source="simulated"))
            self.server.execute(("SET", keys.runbook(runbook.hash), document))

    def play(self) -> Report:
        """Let everything happen; return what came of it.

        Raises:
            AssertionError: a law was broken, or somebody who had something to do never did it.
        """
        with virtual.installed(self.kernel, self._replacements()), _heard(self.kernel):
            self.director.begin()
            self.kernel.run()
        return self.report()

    def report(self) -> Report:
        """Return what has happened so far."""
        return Report(
            seed=self.seed,
            steps=self.kernel.steps,
            seconds=(self.kernel.now - 1_750_000_000 * MICROSECONDS) / MICROSECONDS,
            transitions=self.laws.transitions,
            outcomes=dict(self.laws.outcomes),
            faults={str(kind): count for kind, count in self.faults.counts.items()},
            executions=len(self.effects.executions),
            detected=sum(self.detected.values()),
            trace=self.kernel.trace or [],
        )

    # --- what the actors find in their places -----------------------------------------------------------------

    def _replacements(self) -> dict[str, object]:
        def client_for(url: str, *, quick: bool = False) -> SimulatedClient:
            return SimulatedClient(self)

        def supervisor(*, kill_grace_seconds: float) -> Supervisor:
            return Supervisor(self, kill_grace_seconds)

        def dispatcher_for(settings: Settings, redis_url: str) -> Dispatcher:
            return self.dispatcher()

        made = {"client_for": client_for, "Supervisor": supervisor, "dispatcher_for": dispatcher_for}
        users = {
            "client_for": ("statem_dist.engine", "statem_dist.carrier", "statem_workers.runtime"),
            "Supervisor": ("statem_dist.inline", "statem_workers.runtime"),
            "dispatcher_for": ("statem_dist.engine", "statem_workers.runtime"),
        }
        return {
            **{f"{module}:{name}": made[name] for name, modules in users.items() for module in modules},
            "statem_dist.inline:outlive_commands": self.effects.outlive,
            "statem_dist.inline:end_commands": self.effects.end_for,
            "statem_dist.identity:_start_time": self._start_time,
            "statem_dist.dispatch:_new_id": lambda: self.rng.randbytes(8).hex(),
        }

    def dispatcher(self) -> Dispatcher:
        """Return how work is dispatched in this world."""
        if not self.scenario.workers:
            return NoDispatch()
        return PublishLater(self) if self.scenario.own_broker else PushWithCommit()

    def _start_time(self, pid: int) -> int | None:
        process = self._process_by_pid(pid)
        return process.started if process is not None and process.alive else None

    def _process_by_pid(self, pid: int) -> Process | None:
        for process in self.kernel.processes[len(self._by_pid) :]:
            self._by_pid[process.pid] = process
        return self._by_pid.get(pid)

    def process_of(self, worker: str) -> Process:
        """Return the process that calls itself so in the store."""
        process = self._process_by_pid(int(worker.split(":")[2]))
        assert process is not None
        return process

    # --- what befalls them ------------------------------------------------------------------------------------

    def store_clock_us(self) -> int:
        """Return the clock of the store."""
        return self.kernel.now + self.clock_us

    def _befall(self, process: Process, what: str) -> None:
        if process.immortal:
            return
        fate = self.faults.on_point(self.kernel)
        if not fate:
            return
        self.kernel.note(f"{fate}: {process.name}")
        if fate == "crash":
            self.faults.happened("crash")
            self.kernel.end(process)
        elif fate == "freeze":
            self.faults.happened("freeze")
            seconds = self.rng.choice((1.0, 3.0, 12.0, 40.0))
            process.troubles.add("freeze")
            self.kernel.freeze(process, seconds)
            if self.faults.strikes("monotonic clock stands still"):
                process.clock_us -= round(seconds * MICROSECONDS)
        else:
            self.faults.happened("monotonic clock jumps")
            process.troubles.add("monotonic clock jumps")
            process.clock_us += round(self.rng.uniform(1, 60) * MICROSECONDS)

    def weather(self, kind: Kind) -> None:
        """Bring about a fault that everybody suffers from."""
        rng, kernel = self.rng, self.kernel
        kernel.note(kind)
        self.faults.happened(kind)
        match kind:
            case "store clock jumps":
                self.clock_us += round(rng.uniform(1, 40) * MICROSECONDS)
                self.clock_jumps += 1
            case "store away":
                self.store_away_until = kernel.now + round(rng.uniform(0.1, 15) * MICROSECONDS)
            case "store out of memory":
                self.server.out_of_memory = True
                self.later(rng.uniform(0.5, 15), "memory is there again", self._memory_is_there)
            case "store rolled back":
                self.rollbacks += 1
                self.server.take_back(rng.randint(1, 8))
                self.laws.judge_rollback()
            case "scripts flushed":
                self.server.execute(("SCRIPT", "FLUSH"))
            case "broker wiped":
                self.broker.wipe()
            case _:
                raise AssertionError(kind)
        self.troubled_us = kernel.now

    def _memory_is_there(self) -> None:
        self.server.out_of_memory = False
        self.troubled_us = self.kernel.now

    def calm_down(self) -> None:
        """End the storm: nothing fails any more."""
        self.faults.calm = True
        self.store_away_until = min(self.store_away_until, self.kernel.now)
        self._memory_is_there()

    def later(self, seconds: float, what: str, act: Callable[[], Any]) -> None:
        """Have something happen after some time, whoever is dead by then."""

        def happen() -> None:
            self.kernel.sleep(seconds)
            if self.store_away_until <= self.kernel.now:
                carried_out_late(act)

        self.kernel.spawn(self.network, what, happen)

    # --- what happens in them ---------------------------------------------------------------------------------

    def _written(self, run_id: str) -> None:
        self.laws.judge_events(run_id)

    def _message_came(self, queue: str) -> None:
        self.broker.announce()

    def draw_command(self, execution: Execution) -> tuple[float, Finished]:
        """Return how long a command takes and how it ends."""
        rng = self.rng
        fate = rng.random()
        seconds = rng.uniform(0.01, 1) if fate < 0.7 else rng.uniform(1, 4) if fate < 0.9 else rng.uniform(4, 25)
        if self.faults.strikes("supervisor lost"):
            return seconds, Finished(failure="supervisor_lost", text="the supervisor is gone")
        match rng.randint(0, 19):
            case 0 | 1 | 2:
                return seconds, Finished(exit_code=1, stderr=Captured(head=b"no", written=2))
            case 3:
                return seconds, Finished(signal=9)
            case 4:
                return seconds, Finished(exit_code=os.EX_TEMPFAIL)
            case _:
                return seconds, Finished(exit_code=0)

    def command_begun(self, execution: Execution) -> None:
        """Have some commands call ``statem-dist`` on their own run, and some workers die while they wait for theirs."""
        if self.rng.random() < 0.05:
            self.director.call_from_inside(execution)
        # Who waits for a command passes few switching points, and it is then that there is most to lose.
        if self.faults.strikes("crash in a command"):
            moment = self.rng.uniform(0, (execution.ends_us - self.kernel.now) / MICROSECONDS)
            self.later(moment, "crash in a command", partial(self.kernel.end, execution.process))

    def place(self, queue: str | None) -> Place:
        """Return where the checks of a run are executed."""
        return Place(workspace="/nowhere", queue=queue)


class _Defects(logging.Handler):
    """Ends a simulation when a thread logs an exception that is none of the project's own errors: a defect."""

    def __init__(self, kernel: Kernel) -> None:
        super().__init__(logging.WARNING)
        self._kernel = kernel

    def emit(self, record: logging.LogRecord) -> None:
        """Look at a record."""
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, StatemError):
            self._kernel.failure = self._kernel.failure or error


@contextmanager
def _heard(kernel: Kernel) -> Iterator[None]:
    """Hear what threads log instead of dying of it."""
    handler = _Defects(kernel)
    loggers = [logging.getLogger("statem_dist"), logging.getLogger("statem_workers")]
    before = [logger.propagate for logger in loggers]
    for logger in loggers:
        logger.addHandler(handler)
        logger.propagate = False
    try:
        yield
    finally:
        for logger, propagate in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.propagate = propagate
