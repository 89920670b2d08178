"""The behaviour of StateM, scenario by scenario, where its scenarios lie beside the checkout."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.programs import COMMAND, Site

CONFORMANCE = Path(__file__).parents[3] / "shared" / "conformance"

REVIEWER_OF_THE_CALLER = "llm-review-command-may-come-from-the-environment"
"""Sets the reviewer on one call of ``goto``. A worker's reviewer is the worker's setting, never the caller's."""

EMPTY = """
import os
from statem_dist.resp import Connection
with Connection(os.environ["SOCKET"]) as connection:
    connection.call("FLUSHALL")
print("STATEM_REDIS_URL=unix://" + os.environ["SOCKET"])
"""
"""Makes a fresh store of the one that all scenarios share, and names it to the scenario that comes."""

EMPTY_SERVICE = """
import os, shutil
from statem_dist.resp import Connection
with Connection(os.environ["SOCKET"]) as connection:
    connection.call("FLUSHALL")
shutil.rmtree(os.environ["DROPPED"], ignore_errors=True)
print("STATEM_URL=" + os.environ["SERVICE"])
"""
"""The same for a service: the store and the folder with dropped files are its own. Without a token in the store it lets
in whoever is on this host."""

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not CONFORMANCE.is_dir(), reason="the conformance scenarios are not beside this checkout"),
]


def run_scenarios(site: Site, *options: str, left_out: str = "") -> int:
    """Run the scenarios and return how many there were; each one must hold."""
    paths = [path for path in sorted((CONFORMANCE / "scenarios").glob("*.yaml")) if path.stem != left_out]
    runner = [sys.executable, str(CONFORMANCE / "run.py"), "--command", shlex.join(COMMAND)]
    done = subprocess.run(
        [*runner, *options, *map(str, paths)], env=site.environment, capture_output=True, text=True, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    counted = re.fullmatch(r"(\d+) passed, 0 failed in .*", done.stdout.strip())
    assert counted, done.stdout
    return int(counted[1])


def test_scenarios_hold_where_the_command_line_executes(site: Site) -> None:
    """Every scenario comes out as with StateM, each check executed by the command line itself."""
    assert run_scenarios(site, "--down", "--jobs", "2") > 0


def test_scenarios_hold_where_a_worker_executes(site: Site) -> None:
    """Every scenario comes out the same with a Celery worker doing the checks, but for the caller's own reviewer."""
    site.worker()
    site.environment["SOCKET"] = str(site.state_dir / "redis.sock")
    setup = shlex.join([sys.executable, "-c", EMPTY])
    assert run_scenarios(site, "--jobs", "1", "--setup", setup, left_out=REVIEWER_OF_THE_CALLER) > 0


def test_scenarios_hold_through_a_service(site: Site) -> None:
    """Every scenario comes out the same over HTTP, the checks done by a worker, but for the caller's own reviewer."""
    site.worker()
    site.environment["SERVICE"] = site.api()
    site.environment["SOCKET"] = str(site.state_dir / "redis.sock")
    site.environment["DROPPED"] = str(site.state_dir / "runs")
    setup = shlex.join([sys.executable, "-c", EMPTY_SERVICE])
    assert run_scenarios(site, "--jobs", "1", "--setup", setup, left_out=REVIEWER_OF_THE_CALLER) > 0
