"""The heart of the simulator: threads of which only one runs at a time, on a clock that nobody else moves.

Every actor runs the real code of the project in a thread of its own. Whoever runs holds the baton. At each *switching
point* (every call on the store, the broker, the clock, the supervisor or a lock that is taken) the kernel decides, from
a seeded generator of random numbers, whether the actor goes on or hands the baton to another. Waiting costs no time:
when nobody can run, the clock moves to when somebody can. So the same seed gives the same history, to the byte.

An actor dies by a ``Crashed`` that is raised at a switching point. What dies is its process: every thread of it ends at
the point where it stands, and whatever it would still call on its way out raises ``Crashed`` again, so that a
``finally`` or an ``except`` of the code can neither undo the death nor act after it.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from heapq import heappop, heappush
from random import Random

MICROSECONDS = 1_000_000

EPOCH_US = 1_750_000_000 * MICROSECONDS
"""When a simulation begins, in microseconds since the epoch."""

STEPS_MAX = 400_000
"""Far more switching points than any world needs; whoever needs them all is turning in circles."""


class Crashed(BaseException):
    """The process of the actor that runs is dead. Nobody may swallow this."""


class Process:
    """What lives and dies as a whole: a worker, a command line, a person's terminal.

    Attributes:
        name: unique in a simulation.
        pid, started: how the system tells it from others.
        alive: until it ends or crashes.
        frozen_until: it does not run before that time (SIGSTOP, or a host that sleeps), in microseconds.
        clock_us: how far its own monotonic clock is ahead of the time that has passed; negative where it stood still.
        points: switching points so far.
        crash_at: the switching point at which it is to die, or 0.
        troubles: kinds of faults that have befallen it and excuse that it loses its claims.
        at_end: called when it ends, however it does.
    """

    def __init__(self, name: str, host: str, pid: int, started: int) -> None:
        self.name = name
        self.host = host
        self.pid = pid
        self.started = started
        self.alive = True
        self.immortal = False
        self.frozen_until = 0
        self.clock_us = 0
        self.points = 0
        self.crash_at = 0
        self.troubles: set[str] = set()
        self.at_end: list[Callable[[], None]] = []
        self.tasks: list[Task] = []


class Task:
    """One thread of a process."""

    def __init__(self, process: Process, name: str, work: Callable[[], object]) -> None:
        self.process = process
        self.name = name
        self.work = work
        self.ticket = 0
        self.blocked = False
        self.notified = False
        self.priority = 0.0
        self.ended = False
        self.joiners: Waiters = {}
        self.baton = threading.Lock()
        self.baton.acquire()


Waiters = dict[Task, None]
"""Who waits for something, in the order of their coming."""


class Host:
    """A thread of the system that carries one task after another; starting a thread costs more than a whole commit."""

    def __init__(self) -> None:
        self._start = threading.Lock()
        self._start.acquire()
        self._next: tuple[Kernel, Task] | None = None
        threading.Thread(target=self._carry, daemon=True).start()

    def carry(self, kernel: Kernel, task: Task) -> None:
        """Have the task run as soon as it is given the baton."""
        self._next = kernel, task
        self._start.release()

    def _carry(self) -> None:
        while True:
            self._start.acquire()
            assert self._next is not None
            kernel, task = self._next
            task.baton.acquire()
            kernel.perform(task)
            _FREE.append(self)
            kernel.pass_on()


_FREE: list[Host] = []


class Kernel:
    """Runs tasks, one at a time.

    Args:
        rng: decides who runs next.
        traced: whether to keep a line per step.

    ``deaths`` names processes that are to die, and the switching point at which each does.
    """

    def __init__(self, rng: Random, *, traced: bool = False) -> None:
        self.rng = rng
        self.now = EPOCH_US
        self.steps = 0
        self.current: Task | None = None
        self.failure: BaseException | None = None
        self.trace: list[str] | None = [] if traced else None
        self.processes: list[Process] = []
        self.on_point: Callable[[Process, str], None] | None = None
        self.deaths: dict[str, int] = {}
        self.switching = rng.choice((0.1, 0.3, 0.6))
        self.by_priority = rng.random() < 0.3
        self._ready: list[Task] = []
        self._timers: list[tuple[int, int, Task, int]] = []
        self._numbers = 0
        self._pids = 1000
        self._ending = False
        self._over = threading.Lock()
        self._over.acquire()

    # --- processes and tasks ----------------------------------------------------------------------------------

    def process(self, name: str, host: str) -> Process:
        """Return a new process of a host."""
        self._pids += 1
        process = Process(name, host, self._pids, 10 * self._pids)
        process.crash_at = self.deaths.get(name, 0)
        self.processes.append(process)
        return process

    def spawn(self, process: Process, name: str, work: Callable[[], object]) -> Task:
        """Begin a thread of a process; it runs when it is chosen."""
        task = Task(process, f"{process.name}/{name}" if name else process.name, work)
        task.priority = self.rng.random()
        process.tasks.append(task)
        (_FREE.pop() if _FREE else Host()).carry(self, task)
        self._ready.append(task)
        return task

    def run(self) -> None:
        """Run everything until ``finish`` is called or something fails; then end whoever is left.

        Raises:
            BaseException: whatever failed.
        """
        self.pass_on()
        self._over.acquire()
        self._ending = True
        for process in self.processes:
            self.end(process)
        self.pass_on()
        self._over.acquire()
        if self.failure is not None:
            raise self.failure

    def finish(self) -> None:
        """End the simulation from inside."""
        self._ending = True
        raise Crashed

    def fail(self, error: BaseException) -> None:
        """End the simulation, because of an error that no code around the caller may swallow."""
        if self.failure is None:
            self.failure = error
        raise Crashed

    def perform(self, task: Task) -> None:
        """Run a task to its end; called in its own thread, with the baton."""
        try:
            if task.process.alive:
                task.work()
        except Crashed:
            pass
        except BaseException as error:
            if task.process.alive and self.failure is None:
                self.failure = error
        task.ended = True
        if task.process.alive:
            task.process.tasks.remove(task)
            self.notify(task.joiners)

    def end(self, process: Process) -> None:
        """End a process where it stands, without a word to anybody."""
        if not process.alive:
            return
        process.alive = False
        for task in process.tasks:
            if task.blocked:
                self._wake(task, notified=False)
        for tell in process.at_end:
            tell()

    def freeze(self, process: Process, seconds: float) -> None:
        """Keep a process from running for some time."""
        process.frozen_until = max(process.frozen_until, self.now + round(seconds * MICROSECONDS))

    # --- switching --------------------------------------------------------------------------------------------

    def point(self, what: str) -> None:
        """Mark a switching point: others may run here, and whoever runs may die here."""
        task = self.current
        assert task is not None, "only actors act"
        process = task.process
        if not process.alive or self._ending or self.failure is not None:
            raise Crashed
        self.steps += 1
        process.points += 1
        if self.trace is not None:
            self.trace.append(f"{self.steps} {self.now - EPOCH_US} {task.name} {what}")
        if self.steps > STEPS_MAX:
            self.fail(AssertionError(f"no end after {STEPS_MAX} steps"))
        if process.points == process.crash_at:
            self.note(f"crash: {process.name}")
            self.end(process)
            raise Crashed
        if self.on_point is not None:
            self.on_point(process, what)
            if not process.alive:
                raise Crashed
        if process.frozen_until > self.now:
            self._sleep_until(process.frozen_until)
        elif self._ready and self.rng.random() < self.switching:
            if self.by_priority and self.rng.random() < 0.05:
                task.priority = self.rng.random()
            self._ready.append(task)
            self._switch(task)

    def note(self, what: str) -> None:
        """Add a line to the trace."""
        if self.trace is not None:
            self.trace.append(f"{self.steps} {self.now - EPOCH_US} . {what}")

    def sleep(self, seconds: float) -> None:
        """Let the running task wait."""
        self.point("sleep")
        self._sleep_until(self.now + max(0, round(seconds * MICROSECONDS)))

    def wait(self, waiters: Waiters, until: int | None) -> bool:
        """Let the running task wait until it is notified or the time has come; return whether it was notified."""
        task = self.current
        assert task is not None
        waiters[task] = None
        try:
            return self._block(task, until)
        finally:
            waiters.pop(task, None)

    def notify(self, waiters: Waiters, count: int | None = None) -> None:
        """Wake those that wait: all of them, or the first ones."""
        for task in list(waiters)[:count]:
            if task.blocked:
                waiters.pop(task)
                self._wake(task, notified=True)

    def pass_on(self) -> None:
        """Hand the baton to whoever is next, or tell the outer world that it is over."""
        following = None if (self._ending or self.failure) and not self._unwinding() else self._next()
        if following is None:
            self._over.release()
            return
        self.current = following
        following.baton.release()

    def _unwinding(self) -> bool:
        """Return whether tasks are left that have to end, now that everything ends."""
        return bool(self._ready) and not any(process.alive for process in self.processes)

    def _sleep_until(self, moment: int) -> None:
        task = self.current
        assert task is not None
        self._block(task, moment)

    def _block(self, task: Task, until: int | None) -> bool:
        if not task.process.alive or self._ending or self.failure is not None:
            raise Crashed
        task.blocked = True
        task.notified = False
        task.ticket += 1
        if until is not None:
            self._alarm(task, until)
        self._switch(task)
        return task.notified

    def _alarm(self, task: Task, moment: int) -> None:
        self._numbers += 1
        heappush(self._timers, (moment, self._numbers, task, task.ticket))

    def _wake(self, task: Task, *, notified: bool) -> None:
        task.blocked = False
        task.notified = notified
        task.ticket += 1
        self._ready.append(task)

    def _switch(self, task: Task) -> None:
        """Hand the baton to whoever is next and wait until it comes back."""
        following = self._next()
        if following is not task:
            if following is None:
                self.failure = self.failure or AssertionError("everybody waits for something that will never happen")
                self._over.release()
            else:
                self.current = following
                following.baton.release()
            task.baton.acquire()
        self.current = task
        if not task.process.alive or self._ending or self.failure is not None:
            raise Crashed

    def _next(self) -> Task | None:
        """Choose who runs next; when nobody can, move the clock to when somebody can."""
        while True:
            timers = self._timers
            while timers and (timers[0][0] <= self.now or timers[0][2].ticket != timers[0][3]):
                _, _, task, ticket = heappop(timers)
                if task.ticket == ticket:
                    self._wake(task, notified=task.notified)
            if self._ready:
                task = self._ready.pop(self._choice())
                if task.process.frozen_until > self.now and task.process.alive:
                    # What it was told while it is frozen, it hears when it wakes up.
                    task.blocked = True
                    task.ticket += 1
                    self._alarm(task, task.process.frozen_until)
                    continue
                return task
            if not timers:
                return None
            self.now = timers[0][0]

    def _choice(self) -> int:
        ready = self._ready
        if len(ready) == 1:
            return 0
        if self.by_priority:
            return max(range(len(ready)), key=lambda index: ready[index].priority)
        return int(self.rng.random() * len(ready))
