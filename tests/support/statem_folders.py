"""Folders as StateM leaves them, in the form of its state files of format version 1."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path
from typing import Any

RUNBOOK = """\
name: release
initial: setup
nodes:
  setup:
    prompt: Prepare.
  design:
    prompt: Design.
    dynamic_before_transfer: {}
    before_transfer:
      - type: predicate
        path: spec.md
        exists: true
  done:
    prompt: The end.
edges:
  - from: setup
    to: design
  - from: design
    to: done
    max_attempts: 3
"""

ENTRY = "20260910T111544Z-7535caeb"


def result(kind: str, purpose: str, *, passed: bool = True, output: str = "") -> dict[str, Any]:
    """Return a result as StateM records it."""
    return {
        "blocking": True,
        "continued": False,
        "on_failure": "block",
        "output": output,
        "passed": passed,
        "purpose": purpose,
        "type": kind,
    }


def history(spec: Path) -> list[dict[str, Any]]:
    """Return the history of a run that has moved once and was blocked once."""
    unconfigured = {"configured": False, "results": []}
    return [
        {"current": "setup", "event": "start", "spec": str(spec), "ts": "2026-09-10T11:15:06Z"},
        {"event": "in_hook", "node": "setup", "reason": "start", "results": [], "ts": "2026-09-10T11:15:06Z"},
        {
            "before_transfer": [],
            "condition": [result("manual", "condition", output="answered y")],
            "dynamic_before_transfer": unconfigured,
            "edge_hook": [],
            "event": "goto",
            "from": "setup",
            "in_hook": [],
            "out_hook": [],
            "to": "design",
            "ts": "2026-09-10T11:15:44Z",
        },
        {
            "attempt": 1,
            "attempts_remaining": 2,
            "attempts_used": 1,
            "current": "design",
            "current_entry_id": ENTRY,
            "dynamic_before_transfer": unconfigured,
            "event": "goto_blocked",
            "from": "design",
            "max_attempts": 3,
            "results": [result("predicate", "before_transfer", passed=False, output="file does not exist: spec.md")],
            "run_id": "demo",
            "stage": "before_transfer",
            "to": "done",
            "ts": "2026-09-10T11:15:54Z",
        },
    ]


class StatemFolder:
    """A project with a runbook and a ``.statem`` folder; one run ``demo`` stands on ``design`` after one failed try.

    Args:
        project: an empty folder.
    """

    def __init__(self, project: Path) -> None:
        self.path = project / ".statem"
        self.spec = project / "runbook.yaml"
        self.spec.write_bytes(RUNBOOK.encode())
        self.add("demo")
        self.activate("demo")

    def add(self, run_id: str, /, **changes: Any) -> Path:
        """Write a run, with other values than usual where they are given; None leaves a key out."""
        state = {
            "agent_id": "agent-20260910T111506Z-86a69feb",
            "created_at": "2026-09-10T11:15:06Z",
            "current": "design",
            "current_entry_id": ENTRY,
            "edge_attempts": {ENTRY: {"design": {"done": 1}}, "older": {"setup": {"design": 2}}},
            "history": history(self.spec),
            "run_id": run_id,
            "spec_hash": sha256(RUNBOOK.encode()).hexdigest(),
            "spec_path": str(self.spec),
            "updated_at": "2026-09-10T11:15:54Z",
            "version": 1,
            **changes,
        }
        given = {key: value for key, value in state.items() if value is not None}
        return self.write(run_id, json.dumps(given, indent=2, sort_keys=True) + "\n")

    def write(self, run_id: str, text: str) -> Path:
        """Write the state file of a run, and return its path."""
        path = self.path / "runs" / run_id / "state.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        return path

    def activate(self, run_id: str) -> None:
        """Make a run the active one."""
        (self.path / "active_run").write_text(run_id + "\n")

    def add_checks(self, run_id: str, agent: str, text: str) -> Path:
        """Write a file of dynamic checks for the current entry of a run."""
        folder = self.path / "runs" / run_id / "nodes" / "design" / ENTRY / "dynamic_before_transfer"
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "manifest.json").write_text(json.dumps({"version": 1, "producers": []}))
        path = folder / f"checks.{agent}.json"
        path.write_text(text)
        return path
