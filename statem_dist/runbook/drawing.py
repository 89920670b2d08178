"""A runbook as a graph to look at: plain data, Mermaid and DOT. The picture is in ``statem_dist.runbook.svg``.

Names of nodes are any text, and every language of graphs trips over some: over quotes, ``end``, ``a:b``, a line
that looks like a list. So a node gets an id of ours (``n0``, ``n1``, ...), and its name appears as a quoted label
alone, in which everything that the language could take for itself is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any

from msgspec import Struct

from statem_dist.protocol.graph import Edge, Node, Runbook, Steps
from statem_dist.runbook.view import confinement_view, edge_view, node_view

INK = "#0f172a"
"""Text and outlines: dark on light in every format."""

FILLS = {"current": "#fde68a", "visited": "#dbeafe", "": "#f8fafc"}
"""The fill of a node, by where a run stands: on it, once on it, or neither."""

_BLANKS = re.compile(r"\s+")
_UNPRINTABLE = re.compile("[^\x20-\x7e\xa0-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
_PLAIN_IN_MERMAID = re.compile(r"[^\W_]|(?<=[^\W_])[-_.](?=[^\W_])|[ ,]|[^\x00-\x7f]")


class Marks(Struct, frozen=True):
    """Where a run stands: its current node, and every node that it was on."""

    current: str | None = None
    visited: Collection[str] = ()

    def of(self, name: str) -> str:
        """Return ``current``, ``visited`` or an empty text: a key of ``FILLS``."""
        return "current" if name == self.current else "visited" if name in self.visited else ""


NO_MARKS = Marks()


def graph_view(runbook: Runbook, marks: Marks = NO_MARKS) -> dict[str, Any]:
    """Return the graph as plain data: nodes and edges with their checks, and the marks on each node."""
    ends = ends_of(runbook)
    return {
        "name": runbook.name,
        "hash": runbook.hash,
        "initial": runbook.initial,
        "current": marks.current,
        **confinement_view(runbook.confinement),
        "nodes": [
            {
                **node_view(node),
                "initial": node.name == runbook.initial,
                "end": node.name in ends,
                "current": node.name == marks.current,
                "visited": node.name in marks.visited,
            }
            for node in runbook.nodes
        ],
        "edges": [edge_view(edge) for edge in runbook.edges],
    }


def mermaid(runbook: Runbook, marks: Marks = NO_MARKS) -> str:
    """Return a Mermaid flowchart. Ends are rounded, and a dot leads to the initial node."""
    ids = _ids(runbook)
    ends = ends_of(runbook)
    lines = ["flowchart TD", "    begin(( )) --> " + ids[runbook.initial]]
    for node in runbook.nodes:
        label = f'"{_mermaid_text(node.name)}"'
        lines.append(f"    {ids[node.name]}" + (f"([{label}])" if node.name in ends else f"[{label}]"))
    for edge in runbook.edges:
        label = edge_label(edge)
        arrow = f'-->|"{_mermaid_text(label)}"|' if label else "-->"
        lines.append(f"    {ids[edge.source]} {arrow} {ids[edge.target]}")
    for mark in ("visited", "current"):
        if marked := [ids[node.name] for node in runbook.nodes if marks.of(node.name) == mark]:
            lines.append(f"    classDef {mark} fill:{FILLS[mark]},stroke:{INK},color:{INK}")
            lines.append(f"    class {','.join(marked)} {mark}")
    return "\n".join(lines)


def dot(runbook: Runbook, marks: Marks = NO_MARKS) -> str:
    """Return the graph in DOT, the language of Graphviz. Ends have a double outline."""
    ids = _ids(runbook)
    ends = ends_of(runbook)
    lines = [
        "digraph {",
        f"    label={_dot_text(runbook.name)}; labelloc=t; rankdir=TB",
        f'    node [shape=box, style="rounded,filled", fillcolor="{FILLS[""]}", color="{INK}", fontcolor="{INK}"]',
        f'    begin [shape=point, fillcolor="{INK}"]',
        f"    begin -> {ids[runbook.initial]}",
    ]
    for node in runbook.nodes:
        mark = marks.of(node.name)
        look = f', fillcolor="{FILLS[mark]}"' if mark else ""
        look += ", penwidth=3" if mark == "current" else ""
        look += ", peripheries=2" if node.name in ends else ""
        tooltip = _dot_text("; ".join(node_summary(node, runbook, marks, end=node.name in ends)))
        lines.append(f"    {ids[node.name]} [label={_dot_text(node.name)}, tooltip={tooltip}{look}]")
    for edge in runbook.edges:
        label = edge_label(edge)
        look = f" [label={_dot_text(label)}]" if label else ""
        lines.append(f"    {ids[edge.source]} -> {ids[edge.target]}{look}")
    return "\n".join([*lines, "}"])


def ends_of(runbook: Runbook) -> frozenset[str]:
    """Return the names of the nodes that no edge leaves."""
    left = {edge.source for edge in runbook.edges}
    return frozenset(node.name for node in runbook.nodes if node.name not in left)


def edge_label(edge: Edge) -> str:
    """Return what stands in the way along an edge, in a few words; empty if nothing does."""
    conditions = _checks_in(edge.condition)
    parts = [f"{conditions} condition{'s' if conditions > 1 else ''}"] if conditions else []
    parts += [f"hook{_repaired(edge.hook)}"] if edge.hook else []
    parts += [f"max {edge.max_attempts}"] if edge.max_attempts is not None else []
    parts += [f"needs {edge.require_evidence}"] if edge.require_evidence is not None else []
    return ", ".join(parts)


def node_summary(node: Node, runbook: Runbook, marks: Marks, *, end: bool) -> list[str]:
    """Return what is to be known of a node, a line each: its name, what it is in the graph, its checks."""
    lines = [one_line(node.name)]
    lines += ["initial"] if node.name == runbook.initial else []
    lines += [f"end: {node.outcome}" if node.outcome is not None else "end"] if end else []
    lines += [mark] if (mark := marks.of(node.name)) else []
    lists = {"in_hook": node.in_hook, "before_transfer": node.before_transfer, "out_hook": node.out_hook}
    lines += [
        f"{name}: {', '.join(check.type for step in steps for check in step)}{_repaired(steps)}"
        for name, steps in lists.items()
        if steps
    ]
    return lines + (["dynamic checks"] if node.dynamic is not None else [])


def one_line(text: str) -> str:
    """Return a text on one line, without the characters that no picture can show."""
    return _UNPRINTABLE.sub("\ufffd", _BLANKS.sub(" ", text).strip())


def _ids(runbook: Runbook) -> dict[str, str]:
    return {node.name: f"n{number}" for number, node in enumerate(runbook.nodes)}


def _repaired(steps: Steps) -> str:
    """Return how many of some hooks can be undone, in parentheses; empty if none can."""
    repaired = sum(bool(check.repair) for step in steps for check in step)
    return f" ({repaired} with repair)" if repaired else ""


def _checks_in(steps: Steps) -> int:
    return sum(len(step) for step in steps)


def _mermaid_text(text: str) -> str:
    """Return a text as the inside of a quoted label.

    Mermaid reads Markdown and HTML there, lists and headings included, but undoes ``#58;`` last. Letters, digits and
    the marks inside of words such as ``self_review`` stay as they are, so that the source can be read.
    """
    line = one_line(text)
    plain = {found.start() for found in _PLAIN_IN_MERMAID.finditer(line)}
    return "".join(each if at in plain else f"#{ord(each)};" for at, each in enumerate(line))


def _dot_text(text: str) -> str:
    """Return a text as a quoted label; DOT knows escapes such as ``\\N`` and HTML entities in it."""
    escaped = one_line(text).replace("\\", "\\\\").replace('"', '\\"').replace("&", "&amp;")
    return f'"{escaped}"'
