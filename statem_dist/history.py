"""The history of a run as readers want it: one entry per move, folded from the events that made it.

The event log is finer: a ``goto`` is opened, its checks settle one by one, the run enters a node, the
transition settles. Reading the last entries therefore folds backwards, from the newest event to the opening of
the oldest transition asked for, and costs what those transitions cost, however long the history is. Paging
through a history and following it fold forwards.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import dropwhile
from typing import Any, TypeAlias

from msgspec import Struct

from statem_dist.protocol.events import (
    Event,
    NodeEntered,
    Recovered,
    RunCancelled,
    RunCreated,
    RunImported,
    RunPaused,
    RunRebound,
    RunRestarted,
    RunUnpaused,
    TransitionOpened,
    TransitionSettled,
)
from statem_dist.protocol.evolve import evolve
from statem_dist.protocol.model import SCHEMA, Actor, Place, Run, Transition
from statem_dist.store.base import EventLog
from statem_dist.views import dynamic_facts, goto_facts, result_views, stopping_results, token_fact

PAGE = 200
"""Events read at a time."""


class Move(Struct, frozen=True):
    """A transition as it is told in a history: the number of the event that opened it, what it was, the
    entry that it made, if it moved the run, who cancelled it, if somebody did, and how operators took it out of unknown
    outcomes."""

    number: int
    transition: Transition
    entry_id: str | None
    cancelled_by: Actor | None = None
    recoveries: tuple[Recovered, ...] = ()


class Rebinding(Struct, frozen=True):
    """A change of the runbook that a run follows, with the number of its event."""

    number: int
    event: RunRebound


class Imported(Struct, frozen=True):
    """The beginning of a run that StateM began, with the number of its event."""

    number: int
    event: RunImported


class Steering(Struct, frozen=True):
    """That a run was paused, let go on, cancelled or restarted, with the number of its event."""

    number: int
    event: RunPaused | RunUnpaused | RunCancelled | RunRestarted


Told: TypeAlias = Move | Rebinding | Steering | Imported
"""What a history tells of: everything after the creation of a run."""


def moves(log: EventLog, run: Run) -> Iterator[Told]:
    """Yield what happened to a run after its creation, newest first, the open transition included.

    A transition stands where it was opened: a pause in the middle of it comes after it.
    """
    gathered: list[Event] = []
    before: int | None = None
    while True:
        page = log.latest_events(run.id, before, PAGE)
        for number, event in page:
            before = number
            if isinstance(event, RunCreated):
                return
            if isinstance(event, RunImported):
                yield Imported(number, event)
                return
            if isinstance(event, RunRebound):
                yield Rebinding(number, event)
                continue
            if isinstance(event, RunPaused | RunUnpaused | RunCancelled | RunRestarted):
                yield Steering(number, event)
                continue
            gathered.append(event)
            if isinstance(event, TransitionOpened):
                yield _fold(run, number, list(reversed(gathered)))
                gathered = []
        if not page:
            return


def find_transition(log: EventLog, run: Run, transition_id: str) -> Transition | None:
    """Return a transition of a run by its id, also one that later ones have followed."""
    if run.transition is not None and run.transition.id == transition_id:
        return run.transition
    if not _was_made(run, transition_id):
        return None
    told = (move.transition for move in moves(log, run) if isinstance(move, Move))
    return next((transition for transition in told if transition.id == transition_id), None)


def _was_made(run: Run, transition_id: str) -> bool:
    """Return whether a run can have made a transition of that id: whoever asks for another is not worth a search."""
    number = transition_id.removeprefix("t")
    return number.isdecimal() and 0 < int(number) <= run.transitions


def history(log: EventLog, run: Run, limit: int | None = None, after: int | None = None) -> list[dict[str, Any]]:
    """Return the entries of a run's history, oldest first.

    Args:
        log: where the events are kept.
        run: the run.
        limit: how many at the most; None means all.
        after: the number of an event: only what began after it. Without it a limit means the last entries. With it,
            it means the first ones, of which those of one event stay together, also beyond the limit, so that the
            ``number`` of the last one is where to go on.

    Each entry is a mapping with ``event``, ``ts`` (ISO 8601, UTC) and the fields of its kind: ``start``,
    ``resume``, ``rebind``, ``migrate_current``, ``in_hook``, ``goto``, ``goto_blocked``, ``goto_cancelled``,
    ``goto_error``, ``save``, ``save_blocked``, ``paused``, ``unpaused``, ``run_cancelled``, ``restart``, ``import``.
    What an operator did about an unknown outcome stands in ``recovered`` of the entry that it belongs to.
    What stands before an ``import`` was written by StateM. What happened while a transition was open is told after it,
    and neither is told before that has settled: so the numbers rise, and a page may end with any of them.
    """
    if after is not None:
        return _page(log, run, after, limit)
    newest_first: list[dict[str, Any]] = []
    for move in _since_open_transition(log, run):
        match move:
            case Imported():
                newest_first += reversed(_imported_entries(move))
            case Rebinding():
                newest_first += reversed(_rebinding_entries(move))
            case Steering():
                newest_first.append(_steering_entry(move))
            case Move() if not move.transition.open:
                newest_first += reversed(_entries(move))
        if limit is not None and len(newest_first) >= limit:
            break
    oldest_first = newest_first[::-1]
    return oldest_first if limit is None else oldest_first[-limit:] if limit else []


def _since_open_transition(log: EventLog, run: Run) -> Iterator[Told]:
    """Yield what happened to a run, newest first, from its open transition on, if one is open."""
    told = moves(log, run)
    return told if run.in_flight is None else dropwhile(lambda each: not isinstance(each, Move), told)


class Teller:
    """Tells a history forwards: takes the events of a run in order, and tells each entry once it is complete.

    It may begin anywhere: what is left of a transition that was opened before is passed over.
    """

    def __init__(self, run: Run) -> None:
        self._run = run
        self._opened_as = 0
        self._gathered: list[Event] = []
        self._put_off: list[dict[str, Any]] = []

    def tell(self, number: int, event: Event) -> list[dict[str, Any]]:
        """Return the entries that an event completes, oldest first."""
        if isinstance(event, RunImported):
            return _imported_entries(Imported(number, event))
        if isinstance(event, RunRebound):
            return _rebinding_entries(Rebinding(number, event))
        if isinstance(event, RunPaused | RunUnpaused | RunCancelled | RunRestarted):
            entry = _steering_entry(Steering(number, event))
            if not self._gathered:
                return [entry]
            self._put_off.append(entry)
            return []
        if isinstance(event, TransitionOpened):
            self._opened_as, self._gathered = number, [event]
            return []
        if self._gathered:
            self._gathered.append(event)
            if isinstance(event, TransitionSettled):
                move = _fold(self._run, self._opened_as, self._gathered)
                told = [*_entries(move), *self._put_off]
                self._gathered, self._put_off = [], []
                return told
        return []


def events_after(log: EventLog, run: Run, after: int) -> Iterator[tuple[int, Event]]:
    """Yield the events of a run with their numbers, oldest first, from after a number up to the run's version."""
    while after < run.version:
        page = log.events(run.id, after=after, limit=min(PAGE, run.version - after))
        yield from page
        if not page:
            return
        after = page[-1][0]


def last_told(log: EventLog, run: Run) -> int:
    """Return the number of the last event that the entries of a history cover: the open transition is not told."""
    if run.in_flight is None:
        return run.version
    return next(_since_open_transition(log, run)).number - 1


def visited_nodes(log: EventLog, run: Run) -> frozenset[str]:
    """Return the names of the nodes that a run has stood on, the current one included."""
    arrivals = (RunCreated, RunImported, RunRebound, RunRestarted, NodeEntered)
    return frozenset(event.node for _, event in events_after(log, run, 0) if isinstance(event, arrivals))


def _page(log: EventLog, run: Run, after: int, limit: int | None) -> list[dict[str, Any]]:
    teller = Teller(run)
    entries: list[dict[str, Any]] = []
    for number, event in events_after(log, run, after):
        if limit is not None and len(entries) >= limit:
            break
        entries += teller.tell(number, event)
    return entries


def _fold(run: Run, number: int, events: list[Event]) -> Move:
    """Fold the events of one transition on a stand-in for the run as it was before."""
    opened = events[0]
    assert isinstance(opened, TransitionOpened)
    before = Run(
        id=run.id,
        runbook=run.runbook,
        runbook_name=run.runbook_name,
        place=Place(workspace=""),
        node=opened.source,
        entry_id="",
        created_at=0,
        updated_at=0,
        version=number - 1,
        schema=SCHEMA,
    )
    for event in events:
        before = evolve(before, event)
    assert before.transition is not None
    entry = next((event.entry_id for event in events if isinstance(event, NodeEntered)), None)
    ended_by = next((event.by for event in events if isinstance(event, TransitionSettled)), None)
    return Move(
        number=number,
        transition=before.transition,
        entry_id=entry,
        cancelled_by=ended_by if before.transition.outcome == "cancelled" else None,
        recoveries=tuple(event for event in events if isinstance(event, Recovered)),
    )


def _rebinding_entries(rebinding: Rebinding) -> list[dict[str, Any]]:
    event = rebinding.event
    facts = {"ts": timestamp(event.at), "number": rebinding.number}
    told: list[dict[str, Any]] = [
        {"event": "rebind", **facts, "previous_hash": event.previous, "spec_hash": event.runbook}
    ]
    if event.migrated_from is not None:
        moved = {"from": event.migrated_from, "to": event.node, "current_entry_id": event.entry_id}
        told.append({"event": "migrate_current", **facts, **moved})
    return told


def _steering_entry(steering: Steering) -> dict[str, Any]:
    event = steering.event
    stamp = {"ts": timestamp(event.at), "number": steering.number}
    match event:
        case RunPaused():
            return {"event": "paused", **stamp, "reason": event.reason, "by": event.by.id}
        case RunUnpaused():
            return {"event": "unpaused", **stamp, "by": event.by.id}
        case RunCancelled():
            facts = {"reason": event.reason, "by": event.by.id, "terminated": event.terminated}
            return {"event": "run_cancelled", **stamp, **facts}
        case RunRestarted():
            where = {"current": event.node, "current_entry_id": event.entry_id, "by": event.by.id}
            return {"event": "restart", **stamp, **where, "previous_hash": event.previous, "spec_hash": event.runbook}


def _imported_entries(imported: Imported) -> list[dict[str, Any]]:
    event = imported.event
    arrival = {
        "event": "import",
        "ts": timestamp(event.at),
        "number": imported.number,
        "current": event.node,
        "current_entry_id": event.entry_id,
        "source": event.source,
        "recorded_hash": event.recorded_hash,
        "entries": len(event.history),
        "left_out": event.left_out,
    }
    return [*event.history, arrival]


def _entries(move: Move) -> list[dict[str, Any]]:
    transition = move.transition
    stamp = timestamp(transition.settled_at or transition.opened_at)
    number = move.number
    match transition.kind:
        case "start" | "resume":
            began = timestamp(transition.opened_at)
            return [
                {"event": transition.kind, "ts": began, "number": number, "current": transition.source},
                {
                    "event": "in_hook",
                    "ts": stamp,
                    "number": number,
                    "node": transition.source,
                    "reason": transition.kind,
                    **_recoveries(move),
                    "results": result_views(transition),
                },
            ]
        case "save":
            return [
                {
                    "event": "save" if transition.outcome == "committed" else "save_blocked",
                    "ts": stamp,
                    "number": number,
                    "node": transition.source,
                    "skip_hooks": transition.skip_hooks,
                    **_why(move),
                    **_recoveries(move),
                    "results": result_views(transition),
                }
            ]
        case "goto":
            told = [{"ts": stamp, "number": number, **_goto_entry(move)}]
            if transition.dynamic_producers is not None and not transition.exhausted:
                told.insert(0, _dynamic_entry(move, stamp))
            return told


def _dynamic_entry(move: Move, stamp: str) -> dict[str, Any]:
    transition = move.transition
    return {
        "event": "dynamic_before_transfer",
        "ts": stamp,
        "number": move.number,
        "node": transition.source,
        "to": transition.target,
        **dynamic_facts(transition),
    }


def _goto_entry(move: Move) -> dict[str, Any]:
    transition = move.transition
    facts = {"from": transition.source, "to": transition.target, **goto_facts(transition)}
    if transition.outcome in ("committed", "error") and transition.entered:
        return {
            "event": "goto",
            **facts,
            **({"stage": transition.stage} if transition.stage else {}),
            **_why(move),
            **_recoveries(move),
            "current_entry_id": move.entry_id,
            "before_transfer": result_views(transition, "before_transfer"),
            "condition": result_views(transition, "condition"),
            "out_hook": result_views(transition, "out_hook"),
            "edge_hook": result_views(transition, "hook"),
            "in_hook": result_views(transition, "in_hook"),
        }
    return {
        "event": f"goto_{transition.outcome}",
        **facts,
        "stage": transition.stage,
        **_why(move),
        **_recoveries(move),
        "results": stopping_results(transition),
    }


def _why(move: Move) -> dict[str, Any]:
    """Return the reason of a transition that was cancelled or could not be evaluated, and who cancelled it."""
    reason = {"reason": move.transition.reason} if move.transition.reason else {}
    by = move.cancelled_by
    return reason | ({"by": by.id, **token_fact(by.token)} if by is not None else {})


def _recoveries(move: Move) -> dict[str, Any]:
    """Return how a transition was taken out of unknown outcomes, oldest first; nothing if there was none."""
    told = [
        {
            "ts": timestamp(each.at),
            "way": each.way,
            "checks": list(each.checks),
            "reason": each.reason,
            "by": each.by.id,
            **token_fact(each.by.token),
        }
        for each in move.recoveries
    ]
    return {"recovered": told} if told else {}


def timestamp(at: int) -> str:
    """Return a time in ms since the epoch as ISO 8601 in UTC, to the millisecond."""
    return datetime.fromtimestamp(at / 1000, tz=UTC).isoformat(timespec="milliseconds")
