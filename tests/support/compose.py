"""The files for containers, read as the programs read them for which they are written."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
COMPOSE_FILE = ROOT / "docker-compose.yml"
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
ENV_EXAMPLE = ROOT / ".env.example"


def program(name: str) -> str:
    """Return the path of a program that came with the development tools."""
    found = shutil.which(name, path=os.path.dirname(sys.executable))
    assert found is not None, f"{name} is not installed beside {sys.executable}"
    return found


def resolved(variables: Mapping[str, str], *further: Path) -> dict[str, Any]:
    """Return the compose file, and others on top of it, as Docker Compose understands them with these variables.

    Raises:
        subprocess.CalledProcessError: it does not accept them; ``stderr`` says why.
    """
    files = [word for path in (COMPOSE_FILE, *further) for word in ("--file", str(path))]
    done = subprocess.run(
        # No .env of a developer is read.
        [program("docker-compose"), *files, "--env-file", os.devnull, "config", "--format", "json"],
        env={"HOME": os.environ.get("HOME", "/"), "PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    document: dict[str, Any] = json.loads(done.stdout)
    return document


def assignments(path: Path) -> dict[str, str]:
    """Return the variables that a file like .env sets."""
    lines = path.read_text(encoding="utf-8").splitlines()
    pairs = [line.partition("=") for line in lines if line and not line.startswith("#")]
    assert len({name for name, _, _ in pairs}) == len(pairs)
    return {name: value for name, _, value in pairs}


def instructions() -> list[tuple[str, str]]:
    """Return the instructions of the Dockerfile, each with what follows its name, on one line."""
    lines = [line for line in DOCKERFILE.read_text(encoding="utf-8").splitlines() if not line.startswith("#")]
    text = "\n".join(lines).replace("\\\n", " ")
    found = [line.partition(" ") for line in text.splitlines() if line.strip()]
    return [(word, " ".join(rest.split())) for word, _, rest in found]
