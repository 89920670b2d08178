"""Where things lie on a disk: the workspace of a runbook, and the local folders of a run."""

from __future__ import annotations

from pathlib import Path

from statem_dist.protocol.model import Run


def workspace_of(spec: Path) -> str:
    """Return the default workspace of a runbook file: the folder it lies in."""
    return str(spec.resolve().parent)


def entry_folder(run: Run) -> Path:
    """Return the local folder of a run's current entry, into which files with dynamic checks may be dropped."""
    return Path(run.place.state_dir) / "runs" / run.id / "dynamic" / run.entry_id
