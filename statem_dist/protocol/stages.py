"""The rules of a transition, as data.

A ``goto`` walks the stages of one of two tables, in order. In a *gate* every check is evaluated, also after a
failure, so that whoever asked sees every unmet condition at once; if a stopping check failed, the transition
is blocked when the gate is through. In an *effect* checks have consequences outside the run, so the first
stopping failure ends the stage. ``COMMIT`` is the moment at which the run moves: everything before it can
block the transition, what comes after it (the target's ``in_hook``) can only be reported.

=================  ==========================================================================================
``guards_first``   gates (``before_transfer``, dynamic checks, ``condition``), ``out_hook``, ``hook``, commit,
                   ``in_hook``. The order of StateM's runbook command line.
``persist_first``  ``before_transfer`` and dynamic checks, ``out_hook``, ``condition``, ``hook``, commit,
                   ``in_hook``. The order of the theory of checked transitions, in which progress is persisted
                   before the edge is judged.
=================  ==========================================================================================

A start and a resume walk ``in_hook`` alone, a save walks ``out_hook`` alone.
"""

from __future__ import annotations

from collections.abc import Iterable

from msgspec import Struct

from statem_dist.protocol.model import Kind, Purpose


class Stage(Struct, frozen=True):
    """One stage: the purposes whose checks belong to it, and whether all of them are evaluated.

    ``name`` is the ``stage`` of a transition that it stopped. As in StateM, a condition that is judged together
    with ``before_transfer`` goes by that name, an edge's hook by that of the ``out_hook``, and failed dynamic
    checks give their own name to the gate that they stand in.
    """

    name: str
    purposes: tuple[Purpose, ...]
    evaluate_all: bool

    def report(self, failed: Iterable[Purpose]) -> str:
        """Return the name under which failures of these purposes are reported."""
        return "dynamic_before_transfer" if "dynamic_before_transfer" in failed else self.name


COMMIT = Stage(name="commit", purposes=(), evaluate_all=True)
"""The point of no return; it holds no checks."""

OUT_HOOK = Stage(name="out_hook", purposes=("out_hook",), evaluate_all=False)
EDGE_HOOK = Stage(name="out_hook", purposes=("hook",), evaluate_all=False)
IN_HOOK = Stage(name="in_hook", purposes=("in_hook",), evaluate_all=False)

GOTO_STAGES: dict[str, tuple[Stage, ...]] = {
    "guards_first": (
        Stage(
            name="before_transfer",
            purposes=("before_transfer", "dynamic_before_transfer", "condition"),
            evaluate_all=True,
        ),
        OUT_HOOK,
        EDGE_HOOK,
        COMMIT,
        IN_HOOK,
    ),
    "persist_first": (
        Stage(name="before_transfer", purposes=("before_transfer", "dynamic_before_transfer"), evaluate_all=True),
        OUT_HOOK,
        Stage(name="condition", purposes=("condition",), evaluate_all=True),
        EDGE_HOOK,
        COMMIT,
        IN_HOOK,
    ),
}

HOOK_PURPOSES: frozenset[Purpose] = frozenset({"out_hook", "hook", "in_hook"})
"""Purposes whose commands are run for their effect: at most once, unless marked ``idempotent: true``."""


def purposes_of(stage: str | None, kind: Kind, order: str) -> tuple[Purpose, ...]:
    """Return the purposes whose checks a stopped transition is judged by; all of them for another stage."""
    found = [each for each in stages_of(kind, order) if stage is not None and each.report(()) == _gate_of(stage)]
    stopped = tuple(purpose for each in found for purpose in each.purposes)
    return stopped or tuple(purpose for each in stages_of(kind, order) for purpose in each.purposes)


def _gate_of(stage: str) -> str:
    return "before_transfer" if stage == "dynamic_before_transfer" else stage


def stages_of(kind: Kind, order: str) -> tuple[Stage, ...]:
    """Return the stages that a transition of that kind walks, in order."""
    match kind:
        case "goto":
            return GOTO_STAGES[order]
        case "start" | "resume":
            return (IN_HOOK,)
        case "save":
            return (OUT_HOOK,)
