"""Bodies of requests. What a body does not know is refused: a misspelt field must not become a silent default."""

from __future__ import annotations

import json
from typing import Annotated, Any, Literal

from fastapi import Path
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, model_validator

from statem_dist.run_ids import NAME_PATTERN as NAME
from statem_dist.run_ids import RUN_ID_LENGTH_MAX

BULK_MAX = 1_000
"""Runs in one bulk request."""

RunId = Annotated[
    str, Path(pattern=NAME, max_length=RUN_ID_LENGTH_MAX, description="Id of the run.", examples=["demo"])
]
SweepId = Annotated[
    str, Path(pattern=NAME, max_length=RUN_ID_LENGTH_MAX, description="Id of the sweep.", examples=["tb21"])
]
TrialNumber = Annotated[int, Path(ge=1, le=2**31, description="Number of the trial in its sweep.")]
TransitionId = Annotated[str, Path(pattern=r"^t[1-9][0-9]{0,8}$", description="Id of the transition.", examples=["t2"])]
CheckId = Annotated[
    str,
    Path(
        pattern=r"^[a-z_]{1,40}\.[0-9]{1,6}$",
        description="Id of the check in the transition's plan.",
        examples=["before_transfer.0"],
    ),
]

NewRunId = Annotated[str, StringConstraints(pattern=NAME, max_length=RUN_ID_LENGTH_MAX)]
QueueName = Annotated[str, StringConstraints(pattern=NAME, max_length=100)]
Executor = Annotated[str, StringConstraints(pattern=r"^docker:[A-Za-z0-9][A-Za-z0-9_.-]*$", max_length=200)]
NodeName = Annotated[str, StringConstraints(min_length=1, max_length=500)]
LabelKey = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", max_length=100)]
LabelValue = Annotated[str, StringConstraints(max_length=200)]
VariableName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=200)]
VariableValue = Annotated[str, StringConstraints(pattern=r"^[^\x00]*$", max_length=100_000)]
AgentName = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]+$", min_length=1, max_length=200)]
AgentRole = Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=200)]
CheckName = Annotated[str, StringConstraints(min_length=1, max_length=2_000)]
Reason = Annotated[str, StringConstraints(max_length=2_000)]
Labels = Annotated[dict[LabelKey, LabelValue], Field(max_length=50)]


class Text(BaseModel):
    """What every body is: text that can be written down."""

    @model_validator(mode="before")
    @classmethod
    def _no_half_characters(cls, given: Any) -> Any:
        r"""Refuse what JSON can escape and UTF-8 cannot encode: one half of a surrogate pair, such as ``\ud800``."""
        try:
            json.dumps(given, ensure_ascii=False, default=str).encode()
        except UnicodeEncodeError:
            raise ValueError("a text holds one half of a surrogate pair, which is no character") from None
        except RecursionError:
            raise ValueError("it is nested too deeply") from None
        return given


class Body(Text):
    """What all bodies share: unknown fields are refused, and nothing is converted silently."""

    model_config = ConfigDict(extra="forbid", strict=True)


class Spoken(Body):
    """For whom the caller speaks. The token itself is always recorded beside it."""

    agent_id: AgentName | None = Field(None, description="The agent; by default the name of the token.")
    agent_role: AgentRole | None = Field(
        None, description="Its role, empty for an agent without one; by default that of the token."
    )


class RunbookText(Body):
    """A runbook as text."""

    text: str = Field(min_length=1, examples=["initial: plan\nnodes:\n  plan: {prompt: Plan it.}\n"])
    source: str = Field(
        "runbook.yaml",
        min_length=1,
        max_length=1_000,
        description="What messages call it.",
    )
    format: Literal["yaml", "json"] = "yaml"


class RunbookValidate(RunbookText):
    """A runbook to be looked at."""

    strict: bool = Field(False, description="Unknown keywords are errors.")


class RunbookRegister(RunbookText):
    """A runbook to be registered."""

    name: Annotated[str, StringConstraints(pattern=NAME, max_length=200)] | None = Field(
        None, description="The name to register it under; by default the one that the runbook has."
    )


class Confirming(Spoken):
    """Answers that the caller gives in advance to what asks."""

    confirm: bool | list[CheckName] = Field(
        False, description="True confirms everything that asks; a list confirms checks by id, name or text."
    )
    decline: dict[CheckName, Reason] = Field(
        default_factory=dict, description="Checks that are declined, each with the reason; that wins over `confirm`."
    )


class RunCreate(Confirming):
    """A run to be started, from a registered runbook or from a text."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={"examples": [{"runbook": "release", "run_id": "release-7", "labels": {"team": "a"}}]},
    )

    runbook: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = Field(
        None, description="Name or hash of a registered runbook, or the whole hash of one that was started before."
    )
    text: str | None = Field(None, min_length=1, description="The runbook itself, instead of `runbook`.")
    source: str = Field("runbook.yaml", min_length=1, max_length=1_000, description="What messages call the text.")
    format: Literal["yaml", "json"] = Field("yaml", description="The language of the text.")
    run_id: NewRunId | None = Field(None, description="Its id; by default a new one.")
    on_existing: Literal["fail", "use_existing", "resume", "restart"] = Field(
        "fail",
        description=(
            "What to do if there is a run of that id: refuse with 409; give it as it is; resume it, on the runbook "
            "given here; or let it begin anew, with its history kept."
        ),
    )
    workspace: Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$", max_length=4_000)] | None = Field(
        None, description="Absolute path where its checks work, on the workers; by default a new folder of its own."
    )
    spec: Annotated[str, StringConstraints(pattern=r"^[^\x00]*$", max_length=4_000)] = Field(
        "", description="Where the runbook came from; checks find it in STATEM_SPEC."
    )
    queue: QueueName | None = Field(None, description="Pins all of its work to one queue.")
    executor: Executor | None = Field(None, description="`docker:NAME`: execute its commands in that container.")
    labels: Labels = Field(default_factory=dict)
    vars: Annotated[dict[VariableName, VariableValue], Field(max_length=500)] = Field(
        default_factory=dict, description="Environment variables for its commands; never shown again."
    )

    @model_validator(mode="after")
    def _one_runbook(self) -> RunCreate:
        if (self.runbook is None) == (self.text is None):
            raise ValueError("either `runbook` or `text` is needed, and not both")
        return self


class RunsCreate(Body):
    """Several runs to be started; each has an answer of its own."""

    runs: list[RunCreate] = Field(min_length=1, max_length=BULK_MAX)


class Rebind(Confirming):
    """The runbook that a run is to follow from here on."""

    runbook: Annotated[str, StringConstraints(min_length=1, max_length=200)] | None = None
    text: str | None = Field(None, min_length=1)
    source: str = Field("runbook.yaml", min_length=1, max_length=1_000)
    format: Literal["yaml", "json"] = "yaml"

    @model_validator(mode="after")
    def _one_runbook(self) -> Rebind:
        if (self.runbook is None) == (self.text is None):
            raise ValueError("either `runbook` or `text` is needed, and not both")
        return self


class Goto(Confirming):
    """A transition to be attempted."""

    target: NodeName = Field(examples=["review"])
    on_manual: Literal["fail", "wait"] = Field("fail", description="What a check does that nobody confirmed.")
    from_entry: Annotated[str, StringConstraints(max_length=300)] | None = Field(
        None, description="The entry that the caller has seen; if the run has moved on, the answer is 409."
    )


class Save(Confirming):
    """The current node's out_hook is to be run without moving."""

    skip_hooks: bool = False


class Why(Spoken):
    """Why something is ended or held."""

    reason: Reason = ""


class Decision(Body):
    """What somebody decides. Who it was says the token; the body may only say that an agent decides with it."""

    approved: bool
    comment: Reason = ""
    as_agent: AgentName | None = Field(
        None, description="The agent that decides. It settles nothing that is for an operator, whatever the token may."
    )


class Recovery(Body):
    """How a transition goes on after an unknown outcome. Who says so is the token."""

    way: Literal["resume", "abort", "passed", "failed"] = Field(
        description="Execute the check again, give the transition up, or say what came of the check."
    )
    reason: Reason = Field("", description="Why. `passed` and `failed` need one.")
    check: Annotated[str, StringConstraints(pattern=r"^[a-z_]{1,40}\.[0-9]{1,6}$")] | None = Field(
        None, description="The check that is meant, where several are of unknown outcome.", examples=["out_hook.0"]
    )
    transition: Annotated[str, StringConstraints(pattern=r"^t[1-9][0-9]{0,8}$")] | None = Field(
        None, description="The transition that is meant, if the run may be in another one meanwhile."
    )


class DynamicChecks(Spoken):
    """Checks for the current entry alone, in place of those that this agent has registered before."""

    checks: list[dict[str, object]] | None = Field(
        None,
        max_length=500,
        examples=[[{"type": "manual", "text": "The tests cover the new case.", "reason": "new code"}]],
    )
    basis: dict[str, object] | None = Field(None, description="What they are based on, where the node wants to know.")
    text: str | None = Field(
        None, min_length=1, description="A file with checks, instead of `checks` and `basis`; `dynamic write` sends it."
    )
    source: str = Field("checks", min_length=1, max_length=1_000, description="What messages call the text.")
    format: Literal["yaml", "json"] = Field("json", description="The language of the text.")
    unused: bool = Field(
        False,
        description="Register them also where the node accepts none, so that nothing runs them; else that is 409.",
    )

    @model_validator(mode="after")
    def _one_form(self) -> DynamicChecks:
        if (self.checks is None) == (self.text is None):
            raise ValueError("either `checks` or `text` is needed, and not both")
        if self.text is not None and self.basis is not None:
            raise ValueError("a `text` holds its own basis")
        return self


class SweepSubmit(Body):
    """A sweep to be submitted."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        json_schema_extra={
            "examples": [{"file": "runbook: fix.yaml\nmatrix: {model: [a, b]}\n", "folder": "/srv/sweeps"}]
        },
    )

    file: str = Field(min_length=1, description="The text of the sweep file.")
    folder: Annotated[str, StringConstraints(pattern=r"^/[^\x00]*$", max_length=4_000)] = Field(
        description="Absolute path on the host of the service, where relative paths in the file start."
    )
    id: NewRunId | None = Field(None, description="Its id; by default one of its name and the time.")
    new: bool = Field(False, description="Make another sweep although one of the same content has not ended.")

    @model_validator(mode="after")
    def _one_of_both(self) -> SweepSubmit:
        if self.id is not None and self.new:
            raise ValueError("`id` names one sweep, and `new` makes another; give one of them")
        return self


class SweepWhy(Body):
    """Why a sweep is held or ended."""

    reason: Reason = Field("", description="Why, for whoever asks.")


class SweepResume(Body):
    """A sweep is to go on."""

    accept_changes: bool = Field(
        False, description="Take over what its file has changed of its results, where the service can read that file."
    )


class SweepRetry(Body):
    """Trials of a sweep that are to be tried again."""

    which: list[Literal["failed", "errored", "unscored"]] = Field(
        default_factory=list,
        max_length=3,
        description="By outcome: `failed` is failed, stuck and timeout; `unscored` is error and cancelled.",
    )
    numbers: list[Annotated[int, Field(ge=1, le=2**31)]] = Field(
        default_factory=list, max_length=100_000, description="Only these; alone, whatever they have ended as."
    )
    dry_run: bool = Field(False, description="Say which, and change nothing.")

    @model_validator(mode="after")
    def _something(self) -> SweepRetry:
        if not self.which and not self.numbers:
            raise ValueError("either `which` or `numbers` is needed")
        return self


class SweepExtend(Body):
    """A sweep is to have more trials of each cell."""

    trials: int = Field(ge=1, le=100_000, description="How many each cell is to have.")


class TokenCreate(Body):
    """A token to be made."""

    role: Literal["viewer", "agent", "operator", "admin"]
    name: Annotated[str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=100)] = ""
    labels: Labels = Field(default_factory=dict, description="Those that a run must have for the token to reach it.")
    expires_in: Annotated[float, Field(gt=0, le=316_224_000)] | None = Field(None, description="Seconds it lives.")
