"""Dynamic checks as agents use them: written, dropped, broken, and forgotten with the entry."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import Site

pytestmark = pytest.mark.e2e

THERE_AND_BACK = """
nodes:
  a: {dynamic_before_transfer: SETTINGS, next: b}
  b: {next: a}
"""


def start(site: Site, settings: str = "{}", *words: str) -> None:
    """Start a run on a node that accepts dynamic checks."""
    site.start(THERE_AND_BACK.replace("SETTINGS", settings), "r", *words)


def register(site: Site, *commands: str, agent: str = "implementer") -> dict[str, Any]:
    """Register commands as checks of an agent."""
    site.write("checks.json", json.dumps([{"run": command} for command in commands]))
    return dict(site.json("dynamic", "write", "checks.json", "--agent-id", agent, "--role", "executor"))


def drop(site: Site, text: str, agent: str = "dropper") -> Path:
    """Drop a file into the folder that the command line names."""
    path = Path(site.json("dynamic", "path")["path"]) / f"checks.{agent}.json"
    path.write_text(text)
    return path


def go(site: Site, *words: str, expect: int = 0) -> dict[str, Any]:
    """Attempt to leave; return the facts of the transition."""
    said = site.json("goto", "b", "--run-id", "r", *words, expect=expect)
    return dict(said["details"] if expect else said)


@pytest.mark.parametrize("with_worker", [False, True], ids=["inline", "worker"])
def test_registered_checks_gate_the_move(site: Site, with_worker: bool) -> None:
    """They are executed like any other check, and every result says who registered it, in which role, and when."""
    if with_worker:
        site.worker("-c", "1")
    start(site)
    register(site, "test -e mended", "true")
    register(site, "echo seen >> seen", agent="critic")
    blocked = go(site, expect=2)
    assert blocked["stage"] == "dynamic_before_transfer"
    assert [result["passed"] for result in blocked["results"]] == [True, False, True]
    producers = [result["registered_by"] for result in blocked["results"]]
    assert [each["agent_id"] for each in producers] == ["critic", "implementer", "implementer"]
    assert {each["role"] for each in producers} == {"executor"}
    assert all(each["at"] > 0 for each in producers)
    site.write("mended")
    moved = go(site)
    assert moved["current"] == "b"
    assert moved["dynamic_before_transfer"]["producers"] == blocked["dynamic_before_transfer"]["producers"]
    (backing,) = site.json("evidence", "--run-id", "r")["evidence"]
    assert [proof["registered_by"]["agent_id"] for proof in backing["verified"]] == ["critic", *["implementer"] * 2]


def test_checks_belong_to_one_entry(site: Site) -> None:
    """After the run has been away and come back nothing is registered or dropped, and the folder is another one."""
    start(site)
    register(site, "true")
    dropped = drop(site, '[{"run": "true"}]')
    assert [each["producer"]["agent_id"] for each in site.json("dynamic", "list")["producers"]] == [
        "dropper",
        "implementer",
    ]
    go(site)
    site.json("goto", "a", "--run-id", "r")
    listed = site.json("dynamic", "list")
    assert listed["producers"] == []
    assert Path(listed["path"]) != dropped.parent
    assert go(site)["results"] == []


def test_dropped_files_count_and_stand_in_for_what_was_written(site: Site) -> None:
    """A file is the newer word of its agent; writing again removes it."""
    start(site)
    register(site, "echo written >> which")
    dropped = drop(
        site, '{"producer": {"role": "critic"}, "checks": [{"run": "echo dropped >> which; exit 1"}]}', "implementer"
    )
    blocked = go(site, expect=2)
    assert site.lines("which") == ["dropped"]
    assert blocked["results"][0]["registered_by"]["role"] == "critic"
    register(site, "echo again >> which")
    assert not dropped.exists()
    go(site)
    assert site.lines("which") == ["dropped", "again"]


@pytest.mark.parametrize("text", ["{", '[{"type": "prophecy"}]', '{"checks": "none"}'])
def test_a_file_that_cannot_be_used_blocks_with_a_reason(site: Site, text: str) -> None:
    """The result names the file and what is wrong with it; what others registered is not run meanwhile."""
    start(site)
    register(site, "echo ran >> ran")
    path = drop(site, text)
    blocked = go(site, expect=2)
    (result,) = blocked["results"]
    assert (result["type"], result["reason"], result["passed"]) == ("unmet", "check_failed", False)
    assert str(path) in result["output"]
    assert not site.lines("ran")
    assert str(path) in site.run("dynamic", "list").stdout
    path.unlink()
    assert go(site)["current"] == "b"


def test_a_node_may_require_them(site: Site) -> None:
    """Without registrations, or with too few, the run stays and is told how many there are."""
    start(site, "{required: true, min_items: 2}")
    assert "none are registered" in go(site, expect=2)["results"][0]["output"]
    register(site, "true")
    assert "1 are registered" in go(site, expect=2)["results"][0]["output"]
    register(site, "true", agent="critic")
    assert go(site)["current"] == "b"


def test_what_is_registered_where_nothing_is_accepted_is_not_run(site: Site) -> None:
    """As with StateM it is kept, and no ``goto`` looks at it; a warning says so."""
    site.start("nodes: {a: {next: b}, b: The end.}")
    site.write("checks.json", '[{"run": "false"}]')
    said = site.run("dynamic", "write", "checks.json", "--json")
    assert (said.exit_code, said.data["checks"]) == (0, 1)
    assert "no dynamic_before_transfer" in said.stderr
    assert "no dynamic_before_transfer" in site.run("dynamic", "path").stderr
    assert len(site.json("dynamic", "list")["producers"]) == 1
    moved = site.json("goto", "b")
    assert moved["dynamic_before_transfer"]["configured"] is False


def test_what_is_written_is_answered_for(site: Site) -> None:
    """The answer says that it is stored, by whom and in which role, under both names; a misspelt keyword is told."""
    start(site)
    site.write("checks.json", '[{"run": "true", "timeot": 5}]')
    said = site.run("dynamic", "write", "checks.json", "--role", "critic", "--json")
    assert (said.data["stored"], said.data["agent_role"], said.data["role"]) == (True, "critic", "critic")
    assert "did you mean 'timeout'?" in said.stderr
    where = site.json("dynamic", "path", "--role", "critic")
    assert (where["agent_role"], where["role"]) == ("critic", "critic")


def test_a_person_cannot_wave_failing_checks_through(site: Site) -> None:
    """Where stale checks have to be confirmed, a decision that they are current does not replace running them."""
    start(site, "{stale_policy: require_confirmation}")
    register(site, "test -e mended")
    blocked = go(site, "--on-manual", "wait", expect=2)
    assert [result["reason"] for result in blocked["results"]] == ["not_confirmed", "check_failed"]
    site.write("mended")
    go(site, "--on-manual", "wait", expect=7)
    assert site.json("approve", "r")["current"] == "b"


def test_prompts_lead_back_to_the_run(site: Site) -> None:
    """They name run, node and state directory, and every command in them works as it is printed."""
    site.write("moved")
    site.start("nodes: {a: {prompt: Read the plan., next: b}, b: The end.}")
    prompt = site.json("prompt", "--run-id", "r")["prompt"]
    assert all(word in prompt for word in ("Read the plan.", "'a'", str(site.state_dir), "--run-id r"))
    assert site.run("prompt", "--command", "uvx statem-dist").stdout.count("uvx statem-dist ") == 4
    assert "my-tool cur" in site.run("compact-prompt", STATEM_COMMAND="my-tool").stdout
    verbs = [line.strip().split(" ", 1)[1] for line in prompt.splitlines() if line.startswith("  statem-dist ")]
    assert len(verbs) == 4
    for verb in verbs:
        words = [word.strip("'") for word in verb.replace("TARGET", "b").split()]
        assert site.run(*words).exit_code == 0, words
    assert site.json("cur")["current"] == "b"
