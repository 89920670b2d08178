"""Laws that hold for any text and any runbook."""

from __future__ import annotations

import json
from typing import Any

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import UNSET, structs, to_builtins

from statem_dist.errors import RunbookInvalid
from statem_dist.protocol.graph import (
    CHECK_TYPES,
    Check,
    Checklist,
    Command,
    DynamicConfig,
    Edge,
    LlmReview,
    Manual,
    Message,
    Node,
    Predicate,
    Retry,
    Runbook,
    Steps,
)
from statem_dist.runbook import Format, Parsed, check_view, edge_view, node_view, parse

FRAGMENTS = st.sampled_from(
    [
        *(
            "nodes",
            "edges",
            "next",
            "before_transfer",
            "in_hook",
            "run",
            "type",
            "command",
            "path",
            "items",
            "parallel",
        ),
        *("from", "to", "condition", "timeout", "retry", "matches", "initial", "dynamic_before_transfer", "a", "b"),
        *(": ", "\n", "\n  ", "\n    ", "- ", "{", "}", "[", "]", ", ", '"', "'", "#", " #", "&x ", "*x", "<<: ", "\t"),
        *("!!str ", "!x ", "|", ">", "---\n", "...", "? ", "%", "\\", "\0", "\ud800", "\ufeff", "é", "1", "-1", "1e9"),
        *("null", "true", "~", "1:30", "(", "[[a", "\r\n", "\u2028", "@", "`"),
    ]
)
TEXTS = st.one_of(st.text(max_size=60), st.lists(FRAGMENTS, max_size=40).map("".join))


@settings(max_examples=300, deadline=None)
@given(TEXTS, st.sampled_from(["yaml", "json"]), st.booleans())
def test_any_text_is_a_runbook_or_an_invalid_one(text: str, format: Format, strict: bool) -> None:
    """No text makes the reader fail in any other way, and every refusal can be shown and encoded."""
    found: Parsed | RunbookInvalid
    try:
        found = parse(text, source="any.yaml", format=format, strict=strict)
    except RunbookInvalid as error:
        found = error
    if isinstance(found, Parsed):
        json.dumps([node_view(node) for node in found.runbook.nodes])
    else:
        assert found.message.startswith("Invalid spec:\n- any.yaml")
        json.dumps(found.details)


WORDS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=12).filter(str.strip)
NAMES = WORDS.map(str.strip)
SECONDS = st.floats(0.001, 1e6)
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**20), 10**20) | st.floats(-1e9, 1e9) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=4,
)
WORK = st.one_of(
    st.builds(Command, WORDS),
    st.builds(Manual, WORDS),
    st.builds(Message, WORDS),
    st.builds(Checklist, st.lists(WORDS, min_size=1, max_size=3).map(tuple), WORDS | st.just("")),
    st.builds(LlmReview, WORDS, run=st.none() | WORDS, stdin=st.booleans(), accept_contains=st.none() | WORDS),
    st.builds(
        Predicate,
        WORDS,
        exists=st.none() | st.booleans(),
        contains=st.none() | WORDS,
        json_path=st.none() | WORDS,
        equals=st.just(UNSET) | VALUES,
        one_of=st.none() | st.lists(VALUES, min_size=1, max_size=3).map(tuple),
    ),
)
RETRIES = st.builds(
    Retry,
    maximum_attempts=st.integers(1, 100),
    initial_interval=SECONDS,
    jitter=st.floats(0, 1),
    exit_status=st.lists(st.integers(1, 255), max_size=2).map(tuple),
    on=st.lists(st.sampled_from(["infrastructure", "failed", "timed_out"]), min_size=1, max_size=2).map(tuple),
)


@st.composite
def checks(draw: st.DrawFn) -> Check:
    work = draw(WORK)
    asked = isinstance(work, Manual | Checklist)
    return Check(
        do=work,
        name=draw(st.none() | WORDS),
        blocking=draw(st.booleans()),
        on_failure=draw(st.sampled_from(["block", "continue"])),
        timeout=draw(st.none() | SECONDS),
        cwd=draw(st.none() | WORDS),
        retry=draw(st.just(Retry()) | RETRIES),
        idempotent=draw(st.none() | st.booleans()),
        confirm=draw(st.booleans()) if asked else True,
        reason=draw(st.none() | WORDS),
    )


STEPS = st.lists(st.lists(checks(), min_size=1, max_size=2).map(tuple), max_size=2).map(tuple)
DYNAMIC = st.none() | st.builds(
    DynamicConfig,
    required=st.booleans(),
    min_items=st.integers(0, 9),
    stale_policy=st.sampled_from(["none", "require_confirmation"]),
    allow_types=st.lists(st.sampled_from(CHECK_TYPES), min_size=1, unique=True).map(tuple),
)


@st.composite
def runbooks(draw: st.DrawFn) -> Runbook:
    names = draw(st.lists(NAMES, min_size=1, max_size=4, unique=True))
    pairs = st.tuples(st.sampled_from(names), st.sampled_from(names))
    return Runbook(
        hash="",
        name=draw(NAMES),
        initial=draw(st.sampled_from(names)),
        nodes=tuple(
            Node(name, draw(WORDS | st.just("")), draw(STEPS), draw(STEPS), draw(DYNAMIC), draw(STEPS))
            for name in names
        ),
        edges=tuple(
            Edge(source, target, draw(STEPS), draw(STEPS), draw(st.none() | st.integers(1, 9)))
            for source, target in draw(st.lists(pairs, max_size=3, unique=True))
        ),
        order=draw(st.sampled_from(["guards_first", "persist_first"])),
    )


def written(check: Check) -> dict[str, Any]:
    """Return a check as a runbook would write it, with every decision spelled out."""
    view = check_view(check) | ({"retry": to_builtins(check.retry)} if check.retry != Retry() else {})
    if isinstance(check.do, LlmReview) and check.do.run is None:
        del view["run"]
    return view


def written_steps(steps: Steps) -> list[Any]:
    return [written(step[0]) if len(step) == 1 else {"parallel": [written(check) for check in step]} for step in steps]


def written_runbook(runbook: Runbook) -> dict[str, Any]:
    nodes = {}
    for node in runbook.nodes:
        body = node_view(node) | {
            key: written_steps(getattr(node, key)) for key in ("in_hook", "before_transfer", "out_hook")
        }
        if node.dynamic is None:
            del body["dynamic_before_transfer"]
        nodes[node.name] = body
    edges = [
        edge_view(edge) | {"condition": written_steps(edge.condition), "hook": written_steps(edge.hook)}
        for edge in runbook.edges
    ]
    return {
        "name": runbook.name,
        "initial": runbook.initial,
        "protocol": runbook.order,
        "nodes": nodes,
        "edges": edges,
    }


@settings(max_examples=60, deadline=None)
@given(runbooks())
def test_a_written_runbook_is_read_back(runbook: Runbook) -> None:
    """Whatever a runbook says survives being written as YAML or JSON and read under strict."""
    plain = written_runbook(runbook)
    as_yaml = yaml.safe_dump(plain, sort_keys=False, default_style='"')
    as_json = json.dumps(plain, ensure_ascii=True)
    for text, format in ((as_yaml, "yaml"), (as_json, "json")):
        found = parse(text, source="x", format=format, strict=True).runbook  # type: ignore[arg-type]
        assert structs.replace(found, hash="") == runbook
