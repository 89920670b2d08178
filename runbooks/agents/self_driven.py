"""An agent that moves its run by itself, along any runbook, with a command that does the work of a node.

    agent:
      mode: self_driven
      run: >
        exec "$STATEM_PYTHON" -I -S "$STATEM_SWEEP_DIR/agents/self_driven.py"
        sh "$STATEM_SWEEP_DIR/agents/terminal_bench.sh"

It asks the service where its run stands, lets the command work where there is a prompt, and then tries the edges in the
order of the runbook, or the one alone that the command has written to ``STATEM_GOTO_FILE``. It stops at an end, and
where nothing lets it on. A real agent does the same in its own words: all that it needs is ``statem-dist cur`` and
``statem-dist goto``, and the variables STATEM_COMMAND, STATEM_RUN_ID, STATEM_URL and STATEM_TOKEN, which it is given.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys

MOVED, BLOCKED = 0, 2
"""Exit statuses of ``goto``."""

REFUSALS_MAX = 3
"""How often in a row it lets the command mend what keeps it on a node."""


def main(work: list[str]) -> int:
    """Move the run until it ends; return 0 if it does, else 1."""
    refusals = 0
    while refusals < REFUSALS_MAX:
        at = json.loads(statem("cur").stdout)
        if not at["next"]:
            return 0
        targets = [edge["to"] for edge in at["next"]]
        if at["prompt"] or refusals:
            wish = do(work, at)
            targets = [wish] if wish in targets else targets
        refusals = 0 if any(moves_to(target) for target in targets) else refusals + 1
    return 1


def do(work: list[str], at: dict) -> str:
    """Let the command do what a node asks for; return the target that it wants, or an empty text."""
    wish = os.environ["STATEM_GOTO_FILE"]
    if os.path.exists(wish):
        os.unlink(wish)
    environ = {**os.environ, "STATEM_CURRENT": at["current"], "STATEM_ENTRY_ID": at["current_entry_id"]}
    subprocess.run(work, input=os.path.expandvars(at["prompt"] or ""), text=True, env=environ, check=False)
    if not os.path.exists(wish):
        return ""
    with open(wish, encoding="utf-8") as file:
        return file.read().strip()


def moves_to(target: str) -> bool:
    """Try an edge; return whether the run has moved."""
    status = statem("goto", target).returncode
    if status not in (MOVED, BLOCKED):
        sys.exit(f"goto {target} has ended with status {status}")
    return status == MOVED


def statem(*words: str) -> subprocess.CompletedProcess[str]:
    """Call the tool for the run of this trial."""
    command = shlex.split(os.environ["STATEM_COMMAND"])
    argv = [*command, *words, "--run-id", os.environ["STATEM_RUN_ID"], "--json"]
    return subprocess.run(argv, stdout=subprocess.PIPE, text=True, check=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
