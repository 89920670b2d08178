"""What happened to a run, in the past tense. Events are the truth; everything else is a fold of them.

Each event is one entry of the run's stream and raises its version by one. ``at`` is milliseconds since the
epoch by the clock of the store; order never depends on it.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Struct

from statem_dist.protocol.graph import UNCONFINED, Confinement
from statem_dist.protocol.model import (
    Actor,
    Confirmations,
    Kind,
    OnManual,
    Origin,
    Place,
    PlannedCheck,
    Settlement,
    UnknownCause,
    WayOut,
)
from statem_dist.protocol.outcome import CheckResult, Outcome


class RunCreated(Struct, frozen=True, tag_field="event", tag="run_created", omit_defaults=True):
    """A run began on the initial node of its runbook."""

    at: int
    run_id: str
    runbook: str
    runbook_name: str
    node: str
    entry_id: str
    place: Place
    by: Actor = Actor()
    final: bool = False
    labels: dict[str, str] = {}


class RunImported(Struct, frozen=True, tag_field="event", tag="run_imported", omit_defaults=True):
    """A run that StateM began goes on here, where it stood.

    ``history`` holds its entries as StateM wrote them, oldest first; ``left_out`` counts those that were not
    taken along. ``recorded_hash`` is that of the runbook that StateM followed last, ``source`` where all
    this was read.
    """

    at: int
    run_id: str
    runbook: str
    runbook_name: str
    node: str
    entry_id: str
    place: Place
    created_at: int
    by: Actor = Actor()
    final: bool = False
    attempts: dict[str, int] = {}
    history: tuple[dict[str, Any], ...] = ()
    left_out: int = 0
    recorded_hash: str = ""
    source: str = ""


class RunRebound(Struct, frozen=True, tag_field="event", tag="run_rebound", omit_defaults=True):
    """A run follows another version of its runbook from here on.

    ``migrated_from`` names the node it stood on when the new version no longer has that node; the run then
    begins a new entry on ``node``, the initial one.
    """

    at: int
    runbook: str
    runbook_name: str
    node: str
    entry_id: str
    by: Actor = Actor()
    previous: str = ""
    migrated_from: str | None = None
    final: bool = False


class RunRestarted(Struct, frozen=True, tag_field="event", tag="run_restarted", omit_defaults=True):
    """A run begins anew under its id, on the initial node of a runbook; ``previous`` is the hash of the one before.

    Its history goes on, and so do the numbers of its events, transitions and entries; its labels stay.
    """

    at: int
    runbook: str
    runbook_name: str
    node: str
    entry_id: str
    place: Place
    by: Actor = Actor()
    previous: str = ""
    final: bool = False


class RunPaused(Struct, frozen=True, tag_field="event", tag="run_paused", omit_defaults=True):
    """A run stands still from here on: what is being executed may end, and nothing more is begun."""

    at: int
    reason: str = ""
    by: Actor = Actor()


class RunUnpaused(Struct, frozen=True, tag_field="event", tag="run_unpaused", omit_defaults=True):
    """A paused run goes on."""

    at: int
    by: Actor = Actor()


class RunCancelled(Struct, frozen=True, tag_field="event", tag="run_cancelled", omit_defaults=True):
    """A run is to end for good; nobody is waited for any more. It comes a second time if the end is hastened.

    ``terminated`` says that what is being executed is ended too, instead of being waited for.
    """

    at: int
    reason: str = ""
    by: Actor = Actor()
    terminated: bool = False


class TransitionOpened(Struct, frozen=True, tag_field="event", tag="transition_opened", omit_defaults=True):
    """A transition was accepted; its plan is fixed from here on."""

    at: int
    transition: str
    kind: Kind
    source: str
    target: str
    plan: tuple[PlannedCheck, ...]
    order: str = "guards_first"
    by: Actor = Actor()
    request_id: str = ""
    confirmations: Confirmations = Confirmations()
    attempt: int = 1
    max_attempts: int | None = None
    final: bool = False
    skip_hooks: bool = False
    on_manual: OnManual = "fail"
    dynamic_producers: tuple[Origin, ...] | None = None
    confinement: Confinement = UNCONFINED


class WorkClaimed(Struct, frozen=True, tag_field="event", tag="work_claimed"):
    """A worker took consecutive checks; the first of them is begun."""

    at: int
    transition: str
    token: int
    checks: tuple[str, ...]
    worker: str


class CheckSettled(Struct, frozen=True, tag_field="event", tag="check_settled"):
    """A check has its final result in this transition."""

    at: int
    transition: str
    check: str
    result: CheckResult


class CheckRetrying(Struct, frozen=True, tag_field="event", tag="check_retrying"):
    """A check will be tried again, not before ``not_before``; ``outcome`` is what the last try gave."""

    at: int
    transition: str
    check: str
    tries: int
    not_before: int
    outcome: Outcome


class DecisionRequested(Struct, frozen=True, tag_field="event", tag="decision_requested"):
    """A check waits for somebody's decision, until ``expires_at`` (ms since the epoch; 0 means for ever)."""

    at: int
    transition: str
    check: str
    expires_at: int


class WorkReturned(Struct, frozen=True, tag_field="event", tag="work_returned"):
    """A claim ended before its checks did, because its worker stops or the run is held; that costs no attempt."""

    at: int
    transition: str
    token: int


class WorkLost(Struct, frozen=True, tag_field="event", tag="work_lost"):
    """The lease of a claim ran out: its worker is presumed dead."""

    at: int
    transition: str
    token: int


class OutcomeUnknown(Struct, frozen=True, tag_field="event", tag="outcome_unknown"):
    """Nobody knows what a check did that must not run twice: the transition stands until an operator says how to go on.

    Whatever its worker had claimed with it is released.
    """

    at: int
    transition: str
    check: str
    worker: str
    cause: UnknownCause


class Recovered(Struct, frozen=True, tag_field="event", tag="recovered", omit_defaults=True):
    """An operator took a transition out of an unknown outcome: how, for which checks, and why."""

    at: int
    transition: str
    way: WayOut
    checks: tuple[str, ...]
    reason: str = ""
    by: Actor = Actor()


class RepairBegun(Struct, frozen=True, tag_field="event", tag="repair_begun", omit_defaults=True):
    """A transition does not commit: the hooks that were begun are repaired, in this order, before it settles.

    ``outcome``, ``stage``, ``reason`` and ``by`` are those of the ``TransitionSettled`` that follows when all is well.
    What else was claimed is released; a hook that is being executed may end first.
    """

    at: int
    transition: str
    plan: tuple[PlannedCheck, ...]
    outcome: Settlement
    stage: str | None = None
    reason: str | None = None
    by: Actor = Actor()


class NodeEntered(Struct, frozen=True, tag_field="event", tag="node_entered", omit_defaults=True):
    """The commit: the run stands on the target, with a new entry."""

    at: int
    transition: str
    node: str
    entry_id: str
    final: bool = False


class TransitionSettled(Struct, frozen=True, tag_field="event", tag="transition_settled", omit_defaults=True):
    """A transition ended. ``stage`` names where it was stopped, or where a committed one failed afterwards.

    ``by`` is who cancelled it, or the run; nobody for one that ended by itself.
    """

    at: int
    transition: str
    outcome: Settlement
    stage: str | None = None
    reason: str | None = None
    by: Actor = Actor()


Event: TypeAlias = (
    RunCreated
    | RunImported
    | RunRebound
    | RunRestarted
    | RunPaused
    | RunUnpaused
    | RunCancelled
    | TransitionOpened
    | WorkClaimed
    | CheckSettled
    | CheckRetrying
    | DecisionRequested
    | WorkReturned
    | WorkLost
    | OutcomeUnknown
    | Recovered
    | RepairBegun
    | NodeEntered
    | TransitionSettled
)
