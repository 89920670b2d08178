"""Runs of a machine as AG-UI events: their order, what they say, and that a stream is a run like any other."""

from __future__ import annotations

import asyncio
import sys
from contextlib import aclosing
from contextvars import ContextVar
from typing import Any

import jsonpatch
import pytest
from ag_ui.core import BaseEvent, EventType
from hypothesis import given, settings
from hypothesis import strategies as st

from statem_dist.machine import Context, Signal, StateMachine, TransitionError
from tests.support.machines import STATES, configs, functions


def _machine(**more: Any) -> StateMachine:
    config = {
        "idle": {
            "on": {
                "ORDER": [
                    {"target": "sold_out", "guard": "no"},
                    {"target": "cooking", "guard": "yes", "actions": ["note"]},
                ],
                "ASK": {"target": "cooking", "guard": "no"},
                "STAY": {"target": "idle"},
                "BURN": {"target": "cooking", "actions": ["fail"]},
            },
            "exit": ["leave"],
            "error_state": "sold_out",
        },
        "cooking": {"always": [{"target": "idle", "guard": "no"}, {"target": "served"}], "entry": ["greet"]},
        "served": {"on": {"BREAK": {"target": "idle", "actions": ["fail"]}}},
        "sold_out": {},
        **more,
    }
    return StateMachine.from_dict(
        config,
        {
            "note": lambda ctx, signal: ctx.session.update(noted=True),
            "leave": lambda ctx, signal: {"bye": 1},
            "greet": lambda ctx, signal: object,
            "fail": lambda ctx, signal: 1 / 0,
        },
        {"yes": lambda ctx, signal: True, "no": lambda ctx, signal: False},
    )


def _told(event: BaseEvent) -> str:
    """Return an event in a few words."""
    dumped = event.model_dump(mode="json")
    match event.type:
        case EventType.STEP_STARTED | EventType.STEP_FINISHED:
            return f"{'begin' if event.type == EventType.STEP_STARTED else 'end'} {dumped['step_name']}"
        case EventType.STATE_SNAPSHOT:
            return f"state {dumped['snapshot']}"
        case EventType.STATE_DELTA:
            return f"delta {[(each['op'], each['path'], each.get('value')) for each in dumped['delta']]}"
        case _:
            content = dumped["content"]
            return f"{content['source']} {content['kind']} {content['name']} = {content['result']}"


def _events(machine: StateMachine, *signals: str, state: str = "idle", **options: Any) -> list[BaseEvent]:
    async def collect() -> list[BaseEvent]:
        session: dict[str, Any] = {}
        events = [Signal(name) for name in signals]
        return [event async for event in machine.stream(state_name=state, events=events, session=session, **options)]

    return asyncio.run(collect())


def test_order_of_a_step() -> None:
    """Refused guards come before their step, the guard that passed and the actions in it, and a cascade has its own."""
    assert [_told(event) for event in _events(_machine(), "ORDER")] == [
        "on guard no = False",
        "begin ORDER",
        "state {'current_state': 'idle'}",
        "on guard yes = True",
        "on action note = None",
        "exit action leave = {'bye': 1}",
        "entry action greet = <class 'object'>",
        "delta [('replace', '/current_state', 'cooking')]",
        "end ORDER",
        "always guard no = False",
        "begin __always__",
        "state {'current_state': 'cooking'}",
        "delta [('replace', '/current_state', 'served')]",
        "end __always__",
    ]


def test_nothing_happens() -> None:
    """A signal that matches nothing gives no events, nor does one whose guards refused it, unless a step is wanted."""
    assert _events(_machine(), "UNHEARD") == []
    assert _events(_machine(), "ASK") == []
    assert _events(_machine(), "UNHEARD", rejected="step") == []
    assert [_told(event) for event in _events(_machine(), "ASK", rejected="step")] == [
        "begin ASK",
        "state {'current_state': 'idle'}",
        "on guard no = False",
        "end ASK",
    ]


def test_no_delta_where_nothing_changed() -> None:
    """A step into the same state has no delta."""
    assert [_told(event) for event in _events(_machine(), "STAY")] == [
        "begin STAY",
        "state {'current_state': 'idle'}",
        "exit action leave = {'bye': 1}",
        "end STAY",
    ]


def test_state_of_the_caller() -> None:
    """What the accessor gives is shown, and the patch turns one snapshot into the next although the session is one."""
    events = _events(_machine(), "ORDER", state_accessor=lambda session: {"session": session})
    assert "delta [('add', '/session/noted', True)]" in [_told(event) for event in events]
    assert _told(events[2]) == "state {'session': {}}"


def test_error_state_is_the_end_of_the_step() -> None:
    """An action that raises leads to the error state within its own step."""
    assert [_told(event) for event in _events(_machine(), "BURN")][2:] == [
        "exit action leave = {'bye': 1}",
        "delta [('replace', '/current_state', 'sold_out')]",
        "end BURN",
    ]


def test_exceptions_come_out() -> None:
    """What a run would raise comes out of the iteration, after what was told before."""

    told: list[str] = []

    async def collect() -> None:
        async for event in _machine().stream(state_name="served", events=Signal("BREAK"), session={}):
            told.append(_told(event))

    with pytest.raises(TransitionError):
        asyncio.run(collect())
    assert told == ["begin BREAK", "state {'current_state': 'served'}"]


def test_unknown_state_and_options() -> None:
    """A state that there is not is a KeyError, a word for ``rejected`` that there is not a ValueError."""
    with pytest.raises(KeyError):
        _events(_machine(), "ORDER", state="nowhere")
    with pytest.raises(ValueError, match="rejected"):
        _events(_machine(), "ORDER", rejected="both")


def test_closing_early_ends_the_run() -> None:
    """Whoever stops asking stops the machine: no later action is executed, no task and no coroutine is left."""
    done: list[str] = []
    config = {"a": {"on": {"X": {"target": "b", "actions": ["first", "second"]}}}, "b": {}}

    async def first(ctx: Context[Any], signal: Signal) -> None:
        await asyncio.sleep(0)
        done.append("first")

    machine = StateMachine.from_dict(config, {"first": first, "second": lambda ctx, signal: done.append("second")})

    async def look() -> None:
        async with aclosing(machine.stream(state_name="a", events=Signal("X"), session=None)) as stream:
            async for event in stream:
                if event.type == EventType.ACTIVITY_SNAPSHOT:
                    break
        never_asked = machine.stream(state_name="a", events=Signal("X"), session=None)
        del never_asked
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(look())
    assert done == ["first"]


def test_same_task_and_context() -> None:
    """Guards and actions of a stream run in the task of whoever iterates, see its context, and can be timed out."""
    where: ContextVar[str] = ContextVar("where")
    seen: list[Any] = []

    async def look(ctx: Context[Any], signal: Signal) -> None:
        seen.append((where.get(), asyncio.current_task(), ctx.is_stream))
        await asyncio.sleep(signal.data.get("seconds", 0))

    machine = StateMachine.from_dict({"a": {"on": {"X": {"target": "a", "actions": ["look"]}}}}, {"look": look})

    async def iterate() -> None:
        where.set("here")
        async for _ in machine.stream(state_name="a", events=Signal("X"), session=None):
            pass
        await machine.run(state_name="a", events=Signal("X"), session=None)
        assert seen == [("here", asyncio.current_task(), True), ("here", asyncio.current_task(), False)]

    async def wait() -> None:
        async with asyncio.timeout(0.01):
            async for _ in machine.stream(state_name="a", events=Signal("X", {"seconds": 60}), session=None):
                pass

    asyncio.run(iterate())
    where.set("here")
    with pytest.raises(TimeoutError):
        asyncio.run(wait())


def test_many_streams_of_one_machine() -> None:
    """Runs of the same machine that happen at the same time have nothing to do with each other."""

    async def one(number: int) -> list[str]:
        events = [Signal("ORDER"), Signal("ASK")]
        stream = _shared.stream(state_name="idle", events=events, session={}, run_id=str(number))
        return [_told(event) async for event in stream]

    _shared = _machine()

    async def all_of_them() -> list[list[str]]:
        return await asyncio.gather(*(one(number) for number in range(20)))

    alone, *others = asyncio.run(all_of_them())
    assert alone
    assert all(other == alone for other in others)


def test_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the extra, asking for a stream says what to install."""
    monkeypatch.delitem(sys.modules, "statem_dist.machine.streaming", raising=False)
    monkeypatch.setitem(sys.modules, "ag_ui.core", None)
    with pytest.raises(ImportError, match=r"statem-dist\[agui\]"):
        _machine().stream(state_name="idle", events=[], session={})


@settings(max_examples=100, deadline=None)
@given(
    config=configs(),
    start=st.sampled_from(STATES),
    signals=st.lists(st.sampled_from(("X", "X", "Y", "Z")), max_size=5),
    rejected=st.sampled_from(("none", "step")),
)
def test_a_stream_is_a_run(config: dict[str, Any], start: str, signals: list[str], rejected: Any) -> None:
    """A stream does to the session what a run does and raises what it raises; its steps are whole and make sense."""
    actions, guards = functions()
    machine = StateMachine.model_construct()
    try:
        machine = StateMachine.from_dict(config, actions, guards)
    except ValueError:
        return

    async def both() -> tuple[tuple[Any, ...], tuple[Any, ...], list[BaseEvent]]:
        told: list[BaseEvent] = []
        sessions: list[dict[str, Any]] = [{}, {}]
        ends: list[Any] = [None, None]
        events = [Signal(name) for name in signals]
        try:
            await machine.run(run_id="r", state_name=start, events=events, session=sessions[0])
        except Exception as error:
            ends[0] = repr(error)
        stream = machine.stream(
            run_id="r", state_name=start, events=events, session=sessions[1], state_accessor=dict, rejected=rejected
        )
        try:
            async for event in stream:
                told.append(event)
        except Exception as error:
            ends[1] = repr(error)
        return (sessions[0], ends[0]), (sessions[1], ends[1]), told

    ran, streamed, told = asyncio.run(both())
    assert ran == streamed
    _require_order(told, finished=streamed[1] is None)


def _require_order(told: list[BaseEvent], finished: bool) -> None:
    """Assert that events come in the order that is documented, and that every patch fits its snapshot."""
    step: str | None = None
    snapshot: Any = None
    expected = ""
    for event in told:
        dumped = event.model_dump(mode="json")
        match event.type:
            case EventType.STEP_STARTED:
                assert step is None
                step, expected = dumped["step_name"], "snapshot"
            case EventType.STATE_SNAPSHOT:
                assert expected == "snapshot"
                snapshot, expected = dumped["snapshot"], "anything"
            case EventType.ACTIVITY_SNAPSHOT:
                content = dumped["content"]
                refused = (content["kind"], content["result"]) == ("guard", False)
                assert expected == "anything" if step is not None else refused
            case EventType.STATE_DELTA:
                assert expected == "anything"
                assert dumped["delta"]
                assert jsonpatch.apply_patch(snapshot, dumped["delta"]) != snapshot
                expected = "end"
            case EventType.STEP_FINISHED:
                assert expected in ("anything", "end")
                assert dumped["step_name"] == step
                step, expected = None, ""
            case other:
                raise AssertionError(f"never told: {other}")
    assert step is None or not finished
