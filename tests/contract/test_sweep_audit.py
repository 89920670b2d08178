"""What verifying sweeps finds: nothing where nothing was damaged, and each damage by its law."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from statem_dist.store import keys
from statem_dist.store.redis_store import RedisStore
from statem_dist.sweep.audit import sweep_ids, verify_limits, verify_sweep
from statem_dist.sweep.ledger import Claim, Ledger
from statem_dist.sweep.model import Limit
from statem_dist.sweep.shared_limits import SharedLimits
from tests.contract.conftest import RedisBench
from tests.support.ledgers import attempt, definition, planned, settled, taken

PER_MODEL = {"model": {"opus": 2, "*": 2}}
LIMIT = Limit("api", in_flight=5)


@pytest.fixture
def store(real_bench: RedisBench) -> RedisStore:
    """A store with a sweep of six trials: two have ended, two are under way, two wait."""
    ledger, made = Ledger(real_bench.redis_store), definition(concurrency_per=PER_MODEL)
    ledger.create("s", made, "print", "me")
    ledger.add("s", made, planned(range(1, 7)))
    ledger.steer("s", "active", ["planning"])
    for number, outcome in ((1, "passed"), (2, "failed")):
        claim = taken(ledger, f"h{number}")
        assert isinstance(claim, Claim)
        settled(ledger, claim, outcome, attempt(claim, 1, outcome))  # type: ignore[arg-type]
    assert isinstance(taken(ledger, "h3"), Claim)
    assert isinstance(taken(ledger, "h4"), Claim)
    assert verify_sweep(real_bench.redis_store, "s") == []
    assert list(sweep_ids(real_bench.redis_store)) == ["s"]
    return real_bench.redis_store


def key(part: str) -> str:
    """Return the key of a part of the sweep."""
    return keys.sweep("s", part)


DAMAGES: list[tuple[str, str, Callable[[RedisStore], object]]] = [
    ("a count", "sweep_counts", lambda store: store.call("HINCRBY", key("counts"), "passed", 1)),
    ("a count of a state that there is not", "sweep_accounting", lambda s: s.call("HSET", key("counts"), "odd", 1)),
    ("an outcome", "trial_in_one_place", lambda store: store.call("HDEL", key("outcomes"), 1)),
    ("a second place", "trial_in_one_place", lambda store: store.call("HSET", key("outcomes"), 3, "passed")),
    ("a stranger", "trial_in_one_place", lambda store: store.call("HSET", key("outcomes"), 99, "passed")),
    ("a claim", "claim_of_trial", lambda store: store.call("HDEL", key("claims"), 3)),
    ("a holder", "claim_of_trial", lambda store: store.call("HDEL", key("holders"), "h3")),
    ("another holder", "claim_of_trial", lambda store: store.call("HSET", key("taken"), 3, "nobody")),
    ("slots of one that has ended", "claim_of_trial", lambda store: store.call("HSET", key("taken"), 1, "h1")),
    ("a slot", "slot_of_nobody", lambda store: store.call("HINCRBY", key("slots"), '{"model":"opus"}', 1)),
]


@pytest.mark.parametrize(("law", "damage"), [case[1:] for case in DAMAGES], ids=[case[0] for case in DAMAGES])
def test_each_damage_is_found(store: RedisStore, law: str, damage: Callable[[RedisStore], object]) -> None:
    """By its law, with the name of the sweep."""
    damage(store)
    found = verify_sweep(store, "s")
    assert law in {violation.law for violation in found}
    assert {violation.run for violation in found} == {"sweep s"}


def test_a_sweep_that_was_removed_in_part_is_found(store: RedisStore) -> None:
    """It is listed, and nobody could say what it is."""
    store.call("DEL", key("sweep"))
    (found,) = verify_sweep(store, "s")
    assert found.law == "sweep_whole"
    Ledger(store).remove("s")
    assert verify_sweep(store, "s") == []


def test_a_place_that_its_lease_frees_is_no_violation(store: RedisStore) -> None:
    """Who has taken a place and died lets go of it with the lease; whoever renews it without a trial holds it."""
    limits = SharedLimits(store)
    assert limits.take(LIMIT, "h3", 60_000) is None
    assert verify_limits(store) == [], "it is that of a trial"
    assert limits.take(LIMIT, "dead", 300) is None
    assert verify_limits(store) == []
    assert limits.take(LIMIT, "leak", 300) is None
    read = store.clock

    def renewing() -> int:
        limits.renew("api", "leak", 300)
        return read()

    store.clock = renewing  # type: ignore[method-assign]
    (found,) = verify_limits(store)
    assert (found.run, found.law) == ("limit api", "limit_of_nobody")
