"""Random graphs for the event-driven machine, and functions that do everything a guard or an action may do."""

from __future__ import annotations

import asyncio
import functools
from typing import Any

from hypothesis import strategies as st

STATES = ("a", "b", "a b", "9")
EVENTS = ("X", "Y", "*", "Z")
GUARDS = ("yes", "no", "async_yes", "async_no", "one", "none", "async_text", "raises", "by_data", "by_count")
CALM = ("count", "async_count", "gives", "sees", "partial")
"""Actions that raise nothing."""

ACTIONS = (*CALM, "raises", "async_raises", "raises_guard_error")


def rarely(usual: tuple[Any, ...], odd: str) -> st.SearchStrategy[Any]:
    """Return the usual names, and once in some fifty the odd one."""
    return st.integers(0, 49).flatmap(lambda number: st.just(odd) if number == 49 else st.sampled_from(usual))


def candidates() -> st.SearchStrategy[dict[str, Any]]:
    """Return candidates of a transition; a few lead to a state that there is not, or name an unknown function."""
    return st.fixed_dictionaries(
        {"target": rarely(STATES, "nowhere")},
        optional={
            "guard": rarely((None, "yes", "async_yes", "by_count", *GUARDS), "unknown"),
            "actions": st.lists(rarely((*CALM, *CALM, *ACTIONS), "unknown"), max_size=3),
            "note": st.just("an extra field"),
        },
    )


def entries() -> st.SearchStrategy[Any]:
    """Return what may stand for an event: a name, a candidate, or a list of both."""
    one = st.one_of(st.sampled_from(STATES), candidates())
    return st.one_of(one, st.lists(one, min_size=1, max_size=3), st.just([]))


def configs() -> st.SearchStrategy[dict[str, Any]]:
    """Return graphs."""
    state = st.fixed_dictionaries(
        {"on": st.dictionaries(st.sampled_from(EVENTS), entries(), min_size=1, max_size=3)},
        optional={
            "always": st.lists(candidates(), min_size=1, max_size=2),
            "entry": st.lists(st.sampled_from(CALM * 3 + ACTIONS), min_size=1, max_size=2),
            "exit": st.lists(st.sampled_from(CALM * 3 + ACTIONS), min_size=1, max_size=2),
            "error_state": st.sampled_from((None, *STATES)),
            "role": st.just("an extra field"),
        },
    )
    return st.fixed_dictionaries(dict.fromkeys(STATES, state))


def functions() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return actions and guards by name."""

    def counted(ctx: Any, signal: Any) -> int:
        ctx.session["count"] = ctx.session.get("count", 0) + 1
        return int(ctx.session["count"])

    async def counted_later(ctx: Any, signal: Any) -> int:
        await asyncio.sleep(0)
        return counted(ctx, signal)

    async def partly(extra: str, ctx: Any, signal: Any) -> str:
        return f"{extra} {signal.event}"

    async def later(value: Any, ctx: Any, signal: Any) -> Any:
        await asyncio.sleep(0)
        return value

    def fails(ctx: Any, signal: Any) -> None:
        raise LookupError(f"in {ctx.current_state} for {signal.event}")

    async def fails_later(ctx: Any, signal: Any) -> None:
        await asyncio.sleep(0)
        fails(ctx, signal)

    def fails_like_a_guard(ctx: Any, signal: Any) -> None:
        raise TypeError("not by a guard")

    actions = {
        "count": counted,
        "async_count": counted_later,
        "gives": lambda ctx, signal: {"state": ctx.current_state, "data": signal.data},
        "raises": fails,
        "async_raises": fails_later,
        "raises_guard_error": fails_like_a_guard,
        "sees": lambda ctx, signal: (list(ctx.history), len(ctx.results), ctx.run_id, signal.event),
        "partial": functools.partial(partly, "seen"),
    }
    guards = {
        "yes": lambda ctx, signal: True,
        "no": lambda ctx, signal: False,
        "async_yes": functools.partial(later, True),
        "async_no": functools.partial(later, False),
        "one": lambda ctx, signal: 1,
        "none": lambda ctx, signal: None,
        "async_text": functools.partial(later, "yes"),
        "raises": fails,
        "by_data": lambda ctx, signal: bool(signal.data.get("go")),
        "by_count": lambda ctx, signal: ctx.session.get("count", 0) % 2 == 0,
    }
    return actions, guards
