"""Commands on dynamic checks: ``dynamic path``, ``dynamic write``, ``dynamic list``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from statem_dist.cli.answer import Answer
from statem_dist.cli.declare import Argument, Option
from statem_dist.cli.loading import warn
from statem_dist.cli.session import AgentIdOption, JsonOption, RunIdOption, Session, StateDirOption, session
from statem_dist.places import entry_folder
from statem_dist.protocol.graph import DynamicConfig
from statem_dist.protocol.model import Run

RoleOption = Annotated[
    str | None,
    Option("--agent-role", "--role", metavar="ROLE", help="In which role (default: STATEM_AGENT_ROLE)."),
]


def path(
    run_id: RunIdOption = None,
    agent_id: AgentIdOption = None,
    agent_role: RoleOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Show the folder into which check files for the current entry may be dropped.

    Example: statem-dist dynamic path --run-id demo
    """
    with session(state_dir) as at:
        run = at.settled_run(run_id)
        by = at.actor(agent_id, agent_role, run)
        _accepted_there(at, run)
        place = entry_folder(run)
        if at.service is None:
            place.mkdir(parents=True, exist_ok=True)
    data = {**_where(run), "agent_id": by.id, "agent_role": by.role, "role": by.role, "path": str(place)}
    return Answer(data, lambda: str(place))


def write(
    source: Annotated[Path, Argument(metavar="FILE", help="Checks as JSON or YAML.")],
    run_id: RunIdOption = None,
    agent_id: AgentIdOption = None,
    agent_role: RoleOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Register checks for the current entry, in place of this agent's earlier ones.

    Example: statem-dist dynamic write checks.json --agent-id implementer
    """
    from statem_dist import dynamic
    from statem_dist.runbook import format_of, read_text

    with session(state_dir) as at:
        run = at.settled_run(run_id)
        by = at.actor(agent_id, agent_role, run)
        config = _accepted_there(at, run)
        text, name = read_text(source), str(source)
        registered, warnings = at.engine.register_checks(run, text, name, format_of(name), config, by)
        warn(*warnings)
        everything = at.engine.registered_checks(run, config)
    data = {
        **_where(run),
        "agent_id": by.id,
        "agent_role": by.role,
        "role": by.role,
        "stored": True,
        "checks": registered["checks"],
        "path": str(dynamic.file_for(run, by.id)),
        "manifest": {"producers": [each["producer"] for each in everything]},
    }
    return Answer(data, lambda: f"Registered: {registered['checks']} checks by {by.id} on {run.node}")


def list_(run_id: RunIdOption = None, state_dir: StateDirOption = None, as_json: JsonOption = False) -> Answer:
    """Show who has registered checks for the current entry.

    Example: statem-dist dynamic list
    """
    from statem_dist import dynamic

    with session(state_dir) as at:
        run = at.settled_run(run_id)
        config = dynamic.config_of(run, at.engine.runbook(run.runbook)) or DynamicConfig()
        found = at.engine.registered_checks(run, config)
    data = {
        **_where(run),
        "path": str(entry_folder(run)),
        "producers": found,
        "manifest": {"producers": [each["producer"] for each in found]},
    }

    def as_text() -> str:
        lines = [
            f"{each['producer']['agent_id']}: {each.get('error') or str(each['checks']) + ' checks'}"
            + (f" (role {role})" if (role := each["producer"]["role"]) else "")
            for each in found
        ]
        return "\n".join(lines or [f"No dynamic checks for {run.node}."])

    return Answer(data, as_text)


def _accepted_there(at: Session, run: Run) -> DynamicConfig:
    """Return what the current node accepts; if no transition looks at dynamic checks there, say so on stderr."""
    from statem_dist import dynamic

    config = dynamic.config_of(run, at.engine.runbook(run.runbook))
    if config is None:
        warn(f"node {run.node!r} has no dynamic_before_transfer; what is registered there is not run.")
    return config or DynamicConfig()


def _where(run: Run) -> dict[str, Any]:
    return {"ok": True, "run_id": run.id, "current": run.node, "current_entry_id": run.entry_id}
