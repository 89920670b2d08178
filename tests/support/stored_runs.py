"""Runs in a real store, moved at random by the real coordinator, for whoever judges what is stored."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from random import Random
from typing import get_args

from statem_dist.coordinator import Coordinator
from statem_dist.dispatch import NoDispatch
from statem_dist.errors import StatemError
from statem_dist.protocol.commands import (
    Cancel,
    CancelRun,
    ClaimWork,
    Command,
    Decide,
    ExpireClaim,
    Goto,
    Pause,
    RecordOutcomes,
    Recover,
    Restart,
    Resume,
    ReturnWork,
    Save,
    Start,
    Unpause,
)
from statem_dist.protocol.graph import Runbook
from statem_dist.protocol.model import Place, Run, WayOut, Worker
from statem_dist.protocol.progress import CHECKS_QUEUE, REVIEWS_QUEUE, pending
from statem_dist.settings import Settings
from statem_dist.store.base import Store
from tests.support.builders import AGENT
from tests.support.random_worlds import (
    OPERATOR,
    random_confirmations,
    random_dynamic,
    random_on_manual,
    random_outcome,
    random_runbook,
)

SETTINGS = Settings(state_dir=Path("/unused"))
WORKER = Worker("worker", (CHECKS_QUEUE, REVIEWS_QUEUE, "pinned"))


class StoredWorld:
    """A run in a store, and somebody who asks anything of it.

    Args:
        store: where it is.
        seed: where every choice comes from.
    """

    def __init__(self, store: Store, seed: int) -> None:
        self.rng = Random(seed)
        self.store = store
        self.run_id = f"run-{seed}"
        self.runbooks: dict[str, Runbook] = {digest: random_runbook(self.rng, digest) for digest in ("h1", "h2")}
        self._coordinator = Coordinator(store, NoDispatch(), SETTINGS)
        self._requests = 0
        start = Start(
            run_id=self.run_id,
            runbook=self.runbooks["h1"],
            place=Place(workspace="/work", queue=self.rng.choice((None, "pinned"))),
            by=AGENT,
            confirmations=random_confirmations(self.rng),
            labels={"seed": str(seed), "team": "blue"},
            request_id="q0",
        )
        self._coordinator.apply(self.run_id, start)

    @property
    def run(self) -> Run:
        """The run as it is stored."""
        return self._coordinator.load(self.run_id).run

    def act(self) -> None:
        """Ask one thing; a refusal is a part of life."""
        with suppress(StatemError):
            self._coordinator.apply(self.run_id, self._command(self.run))

    def _command(self, run: Run) -> Command:
        transition = run.in_flight
        self._requests += 1
        request = f"q{self._requests}"
        choice = self.rng.randint(0, 29)
        runbook = self.runbooks[run.runbook]
        if choice == 0:
            return Pause(reason="lunch", by=AGENT)
        if choice == 1 or run.paused is not None:
            return Unpause(by=AGENT)
        if choice == 2:
            return CancelRun(reason="no use", by=AGENT, terminate=bool(self.rng.randint(0, 1)))
        if choice == 3:
            return Restart(runbook=runbook, place=run.place, by=AGENT, request_id=request)
        if transition is None:
            exits = [edge.target for edge in runbook.exits(run.node)]
            if choice == 4:
                return Save(runbook=runbook, by=AGENT, request_id=request)
            if choice == 5 or not exits:
                return Resume(runbook=self.rng.choice((*self.runbooks.values(),)), by=AGENT, request_id=request)
            return Goto(
                runbook=runbook,
                target=self.rng.choice(exits),
                by=AGENT,
                confirmations=random_confirmations(self.rng),
                request_id=request,
                dynamic=random_dynamic(self.rng),
                on_manual=random_on_manual(self.rng),
            )
        if choice == 4:
            return Cancel(transition=transition.id, reason="enough", by=AGENT)
        if transition.unknown and choice > 14:
            way = self.rng.choice(get_args(WayOut))
            check = None if way == "abort" else self.rng.choice(tuple(transition.unknown))
            return Recover(transition=transition.id, way=way, check=check, reason="seen", by=OPERATOR)
        if transition.claims and choice > 8:
            claim = self.rng.choice(transition.claims)
            planned = [each for check in claim.checks if (each := transition.planned(check)) is not None]
            outcomes = tuple(random_outcome(self.rng, each) for each in planned)
            return RecordOutcomes(transition=transition.id, token=claim.token, worker=WORKER, outcomes=outcomes)
        if transition.claims and choice > 6:
            kind = self.rng.choice((ReturnWork, ExpireClaim))
            return kind(transition=transition.id, token=transition.claims[0].token)
        if offered := pending(run):
            return ClaimWork(transition=transition.id, check=self.rng.choice(offered).checks[0], worker=WORKER)
        if transition.awaiting:
            return Decide(
                transition=transition.id,
                check=self.rng.choice(tuple(transition.awaiting)),
                approved=self.rng.randint(0, 3) > 0,
                comment="",
                by=OPERATOR,
                operator=True,
            )
        return Cancel(transition=transition.id, reason="stuck", by=AGENT)
