"""The sweeps that are shipped: they load, and the results that are told of them follow from the rules that are told."""

from __future__ import annotations

import csv
import os
import subprocess
from collections import Counter
from math import comb
from pathlib import Path

import pytest

from statem_dist.sweep.spec import load_sweep

ROOT = Path(__file__).resolve().parents[2]
SHIPPED = ROOT / "runbooks"
GOLDEN = ROOT / "tests" / "golden" / "sweeps"

REPETITIONS = range(1, 6)

COMES_TO = {
    **dict.fromkeys(range(-9, 3), "success_end"),
    **dict.fromkeys(range(3, 6), "failure_end"),
    **dict.fromkeys(range(6, 8), "max_steps"),
    8: "no_progress",
    9: "agent_timeout",
}
"""The rule of the stand-in: how a trial ends, by what it lacks."""


COMMITS = {
    "v1.0": "ef52b6fec767",
    "v1.1": "5405820e4143",
    "v1.2": "02ce05e89f75",
    "v1.3": "828d5cb44d78",
    "v1.4": "0ced2aec9c39",
    "v1.5": "4ca18ff83887",
}
"""The commits of the example repository by their tags."""


def checksum(text: str) -> int:
    """Return what `cksum` says of a text, as POSIX defines it."""
    octets = text.encode()
    length = len(octets).to_bytes((len(octets).bit_length() + 7) // 8, "little")
    remainder = 0
    for octet in octets + length:
        remainder ^= octet << 24
        for _ in range(8):
            remainder = (remainder << 1 ^ (0x04C11DB7 if remainder >> 31 else 0)) & 0xFFFFFFFF
    return remainder ^ 0xFFFFFFFF


def expected(task: str) -> list[str]:
    """Return the row of a task in the table of results, by the rule that its documentation gives."""
    difficulty = checksum(task) % 10
    lacks = [difficulty - checksum(f"{task}/{repetition}") % 10 for repetition in REPETITIONS]
    passed = sum(lack <= 2 for lack in lacks)
    at_least_one = [1 - comb(5 - passed, k) / comb(5, k) for k in REPETITIONS]
    all_of_them = [comb(passed, k) / comb(5, k) for k in REPETITIONS]
    return [
        task,
        str(difficulty),
        *(COMES_TO[lack] for lack in lacks),
        *(str(max(lack, 0)) if lack <= 2 else "" for lack in lacks),
        str(passed),
        *(f"{value:.1f}" for value in at_least_one + all_of_them),
    ]


def names_of_tasks() -> list[str]:
    """Return the names of the tasks."""
    return (SHIPPED / "terminal-bench-2.1-tasks.txt").read_text().split()


def table() -> list[list[str]]:
    """Return the table of expected results without its head."""
    with (GOLDEN / "terminal-bench.csv").open(newline="") as file:
        return list(csv.reader(file))[1:]


def test_checksums_are_those_of_the_shell() -> None:
    """What this test computes is what the stand-in, a shell script, computes."""
    for text in ("", "chess-best-move", "chess-best-move/1", "x" * 300):
        said = subprocess.run(["cksum"], input=text.encode(), capture_output=True, check=True).stdout
        assert said.split()[0] == str(checksum(text)).encode()


def test_the_expected_results_of_terminal_bench_follow_from_the_rule() -> None:
    """Every row of the table, computed anew from the name of its task alone."""
    assert table() == [expected(task) for task in names_of_tasks()]


def test_terminal_bench_has_every_kind_of_result() -> None:
    """Of 445 trials most pass, some of them after repairs, and each way not to pass is there."""
    rows = table()
    assert len(rows) == 89
    reasons = Counter(reason for row in rows for reason in row[2:7])
    assert reasons == {
        "success_end": 325,
        "failure_end": 82,
        "max_steps": 27,
        "no_progress": 8,
        "agent_timeout": 3,
    }
    assert Counter(repairs for row in rows for repairs in row[7:12]) == {"0": 255, "1": 38, "2": 32, "": 120}


def test_the_documentation_tells_the_scores_of_the_suite() -> None:
    """Its lines of pass@k and pass^k are the means of those of the tasks."""
    rows = table()
    means = [sum(float(row[13 + column]) for row in rows) / len(rows) for column in range(10)]
    told = "\n".join(path.read_text() for path in sorted((ROOT / "docs").glob("sweeps*.md")))
    for name, values in (("pass@k", means[:5]), ("pass^k", means[5:])):
        assert f"| {name} | {' | '.join(f'{value:.4f}' for value in values)} |" in told


def test_the_example_repository_is_the_same_everywhere(tmp_path: Path) -> None:
    """Its commits have ids that are known, whatever the user's own git says; made twice, it stays what it is."""
    script = SHIPPED / "make_example_repository.sh"
    (tmp_path / "gitconfig").write_text("[user]\n\tname = Somebody\n[core]\n\tautocrlf = true\n")
    environ = {**os.environ, "GIT_CONFIG_GLOBAL": str(tmp_path / "gitconfig"), "GIT_AUTHOR_NAME": "Somebody"}
    for name in ("one", "other", "one"):
        subprocess.run(["sh", script, tmp_path / name], check=True, env=environ)
    for name in ("one", "other"):
        tags = subprocess.run(
            [
                "git",
                "-C",
                tmp_path / name,
                "for-each-ref",
                "--format=%(refname:short) %(objectname:short=12)",
                "refs/tags",
            ],
            capture_output=True,
            text=True,
            check=True,
        )
        assert dict(line.split() for line in tags.stdout.splitlines()) == COMMITS


@pytest.mark.parametrize(
    ("name", "axes", "trials"),
    [
        ("terminal-bench", {"agent": 1, "task": 89}, 445),
        ("humaneval", {"agent": 3, "task": 164}, 492),
    ],
)
def test_a_shipped_sweep_is_planned_as_it_is_told(name: str, axes: dict[str, int], trials: int) -> None:
    """Its axes have as many values as the documentation says, and it has as many trials."""
    loaded = load_sweep(SHIPPED / f"{name}.sweep.yaml")
    assert {axis: len({cell[axis] for cell in loaded.cells}) for axis in loaded.definition.axes} == axes
    assert len(loaded.cells) * loaded.definition.trials == trials
