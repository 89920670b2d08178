"""Runbooks as graphs to look at: Mermaid, DOT, SVG and plain data, whatever the nodes are called."""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from statem_dist.cli.main import run
from statem_dist.protocol.graph import Edge, Node, Runbook
from statem_dist.runbook.drawing import FILLS, Marks, dot, edge_label, graph_view, mermaid, one_line
from statem_dist.runbook.reader import load, parse
from statem_dist.runbook.svg import NODE_HEIGHT, layers_of, svg
from tests.support.builders import one_by_one, shell

ROOT = Path(__file__).parents[2]

AWKWARD = [
    *("end", "graph TD", "subgraph", "class", "a:b", 'say "hi"', "O'Neil", "1. list", "- item", "# head", "---"),
    *("`code`", "**bold**", "__init__", "<b>&amp;</b>", "&lt;", "#35;", "a;b", "style x:y#z", "%%{init}%%", "[x]"),
    *("{y}", "(z)", "a|b", "back\\slash\\N\\", "tab\there", "two\nlines", "bell\x07", "计划", "🎉 party"),
    "self_review",
]

FORMATS = {"mermaid": mermaid, "dot": dot, "svg": svg}

SVG = "{http://www.w3.org/2000/svg}"

LOOP = """
name: loop
nodes:
  plan: {next: work, before_transfer: [The plan is written.]}
  work: {next: [work, {to: check, max_attempts: 3, condition: [{run: make}, Read it.]}]}
  check: {next: [done, plan]}
  done:
"""


def ring(*names: str) -> Runbook:
    """Return a runbook whose nodes form a circle."""
    edges = tuple(Edge(a, b, max_attempts=3) for a, b in zip(names, (*names[1:], names[0]), strict=True))
    return Runbook(hash="h", name='a "ring" & <more>', initial=names[0], nodes=tuple(map(Node, names)), edges=edges)


def graph_of(count: int, edges: list[tuple[int, int]]) -> Runbook:
    """Return a runbook with numbered nodes."""
    names = [f"n{number}" for number in range(count)]
    unique = dict.fromkeys((source % count, target % count) for source, target in edges)
    drawn = tuple(Edge(names[source], names[target]) for source, target in unique)
    return Runbook(hash="h", name="random", initial="n0", nodes=tuple(map(Node, names)), edges=drawn)


GRAPHS = st.builds(
    graph_of, st.integers(1, 12), st.lists(st.tuples(st.integers(0, 11), st.integers(0, 11)), max_size=30)
)


# --- Mermaid and DOT ----------------------------------------------------------------------------------------------


def test_mermaid_shows_nodes_edges_and_marks() -> None:
    """Ids of ours, quoted names, rounded ends, labels on edges that have conditions, and a class for each mark."""
    runbook = parse(LOOP, source="x.yaml").runbook
    current, visited = FILLS["current"], FILLS["visited"]
    assert mermaid(runbook, Marks(current="work", visited={"plan", "work"})).splitlines() == [
        "flowchart TD",
        "    begin(( )) --> n0",
        '    n0["plan"]',
        '    n1["work"]',
        '    n2["check"]',
        '    n3(["done"])',
        "    n0 --> n1",
        "    n1 --> n1",
        '    n1 -->|"2 conditions, max 3"| n2',
        "    n2 --> n3",
        "    n2 --> n0",
        f"    classDef visited fill:{visited},stroke:#0f172a,color:#0f172a",
        "    class n0 visited",
        f"    classDef current fill:{current},stroke:#0f172a,color:#0f172a",
        "    class n1 current",
    ]


@pytest.mark.parametrize("name", AWKWARD)
def test_no_name_means_anything_to_mermaid(name: str) -> None:
    """What could be syntax, Markdown or HTML is written as a number, and reads back as the name on one line."""
    line = mermaid(ring(name, "other")).splitlines()[2]
    found = re.fullmatch(r'    n0\["((?:[\w ,.-]|[^\x00-\x7f]|#\d+;)*)"\]', line)
    assert found, line
    assert not re.search(r"(?<!\w)[-_.]|[-_.](?!\w)", re.sub(r"#\d+;", " ", found[1]))
    assert re.sub(r"#(\d+);", lambda match: chr(int(match[1])), found[1]) == one_line(name)


@pytest.mark.parametrize("name", AWKWARD)
def test_no_name_means_anything_to_dot(name: str) -> None:
    """Quotes, backslashes and entities are escaped, so that the label is the name on one line."""
    line = next(line for line in dot(ring(name, "other")).splitlines() if line.startswith("    n0 [label="))
    found = re.match(r'    n0 \[label="((?:[^"\\]|\\["\\])*)", tooltip="(?:[^"\\]|\\["\\])*"\]$', line)
    assert found, line
    assert re.sub(r"\\(.)", r"\1", found[1]).replace("&amp;", "&") == one_line(name)


def test_dot_marks_where_a_run_stands() -> None:
    """The current node is filled and thick, visited ones are filled, ends have two outlines."""
    lines = dot(parse(LOOP, source="x.yaml").runbook, Marks("work", ["plan"])).splitlines()
    look = {line.split()[0]: line for line in lines if "tooltip=" in line}
    assert FILLS["visited"] in look["n0"]
    assert f'fillcolor="{FILLS["current"]}", penwidth=3' in look["n1"]
    assert "peripheries=2" in look["n3"]
    assert '    n1 -> n2 [label="2 conditions, max 3"]' in lines


def test_an_edge_says_what_stands_in_its_way() -> None:
    """Conditions, a hook, a limit and a demand for evidence, and nothing where there is nothing."""
    assert edge_label(Edge("a", "b")) == ""
    gate = one_by_one(shell())
    full = Edge("a", "b", condition=gate, hook=gate, max_attempts=2, require_evidence="verified")
    assert edge_label(full) == "1 condition, hook, max 2, needs verified"
    repaired = Edge("a", "b", hook=one_by_one(replace(shell("x"), repair=(shell("y"),)), shell()))
    assert edge_label(repaired) == "hook (1 with repair)"


# --- plain data ----------------------------------------------------------------------------------------------------


def test_the_graph_as_data_has_checks_limits_and_marks() -> None:
    """Nodes and edges as ``state`` shows them, and what each node is in the graph and to the run."""
    view = graph_view(parse(LOOP, source="x.yaml").runbook, Marks("work", ["plan", "work"]))
    assert (view["name"], view["initial"], view["current"]) == ("loop", "plan", "work")
    told = [tuple(node[key] for key in ("name", "initial", "end", "current", "visited")) for node in view["nodes"]]
    assert told == [
        ("plan", True, False, False, True),
        ("work", False, False, True, True),
        ("check", False, False, False, False),
        ("done", False, True, False, False),
    ]
    assert [check["type"] for check in view["nodes"][0]["before_transfer"]] == ["manual"]
    limited = next(edge for edge in view["edges"] if "max_attempts" in edge)
    assert (limited["to"], limited["max_attempts"], len(limited["condition"])) == ("check", 3, 2)


# --- SVG -----------------------------------------------------------------------------------------------------------


def boxes(picture: ElementTree.Element) -> dict[str, tuple[float, float, float, float]]:
    """Return left, top, right and bottom of each node by the first line of its title."""
    found = {}
    for group in picture.iter(f"{SVG}g"):
        title, rectangle = group.find(f"{SVG}title"), group.find(f"{SVG}rect")
        if title is not None and rectangle is not None:
            x, y, width, height = (float(rectangle.get(name, "")) for name in ("x", "y", "width", "height"))
            found[str(title.text).splitlines()[0]] = (x, y, x + width, y + height)
    return found


def paths(picture: ElementTree.Element) -> list[str]:
    """Return the path of each arrow: the one that leads to the initial node, then the edges in order."""
    return [path.get("d", "") for path in picture.iter(f"{SVG}path") if path.get("marker-end")]


def points(path: str) -> list[tuple[float, float]]:
    """Return the points of a path of straight lines with rounded corners."""
    numbers = [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", path)]
    return list(zip(numbers[::2], numbers[1::2], strict=True))


@pytest.mark.parametrize("name", AWKWARD)
def test_no_name_breaks_the_picture(name: str) -> None:
    """The document is well-formed, and name and title of each node can be read from it."""
    picture = ElementTree.fromstring(svg(ring(name, "other")))
    assert list(boxes(picture)) == [one_line(name), "other"]
    assert one_line(name) in [text.text for text in picture.iter(f"{SVG}text")]
    assert picture.findtext(f"{SVG}title") == 'a "ring" & <more>'


def test_a_long_name_is_cut_and_kept_in_the_title() -> None:
    """The picture stays readable, and pointing at the node tells all of the name."""
    text = svg(ring("x" * 200, "计" * 60))
    assert "x" * 200 in text
    assert f">{'x' * 39}…<" in text
    assert f">{'计' * 19}…<" in text


def test_the_picture_marks_where_a_run_stands() -> None:
    """The current node is filled and thick, visited ones are filled, and titles say it."""
    text = svg(parse(LOOP, source="x.yaml").runbook, Marks("work", ["plan"]))
    assert text.count(f'fill="{FILLS["current"]}" stroke="#0f172a" stroke-width="3"') == 1
    assert text.count(f'fill="{FILLS["visited"]}"') == 1
    assert "<title>plan\ninitial\nvisited\nbefore_transfer: manual</title>" in text
    assert "<title>done\nend</title>" in text
    lost = svg(parse("nodes: {a: {next: lost}, lost: {outcome: failure}}", source="x.yaml").runbook)
    assert "<title>lost\nend: failure</title>" in lost


@given(GRAPHS)
def test_every_node_and_edge_is_drawn_within_the_frame(runbook: Runbook) -> None:
    """Nodes stand apart from each other, and there is an arrow for each edge."""
    picture = ElementTree.fromstring(svg(runbook))
    width, height = float(picture.get("width", "")), float(picture.get("height", ""))
    found = list(boxes(picture).values())
    assert len(found) == len(runbook.nodes)
    assert len(paths(picture)) == len(runbook.edges) + 1
    for number, (left, top, right, bottom) in enumerate(found):
        assert 0 <= left < right <= width
        assert 0 <= top < bottom <= height
        assert all(right < other[0] or other[2] < left or top != other[1] for other in found[:number])


@given(GRAPHS)
def test_edges_along_lanes_cross_no_node(runbook: Runbook) -> None:
    """An edge that goes back or skips layers runs between the layers and beside them, within the frame."""
    picture = ElementTree.fromstring(svg(runbook))
    width, height = float(picture.get("width", "")), float(picture.get("height", ""))
    for path in paths(picture)[1:]:
        if "C" in path or "c" in path:
            continue
        for (x1, y1), (x2, y2) in pairwise(points(path)):
            assert 0 <= min(x1, x2) <= max(x1, x2) <= width
            assert 0 <= min(y1, y2) <= max(y1, y2) <= height
            for left, top, right, bottom in boxes(picture).values():
                inside_x = max(x1, x2) > left + 0.5 and min(x1, x2) < right - 0.5
                assert not (inside_x and max(y1, y2) > top + 0.5 and min(y1, y2) < bottom - 0.5), path


@given(GRAPHS)
def test_a_node_is_one_layer_below_what_leads_to_it(runbook: Runbook) -> None:
    """Layers have no gaps, every node below the first has a way from the layer above, and only loops go back."""
    layers = layers_of(runbook)
    assert set(layers.values()) == set(range(max(layers.values()) + 1))
    above = {edge.target for edge in runbook.edges if layers[edge.source] + 1 == layers[edge.target]}
    assert all(layer == 0 or name in above for name, layer in layers.items())
    forward = [edge for edge in runbook.edges if layers[edge.source] < layers[edge.target]]
    backward = [edge for edge in runbook.edges if edge not in forward]
    for edge in backward:
        assert edge.source in reached_from(edge.target, forward), "it closes a cycle"


def reached_from(start: str, edges: list[Edge]) -> set[str]:
    """Return the nodes to which edges lead from one, itself included."""
    reached = {start}
    while more := {edge.target for edge in edges if edge.source in reached} - reached:
        reached |= more
    return reached


def test_layers_follow_the_longest_way() -> None:
    """A node that can be reached on a short and on a long way stands below the long one."""
    runbook = parse("nodes: {a: {next: [b, c]}, b: {next: c}, c: {next: a}}", source="x.yaml").runbook
    assert layers_of(runbook) == {"a": 0, "b": 1, "c": 2}


def test_a_chain_of_thousands_is_drawn() -> None:
    """No recursion: the length of a runbook is limited by its file alone."""
    runbook = graph_of(3000, [(number, number + 1) for number in range(2999)])
    assert max(layers_of(runbook).values()) == 2999
    assert svg(runbook).count(f'height="{NODE_HEIGHT}"') == 3000


# --- the command, and what other people wrote ---------------------------------------------------------------------


@pytest.mark.parametrize("format", sorted(FORMATS))
def test_the_command_draws_a_file(format: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It needs no state and no server; with ``--json`` the drawing is a text in the document."""
    file = tmp_path / "loop.yaml"
    file.write_text(LOOP)
    drawn = FORMATS[format](load(file).runbook)
    assert run(["graph", str(file), "--format", format]) == 0
    assert capsys.readouterr() == (f"{drawn}\n", "")
    assert run(["graph", str(file), "--format", format, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["ok"], document["drawing"], document["spec"]) == (True, drawn, str(file))
    assert list(tmp_path.iterdir()) == [file]


def test_the_command_prints_the_graph_as_data(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """``--format json`` prints the same document with and without ``--json``."""
    file = tmp_path / "loop.yaml"
    file.write_text(LOOP)
    documents: list[Any] = []
    for words in ([], ["--json"]):
        assert run(["graph", str(file), "--format", "json", *words]) == 0
        documents.append(json.loads(capsys.readouterr().out))
    assert documents[0] == documents[1]
    assert [node["name"] for node in documents[0]["nodes"]] == ["plan", "work", "check", "done"]
    assert "drawing" not in documents[0]


@pytest.fixture(scope="module")
def real_runbooks() -> Path:
    """The folder of collected runbooks that continuous integration lays beside the clone."""
    folder = ROOT.parent / "shared" / "real-runbooks"
    if not (folder / "expected.json").is_file():
        pytest.skip("the collected runbooks are not laid beside this clone")
    return folder


def test_runbooks_of_other_people_are_drawn(real_runbooks: Path) -> None:
    """Every one of them, in every format, with all of its nodes and edges."""
    for file, expected in json.loads((real_runbooks / "expected.json").read_text("utf-8")).items():
        if not expected["permissive"]["ok"]:
            continue
        runbook = load(real_runbooks / file).runbook
        marks = Marks(runbook.nodes[-1].name, [runbook.initial])
        picture = ElementTree.fromstring(svg(runbook, marks))
        assert list(boxes(picture)) == expected["nodes"], file
        assert len(paths(picture)) == len(expected["edges"]) + 1, file
        assert mermaid(runbook, marks).count("-->") == len(expected["edges"]) + 1, file
        assert dot(runbook, marks).count(" -> ") == len(expected["edges"]) + 1, file
