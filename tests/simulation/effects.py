"""What commands do to the outer world, kept by nobody whom the simulation can break: the external ledger.

The simulated supervisor stands where ``checks.process.Supervisor`` stands. A command takes some time and ends somehow,
drawn from the seed. It goes on while its worker is frozen, it is ended some moments after its worker died, and it is
written here when it was begun, whatever the store will ever know of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from statem_dist.checks.process import NOTHING, SHUTDOWN, Finished, Wrapper
from tests.simulation import virtual
from tests.simulation.kernel import MICROSECONDS, Process, Waiters

if TYPE_CHECKING:
    from tests.simulation.world import World

ORPHANED_SECONDS = 2.0
"""How long a command may outlive its worker."""


class Execution:
    """One command that was begun.

    ``ends_us`` is when it ends, or ended; ``cut_short`` is why it does so before its time, if it does.
    """

    def __init__(self, run: str, transition: str, check: str, token: int, process: Process, begun_us: int) -> None:
        self.run = run
        self.transition = transition
        self.check = check
        self.token = token
        self.process = process
        self.begun_us = begun_us
        self.ends_us = 0
        self.cut_short: str | None = None
        self.finished = Finished(exit_code=0)
        self.forgotten = False
        self.at_end: Callable[[], None] | None = None
        self.waiters: Waiters = {}

    @property
    def name(self) -> tuple[str, str, str]:
        """What is executed: run, transition and check."""
        return self.run, self.transition, self.check

    def is_live(self, now: int) -> bool:
        """Return whether it has not ended yet."""
        return self.ends_us > now

    def end_by(self, moment: int, why: str) -> None:
        """End it at a moment, if it has not ended by then."""
        if self.ends_us > moment:
            self.ends_us = moment
            self.cut_short = why


class Effects:
    """Every command that was begun in a world.

    Args:
        world: tells what may be executed how often, and draws how commands end.
    """

    def __init__(self, world: World) -> None:
        self._world = world
        self.executions: list[Execution] = []
        self._by_name: dict[tuple[str, str, str], list[Execution]] = {}

    def begin(self, execution: Execution) -> None:
        """Write down that a command begins; the laws look at it."""
        of_the_same = self._by_name.setdefault(execution.name, [])
        self._world.laws.judge_execution(execution, of_the_same)
        of_the_same.append(execution)
        self.executions.append(execution)

    def of(self, name: tuple[str, str, str]) -> list[Execution]:
        """Return the executions of one check of a transition."""
        return self._by_name.get(name, [])

    def live(self) -> list[Execution]:
        """Return what is being executed now."""
        now = self._world.kernel.now
        return [each for each in self.executions if each.is_live(now)]

    def end_of(self, process: Process, run_id: str | None, why: str, seconds: float) -> list[Execution]:
        """End what a process executes, for one run or all, within some seconds; return it."""
        kernel = self._world.kernel
        ended = []
        for each in self.executions[-200:]:
            if each.process is process and each.is_live(kernel.now) and run_id in (None, each.run):
                each.end_by(kernel.now + round(kernel.rng.uniform(0, seconds) * MICROSECONDS), why)
                ended.append(each)
                kernel.notify(each.waiters)
        return ended

    def outlive(self, process_name: str) -> None:
        """Stand in for ``outlive_commands``: wait until nothing is left of the commands of a dead process."""
        process = self._process(process_name)
        self._world.kernel.point(f"outlive {process.name}")
        while any(each.process is process for each in self.live()):
            self._world.kernel.sleep(0.02)

    def end_for(self, process_name: str, run_id: str) -> None:
        """Stand in for ``end_commands``: kill what a process executes for a run."""
        process = self._process(process_name)
        self._world.kernel.point(f"end commands of {process.name}")
        self.end_of(process, run_id, "killed", 0.0)

    def _process(self, name: str) -> Process:
        pid = int(name.partition(":")[0])
        return next(process for process in self._world.kernel.processes if process.pid == pid)


class Supervisor:
    """Stands in for the supervisor of one process.

    Args:
        world: where its commands have their effects.
    """

    def __init__(self, world: World, kill_grace_seconds: float) -> None:
        self._world = world
        self._kill_grace_seconds = kill_grace_seconds
        self._process = virtual.here()
        self._under_way: dict[Execution, str] = {}
        self._closed = False
        self._process.at_end.append(self._die)

    def run(
        self,
        key: str,
        command: str,
        *,
        cwd: str,
        env: Mapping[str, str],
        stdin: bytes | None = None,
        timeout: float | None = None,
        limits: Mapping[str, int] = NOTHING,
        wrapper: Wrapper | None = None,
        again: bool = False,
    ) -> Finished:
        """Execute a command and wait for its end."""
        world, kernel = self._world, self._world.kernel
        kernel.point(f"spawn {env['STATEM_CHECK_KEY']}")
        if self._closed:
            return Finished(cancelled=SHUTDOWN)
        if world.faults.strikes("command cannot start"):
            return Finished(failure="spawn_failed", text="no room for a process")
        _, transition, token = key.rsplit("/", 2)
        check = env["STATEM_CHECK_KEY"].split(".", 2)[2]
        execution = Execution(env["STATEM_RUN_ID"], transition, check, int(token), self._process, kernel.now)
        seconds, execution.finished = world.draw_command(execution)
        execution.ends_us = kernel.now + round(seconds * MICROSECONDS)
        world.effects.begin(execution)
        kernel.note(f"begun: {execution.name} by {self._process.name}, {seconds:.3f} s, {execution.finished.exit_code}")
        self._under_way[execution] = key
        world.command_begun(execution)
        try:
            while execution.is_live(kernel.now):
                kernel.wait(execution.waiters, execution.ends_us)
        finally:
            del self._under_way[execution]
            if execution.at_end is not None:
                execution.at_end()
        kernel.point(f"ended {execution.check}")
        if world.faults.strikes("interrupt") and self._process.name.startswith("cli"):
            self._process.troubles.add("interrupt")
            raise KeyboardInterrupt
        if execution.cut_short is not None:
            return Finished(cancelled=execution.cut_short)
        return execution.finished

    def cancel(self, key: str, why: str) -> bool:
        """End the commands under a key."""
        return self._cancel(key, why)

    def cancel_all(self, why: str) -> bool:
        """End every command."""
        return self._cancel(None, why)

    def close(self) -> None:
        """End every command, and run no more."""
        self._closed = True
        self._cancel(None, SHUTDOWN)

    def _cancel(self, key: str | None, why: str) -> bool:
        kernel = self._world.kernel
        found = [execution for execution, each in self._under_way.items() if key in (None, each)]
        for execution in found:
            grace = kernel.rng.uniform(0, self._kill_grace_seconds)
            execution.end_by(kernel.now + round(grace * MICROSECONDS), why)
            kernel.notify(execution.waiters)
        return bool(found)

    def _die(self) -> None:
        """The worker is dead: its supervisor ends the commands that it had under way."""
        self._world.effects.end_of(self._process, None, "orphaned", ORPHANED_SECONDS)
