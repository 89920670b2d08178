"""Artifacts: which files of a workspace are kept, and that nothing in a workspace can do harm."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from statem_dist.sweep import artifacts
from statem_dist.sweep.artifacts import LIST_NAME, collect
from statem_dist.sweep.model import Artifacts


@pytest.fixture
def workspace(tmp_path: Path) -> Path:
    folder = tmp_path / "workspace"
    folder.mkdir()
    return folder


def write(folder: Path, *paths: str, content: str = "x") -> None:
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(content)


def kept(folder: Path) -> set[str]:
    """Return the paths of what was collected."""
    return {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a.log", {"a.log"}),
        ("./a.log", {"a.log"}),
        ("*.log", {"a.log", "b.log"}),
        ("?.log", {"a.log", "b.log"}),
        ("[!b].log", {"a.log"}),
        ("[a-b].log", {"a.log", "b.log"}),
        ("[].log", {"[].log"}),
        ("out/*", {"out/c.log"}),
        ("*/*.log", {"out/c.log"}),
        ("**/*.log", {"a.log", "b.log", "out/c.log", "out/deep/er/d.log"}),
        ("out/**", {"out/c.log", "out/deep/er/d.log", "out/deep/e.txt"}),
        ("out/", set()),
        ("out/**/e.txt", {"out/deep/e.txt"}),
        ("**/er/*", {"out/deep/er/d.log"}),
        (".*.log", {".hidden.log"}),
        (".git/*", {".git/f.log"}),
        ("a+b.txt", {"a+b.txt"}),
        ("none", set()),
    ],
)
def test_patterns_choose_files(workspace: Path, tmp_path: Path, pattern: str, expected: set[str]) -> None:
    """They mean what they mean to a shell, and ``**`` is folders of any depth; files keep their paths."""
    write(workspace, "a.log", "b.log", "out/c.log", "out/deep/er/d.log", "out/deep/e.txt", "a+b.txt", "aab.txt")
    write(workspace, ".hidden.log", ".git/f.log", "out/.cache/g.log")
    if pattern == "[].log":
        write(workspace, "[].log")
    assert collect(workspace, tmp_path / "kept", Artifacts((pattern,))) == []
    assert kept(tmp_path / "kept") == expected


def test_nothing_is_kept_where_nothing_is_wanted(workspace: Path, tmp_path: Path) -> None:
    """Without patterns there is not even a folder."""
    write(workspace, "a.log")
    assert collect(workspace, tmp_path / "kept", Artifacts()) == []
    assert not (tmp_path / "kept").exists()


def test_what_is_too_large_is_left_out_and_said(workspace: Path, tmp_path: Path) -> None:
    """Smaller files still find room after a larger one did not, and the list beside them names what is missing."""
    for name, size in (("a", 50), ("b", 101), ("c", 60), ("d", 30), ("e", 20)):
        write(workspace, name, content="x" * size)
    left_out = collect(workspace, tmp_path / "kept", Artifacts(("*",), file_bytes_max=100, total_bytes_max=100))
    assert kept(tmp_path / "kept") == {"a", "d", "e", LIST_NAME}
    assert left_out == [
        "b: 101 bytes, more than the 100 of a file",
        "c: 60 bytes, more than the 50 that are left of 100",
    ]
    assert (tmp_path / "kept" / LIST_NAME).read_text().splitlines() == left_out


def test_artifacts_are_collected_anew(workspace: Path, tmp_path: Path) -> None:
    """What an interrupted collection has left does not count, and stands in nobody's way."""
    write(workspace, "a.log", content="whole")
    write(tmp_path, "kept/a.log", f"kept/{LIST_NAME}", "kept/old.log", content="ha")
    assert collect(workspace, tmp_path / "kept", Artifacts(("*.log",))) == []
    assert kept(tmp_path / "kept") == {"a.log"}
    assert (tmp_path / "kept" / "a.log").read_text() == "whole"


def test_links_lead_nowhere(workspace: Path, tmp_path: Path) -> None:
    """A link to a file is left out, a linked folder is not entered, inside of the workspace or outside."""
    write(tmp_path, "secret/key", "secret/a.log")
    write(workspace, "real/a.log")
    (workspace / "link.log").symlink_to(tmp_path / "secret" / "key")
    (workspace / "broken.log").symlink_to("nowhere")
    (workspace / "folder").symlink_to(tmp_path / "secret")
    (workspace / "inside").symlink_to("real")
    left_out = collect(workspace, tmp_path / "kept", Artifacts(("**/*.log", "folder/*", "inside/*")))
    assert kept(tmp_path / "kept") == {"real/a.log", LIST_NAME}
    assert left_out == ["broken.log: is a link", "link.log: is a link"]


def test_a_workspace_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    """An agent that replaces its workspace gets nothing kept."""
    write(tmp_path, "secret/a.log")
    (tmp_path / "workspace").symlink_to("secret")
    assert len(collect(tmp_path / "workspace", tmp_path / "kept", Artifacts(("*",)))) == 1
    assert kept(tmp_path / "kept") == {LIST_NAME}


def test_what_is_no_file_is_left_out_without_waiting(workspace: Path, tmp_path: Path) -> None:
    """A pipe that nobody writes to, and a socket, hold nobody up."""
    os.mkfifo(workspace / "pipe")
    with socket.socket(socket.AF_UNIX) as listening:
        here = Path.cwd()
        os.chdir(workspace)
        try:
            listening.bind("socket")
        finally:
            os.chdir(here)
    write(workspace, "zeta")
    left_out = collect(workspace, tmp_path / "kept", Artifacts(("*",)))
    assert [line.split(":")[0] for line in left_out] == ["pipe", "socket"]
    assert "zeta" in kept(tmp_path / "kept")


@pytest.mark.skipif(os.geteuid() == 0, reason="root reads everything")
def test_one_unreadable_file_costs_itself_alone(workspace: Path, tmp_path: Path) -> None:
    """Files and folders that cannot be read are named, and the others are kept."""
    write(workspace, "a", "b", "closed/c", "z")
    (workspace / "a").chmod(0)
    (workspace / "closed").chmod(0)
    try:
        left_out = collect(workspace, tmp_path / "kept", Artifacts(("**",)))
    finally:
        (workspace / "closed").chmod(0o755)
    assert kept(tmp_path / "kept") == {"b", "z", LIST_NAME}
    assert left_out == ["a: could not be copied: Permission denied", "closed/: could not be read: Permission denied"]


def test_a_target_that_cannot_be_written_costs_the_files(workspace: Path, tmp_path: Path) -> None:
    """A file where the artifacts should go is said of each of them, and nothing is raised."""
    write(workspace, "a", "b")
    write(tmp_path, "kept")
    left_out = collect(workspace, tmp_path / "kept", Artifacts(("*",)))
    assert [line.split(":")[0] for line in left_out] == ["a", "b", LIST_NAME]


def test_names_that_no_terminal_should_see(workspace: Path, tmp_path: Path) -> None:
    """A name with control characters, or that is no text, is kept as it is and listed readably."""
    odd = os.fsencode(workspace) + b"/od\xffd\n\x1b[2J"
    with open(odd, "wb") as file:
        file.write(b"x" * 20)
    write(workspace, "ü")
    (line,) = collect(workspace, tmp_path / "kept", Artifacts(("*",), file_bytes_max=10))
    assert line == "od\\udcffd\\n\\x1b[2J: 20 bytes, more than the 10 of a file"
    assert collect(workspace, tmp_path / "again", Artifacts(("*",))) == []
    assert len(kept(tmp_path / "again")) == 2


def test_an_artifact_cannot_pass_for_the_list(workspace: Path, tmp_path: Path) -> None:
    """The list is ours, also where the workspace has a file of its name."""
    write(workspace, LIST_NAME, content="nothing was left out")
    left_out = collect(workspace, tmp_path / "kept", Artifacts(("*",)))
    assert left_out == [f"{LIST_NAME}: has the name of this list"]
    assert (tmp_path / "kept" / LIST_NAME).read_text() == f"{left_out[0]}\n"


def test_a_bottomless_workspace_has_a_bottom(workspace: Path, tmp_path: Path) -> None:
    """Folders below each other without end are looked into so far, and what is above them is kept."""
    write(workspace, "a.log")
    folder = os.open(workspace, os.O_RDONLY)
    for _ in range(artifacts.DEPTH_MAX + 50):
        os.mkdir("d", dir_fd=folder)
        inner = os.open("d", os.O_RDONLY, dir_fd=folder)
        os.close(folder)
        folder = inner
    os.close(folder)
    (line,) = collect(workspace, tmp_path / "kept", Artifacts(("**/*.log",)))
    assert line.endswith(f"more than {artifacts.DEPTH_MAX} folders below each other")
    assert kept(tmp_path / "kept") == {"a.log", LIST_NAME}


def test_a_long_list_is_bounded(workspace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is left out only so much is named, and the rest is counted."""
    monkeypatch.setattr(artifacts, "LISTED_MAX", 3)
    write(workspace, *(f"f{number}" for number in range(5)), content="xx")
    left_out = collect(workspace, tmp_path / "kept", Artifacts(("*",), file_bytes_max=1))
    assert left_out[3:] == ["and 2 more"]
