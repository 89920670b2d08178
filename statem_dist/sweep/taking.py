"""Taking the next trial: which sweep's turn it is, and which of its trials no bound holds back.

The sweeps of the highest priority that have trials waiting come first; among equals, the one that was served longest
ago. So a large sweep does not keep a small one waiting, and a slow trial keeps nothing waiting at all: whatever ends,
the next trial is taken at once.
"""

from __future__ import annotations

import logging
import os
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

import msgspec
from msgspec import Struct

from statem_dist.errors import NotFound
from statem_dist.sweep.lanes import Lane
from statem_dist.sweep.ledger import Claim, Ledger, OpenSweep
from statem_dist.sweep.model import Definition, Limit, Priority
from statem_dist.sweep.shared_limits import SharedLimits

logger = logging.getLogger(__name__)

ORDER: dict[Priority, int] = {"high": 0, "normal": 1, "low": 2}


class Taken(Struct, frozen=True):
    """A trial that was taken, with the definition that it follows, and the shared limits that it has places of."""

    claim: Claim
    definition: Definition
    revision: int
    holder: str
    limits: tuple[Limit, ...]


class Taker:
    """Takes trials for the slots of one process.

    Args:
        ledger: where the sweeps are.
        limits: the limits that they share.
        lease_ms: how long what is taken is held unless it is renewed.
        host: the name of this host.
        disk: a folder on the disk that trials fill.
    """

    def __init__(self, ledger: Ledger, limits: SharedLimits, lease_ms: int, host: str, disk: Path) -> None:
        self._ledger = ledger
        self._limits = limits
        self._lease_ms = lease_ms
        self._host = host
        self._disk = disk

    def take(self, queue: str) -> Taken | None:
        """Take the next trial that waits for a queue; None when none may begin now."""
        in_turn = self._in_turn(queue)
        for sweep in in_turn:
            try:
                definition, revision = self._ledger.definition(sweep.id)
            except NotFound:
                self._ledger.unpublish(sweep.id)
                continue
            except msgspec.DecodeError as error:
                # A newer version has written it, or it is damaged: the others must not wait for it.
                logger.warning("no trial of the sweep %s can be taken: %s", sweep.id, error)
                continue
            if self._has_room(sweep, definition) and (taken := self._take_of(sweep, definition, revision)):
                if len(in_turn) > 1:
                    self._ledger.serve(sweep.id)
                return taken
        return None

    def release(self, taken: Taken) -> None:
        """Give back the places of shared limits."""
        for limit in taken.limits:
            self._limits.release(limit.name, taken.holder)

    def renew(self, taken: Taken) -> None:
        """Keep the places of shared limits."""
        for limit in taken.limits:
            self._limits.renew(limit.name, taken.holder, self._lease_ms)

    def _in_turn(self, queue: str) -> list[OpenSweep]:
        """Return the sweeps of a queue in the order in which they are to be served."""
        found = [sweep for sweep in self._ledger.open() if sweep.queue == queue]
        if len(found) < 2:
            return found
        served = dict(zip([sweep.id for sweep in found], self._ledger.served([s.id for s in found]), strict=True))
        return sorted(found, key=lambda sweep: (ORDER[sweep.priority], served[sweep.id], sweep.id))

    def _has_room(self, sweep: OpenSweep, definition: Definition) -> bool:
        """Return whether the disk has room for another trial; if not, say so where the sweep is looked at."""
        if not definition.disk_floor_bytes:
            return True
        self._disk.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(self._disk).free
        if free >= definition.disk_floor_bytes:
            return True
        mebibyte = 1024 * 1024
        self._ledger.hold(
            sweep.id,
            self._host,
            f"the disk of {self._disk} has {free // mebibyte} MiB left, and trials begin only above "
            f"{definition.disk_floor_bytes // mebibyte} MiB (disk_floor): remove what is not needed",
        )
        return False

    def _take_of(self, sweep: OpenSweep, definition: Definition, revision: int) -> Taken | None:
        for lanes in self._groups(sweep.id, definition):
            holder = f"{self._host}:{os.getpid()}:{os.urandom(8).hex()}"
            limits = lanes[0].limits
            if not self._take_limits(sweep, limits, holder):
                continue
            claim = self._ledger.claim(sweep.id, definition, lanes, holder, self._lease_ms)
            if isinstance(claim, Claim):
                return Taken(claim, definition, revision, holder, limits)
            for limit in limits:
                self._limits.release(limit.name, holder, unused=True)
        return None

    def _groups(self, sweep_id: str, definition: Definition) -> Iterator[list[Lane]]:
        """Yield the lanes that one claim may choose among: all without shared limits, and each of the others."""
        lanes = self._ledger.lanes(sweep_id, definition)
        free = [lane for lane in lanes if not lane.limits]
        groups = [*([free] if free else []), *([lane] for lane in lanes if lane.limits)]
        # By chance, so that no lane always comes behind another.
        random.shuffle(groups)
        yield from groups

    def _take_limits(self, sweep: OpenSweep, limits: tuple[Limit, ...], holder: str) -> bool:
        """Take a place of each limit, or of none."""
        for number, limit in enumerate(limits):
            wait = self._limits.take(limit, holder, self._lease_ms)
            if wait is not None:
                for earlier in limits[:number]:
                    self._limits.release(earlier.name, holder, unused=True)
                until = f", the next one may begin in {wait.wait_ms / 1000:.0f} s" if wait.wait_ms else ""
                self._ledger.hold(sweep.id, f"limit {limit.name}", f"{wait.used} trials are under way{until}")
                return False
        return True
