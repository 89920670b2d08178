"""How commands declare their arguments and options: once, for two readers.

A command is a function. Its parameters carry an ``Argument`` or an ``Option`` in their annotation::

    def cur(run_id: Annotated[str | None, Option("--run-id", metavar="ID", help="The run.")] = None) -> Answer: ...

``statem_dist.cli.quick`` reads the declarations directly and calls the function within milliseconds. What it does
not understand at once (a mistake, ``--help``, completion) goes to ``statem_dist.cli.full``, which builds a Typer
application of the same declarations. Agents call this tool thousands of times, on the cores that run their checks;
importing Typer costs more than most commands.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, get_args, get_origin, get_type_hints

from msgspec import Struct


class Argument(Struct, frozen=True):
    """A positional argument; the last one may be a list. ``complete`` says what a shell offers for it: a key of
    ``cli.completing.KINDS``."""

    metavar: str
    help: str = ""
    complete: str = ""


class Option:
    """An option.

    Args:
        names: its names; the first one is shown. ``--wait/--no-wait`` declares a flag with its opposite.
        metavar: what stands for its value in the help.
        help: one sentence.
        min: the least number that is accepted, for numbers.
        max: the greatest one.
        complete: what a shell offers for its value: a key of ``cli.completing.KINDS``.
    """

    def __init__(
        self,
        *names: str,
        metavar: str | None = None,
        help: str = "",
        min: float | None = None,
        max: float | None = None,
        complete: str = "",
    ) -> None:
        self.names = names
        self.metavar = metavar
        self.help = help
        self.min = min
        self.max = max
        self.complete = complete

    @property
    def spellings(self) -> dict[str, bool]:
        """Every spelling of the option, and whether it switches a flag on or off."""
        found: dict[str, bool] = {}
        for name in self.names:
            positive, _, negative = name.partition("/")
            found[positive] = True
            if negative:
                found[negative] = False
        return found


class Parameter(Struct, frozen=True):
    """One parameter of a command: its name, its type without the declaration, the declaration, and its default."""

    name: str
    type: Any
    declared: Argument | Option
    default: Any
    required: bool


def parameters_of(command: Callable[..., Any]) -> list[Parameter]:
    """Return the declared parameters of a command, in order."""
    function: Any = command
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    defaults = function.__defaults__ or ()
    hints = get_type_hints(function, include_extras=True)
    first_default = len(names) - len(defaults)
    found = []
    for position, name in enumerate(names):
        hint = hints[name]
        assert get_origin(hint) is Annotated, f"{function.__name__}: {name} declares nothing"
        kind, declared = get_args(hint)
        required = position < first_default
        default = None if required else defaults[position - first_default]
        found.append(Parameter(name=name, type=kind, declared=declared, default=default, required=required))
    return found
