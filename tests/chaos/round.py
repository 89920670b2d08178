"""One round of chaos: start everything, let the planned faults happen, wait until all has settled, and judge.

Run as ``python -m tests.chaos.round --minutes 2 [--seed N]``; ``make chaos`` does so.
"""

from __future__ import annotations

import argparse
import heapq
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec
from msgspec import Struct

from statem_dist.store.codec import encode_event
from statem_dist.sweep.ledger import Ledger
from statem_dist.sweep.shared_limits import SharedLimits
from tests.chaos.checker import Checker, unexpected_lines
from tests.chaos.load import LIMIT, Files
from tests.chaos.plan import Plan, plan_of
from tests.chaos.world import QUEUES, Skipped, World

SETTLING_SECONDS = 180.0
"""How long everything may take to come to rest once the faults are over."""

CELERYS_FALLS = ("StopIteration", "Could not start worker processes")
"""How a worker ends whose pool loses a child just when it starts, or loses the broker; see ``checker.EXPECTED``."""

TRIALS_PER_MINUTE = 20
"""Trials of each of two models."""


class Verdict(Struct, frozen=True):
    """What a round has come to. ``kept`` is the folder with all that is left of a round that broke a law."""

    plan: Plan
    faults: dict[str, int]
    skipped: dict[str, str]
    runs: int
    outcomes: dict[str, int]
    reasons: dict[str, int]
    requests: int
    decisions: int
    recoveries: int
    commands: dict[str, int]
    repeated: int
    trials: int
    settled_seconds: float
    broken: tuple[str, ...]
    kept: str = ""

    @property
    def summary(self) -> str:
        """The round in a few lines."""

        def listed(counts: dict[str, int]) -> str:
            return ", ".join(f"{name} {count}" for name, count in sorted(counts.items())) or "none"

        lines = [
            f"seed {self.plan.seed}, {self.plan.seconds:.0f} s, messages wait in the {self.plan.broker}",
            f"faults: {sum(self.faults.values())} ({listed(self.faults)})",
            *(f"  not here: {kind}: {why}" for kind, why in sorted(self.skipped.items())),
            f"runs: {self.runs}; transitions: {sum(self.outcomes.values())} ({listed(self.outcomes)}; "
            f"reasons: {listed(self.reasons)})",
            f"requests: {self.requests}, decisions: {self.decisions}, "
            f"recoveries: {self.recoveries}, trials: {self.trials}",
            f"commands: {sum(self.commands.values())} ({listed(self.commands)}), executed again: {self.repeated}",
            f"settled {self.settled_seconds:.1f} s after the last fault",
            f"laws broken: {len(self.broken)}",
            *(f"  {each}" for each in self.broken[:40]),
            *([f"kept: {self.kept}"] if self.kept else []),
        ]
        return "\n".join(lines)


class Round:
    """One round in a folder of its own.

    Args:
        plan: what happens.
        say: told of progress.
        package: see ``World``.
        server_options: see ``World``.
        settling_seconds: how long everything may take to come to rest.
    """

    def __init__(
        self,
        plan: Plan,
        say: Callable[[str], None],
        *,
        package: Path | None = None,
        server_options: tuple[str, ...] = (),
        settling_seconds: float = SETTLING_SECONDS,
    ) -> None:
        self.plan = plan
        self._settling_seconds = settling_seconds
        self._say = say
        self.folder = Path(tempfile.mkdtemp(prefix=f"statem-chaos-{plan.seed}-")).resolve()
        self._files = Files(self.folder)
        self._models_trials = max(6, round(TRIALS_PER_MINUTE * plan.seconds / 60))
        self._files.write(self._models_trials)
        (self.folder / "plan.json").write_bytes(msgspec.json.format(msgspec.json.encode(plan)))
        self._world = World(self._files, plan.seed, plan.broker, package, server_options)
        self._faults: Counter[str] = Counter()
        self._skipped: dict[str, str] = {}
        self._broken: list[str] = []
        self._log = (self.folder / "faults.log").open("w")

    def run(self) -> Verdict:
        """Go through the round; the folder stays if a law was broken."""
        world = self._world
        try:
            sweep_id = world.start_all()
            self._let_faults_happen()
            begun = time.monotonic()
            settled = self._settle(sweep_id)
            checker = self._judge(sweep_id)
            self._end(orderly=settled)
            took = time.monotonic() - begun
        finally:
            world.close()
            self._log.close()
        self._broken += [f"in a log: {each}" for each in unexpected_lines(world.logs)]
        verdict = self._verdict(checker, took)
        if verdict.broken:
            (self.folder / "verdict.txt").write_text(verdict.summary)
            return msgspec.structs.replace(verdict, kept=str(self.folder))
        shutil.rmtree(self.folder)
        return verdict

    # --- faults ----------------------------------------------------------------------------------------------

    def _let_faults_happen(self) -> None:
        begun = time.monotonic()
        ends: list[tuple[float, int, str, Callable[[], None]]] = []
        faults = list(self.plan.faults)
        while faults or ends:
            now = time.monotonic() - begun
            if ends and ends[0][0] <= now:
                _, _, what, end = heapq.heappop(ends)
                end()
                self._note(now, f"{what} is over")
            elif faults and faults[0].at <= now:
                fault = faults.pop(0)
                try:
                    whom, over = self._world.inject(fault)
                except Skipped as why:
                    self._skipped[fault.kind] = str(why)
                    continue
                self._faults[fault.kind] += 1
                self._note(now, f"{fault.kind}: {whom}, {fault.seconds:.1f} s")
                if over is not None:
                    end_at = time.monotonic() - begun + fault.seconds
                    heapq.heappush(ends, (end_at, len(faults), f"{fault.kind}: {whom}", over))
            else:
                self._start_fallen(now)
                time.sleep(0.02)
        self._note(time.monotonic() - begun, "the faults are over")

    def _start_fallen(self, now: float) -> None:
        for how in self._world.start_fallen():
            self._note(now, how)
            if any(fall in how for fall in CELERYS_FALLS):
                self._faults["worker_fallen_with_its_pool"] += 1
            elif "by itself with 8:" in how:
                # Who is started while the store or the broker is away says so with this exit code.
                self._faults["started_while_the_server_was_away"] += 1
            else:
                self._broken.append(how)

    def _note(self, at: float, what: str) -> None:
        line = f"{at:7.2f} s  {what}"
        print(f"{time.time():.3f} {line}", file=self._log, flush=True)
        self._say(line)

    # --- rest ------------------------------------------------------------------------------------------------

    def _settle(self, sweep_id: str) -> bool:
        """Wait until nothing is owed, and note what does not come to rest."""
        world, store = self._world, self._world.store
        world.heal()
        self._files.stop.touch()
        ledger = Ledger(store)
        database = 1 if world.broker == "database" else 0
        begun = time.monotonic()

        def unsettled() -> dict[str, object]:
            callers = [role.name for role in world.roles if role.is_caller and role.name != "approver"]
            counts = store.counts(("moving", "waiting", "outcome_unknown", "paused"))
            sweep = ledger.sweep(sweep_id)
            queues = {queue: world.broker_server.call("LLEN", queue, database=database) for queue in QUEUES}
            left: dict[str, object] = {
                "callers": [name for name in callers if world.programs[name].running],
                **{f"runs {name}": count for name, count in counts.items()},
                "trials": sweep.counts["pending"] + sweep.counts["running"] if sweep else "the sweep is gone",
                # The place of a worker that was killed is free when its lease is over.
                "places": SharedLimits(store).usage(LIMIT).in_flight,
                **{f"messages in {queue}": count for queue, count in queues.items()},
                "commands": [words for words in world.processes().values() if re.search(r"step\.sh|agent\.sh", words)],
                "orphans": world.orphans(),
            }
            return {what: found for what, found in left.items() if found}

        while found := unsettled():
            if time.monotonic() - begun > self._settling_seconds:
                self._broken.append(f"not at rest {self._settling_seconds:.0f} s after the faults: {found}")
                return False
            self._start_fallen(self.plan.seconds)
            time.sleep(0.3)
        return True

    def _judge(self, sweep_id: str) -> Checker:
        world = self._world
        callers = [role.name for role in world.roles if role.is_caller]
        checker = Checker(world.store, self._files, callers, [(since, until) for _, since, until in world.frozen])
        try:
            checker.check(sweep_id, 2 * self._models_trials)
            verified = world.attempt("verify", "--all")
            if verified.returncode:
                self._broken.append(f"verify --all: exit {verified.returncode}: {verified.stdout}{verified.stderr}")
        except Exception:
            self._broken.append(f"the checker failed: {traceback.format_exc()}")
        self._broken += checker.broken
        if self._broken:
            folder = self.folder / "events"
            folder.mkdir()
            for run_id, history in checker.histories.items():
                lines = [b"%d %b" % (number, encode_event(event)) for number, event in history.events]
                (folder / f"{run_id}.jsonl").write_bytes(b"\n".join(lines) + b"\n")
        return checker

    def _end(self, *, orderly: bool) -> None:
        """Stop every program in good order; nothing of them is left."""
        if not orderly:
            return
        world = self._world
        for program in world.programs.values():
            if program.running:
                os.kill(program.pid, signal.SIGTERM)
        deadline = time.monotonic() + 60.0
        while (left := world.processes()) and time.monotonic() < deadline:
            for program in world.programs.values():
                program.process.poll()
            time.sleep(0.1)
        if left:
            self._broken.append(f"left after everything was stopped: {left}")

    def _verdict(self, checker: Checker, took: float) -> Verdict:
        begun = Counter((line.run, line.key, line.name) for line in checker.lines if line.what == "begun")
        every = [promise for promises in checker.promises.values() for promise in promises]
        return Verdict(
            plan=self.plan,
            faults=dict(self._faults),
            skipped=self._skipped,
            runs=len(checker.histories),
            outcomes=dict(checker.outcomes),
            reasons=dict(checker.reasons),
            requests=len({each.key for each in every if each.what == "accepted"}),
            decisions=sum(each.what == "decided" for each in every),
            recoveries=sum(each.what == "recovered" for each in every),
            commands=dict(Counter(line.name for line in checker.lines if line.what == "begun")),
            repeated=sum(count - 1 for count in begun.values()),
            trials=2 * self._models_trials,
            settled_seconds=took,
            broken=tuple(self._broken),
        )


def main() -> int:
    """Run a round as the command line says; exit with 1 if a law was broken."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.round", description="One round of chaos.")
    parser.add_argument("--minutes", type=float, default=2.0, help="how long faults happen")
    parser.add_argument("--seed", type=int, default=None, help="decides the plan of faults (default: any)")
    given = parser.parse_args()
    seed = random.SystemRandom().randrange(100_000) if given.seed is None else given.seed
    print(f"seed {seed}", flush=True)
    verdict = Round(plan_of(seed, 60.0 * given.minutes), lambda line: print(line, flush=True)).run()
    print(verdict.summary)
    return 1 if verdict.broken else 0


if __name__ == "__main__":
    sys.exit(main())
