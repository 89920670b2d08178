"""A whole sweep in its ledger while everything goes wrong, replayed from a seed.

The ledger is the real one, on a real server. Around it are workers that claim, note, renew and settle, that die, sleep
through their leases and come back with old tokens, that follow a definition of yesterday; keepers that find what has
lapsed, sometimes too late; replies that get lost, after which the same is sent again while others go on; and an
operator who pauses, resumes, stops, cancels, tries again, extends, withdraws and revises, and is interrupted in the
middle of that. After every step the books have to balance. Then the storm ends, and the sweep has to finish.

``SEEDS=2000 pytest tests/simulation/test_sweep_simulation.py`` tries more; the number in the name of a failed test is
its seed.
"""

from __future__ import annotations

import contextlib
import os
from collections import Counter
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from msgspec import Struct
from msgspec.structs import replace

from statem_dist.errors import Conflict, Unavailable
from statem_dist.store import keys
from statem_dist.store.client import Argument, Client, client_for
from statem_dist.store.redis_store import RedisStore
from statem_dist.sweep.lanes import Lane
from statem_dist.sweep.ledger import Claim, Ledger, Refusal
from statem_dist.sweep.model import OUTCOMES, Attempt, Definition, Limit, Outcome, Planned, Status, Trial, Usage
from tests.support.ledgers import LostReplies, attempt, audit, definition, flat, planned
from tests.support.servers import real_server

SEEDS = int(os.environ.get("SEEDS", "60"))
STORM_STEPS = 90
CALM_STEPS_MAX = 2_000
WORKERS = 4
LEASE_MS = 600_000

MODELS = ("opus", "sonnet", "haiku")


class StormyClient(LostReplies):
    """A client of one actor: replies get lost, others act before the same is sent again, and patience may end.

    Args:
        world: where it sends its commands.
    """

    def __init__(self, world: World) -> None:
        super().__init__(world.client)
        self._world = world

    def call(self, *command: Argument) -> Any:
        """Send one command, between whatever others do."""
        self._world.let_others_act()
        return super().call(*command)

    def loses(self) -> bool:
        """Lose one reply in a dozen."""
        world = self._world
        if world.calm or world.rng.randint(0, 11):
            return False
        if world.rng.randint(0, 7) == 0:
            raise Killed
        world.let_others_act()
        return True


class Killed(Exception):
    """An actor died in the middle of what it did."""


class Working(Struct):
    """What a worker has in its hands, as far as it knows; its claim may long be lost."""

    claim: Claim
    definition: Definition
    planned: Planned
    attempt: Attempt | None = None


class World:
    """One sweep, a few workers, two keepers and an operator.

    Args:
        seed: where every choice comes from.
        client: of an empty server.
    """

    def __init__(self, seed: int, client: Client) -> None:
        self.rng = Random(seed)
        self.calm = False
        self.depth = 0
        self.client = client
        self.behind = RedisStore(client, patience_seconds=1.0)
        self.sure = Ledger(self.behind)
        self.working: list[Working] = []
        self.ended: dict[tuple[int, int], Attempt] = {}
        self.claims = 0
        self.prints = 0
        self.tokens: set[int] = set()
        self.definitions = [self._random_definition()]
        self._bounded = 0, Counter[str]()
        self._retrying = False
        self._operating = False
        self.actors = [Ledger(RedisStore(StormyClient(self), patience_seconds=60.0)) for _ in range(WORKERS + 2)]
        self.sure.create("s", self.definitions[0], "print-0", "me")
        self.planned = self.rng.randint(1, 14)
        self.sure.add("s", self.definitions[0], planned(range(1, self.planned + 1), MODELS))
        self.sure.steer("s", "active", ["planning"])

    # --- the plot ------------------------------------------------------------------------------------------

    def storm(self) -> None:
        """Let everybody act and everything fail; the books balance after every step."""
        for _ in range(STORM_STEPS):
            self.act()
            self.check()

    def calm_down(self) -> None:
        """Let the sweep come to its end: nobody dies, no reply is lost, and it is let go on until it is finished."""
        self.calm = True
        known = {held.claim.token for held in self.working}
        for claim in self.sure.claims("s"):
            if claim.token not in known:
                # Nobody knows of it any more: its worker has died, or has never heard that it was claimed.
                self.behind.call("ZADD", keys.sweep("s", "running"), 1, claim.number)
        for _ in range(CALM_STEPS_MAX):
            sweep = self.sure.require("s")
            if sweep.status == "finished" and not sweep.counts["pending"]:
                break
            if sweep.status != "active":
                if sweep.status == "cancelled":
                    self.sure.again("s", self.sure.trials("s"))
                self.sure.steer("s", "active", [sweep.status])
            self._keeper(self.sure)
            self._work(0)
            self.check()
        else:
            raise AssertionError(f"not finished after {CALM_STEPS_MAX} steps: {self.sure.sweep('s')}")

    def check(self) -> None:
        """Assert that the books balance, that the bounds hold, and that nothing that has ended has changed."""
        audit(self.behind)
        sweep = self.sure.require("s")
        assert sweep.planned == self.planned
        trials = list(self.sure.trials("s"))
        assert [trial.planned.number for trial in trials] == list(range(1, self.planned + 1))
        assert Counter(trial.state for trial in trials) == Counter(
            {state: count for state, count in sweep.counts.items() if count}
        )
        for trial in trials:
            assert [each.attempt for each in trial.attempts] == list(range(1, len(trial.attempts) + 1))
            for each in trial.attempts:
                known = self.ended.get((each.number, each.attempt))
                assert known is None or known == each, "an attempt that has ended is never written again"
                if each.ended_at:
                    self.ended[each.number, each.attempt] = each
            for each in trial.attempts[:-1]:
                assert each.ended_at, "only the latest attempt is under way"
        assert {(each.number, each.attempt) for trial in trials for each in trial.attempts} >= set(self.ended)
        if sweep.status == "cancelled" and not self._retrying:
            assert not sweep.counts["pending"], "nothing waits in a sweep that was cancelled"
        self._check_bounds(sweep.definition, sweep.revision, [trial for trial in trials if trial.state == "running"])

    def _check_bounds(self, current: Definition, revision: int, running: list[Trial]) -> None:
        """Assert that no more run than may, or than did when the bound was made narrower."""
        bounds = {"": current.concurrency}
        counted: Counter[str] = Counter()
        for trial in running:
            counted[""] += 1
            for bound in Lane(current, trial.planned.cell).bounds:
                bounds[bound.counter] = bound.trials
                counted[bound.counter] += 1
        slots = flat(self.behind.call("HGETALL", keys.sweep("s", "slots")))
        assert {name: int(count) for name, count in slots.items() if int(count)} == {
            name: count for name, count in counted.items() if name
        }, "every trial under way takes the counters of the definition that holds"
        if revision == self._bounded[0]:
            for name, count in counted.items():
                bound_of_name = bounds[name]
                assert bound_of_name is None or count <= max(bound_of_name, self._bounded[1][name])
        self._bounded = revision, counted

    def last_check(self) -> None:
        """Assert that every trial has come to an end, once, and that nothing is held any more."""
        sweep = self.sure.require("s")
        assert sweep.ended == sweep.planned == self.planned
        assert self.sure.claims("s") == []
        slots = self.behind.call("HVALS", keys.sweep("s", "slots"))
        assert all(int(count) == 0 for count in slots)
        used = sum(each.usage.input_tokens for each in self.ended.values() if each.usage)
        assert sweep.usage.input_tokens == used, "what an attempt has used is added up once"
        lanes = {lane.key for lane in self.sure.lanes("s", sweep.definition)}
        assert lanes <= {Lane(sweep.definition, trial.planned.cell).key for trial in self.sure.trials("s")}

    # --- who acts ------------------------------------------------------------------------------------------

    def act(self) -> None:
        """Let somebody do something."""
        choice = self.rng.randint(0, 99)
        if choice < 70:
            worker = self.rng.randrange(WORKERS)
            self._dares(lambda: self._work(worker))
        elif choice < 82:
            self._dares(lambda: self._keeper(self.actors[WORKERS + self.rng.randint(0, 1)]))
        elif choice < 90:
            self._time_passes()
        elif not self._operating:
            self._operating = True
            try:
                self._dares(self._operate)
            finally:
                self._operating = False

    def let_others_act(self) -> None:
        """Somebody acts while another is in the middle of something."""
        if not self.calm and self.depth < 2 and self.rng.randint(0, 9) == 0:
            self.depth += 1
            try:
                self.act()
            finally:
                self.depth -= 1

    def _dares(self, act: Callable[[], object]) -> None:
        with contextlib.suppress(Killed, Conflict, Unavailable):
            act()

    def _time_passes(self) -> None:
        """Let the lease of one trial run out; nobody can move the clock of the server, but the lease can be moved."""
        running = self.behind.call("ZRANGE", keys.sweep("s", "running"), 0, -1)
        if running:
            self.behind.call("ZADD", keys.sweep("s", "running"), 1, self.rng.choice(sorted(running)))

    def _work(self, worker: int) -> None:
        """Begin a trial, or go on with one that somebody has in hands, knowing of its loss or not."""
        ledger = self.sure if self.calm else self.actors[worker]
        if not self.working or (not self.calm and self.rng.randint(0, 2) == 0):
            self._begin(ledger)
            return
        held = self.rng.choice(self.working)
        match self.rng.randint(0, 9):
            case 0 if not self.calm:
                # It dies. Or it does not, and forgets that it has come back once.
                if self.rng.randint(0, 1):
                    self.working.remove(held)
            case 1 | 2:
                mine = [each.claim for each in self.working]
                gone = {claim.token for claim in mine if self._gone(claim)}
                _, lost = ledger.renew("s", mine, LEASE_MS)
                assert gone <= lost, "a claim that is gone never comes back"
                if self.rng.randint(0, 1):
                    self.working = [
                        each for each in self.working if each.claim.token not in lost or self.rng.randint(0, 3) == 0
                    ]
            case 3 | 4 | 5:
                self._note(ledger, held)
            case _:
                self._settle(ledger, held)

    def _begin(self, ledger: Ledger) -> None:
        current, _ = ledger.definition("s")
        if not self.calm and self.rng.randint(0, 5) == 0:
            current = self.rng.choice(self.definitions)
        lanes = ledger.lanes("s", current)
        self.claims += 1
        claim = ledger.claim("s", current, lanes, f"h{self.claims}", LEASE_MS)
        if isinstance(claim, Refusal):
            return
        assert claim.token not in self.tokens, "a token is given once"
        self.tokens.add(claim.token)
        (trial,) = self.sure.trials("s", [claim.number])
        self.working.append(Working(claim, current, trial.planned))

    def _note(self, ledger: Ledger, held: Working) -> None:
        told = self._attempt(ledger, held)
        gone = self._gone(held.claim)
        if told is not None and ledger.note(held.claim, told, LEASE_MS):
            assert not gone, "what comes with the token of an earlier claim changes nothing"
            held.attempt = told

    def _gone(self, claim: Claim) -> bool:
        return claim.token not in {each.token for each in self.sure.claims("s")}

    def _attempt(self, ledger: Ledger, held: Working) -> Attempt | None:
        """Return the attempt that a worker is at: the one that was left by another, or the next."""
        if held.attempt is not None:
            return replace(held.attempt, steps=held.attempt.steps + 1)
        (trial,) = ledger.trials("s", [held.claim.number])
        if trial.last is not None and not trial.last.ended_at:
            return replace(trial.last, worker=f"w{held.claim.token}")
        return attempt(held.claim, len(trial.attempts) + 1, worker=f"w{held.claim.token}")

    def _settle(self, ledger: Ledger, held: Working) -> None:
        """End a trial, or give it back; before or after an attempt, which may have ended or not."""
        tried = self._attempt(ledger, held)
        outcome: Outcome | None = self.rng.choice((*OUTCOMES, None, None))
        used = Usage()
        if outcome is not None or self.rng.randint(0, 1):
            used = Usage(input_tokens=self.rng.randint(1, 9))
            end = attempt(held.claim, 1, outcome or "error")
            assert tried is not None
            tried = replace(tried, ended_at=end.ended_at, outcome=end.outcome, reason=end.reason, usage=used)
        elif self.rng.randint(0, 1) and held.attempt is None:
            tried = None
        current = held.definition
        done = ledger.settle(held.claim, held.planned.cell, current, tried, outcome, used=used)
        if done and tried is not None and tried.ended_at:
            (trial,) = self.sure.trials("s", [held.claim.number])
            assert tried in trial.attempts, "what was settled is there"
        if self.rng.randint(0, 3) and held in self.working:
            self.working.remove(held)

    def _keeper(self, ledger: Ledger) -> None:
        """Find what has lapsed, and make it wait or end it."""
        sweep = ledger.require("s")
        for claim in ledger.lapsed("s"):
            (trial,) = ledger.trials("s", [claim.number])
            last = trial.last
            lost = None
            outcome: Outcome | None = None
            if last is not None and not last.ended_at:
                lost = replace(last, losses=last.losses + 1, detail=f"lost by {claim.token}")
                if lost.losses > 2:
                    lost = replace(lost, ended_at=claim.token, outcome="error", reason="worker_lost")
                    outcome = "error"
            ledger.settle(claim, trial.planned.cell, sweep.definition, lost, outcome, lapsed=True)

    def _operate(self) -> None:
        """Do what people do with sweeps, in the middle of which they may be interrupted."""
        ledger = self.rng.choice(self.actors)
        every: list[Status] = ["active", "paused", "stopped", "cancelled", "finished"]
        match self.rng.randint(0, 8):
            case 0:
                ledger.steer("s", "paused", ["active"], "why")
            case 1 | 2:
                ledger.steer("s", "active", ["paused", "stopped"])
            case 3:
                ledger.steer("s", "stopped", ["active"], "errors")
            case 4 if self.rng.randint(0, 1):
                ledger.steer("s", "cancelled", ["active", "paused", "stopped"], "why")
                self._retrying = False
            case 5:
                trials = list(ledger.trials("s"))
                self._retrying = True
                ledger.again("s", self.rng.sample(trials, self.rng.randint(0, len(trials))))
                ledger.steer("s", "active", every)
                self._retrying = False
            case 6:
                self._extend(ledger, every)
            case 7:
                numbers = self.rng.sample(range(1, self.planned + 5), self.rng.randint(1, 3))
                ledger.withdraw("s", numbers)
            case _:
                self.prints += 1
                revised = self._random_definition()
                self.definitions.append(revised)
                ledger.revise("s", revised, f"print-{self.rng.randint(0, self.prints)}")

    def _extend(self, ledger: Ledger, every: list[Status]) -> None:
        current, _ = ledger.definition("s")
        first = self.planned + 1
        count = self.rng.randint(1, 3)
        before = self.planned
        self._retrying = True
        try:
            added = ledger.add("s", current, planned(range(first, first + count), MODELS), ready_at=7)
            assert added == count, "a repeated script gives its first answer"
            ledger.steer("s", "active", every)
            self._retrying = False
        finally:
            self.planned = self.sure.size("s")
            assert self.planned in (before, before + count)

    def _random_definition(self) -> Definition:
        per: dict[str, dict[str, int]] = {}
        if self.rng.randint(0, 1):
            per["model"] = {"opus": self.rng.randint(1, 2), "*": self.rng.randint(1, 3)}
        if self.rng.randint(0, 3) == 0:
            per["task"] = {"*": 1}
        limits = (Limit("x", in_flight=1, when={"model": "opus"}),) if self.rng.randint(0, 3) == 0 else ()
        return definition(
            concurrency=self.rng.choice((None, None, 2, 3)),
            concurrency_per=per,
            limits=limits,
            retries=self.rng.randint(0, 5),
        )


@pytest.fixture(scope="module")
def client() -> Iterator[Client]:
    """A server that the worlds have in turn; a real one, because it is ten times as fast as one in memory."""
    with real_server() as server:
        client = client_for(server.url, quick=True)
        yield client
        client.close()


@pytest.mark.parametrize("seed", range(SEEDS))
def test_the_books_balance(seed: int, client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever goes wrong in the storm, after every step and at the end."""
    # The scripts, too: that one of them has to be sent whole is a part of what the seed decides.
    client.call("FLUSHALL")
    client.call("SCRIPT", "FLUSH")
    monkeypatch.setattr("statem_dist.store.redis_store.time.sleep", lambda seconds: None)
    world = World(seed, client)
    world.storm()
    world.calm_down()
    world.last_check()
