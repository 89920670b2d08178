"""A team that moves over from StateM with its runs, from the command line."""

from __future__ import annotations

import re

import pytest

from tests.support.programs import Site
from tests.support.statem_folders import ENTRY, StatemFolder, history

pytestmark = pytest.mark.e2e


def test_a_team_moves_over(site: Site) -> None:
    """The runs are there where they stood, the active one is active, the history is whole, and ``goto`` goes on."""
    folder = StatemFolder(site.folder)
    folder.add("other", current="done")
    answer = site.json("import", ".statem")
    assert [(run["run_id"], run["outcome"], run["active"]) for run in answer["runs"]] == [
        ("demo", "imported", True),
        ("other", "imported", False),
    ]
    standing = site.json("cur")
    assert (standing["run_id"], standing["current"], standing["current_entry_id"]) == ("demo", "design", ENTRY)
    assert standing["spec_hash"] == answer["runs"][0]["recorded_hash"]
    blocked = site.json("goto", "done", expect=2)["details"]
    assert (blocked["attempt"], blocked["attempts_remaining"]) == (2, 1)
    site.write("spec.md", "written")
    site.json("goto", "done")
    told = site.json("history")["history"]
    assert told[:4] == history(folder.spec)
    assert [entry["event"] for entry in told[4:]] == [
        "import",
        "dynamic_before_transfer",
        "goto_blocked",
        "dynamic_before_transfer",
        "goto",
    ]
    assert len(site.run("history").stdout.splitlines()) == len(told)
    assert {run["run_id"]: run["status"] for run in site.json("runs")["runs"]} == {
        "demo": "finished",
        "other": "finished",
    }
    again = site.json("import", ".statem")
    assert [run["outcome"] for run in again["runs"]] == ["unchanged", "unchanged"]


def test_an_imported_run_is_resumed_by_start(site: Site) -> None:
    """``start`` with its runbook takes it up, and takes over an edit of the runbook."""
    folder = StatemFolder(site.folder)
    site.json("import", ".statem")
    folder.spec.write_text(folder.spec.read_text().replace("Design.", "Design it well."))
    resumed = site.json("start", str(folder.spec))
    assert (resumed["run_id"], resumed["current"], resumed["prompt"]) == ("demo", "design", "Design it well.")
    events = [entry["event"] for entry in site.json("history")["history"]]
    assert events[4:] == ["import", "rebind", "resume", "in_hook"]


def test_dynamic_checks_count_from_the_beginning(site: Site) -> None:
    """What StateM would have asked for is asked for here."""
    folder = StatemFolder(site.folder)
    site.write("spec.md", "written")
    folder.add_checks("demo", "scout", '[{"type": "command", "run": "test -e reviewed"}]')
    site.json("import", ".statem")
    assert site.json("goto", "done", expect=2)["details"]["stage"] == "dynamic_before_transfer"
    site.write("reviewed")
    site.json("goto", "done")


def test_a_dry_run_shows_and_changes_nothing(site: Site) -> None:
    """The answer is that of an import, and no run appears."""
    StatemFolder(site.folder)
    planned = site.json("import", ".statem/runs/demo", "--dry-run", "--run-id", "mine")
    assert [(run["run_id"], run["outcome"], run["entries"]) for run in planned["runs"]] == [("mine", "planned", 4)]
    assert site.run("import", ".statem", "--dry-run").stdout == (
        "Would import: demo on design, 4 history entries (active)\n"
    )
    assert site.json("runs")["runs"] == []


def test_what_cannot_be_imported_is_refused_and_the_rest_is_not(site: Site) -> None:
    """Of several runs those that can be are imported; the answer lists the others, and the exit code is 1."""
    folder = StatemFolder(site.folder)
    folder.write("broken", "{")
    details = site.json("import", ".statem", expect=1)["details"]
    assert [run["run_id"] for run in details["runs"]] == ["demo"]
    assert [each["code"] for each in details["refused"]] == ["invalid"]
    assert "broken" in details["refused"][0]["source"]
    assert site.json("import", ".statem/runs/broken", expect=1)["code"] == "invalid"
    folder.add("future", version=99)
    text = site.run("import", ".statem").stdout
    assert "Refused: broken: " in text
    assert re.search(r"^Refused: future: .*version 99.*\n    Use a newer version", text, re.MULTILINE)


def test_wrong_requests_are_refused(site: Site) -> None:
    """A folder without runs, one id for several runs, and an id that is taken have their own errors."""
    folder = StatemFolder(site.folder)
    folder.add("other")
    assert site.json("import", ".", expect=1)["code"] == "not_found"
    assert site.json("import", ".statem", "--run-id", "x", expect=64)["code"] == "usage"
    site.json("start", str(folder.spec), "--run-id", "demo")
    assert site.json("import", ".statem/runs/demo", expect=5)["code"] == "conflict"


def test_warnings_go_to_stderr(site: Site) -> None:
    """What was not understood is said beside the answer, and in it."""
    folder = StatemFolder(site.folder)
    folder.add("demo", mood="good")
    said = site.run("import", ".statem", "--json")
    assert "Warning: " in said.stderr
    assert "mood" in said.stderr
    assert "demo: " in said.stderr
    assert any("mood" in warning for warning in said.data["runs"][0]["warnings"])
