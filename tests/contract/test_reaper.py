"""The reaper on real servers: what a look costs, who looks for all, and what it makes up for."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from statem_dist import leadership
from statem_dist.coordinator import Coordinator
from statem_dist.dispatch import PushWithCommit
from statem_dist.errors import StoredDataUnreadable
from statem_dist.leadership import Leadership
from statem_dist.protocol.commands import ClaimWork, Goto, Start
from statem_dist.protocol.graph import Node
from statem_dist.reaper import INTERVAL_SECONDS, Reaper
from statem_dist.settings import Settings
from statem_dist.store import keys
from statem_dist.store.base import Snapshot
from tests.contract.conftest import RedisBench
from tests.support.builders import AGENT, PLACE, WORKER, loop, one_by_one, shell

RUNBOOK = loop(Node("a", before_transfer=one_by_one(shell())))
SETTINGS = Settings(state_dir=Path("/unused"), lease_seconds=30.0, hint_grace_seconds=600.0)


def coordinator(bench: RedisBench) -> Coordinator:
    """Return what decides on the runs of a store whose Redis is the broker, too."""
    return Coordinator(bench.store, PushWithCommit(), SETTINGS)


def moving(of: Coordinator, run_id: str) -> None:
    """Start a run and open a transition whose one check is owed."""
    of.apply(run_id, Start(run_id=run_id, runbook=RUNBOOK, place=PLACE, by=AGENT))
    of.apply(run_id, Goto(runbook=RUNBOOK, target="b", by=AGENT))


def make_due(bench: RedisBench, *run_ids: str) -> None:
    """Let the reminders of runs be due now."""
    for run_id in run_ids:
        bench.call("ZADD", keys.due(keys.shard_of(run_id)), bench.store.clock() - 1, run_id)


def round_trips(bench: RedisBench, do: Callable[[], object]) -> dict[str, int]:
    """Return how often each command was sent to the server while something was done; what scripts do is not sent."""
    bench.call("CONFIG", "RESETSTAT")
    do()
    found = re.findall(r"cmdstat_(\S+?):calls=(\d+)", bench.call("INFO", "commandstats").decode())
    sent = {"zrangebyscore", "evalsha", "time", "zadd"}
    return {name: int(calls) for name, calls in found if name in sent}


# --- one for all ------------------------------------------------------------------------------------------------


def test_one_leads(redis_bench: RedisBench) -> None:
    """Who has the lead keeps it, and others are told for how long at the most; who resigns leaves it to the next."""
    first, second = (Leadership(redis_bench.redis_store, "duty", name) for name in ("first", "second"))
    assert first.lead() == first.lead() == 0.0
    assert 0 < second.lead() <= leadership.LEASE_SECONDS
    second.resign()
    assert second.lead() > 0
    first.resign()
    assert second.lead() == 0.0
    assert first.lead() > 0


def test_duties_have_leaders_of_their_own(redis_bench: RedisBench) -> None:
    """Leading in one says nothing about another."""
    assert Leadership(redis_bench.redis_store, "one", "first").lead() == 0.0
    assert Leadership(redis_bench.redis_store, "two", "second").lead() == 0.0


def test_a_leader_that_says_nothing_is_followed_by_another(
    redis_bench: RedisBench, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its lease runs out by the server's clock; a name without a lease, which nobody here has written, is no leader."""
    monkeypatch.setattr(leadership, "LEASE_SECONDS", 0.001)
    Leadership(redis_bench.redis_store, "duty", "first").lead()
    redis_bench.let_pass(redis_bench.store.clock() + 5)
    second = Leadership(redis_bench.redis_store, "duty", "second")
    assert second.lead() == 0.0
    redis_bench.call("SET", keys.leader("duty"), "a stranger")
    assert second.lead() == 0.0


def test_workers_that_do_not_lead_ask_for_nothing_else(real_bench: RedisBench) -> None:
    """Of twenty reapers one looks at the due-indices; each of the others sends one command and then waits."""
    reapers = [
        Reaper(coordinator(real_bench), Leadership(real_bench.redis_store, "reaper", f"w{number}"))
        for number in range(20)
    ]
    for reaper in reapers:
        reaper.look()
    waits: list[float] = []
    sent = round_trips(real_bench, lambda: waits.extend(reaper.look() for reaper in reapers))
    assert sent["zrangebyscore"] == keys.SHARDS
    assert sent["evalsha"] == len(reapers)
    assert waits[0] == INTERVAL_SECONDS
    assert all(INTERVAL_SECONDS < wait <= leadership.LEASE_SECONDS for wait in waits[1:])


def test_who_cannot_look_after_a_run_lets_another_try(real_bench: RedisBench, caplog: pytest.LogCaptureFixture) -> None:
    """A leader of an older version must not keep what it cannot read from those that can; nor resign all the time."""
    old, new = coordinator(real_bench), coordinator(real_bench)
    moving(new, "r")
    make_due(real_bench, "r")
    messages = len(real_bench.messages("checks"))
    reapers = [
        Reaper(each, Leadership(real_bench.redis_store, "reaper", name)) for each, name in ((old, "old"), (new, "new"))
    ]
    blind = RedisBench(real_bench.client)
    old.store = blind.store

    def unreadable(_: str) -> Snapshot | None:
        raise StoredDataUnreadable("It was written by a newer version.")

    blind.redis_store.load = unreadable  # type: ignore[method-assign,assignment]
    assert reapers[0].look() >= leadership.LEASE_SECONDS
    assert reapers[1].look() == INTERVAL_SECONDS
    make_due(real_bench, "r")
    reapers[1].look()
    assert len(real_bench.messages("checks")) == messages + 1
    reapers[1].close()
    Leadership(real_bench.redis_store, "reaper", "new").resign()
    make_due(real_bench, "r")
    assert reapers[0].look() == INTERVAL_SECONDS
    assert caplog.text.count("cannot be looked after") == 1


# --- what a look costs and what it makes up for -----------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_look_costs_by_what_is_due(real_bench: RedisBench) -> None:
    """Among 10,000 runs with a transition in flight, three that are due cost three loads and three reminders."""
    of = coordinator(real_bench)
    for number in range(10_000):
        moving(of, f"r{number}")
    real_bench.call("DEL", "checks")
    reaper = Reaper(of)
    of.store.clock()
    assert reaper.reap_once() == 0
    make_due(real_bench, "r17", "r4711", "r9999")
    found: list[int] = []
    sent = round_trips(real_bench, lambda: found.append(reaper.reap_once()))
    assert found == [3]
    assert sent["zrangebyscore"] == keys.SHARDS
    assert sent["evalsha"] == 2 * 3
    assert len(real_bench.messages("checks")) == 3
    assert reaper.reap_once() == 0


def test_an_emptied_broker_is_filled_again(real_bench: RedisBench) -> None:
    """Every message was lost and the state is intact: what is owed is announced again, once per run, and what is
    being executed is not."""
    of = coordinator(real_bench)
    for number in range(5):
        moving(of, f"r{number}")
    of.apply("r4", ClaimWork(transition="t2", check="before_transfer.0", worker=WORKER))
    before = sorted(message_names(real_bench))
    real_bench.call("DEL", "checks")
    make_due(real_bench, *(f"r{number}" for number in range(5)))
    reaper = Reaper(of)
    reaper.reap_once()
    assert sorted(message_names(real_bench)) == before[:4] == [f"r{number}" for number in range(4)]
    assert reaper.reap_once() == 0


def test_a_run_that_cannot_be_looked_after_stops_no_other(real_bench: RedisBench) -> None:
    """Damaged documents, more of them than one look takes up, stand before a run of the same shard that is fine."""
    of = coordinator(real_bench)
    moving(of, "r")
    real_bench.call("DEL", "checks")
    shard = keys.shard_of("r")
    damaged = [name for name in (f"x{number}" for number in range(5_000)) if keys.shard_of(name) == shard][:150]
    for name in damaged:
        real_bench.call("HSET", keys.run(name), "v", 1, "doc", b"{")
        real_bench.call("ZADD", keys.due(shard), 1, name)
    make_due(real_bench, "r")
    reaper = Reaper(of)
    reaper.reap_once()
    reaper.reap_once()
    assert message_names(real_bench) == ["r"]


def message_names(bench: RedisBench) -> list[str]:
    """Return the run of each message of the queue of checks, in order."""
    return [re.findall(rb"\('([^']+)',", message)[0].decode() for message in bench.messages("checks")]
