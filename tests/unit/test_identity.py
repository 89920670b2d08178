"""Identities of workers, and telling the dead from the living."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from statem_dist import identity
from statem_dist.identity import is_dead, this_process, user_name

HOST = socket.gethostname()
linux = pytest.mark.skipif(not os.path.exists("/proc/self/stat"), reason="start times are read from /proc")


@pytest.fixture
def child() -> Iterator[subprocess.Popen[str]]:
    """A process that says who it is and waits until its standard input ends."""
    program = (
        "import sys; from statem_dist.identity import this_process; "
        "print(this_process('w'), flush=True); sys.stdin.read()"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield process
        process.kill()


def named(child: subprocess.Popen[str]) -> str:
    """Return who the child says it is."""
    assert child.stdout is not None
    return child.stdout.readline().strip()


def test_an_identity_says_role_host_process_and_start() -> None:
    """The identity of a process is the same each time, and people can read where to look."""
    assert this_process("cli") == this_process("cli")
    assert re.fullmatch(rf"cli:{re.escape(HOST)}:{os.getpid()}:\d+", this_process("cli"))
    assert this_process("cli") != this_process("worker")


def test_this_process_lives() -> None:
    """Whoever asks is alive."""
    assert not is_dead(this_process("cli"))


def test_a_process_is_dead_when_it_has_ended(child: subprocess.Popen[str]) -> None:
    """A running process is not dead, one that was killed is."""
    worker = named(child)
    assert not is_dead(worker)
    child.kill()
    child.wait()
    assert is_dead(worker)


@linux
def test_a_zombie_is_dead(child: subprocess.Popen[str]) -> None:
    """A process that has ended counts as dead before its parent has collected it."""
    worker = named(child)
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    assert is_dead(worker)


@linux
def test_a_recycled_process_id_is_somebody_else() -> None:
    """Another process of the same number began at another time: the worker is gone."""
    role, host, pid, started = this_process("worker").split(":")
    assert is_dead(":".join((role, host, pid, str(int(started) + 1))))


def test_a_process_of_another_host_is_not_known_to_be_dead() -> None:
    """Of other hosts nothing is known; the lease will tell."""
    assert not is_dead("worker:somewhere-else:1:1")


@pytest.mark.parametrize("worker", ["", "worker", "a:b:c", "worker:host:pid:1", f"worker:{HOST}::"])
def test_an_identity_of_another_kind_is_not_known_to_be_dead(worker: str) -> None:
    """What this version did not write is left to its lease."""
    assert not is_dead(worker)


def test_without_start_times_the_process_id_decides(
    child: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the system does not say when a process began, it lives as long as its number is taken."""
    named(child)
    monkeypatch.setattr(identity, "_start_time", lambda pid: None)
    worker = f"worker:{HOST}:{child.pid}:0"
    assert this_process("w").endswith(":0")
    assert not is_dead(worker)
    child.kill()
    child.wait()
    assert is_dead(worker)


def test_a_process_of_another_user_lives(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that must not be signalled is there."""

    def forbidden(pid: int, number: int) -> None:
        raise PermissionError

    monkeypatch.setattr("statem_dist.identity.os.kill", forbidden)
    assert not is_dead(f"worker:{HOST}:{os.getpid()}:0")


def test_a_user_without_a_name_is_known_by_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """In a container a process often runs under a number that the system has no name for."""
    for name in ("LOGNAME", "USER", "LNAME", "USERNAME"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2_000_000_123)
    assert user_name() == "uid 2000000123"
    monkeypatch.setenv("LOGNAME", "alice")
    assert user_name() == "alice"
