"""The runbook to begin with: it is valid without a doubt, shows what there is, and overwrites nothing."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from statem_dist.cli.main import run
from statem_dist.errors import Invalid
from statem_dist.protocol.graph import CHECK_TYPES
from statem_dist.runbook.reader import load, read_checks
from statem_dist.starter import STARTER, write_starter


def test_the_starter_is_strictly_valid_without_a_warning(tmp_path: Path) -> None:
    """It plans, executes, verifies and hands over, with a way back for repairs that is limited."""
    file = tmp_path / "mine.yaml"
    write_starter(file)
    parsed = load(file, strict=True)
    runbook = parsed.runbook
    assert parsed.warnings == ()
    assert (runbook.name, runbook.initial) == ("mine", "plan")
    assert [(edge.source, edge.target, edge.max_attempts) for edge in runbook.edges] == [
        ("plan", "execute", None),
        ("execute", "verify", None),
        ("verify", "handoff", None),
        ("verify", "execute", 5),
    ]


def test_the_comments_show_every_type_of_check() -> None:
    """What is commented out at the end can be copied into a list of checks as it stands."""
    _, _, gallery = STARTER.read_text(encoding="utf-8").partition("# Every type of check")
    copied = re.findall(r"^#   (.*)$", gallery, re.MULTILINE)
    checks = read_checks("\n".join(copied), source="gallery", format="yaml").checks
    assert {check.type for check in checks} == set(CHECK_TYPES)


@pytest.mark.parametrize("kind", ["file", "folder", "dangling link"])
def test_nothing_is_overwritten(kind: str, tmp_path: Path) -> None:
    """Where anything is, it stays as it is, and the message says how to replace it."""
    path = tmp_path / "runbook.yaml"
    if kind == "file":
        path.write_text("mine")
    elif kind == "folder":
        path.mkdir()
    else:
        path.symlink_to(tmp_path / "nowhere")
    with pytest.raises(Invalid, match="exists already") as caught:
        write_starter(path)
    assert "--force" in caught.value.hint
    assert os.listdir(tmp_path) == ["runbook.yaml"]
    assert kind != "file" or path.read_text() == "mine"


def test_a_file_is_replaced_when_that_is_asked_for(tmp_path: Path) -> None:
    """``force`` writes the starter over what was there."""
    path = tmp_path / "runbook.yaml"
    path.write_text("mine")
    write_starter(path, force=True)
    assert path.read_bytes() == STARTER.read_bytes()


@pytest.mark.parametrize(("name", "said"), [("runbook.json", "JSON"), ("no/such/folder.yaml", "cannot be written")])
def test_what_cannot_be_is_named(name: str, said: str, tmp_path: Path) -> None:
    """A name that means JSON, and a folder that does not exist, are refused with a way out."""
    with pytest.raises(Invalid, match=said) as caught:
        write_starter(tmp_path / name, force=True)
    assert caught.value.hint
    assert not list(tmp_path.iterdir())


def test_the_command_says_what_it_wrote_and_what_comes_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a name it is ``runbook.yaml``; a second time it is an error, unless forced."""
    monkeypatch.chdir(tmp_path)
    assert run(["new"]) == 0
    assert "statem-dist start runbook.yaml" in capsys.readouterr().out
    assert run(["new", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["code"] == "invalid"
    assert run(["new", "--force", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"ok": True, "path": str(tmp_path / "runbook.yaml")}
