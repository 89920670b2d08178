"""What verifying a store finds: nothing where everything is as it was written, and each damage at its place."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from itertools import islice
from typing import Any

import pytest
from msgspec.structs import replace

from statem_dist.coordinator import Coordinator
from statem_dist.dispatch import NoDispatch
from statem_dist.laws import Violation
from statem_dist.protocol.commands import CancelRun, ClaimWork, Goto, RecordOutcomes, Start
from statem_dist.protocol.events import (
    CheckSettled,
    Event,
    NodeEntered,
    TransitionOpened,
    TransitionSettled,
    WorkClaimed,
    WorkLost,
)
from statem_dist.protocol.evolve import replay
from statem_dist.protocol.graph import Command, Edge, Node, Runbook
from statem_dist.protocol.model import Run
from statem_dist.protocol.outcome import Outcome
from statem_dist.protocol.progress import pending
from statem_dist.runbook import parse
from statem_dist.store import inspection, keys
from statem_dist.store.base import Leftovers
from statem_dist.store.client import Argument
from statem_dist.store.codec import StoredRunbook, decode_event, encode_event, encode_run
from statem_dist.store.redis_store import RedisStore
from statem_dist.verification import StoredRunbooks, run_ids, strays, verify_run
from tests.contract.conftest import RedisBench
from tests.support.builders import AGENT, FAILED, PASSED, PLACE, WORKER, one_by_one, shell
from tests.support.stored_runs import SETTINGS, StoredWorld

ACTS = 60
RUN = "r"

RUNBOOK = Runbook(
    hash="h1",
    name="damaged",
    initial="a",
    nodes=(
        Node("a", before_transfer=one_by_one(shell(), shell())),
        Node("b", before_transfer=one_by_one(shell())),
    ),
    edges=(Edge("a", "b", hook=one_by_one(shell("touch done"))), Edge("b", "a")),
)


@pytest.mark.parametrize("seed", range(40))
def test_nothing_is_found_where_nothing_was_damaged(redis_bench: RedisBench, seed: int) -> None:
    """Whatever is asked of a run, in whatever order: what the store has of it is lawful after every step."""
    world = StoredWorld(redis_bench.store, seed)
    for _ in range(ACTS):
        world.act()
        if world.rng.randint(0, 3) == 0:
            assert verify_run(redis_bench.redis_store, world.run_id, world.runbooks).violations == []
    found = verify_run(redis_bench.redis_store, world.run_id, world.runbooks)
    assert (found.there, found.events, found.violations) == (True, world.run.version, [])
    assert list(strays(redis_bench.redis_store)) == []
    assert set(run_ids(redis_bench.redis_store)) == {world.run_id}


class Damaged:
    """A run with a blocked ``goto``, one that committed, and one whose check somebody is executing; to be damaged.

    Attributes:
        events: its events, as they were written.
    """

    def __init__(self, bench: RedisBench) -> None:
        self.bench = bench
        self.store: RedisStore = bench.redis_store
        self.coordinator = Coordinator(self.store, NoDispatch(), SETTINGS)
        start = Start(run_id=RUN, runbook=RUNBOOK, place=PLACE, by=AGENT, labels={"team": "blue"}, request_id="q1")
        self.coordinator.apply(RUN, start)
        self._goto("b", "q2")
        self._work(PASSED, FAILED)
        self._goto("b", "q3")
        self._work(PASSED, PASSED)
        self._work(PASSED)
        self._goto("a", "q4")
        self._claim()
        self.events = [event for _, event in self.store.events(RUN)]
        assert self.violations() == []

    @property
    def run(self) -> Run:
        """The run as it is stored."""
        return self.coordinator.load(RUN).run

    def number(self, kind: type, which: int = 0, **fields: Any) -> int:
        """Return the number of an event of a kind; of several with these fields, that one."""
        found = (
            number
            for number, event in enumerate(self.events, start=1)
            if isinstance(event, kind) and all(getattr(event, name) == value for name, value in fields.items())
        )
        return next(islice(found, which, None))

    def change(self, number: int, **fields: Any) -> None:
        """Write an event of the history anew, with other fields."""
        self.rewrite([*self.events[: number - 1], replace(self.events[number - 1], **fields), *self.events[number:]])

    def rewrite(self, events: list[Event]) -> None:
        """Write the whole history anew."""
        self.bench.call("DEL", keys.events(RUN))
        for number, event in enumerate(events, start=1):
            self.bench.call("XADD", keys.events(RUN), f"{number}-0", "e", encode_event(event))

    def store_document(self, run: Run) -> None:
        """Write the document anew, and its version."""
        self.bench.call("HSET", keys.run(RUN), "doc", encode_run(run), "v", run.version)

    def violations(self) -> list[Violation]:
        """Return what is found."""
        return verify_run(self.store, RUN, {"h1": RUNBOOK}).violations

    def _goto(self, target: str, request: str) -> None:
        self.coordinator.apply(RUN, Goto(runbook=RUNBOOK, target=target, by=AGENT, request_id=request))

    def _claim(self) -> tuple[str, int]:
        batch = pending(self.run)[0]
        applied = self.coordinator.apply(
            RUN, ClaimWork(transition=batch.transition, check=batch.checks[0], worker=WORKER)
        )
        assert applied.run.transition is not None
        return batch.transition, applied.run.transition.token

    def _work(self, *outcomes: Outcome) -> None:
        transition, token = self._claim()
        self.coordinator.apply(
            RUN, RecordOutcomes(transition=transition, token=token, worker=WORKER, outcomes=outcomes, claim_more=False)
        )


@pytest.fixture
def damaged(real_bench: RedisBench) -> Damaged:
    """A whole run on a real server."""
    return Damaged(real_bench)


SHARD = keys.shard_of(RUN)
LAST = -1
"""Stands for the number of the last event."""


def skip_an_event(run: Damaged) -> int:
    """Take an event out of the middle."""
    number = run.number(CheckSettled)
    run.bench.call("XDEL", keys.events(RUN), f"{number}-0")
    return number


def skip_the_last_event(run: Damaged) -> int:
    """Take the last event away: the document is ahead."""
    number = len(run.events)
    run.bench.call("XDEL", keys.events(RUN), f"{number}-0")
    return number


def lose_an_update_of_the_document(run: Damaged) -> int:
    """Write the document of an earlier version."""
    run.store_document(replay(run.events[:-1]))
    return len(run.events)


def whitewash_a_result(run: Damaged) -> int:
    """Turn the failed result of the blocked transition into one that passed."""
    number = run.number(CheckSettled, 1)
    result = run.events[number - 1].result  # type: ignore[union-attr]
    assert not result.passed
    run.change(number, result=replace(result, outcome=PASSED))
    return run.number(TransitionSettled, outcome="blocked")


def blacken_a_result(run: Damaged) -> int:
    """Turn a result that had passed before the commit into one that failed: the hook should not have begun."""
    number = run.number(CheckSettled, 2)
    result = run.events[number - 1].result  # type: ignore[union-attr]
    run.change(number, result=replace(result, outcome=FAILED))
    return run.number(WorkClaimed, 2)


def blacken_the_hook(run: Damaged) -> int:
    """Turn the result of the hook into one that failed: the run should not have moved."""
    number = run.number(CheckSettled, check="hook.0")
    result = run.events[number - 1].result  # type: ignore[union-attr]
    run.change(number, result=replace(result, outcome=FAILED))
    return run.number(NodeEntered)


def reuse_a_token(run: Damaged) -> int:
    """Give a later claim the token of an earlier one."""
    first = run.events[run.number(WorkClaimed) - 1].token  # type: ignore[union-attr]
    number = run.number(WorkClaimed, 1)
    run.change(number, token=first)
    return number


def open_two_transitions(run: Damaged) -> int:
    """Take out the settlement of the first ``goto``, and close the gap."""
    number = run.number(TransitionSettled, outcome="blocked")
    run.rewrite([*run.events[: number - 1], *run.events[number:]])
    return number


def jump_elsewhere(run: Damaged) -> int:
    """Let the commit lead to another node."""
    number = run.number(NodeEntered)
    run.change(number, node="a")
    return number


def commit_twice(run: Damaged) -> int:
    """Repeat the commit."""
    number = run.number(NodeEntered)
    again = replace(run.events[number - 1], entry_id="another")
    run.rewrite([*run.events[:number], again, *run.events[number:]])
    return number + 1


def swap_two_events(run: Damaged) -> int:
    """Let a check settle before it was claimed."""
    number = run.number(WorkClaimed)
    events = run.events
    run.rewrite([*events[: number - 1], events[number], events[number - 1], *events[number + 1 :]])
    return number


def repeat_a_hook(run: Damaged) -> int:
    """Lose the worker of the hook, and let another one begin it again."""
    number = run.number(WorkClaimed, 2)
    claim = run.events[number - 1]
    assert isinstance(claim, WorkClaimed)
    assert claim.checks == ("hook.0",)
    lost = WorkLost(at=claim.at, transition=claim.transition, token=claim.token)
    again = replace(claim, token=claim.token + 1)
    run.rewrite([*run.events[:number], lost, again, *run.events[number:]])
    return number + 2


def reuse_a_request(run: Damaged) -> int:
    """Let two transitions be those of one request."""
    number = run.number(TransitionOpened, 2)
    run.change(number, request_id="q2")
    return number


def forget_the_lease(run: Damaged) -> int:
    """Take away the lease of the live claim."""
    run.bench.call("HDEL", keys.run(RUN), *(f"lease:{token}" for token in range(1, 9)))
    return LAST


def leave_a_lease(run: Damaged) -> int:
    """Leave the lease of a claim that has ended."""
    run.bench.call("HSET", keys.run(RUN), "lease:1", 10**15)
    return LAST


def move_to_another_status(run: Damaged) -> int:
    """Put the run into the index of another status."""
    run.bench.call("ZREM", keys.status(SHARD, "moving"), RUN)
    run.bench.call("ZADD", keys.status(SHARD, "paused"), run.run.created_at, RUN)
    return LAST


def stand_in_two_statuses(run: Damaged) -> int:
    """Put the run into a second index."""
    run.bench.call("ZADD", keys.status(SHARD, "finished"), run.run.created_at, RUN)
    return LAST


def drop_from_the_list(run: Damaged) -> int:
    """Take the run out of the list of runs."""
    run.bench.call("ZREM", keys.runs(SHARD), RUN)
    return LAST


def drop_from_the_label(run: Damaged) -> int:
    """Take the run out of the index of its label."""
    run.bench.call("ZREM", keys.label(SHARD, "team", "blue"), RUN)
    return LAST


def remind_nobody(run: Damaged) -> int:
    """Take away the reminder of a run whose check somebody executes."""
    run.bench.call("ZREM", keys.due(SHARD), RUN)
    return LAST


def change_the_document(run: Damaged) -> int:
    """Let the document say something else."""
    run.store_document(replace(run.run, node="a"))
    return LAST


def change_the_version_beside(run: Damaged) -> int:
    """Let the version beside the document be another one."""
    run.bench.call("HSET", keys.run(RUN), "v", 3)
    return LAST


def tear_the_document(run: Damaged) -> int:
    """Cut the document off."""
    run.bench.call("HSET", keys.run(RUN), "doc", encode_run(run.run)[:50])
    return LAST


def write_a_newer_document(run: Damaged) -> int:
    """Write a document of a schema that is not known."""
    run.bench.call("HSET", keys.run(RUN), "doc", b'{"schema": 99}')
    return LAST


def tear_an_event(run: Damaged) -> int:
    """Cut an event off."""
    number = run.number(NodeEntered)
    documents = [encode_event(event) for event in run.events]
    documents[number - 1] = documents[number - 1][:20]
    run.bench.call("DEL", keys.events(RUN))
    for each, document in enumerate(documents, start=1):
        run.bench.call("XADD", keys.events(RUN), f"{each}-0", "e", document)
    return number


@pytest.mark.parametrize(
    ("damage", "law"),
    [
        (skip_an_event, "numbering"),
        (skip_the_last_event, "document_ahead"),
        (lose_an_update_of_the_document, "document_behind"),
        (whitewash_a_result, "settlement"),
        (blacken_a_result, "order"),
        (blacken_the_hook, "checked_before_commit"),
        (reuse_a_token, "token_rises"),
        (open_two_transitions, "one_transition"),
        (jump_elsewhere, "moves_by_commit"),
        (commit_twice, "commits_once"),
        (swap_two_events, "result_of_claim"),
        (repeat_a_hook, "effect_once"),
        (reuse_a_request, "request_once"),
        (forget_the_lease, "lease"),
        (leave_a_lease, "lease"),
        (move_to_another_status, "status_index"),
        (stand_in_two_statuses, "status_index"),
        (drop_from_the_list, "run_index"),
        (drop_from_the_label, "label_index"),
        (remind_nobody, "due_index"),
        (change_the_document, "document_is_fold"),
        (change_the_version_beside, "version"),
        (tear_the_document, "readable_document"),
        (write_a_newer_document, "readable_document"),
        (tear_an_event, "readable_event"),
    ],
)
def test_each_damage_is_found_at_its_place(damaged: Damaged, damage: Callable[[Damaged], int], law: str) -> None:
    """The first violation names the law, the event, and the run."""
    number = damage(damaged)
    found = damaged.violations()
    expected = len(damaged.events) if number == LAST else number
    assert (found[0].run, found[0].event, found[0].law) == (RUN, expected, law), found
    assert found[0].sentence.endswith(".")
    assert str(expected) in str(found[0])


def test_a_runbook_that_is_missing_or_changed_is_found(damaged: Damaged) -> None:
    """The first event that needs it is named."""
    runbooks = StoredRunbooks(damaged.store)
    (first, *_) = verify_run(damaged.store, RUN, runbooks).violations
    assert (first.event, first.law) == (1, "runbook_known")
    damaged.store.save_runbook(StoredRunbook(runbook=RUNBOOK, text="not its text", source="x.yaml"))
    (first, *_) = verify_run(damaged.store, RUN, runbooks).violations
    assert (first.event, first.law) == (1, "runbook_known")


def test_a_run_that_is_made_anew_meanwhile_is_no_stray(real_bench: RedisBench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its old labels were read from an index, and its new ones from its document."""
    store = real_bench.redis_store
    runbook = parse("nodes: {a: {next: b}, b: The end.}", source="x", format="yaml").runbook

    def start(**labels: str) -> None:
        command = Start(run_id="anew", runbook=runbook, place=PLACE, by=AGENT, labels=labels)
        Coordinator(store, NoDispatch(), SETTINGS).apply("anew", command)

    store.save_runbook(StoredRunbook(runbook=runbook, text="", source="x"))
    start(team="blue")
    run = Coordinator(store, NoDispatch(), SETTINGS).apply("anew", CancelRun(reason="enough", by=AGENT)).run
    read = store.call_many

    def replaced(commands: Iterable[Sequence[Argument]]) -> list[Any]:
        monkeypatch.undo()
        assert store.remove(run, Leftovers())
        real_bench.let_pass(run.updated_at)
        start(team="red")
        return read(commands)

    pages = list(inspection.index_entries(store))
    monkeypatch.setattr(inspection, "index_entries", lambda _: [page for page in pages if "label:" in page[0]])
    monkeypatch.setattr(store, "call_many", replaced)
    assert list(strays(store)) == []


def test_what_stands_in_an_index_and_is_no_run_is_found(damaged: Damaged) -> None:
    """So is a run that stands in the index of a label which it does not have, and what is left of a lost document."""
    damaged.bench.call("ZADD", keys.due(3), 1, "ghost")
    damaged.bench.call("ZADD", keys.label(SHARD, "team", "red"), 1, RUN)
    found = {(each.run, each.law) for each in strays(damaged.store)}
    assert found == {("ghost", "index_of_nobody"), (RUN, "label_index")}
    damaged.bench.call("DEL", keys.run(RUN))
    assert list(run_ids(damaged.store)) == [RUN]
    laws = [each.law for each in damaged.violations()]
    assert laws == ["document_behind", "index_of_nobody"]


def test_a_settled_run_of_which_something_is_due_is_found(real_bench: RedisBench) -> None:
    """Nothing is owed any more, so nobody has to be reminded."""
    coordinator = Coordinator(real_bench.store, NoDispatch(), SETTINGS)
    coordinator.apply(RUN, Start(run_id=RUN, runbook=RUNBOOK, place=PLACE, by=AGENT))
    real_bench.call("ZADD", keys.due(SHARD), 1, RUN)
    (found,) = verify_run(real_bench.redis_store, RUN, {"h1": RUNBOOK}).violations
    assert found.law == "due_index"


def test_a_run_that_moves_meanwhile_is_judged_as_it_is_then(damaged: Damaged) -> None:
    """Between two readings of the store the run goes on, again and again: that is no violation."""
    transition = damaged.run.in_flight
    assert transition is not None
    token = transition.claims[0].token
    report = RecordOutcomes(transition=transition.id, token=token, worker=WORKER, outcomes=(PASSED,))
    moves = iter(
        (
            lambda: damaged.coordinator.apply(RUN, report),
            lambda: damaged._goto("b", "q9"),
            lambda: damaged._work(PASSED, PASSED),
            lambda: damaged._work(PASSED),
        )
    )
    store = damaged.store
    ask = store.call

    def move_first(*command: str | int | bytes) -> Any:
        if command[0] == "XRANGE" and (move := next(moves, None)) is not None:
            move()
        return ask(*command)

    before = damaged.run.version
    store.call = move_first  # type: ignore[method-assign]
    assert damaged.violations() == []
    assert next(moves, None) is None
    assert damaged.run.version > before + 4


def test_an_event_is_read_as_it_was_written(damaged: Damaged) -> None:
    """The helpers of these tests damage what they say and nothing else."""
    damaged.rewrite(damaged.events)
    assert damaged.violations() == []
    assert [decode_event(encode_event(event)) for event in damaged.events] == damaged.events
    assert isinstance(RUNBOOK.nodes[0].before_transfer[0][0].do, Command)
