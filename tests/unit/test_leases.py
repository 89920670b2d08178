"""Keeping leases: renewed while they are held, given up in time when they cannot be renewed.

Time is a number here, and the renewing thread is asked to make one round at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from statem_dist.errors import Unavailable
from statem_dist.leases import RENEWALS_PER_LEASE, SAFETY, LeaseKeeper
from statem_dist.protocol.commands import ClaimWork, Command, Goto, Start
from statem_dist.protocol.decide import decide
from statem_dist.protocol.evolve import evolve
from statem_dist.protocol.graph import Node
from statem_dist.store.base import Change
from tests.support.builders import AGENT, EPOCH, PLACE, WORKER, loop, one_by_one, shell
from tests.support.memory_store import MemoryStore

LEASE_SECONDS = 8.0
LEASE_MS = 8_000


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
    """

    def __init__(self) -> None:
        super().__init__(EPOCH)
        self.away = False
        self.asked = 0

    def renew(self, run_id: str, token: int, lease_ms: int) -> bool:
        """Renew, if it is there."""
        self.asked += 1
        if self.away:
            raise Unavailable("It is away.")
        return super().renew(run_id, token, lease_ms)


class Round:
    """Stands for the event on which the renewing thread waits, so that a test makes the rounds."""

    def __init__(self) -> None:
        self._begin = threading.Semaphore(0)
        self._ended = threading.Semaphore(0)
        self._closed = False
        self.pauses: list[float] = []

    def wait(self, seconds: float) -> bool:
        """Tell the test that a round is over, and wait for it to ask for the next."""
        self.pauses.append(seconds)
        self._ended.release()
        self._begin.acquire()
        return self._closed

    def set(self) -> None:
        """End the thread."""
        self._closed = True
        self._begin.release()

    def make(self) -> None:
        """Have the thread make one round."""
        assert self._ended.acquire(timeout=30)
        self._begin.release()
        assert self._ended.acquire(timeout=30)
        self._ended.release()


class Site:
    """A keeper, a store with one claim in it, and a clock."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.store = FragileStore()
        self.clock = Clock(self.store)
        monkeypatch.setattr("statem_dist.leases.time", self.clock)
        self.keeper = LeaseKeeper(self.store, LEASE_SECONDS)
        self.round = Round()
        monkeypatch.setattr(self.keeper, "_closed", self.round)
        self.lost: list[str] = []
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
        self.lost.append(threading.current_thread().name)

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
    """While it is held, a lease is renewed several times per length, each time for its full length."""
    with site.keeper.hold("r", 1, site.told) as held:
        for _ in range(2 * RENEWALS_PER_LEASE):
            site.clock.move(LEASE_SECONDS / RENEWALS_PER_LEASE)
            site.round.make()
            assert site.expiry == LEASE_MS
    assert not held.lost
    assert site.lost == []
    assert set(site.round.pauses) == {LEASE_SECONDS / RENEWALS_PER_LEASE}


def test_a_lease_that_is_gone_is_told_once(site: Site) -> None:
    """When somebody else has the claim, its holder is told, once, from the keeper's thread; it is not asked again."""
    with site.keeper.hold("r", 1, site.told) as held:
        site.end_lease()
        site.round.make()
        assert held.lost
        asked = site.store.asked
        site.round.make()
    assert site.lost == ["statem-leases"]
    assert site.store.asked == asked


def test_an_expired_lease_is_lost(site: Site) -> None:
    """A holder that slept through its lease, as a suspended laptop does, has lost it."""
    with site.keeper.hold("r", 1, site.told) as held:
        site.clock.move(LEASE_SECONDS)
        site.round.make()
        assert held.lost


def test_a_claim_is_given_up_before_its_lease_ends(site: Site) -> None:
    """While the store is away a claim is kept for most of its lease, and given up while it is still its own."""
    site.store.away = True
    with site.keeper.hold("r", 1, site.told) as held:
        site.clock.move(SAFETY * LEASE_SECONDS - 0.1)
        site.round.make()
        assert not held.lost
        site.clock.move(0.2)
        site.round.make()
        assert held.lost
        assert site.expiry > 0


def test_a_short_absence_is_survived(site: Site) -> None:
    """After a renewal that came through, the time that a claim may go unrenewed begins anew."""
    with site.keeper.hold("r", 1, site.told) as held:
        for away in (True, False, True, True, False):
            site.store.away = away
            site.clock.move(0.3 * LEASE_SECONDS)
            site.round.make()
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
        site.round.make()
        assert site.store.asked == 1
        site.round.make()
        assert site.store.asked == 2
    assert site.lost == []


def test_without_the_store_leases_are_judged_by_time(site: Site) -> None:
    """Claims whose time is nearly over are given up although the store was not asked about them; younger ones stay."""
    site.store.away = True
    with site.keeper.hold("r", 1, site.told) as old, site.keeper.hold("r", 2, site.told) as older_too:
        site.clock.move(0.5 * LEASE_SECONDS)
        with site.keeper.hold("r", 3, site.told) as young:
            site.clock.move((SAFETY - 0.5) * LEASE_SECONDS + 0.1)
            site.round.make()
            assert (old.lost, older_too.lost, young.lost) == (True, True, False)
            assert site.store.asked == 1
    assert len(site.lost) == 2


def test_a_lost_claim_asks_nobody(site: Site) -> None:
    """What was given up is not asked about, and keeps nobody from being renewed."""
    with site.keeper.hold("r", 99, lambda: None) as stranger, site.keeper.hold("r", 1, site.told) as mine:
        site.round.make()
        assert (stranger.lost, mine.lost) == (True, False)
        site.clock.move(1)
        site.round.make()
        assert site.store.asked == 3
        assert site.expiry == LEASE_MS


def test_only_what_is_held_is_renewed(site: Site) -> None:
    """After the ``with`` block, also one that ended with an error, the lease is left to itself."""

    def fail() -> None:
        with site.keeper.hold("r", 1, site.told):
            raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError, match="interrupted"):
        fail()
    site.round.make()
    assert site.store.asked == 0


def test_one_thread_keeps_all_leases(site: Site) -> None:
    """Several claims share the one thread, and the loss of one does not touch the others."""
    others: list[str] = []
    with (
        site.keeper.hold("r", 1, site.told) as mine,
        site.keeper.hold("r", 99, lambda: others.append("lost")) as stranger,
    ):
        site.round.make()
        assert (mine.lost, stranger.lost) == (False, True)
        assert [thread.name for thread in threading.enumerate()].count("statem-leases") == 1
    assert others == ["lost"]


def test_nothing_runs_before_something_is_held(site: Site) -> None:
    """A process that never executes anything has no renewing thread."""
    assert site.keeper._thread is None
