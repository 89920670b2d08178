"""Answers as text: made to be read by agents and people, and short enough for a context window."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from statem_dist.columns import aligned
from statem_dist.places import entry_folder
from statem_dist.protocol.graph import (
    CHECK_TYPES,
    Check,
    Edge,
    LlmReview,
    Message,
    Node,
    Runbook,
    Steps,
    Unmet,
)
from statem_dist.protocol.model import PlannedCheck, Run, Transition
from statem_dist.protocol.outcome import CheckResult
from statem_dist.runbook.view import check_text, check_title
from statem_dist.views import attempts_used, failing_checks, last_attempt, with_token

if TYPE_CHECKING:
    from statem_dist.follow import Settled

OUTPUT_LINES_MAX = 20
"""Lines of a failed check's output that are shown; all of it is in the JSON."""


def node_status(run: Run, runbook: Runbook, waiting_reason: str = "") -> str:
    """Return where a run stands, what to do there, and how to leave.

    Args:
        run: the run.
        runbook: the one that it follows.
        waiting_reason: why its open transition has not settled, if one is open.
    """
    node = runbook.node(run.node)
    assert node is not None
    lines = [f"Run: {run.id} ({run.runbook_name})", f"Current: {run.node}  [{run.status}]"]
    lines += [told] if (told := held(run)) else []
    if run.in_flight is not None:
        lines.append(f"In flight: {run.in_flight.id} {run.in_flight.source} -> {run.in_flight.target}")
        lines += [f"  {waiting_reason}"] if waiting_reason else []
        lines += ["  listed by: statem-dist approvals"] if run.in_flight.awaiting else []
    return "\n".join([*lines, *_last_attempt(run), *_node_body(node, run, runbook)])


def held(run: Run) -> str:
    """Return who paused or cancelled a run and why, in a line; empty if nobody did."""
    if run.paused is not None:
        return _held_by("Paused", run.paused.by.id, run.paused.reason)
    if run.ending is not None:
        return _held_by("Terminated" if run.ending.terminated else "Cancelled", run.ending.by.id, run.ending.reason)
    return ""


def _held_by(verb: str, by: str, reason: str) -> str:
    return f"{verb} by {by or 'somebody'}{f': {reason}' if reason else ''}"


def steered(run: Run, waiting_reason: str) -> str:
    """Return where a run stands after it was paused, let go on or cancelled. See ``node_status`` for the arguments."""
    lines = [f"Run: {run.id} on {run.node}  [{run.status}]"]
    lines += [told] if (told := held(run)) else []
    if run.in_flight is not None:
        lines.append(f"In flight: {run.in_flight.id} {run.in_flight.source} -> {run.in_flight.target}")
        lines += [f"  {waiting_reason}"] if waiting_reason else []
    return "\n".join(lines)


def _last_attempt(run: Run) -> list[str]:
    """Return how the last attempt to leave ended, and the checks that kept the run where it is."""
    last = last_attempt(run)
    if last is None:
        return []
    stage = f" at {last.stage}" if last.stage else ""
    why = f": {last.reason}" if last.reason else ""
    head = f"Last attempt: -> {last.target} {last.outcome}{stage}{why}"
    return [head, *(check_line(planned, last.results[planned.id]) for planned in failing_checks(last))]


def one_node(node: Node, run: Run, runbook: Runbook) -> str:
    """Return one node: its prompt, its checks, its exits."""
    return "\n".join([f"Node: {node.name}", *_node_body(node, run, runbook)])


def exits(run: Run, runbook: Runbook) -> str:
    """Return the edges out of the current node."""
    return "\n".join([f"Run: {run.id} on {run.node}", *_exits(run, runbook.exits(run.node))])


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
        for planned in (*transition.plan, *transition.repairs)
        if planned.id in transition.results
    ]
    return "\n".join(lines)


def check_line(planned: PlannedCheck, result: CheckResult) -> str:
    """Return one settled check: a mark, where it stands, what it is, and why it failed."""
    outcome = result.outcome
    mark = "✓" if outcome.passed else "✗" if planned.check.stops else "~"
    if isinstance(planned.check.do, Unmet):
        # What is missing is all there is to tell: it is both what was asked for and what came of it.
        return f"  {mark} {planned.purpose}: {outcome.output}"
    where = f"repair of {planned.repairs}" if planned.repairs else planned.purpose
    head = f"  {mark} {where}: {check_title(planned.check)}"
    if outcome.passed and isinstance(planned.check.do, LlmReview) and outcome.reason == "confirmed":
        return f"{head}  [no reviewer is configured; confirmed by {result.by}]"
    if outcome.passed:
        return head
    why = f"exit {outcome.exit_code}" if outcome.exit_code is not None else outcome.reason
    output = outcome.output.splitlines()
    shown = output[-OUTPUT_LINES_MAX:]
    if len(output) > len(shown):
        shown.insert(0, f"… {len(output) - len(shown)} lines above")
    return "\n".join([f"{head}  [{why}]", *(f"      {line}" for line in shown)])


def in_full(check: Check) -> list[str]:
    """Return a check as somebody needs it who has to satisfy or confirm it: nothing is cut."""
    lines = check_text(check).splitlines()
    properties = "; ".join(_properties(check))
    told = f"  [{properties}]" if properties else ""
    if len(lines) == 1:
        return [f"  - {check.type}: {lines[0].removeprefix('- ')}{told}"]
    return [f"  - {check.type}:{told}", *(f"      {line}" for line in lines)]


def _properties(check: Check) -> Iterator[str]:
    """Yield what is to be known of a check besides what it asks for."""
    if check.name:
        yield f"name: {check.name}"
    if check.by == "operator":
        yield "by: operator"
    if not check.confirm:
        yield "is not asked"
    elif not check.stops and _may_fail(check):
        yield "does not block"
    if check.timeout is not None:
        yield f"timeout: {check.timeout:g} s"
    if check.reason:
        yield f"reason: {check.reason}"
    if check.repair:
        yield f"repair: {'; '.join(check_text(each) for each in check.repair)}"


def _may_fail(check: Check) -> bool:
    return check.confirm and not isinstance(check.do, Message)


def _node_body(node: Node, run: Run, runbook: Runbook) -> list[str]:
    lines: list[str] = []
    if node.prompt:
        lines += ["Prompt:", *(f"  {line}" for line in node.prompt.rstrip().splitlines())]
    lines += _checks("On entering", node.in_hook)
    lines += _checks("Before leaving", node.before_transfer)
    lines += _dynamic(run, node)
    lines += _checks("On leaving", node.out_hook)
    lines += [f"Outcome: {node.outcome}"] if node.outcome is not None else []
    return lines + _exits(run, runbook.exits(node.name))


def _checks(heading: str, steps: Steps) -> list[str]:
    checks = [check for members in steps for check in members]
    return [f"{heading}:", *(line for check in checks for line in in_full(check))] if checks else []


def _dynamic(run: Run, node: Node) -> list[str]:
    """Return what a node wants of dynamic checks, and for the current node how they are registered."""
    config = node.dynamic
    if config is None:
        return []
    wants = ["required" if config.required else "accepted"]
    if config.min_items:
        wants.append(f"at least {config.min_items}")
    if config.require_reason:
        wants.append("each with a reason")
    if config.require_basis:
        wants.append("with a basis.implementation_summary")
    if config.stale_policy == "require_confirmation":
        wants.append("to be confirmed as still current")
    if config.allow_types != CHECK_TYPES:
        wants.append(f"types: {', '.join(config.allow_types)}")
    lines = [f"Dynamic checks: {'; '.join(wants)}"]
    if node.name == run.node:
        lines += [
            "  register them: statem-dist dynamic write FILE",
            f"  or drop checks.AGENT.json into {entry_folder(run)}",
        ]
    return lines


def _exits(run: Run, edges: tuple[Edge, ...]) -> list[str]:
    if not edges:
        return ["Next: (none; this is an end)"]
    lines = ["Next:"]
    for edge in edges:
        lines.append(f"  -> {edge.target}{_demands(run, edge)}")
        needed = [check for members in edge.condition for check in members if check.stops and _may_fail(check)]
        for check in needed:
            first, *rest = in_full(check)
            lines += [f"       needs {first.removeprefix('  - ')}", *(f"       {line}" for line in rest)]
    return lines


def _demands(run: Run, edge: Edge) -> str:
    """Return how often an exit may be tried and was, and which evidence it requires."""
    used = attempts_used(run, edge)
    limit = _limit(edge) if used is None else f"  ({used} of {edge.max_attempts} attempts used)"
    evidence = f"  (requires {edge.require_evidence} evidence)" if edge.require_evidence is not None else ""
    return limit + evidence


def _limit(edge: Edge) -> str:
    return f"  (max_attempts {edge.max_attempts})" if edge.max_attempts is not None else ""


def event_line(view: dict[str, Any]) -> str:
    """Return an event of the log in one line: time, number, what happened, and to what."""
    what = [view["event"], *(view[key] for key in ("transition", "kind", "way", "check", "node") if key in view)]
    if "target" in view:
        what.append(f"{view['source']} -> {view['target']}")
    what += view.get("checks", ())
    outcome = view["result"]["outcome"] if "result" in view else view.get("outcome")
    what.append(outcome["reason"] if isinstance(outcome, dict) else outcome)
    what += [view.get("stage"), view.get("reason"), view.get("worker"), view.get("cause")]
    return f"{view['ts']}  {view['number']:>4}  {' '.join(word for word in what if word)}"


def history_line(entry: dict[str, Any]) -> str:
    """Return an entry of a history in one line: time, what happened, why, and what failed."""
    what = entry["event"]
    if "from" in entry:
        what += f" {entry['from']} -> {entry['to']}"
    elif where := entry.get("node") or entry.get("current"):
        what += f" {where}"
    if entry.get("stage"):
        what += ", but its in_hook did not pass" if entry["event"] == "goto" else f" at {entry['stage']}"
    if entry.get("by"):
        what += f" by {with_token(entry['by'], entry.get('token', ''))}"
    if entry.get("reason") and entry["event"] != "in_hook":
        what += f": {entry['reason']}"
    for each in entry.get("recovered", ()):
        what += f" [{_recovered(each)}]"
    if failed := _failed(entry):
        what += f" (failed: {', '.join(failed)})"
    return f"{entry['ts']}  {what}"


def _recovered(recovery: dict[str, Any]) -> str:
    """Return what an operator did about an unknown outcome, in a few words."""
    way = {"resume": "executed again", "abort": "given up"}.get(recovery["way"], f"marked {recovery['way']}")
    by = with_token(recovery["by"], recovery.get("token", ""))
    because = f": {recovery['reason']}" if recovery["reason"] else ""
    return f"{', '.join(recovery['checks'])} {way} by {by}{because}"


def _failed(entry: dict[str, Any]) -> list[str]:
    """Return the names or ids of the checks that stopped something; entries of StateM know neither for each."""
    results = entry.get("results") or entry.get("in_hook") or ()
    failed = [each for each in results if not each["passed"] and not each.get("continued")]
    return [each.get("name") or each.get("id") or each.get("type") or "a check" for each in failed]


def run_table(found: Sequence[dict[str, Any]], now: int) -> str:
    """Return runs (``views.run_summary``) as lines under a heading: where each stands, since when, and its labels."""
    rows = [("run", "status", "node", "age", "runbook", "labels")]
    for run in found:
        labels = " ".join(f"{key}={value}" for key, value in run["labels"].items())
        age = span(now - run["created_at"])
        rows.append((run["run_id"], run["status"], run["current"], age, run["spec_name"], labels))
    return aligned(rows)


def span(milliseconds: int) -> str:
    """Return how long something is, in the largest unit of which it has at least one."""
    seconds = max(0, milliseconds) // 1000
    for size, unit in ((86_400, "d"), (3600, "h"), (60, "min")):
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"
