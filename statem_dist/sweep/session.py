"""One sweep from start to report, and everything put away behind it.

What is started is put on one stack and ended in reverse order: the trials, the workers, the embedded server. Signals
only leave a note; the main thread looks at it several times a second and then goes the same way out as at the end.
So nothing that cleans up can be torn apart by a second Ctrl-C, and each step of it has its own limit of time.
"""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from msgspec import Struct

from statem_dist.checks.process import Supervisor
from statem_dist.deadline import Deadline
from statem_dist.embedded import foreground, server
from statem_dist.engine import Engine
from statem_dist.protocol.progress import CHECKS_QUEUE
from statem_dist.run_ids import new_run_id
from statem_dist.settings import Settings
from statem_dist.sweep.crew import Crew
from statem_dist.sweep.driver import Driver, now_ms
from statem_dist.sweep.pool import Pool
from statem_dist.sweep.progress import Shown
from statem_dist.sweep.report import Report
from statem_dist.sweep.spec import Sweep
from statem_dist.sweep.trials import Trial, plan

LOOK_SECONDS = 0.2
"""How often the progress is shown and signals are looked for."""

GIVE_UP_SECONDS = 20.0
"""How long trials that were stopped may take to come to an end; longer than any one call to the store."""

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Options(Struct, frozen=True, kw_only=True):
    """How a sweep is run.

    ``workers`` is the number of worker processes to start, ``worker_command`` makes their command line from the
    number of their slots. ``concurrency`` is how many trials are under way at once, None for
    what the sweep file or the machine says. ``keep`` leaves the workspaces behind.
    """

    workers: int
    worker_command: Callable[[int], Sequence[str]]
    concurrency: int | None
    keep: bool


class StopNote:
    """Whether a stop was asked for. Signal handlers write it, so it is a plain attribute and takes no lock."""

    wanted = False


def run_sweep(
    sweep: Sweep,
    select: Callable[[list[Trial]], list[Trial]],
    settings: Settings,
    options: Options,
    show: Callable[[int], Shown],
    environ: Mapping[str, str],
) -> Report:
    """Run a sweep to its end, or until SIGINT, SIGTERM or SIGHUP; call it in the main thread.

    Args:
        sweep: what to run.
        select: chooses trials from the plan.
        settings: limits and places.
        options: see ``Options``.
        show: makes what shows the progress of so many trials.
        environ: the environment of agents and workers.

    Raises:
        Unavailable: the store or the workers cannot be had.
    """
    sweep_id = new_run_id(sweep.name)
    folder = settings.state_dir / "sweeps" / sweep_id
    trials = select(plan(sweep, sweep_id, folder))
    concurrency = options.concurrency or sweep.concurrency or 2 * (os.cpu_count() or 1)
    with stop_signals() as stop, ExitStack() as at_end:
        if not options.keep:
            at_end.callback(shutil.rmtree, folder, ignore_errors=True)
        redis_url = _open_store(settings, at_end)
        engine = Engine(settings, redis_url, environ, inline=settings.embedded)
        at_end.callback(engine.close)
        slots = -(-concurrency // max(options.workers, 1))
        crew = Crew(
            options.worker_command(slots),
            options.workers,
            {**environ, "STATEM_STATE_DIR": str(settings.state_dir), "STATEM_REDIS_URL": redis_url},
            folder / "workers",
        )
        at_end.callback(crew.close)
        crew.start(engine.roster, lambda: stop.wanted)
        agents = Supervisor(kill_grace_seconds=settings.kill_grace_seconds)
        at_end.callback(agents.close)
        until = Deadline()
        pool = Pool(Driver(sweep, sweep_id, engine, agents, until, environ).drive, trials, concurrency)
        started_at = now_ms()
        with _driving(pool, until, agents, engine), _showing(show(len(trials))) as shown:
            kept = f"; its workspaces: {folder}" if options.keep else ""
            shown.say(f"Sweep {sweep_id}{kept}")
            queue = sweep.queue or CHECKS_QUEUE
            if not settings.embedded and not engine.roster.serves(queue):
                shown.say(f"No worker serves the queue {queue!r} yet; checks wait for one.")
            while not stop.wanted and not pool.wait(LOOK_SECONDS):
                for sentence in crew.lost():
                    shown.say(sentence)
                shown.update(pool.board.counts())
            shown.update(pool.board.counts())
        return Report(
            sweep=sweep,
            sweep_id=sweep_id,
            folder=folder if options.keep else None,
            rows=pool.board.rows(sweep.listed),
            results=pool.board.results(),
            interrupted=stop.wanted,
            started_at=started_at,
            ended_at=now_ms(),
        )


@contextmanager
def stop_signals() -> Iterator[StopNote]:
    """Note stop signals instead of obeying them, for the length of a ``with`` block in the main thread."""
    note = StopNote()

    def heard(*_: object) -> None:
        note.wanted = True

    previous = [(number, signal.signal(number, heard)) for number in STOP_SIGNALS]
    try:
        yield note
    finally:
        for number, handler in previous:
            signal.signal(number, handler)


def _open_store(settings: Settings, at_end: ExitStack) -> str:
    """Return the URL of the state store; an embedded server that was started for it is stopped at the end.

    Unless an ``up`` has come meanwhile: then it belongs to that one.
    """
    if settings.redis_url is not None:
        return settings.redis_url
    endpoint = server.ensure(settings.state_dir, idle_stop_seconds=settings.idle_stop_seconds)
    if endpoint.started:
        at_end.callback(_stop_unless_kept, settings.state_dir)
    return endpoint.redis_url


def _stop_unless_kept(state_dir: Path) -> None:
    if not foreground.is_kept(state_dir):
        server.stop(state_dir)


@contextmanager
def _driving(pool: Pool, until: Deadline, agents: Supervisor, engine: Engine) -> Iterator[None]:
    """Drive the trials of a pool; those still under way at the end of the ``with`` block are given up."""
    pool.start()
    try:
        yield
    finally:
        pool.stop()
        if not pool.wait(0):
            until.expire()
            # Agents and inline checks end; whoever waits for workers is woken.
            agents.close()
            engine.close()
            pool.wait(GIVE_UP_SECONDS)


@contextmanager
def _showing(shown: Shown) -> Iterator[Shown]:
    try:
        yield shown
    finally:
        shown.close()
