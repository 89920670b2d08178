"""What an agent is told and tells, in files and prompts."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from statem_dist.sweep.agents import Desk, added, filled_in
from statem_dist.sweep.model import Usage


@pytest.mark.parametrize(
    ("prompt", "filled"),
    [
        ("Do $STATEM_VAR_TASK.", "Do it's $HOME `x`."),
        ("Do ${STATEM_VAR_TASK}s.", "Do it's $HOME `x`s."),
        ("$STATEM_VAR_TASKS ${STATEM_VAR_OTHER} $STATEM_RUN_ID $HOME $(id) $$ {STATEM_VAR_TASK}", None),
        ("$STATEM_VAR_AGAIN", "$STATEM_VAR_TASK"),
    ],
)
def test_prompts_are_filled_in_once(prompt: str, filled: str | None) -> None:
    """Known variables of the sweep are replaced, and what stands in a value is text; everything else stays."""
    values = {"STATEM_VAR_TASK": "it's $HOME `x`", "STATEM_VAR_AGAIN": "$STATEM_VAR_TASK", "HOME": "/root"}
    assert filled_in(prompt, values) == (prompt if filled is None else filled)


def test_a_call_finds_a_clean_desk(tmp_path: Path) -> None:
    """What the last call has left is not taken for the word of this one."""
    desk = Desk(tmp_path / "desk")
    names = desk.lay_out("Do it.", None)
    assert "STATEM_BLOCKED_FILE" not in names
    Path(names["STATEM_GOTO_FILE"]).write_text(" good \n")
    Path(names["STATEM_USAGE_FILE"]).write_text('{"input_tokens": 1}')
    assert (desk.wish(), desk.usage()) == ("good", Usage(input_tokens=1))
    names = desk.lay_out("Again.", {"blocked": ["ü"]})
    assert (desk.wish(), desk.usage()) == (None, None)
    assert json.loads(Path(names["STATEM_BLOCKED_FILE"]).read_text()) == {"blocked": ["ü"]}
    assert Path(names["STATEM_PROMPT_FILE"]).read_text() == "Again."


@pytest.mark.parametrize(
    "said",
    [
        "",
        "null",
        "[]",
        "nonsense",
        '{"cost_usd": -1}',
        '{"cost_usd": NaN}',
        '{"input_tokens": "many"}',
        "\xff",
        "{" * 9999,
    ],
)
def test_what_is_no_usage_counts_nothing(tmp_path: Path, said: str) -> None:
    """An agent that writes something else is not punished for it."""
    desk = Desk(tmp_path)
    Path(desk.lay_out("", None)["STATEM_USAGE_FILE"]).write_text(said, encoding="latin-1")
    assert desk.usage() is None


def test_a_goto_file_that_is_a_folder_says_nothing(tmp_path: Path) -> None:
    """Nor does one that cannot be read."""
    desk = Desk(tmp_path)
    Path(desk.lay_out("", None)["STATEM_GOTO_FILE"]).mkdir()
    assert desk.wish() is None


def test_usage_adds_up() -> None:
    """Nothing said is nothing known, which is not zero."""
    assert added(None, None) is None
    assert added(None, Usage(1, 2, 0.5)) == added(Usage(1, 2, 0.5), None) == Usage(1, 2, 0.5)
    assert added(Usage(1, 2, 0.5), Usage(1, 1, 0.25)) == Usage(2, 3, 0.75)


def test_pipes_devices_and_links_on_the_desk(tmp_path: Path) -> None:
    """An agent may leave anything there: it holds up no driver, and leads it nowhere."""
    elsewhere = tmp_path / "elsewhere"
    elsewhere.write_text("mine")
    folder = tmp_path / "desk"
    desk = Desk(folder)
    names = {name: Path(path) for name, path in desk.lay_out("Do it.", {}).items()}
    for path in names.values():
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    os.mkfifo(folder / "output-1.txt")
    assert (desk.wish(), desk.usage()) == (None, None)
    desk.keep_output(1, "said")
    desk.lay_out("Again.", {})
    assert (folder / "output-1.txt").read_text() == "said"
    assert names["STATEM_PROMPT_FILE"].read_text() == "Again."
    names["STATEM_PROMPT_FILE"].unlink()
    names["STATEM_PROMPT_FILE"].symlink_to(elsewhere)
    names["STATEM_USAGE_FILE"].symlink_to("/dev/zero")
    names["STATEM_GOTO_FILE"].mkdir()
    assert (desk.wish(), desk.usage()) == (None, None)
    desk.lay_out("Once more.", None)
    assert elsewhere.read_text() == "mine"
    shutil.rmtree(folder)
    desk.keep_output(2, "said")
    assert desk.lay_out("At last.", None)
