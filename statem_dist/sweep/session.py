"""Attending a sweep: workers of its own for its length, watched, and everything put away behind it.

What is started is put on one stack and ended in reverse order: the workers, the embedded server. Signals only leave a
note; the main thread looks at it several times a second and then goes the same way out as at the end. So nothing that
cleans up can be torn apart by a second Ctrl-C, and each step of it has its own limit of time. The sweep itself is in
the store: whoever attends it may go away at any time, and another one may come.
"""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from statem_dist.embedded import foreground, server
from statem_dist.engine import Engine
from statem_dist.errors import Conflict, Unavailable
from statem_dist.settings import Settings
from statem_dist.sweep.crew import Crew
from statem_dist.sweep.desk import SweepDesk, has_ended
from statem_dist.sweep.model import Sweep
from statem_dist.sweep.watching import View, Watcher, watch

STOP_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class Staff(Struct, frozen=True):
    """The worker processes to start for a sweep: how many, their command line, and their environment.

    ``service`` is the command line of the service that self-driven agents need, and ``serving`` tells whether it
    listens; empty where there is one, or no need.
    """

    workers: int
    command: Sequence[str]
    env: Mapping[str, str]
    service: Sequence[str] = ()
    serving: Callable[[], bool] = lambda: True


class StopNote:
    """Whether a stop was asked for. Signal handlers write it, so it is a plain attribute and takes no lock."""

    wanted = False


def attend(
    sweep_id: str, desk: SweepDesk, engine: Engine, watcher: Watcher, view: View, staff: Staff, stop: StopNote
) -> Sweep:
    """Watch a sweep until it has ended, with workers of its own; return it as it is then.

    If a stop is asked for, or its workers cannot be had, the sweep is paused before they go, and they hand back what
    they have not ended. Where it has none of its own, those of others go on with it.

    Raises:
        Unavailable: the store or the workers cannot be had, or all of these have ended.
        NotFound: the sweep was removed.
    """
    crew = Crew(
        staff.command, staff.workers, staff.env, desk.folder(sweep_id) / "workers", staff.service, staff.serving
    )
    with ExitStack() as at_end:
        at_end.callback(crew.close)
        with _pausing(desk, sweep_id, staff):
            crew.start(engine.roster, lambda: stop.wanted)
            seen = watch(watcher, view, stopping=lambda: stop.wanted or crew.gone, meanwhile=crew.lost)
            if not has_ended(seen) and staff.workers:
                if not stop.wanted:
                    raise Unavailable("All workers of the sweep have ended.", hint=crew.last_words())
                _pause(desk, sweep_id, "interrupted")
    # Workers that went may have handed trials back.
    return seen if has_ended(seen) else desk.sweep(sweep_id)


@contextmanager
def _pausing(desk: SweepDesk, sweep_id: str, staff: Staff) -> Iterator[None]:
    """Pause a sweep whose workers are gone because something went wrong with them."""
    try:
        yield
    except BaseException:
        if staff.workers:
            with suppress(Exception):
                _pause(desk, sweep_id, "its workers are gone")
        raise


def _pause(desk: SweepDesk, sweep_id: str, why: str) -> None:
    with suppress(Conflict):
        # It may have ended, or be paused already.
        desk.pause(sweep_id, why)


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


def open_store(settings: Settings, at_end: ExitStack) -> str:
    """Return the URL of the state store; an embedded server that was started for it is stopped at the end.

    Unless an ``up`` has come meanwhile: then it belongs to that one.
    """
    if settings.redis_url is not None:
        return settings.redis_url
    endpoint = server.ensure(
        settings.state_dir, idle_stop_seconds=settings.idle_stop_seconds, appendfsync=settings.durability.appendfsync
    )
    if endpoint.started:
        at_end.callback(_stop_unless_kept, settings.state_dir)
    return endpoint.redis_url


def _stop_unless_kept(state_dir: Path) -> None:
    if not foreground.is_kept(state_dir):
        server.stop(state_dir)
