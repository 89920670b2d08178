"""Commands that flood, hang, linger and babble harm only themselves, wherever they are executed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.programs import HAS_PROC, Program, Site, eventually, peak_kib

pytestmark = pytest.mark.e2e

FLOOD_BYTES = 600_000_000
PEAK_KIB_MAX = 200_000
"""A third of the flood; a process that holds no more than its cap is far below it."""

EVENT_BYTES_MAX = 4096


class Stage:
    """A site, and who executes its commands: a worker, or each command line itself."""

    def __init__(self, site: Site, worker: Program | None) -> None:
        self.site = site
        self.worker = worker
        self._runs = 0

    def attempt(self, check: str, expect: int) -> dict[str, Any]:
        """Start a run whose one move is guarded by a check, attempt it, and return the check's result."""
        self._runs += 1
        run_id = f"r{self._runs}"
        self.site.start(f"nodes: {{a: {{before_transfer: [{check}], next: b}}, b: The end.}}", run_id)
        said = self.site.json("goto", "b", "--run-id", run_id, expect=expect)
        self.settled_on = "b" if expect == 0 else "a"
        assert self.site.json("cur", "--run-id", run_id)["current"] == self.settled_on
        (result,) = said["results"] if expect == 0 else said["details"]["results"]
        assert f":{self.worker.pid}:" in result["by"] if self.worker else result["by"].startswith("cli:")
        return dict(result)


@pytest.fixture(scope="module", params=["inline", "worker"])
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    """One site for all of these tests: what one command does must not disturb the next."""
    site = Site()
    try:
        worker = site.worker("-c", "2") if request.param == "worker" else None
        yield Stage(site, worker)
        assert worker is None or worker.running
    finally:
        site.close()


@pytest.mark.slow
@pytest.mark.skipif(not HAS_PROC, reason="the memory of a process is read from /proc")
@pytest.mark.parametrize("exit_code", [0, 2])
def test_a_flood_of_output_is_capped(stage: Stage, exit_code: int) -> None:
    """The exit status alone decides, head and tail are kept, the rest is counted, and nobody's memory grows with it."""
    site, run_id = stage.site, f"flood-{exit_code}"
    flood = f"echo first; yes | head -c {FLOOD_BYTES}; echo last; exit {exit_code}"
    site.start(f"nodes: {{a: {{before_transfer: [{{run: '{flood}'}}], next: b}}, b: The end.}}", run_id)
    caller = site.begin("goto", "b", "--run-id", run_id, "--json")
    said = caller.wait()
    assert said.exit_code == exit_code
    (result,) = said.data["results"] if exit_code == 0 else said.data["details"]["results"]
    assert result["output"].startswith("first\n")
    assert result["output"].endswith("last")
    assert len(result["output"].encode()) <= EVENT_BYTES_MAX
    assert "bytes left out" in result["output"]
    assert result["output_bytes"] == FLOOD_BYTES + len("first\nlast\n")
    assert FLOOD_BYTES - 1_000_000 < result["dropped_bytes"] < FLOOD_BYTES
    assert caller.peak_kib < PEAK_KIB_MAX
    if stage.worker is not None:
        supervisors = site.processes("supervisor.main")
        assert supervisors
        assert all(peak_kib(pid) < PEAK_KIB_MAX for pid in (stage.worker.pid, *supervisors))


def test_a_timeout_ends_what_ignores_sigterm(stage: Stage) -> None:
    """The check is blocked as timed out, what it had said is kept, and its processes are gone."""
    deaf = "{run: \"trap '' TERM; echo deaf; sleep 612 & while :; do sleep 612; done\", timeout: 0.3}"
    result = stage.attempt(deaf, expect=2)
    assert result["reason"] == "timed_out"
    assert "timed out after 0.3 s" in result["output"]
    assert "deaf" in result["output"]
    if HAS_PROC:
        eventually(lambda: not stage.site.processes("sleep\x00612"), "its processes are gone")


@pytest.mark.parametrize("daemon", ["sleep 613 &", "setsid sleep 613 &"], ids=["child", "own-session"])
def test_a_daemon_does_not_hold_the_check(stage: Stage, daemon: str) -> None:
    """A check ends when its command does; what it left in the background, its stdout open, is ended and counted."""
    result = stage.attempt(f'{{run: "{daemon} echo started"}}', expect=0)
    assert (result["output"], result["survivors"]) == ("started", 1)
    if HAS_PROC:
        eventually(lambda: not stage.site.processes("sleep\x00613"), "the daemon is gone")


def test_output_that_is_no_text_stays_readable_json(stage: Stage) -> None:
    """Bytes that are not UTF-8 are replaced, NUL is escaped, and the document parses."""
    result = stage.attempt("{run: \"printf 'a\\\\377b\\\\000c\\\\033[31md'\"}", expect=0)
    assert result["output"] == "a\ufffdb\0c\x1b[31md"


def test_a_missing_directory_is_an_error_of_the_runbook(stage: Stage) -> None:
    """The check is blocked without a second try, and its result names the path and what to do."""
    result = stage.attempt('{run: "true", cwd: no/such, retries: 3}', expect=2)
    assert (result["reason"], result["tries"]) == ("config_error", 1)
    assert str(stage.site.folder / "no/such") in result["output"]
    assert "create this folder" in result["output"]


def test_a_directory_that_was_removed_meanwhile_is_told_from_a_missing_program(stage: Stage) -> None:
    """It was there when the run was started: blocked as a mistake of configuration without a second try, with the path
    and no exit status; whoever executes is none the worse for it."""
    (stage.site.folder / "gone").mkdir()
    stage.site.start("nodes: {a: {before_transfer: [{run: 'true', cwd: gone, retries: 3}], next: b}, b: End.}", "gone")
    (stage.site.folder / "gone").rmdir()
    blocked = stage.site.json("goto", "b", "--run-id", "gone", expect=2)
    (result,) = blocked["details"]["results"]
    assert (result["reason"], result["tries"], result.get("exit_code")) == ("config_error", 1, None)
    assert str(stage.site.folder / "gone") in result["output"]
    assert stage.attempt('{run: "echo fine"}', expect=0)["output"] == "fine"


def test_a_missing_program_is_an_error_of_the_runbook(stage: Stage) -> None:
    """The check is blocked without a second try, with the shell's own words."""
    result = stage.attempt('{run: "no-such-program --now", retries: 3}', expect=2)
    assert (result["reason"], result["exit_code"], result["tries"]) == ("config_error", 127, 1)
    assert "no-such-program" in result["output"]


def test_a_command_that_kills_itself_is_blocked_by_name_of_signal(stage: Stage) -> None:
    """Death by a signal is told from an exit status."""
    result = stage.attempt('{run: "kill -SEGV $$"}', expect=2)
    assert (result["reason"], result["signal"]) == ("signal", 11)
    assert "SIGSEGV" in result["output"]


def test_a_command_that_kills_its_supervisor_ends_as_lost(stage: Stage) -> None:
    """It counts as never evaluated rather than failed, and the next command is executed as ever."""
    result = stage.attempt('{run: "kill -9 $PPID; sleep 614", retry: {maximum_attempts: 2, initial_interval: 0.1}}', 1)
    assert (result["reason"], result["tries"]) == ("worker_lost", 2)
    assert stage.attempt('{run: "echo fine"}', expect=0)["output"] == "fine"


def test_a_command_waits_for_no_input(stage: Stage) -> None:
    """Standard input is empty, so that a program that asks a question does not hang for ever."""
    assert stage.attempt('{run: "cat; echo end"}', expect=0)["output"] == "end"
