"""Putting a deliberate bug into a copy of the project, and having it looked for there."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from msgspec import Struct

from tests.mutations.catalogue import Mutation

ROOT = Path(__file__).parents[2]

PACKAGES = {"statem_dist": ROOT / "statem_dist", "statem_workers": ROOT / "workers" / "statem_workers"}

WORLDS_MAX = 300
"""How many worlds are looked at for a bug before it counts as missed."""


class Catch(Struct):
    """In which world a law was broken (None in none), and which."""

    seed: int | None
    law: str | None


def copy_of_the_project(folder: Path, mutation: Mutation | None = None) -> Path:
    """Make a copy of what the simulator plays, with a bug or without one; return its folder.

    Raises:
        LookupError: the text that the bug takes the place of is not there, or more than once.
    """
    for name, source in PACKAGES.items():
        shutil.copytree(source, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "tests").symlink_to(ROOT / "tests")
    shutil.copy(ROOT / "pyproject.toml", folder)
    if mutation is not None:
        path = folder / mutation.file
        text = path.read_text(encoding="utf-8")
        if text.count(mutation.old) != 1:
            raise LookupError(
                f"The mutation {mutation.name} has to be written anew: {mutation.file} does not hold this text once: "
                f"{mutation.old!r}"
            )
        path.write_text(text.replace(mutation.old, mutation.new), encoding="utf-8")
    return folder


def hunt(folder: Path, mutation: Mutation, count: int) -> Catch:
    """Play worlds on a copy, from the seed of a mutation on, until one breaks a law."""
    command = [sys.executable, "-m", "tests.mutations.hunt", str(mutation.seed), str(count), *mutation.kinds]
    played = subprocess.run(command, cwd=folder, env=_environment(folder), capture_output=True, text=True, check=False)
    if played.returncode != 0:
        # It does not even begin: that is no catch.
        raise AssertionError(played.stderr)
    found = json.loads(played.stdout.splitlines()[-1])
    return Catch(found["seed"], found["law"])


def judged_by_the_contract(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the store contract against a real server, with the scripts of a copy."""
    tests = ["tests/contract/test_store_contract.py", "-k", "real or bench1"]
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-p", "no:xdist", *tests]
    return subprocess.run(command, cwd=folder, env=_environment(folder), capture_output=True, text=True, check=False)


def _environment(folder: Path) -> dict[str, str]:
    inherited = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return {**inherited, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
