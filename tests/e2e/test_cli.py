"""The command line as scripts and agents use it: exit codes, one JSON document, waiting, racing, odd places."""

from __future__ import annotations

import json
import os
import re
import shlex
import stat
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from statem_dist.cli import main
from statem_dist.embedded.place import Place
from statem_dist.engine import Engine
from statem_dist.protocol.model import Run
from statem_dist.questions import Question
from tests.support.programs import COMMAND, HAS_PROC, Said, Site, eventually

pytestmark = pytest.mark.e2e

NOWHERE = {"STATEM_REDIS_URL": "redis://127.0.0.1:1/0", "STATEM_PATIENCE_SECONDS": "0.2"}
"""A state store that refuses connections."""

GATED = """
nodes:
  a:
    before_transfer: [{run: "echo $$ >> begun; until [ -e opened ]; do sleep 0.05; done"}]
    next: b
  b: The end.
"""

THERE_AND_BACK = """
nodes:
  a: {before_transfer: [{run: "until [ -e opened ]; do sleep 0.05; done; rm opened"}], next: b}
  b: {before_transfer: [{run: "until [ -e opened ]; do sleep 0.05; done; rm opened"}], next: a}
"""

PLAIN = "nodes: {a: {prompt: Read., before_transfer: [{run: 'test -e allowed'}], next: b}, b: The end.}"


# --- racing ------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("with_worker", [False, True], ids=["inline", "worker"])
def test_of_two_gotos_at_once_one_wins(site: Site, with_worker: bool) -> None:
    """The other one gets exit code 5 and is told which transition is in flight; each round commits exactly once."""
    if with_worker:
        site.worker("-c", "2")
    site.start(THERE_AND_BACK)
    rounds = 4
    for number in range(rounds):
        loser, winner = race(site, "ba"[number % 2])
        assert (loser.exit_code, winner.exit_code) == (5, 0), (loser, winner)
        assert loser.data["code"] == "transition_in_flight"
        assert loser.data["details"]["transition"] == winner.data["transition"]
        assert winner.data["transition"] in loser.data["error"]
    assert site.events() == ["goto"] * rounds


def race(site: Site, target: str) -> tuple[Said, Said]:
    """Attempt the same transition twice at once; return what the first to end said, and the other."""
    both = [site.begin("goto", target, "--run-id", "r", "--json") for _ in range(2)]
    eventually(lambda: not all(each.running for each in both), "one of the two gives up")
    first, second = sorted(both, key=lambda each: each.running)
    site.write("opened")
    return first.wait(), second.wait()


@pytest.mark.parametrize("with_worker", [False, True], ids=["inline", "worker"])
def test_a_check_may_look_at_its_own_run(site: Site, with_worker: bool) -> None:
    """Reads work while the transition is in flight; a ``goto`` from within is told of it, and nothing hangs."""
    if with_worker:
        site.worker("-c", "1")
    command = shlex.join(COMMAND)
    inside = (
        f"{command} cur --run-id $STATEM_RUN_ID --json > cur.json && "
        f"{command} history --run-id $STATEM_RUN_ID --json > history.json; "
        f"{command} goto b --run-id $STATEM_RUN_ID --json > goto.json; echo $?"
    )
    site.start(f"nodes: {{a: {{before_transfer: [{{run: '{inside}'}}], next: b}}, b: The end.}}")
    moved = site.json("goto", "b", "--run-id", "r")
    assert moved["results"][0]["output"] == "5"
    seen, nested = (json.loads((site.folder / name).read_text()) for name in ("cur.json", "goto.json"))
    assert seen["in_flight"]["transition"] == nested["details"]["transition"] == moved["transition"]
    assert site.events() == ["goto"]


# --- waiting -----------------------------------------------------------------------------------------------------


def test_a_goto_that_is_not_waited_for_is_done_by_a_worker(site: Site) -> None:
    """``--no-wait`` answers at once with the open transition, which a worker that comes later finishes."""
    site.start(GATED)
    submitted = site.json("goto", "b", "--run-id", "r", "--no-wait")
    assert (submitted["ok"], submitted["outcome"], submitted["current"]) == (True, "pending", "a")
    assert not site.lines("begun")
    site.worker("-c", "1")
    eventually(lambda: site.lines("begun"), "the worker has begun")
    looking = site.json("cur", "--run-id", "r")
    assert (looking["current"], looking["in_flight"]["transition"]) == ("a", submitted["transition"])
    site.write("opened")
    eventually(lambda: site.json("cur", "--run-id", "r")["current"] == "b", "the run has moved")


@pytest.mark.parametrize("with_worker", [False, True], ids=["inline", "worker"])
def test_a_wait_may_run_out(site: Site, with_worker: bool) -> None:
    """``--timeout`` ends with exit code 7 and the transition open; later ``cur`` shows that it went through."""
    if with_worker:
        site.worker("-c", "1")
    site.start(GATED)
    pending = site.json("goto", "b", "--run-id", "r", "--timeout", "1", expect=7)
    assert "pending" in pending["error"]
    assert pending["details"]["outcome"] == "pending"
    site.write("opened")
    eventually(lambda: site.json("cur", "--run-id", "r")["current"] == "b", "the run has moved")
    assert site.events() == ["goto"]


# --- one JSON document, whatever happens --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "exit_code"),
    [
        ("validate plain.yaml", 0),
        ("validate plain.yaml --strict", 0),
        ("validate broken.yaml", 1),
        ("validate missing.yaml", 1),
        ("start plain.yaml --run-id other", 0),
        ("start broken.yaml", 1),
        ("start plain.yaml --env nonsense", 64),
        ("start plain.yaml --pass-env NO_SUCH_VARIABLE", 64),
        ("start plain.yaml --run-id ''", 1),
        ("cur", 0),
        ("state", 0),
        ("ls b", 0),
        ("ls nowhere", 1),
        ("next", 0),
        ("history", 0),
        ("history --tail 1", 0),
        ("history --tail lots", 64),
        ("runs", 0),
        ("runs --limit 0", 64),
        ("goto b", 2),
        ("transfer b", 2),
        ("goto nowhere", 1),
        ("goto", 64),
        ("goto b --run-id nobody", 1),
        ("goto b --timeout soon", 64),
        ("save", 0),
        ("cur --run-id nobody", 1),
        ("cur --run-id ''", 1),
        ("cur --nonsense", 64),
        ("no-such-command", 64),
        ("", 64),
        ("doctor", 0),
    ],
)
def test_stdout_is_one_json_document(furnished: Site, words: str, exit_code: int) -> None:
    """With ``--json`` scripts can parse stdout after success, a block and every kind of error."""
    said = furnished.run(*shlex.split(words), "--json")
    assert said.exit_code == exit_code, said
    require_one_document(said)


@pytest.mark.parametrize(
    "words",
    ["start plain.yaml", "cur", "state", "ls a", "next", "history", "runs", "goto b", "save", "doctor"],
)
def test_an_unreachable_store_is_one_json_document(furnished: Site, words: str) -> None:
    """Exit code 8 (for ``doctor``, whose errors are its findings, 1), the reason, and what to do about it."""
    said = furnished.run(*words.split(), "--json", **NOWHERE)
    assert said.exit_code == (1 if words == "doctor" else 8), said
    require_one_document(said)
    assert "STATEM_REDIS_URL" in said.stdout
    assert "doctor" not in said.stdout


@pytest.mark.parametrize("words", ["start plain.yaml", "cur", "doctor"])
def test_a_store_that_can_be_no_redis_is_a_usage_error(furnished: Site, words: str) -> None:
    """A variable that holds no URL of a Redis is refused like any other that is malformed."""
    said = furnished.json(*words.split(), expect=64, STATEM_REDIS_URL="carrier-pigeon://coop")
    assert said["code"] == "usage"
    assert "STATEM_REDIS_URL" in said["error"]


def require_one_document(said: Said) -> None:
    """Require a parsable answer that says whether it is one of success, and an error that says what is wrong."""
    assert said.data["ok"] is (said.exit_code == 0)
    if said.exit_code:
        assert said.data["error"]
        assert "defect" not in said.data.get("hint", "")
    assert "Traceback" not in said.stderr


@pytest.fixture(scope="module")
def furnished() -> Iterator[Site]:
    """A site with a run that stands on ``a`` and whose move to ``b`` is blocked."""
    site = Site()
    try:
        site.write("plain.yaml", PLAIN)
        site.write("broken.yaml", "nodes: {a: {next: nowhere, prompt: [}")
        site.json("start", "plain.yaml", "--run-id", "r")
        yield site
    finally:
        site.close()


def test_errors_for_people_go_to_stderr(furnished: Site) -> None:
    """Without ``--json`` stdout is for data alone; an error and the way out of it stand on stderr."""
    said = furnished.run("goto", "b", "--run-id", "nobody")
    assert (said.exit_code, said.stdout) == (1, "")
    assert re.search(r"^Error: .*nobody.*\nHint: .+\n$", said.stderr)


def test_a_reader_that_goes_away_is_no_error_of_ours(furnished: Site) -> None:
    """``| head -1`` and a closed stdout end the command without a word on stderr."""
    for words in (["history"], ["state"], ["cur", "--json"], ["--help"]):
        for pipe in ("| head -1", "| :"):
            line = f"{shlex.join([*COMMAND, *words])} {pipe}"
            done = subprocess.run(
                line, shell=True, cwd=furnished.folder, env=furnished.environment, capture_output=True, text=True
            )
            assert done.stderr == "", (words, pipe)
    done = subprocess.run(
        f"{shlex.join([*COMMAND, 'cur'])} >&-",
        shell=True,
        cwd=furnished.folder,
        env=furnished.environment,
        capture_output=True,
        text=True,
    )
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_every_command_explains_itself(furnished: Site) -> None:
    """``--help`` of each exits with 0 and says how it is called, what it is for, and which options it has."""
    names = [[name] for name in commands_in(furnished.run("--help"))]
    assert {"start", "goto", "worker"} <= {name for [name] in names}
    with ThreadPoolExecutor(4) as pool:
        groups = list(pool.map(lambda words: explained(furnished, words), names))
        names = [[*words, name] for words, said in zip(names, groups, strict=True) for name in commands_in(said)]
        list(pool.map(lambda words: explained(furnished, words), names))


def commands_in(said: Said) -> list[str]:
    """Return the names of the commands that a help lists."""
    return re.findall(r"^│ ([a-z][a-z-]*)", said.stdout.partition("─ Commands ")[2], re.MULTILINE)


def explained(site: Site, words: list[str]) -> Said:
    """Ask a command for its help, and require that there is one."""
    said = site.run(*words, "--help")
    assert (said.exit_code, said.stderr) == (0, ""), words
    usage, _, rest = said.stdout.strip().partition("\n")
    assert usage.strip().startswith(f"Usage: statem-dist {' '.join(words)} ")
    assert re.search(r"\w", rest.partition("─ ")[0]), f"{words}: it does not say what it is for"
    assert "─ Options " in rest
    return said


@pytest.mark.parametrize("words", [["--help"], ["-h"], ["--version"]])
def test_the_program_explains_itself(furnished: Site, words: list[str]) -> None:
    """Help and version exit with 0 and need no state."""
    said = furnished.run(*words, **NOWHERE)
    assert (said.exit_code, said.stderr) == (0, "")
    assert "statem-dist" in said.stdout


# --- places ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "words",
    ["cur", "next", "ls a", "state", "history", "evidence", "prompt", "compact-prompt", "dynamic path"],
)
def test_looking_for_a_run_makes_no_state_directory(site: Site, words: str) -> None:
    """Where nothing was ever started there is no run, and nothing is made or started to find that out."""
    said = site.json(*words.split(), expect=1)
    assert (said["error"], said["details"]) == ("No active run.", {"state_dir": str(site.state_dir)})
    assert str(site.state_dir) in said["hint"]
    assert not site.state_dir.exists()


def test_lists_of_runs_make_no_state_directory(site: Site) -> None:
    """They are empty; a run that is named is not found; nothing is made or started to find that out."""
    assert site.json("runs") == {"ok": True, "runs": []}
    assert str(site.state_dir) in site.run("runs").stdout
    assert site.json("approvals") == {"ok": True, "approvals": []}
    assert site.json("cur", "--run-id", "r", expect=1)["error"] == "Run not found: r"
    assert not site.state_dir.exists()


def test_what_start_cannot_use_is_named(site: Site) -> None:
    """A workspace that is not there and a queue that no worker could serve make no run; a changed run id is told."""
    path = str(site.write("plain.yaml", PLAIN))
    assert "elsewhere" in site.json("start", path, "--workspace", "elsewhere", expect=1)["error"]
    assert "'a b'" in site.json("start", path, "--queue", "a b", expect=1)["error"]
    said = site.run("start", path, "--run-id", "a/b", "--json")
    assert said.data["run_id"] == "a-b"
    assert "run id 'a/b' is used as 'a-b'" in said.stderr
    assert (said.data["rebound"], said.data["migrated_from"]) == (None, None)


def test_a_run_that_follows_an_edited_runbook_is_told_so(site: Site) -> None:
    """On stderr and in the document: which versions, and from which node the run had to be moved."""
    before = site.start(PLAIN)
    site.write("r.yaml", PLAIN.replace("Read.", "Read twice."))
    said = site.run("start", "r.yaml", "--json")
    edited = said.data["spec_hash"]
    assert said.data["rebound"] == {"previous_hash": before["spec_hash"], "spec_hash": edited}
    assert said.data["migrated_from"] is None
    assert f"{before['spec_hash'][:12]} -> {edited[:12]}" in said.stderr
    site.write("r.yaml", "nodes: {other: {in_hook: [{run: 'exit 1'}], next: b}, b: The end.}")
    moved = site.run("start", "r.yaml", "--json")
    assert moved.exit_code == 2
    assert moved.data["details"]["migrated_from"] == "a"
    assert moved.data["details"]["rebound"]["previous_hash"] == edited
    assert re.search(r"'a', which is gone; it is on 'other' now", moved.stderr)


def test_an_edited_runbook_changes_nothing_until_the_run_is_bound_to_it(site: Site) -> None:
    """``goto`` goes by the runbook that the run has begun with, whatever stands in the file by now; during a transition
    binding is refused; afterwards ``start`` binds, and the history tells so."""
    check = "echo old >> ran; until [ -e go ]; do sleep 0.05; done"
    old = f"nodes: {{a: {{before_transfer: [{{run: '{check}'}}], next: b}}, b: The end.}}"
    new = old.replace("echo old", "echo new")
    before = site.start(old)
    site.write("r.yaml", new)
    waiting = site.begin("goto", "b", "--run-id", "r", "--json")
    eventually(lambda: site.lines("ran"), "the check is begun")
    refused = site.json("start", "r.yaml", "--run-id", "r", expect=5)
    assert refused["code"] == "transition_in_flight"
    site.json("cancel", "--run-id", "r")
    waiting.wait()
    site.write("go")
    assert site.json("cur", "--run-id", "r")["spec_hash"] == before["spec_hash"]
    assert site.lines("ran") == ["old"]
    bound = site.json("start", "r.yaml", "--run-id", "r")
    assert bound["spec_hash"] != before["spec_hash"]
    site.json("goto", "b", "--run-id", "r")
    assert site.lines("ran") == ["old", "new"]
    told = [entry["event"] for entry in site.json("history", "--run-id", "r")["history"]]
    assert told == ["start", "in_hook", "goto_cancelled", "rebind", "resume", "in_hook", "goto"]


def test_warnings_of_an_invalid_runbook_are_shown(site: Site) -> None:
    """The misspelt keyword beside an error is often its cause; in JSON both stand in the details."""
    path = str(site.write("bad.yaml", "nodes: {a: {promt: x, next: nowhere}}"))
    for words in (["validate", path], ["start", path]):
        said = site.run(*words)
        assert said.exit_code == 1
        assert "Warning: " in said.stderr
        assert "did you mean 'prompt'?" in said.stderr
    invalid = site.json("validate", path, expect=1)["details"]
    valid = site.json("validate", str(site.write("good.yaml", "nodes: {a: {promt: x}}")))
    for document in (invalid, valid):
        (sentence,), (detail,) = document["warnings"], document["warning_details"]
        assert "did you mean 'prompt'?" in sentence
        assert (detail["message"], detail["hint"]) == ("unknown keyword 'promt'", "did you mean 'prompt'?")


def test_a_state_directory_that_cannot_be_is_named(site: Site) -> None:
    """Below a file nothing can be kept: exit code 8, one document that names the path and the option to change."""
    site.write("file")
    impossible = str(site.folder / "file" / "state")
    path = str(site.write("plain.yaml", PLAIN))
    for words in (["start", path], ["cur"], ["doctor"]):
        said = site.run(*words, "--json", STATEM_STATE_DIR=impossible)
        assert said.exit_code == (1 if words == ["doctor"] else 8), said
        assert impossible in said.stdout
        assert "--state-dir" in said.stdout
        require_one_document(said)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_state_directory_that_is_read_only_is_named(site: Site) -> None:
    """Without the right to write: exit code 8 and the path."""
    site.state_dir.mkdir()
    site.state_dir.chmod(stat.S_IRUSR | stat.S_IXUSR)
    assert str(site.state_dir) in site.json("cur", expect=8)["error"]


def test_a_state_directory_may_have_a_long_path(site: Site) -> None:
    """A path that is too long for a socket works like any other, and ``down`` leaves nothing behind."""
    site.state_dir = site.folder / ("a" * 60) / ("b" * 60) / "state"
    site.environment["STATEM_STATE_DIR"] = str(site.state_dir)
    site.write("allowed")
    site.start(PLAIN)
    assert site.json("goto", "b", "--run-id", "r")["current"] == "b"
    short_dir = Place.of(site.state_dir).short_dir
    assert short_dir is not None
    assert site.json("down")["stopped"] is True
    assert not list(Path(short_dir).iterdir())


def test_commands_that_start_together_share_one_server(site: Site) -> None:
    """Eight first commands at once all succeed, on one server, and each run is there."""
    path = str(site.write("plain.yaml", PLAIN))
    runs = [f"r{number}" for number in range(8)]
    programs = [site.begin("start", path, "--run-id", run_id, "--json") for run_id in runs]
    said = [program.wait() for program in programs]
    assert [each.exit_code for each in said] == [0] * 8, said
    assert sorted(run["run_id"] for run in site.json("runs")["runs"]) == runs
    if HAS_PROC:
        assert len(site.processes("unixsocketperm")) == 1, "one keeper, which has one server"


# --- who answers what --------------------------------------------------------------------------------------------


def test_answers_count_for_the_questions_that_were_seen(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    """When somebody else moves the run between question and answer, the answer is to nothing: exit code 5."""
    asks = "before_transfer: [{type: manual, text: May it go?}]"
    site.start(f"nodes: {{a: {{{asks}, next: [c, b]}}, c: {{{asks}, next: b}}, b: The end.}}")
    for name, value in site.environment.items():
        monkeypatch.setenv(name, value)
    asked = Engine.questions

    def asked_while_it_moves(engine: Engine, run: Run, target: str) -> tuple[Question, ...]:
        questions = asked(engine, run, target)
        assert site.json("goto", "c", "--yes")["current"] == "c"
        return questions

    monkeypatch.setattr(Engine, "questions", asked_while_it_moves)
    assert main.run(["goto", "b", "--confirm", "before_transfer.0"]) == 5
    assert site.json("cur")["current"] == "c"


def test_an_interrupted_start_is_resumed(site: Site) -> None:
    """The run that it made is the active one, and the next start goes on with it."""
    slow_once = "[ -e begun ] || { touch begun; sleep 30; }"
    path = str(site.write("slow.yaml", f"nodes: {{a: {{in_hook: {{run: '{slow_once}', idempotent: true}}}}}}"))
    program = site.begin("start", path)
    eventually((site.folder / "begun").exists, "the hook has begun")
    program.interrupt()
    assert program.wait().exit_code == 130
    (run,) = site.json("runs")["runs"]
    site.write("slow.yaml", "nodes: {a: A.}")
    assert site.json("start", path)["run_id"] == run["run_id"]


def test_a_command_on_a_far_worker_starts_no_instance_of_its_own(site: Site) -> None:
    """Where the address of the store is withheld, the command line says so, and makes nothing."""
    said = site.run("cur", "--json", STATEM_STORE_WITHHELD="1")
    assert (said.exit_code, said.data["code"]) == (8, "unavailable")
    assert not site.state_dir.exists()


def test_a_run_is_warned_of_the_end_of_its_history_and_then_refused(site: Site) -> None:
    """From four fifths of its events on `goto` says so on stderr; at the end it exits with 5, and says what to do."""
    limit = {"STATEM_HISTORY_EVENTS_MAX": "10"}
    site.start("nodes: {a: {next: b}, b: {next: a}}")
    assert "Warning" not in site.run("goto", "b", "--run-id", "r", **limit).stderr
    told = site.run("goto", "a", "--run-id", "r", **limit)
    assert (told.exit_code, "from 10 on it begins nothing more" in told.stderr) == (0, True)
    site.run("goto", "b", "--run-id", "r", **limit)
    refused = site.json("goto", "a", "--run-id", "r", expect=5, STATEM_HISTORY_EVENTS_MAX="10")
    assert refused["code"] == "history_full"
    assert "STATEM_HISTORY_EVENTS_MAX" in refused["hint"]
    assert site.json("cur", "--run-id", "r")["current"] == "b"
    assert site.json("goto", "a", "--run-id", "r")["outcome"] == "committed"
