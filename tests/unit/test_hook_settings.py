"""Settings files of agent hosts: the hook gets in, and nothing gets lost."""

from __future__ import annotations

import json
import stat
from pathlib import Path
from typing import Any

import pytest

from statem_dist import hook_settings
from statem_dist.errors import Invalid

COMMAND = "statem-dist hook stop --host claude"
PATH = Path("settings.json")
OURS = {"hooks": [{"type": "command", "command": COMMAND, "timeout": hook_settings.HOOK_SECONDS}]}

FOREIGN: dict[str, Any] = {
    "zeta": 1.5,
    "hooks": {
        "PreToolUse": [{"matcher": "Bash", "hooks": [{"type": "command", "command": "lint"}]}],
        "Stop": [{"hooks": [{"type": "command", "command": "say done", "async": True}]}],
    },
    "alpha": {"größe": [1, None, "ü"]},
}


def merged(text: str, command: str = COMMAND) -> Any:
    """Return what the settings are with the hook in them."""
    return json.loads(hook_settings.with_stop_hook(text, PATH, command))


@pytest.mark.parametrize("text", ["", "\n", "{}", '{"hooks": {}}', '{"hooks": {"Stop": []}}'])
def test_an_empty_file_gets_the_hook(text: str) -> None:
    """Whatever is missing of the place for it is made."""
    assert merged(text) == {"hooks": {"Stop": [OURS]}}


def test_what_is_there_stays_in_its_order() -> None:
    """Other keys, hooks of other kinds and other Stop hooks are as they were; ours comes last."""
    after = merged(json.dumps(FOREIGN))
    assert after["hooks"]["Stop"].pop() == OURS
    assert after == FOREIGN
    assert list(after) == list(FOREIGN)


@pytest.mark.parametrize("indent", [2, 4, "\t"])
@pytest.mark.parametrize("end", ["", "\n"])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_only_the_hook_is_a_difference(indent: int | str, end: str, ascii_only: bool) -> None:
    """Indentation, escapes and the end of the file stay, so that a diff shows added lines and nothing else."""
    before = json.dumps(FOREIGN, indent=indent, ensure_ascii=ascii_only) + end
    after = hook_settings.with_stop_hook(before, PATH, COMMAND)
    lines = hook_settings.difference(before, after, PATH).splitlines()
    assert not [line for line in lines[2:] if line.startswith("-")]
    assert len([line for line in lines[2:] if line.startswith("+")]) == 9
    assert after.endswith("}" + end)


def test_line_ends_stay() -> None:
    """A file with the line ends of Windows keeps them."""
    after = hook_settings.with_stop_hook('{\r\n  "a": 1\r\n}\r\n', PATH, COMMAND)
    assert after.count("\n") == after.count("\r\n") > 3


@pytest.mark.parametrize(
    "command",
    [
        COMMAND,
        "statem-dist hook stop --host claude --yield-once",
        "STATEM_STATE_DIR=/x /opt/bin/statem-dist hook stop",
        "python -m statem_dist.cli.main hook stop --host claude",
    ],
)
def test_a_hook_that_is_there_is_left_alone(command: str) -> None:
    """A second time changes nothing, also when somebody has edited the command."""
    before = hook_settings.with_stop_hook(json.dumps(FOREIGN), PATH, command)
    assert hook_settings.with_stop_hook(before, PATH, COMMAND) == before
    assert hook_settings.difference(before, before, PATH) == ""


def test_a_hook_under_another_name_is_known_again() -> None:
    """Where this tool is called by another name, the same command twice is one."""
    before = hook_settings.with_stop_hook("", PATH, "./tool hook stop --host codex")
    assert hook_settings.with_stop_hook(before, PATH, "./tool hook stop --host codex") == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{\n  // mine\n}", "settings.json:2:3: is no JSON"),
        ('{\n  "a": 1,\n}', "settings.json:"),
        ("\n[]", "settings.json:2: must be a JSON object"),
        ("null", "settings.json:1: must be a JSON object"),
        ('{"hooks": []}', "hooks must be an object"),
        ('{"hooks": {"Stop": {}}}', "hooks.Stop must be a list"),
        ('{"a": 1, "a": 2}', "'a' is given twice"),
        ("[" * 100_000, "settings.json"),
    ],
)
def test_what_cannot_be_merged_is_refused(text: str, said: str) -> None:
    """The message says what is wrong and where."""
    with pytest.raises(Invalid, match=r".") as refusal:
        hook_settings.with_stop_hook(text, PATH, COMMAND)
    assert said in refusal.value.message


@pytest.mark.parametrize(
    ("host", "project", "user", "elsewhere"),
    [
        ("claude", ".claude/settings.json", ".claude/settings.json", {"CLAUDE_CONFIG_DIR": "/c"}),
        ("codex", ".codex/hooks.json", ".codex/hooks.json", {"CODEX_HOME": "/c"}),
    ],
)
def test_each_host_has_its_files(
    host: Any, project: str, user: str, elsewhere: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One in the project, one in the home directory, or where the host's own variable says."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", "/home/somebody")
    assert hook_settings.settings_file(host, {}, user=False) == tmp_path / project
    assert hook_settings.settings_file(host, {}, user=True) == Path("/home/somebody") / user
    assert hook_settings.settings_file(host, elsewhere, user=True) == Path("/c") / Path(user).name


def test_a_file_is_written_whole(tmp_path: Path) -> None:
    """Folders are made, permissions stay, a link stays a link, and nothing else is left behind."""
    real = tmp_path / "dotfiles" / "claude.json"
    real.parent.mkdir()
    real.write_text("{}")
    real.chmod(0o600)
    link = tmp_path / ".claude" / "settings.json"
    hook_settings.write(link, "old")
    link.unlink()
    link.symlink_to(real)
    hook_settings.write(link, "ü")
    assert (link.is_symlink(), real.read_text(encoding="utf-8")) == (True, "ü")
    assert stat.S_IMODE(real.stat().st_mode) == 0o600
    assert [path.name for path in real.parent.iterdir()] == ["claude.json"]


def test_what_cannot_be_written_stays(tmp_path: Path) -> None:
    """The message names the file, and the old one is as it was."""
    path = tmp_path / "settings.json"
    path.write_text("old")
    with pytest.raises(Invalid, match="cannot be written"):
        hook_settings.write(path, "\ud800")
    (tmp_path / "file").write_text("")
    with pytest.raises(Invalid, match="cannot be written"):
        hook_settings.write(tmp_path / "file" / "settings.json", "new")
    assert path.read_text() == "old"
    assert sorted(each.name for each in tmp_path.iterdir()) == ["file", "settings.json"]


def test_reading_a_missing_file_gives_nothing(tmp_path: Path) -> None:
    """There is no text; a folder or bytes that are no text are an error that names the path."""
    assert hook_settings.read(tmp_path / "none.json") == ""
    (tmp_path / "latin.json").write_bytes(b"\xfc")
    for name in ("", "latin.json"):
        with pytest.raises(Invalid, match="cannot be read"):
            hook_settings.read(tmp_path / name)
