"""Making the plan of a transition: every check that it may evaluate, in protocol order, with an id."""

from __future__ import annotations

from msgspec.structs import replace

from statem_dist.protocol.graph import Check, Edge, Evidence, Runbook, Steps
from statem_dist.protocol.model import REPAIRED_PURPOSES, DynamicFacts, PlannedCheck, Purpose, Transition
from statem_dist.protocol.stages import stages_of


def plan_goto(runbook: Runbook, edge: Edge, dynamic: DynamicFacts | None = None) -> tuple[PlannedCheck, ...]:
    """Return the plan of a ``goto`` along an edge, dynamic checks and the target's ``in_hook`` included."""
    source, target = runbook.node(edge.source), runbook.node(edge.target)
    assert source is not None and target is not None, "edges of a validated runbook end at its nodes"
    registered = dynamic.checks if dynamic is not None else ()
    steps: dict[Purpose, Steps] = {
        "before_transfer": source.before_transfer,
        "dynamic_before_transfer": tuple((each.check,) for each in registered),
        "condition": (*edge.condition, *_evidence(edge)),
        "out_hook": source.out_hook,
        "hook": edge.hook,
        "in_hook": target.in_hook,
    }
    ordered = [purpose for stage in stages_of("goto", runbook.order) for purpose in stage.purposes]
    plan = number_steps([(purpose, steps[purpose]) for purpose in ordered])
    origins = iter(registered)
    return tuple(
        replace(planned, origin=next(origins).origin) if planned.purpose == "dynamic_before_transfer" else planned
        for planned in plan
    )


def _evidence(edge: Edge) -> Steps:
    """Return the demand for evidence as the last check of an edge's condition."""
    return () if edge.require_evidence is None else ((Check(do=Evidence(edge.require_evidence)),),)


def plan_in_hook(runbook: Runbook, node: str) -> tuple[PlannedCheck, ...]:
    """Return the plan of a start or a resume: the node's ``in_hook``."""
    found = runbook.node(node)
    return number_steps([("in_hook", found.in_hook if found else ())])


def plan_out_hook(runbook: Runbook, node: str) -> tuple[PlannedCheck, ...]:
    """Return the plan of a save: the node's ``out_hook``."""
    found = runbook.node(node)
    return number_steps([("out_hook", found.out_hook if found else ())])


def plan_repairs(transition: Transition) -> tuple[PlannedCheck, ...]:
    """Return the repairs of every hook that was begun, in their order: the last hook's first.

    A hook counts as begun whatever came of it, and also when nobody knows.
    """
    begun = [each for each in transition.plan if each.purpose in REPAIRED_PURPOSES and _was_begun(transition, each.id)]
    due = [(hook.id, check) for hook in reversed(begun) for check in hook.check.repair]
    return tuple(
        PlannedCheck(id=f"repair.{number}", purpose="repair", step=number, check=check, repairs=hook)
        for number, (hook, check) in enumerate(due)
    )


def _was_begun(transition: Transition, check: str) -> bool:
    return check in transition.results or transition.starts.get(check, 0) > 0 or transition.tries.get(check, 0) > 0


def number_steps(parts: list[tuple[Purpose, Steps]]) -> tuple[PlannedCheck, ...]:
    """Give every check its id (``purpose.index``) and its step, counted through the whole plan."""
    planned: list[PlannedCheck] = []
    step = 0
    for purpose, steps in parts:
        index = 0
        for members in steps:
            for check in members:
                planned.append(PlannedCheck(id=f"{purpose}.{index}", purpose=purpose, step=step, check=check))
                index += 1
            step += 1
    return tuple(planned)
