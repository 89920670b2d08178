"""Commands in a named container, by a docker client, and how they end there.

The engine is a stand-in (``tests.support.containers``): what it executes belongs to it and not to the client, so that a
command which only its client is told to end goes on for ever.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from statem_dist.checks.confinement import Rules
from statem_dist.checks.context import CheckContext
from statem_dist.checks.evaluate import evaluate
from statem_dist.checks.process import Supervisor
from statem_dist.protocol.graph import Check, Command, LlmReview, ResourceLimits
from statem_dist.protocol.outcome import Outcome
from tests.support.containers import StandInDocker
from tests.support.programs import HAS_PROC, Site, eventually

pytestmark = [pytest.mark.e2e, pytest.mark.skipif(not HAS_PROC, reason="what is to end is found in /proc")]


@pytest.fixture
def docker(tmp_path: Path) -> Iterator[StandInDocker]:
    """An engine in which the container ``box`` runs."""
    docker = StandInDocker(tmp_path, "box")
    yield docker
    docker.close()


@pytest.fixture
def here(docker: StandInDocker, monkeypatch: pytest.MonkeyPatch) -> StandInDocker:
    """The same, where this process finds its client."""
    for name, value in docker.environment.items():
        monkeypatch.setenv(name, value)
    return docker


def outcome_of(run: str, folder: Path, supervisor: Supervisor | None = None, **given: Any) -> Outcome:
    """Evaluate a command in a container."""
    rules = Rules(
        container=given.pop("container", "box"), passed=("TOKEN",), limits=given.pop("limits", ResourceLimits())
    )
    environ = {"PATH": os.environ["PATH"], "TOKEN": "do not tell", "HOST_ONLY": "x"}
    context = CheckContext("k", str(folder), environ, "condition", "r", "n", rules=rules)
    check = Check(given.pop("do", Command(run)), **given)
    if supervisor is not None:
        return evaluate(check, context, supervisor)
    with Supervisor() as own:
        return evaluate(check, context, own)


def test_a_command_runs_in_the_container(here: StandInDocker, tmp_path: Path) -> None:
    """In the folder of the check, with the image's variables and those that are handed on, and with its own status."""
    outcome = outcome_of('pwd; echo "$ENGINE|${#TOKEN}|$HOST_ONLY"; echo aside >&2; exit 5', tmp_path)
    assert outcome.output == f"{tmp_path}\n{here.client.parent}|11|\naside"
    assert (outcome.reason, outcome.exit_code) == ("check_failed", 5)
    assert outcome.output_bytes == len(outcome.output) + 1
    assert outcome_of("true", tmp_path).passed
    assert outcome_of("no-such-program", tmp_path).reason == "config_error"


def test_a_review_reads_its_brief_there(here: StandInDocker, tmp_path: Path) -> None:
    """Standard input goes through the client."""
    review = LlmReview(prompt="Is it good?", run="cat")
    assert "Is it good?" in outcome_of("", tmp_path, do=review).output


def test_values_are_on_no_command_line(here: StandInDocker, tmp_path: Path) -> None:
    """Neither the client's, which all users of the host can read, nor that of the shell around it."""
    look = "for each in /proc/[0-9]*/cmdline; do grep -lsF 'do not'\" tell\" $each; done; echo looked"
    assert outcome_of(look, tmp_path).output == "looked"


def test_limits_are_set_in_the_container(here: StandInDocker, tmp_path: Path) -> None:
    """By its shell, because its processes are none of ours; the client has none."""
    limits = ResourceLimits(memory=2**30, cpu=9, files=70, processes=5000)
    outcome = outcome_of("ulimit -v; ulimit -t; ulimit -n", tmp_path, limits=limits)
    assert outcome.output.split() == [str(2**20), "9", "70"]


def test_a_container_that_is_not_there_is_told_from_a_command_that_failed(here: StandInDocker, tmp_path: Path) -> None:
    """Both have the exit status 1; only one of them says something of the work."""
    outcome = outcome_of("exit 1", tmp_path)
    assert (outcome.reason, outcome.exit_code) == ("check_failed", 1)
    outcome = outcome_of("true", tmp_path, container="gone")
    assert outcome.reason == "spawn_failed"
    assert "could not begin it in the container 'gone'" in outcome.output
    assert "No such container: gone" in outcome.output


def test_a_folder_that_the_container_lacks_is_a_mistake_of_configuration(here: StandInDocker, tmp_path: Path) -> None:
    """By Docker's convention its client exits with 126 or 127 then."""
    outcome = outcome_of("true", tmp_path / "not-mounted")
    assert outcome.reason == "config_error"
    assert "chdir to cwd" in outcome.output


def test_a_daemon_that_does_not_answer_and_a_client_that_is_missing(
    here: StandInDocker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first may pass, the second is for somebody to mend."""
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/nobody.sock")
    outcome = outcome_of("true", tmp_path)
    assert (outcome.reason, "Cannot connect to the Docker daemon" in outcome.output) == ("spawn_failed", True)
    monkeypatch.setenv("PATH", str(tmp_path))
    outcome = outcome_of("true", tmp_path)
    assert (outcome.reason, "there is no docker on PATH" in outcome.output) == ("spawn_failed", True)


LINGER = "echo begun; setsid sleep 600 & trap '' TERM; sleep 600; sleep 600"
"""A command that does not end when it is asked, and leaves its session."""


def test_the_engine_goes_on_without_its_client(here: StandInDocker, tmp_path: Path) -> None:
    """What these tests rest on: killing the client alone ends nothing."""
    with Supervisor() as supervisor:
        waiting = threading.Thread(target=outcome_of, args=(LINGER, tmp_path, supervisor))
        waiting.start()
        eventually(lambda: len(here.executed()) >= 3, "the command runs")
        for name in filter(str.isdigit, os.listdir("/proc")):
            if os.fsencode(here.client) in _command_line(name).split(b"\0")[:3]:
                os.kill(int(name), signal.SIGKILL)
        waiting.join()
        assert len(here.executed()) >= 3


def _command_line(pid: str) -> bytes:
    try:
        return Path("/proc", pid, "cmdline").read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("how", ["timeout", "cancel"])
def test_what_is_ended_ends_in_the_container_too(here: StandInDocker, tmp_path: Path, how: str) -> None:
    """Asked first and killed then, also what has left its session, and all that within seconds."""
    outcomes: list[Outcome] = []
    with Supervisor() as supervisor:
        timeout = 0.7 if how == "timeout" else None
        waiting = threading.Thread(
            target=lambda: outcomes.append(outcome_of(LINGER, tmp_path, supervisor, timeout=timeout))
        )
        waiting.start()
        if how == "cancel":
            eventually(lambda: len(here.executed()) >= 3, "the command runs")
            supervisor.cancel("k", "not wanted")
        waiting.join()
        assert outcomes[0].reason == ("timed_out" if how == "timeout" else "cancelled")
        assert outcomes[0].output.endswith("begun")
        eventually(lambda: not here.executed(), "it ends in the container", here.executed)


def test_a_polite_command_has_its_time(here: StandInDocker, tmp_path: Path) -> None:
    """It gets SIGTERM there, and can put things in order."""
    run = "trap 'echo asked > asked; exit 0' TERM; echo begun; while :; do sleep 0.02; done"
    assert outcome_of(run, tmp_path, timeout=0.5).reason == "timed_out"
    eventually((tmp_path / "asked").exists, "the command was asked")


RUNBOOK = "nodes: {a: {before_transfer: [{run: 'echo $ENGINE $WORD; exit $STATUS'}], next: b}, b: }"


def result_of(site: Site, run_id: str, expect: int) -> dict[str, Any]:
    """Attempt the move and return the result of its check."""
    said = site.json("goto", "b", "--run-id", run_id, expect=expect)
    (result,) = said["results"] if expect == 0 else said["details"]["results"]
    return dict(result)


def test_a_run_is_started_for_a_container(site: Site, docker: StandInDocker) -> None:
    """By its runbook, or by ``start --executor`` whatever the runbook says; what it was started with gets there."""
    site.environment |= docker.environment
    words = ("--env", "WORD=hello", "--env", "STATUS=0")
    site.start("executor: {docker: box}\n" + RUNBOOK, "r1", *words)
    assert result_of(site, "r1", 0)["output"] == f"{docker.client.parent} hello"
    site.start("executor: {docker: gone}\n" + RUNBOOK, "r2", *words, "--executor", "docker:box")
    assert result_of(site, "r2", 0)["output"] == f"{docker.client.parent} hello"
    said = site.run("start", "r1.yaml", "--run-id", "r3", "--executor", "podman:box")
    assert (said.exit_code, "docker:NAME" in said.stderr) == (64, True)
    site.write("boxed.yaml", "sandbox: bwrap\n" + RUNBOOK)
    said = site.run("start", "boxed.yaml", "--run-id", "r4", "--executor", "docker:box")
    assert (said.exit_code, "demands a sandbox" in said.stderr) == (1, True)


def test_a_policy_of_sandboxes_lets_nobody_out_into_a_container(site: Site, docker: StandInDocker) -> None:
    """The daemon is outside of every sandbox: the command is refused, and not executed elsewhere."""
    site.environment |= docker.environment | {"STATEM_SANDBOX": "bwrap"}
    site.start("executor: {docker: box}\n" + RUNBOOK, "r", "--env", "STATUS=0")
    result = result_of(site, "r", 1)
    assert result["reason"] == "spawn_failed"
    assert "policy demands a sandbox" in result["output"]
    assert docker.begun == []


@pytest.mark.chaos
def test_a_killed_worker_leaves_nothing_in_the_container(site: Site, docker: StandInDocker) -> None:
    """Its supervisor ends its commands there as well."""
    worker = site.worker("-c", "1", **docker.environment)
    site.start(f'executor: {{docker: box}}\nnodes: {{a: {{before_transfer: [{{run: "{LINGER}"}}], next: b}}, b: }}')
    site.json("goto", "b", "--run-id", "r", "--no-wait")
    eventually(lambda: len(docker.executed()) >= 3, "the command runs")
    worker.kill()
    eventually(lambda: not docker.executed(), "nothing is left", docker.executed)
