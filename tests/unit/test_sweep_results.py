"""Counting trials while many threads drive them, and reporting what came of them."""

from __future__ import annotations

import json
import random
import threading
from pathlib import Path

import msgspec
import pytest
from statem_dist.sweep.trials import Trial

from statem_dist.sweep.pool import Pool
from statem_dist.sweep.report import Report, document, table, troubles, write
from statem_dist.sweep.results import STATES, Outcome, Scoreboard, TrialResult, total
from statem_dist.sweep.spec import load_sweep

PATIENCE_SECONDS = 30.0
OUTCOMES: tuple[Outcome, ...] = ("passed", "failed", "stuck", "timeout", "error", "cancelled")


def trials(count: int, agents: tuple[str, ...] = ("a", "b")) -> list[Trial]:
    return [
        Trial(number=n, run_id=f"r-{n}", cell={"agent": agents[n % len(agents)]}, repetition=n, folder=Path(f"/w/{n}"))
        for n in range(1, count + 1)
    ]


def result(trial: Trial, outcome: Outcome) -> TrialResult:
    return TrialResult(
        trial=trial,
        outcome=outcome,
        reason="because",
        node="done",
        steps=2,
        calls=1,
        blocked=1,
        loops=1,
        checks=3,
        started_at=1_000 * trial.number,
        ended_at=1_000 * trial.number + 500,
    )


def test_the_states_always_add_up() -> None:
    """Whoever looks, whenever: every planned trial is in exactly one state."""
    planned = trials(200)
    chance = random.Random(7)
    outcomes = {trial.number: chance.choice(OUTCOMES) for trial in planned}
    pool = Pool(lambda trial: result(trial, outcomes[trial.number]), planned, concurrency=8)
    pool.start()
    while not pool.wait(0):
        assert sum(pool.board.counts().values()) == len(planned)
    counts = pool.board.counts()
    assert counts == {state: list(outcomes.values()).count(state) for state in STATES}  # type: ignore[arg-type]
    rows = pool.board.rows(("agent",))
    assert [row.values for row in rows] == [("b",), ("a",)]
    assert total(rows, 1.0).states == counts


def test_no_more_trials_run_at_once_than_allowed() -> None:
    """The next trial begins when one has ended."""
    gate = threading.Semaphore(3)
    crowded = threading.Event()

    def drive(trial: Trial) -> TrialResult:
        if not gate.acquire(blocking=False):
            crowded.set()
        threading.Event().wait(0.001)
        gate.release()
        return result(trial, "passed")

    pool = Pool(drive, trials(60), concurrency=3)
    pool.start()
    assert pool.wait(PATIENCE_SECONDS)
    assert not crowded.is_set()


def test_a_stopped_pool_begins_nothing_more() -> None:
    """What runs is waited for, what waits stays pending."""
    begun, go_on = threading.Event(), threading.Event()

    def drive(trial: Trial) -> TrialResult:
        begun.set()
        assert go_on.wait(PATIENCE_SECONDS)
        return result(trial, "cancelled")

    pool = Pool(drive, trials(5), concurrency=1)
    pool.start()
    assert begun.wait(PATIENCE_SECONDS)
    pool.stop()
    assert not pool.wait(0)
    go_on.set()
    assert pool.wait(PATIENCE_SECONDS)
    counts = pool.board.counts()
    assert (counts["cancelled"], counts["pending"]) == (1, 4)


@pytest.fixture
def report(tmp_path: Path) -> Report:
    """Two agents: one passes both trials; of the other's, one has failed and one did not begin."""
    (tmp_path / "loop.yaml").write_text("nodes: [only]\n")
    (tmp_path / "night.yaml").write_text("runbook: loop.yaml\nmatrix: {agent: [a, b]}\n")
    planned = trials(4)
    pool = Pool(lambda trial: result(trial, "passed"), planned, concurrency=1)
    for trial, outcome in zip(planned[:3], ("passed", "passed", "failed"), strict=True):
        pool.board.begin(trial)
        pool.board.end(result(trial, "passed" if outcome == "passed" else "failed"))
    return Report(
        sweep=load_sweep(tmp_path / "night.yaml"),
        sweep_id="night-1",
        folder=None,
        rows=pool.board.rows(("agent",)),
        results=pool.board.results(),
        interrupted=True,
        started_at=0,
        ended_at=4_000,
    )


def test_the_document_says_all(report: Report) -> None:
    """Sums, rows and trials agree, and an incomplete sweep says so."""
    data = document(report)
    assert (data["schema"], data["sweep"], data["complete"], data["interrupted"]) == (1, "night-1", False, True)
    assert data["started_at"] == "1970-01-01T00:00:00.000+00:00"
    counts = data["counts"]
    assert (counts["planned"], counts["scored"], counts["passed"], counts["pending"]) == (4, 3, 2, 1)
    assert counts["planned"] == sum(counts[state] for state in STATES)
    assert [row["values"] for row in data["rows"]] == [{"agent": "b"}, {"agent": "a"}]
    assert [(trial["number"], trial["outcome"]) for trial in data["trials"]] == [
        (1, "passed"),
        (2, "passed"),
        (3, "failed"),
    ]


@pytest.mark.parametrize(
    ("outcome", "interrupted", "must_pass", "ok"),
    [
        ("passed", False, True, True),
        ("stuck", False, False, True),
        ("stuck", False, True, False),
        ("error", False, False, False),
        ("passed", True, False, False),
    ],
)
def test_what_is_ok_depends_on_what_was_asked(
    report: Report, outcome: Outcome, interrupted: bool, must_pass: bool, ok: bool
) -> None:
    """Trials that were judged are fine, unless they had to pass."""
    board = Scoreboard(trials(1))
    board.begin(trials(1)[0])
    board.end(result(trials(1)[0], outcome))
    ended = msgspec.structs.replace(report, rows=board.rows(("agent",)), interrupted=interrupted)
    assert document(ended, must_pass=must_pass)["ok"] is ok


def test_equal_troubles_are_told_once(report: Report) -> None:
    """Errors come before what was judged, the commonest first; folders of trials make no difference."""
    reasons: list[tuple[Outcome, str]] = [
        ("timeout", "slow"),
        ("stuck", "/w/2/out.txt is missing"),
        ("passed", "ended on 'done'"),
        ("error", "no reviewer"),
        ("stuck", "/w/5/out.txt is missing"),
        ("stuck", "another"),
    ]
    results = [
        msgspec.structs.replace(result(trial, outcome), reason=reason)
        for trial, (outcome, reason) in zip(trials(len(reasons)), reasons, strict=True)
    ]
    troubled = msgspec.structs.replace(report, results=results)
    assert troubles(troubled, 4) == [
        "r-4: error: no reviewer",
        "2 trials: stuck: ./out.txt is missing",
        "r-6: stuck: another",
        "r-1: timeout: slow",
    ]
    assert troubles(troubled, 1) == ["r-4: error: no reviewer", "and 4 more"]


def test_the_table_has_a_row_per_combination(report: Report) -> None:
    """Without a terminal it is aligned text without colours, with columns only for what there is."""
    lines = table(report, columns=None).splitlines()
    assert [line.split() for line in lines] == [
        ["agent", "passed", "failed", "stuck", "error", "pending", "blocked", "loops", "checks", "time"],
        ["b", "1/2", "1", "0", "0", "0", "2", "2", "6", "2.5", "s"],
        ["a", "1/2", "0", "0", "0", "1", "1", "1", "3", "0.5", "s"],
        ["all", "2/4", "1", "0", "0", "1", "3", "3", "9", "4.0", "s"],
    ]
    assert len({line.index("s", len(line) - 1) for line in lines[1:]}) == 1


def test_a_terminal_gets_colours_unless_it_wants_none(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    """``NO_COLOR`` is honoured."""
    assert "\x1b[" in table(report, columns=100)
    monkeypatch.setenv("NO_COLOR", "1")
    assert "\x1b[" not in table(report, columns=100)


def test_a_file_is_written_whole_or_not_at_all(report: Report, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An older document is replaced at once; when writing fails it stays, and no scrap lies beside it."""
    folder = tmp_path / "out"
    folder.mkdir()
    path = folder / "results.json"
    path.write_text("old")

    def full_disk(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr("os.fsync", full_disk)
        with pytest.raises(OSError, match="No space left"):
            write(document(report), path)
    assert [entry.name for entry in folder.iterdir()] == ["results.json"]
    assert path.read_text() == "old"
    write(document(report), path)
    assert json.loads(path.read_text()) == document(report)
    assert [entry.name for entry in folder.iterdir()] == ["results.json"]
