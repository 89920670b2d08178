"""Known defects, each put into a copy of the package: a judge that never finds anything proves nothing.

Run as ``python -m tests.chaos.mutants [NAME ...]``; ``make chaos-mutations`` does so. Each defect is one that takes
real processes to show. A round with the defect has the faults that bring it out, and must break a law; it is tried with
one seed after another, because a seed decides the faults and not what they meet.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from tests.chaos.plan import Broker, Kind, Plan, plan_of
from tests.chaos.round import Round, Verdict
from tests.chaos.world import ROOT

SEEDS_MAX = 4
SECONDS = 30.0
SETTLING_SECONDS = 45.0

PACKAGES = (ROOT / "statem_dist", ROOT / "workers" / "statem_workers", ROOT / "api" / "statem_api")


class Mutant(Struct, frozen=True):
    """One defect.

    Args:
        name: what it is called.
        why: what it makes of the product.
        kinds: the faults that bring it out.
        path: the file that it is in, from the copy; empty for a defect of the surroundings.
        sound: what stands there.
        broken: what is put in its place.
        server_options: options of the server.
        broker: where messages wait; None for where the seed says.
    """

    name: str
    why: str
    kinds: frozenset[Kind]
    path: str = ""
    sound: str = ""
    broken: str = ""
    server_options: tuple[str, ...] = ()
    broker: Broker | None = None


MUTANTS = (
    Mutant(
        name="a-lost-lease-is-worked-on",
        why="a worker that has lost its lease lets its commands go on",
        kinds=frozenset({"worker_cut_off_beyond_its_lease"}),
        path="statem_dist/leases.py",
        sound="            held.on_lost()\n",
        broken="            pass\n",
    ),
    Mutant(
        name="hooks-are-repeated",
        why="a hook whose worker was killed is executed again",
        kinds=frozenset({"worker_killed", "worker_told_to_stop"}),
        path="statem_dist/protocol/progress.py",
        sound="    return planned.purpose not in HOOK_PURPOSES or",
        broken="    return True or",
    ),
    Mutant(
        name="commands-outlive-their-worker",
        why="the supervisor goes on when its worker was killed",
        kinds=frozenset({"worker_killed"}),
        path="statem_dist/checks/supervisor.py",
        sound="        self.worker_lives = False\n",
        broken="        return\n",
    ),
    Mutant(
        name="nothing-is-written-down",
        why="the server keeps no append-only log",
        kinds=frozenset({"server_killed"}),
        server_options=("--appendonly", "no"),
    ),
)


def mutated(mutant: Mutant, folder: Path) -> Path | None:
    """Return a folder with a copy of the packages that has the defect; None if the packages do not have it."""
    if not mutant.path:
        return None
    for package in PACKAGES:
        shutil.copytree(package, folder / package.name, ignore=shutil.ignore_patterns("__pycache__"))
    path = folder / mutant.path
    text = path.read_text()
    if text.count(mutant.sound) != 1:
        raise SystemExit(f"{mutant.name}: {mutant.path} does not have exactly once what is to be replaced")
    path.write_text(text.replace(mutant.sound, mutant.broken))
    return folder


def plan_for(mutant: Mutant, seed: int) -> Plan:
    """Return the plan of a seed that has only faults which bring the defect out, and more of them."""
    plan = plan_of(seed, 8 * SECONDS)
    squeezed = [replace(fault, at=fault.at / 8) for fault in plan.faults if fault.kind in mutant.kinds]
    spaced = []
    free_at = 3.0
    for fault in squeezed:
        at = max(fault.at, free_at)
        spaced.append(replace(fault, at=at))
        free_at = at + fault.seconds + 2.0
    return replace(plan, seconds=SECONDS, broker=mutant.broker or plan.broker, faults=tuple(spaced))


def hunt(mutant: Mutant) -> Verdict | None:
    """Return the first round that finds the defect, or None."""
    with tempfile.TemporaryDirectory(prefix="statem-mutant-") as folder:
        package = mutated(mutant, Path(folder))
        for seed in range(1, SEEDS_MAX + 1):
            plan = plan_for(mutant, seed)
            verdict = Round(
                plan,
                lambda _: None,
                package=package,
                server_options=mutant.server_options,
                settling_seconds=SETTLING_SECONDS,
            ).run()
            if verdict.broken:
                shutil.rmtree(verdict.kept)
                return verdict
    return None


def main() -> int:
    """Hunt each defect; exit with 1 if one was not found."""
    wanted = sys.argv[1:]
    missed = 0
    for mutant in MUTANTS:
        if wanted and mutant.name not in wanted:
            continue
        verdict = hunt(mutant)
        if verdict is None:
            missed += 1
            print(f"{mutant.name}: NOT FOUND with the seeds 1 to {SEEDS_MAX} ({mutant.why})", flush=True)
            continue
        faults = ", ".join(f"{kind} {count}" for kind, count in sorted(verdict.faults.items()))
        print(f"{mutant.name}: found with seed {verdict.plan.seed} ({mutant.why}; {faults})", flush=True)
        for each in verdict.broken[:3]:
            print(f"  {each[:300]}", flush=True)
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
