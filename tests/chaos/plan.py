"""Which faults befall the system, when and for how long: a value that a seed decides, written down before it begins."""

from __future__ import annotations

import random
from typing import Literal, TypeAlias

from msgspec import Struct

Kind: TypeAlias = Literal[
    "worker_killed",
    "worker_frozen_briefly",
    "worker_frozen_beyond_its_lease",
    "worker_child_killed",
    "worker_told_to_stop",
    "service_killed",
    "service_frozen",
    "caller_killed",
    "caller_frozen",
    "server_killed",
    "server_frozen",
    "broker_flushed",
    "messages_doubled",
    "scripts_flushed",
    "clients_killed",
    "replies_dropped",
    "replies_swallowed",
    "connections_reset",
    "network_slow",
    "network_held_briefly",
    "network_held_beyond_leases",
    "worker_cut_off_briefly",
    "worker_cut_off_beyond_its_lease",
    "disk_full",
    "memory_full",
    "clock_shifted",
]

Broker: TypeAlias = Literal["state", "database", "server"]
"""Where messages wait: in the state's own database, in another one of the same server, or on another server."""

LEASE_SECONDS = 3.0
"""The lease of every worker here: so short that losing it is nothing rare."""

SHARES: dict[Kind, int] = {
    "worker_killed": 6,
    "worker_frozen_briefly": 3,
    "worker_frozen_beyond_its_lease": 3,
    "worker_child_killed": 2,
    "worker_told_to_stop": 2,
    "service_killed": 3,
    "service_frozen": 1,
    "caller_killed": 5,
    "caller_frozen": 2,
    "server_killed": 3,
    "server_frozen": 1,
    "broker_flushed": 4,
    "messages_doubled": 4,
    "scripts_flushed": 2,
    "clients_killed": 2,
    "replies_dropped": 5,
    "replies_swallowed": 2,
    "connections_reset": 3,
    "network_slow": 2,
    "network_held_briefly": 2,
    "network_held_beyond_leases": 2,
    "worker_cut_off_briefly": 2,
    "worker_cut_off_beyond_its_lease": 4,
    "disk_full": 2,
    "memory_full": 2,
    "clock_shifted": 2,
}
"""How often each kind is drawn, after each has been drawn once."""

LENGTHS: dict[Kind, tuple[float, float]] = {
    "worker_killed": (0.2, 4.0),
    "worker_frozen_briefly": (0.2, 0.4 * LEASE_SECONDS),
    "worker_frozen_beyond_its_lease": (1.3 * LEASE_SECONDS, 2.5 * LEASE_SECONDS),
    "worker_told_to_stop": (1.0, 8.0),
    "service_killed": (0.2, 3.0),
    "service_frozen": (1.0, 5.0),
    "caller_killed": (0.2, 2.0),
    "caller_frozen": (1.0, 6.0),
    "server_killed": (0.2, 3.0),
    "server_frozen": (0.5, 4.0),
    "network_slow": (1.0, 3.0),
    "network_held_briefly": (0.2, 0.4 * LEASE_SECONDS),
    "network_held_beyond_leases": (1.3 * LEASE_SECONDS, 2.5 * LEASE_SECONDS),
    "worker_cut_off_briefly": (0.2, 0.4 * LEASE_SECONDS),
    "worker_cut_off_beyond_its_lease": (1.3 * LEASE_SECONDS, 3.0 * LEASE_SECONDS),
    "disk_full": (1.5, 4.0),
    "memory_full": (1.0, 3.0),
    "clock_shifted": (0.2, 1.0),
}
"""How long each kind lasts, in seconds: at least and at most. Those that are missing are over at once."""

ONE_AT_A_TIME: frozenset[Kind] = frozenset(
    {
        "server_killed",
        "server_frozen",
        "network_slow",
        "network_held_briefly",
        "network_held_beyond_leases",
        "disk_full",
        "memory_full",
    }
)
"""What takes the server away, or makes it useless. A server that is killed while its disk is full has told callers of
commits that it holds in memory alone: nobody promises that those are there afterwards, so these do not overlap."""

NEEDS_SERVER: frozenset[Kind] = ONE_AT_A_TIME | {
    "broker_flushed",
    "messages_doubled",
    "scripts_flushed",
    "clients_killed",
}
"""What is done by the server itself, and so cannot happen while it is away."""

RECOVERY_SECONDS = 1.5
"""How long the server is left in peace after one of these."""


class Fault(Struct, frozen=True):
    """One fault: what, when (seconds from the beginning), for how long, and a number that chooses whom it befalls."""

    at: float
    kind: Kind
    seconds: float
    choice: int


class Plan(Struct, frozen=True):
    """The faults of one round, and the system that they befall."""

    seed: int
    seconds: float
    broker: Broker
    faults: tuple[Fault, ...]


def plan_of(seed: int, seconds: float) -> Plan:
    """Return the plan of a seed for that many seconds: always the same one."""
    draw = random.Random(f"{seed}/{seconds}")
    broker: Broker = ("state", "database", "server")[seed % 3]
    bag: list[Kind] = []
    faults: list[Fault] = []
    at, peace_until = 1.0, 0.0
    while at < seconds:
        if not bag:
            # A round that is long enough has every kind; a short one has those that it draws first.
            bag = list(SHARES) if not faults else draw.choices(list(SHARES), list(SHARES.values()), k=24)
            draw.shuffle(bag)
        kind = next((kind for kind in bag if at >= peace_until or kind not in NEEDS_SERVER), None)
        if kind is not None:
            bag.remove(kind)
            shortest, longest = LENGTHS.get(kind, (0.0, 0.0))
            fault = Fault(round(at, 3), kind, round(draw.uniform(shortest, longest), 3), draw.randrange(1 << 30))
            faults.append(fault)
            if kind in ONE_AT_A_TIME:
                peace_until = at + fault.seconds + RECOVERY_SECONDS
        at += draw.uniform(0.3, 1.5)
    return Plan(seed, seconds, broker, tuple(faults))
