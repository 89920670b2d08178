"""The Typer application, made of the declarations of all commands: help, completion, and the words for mistakes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import wraps
from typing import Annotated, Any

import typer

from statem_dist.cli.commands import COMMANDS, GROUPS, load
from statem_dist.cli.declare import Argument, Parameter, parameters_of


def make_app() -> typer.Typer:
    """Return the application with every command."""
    app = typer.Typer(
        name="statem-dist",
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        context_settings={"help_option_names": ["-h", "--help"]},
        help="Runbooks for long agent runs: checked, recoverable transitions, on as many workers as there are.",
    )
    app.callback(invoke_without_command=True)(_root)
    groups: dict[str, typer.Typer] = {}
    for name in COMMANDS:
        group, _, verb = name.rpartition(" ")
        if group and group not in groups:
            groups[group] = typer.Typer(help=GROUPS[group], no_args_is_help=True)
            app.add_typer(groups[group], name=group)
        (groups[group] if group else app).command(verb)(_typed(load(name)))
    return app


def _root(
    version: Annotated[bool, typer.Option("--version", metavar="", help="Print the version and exit.")] = False,
) -> None:
    """Runbooks for long agent runs: checked, recoverable transitions, on as many workers as there are."""
    if version:
        from statem_dist import __version__

        typer.echo(f"statem-dist {__version__}")
        raise typer.Exit


def _typed(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command with its declarations in Typer's terms."""
    parameters = parameters_of(command)

    @wraps(command)
    def call(**values: Any) -> Any:
        return command(**values)

    call.__signature__ = inspect.Signature([_typed_parameter(parameter) for parameter in parameters])  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: _annotation(parameter) for parameter in parameters}
    return call


def _typed_parameter(parameter: Parameter) -> inspect.Parameter:
    return inspect.Parameter(
        parameter.name,
        inspect.Parameter.KEYWORD_ONLY,
        default=inspect.Parameter.empty if parameter.required else parameter.default,
        annotation=_annotation(parameter),
    )


def _annotation(parameter: Parameter) -> Any:
    declared = parameter.declared
    completer = _completer(declared.complete) if declared.complete else None
    if isinstance(declared, Argument):
        argument = typer.Argument(metavar=declared.metavar, help=declared.help, autocompletion=completer)
        return Annotated[parameter.type, argument]
    option = typer.Option(
        *declared.names,
        # A flag takes no value, so nothing stands for one.
        metavar="" if parameter.type is bool else declared.metavar,
        help=declared.help,
        min=declared.min,
        max=declared.max,
        autocompletion=completer,
    )
    return Annotated[parameter.type, option]


def _completer(kind: str) -> Callable[[typer.Context], list[str]]:
    """Return what Typer asks for the values of a parameter, given what is typed so far."""

    def complete(ctx: typer.Context) -> list[str]:
        from statem_dist.cli.completing import offered

        return offered(kind, run_id=ctx.params.get("run_id"), state_dir=ctx.params.get("state_dir"))

    return complete
