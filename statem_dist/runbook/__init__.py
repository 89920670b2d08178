"""Runbooks: read, validate, show.

``load`` and ``parse`` turn YAML or JSON into an immutable ``statem_dist.protocol.graph.Runbook`` or raise
``RunbookInvalid`` with every problem and its place. The views are the JSON shapes of StateM's commands.
Importing this package loads no YAML library; parsing YAML does.
"""

from __future__ import annotations

from statem_dist.runbook.parse import Format, Parsed, format_of, load, parse, read_checks, read_plain, read_text
from statem_dist.runbook.problems import Problem
from statem_dist.runbook.view import check_view, dynamic_view, edge_view, node_view, steps_view

__all__ = [
    "Format",
    "Parsed",
    "Problem",
    "check_view",
    "dynamic_view",
    "edge_view",
    "format_of",
    "load",
    "node_view",
    "parse",
    "read_checks",
    "read_plain",
    "read_text",
    "steps_view",
]
