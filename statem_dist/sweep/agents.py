"""Calling the agent command of a trial: what it is told, where its words are kept, and what its end means.

The files that it is told of lie beside the workspace and not in it, so that a repository there stays clean:

==========================  ==========================================================================================
variable                    file
==========================  ==========================================================================================
``STATEM_PROMPT_FILE``      the prompt, which is also the standard input
``STATEM_BLOCKED_FILE``     JSON: every edge that was refused at the last step here, with the results of its checks
``STATEM_GOTO_FILE``        to be written: the target that the agent wants; without it the edges are tried in order
``STATEM_USAGE_FILE``       to be written: JSON with ``input_tokens``, ``output_tokens``, ``cost_usd`` of this call
==========================  ==========================================================================================
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from statem_dist.checks.command import CANNOT_EXECUTE
from statem_dist.checks.confinement import Rules, Unconfinable, begun
from statem_dist.checks.output import shown_text
from statem_dist.checks.process import Finished, Supervisor
from statem_dist.checks.redaction import secrets_of
from statem_dist.files import read_at_most, write_anew
from statem_dist.sweep.model import Agent, Reason, Usage
from statem_dist.sweep.workspaces import discard

BESIDE_HINT = '(it runs in the workspace of its trial; name a file beside the sweep file as "$STATEM_SWEEP_DIR/FILE")'

TARGET_LENGTH_MAX = 1000
"""Characters of a target that an agent writes; node names are shorter."""

ANSWER_BYTES_MAX = 64 * 1024
"""How much is read of a file that an agent writes for its driver."""

_VARIABLE = re.compile(r"\$(?:\{(STATEM_VAR_[A-Z0-9_]+)\}|(STATEM_VAR_[A-Z0-9_]+))")


class Verdict(Struct, frozen=True):
    """Why a trial ends, and the same in words."""

    reason: Reason
    detail: str


class Desk:
    """The files between a driver and the agent of one attempt.

    Args:
        folder: where they are; made if missing.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._prompt = folder / "prompt.md"
        self._blocked = folder / "blocked.json"
        self._goto = folder / "goto"
        self._usage = folder / "usage.json"

    def lay_out(self, prompt: str, blocked: Mapping[str, Any] | None) -> dict[str, str]:
        """Put down what the agent is told at its next call; return the variables that name the files."""
        write_anew(self._prompt, prompt)
        discard(self._goto)
        discard(self._usage)
        variables = {
            "STATEM_PROMPT_FILE": str(self._prompt),
            "STATEM_GOTO_FILE": str(self._goto),
            "STATEM_USAGE_FILE": str(self._usage),
        }
        if blocked is not None:
            write_anew(self._blocked, json.dumps(blocked, ensure_ascii=False, indent=1))
            variables["STATEM_BLOCKED_FILE"] = str(self._blocked)
        return variables

    def keep_output(self, call: int, text: str) -> None:
        """Keep what a call of the agent has written."""
        if text:
            write_anew(self._folder / f"output-{call}.txt", text)

    def wish(self) -> str | None:
        """Return the target that the agent wants, or None if it has not said."""
        try:
            said = read_at_most(self._goto, ANSWER_BYTES_MAX).decode(errors="replace")
            return said[:TARGET_LENGTH_MAX].strip() or None
        except OSError:
            return None

    def usage(self) -> Usage | None:
        """Return what the agent says that the call has used; None if it says nothing that can be understood."""
        try:
            found = msgspec.json.decode(read_at_most(self._usage, ANSWER_BYTES_MAX), type=Usage, strict=False)
        except (OSError, msgspec.DecodeError):
            return None
        sums = (found.input_tokens, found.output_tokens, found.cost_usd)
        # Infinities are no JSON, and nobody gives anything back.
        return found if all(value >= 0 for value in sums) else None


def added(usage: Usage | None, more: Usage | None) -> Usage | None:
    """Return the sum of what was used before and by one more call."""
    if usage is None or more is None:
        return usage or more
    return Usage(
        input_tokens=usage.input_tokens + more.input_tokens,
        output_tokens=usage.output_tokens + more.output_tokens,
        cost_usd=usage.cost_usd + more.cost_usd,
    )


def filled_in(prompt: str, variables: Mapping[str, str]) -> str:
    """Return a prompt with ``$STATEM_VAR_NAME`` and ``${STATEM_VAR_NAME}`` replaced by their values.

    Names without a value stay as they are. This is text for an agent: nothing of it is given to a shell.
    """

    def value(found: re.Match[str]) -> str:
        return variables.get(found[1] or found[2], found[0])

    return _VARIABLE.sub(value, prompt)


def call(
    agent: Agent,
    key: str,
    workspace: str,
    environ: Mapping[str, str],
    stdin: str,
    timeout: float,
    rules: Rules,
    supervisor: Supervisor,
) -> Finished:
    """Run the agent command in a workspace, within the rules of this host, and wait for its end.

    Args:
        key: by which it can be ended.
        timeout: seconds.
    """
    try:
        invocation = rules.invocation(workspace, workspace, environ)
    except (Unconfinable, ValueError) as error:
        return Finished(failure="refused", text=str(error))
    finished = supervisor.run(
        key,
        agent.run,
        cwd=invocation.cwd,
        env=invocation.env,
        stdin=stdin.encode(),
        timeout=timeout,
        limits=invocation.limits,
        wrapper=invocation.wrapper,
    )
    ended = finished if invocation.wrapper is None else begun(finished, rules)
    return replace(ended, secrets=secrets_of(environ, os.environ))


def judge(finished: Finished, where: str, timeout: float) -> Verdict | None:
    """Return why a trial ends with a call of its agent, or None when the checks are to judge its work.

    The exit status of an agent says nothing; only one that could not be started is told apart.

    Args:
        where: the node, for the message.
        timeout: seconds that the call had.
    """
    if finished.timed_out:
        return Verdict("agent_timeout", f"the agent took longer than {timeout:g} s at '{where}'")
    if finished.failure == "supervisor_lost":
        return Verdict("worker_lost", f"what supervises the agent command was lost: {finished.text}")
    if finished.failure is not None:
        return Verdict("agent_not_started", f"the agent command could not be run: {finished.text}")
    if finished.exit_code in CANNOT_EXECUTE:
        said = shown_text(finished).strip().rpartition("\n")[2]
        why = f"the agent command could not be started (exit {finished.exit_code}): {said}"
        return Verdict("agent_not_started", f"{why} {BESIDE_HINT}")
    return None
