"""Runs with long histories and lists of many runs, on a real server: what looking costs, and where a history ends."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from statem_dist.coordinator import HISTORY_WARNING, Coordinator, history_warning
from statem_dist.dispatch import NoDispatch
from statem_dist.errors import HistoryFull
from statem_dist.history import history
from statem_dist.listing import RunFilter, page
from statem_dist.protocol.commands import (
    Cancel,
    CancelRun,
    ClaimWork,
    Goto,
    RecordOutcomes,
    Restart,
    Resume,
    Save,
    Start,
)
from statem_dist.protocol.graph import Node
from statem_dist.settings import Settings
from statem_dist.store import keys
from tests.contract.conftest import RedisBench
from tests.support.builders import AGENT, PASSED, PLACE, WORKER, loop, one_by_one, shell

SETTINGS = Settings(state_dir=Path("/unused"))
PLAIN = loop(Node("a"))
CHECKED = loop(Node("a", before_transfer=one_by_one(shell())))
EVENT_BYTES_MAX = 400
"""What docs/operations.md says that an event of a plain transition takes, with room."""


def traffic(bench: RedisBench, do: Callable[[], object]) -> tuple[int, int]:
    """Return how many commands the server executed while something was done, and how many bytes it sent."""

    def counted() -> tuple[int, int]:
        text = bench.call("INFO", "stats").decode()
        commands, sent = (
            re.search(rf"^{name}:(\d+)", text, re.MULTILINE)
            for name in ("total_commands_processed", "total_net_output_bytes")
        )
        assert commands is not None
        assert sent is not None
        return int(commands[1]), int(sent[1])

    first, second = counted(), counted()
    do()
    third = counted()
    asking, answer = second[0] - first[0], second[1] - first[1]
    return third[0] - second[0] - asking, third[1] - second[1] - answer


def starts(of: Coordinator, run_id: str = "r") -> None:
    """Start a run that goes to and fro without checks."""
    of.apply(run_id, Start(run_id=run_id, runbook=PLAIN, place=PLACE, by=AGENT))


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_what_looking_costs_does_not_grow_with_a_history(real_bench: RedisBench) -> None:
    """After 10,000 transitions `cur` and `history --tail 5` send as many commands as after 500, and read about as many
    bytes; an event takes what is documented."""
    of = Coordinator(real_bench.store, NoDispatch(), SETTINGS)
    starts(of)
    looks: dict[str, Callable[[], object]] = {
        "cur": lambda: real_bench.store.load("r"),
        "history --tail 5": lambda: history(real_bench.store, of.load("r").run, 5),
    }
    made = 0
    costs: dict[str, list[tuple[int, int]]] = {name: [] for name in looks}
    for step in (500, 10_000):
        for number in range(made, step):
            of.apply("r", Goto(runbook=PLAIN, target="a" if number % 2 else "b", by=AGENT))
        made = step
        for name, look in looks.items():
            costs[name].append(traffic(real_bench, look))
    for (few, few_bytes), (many, many_bytes) in costs.values():
        assert many == few <= 8
        assert many_bytes < few_bytes + 2_000
    events = real_bench.call("XLEN", keys.events("r"))
    assert events == of.load("r").run.version
    assert real_bench.call("MEMORY", "USAGE", keys.events("r"), "SAMPLES", 0) / events < EVENT_BYTES_MAX


def test_a_full_history_begins_nothing_more(real_bench: RedisBench, caplog: pytest.LogCaptureFixture) -> None:
    """Every command that would open a transition is refused and writes nothing; what is open goes on to its end, and
    can be cancelled; a larger limit lets the run go on."""
    of = Coordinator(real_bench.store, NoDispatch(), replace(SETTINGS, history_events_max=6))
    of.apply("r", Start(run_id="r", runbook=CHECKED, place=PLACE, by=AGENT))
    of.apply("r", Goto(runbook=CHECKED, target="b", by=AGENT))
    applied = of.apply("r", ClaimWork(transition="t2", check="before_transfer.0", worker=WORKER))
    assert applied.run.version < 6
    outcomes = RecordOutcomes(transition="t2", token=1, worker=WORKER, outcomes=(PASSED,), claim_more=False)
    run = of.record(applied.run, outcomes).run
    assert (run.node, run.version >= 6) == ("b", True)
    for command in (
        Goto(runbook=CHECKED, target="a", by=AGENT),
        Save(runbook=CHECKED, by=AGENT),
        Resume(runbook=CHECKED, by=AGENT),
        Restart(runbook=CHECKED, place=PLACE, by=AGENT),
    ):
        with pytest.raises(HistoryFull, match=rf"has {run.version} events; from 6 on") as caught:
            of.apply("r", command)
        assert "STATEM_HISTORY_EVENTS_MAX" in (caught.value.hint or "")
    assert of.load("r").run == run
    assert caplog.text.count("begins nothing more") == 1
    more = Coordinator(real_bench.store, NoDispatch(), SETTINGS)
    assert more.apply("r", Goto(runbook=CHECKED, target="a", by=AGENT)).run.node == "a"
    assert of.apply("r", CancelRun(reason="", by=AGENT)).events


def test_what_is_open_when_a_history_is_full_can_be_cancelled(real_bench: RedisBench) -> None:
    """Only beginnings are refused."""
    of = Coordinator(real_bench.store, NoDispatch(), SETTINGS)
    of.apply("r", Start(run_id="r", runbook=CHECKED, place=PLACE, by=AGENT))
    run = of.apply("r", Goto(runbook=CHECKED, target="b", by=AGENT)).run
    full = Coordinator(real_bench.store, NoDispatch(), replace(SETTINGS, history_events_max=run.version))
    assert full.apply("r", Cancel(transition="t2", reason="", by=AGENT)).events


def test_a_run_is_warned_well_before_its_end(real_bench: RedisBench) -> None:
    """From four fifths on, whoever moves it is told how far it is and what to do."""
    of = Coordinator(real_bench.store, NoDispatch(), SETTINGS)
    starts(of)
    run = of.load("r").run
    events_max = SETTINGS.history_events_max
    assert history_warning(replace(run, version=round(HISTORY_WARNING * events_max) - 1), SETTINGS) is None
    told = history_warning(replace(run, version=round(HISTORY_WARNING * events_max)), SETTINGS)
    assert told is not None
    assert f"has 80000 events, and from {events_max} on" in told


@pytest.mark.slow
def test_lists_cost_by_what_they_show(real_bench: RedisBench) -> None:
    """A page of 50 and the counts of every status send as many commands among 3,000 runs as among 100."""
    of = Coordinator(real_bench.store, NoDispatch(), SETTINGS)
    made = 0
    costs: list[list[tuple[int, int]]] = []
    for step in (100, 3_000):
        for number in range(made, step):
            starts(of, f"r{number}")
            if number % 25:
                of.apply(f"r{number}", CancelRun(reason="", by=AGENT))
        made = step
        costs.append(
            [
                traffic(real_bench, lambda: page(real_bench.store, RunFilter(), None, 50, lambda *_: None)),
                traffic(real_bench, lambda: real_bench.store.marks("active", 50)),
                traffic(real_bench, lambda: real_bench.redis_store.counts(["active", "moving", "cancelled"])),
            ]
        )
    for (few, _), (many, _) in zip(*costs, strict=True):
        assert abs(many - few) <= 150
        assert many <= 300
