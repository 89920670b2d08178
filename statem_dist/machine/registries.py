"""Names to functions. Functions may be plain or asynchronous; which of the two is found out once, by registering."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from inspect import iscoroutinefunction
from typing import Any, TypeAlias

from statem_dist.machine.context import Context, GuardError, ResultEntry, Signal, Source

ActionFn: TypeAlias = Callable[[Context[Any], Signal], Awaitable[Any] | Any]
"""An action: its return value is recorded and has no other effect."""

GuardFn: TypeAlias = Callable[[Context[Any], Signal], bool] | Callable[[Context[Any], Signal], Awaitable[bool]]
"""A guard: it says whether a candidate is taken."""

Registered: TypeAlias = tuple[Callable[[Context[Any], Signal], Any], bool]
"""A function, and whether what it returns is certainly to be awaited."""


class _Registry:
    """Functions by name."""

    def __init__(self) -> None:
        self._functions: dict[str, Registered] = {}

    def has(self, name: str) -> bool:
        """Return whether a function is registered by that name."""
        return name in self._functions

    def _add(self, name: str, fn: Callable[[Context[Any], Signal], Any]) -> None:
        self._functions[name] = fn, iscoroutinefunction(fn)

    def _find(self, name: str) -> Registered:
        try:
            return self._functions[name]
        except KeyError:
            raise KeyError(f"{name!r} not registered") from None


class ActionRegistry(_Registry):
    """Actions by name."""

    def register(self, name: str, fn: ActionFn) -> None:
        """Register an action; an earlier one of that name is replaced."""
        self._add(name, fn)

    def register_many(self, actions: dict[str, ActionFn]) -> None:
        """Register several actions."""
        for name, fn in actions.items():
            self._add(name, fn)

    async def execute(self, name: str, ctx: Context[Any], signal: Signal, source: Source) -> None:
        """Execute an action and record what it returned.

        Raises:
            KeyError: there is none of that name.
        """
        await self.execute_many([name], ctx, signal, source)

    async def execute_many(self, names: list[str], ctx: Context[Any], signal: Signal, source: Source) -> None:
        """Execute actions one after another.

        Raises:
            KeyError: there is none of a name; those before it have been executed.
        """
        for name in names:
            fn, asynchronous = self._find(name)
            value = fn(ctx, signal)
            # A plain function may return an awaitable as well: a lambda around a coroutine, an object with __await__.
            if asynchronous or hasattr(value, "__await__"):
                value = await value
            entry = ResultEntry(ctx.current_state, source, "action", name, value)
            ctx.results.append(entry)
            if ctx._observer is not None:
                await ctx._observer.told(entry)


class GuardRegistry(_Registry):
    """Guards by name."""

    def register(self, name: str, fn: GuardFn) -> None:
        """Register a guard; an earlier one of that name is replaced."""
        self._add(name, fn)

    def register_many(self, guards: dict[str, GuardFn]) -> None:
        """Register several guards."""
        for name, fn in guards.items():
            self._add(name, fn)

    async def evaluate(self, name: str | None, ctx: Context[Any], signal: Signal, source: Source) -> bool:
        """Return what a guard says, and record it; True for None, which is no guard.

        Raises:
            KeyError: there is none of that name.
            GuardError: it returned something else than a bool.
        """
        if name is None:
            return True
        fn, asynchronous = self._find(name)
        value = fn(ctx, signal)
        if asynchronous or hasattr(value, "__await__"):
            value = await value
        if not isinstance(value, bool):
            raise GuardError(f"Guard {name!r} must return bool, got {type(value).__name__!r}")
        entry = ResultEntry(ctx.current_state, source, "guard", name, value)
        ctx.results.append(entry)
        if ctx._observer is not None:
            await ctx._observer.told(entry)
        return value
