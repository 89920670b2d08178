"""The Stop hook as a host calls it: always one JSON document, always exit code 0, always in time."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import time
from typing import Any

import pytest

from tests.support.programs import COMMAND, Site, eventually

pytestmark = pytest.mark.e2e

TIME_SECONDS = 5.0
"""What a host may have to wait, with the start of the process."""

LOOP = "nodes: {a: {prompt: Work., next: [b, end]}, b: {next: a}, end: The end.}"
GATED = """
nodes:
  a: {before_transfer: [{run: "echo $$ >> begun; until [ -e opened ]; do sleep 0.05; done"}], next: b}
  b: The end.
"""
ASKING = "nodes: {a: {before_transfer: [{type: manual, text: Good?}], next: b}, b: The end.}"

FIRST = {"session_id": "s", "hook_event_name": "Stop", "stop_hook_active": False}
AGAIN = {**FIRST, "stop_hook_active": True}


def stop(site: Site, call: dict[str, Any] | str, *words: str, **settings: str) -> dict[str, Any]:
    """Call the hook as a host does, and return the document; it must be one that both hosts accept."""
    began = time.monotonic()
    said = subprocess.run(
        [*COMMAND, "hook", "stop", *words],
        input=call if isinstance(call, str) else json.dumps(call),
        cwd=site.folder,
        env={**site.environment, **settings},
        capture_output=True,
        encoding="utf-8",
        timeout=60,
    )
    assert time.monotonic() - began < TIME_SECONDS
    assert (said.returncode, said.stderr) == (0, "")
    document = json.loads(said.stdout)
    assert isinstance(document, dict)
    assert set(document) in ({"decision", "reason"}, {"systemMessage"}, set())
    return document


def goes_on(document: dict[str, Any]) -> bool:
    """Return whether the agent is told to go on."""
    return document.get("decision") == "block"


# --- the agent may stop ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["", "\n", "{", "[]", '{"stop_hook_active": 1}', "\x00"])
def test_what_is_no_json_lets_the_agent_stop(site: Site, call: str) -> None:
    """Also with an active run; the human is told."""
    site.start(LOOP)
    assert "no usable JSON" in stop(site, call)["systemMessage"]


def test_a_host_that_keeps_its_pipe_open_is_answered(site: Site) -> None:
    """The hook does not wait for the end of its input for ever."""
    site.start(LOOP)
    began = time.monotonic()
    with subprocess.Popen(
        [*COMMAND, "hook", "stop"],
        cwd=site.folder,
        env=site.environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as hook:
        assert hook.stdin is not None
        assert hook.stdout is not None
        assert hook.stderr is not None
        hook.stdin.write(b"{")
        hook.stdin.flush()
        document = json.loads(hook.stdout.read())
        assert (hook.wait(), hook.stderr.read()) == (0, b"")
    assert time.monotonic() - began < TIME_SECONDS
    assert "nothing was found out" in document["systemMessage"]


def test_without_a_run_nothing_is_said_or_made(site: Site) -> None:
    """A project without runs stays as it is: no server is started, no folder appears."""
    assert stop(site, FIRST) == {}
    assert not site.state_dir.exists()


@pytest.mark.parametrize(
    ("url", "told"),
    [
        ("redis://127.0.0.1:1/0", "state store cannot be used"),
        ("carrier-pigeon://coop", "STATEM_REDIS_URL must begin with"),
    ],
)
def test_an_unreachable_store_lets_the_agent_stop(site: Site, url: str, told: str) -> None:
    """The human is told what is wrong."""
    assert told in stop(site, FIRST, STATEM_REDIS_URL=url)["systemMessage"]


def test_a_store_that_does_not_answer_lets_the_agent_stop(site: Site) -> None:
    """A server that takes connections and is silent costs no more than the limit."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"redis://127.0.0.1:{silent.getsockname()[1]}/0"
        assert "systemMessage" in stop(site, FIRST, STATEM_REDIS_URL=url)


@pytest.mark.chaos
def test_a_frozen_server_lets_the_agent_stop(site: Site) -> None:
    """The same for the embedded one."""
    site.start(LOOP)
    pid = site.server_pid
    os.kill(pid, signal.SIGSTOP)
    try:
        assert "systemMessage" in stop(site, FIRST)
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_wrong_setting_lets_the_agent_stop(site: Site) -> None:
    """Whatever is wrong with the environment is said, and is no reason to hold an agent."""
    site.start(LOOP)
    assert "STATEM_PATIENCE_SECONDS" in stop(site, FIRST, STATEM_PATIENCE_SECONDS="soon")["systemMessage"]


def test_an_unknown_run_lets_the_agent_stop(site: Site) -> None:
    """A run that does not exist is named to the human."""
    site.start(LOOP)
    assert "nobody" in stop(site, FIRST, "--run-id", "nobody")["systemMessage"]


def test_an_agent_whose_reminders_cannot_be_counted_is_not_reminded(site: Site) -> None:
    """A server that refuses writes lets the agent stop: a loop could not be ended."""
    site.start(LOOP)
    site.redis("CONFIG", "SET", "maxmemory", "1")
    assert "state store cannot be used" in stop(site, FIRST)["systemMessage"]
    site.redis("CONFIG", "SET", "maxmemory", "0")
    assert goes_on(stop(site, FIRST))


def test_a_finished_run_lets_the_agent_stop(site: Site) -> None:
    """An end needs no reminder, and the human no message."""
    site.start(LOOP)
    site.json("goto", "end")
    assert stop(site, FIRST) == {}


def test_a_stop_state_lets_the_agent_stop(site: Site) -> None:
    """The variable names them."""
    site.start(LOOP)
    assert stop(site, FIRST, STATEM_AUTOLOOP_STOP_STATES="x, a") == {}
    assert goes_on(stop(site, FIRST, STATEM_AUTOLOOP_STOP_STATES="x"))


def test_a_run_that_waits_for_a_person_lets_the_agent_stop(site: Site) -> None:
    """Until that person has decided."""
    site.start(ASKING)
    site.json("goto", "b", "--on-manual", "wait", expect=7)
    assert stop(site, FIRST) == {}
    site.json("reject", "r")
    assert goes_on(stop(site, FIRST))


def test_background_tasks_let_the_agent_stop(site: Site) -> None:
    """The host wakes the agent when they are done."""
    site.start(LOOP)
    assert stop(site, {**FIRST, "background_tasks": [{"id": "t1"}]}) == {}


@pytest.mark.chaos
def test_a_check_that_runs_lets_the_agent_stop_until_its_caller_is_killed(site: Site) -> None:
    """Who else would finish a transition that a killed command has left?"""
    site.start(GATED)
    moving = site.begin("goto", "b")
    eventually(lambda: site.lines("begun"), "the check has begun")
    assert stop(site, FIRST) == {}
    moving.kill()
    assert goes_on(stop(site, FIRST))
    site.write("opened")
    assert site.json("cur")["current"] == "b"


# --- the agent is told to go on ----------------------------------------------------------------------------------


@pytest.mark.parametrize("host", ["claude", "codex"])
def test_an_agent_is_told_to_go_on_as_long_as_its_run_does(site: Site, host: str) -> None:
    """Once, then again after each thing that happened to the run, on this node and on the next."""
    site.start(LOOP)
    first = stop(site, FIRST, "--host", host)
    assert goes_on(first)
    assert f"cur --run-id r --state-dir {site.state_dir}" in first["reason"]
    assert "nothing has happened" in stop(site, AGAIN, "--host", host)["systemMessage"]
    site.json("save")
    assert goes_on(stop(site, AGAIN, "--host", host))
    site.json("goto", "b")
    assert goes_on(stop(site, AGAIN, "--host", host))
    assert not goes_on(stop(site, AGAIN, "--host", host))


def test_on_one_visit_the_budget_is_used_up(site: Site) -> None:
    """However much happens, six reminders are enough; another session has its own."""
    site.start(LOOP)
    assert goes_on(stop(site, FIRST))
    for _ in range(5):
        site.json("save")
        assert goes_on(stop(site, AGAIN))
    site.json("save")
    assert "after 6 reminders" in stop(site, AGAIN)["systemMessage"]
    assert not goes_on(stop(site, FIRST))
    assert goes_on(stop(site, {**FIRST, "session_id": "another"}))
    site.json("goto", "b")
    assert goes_on(stop(site, AGAIN))


def test_who_yields_once_is_never_told_twice_in_a_row(site: Site) -> None:
    """That is how StateM's own hook works."""
    site.start(LOOP)
    assert goes_on(stop(site, FIRST, "--yield-once"))
    site.json("goto", "b")
    assert stop(site, AGAIN, "--yield-once") == {}


def test_the_state_directory_is_looked_for_where_the_agent_works(site: Site) -> None:
    """A relative one is meant from the folder that the host names, which need not be that of the hook."""
    del site.environment["STATEM_STATE_DIR"]
    site.state_dir = site.folder / "project" / ".statem"
    site.state_dir.parent.mkdir()
    path = site.write("r.yaml", LOOP)
    site.json("start", str(path), "--state-dir", str(site.state_dir))
    assert stop(site, FIRST) == {}
    assert goes_on(stop(site, {**FIRST, "cwd": str(site.state_dir.parent)}))


# --- installing it -----------------------------------------------------------------------------------------------


def test_the_hook_is_installed_once(site: Site) -> None:
    """What was there stays; the installed command is one that answers; a second time changes nothing."""
    folder = site.folder / ".claude"
    folder.mkdir()
    settings = folder / "settings.json"
    settings.write_text('{\n    "model": "m",\n    "hooks": {"PreToolUse": []}\n}\n')
    before = settings.read_text()
    shown = site.json("hook", "install", "--dry-run")
    assert (shown["changed"], settings.read_text()) == (True, before)
    assert '+                        "command": "statem-dist hook stop --host claude",' in shown["diff"]
    assert site.run("hook", "install", "--dry-run").stdout.strip() == shown["diff"]
    assert site.json("hook", "install")["changed"]
    after = json.loads(settings.read_text())
    assert (after["model"], after["hooks"]["PreToolUse"]) == ("m", [])
    assert after["hooks"]["Stop"][0]["hooks"][0]["command"] == "statem-dist hook stop --host claude"
    assert not site.json("hook", "install")["changed"]
    assert json.loads(settings.read_text()) == after


def test_the_user_has_settings_of_their_own(site: Site) -> None:
    """``--user`` writes into the home directory, and says what else Codex wants."""
    said = site.run("hook", "install", "--host", "codex", "--user", HOME=str(site.folder / "home"))
    assert "trusted" in said.stdout
    written = json.loads((site.folder / "home" / ".codex" / "hooks.json").read_text())
    assert written["hooks"]["Stop"][0]["hooks"][0]["command"] == "statem-dist hook stop --host codex"


def test_settings_that_are_no_json_are_refused(site: Site) -> None:
    """The error names file and line, and the file stays as it is."""
    (site.folder / ".claude").mkdir()
    path = site.write(".claude/settings.json", '{\n  "a": 1,\n  // mine\n}')
    refusal = site.json("hook", "install", expect=1)
    assert f"{path}:3:" in refusal["error"]
    assert path.read_text().endswith("// mine\n}")


@pytest.mark.parametrize("words", [("pause",), ("cancel", "--run"), ("terminate",)])
def test_an_agent_may_leave_a_run_that_is_held(site: Site, words: tuple[str, ...]) -> None:
    """While the run is paused, and once it was cancelled, there is nothing for the agent to do."""
    site.start(LOOP)
    assert goes_on(stop(site, FIRST))
    site.json(*words, "--run-id", "r")
    assert stop(site, FIRST) == {}
