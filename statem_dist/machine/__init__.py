"""The event-driven machine: a state graph as data, guards and actions as plain functions, signals that drive it.

A machine is a library inside one process: it needs no server, and knows nothing of runbooks. The names, defaults and
rules are those of the package ``statem`` (0.2.0 on PyPI), so that code written for one works with the other.

===================  =========================================================================================
``configuration``    the graph: ``StateConfig``, ``TransitionConfig``
``context``          what a run is and leaves: ``Context``, ``Signal``, ``ResultEntry``
``registries``       names to functions: ``ActionRegistry``, ``GuardRegistry``
``engine``           ``StateMachine`` and the rules by which it moves
``streaming``        a run as AG-UI events, while it happens
``tracing``          ``show_transitions``: a run as text, afterwards
``mermaid``          ``to_mermaid``: the graph as a diagram
===================  =========================================================================================
"""

from statem_dist.machine.configuration import StateConfig, TransitionConfig
from statem_dist.machine.context import Context, GuardError, ResultEntry, Signal, TransitionError
from statem_dist.machine.engine import StateMachine
from statem_dist.machine.mermaid import to_mermaid
from statem_dist.machine.registries import ActionFn, ActionRegistry, GuardFn, GuardRegistry
from statem_dist.machine.tracing import show_transitions

__all__ = [
    "ActionFn",
    "ActionRegistry",
    "Context",
    "GuardError",
    "GuardFn",
    "GuardRegistry",
    "ResultEntry",
    "Signal",
    "StateConfig",
    "StateMachine",
    "TransitionConfig",
    "TransitionError",
    "show_transitions",
    "to_mermaid",
]
