"""What whoever follows a sweep reads of its ledger: all trials at one moment, what is new since, and that it is new."""

from __future__ import annotations

from contextlib import closing

import pytest

from statem_dist.store import keys
from statem_dist.store.redis_store import RedisStore
from statem_dist.sweep import ledger as ledger_module
from statem_dist.sweep.ledger import Claim, Ledger, News
from tests.contract.conftest import RedisBench
from tests.support.ledgers import attempt, definition, planned, settled, taken


@pytest.fixture
def store(redis_bench: RedisBench) -> RedisStore:
    """An empty store."""
    return redis_bench.redis_store


@pytest.fixture
def ledger(store: RedisStore) -> Ledger:
    """Its ledger, with an active sweep of four trials."""
    ledger = Ledger(store)
    ledger.create("s", definition(), "content", "test")
    ledger.add("s", definition(), planned(range(1, 5)))
    ledger.steer("s", "active", ["planning"])
    return ledger


def claimed(ledger: Ledger, holder: str = "h") -> Claim:
    """Take the next trial."""
    claim = taken(ledger, holder)
    assert isinstance(claim, Claim)
    return claim


def news(ledger: Ledger, after: str, limit: int = 100) -> News:
    """Return what is new."""
    found = ledger.news("s", after, limit)
    assert found is not None
    return found


def test_a_census_has_every_trial_at_a_position(ledger: Ledger) -> None:
    """And what follows that position leads to the next census."""
    claim = claimed(ledger)
    before = ledger.census("s")
    assert before is not None
    assert before.position == ledger.latest_change("s")
    assert before.trials == [(1, "running"), (2, "pending"), (3, "pending"), (4, "pending")]
    assert settled(ledger, claim, "failed", attempt(claim, 1, "failed"))
    claimed(ledger, "other")
    states = dict(before.trials)
    since = news(ledger, before.position)
    states.update({change.number: change.to for change in since.changes})  # type: ignore[misc]
    after = ledger.census("s")
    assert after is not None
    assert (states, since.position, since.counts) == (dict(after.trials), after.position, after.counts)
    assert not since.anew
    assert ledger.census("nobodys") is None
    assert ledger.news("nobodys", "0-0", 1) is None


def test_news_come_in_parts(ledger: Ledger) -> None:
    """Each with the position of its last change; without any the position stays."""
    start = ledger.latest_change("s")
    claim = claimed(ledger)
    assert settled(ledger, claim, "passed", attempt(claim, 1, "passed"))
    first = news(ledger, start, 1)
    second = news(ledger, first.position, 1)
    assert [change.to for change in (*first.changes, *second.changes)] == ["running", "passed"]
    nothing = news(ledger, second.position)
    assert (nothing.changes, nothing.position) == ((), second.position)


def test_a_feed_that_does_not_reach_back_says_so(
    ledger: Ledger, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither does that of another sweep of the same id; right at its oldest change it does reach back."""
    start = ledger.latest_change("s")
    changes = []
    for number in range(3):
        claimed(ledger, str(number))
        changes.append(ledger.latest_change("s"))
    assert not news(ledger, "0-0").behind
    store.call("XTRIM", keys.sweep("s", "feed"), "MAXLEN", 2)
    assert not news(ledger, changes[1]).behind
    assert news(ledger, start).behind
    assert news(ledger, start).anew
    assert news(ledger, "99999999999999-0").behind
    monkeypatch.setattr(ledger_module, "FEED_LENGTH", 2)
    assert news(ledger, "0-0").behind, "where anything may have been dropped, something may have been before"
    ledger.remove("s")
    ledger.create("s", definition(), "content", "test")
    assert news(ledger, changes[1]).behind


def test_what_the_feed_does_not_tell_is_to_be_read_anew(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    """Trials that were added, or cancelled in greater number than it keeps; those of a new sweep when it begins."""
    (begun,) = news(ledger, "0-0").changes
    assert (begun.to, begun.anew) == ("active", True)
    position = ledger.latest_change("s")
    ledger.steer("s", "paused", ["active"])
    assert not news(ledger, position).anew
    position = ledger.latest_change("s")
    ledger.add("s", definition(), planned([4]), 1)
    assert not news(ledger, position).changes, "it was there already"
    ledger.add("s", definition(), planned([4, 5]), 1)
    (added,) = news(ledger, position).changes
    assert (added.number, added.to, added.anew) == (0, "paused", True)
    position = added.position
    monkeypatch.setattr(ledger_module, "FEED_LENGTH", 3)
    ledger.steer("s", "cancelled", ["paused"])
    assert news(ledger, position).anew


def test_a_sweep_is_over_when_nothing_runs(ledger: Ledger) -> None:
    """Not as soon as it was stopped."""
    claim = claimed(ledger)
    assert not news(ledger, "0-0").over
    ledger.steer("s", "stopped", ["active"], "too dear")
    found = news(ledger, "0-0")
    assert (found.status, found.status_reason, found.over) == ("stopped", "too dear", False)
    assert settled(ledger, claim, "passed", attempt(claim, 1, "passed"))
    assert news(ledger, "0-0").over


def test_every_change_is_announced(ledger: Ledger, store: RedisStore) -> None:
    """By the id of the sweep, also its removal."""
    with closing(store.client.subscribe([keys.SWEEPS_MOVED, keys.moved(0)])) as subscription:
        assert subscription.next(10) == b"", "it has taken effect"

        def heard() -> bool:
            # Empty messages say that the subscription took effect; a look at the network may find nothing yet.
            found = (subscription.next(1) for _ in range(20))
            return next((each for each in found if each), None) == b"s"

        claim = claimed(ledger)
        assert heard()
        assert settled(ledger, claim, None, None)
        assert heard()
        claim = claimed(ledger, "again")
        assert heard()
        assert settled(ledger, claim, "error", attempt(claim, 1, "error"))
        assert heard()
        ledger.again("s", ledger.trials("s", [1]))
        assert heard()
        ledger.withdraw("s", [2])
        assert heard()
        ledger.add("s", definition(), planned([9]), 1)
        assert heard()
        ledger.steer("s", "paused", ["active"])
        assert heard()
        ledger.remove("s")
        assert heard()
        assert subscription.next(0.05) is None


def test_what_is_in_use_is_told_by_bound(ledger: Ledger) -> None:
    """Counters of what nobody bounds are not there."""
    assert ledger.in_use("s") == {}
    bounded = definition(concurrency_per={"model": {"opus": 1}})
    ledger.revise("s", bounded, "other")
    claimed(ledger)
    assert ledger.in_use("s") == {'{"model":"opus"}': 1}
