"""Tokens as people make, list and revoke them at a shell."""

from __future__ import annotations

import getpass
import shlex
import subprocess

import pytest

from tests.support.programs import COMMAND, Site

pytestmark = pytest.mark.e2e


def test_a_token_is_revoked_by_its_text_as_well(site: Site) -> None:
    """Who has the text at hand need not cut the id out of it."""
    text = site.run("token", "create", "--role", "viewer").stdout.strip()
    assert site.json("token", "revoke", text)["id"] == text.split("_")[1]


def test_a_shell_keeps_the_token_that_is_printed(site: Site) -> None:
    """It is alone on stdout, whatever is told of it stands on stderr; the JSON has both."""
    command = (
        f"TOKEN=$({shlex.join(COMMAND)} token create --role agent --label team=blue --expires 30d) && echo =$TOKEN="
    )
    done = subprocess.run(["sh", "-c", command], cwd=site.folder, env=site.environment, capture_output=True, text=True)
    assert done.returncode == 0
    _, token_id, secret = done.stdout.strip("=\n").split("_", 2)
    assert done.stdout == f"=stm_{token_id}_{secret}=\n"
    assert f"Created: token {token_id} (agent, only runs with team=blue, expires in 30 d)." in done.stderr
    assert secret not in done.stderr
    made = site.json("token", "create", "--role", "viewer", "--name", "board")
    assert made["token"].startswith(f"stm_{made['id']}_")
    assert (made["name"], made["role"], made["labels"], made["state"]) == ("board", "viewer", {}, "live")
    assert (made["created_by"], made["expires_at"]) == (getpass.getuser(), None)


def test_secrets_are_shown_once_and_kept_nowhere(site: Site) -> None:
    """Not in lists, not in any file of the state directory, not in what the processes were started with."""
    made = site.json("token", "create", "--role", "admin")
    secret = made["token"].split("_", 2)[2]
    said = [site.run("token", "list"), site.run("token", "list", "--json"), site.run("token", "revoke", made["id"])]
    assert all(each.exit_code == 0 and made["id"] in each.stdout for each in said)
    assert not any(secret in each.stdout + each.stderr for each in said)
    kept = [path.read_bytes() for path in site.state_dir.rglob("*") if path.is_file()]
    assert any(made["id"].encode() in each for each in kept), "the append-only log has the token"
    assert not any(secret.encode() in each for each in kept)
    assert not any(secret in each for each in site.processes().values())


def test_a_token_is_revoked_once(site: Site) -> None:
    """It stays listed as revoked, by whoever did it first."""
    first = site.json("token", "create", "--role", "agent", "--label", "team=blue", "--label", "model=small")
    second = site.json("token", "create", "--role", "viewer", STATEM_AGENT_ID="planner")
    revoked = site.json("token", "revoke", first["id"])
    assert site.json("token", "revoke", first["id"], STATEM_AGENT_ID="planner") == revoked
    listed = site.json("token", "list")["tokens"]
    assert [(each["id"], each["state"], each["created_by"]) for each in listed] == [
        (second["id"], "live", "planner"),
        (first["id"], "revoked", getpass.getuser()),
    ]
    assert listed[1]["labels"] == {"team": "blue", "model": "small"}
    told = site.run("token", "list").stdout.splitlines()
    assert told[0].split() == ["id", "name", "role", "made", "state", "labels"]
    assert "never expires" in told[1]
    assert f"ago by {getpass.getuser()}" in told[2]


def test_looking_for_tokens_starts_nothing(site: Site) -> None:
    """Where no state directory is there are none."""
    assert site.json("token", "list") == {"ok": True, "tokens": []}
    assert site.json("token", "revoke", "0123456789abcdef", expect=1)["code"] == "not_found"
    assert not site.state_dir.exists()


@pytest.mark.parametrize(
    ("words", "exit_code", "told"),
    [
        ([], 64, "Missing option '--role'"),
        (["--role", "root"], 64, "'root' is not one of"),
        (["--role", "agent", "--label", "blue"], 64, "--label takes KEY=VALUE, not 'blue'"),
        (["--role", "agent", "--expires", "soon"], 1, "'soon' is no time at which a token can expire"),
        (["--role", "agent", "--name", "a\x1b[31m"], 1, "all printable"),
    ],
)
def test_a_token_that_cannot_be_is_not_made(site: Site, words: list[str], exit_code: int, told: str) -> None:
    """The error names what is wrong; stdout stays empty, so that nothing is taken for a token."""
    said = site.run("token", "create", *words)
    assert (said.exit_code, said.stdout) == (exit_code, "")
    assert told in said.stderr
    assert site.json("token", "list")["tokens"] == []
