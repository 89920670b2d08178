"""The machine beside the package whose rules it follows: ``statem`` 0.2.0 from PyPI, on random graphs.

``MACHINE_EXAMPLES=20000 pytest tests/unit/test_machine_oracle.py`` tries more of them.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any, NamedTuple

import statem
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

import statem_dist.machine
from tests.support.machines import ACTIONS, GUARDS, STATES, configs, functions, rarely

EXAMPLES = int(os.environ.get("MACHINE_EXAMPLES", "300"))


class Ran(NamedTuple):
    """What is compared of a run."""

    outcome: tuple[str, ...]
    history: list[str]
    results: list[tuple[Any, ...]]
    session: dict[str, Any]
    text: str | None


def made(library: Any, config: dict[str, Any], checked: bool) -> Any:
    """Return a machine of a library, with its functions registered before or after the graph was checked."""
    actions, guards = functions()
    if checked:
        return library.StateMachine.from_dict(config, actions, guards)
    machine = library.StateMachine.from_dict(config)
    machine.actions.register_many(actions)
    machine.guards.register_many(guards)
    return machine


def ran(library: Any, machine: Any, start: str, signals: list[tuple[str, dict[str, Any]]]) -> Ran:
    """Return what became of a run, whose context is caught by a spying session."""
    seen: list[Any] = []

    class Session(dict[str, Any]):
        """A session that remembers nothing of itself."""

    session = Session()
    for registry in (machine.actions, machine.guards):
        for name in (*ACTIONS, *GUARDS):
            if registry.has(name):
                _spy(registry, name, seen)
    events = [library.Signal(event=event, data=dict(data)) for event, data in signals]
    outcome: tuple[str, ...]
    try:
        outcome = (
            "done",
            asyncio.run(
                machine.run(
                    run_id="r", state_name=start, events=events[0] if len(events) == 1 else events, session=session
                )
            ),
        )
    except Exception as error:
        cause = error.__cause__
        outcome = (*_named(error), *(_named(cause) if cause is not None else ()))
    context = seen[-1] if seen else None
    if context is None:
        return Ran(outcome, [], [], dict(session), None)
    once = len(set(context.history)) == len(context.history)
    return Ran(
        outcome,
        list(context.history),
        [tuple(entry) for entry in context.results],
        dict(session),
        library.show_transitions(context) if once else None,
    )


def _spy(registry: Any, name: str, seen: list[Any]) -> None:
    """Have a registered function show its context, whatever becomes of the call."""
    actions, guards = functions()
    fn = (guards if hasattr(registry, "evaluate") else actions)[name]
    if asyncio.iscoroutinefunction(fn):

        async def spied_later(ctx: Any, signal: Any) -> Any:
            seen.append(ctx)
            return await fn(ctx, signal)

        registry.register(name, spied_later)
    else:

        def spied(ctx: Any, signal: Any) -> Any:
            seen.append(ctx)
            return fn(ctx, signal)

        registry.register(name, spied)


def _named(error: BaseException) -> tuple[str, str]:
    return type(error).__name__, str(error)


@settings(max_examples=EXAMPLES, deadline=None)
@given(
    config=configs(),
    start=rarely(STATES, "nowhere"),
    signals=st.lists(
        st.tuples(st.sampled_from(("X", "X", "Y", "Y", "Z", "*")), st.sampled_from(({}, {"go": True}))), max_size=6
    ),
    checked=st.booleans(),
)
def test_runs_are_equal(
    config: dict[str, Any], start: str, signals: list[tuple[str, dict[str, Any]]], checked: bool
) -> None:
    """Both libraries refuse the same graphs, and make the same of every run: state, history, results, errors."""
    theirs, refused = _made_or_refused(statem, config, checked)
    ours, refused_here = _made_or_refused(statem_dist.machine, config, checked)
    assert refused_here == refused
    if refused is not None:
        return
    assert statem_dist.machine.to_mermaid(ours, initial=start) == statem.to_mermaid(theirs, initial=start)
    for name in STATES:
        known = [event for event in theirs.available_events(name) if event != "*"]
        assert ours.available_events(name) == known
        assert ours.config[name].accepts_wildcard == theirs.config[name].accepts_wildcard
    assert ours.model_dump()["config"] == theirs.model_dump()["config"]
    assert ran(statem_dist.machine, ours, start, signals) == ran(statem, theirs, start, signals)


def _made_or_refused(library: Any, config: dict[str, Any], checked: bool) -> tuple[Any, Any]:
    """Return a machine, or what a library says against its graph."""
    try:
        return made(library, config, checked), None
    except ValidationError as error:
        return None, [(each["type"], each["msg"]) for each in error.errors()]
    except ValueError as error:
        return None, str(error)
