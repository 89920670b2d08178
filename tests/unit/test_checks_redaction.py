"""What is blotted out of the output of commands, and what is left as it is."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from statem_dist.checks.command import evaluate_command
from statem_dist.checks.context import CheckContext, Limits
from statem_dist.checks.process import Supervisor
from statem_dist.checks.redaction import BLOT, blotted, names_a_secret, secrets_of
from statem_dist.protocol.graph import Check, Command


@pytest.mark.parametrize(
    ("environ", "own", "secrets"),
    [
        ({"DEPLOY_TOKEN": "hush-token"}, {}, ["hush-token"]),
        ({"PASSWORD": "hush hush"}, {}, ["hush hush"]),
        ({"aws_secret_access_key": "hush-hush"}, {}, ["hush-hush"]),
        ({"DATABASE": "postgres://ida:hush-hush@host/db"}, {}, ["hush-hush"]),
        ({}, {"STATEM_REDIS_URL": "redis://:hush-hush@host:6379/0"}, ["redis://:hush-hush@host:6379/0", "hush-hush"]),
        ({"SIGNING_PRIVATE_KEY": "first line\nsecond one\nend\n"}, {}, None),
        ({"API_KEY": "short"}, {}, []),
        ({"KEYBOARD": "hush-hush", "TOKENS_USED": "12345678", "MONKEY": "hush-hush"}, {}, []),
        ({"DATABASE": "postgres://host/db", "HOME": "/home/ida:hush-hush@home"}, {"HOME": "/home/hush"}, []),
        ({"STATEM_CHECK_KEY": "r-e1.t2.hook.0", "STATEM_RUN_ID": "hush-hush"}, {}, []),
    ],
)
def test_secrets_are_known_by_their_names(
    environ: dict[str, str], own: dict[str, str], secrets: list[str] | None
) -> None:
    """By the names of variables, by being ours, or as the password of a URL; short ones are none."""
    found = secrets_of(environ, own)
    if secrets is None:
        assert {"first line\nsecond one\nend", "first line", "second one"} == set(found)
    else:
        assert list(found) == secrets


@pytest.mark.parametrize("name", ["PATH", "HOME", "TASK", "SEED", "TOKENIZER", "PASSWORD_FILE", "SECRETARY"])
def test_an_ordinary_name_names_no_secret(name: str) -> None:
    """The value of every other variable may be printed: blotting out all of them would garble honest output."""
    assert not names_a_secret(name)


def test_the_longest_secret_goes_first() -> None:
    """One that contains another one is blotted out as a whole."""
    secrets = secrets_of({"A_TOKEN": "hush-hush", "B_TOKEN": "hush-hush-hush"}, {})
    assert blotted("<hush-hush-hush> <hush-hush>", secrets) == f"<{BLOT}> <{BLOT}>"


def outcome(tmp_path: Path, run: str, **given: Any) -> Any:
    """Return the outcome of a command that was given a secret."""
    environ = {"PATH": os.environ["PATH"], "DEPLOY_TOKEN": "hush-token-4711", "WORD": "ordinary"}
    context = CheckContext("k", str(tmp_path), environ, "before_transfer", "r", "n", **given)
    command = Command(run)
    with Supervisor() as supervisor:
        return evaluate_command(Check(do=command), command, context, supervisor)


def test_output_has_no_secret_and_all_else(tmp_path: Path) -> None:
    """On both streams; the command itself got it, and wrote what it liked elsewhere."""
    found = outcome(
        tmp_path, 'echo "$WORD ($DEPLOY_TOKEN)"; echo "$DEPLOY_TOKEN" >&2; echo "$DEPLOY_TOKEN" > file; exit 3'
    )
    assert (found.output, found.exit_code) == (f"ordinary ({BLOT})\n{BLOT}", 3)
    assert (tmp_path / "file").read_text() == "hush-token-4711\n"


@pytest.mark.parametrize("before", range(60, 130, 5))
def test_no_cut_leaves_a_part_of_a_secret(tmp_path: Path, before: int) -> None:
    """Wherever the short output of a result is cut, the secret was blotted out before, and from the log as well."""
    limits = Limits(output_bytes_max=256)
    run = f'printf "%0{before}d" 0; printf %s "$DEPLOY_TOKEN"; printf "%0300d" 0'
    found = outcome(tmp_path, run, limits=limits)
    assert "hush" not in found.output + found.log
    assert BLOT in found.log
