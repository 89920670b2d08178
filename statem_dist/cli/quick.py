"""Reading a plain command line straight from the declarations of its command.

It understands what scripts and agents write: known options with good values, and the arguments in order. Anything
else is not judged here; it is left to the full application, which explains.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Literal, get_args, get_origin

from statem_dist.cli.declare import Argument, Option, Parameter, parameters_of


class NotPlain(Exception):
    """This command line needs the full application."""


def read(command: Callable[..., Any], words: Sequence[str]) -> dict[str, Any]:
    """Return the values for a command's parameters.

    Args:
        command: a function with declared parameters.
        words: what follows the name of the command.

    Raises:
        NotPlain: it takes more than this to understand them.
    """
    parameters = parameters_of(command)
    options = {
        spelling: (parameter, switch)
        for parameter in parameters
        if isinstance(parameter.declared, Option)
        for spelling, switch in parameter.declared.spellings.items()
    }
    arguments = [parameter for parameter in parameters if isinstance(parameter.declared, Argument)]
    values: dict[str, Any] = {}
    rest = list(words)
    while rest:
        word = rest.pop(0)
        if word == "--" or (word.startswith("-") and word != "-" and word.partition("=")[0] not in options):
            raise NotPlain
        if not word.startswith("-") or word == "-":
            if not arguments:
                raise NotPlain
            parameter = arguments[0]
            value = _value(parameter, word)
            if isinstance(value, list):
                # The last argument, which takes all the words that are left.
                values.setdefault(parameter.name, []).extend(value)
            else:
                arguments.pop(0)
                values[parameter.name] = value
            continue
        spelling, sign, text = word.partition("=")
        parameter, switch = options[spelling]
        if parameter.type is bool:
            if sign:
                raise NotPlain
            values[parameter.name] = switch
            continue
        if not sign:
            if not rest:
                raise NotPlain
            text = rest.pop(0)
        value = _value(parameter, text)
        if isinstance(value, list):
            values.setdefault(parameter.name, []).extend(value)
        else:
            values[parameter.name] = value
    if any(parameter.required and parameter.name not in values for parameter in parameters):
        raise NotPlain
    return {parameter.name: values.get(parameter.name, parameter.default) for parameter in parameters}


def _value(parameter: Parameter, text: str) -> Any:
    """Return the value that a text stands for."""
    kind = parameter.type
    if NoneType in get_args(kind):
        (kind,) = (member for member in get_args(kind) if member is not NoneType)
    if get_origin(kind) is list:
        return [text]
    if get_origin(kind) is Literal:
        if text not in get_args(kind):
            raise NotPlain
        return text
    if kind in (str, Path):
        return kind(text)
    try:
        number = kind(text)
    except ValueError:
        raise NotPlain from None
    declared = parameter.declared
    assert isinstance(declared, Option), "numbers are given by options"
    too_small = declared.min is not None and not number >= declared.min
    too_great = declared.max is not None and not number <= declared.max
    if too_small or too_great:
        raise NotPlain
    return number
