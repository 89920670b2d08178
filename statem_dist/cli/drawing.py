"""Commands for whoever writes runbooks: ``new`` gives one to begin with, ``graph`` shows how one looks."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from statem_dist.cli.answer import Answer
from statem_dist.cli.declare import Argument, Option
from statem_dist.cli.session import JsonOption, RunIdOption, StateDirOption, session

if TYPE_CHECKING:
    from statem_dist.protocol.graph import Runbook
    from statem_dist.protocol.model import Run
    from statem_dist.runbook.drawing import Marks


def new(
    file: Annotated[Path, Argument(metavar="FILE", help="The file to write.")] = Path("runbook.yaml"),
    force: Annotated[bool, Option("--force", help="Replace a file that is there.")] = False,
    as_json: JsonOption = False,
) -> Answer:
    """Write a commented runbook to begin with.

    Example: statem-dist new runbook.yaml
    """
    from statem_dist.starter import write_starter

    path = Path(os.path.abspath(file))
    write_starter(path, force=force)
    return Answer(
        {"ok": True, "path": str(path)},
        lambda: f"Written: {path}\nNext: statem-dist validate {file} --strict; statem-dist start {file}",
    )


def graph(
    spec: Annotated[
        Path | None, Argument(metavar="RUNBOOK", help="A runbook file; without it, the runbook of the run.")
    ] = None,
    run_id: RunIdOption = None,
    format: Annotated[Literal["mermaid", "dot", "svg", "json"], Option("--format", help="What to print.")] = "mermaid",
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Draw a runbook, or the runbook of a run with a mark where it stands.

    Example: statem-dist graph runbook.yaml --format svg
    """
    from statem_dist.runbook import drawing

    runbook, run, marks = _what_to_draw(spec, run_id, state_dir)
    data = {
        "ok": True,
        "run_id": run.id if run else None,
        "spec": os.path.abspath(spec) if spec else run.place.spec if run else "",
        "format": format,
        **drawing.graph_view(runbook, marks),
    }
    if format == "json":
        return Answer(data, lambda: json.dumps(data, ensure_ascii=False, indent=2))
    if format == "svg":
        from statem_dist.runbook.svg import svg as draw
    else:
        draw = drawing.mermaid if format == "mermaid" else drawing.dot
    drawn = draw(runbook, marks)
    return Answer(data | {"drawing": drawn}, lambda: drawn)


def _what_to_draw(spec: Path | None, run_id: str | None, state_dir: str | None) -> tuple[Runbook, Run | None, Marks]:
    """Return a file's runbook, or that of a run; and where the run stands, if one is meant."""
    from statem_dist.history import visited_nodes
    from statem_dist.runbook.drawing import NO_MARKS, Marks

    given = None
    if spec is not None:
        from statem_dist.runbook.reader import load

        given = load(Path(os.path.abspath(spec))).runbook
        if run_id is None:
            return given, None, NO_MARKS
    with session(state_dir) as at:
        run = at.settled_run(run_id)
        runbook = given or at.engine.runbook(run.runbook)
        return runbook, run, Marks(current=run.node, visited=visited_nodes(at.engine.log, run))
