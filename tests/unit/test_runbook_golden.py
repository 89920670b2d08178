"""Stored runbooks and what must come of them: our own, and those that other people wrote."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from statem_dist.errors import RunbookInvalid
from statem_dist.runbook import Parsed, edge_view, load, node_view, parse

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT / "tests" / "golden" / "runbooks"


def summary(parsed: Parsed) -> dict[str, Any]:
    runbook = parsed.runbook
    return {
        "name": runbook.name,
        "initial": runbook.initial,
        "protocol": runbook.order,
        "nodes": [node_view(node) for node in runbook.nodes],
        "edges": [edge_view(edge) for edge in runbook.edges],
        "warnings": [warning.message for warning in parsed.warnings],
    }


def test_every_form_has_its_view() -> None:
    """The views of a runbook that uses every form once are stored, and equal."""
    expected = json.loads((GOLDEN / "every-form.json").read_text("utf-8"))
    assert json.loads(json.dumps(summary(load(GOLDEN / "every-form.yaml")))) == expected


def test_a_broken_runbook_has_its_message() -> None:
    """The complete answer for a file with many mistakes is stored, and equal."""
    with pytest.raises(RunbookInvalid) as caught:
        parse((GOLDEN / "broken.yaml").read_text("utf-8"), source="broken.yaml")
    assert str(caught.value) == (GOLDEN / "broken.txt").read_text("utf-8").rstrip("\n")


@pytest.fixture(scope="module")
def real_runbooks() -> Path:
    """The folder of collected runbooks that continuous integration lays beside the clone."""
    folder = ROOT.parent / "shared" / "real-runbooks"
    if not (folder / "expected.json").is_file():
        pytest.skip("the collected runbooks are not laid beside this clone")
    return folder


def test_runbooks_of_other_people_validate_as_in_statem(real_runbooks: Path) -> None:
    """Identity, name, nodes and edges in order are those that StateM reports, strict or not."""
    for file, expected in json.loads((real_runbooks / "expected.json").read_text("utf-8")).items():
        for mode in ("permissive", "strict"):
            if not expected[mode]["ok"]:
                continue
            runbook = load(real_runbooks / file, strict=mode == "strict").runbook
            assert runbook.hash == expected["sha256"], file
            assert runbook.name == expected["name"], file
            assert runbook.initial == expected["initial"], file
            assert [node.name for node in runbook.nodes] == expected["nodes"], file
            assert [[edge.source, edge.target] for edge in runbook.edges] == expected["edges"], file


def test_runbooks_of_other_people_are_refused_as_in_statem(real_runbooks: Path) -> None:
    """The same problems in the same words and order; ours begin with their place."""
    for file, expected in json.loads((real_runbooks / "expected.json").read_text("utf-8")).items():
        for mode in ("permissive", "strict"):
            if expected[mode]["ok"]:
                continue
            with pytest.raises(RunbookInvalid) as caught:
                load(real_runbooks / file, strict=mode == "strict")
            wanted = [line.removeprefix("- ") for line in expected[mode]["error"].splitlines() if line[-1] != ":"]
            found = str(caught.value).splitlines()[1:]
            assert len(found) == len(wanted), file
            for line, words in zip(found, wanted, strict=True):
                assert line.endswith(words), file
