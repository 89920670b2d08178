"""What becomes of a command whose stdout has no reader, no room, or no existence."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.support.programs import COMMAND, Site

pytestmark = pytest.mark.e2e


@pytest.fixture
def started(site: Site) -> Site:
    """A site with a run that can move to and fro."""
    site.start("nodes: {a: {next: b}, b: {next: a}}")
    return site


def shell(site: Site, script: str) -> subprocess.CompletedProcess[str]:
    """Run a shell line in which ``$S`` is the command line."""
    environment = {**site.environment, "S": " ".join(COMMAND)}
    return subprocess.run(["bash", "-c", script], env=environment, cwd=site.folder, capture_output=True, text=True)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="/dev/full is Linux's")
@pytest.mark.parametrize("words", ["cur", "cur --json"])
def test_a_full_stdout_is_said_in_one_line(started: Site, words: str) -> None:
    """No traceback, no talk of defects: what happened, and exit code 1."""
    done = shell(started, f"$S {words} > /dev/full")
    assert done.returncode == 1
    assert done.stderr.splitlines() == ["Error: stdout cannot be written: No space left on device."]


def test_a_closed_stdout_is_no_defect(started: Site) -> None:
    """A command that moves a run does so, and says nothing."""
    done = shell(started, "$S goto b >&-")
    assert (done.returncode, done.stderr) == (0, "")
    assert started.json("cur")["current"] == "b"


@pytest.mark.parametrize("words", ["goto b", "goto b --json", "history --raw", "graph"])
def test_a_reader_who_leaves_changes_no_exit_code(started: Site, words: str) -> None:
    """What was done is done: the code is the command's own, and stderr stays empty."""
    done = shell(started, f"$S {words} | true; echo ${{PIPESTATUS[0]}}")
    assert (done.stdout, done.stderr) == ("0\n", "")


def test_a_mistake_in_the_stop_hook_lets_the_agent_go(site: Site) -> None:
    """Whatever its settings say, a host gets a document that it understands, and exit code 0."""
    for words in (["hook", "stop", "--host", "foo"], ["hook", "stop", "--bogus"]):
        done = subprocess.run(
            [*COMMAND, *words], env={**os.environ, **site.environment}, input="{}", capture_output=True, text=True
        )
        assert done.returncode == 0
        assert list(json.loads(done.stdout)) == ["systemMessage"]
