"""The graph of a machine, as pydantic models: what a config dict may hold."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, field_validator

WILDCARD = "*"
"""The key of ``on`` that takes every event without an entry of its own."""


class TransitionConfig(BaseModel):
    """One candidate of a transition.

    Attributes:
        target: the state that it leads to.
        guard: name of the guard that has to pass; None always passes.
        actions: names of the actions to execute, in order, before the state is left.
    """

    model_config = ConfigDict(frozen=True)

    target: str
    guard: str | None = None
    actions: list[str] = Field(default_factory=list)


class StateConfig(BaseModel):
    """One state. Fields that are not listed here are ignored, so that an application can keep its own beside them.

    Attributes:
        on: event to candidates, tried in order. A target's name, or one candidate, stands for a list of one.
        always: candidates without an event, tried after every entry into the state.
        entry: names of the actions to execute when the state has been entered.
        exit: names of the actions to execute before the state is left.
        error_state: where to go when an action of an ``on`` transition raises; None lets the error out.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    on: dict[str, list[TransitionConfig]] = Field(default_factory=dict)
    always: list[TransitionConfig] = Field(default_factory=list)
    entry: list[str] = Field(default_factory=list)
    exit: list[str] = Field(default_factory=list)
    error_state: str | None = None

    @field_validator("on", mode="before")
    @classmethod
    def _as_lists(cls, on: Any) -> Any:
        return {event: _candidates(value) for event, value in on.items()} if isinstance(on, dict) else on

    @property
    def available_events(self) -> list[str]:
        """The events that the state has entries for, in their order, without the wildcard."""
        return [event for event in self.on if event != WILDCARD]

    @property
    def accepts_wildcard(self) -> bool:
        """Whether the state has an entry for every event without one of its own."""
        return WILDCARD in self.on


def _candidates(value: Any) -> Any:
    """Return the short forms of an entry of ``on`` as a list; anything else as it is, to be refused."""
    if isinstance(value, str):
        return [{"target": value}]
    if isinstance(value, dict | TransitionConfig):
        return [value]
    if isinstance(value, list):
        return [{"target": each} if isinstance(each, str) else each for each in value]
    return value
