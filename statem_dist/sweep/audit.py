"""Verifying what is stored of sweeps: every trial in one place, counts that are sums, and nothing held by nobody.

A sweep is read at one moment, by one script, so that one which moves meanwhile is judged rightly; memory is that of
one sweep. A place of a limit that sweeps share is let go of by its lease. So a place without a claim is looked at again
when that is over, and is a violation only if somebody goes on holding it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from statem_dist.laws import Violation
from statem_dist.store import keys
from statem_dist.store.inspection import scan
from statem_dist.store.redis_store import RedisStore, Script
from statem_dist.sweep.model import OUTCOMES

_AUDIT = Script("audit", Path(__file__).with_name("lua"))

_PARTS = ("sweep", "plan", "running", "claims", "holders", "slots", "taken", "outcomes", "counts", "lanes")

READINGS_MAX = 5
"""How often a sweep is read again that is being made or removed, with ``PAUSE_SECONDS`` between."""

PAUSE_SECONDS = 0.2

PAGE = 500
"""Sweeps that are listed at a time."""

WAIT_SECONDS_MAX = 120.0
"""Longest wait for the end of a lease; leases of trials are shorter."""


def sweep_ids(store: RedisStore) -> Iterator[str]:
    """Yield the ids of all sweeps, oldest first."""
    first = 0
    while page := store.call("ZRANGE", keys.SWEEPS, first, first + PAGE - 1):
        yield from (bytes(member).decode() for member in page)
        first += PAGE


def verify_sweep(store: RedisStore, sweep_id: str) -> list[Violation]:
    """Return the laws that what is stored of a sweep breaks."""
    for _ in range(READINGS_MAX):
        found = _read(store, sweep_id)
        if found is not None:
            return [Violation(f"sweep {sweep_id}", 0, law, sentence) for law, sentence in _broken(*found)]
        if store.call("ZSCORE", keys.SWEEPS, sweep_id) is None:
            return []
        time.sleep(PAUSE_SECONDS)
    sentence = "It is listed, and its definition is missing: `statem-dist sweep rm` removes the rest."
    return [Violation(f"sweep {sweep_id}", 0, "sweep_whole", sentence)]


def verify_limits(store: RedisStore) -> list[Violation]:
    """Return the places of shared limits that somebody goes on holding for no trial.

    If there is a place without a trial at all, this waits until its lease is over.
    """
    suspects = _places_of_nobody(store)
    if not suspects:
        return []
    until = max(suspects.values())
    deadline = time.monotonic() + WAIT_SECONDS_MAX
    while store.clock() <= until and time.monotonic() < deadline:
        time.sleep(PAUSE_SECONDS)
    still = _places_of_nobody(store)
    return [
        Violation(f"limit {name}", 0, "limit_of_nobody", f"{holder} goes on holding a place, and has no trial.")
        for name, holder in sorted(suspects)
        if (name, holder) in still
    ]


def _places_of_nobody(store: RedisStore) -> dict[tuple[str, str], int]:
    """Return the places of shared limits whose holders have no trial, with the ends of their leases (server ms)."""
    now = store.clock()
    found: dict[tuple[str, str], int] = {}
    for key in scan(store, "statem:{limit:*}:held"):
        name = key.removeprefix("statem:{limit:").removesuffix("}:held")
        flat = store.call("ZRANGEBYSCORE", key, f"({now}", "+inf", "WITHSCORES")
        for member, score in zip(flat[::2], flat[1::2], strict=True):
            found[name, bytes(member).decode()] = int(float(score))
    if found:
        for sweep_id in sweep_ids(store):
            holders = _texts(store.call("HKEYS", keys.sweep(sweep_id, "holders")))
            found = {place: until for place, until in found.items() if place[1] not in holders}
    return found


def _read(store: RedisStore, sweep_id: str) -> list[Any] | None:
    # Asked for first, because whatever the script reads without them is read for nothing.
    lanes = sorted(_texts(store.call("SMEMBERS", keys.sweep(sweep_id, "lanes"))))
    for _ in range(READINGS_MAX):
        key_list = [keys.sweep(sweep_id, part) for part in _PARTS]
        key_list += [keys.sweep(sweep_id, f"pending:{lane}") for lane in lanes]
        found = store.run_script(_AUDIT, key_list, [])
        if not found[0]:
            return None
        now = sorted(_texts(found[9]))
        if now == lanes:
            return [*found[1:9], found[10:]]
        lanes = now
    return None


def _broken(
    plan: Sequence[bytes],
    running: Sequence[bytes],
    claims: Sequence[bytes],
    holders: Sequence[bytes],
    slots: Sequence[bytes],
    taken: Sequence[bytes],
    outcomes: Sequence[bytes],
    counts: Sequence[bytes],
    lanes: Sequence[Sequence[bytes]],
) -> Iterator[tuple[str, str]]:
    """Yield each law that is broken, and how."""
    planned, under_way = _texts(plan), _texts(running)
    waiting = [number for lane in lanes for number in _texts(lane)]
    outcome_of, counted = _fields(outcomes), {name: int(number) for name, number in _fields(counts).items()}

    places = Counter([*waiting, *under_way, *outcome_of])
    if several := sorted((number for number, times in places.items() if times > 1), key=_order):
        yield "trial_in_one_place", f"In more than one place at a time: {_listed(several)}."
    if nowhere := sorted(set(planned) - set(places), key=_order):
        yield "trial_in_one_place", f"Planned, and neither waiting nor under way nor ended: {_listed(nowhere)}."
    if strangers := sorted(set(places) - set(planned), key=_order):
        yield "trial_in_one_place", f"Waiting, under way or ended, and not planned: {_listed(strangers)}."

    tally: dict[str, int] = {"pending": len(waiting), "running": len(under_way), **dict.fromkeys(OUTCOMES, 0)}
    for outcome in outcome_of.values():
        tally[outcome] = tally.get(outcome, 0) + 1
    wrong = [
        f"{state} is {counted.get(state, 0)} and should be {number}"
        for state, number in tally.items()
        if counted.get(state, 0) != number
    ]
    if wrong:
        yield "sweep_counts", f"The counts are not those of the trials: {', '.join(wrong)}."
    if sum(counted.values()) != len(planned):
        yield (
            "sweep_accounting",
            f"{len(planned)} trials are planned, and the counts add up to {sum(counted.values())}.",
        )

    claimed, taken_by, held_by = _fields(claims), _fields(taken), _fields(holders)
    for what, numbers in (("a claim", set(claimed)), ("a holder", set(held_by.values())), ("its slots", set(taken_by))):
        if missing := sorted(set(under_way) - numbers, key=_order):
            yield "claim_of_trial", f"Under way without {what}: {_listed(missing)}."
        if idle := sorted(numbers - set(under_way), key=_order):
            yield "claim_of_trial", f"Not under way, and there is {what} of it: {_listed(idle)}."
    used: Counter[str] = Counter()
    for number, text in taken_by.items():
        holder, *counters = text.split("\n")
        used.update(counters)
        if held_by.get(holder) != number:
            yield "claim_of_trial", f"The trial {number} is held by {holder}, who is not known to hold it."
    held = {name: int(number) for name, number in _fields(slots).items()}
    for name in sorted({*used, *held}):
        if held.get(name, 0) != used[name]:
            yield "slot_of_nobody", f"{held.get(name, 0)} are counted for {name}, and {used[name]} are under way."


def _listed(numbers: Sequence[str]) -> str:
    """Return the numbers of some trials in words; of many, the first ones."""
    shown = ", ".join(numbers[:10])
    return f"trials {shown} and {len(numbers) - 10} more" if len(numbers) > 10 else f"trials {shown}"


def _order(number: str) -> tuple[int, str]:
    return (int(number) if number.isdecimal() else 0, number)


def _texts(members: Sequence[bytes]) -> list[str]:
    return [bytes(member).decode(errors="replace") for member in members]


def _fields(flat: Sequence[bytes]) -> dict[str, str]:
    texts = _texts(flat)
    return dict(zip(texts[::2], texts[1::2], strict=True))
