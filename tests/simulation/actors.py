"""Who lives in a world: workers, agents who drive runs and insist, people who decide, operators, readers."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from statem_dist.coordinator import Terms
from statem_dist.deadline import NEVER, Deadline
from statem_dist.engine import Engine, StartRequest
from statem_dist.errors import (
    CancelledRun,
    Conflict,
    NotFound,
    PausedRun,
    StaleVersion,
    StatemError,
    StateRegressed,
    TransitionInFlight,
    Unavailable,
    UnknownTarget,
)
from statem_dist.follow import Settled
from statem_dist.identity import this_process
from statem_dist.leadership import Leadership
from statem_dist.protocol.model import Run, Transition, WayOut
from statem_dist.reaper import DUTY, Reaper
from statem_dist.roster import ANNOUNCE_SECONDS, Roster, WorkerCard
from statem_workers.runtime import Runtime, WorkerOptions
from tests.simulation.effects import Execution
from tests.simulation.faults import WEATHER
from tests.simulation.kernel import MICROSECONDS, Process, Waiters
from tests.support.builders import AGENT, EVERYTHING
from tests.support.random_worlds import OPERATOR, random_confirmations, random_on_manual

if TYPE_CHECKING:
    from tests.simulation.world import World

CALM_SECONDS_MAX = 2_400.0
"""Within this time of the calm everything has settled: a reminder may lie as far away as ``REMIND_MS_MAX``."""

DECIDER_SECONDS = 5.0
"""How long somebody who has decided waits to see what follows from it."""

HOSTS = ("north", "south")

REFUSALS = (TransitionInFlight, UnknownTarget, PausedRun, CancelledRun, NotFound, StaleVersion)
"""Errors that say that nothing was begun."""


class Call:
    """One command line: a process that lives as long as its verb."""

    def __init__(self, rollbacks: int) -> None:
        self.rollbacks = rollbacks
        self.over = False
        self.answer: Settled | Run | None = None
        self.error: BaseException | None = None
        self.waiters: Waiters = {}


class Station:
    """A worker of a host, which somebody starts again when it has died."""

    def __init__(self, name: str, host: str, queues: tuple[str, ...]) -> None:
        self.name = name
        self.host = host
        self.queues = queues
        self.lives = 0
        self.process: Process | None = None
        self.runtime: Runtime | None = None
        self.busy = 0


class Director:
    """Brings the actors on, lets the storm rage, and sees that everything comes to rest afterwards.

    Args:
        world: the stage.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self._calls: list[Call] = []
        self._helping: list[Call] = []
        self._numbers = 0
        self._requests = 0
        self._driving = 0
        self._stations: list[Station] = []
        self._people = world.kernel.process("people", "nowhere")
        self._people.immortal = True
        self._runs: dict[str, str | None] = {}
        self.read: dict[str, int] = {}

    def begin(self) -> None:
        """Bring everybody on."""
        world, kernel, scenario = self._world, self._world.kernel, self._world.scenario
        self._stations = [
            Station(f"worker{number}", HOSTS[number % 2], queues) for number, queues in enumerate(scenario.workers)
        ]
        for station in self._stations:
            self._start(station)
        self._runs = {f"run{number}": queue for number, queue in enumerate(scenario.runs)}
        for run_id, queue in self._runs.items():
            kernel.spawn(self._people, f"driver of {run_id}", partial(self._drive, run_id, queue))
        for number in range(scenario.people):
            kernel.spawn(self._people, f"person{number}", self._decide_again_and_again)
        for number in range(scenario.operators):
            kernel.spawn(self._people, f"operator{number}", self._steer_again_and_again)
        for number, run_id in enumerate(list(self._runs)[: scenario.observers]):
            reader = kernel.process(f"reader{number}", "nowhere")
            reader.immortal = True
            kernel.spawn(reader, "", partial(self._read, run_id))
        kernel.spawn(self._people, "weather", self._weather)
        kernel.spawn(self._people, "nurse", self._nurse)
        kernel.spawn(self._people, "director", self._direct)
        assert world.director is self

    # --- the plot ---------------------------------------------------------------------------------------------

    def _direct(self) -> None:
        world, kernel = self._world, self._world.kernel
        kernel.sleep(world.scenario.storm_seconds)
        while world.scenario.script and self._driving:
            kernel.sleep(1.0)
        kernel.note("the storm is over")
        world.calm_down()
        until = kernel.now + round(CALM_SECONDS_MAX * MICROSECONDS)
        while not self._at_rest():
            if kernel.now > until:
                left = {run_id: case.judge.run.in_flight for run_id, case in world.laws.cases.items() if case.judge.run}
                world.laws.require(False, f"not at rest after {CALM_SECONDS_MAX} s of calm: {left}")
            kernel.sleep(1.0)
            self._help()
        world.laws.judge_the_end()
        kernel.finish()

    def _at_rest(self) -> bool:
        world = self._world
        runs = [case.judge.run for case in world.laws.cases.values()]
        return (
            self._driving == 0
            and all(call.over for call in self._calls)
            and all(run is not None and run.in_flight is None and run.paused is None for run in runs)
            and not world.effects.live()
            and all(seen == self._version(run_id) for run_id, seen in self.read.items())
        )

    def _version(self, run_id: str) -> int:
        case = self._world.laws.cases.get(run_id)
        return case.seen if case else 0

    def _help(self) -> None:
        """Do what somebody has to do so that a run comes to rest: let it go on, or take up what was left."""
        world = self._world
        if any(not call.over for call in self._helping):
            return
        self._helping = []
        for run_id, case in world.laws.cases.items():
            run = case.judge.run
            if run is None or (run.in_flight is None and run.paused is None):
                continue
            if run.paused is not None:
                self._helping.append(self._command(partial(Engine.unpause, run_id=run_id, by=OPERATOR)))
            elif run.in_flight is not None and run.in_flight.unknown:
                self._helping.append(self._command(self._way_out(run_id, run.in_flight)))
            elif run.in_flight is not None and world.scenario.inline:
                self._helping.append(self._command(partial(Engine.settled_run, run_id=run_id)))

    def _weather(self) -> None:
        world, kernel = self._world, self._world.kernel
        kinds = [kind for kind in WEATHER if kind in world.faults.kinds]
        while kinds:
            kernel.sleep(kernel.rng.uniform(1, 20))
            if world.faults.calm:
                return
            world.weather(kernel.rng.choice(kinds))

    # --- workers ----------------------------------------------------------------------------------------------

    def _start(self, station: Station) -> None:
        kernel = self._world.kernel
        station.lives += 1
        station.busy = 0
        station.runtime = None
        process = station.process = kernel.process(f"{station.name}.{station.lives}", station.host)
        kernel.spawn(process, "", lambda: self._be_a_worker(station, process))

    def _be_a_worker(self, station: Station, process: Process) -> None:
        world, kernel = self._world, self._world.kernel
        options = WorkerOptions(queues=station.queues, concurrency=world.scenario.slots, pool="threads")
        runtime = Runtime(options, world.settings)
        roster = Roster(runtime.store)
        try:
            card = WorkerCard(this_process("worker"), station.queues, options.concurrency, "threads", 0, "0")
            roster.announce(card)
        except StatemError:
            kernel.end(process)
            return
        station.runtime = runtime
        Reaper(runtime.coordinator, Leadership(runtime.store, DUTY, this_process("worker"))).start()
        for slot in range(options.concurrency):
            kernel.spawn(process, f"slot{slot}", lambda: self._serve(station, runtime, process))
        while not runtime.executor.stopping:
            kernel.sleep(ANNOUNCE_SECONDS)
            try:
                roster.announce(card)
            except StatemError:
                continue
        while station.busy:
            kernel.sleep(0.1)
        with suppress(StatemError):
            roster.leave(card.id)
        kernel.end(process)

    def _serve(self, station: Station, runtime: Runtime, process: Process) -> None:
        while not runtime.executor.stopping:
            message = self._world.broker.take(station.queues)
            if message is None:
                continue
            station.busy += 1
            try:
                runtime.executor.execute(*message)
            except StatemError as error:
                process.troubles.add(error.code)
            station.busy -= 1

    def _nurse(self) -> None:
        """Start workers again that have died, and stop one now and then."""
        world, kernel = self._world, self._world.kernel
        while True:
            kernel.sleep(1.0 if world.faults.calm else kernel.rng.uniform(0.5, 10))
            for station in self._stations:
                if station.process is None or not station.process.alive:
                    self._start(station)
                elif station.runtime is not None and world.faults.strikes("stop"):
                    kernel.spawn(station.process, "signal", partial(station.runtime.stop, 2.0))

    # --- command lines ----------------------------------------------------------------------------------------

    def _command(self, act: Callable[[Engine], Settled | Run | None], host: str | None = None) -> Call:
        """Begin a command line; it dies with its verb, or before."""
        world, kernel = self._world, self._world.kernel
        self._numbers += 1
        process = kernel.process(f"cli{self._numbers}", host or kernel.rng.choice(HOSTS))
        call = Call(world.rollbacks)

        def main() -> None:
            try:
                engine = Engine(world.settings, "redis://simulated", {}, inline=world.scenario.inline, quick=True)
                call.answer = act(engine)
                engine.close()
            except StatemError as error:
                process.troubles.add(error.code)
                call.error = error
                if isinstance(error, StateRegressed):
                    world.detected["caller"] += 1
                    world.laws.require(bool(world.rollbacks), f"{error.message} Nobody has lost any.")
            except KeyboardInterrupt as error:
                call.error = error
            kernel.end(process)

        def end() -> None:
            call.over = True
            kernel.notify(call.waiters)

        process.at_end.append(end)
        self._calls = [each for each in self._calls if not each.over]
        self._calls.append(call)
        kernel.spawn(process, "", main)
        return call

    def _finished(self, call: Call, seconds: float) -> bool:
        """Wait for the end of a command line; return whether it came in time."""
        kernel = self._world.kernel
        until = kernel.now + round(seconds * MICROSECONDS)
        while not call.over and kernel.now < until:
            kernel.wait(call.waiters, until)
        return call.over

    def _insist(self, run_id: str, act: Callable[[Engine, Terms], Settled]) -> None:
        """Send a request until it is answered, always under the same id, also while it may still be carried out."""
        kernel = self._world.kernel
        self._requests += 1
        terms = Terms(request=f"request{self._requests}", fingerprint="same")

        def ask(engine: Engine) -> Settled:
            return engine.answered(run_id, terms) or act(engine, terms)

        asked: list[Call] = []
        while True:
            # A copy may be refused that another one comes after and is accepted: only who is alone is judged for that.
            alone = all(call.over for call in asked)
            if kernel.rng.random() < 0.1:
                # Two copies arrive together.
                alone = False
                asked.append(self._command(ask))
                kernel.spawn(self._people, "copy", partial(self._is_done, run_id, terms.request, asked[-1], alone))
            asked.append(self._command(ask))
            if self._is_done(run_id, terms.request, asked[-1], alone):
                return
            kernel.sleep(kernel.rng.uniform(0.01, 3))

    def _is_done(self, run_id: str, request: str, call: Call, alone: bool) -> bool:
        """Wait for the answer to a request, for as long as somebody may; return whether there is one, and judge it."""
        world, kernel = self._world, self._world.kernel
        if not self._finished(call, kernel.rng.choice((2.0, 20.0, 200.0))):
            return False
        if isinstance(call.answer, Settled):
            world.laws.judge_answer(run_id, request, call.answer, call.rollbacks)
            return True
        if isinstance(call.error, REFUSALS):
            if alone:
                world.laws.judge_refusal(run_id, request, call.error)
            return True
        return isinstance(call.error, Conflict) and not isinstance(call.error, StateRegressed)

    # --- agents -----------------------------------------------------------------------------------------------

    def _drive(self, run_id: str, queue: str | None) -> None:
        """Begin a run and move it until the storm is over."""
        world, kernel = self._world, self._world.kernel
        self._driving += 1
        for target in ("", *world.scenario.script) if world.scenario.script else ():
            self._insist(run_id, self._scripted(run_id, queue, target))
        while not world.scenario.script and not world.faults.calm:
            self._insist(run_id, self._verb(run_id, queue))
            kernel.sleep(kernel.rng.expovariate(1 / world.scenario.think_seconds))
        self._driving -= 1

    def _scripted(self, run_id: str, queue: str | None, target: str) -> Callable[[Engine, Terms], Settled]:
        """Return a step of the script: to a target, or the beginning."""
        request = StartRequest(self._world.scenario.runbooks[0], run_id, self._world.place(queue), AGENT, EVERYTHING)
        if not target:
            return lambda engine, terms: engine.start(request, terms=terms)
        return lambda engine, terms: engine.goto(run_id, target, AGENT, EVERYTHING, terms=terms)

    def _verb(self, run_id: str, queue: str | None) -> Callable[[Engine, Terms], Settled]:
        """Return what an agent does next."""
        world, rng = self._world, self._world.kernel.rng
        confirmations, on_manual = random_confirmations(rng), random_on_manual(rng)
        case = world.laws.cases.get(run_id)
        run = case.judge.run if case else None
        deadline = rng.choice((None, None, 1.0, 15.0))

        def until() -> Deadline:
            return NEVER if deadline is None else Deadline(deadline)

        if run is None or rng.random() < 0.1:
            runbook = rng.choice(world.scenario.runbooks) if run is not None else world.scenario.runbooks[0]
            request = StartRequest(runbook, run_id, world.place(queue), AGENT, confirmations)
            return lambda engine, terms: engine.start(request, until(), terms=terms)
        exits = [edge.target for edge in world.runbooks[run.runbook].exits(run.node)]
        if not exits or rng.random() < 0.1:
            return lambda engine, terms: engine.save(run_id, AGENT, confirmations, deadline=until(), terms=terms)
        target = rng.choice(exits)
        waits = rng.random() < 0.8
        return lambda engine, terms: engine.goto(
            run_id, target, AGENT, confirmations, on_manual=on_manual, wait=waits, deadline=until(), terms=terms
        )

    def call_from_inside(self, execution: Execution) -> None:
        """Have a command look at its own run, and try to move it."""

        def look_and_move(engine: Engine) -> Settled:
            run = engine.run(execution.run)
            exits = [edge.target for edge in self._world.runbooks[run.runbook].exits(run.node)]
            return engine.goto(run.id, exits[0] if exits else "a", AGENT, wait=False)

        call = self._command(look_and_move, execution.process.host)
        process = self._world.kernel.processes[-1]
        execution.at_end = lambda: None if call.over else self._world.kernel.end(process)

    # --- people -----------------------------------------------------------------------------------------------

    def _decide_again_and_again(self) -> None:
        world, kernel = self._world, self._world.kernel
        while True:
            kernel.sleep(1.0 if world.faults.calm else kernel.rng.uniform(0.5, 8))
            waiting = [
                (run_id, case.judge.run.in_flight)
                for run_id, case in world.laws.cases.items()
                if case.judge.run is not None and case.judge.run.in_flight is not None
            ]
            asked = [(run_id, open_, check) for run_id, open_ in waiting for check in open_.awaiting]
            if not asked:
                continue
            run_id, transition, check = kernel.rng.choice(asked)
            by = OPERATOR if world.faults.calm or kernel.rng.randint(0, 2) else AGENT
            decide = partial(
                Engine.decide,
                run_id=run_id,
                transition=transition.id,
                check=check,
                approved=kernel.rng.randint(0, 3) > 0,
                comment="seen",
                by=by,
                operator=by == OPERATOR,
                deadline=Deadline(DECIDER_SECONDS),
            )
            call = self._command(decide)
            self._finished(call, 30.0)

    def _way_out(self, run_id: str, transition: Transition) -> Callable[[Engine], Settled]:
        """Return what an operator says about a hook of which nobody knows what it did."""
        rng = self._world.kernel.rng
        ways: tuple[WayOut, ...] = ("resume", "abort", "passed", "failed")
        return partial(
            Engine.recover,
            run_id=run_id,
            way=rng.choice(ways),
            reason="looked at",
            by=OPERATOR,
            check=next(iter(transition.unknown)),
            transition=transition.id,
            deadline=Deadline(DECIDER_SECONDS),
        )

    def _steer_again_and_again(self) -> None:
        world, kernel = self._world, self._world.kernel
        rng = kernel.rng
        while not world.faults.calm:
            kernel.sleep(rng.uniform(2, 25))
            run_id = rng.choice(list(self._runs))
            case_of_run = world.laws.cases.get(run_id)
            run = case_of_run.judge.run if case_of_run else None
            if run is not None and run.in_flight is not None and run.in_flight.unknown and rng.randint(0, 2):
                self._finished(self._command(self._way_out(run_id, run.in_flight)), 30.0)
                continue
            match rng.randint(0, 12):
                case 0 | 1 | 2 | 3:
                    call = self._command(partial(Engine.pause, run_id=run_id, reason="lunch", by=OPERATOR))
                case 4 | 5 | 6 | 7:
                    call = self._command(partial(Engine.unpause, run_id=run_id, by=OPERATOR))
                case 8 | 9:
                    call = self._command(partial(Engine.cancel, run_id=run_id, reason="impatience", by=OPERATOR))
                case 10:
                    at_once = bool(rng.randint(0, 1))
                    end = partial(Engine.cancel_run, run_id=run_id, reason="no use", by=OPERATOR, terminate=at_once)
                    call = self._command(end)
                case _:
                    request = StartRequest(
                        rng.choice(world.scenario.runbooks), run_id, world.place(self._runs[run_id]), OPERATOR
                    )
                    self._driving += 1
                    self._insist(run_id, partial(_restart, request))
                    self._driving -= 1
                    continue
            self._finished(call, 30.0)

    def _read(self, run_id: str) -> None:
        """Follow the events of a run, and require that none is left out."""
        world, kernel = self._world, self._world.kernel
        seen = self.read[run_id] = 0
        engine = Engine(world.settings, "redis://simulated", {}, inline=False)
        while True:
            try:
                for events in engine.new_events(run_id, seen):
                    for number, _ in events:
                        world.laws.require(
                            number == seen + 1, f"a reader of {run_id} was told event {number} after event {seen}"
                        )
                        seen = self.read[run_id] = number
                if engine.find(run_id) is None:
                    # All of it is lost; whoever reads on begins anew.
                    seen = self.read[run_id] = 0
            except Unavailable:
                pass
            except StateRegressed:
                # It is told that what it has read is lost, and reads again what is there.
                world.detected["reader"] += 1
                world.laws.require(bool(world.rollbacks), f"a reader of {run_id} was told of writes that nobody lost")
                seen = self.read[run_id] = 0
            kernel.sleep(1.0)


def _restart(request: StartRequest, engine: Engine, terms: Terms) -> Settled:
    return engine.restart(request, terms=terms)
