"""Hygiene for every test: no setting of the outer world leaks in, and generated examples behave the same everywhere."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

LEAKING_PREFIXES = ("CELERY_", "STATEM_")
LEAKING_NAMES = ("FORCE_COLOR", "NO_COLOR", "PY_COLORS")

# No deadlines: on a shared machine a slow example says nothing about the code. CI replays the same examples each time,
# so that a change is judged by what it changed; at home new ones are tried, and failures are kept and tried first.
settings.register_profile("ci", deadline=None, derandomize=True, database=None, print_blob=True)
settings.register_profile("home", deadline=None)
settings.load_profile("ci" if os.environ.get("CI") else "home")


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Give the test an environment without settings of ours or Celery's, and a state directory of its own."""
    for name in list(os.environ):
        if name.startswith(LEAKING_PREFIXES) or name in LEAKING_NAMES:
            monkeypatch.delenv(name)
    monkeypatch.setenv("STATEM_STATE_DIR", str(tmp_path / ".statem"))
