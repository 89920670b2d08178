"""The work of a round: a runbook with every kind of check and hook, a sweep, and the commands that keep a ledger.

Each command appends a line to a ledger when it begins, and another one when it ends, each by one write to the disk.
What a worker says of its work is compared with that ledger, which no part of the product has ever seen.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, TypeAlias

from msgspec import Struct

Nature: TypeAlias = Literal["check", "hook", "repeatable"]
"""How often a command may begin in one transition: a check and a repeatable hook again and again, a hook once."""

NATURES: dict[str, Nature] = {
    "guard": "check",
    "plain": "hook",
    "left": "check",
    "right": "check",
    "condition": "check",
    "edge-hook": "hook",
    "undo": "repeatable",
    "arrival": "repeatable",
    "review": "check",
    "flaky": "check",
    "repeatable": "repeatable",
    "long": "check",
    "last": "hook",
    "trial-check": "check",
    "trial-hook": "repeatable",
}

STEP = """\
#!/bin/sh
# Usage: step.sh NAME TENTHS [one in N fails] [its exit status]
note() {{
    printf '%s %s %s %s %s %s %s\\n' \\
        "$1" "$2" "$STATEM_RUN_ID" "$STATEM_CHECK_KEY" "${{STATEM_FENCING_TOKEN:--}}" "$$" "$(date +%s.%N)" |
        dd of={ledger} oflag=append conv=notrunc,fsync status=none
}}
random=$(od -An -N2 -tu2 /dev/urandom)
note begun "$1"
tenths=$(( random % ($2 + 1) ))
sleep "$(( tenths / 10 )).$(( tenths % 10 ))"
if [ -n "$3" ] && [ $(( random % $3 )) -eq 0 ]; then
    note failed "$1"
    exit "$4"
fi
note ended "$1"
"""

AGENT = """\
#!/bin/sh
note() {{
    printf '%s agent %s %s - %s %s\\n' "$1" "$STATEM_RUN_ID" "$STATEM_SWEEP.$STATEM_RUN_ID.$STATEM_ENTRY_ID" "$$" \\
        "$(date +%s.%N)" | dd of={ledger} oflag=append conv=notrunc,fsync status=none
}}
note begun
sleep 0.$(( $(od -An -N1 -tu1 /dev/urandom) % 8 ))
touch out
note ended
"""

RUNBOOK = """\
name: chaos
nodes:
  a:
    before_transfer:
      - {{run: "{step} guard 2 12 1"}}
      - {{path: present}}
    out_hook:
      - {{run: "{step} plain 3"}}
    next: b
  b:
    before_transfer:
      - parallel:
          - {{run: "{step} left 3"}}
          - {{run: "{step} right 3"}}
    next:
      to: c
      condition: {{run: "{step} condition 1"}}
      hook: {{run: "{step} edge-hook 4 8 1", repair: {{run: "{step} undo 2"}}}}
  c:
    in_hook: [{{run: "{step} arrival 1", idempotent: true}}]
    before_transfer:
      - {{type: llm_review, prompt: Good?, run: "{step} review 2; echo ACCEPT", accept_contains: ACCEPT}}
      - {{run: "{step} flaky 1 3 75", retry: {{maximum_attempts: 6, exit_status: [75], initial_interval: 0.1}}}}
    out_hook: [{{run: "{step} repeatable 3", idempotent: true}}]
    next: d
  d:
    before_transfer:
      - {{run: "{step} long 90"}}
      - {{type: manual, name: release, text: May it go on?, by: operator, timeout: 30s}}
    next: [a, end]
  end: {{in_hook: [{{run: "{step} last 1"}}]}}
"""
"""The command ``long`` takes up to three times as long as a lease."""

TRIAL = """\
name: chaos-trial
nodes:
  work:
    prompt: Go on.
    before_transfer: [{{path: out}}, {{run: "{step} trial-check 5"}}]
    out_hook: [{{run: "{step} trial-hook 2", idempotent: true}}]
    next: done
  done:
"""

SWEEP_NAME = "chaos"
LIMIT = "provider"


class Line(Struct, frozen=True):
    """A line of the ledger: a command has begun, failed or ended. ``at`` is seconds since the epoch."""

    what: str
    name: str
    run: str
    key: str
    token: str
    pid: str
    at: float


class Files(Struct, frozen=True):
    """Where the work of a round is described, and where it is noted."""

    folder: Path

    @property
    def ledger(self) -> Path:
        """What every command appends to."""
        return self.folder / "ledger"

    @property
    def runbook(self) -> Path:
        """The runbook that callers move runs through."""
        return self.folder / "chaos.yaml"

    @property
    def sweep(self) -> Path:
        """The sweep."""
        return self.folder / f"{SWEEP_NAME}.sweep.yaml"

    @property
    def workspace(self) -> Path:
        """Where checks work."""
        return self.folder / "workspace"

    @property
    def stop(self) -> Path:
        """Is there once callers are to begin nothing more."""
        return self.folder / "stop"

    def promises(self, caller: str) -> Path:
        """What a caller notes of its requests and answers."""
        return self.folder / f"promises-{caller}"

    def write(self, trials: int) -> None:
        """Write everything down, for a sweep of that many trials of each of two models."""
        self.workspace.mkdir()
        (self.workspace / "present").touch()
        self.ledger.touch()
        (self.folder / "step.sh").write_text(STEP.format(ledger=self.ledger))
        (self.folder / "agent.sh").write_text(AGENT.format(ledger=self.ledger))
        step = f"sh {self.folder}/step.sh"
        self.runbook.write_text(RUNBOOK.format(step=step))
        (self.folder / "trial.yaml").write_text(TRIAL.format(step=step))
        sweep = {
            "runbook": "trial.yaml",
            "matrix": {"model": ["large", "small"]},
            "trials": trials,
            "agent": {"run": f"sh {self.folder}/agent.sh"},
            "concurrency": {"total": 4, "per": {"model": {"large": 2, "*": 4}}},
            "limits": {LIMIT: {"in_flight": 2, "when": {"model": "large"}}},
            # Every fault may cost a trial one of these; that all are used up is tested elsewhere.
            "retries": 99,
            "disk_floor": "0",
        }
        self.sweep.write_text(json.dumps(sweep))

    def lines(self) -> Iterator[Line]:
        """Yield what was noted, in the order in which it was written."""
        for text in self.ledger.read_text().splitlines():
            what, name, run, key, token, pid, at = text.split()
            yield Line(what, name, run, key, token, pid, float(at))
