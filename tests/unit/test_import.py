"""Runs of StateM, taken over: what is read of its folders, what becomes of it, and what is refused."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from statem_dist import statem_folders
from statem_dist.coordinator import Coordinator
from statem_dist.dispatch import NoDispatch
from statem_dist.errors import Conflict, Invalid, NotFound, RunbookInvalid
from statem_dist.history import history
from statem_dist.importing import Arrival, bring
from statem_dist.laws import Judge
from statem_dist.protocol.commands import Goto, Resume
from statem_dist.protocol.decide import decide
from statem_dist.protocol.evolve import replay
from statem_dist.protocol.model import Actor, Run
from statem_dist.settings import Settings
from statem_dist.statem_folders import ForeignRun
from tests.support.builders import AGENT, EPOCH
from tests.support.memory_store import MemoryStore
from tests.support.statem_folders import ENTRY, RUNBOOK, StatemFolder
from tests.support.statem_folders import history as foreign_history

SCOPE = "/state"
CREATED_AT = 1_789_038_906_000
"""The moment at which the runs of the folder were created, in ms."""


class Desk:
    """A folder of StateM, and a store in memory to which its runs are brought."""

    def __init__(self, project: Path) -> None:
        self.folder = StatemFolder(project)
        self.store = MemoryStore(EPOCH)
        self.settings = Settings(state_dir=Path(SCOPE))

    def found(self, run_id: str = "demo") -> ForeignRun:
        """Return a run as it is read."""
        return statem_folders.read(self.folder.path / "runs" / run_id / "state.json")

    def bring(
        self, run_id: str = "demo", *, name: str | None = None, spec: Path | None = None, dry_run: bool = False
    ) -> Arrival:
        """Import a run."""
        return bring(self.store, self.settings, self.found(run_id), run_id=name, spec=spec, dry_run=dry_run)

    def run(self, run_id: str = "demo") -> Run:
        """Return an imported run."""
        return self.store.runs[run_id].run

    def goto(self, target: str, run_id: str = "demo") -> Run:
        """Attempt a transition of an imported run, which nobody executes."""
        stored = self.store.runbook(self.run(run_id).runbook)
        assert stored is not None
        Coordinator(self.store, NoDispatch(), self.settings).apply(
            run_id, Goto(runbook=stored.runbook, target=target, by=AGENT)
        )
        return self.run(run_id)


@pytest.fixture
def desk(tmp_path: Path) -> Desk:
    """A folder with one run, and an empty store."""
    return Desk(tmp_path)


# --- reading -----------------------------------------------------------------------------------------------------


def test_everything_that_a_run_goes_on_with_is_read(desk: Desk) -> None:
    """Node, entry, tries of this entry, agent, times, runbook and history, and that it was the active run."""
    found = desk.found()
    assert (found.run_id, found.node, found.entry_id) == ("demo", "design", ENTRY)
    assert (found.attempts, found.agent_id) == ({"done": 1}, "agent-20260910T111506Z-86a69feb")
    assert (found.created_at, found.spec_path) == (CREATED_AT, str(desk.folder.spec))
    assert list(found.history) == foreign_history(desk.folder.spec)
    assert (found.active, found.left_out, found.warnings) == (True, 0, ())


def test_another_run_is_not_the_active_one(desk: Desk) -> None:
    """Only the run that ``active_run`` names is active, and none where there is no such file."""
    desk.folder.add("other")
    assert not desk.found("other").active
    (desk.folder.path / "active_run").unlink()
    assert not desk.found().active


@pytest.mark.parametrize(
    ("changes", "field", "value", "warning"),
    [
        ({"current_entry_id": None}, "entry_id", "", "gets a new one"),
        ({"current_entry_id": "../../etc"}, "entry_id", "", "gets a new one"),
        ({"current_entry_id": 7}, "entry_id", "", "current_entry_id is not understood"),
        ({"edge_attempts": None}, "attempts", {}, None),
        ({"edge_attempts": {ENTRY: {"design": {"done": -1}}}}, "attempts", {}, "edge_attempts is not understood"),
        ({"edge_attempts": {"older": {"design": {"done": 1}}}}, "attempts", {}, None),
        ({"agent_id": None}, "agent_id", "", None),
        ({"agent_id": ["a"]}, "agent_id", "", "agent_id is not understood"),
        ({"created_at": None}, "created_at", 0, "created_at gives no time"),
        ({"created_at": "yesterday"}, "created_at", 0, "created_at gives no time"),
        ({"created_at": "0001-01-01T00:00:00Z"}, "created_at", 0, "created_at gives no time"),
        ({"created_at": "2026-09-10T11:15:06"}, "created_at", CREATED_AT, None),
        ({"created_at": "2026-09-10T13:15:06+02:00"}, "created_at", CREATED_AT, None),
        ({"history": None}, "history", (), None),
        ({"history": {}}, "history", (), "history is not understood"),
        ({"run_id": None}, "run_id", "demo", None),
        ({"version": None}, "node", "design", None),
        ({"spec_hash": None}, "spec_hash", "", None),
        ({"team": {"size": 2}, "mood": "good"}, "node", "design", "not understood, and left out: mood, team"),
    ],
)
def test_what_may_be_missing_may_be_missing(
    desk: Desk, changes: dict[str, Any], field: str, value: object, warning: str | None
) -> None:
    """An optional value that is missing or not understood is left out; what is not understood is said."""
    desk.folder.add("demo", **changes)
    found = desk.found()
    assert getattr(found, field) == value
    assert (warning is None) == (not found.warnings)
    assert warning is None or any(warning in each for each in found.warnings)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no state of StateM"),
        ("[]", "no state of StateM"),
        ("{", "no state of StateM"),
        ('{"version": NaN, "current": "a"}', "no state of StateM"),
        ("[" * 100_000, "no state of StateM"),
        ("{}", "current must be a text"),
        ('{"current": 3}', "current must be a text"),
        ('{"current": ""}', "current must be a text"),
        ('{"current": "a", "version": 2}', "format version 2 is not known"),
        ('{"current": "a", "version": "1"}', "format version '1' is not known"),
    ],
)
def test_what_does_not_say_where_the_run_stands_is_refused(desk: Desk, text: str, said: str) -> None:
    """The message names the file and what is wrong with it."""
    path = desk.folder.write("demo", text)
    with pytest.raises(Invalid, match=re.escape(said)) as refusal:
        desk.found()
    assert str(path) in refusal.value.message


@pytest.mark.parametrize(
    "entry",
    [
        "start",
        {"event": "start"},
        {"ts": "now", "event": 7},
        {"ts": "now", "event": "goto", "from": "a"},
        {"ts": "now", "event": "save", "results": [{"output": "x"}]},
        {"ts": "now", "event": "save", "results": {}},
    ],
)
def test_an_entry_that_could_not_be_shown_is_left_out(desk: Desk, entry: object) -> None:
    """It is counted and named by its position; the others are taken."""
    start, *others = foreign_history(desk.folder.spec)
    desk.folder.add("demo", history=[start, entry, *others])
    found = desk.found()
    assert (list(found.history), found.left_out) == ([start, *others], 1)
    assert "history[1]" in found.warnings[0]


def test_of_a_long_history_the_newest_entries_are_taken(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """How many older ones are left out is counted and said."""
    entries = [{"event": "save", "ts": str(number), "node": "design"} for number in range(100)]
    monkeypatch.setattr(statem_folders, "HISTORY_BYTES_MAX", 10 * len(json.dumps(entries[50], separators=(",", ":"))))
    desk.folder.add("demo", history=entries)
    found = desk.found()
    assert (list(found.history), found.left_out) == (entries[90:], 90)
    assert "its oldest 90 entries are left out" in found.warnings[0]


def test_a_file_that_is_too_large_is_refused(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is not read into memory."""
    monkeypatch.setattr(statem_folders, "STATE_BYTES_MAX", 100)
    with pytest.raises(Invalid, match="larger than"):
        desk.found()


def test_runs_are_found_in_a_folder_of_theirs_or_of_all(desk: Desk, tmp_path: Path) -> None:
    """A run's folder gives that run, the state folder all of them; for other places the error says what to name."""
    desk.folder.add("another")
    names = [path.parent.name for path in statem_folders.find(desk.folder.path)]
    assert names == ["another", "demo"]
    assert [path.parent.name for path in statem_folders.find(desk.folder.path / "runs" / "demo")] == ["demo"]
    for place in (tmp_path, tmp_path / "missing"):
        with pytest.raises(NotFound) as refusal:
            statem_folders.find(place)
        assert ".statem" in refusal.value.hint


# --- taking over -------------------------------------------------------------------------------------------------


def test_a_run_goes_on_where_it_stood(desk: Desk) -> None:
    """It has the node, the entry, the tries and the times it had, and works in the folder of its runbook."""
    assert desk.bring().outcome == "imported"
    run = desk.run()
    assert (run.node, run.entry_id, run.attempts) == ("design", ENTRY, {"done": 1})
    assert (run.created_at, run.updated_at, run.version, run.status) == (CREATED_AT, EPOCH, 1, "active")
    assert (run.place.workspace, run.place.spec) == (str(desk.folder.spec.parent), str(desk.folder.spec))
    assert (run.place.state_dir, run.by) == (SCOPE, Actor("agent-20260910T111506Z-86a69feb"))
    transition = desk.goto("done").transition
    assert transition is not None
    assert (transition.id, transition.source, transition.attempt) == ("t1", "design", 2)


def test_tries_that_were_used_up_stay_used_up(desk: Desk) -> None:
    """The edge refuses another try, as StateM would."""
    desk.folder.add("demo", edge_attempts={ENTRY: {"design": {"done": 3}}})
    desk.bring()
    transition = desk.goto("done").transition
    assert transition is not None
    assert (transition.outcome, transition.stage) == ("blocked", "max_attempts")


def test_a_run_on_an_end_is_finished(desk: Desk) -> None:
    """Its status says so from the beginning."""
    desk.folder.add("demo", current="done")
    desk.bring()
    assert desk.run().status == "finished"


def test_the_events_of_an_imported_run_are_lawful(desk: Desk) -> None:
    """They replay to the run; it can be resumed, and moved, by the rules of any other."""
    desk.bring()
    stored = desk.store.runbook(desk.run().runbook)
    assert stored is not None
    Coordinator(desk.store, NoDispatch(), desk.settings).apply("demo", Resume(runbook=stored.runbook, by=AGENT))
    desk.goto("done")
    events = [event for _, event in desk.store.events("demo")]
    Judge({stored.runbook.hash: stored.runbook}).see(events)
    assert replay(events) == desk.run()


def test_history_shows_first_what_statem_wrote(desk: Desk) -> None:
    """Its entries are as they were; then comes the import, with what it was read from, then whatever follows."""
    desk.folder.add("demo", edge_attempts={ENTRY: {"design": {"done": 3}}})
    desk.bring()
    desk.goto("done")
    told = history(desk.store, desk.run())
    written = foreign_history(desk.folder.spec)
    assert told[: len(written)] == written
    assert [entry["event"] for entry in told[len(written) :]] == ["import", "goto_blocked"]
    arrival = told[len(written)]
    assert (arrival["current"], arrival["current_entry_id"], arrival["number"]) == ("design", ENTRY, 1)
    assert (arrival["entries"], arrival["left_out"]) == (4, 0)
    assert arrival["source"] == str(desk.folder.path / "runs" / "demo" / "state.json")
    assert [entry["event"] for entry in history(desk.store, desk.run(), 3)] == [
        "goto_blocked",
        "import",
        "goto_blocked",
    ]


def test_a_run_may_get_another_id_and_another_runbook(desk: Desk, tmp_path: Path) -> None:
    """Where the runbook has moved, the caller names it."""
    moved = desk.folder.spec.rename(tmp_path / "moved.yaml")
    with pytest.raises(RunbookInvalid) as refusal:
        desk.bring()
    assert "--spec" in refusal.value.hint
    desk.bring(name="my run", spec=moved)
    assert desk.run("my-run").place.spec == str(moved)


def test_a_run_whose_runbook_nobody_names_is_refused(desk: Desk) -> None:
    """Without a path in the file the caller has to give one."""
    desk.folder.add("demo", spec_path=None)
    with pytest.raises(Invalid, match="does not say where the runbook is"):
        desk.bring()
    assert desk.bring(spec=desk.folder.spec).outcome == "imported"


def test_an_edited_runbook_is_taken_with_a_warning(desk: Desk) -> None:
    """The run follows it as it is now."""
    desk.folder.spec.write_text(RUNBOOK + "# edited\n")
    arrival = desk.bring()
    assert any("was edited" in warning for warning in arrival.warnings)
    assert desk.run().runbook == arrival.command.runbook.hash != arrival.command.recorded_hash


def test_a_runbook_with_the_line_ends_of_windows_is_the_same(desk: Desk) -> None:
    """StateM hashes the text with its line ends turned into newlines."""
    desk.folder.spec.write_bytes(RUNBOOK.replace("\n", "\r\n").encode())
    assert desk.bring().warnings == ()


def test_a_node_that_the_runbook_lacks_is_refused(desk: Desk) -> None:
    """A run never stands on a node that does not exist; nothing is written."""
    desk.folder.add("demo", current="gone")
    with pytest.raises(Invalid, match="has no such node"):
        desk.bring()
    assert not desk.store.runs


@pytest.mark.parametrize("recorded", [None, "demo-e2"])
def test_visits_never_share_an_id(desk: Desk, recorded: str | None) -> None:
    """An entry id that is missing, or of the form that later visits get, is made anew."""
    desk.folder.add("demo", current="setup", current_entry_id=recorded)
    desk.bring()
    first = desk.run().entry_id
    assert desk.goto("design").entry_id != first == "demo-e1"


def test_the_same_import_again_changes_nothing(desk: Desk) -> None:
    """Also after the run has gone on, and from a copy of the folder; the answer says that it was done before."""
    desk.bring()
    run = desk.goto("done")
    desk.store.now += 1000
    assert desk.bring().outcome == "unchanged"
    assert desk.run() == run


@pytest.mark.parametrize("dry_run", [False, True])
def test_another_run_of_that_id_is_refused(desk: Desk, dry_run: bool) -> None:
    """What differs is never mixed; another id helps."""
    desk.bring()
    desk.folder.add("demo", current="setup")
    with pytest.raises(Conflict, match="exists already"):
        desk.bring(dry_run=dry_run)
    assert desk.bring(name="second").outcome == "imported"
    assert desk.run().node == "design"


def test_a_dry_run_changes_nothing(desk: Desk) -> None:
    """It answers what would be done."""
    desk.folder.add_checks("demo", "scout", '{"checks": [{"type": "command", "run": "true"}]}')
    arrival = desk.bring(dry_run=True)
    assert (arrival.outcome, arrival.active, arrival.command.node) == ("planned", True, "design")
    assert not desk.store.runs
    assert desk.store.active(SCOPE) is None
    assert not desk.store.dynamic("demo", ENTRY)


def test_an_import_that_loses_a_race_is_refused(desk: Desk) -> None:
    """The decider does not create a run twice."""
    command = desk.bring().command
    with pytest.raises(Conflict):
        decide(desk.run(), command, EPOCH)


# --- the active run ----------------------------------------------------------------------------------------------


def test_the_active_run_stays_the_active_one(desk: Desk) -> None:
    """Of the state directory, and of its runbook; others are not."""
    desk.folder.add("other")
    assert not desk.bring("other").active
    assert desk.store.active(SCOPE) is None
    assert desk.bring().active
    assert desk.store.active(SCOPE) == desk.store.active(f"{SCOPE}|{desk.folder.spec}") == "demo"


def test_an_import_takes_nobodys_run_away(desk: Desk) -> None:
    """Where another run is active already it stays so, and that is said."""
    desk.store.activate([SCOPE], "mine")
    arrival = desk.bring()
    assert not arrival.active
    assert any("mine stays the active run" in warning for warning in arrival.warnings)
    assert desk.store.active(SCOPE) == "mine"


# --- dynamic checks ----------------------------------------------------------------------------------------------


def test_dynamic_checks_of_the_entry_come_along(desk: Desk) -> None:
    """They are registered under the agent that the file names, else under the one that its own name gives."""
    checks = [{"type": "command", "run": "true"}]
    desk.folder.add_checks("demo", "a", json.dumps({"producer": {"agent_id": "Ann", "role": "qa"}, "checks": checks}))
    desk.folder.add_checks("demo", "b", json.dumps(checks))
    assert desk.bring().warnings == ()
    registered = {agent: json.loads(text)["origin"] for agent, text in desk.store.dynamic("demo", ENTRY).items()}
    assert registered == {
        "Ann": {"agent_id": "Ann", "role": "qa", "at": EPOCH},
        "b": {"agent_id": "b", "at": EPOCH},
    }


def test_dynamic_checks_that_cannot_be_taken_are_named(desk: Desk) -> None:
    """A file that is no checks, or for a node that takes none, is left out with a warning."""
    broken = desk.folder.add_checks("demo", "a", "{")
    assert any(str(broken) in warning for warning in desk.bring().warnings)
    desk.folder.spec.write_text(RUNBOOK.replace("    dynamic_before_transfer: {}\n", ""))
    assert any("accepts no dynamic checks" in warning for warning in desk.bring(name="second").warnings)
