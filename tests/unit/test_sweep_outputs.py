"""Every output of a sweep is read back by the tool it is for, with names and outputs that try to break out of it."""

from __future__ import annotations

import csv
import json
import math
from io import StringIO
from pathlib import Path
from typing import Any, NoReturn

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from statem_dist.files import write_whole
from statem_dist.sweep.comparison import compare
from statem_dist.sweep.model import STATES, Planned, Trial, Usage
from statem_dist.sweep.outputs.documents import digest, results_json
from statem_dist.sweep.outputs.tables import trials_csv, trials_jsonl
from statem_dist.sweep.scores import scores_of
from tests.support.sweeps import HOSTILE, T0, attempt, definition, grid, sweep_of, trial, trials_of

AXES = ("model", "task")
HOSTILE_TRIALS = grid(2, 3, 2, hostile=True)
TEXT = st.text(st.characters(exclude_categories=()), max_size=30)


def strict(text: str) -> Any:
    """Return what a strict JSON parser reads: no NaN, no duplicate keys; a second parser must agree."""

    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"{constant} is not JSON")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({key for key, _ in pairs}) == len(pairs), "a key is there twice"
        return dict(pairs)

    data = json.loads(text, parse_constant=refuse, object_pairs_hook=once)
    assert msgspec.json.decode(text) == data
    return data


def read_csv(text: str) -> list[dict[str, str]]:
    """Return the rows that Python's csv module reads."""
    rows = list(csv.reader(StringIO(text, newline=""), strict=True))
    assert {len(row) for row in rows} == {len(rows[0])}
    assert len(set(rows[0])) == len(rows[0])
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


def test_results_are_strict_json_with_every_key() -> None:
    """The document identifies the sweep, says whether it is complete, and has its counts and scores."""
    sweep = sweep_of(HOSTILE_TRIALS)
    data = strict(results_json(sweep, scores_of(sweep, HOSTILE_TRIALS)))
    assert list(data) == [
        "schema", "sweep", "definition", "status", "status_reason", "complete", "counts", "scores", "comparison",
    ]  # fmt: skip
    assert (data["sweep"]["id"], data["complete"], data["comparison"]) == ("swp-1", False, None)
    assert data["definition"]["runbook_hash"] == "f00d"
    assert data["counts"]["planned"] == sum(data["counts"][state] for state in STATES) == len(HOSTILE_TRIALS)
    assert len(data["scores"]["rows"]) == 2
    assert data["scores"]["overall"]["usage"]["cost_usd"] == pytest.approx(0.25 * len(HOSTILE_TRIALS))


def test_keys_do_not_depend_on_what_there_is() -> None:
    """A sweep without trials has the keys of one with trials of all kinds."""

    def keys(data: Any) -> Any:
        return {key: keys(value) for key, value in data.items()} if isinstance(data, dict) else None

    empty = sweep_of([])
    nothing = strict(results_json(empty, scores_of(empty, [])))
    trials = trials_of({("m", "t"): list(STATES)}, AXES)
    sweep = sweep_of(trials)
    everything = strict(results_json(sweep, scores_of(sweep, trials)))
    for data in (nothing, everything):
        for free in ("reasons", "earlier_reasons"):
            data["scores"]["overall"].pop(free)
    assert keys(nothing) == keys(everything)


def test_the_digest_is_that_of_what_was_asked_and_not_of_where() -> None:
    """The same definition from another folder has the same digest, another limit of steps another one."""
    here = definition()
    there = msgspec.structs.replace(here, file="/else/tb.sweep.yaml", folder="/else", runbook_path="/else/tb.yaml")
    assert digest(here) == digest(there)
    assert digest(here) != digest(msgspec.structs.replace(here, max_steps=21))


def test_a_comparison_is_part_of_the_results() -> None:
    """With a baseline the document has all of the comparison."""
    trials = trials_of({("m", "t"): ["passed"], ("m", "u"): ["failed"]}, AXES)
    sweep = sweep_of(trials)
    data = strict(results_json(sweep, scores_of(sweep, trials), compare(sweep, trials, sweep, trials)))
    assert data["comparison"]["difference"] == 0.0


def test_every_planned_trial_has_a_row() -> None:
    """Also trials that have not begun have a row, in the order of the plan; no line of JSONL is split by U+2028."""
    trials = [*HOSTILE_TRIALS, trial(99, {"model": HOSTILE, "task": "x"}, 1, "pending")]
    sweep = sweep_of(trials)
    lines = trials_jsonl(sweep, trials).splitlines()
    rows = [strict(line) for line in lines]
    table = read_csv(trials_csv(sweep, trials))
    assert [row["number"] for row in rows] == [each.planned.number for each in trials]
    assert [int(row["number"]) for row in table] == [each.planned.number for each in trials]
    assert len({tuple(row) for row in rows}) == 1
    assert rows[-1]["values"]["model"] == HOSTILE
    assert table[-1]["values.model"] == HOSTILE
    assert (rows[-1]["state"], rows[-1]["reason"], rows[-1]["attempts"]) == ("pending", None, 0)
    assert (table[-1]["state"], table[-1]["reason"], table[-1]["scored"]) == ("pending", "", "false")


def test_the_columns_are_always_the_same() -> None:
    """A sweep without trials has the head of any other."""
    full, empty = sweep_of(HOSTILE_TRIALS), sweep_of([])
    head = trials_csv(full, HOSTILE_TRIALS).split("\r\n")[0]
    assert trials_csv(empty, []) == head + "\r\n"
    assert head.startswith("schema,sweep,number,values.model,values.task,repetition,state,scored,passed,")


@pytest.mark.parametrize("value", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1d1"])
def test_no_cell_is_a_formula(value: str) -> None:
    """A name that a spreadsheet would calculate has an apostrophe before it; numbers stay numbers."""
    trials = [trial(1, {"model": value, "task": "a-b=c"}, 1, "failed", detail=value, queued=-1.0)]
    (row,) = read_csv(trials_csv(sweep_of(trials), trials))
    assert row["values.model"] == row["detail"] == f"'{value}"
    assert (row["values.task"], row["queued_seconds"]) == ("a-b=c", "-1.0")


def test_earlier_attempts_are_counted_in_csv_and_told_in_jsonl() -> None:
    """The row is that of the attempt that counts; usage is that of all, and a cost of NaN is none."""
    cell = {"model": "m", "task": "t"}
    tried = (
        attempt(1, "worker_lost", usage=Usage(input_tokens=3, cost_usd=math.nan)),
        attempt(1, "success_end", attempt=2, usage=Usage(input_tokens=4, cost_usd=0.5)),
    )
    done = Trial(planned=Planned(number=1, cell=cell, repetition=1), state="passed", attempts=tried)
    again = Trial(planned=Planned(number=2, cell=cell, repetition=2), state="pending", attempts=tried[:1])
    sweep = sweep_of([done, again])
    first, second = (strict(line) for line in trials_jsonl(sweep, [done, again]).splitlines())
    assert (first["attempts"], first["run_id"], first["reason"]) == (2, "run-1-2", "success_end")
    assert [each["reason"] for each in first["earlier_attempts"]] == ["worker_lost"]
    assert (first["input_tokens"], first["cost_usd"]) == (7, 0.5)
    assert (second["run_id"], [each["run_id"] for each in second["earlier_attempts"]]) == (None, ["run-1-1"])
    assert [row["attempts"] for row in read_csv(trials_csv(sweep, [done, again]))] == ["2", "1"]
    assert first["started_at"] == "2026-09-21T14:13:22.000+00:00", T0


@given(TEXT, TEXT, TEXT)
def test_any_text_comes_back(model: str, task: str, detail: str) -> None:
    """JSONL, JSON and CSV give back any text, but for halves of surrogate pairs, and can be written to a file."""
    trials = [trial(1, {"model": model, "task": task}, 1, "failed", detail=detail)]
    sweep = sweep_of(trials)
    whole = detail.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert strict(trials_jsonl(sweep, trials))["detail"] == whole
    (row,) = read_csv(trials_csv(sweep, trials))
    assert row["detail"] in (whole, f"'{whole}")
    strict(results_json(sweep, scores_of(sweep, trials)))
    trials_csv(sweep, trials).encode()


def test_outputs_can_be_written_whole(tmp_path: Path) -> None:
    """What is written is what is read."""
    sweep = sweep_of(HOSTILE_TRIALS)
    write_whole(tmp_path / "trials.csv", trials_csv(sweep, HOSTILE_TRIALS))
    with (tmp_path / "trials.csv").open(newline="", encoding="utf-8") as file:
        assert len(list(csv.reader(file))) == len(HOSTILE_TRIALS) + 1
