"""The command line through a service: the same words as beside the store, and what only a service has."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import stat
import subprocess
from collections.abc import Mapping
from typing import Any

import pytest

from statem_dist.cli import completing
from tests.support.programs import COMMAND, Said, Site, eventually

pytestmark = pytest.mark.e2e

NOWHERE = {"STATEM_URL": "http://127.0.0.1:1", "STATEM_PATIENCE_SECONDS": "0.2"}
"""A service that refuses connections."""

RUNBOOK = """
name: remote
nodes:
  a:
    prompt: Read.
    before_transfer:
      - {run: test -e allowed, name: allowed}
      - {type: manual, text: May it go?, name: may}
    dynamic_before_transfer: {}
    next: b
  b:
    in_hook: [{run: "true"}]
    before_transfer: [{type: manual, text: Is it safe?, by: operator}]
    next: c
  c: The end.
edges:
  - {from: a, to: c, max_attempts: 2, condition: [{type: checklist, items: [one, two]}]}
"""

GATED = """
nodes:
  a:
    before_transfer: [{run: "echo begun >> begun; until [ -e opened ]; do sleep 0.05; done"}]
    next: b
  b: The end.
"""


class Far:
    """A site whose commands go to its service; ``near`` are commands on the very store that the service has."""

    def __init__(self, site: Site) -> None:
        self.site = site
        site.worker("-c", "2")
        self.url = site.api()
        self.there = {"STATEM_URL": self.url}

    def run(self, *words: str, **settings: str) -> Said:
        """Run a command through the service."""
        return self.site.run(*words, **self.there, **settings)

    def json(self, *words: str, expect: int = 0, **settings: str) -> dict[str, Any]:
        """Run a command with ``--json`` through the service."""
        return self.site.json(*words, expect=expect, **self.there, **settings)

    def start(self, runbook: str, run_id: str = "r", *words: str) -> dict[str, Any]:
        """Write a runbook file and start a run of it through the service."""
        path = self.site.write(f"{run_id}.yaml", runbook)
        return self.json("start", str(path), "--run-id", run_id, *words)


@pytest.fixture
def far(site: Site) -> Far:
    """A service with a worker, in an empty folder."""
    return Far(site)


# --- the same as beside the store ------------------------------------------------------------------------------------

LOOKS = [
    "cur",
    "state",
    "ls a",
    "ls nowhere",
    "next",
    "history",
    "history --tail 2",
    "history --after 3 --limit 1",
    "history --raw",
    "history --raw --tail 3",
    "evidence",
    "graph --format json",
    "graph --format svg",
    "dynamic list",
    "runs",
    "runs --status finished",
    "approvals",
    "cur --run-id nobody",
    "goto nowhere",
]


def volatile(text: str) -> str:
    """Return a text without how long ago something was, and without the columns that make room for that."""
    return re.sub(r" +", " ", re.sub(r"\d+ (s|min)\b", "AGE", text))


def require_sameness(far: Far, what: str) -> None:
    """Each look is the same through the service and beside the store: exit code, JSON, text and talk."""
    for look in LOOKS:
        words = [
            *look.split(),
            *([] if look.split()[0] in ("runs", "approvals") or "--run-id" in look else ["--run-id", "r"]),
        ]
        for form in ([], ["--json"]):
            beside, through = far.site.run(*words, *form), far.run(*words, *form)
            where = f"{what}: {look} {form}"
            assert through.exit_code == beside.exit_code, (where, through, beside)
            assert volatile(through.stdout) == volatile(beside.stdout), where
            assert volatile(through.stderr) == volatile(beside.stderr), where


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_every_look_is_the_same_through_a_service(far: Far) -> None:
    """In each state that a run can be in."""
    site = far.site
    far.start(RUNBOOK, "r", "--label", "team=blue", "--env", "SECRET=hunter2")
    require_sameness(far, "just started")
    assert far.run("goto", "b").exit_code == 2
    require_sameness(far, "blocked")
    site.write("checks.yaml", "- {type: manual, text: Is it new?, reason: it is}\n")
    far.json("dynamic", "write", str(site.folder / "checks.yaml"), "--agent-id", "me", "--role", "dev")
    site.write("allowed")
    assert far.run("goto", "b", "--on-manual", "wait").exit_code == 7
    require_sameness(far, "waiting")
    far.json("pause", "--reason", "lunch")
    require_sameness(far, "paused")
    far.json("resume")
    far.json("cancel")
    far.json("goto", "b", "--yes")
    require_sameness(far, "moved")
    far.json("terminate", "--reason", "enough")
    require_sameness(far, "terminated")
    assert "hunter2" not in far.run("history", "--raw").stdout + far.run("cur", "--json").stdout


def test_moving_says_the_same_through_a_service(far: Far) -> None:
    """The same steps on two runs, one through the service and one beside the store, are told in the same words."""
    site = far.site
    path = str(site.write("r.yaml", RUNBOOK))

    def steps(there: Mapping[str, str], run_id: str) -> list[Said]:
        at = ["--run-id", run_id]
        said = [
            site.run("start", path, *at, **there),
            site.run("start", path, *at, "--on-existing", "fail", **there),
            site.run("goto", "b", *at, **there),
            site.run("goto", "b", *at, "--confirm", "nothing", **there),
            site.run("goto", "c", *at, **there),
            site.run("goto", "c", *at, **there),
            site.run("goto", "c", *at, **there),
            site.run("save", *at, **there),
        ]
        site.write("allowed")
        said += [
            site.run("goto", "b", *at, "--confirm", "may", "--decline", "may", "--reason", "no", **there),
            site.run("goto", "b", *at, "--confirm", "may", **there),
            site.run("goto", "c", *at, "--yes", **there),
            site.run("cancel", *at, **there),
            site.run("pause", *at, **there),
            site.run("goto", "c", *at, **there),
            site.run("pause", *at, **there),
            site.run("resume", *at, **there),
            site.run("start", path, *at, "--on-existing", "restart", **there),
            site.run("cancel", "--run", *at, **there),
            site.run("goto", "b", *at, **there),
        ]
        (site.folder / "allowed").unlink()
        return said

    beside, through = steps({}, "near"), steps(far.there, "away")
    for one, other in zip(beside, through, strict=True):
        # Who holds or ends a run is the user beside the store, and the token at the service.
        told = [
            re.sub(r"by \S+", "by WHO", text.replace("near", "RUN").replace("away", "RUN"))
            for each in (one, other)
            for text in (each.stdout, each.stderr)
        ]
        assert one.exit_code == other.exit_code, (one, other)
        assert told[:2] == told[2:]
    assert [each.exit_code for each in through] == [0, 5, 2, 1, 2, 2, 2, 0, 2, 0, 2, 5, 0, 5, 5, 0, 0, 0, 5]


def test_the_json_of_a_move_is_the_same(far: Far) -> None:
    """Key by key, but for times, ids and who executed."""

    def shape(document: object) -> object:
        if isinstance(document, dict):
            return {key: shape(value) for key, value in document.items()}
        if isinstance(document, list):
            return [shape(each) for each in document]
        return type(document).__name__

    path = str(far.site.write("r.yaml", RUNBOOK))
    for words, code in (
        (["start", path], 0),
        (["goto", "b"], 2),
        (["goto", "b", "--yes"], 2),
        (["cancel"], 5),
        (["pause"], 0),
    ):
        beside = far.site.json(*words, "--run-id", "near", expect=code)
        through = far.json(*words, "--run-id", "away", expect=code)
        assert shape(through) == shape(beside), words


# --- which run -------------------------------------------------------------------------------------------------------


def test_the_active_run_is_known_here(far: Far) -> None:
    """``start`` and ``cur`` belong together without a run id; the note is for its owner alone, one service each."""
    started = far.json("start", str(far.site.write("one.yaml", RUNBOOK)))
    assert far.json("cur")["run_id"] == started["run_id"]
    assert far.json("start", str(far.site.folder / "one.yaml"))["run_id"] == started["run_id"], "it is resumed"
    assert far.json("start", str(far.site.folder / "one.yaml"), "--fresh")["run_id"] != started["run_id"]
    note = far.site.state_dir / "active.json"
    assert stat.S_IMODE(note.stat().st_mode) == 0o600
    assert far.site.json("cur", expect=1)["error"] == "No active run.", "beside the store nothing was started"
    other = far.site.api()
    assert far.site.json("cur", expect=1, STATEM_URL=other)["error"] == "No active run.", "nor at another service"
    note.write_text("{ half a note")
    assert far.json("cur", expect=1)["error"] == "No active run."
    far.start(RUNBOOK, "again")
    assert far.json("cur")["run_id"] == "again"


def test_commands_that_start_together_all_note_their_run(far: Far) -> None:
    """Each file keeps the run that was started from it, whoever else notes something meanwhile."""
    names = [f"f{number}" for number in range(6)]
    for name in names:
        far.site.write(f"{name}.yaml", RUNBOOK)
    programs = [far.site.begin("start", f"{name}.yaml", "--run-id", name, **far.there) for name in names]
    assert [program.wait().exit_code for program in programs] == [0] * len(names)
    for name in names:
        assert far.json("start", f"{name}.yaml")["run_id"] == name


def test_a_start_that_is_refused_leaves_the_active_run(far: Far) -> None:
    """The note goes back to the run that was meant before."""
    far.start(RUNBOOK, "first")
    far.start(RUNBOOK, "second")
    far.json("pause", "--run-id", "first")
    assert far.json("start", str(far.site.folder / "first.yaml"), "--run-id", "first", expect=5)["code"] == "run_paused"
    assert far.json("cur")["run_id"] == "second"


# --- waiting ---------------------------------------------------------------------------------------------------------


def test_waits_end_as_beside_the_store(far: Far) -> None:
    """Submitted, timed out, in each other's way, and done."""
    far.start(GATED)
    submitted = far.json("goto", "b", "--no-wait")
    assert (submitted["ok"], submitted["outcome"]) == (True, "pending")
    eventually(lambda: far.site.lines("begun"), "the worker has begun")
    assert far.json("goto", "b", expect=5)["code"] == "transition_in_flight"
    assert "is being executed by" in str(far.run("cur").stdout)
    far.json("cancel")
    pending = far.json("goto", "b", "--timeout", "0.5", expect=7)
    assert "still pending" in str(pending["error"])
    far.json("cancel")
    going = far.site.begin("goto", "b", "--json", **far.there)
    eventually(lambda: len(far.site.lines("begun")) == 3, "the worker has begun again")
    far.site.write("opened")
    assert going.wait().data["current"] == "b"


def test_ctrl_c_leaves_the_transition_to_the_service(far: Far) -> None:
    """It goes on, which is said with the command that would end it."""
    far.start(GATED)
    going = far.site.begin("goto", "b", **far.there)
    eventually(lambda: far.site.lines("begun"), "the worker has begun")
    going.interrupt()
    said = going.wait()
    assert said.exit_code == 130
    assert "goes on at the service" in said.stderr
    assert "statem-dist cancel --run-id r" in said.stderr
    far.site.write("opened")
    eventually(lambda: far.json("cur")["current"] == "b", "the run has moved")


def test_who_waits_bears_a_restart_of_the_service(far: Far) -> None:
    """The transition goes on meanwhile, and its outcome is told in the end."""
    port = far.url.rpartition(":")[2].partition("/")[0]
    far.start(GATED)
    going = far.site.begin("goto", "b", "--json", **far.there)
    eventually(lambda: far.site.lines("begun"), "the worker has begun")
    (pid,) = far.site.processes("statem_api")
    os.kill(pid, 9)
    far.site.write("opened")
    again = far.site.begin("api", "--port", port)
    eventually(lambda: "Serving: " in again.stdout, "the service is back")
    assert going.wait().data["current"] == "b"
    assert [each["event"] for each in far.site.history()] == ["goto"]


def test_a_terminal_is_asked_and_shown_the_checks(far: Far) -> None:
    """Questions come before, and each check as it settles."""
    far.start(RUNBOOK)
    far.site.write("allowed")
    main, side = pty.openpty()
    program = subprocess.Popen(
        [*COMMAND, "goto", "b"],
        cwd=far.site.folder,
        env={**far.site.environment, **far.there},
        stdin=side,
        stdout=side,
        stderr=side,
        start_new_session=True,
    )
    os.close(side)
    seen = b""

    def reads(mark: bytes) -> bool:
        nonlocal seen
        while select.select([main], [], [], 0)[0]:
            try:
                seen += os.read(main, 4096)
            except OSError:
                break
        return mark in seen

    try:
        eventually(lambda: reads(b"Confirm: May it go?"), "it asks", lambda: seen)
        os.write(main, b"y\n")
        eventually(lambda: reads(b"Moved: a -> b"), "it moves", lambda: seen)
        assert program.wait(10) == 0
    finally:
        program.kill()
        program.wait()
        os.close(main)
    told = seen.decode()
    assert "begun by" in told
    assert told.count("✓ before_transfer: command: test -e allowed") == 1, "shown once, as it settled"
    assert told.count("✓ in_hook: command: true") == 1


def test_a_run_is_followed_to_its_end(far: Far) -> None:
    """A line per entry, as it comes."""
    far.start(GATED)
    following = far.site.begin("history", "--follow", "--json", **far.there)
    raw = far.site.begin("history", "--follow", "--raw", "--json", **far.there)
    eventually(lambda: following.stdout.count("\n") == 2, "what has happened is told")
    far.site.write("opened")
    far.json("goto", "b")
    lines = [json.loads(line) for line in following.wait().stdout.splitlines()]
    assert lines == far.json("history")["history"]
    assert [json.loads(line) for line in raw.wait().stdout.splitlines()] == far.json("history", "--raw")["events"]


# --- deciding, and who one is ----------------------------------------------------------------------------------------


def test_who_decides_is_who_the_token_says(far: Far) -> None:
    """An operator decides under the name of the token; an agent is refused what is an operator's."""
    admin = str(far.run("token", "create", "--role", "admin", "--name", "chief").stdout).strip()
    agent = far.site.run("token", "create", "--role", "agent", "--name", "worker-bee", STATEM_TOKEN=admin, **far.there)
    assert (agent.exit_code, agent.stdout.startswith("stm_")) == (0, True), agent
    here = {"STATEM_TOKEN": admin}
    far.site.write("allowed")
    far.json("start", str(far.site.write("r.yaml", RUNBOOK)), "--run-id", "r", expect=0, **here)
    far.json("goto", "b", "--yes", expect=0, **here)
    waiting = far.json("goto", "c", "--on-manual", "wait", expect=7, **here)
    decision = f"r/{waiting['details']['transition']}/before_transfer.0"
    for refused in ({"STATEM_TOKEN": agent.stdout.strip()}, {**here, "STATEM_AGENT_ID": "bot"}):
        assert far.json("approve", decision, expect=4, **refused)["code"] == "not_authorised"
    assert far.site.run("approve", "r", "--by", "somebody", **far.there, **here).exit_code == 64
    approved = far.json("approve", "r", "-m", "read", expect=0, **here)
    assert (approved["by"], approved["current"]) == ("chief", "c")
    again = far.json("reject", decision, expect=5, **here)
    assert "chief" in again["error"]


def test_a_service_with_tokens_lets_nobody_else_in(far: Far) -> None:
    """From the first token on, exit code 4 without one, with a wrong one, and for what its role may not."""
    token = far.run("token", "create", "--role", "viewer").stdout.strip()
    wrong = token[:-4] + "AAAA"
    for settings in ({}, {"STATEM_TOKEN": wrong}):
        said = far.run("runs", **settings)
        assert said.exit_code == 4
        assert wrong.rpartition("_")[2] not in said.stdout + said.stderr
    assert far.run("runs", STATEM_TOKEN=token).exit_code == 0
    path = str(far.site.write("r.yaml", RUNBOOK))
    refused = far.json("start", path, "--run-id", "r", expect=4, STATEM_TOKEN=token)
    assert refused["code"] == "not_authorised"
    listed = far.run("token", "list", STATEM_TOKEN=token)
    assert listed.exit_code == 4
    beside = far.site.json("token", "list")["tokens"]
    admin = far.site.run("token", "create", "--role", "admin").stdout.strip()
    tokens = far.json("token", "list", STATEM_TOKEN=admin)["tokens"]
    assert isinstance(tokens, list)
    assert tokens[1:] == beside
    revoked = far.json("token", "revoke", tokens[1]["id"], STATEM_TOKEN=admin)
    assert revoked["state"] == "revoked"
    assert far.run("runs", STATEM_TOKEN=token).exit_code == 4
    assert far.json("token", "revoke", "0123456789abcdef", expect=1, STATEM_TOKEN=admin)["code"] == "not_found"


def test_up_lets_this_user_in(site: Site) -> None:
    """The token that it keeps is used by this user's commands for a service of this host, unless others can read it."""
    up = site.begin("up", "-c", "1", "--port", "0")
    try:
        eventually(lambda: "Serving: " in up.stdout, "the service serves", lambda: up.stderr)
        url = up.stdout.partition("Serving: ")[2].split()[0]
        path = str(site.write("r.yaml", RUNBOOK))
        assert site.json("start", path, "--run-id", "r", STATEM_URL=url)["current"] == "a"
        found = {each["what"]: each for each in site.json("doctor", STATEM_URL=url)["findings"]}
        assert found["service: redis"]["level"] == "ok"
        assert "admin" in found["caller"]["found"]
        (site.state_dir / "token").chmod(0o644)
        assert site.run("cur", "--run-id", "r", STATEM_URL=url).exit_code == 4
    finally:
        up.interrupt()
        up.wait()


# --- files, hooks, and what is not for a service ---------------------------------------------------------------------


def test_dynamic_checks_are_read_here_and_run_there(far: Far) -> None:
    """YAML and JSON mean what they mean beside the store, mistakes are told with their places, and a gate uses them."""
    far.start(RUNBOOK)
    site = far.site
    bad = str(site.write("bad.yaml", "- {type: predicate, path: x, exists: maybe}\n- {type: nonsense}\n"))
    for words in (["dynamic", "write", bad], ["dynamic", "write", str(site.folder / "none.json")]):
        beside, through = site.run(*words, "--run-id", "r"), far.run(*words)
        assert (through.exit_code, through.stderr) == (beside.exit_code, beside.stderr)
        assert through.exit_code == 1
    good = str(site.write("good.yaml", "checks:\n  - {run: test -e dynamic, name: '1.10', timeout: 1m, reason: new}\n"))
    written = far.json("dynamic", "write", good, "--agent-id", "me", "--role", "dev")
    assert (written["checks"], written["agent_id"], written["stored"]) == (1, "me", True)
    site.write("allowed")
    blocked = far.json("goto", "b", "--yes", expect=2)["details"]
    assert isinstance(blocked, dict)
    assert [each["name"] for each in blocked["results"] if not each["passed"]] == ["1.10"]
    place = str(far.json("dynamic", "path")["path"])
    assert place.startswith(str(site.state_dir / "runs"))
    assert not os.path.exists(place), "it is the folder of the service's host"
    site.write("dynamic")
    assert far.run("goto", "b", "--yes").exit_code == 0
    assert far.run("dynamic", "write", good).stderr == site.run("dynamic", "write", good, "--run-id", "r").stderr


def test_the_stop_hook_asks_the_service(far: Far) -> None:
    """An agent is told to go on with its run, and how to reach it, as often as beside the store."""
    far.start(RUNBOOK)

    def stop(active: bool, *words: str, **settings: str) -> dict[str, str]:
        done = subprocess.run(
            [*COMMAND, "hook", "stop", *words],
            cwd=far.site.folder,
            env={**far.site.environment, **far.there, **settings},
            input=json.dumps({"session_id": "s", "stop_hook_active": active}),
            capture_output=True,
            encoding="utf-8",
            timeout=30,
        )
        assert done.returncode == 0
        told: dict[str, str] = json.loads(done.stdout)
        return told

    first = stop(False)
    assert first["decision"] == "block"
    assert "statem-dist goto TARGET --run-id r\n" in first["reason"]
    assert "nothing has happened" in stop(True)["systemMessage"]
    far.run("goto", "b")
    assert stop(True)["decision"] == "block"
    far.json("goto", "b", "--on-manual", "wait", expect=2)
    far.json("pause")
    assert stop(True) == {}
    assert "cannot be reached" in stop(False, "--run-id", "r", **NOWHERE)["systemMessage"]


def test_prompts_name_the_service(far: Far) -> None:
    """An agent that comes back finds the run by STATEM_URL."""
    far.start(RUNBOOK)
    for command in ("prompt", "compact-prompt"):
        said = far.run(command).stdout
        assert "the service at STATEM_URL" in said
        assert "--state-dir" not in said


@pytest.mark.parametrize(
    "words",
    ["start r.yaml", "cur --run-id r", "goto b --run-id r", "runs", "approvals", "token list", "history --run-id r"],
)
def test_a_service_that_is_not_there_is_told(site: Site, words: str) -> None:
    """Exit code 8, one document, the URL and what to do; nothing is begun in its place."""
    site.write("r.yaml", RUNBOOK)
    lost = site.json(*words.split(), expect=8, **NOWHERE)
    assert "http://127.0.0.1:1" in lost["error"]
    assert "statem-dist up" in lost["hint"]
    assert not (site.state_dir / "data").exists()


def test_what_is_no_url_is_wrong_usage(site: Site) -> None:
    """Exit code 64, and the variable is named."""
    for url in ("localhost:8080", "redis://localhost", "http://"):
        assert "STATEM_URL" in site.json("cur", expect=64, STATEM_URL=url)["error"]


def test_what_needs_the_store_itself_says_so(site: Site) -> None:
    """``import`` and ``sweep run`` refuse; ``doctor`` tells what it cannot reach."""
    for words in (["import", "x"], ["sweep", "run", "x.yaml"]):
        refused = site.json(*words, expect=64, **NOWHERE)
        assert "STATEM_URL" in refused["error"]
    findings = site.json("doctor", expect=1, **NOWHERE)["details"]["findings"]
    assert "cannot be reached" in findings[-1]["found"]
    assert not site.state_dir.exists()


@pytest.fixture
def stale(far: Far) -> Far:
    """A service whose token comes with the environment, as in a shell of an operator."""
    token = far.run("token", "create", "--role", "admin").stdout.strip()
    far.there["STATEM_TOKEN"] = token
    return far


def test_commands_of_checks_do_not_learn_the_token(stale: Far) -> None:
    """Neither from the caller nor from the worker."""
    stale.start("nodes: {a: {before_transfer: [{run: 'env; exit 1'}], next: b}, b: The end.}", "r", "--env", "MINE=1")
    blocked = stale.json("goto", "b", expect=2)["details"]
    assert isinstance(blocked, dict)
    output = blocked["results"][0]["output"]
    assert "MINE=1" in output
    assert "STATEM_TOKEN" not in output
    assert "STATEM_URL" not in output


def test_a_shell_is_offered_what_the_service_has(far: Far, monkeypatch: pytest.MonkeyPatch) -> None:
    """Runs, nodes, targets and decisions; nothing, and nobody waits, where no service is."""
    far.start(RUNBOOK)
    far.site.write("allowed")
    far.json("goto", "b", "--on-manual", "wait", expect=7)
    for name, value in {**far.site.environment, **far.there}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(completing, "LIMIT_SECONDS", 5.0)
    offers = {kind: completing.offered(kind, run_id=None, state_dir=None) for kind in ("runs", "nodes", "targets")}
    assert offers == {"runs": ["r"], "nodes": ["a", "b", "c"], "targets": ["b", "c"]}
    assert completing.offered("decisions", run_id=None, state_dir=None) == ["r/t2/before_transfer.1"]
    assert completing.offered("tokens", run_id=None, state_dir=None) == []
    monkeypatch.setenv("STATEM_URL", NOWHERE["STATEM_URL"])
    monkeypatch.setattr(completing, "LIMIT_SECONDS", 0.3)
    assert completing.offered("runs", run_id=None, state_dir=None) == []


def test_a_state_directory_that_cannot_be_is_named(far: Far) -> None:
    """Below a file nothing can be noted: exit code 8 and the path."""
    far.site.write("file")
    impossible = str(far.site.folder / "file" / "state")
    path = str(far.site.write("r.yaml", RUNBOOK))
    for words in (["start", path], ["cur"]):
        refused = far.json(*words, expect=8, STATEM_STATE_DIR=impossible)
        assert impossible in refused["error"]


@pytest.mark.parametrize("through", ["service", "store"])
def test_runbooks_are_registered_and_started_by_name(far: Far, through: str) -> None:
    """Beside the store and through the service alike; at the service a name is enough to start one."""
    run = far.json if through == "service" else far.site.json
    assert run("runbook", "list") == {"ok": True, "runbooks": []}
    path = far.site.write("release.yaml", "nodes: {first: {next: last}, last: The end.}\n")
    made = run("runbook", "register", str(path))
    assert (made["name"], made["current"]) == ("release", True)
    assert run("runbook", "list")["runbooks"] == [{key: made[key] for key in run("runbook", "list")["runbooks"][0]}]
    far.site.write("release.yaml", "nodes: {first: {next: other}, other: The end.}\n")
    newer = run("runbook", "register", str(path), "--name", "release")
    assert [each["hash"] for each in run("runbook", "list")["runbooks"]] == [newer["hash"]]
    assert {each["hash"] for each in run("runbook", "list", "--versions")["runbooks"]} == {made["hash"], newer["hash"]}
    assert "release" in far.site.run("runbook", "list").stdout
    assert run("runbook", "register", str(path), "--name", "a b", expect=1)["code"] == "invalid"
    started = far.json("start", "release", "--run-id", "by-name")
    assert (started["current"], started["spec_hash"]) == ("first", newer["hash"])
    assert far.json("goto", "other")["current"] == "other"
    again = far.json("start", "release")
    assert (again["run_id"], again["current"]) == ("by-name", "other")
    agent = far.site.run("token", "create", "--role", "agent").stdout.strip()
    assert far.json("start", "release", "--fresh", STATEM_TOKEN=agent)["current"] == "first"
    told = far.json("start", "nobodys", expect=1, STATEM_TOKEN=agent)
    assert told["code"] == "not_found"
    assert "runbook list" in told["hint"]
