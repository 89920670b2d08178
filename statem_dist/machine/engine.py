"""The machine itself: a validated graph, and the rules by which signals move it.

For each signal, and once at the beginning:

1. The candidates of its event are tried in order, or those of ``*`` if the state has none for the event. The first
   whose guard passes is taken; if none is, the signal has no effect.
2. The candidate's actions are executed in the old state, then the state's ``exit`` actions. Then ``history`` and
   ``current_state`` change, and the ``entry`` actions of the new state are executed.
3. After every entry, that into the first state included, the ``always`` candidates of the state are tried in the same
   way, and again after the entry that follows, ``HOPS_MAX`` times at the most.

If an action of an ``on`` candidate raises, the rest of them is left out and the machine goes to ``error_state``, if the
state has one. What guards, ``entry``, ``exit`` and ``always`` actions raise goes to the caller.
"""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Callable, Sequence
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, model_validator

from statem_dist.machine.configuration import WILDCARD, StateConfig, TransitionConfig
from statem_dist.machine.context import ALWAYS, Context, Signal, Source, TransitionError
from statem_dist.machine.registries import ActionFn, ActionRegistry, GuardFn, GuardRegistry

if TYPE_CHECKING:
    from ag_ui.core import BaseEvent

HOPS_MAX = 100
"""How many ``always`` transitions may follow each other; more are taken for a loop."""

logger = logging.getLogger(__name__)


class StateMachine(BaseModel):
    """A state graph with its guards and actions. It holds nothing of a run: one machine serves many at a time.

    Attributes:
        config: state to its configuration.
        guards: the guards that the graph names.
        actions: the actions that the graph names.

    Raises:
        pydantic.ValidationError: a ``ValueError``; the graph is not what ``StateConfig`` says, or leads to states that
            it does not have, all of which are listed.
    """

    model_config = ConfigDict(frozen=True, arbitrary_types_allowed=True)

    config: dict[str, StateConfig] = Field(default_factory=dict)
    guards: GuardRegistry = Field(default_factory=GuardRegistry)
    actions: ActionRegistry = Field(default_factory=ActionRegistry)

    @classmethod
    def from_dict(
        cls,
        config: dict[str, Any],
        action_dict: dict[str, ActionFn] | None = None,
        guard_dict: dict[str, GuardFn] | None = None,
    ) -> Self:
        """Make a machine and register functions.

        Args:
            config: state to a dict with the fields of ``StateConfig``.
            action_dict: actions by name.
            guard_dict: guards by name. If any function is given, all that the graph names have to be.

        Raises:
            ValueError: as the class says, or ``validate_registries``.
        """
        machine = cls(config=config)
        machine.actions.register_many(action_dict or {})
        machine.guards.register_many(guard_dict or {})
        if action_dict or guard_dict:
            machine.validate_registries()
        return machine

    @model_validator(mode="after")
    def _require_targets(self) -> Self:
        bad = []
        for name, state in self.config.items():
            for place, candidate in _candidates(name, state):
                if candidate.target not in self.config:
                    bad.append(f"{place} -> {candidate.target!r}")
            if state.error_state is not None and state.error_state not in self.config:
                bad.append(f"{name}.error_state -> {state.error_state!r}")
        if bad:
            raise ValueError(f"Invalid transition targets: {bad}")
        return self

    def __repr__(self) -> str:
        return f"{type(self).__name__}(states={list(self.config)})"

    def validate_registries(self) -> None:
        """Require that every guard and action of the graph is registered.

        Raises:
            ValueError: some are not; the message lists each with the place that names it.
        """
        guards, actions = [], []
        for name, state in self.config.items():
            actions += [f"{name}.entry: {each}" for each in state.entry if not self.actions.has(each)]
            actions += [f"{name}.exit: {each}" for each in state.exit if not self.actions.has(each)]
            for place, candidate in _candidates(name, state):
                if candidate.guard is not None and not self.guards.has(candidate.guard):
                    guards.append(f"{place}: {candidate.guard}")
                actions += [f"{place}: {each}" for each in candidate.actions if not self.actions.has(each)]
        missing = [
            f"Unregistered {kind}: {found}" for kind, found in (("guards", guards), ("actions", actions)) if found
        ]
        if missing:
            raise ValueError("; ".join(missing))

    def available_events(self, state_name: str) -> list[str]:
        """Return the events that a state has entries for, without the wildcard; none for a state that there is not."""
        state = self.config.get(state_name)
        return [] if state is None else state.available_events

    async def run(
        self,
        *,
        run_id: str | None = None,
        thread_id: str | None = None,
        state_name: str,
        events: Signal | list[Signal],
        session: Any,
    ) -> str:
        """Process signals, one after another.

        Args:
            run_id: correlates what belongs to this run; made if None.
            thread_id: correlates the runs of a conversation; made if None.
            state_name: the state in which the machine is.
            events: a signal or several; with none, only the ``always`` transitions of the state are tried.
            session: handed to guards and actions, which may change it.

        Returns:
            The state in which the machine is afterwards.

        Raises:
            KeyError: there is no such state, or a function is not registered.
            GuardError: a guard returned something else than a bool.
            TransitionError: an action of an ``on`` transition raised, and its state has no ``error_state``.
            RuntimeError: ``always`` transitions follow each other without an end.
            Exception: whatever a guard, or an action of another hook, raised.
        """
        context = new_context(run_id, thread_id, state_name, session)
        await self._process(context, [events] if isinstance(events, Signal) else events)
        return context.current_state

    def stream(
        self,
        *,
        run_id: str | None = None,
        thread_id: str | None = None,
        state_name: str,
        events: Signal | list[Signal],
        session: Any,
        state_accessor: Callable[[Any], dict[str, Any]] | None = None,
        rejected: Literal["none", "step"] = "none",
    ) -> AsyncGenerator[BaseEvent, None]:
        """Process signals as ``run`` does, and yield AG-UI events while it happens. See ``streaming`` for their order.

        The machine moves only while the next event is asked for. Whoever stops asking, ends the run where it is.

        Args:
            run_id, thread_id, state_name, events, session: as for ``run``.
            state_accessor: from the session to the state that is shown; the name of the state alone if None.
            rejected: what a signal is shown as whose guards all refused it: ``none`` for nothing, ``step`` for a step
                in which nothing changes.

        Raises:
            ImportError: the extra ``agui`` is not installed.
            Exception: as ``run`` does, when the iteration comes that far.
        """
        from statem_dist.machine.streaming import Narrator, narrated

        context = new_context(run_id, thread_id, state_name, session)
        context._observer = Narrator(state_accessor, rejected)
        return narrated(lambda: self._process(context, [events] if isinstance(events, Signal) else events))

    # --- the rules -----------------------------------------------------------------------------------------

    async def _process(self, ctx: Context[Any], signals: Sequence[Signal]) -> None:
        if self.config[ctx.current_state].always:
            await self._follow_always(ctx)
        for signal in signals:
            state = self.config[ctx.current_state]
            candidates = state.on.get(signal.event) or state.on.get(WILDCARD)
            if not candidates:
                continue
            taken = await self._choose(candidates, ctx, signal, "on")
            if taken is None:
                if ctx._observer is not None:
                    await ctx._observer.passed_over(ctx, signal.event)
                continue
            if ctx._observer is not None:
                await ctx._observer.step_begins(ctx, signal.event)
            target = taken.target
            try:
                if taken.actions:
                    await self.actions.execute_many(taken.actions, ctx, signal, "on")
            except Exception as error:
                if state.error_state is None:
                    raise TransitionError(f"Action failed in {ctx.current_state!r}") from error
                target = state.error_state
                logger.warning(
                    "run %s: an action for %r failed in %r; going to %r",
                    ctx.run_id,
                    signal.event,
                    ctx.current_state,
                    target,
                    exc_info=error,
                )
            await self._move(ctx, target, signal)
            if self.config[ctx.current_state].always:
                await self._follow_always(ctx)

    async def _follow_always(self, ctx: Context[Any]) -> None:
        """Follow the ``always`` transitions until none is taken."""
        signal = Signal(ALWAYS)
        for _ in range(HOPS_MAX):
            taken = await self._choose(self.config[ctx.current_state].always, ctx, signal, "always")
            if taken is None:
                if ctx._observer is not None:
                    await ctx._observer.passed_over(ctx, None)
                return
            if ctx._observer is not None:
                await ctx._observer.step_begins(ctx, ALWAYS)
            if taken.actions:
                await self.actions.execute_many(taken.actions, ctx, signal, "always")
            await self._move(ctx, taken.target, signal)
        raise RuntimeError(f"always-transition loop exceeded {HOPS_MAX} hops at {ctx.current_state!r}")

    async def _choose(
        self, candidates: Sequence[TransitionConfig], ctx: Context[Any], signal: Signal, source: Source
    ) -> TransitionConfig | None:
        for candidate in candidates:
            if candidate.guard is None or await self.guards.evaluate(candidate.guard, ctx, signal, source):
                return candidate
        return None

    async def _move(self, ctx: Context[Any], target: str, signal: Signal) -> None:
        left, entered = self.config[ctx.current_state], self.config[target]
        if left.exit:
            await self.actions.execute_many(left.exit, ctx, signal, "exit")
        ctx._marks.append(len(ctx.results))
        ctx.history.append(target)
        ctx.current_state = target
        if entered.entry:
            await self.actions.execute_many(entered.entry, ctx, signal, "entry")
        if ctx._observer is not None:
            await ctx._observer.step_ends(ctx)


def new_context(run_id: str | None, thread_id: str | None, state_name: str, session: Any) -> Context[Any]:
    """Return the context of a run that begins."""
    return Context(
        run_id=_uuid4_hex() if run_id is None else run_id,
        thread_id=_uuid4_hex() if thread_id is None else thread_id,
        current_state=state_name,
        session=session,
    )


def _uuid4_hex() -> str:
    """Return what ``uuid.uuid4().hex`` does, without the object in between: a run makes two."""
    number = int.from_bytes(os.urandom(16), "big")
    return f"{number & ~(0xF000C << 60) | 0x40008 << 60:032x}"


def _candidates(name: str, state: StateConfig) -> list[tuple[str, TransitionConfig]]:
    """Return every candidate of a state with the words for its place."""
    on = [(f"{name}.on.{event}", each) for event, found in state.on.items() for each in found]
    return on + [(f"{name}.always[{number}]", each) for number, each in enumerate(state.always)]
