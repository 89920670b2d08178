"""Walks with scripted outcomes: where they lead, what they leave out, and that they follow the rules of real runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from statem_dist.errors import Invalid, UnknownTarget
from statem_dist.protocol.graph import Edge, Node, Runbook
from statem_dist.protocol.outcome import Outcome
from statem_dist.runbook import parse
from statem_dist.testing import Walk, simulate
from tests.support.random_worlds import random_runbook

RELEASE = """
name: release
initial: build
nodes:
  build:
    before_transfer:
      - {name: tests, run: make test}
  repair: {}
  ship:
    before_transfer: [{type: manual, name: approval, prompt: Ship it?}]
    out_hook:
      - name: publish
        run: make publish
        repair: [{name: withdraw, run: make withdraw}]
  done: {}
  lost: {}
  forgotten: {next: lost}
edges:
  - {from: build, to: ship}
  - {from: build, to: repair, max_attempts: 3}
  - {from: repair, to: build}
  - {from: ship, to: done, hook: [{name: announce, run: make announce}]}
"""


@pytest.fixture
def release() -> Runbook:
    """The runbook of a release."""
    return parse(RELEASE, source="release.yaml").runbook


def test_everything_passes(release: Runbook) -> None:
    """Without a script every check passes, and the report says what a walk did not come to."""
    walk = simulate(release)
    assert (walk.path, walk.ending) == (("build", "ship", "done"), "ended")
    assert set(walk.untaken) == {("build", "repair"), ("repair", "build"), ("forgotten", "lost")}
    assert walk.unentered == ("repair", "lost", "forgotten")
    assert walk.unreachable == ("lost", "forgotten")
    assert walk.traps == ()


def test_outcomes_in_turn(release: Runbook) -> None:
    """A list has an outcome for each time; a check of one edge is told apart; the last one counts for ever after."""
    walk = simulate(release, {"build -> ship: tests": [False, "timed_out", True], "approval": ["rejected", "approved"]})
    assert walk.path == ("build", "repair", "build", "repair", "build", "ship", "done")
    assert walk.steps[0].results["before_transfer.0"] == Outcome(passed=False, reason="check_failed")
    assert [step.outcome for step in walk.steps if step.source == "ship"] == ["blocked", "committed"]


def test_stuck_and_endless(release: Runbook) -> None:
    """Who is refused twice for the same reasons is stuck; who goes round for ever is told so after a bound."""
    assert simulate(release, {"approval": False}).ending == "stuck"
    endless = Runbook(
        hash="h",
        name="loop",
        initial="a",
        nodes=(Node("a"), Node("b"), Node("end")),
        edges=(Edge("a", "b"), Edge("b", "a")),
    )
    walk = simulate(endless, steps_max=10)
    assert (walk.ending, len(walk.steps), walk.traps) == ("endless", 10, ("a", "b"))


def test_effects_that_fail(release: Runbook) -> None:
    """A hook that fails blocks, after the repairs of those before it; one of unknown outcome ends the walk."""
    walk = simulate(release, {"announce": [False, True]})
    blocked = next(step for step in walk.steps if step.outcome == "blocked")
    assert [check for check, outcome in blocked.results.items() if outcome.passed and "repair" in check] != []
    assert walk.path[-1] == "done"
    walk = simulate(release, {"publish": "hook_outcome_unknown"})
    assert (walk.ending, walk.steps[-1].outcome) == ("error", "error")
    assert simulate(release, {"announce": "hook_outcome_unknown"}).ending == "error"


def test_a_route(release: Runbook) -> None:
    """A route is followed whatever the order of edges; where it ends, the walk ends; a wrong target is refused."""
    walk = simulate(release, route=["repair", "build", "ship"])
    assert (walk.path, walk.ending) == (("build", "repair", "build", "ship"), "route_ended")
    left: Iterator[str] = iter(["repair"])
    assert simulate(release, route=lambda run: next(left, None)).path == ("build", "repair")
    with pytest.raises(UnknownTarget, match="Allowed targets: ship, repair"):
        simulate(release, route=["done"])


def test_scripts_that_cannot_be_meant(release: Runbook, tmp_path: Path) -> None:
    """A check that there is not is refused with the names that there are; so is an empty list."""
    with pytest.raises(Invalid) as refused:
        simulate(release, {"test": True})
    assert "tests" in refused.value.hint
    with pytest.raises(Invalid, match="empty list"):
        simulate(release, {"tests": []})
    path = tmp_path / "release.yaml"
    path.write_text(RELEASE)
    assert simulate(path) == simulate(str(path)) == simulate(release)


@pytest.mark.parametrize("seed", range(100))
def test_any_runbook_comes_to_an_end(seed: int) -> None:
    """Whatever a runbook is made of, a walk through it ends, and twice the same way."""
    walks: list[Walk] = []
    for _ in range(2):
        rng = Random(seed)
        runbook = random_runbook(rng, "h")
        names = [f"before_transfer.{number}" for number in range(2)]
        known = {planned for node in runbook.nodes for planned in names if len(node.before_transfer) > int(planned[-1])}
        script = {name: [rng.random() < 0.5 for _ in range(5)] for name in sorted(known) if runbook.edges}
        try:
            walks.append(simulate(runbook, script))
        except Invalid:
            walks.append(simulate(runbook))
    assert walks[0] == walks[1]
    assert walks[0].ending in ("ended", "stuck", "error", "endless")
