"""The graph of a machine as a Mermaid diagram."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from statem_dist.machine.engine import StateMachine


def to_mermaid(machine: StateMachine, *, initial: str | None = None) -> str:
    """Return the source of a ``stateDiagram-v2``: one edge per candidate, so that a chain of guards is seen.

    Args:
        machine: whose graph to draw.
        initial: the state that the diagram begins with; left out if None, or no state of the machine.

    Returns:
        Lines without a newline at the end. An edge says its event, ``always`` or ``error``, and the guard in brackets.
    """
    ids = _ids(machine.config)
    lines = ["stateDiagram-v2"]
    lines += [f'    state "{name}" as {id_}' for name, id_ in ids.items() if name != id_]
    if initial in ids:
        lines.append(f"    [*] --> {ids[initial]}")
    for name, state in machine.config.items():
        for event, candidates in [*state.on.items(), ("always", state.always)]:
            for candidate in candidates:
                guard = "" if candidate.guard is None else f" [{candidate.guard}]"
                lines.append(f"    {ids[name]} --> {ids[candidate.target]}: {event}{guard}")
        if state.error_state is not None:
            lines.append(f"    {ids[name]} --> {ids[state.error_state]}: error")
    return "\n".join(lines)


def _ids(names: Iterable[str]) -> dict[str, str]:
    """Return an identifier that Mermaid can read for each state, different for each."""
    ids: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"[^0-9A-Za-z_]", "_", name)
        if not plain or plain[0].isdigit():
            plain = f"s_{plain}"
        id_, number = plain, 1
        while id_ in ids.values():
            number += 1
            id_ = f"{plain}_{number}"
        ids[name] = id_
    return ids
