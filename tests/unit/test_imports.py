"""What may import what: the rings of the architecture, the pure protocol, and the light front door."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from statem_dist.protocol.graph import Node
from statem_dist.store.codec import StoredRunbook, encode_run, encode_runbook
from tests.support.builders import Desk, loop, one_by_one, shell
from tests.support.misbehaving import Act, misbehaving

ROOT = Path(__file__).resolve().parents[2]
PROTOCOL_FILES = sorted((ROOT / "statem_dist" / "protocol").rglob("*.py"))
HEAVY_PACKAGES = {"celery", "fastapi", "httpx", "httpx2", "kombu", "pydantic", "redis", "rich", "typer", "yaml"}


def imported_packages(path: Path) -> Iterator[str]:
    """Yield the top-level name of every absolute import in a file, at whatever depth the import stands."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), filename=str(path))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module:
            yield node.module.partition(".")[0]


def forbidden_in_protocol() -> set[str]:
    """Return the packages that the ``protocol`` contract in pyproject.toml forbids."""
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    (contract,) = (each for each in configuration["tool"]["importlinter"]["contracts"] if each["id"] == "protocol")
    return set(contract["forbidden_modules"])


def test_no_ring_imports_an_outer_ring() -> None:
    """Every import contract of pyproject.toml is kept."""
    lint_imports = [sys.executable, "-c", "from importlinter.cli import lint_imports_command as main; main()"]
    result = subprocess.run([*lint_imports, "--no-cache"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stdout + result.stderr


@pytest.mark.parametrize("path", PROTOCOL_FILES, ids=lambda path: path.stem)
def test_protocol_is_pure(path: Path) -> None:
    """No file of the protocol imports anything that does input or output, reads a clock or makes ids."""
    assert not set(imported_packages(path)) & forbidden_in_protocol()


@pytest.mark.parametrize(("folder", "other"), [("workers", "statem_api"), ("api", "statem_workers")])
def test_workers_and_api_do_not_know_each_other(folder: str, other: str) -> None:
    """Workers and the API meet in the library only, so that each can be deployed without the other."""
    importers = [path for path in (ROOT / folder).rglob("*.py") if other in imported_packages(path)]
    assert importers == []


def test_importing_the_library_loads_nothing_heavy() -> None:
    """``import statem_dist`` stays cheap, because an agent starts the command line hundreds of times."""
    program = "import json, sys, statem_dist; print(json.dumps([name.partition('.')[0] for name in sys.modules]))"
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not set(json.loads(result.stdout)) & HEAVY_PACKAGES


def test_a_short_command_over_http_loads_nothing_heavy(tmp_path: Path) -> None:
    """``cur`` on a run of a service shows it without a pool of connections, a parser, or a client of Redis."""
    desk = Desk(loop(Node("a", prompt="Read.", before_transfer=one_by_one(shell()))))
    documents = (encode_run(desk.run), encode_runbook(StoredRunbook(runbook=desk.runbook, text="", source="")))
    program = (
        "import sys; from statem_dist.cli.main import run; code = run(['cur', '--run-id', 'r']);"
        "print('loaded', code, *{name.partition('.')[0] for name in sys.modules})"
    )
    with misbehaving(*(Act(body=document) for document in documents)) as world:
        environment = os.environ | {"STATEM_URL": world.url, "STATEM_STATE_DIR": str(tmp_path / "none")}
        command = [sys.executable, "-c", program]
        said = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True).stdout
    told, _, loaded = said.partition("loaded ")
    assert "Read." in told
    code, *packages = loaded.split()
    assert code == "0"
    assert not set(packages) & HEAVY_PACKAGES
    assert not (tmp_path / "none").exists(), "looking makes no state directory"
