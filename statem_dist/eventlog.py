"""The event log of a run for readers: its events as plain data, page by page or as they come.

The history (``statem_dist.history``) tells one entry per move; the log is what it is folded from, event by event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from msgspec import to_builtins

from statem_dist.history import events_after, timestamp
from statem_dist.protocol.events import Event
from statem_dist.protocol.model import Run
from statem_dist.regression import state_regressed
from statem_dist.store.base import EventLog, Store
from statem_dist.store.watch import Watcher

WITHHELD = "(withheld)"
"""Stands for the value of a variable that a run was started with: logs are passed on, and such values are secrets."""

Tell = Callable[[int, Event], Sequence[dict[str, Any]]]
"""Makes of an event, given with its number, what is to be told of it; often nothing."""


def event_view(number: int, event: Event) -> dict[str, Any]:
    """Return an event as ``{"number", "ts", "event", "at", <its fields>}``; ``ts`` is ISO 8601 in UTC."""
    view: dict[str, Any] = {"number": number, "ts": timestamp(event.at), **to_builtins(event)}
    if env := view.get("place", {}).get("env"):
        view["place"]["env"] = dict.fromkeys(env, WITHHELD)
    return view


def event_log(log: EventLog, run: Run, limit: int | None = None, after: int | None = None) -> list[dict[str, Any]]:
    """Return the events of a run, oldest first.

    Args:
        log: where the events are kept.
        run: the run; the log ends with its version.
        limit: how many at the most; None means all.
        after: the number after which to begin. Without it a limit means the last ones, with it the first ones.
    """
    if after is None:
        after = 0 if limit is None else max(0, run.version - limit)
    return [event_view(number, event) for number, event in islice(events_after(log, run, after), limit)]


def new_events(
    store: Store, watcher: Watcher, run_id: str, after: int, pause: float
) -> Iterator[list[tuple[int, Event]]]:
    """Yield the events of a run after a number, and those to come, until it has ended.

    A list is yielded after each look at the run, an empty one if nothing is new, so that the caller can look
    whether anybody still listens. Watching moves nothing: work that a killed caller has left stays as it is.

    Args:
        store: where the run is kept.
        watcher: hears of new versions.
        run_id: the run.
        after: number of the last event that is known already.
        pause: look again after so many seconds at the latest, whatever was announced.

    Raises:
        StateRegressed: the run has fewer events than are known already: the store has lost writes.
    """
    with watcher.watch(run_id) as watch:
        while (snapshot := store.load(run_id)) is not None:
            run = snapshot.run
            if run.version < after:
                raise state_regressed(run_id, after, run.version)
            events = list(events_after(store, run, after))
            after = events[-1][0] if events else after
            yield events
            if run.ended:
                return
            watch.wait(run.version, pause)


def follow(heard: Iterable[list[tuple[int, Event]]], tell: Tell) -> Iterator[list[dict[str, Any]]]:
    """Yield what there is to tell of each list of events that is heard.

    Args:
        heard: what ``new_events`` yields.
        tell: what to make of an event.
    """
    for events in heard:
        yield [told for number, event in events for told in tell(number, event)]
