"""A run of a machine as AG-UI events, while it happens. Needs the extra ``agui``.

A *step* is one change of state, whichever way it came about. Its events, in order:

===========================  =================================================================================
``STEP_STARTED``             the event of the signal, or ``__always__``
``STATE_SNAPSHOT``           the state before anything of the step was executed
``ACTIVITY_SNAPSHOT``        one for the guard that passed, one for every action, in order
``STATE_DELTA``              what the step has changed, as an RFC 6902 patch of that snapshot; left out if nothing
``STEP_FINISHED``
===========================  =================================================================================

Guards that refused their candidates are told right before ``STEP_STARTED``. A signal that matches nothing, or whose
guards all refused it, gives no events (see ``rejected`` of ``StateMachine.stream``). ``RUN_STARTED``, ``RUN_FINISHED``
and ``RUN_ERROR`` are the business of whoever sends the events on: an exception comes out of the iteration itself.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from typing import Any, Literal
from uuid import uuid4

from pydantic_core import to_jsonable_python

from statem_dist.machine.context import Context, ResultEntry

try:
    from ag_ui.core import (
        ActivitySnapshotEvent,
        BaseEvent,
        StateDeltaEvent,
        StateSnapshotEvent,
        StepFinishedEvent,
        StepStartedEvent,
    )
    from jsonpatch import make_patch
except ImportError as error:
    raise ImportError("StateMachine.stream needs the extra agui: pip install 'statem-dist[agui]'") from error


class Narrator:
    """Tells what happens in a run as AG-UI events. Each is handed to whoever drives the run (``narrated``).

    Args:
        state_accessor: from the session to the state that is shown.
        rejected: see ``StateMachine.stream``.
    """

    def __init__(
        self, state_accessor: Callable[[Any], dict[str, Any]] | None, rejected: Literal["none", "step"]
    ) -> None:
        if rejected not in ("none", "step"):
            raise ValueError(f"rejected must be 'none' or 'step', not {rejected!r}")
        self._state_accessor = state_accessor
        self._rejected = rejected
        self._guards: list[ResultEntry] = []
        self._step: str | None = None
        self._before: Any = None

    async def told(self, entry: ResultEntry) -> None:
        """Tell a result; of a guard, only when it is known what came of its step."""
        if self._step is None:
            self._guards.append(entry)
        else:
            await _Emitted(_activity(entry))

    async def step_begins(self, context: Context[Any], event: str) -> None:
        """Tell the guards that refused, the beginning of the step, and the guard that let it pass."""
        refused = [entry for entry in self._guards if not entry.value]
        passed = [entry for entry in self._guards if entry.value]
        for entry in refused:
            await _Emitted(_activity(entry))
        await self._begin(context, event)
        for entry in passed:
            await _Emitted(_activity(entry))

    async def step_ends(self, context: Context[Any]) -> None:
        """Tell what the step has changed, and its end."""
        assert self._step is not None, "a step ends that has begun"
        patch: Any = make_patch(self._before, self._state(context)).patch
        if patch:
            await _Emitted(StateDeltaEvent(delta=patch))
        step, self._step = self._step, None
        await _Emitted(StepFinishedEvent(step_name=step))

    async def passed_over(self, context: Context[Any], event: str | None) -> None:
        """Tell of a signal that its guards refused, if that is wanted."""
        if event is not None and self._rejected == "step":
            refused = self._guards
            await self._begin(context, event)
            for entry in refused:
                await _Emitted(_activity(entry))
            await self.step_ends(context)
        self._guards = []

    async def _begin(self, context: Context[Any], event: str) -> None:
        self._guards = []
        self._step = event
        self._before = self._state(context)
        await _Emitted(StepStartedEvent(step_name=event))
        await _Emitted(StateSnapshotEvent(snapshot=self._before))

    def _state(self, context: Context[Any]) -> Any:
        """Return the state that is shown, as a copy that nobody changes."""
        if self._state_accessor is None:
            return {"current_state": context.current_state}
        return to_jsonable_python(self._state_accessor(context.session), fallback=repr)


async def narrated(begin: Callable[[], Coroutine[Any, Any, None]]) -> AsyncGenerator[BaseEvent, None]:
    """Begin a run that has a narrator, drive it, and yield what the narrator tells.

    No task is made: the run goes on in the task of whoever iterates, and only while that asks for the next event. What
    guards and actions wait for is waited for here, whichever event loop that needs.
    """
    run = begin()
    answer: Any = None
    error: BaseException | None = None
    try:
        while True:
            try:
                step = run.send(answer) if error is None else run.throw(error)
            except StopIteration:
                return
            answer, error = None, None
            if isinstance(step, _Emitted):
                yield step.event
            else:
                try:
                    answer = await _Forwarded(step)
                except BaseException as raised:
                    error = raised
    finally:
        run.close()


class _Emitted:
    """What the run hands out when it is awaited: one event."""

    __slots__ = ("event",)

    def __init__(self, event: BaseEvent) -> None:
        self.event = event

    def __await__(self) -> Generator[_Emitted, Any, None]:
        yield self


class _Forwarded:
    """Something that the run waits for, handed on to the event loop."""

    __slots__ = ("_wanted",)

    def __init__(self, wanted: Any) -> None:
        self._wanted = wanted

    def __await__(self) -> Generator[Any, Any, Any]:
        return (yield self._wanted)


def _activity(entry: ResultEntry) -> ActivitySnapshotEvent:
    content = {
        "type": "activity",
        "kind": entry.kind,
        "name": entry.name,
        "source": entry.source,
        "result": to_jsonable_python(entry.value, fallback=repr),
    }
    return ActivitySnapshotEvent(message_id=uuid4().hex, activity_type=f"STATEM_{entry.kind.upper()}", content=content)
