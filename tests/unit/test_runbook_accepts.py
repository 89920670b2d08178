"""What a runbook may look like: every form of nodes, edges and checks, and the graph that comes of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest
from msgspec import UNSET

from statem_dist.protocol.graph import (
    CHECK_TYPES,
    Check,
    Checklist,
    Command,
    DynamicConfig,
    LlmReview,
    Manual,
    Message,
    Predicate,
    Retry,
    Runbook,
)
from statem_dist.runbook import load, node_view, parse, read_checks, read_plain


def runbook(text: str) -> Runbook:
    return parse(text, source="loop.yaml").runbook


def gate(text: str) -> Check:
    """Return the only check of a gate written in flow style."""
    parsed = runbook(f"nodes:\n  a:\n    before_transfer:\n      - {text}\n")
    ((check,),) = parsed.nodes[0].before_transfer
    return check


def hook(text: str) -> Check:
    ((check,),) = runbook(f"nodes:\n  a:\n    in_hook:\n      - {text}\n").nodes[0].in_hook
    return check


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("nodes: {a: A., b: null, c: {prompt: C.}}", ["a", "b", "c"]),
        ("nodes: [a, {name: b, prompt: B.}, 3]", ["a", "b", "3"]),
        ("nodes: {' a ': A., ' b': B.}", ["a", "b"]),
        ("nodes: {1: one, true: two, on: three, ~: four}", ["1", "true", "on", "~"]),
        ("nodes: {計画: 書く, 'fin é 🎉': x}", ["計画", "fin é 🎉"]),
    ],
)
def test_nodes_may_be_a_mapping_or_a_list(text: str, names: list[str]) -> None:
    """Names are text whatever they look like, with surrounding blanks stripped, in the order of the file."""
    assert [node.name for node in runbook(text).nodes] == names


@pytest.mark.parametrize(
    ("body", "targets"),
    [
        ("b", ["b"]),
        ("[b, c]", ["b", "c"]),
        ("{to: b}", ["b"]),
        ("[{target: b}, {name: c}, ' a ']", ["b", "c", "a"]),
        ("null", []),
        ("[]", []),
    ],
)
@pytest.mark.parametrize("keyword", ["next", "next_states"])
def test_next_takes_every_form(keyword: str, body: str, targets: list[str]) -> None:
    """A name, a list, or mappings with to, target or name become edges of their node."""
    found = runbook(f"nodes: {{a: {{{keyword}: {body}}}, b: B., c: C.}}")
    assert [edge.target for edge in found.exits("a")] == targets


def test_edges_of_nodes_and_of_the_root_add_up() -> None:
    """Edges under nodes come first, then the root's, whose ends have three spellings each."""
    found = runbook(
        "edges: [{from: b, to: c}, {source: c, node2: a, max_attempts: 3}, {node1: c, target: b}]\n"
        "nodes: {a: {next: b}, b: B., c: C.}\n"
    )
    assert [(edge.source, edge.target, edge.max_attempts) for edge in found.edges] == [
        ("a", "b", None),
        ("b", "c", None),
        ("c", "a", 3),
        ("c", "b", None),
    ]


@pytest.mark.parametrize(
    ("head", "initial"),
    [("initial: b\nstart: a", "b"), ("start: b", "b"), ("initial: null\nstart: b", "b"), ("name: x", "a")],
)
def test_initial_wins_over_start_and_start_over_the_first_node(head: str, initial: str) -> None:
    """Without either the first node of the file is initial."""
    assert runbook(f"{head}\nnodes: [a, b]").initial == initial


def test_an_end_may_say_what_it_means() -> None:
    """``outcome`` is read on ends, in every form of a node, and strict mode knows it; without it there is none."""
    text = "nodes: [{name: a, next: [b, c, d]}, {name: b, outcome: failure}, {name: c, outcome: success}, d]"
    parsed = parse(text, source="loop.yaml", strict=True)
    assert [node.outcome for node in parsed.runbook.nodes] == [None, "failure", "success", None]
    assert parsed.warnings == ()


def test_a_node_without_an_outcome_is_stored_and_shown_without_one() -> None:
    """What was written before the keyword existed is encoded by the same bytes, and shown by the same keys."""
    (node,) = runbook("nodes: {a: A.}").nodes
    assert msgspec.json.encode(node) == b'{"name":"a","prompt":"A."}'
    assert "outcome" not in node_view(node)
    (node,) = runbook("nodes: {a: {outcome: failure}}").nodes
    assert msgspec.json.encode(node) == b'{"name":"a","outcome":"failure"}'
    assert node_view(node)["outcome"] == "failure"


def test_the_name_defaults_to_the_stem_of_the_source() -> None:
    """A runbook without a name is called after its file."""
    assert parse("nodes: [a]", source="some/ferry-crossing.yaml").runbook.name == "ferry-crossing"
    assert parse("nodes: [a]\nname: 7", source="x.yaml").runbook.name == "7"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Captain has signed.", Manual("Captain has signed.")),
        ("{prompt: Ropes are tight.}", Manual("Ropes are tight.")),
        ("{type: manual, message: Ropes}", Manual("Ropes")),
        ("{run: make}", Command("make")),
        ("{run: make, shell: sh}", Command("make")),
        ("{run: make | tee log, shell: bash}", Command("make | tee log", shell="bash")),
        ("{cmd: 'true'}", Command("true")),
        ("{command: true}", Command("true")),
        ("{type: command, run: 010}", Command("010")),
        ("{items: [Fuel, 2, no]}", Checklist(("Fuel", "2", "no"))),
        ("{checks: Fuel, prompt: All of}", Checklist(("Fuel",), "All of")),
        ("{type: message, prompt: Hello}", Message("Hello")),
        ("{path: a.txt, exists: false}", Predicate("a.txt", exists=False)),
        ("{path: a.txt, contains: 12, not_contains: 1.10}", Predicate("a.txt", contains="12", not_contains="1.10")),
        ("{path: a.txt, matches: '^\\d+$', contains: true}", Predicate("a.txt", matches=r"^\d+$", contains="true")),
        ("{path: a, json_path: 0, equals: null}", Predicate("a", json_path="0", equals=None)),
        ("{path: a, json_path: b, equals: {c: [1, no]}}", Predicate("a", json_path="b", equals={"c": [1, "no"]})),
        ("{path: a, json_path: b, one_of: [40, '40', ~]}", Predicate("a", json_path="b", one_of=(40, "40", None))),
        ("{type: llm_review, prompt: Good., run: ''}", LlmReview("Good.")),
        (
            "{type: llm_review, text: Good., cmd: ./ask, accept_regex: 8|9, stdin: false}",
            LlmReview("Good.", run="./ask", accept_regex="8|9", stdin=False),
        ),
    ],
)
def test_a_gate_reads_every_check(text: str, expected: Any) -> None:
    """The type comes from the keyword type, else from the other keywords, else it is manual."""
    assert gate(text) == Check(expected)


def test_a_name_serves_as_text_where_no_other_is_given() -> None:
    """It stays the name of the check as well."""
    assert gate("{type: manual, name: Ropes}") == Check(Manual("Ropes"), name="Ropes")
    assert gate("{type: manual, name: Ropes, text: Tight.}") == Check(Manual("Tight."), name="Ropes")


def test_equals_is_unset_unless_written() -> None:
    """Null is a value to compare with, so only an absent keyword is no condition."""
    predicate = gate("{path: a}").do
    assert isinstance(predicate, Predicate)
    assert predicate.equals is UNSET


def test_a_message_inferred_in_a_hook_does_not_block() -> None:
    """Untyped text in a hook is guidance; a sentence or a stated type blocks there like anywhere."""
    assert hook("{text: Welcome.}") == Check(Message("Welcome."), blocking=False, on_failure="continue")
    assert hook("{text: Welcome., blocking: true}") == Check(Message("Welcome."))
    assert hook("{type: message, text: Welcome.}") == Check(Message("Welcome."))
    assert hook("Be calm.") == Check(Manual("Be calm."))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("blocking: false", Check(Command("x"), blocking=False, on_failure="continue")),
        ("on_failure: continue", Check(Command("x"), on_failure="continue")),
        ("timeout: 0.5", Check(Command("x"), timeout=0.5)),
        ("timeout: 90s", Check(Command("x"), timeout=90.0)),
        ("timeout: 1.5m", Check(Command("x"), timeout=90.0)),
        ("timeout: 1h", Check(Command("x"), timeout=3600.0)),
        ("timeout: null, cwd: sub, name: n, reason: r", Check(Command("x"), cwd="sub", name="n", reason="r")),
        ("idempotent: false", Check(Command("x"), idempotent=False)),
        ("retries: 0", Check(Command("x"), retry=Retry(maximum_attempts=1))),
        ("retries: 4", Check(Command("x"), retry=Retry(maximum_attempts=5))),
        (
            "retry: {maximum_attempts: 2, initial_interval: 5s, exit_status: 75, on: failed}",
            Check(
                Command("x"), retry=Retry(maximum_attempts=2, initial_interval=5.0, exit_status=(75,), on=("failed",))
            ),
        ),
        (
            "retry: {backoff_coefficient: 1, maximum_interval: 1m, jitter: 0, exit_status: [1, 2]}",
            Check(
                Command("x"),
                retry=Retry(backoff_coefficient=1.0, maximum_interval=60.0, jitter=0.0, exit_status=(1, 2)),
            ),
        ),
    ],
)
def test_common_keywords_of_a_check(text: str, expected: Check) -> None:
    """Failure policy, time limit, folder and retries are read on any check."""
    assert gate(f"{{run: x, {text}}}") == expected


@pytest.mark.parametrize("word", ["none", "'none'", "null", ""])
def test_confirmation_none_is_text_or_null(word: str) -> None:
    """A manual check or a checklist with confirmation none is shown without being asked for."""
    assert gate(f"{{items: [Fuel], confirmation: {word}}}").confirm is False
    assert gate("{items: [Fuel]}").confirm is True


def test_parallel_makes_one_step_of_several_checks() -> None:
    """Steps run one after another; the members of a parallel step form one of them."""
    steps = (
        runbook("nodes: {a: {before_transfer: [First, {parallel: [{run: x}, Second]}, Third]}}")
        .nodes[0]
        .before_transfer
    )
    assert [[check.do for check in step] for step in steps] == [
        [Manual("First")],
        [Command("x"), Manual("Second")],
        [Manual("Third")],
    ]


@pytest.mark.parametrize("text", ["", "~", "{}"])
def test_an_empty_dynamic_config_is_switched_on_with_defaults(text: str) -> None:
    """The keyword alone is enough; without it a node accepts no dynamic checks."""
    found = runbook(f"nodes: {{a: {{dynamic_before_transfer: {text}}}, b: B.}}")
    assert found.nodes[0].dynamic == DynamicConfig(allow_types=CHECK_TYPES)
    assert found.nodes[1].dynamic is None


def test_dynamic_config_is_read_in_full() -> None:
    """Every keyword of dynamic_before_transfer arrives."""
    text = (
        "{path: current_entry, required: true, min_items: 2, require_reason: true, require_basis: true, merge: all, "
        "refresh: on_attempt, stale_policy: require_confirmation, allow_types: [manual]}"
    )
    assert runbook(f"nodes: {{a: {{dynamic_before_transfer: {text}}}}}").nodes[0].dynamic == DynamicConfig(
        required=True,
        min_items=2,
        require_reason=True,
        require_basis=True,
        stale_policy="require_confirmation",
        allow_types=("manual",),
    )


def test_a_json_file_is_read_by_its_suffix(tmp_path: Path) -> None:
    """The same runbook as JSON gives the same graph; the hash is that of the bytes."""
    file = tmp_path / "survey.json"
    file.write_text('\ufeff{"nodes": {"ask": {"next": [{"to": "count"}]}, "count": null}, "edges": []}', "utf-8")
    parsed = load(file)
    assert parsed.runbook.name == "survey"
    assert [edge.target for edge in parsed.runbook.edges] == ["count"]
    assert parsed.text.encode() == file.read_bytes()


def test_checks_may_come_on_their_own() -> None:
    """A bare list, or one under the keyword checks, is read by the rules of a runbook."""
    expected = (Check(Manual("Look.")), Check(Command("make")))
    assert read_checks('["Look.", {"run": "make"}]', source="c.json").checks == expected
    listed = "checks: [Look., {run: make}]\nbasis: {x: 1}"
    assert read_checks(listed, source="c.yaml", format="yaml").checks == expected
    assert read_checks("[]", source="c.json").checks == ()


def test_other_files_are_read_by_the_same_rules() -> None:
    """Plain data keeps yes as text, numbers decimal and merged keys."""
    text = "base: &b {x: 1, y: 010}\nown: {<<: *b, y: yes}\nlist: [*b]\nday: 2026-01-31\n"
    assert read_plain(text, source="m.yaml") == {
        "base": {"x": 1, "y": 10},
        "own": {"x": 1, "y": "yes"},
        "list": [{"x": 1, "y": 10}],
        "day": "2026-01-31",
    }
    assert read_plain("", source="m.yaml") is None


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{run: y}", (Check(Command("y")),)),
        ("[{run: y}, {cmd: z, timeout: 2m}]", (Check(Command("y")), Check(Command("z"), timeout=120.0))),
        ("[{run: y, on_failure: continue, retries: 1}]", None),
        ("null", ()),
        ("[]", ()),
    ],
)
def test_a_hook_may_have_a_repair(text: str, expected: tuple[Check, ...] | None) -> None:
    """At items of ``out_hook`` and of an edge's ``hook``, in the forms of any command."""
    hooked = f"{{run: x, repair: {text}}}"
    parsed = runbook(f"nodes:\n  a: {{out_hook: [{hooked}], next: [{{to: b, hook: {hooked}}}]}}\n  b:\n")
    ((hook,),), ((edge_hook,),) = parsed.nodes[0].out_hook, parsed.edges[0].hook
    if expected is None:
        expected = (Check(Command("y"), on_failure="continue", retry=Retry(maximum_attempts=2)),)
    assert hook.repair == edge_hook.repair == expected
    shown = node_view(parsed.nodes[0])["out_hook"][0]
    assert [each["run"] for each in shown.get("repair", [])] == [each.do.run for each in expected]  # type: ignore[union-attr]
