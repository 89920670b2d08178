"""RabbitMQ as the broker, with the state in a Redis: the same promises, whatever becomes of either."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.programs import HAS_PROC, Site, eventually
from tests.support.rabbit import Rabbit, rabbit

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.chaos,
    pytest.mark.skipif(not HAS_PROC, reason="what is left of a process tree can be seen in /proc only"),
]

RUNBOOK = """
nodes:
  a:
    before_transfer: [{run: "echo $$ >> begun; until [ -e opened ]; do sleep 0.05; done; echo through"}]
    next: b
  b: {before_transfer: [{run: "echo again"}], next: c}
  c: {before_transfer: [{run: "echo more"}], next: d}
  d: The end.
"""


@pytest.fixture
def broker() -> Iterator[Rabbit]:
    """A broker of this test alone."""
    with rabbit() as running:
        yield running


@pytest.fixture
def site(broker: Rabbit) -> Iterator[Site]:
    """A site that uses it."""
    site = Site(STATEM_BROKER_URL=broker.url)
    try:
        yield site
    finally:
        site.close()


def test_nothing_is_lost_with_a_worker_or_with_the_broker(site: Site, broker: Rabbit) -> None:
    """A worker is killed in a check, then the broker between two; each ``goto`` commits once, by the other worker."""
    first = site.worker("-c", "1")
    site.start(RUNBOOK)
    waiting = site.begin("goto", "b", "--run-id", "r", "--json")
    eventually(lambda: len(site.lines("begun")) == 1, "the check is begun")
    second = site.worker("-c", "1")
    first.kill()
    eventually(lambda: len(site.lines("begun")) == 2, "the check is begun by the other worker")
    site.write("opened")
    said = waiting.wait()
    assert (said.exit_code, said.data["outcome"]) == (0, "committed"), said
    broker.kill()
    eventually(lambda: "is away; trying until it is back" in second.stderr, "the worker notices")
    waiting = site.begin("goto", "c", "--run-id", "r", "--json")
    broker.start()
    said = waiting.wait()
    assert (said.exit_code, said.data["outcome"]) == (0, "committed"), f"{said}\n{second.stderr}"
    assert site.json("goto", "d", "--run-id", "r")["outcome"] == "committed"
    assert site.events() == ["goto", "goto", "goto"]
    assert second.running, second.stderr
