"""What a runbook keeps its commands within: the forms, the mistakes with their places, and what is stored of it."""

from __future__ import annotations

import msgspec
import pytest

from statem_dist.errors import RunbookInvalid
from statem_dist.protocol.graph import UNCONFINED, Confinement, ResourceLimits, Runbook, Sandbox
from statem_dist.runbook import confinement_view, parse
from statem_dist.store.codec import StoredRunbook, decode_run, decode_runbook, encode_run, encode_runbook
from tests.support.builders import Desk

NODES = "nodes: [a]\n"


def confinement_of(text: str) -> Confinement:
    """Return what a runbook with these root keywords is kept within, once it was stored and read again."""
    parsed = parse(text + NODES, source="x.yaml", strict=True)
    stored = StoredRunbook(runbook=parsed.runbook, text=parsed.text, source="x.yaml")
    assert decode_runbook(encode_runbook(stored)) == stored
    return parsed.runbook.confinement


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", UNCONFINED),
        ("limits:\nsandbox: null\nexecutor: ~\n", UNCONFINED),
        ("limits: {}\n", UNCONFINED),
        ("limits: {memory: 512m, cpu: 2h}\n", Confinement(limits=ResourceLimits(memory=512 << 20, cpu=7200))),
        ("limits: {memory: 4096, files: '64'}\n", Confinement(limits=ResourceLimits(memory=4096, files=64))),
        ("limits: {processes: 7, cpu: null}\n", Confinement(limits=ResourceLimits(processes=7))),
        ("sandbox: bwrap\n", Confinement(sandbox=Sandbox())),
        ("sandbox: {bwrap: }\n", Confinement(sandbox=Sandbox())),
        ("sandbox: {bwrap: {}}\n", Confinement(sandbox=Sandbox())),
        ("sandbox: {bwrap: {network: false}}\n", Confinement(sandbox=Sandbox())),
        ("sandbox: {bwrap: {network: true}}\n", Confinement(sandbox=Sandbox(network=True))),
        ("executor: {docker: builder_1.x}\n", Confinement(executor="docker:builder_1.x")),
    ],
)
def test_every_form(text: str, expected: Confinement) -> None:
    """Each keyword in each of its forms, and null as its absence."""
    assert confinement_of(text) == expected


@pytest.mark.parametrize(
    ("text", "place", "told"),
    [
        ("limits: 5\n", "1:9", "limits: must be a mapping; such as limits: {memory: 2G"),
        ("limits: {memry: 2G}\n", "1:10", "limits: unknown keyword 'memry'; did you mean 'memory'?"),
        ("limits:\n  cpu: fast\n", "2:8", "limits.cpu: must be a whole number of seconds"),
        ("limits: {memory: 0}\n", "1:18", "limits.memory: must be a size"),
        ("limits: {memory: [1]}\n", "1:18", "limits.memory: must be a size"),
        ("limits: {files: 1.5}\n", "1:17", "limits.files: must be a positive whole number"),
        ("limits: {files: true}\n", "1:17", "limits.files: must be a positive whole number"),
        ("sandbox: bwarp\n", "1:10", "sandbox: must be bwrap, not 'bwarp'; did you mean 'bwrap'?"),
        ("sandbox: true\n", "1:10", "sandbox: must be bwrap, not 'true'"),
        ("sandbox: [bwrap]\n", "1:10", "sandbox: must be a mapping; such as sandbox: bwrap"),
        ("sandbox: {}\n", "1:10", "sandbox: a sandbox requires bwrap"),
        ("sandbox: {firejail: }\n", "1:11", "sandbox: unknown keyword 'firejail'"),
        ("sandbox: {bwrap: {netwrk: true}}\n", "1:19", "sandbox.bwrap: unknown keyword 'netwrk'"),
        ("sandbox: {bwrap: {network: sometimes}}\n", "1:28", "sandbox.bwrap.network: must be true or false"),
        ("sandbox: {bwrap: yes}\n", "1:18", "sandbox.bwrap: must be a mapping"),
        ("executor: docker:x\n", "1:11", "executor: must be a mapping; such as executor: {docker: NAME}"),
        ("executor: {docker: }\n", "1:11", "executor: an executor requires docker"),
        ("executor: {docker: --privileged}\n", "1:20", "executor.docker: '--privileged' is no name of a container"),
        ("executor: {docker: a/b}\n", "1:20", "executor.docker: 'a/b' is no name of a container"),
        ("executor: {podman: x}\n", "1:12", "executor: unknown keyword 'podman'"),
        ("sandbox: bwrap\nexecutor: {docker: x}\n", "2:11", "executor: give either sandbox or executor"),
    ],
)
def test_mistakes_are_errors_with_their_place_in_either_mode(text: str, place: str, told: str) -> None:
    """Nothing is guessed, and nothing passed over: what is misspelt here would protect nobody."""
    for strict in (False, True):
        with pytest.raises(RunbookInvalid) as caught:
            parse(text + NODES, source="x.yaml", strict=strict)
        assert f"x.yaml:{place}: {told}" in caught.value.message


def test_a_misspelt_root_keyword_gets_a_suggestion() -> None:
    """As every other keyword of the root."""
    (warning,) = parse("sandbx: bwrap\n" + NODES, source="x.yaml").warnings
    assert str(warning) == "x.yaml:1:1: root: unknown keyword 'sandbx'; did you mean 'sandbox'?"


def test_the_view_has_the_keywords_of_the_runbook() -> None:
    """What is shown can be written down again and means the same."""
    text = "limits: {memory: 2G, cpu: 10}\nsandbox: {bwrap: {network: true}}\n"
    view = confinement_view(confinement_of(text))
    assert view == {"limits": {"memory": 2 << 30, "cpu": 10}, "sandbox": {"bwrap": {"network": True}}}
    again = parse(msgspec.json.encode({**view, "nodes": ["a"]}).decode(), source="x.json", format="json")
    assert again.runbook.confinement == confinement_of(text)
    assert confinement_view(confinement_of("executor: {docker: b}\n")) == {"executor": {"docker": "b"}}
    assert confinement_view(UNCONFINED) == {}


def test_documents_without_the_keywords_are_stored_as_before() -> None:
    """An older document decodes, and one of a runbook that says nothing has no new key."""
    runbook = parse(NODES, source="x.yaml").runbook
    assert b"confinement" not in msgspec.json.encode(runbook)
    assert msgspec.json.decode(msgspec.json.encode(runbook), type=Runbook) == runbook
    assert all(b"confinement" not in msgspec.json.encode(event) for event in Desk(runbook).events)


def test_a_transition_is_kept_within_what_its_runbook_said_when_it_opened() -> None:
    """It is part of the plan, so that an edited runbook does not change what is in flight."""
    runbook = parse("sandbox: bwrap\nlimits: {cpu: 5}\n" + NODES, source="x.yaml").runbook
    desk = Desk(runbook)
    assert desk.transition.confinement == runbook.confinement
    assert decode_run(encode_run(desk.run)) == desk.run


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ({}, {}, {}),
        ({"memory": 5}, {}, {"memory": 5}),
        ({"memory": 5, "cpu": 9}, {"memory": 7, "cpu": 2, "files": 3}, {"memory": 5, "cpu": 2, "files": 3}),
    ],
)
def test_the_stricter_of_two_limits_counts(one: dict[str, int], other: dict[str, int], both: dict[str, int]) -> None:
    """Whichever of the two it stands in."""
    first, second = ResourceLimits(**one), ResourceLimits(**other)
    assert first.stricter(second) == second.stricter(first) == ResourceLimits(**both)
