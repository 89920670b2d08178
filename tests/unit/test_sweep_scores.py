"""The scores of a sweep: arithmetic against brute force and published values, and what is never left out."""

from __future__ import annotations

import json
import math
import random
import time
from fractions import Fraction
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from statem_dist.sweep import resampling
from statem_dist.sweep.model import OUTCOMES, SCORED, STATES, Blocked, Planned, State, Trial, Usage
from statem_dist.sweep.resampling import mcnemar_p, mean_interval, sign_flip_p
from statem_dist.sweep.scores import pass_at, pass_hat, scores_of, wilson
from tests.support.sweeps import attempt, definition, grid, sweep_of, trial, trials_of

AXES = ("model", "task")
STATE = st.sampled_from(STATES)


@given(st.integers(1, 8).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n))))
def test_pass_at_k_is_what_enumeration_gives(drawn: tuple[int, int]) -> None:
    """pass@k is the share of the subsets of k trials with a passed one, pass^k of those with passed ones alone."""
    n, c = drawn
    trials = [True] * c + [False] * (n - c)
    for k in range(1, n + 1):
        subsets = list(combinations(trials, k))
        assert pass_at(n, c)[k - 1] == pytest.approx(sum(map(any, subsets)) / len(subsets), abs=1e-12)
        assert pass_hat(n, c)[k - 1] == pytest.approx(sum(map(all, subsets)) / len(subsets), abs=1e-12)
    assert len(pass_at(n, c)) == len(pass_hat(n, c)) == n


def test_pass_at_k_of_large_tasks_is_exact_at_its_ends() -> None:
    """No task without a passed trial gets anything, and none with nothing but passed trials loses anything."""
    assert pass_at(1000, 0) == pass_hat(1000, 0) == [0.0] * 1000
    assert pass_at(1000, 1000) == pass_hat(1000, 1000) == [1.0] * 1000
    assert pass_at(200, 3)[99] == pytest.approx(1 - math.comb(197, 100) / math.comb(200, 100))


@pytest.mark.parametrize(
    ("passed", "trials", "low", "high"),
    [
        (0, 10, 0.0, 0.27753),
        (1, 10, 0.01787, 0.40415),
        (5, 10, 0.23659, 0.76341),
        (10, 10, 0.72247, 1.0),
        (81, 263, 0.25530, 0.36621),
    ],
)
def test_wilson_gives_published_values(passed: int, trials: int, low: float, high: float) -> None:
    """The intervals of Wilson's method; 81 of 263 is the example of Newcombe (1998)."""
    assert wilson(passed, trials) == pytest.approx((low, high), abs=2e-5)


def test_wilson_without_trials_says_nothing() -> None:
    """No trials, no interval."""
    assert wilson(0, 0) is None


@given(st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz"), STATE), max_size=30))
def test_every_group_adds_up(drawn: list[tuple[str, str, State]]) -> None:
    """Whatever the states: planned is their sum in every group, and the groups of an axis make the whole."""
    trials = [trial(n, dict(zip(AXES, cell, strict=True)), 1, state) for n, (*cell, state) in enumerate(drawn, 1)]
    scores = scores_of(sweep_of(trials), trials)
    every = [scores.overall, *scores.rows, *scores.tasks, *(each for axis in scores.axes.values() for each in axis)]
    for score in every:
        assert score.planned == sum(score.states.values())
        assert score.scored == score.valid.trials == sum(score.states[state] for state in SCORED)
        assert score.strict.trials == score.planned
        assert score.strict.passed == score.valid.passed == score.states["passed"]
    for groups in (scores.rows, scores.tasks, *scores.axes.values()):
        assert sum(each.planned for each in groups) == len(drawn)
    assert len(scores.tasks) == scores.overall.tasks == len({task for _, task, _ in drawn})
    assert len(scores.unscored_tasks) == scores.overall.tasks_unscored
    json.dumps(scores.as_data(), allow_nan=False)


def test_errors_count_as_not_passed_in_strict_figures_alone() -> None:
    """A task with one error of five: strict has five trials of it, valid four; pass@5 has a value in strict only."""
    trials = trials_of({("opus", "x"): ["passed", "passed", "failed", "stuck", "error"]}, AXES)
    overall = scores_of(sweep_of(trials), trials).overall
    assert overall.coverage == 0.8
    assert (overall.strict.rate, overall.valid.rate) == (0.4, 0.5)
    assert [at.k for at in overall.strict.at_k] == [1, 2, 3, 4, 5]
    assert overall.strict.at_k[1].pass_at == pytest.approx(0.7)
    assert overall.strict.at_k[1].pass_hat == pytest.approx(0.1)
    assert [at.k for at in overall.valid.at_k] == [1, 2, 3, 4]
    assert overall.valid.at_k[1].pass_at == pytest.approx(1 - 1 / 6)


def test_a_greater_k_is_averaged_over_the_tasks_that_have_it() -> None:
    """pass@2 of a task with one trial is undefined, not 1: the mean leaves the task out and says so."""
    trials = trials_of({("opus", "x"): ["passed"], ("opus", "y"): ["passed", "failed", "failed"]}, AXES)
    strict = scores_of(sweep_of(trials), trials).overall.strict
    assert [at.tasks for at in strict.at_k] == [2, 1, 1]
    assert (strict.at_k[0].pass_at, strict.mean) == pytest.approx((2 / 3, 2 / 3))
    assert strict.at_k[1].pass_at == pytest.approx(2 / 3)
    assert strict.at_k[2].pass_hat == 0.0


def test_tasks_are_taken_within_their_row_and_over_all_rows_together() -> None:
    """In the row of a model a task has that model's trials; overall it has those of every model."""
    trials = trials_of({("opus", "x"): ["passed", "passed"], ("sonnet", "x"): ["failed", "failed"]}, AXES)
    scores = scores_of(sweep_of(trials), trials)
    assert [(row.values, row.strict.mean) for row in scores.rows] == [
        ({"model": "opus"}, 1.0),
        ({"model": "sonnet"}, 0),
    ]
    assert [(task.values, task.planned) for task in scores.tasks] == [({"task": "x"}, 4)]
    assert len(scores.overall.strict.at_k) == 4
    assert list(scores.axes) == ["model", "task"]


def test_tasks_without_a_scored_trial_are_listed() -> None:
    """A task that could not be judged at all lowers the strict mean, and stands in a list of its own."""
    trials = trials_of({("opus", "x"): ["passed"], ("opus", "y"): ["error"], ("opus", "z"): ["pending"]}, AXES)
    scores = scores_of(sweep_of(trials), trials)
    assert scores.unscored_tasks == ({"task": "y"}, {"task": "z"})
    assert scores.overall.strict.mean == pytest.approx(1 / 3)
    assert (scores.overall.valid.mean, scores.overall.valid.tasks) == (1.0, 1)
    assert [task.valid.rate for task in scores.tasks] == [1.0, None, None]


def test_earlier_attempts_count_in_usage_and_not_in_rates() -> None:
    """A trial that was lost once and then passed has passed; what both attempts have used and blocked is summed."""
    block = Blocked(node="review", target="done", check="tests", times=2)
    other = Blocked(node="review", target="done", check="lint", times=3)
    tried = (
        attempt(1, "worker_lost", blocks=[block], usage=Usage(input_tokens=5, cost_usd=1.0)),
        attempt(1, "success_end", attempt=2, blocks=[block, other], usage=Usage(input_tokens=7, cost_usd=math.nan)),
    )
    again = Trial(
        planned=Planned(number=1, cell={"model": "opus", "task": "x"}, repetition=1), state="passed", attempts=tried
    )
    rated = Trial(
        planned=Planned(number=2, cell={"model": "opus", "task": "y"}, repetition=1),
        state="pending",
        attempts=(attempt(2, "failure_end"),),
    )
    scores = scores_of(sweep_of([again, rated]), [again, rated])
    overall = scores.overall
    assert (overall.strict.passed, overall.scored, overall.attempts) == (1, 1, 3)
    assert (overall.usage.input_tokens, overall.usage.cost_usd) == (12, 1.0)
    assert overall.reasons == {"success_end": 1}
    assert overall.earlier_reasons == {"failure_end": 1, "worker_lost": 1}
    assert overall.rerun_after_score == 1
    assert [(each.check, each.times, each.trials) for each in scores.blocks] == [("tests", 4, 1), ("lint", 3, 1)]


def test_times_are_kept_on_two_clocks() -> None:
    """Waiting for a slot is not part of the time a trial took; percentiles are times that were measured."""
    trials = [trial(n, {"model": "m", "task": "x"}, n, "passed", queued=100.0, seconds=float(n)) for n in range(1, 101)]
    trials.append(trial(101, {"model": "m", "task": "x"}, 101, "running", queued=9999.0))
    overall = scores_of(sweep_of(trials), trials).overall
    duration = overall.duration
    assert (duration.count, duration.p50, duration.p90, duration.p95, duration.p99, duration.max) == (
        100,
        50,
        90,
        95,
        99,
        100,
    )
    assert (overall.queued.p50, overall.queued.max, overall.queued.count) == (100, 100, 100)


def test_a_sweep_without_listed_axes_has_one_row() -> None:
    """Without listed axes all trials are one row, and a sweep without trials still has it."""
    plain = definition(("task",), ())
    trials = trials_of({("x",): ["passed"], ("y",): ["failed"]}, ("task",))
    assert [row.planned for row in scores_of(sweep_of(trials, plain), trials).rows] == [2]
    empty = scores_of(sweep_of([], plain), [])
    assert [(row.planned, row.strict.rate, row.coverage) for row in empty.rows] == [(0, None, None)]


@given(st.lists(st.integers(0, 4), min_size=2, max_size=60), st.randoms(use_true_random=False))
def test_bootstrap_depends_on_the_values_alone(passed: list[int], chance: random.Random) -> None:
    """The same tasks in any order have the same interval, within the values there are, worked out anew or not."""
    rates = [each / 4 for each in passed]
    interval = mean_interval(rates)
    assert interval is not None
    chance.shuffle(rates)
    resampling._interval.cache_clear()
    assert mean_interval(rates) == interval
    assert min(rates) - 1e-9 <= interval[0] <= interval[1] <= max(rates) + 1e-9


def test_both_ways_of_drawing_have_one_distribution(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing tasks one by one and drawing counts of values give the same interval, up to chance."""
    rates = [n % 7 / 6 for n in range(200)]
    found = []
    for cost in (1, 10**9):
        monkeypatch.setattr(resampling, "DRAWS_PER_VALUE", cost)
        resampling._interval.cache_clear()
        found.append(mean_interval(rates))
    resampling._interval.cache_clear()
    assert found[0] == pytest.approx(found[1], abs=0.004)
    mean = sum(rates) / 200
    deviation = math.sqrt(sum((rate - mean) ** 2 for rate in rates)) / 200
    assert found[0] == pytest.approx((mean - 1.96 * deviation, mean + 1.96 * deviation), abs=0.004)


def test_bootstrap_needs_two_tasks() -> None:
    """One task says nothing about tasks; equal tasks leave nothing to chance."""
    assert mean_interval([]) is None
    assert mean_interval([0.5]) is None
    assert mean_interval([0.5, 0.5]) == (0.5, 0.5)


def test_scores_of_a_thousand_tasks_take_seconds_at_most() -> None:
    """1,000 tasks of 5 trials for 2 models: no interval is drawn task by task."""
    trials = grid(2, 1000, 5)
    began = time.process_time()
    scores = scores_of(sweep_of(trials), trials)
    assert time.process_time() - began < 20
    assert len(scores.tasks) == 1000
    low, mean, high = scores.overall.strict.mean_low, scores.overall.strict.mean, scores.overall.strict.mean_high
    assert low is not None
    assert mean is not None
    assert high is not None
    assert low < mean < high


def test_mcnemar_is_exact() -> None:
    """A sign test on the changes: 1 of 10 in the smaller direction has p = 22/1024; no change has p = 1."""
    assert mcnemar_p(1, 9) == mcnemar_p(9, 1) == pytest.approx(22 / 1024)
    assert mcnemar_p(0, 0) == 1.0
    assert mcnemar_p(5, 5) == 1.0
    assert 0 < mcnemar_p(0, 1000) < 1e-200


@pytest.mark.parametrize(
    ("differences", "exact"), [([1, 1, 1, 1], 2 / 16), ([1, -1], 1.0), ([3, 1, 0], 0.5), ([0], 1.0)]
)
def test_sign_flip_is_near_the_enumerated_value(differences: list[int], exact: float) -> None:
    """Few differences can be enumerated by hand: the drawn value is near, and the same each time."""
    fractions = [Fraction(each, 5) for each in differences]
    found = sign_flip_p(fractions)
    assert found == pytest.approx(exact, abs=0.02)
    assert sign_flip_p(fractions) == found
    assert sign_flip_p([]) is None


def test_every_outcome_is_counted_once() -> None:
    """One trial in each state: every count is one."""
    trials = trials_of({("m", "x"): list(STATES)}, AXES)
    overall = scores_of(sweep_of(trials), trials).overall
    assert overall.states == dict.fromkeys(STATES, 1)
    assert (overall.planned, overall.scored) == (len(STATES), len(SCORED))
    assert sum(overall.reasons.values()) == len(OUTCOMES)
