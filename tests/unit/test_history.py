"""Histories and event logs as readers see them: the last entries, page by page, and as they come."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec.structs import replace

from statem_dist import history as history_module
from statem_dist.coordinator import Coordinator
from statem_dist.dispatch import NoDispatch
from statem_dist.eventlog import WITHHELD, event_log, event_view, follow, new_events
from statem_dist.history import (
    Move,
    Rebinding,
    Teller,
    find_transition,
    history,
    last_told,
    moves,
    timestamp,
    visited_nodes,
)
from statem_dist.protocol.commands import (
    Cancel,
    CancelRun,
    ClaimWork,
    Command,
    Goto,
    Pause,
    RecordOutcomes,
    Restart,
    Resume,
    Save,
    Start,
    Unpause,
)
from statem_dist.protocol.graph import Edge, Node, Retry, Runbook
from statem_dist.protocol.model import Actor, Place, Run
from statem_dist.protocol.outcome import Outcome
from statem_dist.settings import Settings
from statem_dist.store.watch import Watcher
from tests.support.builders import AGENT, EPOCH, FAILED, PASSED, PLACE, WORKER, failure, loop, one_by_one, shell
from tests.support.memory_store import MemoryStore


class Site:
    """One run ``r`` in memory, and its history. Each command comes a second after the one before."""

    def __init__(self, runbook: Runbook | None = None, place: Place = PLACE) -> None:
        gate = replace(shell(), retry=Retry(maximum_attempts=1))
        self.runbook = runbook or loop(Node("a", before_transfer=one_by_one(gate)), Edge("a", "b", max_attempts=2))
        self.store = MemoryStore(EPOCH)
        self._coordinator = Coordinator(self.store, NoDispatch(), Settings(state_dir=Path("/unused")))
        self.apply(Start(run_id="r", runbook=self.runbook, place=place, by=AGENT))

    @property
    def run(self) -> Run:
        """The run as it is."""
        return self.store.runs["r"].run

    def apply(self, command: Command) -> None:
        """Apply a command."""
        self.store.now += 1000
        self._coordinator.apply("r", command)

    def goto(self, target: str, *outcomes: Outcome) -> None:
        """Attempt a transition, and report what came of its gate."""
        self.apply(Goto(runbook=self.runbook, target=target, by=AGENT))
        if outcomes:
            transition = f"t{self.run.transitions}"
            self.apply(ClaimWork(transition=transition, check="before_transfer.0", worker=WORKER))
            assert self.run.transition is not None
            token = self.run.transition.token
            self.apply(RecordOutcomes(transition=transition, token=token, worker=WORKER, outcomes=outcomes))

    def told(self, *names: str, limit: int | None = None) -> list[Any]:
        """Return those fields of each entry of the history."""
        return [tuple(entry.get(name) for name in names) for entry in history(self.store, self.run, limit)]

    def events(self, limit: int | None = None) -> list[str]:
        """Return the kinds of the entries."""
        return [event for (event,) in self.told("event", limit=limit)]


def busy() -> Site:
    """Return a run to which much has happened."""
    site = Site()
    site.goto("b", FAILED)
    site.goto("b", PASSED)
    site.apply(Save(runbook=site.runbook, by=AGENT))
    site.goto("a")
    site.goto("b", failure("spawn_failed"))
    site.apply(Goto(runbook=site.runbook, target="b", by=AGENT))
    site.apply(Cancel(transition=f"t{site.run.transitions}", reason="enough", by=AGENT))
    site.goto("b", FAILED)
    site.goto("b", FAILED)
    site.goto("b")
    return site


BUSY = [
    "start",
    "in_hook",
    "goto_blocked",
    "goto",
    "save",
    "goto",
    "goto_error",
    "goto_cancelled",
    "goto_blocked",
    "goto_blocked",
    "goto_blocked",
]


def test_each_move_is_told_once_in_order() -> None:
    """One entry per settled transition, oldest first; a start tells its ``in_hook``, too."""
    site = busy()
    assert site.events() == BUSY
    assert site.told("event", "from", "to", "stage")[-6:] == [
        ("goto", "b", "a", None),
        ("goto_error", "a", "b", "before_transfer"),
        ("goto_cancelled", "a", "b", None),
        ("goto_blocked", "a", "b", "before_transfer"),
        ("goto_blocked", "a", "b", "before_transfer"),
        ("goto_blocked", "a", "b", "max_attempts"),
    ]


def test_what_did_not_end_by_itself_says_why() -> None:
    """A cancelled transition has the reason and who gave it; one that could not be evaluated has its reason."""
    told = {entry["event"]: entry for entry in history(busy().store, busy().run)}
    assert (told["goto_cancelled"]["reason"], told["goto_cancelled"]["by"]) == ("enough", AGENT.id)
    assert told["goto_error"]["reason"] == "spawn_failed"
    assert "by" not in told["goto_error"], "nobody ended it"
    assert not {"reason", "by"} & (told["goto"].keys() | told["goto_blocked"].keys())


def test_the_token_behind_a_cancellation_is_told() -> None:
    """In the entry beside who cancelled, and in the events beside every actor who came by the service."""
    site = Site()
    by = Actor(id="bob", token="3f")
    site.apply(Goto(runbook=site.runbook, target="b", by=by))
    site.apply(Cancel(transition="t2", reason="enough", by=by))
    (entry,) = history(site.store, site.run, 1)
    assert (entry["by"], entry["token"]) == ("bob", "3f")
    actors = {event["event"]: event["by"] for event in event_log(site.store, site.run) if "by" in event}
    assert actors["transition_opened"] == actors["transition_settled"] == {"id": "bob", "token": "3f"}
    assert "token" not in actors["run_created"]


def test_a_move_whose_in_hook_failed_says_so() -> None:
    """It is a move all the same; its stage names the hook."""
    site = Site(loop(Node("a"), in_hook=one_by_one(replace(shell(), retry=Retry(maximum_attempts=1)))))
    site.goto("b")
    site.apply(ClaimWork(transition="t2", check="in_hook.0", worker=WORKER))
    assert site.run.transition is not None
    token = site.run.transition.token
    site.apply(RecordOutcomes(transition="t2", token=token, worker=WORKER, outcomes=(FAILED,)))
    assert site.told("event", "stage")[-1] == ("goto", "in_hook")


def test_an_entry_has_the_number_of_the_event_that_opened_it() -> None:
    """The number of an entry leads to its first event, and numbers rise."""
    site = busy()
    numbers = [number for (number,) in site.told("number")]
    opening = dict(site.store.events("r"))
    assert numbers == sorted(numbers)
    assert all(type(opening[number]).__name__ == "TransitionOpened" for number in numbers)


def test_a_goto_names_the_entry_that_it_made() -> None:
    """A move that committed has the id of the new entry; each differs."""
    site = busy()
    entries = [entry for event, entry in site.told("event", "current_entry_id") if event == "goto"]
    assert len(set(entries)) == 2
    assert entries[-1] == site.run.entry_id


def test_an_open_transition_is_not_told_yet() -> None:
    """What is under way is no history; it is found as the open transition."""
    site = Site()
    site.apply(Goto(runbook=site.runbook, target="b", by=AGENT))
    assert site.events() == ["start", "in_hook"]
    newest = next(moves(site.store, site.run))
    assert isinstance(newest, Move)
    assert newest.transition == site.run.transition


@pytest.mark.parametrize("limit", range(len(BUSY) + 2))
def test_a_limit_gives_the_last_entries(limit: int) -> None:
    """With a limit come the newest entries, still oldest first; 0 gives none."""
    site = busy()
    assert site.events(limit) == BUSY[max(0, len(BUSY) - limit) :]


@pytest.mark.parametrize("page", [1, 2, 3, 7])
def test_pages_do_not_show(page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many events are read at a time, the history is the same."""
    site = busy()
    whole = history(site.store, site.run)
    monkeypatch.setattr(history_module, "PAGE", page)
    assert history(site.store, site.run) == whole


def test_the_tail_of_a_long_history_is_cheap(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last entry is told from the events of its transition, however many came before."""
    site = Site()
    for _ in range(50):
        site.apply(Save(runbook=site.runbook, by=AGENT))
    monkeypatch.setattr(history_module, "PAGE", 4)
    read: list[int] = []
    latest = site.store.latest_events

    def counted(run_id: str, before: int | None, limit: int) -> Any:
        page = latest(run_id, before, limit)
        read.append(len(page))
        return page

    monkeypatch.setattr(site.store, "latest_events", counted)
    assert site.events(limit=1) == ["save"]
    assert sum(read) == 4


def test_rebinding_and_migration_are_told() -> None:
    """A change of the runbook is an entry with both hashes; a move to the initial node is another."""
    site = Site()
    site.apply(Resume(runbook=replace(site.runbook, hash="h2"), by=AGENT))
    gone = Runbook(hash="h3", name="n", initial="z", nodes=(Node("z"),))
    site.apply(Resume(runbook=gone, by=AGENT))
    assert site.events() == [
        *("start", "in_hook"),
        *("rebind", "resume", "in_hook"),
        *("rebind", "migrate_current", "resume", "in_hook"),
    ]
    entries = history(site.store, site.run)
    hashes = [(e["previous_hash"], e["spec_hash"]) for e in entries if e["event"] == "rebind"]
    assert hashes == [("h1", "h2"), ("h2", "h3")]
    moved = entries[-3]
    assert (moved["from"], moved["to"], moved["current_entry_id"]) == ("a", "z", site.run.entry_id)
    assert any(isinstance(told, Rebinding) for told in moves(site.store, site.run))


def test_times_are_those_of_settling() -> None:
    """An entry carries the time at which its transition settled, in UTC, to the millisecond."""
    site = Site()
    site.goto("b", PASSED)
    settled_at = site.run.transition.settled_at if site.run.transition else None
    assert settled_at is not None
    assert site.told("ts")[-1] == (timestamp(settled_at),)
    assert timestamp(0) == "1970-01-01T00:00:00.000+00:00"
    assert timestamp(1_750_000_000_123) == "2025-06-15T15:06:40.123+00:00"


def test_results_are_told_with_their_purpose() -> None:
    """A ``goto`` tells its results by where they stand, a blocked one all that there are."""
    site = Site()
    site.goto("b", FAILED)
    site.goto("b", PASSED)
    blocked, moved = history(site.store, site.run)[-2:]
    assert [result["passed"] for result in blocked["results"]] == [False]
    assert [result["passed"] for result in moved["before_transfer"]] == [True]
    assert moved["condition"] == moved["out_hook"] == moved["edge_hook"] == moved["in_hook"] == []
    assert (blocked["attempt"], moved["attempt"], moved["attempts_remaining"]) == (1, 2, 0)


@pytest.mark.parametrize("transition", ["t1", "t2", "t4", "t8"])
def test_any_transition_is_found_by_its_id(transition: str) -> None:
    """Also one that later ones have followed, with the results that it had."""
    site = busy()
    found = find_transition(site.store, site.run, transition)
    assert found is not None
    assert found.id == transition
    assert not found.open


def test_an_old_transition_is_found_as_it_was() -> None:
    """What is folded from the events of one transition equals what was stored when it settled.

    Only the token may differ where nothing was claimed: it goes on from the transition before.
    """
    site = Site()
    snapshots: list[Run] = []
    act: list[Callable[[], None]] = [
        lambda: site.goto("b", FAILED),
        lambda: site.goto("b", PASSED),
        lambda: site.goto("a"),
        lambda: site.goto("b", FAILED),
    ]
    for step in act:
        step()
        snapshots.append(site.run)
    for run in snapshots:
        assert run.transition is not None
        found = find_transition(site.store, site.run, run.transition.id)
        assert found is not None
        assert replace(found, token=0) == replace(run.transition, token=0)


def test_an_unknown_transition_is_not_found() -> None:
    """An id that the run never had gives nothing."""
    site = busy()
    assert find_transition(site.store, site.run, "t99") is None


# --- forwards ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_pages_add_up_to_the_history(size: int) -> None:
    """Whoever goes on after the number of the last entry misses nothing and sees nothing twice."""
    site = busy()
    told: list[dict[str, Any]] = []
    while page := history(site.store, site.run, size, told[-1]["number"] if told else 0):
        assert len(page) <= size + 1, "entries of one event stay together"
        told += page
    assert told == history(site.store, site.run)


def test_a_page_of_nothing_is_empty() -> None:
    """A limit of 0 gives no entries and no events, from wherever."""
    site = busy()
    assert history(site.store, site.run, 0, 0) == event_log(site.store, site.run, 0, 0) == []
    assert event_log(site.store, site.run, 0) == []


def test_a_page_may_begin_anywhere() -> None:
    """What is left of a transition that was opened before is no entry; numbers beyond the end give nothing."""
    site = busy()
    whole = history(site.store, site.run)
    for after in range(site.run.version + 2):
        expected = [entry for entry in whole if entry["number"] > after]
        assert history(site.store, site.run, after=after) == expected


def test_a_history_told_forwards_is_the_same() -> None:
    """Rebinding and migration included."""
    site = busy()
    site.apply(Resume(runbook=replace(site.runbook, hash="h2"), by=AGENT))
    site.apply(Resume(runbook=Runbook(hash="h3", name="n", initial="z", nodes=(Node("z"),)), by=AGENT))
    assert history(site.store, site.run, after=0) == history(site.store, site.run)


def test_an_open_transition_is_not_covered() -> None:
    """Whoever goes on after what a history covers gets the entry of the open transition once it settles."""
    site = Site()
    covered = site.run.version
    assert last_told(site.store, site.run) == covered
    site.apply(Goto(runbook=site.runbook, target="b", by=AGENT))
    assert last_told(site.store, site.run) == covered < site.run.version
    assert history(site.store, site.run, after=covered) == []
    site.apply(Cancel(transition="t2", reason="enough", by=AGENT))
    assert [entry["event"] for entry in history(site.store, site.run, after=covered)] == ["goto_cancelled"]


def test_visited_nodes_are_those_that_were_entered() -> None:
    """The initial node, each target, and the node to which a migration led."""
    site = Site()
    assert visited_nodes(site.store, site.run) == {"a"}
    site.goto("b", FAILED)
    assert visited_nodes(site.store, site.run) == {"a"}
    site.goto("b", PASSED)
    site.apply(Resume(runbook=Runbook(hash="h3", name="n", initial="z", nodes=(Node("z"),)), by=AGENT))
    assert visited_nodes(site.store, site.run) == {"a", "b", "z"}


# --- the event log -------------------------------------------------------------------------------------------------


def test_the_log_has_every_event_in_order() -> None:
    """Each has its number, its time as text and in ms, its kind and its fields."""
    site = busy()
    log = event_log(site.store, site.run)
    assert [event["number"] for event in log] == list(range(1, site.run.version + 1))
    assert log[0]["event"] == "run_created"
    assert all(event["ts"] == timestamp(event["at"]) for event in log)
    settled = next(event for event in log if event["event"] == "check_settled")
    assert settled["result"]["outcome"]["reason"] == "check_failed"


@pytest.mark.parametrize("limit", [0, 1, 3, 1000])
def test_the_log_comes_in_parts(limit: int) -> None:
    """A limit means the last events, and after a number the first ones."""
    site = busy()
    whole = event_log(site.store, site.run)
    assert event_log(site.store, site.run, limit) == whole[max(0, len(whole) - limit) :]
    assert event_log(site.store, site.run, limit, after=2) == whole[2 : 2 + limit]
    assert event_log(site.store, site.run, after=len(whole)) == []


def test_secrets_are_not_told() -> None:
    """Of the variables that a run was started with the log has the names."""
    site = Site(place=replace(PLACE, env={"TOKEN": "secret"}))
    log = event_log(site.store, site.run)
    assert log[0]["place"]["env"] == {"TOKEN": WITHHELD}
    assert "secret" not in str(log)


class Steps:
    """Stands in for a watcher: each wait does the next of some steps, as if another process had."""

    def __init__(self, *steps: Callable[[], None]) -> None:
        self._steps = list(steps)

    @contextmanager
    def watch(self, run_id: str) -> Iterator[Any]:
        """Watch a run."""
        assert run_id == "r"
        yield SimpleNamespace(wait=lambda version, pause: self._steps.pop(0)())


def one_way() -> Site:
    """Return a run of which ``b`` is the end."""
    gate = replace(shell(), retry=Retry(maximum_attempts=1))
    nodes = (Node("a", before_transfer=one_by_one(gate)), Node("b"))
    return Site(Runbook(hash="h1", name="n", initial="a", nodes=nodes, edges=(Edge("a", "b"),)))


def test_following_tells_everything_once_until_the_run_is_finished() -> None:
    """Entries come with the look at which their transition has settled; looks at which nothing is new tell nothing."""
    site = one_way()
    steps = Steps(
        lambda: site.goto("b", FAILED),
        lambda: None,
        lambda: site.apply(Goto(runbook=site.runbook, target="b", by=AGENT)),
        lambda: site.apply(Cancel(transition=f"t{site.run.transitions}", reason="enough", by=AGENT)),
        lambda: site.goto("b", PASSED),
    )
    looks = list(follow(new_events(site.store, cast(Watcher, steps), "r", 0, 5), Teller(site.run).tell))
    assert [[entry["event"] for entry in look] for look in looks] == [
        ["start", "in_hook"],
        ["goto_blocked"],
        [],
        [],
        ["goto_cancelled"],
        ["goto"],
    ]
    assert [entry for look in looks for entry in look] == history(site.store, site.run)


def test_following_the_log_tells_each_event_once() -> None:
    """From after a number on, until the run is finished."""
    site = one_way()
    steps = Steps(lambda: site.goto("b", FAILED), lambda: site.goto("b", PASSED))
    looks = follow(
        new_events(site.store, cast(Watcher, steps), "r", 2, 5), lambda number, event: [event_view(number, event)]
    )
    assert [event for look in looks for event in look] == event_log(site.store, site.run, after=2)


def test_following_a_finished_run_ends_at_once() -> None:
    """There is one look, and no wait."""
    site = one_way()
    site.goto("b", PASSED)
    looks = list(follow(new_events(site.store, cast(Watcher, Steps()), "r", 0, 5), Teller(site.run).tell))
    assert [entry["event"] for entry in looks[0]] == ["start", "in_hook", "goto"]
    assert len(looks) == 1


# --- pauses, ends and new beginnings ------------------------------------------------------------------------------


def steered() -> Site:
    """Return a run that was paused between and inside of transitions, begun anew, and cancelled inside of one."""
    site = Site()
    site.apply(Pause(reason="lunch", by=AGENT))
    site.apply(Unpause(by=AGENT))
    site.apply(Goto(runbook=site.runbook, target="b", by=AGENT))
    site.apply(Pause(reason="tea", by=AGENT))
    site.apply(Unpause(by=AGENT))
    site.apply(Restart(runbook=site.runbook, place=PLACE, by=AGENT))
    site.apply(Goto(runbook=site.runbook, target="b", by=AGENT))
    site.apply(Pause(reason="night", by=AGENT))
    site.apply(CancelRun(reason="no use", by=AGENT, terminate=True))
    return site


def test_pauses_and_ends_are_told_with_who_and_why() -> None:
    """What happened inside of a transition is told after it; the numbers rise, and forwards it is the same."""
    site = steered()
    assert site.told("event", "reason", "by", "terminated")[2:] == [
        ("paused", "lunch", AGENT.id, None),
        ("unpaused", None, AGENT.id, None),
        ("goto_cancelled", "restarted", AGENT.id, None),
        ("paused", "tea", AGENT.id, None),
        ("unpaused", None, AGENT.id, None),
        ("restart", None, AGENT.id, None),
        ("start", None, None, None),
        ("in_hook", "start", None, None),
        ("goto_cancelled", "no use", AGENT.id, None),
        ("paused", "night", AGENT.id, None),
        ("run_cancelled", "no use", AGENT.id, True),
    ]
    numbers = [number for (number,) in site.told("number")]
    assert numbers == sorted(numbers)
    teller = Teller(site.run)
    assert [entry for number, event in site.store.events("r") for entry in teller.tell(number, event)] == history(
        site.store, site.run
    )


@pytest.mark.parametrize("size", [1, 2, 3, 5])
def test_pages_over_pauses_add_up_to_the_history(size: int) -> None:
    """Each entry stands on one page, wherever a page ends."""
    site = steered()
    entries: list[dict[str, Any]] = []
    while page := history(site.store, site.run, size, after=entries[-1]["number"] if entries else 0):
        entries += page
    assert entries == history(site.store, site.run)


def test_a_pause_of_an_open_transition_is_told_with_it() -> None:
    """Until the transition has settled, neither is told, backwards or forwards, and neither is covered."""
    site = Site()
    site.apply(Goto(runbook=site.runbook, target="b", by=AGENT))
    opened = site.run.version
    site.apply(Pause(reason="lunch", by=AGENT))
    assert site.events() == ["start", "in_hook"]
    assert history(site.store, site.run, after=opened - 1) == []
    assert last_told(site.store, site.run) == opened - 1


def test_a_transition_that_was_paused_is_found_as_it_was() -> None:
    """Its claims and results are folded from its own events, whatever happened to the run meanwhile."""
    gates = one_by_one(shell("x"), shell("y"))
    site = Site(loop(Node("a", before_transfer=gates)))
    site.apply(Goto(runbook=site.runbook, target="b", by=AGENT))
    site.apply(ClaimWork(transition="t2", check="before_transfer.0", worker=WORKER))
    site.apply(Pause(reason="lunch", by=AGENT))
    site.apply(RecordOutcomes(transition="t2", token=1, worker=WORKER, outcomes=(PASSED,)))
    site.apply(Unpause(by=AGENT))
    site.apply(ClaimWork(transition="t2", check="before_transfer.1", worker=WORKER))
    site.apply(RecordOutcomes(transition="t2", token=2, worker=WORKER, outcomes=(PASSED,)))
    settled = site.run.transition
    site.apply(Save(runbook=site.runbook, by=AGENT))
    assert find_transition(site.store, site.run, "t2") == settled


def test_a_node_of_a_new_beginning_was_visited() -> None:
    """A restart enters a node, too."""
    site = Site()
    other = Runbook(hash="h2", name="other", initial="z", nodes=(Node("z"),))
    site.apply(Restart(runbook=other, place=PLACE, by=AGENT))
    assert visited_nodes(site.store, site.run) == {"a", "z"}
