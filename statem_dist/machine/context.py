"""What a machine is driven by and what a run of it leaves: signals, the context of a run, and its errors."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Generic, Literal, NamedTuple, Protocol, TypeAlias, TypeVar

T = TypeVar("T")

Source: TypeAlias = Literal["on", "always", "entry", "exit"]
"""The hook by which a function was called."""

ALWAYS = "__always__"
"""The event of the signal that guards and actions see when no signal of the caller's made them run."""


class GuardError(TypeError):
    """A guard returned something else than a bool."""


class TransitionError(Exception):
    """An action of an ``on`` transition raised, and its state has no ``error_state``; the cause is what it raised."""


@dataclass(frozen=True, slots=True)
class Signal:
    """What drives a transition.

    Attributes:
        event: its name, by convention in capitals.
        data: whatever goes with it.
    """

    event: str
    data: dict[str, Any] = field(default_factory=dict)


class ResultEntry(NamedTuple):
    """What one guard or action gave.

    Attributes:
        state: the state in which the machine was.
        source: the hook by which it was called.
        kind: which of the two it is.
        name: the name that it is registered by.
        value: a bool for a guard, the return value for an action.
    """

    state: str
    source: Source
    kind: Literal["guard", "action"]
    name: str
    value: Any


class Observer(Protocol):
    """Who is told of each step of a run while it happens (see ``streaming``)."""

    async def step_begins(self, context: Context[Any], event: str) -> None:
        """A candidate was chosen, or every candidate was refused; nothing of it has been executed."""

    async def told(self, entry: ResultEntry) -> None:
        """A guard or an action gave a result."""

    async def step_ends(self, context: Context[Any]) -> None:
        """The state has been entered and its entry actions have been executed, or the step was refused."""

    async def passed_over(self, context: Context[Any], event: str | None) -> None:
        """No candidate was chosen. ``event`` is that of the signal, None for ``always``."""


@dataclass(slots=True, kw_only=True)
class Context(Generic[T]):
    """What guards and actions are given: made when a run begins, and gone when it is over.

    Attributes:
        run_id: correlates what belongs to one run; whoever makes the context may leave it out, the machine does not.
        thread_id: correlates the runs of one conversation.
        current_state: the state in which the machine is.
        session: the caller's own; the machine hands it on and never looks into it.
        history: the states that were entered, the first one included.
        results: what guards and actions gave, in the order in which they were called.
    """

    run_id: str | None = None
    thread_id: str | None = None
    current_state: str
    session: T
    history: list[str] = field(init=False)
    results: list[ResultEntry] = field(init=False, default_factory=list)
    _marks: list[int] = field(init=False, default_factory=list, repr=False, compare=False)
    """How many results there were when the first state was left, the second, and so on."""
    _observer: Observer | None = field(init=False, default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        self.history = [self.current_state]

    @property
    def is_stream(self) -> bool:
        """Whether the run is streamed."""
        return self._observer is not None
