"""Limits of commands, and wrappers, as the supervisor starts them."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from statem_dist.checks.confinement import Rules
from statem_dist.checks.context import CheckContext
from statem_dist.checks.evaluate import evaluate
from statem_dist.checks.process import Supervisor, Wrapper
from statem_dist.protocol.graph import Check, Command, ResourceLimits
from statem_dist.protocol.outcome import Outcome

pytestmark = pytest.mark.e2e

ENVIRONMENT = {"PATH": os.environ["PATH"]}


@pytest.fixture(scope="module")
def supervisor() -> Iterator[Supervisor]:
    """A supervisor for all of these tests."""
    with Supervisor() as supervisor:
        yield supervisor


def outcome_of(supervisor: Supervisor, folder: Path, run: str, **limits: int) -> Outcome:
    """Evaluate a command with limits."""
    rules = Rules(limits=ResourceLimits(**limits))
    context = CheckContext("k", str(folder), ENVIRONMENT, "condition", "r", "n", rules=rules)
    return evaluate(Check(Command(run), timeout=60), context, supervisor)


def test_limits_hold_for_the_shell_and_what_it_starts(supervisor: Supervisor, tmp_path: Path) -> None:
    """They are hard: a descendant can lower and not raise them."""
    show = "ulimit -t; ulimit -Hv; ulimit -Hn"
    raise_it = "ulimit -n 65 2>/dev/null && echo raised"
    outcome = outcome_of(
        supervisor, tmp_path, f"{show}; sh -c '{show}'; {raise_it}; true", cpu=7, memory=2**30, files=64
    )
    assert outcome.output.split() == ["7", str(2**20), "64"] * 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root is exempt from the limit of processes")
def test_the_limit_of_processes_holds(supervisor: Supervisor, tmp_path: Path) -> None:
    """A user who has that many gets no more."""
    outcome = outcome_of(supervisor, tmp_path, "sleep 0 & wait", processes=1)
    assert not outcome.passed


def test_the_limit_of_processes_is_set(supervisor: Supervisor, tmp_path: Path) -> None:
    """Whoever it binds, the kernel has it."""
    outcome = outcome_of(supervisor, tmp_path, "grep 'Max processes' /proc/self/limits", processes=4321)
    assert outcome.output.split()[2:4] == ["4321", "4321"]


def test_the_limit_of_processor_time_is_named(supervisor: Supervisor, tmp_path: Path) -> None:
    """The signal is the kernel's and for nothing else; of a child's end the shell tells by a status."""
    busy = "while :; do :; done"
    outcome = outcome_of(supervisor, tmp_path, busy, cpu=1)
    assert (outcome.reason, outcome.signal) == ("signal", 24)
    assert outcome.output.startswith("ended by signal 24 (SIGXCPU): its limit of processor time, 1 s")
    outcome = outcome_of(supervisor, tmp_path, f"sh -c '{busy}'; exit $?", cpu=1)
    assert (outcome.reason, outcome.exit_code) == ("check_failed", 152)
    assert "the limit of processor time (1 s)" in outcome.output
    assert "limit" not in outcome_of(supervisor, tmp_path, "exit 152").output


def test_memory_that_is_refused_is_the_program_s_to_report(supervisor: Supervisor, tmp_path: Path) -> None:
    """The result is what the program makes of it, and nobody guesses at a limit."""
    program = f"{sys.executable} -c 'bytearray(1 << 30)'"
    outcome = outcome_of(supervisor, tmp_path, program, memory=600 << 20)
    assert (outcome.reason, outcome.exit_code) == ("check_failed", 1)
    assert outcome.output.endswith("MemoryError")
    assert outcome_of(supervisor, tmp_path, program).passed


@pytest.mark.parametrize("limits", [{"memory": 4096}, {"memory": 4096, "files": 1}])
def test_limits_that_leave_no_room_for_a_shell_end_it(
    supervisor: Supervisor, tmp_path: Path, limits: dict[str, int]
) -> None:
    """The command fails, and the supervisor serves the next one."""
    assert not outcome_of(supervisor, tmp_path, "true", **limits).passed
    assert outcome_of(supervisor, tmp_path, "true").passed


def test_a_missing_folder_and_a_nul_are_told_with_limits_as_without(supervisor: Supervisor, tmp_path: Path) -> None:
    """Both ways of starting have the same answers."""
    assert outcome_of(supervisor, tmp_path / "gone", "true", cpu=9).reason == "config_error"
    for limits in ({}, {"cpu": 9}):
        outcome = outcome_of(supervisor, tmp_path, "true \0", **limits)
        assert outcome.output == "the command cannot be run: ValueError: embedded null byte"
        assert outcome_of(supervisor, tmp_path, "true " + "x" * 200_000, **limits).reason == "config_error"


def test_a_wrapper_starts_the_shell_and_reads_what_is_not_in_the_list_of_processes(supervisor: Supervisor) -> None:
    """Its words stand before those of the shell, and descriptor 3 has its arguments."""
    program = 'read secret <&3; exec 3<&-; secret=$secret exec "$@"'
    wrapper = Wrapper(tuple(map(os.fsencode, ["/bin/sh", "-c", program, "sh"])), arguments=b"word\n")
    finished = supervisor.run("k", 'echo "$secret"; cat', cwd="/", env={}, stdin=b"in", wrapper=wrapper)
    assert (finished.exit_code, finished.stdout.head) == (0, b"word\nin")


@pytest.mark.parametrize("steady", [False, True])
def test_a_steady_wrapper_gets_no_sigterm(supervisor: Supervisor, steady: bool) -> None:
    """What it started gets it, and it sees the end of that; any other one gets it too."""
    program = 'trap "echo asked" TERM; "$@"; echo "saw $?"'
    wrapper = Wrapper(tuple(map(os.fsencode, ["/bin/sh", "-c", program, "sh"])), steady=steady)
    run = "trap 'exit 3' TERM; while :; do sleep 0.01; done"
    finished = supervisor.run("k", run, cwd="/", env=ENVIRONMENT, timeout=0.3, wrapper=wrapper)
    assert finished.timed_out
    assert finished.stdout.head == (b"saw 3\n" if steady else b"asked\nsaw 3\n")
