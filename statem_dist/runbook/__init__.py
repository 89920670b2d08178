"""Runbooks: read, validate, show.

``load`` and ``parse`` turn YAML or JSON into an immutable ``statem_dist.protocol.graph.Runbook`` or raise
``RunbookInvalid`` with every problem and its place. The views are the JSON shapes of StateM's commands.
Importing this package loads nothing: a command that only shows a stored runbook never needs a parser.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statem_dist.runbook.problems import Problem, warnings_view
    from statem_dist.runbook.reader import (
        CheckList,
        Format,
        Parsed,
        format_of,
        load,
        parse,
        read_checks,
        read_plain,
        read_text,
    )
    from statem_dist.runbook.view import check_view, confinement_view, dynamic_view, edge_view, node_view, steps_view

__all__ = [
    "CheckList",
    "Format",
    "Parsed",
    "Problem",
    "check_view",
    "confinement_view",
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
    "warnings_view",
]


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is first asked for."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = "problems" if name in ("Problem", "warnings_view") else "view" if name.endswith("_view") else "reader"
    return getattr(import_module(f"{__name__}.{home}"), name)
