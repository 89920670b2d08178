"""Two sweeps side by side: pairs, flips, intervals and tests, and what makes them doubtful."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statem_dist.sweep.comparison import Comparison, compare
from statem_dist.sweep.model import STATES, Agent, Definition, State
from statem_dist.sweep.scores import Counted, scores_of
from tests.support.sweeps import definition, sweep_of, trials_of

AXES = ("model", "task")


def tried(passed: int) -> list[State]:
    """Return the states of five trials, of which so many have passed."""
    return [*(["passed"] * passed), *(["failed"] * (5 - passed))]  # type: ignore[list-item]


def compared(
    before: Mapping[str, Sequence[State]],
    after: Mapping[str, Sequence[State]],
    *,
    counted: Counted = "strict",
    ours: Definition | None = None,
    theirs: Definition | None = None,
) -> Comparison:
    """Return the comparison of two sweeps of one model each, given by the states of their tasks."""
    old = trials_of({("opus", task): states for task, states in before.items()}, AXES)
    new = trials_of({("sonnet", task): states for task, states in after.items()}, AXES)
    baseline, other = sweep_of(old, theirs, sweep_id="old"), sweep_of(new, ours, sweep_id="new")
    return compare(baseline, old, other, new, counted=counted)


def test_flips_go_by_majority_and_by_any() -> None:
    """Half is no majority; one passed trial is any; a task may flip in one sense and not in the other."""
    found = compared(
        {"up": ["failed", "failed"], "half": ["passed", "failed"], "down": ["passed", "passed"], "same": ["passed"]},
        {"up": ["passed", "passed"], "half": ["passed", "passed"], "down": ["passed", "failed"], "same": ["passed"]},
    )
    assert found.majority.gained == ({"task": "up"}, {"task": "half"})
    assert found.majority.lost == ({"task": "down"},)
    assert found.any_passed.gained == ({"task": "up"},)
    assert found.any_passed.lost == ()
    assert [pair.difference for pair in found.pairs] == [1.0, 0.5, -0.5, 0.0]
    assert (found.baseline.mean, found.other.mean, found.difference) == (0.625, 0.875, 0.25)


def test_tasks_of_one_sweep_alone_are_listed_and_not_counted() -> None:
    """Means are those of the tasks that both have."""
    found = compared({"a": ["passed"], "b": ["passed"]}, {"b": ["failed"], "c": ["passed"]})
    assert found.only_in_baseline == ({"task": "a"},)
    assert found.only_in_other == ({"task": "c"},)
    assert (found.baseline.mean, found.other.mean) == (1.0, 0.0)
    assert (found.difference_low, found.mcnemar_p) == (None, 1.0)


def test_a_task_that_could_not_be_judged_is_unscored_or_not_passed() -> None:
    """Counted strictly an error is a loss; over scored trials alone the task is in no figure, and listed."""
    before, after = {"a": ["passed"], "b": ["passed"]}, {"a": ["error"], "b": ["passed"]}
    strict = compared(before, after)  # type: ignore[arg-type]
    valid = compared(before, after, counted="valid")  # type: ignore[arg-type]
    assert (strict.majority.lost, strict.unscored) == (({"task": "a"},), ())
    assert (valid.majority.lost, valid.unscored, valid.difference) == ((), ({"task": "a"},), 0.0)


def test_a_clear_gain_is_significant_and_equality_is_not() -> None:
    """Twenty tasks that all were lost and now pass: both tests say so, and the interval does not touch 0."""
    none: dict[str, Sequence[State]] = {f"t{n}": tried(0) for n in range(20)}
    every: dict[str, Sequence[State]] = {f"t{n}": tried(4) for n in range(20)}
    gain = compared(none, every)
    assert gain.mcnemar_p == pytest.approx(2 / 2**20)
    assert gain.sign_flip_p is not None
    assert gain.sign_flip_p < 0.001
    assert (gain.difference_low, gain.difference_high) == pytest.approx((0.8, 0.8))
    same = compared(every, every)
    assert (same.mcnemar_p, same.sign_flip_p, same.difference) == (1.0, 1.0, 0.0)


def test_a_mixed_change_has_an_interval_around_its_difference() -> None:
    """Tasks that differ by different amounts: the interval encloses the difference and is the same each time."""
    before: dict[str, Sequence[State]] = {f"t{n}": tried(n % 5) for n in range(40)}
    after: dict[str, Sequence[State]] = {f"t{n}": tried(n % 6) for n in range(40)}
    found = compared(before, after)
    assert found.difference is not None
    assert found.difference_low is not None
    assert found.difference_high is not None
    assert found.difference_low < found.difference < found.difference_high
    assert compared(before, after) == found


def test_what_decides_comparability_is_warned_about() -> None:
    """Other trials, steps and timeouts, and unfinished trials, each have a warning; other names have none."""
    theirs = definition(trials=3, agent=Agent(run="x", timeout=60.0), trial_timeout=600.0)
    ours = definition(name="other", max_steps=50, agent=Agent(run="y", timeout=90.0), runbook="beef")
    found = compared({"a": ["passed"]}, {"a": ["pending"]}, ours=ours, theirs=theirs)
    assert found.warnings == (
        "trials per cell: 3 in the baseline, 5 here",
        "max_steps: 20 in the baseline, 50 here",
        "the timeout of an agent call: 60.0 in the baseline, 90.0 here",
        "the timeout of a trial: 600.0 in the baseline, none here",
        "new is not complete: 0 of 1 trials are scored",
    )
    assert compared({"a": ["passed"]}, {"a": ["failed"]}).warnings == ()


@given(st.dictionaries(st.sampled_from("abcdef"), st.lists(st.sampled_from(STATES), min_size=1, max_size=5)))
def test_a_sweep_compared_with_itself_has_no_difference(tasks: dict[str, list[State]]) -> None:
    """Nothing is gained or lost, and the strict mean is that of the scores."""
    found = compared(tasks, tasks)
    trials = trials_of({("opus", task): states for task, states in tasks.items()}, AXES)
    assert found.baseline.mean == pytest.approx(scores_of(sweep_of(trials), trials).overall.strict.mean)
    assert found.majority == found.any_passed
    assert found.majority.gained == found.majority.lost == ()
    assert found.sign_flip_p in (None, 1.0)
    json.dumps(found.as_data(), allow_nan=False)
