"""What the service answers, as values. A field that a newer service adds is passed over; none is renamed or removed.

Times are milliseconds since the epoch, unless they are ISO 8601 texts (``ts``).
"""

from __future__ import annotations

from typing import Any, Generic, Literal, TypeAlias, TypeVar

from msgspec import Struct, field

from statem_dist.protocol.model import RunStatus
from statem_dist.roles import Role

Outcome: TypeAlias = Literal["committed", "blocked", "cancelled", "error", "pending"]

Item = TypeVar("Item")


class Page(Struct, Generic[Item], frozen=True):
    """Some items of a list, and the cursor of the next page; None if this is the last one."""

    items: tuple[Item, ...]
    next_cursor: str | None = None


class CheckView(Struct, frozen=True):
    """What came of one check. ``tier`` says what its word is worth, ``by`` whose it is."""

    id: str
    type: str
    purpose: str
    passed: bool
    continued: bool = False
    output: str = ""
    reason: str = ""
    tier: str = ""
    by: str = ""
    name: str | None = None
    tries: int = 1
    duration_ms: int = 0
    exit_code: int | None = None


class UnknownView(Struct, frozen=True):
    """A check of unknown outcome: since when (ms since the epoch), whose it was, and what became of that worker."""

    check: str
    since: int
    worker: str = ""
    cause: str = ""


class TransitionView(Struct, frozen=True):
    """What has come of a transition so far. ``results`` are those of the stage that decided, or all.

    ``moved`` says that it has committed and everything after that has passed. ``decisions`` are the ids of what it
    waits for people to decide, if it waits for nothing else. ``outcome_unknown`` are the checks that nobody knows the
    outcome of, until an operator says how to go on.
    """

    run_id: str
    transition: str
    outcome: Outcome
    current: str
    current_entry_id: str
    version: int
    source: str = field(name="from")
    target: str = field(name="to")
    moved: bool = field(name="ok", default=False)
    stage: str | None = None
    reason: str = ""
    waiting_reason: str = ""
    decisions: tuple[str, ...] = ()
    outcome_unknown: tuple[UnknownView, ...] = ()
    attempts_used: int | None = None
    max_attempts: int | None = None
    attempts_remaining: int | None = None
    results: tuple[CheckView, ...] = ()

    @property
    def committed(self) -> bool:
        """Whether the run has moved (a save: whether it was done)."""
        return self.outcome == "committed"

    @property
    def blocked(self) -> bool:
        """Whether a check kept the run where it was."""
        return self.outcome == "blocked"

    @property
    def pending(self) -> bool:
        """Whether it is still under way."""
        return self.outcome == "pending"

    @property
    def waits_for_people(self) -> bool:
        """Whether nothing goes on before somebody decides, or an operator recovers it."""
        return bool(self.decisions or self.outcome_unknown)


class EdgeView(Struct, frozen=True):
    """A way out of a node, with its conditions as the runbook has them."""

    target: str = field(name="to")
    condition: tuple[dict[str, Any], ...] = ()
    hook: tuple[dict[str, Any], ...] = ()
    max_attempts: int | None = None
    attempts_used: int | None = None
    require_evidence: str | None = None


class OpenTransition(Struct, frozen=True):
    """Which transition is under way, and how far it is."""

    transition: str
    kind: str
    source: str = field(name="from")
    target: str = field(name="to")
    settled: int = 0
    planned: int = 0
    waiting_reason: str = ""
    outcome_unknown: tuple[UnknownView, ...] = ()


class Steered(Struct, frozen=True):
    """Who paused or cancelled a run, why, and since when."""

    at: int
    by: str = ""
    reason: str = ""
    terminated: bool = False


class RunView(Struct, frozen=True):
    """Where a run stands. ``transition`` is what the call has led to, where it has led to one."""

    run_id: str
    status: RunStatus
    version: int
    current: str
    current_entry_id: str
    spec_name: str
    spec_hash: str
    prompt: str = ""
    spec: str = ""
    next: tuple[EdgeView, ...] = ()
    in_hook: tuple[dict[str, Any], ...] = ()
    before_transfer: tuple[dict[str, Any], ...] = ()
    out_hook: tuple[dict[str, Any], ...] = ()
    dynamic_before_transfer: dict[str, Any] | None = None
    in_flight: OpenTransition | None = None
    paused: Steered | None = None
    ending: Steered | None = None
    last_attempt: dict[str, Any] | None = None
    waiting_reason: str = ""
    labels: dict[str, str] = {}
    created_at: int = 0
    updated_at: int = 0
    workspace: str = ""
    queue: str | None = None
    transition: TransitionView | None = None

    @property
    def ended(self) -> bool:
        """Whether nothing more is to come by itself."""
        return self.status in ("finished", "cancelled")

    @property
    def targets(self) -> tuple[str, ...]:
        """Where the run may go from here."""
        return tuple(edge.target for edge in self.next)


class RunSummary(Struct, frozen=True):
    """A run in a line."""

    run_id: str
    spec_name: str
    status: RunStatus
    current: str
    version: int
    created_at: int
    updated_at: int
    labels: dict[str, str] = {}
    in_flight: OpenTransition | None = None


class Started(Struct, frozen=True):
    """The answer to one run of a bulk request: the run, or the problem that kept it from being started."""

    run: RunSummary | None = None
    created: bool = False
    problem: dict[str, Any] | None = None


class Bulk(Struct, frozen=True):
    """The answers to a bulk request, in its order."""

    items: tuple[Started, ...]
    created: int
    failed: int


class RunbookView(Struct, frozen=True):
    """The outline of a runbook. Of a registered one also who registered it and when, and its text if that was asked."""

    name: str
    hash: str
    initial: str
    nodes: tuple[str, ...]
    edges: tuple[dict[str, Any], ...]
    warnings: tuple[str, ...] = ()
    registered_at: int = 0
    by: str = ""
    current: bool = False
    text: str = ""


class RegistrationView(Struct, frozen=True):
    """A version of a runbook that was registered; ``current`` says that its name stands for it."""

    name: str
    hash: str
    registered_at: int
    by: str = ""
    current: bool = False


class HistoryView(Struct, frozen=True):
    """Entries of a run's history, oldest first."""

    run_id: str
    current: str
    version: int
    history: tuple[dict[str, Any], ...]
    in_flight: OpenTransition | None = None


class GraphView(Struct, frozen=True):
    """The graph of a run's runbook, with marks where the run stands and where it was."""

    run_id: str
    current: str
    name: str
    hash: str
    initial: str
    nodes: tuple[dict[str, Any], ...]
    edges: tuple[dict[str, Any], ...]


class EventView(Struct, frozen=True):
    """One event of a run: its number, when it was, what happened (``event``), and its own fields."""

    number: int
    ts: str
    event: str
    fields: dict[str, Any] = {}


class CommitView(Struct, frozen=True):
    """One commit of the feed. ``position`` is where to go on; a ``gap`` says that some were missed before it."""

    position: str
    run_id: str = ""
    labels: dict[str, str] = {}
    events: tuple[EventView, ...] = ()
    gap: bool = False


class DecisionView(Struct, frozen=True):
    """A check that waits for somebody's decision, until ``expires_at`` (None: for ever)."""

    id: str
    run_id: str
    transition: str
    check: str
    question: str
    source: str = field(name="from")
    target: str = field(name="to")
    entry_id: str = ""
    spec_hash: str = ""
    requested_by: str = ""
    requested_at: int = 0
    expires_at: int | None = None
    operator: bool = False


class QuestionView(Struct, frozen=True):
    """A check that a transition would ask somebody to confirm; ``operator``: only an operator's decision settles it."""

    check: str
    name: str
    text: str
    operator: bool


class DynamicView(Struct, frozen=True):
    """What one agent has registered for the current entry."""

    producer: dict[str, Any]
    checks: int
    items: tuple[dict[str, Any], ...] = ()
    path: str = ""
    error: str = ""
    warnings: tuple[str, ...] = ()


class TokenView(Struct, frozen=True):
    """A token without its text."""

    id: str
    name: str
    role: Role
    labels: dict[str, str]
    state: str
    created_at: int
    created_by: str
    expires_at: int | None = None
    revoked_at: int | None = None
    revoked_by: str | None = None


class NewToken(TokenView, frozen=True, kw_only=True):
    """A token that was just made, with its text, which nobody sees again and no representation shows."""

    token: str

    def __repr__(self) -> str:
        return f"NewToken(id={self.id!r}, role={self.role!r})"


class Me(Struct, frozen=True):
    """Who is calling: the name and role of the token, its id, and the labels of the runs that it reaches."""

    name: str
    role: Role
    labels: dict[str, str] = {}
    token: str = ""


class Readiness(Struct, frozen=True):
    """Whether the service can do its work, and what was looked at."""

    ok: bool
    checks: tuple[dict[str, Any], ...] = ()
