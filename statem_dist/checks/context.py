"""What an executor is told about the check it evaluates, besides the check itself."""

from __future__ import annotations

import os

from msgspec import Struct

from statem_dist.checks.confinement import UNRULED, Rules
from statem_dist.protocol.graph import Check


class Limits(Struct, frozen=True):
    """Bounds of one evaluation. Sizes are bytes."""

    output_bytes_max: int = 4 * 1024
    """What of a command's text goes into the event of its result; the rest is the run's log."""

    predicate_bytes_max: int = 64 * 1024 * 1024
    """The largest file whose text a predicate reads: it is held in the worker's memory."""

    pattern_text_bytes_max: int = 8 * 1024 * 1024
    """The longest text that a regular expression is searched in."""

    pattern_seconds: float = 10.0
    """How long one search may take; some expressions need longer than the universe has."""


class CheckContext(Struct, frozen=True):
    """Where and for whom a check is evaluated.

    ``key`` is the name under which its command can be cancelled. ``workspace`` is an absolute path. ``environ`` is
    the whole environment of its commands (``environment.py`` makes it). ``spec`` is the runbook's path, or its name
    when it came as text. ``reviewer_command`` is the host's ``STATEM_LLM_REVIEW_CMD``. ``rules`` is what the check is
    kept within. ``repeatable`` says that its command may be run once more when it is unknown what the first one did.
    """

    key: str
    workspace: str
    environ: dict[str, str]
    purpose: str
    run_id: str
    node: str
    node_prompt: str = ""
    spec: str = ""
    reviewer_command: str | None = None
    limits: Limits = Limits()
    rules: Rules = UNRULED
    repeatable: bool = False

    def directory(self, check: Check) -> str:
        """Return the absolute path that the check works in: its ``cwd``, taken from the workspace."""
        return os.path.normpath(os.path.join(self.workspace, check.cwd or ""))
