"""The foreground runner with real processes, on the real signals."""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import IO

import pytest

from statem_dist.embedded.stack import Service, run_foreground

PATIENCE_SECONDS = 30.0


def _shell(name: str, script: str, ready: Callable[[], bool] | None = None) -> Service:
    return Service(name, ["/bin/sh", "-c", script], ready=ready)


def _run(*services: Service, grace_seconds: float = 10.0) -> tuple[int, str]:
    out = io.StringIO()
    code = run_foreground(services, out=out, grace_seconds=grace_seconds)
    return code, out.getvalue()


def _gone(pid: int) -> bool:
    """Whether a process ends soon; one that init has not collected yet counts as ended."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
        if found.stdout.strip()[:1] in ("", "Z"):
            return True
        time.sleep(0.01)
    return False


def test_a_service_that_ends_brings_all_down() -> None:
    """The exit code is 1, the output names the service and its status, and the others are stopped."""
    code, output = _run(_shell("steady", "echo pid $$; exec sleep 600"), _shell("frail", "echo here; exit 3"))
    assert code == 1
    assert "statem-dist | frail exited with status 3; stopping\n" in output
    assert "frail       | here\n" in output
    pid = re.search(r"^steady      \| pid (\d+)$", output, re.MULTILINE)
    assert pid is None or _gone(int(pid[1]))


def test_a_success_of_a_service_is_an_end_too() -> None:
    """A service is there to stay: exit status 0 brings the stack down as well."""
    code, output = _run(_shell("short", "exit 0"))
    assert code == 1
    assert "short exited with status 0" in output


def test_a_killed_service_is_named_with_its_signal() -> None:
    """Death by a signal is reported by the signal's name."""
    code, output = _run(_shell("victim", "kill -KILL $$"))
    assert code == 1
    assert "victim was killed by SIGKILL" in output


def test_a_program_that_does_not_exist_is_named() -> None:
    """Nothing keeps running when one of the programs cannot be started."""
    code, output = _run(_shell("first", "exec sleep 600"), Service("second", ["/no/such/program"]))
    assert code == 1
    assert "second cannot be started: /no/such/program: No such file or directory" in output


def test_the_last_words_are_shown() -> None:
    """Output without a line end, written just before the end, is not lost."""
    _, output = _run(_shell("speaker", "printf 'all is lost' >&2; exit 1"))
    assert "speaker     | all is lost\n" in output


def test_children_that_a_leader_leaves_behind_are_killed(tmp_path: Path) -> None:
    """A background child in the group of a service that died does not survive the stack."""
    pid_file = tmp_path / "pid"
    code, _ = _run(_shell("leader", f"sleep 600 & echo $! > {pid_file}; exit 1"))
    assert code == 1
    assert _gone(int(pid_file.read_text()))


def test_a_service_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    """After the grace time SIGKILL follows, and the output says so."""
    flag = tmp_path / "deaf"
    deaf = _shell("deaf", f"trap '' TERM; touch {flag}; while :; do sleep 0.05; done", ready=flag.exists)
    code, output = _run(deaf, _shell("frail", "exit 1"), grace_seconds=0.5)
    assert code == 1
    assert "deaf did not end within 0.5 s; killing it" in output


def test_services_start_when_the_one_before_is_ready(tmp_path: Path) -> None:
    """A service that needs another starts only after the other said that it is ready."""
    flag = tmp_path / "flag"
    first = _shell("first", f"sleep 0.2; touch {flag}; exec sleep 600", ready=flag.exists)
    code, output = _run(first, _shell("second", f"test -e {flag} && echo found it; exit 5"))
    assert code == 1
    assert "second      | found it" in output


def test_a_service_that_dies_before_it_is_ready_is_named() -> None:
    """The wait for readiness ends with the process."""
    code, output = _run(_shell("never", "exit 4", ready=lambda: False))
    assert code == 1
    assert "never exited with status 4" in output


_PROGRAM = """
import sys
from statem_dist.embedded.stack import Service, run_foreground
services = [Service(f"s{n}", ["/bin/sh", "-c", script]) for n, script in enumerate(sys.argv[2:])]
sys.exit(run_foreground(services, out=sys.stdout, grace_seconds=float(sys.argv[1])))
"""


class _Running:
    """A stack in a process of its own, whose output is read line by line."""

    def __init__(self, *scripts: str, grace_seconds: float = 60.0) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-c", _PROGRAM, str(grace_seconds), *scripts], stdout=subprocess.PIPE, text=True
        )
        assert self.process.stdout is not None
        self.stdout: IO[str] = self.process.stdout

    def read_pid(self, name: str) -> int:
        """Return the number in the next line of a service; lines of others before it are skipped."""
        for line in self.stdout:
            if line.startswith(name):
                return int(line.split("|")[1])
        raise AssertionError(f"{name} said nothing")

    def finish(self) -> tuple[int, str]:
        with self.stdout:
            rest = self.stdout.read()
            return self.process.wait(PATIENCE_SECONDS), rest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_all_in_reverse_order(number: signal.Signals) -> None:
    """Each stop signal ends the stack with exit code 0, the service that started last first, none left behind."""
    polite = "trap 'echo bye; exit 0' TERM; echo $$; while :; do sleep 0.02; done"
    running = _Running(polite, polite)
    pids = [int(running.stdout.readline().split("|")[1]) for _ in range(2)]
    running.process.send_signal(number)
    code, rest = running.finish()
    assert code == 0
    assert [line.split()[0] for line in rest.splitlines() if line.endswith("bye")] == ["s1", "s0"]
    assert all(_gone(pid) for pid in pids)


def test_a_second_signal_kills_at_once() -> None:
    """Who presses Ctrl-C twice does not wait for the grace time."""
    running = _Running("trap 'echo no' TERM; echo $$; while :; do sleep 0.02; done")
    pid = running.read_pid("s0")
    running.process.send_signal(signal.SIGINT)
    while "no" not in running.stdout.readline():
        pass
    running.process.send_signal(signal.SIGINT)
    code, _ = running.finish()
    assert code == 0
    assert _gone(pid)


def test_a_reader_that_goes_away_stops_the_stack() -> None:
    """When nobody reads the output any more, the services are stopped rather than left in the dark."""
    running = _Running("echo $$; while :; do echo more; sleep 0.01; done")
    pid = running.read_pid("s0")
    running.stdout.close()
    running.process.wait(PATIENCE_SECONDS)
    assert _gone(pid)


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(("no_color", "coloured"), [("", True), ("1", False)])
def test_names_are_coloured_on_a_terminal(monkeypatch: pytest.MonkeyPatch, no_color: str, coloured: bool) -> None:
    """Prefixes have a colour on a terminal, unless NO_COLOR is set and not empty."""
    monkeypatch.setenv("NO_COLOR", no_color)
    out = _Terminal()
    run_foreground([_shell("one", "echo text; exit 1")], out=out)
    assert ("\x1b[" in out.getvalue()) == coloured
    assert "text" in out.getvalue()


def test_signal_handlers_and_descriptors_are_given_back() -> None:
    """After the stack has ended the caller has its own handlers and no descriptor more than before."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGCHLD)
    handlers = [signal.getsignal(number) for number in numbers]
    before = len(os.listdir("/dev/fd"))
    _run(_shell("one", "exit 1"))
    assert [signal.getsignal(number) for number in numbers] == handlers
    assert len(os.listdir("/dev/fd")) == before


def test_an_escaped_child_that_holds_the_pipe_does_not_hold_the_stack(tmp_path: Path) -> None:
    """A grandchild in a session of its own keeps the output open; the stack ends all the same."""
    pid_file = tmp_path / "pid"
    escape = f"import os; os.setsid(); open('{pid_file}', 'w').write(str(os.getpid())); os.execlp('sleep', 'x', '600')"
    script = f'{sys.executable} -c "{escape}" & while ! [ -s {pid_file} ]; do sleep 0.01; done; exit 1'
    code, _ = _run(_shell("leader", script))
    assert code == 1
    os.kill(int(pid_file.read_text()), signal.SIGKILL)
