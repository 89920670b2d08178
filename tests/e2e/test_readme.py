"""The README's first run is typed in as it stands; the real commands answer with the keys that the reference names."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import COMMAND, Site

pytestmark = pytest.mark.e2e

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
RUNBOOKS = (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")
REFERENCE = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
SWEEPS = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")

SHOWN_FOLDER = "/home/me/demo"
"""The folder in which the README's commands seem to be typed."""

TIMEOUT_SECONDS = 60

RUNBOOK = """
nodes:
  work:
    before_transfer:
      - {run: test -e ready}
      - {run: echo checked}
      - {path: ready, exists: true}
      - {type: message, text: Mind the tide.}
    dynamic_before_transfer: {}
    out_hook: {run: echo left}
    next: {to: rest, max_attempts: 2, condition: {items: [done]}, hook: {run: echo between}}
  rest: {in_hook: {run: echo entered}}
"""


def blocks(language: str, document: str = README) -> list[str]:
    """Return the fenced blocks of a document in one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", document, re.MULTILINE | re.DOTALL)


def commands_with_output(block: str) -> Iterator[tuple[str, str]]:
    """Yield each command of a console block with the output that is shown below it."""
    for part in re.split(r"^\$ ", block, flags=re.MULTILINE)[1:]:
        command, _, output = part.partition("\n")
        yield command, output


def normalised(text: str) -> str:
    """Return an output with every time replaced."""
    return re.sub(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}\+00:00", "TIME", text)


def test_the_first_run_goes_as_shown(site: Site) -> None:
    """Every command of the README's console blocks prints what is shown below it, times and folder apart."""
    programs = site.folder / "bin"
    programs.mkdir()
    site.write("bin/statem-dist", f'#!/bin/sh\nexec {shlex.join(COMMAND)} "$@"\n').chmod(0o700)
    environment = {**site.environment, "PATH": f"{programs}:{site.environment['PATH']}"}
    site.write("runbook.yaml", blocks("yaml")[0])
    typed = [each for block in blocks("console") for each in commands_with_output(block)]
    assert [command.split()[1] for command, _ in typed if command.startswith("statem-dist")] == [
        *("start", "goto", "goto", "cur", "history")
    ]
    for command, shown in typed:
        done = subprocess.run(
            ["sh", "-c", command],
            cwd=site.folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            encoding="utf-8",
            timeout=TIMEOUT_SECONDS,
            check=False,
        )
        printed = done.stdout.replace(str(site.folder), SHOWN_FOLDER)
        assert normalised(printed) == normalised(shown), command


@pytest.mark.parametrize("document", [README, SWEEPS], ids=["readme", "sweeps"])
def test_the_example_of_a_sweep_runs(site: Site, document: str) -> None:
    """The sweep file of a document works as it stands, beside a runbook and the agent that it names."""
    site.write("runbook.yaml", "nodes: {work: {prompt: Go., before_transfer: [{run: cat out}], next: done}, done: }")
    site.write("agent.sh", 'echo "$STATEM_VAR_MODEL" > out\n')
    site.write("answers.sweep.yaml", blocks("yaml sweep", document)[0])
    answer = site.json("sweep", "run", "answers.sweep.yaml", "--limit", "1")
    assert answer["counts"]["passed"] == answer["planned"] > 1


def keys_of(value: Any) -> set[str]:
    """Return every key in a JSON value, at whatever depth."""
    match value:
        case dict():
            return set(value).union(*map(keys_of, value.values()))
        case list():
            return set().union(*map(keys_of, value))
        case _:
            return set()


@pytest.mark.slow
def test_the_reference_names_every_key_of_the_answers(site: Site) -> None:
    """Whatever key an answer has, the reference of the command line, of runbooks or of sweeps explains it."""
    described = set(re.findall(r"`([a-z_0-9]+)[`:]", REFERENCE + RUNBOOKS + SWEEPS))
    answers = [site.start(RUNBOOK)]
    answers += [site.json(*words) for words in (("validate", "r.yaml"), ("state",), ("ls", "work"), ("next",))]
    answers.append(site.json("goto", "rest", expect=2))
    site.write("ready")
    answers += [site.json("goto", "rest", "--yes"), site.json("cur"), site.json("save")]
    site.write("ends.yaml", "nodes: [end]")
    site.write("ends.sweep.yaml", "{runbook: ends.yaml, matrix: {name: [one, two]}}")
    answers.append(site.json("sweep", "run", "ends.sweep.yaml"))
    answers += [site.json("history"), site.json("runs"), site.json("doctor"), site.json("down")]
    assert set().union(*map(keys_of, answers)) - described == set()
