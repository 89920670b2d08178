"""Who executes: the user, names of workers that are unique per process start, and whether such a process lives."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def this_process(role: str) -> str:
    """Return an identity for this process, such as ``cli:host:4711:98765`` (role, host, pid, start time)."""
    return f"{role}:{socket.gethostname()}:{own_process()}"


def own_process() -> str:
    """Return which process of this host this is, now and ever since boot: ``PID:START``."""
    return f"{os.getpid()}:{_start_time(os.getpid()) or 0}"


def user_name() -> str:
    """Return the name of the user of this process; that of its number where the system knows no name."""
    # Most commands need no name, and need not wait for what a terminal is asked by.
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}"


def process_here(worker: str) -> str | None:
    """Return the process of a worker, as it calls itself by ``own_process``; None for a worker on another host."""
    _, _, rest = worker.partition(":")
    host, _, process = rest.partition(":")
    return process if host == socket.gethostname() and process else None


def is_dead(worker: str) -> bool:
    """Return whether a worker is known to be dead: it ran on this host, and its process is gone.

    False also means "unknown", as for a worker on another host; its lease will tell.
    """
    try:
        _, host, pid_text, start_text = worker.rsplit(":", 3)
        pid, started = int(pid_text), int(start_text)
    except ValueError:
        return False
    if host != socket.gethostname():
        return False
    if started:
        return _start_time(pid) != started
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False


def _start_time(pid: int) -> int | None:
    """Return when a process started, in clock ticks since boot, or None where the system does not say.

    A zombie has ended: it counts as gone.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    fields = stat.rpartition(")")[2].split()
    return None if fields[0] == "Z" else int(fields[19])
