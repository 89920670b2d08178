"""Telling whether somebody still works on an open transition."""

from __future__ import annotations

from pathlib import Path

import pytest
from msgspec.structs import replace

from statem_dist import follow
from statem_dist.coordinator import Coordinator
from statem_dist.dispatch import NoDispatch
from statem_dist.follow import is_abandoned, lost_claims, queues_of_work
from statem_dist.protocol.commands import ClaimWork, Goto, RecordOutcomes, Start
from statem_dist.protocol.graph import Node, Retry
from statem_dist.settings import Settings
from statem_dist.store.base import Snapshot
from tests.support.builders import AGENT, EPOCH, FAILED, PLACE, WORKER, loop, one_by_one, shell
from tests.support.memory_store import MemoryStore

LEASE_MS = 30_000
CHECK = replace(shell(), retry=Retry(on=("failed",), initial_interval=60.0))


class Site:
    """A run whose check somebody has claimed."""

    def __init__(self) -> None:
        self.store = MemoryStore(EPOCH)
        self.runbook = loop(Node("a", before_transfer=one_by_one(CHECK)))
        settings = Settings(state_dir=Path("/unused"), lease_seconds=LEASE_MS / 1000)
        self.coordinator = Coordinator(self.store, NoDispatch(), settings)
        self.coordinator.apply("r", Start(run_id="r", runbook=self.runbook, place=PLACE, by=AGENT))
        self.coordinator.apply("r", Goto(runbook=self.runbook, target="b", by=AGENT))
        self.coordinator.apply("r", ClaimWork(transition="t2", check="before_transfer.0", worker=WORKER))

    @property
    def snapshot(self) -> Snapshot:
        """The run as it is stored."""
        return self.coordinator.load("r")

    def fail(self) -> None:
        """Let the claimed check fail, so that it is tried again in a minute."""
        token = self.snapshot.run.transition.token if self.snapshot.run.transition else 0
        record = RecordOutcomes(transition="t2", token=token, worker=WORKER, outcomes=(FAILED,), claim_more=False)
        self.coordinator.apply("r", record)


@pytest.fixture
def dead(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """The workers that are known to be dead on this host."""
    known: set[str] = set()
    monkeypatch.setattr(follow, "is_dead", known.__contains__)
    return known


def test_a_claim_is_lost_with_its_lease(dead: set[str]) -> None:
    """Whether the owner's process lives or not, and no earlier."""
    site = Site()
    site.store.now += LEASE_MS - 1
    assert lost_claims(site.snapshot) == ()
    assert not is_abandoned(site.store, site.snapshot)
    site.store.now += 1
    assert [claim.worker for claim in lost_claims(site.snapshot)] == [WORKER.id]
    assert is_abandoned(site.store, site.snapshot)
    assert queues_of_work(site.snapshot) == {"checks"}


def test_a_claim_is_lost_with_its_owner(dead: set[str]) -> None:
    """Who is known to be dead needs no lease to run out."""
    site = Site()
    dead.add(WORKER.id)
    assert len(lost_claims(site.snapshot)) == 1
    assert is_abandoned(site.store, site.snapshot)


def test_whoever_tried_last_waits_for_the_next_try(dead: set[str]) -> None:
    """As long as that process lives, a check in its pause is not abandoned; after its time it is anybody's."""
    site = Site()
    site.fail()
    assert not is_abandoned(site.store, site.snapshot)
    dead.add(WORKER.id)
    assert is_abandoned(site.store, site.snapshot)
    dead.clear()
    site.store.now += 600_000
    assert is_abandoned(site.store, site.snapshot)
