"""statem-dist: StateM runbooks executed as a distributed worker-queue service."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from statem_dist.client.asynchronous import AsyncClient
    from statem_dist.client.calls import NewRun
    from statem_dist.client.sync import Client

__version__ = "0.1.0"

__all__ = ["AsyncClient", "Client", "NewRun", "__version__"]

_HOMES = {
    "AsyncClient": "statem_dist.client.asynchronous",
    "Client": "statem_dist.client.sync",
    "NewRun": "statem_dist.client.calls",
}
"""Where each name lives. It is imported when it is first asked for: most programs need one of them or none."""


def __getattr__(name: str) -> Any:
    """Import what is asked for when it is first asked for."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
