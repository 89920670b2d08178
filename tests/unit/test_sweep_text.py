"""The scores of a sweep in a terminal: columns that line up, both ways of counting, and why trials came to nothing."""

from __future__ import annotations

import pytest

from statem_dist.sweep.model import STATES, Trial
from statem_dist.sweep.scores import scores_of
from statem_dist.sweep.text import headline, table, troubles
from tests.support.sweeps import HOSTILE, attempt, definition, grid, sweep_of, trial, trials_of

AXES = ("model", "task")


def shown(trials: list[Trial], columns: int | None = None) -> list[str]:
    """Return the lines of the table of trials."""
    sweep = sweep_of(trials)
    return table(sweep, scores_of(sweep, trials), columns=columns).splitlines()


def test_the_table_has_a_line_per_row_and_one_for_all() -> None:
    """Plain text lines up: every line has the cells of the head, and states that do not occur have no column."""
    trials = trials_of({("opus", "x"): ["passed", "error"], ("sonnet", "x"): ["failed", "passed"]}, AXES)
    lines = [line.split() for line in shown(trials)]
    assert lines[0] == [
        "model", "passed", "failed", "stuck", "error", "strict", "95", "%", "valid", "pass@2", "pass^2", "blocked",
        "loops", "checks", "time",
    ]  # fmt: skip
    assert [line[0] for line in lines[1:]] == ["opus", "sonnet", "all"]
    assert lines[1][1:7] == ["1/2", "0", "0", "1", "50.0", "%"]
    assert lines[1][-11:-4] == ["100.0", "%", "100.0", "%", "0.0", "%", "0"]
    assert lines[3][1] == "2/4"


def test_states_that_occur_have_a_column() -> None:
    """One trial of each state: each has its column, with a one in it."""
    head, row = (line.split() for line in shown(trials_of({("m", "x"): list(STATES)}, AXES)))
    for state in STATES[3:]:
        assert row[head.index(state)] == "1"


def test_a_sweep_without_listed_axes_is_named() -> None:
    """Its one line has the name of the sweep, also where there are no trials at all."""
    plain = definition(("task",), ())
    sweep = sweep_of([], plain)
    assert table(sweep, scores_of(sweep, []), columns=None).splitlines()[1].split()[:2] == ["tb", "0/0"]


def test_a_terminal_gets_colours_unless_it_asks_for_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last line is bold in a terminal, and plain with NO_COLOR."""
    trials = grid(2, 3, 2)
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert "\x1b[1m" in "".join(shown(trials, 200))
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b" not in "".join(shown(trials, 200))


@pytest.mark.parametrize("columns", [60, 80, 100, 120, 160])
def test_a_terminal_gets_no_more_figures_than_fit(columns: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """No name and no figure is cut: what there is no room for is left out, and the first is what the headline has."""
    monkeypatch.setenv("NO_COLOR", "1")
    lines = shown(grid(2, 3, 4), columns)
    assert max(map(len, lines)) <= columns
    assert "…" not in "".join(lines)
    assert {"passed", "strict"} <= set(lines[0].split())
    assert lines[-1].split()[0] == "all"
    assert ("checks" in lines[0]) == (columns == 160)


def test_hostile_names_do_not_reach_the_terminal() -> None:
    """No code of a terminal and no line break comes out of a name or an output."""
    trials = grid(2, 2, 3, hostile=True)
    assert len(shown(trials)) == 4
    text = "".join([*shown(trials), *troubles(trials, 10)])
    assert text.isprintable()
    assert "alert(1)" in text


def test_the_headline_has_both_rates_and_the_coverage() -> None:
    """A rate never stands alone."""
    trials = trials_of({("opus", "x"): ["passed", "error"]}, AXES)
    scores = scores_of(sweep_of(trials), trials)
    assert headline(scores) == (
        "strict 50.0 % of 2 planned (9.5 to 90.5 %), valid only 100.0 % of 1 scored, coverage 50.0 %"
    )
    costly = grid(1, 1, 4)
    assert headline(scores_of(sweep_of(costly), costly)).endswith(", $1.00")


def test_troubles_are_told_by_reason_the_commonest_first() -> None:
    """Errors stand first; equal reasons are one line although each names its own folder; the rest is counted."""
    cell = {"model": "m", "task": "t"}
    trials = [
        trial(n, cell, n, "error", detail=f"no module in {attempt(n, None).folder}/workspace\nmore") for n in (1, 2, 3)
    ]
    trials += [trial(4, cell, 4, "error", detail="other"), trial(5, cell, 5, "stuck"), trial(6, cell, 6, "passed")]
    assert troubles(trials, 2) == [
        "3 trials: error: check_not_evaluated: no module in ./workspace",
        "run-4-1: error: check_not_evaluated: other",
        "and 1 more",
    ]
    assert troubles(trials, 3)[-1] == "run-5-1: stuck: max_steps"
    assert troubles([trial(1, {"model": HOSTILE, "task": "t"}, 1, "pending")], 3) == []
