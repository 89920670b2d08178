"""Workers as an operator has them: how they share work, stop, refuse to start, and shrug off nonsense."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from typing import Any

import pytest

from statem_dist.dispatch import task_message
from statem_dist.engine import StartRequest
from statem_dist.history import history
from statem_dist.protocol.model import Actor, Place
from statem_dist.protocol.progress import Batch
from statem_dist.runbook import parse
from statem_dist.store.client import Client, client_for
from tests.support.programs import HAS_PROC, Program, Site, eventually
from tests.support.servers import tcp_server
from tests.support.service import library

pytestmark = pytest.mark.e2e

GATED = """
nodes:
  a:
    before_transfer: [{run: "echo $STATEM_RUN_ID $PPID >> begun; until [ -e opened ]; do sleep 0.05; done"}]
    next: b
  b: The end.
"""
"""A check that notes by which worker it is executed, and ends when somebody opens the gate."""

NO_REMINDERS = {"STATEM_HINT_GRACE_SECONDS": "600"}
"""Nobody sends a message again, so that each that is lost stays lost."""


def executors(site: Site) -> Counter[str]:
    """Return how many checks each worker has begun, by the pid of its supervisor."""
    return Counter(line.split()[1] for line in site.lines("begun"))


def submit(site: Site, count: int) -> list[str]:
    """Start that many runs and submit a ``goto`` of each; return their ids."""
    runs = [f"r{number}" for number in range(count)]
    path = str(site.write("runbook.yaml", GATED))
    site.many(*(["start", path, "--run-id", run_id] for run_id in runs))
    site.many(*(["goto", "b", "--run-id", run_id, "--no-wait"] for run_id in runs))
    return runs


def submit_many(site: Site, command: str, count: int, first: int = 0) -> list[str]:
    """Start that many runs whose one move is guarded by a command, and leave a ``goto`` of each to workers."""
    runs = [f"r{number}" for number in range(first, first + count)]
    text = json.dumps({"nodes": {"a": {"before_transfer": [{"run": command}], "next": "b"}, "b": "The end."}})
    parsed = parse(text, source="runbook.json")
    who = Actor(id="agent", role="agent")
    place = Place(workspace=str(site.folder), spec="runbook.yaml", state_dir=str(site.state_dir))
    with library(site) as engine:
        runbook = engine.register(parsed, "runbook.yaml")
        for run_id in runs:
            engine.start(StartRequest(runbook=runbook, run_id=run_id, place=place, by=who))
            engine.goto(run_id, "b", who, wait=False)
    return runs


def begin_more(site: Site, count: int) -> None:
    """Wait until that many checks more have been begun."""
    enough = len(site.lines("begun")) + count
    eventually(lambda: len(site.lines("begun")) >= enough, f"{count} checks more are begun")


def nodes(site: Site) -> Counter[str]:
    """Return how many runs stand on each node."""
    return Counter(run["current"] for run in site.json("runs", "--limit", "100")["runs"])


def all_on(site: Site, node: str) -> bool:
    """Return whether every run stands on a node."""
    return {run["current"] for run in site.json("runs")["runs"]} == {node}


def executed_by(result: dict[str, Any], worker: Program) -> bool:
    """Return whether a result was given by a worker."""
    return f":{worker.pid}:" in result["by"]


def finding(site: Site, what: str) -> dict[str, Any]:
    """Return what ``doctor`` has found about something."""
    findings = site.json("doctor")["findings"]
    return next(each for each in findings if each["what"] == what)


# --- stopping and sharing --------------------------------------------------------------------------------------


@pytest.mark.slow
def test_a_warm_shutdown_loses_nothing(site: Site) -> None:
    """SIGTERM lets the running check end, what was not begun is in the queue again, and a second worker does it."""
    site.environment |= NO_REMINDERS
    runs = submit(site, 12)
    first = site.worker("-c", "1")
    eventually(lambda: site.lines("begun"), "the first check is begun")
    first.terminate()
    eventually(lambda: "stopping" in first.stderr, "the first worker stops")
    assert first.running
    site.write("opened")
    assert first.wait().exit_code == 0
    assert re.search(r"stopped; [012] unbegun messages handed back\n\Z", first.stderr)
    assert sum(executors(site).values()) == 1
    assert site.redis("LLEN", "checks") == 11
    second = site.worker("-c", "2")
    eventually(lambda: all_on(site, "b"), "all runs have moved")
    begun = [line.split()[0] for line in site.lines("begun")]
    assert sorted(begun) == sorted(runs)
    results = [site.history(run_id)[0]["before_transfer"][0] for run_id in (begun[0], *begun[-2:])]
    assert [result["tries"] for result in results] == [1, 1, 1]
    assert [executed_by(result, second) for result in results] == [False, True, True]
    assert "Traceback" not in first.stderr + second.stderr


@pytest.mark.parametrize("pool", ["threads", "prefork"])
def test_a_check_that_outlasts_the_grace_is_handed_back(site: Site, pool: str) -> None:
    """It is ended and finished by another worker, and that it was interrupted is not counted as a try."""
    site.environment |= NO_REMINDERS
    submit(site, 4)
    first = site.worker("-c", "1", "--grace", "0.5", "--pool", pool)
    eventually(lambda: site.redis("LLEN", "checks") == 1, "it holds what it can begin, and two more")
    eventually(lambda: site.lines("begun"), "the first check is begun")
    first.terminate()
    assert first.wait().exit_code == 0
    assert site.redis("LLEN", "checks") == 4
    site.write("opened")
    second = site.worker("-c", "2")
    eventually(lambda: all_on(site, "b"), "all runs have moved")
    interrupted = site.lines("begun")[0].split()[0]
    (entry,) = site.history(interrupted)
    (result,) = entry["before_transfer"]
    assert executed_by(result, second)
    assert (result["passed"], result["tries"]) == (True, 1)


@pytest.mark.slow
def test_a_worker_does_not_hoard(site: Site) -> None:
    """While a worker with two slots is busy, a second one that comes later gets its share of ten queued checks."""
    site.environment |= NO_REMINDERS
    submit(site, 10)
    site.worker("-c", "2")
    eventually(lambda: site.redis("LLEN", "checks") == 6, "the first worker holds what it can begin, and two more")
    site.worker("-c", "2")
    eventually(lambda: site.redis("LLEN", "checks") == 2, "the second worker holds as many")
    eventually(lambda: len(site.lines("begun")) == 4, "both workers are busy")
    site.write("opened")
    eventually(lambda: all_on(site, "b"), "all runs have moved")
    shares = executors(site)
    assert sum(shares.values()) == 10
    assert len(shares) == 2
    assert min(shares.values()) >= 3


def test_work_on_a_busy_queue_waits_without_being_begun_twice(site: Site) -> None:
    """Messages that are sent again because a queue moves slowly lead to no second execution."""
    submit(site, 3)
    site.worker("-c", "1")
    eventually(lambda: site.lines("begun"), "the first check is begun")
    eventually(lambda: site.redis("LLEN", "checks") > 1, "somebody is reminded of the others")
    site.write("opened")
    eventually(lambda: all_on(site, "b"), "all runs have moved")
    assert len(site.lines("begun")) == 3


def test_short_checks_do_not_wait_behind_a_long_one(site: Site) -> None:
    """Of two workers with one slot each, one is busy for as long as the test lasts: the other one executes all the
    rest, also what the busy one has taken in advance."""
    submit_many(site, "echo $STATEM_RUN_ID >> begun; until [ -e opened ]; do sleep 0.05; done", 1)
    site.worker("-c", "1")
    eventually(lambda: site.lines("begun"), "the long check is begun")
    submit_many(site, "echo $STATEM_RUN_ID >> begun", 5, first=1)
    eventually(lambda: site.redis("LLEN", "checks") == 3, "the busy worker holds two messages more than it can begin")
    site.worker("-c", "1")
    eventually(lambda: nodes(site)["b"] == 5, "the short checks are done", lambda: nodes(site))
    assert nodes(site) == {"a": 1, "b": 5}
    site.write("opened")
    eventually(lambda: all_on(site, "b"), "all runs have moved")
    assert len(site.lines("begun")) == 6


def test_what_a_killed_worker_held_is_done_by_others(site: Site) -> None:
    """After ``kill -9`` of a worker nobody hands its messages back: the check that it executed is executed anew, those
    that it had only taken are executed once, and all of it long before any time limit of a broker."""
    runs = submit(site, 4)
    first = site.worker("-c", "1")
    eventually(lambda: site.lines("begun"), "the first check is begun")
    eventually(lambda: site.redis("LLEN", "checks") == 1, "it holds what it can begin, and two more")
    first.kill()
    site.write("opened")
    site.worker("-c", "2")
    eventually(lambda: all_on(site, "b"), "all runs have moved")
    begun = Counter(line.split()[0] for line in site.lines("begun"))
    assert sorted(begun.values()) == [1, 1, 1, 2]
    assert [site.events(run_id) for run_id in runs] == [["goto"]] * 4


@pytest.mark.slow
def test_workers_that_come_and_go_lose_nothing_and_repeat_no_commit(site: Site) -> None:
    """Fifty checks, and workers that are told to stop at odd moments, one after another, with next to no grace: each
    run moves once, and no check is charged with having been interrupted."""
    runs = submit_many(site, "echo begun >> begun; sleep 0.1; echo $STATEM_RUN_ID >> ended", 50)
    moment = random.Random(2026)
    for number in range(6):
        worker = site.worker("-c", "2", "--grace", "0.05", "--pool", ("threads", "prefork")[number % 2])
        begin_more(site, moment.randint(1, 6))
        worker.terminate()
        assert worker.wait().exit_code == 0
    site.worker("-c", "4")
    eventually(lambda: all_on(site, "b"), "all runs have moved", lambda: nodes(site))
    assert set(site.lines("ended")) == set(runs)
    with library(site) as engine:
        for run_id in runs:
            moves = [entry for entry in history(engine.log, engine.run(run_id)) if entry["event"].startswith("goto")]
            assert [(each["event"], each["before_transfer"][0]["tries"]) for each in moves] == [("goto", 1)], run_id


@pytest.mark.slow
def test_members_of_a_parallel_step_that_end_together_all_count(site: Site) -> None:
    """Six checks end at the same moment, on two workers: every result is kept, and whoever is last moves the run. No
    counter can be lost, because there is none: that all are there is seen in the results themselves."""
    member = "{run: 'echo $$ >> begun; until [ -e opened ]; do sleep 0.02; done'}"
    site.start(f"nodes: {{a: {{before_transfer: [{{parallel: [{', '.join([member] * 6)}]}}], next: b}}, b: The end.}}")
    for _ in range(2):
        site.worker("-c", "3")
    waiting = site.begin("goto", "b", "--run-id", "r", "--json")
    eventually(lambda: len(site.lines("begun")) == 6, "all are being executed")
    site.write("opened")
    said = waiting.wait()
    assert (said.exit_code, said.data["current"]) == (0, "b")
    (entry,) = site.history()
    assert [(result["reason"], result["tries"]) for result in entry["before_transfer"]] == [("passed", 1)] * 6
    assert len({result["by"] for result in entry["before_transfer"]}) == 2
    assert len(site.lines("begun")) == 6


# --- cancelling --------------------------------------------------------------------------------------------------


def test_a_cancellation_holds_for_workers_that_come_later(site: Site) -> None:
    """What is cancelled while nobody works stays so: its message is taken by the worker that comes, and leads to
    nothing; the run itself can be moved."""
    site.environment |= NO_REMINDERS
    submit(site, 2)
    site.json("cancel", "--run-id", "r0", "--reason", "no use")
    site.write("opened")
    site.worker("-c", "1")
    eventually(lambda: site.json("cur", "--run-id", "r1")["current"] == "b", "the other run has moved")
    assert site.redis("LLEN", "checks") == 0
    assert [line.split()[0] for line in site.lines("begun")] == ["r1"]
    assert (site.events("r0"), site.json("cur", "--run-id", "r0")["current"]) == (["goto_cancelled"], "a")
    assert site.json("goto", "b", "--run-id", "r0")["current"] == "b"


# --- what is left behind -----------------------------------------------------------------------------------------


def test_queues_leave_nothing_behind(site: Site) -> None:
    """Workers that came, worked, were killed and stopped: the store has runs, and nothing of Celery's but the names of
    its queues: no results, no reply boxes, no messages that wait for an acknowledgement, and nobody who listens."""
    for number, end in enumerate((Program.kill, Program.terminate)):
        worker = site.worker("-c", "2")
        submit_many(site, "true", 10, first=10 * number)
        eventually(lambda: all_on(site, "b"), "all runs have moved")
        end(worker)
        worker.wait()
    others = {key.decode() for key in site.redis("KEYS", "*") if not key.startswith(b"statem:")}
    bindings = {"checks", "celery.pidbox", "_deadlines", "_permanent.checks"}
    assert {name.removeprefix("_kombu.binding").removeprefix(".") for name in others} <= bindings
    assert site.redis("PUBSUB", "NUMPAT") == 0
    assert site.redis("PUBSUB", "CHANNELS", "*") == []


# --- clocks ------------------------------------------------------------------------------------------------------

ANOTHER_TIME = """
import time
_seconds, _nanoseconds = time.time, time.time_ns
time.time = lambda: _seconds() + SHIFT
time.time_ns = lambda: _nanoseconds() + SHIFT * 1_000_000_000
"""
"""Executed by an interpreter before anything else, as ``sitecustomize``: the clock of its host is wrong."""


def wrong_clock(site: Site, seconds: int) -> dict[str, str]:
    """Return the environment of a program on a host whose clock is that many seconds ahead."""
    folder = site.folder / f"clock{seconds}"
    folder.mkdir()
    (folder / "sitecustomize.py").write_text(ANOTHER_TIME.replace("SHIFT", f"({seconds})"))
    return {"PYTHONPATH": str(folder)}


def test_clocks_that_disagree_cost_no_claim_and_no_order(site: Site) -> None:
    """One worker an hour ahead, one an hour behind: each keeps its claims for longer than a lease lasts, no check is
    begun twice, no time is negative, and the history goes by the clock of the store."""
    ahead, behind = wrong_clock(site, 3600), wrong_clock(site, -3600)
    skewed = next(
        each for each in json.loads(site.run("doctor", "--json", **ahead).stdout)["findings"] if each["what"] == "clock"
    )
    assert skewed["level"] == "warning", "a wrong clock is a wrong clock"
    runs = submit(site, 4)
    workers = [site.worker("-c", "2", **ahead), site.worker("-c", "2", **behind)]
    eventually(lambda: len(site.lines("begun")) == 4, "both workers are busy")
    assert len(executors(site)) == 2
    began_at = int(site.redis("TIME")[0])
    eventually(lambda: int(site.redis("TIME")[0]) > began_at + 4, "leases would have run out, were they not renewed")
    site.write("opened")
    eventually(lambda: all_on(site, "b"), "all runs have moved")
    assert len(site.lines("begun")) == 4
    ended_at = int(site.redis("TIME")[0])
    for run_id in runs:
        events = site.json("history", "--raw", "--run-id", run_id)["events"]
        assert [event["number"] for event in events] == list(range(1, len(events) + 1))
        times = [event["at"] for event in events]
        assert times == sorted(times)
        assert began_at - 60 < times[-1] / 1000 <= ended_at + 1
        (entry,) = site.history(run_id)
        assert 4000 < entry["before_transfer"][0]["duration_ms"] < 60_000
        assert entry["ts"].endswith("+00:00")
    assert all(worker.running for worker in workers)


# --- queues ------------------------------------------------------------------------------------------------------


def test_pinned_work_goes_to_its_queue_alone(site: Site) -> None:
    """A run with ``--queue gpu`` is executed by the worker that serves it, and waits while there is none."""
    site.environment |= NO_REMINDERS
    common = site.worker("-c", "1")
    runbook = "nodes: {a: {before_transfer: [{run: 'true'}], next: b}, b: The end.}"
    site.start(runbook, "pinned", "--queue", "gpu")
    site.start(runbook, "free")
    site.json("goto", "b", "--run-id", "pinned", "--no-wait")
    free = site.json("goto", "b", "--run-id", "free")
    assert executed_by(free["results"][0], common)
    assert site.redis("LLEN", "gpu") == 1
    assert finding(site, "queue gpu") == {
        "level": "warning",
        "what": "queue gpu",
        "found": "1 messages wait",
        "fix": "Nobody serves it: statem-dist worker -Q gpu",
    }
    pinned_worker = site.worker("-c", "1", "-Q", "gpu")
    eventually(lambda: all_on(site, "b"), "the pinned run has moved")
    assert executed_by(site.history("pinned")[0]["before_transfer"][0], pinned_worker)


def test_reviews_go_to_the_queue_of_reviews(site: Site) -> None:
    """A command before a review is executed by the worker of ``checks``, the review by that of ``llm``."""
    commands = site.worker("-c", "1", "-Q", "checks")
    site.start(
        "nodes: {a: {before_transfer: [{run: 'true'}, {type: llm_review, prompt: Good?, accept_contains: ACCEPT}],"
        " next: b}, b: The end.}"
    )
    reviewer = site.worker("-c", "1", "-Q", "llm", STATEM_LLM_REVIEW_CMD="cat > review.txt; echo ACCEPT")
    command, review = site.json("goto", "b", "--run-id", "r")["results"]
    assert executed_by(command, commands)
    assert executed_by(review, reviewer)
    assert review["tier"] == "judgment"
    assert "Good?" in (site.folder / "review.txt").read_text()


# --- retries -----------------------------------------------------------------------------------------------------


def retried(check: str) -> str:
    """Return a runbook whose one check may be tried three times."""
    retry = "retry: {maximum_attempts: 3, exit_status: [75], initial_interval: 0.1}"
    return f"nodes: {{a: {{before_transfer: [{{run: '{check}', {retry}}}], next: b}}, b: The end.}}"


@pytest.mark.parametrize("with_worker", [False, True], ids=["inline", "worker"])
def test_what_could_not_be_evaluated_is_tried_again(site: Site, with_worker: bool) -> None:
    """An exit status that means "could not run" is retried and then passes; a plain failure is not retried."""
    if with_worker:
        site.worker("-c", "1")
    site.start(retried("echo x >> tries; [ $(wc -l < tries) -ge 3 ] || exit 75"), "flaky")
    moved = site.json("goto", "b", "--run-id", "flaky")
    assert [result["tries"] for result in moved["results"]] == [3]
    site.start(retried("echo x >> failures; exit 1"), "failing")
    blocked = site.json("goto", "b", "--run-id", "failing", expect=2)
    assert [(result["reason"], result["tries"]) for result in blocked["details"]["results"]] == [("check_failed", 1)]
    assert (len(site.lines("tries")), len(site.lines("failures"))) == (3, 1)


# --- starting ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("variable", "url"),
    [
        ("STATEM_BROKER_URL", "redis://127.0.0.1:1/0"),
        ("STATEM_BROKER_URL", "redis://no-such-host.invalid/0"),
        ("STATEM_BROKER_URL", "carrier-pigeon://coop"),
        ("STATEM_BROKER_URL", "redis+socket:///no/such/socket"),
        ("STATEM_REDIS_URL", "redis://127.0.0.1:1/0"),
    ],
    ids=["broker-refused", "broker-unresolvable", "broker-scheme", "broker-socket", "store-refused"],
)
def test_a_worker_without_its_services_says_so_and_ends(site: Site, variable: str, url: str) -> None:
    """Exit code 8 at once, a sentence that names the address, what to do, and no traceback."""
    said = site.run("worker", "-c", "1", STATEM_PATIENCE_SECONDS="1", **{variable: url})
    assert said.exit_code == 8, said
    assert "Error: " in said.stderr
    assert variable in said.stderr
    assert "Hint: " in said.stderr
    assert "Traceback" not in said.stderr
    assert said.stdout == ""


def test_a_password_in_an_address_is_not_shown(site: Site) -> None:
    """What a worker says of a broker that it cannot reach may stand in a log that others read."""
    broker = "redis://someone:hush-hush@127.0.0.1:1/0"
    said = site.run("worker", STATEM_PATIENCE_SECONDS="1", STATEM_BROKER_URL=broker)
    assert said.exit_code == 8
    assert "hush-hush" not in said.stderr
    said = site.run("worker", STATEM_PATIENCE_SECONDS="1", STATEM_REDIS_URL=broker)
    assert said.exit_code == 8
    assert "hush-hush" not in said.stderr


@pytest.mark.parametrize(
    ("words", "named"),
    [
        (["--pool", "gevent"], "gevent"),
        (["-Q", ","], "-Q"),
        (["-c", "0"], "-c"),
        (["--log-level", "LOUD"], "LOUD"),
        (["--pass-env", "NOT_SET"], "NOT_SET"),
    ],
    ids=["pool", "queues", "concurrency", "log-level", "pass-env"],
)
def test_an_option_that_cannot_be_honoured_is_a_usage_error(site: Site, words: list[str], named: str) -> None:
    """Exit code 64 and a sentence that names the value; nothing is started."""
    said = site.run("worker", *words)
    assert said.exit_code == 64, said
    assert named in said.stderr
    assert "Traceback" not in said.stderr


@pytest.mark.parametrize("pool", ["threads", "prefork", "solo"])
def test_time_limits_hold_in_every_pool(site: Site, pool: str) -> None:
    """A check that ignores its end is timed out all the same, after what it may take and its grace, and nothing of it
    is left; whoever executes it."""
    worker = site.worker("-c", "1", "--pool", pool)
    deaf = "trap '' TERM; setsid sleep 615 & echo said; sleep 615; sleep 615"
    site.start(f'nodes: {{a: {{before_transfer: [{{run: "{deaf}", timeout: 0.5}}], next: b}}, b: The end.}}')
    said = site.json("goto", "b", "--run-id", "r", expect=2)
    (result,) = said["details"]["results"]
    assert (result["reason"], result["tries"]) == ("timed_out", 1)
    assert result["duration_ms"] < 5_000
    assert "said" in result["output"]
    assert worker.running
    if HAS_PROC:
        eventually(lambda: not site.processes("sleep\x00615"), "its processes are gone")


@pytest.mark.parametrize("pool", ["gevent", "eventlet", "processes"])
def test_other_pools_are_refused(site: Site, pool: str) -> None:
    """By name, before anything is begun, with those that there are."""
    said = site.run("worker", "--pool", pool)
    assert said.exit_code == 64
    assert "threads" in said.stderr + said.stdout


def test_processes_for_slots(site: Site) -> None:
    """With ``--pool prefork`` commands are executed by child processes, and nothing is left after SIGTERM."""
    site.start("nodes: {a: {before_transfer: [{run: 'echo $PPID'}], next: b}, b: The end.}")
    worker = site.worker("-c", "2", "--pool", "prefork")
    moved = site.json("goto", "b", "--run-id", "r")
    (result,) = moved["results"]
    assert result["by"].startswith("worker:")
    worker.terminate()
    assert worker.wait().exit_code == 0
    if HAS_PROC:
        eventually(lambda: not site.processes("statem_workers"), "no process is left", site.processes)


# --- secrets -----------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not HAS_PROC, reason="processes can look at each other's environment in /proc only")
def test_secrets_that_a_check_prints_are_kept_nowhere(site: Site) -> None:
    """Neither one that the worker was told to hand on, nor what a check can read of the worker itself: not in the
    result, the log, the history, or anywhere else in the store."""
    with tcp_server("hush-store-7d1f") as url:
        site.environment["STATEM_REDIS_URL"] = url
        worker = site.worker("-c", "1", "--pass-env", "DEPLOY_TOKEN", DEPLOY_TOKEN="hush-deploy-33c0")
        check = "echo plain $DEPLOY_TOKEN; tr '\\0' '\\n' < /proc/$WORKER/environ | grep REDIS"
        check += "; seq 5000; echo $DEPLOY_TOKEN"
        text = f"nodes:\n  a:\n    before_transfer:\n      - run: {json.dumps(check)}\n    next: b\n  b: The end.\n"
        site.start(text, "r", "--env", f"WORKER={worker.pid}")
        (result,) = site.json("goto", "b", "--run-id", "r")["results"]
        assert result["output"].startswith("plain [redacted]\nSTATEM_REDIS_URL=[redacted]\n1\n")
        assert result["output"].endswith("5000\n[redacted]")
        store = client_for(url)
        stored = b"".join(_stored(store, key) for key in store.call("KEYS", "*"))
        assert b"plain [redacted]" in stored
        assert b"hush" not in stored
        assert "hush" not in worker.stderr + site.run("history", "--raw", "--json", "--run-id", "r").stdout
        store.close()
        site.close()


def _stored(store: Client, key: bytes) -> bytes:
    """Return what the store has under a key, whatever its type."""
    dump = store.call("DUMP", key)
    assert isinstance(dump, bytes)
    read = {b"string": ("GET", key), b"stream": ("XRANGE", key, "-", "+"), b"hash": ("HGETALL", key)}
    kind = store.call("TYPE", key)
    return repr(store.call(*read[kind])).encode() if kind in read else dump


# --- nonsense in the queue ---------------------------------------------------------------------------------------


def tampered(**changes: Any) -> bytes:
    """Return a task message in which some of the envelope was replaced."""
    message = json.loads(task_message(Batch(run="r", transition="t1", checks=("before_transfer.0",), queue="checks")))
    return json.dumps({**message, **changes}).encode()


def headers_with(**changes: Any) -> dict[str, Any]:
    """Return the headers of a task message, some replaced."""
    headers: dict[str, Any] = json.loads(tampered())["headers"]
    return {**headers, **changes}


def test_a_forged_message_does_nothing(site: Site) -> None:
    """A message carries ids and never a command: whatever is written into it, nothing but owed work is executed."""
    site.start("nodes: {a: {before_transfer: [{run: 'echo honest >> done'}], next: b}, b: The end.}")
    worker = site.worker("-c", "1")
    order = f"touch {site.folder}/forged"
    forgeries = [
        task_message(Batch(run=order, transition=order, checks=(order,), queue="checks")),
        task_message(Batch(run="r", transition="t2", checks=(order,), queue="checks")),
        task_message(Batch(run="r", transition="t1", checks=("before_transfer.0",), queue="checks")),
        tampered(headers=headers_with(task="os.system")),
        tampered(headers=headers_with(task="celery.backend_cleanup")),
        tampered(body="bm90IGpzb24="),
        tampered(body="W10="),
        tampered(body="WzEsMiwzXQ=="),
        tampered(**{"content-type": "application/x-python-serialize"}),
        tampered(properties={}),
        b"no json at all",
        b"[]",
        b"\xff\xfe",
    ]
    for forgery in forgeries:
        site.redis("RPUSH", "checks", forgery.decode("latin-1"))
        eventually(lambda: site.redis("LLEN", "checks") == 0, f"it is taken: {forgery!r}", lambda: worker.stderr)
    assert site.json("goto", "b", "--run-id", "r", "--timeout", "20")["current"] == "b"
    assert worker.running
    assert site.lines("done") == ["honest"]
    assert not (site.folder / "forged").exists()


# --- everything at once --------------------------------------------------------------------------------------------


def up(site: Site, *words: str) -> Program:
    """Start ``up`` with one slot and wait until its worker for checks takes work; that for trials may come later."""
    stack = site.begin("up", "-c", "1", *words)
    eventually(lambda: "ready: queues checks" in stack.stdout or not stack.running, "the worker is ready")
    return stack


def test_up_runs_everything_and_leaves_nothing(site: Site) -> None:
    """``up`` starts the server and a worker that executes; Ctrl-C stops both with exit code 0 and nothing is left."""
    stack = up(site, "--grace", "1.5")
    site.start("nodes: {a: {before_transfer: [{run: 'true'}], next: b}, b: The end.}")
    moved = site.json("goto", "b", "--run-id", "r")
    assert moved["results"][0]["by"].startswith("worker:")
    stack.interrupt()
    said = stack.wait()
    assert said.exit_code == 0, said
    assert "running checks get 1.5 s" in said.stdout
    assert "Traceback" not in said.stdout + said.stderr
    if HAS_PROC:
        assert not site.processes()
    assert site.json("cur", "--run-id", "r")["current"] == "b"


def test_one_up_per_state_directory(site: Site) -> None:
    """A second ``up`` is refused and leaves the first one's server alone; ``down`` ends the first, and says so."""
    stack = up(site)
    server_pid = site.server_pid
    second = site.run("up")
    assert second.exit_code == 5, second
    assert f"(process {stack.pid})" in second.stderr
    assert stack.running
    assert site.server_pid == server_pid
    down = site.json("down")
    assert (down["stopped"], down["up_pid"]) == (True, stack.pid)
    assert stack.wait().exit_code == 0
    assert "the server has ended" not in stack.stdout
    assert site.json("down")["stopped"] is False


def test_a_worker_that_was_killed_is_not_present(site: Site) -> None:
    """``doctor`` lists nobody whose process on this host has ended, however short ago it was heard of."""
    worker = site.worker("-c", "1")
    assert f":{worker.pid}:" in finding(site, "workers")["found"]
    worker.kill()
    assert finding(site, "workers")["found"] == "none; commands execute checks themselves"


def test_a_caller_executes_what_the_workers_do_not_serve(site: Site) -> None:
    """With a worker for commands alone the caller reviews itself, and leaves the commands to the worker."""
    site.start(
        'nodes:\n  a: {before_transfer: [{run: "true"}, {type: llm_review, prompt: "good?"}, {run: "true"}], next: b}\n'
        "  b: The end.\n"
    )
    worker = site.worker("-c", "1", "-Q", "checks")
    moved = site.json("goto", "b", "--run-id", "r", STATEM_LLM_REVIEW_CMD="echo ACCEPT")
    assert moved["outcome"] == "committed"
    (entry,) = site.history()
    executed = [f":{worker.pid}:" in result["by"] for result in entry["before_transfer"]]
    assert executed == [True, False, True]
