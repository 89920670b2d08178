"""The state of a run: where it stands, and the transition that it is in.

A ``Run`` is the fold of its events (``evolve``) and is stored as a snapshot of that fold. It holds everything
that a decision needs, so that ``decide`` looks at nothing else: the plan of an open transition is frozen into
it, and neither an edited runbook file nor a later dynamic check changes a transition in flight.

All times are integers: milliseconds since the epoch, by the clock of the store.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

from msgspec import Struct

from statem_dist.protocol.graph import UNCONFINED, Check, Confinement
from statem_dist.protocol.outcome import CheckResult

REQUESTS_KEPT = 16
"""How many request ids a run remembers: more than can be under way at once by one caller."""

SCHEMA = 1
"""Version of the stored form of ``Run`` and of the events; a document with another one is refused."""

Purpose: TypeAlias = Literal[
    "before_transfer", "dynamic_before_transfer", "condition", "out_hook", "hook", "in_hook", "repair"
]
"""Where a check stands in the protocol; checks find it in ``STATEM_PURPOSE``."""

REPAIRED_PURPOSES: frozenset[Purpose] = frozenset({"out_hook", "hook"})
"""Purposes of the hooks that can be repaired: those before the commit, which is never taken back."""

Kind: TypeAlias = Literal["goto", "start", "resume", "save"]
"""What opened a transition. A start and a resume run an ``in_hook``, a save runs an ``out_hook``; they walk the
same protocol as a ``goto`` with fewer stages."""

Settlement: TypeAlias = Literal["committed", "blocked", "cancelled", "error"]
"""How a transition ended. ``error`` means that it could not be evaluated, not that the work was wrong."""

RunStatus: TypeAlias = Literal["active", "moving", "waiting", "outcome_unknown", "paused", "finished", "cancelled"]
"""``moving`` while a transition is open, ``waiting`` if it waits for somebody's decision, ``outcome_unknown`` if nobody
knows what one of its checks did and an operator has to say how to go on; ``paused`` whatever it does when it goes on;
``finished`` on a node without outgoing edges; ``cancelled`` once a run that was cancelled has no open transition any
more."""

OnManual: TypeAlias = Literal["fail", "wait"]
"""What a check that nobody confirmed does: it fails at once, or it waits for a decision."""

UnknownCause: TypeAlias = Literal["worker_lost", "shutdown", "cut_short"]
"""Why nobody knows what a check did: its worker was lost, was stopped, or ended the check for another reason."""

WayOut: TypeAlias = Literal["resume", "abort", "passed", "failed"]
"""How an operator takes a transition out of an unknown outcome: the check is executed again, the transition is given
up, or the operator says what came of the check."""


class Actor(Struct, frozen=True, omit_defaults=True):
    """Who asked for something: an agent id and its role.

    ``token`` is the id of the token that spoke for the caller at the service; empty for who came straight to the store.
    """

    id: str = ""
    role: str = ""
    token: str = ""


class Worker(Struct, frozen=True):
    """Who executes: an identity that is unique per process start, and the queues that it serves."""

    id: str
    queues: tuple[str, ...]


class Confirmations(Struct, frozen=True, omit_defaults=True):
    """What the caller of a ``goto`` confirms: everything that asks (``--yes``), or checks by their plan id.

    ``declined`` maps the plan id of each check that the caller declines to the reason; that wins over ``--yes``.
    """

    everything: bool = False
    checks: tuple[str, ...] = ()
    declined: dict[str, str] = {}

    def cover(self, check_id: str) -> bool:
        """Return whether the check with that plan id was confirmed."""
        return (self.everything or check_id in self.checks) and check_id not in self.declined


class Origin(Struct, frozen=True, omit_defaults=True):
    """Who registered dynamic checks, and when (ms since the epoch); ``token`` as in ``Actor``."""

    agent_id: str
    role: str = ""
    at: int = 0
    token: str = ""


class DynamicCheck(Struct, frozen=True, omit_defaults=True):
    """A check that was registered for one entry, and who did that (nobody for one that the runbook implies)."""

    check: Check
    origin: Origin | None = None


class DynamicFacts(Struct, frozen=True, omit_defaults=True):
    """The dynamic checks of an entry as a transition found them when it opened.

    ``producers`` are all who registered some; ``checks`` those that are to be evaluated.
    """

    producers: tuple[Origin, ...] = ()
    checks: tuple[DynamicCheck, ...] = ()


class PlannedCheck(Struct, frozen=True, omit_defaults=True):
    """One check of a plan. ``id`` is unique in the transition, such as ``before_transfer.0``.

    Checks with the same ``step`` may run side by side; steps run in order. ``repairs`` is the plan id of the hook that
    a repair undoes.
    """

    id: str
    purpose: Purpose
    step: int
    check: Check
    origin: Origin | None = None
    repairs: str = ""


class Unknown(Struct, frozen=True):
    """That a check which must not run twice was begun, and that nobody knows what it did: since when (ms since the
    epoch), which worker had it, and why its outcome did not become known."""

    at: int
    worker: str
    cause: UnknownCause


class Unwinding(Struct, frozen=True, omit_defaults=True):
    """That a transition does not commit and that the hooks which were begun are being repaired.

    ``plan`` holds the repairs in their order, the last hook's first. The other fields say how the transition settles
    once they are through, unless one of them fails.
    """

    at: int
    plan: tuple[PlannedCheck, ...]
    outcome: Settlement
    stage: str | None = None
    reason: str | None = None
    by: Actor = Actor()


class Claim(Struct, frozen=True):
    """A worker's claim on consecutive checks of the plan. ``token`` rises with every claim of a run: it is the
    fencing token, and a result that carries an older one is refused."""

    token: int
    checks: tuple[str, ...]
    worker: str
    at: int


class Transition(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True):
    """One walk through the protocol, from request to settlement.

    ``starts`` counts per check how often its execution was begun, also by workers that died of it; ``tries``
    counts evaluations that ended; ``not_before`` holds back a check that waits for its next try.
    ``awaiting`` maps each check that waits for a decision to when the wait expires (ms since the epoch; 0 never).
    ``unknown`` holds the checks whose outcome nobody knows until an operator says how to go on.
    ``unwinding`` is set while hooks are repaired, and stays afterwards.
    ``dynamic_producers`` is None where the source node accepts no dynamic checks.
    ``confinement`` is the runbook's, frozen with the plan that it holds for.
    ``entered`` is set at the commit, when the run stands on the target.
    """

    id: str
    kind: Kind
    source: str
    target: str
    plan: tuple[PlannedCheck, ...]
    opened_at: int
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
    entered: bool = False
    results: dict[str, CheckResult] = {}
    claims: tuple[Claim, ...] = ()
    token: int = 0
    starts: dict[str, int] = {}
    tries: dict[str, int] = {}
    not_before: dict[str, int] = {}
    awaiting: dict[str, int] = {}
    unknown: dict[str, Unknown] = {}
    unwinding: Unwinding | None = None
    outcome: Settlement | None = None
    stage: str | None = None
    reason: str | None = None
    settled_at: int | None = None

    @property
    def open(self) -> bool:
        """Whether the transition is still under way."""
        return self.outcome is None

    @property
    def exhausted(self) -> bool:
        """Whether this attempt is one more than its edge allows."""
        return self.max_attempts is not None and self.attempt > self.max_attempts

    @property
    def repairs(self) -> tuple[PlannedCheck, ...]:
        """The repairs that have become due, in their order; they are no part of the plan."""
        return self.unwinding.plan if self.unwinding is not None else ()

    def planned(self, check_id: str) -> PlannedCheck | None:
        """Return the planned check or the repair of that id, or None."""
        return next((planned for planned in (*self.plan, *self.repairs) if planned.id == check_id), None)

    def claim(self, token: int) -> Claim | None:
        """Return the live claim with that token, or None."""
        return next((claim for claim in self.claims if claim.token == token), None)

    def claim_on(self, check_id: str) -> Claim | None:
        """Return the live claim that covers a check, or None."""
        return next((claim for claim in self.claims if check_id in claim.checks), None)


class Place(Struct, frozen=True, omit_defaults=True):
    """Where the checks of a run are executed, and with what.

    ``workspace`` is an absolute path on the hosts that serve the run's queue. ``queue`` pins all work of the
    run to one queue. ``env`` is what the run was started with; it reaches every command. ``executor`` is
    ``docker:NAME`` where the run was started to have its commands in that container, whatever the runbook says.
    """

    workspace: str
    spec: str = ""
    state_dir: str = ""
    queue: str | None = None
    env: dict[str, str] = {}
    executor: str = ""


class Paused(Struct, frozen=True, omit_defaults=True):
    """That a run stands still until somebody lets it go on: why, by whom, and since when."""

    at: int
    reason: str = ""
    by: Actor = Actor()


class Ending(Struct, frozen=True, omit_defaults=True):
    """That a run ends for good: why, by whom, since when, and whether what was being executed was ended with it."""

    at: int
    reason: str = ""
    by: Actor = Actor()
    terminated: bool = False


class Run(Struct, frozen=True, omit_defaults=True, forbid_unknown_fields=True, kw_only=True):
    """One execution of a runbook.

    ``version`` is the number of the last event and rises by one with each: it is the optimistic lock, the
    number of the history entry, the ETag and the id in event streams. ``transition`` is the open transition, or
    the last one that settled. ``attempts`` counts tries per target since this entry. ``requests`` maps the ids of
    the last requests that opened a transition to that transition, so that a repeated one is known for what it
    is. ``by`` is who started the run, the agent that later commands mean unless they say otherwise. ``paused`` and
    ``ending`` are set while the run is paused, and once it was cancelled; never both.
    """

    id: str
    runbook: str
    runbook_name: str
    place: Place
    node: str
    entry_id: str
    created_at: int
    updated_at: int
    version: int
    schema: int
    entries: int = 1
    transitions: int = 0
    final: bool = False
    attempts: dict[str, int] = {}
    transition: Transition | None = None
    labels: dict[str, str] = {}
    by: Actor = Actor()
    requests: dict[str, str] = {}
    paused: Paused | None = None
    ending: Ending | None = None

    @property
    def in_flight(self) -> Transition | None:
        """The open transition, or None."""
        return self.transition if self.transition is not None and self.transition.open else None

    @property
    def held(self) -> bool:
        """Whether nothing more is begun: the run is paused, or it was cancelled."""
        return self.paused is not None or self.ending is not None

    @property
    def ended(self) -> bool:
        """Whether nothing more is to come by itself: the run is finished, or cancelled and at rest."""
        return self.status in ("finished", "cancelled")

    @property
    def status(self) -> RunStatus:
        """Where the run is in its life; the status index follows it."""
        if self.paused is not None:
            return "paused"
        if self.in_flight is not None:
            if self.in_flight.unknown:
                return "outcome_unknown"
            return "waiting" if self.in_flight.awaiting else "moving"
        if self.ending is not None:
            return "cancelled"
        return "finished" if self.final else "active"
