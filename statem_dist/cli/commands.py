"""Every command and where it lives; a module is imported when its command is called."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

COMMANDS: dict[str, str] = {
    "start": "moving:start",
    "cur": "reading:cur",
    "next": "reading:next_",
    "goto": "moving:goto",
    "transfer": "moving:goto",
    "save": "moving:save",
    "cancel": "steering:cancel",
    "terminate": "steering:terminate",
    "pause": "steering:pause",
    "resume": "steering:resume",
    "recover": "recovering:recover",
    "state": "reading:state",
    "ls": "reading:ls",
    "history": "reading:history",
    "evidence": "reading:evidence",
    "runs": "reading:runs",
    "validate": "reading:validate",
    "graph": "drawing:graph",
    "new": "drawing:new",
    "prompt": "reading:prompt",
    "compact-prompt": "reading:compact_prompt",
    "dynamic path": "dynamic:path",
    "dynamic write": "dynamic:write",
    "dynamic list": "dynamic:list_",
    "approvals": "deciding:approvals",
    "approve": "deciding:approve",
    "reject": "deciding:reject",
    "import": "importing:import_",
    "export": "records:export",
    "verify": "records:verify",
    "archive": "records:archive",
    "prune": "records:prune",
    "hook stop": "hook:stop",
    "hook install": "hook:install",
    "runbook register": "runbooks:register",
    "runbook list": "runbooks:list_",
    "sweep plan": "sweeping:plan",
    "sweep submit": "sweeping:submit",
    "sweep run": "sweeping:run",
    "sweep resume": "sweeping:resume",
    "sweep status": "sweeps:status",
    "sweep watch": "sweeps:watch",
    "sweep list": "sweeps:list_",
    "sweep trials": "sweeps:trials",
    "sweep logs": "sweeps:logs",
    "sweep pause": "sweep_steering:pause",
    "sweep cancel": "sweep_steering:cancel",
    "sweep extend": "sweep_steering:extend",
    "sweep retry": "sweep_steering:retry",
    "sweep results": "sweep_reporting:results",
    "sweep report": "sweep_reporting:report",
    "sweep compare": "sweep_reporting:compare",
    "sweep export": "sweep_reporting:export",
    "sweep rm": "sweep_steering:rm",
    "token create": "tokens:create",
    "token list": "tokens:list_",
    "token revoke": "tokens:revoke",
    "up": "services:up",
    "down": "services:down",
    "worker": "services:worker",
    "api": "services:api",
    "flower": "services:flower",
    "doctor": "services:doctor",
}
"""Module and function of each command, in the order in which the help lists them."""

GROUPS: dict[str, str] = {
    "dynamic": "Checks that are registered for the current entry alone.",
    "hook": "The Stop hook of agent hosts: an agent goes on until its run is finished.",
    "runbook": "Runbooks that are registered, for runs that are started from them by name.",
    "sweep": "Run a runbook over a matrix of agents, tasks and repetitions.",
    "token": "Tokens, by which people and agents are known to the service.",
}
"""Groups of commands, and what the help says of them."""


FAIL_OPEN = frozenset({"hook stop"})
"""Commands whose caller is a host that must never be held up by a mistake of ours: they say so, and let it go on."""


def load(name: str) -> Callable[..., Any]:
    """Return the function of a command."""
    module, _, function = COMMANDS[name].partition(":")
    command: Callable[..., Any] = getattr(import_module(f"statem_dist.cli.{module}"), function)
    return command
