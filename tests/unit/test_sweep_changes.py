"""Whether a sweep file still asks for the same results, and what is said where it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from statem_dist.sweep.changes import differences, fingerprint
from statem_dist.sweep.model import Agent, Artifacts, Definition, Limit, Selection, Share, StopWhen, Workspace
from statem_dist.sweep.spec import Loaded, load_sweep

RUNBOOK = "nodes: {work: {prompt: Do it., next: [good, bad]}, good: , bad: {outcome: failure}}\n"

SWEEP = """\
runbook: loop.yaml
matrix: {model: [a, b], task: [x, y]}
trials: 2
agent: {run: ./agent}
workspace: {template: start}
env: {BUDGET: 10}
vars: {language: python}
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "README").write_text("Read me.")
    (tmp_path / "loop.yaml").write_text(RUNBOOK)
    return tmp_path


def read(folder: Path, text: str = SWEEP) -> Loaded:
    (folder / "it.sweep.yaml").write_text(text)
    return load_sweep(folder / "it.sweep.yaml")


def compared(old: Loaded, new: Loaded) -> list[str]:
    """Return the differences, after the fingerprints have told the same."""
    found = differences(old.definition, old.cells, new)
    assert bool(found) == (fingerprint(old) != fingerprint(new))
    return found


@pytest.mark.parametrize(
    ("was", "now", "said"),
    [
        ("./agent", "./other", ["agent.run: './agent' -> './other'"]),
        ("run: ./agent", "run: ./agent, mode: self_driven", ["agent.mode: 'per_node' -> 'self_driven'"]),
        ("run: ./agent", "run: ./agent, continuations: 9", ["agent.continuations: 3 -> 9"]),
        ("run: ./agent", "run: ./agent, pass_env: [B, A]", ["agent.pass_env: none -> A, B"]),
        ("agent: {run: ./agent}", "", ["agent: there was one, and there is none"]),
        ("trials: 2", "trials: 3", ["trials: 2 -> 3"]),
        ("trials: 2", "trials: 2\nseed: 4", ["seed: 0 -> 4"]),
        ("trials: 2", "trials: 2\nmax_steps: 5", ["max_steps: 20 -> 5"]),
        ("trials: 2", "trials: 2\ntimeouts: {agent: 5m}", ["timeouts.agent: 3600 s -> 300 s"]),
        ("trials: 2", "trials: 2\ntimeouts: {trial: 1h}", ["timeouts.trial: none -> 3600 s"]),
        ("trials: 2", "trials: 2\nsuccess: [good, bad]", ["success: good -> bad, good"]),
        ("BUDGET: 10", "BUDGET: 11", ["env.BUDGET: '10' -> '11'"]),
        ("BUDGET: 10", "SIZE: 1", ["env.BUDGET is gone; it was '10'", "env.SIZE is new: '1'"]),
        ("language: python", "language: go", ["vars.language: 'python' -> 'go'"]),
        ("./agent", "x" * 300, ["agent.run: has changed"]),
        ("[a, b]", "[a, b, c]", ["2 cells are new: model=c, task=x; model=c, task=y"]),
        (
            "task: [x, y]",
            "task: [x, z]",
            ["2 cells are new: model=a, task=z; model=b, task=z; 2 cells are gone: model=a, task=y; model=b, task=y"],
        ),
        (
            "[x, y]",
            "[x, y, 1, 2, 3]",
            [
                "6 cells are new: "
                + "; ".join(f"model={model}, task={task}" for model, task in ("a1", "a2", "a3", "b1", "b2"))
                + "; and 1 more"
            ],
        ),
        ("workspace: {template: start}", "", ["workspace.template is gone"]),
        (
            "workspace: {template: start}",
            'workspace: {git: "https://x.org/y", ref: v1}',
            [
                "workspace.template is gone",
                "workspace.git is new: 'https://x.org/y'",
                "workspace.ref is new: 'v1'",
            ],
        ),
    ],
)
def test_a_change_is_said_in_a_sentence(folder: Path, was: str, now: str, said: list[str]) -> None:
    """Each change that decides results is named by its keyword, with what was and what is."""
    old = read(folder)
    assert was in SWEEP
    new = read(folder, SWEEP.replace(was, now))
    assert compared(old, new) == said


def test_another_order_of_cells_is_the_same_sweep(folder: Path) -> None:
    """A matrix that was sorted asks for the same trials."""
    new = read(folder, SWEEP.replace("{model: [a, b], task: [x, y]}", "{task: [y, x], model: [b, a]}"))
    assert compared(read(folder), new) == []


def test_the_runbook_and_the_template_are_read(folder: Path) -> None:
    """What a sweep file only points to counts by its content, also where its permissions alone have changed."""
    old = read(folder)
    (folder / "loop.yaml").write_text(RUNBOOK.replace("Do it.", "Do it well."))
    assert compared(old, read(folder)) == ["runbook: its text has changed"]
    (folder / "loop.yaml").write_text(RUNBOOK)
    assert compared(old, read(folder)) == []
    (folder / "start" / "README").chmod(0o755)
    assert compared(old, read(folder)) == ["workspace.template: the content of the folder has changed"]


def test_another_place_is_the_same_sweep(folder: Path) -> None:
    """Where the files lie, and what they are called, decides nothing."""
    old = read(folder)
    for path in (folder / "start", folder / "loop.yaml"):
        path.rename(path.with_name(f"new-{path.name}"))
    new = read(folder, SWEEP.replace("loop.yaml", "new-loop.yaml").replace("template: start", "template: new-start"))
    assert compared(old, new) == []


UNDECIDING: dict[str, Any] = {
    "name": "other",
    "file": "/other",
    "folder": "/other",
    "runbook_path": "/other",
    "axes": (),
    "listed": (),
    "concurrency": 3,
    "concurrency_given": True,
    "concurrency_per": {"model": {"*": 1}},
    "queue": "other",
    "limits": (Limit("x", in_flight=1),),
    "retries": 9,
    "stop_when": StopWhen(errors=Share(count=1)),
    "labels": {"team": "a"},
    "priority": "low",
    "artifacts": Artifacts(("*",)),
    "disk_floor_bytes": 0,
    # What is selected is told by whoever selects.
    "selection": Selection(first=1),
}
DECIDING: dict[str, Any] = {
    "runbook": "h2",
    "success": ("b",),
    "trials": 9,
    "seed": 9,
    "agent": Agent("x"),
    "workspace": Workspace(git="/x"),
    "env": {"A": "b"},
    "vars": {"a": "b"},
    "max_steps": 9,
    "trial_timeout": 9.0,
}


def test_every_part_of_a_definition_decides_or_does_not(folder: Path) -> None:
    """No field of a definition is forgotten: each is either a difference, or may change from one day to the next."""
    assert {*UNDECIDING, *DECIDING} == set(Definition.__struct_fields__)
    old = read(folder)
    for name, value in UNDECIDING.items():
        changed = msgspec.structs.replace(old.definition, **{name: value})
        assert compared(old, msgspec.structs.replace(old, definition=changed)) == [], name
    kept = msgspec.structs.replace(old.definition.workspace, keep="none")
    changed = msgspec.structs.replace(old.definition, workspace=kept)
    assert compared(old, msgspec.structs.replace(old, definition=changed)) == []
    for name, value in DECIDING.items():
        changed = msgspec.structs.replace(old.definition, **{name: value})
        assert compared(old, msgspec.structs.replace(old, definition=changed)), name
