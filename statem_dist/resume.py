"""Prompts that bring an agent back: after its context was cleared, or before it is compacted.

They hold no state of their own. They name the run, the runbook and where the state lives, and the commands by which
everything else is found again.
"""

from __future__ import annotations

import shlex
from typing import Literal

from msgspec import Struct

from statem_dist.protocol.graph import Runbook
from statem_dist.protocol.model import Run
from statem_dist.settings import Settings


class Address(Struct, frozen=True):
    """How a run is reached: the command line to call, and the options that select it."""

    command: str
    run_id: str
    state_dir: str
    at: Literal["state_dir", "redis", "service"] = "state_dir"

    @classmethod
    def of(cls, settings: Settings, run_id: str, command: str | None, *, service: bool = False) -> Address:
        """Return how a run is reached from here.

        Args:
            settings: where the state is.
            run_id: the run.
            command: how this tool is called, if not by its name.
            service: whether a service has the run.
        """
        return cls(
            command=command or "statem-dist",
            run_id=run_id,
            state_dir=str(settings.state_dir),
            at="service" if service else "state_dir" if settings.embedded else "redis",
        )

    def call(self, verb: str) -> str:
        """Return the command line of one verb on this run."""
        return f"{self.command} {verb} {self._selection()}"

    def place(self) -> str:
        """Return where the state lives, in words."""
        if self.at == "state_dir":
            return f"the state directory {self.state_dir}"
        return "the Redis of STATEM_REDIS_URL" if self.at == "redis" else "the service at STATEM_URL"

    def _selection(self) -> str:
        where = f" --state-dir {shlex.quote(self.state_dir)}" if self.at == "state_dir" else ""
        return f"--run-id {self.run_id}{where}"


def resume_prompt(run: Run, runbook: Runbook, address: Address) -> str:
    """Return the prompt for an agent that knows nothing: which run this is, and how to go on with it."""
    exits = ", ".join(edge.target for edge in runbook.exits(run.node)) or "none; this node is an end"
    node = runbook.node(run.node)
    held = f"\n{told}\n" if (told := _held(run)) else ""
    task = node.prompt.rstrip() if node is not None and node.prompt else "(this node has no prompt)"
    return f"""\
You are working under the runbook {run.runbook_name!r} ({run.place.spec}), run {run.id}.
The run stands on node {run.node!r} (entry {run.entry_id}). Its state is kept in
{address.place()}, not in this conversation.
{held}
What this node asks for:
{task}

Where you may go from here: {exits}

Take the run up again before you do anything else:
{_taking_up(run, address)}  {address.call("cur")}
  {address.call("history")}

Move only along the edges of the runbook, and only with:
  {address.call("goto TARGET")}
A blocked goto names every check that did not pass. Mend the cause and try again; do not work around it.
"""


def _held(run: Run) -> str:
    """Return why nothing is to be done on a run, and what to wait for; empty if it goes on."""
    if run.status == "outcome_unknown":
        return "Nobody knows what one of its hooks did: wait until an operator has said how the transition goes on."
    if run.paused is not None:
        because = f" ({run.paused.reason})" if run.paused.reason else ""
        return f"It is paused by {run.paused.by.id or 'somebody'}{because}: wait until somebody lets it go on."
    if run.ending is None:
        return ""
    because = f" ({run.ending.reason})" if run.ending.reason else ""
    return f"It was cancelled by {run.ending.by.id or 'somebody'}{because}: do not go on with it."


def _taking_up(run: Run, address: Address) -> str:
    """Return the line that resumes a run from its file; a run that was started from a text has none."""
    return f"  {address.call(f'start {shlex.quote(run.place.spec)}')}\n" if run.place.spec else ""


def compact_prompt(run: Run, address: Address) -> str:
    """Return the instruction by which a conversation is compacted without losing the run."""
    return f"""\
/compact Keep what is needed to go on with run {run.id} of the runbook {run.runbook_name!r} ({run.place.spec}):
it stands on node {run.node!r} (entry {run.entry_id}); its state is kept in {address.place()}.
Keep: the goal, decisions and their reasons, files that were changed, checks that are still open.
Drop: command output, explored dead ends, anything that the state already records.
Afterwards look first, then go on:
  {address.call("cur")}
  {address.call("history --tail 5")}
  {address.call("goto TARGET")}
"""
