"""What a sandbox costs: a trivial command many times, without and with one, in wall-clock and processor time.

    python benchmarks/sandbox.py [COMMANDS]

Processor time is that of the supervisor and of everything that it started, so that the one start of the supervisor is
in it; with a few hundred commands that no longer matters.
"""

from __future__ import annotations

import os
import resource
import sys
import tempfile
import time

from statem_dist.checks.confinement import Rules
from statem_dist.checks.context import CheckContext
from statem_dist.checks.evaluate import evaluate
from statem_dist.checks.process import Supervisor
from statem_dist.protocol.graph import Check, Command, ResourceLimits, Sandbox

WAYS = {
    "plain": Rules(),
    "limits": Rules(limits=ResourceLimits(memory=2 << 30, cpu=600, files=1024)),
    "bwrap": Rules(sandbox=Sandbox()),
}


def measure(rules: Rules, commands: int) -> tuple[float, float]:
    """Return wall-clock and processor time of one ``true``, in milliseconds."""
    with tempfile.TemporaryDirectory() as workspace:
        context = CheckContext("k", workspace, {"PATH": os.environ["PATH"]}, "condition", "r", "n", rules=rules)
        before, began = _used(), time.monotonic()
        with Supervisor() as supervisor:
            for _ in range(commands):
                assert evaluate(Check(Command("true")), context, supervisor).passed
        return 1000 * (time.monotonic() - began) / commands, 1000 * (_used() - before) / commands


def _used() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    commands = int(sys.argv[1]) if len(sys.argv) > 1 else 500
    for name, rules in WAYS.items():
        wall, used = measure(rules, commands)
        print(f"{name:8} {wall:6.2f} ms  {used:6.2f} ms of processor time")
