"""Plain command lines are read without Typer, and everything else is left to it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from typer.main import get_command

from statem_dist.cli.commands import COMMANDS, load
from statem_dist.cli.completing import KINDS
from statem_dist.cli.declare import Argument, Option, parameters_of
from statem_dist.cli.full import make_app
from statem_dist.cli.main import run
from statem_dist.cli.quick import NotPlain, read


def sample(
    target: Annotated[str, Argument(metavar="TARGET")],
    where: Annotated[Path | None, Argument(metavar="WHERE")] = None,
    yes: Annotated[bool, Option("--yes")] = False,
    wait: Annotated[bool, Option("--wait/--no-wait")] = True,
    tail: Annotated[int | None, Option("--tail", "-n", min=0, max=9)] = None,
    timeout: Annotated[float | None, Option("--timeout", min=0)] = None,
    label: Annotated[list[str] | None, Option("--label")] = None,
    mode: Annotated[Literal["fail", "wait"], Option("--mode")] = "fail",
) -> None:
    """Take one parameter of each kind."""


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["a"], {}),
        (["a", "b"], {"where": Path("b")}),
        (["--yes", "a", "--no-wait"], {"yes": True, "wait": False}),
        (["a", "--tail", "3"], {"tail": 3}),
        (["a", "--tail=3"], {"tail": 3}),
        (["a", "-n", "0"], {"tail": 0}),
        (["a", "--timeout", "1.5"], {"timeout": 1.5}),
        (["a", "--label", "x=1", "--label", "y=2"], {"label": ["x=1", "y=2"]}),
        (["a", "--mode", "wait"], {"mode": "wait"}),
    ],
)
def test_plain_words_become_values(words: list[str], expected: dict[str, Any]) -> None:
    """Known options with good values are read, and what is not given has its default."""
    defaults = {parameter.name: parameter.default for parameter in parameters_of(sample)}
    assert read(sample, words) == defaults | {"target": "a"} | expected


@pytest.mark.parametrize(
    "words",
    [
        [],
        ["a", "b", "c"],
        ["a", "--help"],
        ["a", "--bogus"],
        ["a", "--tail"],
        ["a", "--tail", "ten"],
        ["a", "--tail", "10"],
        ["a", "--tail", "-1"],
        ["a", "--timeout", "nan"],
        ["a", "--mode", "perhaps"],
        ["a", "--yes=no"],
        ["--", "a"],
    ],
)
def test_anything_else_is_left_to_the_full_application(words: list[str]) -> None:
    """Mistakes, help and unusual forms are not judged here."""
    with pytest.raises(NotPlain):
        read(sample, words)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_declared_and_says_what_it_does(name: str) -> None:
    """Each command can be loaded, declares every parameter, and has help for each option."""
    command = load(name)
    assert command.__doc__
    for parameter in parameters_of(command):
        assert parameter.declared.help or isinstance(parameter.declared, Argument), f"{name}: {parameter.name}"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_shows_how_it_is_called(name: str) -> None:
    """Its help ends with an example; ``transfer`` is another name of ``goto`` and shares its words."""
    shown = {"transfer": "goto"}.get(name, name)
    assert f"Example: statem-dist {shown}" in str(load(name).__doc__)


def test_every_declared_kind_of_value_can_be_offered() -> None:
    """A declaration cannot name something that a shell is never offered."""
    declared = {each.declared.complete for name in COMMANDS for each in parameters_of(load(name))}
    assert declared == {"", *KINDS}


def test_flags_are_shown_without_a_value() -> None:
    """The help shows what stands for the value of an option, and a flag has none."""
    full: Any = get_command(make_app())
    flags = [parameter for parameter in full.commands["goto"].params if parameter.name in ("wait", "yes", "as_json")]
    assert [flag.metavar for flag in flags] == ["", "", ""]


@pytest.mark.parametrize(
    ("words", "error", "hint"),
    [
        ("goto", "Missing argument 'TARGET'.", "`statem-dist goto --help` shows how it is called."),
        ("goto b --timeout", "Option '--timeout' requires", "`statem-dist goto --help` shows how it is called."),
        ("dynamic write", "Missing argument 'FILE'.", "`statem-dist dynamic write --help` shows how it is called."),
        ("runs --status lost", "'--status': 'lost' is not one of", "`statem-dist runs --help` shows how it is called."),
        ("dynamic wriet", "No such command 'wriet'", "`statem-dist dynamic --help` lists the commands."),
        ("statsu", "No such command 'statsu'", "`statem-dist --help` lists the commands."),
    ],
)
def test_a_mistake_is_told_with_where_to_look(
    words: str, error: str, hint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """The hint names the help of the command that was meant, as far as the words say which."""
    assert run(words.split()) == 64
    said = capsys.readouterr().err
    assert error in said
    assert f"Hint: {hint}\n" in said


def test_the_full_application_has_the_same_commands() -> None:
    """Help and completion know every command of the table, and no other."""
    full: Any = get_command(make_app())
    names = {
        name if not hasattr(command, "commands") else f"{name} {verb}"
        for name, command in full.commands.items()
        for verb in getattr(command, "commands", {"": None})
    }
    assert names == set(COMMANDS)


@pytest.mark.e2e
@pytest.mark.parametrize("command", ["cur", "next", "history"])
def test_a_short_command_loads_little(command: str, tmp_path: Path) -> None:
    """What agents call again and again loads neither Typer nor redis-py nor a YAML parser nor pydantic."""
    runbook = tmp_path / "loop.yaml"
    runbook.write_text("nodes: {a: {next: b}, b: {next: a}}\n", encoding="utf-8")
    script = (
        f"import json, sys\nfrom statem_dist.cli.main import run\nrun(['start', {str(runbook)!r}, '--run-id', 'r'])\n"
    )
    watch = (
        "import json, sys\n"
        "from statem_dist.cli.main import run\n"
        f"status = run([{command!r}, '--run-id', 'r', '--json'])\n"
        "print(json.dumps([status, sorted({name.partition('.')[0] for name in sys.modules})]))\n"
    )
    try:
        subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)
        done = subprocess.run([sys.executable, "-c", watch], check=True, capture_output=True, text=True)
    finally:
        down = "from statem_dist.cli.main import run; run(['down'])"
        subprocess.run([sys.executable, "-c", down], check=True, capture_output=True)
    status, loaded = json.loads(done.stdout.splitlines()[-1])
    assert status == 0
    assert not {"typer", "rich", "redis", "celery", "kombu", "pydantic", "yaml", "asyncio"} & set(loaded)
