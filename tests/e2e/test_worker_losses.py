"""Checks that kill their worker: how often they may, and what becomes of those that share it."""

from __future__ import annotations

from typing import Any

import pytest

from statem_dist.embedded import server
from statem_dist.protocol.decide import STARTS_MAX
from tests.support.programs import HAS_PROC, Program, Site, eventually

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.chaos,
    pytest.mark.slow,
    pytest.mark.timeout(300),
    pytest.mark.skipif(not HAS_PROC, reason="the worker is found in /proc"),
]

KILL_WORKER = "kill -9 $(sed -n 's/^PPid:[^0-9]*//p' /proc/$PPID/status); sleep 618"
"""The parent of a command is the supervisor, and its parent the worker."""


@pytest.fixture(autouse=True)
def left_to_workers(site: Site) -> None:
    """A store with an address: no caller executes, and is killed by, what waits for the next worker."""
    site.environment["STATEM_REDIS_URL"] = server.ensure(site.state_dir, idle_stop_seconds=0).redis_url


def replaced(site: Site, dead: Program, words: tuple[str, ...], ended: dict[str, Program]) -> Program:
    """Return a worker in place of one that was killed, unless the callers that are waited for have their answers."""
    eventually(lambda: not dead.running or not any(each.running for each in ended.values()), "the worker is killed")
    return dead if dead.running else site.worker(*words)


def result(said: dict[str, Any], check: int) -> tuple[str, int]:
    """Return the reason and the number of tries of a check before the transfer."""
    found = said["details"]["results"][check]
    return found["reason"], found["tries"]


@pytest.mark.parametrize("pool", ["threads", "prefork", "solo"])
def test_a_check_that_kills_its_worker_is_begun_three_times(site: Site, pool: str) -> None:
    """Then its transition ends as an error that says so; what was before it in its batch ran once, what is behind it
    runs, and a worker that is there serves others."""
    checks = ["echo >> first", f"echo >> begun; {KILL_WORKER}", "echo >> last"]
    items = ", ".join(f'{{run: "{each}"}}' for each in checks)
    site.start(f"nodes: {{a: {{before_transfer: [{items}], next: b}}, b: The end.}}")
    words = ("-c", "1", "--pool", pool)
    worker = site.worker(*words)
    waiting = {"goto": site.begin("goto", "b", "--run-id", "r", "--json")}
    while any(each.running for each in waiting.values()):
        if pool == "prefork":
            # Its children are replaced by the pool; the worker lives.
            waiting["goto"].wait()
        else:
            worker = replaced(site, worker, words, waiting)
    said = waiting["goto"].wait()
    assert said.exit_code == 1
    assert said.data["details"]["outcome"] == "error"
    assert [result(said.data, number) for number in range(3)] == [
        ("passed", 1),
        ("worker_lost", STARTS_MAX),
        ("passed", 1),
    ]
    assert [len(site.lines(name)) for name in ("first", "begun", "last")] == [1, STARTS_MAX, 1]
    worker = worker if worker.running else site.worker(*words)
    site.start("nodes: {a: {before_transfer: [{run: 'echo fine'}], next: b}, b: The end.}", "other")
    assert site.json("goto", "b", "--run-id", "other")["outcome"] == "committed"


def test_who_shares_the_worker_of_a_killer_comes_through(site: Site) -> None:
    """A long check is lost with its worker twice by the doing of another one, but not a third time: from then on they
    are not executed at the same time by one worker. The killer ends as lost, the other one commits."""
    begun = "$(wc -l < victim)"
    killer = f"echo >> killer; until [ -e victim ] && [ {begun} -ge $(wc -l < killer) ]; do sleep 0.05; "
    killer += f"[ $(wc -l < killer) -lt 3 ] || break; done; {KILL_WORKER}"
    victim = f"echo >> victim; [ {begun} -lt 3 ] || {{ sleep 2; exit 0; }}; sleep 618"
    for run_id, text in (("killer", killer), ("victim", victim)):
        quoted = text.replace("'", "''")
        site.start(f"nodes: {{a: {{before_transfer: [{{run: '{quoted}'}}], next: b}}, b: The end.}}", run_id)
    words = ("-c", "2")
    worker = site.worker(*words)
    waiting = {name: site.begin("goto", "b", "--run-id", name, "--json") for name in ("killer", "victim")}
    while any(each.running for each in waiting.values()):
        worker = replaced(site, worker, words, waiting)
    assert waiting["victim"].wait().data["outcome"] == "committed"
    lost = waiting["killer"].wait()
    assert (lost.exit_code, result(lost.data, 0)) == (1, ("worker_lost", STARTS_MAX))
    assert [len(site.lines(name)) for name in ("killer", "victim")] == [STARTS_MAX, STARTS_MAX]
