"""Whole runs in a world where everything goes wrong, replayed from a seed.

The decider and the coordinator are the real ones. Around them are a store in memory, messages that get lost,
doubled and mixed up, workers that die or sleep in the middle of anything, replies that do not arrive, rivals that
are faster, people who decide twice, too late or on what is not theirs, who pause runs, end them and begin them anew,
and a clock that jumps. Then the storm ends, and what was begun has to settle, within the law.

``SEEDS=5000 pytest tests/simulation`` tries more worlds; the number in the name of a failed test is its seed.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import get_args

import pytest

from statem_dist.coordinator import Applied, Coordinator
from statem_dist.dispatch import Owed
from statem_dist.errors import Conflict, NotAuthorised, Unavailable
from statem_dist.laws import Judge, may_repeat
from statem_dist.protocol.commands import (
    Cancel,
    CancelRun,
    ClaimWork,
    Command,
    Decide,
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
from statem_dist.protocol.events import Event, Recovered, TransitionOpened, WorkClaimed
from statem_dist.protocol.evolve import replay
from statem_dist.protocol.graph import Predicate
from statem_dist.protocol.model import Place, PlannedCheck, Run, Transition, WayOut, Worker
from statem_dist.protocol.outcome import Outcome
from statem_dist.protocol.progress import CHECKS_QUEUE, REVIEWS_QUEUE, Batch
from statem_dist.settings import Settings
from statem_dist.store.base import Change, Push
from tests.support.builders import AGENT, EPOCH
from tests.support.memory_store import MemoryStore
from tests.support.random_worlds import (
    OPERATOR,
    random_confirmations,
    random_dynamic,
    random_on_manual,
    random_outcome,
    random_runbook,
)

SEEDS = int(os.environ.get("SEEDS", "200"))
STORM_STEPS = 150
CALM_STEPS_MAX = 5_000
"""Far more than the work of a few transitions takes; whoever needs them all is turning in circles."""

WORKERS = 4
SETTINGS = Settings(state_dir=Path("/unused"), lease_seconds=30.0, hint_grace_seconds=5.0)

Steps = Iterator[None]
"""What a worker does, in steps between which everybody else may act, and it may die."""


class StormyStore(MemoryStore):
    """A store on which rivals are faster and replies get lost.

    Args:
        rng: decides what happens.
        let_others_act: makes somebody else take a step in the middle of a commit.
    """

    def __init__(self, rng: Random, let_others_act: Callable[[], None]) -> None:
        super().__init__(EPOCH)
        self.calm = False
        self._rng = rng
        self._let_others_act = let_others_act

    def commit(self, change: Change) -> int | None:
        """Commit, with what may happen on the way there and back."""
        fate = 99 if self.calm else self._rng.randint(0, 99)
        if fate < 10:
            self._let_others_act()
        elif fate < 12:
            raise Unavailable("the request was lost")
        refused = super().commit(change)
        if 12 <= fate < 18:
            # The reply was lost, others went on, and the client sends the same commit again.
            self._let_others_act()
            repeated = super().commit(change)
            assert (repeated is None) == (refused is None), "the answer to a retry is that of the first try"
            return repeated
        if 18 <= fate < 20:
            raise Unavailable("the reply was lost, and patience ended")
        return refused


class Messages:
    """The dispatcher, and the network behind it.

    Args:
        store: whose queues the messages lie in.
        with_commit: whether the commit carries them, or they are sent afterwards and may get lost on the way.
        rng: decides what happens.
    """

    def __init__(self, store: StormyStore, with_commit: bool, rng: Random) -> None:
        self._store = store
        self._with_commit = with_commit
        self._rng = rng

    def pushes(self, batches: Sequence[Owed]) -> tuple[Push, ...]:
        """Return what the commit carries."""
        return self._messages(batches) if self._with_commit else ()

    def send(self, batches: Sequence[Owed]) -> None:
        """Send what the commit did not carry."""
        for push in () if self._with_commit else self._messages(batches):
            if self._store.calm or self._rng.randint(0, 4):
                self._store.queues[push.queue].insert(0, push.message)

    def take(self) -> tuple[str, str, str] | None:
        """Deliver one message, any one, if there is one and it is not lost; it may come again."""
        queues = [queue for _, queue in sorted(self._store.queues.items()) if queue]
        if not queues:
            return None
        queue = self._rng.choice(queues)
        message = queue.pop(self._rng.randrange(len(queue)))
        fate = 99 if self._store.calm else self._rng.randint(0, 99)
        if fate < 10:
            return None
        if fate < 20:
            queue.append(message)
        run_id, transition, check = json.loads(message)
        return run_id, transition, check

    def _messages(self, batches: Sequence[Owed]) -> tuple[Push, ...]:
        owed = [batch for batch in batches if isinstance(batch, Batch)]
        return tuple(Push(b.queue, json.dumps([b.run, b.transition, b.checks[0]]).encode()) for b in owed)


class World:
    """A few runs, their drivers, a few workers, and two reapers.

    Args:
        seed: where every choice comes from.
    """

    def __init__(self, seed: int) -> None:
        self.rng = Random(seed)
        self.store = StormyStore(self.rng, self._rival)
        self.messages = Messages(self.store, with_commit=bool(self.rng.randint(0, 2)), rng=self.rng)
        self.coordinator = Coordinator(self.store, self.messages, SETTINGS)
        self.runbooks = {digest: random_runbook(self.rng, digest) for digest in ("h1", "h2")}
        self.runs = [f"run-{number}" for number in range(self.rng.randint(1, 3))]
        self.working: dict[int, Steps] = {}
        self.begun: Counter[tuple[str, str, str]] = Counter()
        self._acting: set[str] = set()
        self._requests = 0
        self._lives = 0

    # --- the plot ------------------------------------------------------------------------------------------

    def storm(self) -> None:
        """Let everybody act and everything fail."""
        for _ in range(STORM_STEPS):
            self._act()

    def calm_down(self) -> None:
        """Let what was begun come to its end: nobody begins anything new, nobody dies, nothing gets lost.

        Paused runs are let go on when all others have settled.
        """
        self.store.calm = True
        for _ in range(CALM_STEPS_MAX):
            for number in range(WORKERS):
                self._work(number)
            if not self.working and not any(self.store.queues.values()):
                if self.store.due:
                    self.store.now = max(self.store.now, min(self.store.due.values()))
                    self._reap()
                elif not (self._somebody_decides() or self._somebody_recovers() or self._somebody_lets_go_on()):
                    return
        left = [run_id for run_id, stored in self.store.runs.items() if stored.run.in_flight]
        raise AssertionError(f"not settled after {CALM_STEPS_MAX} steps: {', '.join(left)}")

    def check(self) -> None:
        """Assert that everything has settled, and that everything that happened was lawful."""
        for run_id, stored in self.store.runs.items():
            events = [event for _, event in self.store.events(run_id)]
            judge = Judge(self.runbooks)
            judge.see(events)
            assert replay(events) == judge.run == stored.run
            assert len(events) == stored.run.version
            assert stored.run.in_flight is None, "nothing is left open"
            assert stored.leases == {}, "nothing is left claimed"
            requests = Counter(event.request_id for event in events if isinstance(event, TransitionOpened))
            assert set(requests.values()) <= {1}, "a request that was sent twice is one request"
            self._check_effects(run_id, [event for event in events if isinstance(event, TransitionOpened)], events)
        assert self.store.due == {}, "nobody is reminded of anything"

    def _check_effects(self, run_id: str, openings: list[TransitionOpened], events: list[Event]) -> None:
        resumed = Counter(
            (event.transition, check)
            for event in events
            if isinstance(event, Recovered) and event.way == "resume"
            for check in event.checks
        )
        for opened in openings:
            for planned in opened.plan:
                if not may_repeat(planned) and not isinstance(planned.check.do, Predicate):
                    times = self.begun[run_id, opened.transition, planned.id]
                    allowed = 1 + resumed[opened.transition, planned.id]
                    assert times <= allowed, f"{planned.id} of {opened.transition} was executed {times} times"

    # --- who acts ------------------------------------------------------------------------------------------

    def _act(self) -> None:
        self.store.now += self.rng.choice((0, 1, 200, 2_000))
        if self.rng.randint(0, 39) == 0:
            self.store.now += 40_000
        match self.rng.randint(0, 19):
            case 0 | 1 | 2 | 3:
                self._alone(f"driver of {(run_id := self.rng.choice(self.runs))}", lambda: self._drive(run_id))
            case 4 | 5:
                self._reap()
            case 6 | 7:
                self._somebody_decides()
            case 9:
                self._somebody_recovers()
            case 8 if self.rng.randint(0, 1):
                run_id = self.rng.choice(self.runs)
                self._alone(f"person {self.rng.randint(1, 2)}", lambda: self._steer(run_id))
            case _:
                self._work(self.rng.randrange(WORKERS))

    def _rival(self) -> None:
        """Somebody acts while another is in the middle of a commit."""
        self._act()

    def _alone(self, actor: str, act: Callable[[], None]) -> None:
        """Have somebody act who is not in the middle of something; refusals and failures are a part of life."""
        if actor in self._acting or len(self._acting) > 2:
            return
        self._acting.add(actor)
        try:
            act()
        except (Conflict, NotAuthorised, Unavailable):
            pass
        finally:
            self._acting.remove(actor)

    # --- drivers -------------------------------------------------------------------------------------------

    def _drive(self, run_id: str) -> None:
        stored = self.store.runs.get(run_id)
        if stored is not None and stored.run.in_flight is not None:
            if self.rng.randint(0, 9) == 0:
                self.coordinator.apply(
                    run_id, Cancel(transition=stored.run.in_flight.id, reason="impatience", by=AGENT)
                )
            return
        slot = self.rng.randrange(WORKERS)
        free = slot not in self.working and f"worker {slot}" not in self._acting
        worker = self._born(slot) if free and self.rng.randint(0, 1) else None
        command = self._request(run_id, stored.run if stored else None, worker)
        applied = self._insist(run_id, command)
        if applied is not None and worker is not None:
            # The caller executes what it opened, as the command line does where no worker is up.
            self.working[slot] = self._carry_on(worker, applied)

    def _request(self, run_id: str, run: Run | None, worker: Worker | None) -> Command:
        self._requests += 1
        request_id = f"q{self._requests}"
        confirmations = random_confirmations(self.rng)
        if run is None:
            place = Place(workspace="/work", queue=self.rng.choice((None, None, "pinned")))
            return Start(
                run_id=run_id,
                runbook=self.runbooks["h1"],
                place=place,
                by=AGENT,
                confirmations=confirmations,
                request_id=request_id,
                worker=worker,
            )
        runbook = self.runbooks[run.runbook]
        exits = [edge.target for edge in runbook.exits(run.node)]
        choice = self.rng.randint(0, 9)
        if choice == 0 or not exits:
            edited = self.runbooks[self.rng.choice(("h1", "h2"))]
            return Resume(runbook=edited, by=AGENT, confirmations=confirmations, request_id=request_id, worker=worker)
        if choice == 1:
            return Save(runbook=runbook, by=AGENT, confirmations=confirmations, request_id=request_id, worker=worker)
        return Goto(
            runbook=runbook,
            target=self.rng.choice(exits),
            by=AGENT,
            confirmations=confirmations,
            request_id=request_id,
            worker=worker,
            dynamic=random_dynamic(self.rng),
            on_manual=random_on_manual(self.rng),
        )

    def _insist(self, run_id: str, command: Command) -> Applied | None:
        """Send a request, and now and then once more, as a client does that got no answer."""
        applied: Applied | None = None
        try:
            applied = self.coordinator.apply(run_id, command)
        except Unavailable:
            self.coordinator.apply(run_id, command)
        else:
            if self.rng.randint(0, 4) == 0:
                assert self.coordinator.apply(run_id, command).events == ()
        return applied

    # --- people --------------------------------------------------------------------------------------------

    def _somebody_decides(self) -> bool:
        """Have one of two people decide something; return whether anything waited for that.

        In the storm they also decide what was decided already, and what an operator has to decide.
        """
        asking = ((run_id, stored.run.in_flight) for run_id, stored in self.store.runs.items())
        waiting = [run_id for run_id, transition in asking if transition is not None and transition.awaiting]
        if not waiting:
            return False
        run_id = self.rng.choice(waiting)
        self._alone(f"person {self.rng.randint(1, 2)}", lambda: self._decide(run_id))
        return True

    def _somebody_recovers(self) -> bool:
        """Have an operator say how a transition of unknown outcome goes on; return whether there was one."""
        open_ones = ((run_id, stored.run.in_flight) for run_id, stored in self.store.runs.items())
        unknown = [run_id for run_id, transition in open_ones if transition is not None and transition.unknown]
        if not unknown:
            return False
        run_id = self.rng.choice(unknown)
        self._alone(f"person {self.rng.randint(1, 2)}", lambda: self._recover(run_id))
        return True

    def _recover(self, run_id: str) -> None:
        transition = self.store.runs[run_id].run.transition
        assert transition is not None
        # Whoever executes a check again in the calm might have to do so for ever.
        ways: tuple[WayOut, ...] = ("abort", "passed", "failed") if self.store.calm else get_args(WayOut)
        command = Recover(
            way=self.rng.choice(ways),
            reason="looked",
            by=OPERATOR,
            transition=transition.id,
            check=self.rng.choice(tuple(transition.unknown)),
        )
        # Asked again, what is decided already is refused.
        self.coordinator.apply(run_id, command)

    def _decide(self, run_id: str) -> None:
        transition = self.store.runs[run_id].run.transition
        assert transition is not None
        asked = tuple(transition.awaiting)
        if not self.store.calm:
            asked += tuple(check for check in transition.results if check not in asked)
        by = OPERATOR if self.store.calm or self.rng.randint(0, 1) else AGENT
        command = Decide(
            transition=transition.id,
            check=self.rng.choice(asked),
            approved=self.rng.randint(0, 3) > 0,
            comment="seen",
            by=by,
            operator=by == OPERATOR,
        )
        self._insist(run_id, command)

    def _steer(self, run_id: str) -> None:
        """Pause a run, let it go on, end it or begin it anew, whether that can be done or not."""
        stored = self.store.runs.get(run_id)
        if stored is None:
            return
        command: Command
        match self.rng.randint(0, 11):
            case 0 | 1 | 2 | 3:
                command = Pause(reason="lunch", by=OPERATOR)
            case 4 | 5 | 6 | 7 | 8:
                command = Unpause(by=OPERATOR)
            case 9:
                command = CancelRun(reason="no use", by=OPERATOR, terminate=bool(self.rng.randint(0, 1)))
            case _:
                self._requests += 1
                command = Restart(
                    runbook=self.runbooks[self.rng.choice(("h1", "h2"))],
                    place=stored.run.place,
                    by=OPERATOR,
                    confirmations=random_confirmations(self.rng),
                    request_id=f"q{self._requests}",
                )
        if isinstance(command, Restart):
            self._insist(run_id, command)
        else:
            # Asked again, what is done already is refused.
            self.coordinator.apply(run_id, command)

    def _somebody_lets_go_on(self) -> bool:
        """Let every paused run go on; return whether there was one."""
        paused = [run_id for run_id, stored in self.store.runs.items() if stored.run.paused is not None]
        for run_id in paused:
            self.coordinator.apply(run_id, Unpause(by=OPERATOR))
        return bool(paused)

    # --- workers -------------------------------------------------------------------------------------------

    def _work(self, number: int) -> None:
        self._alone(f"worker {number}", lambda: self._step(number))

    def _step(self, number: int) -> None:
        if number not in self.working:
            taken = self.messages.take()
            if taken is not None:
                self.working[number] = self._execute(self._born(number), *taken)
            return
        if not self.store.calm and self.rng.randint(0, 29) == 0:
            del self.working[number]  # It dies; what it knew is gone.
            return
        steps = self.working.pop(number)
        if self._goes_on(steps):
            self.working[number] = steps

    def _goes_on(self, steps: Steps) -> bool:
        try:
            next(steps)
        except (StopIteration, Unavailable):
            return False
        return True

    def _born(self, number: int) -> Worker:
        """Return a worker with an identity of its own; most serve all queues."""
        self._lives += 1
        queues = (CHECKS_QUEUE, REVIEWS_QUEUE, "pinned")
        return Worker(f"worker-{number}-{self._lives}", queues if self.rng.randint(0, 3) else queues[:1])

    def _execute(self, worker: Worker, run_id: str, transition: str, check: str) -> Steps:
        """Claim what a message names and work it off."""
        claim = ClaimWork(transition=transition, check=check, worker=worker)
        yield from self._carry_on(worker, self.coordinator.apply(run_id, claim))

    def _carry_on(self, worker: Worker, applied: Applied) -> Steps:
        """Work off the claim that was just made, and every further one, as the executor does.

        No lease is looked at: a worker that slept wakes up and goes on as if nothing had happened.
        """
        yield
        while applied.events and isinstance(claimed := applied.events[-1], WorkClaimed):
            known: list[Outcome] = []
            for check in claimed.checks:
                transition = applied.run.in_flight
                if transition is None or transition.claim(claimed.token) is None:
                    return
                planned = transition.planned(check)
                assert planned is not None
                quick = isinstance(planned.check.do, Predicate)
                if known and not quick:
                    applied = self._record(worker, applied, claimed, known)
                    known = []
                    yield
                    if not applied.events or not _holds(applied.run, claimed.token):
                        break
                if not self.store.calm and self.rng.randint(0, 29) == 0:
                    if known:
                        applied = self._record(worker, applied, claimed, known)
                    self.coordinator.apply(applied.run.id, ReturnWork(claimed.transition, claimed.token))
                    return
                outcome = self._evaluate(applied.run, transition, planned)
                yield
                known.append(outcome)
                if not quick:
                    applied = self._record(worker, applied, claimed, known)
                    known = []
                    yield
                    if not applied.events or not _holds(applied.run, claimed.token):
                        break
            if known:
                applied = self._record(worker, applied, claimed, known)
                yield

    def _evaluate(self, run: Run, transition: Transition, planned: PlannedCheck) -> Outcome:
        outcome = random_outcome(self.rng, planned)
        if outcome.reason != "spawn_failed":
            self.begun[run.id, transition.id, planned.id] += 1
        return outcome

    def _record(self, worker: Worker, applied: Applied, claimed: WorkClaimed, known: list[Outcome]) -> Applied:
        command = RecordOutcomes(
            transition=claimed.transition,
            token=claimed.token,
            worker=worker,
            outcomes=tuple(known),
            jitter=self.rng.random(),
        )
        return self.coordinator.record(applied.run, command)

    # --- reapers -------------------------------------------------------------------------------------------

    def _reap(self) -> None:
        """Whichever of two reapers is free looks after what is due."""
        for number in (1, 2):
            self._alone(f"reaper {number}", self._look)

    def _look(self) -> None:
        for overdue in self.store.overdue(100):
            self.coordinator.tend(overdue)


def _holds(run: Run, token: int) -> bool:
    return run.in_flight is not None and run.in_flight.claim(token) is not None


@pytest.fixture(autouse=True)
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody waits for real."""
    monkeypatch.setattr(
        "statem_dist.coordinator.time", SimpleNamespace(sleep=lambda seconds: None, monotonic=lambda: 0.0)
    )


@pytest.mark.parametrize("seed", range(SEEDS))
def test_everything_settles_within_the_law(seed: int) -> None:
    """After the storm every transition settles, every event was lawful, and no hook was executed twice."""
    world = World(seed)
    world.storm()
    world.calm_down()
    world.check()


def test_a_world_is_its_seed() -> None:
    """The same seed makes the same history, so that a failure can be looked at again."""

    def histories() -> list[list[str]]:
        world = World(7)
        world.storm()
        world.calm_down()
        return [[repr(event) for _, event in world.store.events(run_id)] for run_id in world.runs]

    assert histories() == histories()
