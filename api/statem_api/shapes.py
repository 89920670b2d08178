"""What answers look like, for the OpenAPI document. Fields may be added to an answer, none is renamed or removed."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

RunStatusName = Literal["active", "moving", "waiting", "outcome_unknown", "paused", "finished", "cancelled"]


class Shape(BaseModel):
    """What all answers share: more fields may come."""

    model_config = ConfigDict(extra="allow")


class Problem(Shape):
    """What went wrong (RFC 9457)."""

    type: str = Field(examples=["/problems/unknown_target"])
    title: str
    status: int
    code: str = Field(examples=["unknown_target"])
    detail: str
    hint: str | None = None
    instance: str | None = None
    request_id: str | None = None
    errors: list[dict[str, Any]] | None = None
    allowed: list[str] | None = None


class CheckResult(Shape):
    """What came of one check."""

    id: str = Field(examples=["before_transfer.0"])
    type: str
    purpose: str
    passed: bool
    output: str
    reason: str
    tier: Literal["verified", "decision", "attestation", "judgment"]
    by: str


class Transition(Shape):
    """What came of a transition; `outcome` is `pending` while it is open.

    `decisions` are the ids of what it waits for people to decide, if it waits for nothing else. `outcome_unknown` are
    the checks that nobody knows the outcome of, until an operator says how to go on.
    """

    ok: bool
    run_id: str
    current: str
    current_entry_id: str
    transition: str
    outcome: Literal["committed", "blocked", "cancelled", "error", "pending"]
    stage: str | None
    results: list[CheckResult]
    waiting_reason: str | None = None
    decisions: list[str] | None = None
    outcome_unknown: list[dict[str, Any]] | None = None
    version: int


class Edge(Shape):
    """A way out of a node."""

    to: str


class Run(Shape):
    """Where a run stands."""

    ok: bool
    run_id: str
    status: RunStatusName
    version: int
    current: str
    current_entry_id: str
    prompt: str
    next: list[dict[str, Any]]
    labels: dict[str, str]
    spec_name: str
    spec_hash: str
    in_flight: dict[str, Any] | None
    paused: dict[str, Any] | None = None
    ending: dict[str, Any] | None = None
    by: dict[str, Any]
    created_at: int
    updated_at: int
    workspace: str
    queue: str | None
    transition: Transition | None = None
    warnings: list[str] | None = None
    waiting_reason: str | None = None


class RunSummary(Shape):
    """A run in a line."""

    run_id: str
    spec_name: str
    status: RunStatusName
    current: str
    version: int
    labels: dict[str, str]
    created_at: int
    updated_at: int


class RunPage(Shape):
    """A page of runs, newest first. It may hold fewer than asked for and still have a next one."""

    items: list[RunSummary]
    next_cursor: str | None


class RunsCreated(Shape):
    """The answer to each run of a bulk request, in their order: a `run`, or a `problem`."""

    items: list[dict[str, Any]]
    created: int
    failed: int


class Runbook(Shape):
    """A runbook."""

    name: str
    hash: str
    initial: str
    nodes: list[str]
    edges: list[dict[str, Any]]
    warnings: list[str] | None = None


class Registration(Shape):
    """One registered version of a runbook; `current` says that its name stands for it."""

    name: str
    hash: str
    registered_at: int
    by: str
    current: bool


class RunbookList(Shape):
    """The registered runbooks."""

    items: list[Registration]


class Exit(Shape):
    """A way out of a node, with its checks and what is left of its attempts."""

    to: str


class ExitList(Shape):
    """The ways out of the current node."""

    run_id: str
    current: str
    items: list[Exit]


class Question(Shape):
    """A check that asks for a confirmation; `operator` says that it takes an operator's decision."""

    check: str
    name: str
    text: str
    operator: bool


class QuestionList(Shape):
    """What a transition would ask."""

    run_id: str
    current: str
    current_entry_id: str
    items: list[Question]


class Backing(Shape):
    """What stood behind one transition: the checks of each kind of evidence, and the strongest kind."""

    transition: str
    number: int
    ts: str
    source: str = Field(alias="from")
    to: str
    by: str
    strongest: str | None


class BackingList(Shape):
    """What stood behind the transitions of a run."""

    run_id: str
    current: str
    items: list[Backing]


class Items(Shape):
    """A list."""

    items: list[dict[str, Any]]


class EventPage(Shape):
    """Events of a run, oldest first; `next_after` is where to go on."""

    items: list[dict[str, Any]]
    next_after: int
    version: int


class HistoryPage(Shape):
    """Entries of a run's history, oldest first."""

    run_id: str
    current: str
    version: int
    history: list[dict[str, Any]]


class Text(Shape):
    """A text for an agent."""

    run_id: str
    prompt: str


class Graph(Shape):
    """A graph, and where a run stands in it."""

    nodes: list[dict[str, Any]]
    edges: list[dict[str, Any]]


class NodeShape(Shape):
    """One node with its exits."""

    node: str
    next: list[dict[str, Any]]


class Log(Shape):
    """The longer output of a check."""

    text: str


class Token(Shape):
    """A token without its text; times that never come are null."""

    id: str
    name: str
    role: str
    labels: dict[str, str]
    state: Literal["live", "expired", "revoked"]
    created_at: int
    created_by: str
    expires_at: int | None
    revoked_at: int | None
    revoked_by: str | None


class TokenMade(Token):
    """A token; `token` is its text, which nobody sees again."""

    token: str


class TokenList(Shape):
    """Tokens, newest first."""

    items: list[Token]


class Me(Shape):
    """Who is calling."""

    name: str
    role: str
    labels: dict[str, str]
    token: str


SweepStatusName = Literal["planning", "active", "paused", "stopped", "cancelled", "finished"]
TrialStateName = Literal["pending", "running", "passed", "failed", "stuck", "timeout", "error", "cancelled"]


class SweepSummary(Shape):
    """A sweep in a line. `planned` is the sum of `counts`; `complete` says that every planned trial has been judged."""

    sweep: str
    name: str
    status: SweepStatusName
    reason: str
    planned: int
    ended: int
    scored: int
    complete: bool
    counts: dict[str, int]
    labels: dict[str, str]
    held: dict[str, str]
    usage: dict[str, Any]
    created_at: str
    created_by: str
    ended_at: str | None


class SweepPage(Shape):
    """A page of sweeps, newest first. It may hold fewer than asked for and still have a next one."""

    items: list[SweepSummary]
    next_cursor: str | None


class Sweep(SweepSummary):
    """Where a sweep stands. `bounds` says how many of its slots are in use, `obstacles` what holds it back."""

    bounds: dict[str, Any]
    obstacles: list[str]
    definition: dict[str, Any]


class SweepSubmitted(Sweep):
    """A sweep that was submitted; `fresh` says that it was made now."""

    fresh: bool


class SweepResumed(Sweep):
    """A sweep that goes on: its status before, what its file has changed, and how many trials that has added."""

    before: str
    differences: list[str]
    added: int
    withdrawn: int


class SweepExtended(Sweep):
    """A sweep that has more trials: `added` says how many."""

    added: int


class SweepRetried(Sweep):
    """A sweep with trials that wait again: how many by the outcome that they had; `left` were asked for in vain."""

    dry_run: bool
    retried: int
    retried_by_outcome: dict[str, int]
    left: list[int]


class SweepRemoved(Shape):
    """A sweep that is gone; `folder` is the one on the service's host that went with it."""

    sweep: str
    removed: bool
    folder: str | None


class TrialRow(Shape):
    """A trial as it stands: what is known of the attempt that it is in the midst of, or has ended with."""

    sweep: str
    number: int
    values: dict[str, str]
    repetition: int
    state: TrialStateName
    scored: bool
    attempts: int
    reason: str | None
    detail: str | None
    node: str | None
    run_id: str | None
    host: str | None
    seconds: float | None
    cost_usd: float


class TrialPage(Shape):
    """Trials in the order of their numbers. It may hold fewer than asked for and still have a next one."""

    items: list[TrialRow]
    next_cursor: str | None


class Attempt(Shape):
    """One attempt at a trial; `links` lead to its run."""

    attempt: int
    outcome: str | None
    reason: str | None
    run_id: str
    links: dict[str, str]


class Trial(Shape):
    """A trial, and all attempts at it, oldest first."""

    trial: TrialRow
    attempts: list[Attempt]


class Health(Shape):
    """Whether the service can do its work; `checks` says what was looked at."""

    ok: bool
    checks: list[dict[str, Any]] | None = None


class Document(Shape):
    """A stored document as it is, for programs of the same version."""

    schema_: int | None = Field(None, alias="schema")
