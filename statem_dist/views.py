"""What commands answer: runs, nodes, edges and results as plain mappings, with the keys of StateM's ``--json``.

Keys may be added, none is renamed: scripts and agents read them.
"""

from __future__ import annotations

from typing import Any

from statem_dist.places import entry_folder
from statem_dist.protocol.graph import Edge, Node, Runbook
from statem_dist.protocol.model import Origin, PlannedCheck, Purpose, Run, Transition
from statem_dist.protocol.outcome import CheckResult
from statem_dist.protocol.progress import is_of_unknown_outcome
from statem_dist.protocol.stages import purposes_of
from statem_dist.runbook.view import check_view, confinement_view, dynamic_view, edge_view, node_view


def node_status(run: Run, runbook: Runbook, agent_id: str, waiting_reason: str = "") -> dict[str, Any]:
    """Return where a run stands: the answer of ``start`` and ``cur``.

    Args:
        run: the run.
        runbook: the one that it follows.
        agent_id: who is asking.
        waiting_reason: why its open transition has not settled, if one is open.
    """
    node = current_node(run, runbook)
    shown = node_view(node)
    return {
        "ok": True,
        "run_id": run.id,
        "spec": run.place.spec,
        "spec_name": run.runbook_name,
        "spec_hash": run.runbook,
        "status": run.status,
        "version": run.version,
        "current": run.node,
        "current_entry_id": run.entry_id,
        "agent_id": agent_id,
        "prompt": node.prompt,
        "in_hook": shown["in_hook"],
        "before_transfer": shown["before_transfer"],
        "dynamic_before_transfer": dynamic_config(run, node),
        "out_hook": shown["out_hook"],
        "next": exit_views(run, runbook, run.node),
        "in_flight": _open_transition(run, waiting_reason),
        **held_facts(run),
        "last_attempt": _last_attempt(run),
    }


def held_facts(run: Run) -> dict[str, Any]:
    """Return who paused or cancelled a run, why, and since when (ms since the epoch); each is None if nobody did."""
    paused, ending = run.paused, run.ending
    return {
        "paused": paused and {"reason": paused.reason, "by": paused.by.id, "at": paused.at},
        "ending": ending
        and {"reason": ending.reason, "by": ending.by.id, "at": ending.at, "terminated": ending.terminated},
    }


def steered(run: Run, waiting_reason: str = "") -> dict[str, Any]:
    """Return where a run stands after it was paused, let go on or cancelled. See ``node_status`` for the arguments."""
    return {
        "ok": True,
        "run_id": run.id,
        "status": run.status,
        "version": run.version,
        "current": run.node,
        "current_entry_id": run.entry_id,
        "in_flight": _open_transition(run, waiting_reason),
        **held_facts(run),
    }


def next_nodes(run: Run, runbook: Runbook) -> dict[str, Any]:
    """Return the edges out of the current node: the answer of ``next``."""
    return {
        "ok": True,
        "run_id": run.id,
        "current": run.node,
        "next": exit_views(run, runbook, run.node),
    }


def exit_views(run: Run, runbook: Runbook, node: str) -> list[dict[str, Any]]:
    """Return the edges out of a node; limited ones out of the current node also say how often they were tried."""
    views = []
    for edge in runbook.exits(node):
        used = attempts_used(run, edge)
        views.append(edge_view(edge) | ({} if used is None else {"attempts_used": used}))
    return views


def attempts_used(run: Run, edge: Edge) -> int | None:
    """Return how many attempts this entry has used of an edge; None for one without a limit, or of another node."""
    if edge.max_attempts is None or edge.source != run.node:
        return None
    return min(run.attempts.get(edge.target, 0), edge.max_attempts)


def unknown_views(transition: Transition) -> list[dict[str, Any]]:
    """Return the checks whose outcome nobody knows: since when (ms since the epoch), whose they were, and why."""
    return [
        {"check": check, "since": what.at, "worker": what.worker, "cause": what.cause}
        for check, what in transition.unknown.items()
    ]


def last_attempt(run: Run) -> Transition | None:
    """Return the attempt to leave the current node that ended last and did not move the run.

    None if something else has happened since, such as an arrival, a resumption or a new attempt.
    """
    last = run.transition
    return last if last is not None and last.kind == "goto" and not last.open and not last.entered else None


def failing_checks(transition: Transition) -> list[PlannedCheck]:
    """Return the checks that stopped a transition, in the order of its plan."""
    return [
        planned
        for planned in (*transition.plan, *transition.repairs)
        if (result := transition.results.get(planned.id)) and not result.passed and planned.check.stops
    ]


def graph_status(run: Run, runbook: Runbook) -> dict[str, Any]:
    """Return the whole graph and where the run stands in it: the answer of ``state``."""
    return {
        "ok": True,
        "run_id": run.id,
        "spec": run.place.spec,
        "spec_name": run.runbook_name,
        "current": run.node,
        "current_entry_id": run.entry_id,
        **confinement_view(runbook.confinement),
        "nodes": [node_view(node) for node in runbook.nodes],
        "edges": [edge_view(edge) for edge in runbook.edges],
    }


def one_node(run: Run, runbook: Runbook, node: Node) -> dict[str, Any]:
    """Return one node with its exits: the answer of ``ls``."""
    return {
        "ok": True,
        "run_id": run.id,
        "current": run.node,
        "current_entry_id": run.entry_id,
        "node": node.name,
        **node_view(node),
        "dynamic_before_transfer": dynamic_config(run, node),
        "next": exit_views(run, runbook, node.name),
    }


def dynamic_config(run: Run, node: Node) -> dict[str, Any] | None:
    """Return what a node accepts as dynamic checks, and for the current one the folder to drop them into."""
    if node.dynamic is None:
        return None
    here = {"resolved_path": str(entry_folder(run))} if node.name == run.node else {}
    return dynamic_view(node.dynamic) | here


def run_summary(run: Run) -> dict[str, Any]:
    """Return a run in a line: an item of ``runs``."""
    return {
        "run_id": run.id,
        "spec_name": run.runbook_name,
        "status": run.status,
        "current": run.node,
        "version": run.version,
        "labels": run.labels,
        "created_at": run.created_at,
        "updated_at": run.updated_at,
        "in_flight": transition_reference(run.in_flight),
    }


def transition_reference(transition: Transition | None) -> dict[str, Any] | None:
    """Return which transition this is, without its results."""
    if transition is None:
        return None
    return {
        "transition": transition.id,
        "kind": transition.kind,
        "from": transition.source,
        "to": transition.target,
        "settled": len(transition.results),
        "planned": len(transition.plan) + len(transition.repairs),
        **({"outcome_unknown": unknown_views(transition)} if transition.unknown else {}),
        **({"repairing": [each.repairs for each in transition.repairs]} if transition.repairs else {}),
    }


def _open_transition(run: Run, waiting_reason: str) -> dict[str, Any] | None:
    reference = transition_reference(run.in_flight)
    return reference | {"waiting_reason": waiting_reason} if reference and waiting_reason else reference


def _last_attempt(run: Run) -> dict[str, Any] | None:
    transition = last_attempt(run)
    if transition is None:
        return None
    return {
        "transition": transition.id,
        "to": transition.target,
        "outcome": transition.outcome,
        "stage": transition.stage,
        "reason": transition.reason,
        "results": [result_view(each, transition.results[each.id]) for each in failing_checks(transition)],
    }


def settled_transition(run: Run, transition: Transition) -> dict[str, Any]:
    """Return what came of a transition: the body of a ``goto`` answer, whether it moved or not."""
    return {
        "run_id": run.id,
        "current": run.node,
        "current_entry_id": run.entry_id,
        "from": transition.source,
        "to": transition.target,
        "transition": transition.id,
        "outcome": transition.outcome or "pending",
        "stage": transition.stage,
        **({"reason": transition.reason} if transition.reason else {}),
        **goto_facts(transition),
        **({"outcome_unknown": unknown_views(transition)} if transition.open and is_of_unknown_outcome(run) else {}),
        "results": stopping_results(transition),
    }


def stopping_results(transition: Transition) -> list[dict[str, Any]]:
    """Return the results of the stage that stopped a transition, or failed after its commit; else all of them.

    What was repaired is always among them.
    """
    purposes = (*purposes_of(transition.stage, transition.kind, transition.order), "repair")
    return [view for view in result_views(transition) if view["purpose"] in purposes]


def goto_facts(transition: Transition) -> dict[str, Any]:
    """Return how often a limited edge was tried, and what dynamic checks there were."""
    facts: dict[str, Any] = {}
    if (maximum := transition.max_attempts) is not None:
        used = min(transition.attempt, maximum)
        facts = {"attempts_used": used, "max_attempts": maximum, "attempts_remaining": maximum - used}
        if not transition.exhausted:
            facts["attempt"] = transition.attempt
    return facts | {"dynamic_before_transfer": dynamic_facts(transition)}


def dynamic_facts(transition: Transition) -> dict[str, Any]:
    """Return the dynamic checks of a transition: who registered them, what was evaluated, and what came of it."""
    if transition.dynamic_producers is None:
        return {"configured": False, "results": []}
    return {
        "configured": True,
        "producers": [origin_view(origin) for origin in transition.dynamic_producers],
        "checks_snapshot": [
            {"id": planned.id, **check_view(planned.check), "agent_id": planned.origin.agent_id}
            for planned in transition.plan
            if planned.origin is not None
        ],
        "results": result_views(transition, "dynamic_before_transfer"),
    }


def result_views(transition: Transition, purpose: Purpose | None = None) -> list[dict[str, Any]]:
    """Return the settled results of a transition in the order of its plan, repairs last: all, or those of a purpose."""
    return [
        result_view(planned, transition.results[planned.id])
        for planned in (*transition.plan, *transition.repairs)
        if planned.id in transition.results and purpose in (None, planned.purpose)
    ]


def result_view(planned: PlannedCheck, result: CheckResult) -> dict[str, Any]:
    """Return one result: the check as the runbook has it, and what came of it."""
    outcome = result.outcome
    view = {
        "id": planned.id,
        **check_view(planned.check),
        "purpose": planned.purpose,
        "passed": outcome.passed,
        "continued": not outcome.passed and not planned.check.stops,
        "output": outcome.output,
        "reason": outcome.reason,
        "tier": result.tier,
        "by": result.by,
        "tries": result.tries,
        "duration_ms": outcome.duration_ms,
    }
    if outcome.exit_code is not None:
        view["exit_code"] = outcome.exit_code
    if outcome.signal is not None:
        view["signal"] = outcome.signal
    if outcome.output_bytes:
        view["output_bytes"] = outcome.output_bytes
    if outcome.dropped_bytes:
        view["dropped_bytes"] = outcome.dropped_bytes
    if outcome.survivors:
        view["survivors"] = outcome.survivors
    if result.role:
        view["role"] = result.role
    view |= token_fact(result.token)
    if planned.origin is not None:
        view["registered_by"] = origin_view(planned.origin)
    if planned.repairs:
        view["repairs"] = planned.repairs
    return view


def origin_view(origin: Origin) -> dict[str, Any]:
    """Return who registered dynamic checks."""
    return {"agent_id": origin.agent_id, "role": origin.role, "at": origin.at, **token_fact(origin.token)}


def token_fact(token: str) -> dict[str, Any]:
    """Return the token that spoke for somebody, to stand beside who it was; nothing for who needed none."""
    return {"token": token} if token else {}


def with_token(who: str, token: str) -> str:
    """Return who did something in words, with the token that spoke for them, if one did."""
    return f"{who}, token {token}" if token else who


def current_node(run: Run, runbook: Runbook) -> Node:
    """Return the node on which a run stands; it is in the runbook that the run is bound to."""
    node = runbook.node(run.node)
    assert node is not None, "a run stands on a node of its runbook"
    return node
