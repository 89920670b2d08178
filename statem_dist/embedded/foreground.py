"""Who runs ``statem-dist up`` on a state directory: at most one, and everybody can ask who.

``up`` holds ``up.lock`` as long as it lives and notes its identity in it. The lock alone says whether somebody is
there. The note says who, and is believed only of a process that lives: it may be that of an earlier holder.
"""

from __future__ import annotations

import math
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from statem_dist.embedded.locks import FileLock
from statem_dist.embedded.place import Place
from statem_dist.errors import Conflict
from statem_dist.identity import is_dead, process_here, this_process

LOOK_SECONDS = 0.5
"""How long the lock may be held by somebody who only looks, or without the note that a new holder is about to write."""

LOOK_PAUSE_SECONDS = 0.01


@contextmanager
def only_here(state_dir: Path) -> Iterator[None]:
    """Be the one ``up`` of a state directory, which is created if missing, for the length of a ``with`` block.

    Raises:
        Conflict: another one is there; ``details["pid"]`` is its process id, if it is known.
        Unavailable: the directory cannot be used.
    """
    place = Place.of(state_dir)
    place.create()
    with place.explaining():
        lock = FileLock(place.up_lock)
    with lock:
        if not lock.acquire(timeout_seconds=LOOK_SECONDS):
            holder = lock.read_note()
            raise Conflict(
                f"`statem-dist up` runs already on {place.state_dir} {_described(holder)}",
                hint="Its server and worker are there for everybody; `statem-dist down` ends it. "
                "For more slots, run `statem-dist worker`.",
                details={"pid": _living_pid(holder)},
            )
        lock.write_note(this_process("up"))
        yield


def is_kept(state_dir: Path) -> bool:
    """Return whether an ``up`` runs on a state directory, whose server is then not ours to stop."""
    path = Place.of(state_dir).up_lock
    if not os.path.exists(path):
        return False
    with FileLock(path) as lock:
        return not lock.try_acquire()


def ask_to_stop(state_dir: Path) -> int | None:
    """Send SIGTERM to the ``up`` of a state directory, which then stops its worker and its server.

    Returns:
        its process id, or None if there is none.

    Raises:
        Conflict: there is one, but not among the processes of this host.
    """
    path = Place.of(state_dir).up_lock
    if not os.path.exists(path):
        return None
    deadline = time.monotonic() + LOOK_SECONDS
    with FileLock(path) as lock:
        while not lock.try_acquire():
            if (pid := _living_pid(lock.read_note())) is not None:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
                return pid
            if time.monotonic() >= deadline:
                who = _described(lock.read_note())
                raise Conflict(
                    f"`statem-dist up` runs on {state_dir} {who} and cannot be asked from here",
                    hint="End it where it runs.",
                )
            time.sleep(LOOK_PAUSE_SECONDS)
    return None


def wait_until_stopped(state_dir: Path) -> None:
    """Wait until no ``up`` runs on a state directory; one that was asked to stop limits the time itself."""
    with FileLock(Place.of(state_dir).up_lock) as lock:
        lock.acquire(timeout_seconds=math.inf)


def _living_pid(identity: str) -> int | None:
    """Return the process id in an identity, if it is that of a living process of this host."""
    pid, _, started = (process_here(identity) or "").partition(":")
    return int(pid) if pid.isdigit() and started.isdigit() and not is_dead(identity) else None


def _described(identity: str) -> str:
    """Return who holds the lock, for people."""
    if (pid := _living_pid(identity)) is not None:
        return f"(process {pid})"
    return f"(as {identity})" if identity and not is_dead(identity) else "(an unknown process)"
