"""Answers as text: made to be read by agents and people, and short enough for a context window."""

from __future__ import annotations

from typing import Any

from statem_dist.follow import Settled
from statem_dist.protocol.graph import Check, Edge, Node, Runbook, Steps
from statem_dist.protocol.model import PlannedCheck, Run, Transition
from statem_dist.protocol.outcome import CheckResult
from statem_dist.runbook.view import check_view

OUTPUT_LINES_MAX = 20
"""Lines of a failed check's output that are shown; all of it is in the JSON."""

TITLE_LENGTH_MAX = 100


def node_status(run: Run, runbook: Runbook) -> str:
    """Return where a run stands, what to do there, and how to leave."""
    node = runbook.node(run.node)
    assert node is not None
    lines = [f"Run: {run.id} ({run.runbook_name})", f"Current: {run.node}  [{run.status}]"]
    if run.in_flight is not None:
        lines.append(f"In flight: {run.in_flight.id} {run.in_flight.source} -> {run.in_flight.target}")
    return "\n".join([*lines, *_node_body(node, runbook)])


def one_node(node: Node, runbook: Runbook) -> str:
    """Return one node: its prompt, its checks, its exits."""
    return "\n".join([f"Node: {node.name}", *_node_body(node, runbook)])


def exits(run: Run, runbook: Runbook) -> str:
    """Return the edges out of the current node."""
    return "\n".join([f"Run: {run.id} on {run.node}", *_exits(runbook.exits(run.node))])


def graph(run: Run, runbook: Runbook) -> str:
    """Return the whole graph, with a mark where the run stands."""
    lines = [f"Run: {run.id} ({run.runbook_name})", "Nodes:"]
    lines += [f"  {'*' if node.name == run.node else '-'} {node.name}" for node in runbook.nodes]
    lines += ["Edges:", *(f"  {edge.source} -> {edge.target}{_limit(edge)}" for edge in runbook.edges)]
    return "\n".join(lines)


def validated(runbook: Runbook) -> str:
    """Return what a valid runbook consists of."""
    lines = [f"Valid: {runbook.name}", f"Initial: {runbook.initial}"]
    lines.append(f"Nodes: {', '.join(node.name for node in runbook.nodes)}")
    lines += [f"Edge: {edge.source} -> {edge.target}{_limit(edge)}" for edge in runbook.edges]
    return "\n".join(lines)


def moved(settled: Settled, listed: str) -> str:
    """Return that a run has moved, after its results."""
    transition = settled.transition
    told = f"Moved: {transition.source} -> {transition.target} (run {settled.run.id})"
    return f"{listed}\n{told}" if listed else told


def saved(settled: Settled) -> str:
    """Return that a save is done, after its results."""
    listed = results(settled.transition)
    told = f"Saved: run {settled.run.id} on {settled.run.node}"
    return f"{listed}\n{told}" if listed else told


def results(transition: Transition) -> str:
    """Return every settled check of a transition, a failed one with its output."""
    lines = [
        check_line(planned, transition.results[planned.id])
        for planned in transition.plan
        if planned.id in transition.results
    ]
    return "\n".join(lines)


def check_line(planned: PlannedCheck, result: CheckResult) -> str:
    """Return one settled check: a mark, where it stands, what it is, and why it failed."""
    outcome = result.outcome
    mark = "✓" if outcome.passed else "✗" if planned.check.stops else "~"
    head = f"  {mark} {planned.purpose}: {title(planned.check)}"
    if outcome.passed:
        return head
    why = f"exit {outcome.exit_code}" if outcome.exit_code is not None else outcome.reason
    output = outcome.output.splitlines()
    shown = output[-OUTPUT_LINES_MAX:]
    if len(output) > len(shown):
        shown.insert(0, f"… {len(output) - len(shown)} lines above")
    return "\n".join([f"{head}  [{why}]", *(f"      {line}" for line in shown)])


def title(check: Check) -> str:
    """Return a check in one line."""
    view = check_view(check)
    what = view.get("prompt") or view.get("tier") or view.get("run") or view.get("path") or view.get("text") or ""
    if check.type == "checklist":
        what = "; ".join(view.get("items", ()))
    if check.type == "predicate":
        tests = {key: value for key, value in view.items() if key in _TESTS}
        what = f"{what} {' '.join(f'{key}={value!r}' for key, value in tests.items())}".rstrip()
    line = " ".join(str(what).split())
    line = line if len(line) <= TITLE_LENGTH_MAX else line[: TITLE_LENGTH_MAX - 1] + "…"
    return f"{check.type}: {line}" if line else check.type


_TESTS = frozenset({"exists", "non_empty", "contains", "not_contains", "matches", "json_path", "equals", "one_of"})


def _node_body(node: Node, runbook: Runbook) -> list[str]:
    lines: list[str] = []
    if node.prompt:
        lines += ["Prompt:", *(f"  {line}" for line in node.prompt.rstrip().splitlines())]
    lines += _checks("Before leaving", node.before_transfer)
    lines += _checks("On leaving", node.out_hook)
    if node.dynamic is not None:
        lines.append(f"Dynamic checks: {'required' if node.dynamic.required else 'accepted'}")
    return lines + _exits(runbook.exits(node.name))


def _checks(heading: str, steps: Steps) -> list[str]:
    checks = [check for members in steps for check in members]
    return [f"{heading}:", *(f"  - {title(check)}" for check in checks)] if checks else []


def _exits(edges: tuple[Edge, ...]) -> list[str]:
    if not edges:
        return ["Next: (none; this is an end)"]
    lines = ["Next:"]
    for edge in edges:
        lines.append(f"  -> {edge.target}{_limit(edge)}")
        lines += [f"       needs {title(check)}" for members in edge.condition for check in members]
    return lines


def _limit(edge: Edge) -> str:
    return f"  (max_attempts {edge.max_attempts})" if edge.max_attempts is not None else ""


def event_line(view: dict[str, Any]) -> str:
    """Return an event of the log in one line: time, number, what happened, and to what."""
    what = [view["event"], *(view[key] for key in ("transition", "kind", "check", "node") if key in view)]
    if "target" in view:
        what.append(f"{view['source']} -> {view['target']}")
    what += view.get("checks", ())
    outcome = view["result"]["outcome"] if "result" in view else view.get("outcome")
    what.append(outcome["reason"] if isinstance(outcome, dict) else outcome)
    what += [view.get("stage"), view.get("reason"), view.get("worker")]
    return f"{view['ts']}  {view['number']:>4}  {' '.join(word for word in what if word)}"


def history_line(entry: dict[str, Any]) -> str:
    """Return an entry of a history in one line: time, what happened, and how much of it failed."""
    what = entry["event"]
    if "from" in entry:
        what += f" {entry['from']} -> {entry['to']}"
    elif where := entry.get("node") or entry.get("current"):
        what += f" {where}"
    if entry.get("stage"):
        what += f" at {entry['stage']}"
    failed = [result for result in entry.get("results", ()) if not result["passed"]]
    if failed:
        what += f" ({len(failed)} failed)"
    return f"{entry['ts']}  {what}"
