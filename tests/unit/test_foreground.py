"""At most one ``up`` per state directory, and who asks it to stop."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from statem_dist.embedded import foreground
from statem_dist.embedded.locks import FileLock
from statem_dist.embedded.place import Place
from statem_dist.errors import Conflict

HOLDER = """
import sys
from pathlib import Path
from statem_dist.embedded.foreground import only_here

with only_here(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that is the one ``up`` of a state directory."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    argv = [sys.executable, "-c", HOLDER, str(tmp_path)]
    with subprocess.Popen(argv, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_second_one_is_refused_and_told_of_the_first(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    """Whoever comes second learns the process id of the first."""
    assert foreground.is_kept(tmp_path)
    with pytest.raises(Conflict, match=rf"\(process {holder.pid}\)") as caught, foreground.only_here(tmp_path):
        pass
    assert caught.value.details == {"pid": holder.pid}


def test_the_one_that_is_there_is_asked_to_stop(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    """It gets SIGTERM, and its end is waited for."""
    assert foreground.ask_to_stop(tmp_path) == holder.pid
    foreground.wait_until_stopped(tmp_path)
    assert holder.wait() == -signal.SIGTERM


def test_a_killed_one_is_in_nobodys_way(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    """Its note stays, and nobody believes it."""
    holder.kill()
    holder.wait()
    assert foreground.ask_to_stop(tmp_path) is None
    assert not foreground.is_kept(tmp_path)
    with foreground.only_here(tmp_path):
        assert foreground.is_kept(tmp_path)


def test_where_none_ever_ran_there_is_none(tmp_path: Path) -> None:
    """A look leaves no file behind."""
    assert foreground.ask_to_stop(tmp_path) is None
    assert not foreground.is_kept(tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("note", ["up:elsewhere:1:1", f"up:{socket.gethostname()}:1:0:", "", "4711"])
def test_one_that_is_no_process_of_this_host_is_left_alone(tmp_path: Path, note: str) -> None:
    """A note that names no living process of ours sends no signal to anybody."""
    with FileLock(Place.of(tmp_path).up_lock) as lock:
        lock.acquire(timeout_seconds=0)
        lock.write_note(note)
        with pytest.raises(Conflict, match="cannot be asked from here"):
            foreground.ask_to_stop(tmp_path)
