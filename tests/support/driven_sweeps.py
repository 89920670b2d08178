"""Sweeps on real workers, submitted and watched from within a test."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from statem_dist.dispatch import dispatcher_for
from statem_dist.embedded import server
from statem_dist.engine import Engine
from statem_dist.settings import Settings
from statem_dist.sweep.desk import SweepDesk, has_ended
from statem_dist.sweep.hints import Hints
from statem_dist.sweep.ledger import Ledger
from statem_dist.sweep.model import Attempt, Reason, State, Sweep, Trial
from statem_dist.sweep.spec import load_sweep
from tests.support.programs import Program, Site, eventually

WORK = """\
nodes:
  work: {prompt: Go on., before_transfer: [{path: out}], next: done}
  done:
"""
"""The agent has to leave a file."""

UNHURRIED: Any = {"STATEM_LEASE_SECONDS": "10"}
"""On a busy machine a shorter lease is lost now and then. Whoever is dead on this host is noticed all the same."""


class Sweeps:
    """The sweeps of a site.

    Args:
        site: where they and their workers are.
    """

    def __init__(self, site: Site) -> None:
        self.site = site
        url = server.ensure(site.state_dir, idle_stop_seconds=0).redis_url
        settings = Settings(state_dir=site.state_dir)
        self.engine = Engine(settings, url, inline=False)
        self.ledger = Ledger(self.engine.store)
        hints = Hints(self.engine.store, dispatcher_for(settings, url))
        self.desk = SweepDesk(self.ledger, self.engine, hints, site.state_dir)

    def close(self) -> None:
        """Let go of the server."""
        self.engine.close()

    def worker(self, slots: int, *words: str, **settings: str) -> Program:
        """Start a worker that drives trials, and wait until it takes them."""
        return self.site.worker("-Q", "trials", "-c", str(slots), "--inherit-env", *words, **{**UNHURRIED, **settings})

    def write(self, name: str, run: str | None, runbook: str = WORK, **keywords: Any) -> Path:
        """Write a runbook and a sweep of it; return the path of the latter.

        Args:
            run: the shell command of its agent; None where the graph drives itself.
            keywords: further keywords of the sweep file; those of ``agent`` are added to its own.
        """
        self.site.write(f"{name}.yaml", runbook)
        document: dict[str, Any] = {"runbook": f"{name}.yaml", **keywords}
        if run is not None:
            document["agent"] = {"run": run, **keywords.get("agent", {})}
        return self.site.write(f"{name}.sweep.yaml", json.dumps(document))

    def submit(self, name: str, run: str | None, runbook: str = WORK, **keywords: Any) -> str:
        """Submit a sweep; return its id. The arguments are those of ``write``."""
        return self.submit_file(self.write(name, run, runbook, **keywords))

    def submit_file(self, path: Path, sweep_id: str | None = None) -> str:
        """Submit the sweep of a file; return its id."""
        return self.desk.submit(load_sweep(path), by="test", sweep_id=sweep_id).sweep.id

    def sweep(self, sweep_id: str) -> Sweep:
        """Return a sweep as it is now, whose counts always add up."""
        sweep = self.ledger.require(sweep_id)
        assert sweep.status == "planning" or sweep.planned == len(self.ledger.numbers(sweep_id))
        return sweep

    def ended(self, *sweep_ids: str) -> Sweep:
        """Wait until sweeps have ended; return the first as it is then."""
        eventually(
            lambda: all(has_ended(self.sweep(each)) for each in sweep_ids),
            "the sweeps end",
            lambda: [self.told(each) for each in sweep_ids],
        )
        return self.sweep(sweep_ids[0])

    def trials(self, sweep_id: str) -> list[Trial]:
        """Return all trials of a sweep."""
        return list(self.ledger.trials(sweep_id))

    def trial(self, sweep_id: str) -> Trial:
        """Return the only trial of a sweep."""
        (trial,) = self.trials(sweep_id)
        return trial

    def told(self, sweep_id: str) -> list[str]:
        """Return where every trial of a sweep stands, for a message."""
        sweep = self.sweep(sweep_id)
        return [
            f"{sweep.status} {sweep.counts} {sweep.held}",
            *(f"{each.planned.number}: {each.state} {each.last}" for each in self.trials(sweep_id)),
        ]


def results(trials: Iterable[Trial]) -> list[tuple[State, Reason | None]]:
    """Return the state of each trial, and the reason of its latest attempt."""
    return [(each.state, each.last.reason if each.last else None) for each in trials]


def only_attempt(trial: Trial) -> Attempt:
    """Return the attempt of a trial that had one."""
    (attempt,) = trial.attempts
    return attempt


@contextmanager
def sweeps_of_a_site(**settings: str) -> Iterator[Sweeps]:
    """Give sweeps in a site of their own, and end everything afterwards."""
    site = Site(**settings)
    try:
        sweeps = Sweeps(site)
        try:
            yield sweeps
        finally:
            sweeps.close()
    finally:
        site.close()


def at_once(lines: Iterable[str], word: str = "") -> int:
    """Return how many agents were at work at once at the most, by the lines that they have appended to a file.

    Args:
        lines: ``begin WORD`` and ``end WORD``, in the order in which they were written.
        word: only those with this word; empty for all.
    """
    under_way = most = 0
    for line in lines:
        what, _, found = line.partition(" ")
        if not word or found == word:
            under_way += 1 if what == "begin" else -1
            most = max(most, under_way)
    return most
