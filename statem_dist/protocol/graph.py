"""What a runbook says, as immutable data: nodes, edges and the checks that stand on them.

This is the innermost vocabulary of the project. ``statem_dist.runbook`` builds it from YAML or JSON,
``statem_dist.protocol`` walks it, ``statem_dist.checks`` executes its checks. Every value is a frozen
``msgspec.Struct``: cheap to import, compared by value, and encoded to JSON without a schema of its own.

A list of checks (``before_transfer``, a condition, a hook) is a tuple of *steps*. Steps run one after
another, because real lists are pipelines whose later checks read files that earlier ones wrote. A step
is itself a tuple: one check, or several that may run side by side (``parallel:``).
"""

from __future__ import annotations

from typing import Any, Literal, TypeAlias

from msgspec import UNSET, Struct, UnsetType

OnFailure: TypeAlias = Literal["block", "continue"]
StageOrder: TypeAlias = Literal["guards_first", "persist_first"]
EvidenceTier: TypeAlias = Literal["verified", "decision", "attestation", "judgment"]
DecidedBy: TypeAlias = Literal["anyone", "operator"]
RetryOn: TypeAlias = Literal["infrastructure", "failed", "timed_out"]
EndOutcome: TypeAlias = Literal["success", "failure"]

CHECK_TYPES = ("manual", "checklist", "command", "predicate", "llm_review", "message")
"""Every check type a runbook may name, in the order in which error messages list them."""


Shell: TypeAlias = Literal["sh", "bash"]
"""What executes the text of a command."""


class Command(Struct, frozen=True, tag_field="type", tag="command", omit_defaults=True):
    """A shell command (``/bin/sh -c``); it passes when its exit status is 0.

    With ``shell`` ``bash`` it is one for ``bash -o pipefail -c``: a pipe then fails with any of its commands.
    """

    run: str
    shell: Shell = "sh"


class Predicate(Struct, frozen=True, tag_field="type", tag="predicate", omit_defaults=True):
    """A declarative test of one file; every condition that is given must hold.

    ``equals`` and ``one_of`` compare the value that ``json_path`` (dots, list indices) leads to.
    """

    path: str
    exists: bool | None = None
    non_empty: bool | None = None
    contains: str | None = None
    not_contains: str | None = None
    matches: str | None = None
    json_path: str | None = None
    equals: Any | UnsetType = UNSET
    one_of: tuple[Any, ...] | None = None


class Manual(Struct, frozen=True, tag_field="type", tag="manual"):
    """An explicit confirmation by a person or an operator."""

    text: str


class Checklist(Struct, frozen=True, tag_field="type", tag="checklist", omit_defaults=True):
    """Obligations that the agent acknowledges as a whole."""

    items: tuple[str, ...]
    text: str = ""


class Message(Struct, frozen=True, tag_field="type", tag="message"):
    """Guidance that is shown and always passes."""

    text: str


class LlmReview(Struct, frozen=True, tag_field="type", tag="llm_review", omit_defaults=True):
    """A qualitative judgment by an external command that reads its brief on standard input.

    ``run`` is None when the command is the host's ``STATEM_LLM_REVIEW_CMD``. It passes when the exit status
    is 0, every ``accept_*`` is found in the output and no ``reject_*`` is.
    """

    prompt: str
    run: str | None = None
    stdin: bool = True
    accept_contains: str | None = None
    accept_regex: str | None = None
    reject_contains: str | None = None
    reject_regex: str | None = None


class Unmet(Struct, frozen=True, tag_field="type", tag="unmet"):
    """A condition that is known to be unmet when a transition opens, such as missing dynamic checks."""

    text: str


class Evidence(Struct, frozen=True, tag_field="type", tag="evidence"):
    """A demand of an edge (``require_evidence``): a blocking check of that tier must have passed before it.

    What the agent confirmed itself does not count as somebody's decision.
    """

    tier: EvidenceTier


Work: TypeAlias = Command | Predicate | Manual | Checklist | Message | LlmReview | Unmet | Evidence


class Retry(Struct, frozen=True, omit_defaults=True):
    """When and how often a check is tried again. The words are those of Temporal's retry policy.

    Intervals are seconds. ``exit_status`` lists exit statuses that mean "could not be evaluated", which are
    then treated as an infrastructure failure. ``on`` says which outcomes are retried; a check that simply
    failed is retried only where the runbook names ``failed``.
    """

    maximum_attempts: int = 3
    initial_interval: float = 1.0
    backoff_coefficient: float = 2.0
    maximum_interval: float = 60.0
    jitter: float = 0.2
    exit_status: tuple[int, ...] = ()
    on: tuple[RetryOn, ...] = ("infrastructure",)


class Check(Struct, frozen=True, omit_defaults=True):
    """One check or hook item: what to do, and what its failure means.

    ``by`` says whose word settles a manual check or a checklist: anyone's, or only an operator's.
    ``idempotent`` is None when the runbook does not say: a check may then be repeated, a hook may not.
    ``confirm`` is False for a manual or checklist item that is shown and recorded without being asked for
    (``confirmation: none``). ``timeout`` is in seconds of wall-clock time; None means no limit.
    ``repair`` holds the commands that undo a hook, one after another, when its transition does not commit.
    """

    do: Work
    name: str | None = None
    blocking: bool = True
    on_failure: OnFailure = "block"
    timeout: float | None = None
    cwd: str | None = None
    retry: Retry = Retry()
    idempotent: bool | None = None
    confirm: bool = True
    by: DecidedBy = "anyone"
    reason: str | None = None
    repair: tuple[Check, ...] = ()

    @property
    def type(self) -> str:
        """The check type as the runbook names it, such as ``command``."""
        return self.do.__struct_config__.tag  # type: ignore[return-value]

    @property
    def stops(self) -> bool:
        """Whether a failure of this check keeps the transition from going on.

        ``on_failure`` decides; ``blocking`` only says what it is where the runbook does not.
        """
        return self.on_failure == "block"


Steps: TypeAlias = tuple[tuple[Check, ...], ...]


class DynamicConfig(Struct, frozen=True):
    """What a node accepts as dynamic checks (``dynamic_before_transfer``)."""

    path: Literal["current_entry"] = "current_entry"
    required: bool = False
    min_items: int = 0
    require_reason: bool = False
    require_basis: bool = False
    merge: Literal["all"] = "all"
    refresh: Literal["on_attempt"] = "on_attempt"
    stale_policy: Literal["none", "require_confirmation"] = "none"
    allow_types: tuple[str, ...] = CHECK_TYPES


class Node(Struct, frozen=True, omit_defaults=True):
    """A state: the prompt that is valid while a run stands there, and the checks around it.

    ``outcome`` is what an end means to those who count: ``failure`` says that a run which ends here has not succeeded.
    It never moves a run.
    """

    name: str
    prompt: str = ""
    in_hook: Steps = ()
    before_transfer: Steps = ()
    dynamic: DynamicConfig | None = None
    out_hook: Steps = ()
    outcome: EndOutcome | None = None


class Edge(Struct, frozen=True, omit_defaults=True):
    """A way from one node to another. ``max_attempts`` counts per entry of the source node.

    ``require_evidence`` blocks a transition whose passed blocking checks include none of that tier.
    """

    source: str
    target: str
    condition: Steps = ()
    hook: Steps = ()
    max_attempts: int | None = None
    require_evidence: EvidenceTier | None = None


class ResourceLimits(Struct, frozen=True, omit_defaults=True):
    """Limits of the processes of a command, by the kernel's accounts; None is no limit.

    ``memory`` is bytes of address space and ``cpu`` seconds of processor time, both of each process; ``files`` is how
    many descriptors a process may have open; ``processes`` is how many its *user* may have, whoever started them.
    """

    memory: int | None = None
    cpu: int | None = None
    processes: int | None = None
    files: int | None = None

    def stricter(self, other: ResourceLimits) -> ResourceLimits:
        """Return the limits that keep within both."""
        pairs = ((name, getattr(self, name), getattr(other, name)) for name in self.__struct_fields__)
        return ResourceLimits(
            **{name: min(value for value in values if value is not None) for name, *values in pairs if any(values)}
        )


NO_LIMITS = ResourceLimits()


class Sandbox(Struct, frozen=True, omit_defaults=True):
    """A file system, processes and a network of a command's own, made by bubblewrap.

    ``network`` shares the network of the host.
    """

    network: bool = False


class Confinement(Struct, frozen=True, omit_defaults=True):
    """What the commands of a runbook are kept within.

    ``executor`` is empty for processes of the host, or ``docker:NAME`` for a running container.
    """

    limits: ResourceLimits = NO_LIMITS
    sandbox: Sandbox | None = None
    executor: str = ""


UNCONFINED = Confinement()


class Runbook(Struct, frozen=True, omit_defaults=True):
    """A validated graph. ``hash`` is the sha256 of the text it was read from and its identity."""

    hash: str
    name: str
    initial: str
    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...] = ()
    order: StageOrder = "guards_first"
    confinement: Confinement = UNCONFINED

    def node(self, name: str) -> Node | None:
        """Return the node of that name, or None."""
        return next((node for node in self.nodes if node.name == name), None)

    def exits(self, name: str) -> tuple[Edge, ...]:
        """Return the edges that leave a node, in the order of the runbook."""
        return tuple(edge for edge in self.edges if edge.source == name)

    def edge(self, source: str, target: str) -> Edge | None:
        """Return the edge between two nodes, or None."""
        return next((edge for edge in self.exits(source) if edge.target == target), None)
