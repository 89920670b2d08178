"""Sweeps for tests of their ledger, and a look behind it: whether what it counts is what is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from statem_dist.store import keys
from statem_dist.store.client import Argument, Client, Subscription, Unreachable
from statem_dist.store.redis_store import RedisStore
from statem_dist.sweep.audit import verify_sweep
from statem_dist.sweep.ledger import Claim, Ledger, Refusal
from statem_dist.sweep.model import OUTCOMES, STATES, Attempt, Definition, Outcome, Planned, Reason, Usage

MODELS = ("opus", "sonnet")

REASON: dict[Outcome, Reason] = {
    "passed": "success_end",
    "failed": "failure_end",
    "stuck": "max_steps",
    "timeout": "agent_timeout",
    "error": "worker_lost",
    "cancelled": "run_cancelled",
}


def definition(**changes: Any) -> Definition:
    """Return the definition of a small sweep."""
    fields: dict[str, Any] = {
        "name": "small",
        "file": "/sweeps/small.sweep.yaml",
        "folder": "/sweeps",
        "runbook": "hash",
        "runbook_path": "/sweeps/small.yaml",
        "axes": ("model", "task"),
        "listed": ("model",),
        "success": ("done",),
    }
    return Definition(**{**fields, **changes})


def planned(numbers: Iterable[int], models: Sequence[str] = MODELS) -> list[Planned]:
    """Return trials whose models take turns."""
    return [
        Planned(number, {"model": models[(number - 1) % len(models)], "task": f"t{number}"}, 1) for number in numbers
    ]


def attempt(claim: Claim, number: int = 1, outcome: Outcome | None = None, **changes: Any) -> Attempt:
    """Return what is known of an attempt under a claim; it has ended if it has an outcome."""
    fields: dict[str, Any] = {
        "number": claim.number,
        "attempt": number,
        "run_id": f"{claim.sweep_id}-{claim.number}-{number}",
        "queued_at": claim.ready_at,
        "started_at": claim.ready_at + 1,
        "worker": "w",
        "host": "h",
        "folder": "/f",
    }
    if outcome is not None:
        fields |= {"ended_at": claim.ready_at + 2, "outcome": outcome, "reason": REASON[outcome]}
    return Attempt(**{**fields, **changes})


def taken(
    ledger: Ledger, holder: str, sweep_id: str = "s", *, by: Definition | None = None, lease_ms: int = 60_000
) -> Claim | Refusal:
    """Claim a trial from any lane."""
    current = by or ledger.definition(sweep_id)[0]
    return ledger.claim(sweep_id, current, ledger.lanes(sweep_id, current), holder, lease_ms)


class LostReplies:
    """A client whose replies get lost when somebody says so, after the command has been executed.

    Args:
        client: executes the commands.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self.calls = 0

    def loses(self) -> bool:
        """Return whether the reply that has just come is lost."""
        return False

    def call(self, *command: Argument) -> Any:
        """Send one command; see ``Client.call``."""
        self.calls += 1
        return self._unless_lost(self._client.call(*command))

    def call_many(self, commands: Iterable[Sequence[Argument]]) -> list[Any]:
        """Send several commands; see ``Client.call_many``."""
        self.calls += 1
        return list(self._unless_lost(self._client.call_many(commands)))

    def subscribe(self, channels: Sequence[str]) -> Subscription:
        """Listen to channels; see ``Client.subscribe``."""
        return self._client.subscribe(channels)

    def close(self) -> None:
        """Let go of every connection."""
        self._client.close()

    def _unless_lost(self, reply: Any) -> Any:
        if self.loses():
            raise Unreachable("the reply was lost")
        return reply


class EveryFirstReplyLost(LostReplies):
    """Loses the first reply to whatever is sent; what is sent again is answered."""

    def __init__(self, client: Client) -> None:
        super().__init__(client)
        self._lost = False

    def loses(self) -> bool:
        """Lose every other reply."""
        self._lost = not self._lost
        return self._lost


def flat(reply: Any) -> dict[str, str]:
    """Return a reply of names and values as a dictionary."""
    return {bytes(reply[i]).decode(): bytes(reply[i + 1]).decode() for i in range(0, len(reply), 2)}


def audit(store: RedisStore, sweep_id: str = "s") -> None:
    """Assert that every trial is in one place, and that all that is counted is what a walk over the places finds."""
    assert verify_sweep(store, sweep_id) == []

    def key(part: str) -> str:
        return keys.sweep(sweep_id, part)

    def hash_of(part: str) -> dict[str, str]:
        return flat(store.call("HGETALL", key(part)))

    plan = set(hash_of("plan"))
    lanes = [bytes(lane).decode() for lane in store.call("SMEMBERS", key("lanes"))]
    waiting = [
        bytes(number).decode() for lane in lanes for number in store.call("ZRANGE", key(f"pending:{lane}"), 0, -1)
    ]
    prefix = key("pending:").encode()
    lanes_there = {name.removeprefix(prefix).decode() for name in store.call("KEYS", "*") if name.startswith(prefix)}
    assert lanes_there <= set(lanes), "nothing waits where nobody looks"
    running = flat(store.call("ZRANGE", key("running"), 0, -1, "WITHSCORES"))
    claims, holders, takings, outcomes = hash_of("claims"), hash_of("holders"), hash_of("taken"), hash_of("outcomes")

    places = Counter([*waiting, *running, *outcomes])
    assert set(places) == plan, "nothing is lost, and nothing is there that is not planned"
    assert set(places.values()) <= {1}, "every trial is in one place"
    assert set(claims) == set(running) == set(takings)
    assert sorted(holders.values()) == sorted(running), "one holder for each claim"
    assert len(set(claims.values())) == len(claims), "no token twice"
    assert {number: text.split("\n")[0] for number, text in takings.items()} == {
        number: holder for holder, number in holders.items()
    }

    found = Counter({"pending": len(waiting), "running": len(running), **Counter(outcomes.values())})
    counted = {state: int(count) for state, count in hash_of("counts").items()}
    assert {state: counted.get(state, 0) for state in STATES} == {state: found[state] for state in STATES}
    slots = Counter(counter for text in takings.values() for counter in text.split("\n")[1:])
    assert {name: int(count) for name, count in hash_of("slots").items() if count != "0"} == dict(slots)

    documents = hash_of("attempts")
    latest = {number: int(count) for number, count in hash_of("tries").items()}
    for name in documents:
        number, _, count = name.partition(".")
        assert int(count) <= latest[number]
    for number, outcome in outcomes.items():
        assert outcome in OUTCOMES
        if outcome != "cancelled" and number in latest:
            last = msgspec.json.decode(documents[f"{number}.{latest[number]}"], type=Attempt)
            assert last.outcome == outcome, "the latest attempt decides the state"

    fields = hash_of("sweep")
    idle = not running
    if fields["status"] == "finished":
        assert idle
    assert (int(fields.get("ended_at", 0)) > 0) == (fields["status"] in ("finished", "stopped", "cancelled") and idle)


def settled(
    ledger: Ledger,
    claim: Claim,
    outcome: Outcome | None,
    tried: Attempt | None,
    *,
    by: Definition | None = None,
    used: Usage | None = None,
    lapsed: bool = False,
) -> bool:
    """End a claim on one of the trials that ``planned`` makes."""
    current = by or ledger.definition(claim.sweep_id)[0]
    (found,) = ledger.trials(claim.sweep_id, [claim.number])
    return ledger.settle(claim, found.planned.cell, current, tried, outcome, used=used, lapsed=lapsed)
