"""What a sweep is, as immutable data: its definition, its planned trials, and what came of each attempt at one.

=========  ==================================================================================  ======
state      meaning                                                                             scored
=========  ==================================================================================  ======
pending    not begun, or to be begun again                                                     no
running    a worker has it                                                                     no
passed     the run reached an end that counts as success                                       yes
failed     the run reached another end                                                         yes
stuck      the agent came to no end: out of steps, no progress, or it gave up                  yes
timeout    an agent call, or the whole trial, took too long                                    yes
error      could not be judged: checks, agent command, hook, workspace or workers did not work no
cancelled  ended by somebody, or withdrawn from the sweep                                      no
=========  ==================================================================================  ======

``planned`` is the sum of all states at every read: a trial only ever moves from one state to another, in one script.
An attempt that has ended is never written again; a trial that is tried again gets another attempt.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal, TypeAlias, get_args

from msgspec import Struct

Cell: TypeAlias = dict[str, str]
"""The values of one cell of the matrix by the name of their axis."""

Outcome: TypeAlias = Literal["passed", "failed", "stuck", "timeout", "error", "cancelled"]
State: TypeAlias = Literal["pending", "running", Outcome]
Status: TypeAlias = Literal["planning", "active", "paused", "stopped", "cancelled", "finished"]
"""Of a sweep. ``planning``: its trials are being stored. ``stopped``: a rule of ``stop_when`` has ended it."""

Priority: TypeAlias = Literal["high", "normal", "low"]
AgentMode: TypeAlias = Literal["per_node", "self_driven"]

OUTCOMES: tuple[Outcome, ...] = get_args(Outcome)
STATES: tuple[State, ...] = ("pending", "running", *OUTCOMES)
SCORED: tuple[Outcome, ...] = ("passed", "failed", "stuck", "timeout")
UNSCORED: tuple[Outcome, ...] = ("error", "cancelled")

Reason: TypeAlias = Literal[
    "success_end",
    "failure_end",
    "max_steps",
    "no_progress",
    "agent_gave_up",
    "agent_timeout",
    "trial_timeout",
    "agent_not_started",
    "check_not_evaluated",
    "hook_failed",
    "hook_outcome_unknown",
    "workspace_failed",
    "worker_lost",
    "internal_error",
    "run_cancelled",
    "sweep_cancelled",
    "withdrawn",
]
"""Why a trial ended as it did. The list is closed: retries, scores and exports go by it."""

OUTCOME_OF: Mapping[Reason, Outcome] = {
    "success_end": "passed",
    "failure_end": "failed",
    "max_steps": "stuck",
    "no_progress": "stuck",
    "agent_gave_up": "stuck",
    "agent_timeout": "timeout",
    "trial_timeout": "timeout",
    "agent_not_started": "error",
    "check_not_evaluated": "error",
    "hook_failed": "error",
    "hook_outcome_unknown": "error",
    "workspace_failed": "error",
    "worker_lost": "error",
    "internal_error": "error",
    "run_cancelled": "cancelled",
    "sweep_cancelled": "cancelled",
    "withdrawn": "cancelled",
}
"""The outcome that each reason leads to."""

RETRIED: frozenset[Reason] = frozenset(
    {
        "agent_not_started",
        "check_not_evaluated",
        "hook_failed",
        "hook_outcome_unknown",
        "workspace_failed",
        "worker_lost",
        "internal_error",
    }
)
"""Reasons for which a trial is tried again while its budget of ``retries`` lasts: every ``error``, and nothing else."""


class Share(Struct, frozen=True, omit_defaults=True):
    """A number of trials: absolute, or a percentage of those that are planned. Exactly one is set."""

    count: int | None = None
    percent: float | None = None

    def reached(self, found: int, planned: int) -> bool:
        """Return whether ``found`` trials of ``planned`` are this many or more; a percentage must be exceeded."""
        if self.count is not None:
            return found >= self.count
        assert self.percent is not None
        return found * 100 > self.percent * planned


class StopWhen(Struct, frozen=True, omit_defaults=True):
    """When a sweep begins no more trials. ``failures`` counts every scored trial that has not passed."""

    errors: Share | None = None
    failures: Share | None = None
    cost_usd: float | None = None


class Agent(Struct, frozen=True, omit_defaults=True):
    """What works at the nodes.

    ``run`` is a shell command. ``timeout`` is seconds for one call of it. ``continuations`` is how often a
    self-driven agent that stops before the end is started again. ``pass_env`` names variables that are taken from the
    environment of the worker.
    """

    run: str
    mode: AgentMode = "per_node"
    timeout: float = 3600.0
    continuations: int = 3
    pass_env: tuple[str, ...] = ()


class Workspace(Struct, frozen=True, omit_defaults=True):
    """What a trial's folder holds at its beginning.

    ``template`` is the absolute path of a folder that is copied, ``digest`` what it held when the sweep file was read.
    ``git`` is a URL or an absolute path of a repository, whose ``ref`` (with ``{axis}`` standing for a value of the
    cell) is checked out. Neither: it is empty.
    ``keep`` says whose workspaces stay after the end; agent output, history and artifacts always do.
    """

    template: str | None = None
    digest: str = ""
    git: str | None = None
    ref: str = "HEAD"
    keep: Literal["all", "unless_passed", "none"] = "all"


class Limit(Struct, frozen=True, omit_defaults=True):
    """A limit that all sweeps of the store share by its name.

    ``in_flight`` bounds the trials that run at once, ``per_minute`` those that begin within any 60 seconds. ``when``
    has the values that a cell must have for its trials to need it; empty: all of them do.
    """

    name: str
    in_flight: int | None = None
    per_minute: int | None = None
    when: Cell = {}


class Artifacts(Struct, frozen=True, omit_defaults=True):
    """What of a workspace is kept: files that match ``paths`` (globs), up to so many bytes each and in all."""

    paths: tuple[str, ...] = ()
    file_bytes_max: int = 10 * 1024 * 1024
    total_bytes_max: int = 100 * 1024 * 1024


class Selection(Struct, frozen=True, omit_defaults=True):
    """Which trials of a sweep file were submitted.

    ``only`` has the values that are wanted by axis; a trial must have one of them on each. ``first`` is how many trials
    of each row of the report are wanted. Nothing set: all trials.
    """

    only: dict[str, tuple[str, ...]] = {}
    first: int | None = None

    @property
    def everything(self) -> bool:
        """Whether all trials are wanted."""
        return not self.only and self.first is None


class Definition(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A sweep as it was submitted, with everything that its workers need; paths are absolute.

    ``runbook`` is the hash of the runbook, which is registered in the store. ``axes`` are all axes in order,
    ``listed`` those whose values are listed in the file itself: the rows of its report. ``task_axes`` are the others,
    or all axes where there are no others: what makes a *task* in scores. ``success`` are the ends of the
    runbook that count as passed. ``concurrency`` bounds the trials that run at once (None: as many as there are
    slots; ``concurrency_given``: whoever submitted it gave it, in place of what the file says), ``concurrency_per``
    those that share a value of an axis: axis to value to bound, where the value ``*`` stands for all that are not
    named. ``max_steps`` bounds the steps of a trial, ``trial_timeout`` its seconds from its start, ``retries`` the
    infrastructure troubles that it survives. ``disk_floor_bytes`` is the free space below which a host begins no
    trial. ``selection`` says which of the trials were submitted.
    """

    name: str
    file: str
    folder: str
    runbook: str
    runbook_path: str
    axes: tuple[str, ...]
    listed: tuple[str, ...]
    success: tuple[str, ...]
    trials: int = 1
    seed: int = 0
    agent: Agent | None = None
    workspace: Workspace = Workspace()
    env: dict[str, str] = {}
    vars: dict[str, str] = {}
    concurrency: int | None = None
    concurrency_given: bool = False
    concurrency_per: dict[str, dict[str, int]] = {}
    queue: str = "trials"
    limits: tuple[Limit, ...] = ()
    max_steps: int = 20
    trial_timeout: float | None = None
    retries: int = 2
    stop_when: StopWhen = StopWhen()
    labels: dict[str, str] = {}
    priority: Priority = "normal"
    artifacts: Artifacts = Artifacts()
    disk_floor_bytes: int = 512 * 1024 * 1024
    selection: Selection = Selection()

    @property
    def task_axes(self) -> tuple[str, ...]:
        """The axes whose values together name a task."""
        return tuple(axis for axis in self.axes if axis not in self.listed) or self.axes


class Planned(Struct, frozen=True):
    """One planned trial. ``number`` counts from 1 within its sweep and is never used twice; ``repetition`` counts
    from 1 within the cell."""

    number: int
    cell: Cell
    repetition: int


class Usage(Struct, frozen=True, omit_defaults=True):
    """What agents said they have used, summed over the calls of an attempt."""

    input_tokens: int = 0
    output_tokens: int = 0
    cost_usd: float = 0.0


class Blocked(Struct, frozen=True):
    """How often a check kept an attempt from leaving ``node`` for ``target``."""

    node: str
    target: str
    check: str
    times: int


class Position(Struct, frozen=True, omit_defaults=True):
    """Where a driver stands: on which entry of its run, how often the agent was called there, whether it has answered
    the last call, and how often each node was entered. ``same`` counts how often in a row the entry was blocked in the
    same way, which ``block`` stands for, and ``stops`` how often a self-driven agent has stopped before the end."""

    entry: str = ""
    calls: int = 0
    answered: bool = False
    visits: dict[str, int] = {}
    block: str = ""
    same: int = 0
    stops: int = 0


class Attempt(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One attempt at a trial: one run, in a workspace of its own.

    Times are ms since the epoch by the store's clock, 0 for not yet; ``queued_at`` is when the trial became ready,
    ``started_at`` when a worker began it. ``steps`` counts rounds of agent and edges, ``calls`` those of the agent
    command, ``blocked`` transitions that were blocked, ``loops`` how often the node that was entered most was entered
    again, ``checks`` executions of checks and hooks. ``losses`` counts the workers that were lost under it, and
    ``troubles`` what earlier attempts have used of the budget of ``retries``; ``retried`` says that the next attempt
    followed by itself. ``revision`` is that of the definition it follows. ``folder`` holds what is kept of it, on
    ``host``. ``position`` is where it stood when this was written, for whoever goes on with it.
    """

    number: int
    attempt: int
    run_id: str
    queued_at: int
    started_at: int
    worker: str
    host: str
    folder: str
    revision: int = 1
    ended_at: int = 0
    outcome: Outcome | None = None
    reason: Reason | None = None
    detail: str = ""
    node: str = ""
    steps: int = 0
    calls: int = 0
    blocked: int = 0
    loops: int = 0
    checks: int = 0
    losses: int = 0
    troubles: int = 0
    retried: bool = False
    blocks: tuple[Blocked, ...] = ()
    usage: Usage | None = None
    position: Position | None = None

    @property
    def seconds(self) -> float:
        """How long it took from its start; 0 while it runs."""
        return (self.ended_at - self.started_at) / 1000 if self.ended_at else 0.0

    @property
    def queued_seconds(self) -> float:
        """How long the trial waited for a slot."""
        return (self.started_at - self.queued_at) / 1000


class Trial(Struct, frozen=True):
    """A planned trial as it stands: its state, and its attempts, oldest first."""

    planned: Planned
    state: State
    attempts: tuple[Attempt, ...] = ()

    @property
    def last(self) -> Attempt | None:
        """The latest attempt; it decides the state."""
        return self.attempts[-1] if self.attempts else None


class Sweep(Struct, frozen=True, kw_only=True):
    """A stored sweep as it is now.

    ``counts`` has every state. ``status_reason`` says why it is not active; ``held`` maps hosts to why they begin no
    trial now. Times are ms since the epoch. ``revision`` rises when the definition is changed.
    """

    id: str
    definition: Definition
    status: Status
    counts: dict[State, int]
    created_at: int
    created_by: str
    ended_at: int = 0
    status_reason: str = ""
    revision: int = 1
    usage: Usage = Usage()
    held: dict[str, str] = {}

    @property
    def planned(self) -> int:
        """How many trials there are."""
        return sum(self.counts.values())

    @property
    def ended(self) -> int:
        """How many of them have ended."""
        return sum(self.counts[state] for state in OUTCOMES)

    @property
    def scored(self) -> int:
        """How many of them have been judged."""
        return sum(self.counts[state] for state in SCORED)

    @property
    def complete(self) -> bool:
        """Whether every planned trial has been judged."""
        return self.scored == self.planned


def values_of(cell: Cell) -> str:
    """Return the values of a cell as people write them."""
    return ", ".join(f"{name}={value}" for name, value in cell.items())


def row_of(cell: Cell, axes: tuple[str, ...]) -> tuple[str, ...]:
    """Return the values of a cell on some axes; a missing one is empty."""
    return tuple(cell.get(axis, "") for axis in axes)


def variable_of(axis: str) -> str:
    """Return the environment variable that carries the value of an axis, or of one of ``vars``."""
    return f"STATEM_VAR_{axis.upper().replace('-', '_')}"
