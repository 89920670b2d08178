"""Commands: the reasons for their ends, and what their results show."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statem_dist.checks.command import judge
from statem_dist.checks.context import CheckContext, Limits
from statem_dist.checks.evaluate import evaluate
from statem_dist.checks.process import Captured, Finished, Supervisor
from statem_dist.protocol.graph import Check, Command, Manual, Retry, Shell
from statem_dist.protocol.outcome import Outcome


@pytest.fixture(scope="module")
def supervisor() -> Iterator[Supervisor]:
    """A supervisor that keeps little output."""
    with Supervisor(head_bytes=1000, tail_bytes=3000) as supervisor:
        yield supervisor


def context_in(workspace: Path, **given: Any) -> CheckContext:
    """Return a context of a check in the workspace."""
    return CheckContext(
        "k", str(workspace), {"PATH": os.environ["PATH"], "WORD": "$(x) ;'"}, "condition", "r", "n", **given
    )


def outcome_of(workspace: Path, supervisor: Supervisor, run: str, **given: Any) -> Outcome:
    """Evaluate one command in the workspace."""
    return evaluate(Check(Command(run), **given), context_in(workspace), supervisor)


@pytest.mark.parametrize(
    ("run", "reason", "exit_code", "output"),
    [
        ("true", "passed", 0, ""),
        ("echo first; echo aside >&2; echo second; exit 6", "check_failed", 6, "first\nsecond\naside"),
        ("printf '\\n  padded  \\n\\n'", "passed", 0, "padded"),
        ("echo only aside >&2", "passed", 0, "only aside"),
        ("printf '\\377\\000\\033[31mx'", "passed", 0, "\ufffd\0\x1b[31mx"),
        ('printf %s "$WORD"', "passed", 0, "$(x) ;'"),
        ("cat; echo end", "passed", 0, "end"),
    ],
)
def test_results_of_commands(
    tmp_path: Path, supervisor: Supervisor, run: str, reason: str, exit_code: int, output: str
) -> None:
    """A command passes with status 0 and shows what it wrote, whatever the bytes."""
    outcome = outcome_of(tmp_path, supervisor, run)
    assert (outcome.reason, outcome.exit_code, outcome.output) == (reason, exit_code, output)
    assert outcome.passed is (reason == "passed")
    assert outcome.log == ""


@pytest.mark.parametrize(
    ("run", "shell", "reason", "exit_code", "output"),
    [
        ("false | tee x", "sh", "passed", 0, ""),
        ("false | tee x", "bash", "check_failed", 1, ""),
        ("no-such-program-here | cat", "bash", "config_error", 127, None),
        ("""printf '%s|' "$WORD" 'it''s' "$0"; [[ 1 == 1 ]]""", "bash", "passed", 0, "$(x) ;'|its|bash|"),
        ("kill -9 $$", "bash", "signal", None, None),
    ],
)
def test_a_pipe_fails_with_its_first_command_where_the_shell_is_bash(
    tmp_path: Path,
    supervisor: Supervisor,
    run: str,
    shell: Shell,
    reason: str,
    exit_code: int | None,
    output: str | None,
) -> None:
    """Its text is bash's as it stands, with ``pipefail`` set; by ``sh`` the last command alone decides."""
    outcome = evaluate(Check(Command(run, shell=shell)), context_in(tmp_path), supervisor)
    assert (outcome.reason, outcome.exit_code) == (reason, exit_code)
    assert output is None or outcome.output == output


@pytest.mark.parametrize(("run", "exit_code"), [("no-such-program-here", 127), ("./plain.txt", 126)])
def test_programs_that_cannot_be_executed(tmp_path: Path, supervisor: Supervisor, run: str, exit_code: int) -> None:
    """A missing program and one that is not executable are mistakes of configuration, told apart by their status."""
    (tmp_path / "plain.txt").write_text("x")
    outcome = outcome_of(tmp_path, supervisor, run)
    assert (outcome.passed, outcome.reason, outcome.exit_code) == (False, "config_error", exit_code)
    assert run in outcome.output


def test_a_command_ended_by_a_signal_names_it(tmp_path: Path, supervisor: Supervisor) -> None:
    """The signal is reported by number and name."""
    outcome = outcome_of(tmp_path, supervisor, "echo bye; kill -9 $$")
    assert (outcome.reason, outcome.exit_code, outcome.signal) == ("signal", None, 9)
    assert outcome.output == "ended by signal 9 (SIGKILL)\nbye"


def test_a_timeout_keeps_what_was_printed(tmp_path: Path, supervisor: Supervisor) -> None:
    """A command that outlives its timeout says so, and shows its output."""
    outcome = outcome_of(tmp_path, supervisor, "echo begun; exec sleep 60", timeout=0.4)
    assert (outcome.passed, outcome.reason) == (False, "timed_out")
    assert outcome.output == "timed out after 0.4 s\nbegun"


@pytest.mark.parametrize("cwd", ["nowhere", "file.txt", "/no/such/place"])
def test_a_missing_directory_is_a_mistake_of_configuration(tmp_path: Path, supervisor: Supervisor, cwd: str) -> None:
    """A cwd that is missing or no directory is named with what to do, and nothing runs."""
    (tmp_path / "file.txt").write_text("x")
    outcome = outcome_of(tmp_path, supervisor, f"touch {tmp_path}/ran", cwd=cwd)
    assert (outcome.passed, outcome.reason, outcome.exit_code) == (False, "config_error", None)
    assert os.path.join(tmp_path, cwd) in outcome.output
    assert "create this folder" in outcome.output
    assert not (tmp_path / "ran").exists()


def test_a_missing_workspace_is_told_from_a_missing_cwd(tmp_path: Path, supervisor: Supervisor) -> None:
    """Without a cwd of the check the workspace is to blame."""
    outcome = outcome_of(tmp_path / "gone", supervisor, "true")
    assert "workspace of the run" in outcome.output


def test_a_cwd_of_foreign_bytes_harms_nobody(tmp_path: Path, supervisor: Supervisor) -> None:
    """A path that is not UTF-8 works when it exists, and is reported when it does not."""
    name = os.fsdecode(b"caf\xe9")
    assert outcome_of(tmp_path, supervisor, "true", cwd=name).reason == "config_error"
    (tmp_path / name).mkdir()
    assert outcome_of(tmp_path, supervisor, "true", cwd=name).passed


def test_cwd_is_taken_from_the_workspace(tmp_path: Path, supervisor: Supervisor) -> None:
    """Relative, nested and absolute directories all work."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    for cwd, expected in ((None, "."), ("a/b", "a/b"), ("a/../a", "a"), (str(tmp_path / "a"), "a")):
        outcome = outcome_of(tmp_path, supervisor, "pwd -P", cwd=cwd)
        assert outcome.output == str((tmp_path / expected).resolve())


def test_declared_exit_statuses_mean_could_not_run(tmp_path: Path, supervisor: Supervisor) -> None:
    """A status listed by the runbook is an infrastructure failure, and the result says on what ground."""
    outcome = outcome_of(tmp_path, supervisor, "echo busy; exit 75", retry=Retry(exit_status=(75,)))
    assert (outcome.passed, outcome.reason, outcome.exit_code) == (False, "spawn_failed", 75)
    assert "exit status 75 is declared as could-not-run" in outcome.output
    assert "busy" in outcome.output


def test_long_output_is_in_the_log_and_cut_in_the_result(tmp_path: Path, supervisor: Supervisor) -> None:
    """What is too long for an event is complete in the log, and the cut says how much is missing."""
    limits = Limits(output_bytes_max=200)
    run = "echo begin; printf '%0500d' 0; echo; echo end"
    outcome = evaluate(Check(Command(run)), context_in(tmp_path, limits=limits), supervisor)
    assert len(outcome.output.encode()) <= 200
    assert outcome.output.startswith("begin")
    assert outcome.output.endswith("end")
    assert "bytes left out" in outcome.output
    assert outcome.log == "begin\n" + "0" * 500 + "\nend"
    assert (outcome.output_bytes, outcome.dropped_bytes) == (511, 0)


def test_output_beyond_the_capture_is_counted(tmp_path: Path, supervisor: Supervisor) -> None:
    """Bytes that nobody kept are counted in the result, and marked where they were."""
    outcome = outcome_of(tmp_path, supervisor, "head -c 100000 /dev/zero | tr '\\0' x")
    assert (outcome.output_bytes, outcome.dropped_bytes) == (100_000, 96_000)
    assert outcome.output == "x" * 1000 + "\n[... 96000 bytes left out ...]\n" + "x" * 3000


@pytest.mark.parametrize("run", ["echo a\0b", "echo \ud800", "x" * 200_000])
def test_commands_that_no_system_can_run(tmp_path: Path, supervisor: Supervisor, run: str) -> None:
    """A command text that cannot be passed on is a mistake of configuration, and the next one works."""
    assert outcome_of(tmp_path, supervisor, run).reason == "config_error"
    assert outcome_of(tmp_path, supervisor, "true").passed


@pytest.mark.parametrize(("why", "reason"), [("shutdown", "shutdown"), ("the run was cancelled", "cancelled")])
def test_cancelling(tmp_path: Path, supervisor: Supervisor, why: str, reason: str) -> None:
    """A cancelled command says why, as an infrastructure reason."""
    os.mkfifo(tmp_path / "ready")
    outcomes: list[Outcome] = []
    run = "echo x > ready; exec sleep 60"
    thread = threading.Thread(target=lambda: outcomes.append(outcome_of(tmp_path, supervisor, run)))
    thread.start()
    (tmp_path / "ready").read_text()
    assert supervisor.cancel("k", why)
    thread.join()
    assert (outcomes[0].passed, outcomes[0].reason) == (False, reason)
    assert why in outcomes[0].output
    assert not supervisor.cancel("k", why)


def test_what_a_closed_supervisor_was_asked_for_was_never_begun(tmp_path: Path, supervisor: Supervisor) -> None:
    """A command that comes after the supervisor was closed is told apart from one that was cut short."""
    closed = Supervisor(head_bytes=1000, tail_bytes=3000)
    closed.close()
    outcome = outcome_of(tmp_path, closed, "touch begun")
    assert (outcome.reason, outcome.begun) == ("shutdown", False)
    assert not (tmp_path / "begun").exists()
    assert outcome_of(tmp_path, supervisor, "true").begun


def test_a_lost_supervisor_is_an_unknown_outcome() -> None:
    """Nobody knows what a command had done when its supervisor died, so it is not called one that never started."""
    finished = Finished(failure="supervisor_lost", text="gone")
    assert judge(finished, Check(Command("x")), CheckContext("k", "/", {}, "p", "r", "n")) == ("worker_lost", "gone")


def test_counts_add_up() -> None:
    """Written and dropped bytes of both streams are summed."""
    finished = Finished(stdout=Captured(b"ab", b"c", 10), stderr=Captured(b"x", b"", 1))
    assert (finished.written_bytes, finished.dropped_bytes) == (11, 7)


def test_signals_without_a_name(tmp_path: Path) -> None:
    """A signal that Python has no name for is reported by its number."""
    number = int(signal.SIGRTMIN) + 1
    reason, note = judge(Finished(signal=number), Check(Command("x")), context_in(tmp_path))
    assert (reason, note) == ("signal", f"ended by signal {number} (unnamed)")


def test_what_is_not_for_a_host_to_evaluate(tmp_path: Path, supervisor: Supervisor) -> None:
    """A manual check is refused by name, because nothing here could settle it."""
    with pytest.raises(TypeError, match="manual"):
        evaluate(Check(Manual("Look.")), context_in(tmp_path), supervisor)
