"""Dynamic checks: what agents register or drop for an entry, and what a transition makes of it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from statem_dist import dynamic
from statem_dist.dynamic import (
    CONFIRM_ID,
    STILL_CURRENT,
    Registration,
    config_of,
    read,
    register,
    registration_view,
    registrations,
    snapshot,
)
from statem_dist.errors import RunbookInvalid
from statem_dist.places import entry_folder
from statem_dist.protocol.commands import Goto
from statem_dist.protocol.graph import Check, Command, DynamicConfig, Manual, Node, Unmet
from statem_dist.protocol.model import Actor, Confirmations, DynamicFacts, OnManual, Origin, Place, Run
from statem_dist.views import result_views
from tests.support.builders import AGENT, EPOCH, EVERYTHING, FAILED, NOBODY, PASSED, Desk, loop, one_by_one, shell
from tests.support.memory_store import MemoryStore

ANYTHING = DynamicConfig()
IMPLEMENTER = Actor(id="implementer", role="executor")
TEST = {"run": "make test"}


class Site:
    """A run ``r`` on a node that accepts dynamic checks, with a local state directory."""

    def __init__(self, folder: Path) -> None:
        self.store = MemoryStore(EPOCH)
        self.folder = folder
        place = Place(workspace=str(folder), state_dir=str(folder / "state"))
        self.desk = Desk(loop(Node("a", before_transfer=one_by_one(shell()), dynamic=ANYTHING)), place)

    @property
    def run(self) -> Run:
        """The run as it is."""
        return self.desk.run

    def write(self, document: Any, by: Actor = IMPLEMENTER, config: DynamicConfig = ANYTHING) -> Registration:
        """Register a document."""
        source = self.folder / "checks.json"
        source.write_text(json.dumps(document))
        return register(self.store, self.run, read(source, config).checks, by, EPOCH + 5)

    def drop(self, text: str, agent: str = "dropper") -> Path:
        """Drop a file into the folder of the entry."""
        path = entry_folder(self.run) / f"checks.{agent}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def found(self, config: DynamicConfig = ANYTHING) -> list[Registration]:
        """Return what is registered for the current entry."""
        return registrations(self.store, self.run, config)

    def goto(self, facts: DynamicFacts, on_manual: OnManual = "fail") -> None:
        """Ask for the transition with these dynamic checks."""
        runbook = self.desk.runbook
        self.desk.apply(Goto(runbook=runbook, target="b", by=AGENT, dynamic=facts, on_manual=on_manual))


@pytest.fixture
def site(tmp_path: Path) -> Site:
    """A site with nothing registered."""
    return Site(tmp_path)


def texts(facts: DynamicFacts) -> list[str]:
    """Return what is wrong, where something is."""
    return [each.check.do.text for each in facts.checks if isinstance(each.check.do, Unmet)]


# --- registering ----------------------------------------------------------------------------------------------


def test_what_is_registered_is_found_with_its_origin(site: Site) -> None:
    """The checks are kept with who registered them, in which role and when; nothing else is found."""
    assert site.found() == []
    registered = site.write([TEST, "A person has looked."])
    assert registered.origin == Origin(agent_id="implementer", role="executor", at=EPOCH + 5)
    assert [check.do for check in registered.checks] == [Command("make test"), Manual("A person has looked.")]
    assert site.found() == [registered]


def test_the_token_of_who_registers_is_kept(site: Site) -> None:
    """It is shown with the registration, and reaches the transition that evaluates the checks."""
    site.write([TEST], replace(IMPLEMENTER, token="3f"))
    (registered,) = registrations(site.store, site.run, ANYTHING)
    assert registration_view(site.run, registered)["producer"]["token"] == "3f"
    (producer,) = snapshot(ANYTHING, [registered], NOBODY).producers
    assert producer.token == "3f"


def test_registering_again_replaces(site: Site) -> None:
    """An agent has one registration per entry; those of others stay, and come in the order of the agents' ids."""
    site.write([TEST])
    site.write([{"run": "make lint"}, TEST], by=Actor("critic"))
    site.write([{"run": "make check"}])
    assert [(each.origin.agent_id, len(each.checks)) for each in site.found()] == [("critic", 2), ("implementer", 1)]
    assert site.found()[1].checks[0].do == Command("make check")


def test_a_registration_ends_with_its_entry(site: Site) -> None:
    """After the run has left the node and come back, nothing is registered."""
    site.write([TEST])
    site.drop("[]")
    first = entry_folder(site.run)
    site.goto(DynamicFacts())
    site.desk.work(PASSED)
    site.desk.goto("a")
    assert site.run.node == "a"
    assert site.found() == []
    assert entry_folder(site.run) != first


def test_yaml_is_read_by_its_suffix(site: Site) -> None:
    """What does not end in ``.json`` is YAML."""
    source = site.folder / "checks.yaml"
    source.write_text("checks:\n  - run: make test\n  - A person has looked.\n")
    assert len(read(source, ANYTHING).checks) == 2


@pytest.mark.parametrize(
    ("config", "document", "complaint"),
    [
        (ANYTHING, {"items": []}, "under 'checks'"),
        (ANYTHING, "one", "must be a list of checks"),
        (ANYTHING, [{"type": "prophecy"}], "unsupported type 'prophecy'"),
        (DynamicConfig(allow_types=("command",)), ["look"], "type 'manual' is not allowed here"),
        (DynamicConfig(require_reason=True), [TEST | {"reason": "why"}, TEST], r"checks\[1\]: .* needs a reason"),
        (DynamicConfig(require_reason=True), ["Look."], r"checks\[0\]: .* needs a reason"),
        (DynamicConfig(require_reason=True), [TEST | {"reason": " "}], r"checks\[0\]: .* needs a reason"),
        (DynamicConfig(require_basis=True), [TEST], "implementation_summary"),
        (DynamicConfig(require_basis=True), {"checks": [TEST], "basis": {}}, "implementation_summary"),
        (
            DynamicConfig(require_basis=True),
            {"checks": [TEST], "basis": {"implementation_summary": " "}},
            "implementation_summary",
        ),
    ],
)
def test_what_the_node_does_not_accept_is_not_registered(
    site: Site, config: DynamicConfig, document: Any, complaint: str
) -> None:
    """The refusal names the file and what is wrong, and an earlier registration stays."""
    earlier = site.write([TEST])
    with pytest.raises(RunbookInvalid, match=complaint) as caught:
        site.write(document, config=config)
    assert "checks.json" in caught.value.message
    assert site.found() == [earlier]


def test_all_that_a_file_lacks_is_said_at_once(site: Site) -> None:
    """A missing basis, missing reasons and a type that is not allowed are one refusal, in the order of the file."""
    strict = DynamicConfig(require_reason=True, require_basis=True, allow_types=("command",))
    with pytest.raises(RunbookInvalid) as caught:
        site.write([TEST, {"text": "Look.", "reason": "why"}], config=strict)
    assert [problem["field"] for problem in caught.value.details["problems"]] == ["basis", "checks[0]", "checks[1]"]


def test_unknown_keywords_are_warnings(site: Site) -> None:
    """As in a runbook: the checks are taken, and what is ignored is told with its place and the likely word."""
    source = site.folder / "checks.json"
    source.write_text('[{"run": "true", "timeot": 5}]')
    found = read(source, ANYTHING)
    assert len(found.checks) == 1
    (warning,) = found.warnings
    assert str(warning) == f"{source}:1:18: checks[0]: unknown keyword 'timeot'; did you mean 'timeout'?"


def test_what_the_node_requires_is_accepted(site: Site) -> None:
    """A reason for each check and a basis satisfy a strict node."""
    strict = DynamicConfig(require_reason=True, require_basis=True, allow_types=("command",))
    document = {"checks": [TEST | {"reason": "it covers it"}], "basis": {"implementation_summary": "did it"}}
    assert site.write(document, config=strict).checks[0].reason == "it covers it"


def test_a_node_that_accepts_none_says_so(site: Site) -> None:
    """Where the node has no such keyword, there is no configuration."""
    assert config_of(site.run, site.desk.runbook) == ANYTHING
    assert config_of(site.run, loop(Node("a"))) is None


# --- dropped files --------------------------------------------------------------------------------------------


def test_a_dropped_file_counts(site: Site) -> None:
    """Its author is named by the file's name, and the time is the file's."""
    path = site.drop(json.dumps([TEST]))
    os.utime(path, ns=(0, 1_700_000_000_123_000_000))
    (found,) = site.found()
    assert found.origin == Origin(agent_id="dropper", at=1_700_000_000_123)
    assert (found.path, len(found.checks), found.error) == (str(path), 1, "")


def test_a_dropped_file_may_name_its_author(site: Site) -> None:
    """``producer`` inside wins over the name of the file."""
    site.drop(json.dumps({"producer": {"agent_id": "critic", "role": "reviewer"}, "checks": [TEST]}))
    (found,) = site.found()
    assert (found.origin.agent_id, found.origin.role) == ("critic", "reviewer")
    assert found.origin.at > 0


def test_a_dropped_file_stands_in_for_what_was_registered_before(site: Site) -> None:
    """It is the newer word of its agent, until that agent registers again, which removes it."""
    site.write([TEST, TEST])
    path = site.drop(json.dumps([{"run": "make other"}]), agent="implementer")
    assert [len(each.checks) for each in site.found()] == [1]
    site.write([TEST, TEST, TEST])
    assert not path.exists()
    assert [len(each.checks) for each in site.found()] == [3]


def test_agent_ids_make_safe_file_names(site: Site) -> None:
    """Whatever an agent is called, its file stays in the folder of the entry."""
    for agent in ("../../etc/passwd", "a b", "ü", "x/y"):
        assert dynamic.file_for(site.run, agent).parent == entry_folder(site.run)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("{", ""),
        ("", ""),
        ('{"checks": 3}', "must be a list"),
        ('[{"type": "prophecy"}]', "unsupported type 'prophecy'"),
        ("[1]", "a check must be"),
    ],
)
def test_a_dropped_file_that_cannot_be_used_blocks_with_a_reason(site: Site, text: str, complaint: str) -> None:
    """It is no crash: the transition gets a condition that is unmet, and its text names the file."""
    path = site.drop(text)
    (found,) = site.found()
    assert found.checks == ()
    assert str(path) in found.error
    assert complaint in found.error
    facts = snapshot(ANYTHING, [found], NOBODY)
    assert texts(facts) == [found.error]


def test_a_dropped_file_that_has_vanished_blocks_with_a_reason(site: Site) -> None:
    """A dangling link, as a file that goes away while it is read, is reported like any other that cannot be read."""
    path = site.drop("[]")
    path.unlink()
    path.symlink_to(site.folder / "nowhere")
    (found,) = site.found()
    assert "there is no such file" in found.error
    assert found.origin == Origin(agent_id="dropper", at=0)


def test_a_dropped_file_that_was_seen_must_not_vanish(site: Site) -> None:
    """Nobody gets rid of a check by deleting its file; back again, or registered anew, all is well."""
    path = site.drop(json.dumps([TEST]))
    site.found()
    path.unlink()
    (found,) = site.found()
    assert (found.origin.agent_id, found.checks) == ("dropper", ())
    assert f"{path} was dropped by dropper and has vanished" in found.error
    assert texts(snapshot(ANYTHING, [found], NOBODY)) == [found.error]
    site.drop(json.dumps([TEST]))
    assert [each.error for each in site.found()] == [""]
    site.write([TEST, TEST], by=Actor("dropper"))
    assert [(len(each.checks), each.error) for each in site.found()] == [(2, "")]


def test_an_older_registration_does_not_stand_in_for_a_vanished_file(site: Site) -> None:
    """The file was the newer word of its agent."""
    site.write([TEST])
    path = site.drop(json.dumps([TEST, TEST]), agent="implementer")
    site.found()
    path.unlink()
    (found,) = site.found()
    assert "has vanished" in found.error


@pytest.mark.parametrize("spoken", ["registered", "dropped"])
def test_a_dropped_file_does_not_speak_for_somebody_who_has_spoken(site: Site, spoken: str) -> None:
    """Naming another agent as producer does not replace that agent's checks; it is an error of the file's own agent."""
    if spoken == "registered":
        site.write([TEST], by=Actor("reviewer"))
    else:
        site.drop(json.dumps([TEST]), agent="reviewer")
    site.drop(json.dumps({"producer": {"agent_id": "reviewer"}, "checks": []}), agent="me")
    mine, theirs = site.found()
    assert (mine.origin.agent_id, mine.checks) == ("me", ())
    assert "only reviewer may replace them" in mine.error
    assert (theirs.origin.agent_id, len(theirs.checks), theirs.error) == ("reviewer", 1, "")


def test_a_file_belongs_to_the_agent_whose_name_it_can_only_hint_at(site: Site) -> None:
    """An agent id that makes no file name is found by the file name that it leads to."""
    site.write([TEST], by=Actor("claude code"))
    site.drop(json.dumps([TEST, TEST]), agent="claude-code")
    assert [(each.origin.agent_id, len(each.checks)) for each in site.found()] == [("claude code", 2)]


def test_a_damaged_registration_blocks_with_a_reason(site: Site) -> None:
    """It is no crash, and the other agents' checks are read."""
    site.write([TEST])
    site.store.save_dynamic("r", site.run.entry_id, "bob", b'{"origin": {"agent_id"')
    broken, sound = site.found()
    assert broken.origin == Origin(agent_id="bob")
    assert "What bob has registered cannot be read" in broken.error
    assert sound.error == ""


def test_a_dropped_file_that_the_node_does_not_accept_blocks(site: Site) -> None:
    """The node's rules hold for dropped files as for registered ones."""
    site.drop(json.dumps(["look"]))
    (found,) = site.found(DynamicConfig(allow_types=("command",)))
    assert "type 'manual' is not allowed here" in found.error


# --- what a transition makes of it ----------------------------------------------------------------------------


def registration(*checks: Check, agent: str = "implementer", error: str = "") -> Registration:
    """Return a registration by an agent."""
    return Registration(Origin(agent_id=agent, role="executor", at=7), checks, error=error)


def test_checks_of_all_agents_add_up() -> None:
    """Each keeps its origin."""
    facts = snapshot(ANYTHING, [registration(shell("x")), registration(shell("y"), agent="critic")], NOBODY)
    assert [each.agent_id for each in facts.producers] == ["implementer", "critic"]
    assert [each.origin.agent_id for each in facts.checks if each.origin] == ["implementer", "critic"]


@pytest.mark.parametrize(
    ("config", "registered", "complaint"),
    [
        (DynamicConfig(required=True), [], "none are registered"),
        (DynamicConfig(min_items=2), [registration(shell())], "at least 2 dynamic checks; 1 are registered"),
        (DynamicConfig(min_items=1), [], "at least 1"),
        (ANYTHING, [registration(error="it is broken"), registration(shell(), agent="critic")], "it is broken"),
    ],
)
def test_what_is_wrong_is_all_that_is_evaluated(
    config: DynamicConfig, registered: list[Registration], complaint: str
) -> None:
    """A node whose demands are not met blocks and says why, before any registered command runs."""
    (text,) = texts(snapshot(config, registered, EVERYTHING))
    assert complaint in text


def test_nothing_is_required_by_default() -> None:
    """Without registrations, and with an empty one where some are required, nothing is wrong."""
    assert snapshot(ANYTHING, [], NOBODY) == DynamicFacts()
    assert texts(snapshot(DynamicConfig(required=True), [registration()], NOBODY)) == []


@pytest.mark.parametrize(
    ("confirmations", "on_manual", "evaluated"),
    [
        (NOBODY, "fail", 1),
        (EVERYTHING, "fail", 3),
        (Confirmations(checks=(CONFIRM_ID,)), "fail", 3),
        (Confirmations(everything=True, declined={CONFIRM_ID: "stale"}), "fail", 1),
        (NOBODY, "wait", 3),
        (Confirmations(declined={CONFIRM_ID: "stale"}), "wait", 1),
    ],
)
def test_stale_checks_are_confirmed_before_they_count(
    confirmations: Confirmations, on_manual: OnManual, evaluated: int
) -> None:
    """The question comes first, and the checks with it only if it is answered, or may still be answered, with yes."""
    config = DynamicConfig(stale_policy="require_confirmation")
    facts = snapshot(config, [registration(shell("x"), shell("y"))], confirmations, on_manual)
    assert facts.checks[0].check.do == Manual(STILL_CURRENT)
    assert facts.checks[0].origin is None
    assert len(facts.checks) == evaluated


def test_the_question_is_asked_also_where_nothing_is_registered() -> None:
    """That no check is needed is an answer that somebody has to give; what is wrong is told after it."""
    policy = DynamicConfig(stale_policy="require_confirmation", required=True, min_items=2)
    (question,) = snapshot(policy, [], NOBODY).checks
    assert question.check.do == Manual(STILL_CURRENT)
    _, unmet = snapshot(policy, [], Confirmations(everything=True)).checks
    assert isinstance(unmet.check.do, Unmet)
    assert "requires dynamic checks" in unmet.check.do.text
    assert "at least 2" in unmet.check.do.text
    assert "dynamic write FILE" in unmet.check.do.text, "what is missing says how to supply it"


def test_an_approval_does_not_replace_the_checks(site: Site) -> None:
    """Somebody who approves that stale checks are current does not let the run past a failing one."""
    config = DynamicConfig(stale_policy="require_confirmation")
    site.goto(snapshot(config, [registration(shell())], NOBODY, "wait"), "wait")
    assert site.desk.offered == [("before_transfer.0", "dynamic_before_transfer.1")]
    site.desk.work(PASSED, FAILED)
    assert site.desk.transition.outcome == "blocked"
    assert site.desk.reasons["dynamic_before_transfer.0"] == "not_confirmed"


def test_results_say_who_registered_the_check(site: Site) -> None:
    """Provenance is in each result of a dynamic check, and in no other."""
    site.goto(snapshot(ANYTHING, [registration(replace(shell(), reason="why"))], NOBODY))
    site.desk.work(PASSED, PASSED)
    static, registered = result_views(site.desk.transition)
    assert "registered_by" not in static
    assert registered["registered_by"] == {"agent_id": "implementer", "role": "executor", "at": 7}
    assert (registered["purpose"], registered["reason"]) == ("dynamic_before_transfer", "passed")


def test_a_transition_keeps_what_it_found(site: Site) -> None:
    """The plan is fixed when the transition opens: what is registered later counts for the next one."""
    site.write([TEST])
    site.goto(snapshot(ANYTHING, site.found(), NOBODY))
    site.write([TEST, TEST])
    assert [planned.id for planned in site.desk.transition.plan] == ["before_transfer.0", "dynamic_before_transfer.0"]
