"""A sweep file as it is written: its keywords, what each may hold, and nothing about how they fit together.

Every single value arrives as text, whatever it looks like, so numbers, durations and sizes are read here. ``spec`` puts
the parts together.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    StringConstraints,
    Tag,
    model_validator,
)

from statem_dist.durations import seconds_of
from statem_dist.limits import size_of
from statem_dist.runbook.fields import SECONDS_MAX
from statem_dist.sweep.artifacts import check_pattern
from statem_dist.sweep.model import AgentMode, Artifacts, Priority, Share

TRIALS_MAX = 100_000
"""Trials of one sweep, counted before ``exclude``. More are a mistake in the matrix, and would fill a disk."""

TIMES_MAX = 1000
"""Bound of ``retries`` and ``continuations``: what is more never ends."""

OTHERS = "*"
"""In ``concurrency.per`` the value that stands for all that are not named."""

EMPTY = "empty"
"""The word for a workspace that holds nothing at its beginning."""

_NUMBER = re.compile(r"[0-9]+(?:\.[0-9]+)?")
_CLOCK = re.compile(r"[0-9]+(?::[0-9]+)+")
_PERCENT = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*%")


def _seconds(written: Any) -> Any:
    if not isinstance(written, str):
        return written
    text = written.strip()
    if _CLOCK.fullmatch(text):
        raise ValueError(f"'{text}' is a time of day, not a duration; write seconds (90) or a unit (90s, 5m, 1h)")
    seconds = float(text) if _NUMBER.fullmatch(text) else seconds_of(text, "smh")
    if seconds is None or not 0 < seconds <= SECONDS_MAX:
        raise ValueError(
            f"must be a duration of at most {SECONDS_MAX:.0f} seconds, such as 90, or with a unit 90s, 5m, 1h"
        )
    return seconds


def _size(written: Any) -> Any:
    return size_of(written) if isinstance(written, str) else written


def _floor(written: Any) -> Any:
    return 0 if isinstance(written, str) and written.strip() == "0" else _size(written)


def _share(written: Any) -> Any:
    if not isinstance(written, str):
        return written
    text = written.strip()
    if (found := _PERCENT.fullmatch(text)) and float(found[1]) < 100:
        return Share(percent=float(found[1]))
    if text.isascii() and text.isdecimal() and 0 < int(text) <= TRIALS_MAX:
        return Share(count=int(text))
    raise ValueError("must be a number of trials, such as 10, or a percentage below 100, such as 5%")


def _glob(written: str) -> str:
    check_pattern(written)
    return written


def _kind(value: object) -> str:
    return "a mapping" if isinstance(value, dict) else "a list" if isinstance(value, list) else "a value"


def _one_of(wanted: str) -> Discriminator:
    """Return what tells values, lists and mappings apart, so that a problem is told of the one that is meant."""
    return Discriminator(_kind, custom_error_type="kind", custom_error_message=f"must be {wanted}")


AxisName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$", max_length=100)]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
LimitName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=100)]
QueueName = LimitName
Text = Annotated[str, StringConstraints(min_length=1)]
Count = Annotated[int, Field(ge=1, le=TRIALS_MAX)]
Times = Annotated[int, Field(ge=0, le=TIMES_MAX)]
Seconds = Annotated[float, BeforeValidator(_seconds)]
Bytes = Annotated[int, BeforeValidator(_size)]
Glob = Annotated[Text, AfterValidator(_glob)]
Portion = Annotated[Share, BeforeValidator(_share)]


class Part(BaseModel):
    """A mapping of keywords; one that is not known is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, arbitrary_types_allowed=True)


class ValuesFrom(Part):
    """An axis whose values stand in a file, or are the names of files; see ``sources``."""

    source: Text = Field(alias="from")
    field: Text | None = None


class Agent(Part):
    """What works at the nodes."""

    run: Text
    mode: AgentMode = "per_node"
    continuations: Times = 3
    pass_env: list[VariableName] = []


class Workspace(Part):
    """What a trial's folder holds at its beginning."""

    template: Text | None = None
    git: Text | None = None
    ref: Text | None = None
    keep: Literal["all", "unless_passed", "none"] = "all"

    @model_validator(mode="after")
    def _fits(self) -> Workspace:
        if self.template is not None and self.git is not None:
            raise ValueError("give either 'template' or 'git'")
        if self.ref is not None and self.git is None:
            raise ValueError("'ref' says what of a repository is checked out; give 'git' with it")
        return self


class Concurrency(Part):
    """How many trials run at once: in all, and of those that share a value of an axis."""

    total: Count | None = None
    per: dict[
        AxisName,
        Annotated[
            Annotated[Count, Tag("a value")] | Annotated[dict[Text, Count], Field(min_length=1), Tag("a mapping")],
            _one_of("a number, or a mapping of values to numbers"),
        ],
    ] = {}

    @model_validator(mode="after")
    def _says_something(self) -> Concurrency:
        if self.total is None and not self.per:
            raise ValueError("give 'total', 'per', or both")
        return self


class Limit(Part):
    """A limit that sweeps share by its name."""

    in_flight: Count | None = None
    per_minute: Count | None = None
    when: dict[AxisName, str] = {}

    @model_validator(mode="after")
    def _says_something(self) -> Limit:
        if self.in_flight is None and self.per_minute is None:
            raise ValueError("give 'in_flight', 'per_minute', or both")
        return self


class Timeouts(Part):
    """How long one call of the agent, and the whole of a trial, may take."""

    agent: Seconds | None = None
    trial: Seconds | None = None


class StopWhen(Part):
    """When no more trials are begun."""

    errors: Portion | None = None
    failures: Portion | None = None
    cost_usd: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None


class Kept(Part):
    """Which files of a workspace are kept as artifacts."""

    paths: Annotated[list[Glob], Field(min_length=1)]
    file_max: Bytes = Artifacts().file_bytes_max
    total_max: Bytes = Artifacts().total_bytes_max


Axis = Annotated[
    Annotated[list[str], Field(min_length=1), Tag("a list")] | Annotated[ValuesFrom, Tag("a mapping")],
    _one_of("a list of values, or a mapping with 'from' and 'field'"),
]
Entry = Annotated[dict[AxisName, str], Field(min_length=1)]


class SweepFile(Part):
    """A sweep file. What is None has a default that ``spec`` knows."""

    runbook: Text
    name: Annotated[Text, StringConstraints(max_length=200)] | None = None
    matrix: dict[AxisName, Axis] = {}
    include: list[Entry] = []
    exclude: list[Entry] = []
    trials: Count = 1
    seed: Annotated[int, Field(ge=0, le=2**63 - 1)] = 0
    agent: Agent | None = None
    workspace: (
        Annotated[
            Annotated[Literal["empty"], Tag("a value")] | Annotated[Workspace, Tag("a mapping")],
            _one_of("'empty', or a mapping with 'template', 'git' or 'keep'"),
        ]
        | None
    ) = None
    env: dict[VariableName, str] = {}
    vars: dict[AxisName, str] = {}
    concurrency: (
        Annotated[
            Annotated[Count, Tag("a value")] | Annotated[Concurrency, Tag("a mapping")],
            _one_of("a number, or a mapping with 'total' and 'per'"),
        ]
        | None
    ) = None
    queue: QueueName = "trials"
    limits: dict[LimitName, Limit] = {}
    timeouts: Timeouts = Timeouts()
    max_steps: Count = 20
    retries: Times = 2
    stop_when: StopWhen = StopWhen()
    labels: dict[Text, str] = {}
    priority: Priority = "normal"
    success: Annotated[list[str], Field(min_length=1)] | None = None
    artifacts: (
        Annotated[
            Annotated[list[Glob], Field(min_length=1), Tag("a list")] | Annotated[Kept, Tag("a mapping")],
            _one_of("a list of patterns, or a mapping with 'paths'"),
        ]
        | None
    ) = None
    disk_floor: Annotated[int, BeforeValidator(_floor)] = 512 * 1024 * 1024


PARTS: dict[str, type[Part]] = {
    "matrix": ValuesFrom,
    "agent": Agent,
    "workspace": Workspace,
    "concurrency": Concurrency,
    "limits": Limit,
    "timeouts": Timeouts,
    "stop_when": StopWhen,
    "artifacts": Kept,
}
"""The mapping of keywords that stands under a keyword of the file."""
