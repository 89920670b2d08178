"""The streams of sweeps: a snapshot and what follows it, without a gap or a repetition, however often it is cut."""

from __future__ import annotations

import json
import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import httpx2
import pytest

from statem_dist.embedded import server
from statem_dist.store import keys
from statem_dist.store.redis_store import RedisStore
from statem_dist.sweep.ledger import Claim, Ledger
from statem_dist.sweep.model import Outcome
from tests.support.ledgers import attempt, definition, planned, settled, taken
from tests.support.programs import Site
from tests.support.service import Api, Caller, Stream, library, serve

pytestmark = pytest.mark.e2e

Pair = tuple[int, str]


class Sweeps:
    """Makes sweeps in the store of a service, and moves their trials."""

    def __init__(self, store: RedisStore) -> None:
        self.store = store
        self.ledger = Ledger(store)
        self._made = 0

    def make(self, trials: int, **changes: Any) -> str:
        """Make an active sweep, and return its id."""
        self._made += 1
        sweep_id = f"s{self._made}"
        self.ledger.create(sweep_id, definition(**changes), f"content-{sweep_id}", "test")
        self.ledger.add(sweep_id, definition(**changes), planned(range(1, trials + 1)))
        self.ledger.steer(sweep_id, "active", ["planning"])
        return sweep_id

    def claim(self, sweep_id: str) -> Claim:
        """Take the next trial."""
        claim = taken(self.ledger, f"h{random.getrandbits(64)}", sweep_id)
        assert isinstance(claim, Claim)
        return claim

    def settle(self, claim: Claim, outcome: Outcome = "passed") -> None:
        """End a trial."""
        assert settled(self.ledger, claim, outcome, attempt(claim, 1, outcome))

    def move(self, sweep_id: str, trials: int) -> None:
        """Take trials and end them."""
        for _ in range(trials):
            self.settle(self.claim(sweep_id))

    def fed(self, sweep_id: str, after: str = "0-0") -> list[tuple[str, Pair]]:
        """Return what the feed has of trials after a position, with its positions."""
        changes = self.ledger.changes(sweep_id, after, 100_000)
        return [(change.position, (change.number, change.to)) for change in changes if change.number]

    def states(self, sweep_id: str) -> dict[int, str]:
        """Return where the trials stand."""
        return {trial.planned.number: trial.state for trial in self.ledger.trials(sweep_id)}


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    """The service alone."""
    site = Site()
    try:
        yield serve(site)
    finally:
        site.close()


@pytest.fixture(scope="module")
def sweeps(api: Api) -> Iterator[Sweeps]:
    """Sweeps in its store."""
    with library(api.site) as engine:
        yield Sweeps(engine.store)


@pytest.fixture
def caller(api: Api) -> Caller:
    """Somebody on this host."""
    return api.caller()


def url_of(sweep_id: str) -> str:
    """Return where the stream of a sweep is."""
    return f"/v1/sweeps/{sweep_id}/events"


def told(stream: Stream) -> Iterator[tuple[str, str, Any]]:
    """Yield kind, id and data of each message."""
    for fields in stream.messages():
        yield fields["event"], fields.get("id", ""), json.loads(fields["data"])


def next_of(messages: Iterator[tuple[str, str, Any]], kind: str) -> tuple[str, Any]:
    """Return id and data of the next message, which is of this kind."""
    found, id_, data = next(messages)
    assert found == kind, (found, data)
    return id_, data


def collected(messages: Iterator[tuple[str, str, Any]], count: int) -> list[Pair]:
    """Return so many changes of trials, and no more than that."""
    found: list[Pair] = []
    while len(found) < count:
        kind, _, data = next(messages)
        if kind == "trials":
            found += [(number, state) for number, state in data]
    assert len(found) == count
    return found


def test_a_stream_from_its_snapshot_to_its_end(sweeps: Sweeps, caller: Caller) -> None:
    """All trials at first, then each change, each new status, and the end; who comes back after that gets 204."""
    sweep_id = sweeps.make(3)
    first = sweeps.claim(sweep_id)
    with caller.stream(url_of(sweep_id)) as stream:
        messages = told(stream)
        position, snapshot = next_of(messages, "snapshot")
        assert position == sweeps.ledger.latest_change(sweep_id)
        assert snapshot["trials"] == [[1, "running"], [2, "pending"], [3, "pending"]]
        assert (snapshot["status"], snapshot["planned"], snapshot["counts"]["pending"]) == ("active", 3, 2)
        sweeps.settle(first, "failed")
        assert collected(messages, 1) == [(1, "failed")]
        sweeps.ledger.steer(sweep_id, "paused", ["active"], "a break")
        _, status = next_of(messages, "status")
        assert status == {"sweep": sweep_id, "status": "paused", "reason": "a break"}
        sweeps.ledger.steer(sweep_id, "active", ["paused"])
        assert next_of(messages, "status")[1]["status"] == "active"
        sweeps.move(sweep_id, 2)
        assert collected(messages, 4) == [(2, "running"), (2, "passed"), (3, "running"), (3, "passed")]
        last, status = next_of(messages, "status")
        assert status["status"] == "finished"
        assert next_of(messages, "end")[1]["counts"]["passed"] == 2
        assert list(messages) == [], "the service ends the stream"
    caller.ask("GET", url_of(sweep_id), expect=204, headers={"Last-Event-ID": last})
    with caller.stream(url_of(sweep_id)) as stream:
        # Its snapshot may be one that was made for somebody a moment ago, and what has happened since follows.
        messages = told(stream)
        states = dict(next_of(messages, "snapshot")[1]["trials"])
        rest = [(kind, data) for kind, _, data in messages]
        for kind, data in rest:
            states.update(data if kind == "trials" else {})
        assert (states, rest[-1][0]) == ({1: "failed", 2: "passed", 3: "passed"}, "end")
    with caller.stream(url_of(sweep_id), **{"Last-Event-ID": position}) as stream:
        messages = told(stream)
        assert collected(messages, 5)[0] == (1, "failed")
        assert [kind for kind, _, _ in messages] == ["status", "end"]


def test_no_stream_of_what_is_not_there(sweeps: Sweeps, caller: Caller) -> None:
    """404, and 400 for a position that is none; one that is removed meanwhile ends its streams."""
    caller.get(url_of("nobodys"), expect=404)
    sweep_id = sweeps.make(1)
    for position in ("x", "1", "1-", "-1", "1-1-1", "9" * 30 + "-1", "\u0661-1"):
        given = {"Last-Event-ID": position.encode()}
        assert caller.http.get(url_of(sweep_id), headers=given).status_code == 400  # type: ignore[arg-type]
    with caller.stream(url_of(sweep_id)) as stream:
        messages = told(stream)
        next_of(messages, "snapshot")
        sweeps.ledger.remove(sweep_id)
        assert list(messages) == []


def in_another_thread(work: Callable[[], object]) -> threading.Thread:
    """Begin something beside the test."""
    thread = threading.Thread(target=work)
    thread.start()
    return thread


def test_a_stream_that_is_cut_has_no_gap_and_no_repetition(sweeps: Sweeps, caller: Caller) -> None:
    """Cut after every message while trials move: each change comes once, and all together are the truth."""
    sweep_id = sweeps.make(400)
    rounds = 20
    states: dict[int, str] = {}
    found: list[Pair] = []
    position, first, ended, cuts = "", "", False, 0
    while not ended:
        mover = in_another_thread(lambda: sweeps.move(sweep_id, 20)) if cuts < rounds else None
        accepted = {"Accept": "text/event-stream", **({"Last-Event-ID": position} if position else {})}
        with caller.http.stream("GET", url_of(sweep_id), headers=accepted) as response:
            # Nothing is left to be told if the cut was right before the end.
            ended = response.status_code == 204
            for kind, id_, data in told(Stream(response)):
                position = id_ or position
                if kind == "snapshot":
                    assert not first, "a snapshot comes once"
                    first, states = id_, dict(data["trials"])
                elif kind == "trials":
                    found += [(number, state) for number, state in data]
                    states.update(data)
                ended = kind == "end"
                break
        cuts += 1
        if mover is not None:
            mover.join()
    assert cuts > rounds
    assert found == [pair for _, pair in sweeps.fed(sweep_id, first)]
    assert states == sweeps.states(sweep_id)


def test_many_changes_come_in_few_messages(sweeps: Sweeps, caller: Caller) -> None:
    """1,335 moves and more are told about four times a second, to each of many readers alike."""
    sweep_id = sweeps.make(700)
    with ExitStack() as streams:
        readers = [told(streams.enter_context(caller.stream(url_of(sweep_id)))) for _ in range(20)]
        for reader in readers:
            next_of(reader, "snapshot")
        began = time.monotonic()
        sweeps.move(sweep_id, 700)
        messages = [list(reader) for reader in readers]
        seconds = time.monotonic() - began
    expected = [list(pair) for _, pair in sweeps.fed(sweep_id)]
    for of_one in messages:
        batches = [data for kind, _, data in of_one if kind == "trials"]
        assert [pair for batch in batches for pair in batch] == expected
        assert len(expected) == 1_400
        assert len(batches) <= 4 * seconds + 3


def test_a_snapshot_of_ten_thousand_trials_is_one_message(sweeps: Sweeps, caller: Caller) -> None:
    """Of less than 300 KB; and when all of them are cancelled at once, another one tells so."""
    sweep_id = sweeps.make(10_000)
    with caller.stream(url_of(sweep_id)) as stream:
        messages = told(stream)
        _, snapshot = next_of(messages, "snapshot")
        assert len(snapshot["trials"]) == 10_000
        assert len(json.dumps(snapshot, separators=(",", ":"))) < 300_000
        sweeps.ledger.steer(sweep_id, "cancelled", ["active"])
        states = dict(snapshot["trials"])
        kinds = []
        for kind, _, data in messages:
            kinds.append(kind)
            if kind == "snapshot":
                states = dict(data["trials"])
            elif kind == "trials":
                states.update(data)
    assert kinds[-2:] == ["snapshot", "end"]
    assert set(states.values()) == {"cancelled"}
    assert len(states) == 10_000


def test_trials_that_are_added_come_with_another_snapshot(sweeps: Sweeps, caller: Caller) -> None:
    """Whoever draws a grid has all of its cells."""
    sweep_id = sweeps.make(2)
    with caller.stream(url_of(sweep_id)) as stream:
        messages = told(stream)
        next_of(messages, "snapshot")
        sweeps.ledger.add(sweep_id, definition(), planned([3, 4]), sweeps.ledger.clock())
        _, snapshot = next_of(messages, "snapshot")
        assert [number for number, _ in snapshot["trials"]] == [1, 2, 3, 4]
        sweeps.claim(sweep_id)
        assert collected(messages, 1) == [(1, "running")]


def test_a_reader_who_was_away_for_too_long_is_told_so(sweeps: Sweeps, caller: Caller) -> None:
    """A gap, and then all trials as they stand now; also where the position is of another feed."""
    sweep_id = sweeps.make(60)
    with caller.stream(url_of(sweep_id)) as stream:
        position, _ = next_of(told(stream), "snapshot")
    sweeps.move(sweep_id, 50)
    sweeps.store.call("XTRIM", keys.sweep(sweep_id, "feed"), "MAXLEN", 10)
    for away in (position, "1-1", "99999999999999-0"):
        with caller.stream(url_of(sweep_id), **{"Last-Event-ID": away}) as stream:
            messages = told(stream)
            assert next_of(messages, "gap")[0] == ""
            _, snapshot = next_of(messages, "snapshot")
            assert snapshot["counts"]["passed"] == 50
    near = sweeps.fed(sweep_id)[0][0]
    with caller.stream(url_of(sweep_id), **{"Last-Event-ID": near}) as stream:
        assert len(collected(told(stream), 9)) == 9


def test_a_stopped_sweep_ends_with_its_last_trial(sweeps: Sweeps, caller: Caller) -> None:
    """What is under way goes on after a rule has stopped the sweep, and is still told."""
    sweep_id = sweeps.make(3)
    under_way = sweeps.claim(sweep_id)
    with caller.stream(url_of(sweep_id)) as stream:
        messages = told(stream)
        next_of(messages, "snapshot")
        sweeps.ledger.steer(sweep_id, "stopped", ["active"], "too dear")
        assert next_of(messages, "status")[1]["reason"] == "too dear"
        sweeps.settle(under_way)
        assert collected(messages, 1) == [(1, "passed")]
        assert next_of(messages, "end")[1]["status"] == "stopped"
        assert list(messages) == []


@pytest.mark.chaos
def test_streams_of_sweeps_outlast_the_store(site: Site) -> None:
    """While the store is away streams stay; then they go on without a gap."""
    api = serve(site, STATEM_PATIENCE_SECONDS="0.1")
    caller = api.caller()
    with library(site) as engine:
        sweeps = Sweeps(engine.store)
        sweep_id = sweeps.make(40)
    with ExitStack() as streams:
        readers = [told(streams.enter_context(caller.stream(url_of(sweep_id)))) for _ in range(10)]
        for reader in readers:
            next_of(reader, "snapshot")
        for _ in range(2):
            server.stop(site.state_dir)
            with library(site) as engine:
                Sweeps(engine.store).move(sweep_id, 20)
        with library(site) as engine:
            expected = [pair for _, pair in Sweeps(engine.store).fed(sweep_id)]
        for reader in readers:
            assert collected(reader, 80) == expected
            assert [kind for kind, _, _ in reader] == ["status", "end"]


def test_a_revoked_token_ends_its_stream(site: Site) -> None:
    """Soon, also while nothing happens; and nothing is told to it any more."""
    api = serve(site)
    text = api.token("viewer")
    with library(site) as engine:
        sweeps = Sweeps(engine.store)
        sweep_id = sweeps.make(5)
        with Caller(api.url, text).stream(url_of(sweep_id)) as stream:
            messages = told(stream)
            next_of(messages, "snapshot")
            site.json("token", "revoke", text.split("_")[1])
            assert list(messages) == []


def test_streams_of_sweeps_end_with_the_service(site: Site) -> None:
    """In good order, and nothing is logged as wrong."""
    api = serve(site)
    with library(site) as engine:
        sweep_id = Sweeps(engine.store).make(2)
    with ExitStack() as streams:
        readers = [told(streams.enter_context(api.caller().stream(url_of(sweep_id)))) for _ in range(30)]
        for reader in readers:
            next_of(reader, "snapshot")
        metrics = httpx2.get(f"{api.url}/metrics").text
        assert "statem_sse_clients 30.0" in metrics
        api.program.terminate()
        for reader in readers:
            assert list(reader) == []
    api.program.wait()
    assert "Traceback" not in api.program.stderr
