"""statem-dist: StateM runbooks executed as a distributed worker-queue service."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statem_dist.client.asynchronous import AsyncClient
    from statem_dist.client.calls import NewRun
    from statem_dist.client.sync import Client
    from statem_dist.machine import (
        ActionRegistry,
        Context,
        GuardError,
        GuardRegistry,
        ResultEntry,
        Signal,
        StateConfig,
        StateMachine,
        TransitionConfig,
        TransitionError,
        show_transitions,
        to_mermaid,
    )

__version__ = "0.1.0"

__all__ = [
    "ActionRegistry",
    "AsyncClient",
    "Client",
    "Context",
    "GuardError",
    "GuardRegistry",
    "NewRun",
    "ResultEntry",
    "Signal",
    "StateConfig",
    "StateMachine",
    "TransitionConfig",
    "TransitionError",
    "__version__",
    "show_transitions",
    "to_mermaid",
]

_HOMES = {
    "AsyncClient": "statem_dist.client.asynchronous",
    "Client": "statem_dist.client.sync",
    "NewRun": "statem_dist.client.calls",
    "ActionRegistry": "statem_dist.machine",
    "Context": "statem_dist.machine",
    "GuardError": "statem_dist.machine",
    "GuardRegistry": "statem_dist.machine",
    "ResultEntry": "statem_dist.machine",
    "Signal": "statem_dist.machine",
    "StateConfig": "statem_dist.machine",
    "StateMachine": "statem_dist.machine",
    "TransitionConfig": "statem_dist.machine",
    "TransitionError": "statem_dist.machine",
    "show_transitions": "statem_dist.machine",
    "to_mermaid": "statem_dist.machine",
}
"""Where each name lives. It is imported when it is first asked for: most programs need one of them or none."""


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
