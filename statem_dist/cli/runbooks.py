"""Commands on the runbooks that are registered for everybody: ``runbook register``, ``runbook list``."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from statem_dist.cli.answer import Answer
from statem_dist.cli.declare import Argument, Option
from statem_dist.cli.moving import HASH_SHOWN
from statem_dist.cli.session import JsonOption, StateDirOption, caller_name, session
from statem_dist.registry import registration_view
from statem_dist.run_ids import require_name


def register(
    spec: Annotated[Path, Argument(metavar="RUNBOOK", help="The runbook file, YAML or JSON.")],
    name: Annotated[
        str | None, Option("--name", metavar="NAME", help="What it is called (default: the runbook's own name).")
    ] = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Register a runbook; its name stands for this version from now on, earlier versions stay.

    Example: statem-dist runbook register release.yaml --name release
    """
    from statem_dist.cli.loading import load_telling
    from statem_dist.runbook import warnings_view
    from statem_dist.store.codec import StoredRunbook

    parsed = load_telling(Path(os.path.abspath(spec)), silent=as_json)
    called = parsed.runbook.name if name is None else name
    require_name(called, "The name")
    with session(state_dir) as at:
        stored = StoredRunbook(runbook=parsed.runbook, text=parsed.text, source=spec.name)
        made = at.runbooks.register(stored, called, caller_name())
    data = {"ok": True, **registration_view(made), **warnings_view(parsed.warnings)}
    return Answer(data, lambda: f"Registered: {made.name} ({made.hash[:HASH_SHOWN]}).")


def list_(
    versions: Annotated[
        bool, Option("--versions", help="All versions, and not only those that the names stand for.")
    ] = False,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """List the registered runbooks by name.

    Example: statem-dist runbook list
    """
    from statem_dist.cli.text import span
    from statem_dist.columns import aligned

    with session(state_dir) as at:
        found = [] if at.nothing_yet else [each for each in at.runbooks.list() if versions or each.current]
        now = at.engine.clock() if found else 0

    def table() -> str:
        if not found:
            return "No runbooks are registered."
        rows = [("name", "hash", "registered", "")]
        for each in found:
            made = f"{span(now - each.at)} ago by {each.by}"
            rows.append((each.name, each.hash[:HASH_SHOWN], made, "" if each.current else "earlier version"))
        return aligned(rows)

    return Answer({"ok": True, "runbooks": [registration_view(each) for each in found]}, table)
