"""What a run has been through, asked of the real command line: in pages, event by event, as it happens, drawn."""

from __future__ import annotations

import json
import shlex
import subprocess
from typing import Any

import pytest

from tests.support.programs import COMMAND, PATIENCE_SECONDS, Said, Site, eventually

pytestmark = pytest.mark.e2e

LINE = """
nodes:
  a: {before_transfer: [{run: test -e allowed}], next: b}
  b: {next: c}
  c: The end.
"""


@pytest.fixture
def blocked(site: Site) -> Site:
    """A run that stands on ``a`` after one blocked attempt; from now on it may go."""
    site.start(LINE)
    site.json("goto", "b", "--run-id", "r", expect=2)
    site.write("allowed")
    return site


def lines(said: Said) -> list[dict[str, Any]]:
    """Return the documents of JSON lines."""
    return [json.loads(line) for line in said.stdout.splitlines()]


def test_the_log_has_a_line_per_event(blocked: Site) -> None:
    """``--raw`` prints each event with its number; ``--json`` gives all of them in one document."""
    document = blocked.json("history", "--raw")
    events = document["events"]
    assert [event["number"] for event in events] == list(range(1, document["version"] + 1))
    assert events[0]["event"] == "run_created"
    printed = blocked.run("history", "--raw").stdout.splitlines()
    assert len(printed) == len(events)
    for line, event in zip(printed, events, strict=True):
        assert line.startswith(event["ts"])
        assert f" {event['number']}  {event['event']}" in line


def test_a_history_comes_in_pages(blocked: Site) -> None:
    """``--after`` with ``--limit`` goes forwards, ``--tail`` alone means the last ones, and 0 prints nothing."""
    whole = blocked.json("history")["history"]
    assert [entry["event"] for entry in whole] == ["start", "in_hook", "goto_blocked"]
    assert blocked.json("history", "--after", "0", "--limit", "1")["history"] == whole[:2], "they share a number"
    assert blocked.json("history", "--after", str(whole[1]["number"]), "--limit", "5")["history"] == whole[2:]
    assert blocked.json("history", "-n", "1")["history"] == whole[2:]
    for words in ([], ["--raw"], ["--after", "0"]):
        assert blocked.run("history", "--tail", "0", *words) == Said(0, "", "")


@pytest.mark.parametrize("raw", [[], ["--raw"]], ids=["entries", "events"])
def test_a_run_can_be_followed_to_its_end(blocked: Site, raw: list[str]) -> None:
    """One JSON document per line, each as soon as it is known; it ends with the run, and nothing is missing."""
    watching = blocked.begin("history", "--follow", "--json", "--run-id", "r", *raw)
    eventually(lambda: watching.stdout or not watching.running, "the past is told")
    past = len(watching.stdout)
    blocked.json("goto", "b", "--run-id", "r")
    eventually(lambda: len(watching.stdout) > past, "the move is told, although the run goes on")
    blocked.json("goto", "c", "--run-id", "r")
    said = watching.wait()
    assert (said.exit_code, said.stderr) == (0, "")
    whole = blocked.json("history", *raw)
    assert lines(said) == whole["events" if raw else "history"]


def test_following_may_begin_now(blocked: Site) -> None:
    """``--tail`` bounds what is told of the past; what comes is told in any case, as text without ``--json``."""
    watching = blocked.begin("history", "-f", "--tail", "1", "--run-id", "r")
    eventually(lambda: "goto_blocked" in watching.stdout or not watching.running, "the last entry is told")
    for target in "bc":
        blocked.json("goto", target, "--run-id", "r")
    said = watching.wait()
    assert [line.split("  ")[1] for line in said.stdout.splitlines()] == [
        "goto_blocked a -> b at before_transfer (failed: before_transfer.0)",
        "goto a -> b",
        "goto b -> c",
    ]


def test_following_ends_with_ctrl_c(blocked: Site) -> None:
    """Exit code 130, and the run is as it was."""
    watching = blocked.begin("history", "--follow", "--run-id", "r")
    eventually(lambda: watching.stdout or not watching.running, "the past is told")
    watching.interrupt()
    said = watching.wait()
    assert (said.exit_code, said.stderr) == (130, "Interrupted.\n")
    assert blocked.json("cur")["current"] == "a"


@pytest.mark.parametrize("words", ["--follow", "--follow --raw --json", "--raw"])
def test_a_reader_that_goes_away_ends_it(blocked: Site, words: str) -> None:
    """``| head -1`` ends also a command that waits for what never comes, without a word on stderr."""
    done = subprocess.run(
        f"{shlex.join([*COMMAND, 'history'])} {words} | head -1",
        shell=True,
        cwd=blocked.folder,
        env=blocked.environment,
        capture_output=True,
        text=True,
        timeout=PATIENCE_SECONDS,
    )
    assert (len(done.stdout.splitlines()), done.stderr) == (1, "")


def test_a_page_does_not_go_on(blocked: Site) -> None:
    """``--after`` with ``--limit`` is a page; following one is a mistake that is named, and so is a negative number."""
    for words in (["--follow", "--after", "0", "--limit", "1"], ["--after", "-1"]):
        said = blocked.run("history", "--json", *words)
        assert (said.exit_code, said.data["code"]) == (64, "usage")


def test_a_run_is_drawn_with_its_way(blocked: Site) -> None:
    """The current node and those before it are marked, also in a file that is given with ``--run-id``."""
    blocked.json("goto", "b", "--run-id", "r")
    by_run = blocked.json("graph")
    assert (by_run["run_id"], by_run["current"]) == ("r", "b")
    assert [node["name"] for node in by_run["nodes"] if node["visited"]] == ["a", "b"]
    assert "class n1 current" in by_run["drawing"]
    edited = blocked.write("edited.yaml", "nodes: {z: {next: a}, a: {next: b}, b: }")
    assert "class n2 current" in blocked.run("graph", str(edited), "--run-id", "r").stdout
    assert "class n" not in blocked.run("graph", str(edited)).stdout
    assert blocked.run("graph", "--format", "svg").stdout.startswith("<svg ")


def test_warnings_of_a_runbook_stand_on_stderr(site: Site) -> None:
    """``validate`` and ``start`` print the same ones there, with their place; in JSON ``validate`` lists them."""
    path = str(site.write("doubtful.yaml", "nodes:\n  a:\n    before_transfr: x\n    in_hook:\n      - run: echo #1\n"))
    warned = site.run("validate", path)
    assert warned.exit_code == 0
    assert "Warning" not in warned.stdout
    first, second = warned.stderr.splitlines()
    assert first.startswith(f"Warning: {path}:3:5: node 'a': unknown keyword 'before_transfr'; did you mean")
    assert second.startswith(f"Warning: {path}:5:14: ")
    assert site.json("validate", path)["warnings"] == [line.removeprefix("Warning: ") for line in (first, second)]
    assert site.run("start", path, "--run-id", "s").stderr.splitlines()[:2] == [first, second]
