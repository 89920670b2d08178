"""Keeping leases: renewed while they are held, given up in time when they cannot be renewed.

Time is a number here, and what the threads of a keeper do again and again is done one round at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from statem_dist.errors import Unavailable
from statem_dist.leases import INSIST_SECONDS, MARGIN, RENEWALS_PER_LEASE, LeaseKeeper
from statem_dist.protocol.commands import ClaimWork, Command, Goto, Start
from statem_dist.protocol.decide import decide
from statem_dist.protocol.evolve import evolve
from statem_dist.protocol.graph import Node
from statem_dist.store.base import Change
from tests.support.builders import AGENT, EPOCH, PLACE, WORKER, loop, one_by_one, shell
from tests.support.memory_store import MemoryStore

LEASE_SECONDS = 8.0
LEASE_MS = 8_000
KILL_GRACE_SECONDS = 1.0
TRUSTED_SECONDS = (1 - MARGIN) * LEASE_SECONDS - KILL_GRACE_SECONDS
"""For how long after a renewal was asked for a claim is kept without another."""


class Clock:
    """The monotonic clock and that of the store, moved together."""

    def __init__(self, store: MemoryStore) -> None:
        self._store = store
        self.seconds = 1000.0

    def monotonic(self) -> float:
        """Return the time in seconds."""
        return self.seconds

    def move(self, seconds: float) -> None:
        """Let time pass."""
        self.seconds += seconds
        self._store.now += round(seconds * 1000)


class FragileStore(MemoryStore):
    """A store that can be away.

    Attributes:
        away: whether it cannot be reached.
        asked: how often it was asked to renew.
        on_renew: what happens while it renews.
    """

    def __init__(self) -> None:
        super().__init__(EPOCH)
        self.away = False
        self.asked = 0
        self.on_renew: Callable[[], None] = lambda: None

    def renew(self, run_id: str, token: int, lease_ms: int, operation: str = "") -> bool:
        """Renew, if it is there."""
        self.asked += 1
        self.on_renew()
        if self.away:
            raise Unavailable("It is away.")
        return super().renew(run_id, token, lease_ms, operation)


class Site:
    """A keeper, a store with one claim in it, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = FragileStore()
        self.clock = Clock(self.store)
        monkeypatch.setattr("statem_dist.leases.time", self.clock)
        self.keeper = LeaseKeeper(self.store, LEASE_SECONDS, KILL_GRACE_SECONDS)
        monkeypatch.setattr(self.keeper, "_start", lambda: None)
        self.lost = 0
        self._claim()

    @property
    def expiry(self) -> int:
        """When the lease runs out, in ms from now."""
        return self.store.runs["r"].leases[1] - self.store.now

    def end_lease(self) -> None:
        """Do what somebody does who takes the claim away."""
        self.store.runs["r"].leases.clear()

    def told(self) -> None:
        """Note down that the claim must be given up."""
        self.lost += 1

    def round(self) -> float | None:
        """Do once what both threads of a keeper do; return when the clock is to be looked at again."""
        self.keeper.renew()
        return self.keeper.give_up_overdue()

    def _claim(self) -> None:
        runbook = loop(Node("a", before_transfer=one_by_one(shell())))
        commands: list[Command] = [
            Start(run_id="r", runbook=runbook, place=PLACE, by=AGENT),
            Goto(runbook=runbook, target="b", by=AGENT),
            ClaimWork(transition="t2", check="before_transfer.0", worker=WORKER),
        ]
        before = after = None
        for number, command in enumerate(commands):
            events = decide(before, command, EPOCH)
            for event in events:
                after = evolve(after, event)
            assert after is not None
            change = Change(before, after, tuple(events), operation=str(number), due_ms=None, lease_ms=LEASE_MS)
            assert self.store.commit(change) is None
            before = after


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A site whose lease has just been taken."""
    site = Site(monkeypatch)
    yield site
    site.keeper.close()


def test_a_held_lease_is_renewed(site: Site) -> None:
    """While it is held, each round gives a lease its full length again."""
    with site.keeper.hold("r", 1, site.told) as held:
        for _ in range(2 * RENEWALS_PER_LEASE):
            site.clock.move(LEASE_SECONDS / RENEWALS_PER_LEASE)
            assert site.round() == pytest.approx(TRUSTED_SECONDS)
            assert site.expiry == LEASE_MS
    assert (held.lost, site.lost) == (False, 0)


def test_a_lease_that_is_gone_is_told_until_it_is_let_go(site: Site) -> None:
    """When somebody else has the claim its holder is told at each look, and the store is not asked again."""
    with site.keeper.hold("r", 1, site.told) as held:
        site.end_lease()
        assert site.round() == INSIST_SECONDS
        assert held.lost
        asked = site.store.asked
        site.round()
    site.round()
    assert (site.lost, site.store.asked) == (2, asked)


def test_an_expired_lease_is_lost(site: Site) -> None:
    """A holder that slept through its lease, as a suspended laptop does, has lost it."""
    with site.keeper.hold("r", 1, site.told) as held:
        site.clock.move(LEASE_SECONDS)
        site.round()
        assert held.lost


def test_a_claim_is_given_up_in_time_for_its_command_to_end(site: Site) -> None:
    """While the store is away a claim is kept, and given up when a kill may just end before the lease does."""
    site.store.away = True
    with site.keeper.hold("r", 1, site.told) as held:
        site.clock.move(TRUSTED_SECONDS - 0.1)
        assert site.round() == pytest.approx(0.1)
        assert not held.lost
        site.clock.move(0.1)
        site.round()
        assert held.lost
        assert site.expiry > 1000 * KILL_GRACE_SECONDS


def test_a_renewal_counts_from_when_it_was_asked_for(site: Site) -> None:
    """How long the store took to answer is no part of what is trusted."""
    with site.keeper.hold("r", 1, site.told):
        site.store.on_renew = lambda: site.clock.move(3)
        site.keeper.renew()
        assert site.keeper.give_up_overdue() == pytest.approx(TRUSTED_SECONDS - 3)


def test_a_claim_that_took_long_to_be_answered_is_looked_at_first(site: Site) -> None:
    """It may be somebody else's by now; then nothing is begun for it."""
    site.end_lease()
    with site.keeper.hold("r", 1, site.told, asked_at=site.clock.seconds - 5) as held:
        assert held.lost
    with site.keeper.hold("r", 1, site.told, asked_at=site.clock.seconds - 1) as held:
        assert not held.lost


def test_a_short_absence_is_survived(site: Site) -> None:
    """After a renewal that came through, the time that a claim may go unrenewed begins anew."""
    with site.keeper.hold("r", 1, site.told) as held:
        for away in (True, False, True, True, False):
            site.store.away = away
            site.clock.move(0.2 * LEASE_SECONDS)
            site.round()
            assert not held.lost
    assert site.expiry == LEASE_MS


@pytest.mark.parametrize("error", [Unavailable("It is away."), RuntimeError("A defect.")])
def test_no_error_of_the_store_ends_the_keeping(site: Site, error: Exception) -> None:
    """Whatever one renewal meets, the next round renews."""
    with site.keeper.hold("r", 1, site.told) as held:

        def fail() -> None:
            raise error

        site.store.on_renew = fail
        site.round()
        site.store.on_renew = lambda: None
        site.clock.move(1)
        site.round()
        assert not held.lost
        assert site.expiry == LEASE_MS


def test_a_store_that_is_away_is_asked_once_a_round(site: Site) -> None:
    """With many claims in hand, the first one that finds the store away spares the others the wait for it."""
    site.store.away = True
    with (
        site.keeper.hold("r", 1, site.told),
        site.keeper.hold("r", 2, site.told),
        site.keeper.hold("r", 3, site.told),
    ):
        site.round()
        assert site.store.asked == 1
        site.round()
        assert site.store.asked == 2
    assert site.lost == 0


def test_without_the_store_leases_are_judged_by_time(site: Site) -> None:
    """Claims whose time is over are given up although the store was not asked about them; younger ones stay."""
    site.store.away = True
    with site.keeper.hold("r", 1, site.told) as old, site.keeper.hold("r", 2, site.told) as older_too:
        site.clock.move(0.5 * TRUSTED_SECONDS)
        with site.keeper.hold("r", 3, site.told) as young:
            site.clock.move(0.5 * TRUSTED_SECONDS)
            site.round()
            assert (old.lost, older_too.lost, young.lost) == (True, True, False)
    assert site.lost == 2


def test_a_lost_claim_asks_nobody(site: Site) -> None:
    """What was given up is not asked about, and keeps nobody from being renewed."""
    with site.keeper.hold("r", 99, lambda: None) as stranger, site.keeper.hold("r", 1, site.told) as mine:
        site.round()
        assert (stranger.lost, mine.lost) == (True, False)
        site.clock.move(1)
        site.round()
        assert site.store.asked == 3
        assert site.expiry == LEASE_MS


def test_only_what_is_held_is_renewed(site: Site) -> None:
    """After the ``with`` block, also one that ended with an error, the lease is left to itself."""

    def fail() -> None:
        with site.keeper.hold("r", 1, site.told):
            raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        fail()
    assert site.round() is None
    assert site.store.asked == 0


def test_the_threads_do_the_same() -> None:
    """A real keeper tells the holder of a claim that nobody has, within its first round; two threads serve all."""
    keeper = LeaseKeeper(MemoryStore(EPOCH), 0.2)
    told = threading.Event()
    try:
        with keeper.hold("nobody", 1, told.set), keeper.hold("nobody", 2, told.set):
            assert told.wait(30)
            names = [thread.name for thread in threading.enumerate()]
            assert (names.count("statem-leases"), names.count("statem-clock")) == (1, 1)
    finally:
        keeper.close()
