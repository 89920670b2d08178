"""The JSON view of a runbook's parts, with the keys of StateM's ``--json`` output.

Optional fields appear only where the runbook gives them; ``blocking`` and ``on_failure`` always do, because
they decide what a failure means. Steps are flattened; members of a parallel step say ``parallel: true``.
"""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, to_builtins

from statem_dist.protocol.graph import (
    Check,
    Checklist,
    Command,
    Confinement,
    DynamicConfig,
    Edge,
    Evidence,
    LlmReview,
    Manual,
    Message,
    Node,
    Predicate,
    Retry,
    Steps,
    Unmet,
)

TITLE_LENGTH_MAX = 100
"""Characters of a check's title, where lists have one line for each check."""

REVIEW_COMMAND = "$STATEM_LLM_REVIEW_CMD"
"""Shown as the command of a review that leaves its reviewer to the host."""


def check_view(check: Check) -> dict[str, Any]:
    """Return a check as ``{"type", <fields of the type>, "blocking", "on_failure", <what else is given>}``."""
    view: dict[str, Any] = {"type": check.type}
    match check.do:
        case Predicate() as predicate:
            given = ((name, getattr(predicate, name)) for name in predicate.__struct_fields__)
            # `equals: null` is a condition, so only what was never written is left out.
            view |= {
                name: to_builtins(value)
                for name, value in given
                if value is not UNSET and (value is not None or name == "equals")
            }
        case Checklist(items=items, text=text):
            view |= {"items": list(items)} | ({"text": text} if text else {})
        case LlmReview() as review:
            view |= {"prompt": review.prompt, "run": review.run or REVIEW_COMMAND}
            view |= {name: value for name, value in to_builtins(review).items() if name not in view}
        case work:
            view |= to_builtins(work)
    view |= {"blocking": check.blocking, "on_failure": check.on_failure}
    optional = {
        "name": check.name,
        "timeout": check.timeout,
        "cwd": check.cwd,
        "reason": check.reason,
        "idempotent": check.idempotent,
        "confirmation": None if check.confirm else "none",
        "by": None if check.by == "anyone" else check.by,
        "retry": None if check.retry == Retry() else to_builtins(check.retry),
        "repair": [check_view(each) for each in check.repair] or None,
    }
    return view | {name: value for name, value in optional.items() if value is not None}


def check_text(check: Check) -> str:
    """Return what a check asks for or runs, in full and in its own words; a checklist has a line for each item."""
    match check.do:
        case Checklist(items=items, text=text):
            return "\n".join([*([text] if text else ()), *(f"- {item}" for item in items)])
        case Predicate(path=path):
            tests = {name: value for name, value in check_view(check).items() if name in _TESTS}
            return " ".join([path, *(f"{name}={value!r}" for name, value in tests.items())])
        case LlmReview(prompt=prompt):
            return prompt.strip()
        case Evidence(tier=tier):
            return tier
        case Command(run=run):
            return run.strip()
        case Manual(text=text) | Message(text=text) | Unmet(text=text):
            return text.strip()


def check_title(check: Check, length: int = TITLE_LENGTH_MAX) -> str:
    """Return a check in one line of at most so many characters, its type not counted."""
    separator = "; " if isinstance(check.do, Checklist) else " "
    lines = (line.removeprefix("- ") for line in check_text(check).splitlines())
    line = separator.join(" ".join(line.split()) for line in lines if line.strip())
    line = line if len(line) <= length else line[: length - 1] + "…"
    return f"{check.type}: {line}" if line else check.type


_TESTS = frozenset({"exists", "non_empty", "contains", "not_contains", "matches", "json_path", "equals", "one_of"})


def steps_view(steps: Steps) -> list[dict[str, Any]]:
    """Return a list of checks, flattened in order."""
    views: list[dict[str, Any]] = []
    for step in steps:
        beside = {"parallel": True} if len(step) > 1 else {}
        views.extend(check_view(check) | beside for check in step)
    return views


def dynamic_view(config: DynamicConfig) -> dict[str, Any]:
    """Return what a node accepts as dynamic checks, defaults included."""
    view: dict[str, Any] = to_builtins(config)
    return view | {"allow_types": list(config.allow_types)}


def node_view(node: Node) -> dict[str, Any]:
    """Return a node; ``dynamic_before_transfer`` is None where it accepts none, ``outcome`` is there only if given."""
    view: dict[str, Any] = {
        "name": node.name,
        "prompt": node.prompt,
        "in_hook": steps_view(node.in_hook),
        "before_transfer": steps_view(node.before_transfer),
        "dynamic_before_transfer": None if node.dynamic is None else dynamic_view(node.dynamic),
        "out_hook": steps_view(node.out_hook),
    }
    return view | ({} if node.outcome is None else {"outcome": node.outcome})


def edge_view(edge: Edge) -> dict[str, Any]:
    """Return an edge; ``max_attempts`` and ``require_evidence`` only where the runbook sets them."""
    view: dict[str, Any] = {
        "from": edge.source,
        "to": edge.target,
        "condition": steps_view(edge.condition),
        "hook": steps_view(edge.hook),
    }
    optional = {"max_attempts": edge.max_attempts, "require_evidence": edge.require_evidence}
    return view | {name: value for name, value in optional.items() if value is not None}


def confinement_view(confinement: Confinement) -> dict[str, Any]:
    """Return what a runbook's commands are kept within, by its root keywords; empty where it says nothing."""
    view: dict[str, Any] = {}
    if limits := to_builtins(confinement.limits):
        view["limits"] = limits
    if confinement.sandbox is not None:
        view["sandbox"] = {"bwrap": to_builtins(confinement.sandbox)}
    if confinement.executor:
        kind, _, name = confinement.executor.partition(":")
        view["executor"] = {kind: name}
    return view
