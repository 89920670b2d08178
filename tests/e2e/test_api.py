"""The REST service as a program that calls it sees it: a real service, a real worker, real Redis."""

from __future__ import annotations

import json
import re
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import Any

import httpx2
import pytest

from statem_dist.store import keys
from tests.support.programs import Site, eventually
from tests.support.service import WAIT, Api, Caller, serve

pytestmark = pytest.mark.e2e

PLAN = """
initial: plan
nodes:
  plan: {prompt: Plan it., before_transfer: [{type: predicate, path: plan.md, non_empty: true}]}
  build: {before_transfer: [{type: manual, text: sure?}]}
  done: {}
edges:
  - {from: plan, to: build}
  - {from: build, to: done}
"""

TWO = "initial: a\nnodes: {a: {}, b: {}, c: {}}\nedges: [{from: a, to: b}, {from: b, to: a}, {from: b, to: c}]\n"

SLOW = """
initial: a
nodes: {a: {before_transfer: [{type: command, run: 'touch began; while [ ! -e go ]; do sleep 0.02; done'}]}, b: {}}
edges: [{from: a, to: b}]
"""

_names = count(1)


class Desk:
    """The service of this module, and its admin."""

    def __init__(self, site: Site, api: Api) -> None:
        self.site = site
        self.api = api
        self.admin = api.caller("admin")

    def folder(self) -> Path:
        """Return a new workspace."""
        place = self.site.folder / f"work-{next(_names)}"
        place.mkdir()
        return place

    def start(self, text: str = PLAN, **fields: Any) -> tuple[str, Path]:
        """Start a run in a workspace of its own, and return both."""
        run_id, place = f"run-{next(_names)}", self.folder()
        self.admin.start(text, run_id, workspace=str(place), **fields)
        return run_id, place


@pytest.fixture(scope="module")
def desk() -> Iterator[Desk]:
    """A site with a worker and the service."""
    site = Site()
    try:
        site.worker()
        yield Desk(site, serve(site))
    finally:
        site.close()


# --- transitions -----------------------------------------------------------------------------------------------------


def test_a_transition_is_an_outcome(desk: Desk) -> None:
    """Blocked and committed are both 200, with the results that decided it."""
    run_id, place = desk.start()
    blocked = desk.admin.post(f"/v1/runs/{run_id}/goto{WAIT}", {"target": "build"})
    assert (blocked["ok"], blocked["outcome"], blocked["stage"]) == (False, "blocked", "before_transfer")
    assert [each["passed"] for each in blocked["results"]] == [False]
    (place / "plan.md").write_text("plan")
    moved = desk.admin.post(f"/v1/runs/{run_id}/goto{WAIT}", {"target": "build"})
    assert (moved["ok"], moved["outcome"], moved["current"]) == (True, "committed", "build")
    shown = desk.admin.get(f"/v1/runs/{run_id}")
    assert (shown["current"], shown["version"]) == ("build", moved["version"])


def test_a_pending_transition_says_where_to_look(desk: Desk) -> None:
    """202 with its place, where it can be waited for; it says what it waits for."""
    run_id, place = desk.start(SLOW)
    asked = desk.admin.ask("POST", f"/v1/runs/{run_id}/goto", expect=202, json={"target": "b"})
    assert asked.headers["Location"] == f"/v1/runs/{run_id}/transitions/t2"
    eventually(lambda: (place / "began").exists(), "the check has begun")
    pending = desk.admin.get(asked.headers["Location"])
    assert pending["outcome"] == "pending"
    assert "is being executed by worker" in pending["waiting_reason"]
    waiting = ThreadPoolExecutor(1).submit(desk.admin.get, asked.headers["Location"] + WAIT)
    (place / "go").touch()
    assert waiting.result()["outcome"] == "committed"


def test_a_concurrent_transition_is_named(desk: Desk) -> None:
    """409 with the id of the transition that is open."""
    run_id, place = desk.start(SLOW)
    desk.admin.post(f"/v1/runs/{run_id}/goto", {"target": "b"}, expect=202)
    refused = desk.admin.post(f"/v1/runs/{run_id}/goto", {"target": "b"}, expect=409)
    assert (refused["code"], refused["transition"]) == ("transition_in_flight", "t2")
    (place / "go").touch()


def test_an_edge_that_does_not_exist_names_those_that_do(desk: Desk) -> None:
    """409 with the targets that are allowed."""
    run_id, _ = desk.start()
    refused = desk.admin.post(f"/v1/runs/{run_id}/goto", {"target": "nowhere"}, expect=409)
    assert (refused["code"], refused["allowed"]) == ("unknown_target", ["build"])


def test_a_wait_for_nobody_is_explained(desk: Desk) -> None:
    """A transition whose queue nobody serves says so."""
    run_id, _ = desk.start(PLAN, queue="gpu")
    pending = desk.admin.post(f"/v1/runs/{run_id}/goto", {"target": "build"}, expect=202)
    assert "no worker serves the queue 'gpu'" in pending["waiting_reason"]
    desk.admin.post(f"/v1/runs/{run_id}/terminate")
    desk.site.redis("DEL", "gpu")


def test_decisions_are_made_by_the_token(desk: Desk) -> None:
    """A check that waits is in the inbox, and whoever decides is named by their token."""
    run_id, place = desk.start()
    (place / "plan.md").write_text("plan")
    desk.admin.post(f"/v1/runs/{run_id}/goto{WAIT}", {"target": "build"})
    waits = desk.admin.post(f"/v1/runs/{run_id}/goto{WAIT}", {"target": "done", "on_manual": "wait"}, expect=202)
    assert "somebody has to decide" in waits["waiting_reason"]
    (item,) = [each for each in desk.admin.get("/v1/approvals")["items"] if each["run_id"] == run_id]
    operator = desk.api.caller("operator")
    decided = operator.post(item["url"] + WAIT, {"approved": True, "comment": "read"})
    assert (decided["outcome"], decided["current"]) == ("committed", "done")
    assert [(each["by"], each["reason"], each["output"]) for each in decided["results"]] == [
        ("operator", "approved", "read")
    ]
    again = operator.post(item["url"], {"approved": False}, expect=409)
    assert "it has ended before" in again["detail"]


def test_checks_are_confirmed_and_declined_by_name(desk: Desk) -> None:
    """Answers in advance name checks by their text; a declined one blocks with the reason."""
    run_id, place = desk.start()
    (place / "plan.md").write_text("plan")
    desk.admin.post(f"/v1/runs/{run_id}/goto{WAIT}", {"target": "build"})
    target = {"target": "done"}
    url = f"/v1/runs/{run_id}/goto{WAIT}"
    wrong = desk.admin.post(url, {**target, "confirm": ["sure!"]}, expect=422)
    assert "sure?" in wrong["detail"]
    declined = desk.admin.post(url, {**target, "decline": {"sure?": "not at all"}})
    assert declined["outcome"] == "blocked"
    assert "not at all" in declined["results"][0]["output"]
    assert desk.admin.post(url, {**target, "confirm": ["sure?"]})["outcome"] == "committed"


def test_a_transition_can_be_cancelled(desk: Desk) -> None:
    """It ends, the run stays where it is, and the reason and the token are in the history."""
    run_id, place = desk.start(SLOW)
    desk.admin.post(f"/v1/runs/{run_id}/goto", {"target": "b"}, expect=202)
    eventually(lambda: (place / "began").exists(), "the check has begun")
    ended = desk.admin.post(f"/v1/runs/{run_id}/transitions/t2/cancel", {"reason": "wrong way"})
    assert (ended["outcome"], ended["reason"], ended["current"]) == ("cancelled", "wrong way", "a")
    told = desk.admin.get(f"/v1/runs/{run_id}/history")["history"][-1]
    assert (told["event"], told["by"]) == ("goto_cancelled", "admin")
    again = desk.admin.post(f"/v1/runs/{run_id}/transitions/t2/cancel", expect=409)
    assert again["code"] == "conflict"


def test_runs_are_held_and_ended(desk: Desk) -> None:
    """Pause, resume, cancel and terminate answer with the run as it is then, and refuse what has no effect."""
    run_id, _ = desk.start(TWO)
    url = f"/v1/runs/{run_id}"
    assert desk.admin.post(f"{url}/pause", {"reason": "lunch"})["status"] == "paused"
    assert desk.admin.post(f"{url}/pause", expect=409)["code"] == "run_paused"
    assert desk.admin.post(f"{url}/goto", {"target": "b"}, expect=409)["code"] == "run_paused"
    assert desk.admin.post(f"{url}/resume")["status"] == "active"
    assert desk.admin.post(f"{url}/resume", expect=409)["code"] == "conflict"
    assert desk.admin.post(f"{url}/cancel", {"reason": "enough"})["status"] == "cancelled"
    assert desk.admin.post(f"{url}/terminate", expect=409)["code"] == "run_cancelled"
    assert desk.admin.post(f"{url}/goto", {"target": "b"}, expect=409)["code"] == "run_cancelled"


# --- starting --------------------------------------------------------------------------------------------------------


def test_a_taken_id_is_handled_as_asked(desk: Desk) -> None:
    """Refused, given as it is, resumed, or begun anew with its history kept."""
    run_id, place = desk.start(TWO)
    desk.admin.post(f"/v1/runs/{run_id}/goto{WAIT}", {"target": "b"})
    fields = {"workspace": str(place)}
    assert desk.admin.start(TWO, run_id, expect=409, **fields)["code"] == "conflict"
    used = desk.admin.start(TWO, run_id, expect=200, on_existing="use_existing", **fields)
    assert used["current"] == "b"
    resumed = desk.admin.start(TWO, run_id, expect=200, on_existing="resume", **fields)
    assert (resumed["current"], resumed["version"] > used["version"]) == ("b", True)
    anew = desk.admin.start(TWO, run_id, expect=200, on_existing="restart", **fields)
    assert (anew["current"], anew["current_entry_id"]) == ("a", f"{run_id}-e3")
    told = [each["event"] for each in desk.admin.get(f"/v1/runs/{run_id}/history")["history"]]
    assert "goto" in told


def test_a_run_without_a_workspace_gets_a_folder(desk: Desk) -> None:
    """A folder of its own, which exists."""
    made = desk.admin.start(TWO, f"run-{next(_names)}")
    assert Path(made["workspace"]).is_dir()
    assert Path(made["workspace"]).name == made["run_id"]


def test_a_run_is_started_from_a_registered_runbook(desk: Desk) -> None:
    """By name, by hash, or by the beginning of the hash; the name stands for the version registered last."""
    first = desk.admin.post("/v1/runbooks", {"text": TWO, "name": "two"}, expect=201)
    assert desk.admin.post("/v1/runbooks", {"text": TWO, "name": "two"}, expect=200)["hash"] == first["hash"]
    second = desk.admin.post("/v1/runbooks", {"text": f"# changed\n{TWO}", "name": "two"}, expect=201)
    for named, digest in (("two", second["hash"]), (first["hash"], first["hash"]), (first["hash"][:12], first["hash"])):
        made = desk.admin.post("/v1/runs", {"runbook": named}, expect=201)
        assert made["spec_hash"] == digest
    listed = desk.admin.get("/v1/runbooks?versions=true")["items"]
    assert [(each["hash"], each["current"]) for each in listed if each["name"] == "two"] == [
        (second["hash"], True),
        (first["hash"], False),
    ]
    assert desk.admin.get("/v1/runbooks/two")["text"] == f"# changed\n{TWO}"
    assert desk.admin.post("/v1/runs", {"runbook": "three"}, expect=404)["code"] == "not_found"


def test_a_runbook_that_cannot_be_used_names_each_place(desk: Desk) -> None:
    """Every problem with line, column and field, all at once."""
    text = "initial: a\nnodes: {a: {before_transfer: [{type: comand, run: x}]}}\nedges: [{from: a, to: z}]\n"
    told = desk.admin.post("/v1/runbooks/validate", {"text": text, "source": "r.yaml"}, expect=422)
    assert told["code"] == "runbook_invalid"
    assert [(each["line"], bool(each["column"]), each["field"] != "") for each in told["errors"]] == [
        (2, True, True),
        (3, True, True),
    ]
    assert desk.admin.post("/v1/runbooks/validate", {"text": TWO})["nodes"] == ["a", "b", "c"]
    doubtful = desk.admin.post("/v1/runs", {"text": "nodes: {a: {nxt: b}, b: {}}"}, expect=201)
    assert "did you mean 'next'" in doubtful["warnings"][0]


def test_many_runs_are_started_at_once(desk: Desk) -> None:
    """Each has an answer of its own, also where another one fails; sent again with the same key, nothing is started."""
    wanted = [{"text": TWO, "run_id": f"bulk-{number}", "labels": {"bulk": "1"}} for number in range(50)]
    wanted[7] = {"text": "nodes: 5", "run_id": "bulk-7"}
    key = {"Idempotency-Key": "bulk"}
    told = desk.admin.post("/v1/runs/bulk", {"runs": wanted}, headers=key)
    assert (told["created"], told["failed"]) == (49, 1)
    assert told["items"][7]["problem"]["code"] == "runbook_invalid"
    assert [each["run"]["run_id"] for each in told["items"][:3]] == ["bulk-0", "bulk-1", "bulk-2"]
    again = desk.admin.post("/v1/runs/bulk", {"runs": wanted}, headers=key)
    assert again["failed"] == 1
    assert len(desk.admin.get("/v1/runs?label=bulk=1&limit=100")["items"]) == 49
    too_many = desk.admin.post("/v1/runs/bulk", {"runs": [{"text": TWO}] * 1001}, expect=422)
    assert too_many["errors"][0]["pointer"] == "/runs"


def test_variables_reach_commands_and_are_not_shown(desk: Desk) -> None:
    """A command sees what the run was started with; no answer of the service does."""
    text = """
initial: a
nodes: {a: {before_transfer: [{type: command, run: 'test "$SECRET_OF_RUN" = hunter2'}]}, b: {}}
edges: [{from: a, to: b}]
"""
    run_id, _ = desk.start(text, vars={"SECRET_OF_RUN": "hunter2"})
    assert desk.admin.post(f"/v1/runs/{run_id}/goto{WAIT}", {"target": "b"})["outcome"] == "committed"
    for path in ("", "/document", "/events", "/history", "/transitions/t2", "/transitions/t2/document", "/graph"):
        shown = desk.admin.ask("GET", f"/v1/runs/{run_id}{path}", expect=200).text
        assert "hunter2" not in shown.replace('test \\"$SECRET_OF_RUN\\" = hunter2', "")


def test_a_value_of_a_variable_is_never_code(desk: Desk) -> None:
    """A command sees it as it was given, and no shell has looked at it; neither has one at the names of nodes."""
    text = """
initial: a
nodes: {a: {before_transfer: [{type: command, run: 'printf %s "$VALUE" > seen'}]}, '$(touch node)': {}}
edges: [{from: a, to: '$(touch node)'}]
"""
    value = """$(touch pwn); `touch pwn` "'; touch pwn #\\n"""
    run_id, place = desk.start(text, vars={"VALUE": value})
    assert desk.admin.post(f"/v1/runs/{run_id}/goto{WAIT}", {"target": "$(touch node)"})["outcome"] == "committed"
    assert (place / "seen").read_text() == value
    assert [each.name for each in place.iterdir()] == ["seen"]


def test_questions_that_are_answered_at_once_let_the_run_move(desk: Desk) -> None:
    """Six people approve six questions of one transition at the same moment: each counts, and the last one moves the
    run, whoever that is. Nobody has to wake it."""
    questions = ", ".join(f"{{type: manual, text: 'Question {number}?'}}" for number in range(6))
    text = f"initial: a\nnodes: {{a: {{before_transfer: [{questions}]}}, b: {{}}}}\nedges: [{{from: a, to: b}}]\n"
    for _ in range(5):
        run_id, _ = desk.start(text)
        desk.admin.post(f"/v1/runs/{run_id}/goto{WAIT}", {"target": "b", "on_manual": "wait"}, expect=202)
        barrier = threading.Barrier(6)

        def approve(number: int, run_id: str = run_id, barrier: threading.Barrier = barrier) -> int:
            barrier.wait()
            path = f"/v1/runs/{run_id}/transitions/t2/decisions/before_transfer.{number}"
            return desk.admin.http.post(path, json={"approved": True}).status_code

        with ThreadPoolExecutor(6) as pool:
            assert set(pool.map(approve, range(6))) <= {200, 202}
        shown = desk.admin.get(f"/v1/runs/{run_id}/transitions/t2")
        assert shown["outcome"] == "committed"
        assert [each["reason"] for each in shown["results"]] == ["approved"] * 6


# --- repetition and versions -----------------------------------------------------------------------------------------


def test_a_repeated_request_is_answered_and_not_done_again(desk: Desk) -> None:
    """The same key gives the same transition, also when later ones have followed; nothing is added to the history."""
    run_id, _ = desk.start(TWO)
    url, key = f"/v1/runs/{run_id}/goto{WAIT}", {"Idempotency-Key": "move-1"}
    first = desk.admin.ask("POST", url, expect=200, json={"target": "b"}, headers=key)
    desk.admin.post(url, {"target": "a"})
    for _ in range(20):
        desk.admin.post(f"/v1/runs/{run_id}/save", {"skip_hooks": True})
    version = desk.admin.get(f"/v1/runs/{run_id}")["version"]
    again = desk.admin.ask("POST", url, expect=200, json={"target": "b"}, headers=key)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.json()["transition"] == first.json()["transition"]
    assert desk.admin.get(f"/v1/runs/{run_id}")["version"] == version
    other = desk.admin.post(url, {"target": "c"}, expect=422, headers=key)
    assert other["code"] == "idempotency_key_reused"


def test_a_request_sent_many_times_at_once_moves_once(desk: Desk) -> None:
    """Twelve callers send the same request with the same key at the same moment: one transition, one answer."""
    run_id, _ = desk.start(TWO)
    url, key = f"/v1/runs/{run_id}/goto{WAIT}", {"Idempotency-Key": "at-once"}
    barrier = threading.Barrier(12)

    def send(_: int) -> Any:
        barrier.wait()
        return desk.admin.post(url, {"target": "b"}, headers=key)["transition"]

    with ThreadPoolExecutor(12) as pool:
        assert set(pool.map(send, range(12))) == {"t2"}
    events = [each["event"] for each in desk.admin.get(f"/v1/runs/{run_id}/history")["history"]]
    assert events.count("goto") == 1


def test_a_repeated_start_makes_one_run(desk: Desk) -> None:
    """Without an id the second request finds the run of the first; another body with the same key is refused."""
    key = {"Idempotency-Key": f"start-{next(_names)}"}
    first = desk.admin.post("/v1/runs", {"text": TWO}, expect=201, headers=key)
    again = desk.admin.ask("POST", "/v1/runs", expect=201, json={"text": TWO}, headers=key)
    assert (again.json()["run_id"], again.headers["Idempotent-Replayed"]) == (first["run_id"], "true")
    other = desk.admin.post("/v1/runs", {"text": TWO, "run_id": "another"}, expect=422, headers=key)
    assert other["code"] == "idempotency_key_reused"
    desk.admin.get("/v1/runs/another", expect=404)


def test_one_of_many_who_have_seen_the_same_version_wins(desk: Desk) -> None:
    """Sixteen callers post different moves with one ETag: one moves the run, the others learn that they are late."""
    targets = [f"n{number}" for number in range(16)]
    nodes = ", ".join(f"{target}: {{}}" for target in targets)
    edges = ", ".join(f"{{from: a, to: {target}}}" for target in targets)
    run_id, _ = desk.start(f"initial: a\nnodes: {{a: {{}}, {nodes}}}\nedges: [{edges}]\n")
    tag = desk.admin.ask("GET", f"/v1/runs/{run_id}", expect=200).headers["ETag"]
    barrier = threading.Barrier(16)

    def send(target: str) -> int:
        barrier.wait()
        url, headers = f"/v1/runs/{run_id}/goto{WAIT}", {"If-Match": tag}
        return desk.admin.http.post(url, json={"target": target}, headers=headers).status_code

    with ThreadPoolExecutor(16) as pool:
        assert sorted(pool.map(send, targets)) == [200] + [412] * 15


def scripts_called(site: Site) -> int:
    """Return how many scripts the server of a site has executed."""
    counted = re.findall(r"cmdstat_evalsha:calls=(\d+)", site.redis("INFO", "commandstats").decode())
    return int(counted[0])


def test_of_sixty_four_moves_at_once_one_is_accepted(desk: Desk) -> None:
    """The others are told which one at once, after a few scripts each and without a storm of tries."""
    run_id, place = desk.start(SLOW)
    scripts = scripts_called(desk.site)
    barrier = threading.Barrier(64)

    def send(_: int) -> tuple[int, str]:
        barrier.wait()
        answer = desk.admin.http.post(f"/v1/runs/{run_id}/goto", json={"target": "b"})
        return answer.status_code, answer.json()["transition"]

    with ThreadPoolExecutor(64) as pool:
        answers = sorted(pool.map(send, range(64)))
    assert answers == [(202, "t2"), *[(409, "t2")] * 63]
    assert scripts_called(desk.site) - scripts < 64 * 3
    (place / "go").touch()
    eventually(lambda: desk.admin.get(f"/v1/runs/{run_id}")["current"] == "b", "the accepted one moves the run")


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("goto", {"target": "b"}),
        ("save", {}),
        ("rebind", {"text": TWO}),
        ("cancel", {}),
        ("terminate", {}),
        ("pause", {}),
        ("transitions/t1/cancel", {}),
        ("transitions/t1/decisions/in_hook.0", {"approved": True}),
    ],
)
def test_a_stale_version_changes_nothing(desk: Desk, path: str, body: dict[str, Any]) -> None:
    """Every request that changes a run is refused for another version than the one it has, and tells where it is."""
    run_id, _ = desk.start(TWO)
    before = desk.admin.get(f"/v1/runs/{run_id}")
    refused = desk.admin.post(f"/v1/runs/{run_id}/{path}", body, expect=412, headers={"If-Match": '"1"'})
    assert (refused["code"], refused["version"], refused["current"]) == ("stale_version", before["version"], "a")
    assert desk.admin.get(f"/v1/runs/{run_id}") == before
    garbled = desk.admin.post(f"/v1/runs/{run_id}/{path}", body, expect=400, headers={"If-Match": "garbage"})
    assert garbled["code"] == "bad_request"


def test_a_repeated_start_finds_its_run_whatever_its_runbook_is_called_by_now(desk: Desk) -> None:
    """The name of the runbook stands for another one when the request comes again: no second run is started."""
    name = f"moving-{next(_names)}"
    desk.admin.post("/v1/runbooks", {"text": f"name: first\n{TWO}", "name": name}, expect=201)
    key = {"Idempotency-Key": "a"}
    made = desk.admin.post("/v1/runs", {"runbook": name}, expect=201, headers=key)
    desk.admin.post("/v1/runbooks", {"text": f"name: second\n{TWO}", "name": name}, expect=201)
    again = desk.admin.ask("POST", "/v1/runs", expect=201, json={"runbook": name}, headers=key)
    assert again.json()["run_id"] == made["run_id"]
    assert again.headers["Idempotent-Replayed"] == "true"


def test_a_repeated_registration_does_not_bring_an_old_version_back(desk: Desk) -> None:
    """The name goes on standing for what was registered later."""
    name, key = f"kept-{next(_names)}", {"Idempotency-Key": "r"}
    old = {"text": f"# old {name}\n{TWO}", "name": name}
    first = desk.admin.post("/v1/runbooks", old, expect=201, headers=key)
    new = desk.admin.post("/v1/runbooks", {"text": f"# new {name}\n{TWO}", "name": name}, expect=201)
    again = desk.admin.ask("POST", "/v1/runbooks", expect=201, json=old, headers=key)
    assert (again.json()["hash"], again.headers["Idempotent-Replayed"]) == (first["hash"], "true")
    assert desk.admin.get(f"/v1/runbooks/{name}")["hash"] == new["hash"]


def test_a_bulk_request_that_has_grown_is_another_request(desk: Desk) -> None:
    """The same key with more runs is refused as a whole, and starts none of them."""
    key, label = {"Idempotency-Key": "grown"}, {"grown": "1"}
    one = [{"text": TWO, "labels": label}]
    made = desk.admin.ask("POST", "/v1/runs/bulk", expect=200, json={"runs": one}, headers=key)
    assert "Idempotent-Replayed" not in made.headers
    again = desk.admin.ask("POST", "/v1/runs/bulk", expect=200, json={"runs": one}, headers=key)
    assert again.headers["Idempotent-Replayed"] == "true"
    assert again.json()["items"][0]["run"]["run_id"] == made.json()["items"][0]["run"]["run_id"]
    refused = desk.admin.post("/v1/runs/bulk", {"runs": one * 2}, expect=422, headers=key)
    assert refused["code"] == "idempotency_key_reused"
    assert len(desk.admin.get("/v1/runs?label=grown=1")["items"]) == 1


@pytest.mark.parametrize("on_existing", ["use_existing", "resume", "restart"])
def test_starts_at_once_agree_on_one_run(desk: Desk, on_existing: str) -> None:
    """Whoever comes second by a hair gets what it asked for in that case, and no conflict."""
    run_id, barrier = f"agreed-{next(_names)}", threading.Barrier(6)

    def send(_: int) -> int:
        barrier.wait()
        body = {"text": TWO, "run_id": run_id, "on_existing": on_existing}
        return desk.admin.http.post(f"/v1/runs{WAIT}", json=body).status_code

    with ThreadPoolExecutor(6) as pool:
        assert sorted(pool.map(send, range(6))) == [200] * 5 + [201]


@pytest.mark.parametrize(
    ("path", "body"),
    [("runs", {"text": TWO}), ("runs/bulk", {"runs": [{"text": TWO}]}), ("runbooks", {"text": TWO})],
)
def test_a_version_of_nothing_is_refused(desk: Desk, path: str, body: dict[str, Any]) -> None:
    """``If-Match`` on a request that is about no version is not passed over in silence."""
    refused = desk.admin.post(f"/v1/{path}", body, expect=400, headers={"If-Match": '"777"'})
    assert "If-Match" in refused["detail"]


def test_cancelling_one_transition_does_not_cancel_the_next(desk: Desk) -> None:
    """A request that names a transition which has ended is refused, whatever is open by now."""
    run_id, place = desk.start(SLOW)
    desk.admin.post(f"/v1/runs/{run_id}/goto", {"target": "b"}, expect=202)
    eventually(lambda: (place / "began").exists(), "the check has begun")
    desk.admin.post(f"/v1/runs/{run_id}/transitions/t2/cancel")
    desk.admin.post(f"/v1/runs/{run_id}/goto", {"target": "b"}, expect=202)
    desk.admin.post(f"/v1/runs/{run_id}/transitions/t2/cancel", expect=409)
    assert desk.admin.get(f"/v1/runs/{run_id}")["in_flight"]["transition"] == "t3"
    (place / "go").touch()


# --- lists -----------------------------------------------------------------------------------------------------------


def test_a_walk_through_the_runs_meets_each_once(desk: Desk) -> None:
    """Page by page, while others are started: every run that was there is met exactly once."""
    label = f"walk-{next(_names)}"
    for number in range(25):
        desk.admin.start(TWO, f"{label}-{number}", labels={"walk": label})
    met: list[str] = []
    cursor = ""
    while True:
        page = desk.admin.get(f"/v1/runs?label=walk={label}&limit=7{cursor}")
        met += [each["run_id"] for each in page["items"]]
        if page["next_cursor"] is None:
            break
        desk.admin.start(TWO, f"{label}-late-{len(met)}", labels={"walk": label})
        cursor = f"&cursor={page['next_cursor']}"
    assert met == [f"{label}-{number}" for number in reversed(range(25))]
    assert desk.admin.get("/v1/runs?cursor=nonsense", expect=422)["code"] == "invalid"


def test_runs_that_cannot_be_read_do_not_keep_back_the_others(site: Site) -> None:
    """Not even many in a row, newest or in the middle: each readable run is listed, and the walk comes to its end."""
    api = serve(site)
    caller = api.caller()
    caller.post("/v1/runs/bulk", {"runs": [{"text": TWO, "run_id": f"r{number:03}"} for number in range(160)]})
    broken = [*range(60, 120), *range(150, 160)]
    for number in broken:
        site.redis("HSET", keys.run(f"r{number:03}"), "doc", '{"schema": 99}')
    met: list[str] = []
    cursor = ""
    while True:
        page = caller.get(f"/v1/runs?limit=20{cursor}")
        met += [each["run_id"] for each in page["items"]]
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert met == [f"r{number:03}" for number in reversed(range(160)) if number not in broken]
    assert len(site.json("runs", "--limit", "1000")["runs"]) == len(met)


def test_runs_are_found_by_what_they_are(desk: Desk) -> None:
    """By status, label, runbook and node, and by several of these at once."""
    label = f"find-{next(_names)}"
    for number in range(4):
        desk.admin.start(f"name: found-{number % 2}\n{TWO}", f"{label}-{number}", labels={"find": label})
    desk.admin.post(f"/v1/runs/{label}-3/goto{WAIT}", {"target": "b"})
    desk.admin.post(f"/v1/runs/{label}-3/goto{WAIT}", {"target": "c"})

    def found(query: str) -> list[str]:
        return [each["run_id"][-1] for each in desk.admin.get(f"/v1/runs?label=find={label}&{query}")["items"]]

    assert found("status=active") == ["2", "1", "0"]
    assert found("status=finished&node=c") == ["3"]
    assert found("runbook=found-1") == ["3", "1"]
    assert found("runbook=found-1&node=a") == ["1"]
    assert found("status=cancelled") == []


# --- what is read of a run -------------------------------------------------------------------------------------------


def test_everything_of_a_run_can_be_read(desk: Desk) -> None:
    """Graph, nodes, ways out, history, evidence and prompts."""
    run_id, place = desk.start()
    (place / "plan.md").write_text("plan")
    desk.admin.post(f"/v1/runs/{run_id}/goto{WAIT}", {"target": "build"})
    url = f"/v1/runs/{run_id}"
    graph = desk.admin.get(f"{url}/graph")
    assert [each["name"] for each in graph["nodes"] if each["visited"]] == ["plan", "build"]
    assert desk.admin.ask("GET", f"{url}/graph?format=svg", expect=200).text.startswith("<svg")
    assert desk.admin.get(f"{url}/nodes/plan")["node"] == "plan"
    assert desk.admin.get(f"{url}/nodes/nope", expect=404)["code"] == "not_found"
    assert [each["to"] for each in desk.admin.get(f"{url}/next")["items"]] == ["done"]
    history = desk.admin.get(f"{url}/history")["history"]
    assert [each["event"] for each in history] == ["start", "in_hook", "goto"]
    assert desk.admin.get(f"{url}/history?after=3")["history"] == history[2:]
    assert desk.admin.get(f"{url}/evidence")["items"][0]["strongest"] == "verified"
    for prompt in ("prompt", "compact-prompt"):
        assert "the service at STATEM_URL" in desk.admin.get(f"{url}/{prompt}")["prompt"]


def test_longer_output_is_read_apart(desk: Desk) -> None:
    """A result has the beginning and the end of a long output; the log has more."""
    text = """
initial: a
nodes: {a: {before_transfer: [{type: command, run: 'seq 1 5000'}]}, b: {}}
edges: [{from: a, to: b}]
"""
    run_id, _ = desk.start(text)
    moved = desk.admin.post(f"/v1/runs/{run_id}/goto{WAIT}", {"target": "b"})
    assert "\n2500\n" not in moved["results"][0]["output"]
    url = f"/v1/runs/{run_id}/transitions/t2/checks"
    assert "\n2500\n" in desk.admin.get(f"{url}/before_transfer.0/log")["text"]
    desk.admin.get(f"{url}/before_transfer.9/log", expect=404)


def test_dynamic_checks_are_registered_and_count(desk: Desk) -> None:
    """What an agent registers for the entry is evaluated by the next transition; a wrong one names its place."""
    text = """
initial: a
nodes: {a: {dynamic_before_transfer: {required: true, allow_types: [predicate, command]}}, b: {}}
edges: [{from: a, to: b}]
"""
    run_id, place = desk.start(text)
    url = f"/v1/runs/{run_id}"
    assert desk.admin.post(f"{url}/goto{WAIT}", {"target": "b"})["outcome"] == "blocked"
    check = {"type": "predicate", "path": "ok.txt", "exists": True}
    wrong = desk.admin.ask("PUT", f"{url}/dynamic", expect=422, json={"checks": [{"type": "manual", "text": "x"}]})
    assert wrong.json()["code"] == "runbook_invalid"
    desk.admin.ask("PUT", f"{url}/dynamic", expect=200, json={"checks": [check], "agent_id": "coder"})
    (item,) = desk.admin.get(f"{url}/dynamic")["items"]
    assert (item["producer"]["agent_id"], item["checks"]) == ("coder", 1)
    (place / "ok.txt").touch()
    assert desk.admin.post(f"{url}/goto{WAIT}", {"target": "b"})["outcome"] == "committed"


# --- problems --------------------------------------------------------------------------------------------------------


def test_problems_have_one_shape(desk: Desk) -> None:
    """Whatever is wrong, the answer is a problem whose type leads to a page, with the request's id."""
    cases: list[tuple[str, str, int, str, dict[str, Any]]] = [
        ("GET", "/v1/runs/none", 404, "not_found", {}),
        ("GET", "/v1/nothing", 404, "no_such_resource", {}),
        ("DELETE", "/v1/runs", 405, "method_not_allowed", {}),
        ("POST", "/v1/runs", 400, "bad_request", {"content": b"{", "headers": {"Content-Type": "application/json"}}),
        ("POST", "/v1/runs", 422, "invalid", {"json": {"text": TWO, "lable": {}}}),
        ("POST", "/v1/runs", 422, "invalid", {"json": {}}),
        ("POST", "/v1/runs", 415, "unsupported_media_type", {"data": {"text": TWO}}),
        ("GET", "/v1/runs?limit=0", 422, "invalid", {}),
        ("GET", "/v1/runs?lable=a=b", 422, "invalid", {}),
        ("POST", "/v1/runs", 422, "invalid", {"json": {"text": TWO, "run_id": "../x"}}),
    ]
    for method, path, status, code, options in cases:
        response = desk.admin.ask(method, path, expect=status, **options)
        assert response.headers["Content-Type"] == "application/problem+json"
        told = response.json()
        assert (told["code"], told["status"], told["type"]) == (code, status, f"/problems/{code}")
        assert told["request_id"] == response.headers["X-Request-Id"]
        assert desk.admin.ask("GET", told["type"], expect=200).text.startswith(code)
    misspelt = desk.admin.post("/v1/runs", {"text": TWO, "lable": {}}, expect=422)
    assert [each["pointer"] for each in misspelt["errors"]] == ["/lable"]
    assert desk.admin.get("/v1/runs?lable=a=b", expect=422)["hint"] == "Did you mean 'label'?"


def test_a_request_keeps_the_id_of_its_caller(desk: Desk) -> None:
    """A given id comes back; one that could not stand in a log is replaced."""
    given = desk.admin.ask("GET", "/v1/whoami", expect=200, headers={"X-Request-Id": "trace-7"})
    assert given.headers["X-Request-Id"] == "trace-7"
    odd = desk.admin.ask("GET", "/v1/whoami", expect=200, headers={"X-Request-Id": "a b"})
    assert odd.headers["X-Request-Id"].startswith("req_")


# --- health ----------------------------------------------------------------------------------------------------------


def test_health_and_metrics(desk: Desk) -> None:
    """The process lives, its parts are named, and the metrics are those of Prometheus, for those with a token."""
    assert httpx2.get(f"{desk.api.url}/healthz").json()["ok"] is True
    ready = httpx2.get(f"{desk.api.url}/readyz").json()
    assert ready["ok"] is True
    assert {"redis", "queue checks"} <= {each["check"] for each in ready["checks"]}
    run_id, _ = desk.start(TWO)
    desk.admin.post(f"/v1/runs/{run_id}/goto{WAIT}", {"target": "b"})
    text = desk.admin.ask("GET", "/metrics", expect=200).text
    for name in ("statem_build_info", "statem_sse_clients", "statem_queue_depth", "statem_runs", "statem_workers"):
        assert f"\n# TYPE {name} " in text
    assert 'route="/v1/runs/{run_id}/goto"' in text
    Caller(desk.api.url).get("/metrics", expect=401)


def test_readiness_names_a_queue_that_nobody_serves(site: Site) -> None:
    """Work that waits for a worker that is not there makes the service not ready, and so does a store that is away."""
    site.start(PLAN)
    api = serve(site)
    assert httpx2.get(f"{api.url}/readyz").status_code == 200
    api.caller().post("/v1/runs/r/goto", {"target": "build"}, expect=202)
    told = httpx2.get(f"{api.url}/readyz")
    assert told.status_code == 503
    assert [each["check"] for each in told.json()["checks"] if not each["ok"]] == ["queue checks"]
    site.run("down")
    away = httpx2.get(f"{api.url}/readyz", timeout=30)
    assert away.status_code == 503
    assert away.json()["checks"][0]["check"] == "redis"
    refused = httpx2.get(f"{api.url}/v1/runs", timeout=30)
    assert (refused.status_code, refused.json()["code"]) == (503, "unavailable")
    assert refused.headers["Retry-After"]
    assert json.dumps(refused.json()).count("Traceback") == 0


def test_the_service_ends_when_it_is_told_to(site: Site) -> None:
    """SIGTERM ends it with 0, also while somebody follows a run."""
    api = serve(site)
    caller = api.caller()
    caller.start(TWO)
    with caller.stream("/v1/runs/r/events") as stream:
        messages = stream.messages()
        assert next(messages)["id"] == "1"
        api.program.terminate()
        assert api.program.wait().exit_code == 0


def test_a_port_that_is_taken_is_named(site: Site) -> None:
    """The second service on a port says which, and what to do."""
    api = serve(site)
    port = api.url.rpartition(":")[2]
    said = site.run("api", "--port", port)
    assert said.exit_code == 8
    assert f"127.0.0.1:{port} cannot be served" in said.stderr
    assert "--port" in said.stderr


def test_up_serves_with_a_token_of_its_own(site: Site) -> None:
    """``up`` serves the API beside the worker; the token in the state directory is an admin's, for its owner alone."""
    up = site.begin("up", "--port", "0")
    parts = ("Serving: ", "ready: queues checks")
    eventually(lambda: all(part in up.stdout for part in parts), "it is up", lambda: up.stdout + up.stderr)
    url = up.stdout.partition("Serving: ")[2].partition("/v1")[0]
    file = site.state_dir / "token"
    assert file.stat().st_mode & 0o777 == 0o600
    Caller(url).get("/v1/runs", expect=401)
    caller = Caller(url, file.read_text().strip())
    assert caller.get("/v1/whoami")["role"] == "admin"
    assert site.json("runs", STATEM_URL=url)["runs"] == []
    with socket.create_server(("127.0.0.1", 0)) as stranger:
        elsewhere = f"http://127.0.0.1:{stranger.getsockname()[1]}"
        asking = site.begin("runs", STATEM_URL=elsewhere, STATEM_PATIENCE_SECONDS="30")
        connection, _ = stranger.accept()
        with connection:
            request = connection.recv(65536)
        asking.kill()
    assert request.startswith(b"GET /v1/runs")
    assert b"authorization" not in request.lower(), "whoever else listens on this host is not told the token"
    caller.start(TWO)
    assert caller.post(f"/v1/runs/r/goto{WAIT}", {"target": "b"})["current"] == "b"
    up.terminate()
    assert up.wait().exit_code == 0


# --- files -----------------------------------------------------------------------------------------------------------


def test_a_run_is_taken_over_by_another_store(desk: Desk, site: Site) -> None:
    """Exported and imported, it is the same run, and it goes on there; a second time, it is there already."""
    run_id, _ = desk.start(TWO, labels={"team": "a"}, vars={"KEY": "hunter2"})
    for target in ("b", "a", "b"):
        desk.admin.post(f"/v1/runs/{run_id}/goto{WAIT}", {"target": target})
    file = desk.admin.ask("GET", f"/v1/runs/{run_id}/export", expect=200).content
    assert b"hunter2" not in file
    other = serve(site).caller()
    taken = other.ask("POST", "/v1/runs/import", expect=201, content=file).json()
    ours = desk.admin.get(f"/v1/runs/{run_id}")
    for name in ("run_id", "version", "status", "current", "current_entry_id", "labels", "created_at", "prompt"):
        assert taken[name] == ours[name]
    assert other.get(f"/v1/runs/{run_id}/document") == desk.admin.get(f"/v1/runs/{run_id}/document")
    assert other.get(f"/v1/runs/{run_id}/events")["items"] == desk.admin.get(f"/v1/runs/{run_id}/events")["items"]
    assert [each["run_id"] for each in other.get("/v1/runs?label=team=a")["items"]] == [run_id]
    other.ask("POST", "/v1/runs/import", expect=409, content=file)
    assert other.post(f"/v1/runs/{run_id}/goto", {"target": "a"})["current"] == "a"


def test_a_file_that_was_changed_is_refused(desk: Desk) -> None:
    """Cut off after any line, or changed in any: refused with the line, and nothing is made."""
    run_id, _ = desk.start(TWO)
    file = desk.admin.ask("GET", f"/v1/runs/{run_id}/export", expect=200).content.replace(
        run_id.encode(), b"tampered-with"
    )
    whole = file.splitlines(keepends=True)
    files = [file, b"", b"{}", *(b"".join(whole[:cut]) for cut in range(1, len(whole)))]
    for broken in files:
        told = desk.admin.ask("POST", "/v1/runs/import", expect=422, content=broken).json()
        assert told["detail"].startswith("Line ")
    desk.admin.get("/v1/runs/tampered-with", expect=404)


def values_of(file: bytes) -> list[dict[str, Any]]:
    """Return the values of the lines of a file."""
    return [json.loads(line)["value"] for line in file.splitlines()]


def sealed(values: list[dict[str, Any]]) -> bytes:
    """Return the file of these values, with the hashes that one computes who knows how."""
    lines, before = [], "0" * 64
    for number, value in enumerate(values, start=1):
        encoded = json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode()
        before = sha256(before.encode() + encoded).hexdigest()
        lines.append(b'{"line":%d,"sha256":"%s","value":%s}\n' % (number, before.encode(), encoded))
    return b"".join(lines)


def test_a_file_that_was_sealed_anew_is_not_believed(desk: Desk) -> None:
    """What could not go on here, breaks a law, or is not what it says, is refused before anything is written."""
    run_id, _ = desk.start(TWO)
    desk.admin.post(f"/v1/runs/{run_id}/goto{WAIT}", {"target": "b"})
    whole = desk.admin.ask("GET", f"/v1/runs/{run_id}/export", expect=200).text
    hash_ = desk.admin.get(f"/v1/runs/{run_id}")["spec_hash"]
    false_hash = "f" * 64

    def lines(*changes: tuple[str, str]) -> list[dict[str, Any]]:
        text = whole.replace(run_id, "sealed-anew")
        for old, new in changes:
            assert old in text
            text = text.replace(old, new)
        return values_of(text.encode())

    without_runbook = [value for value in lines() if value["kind"] != "runbook"]
    without_opening = [value for value in lines() if value.get("event", {}).get("event") != "transition_opened"]
    for number, value in enumerate(value for value in without_opening if value["kind"] == "event"):
        value["number"] = number + 1
    next(value for value in without_opening if value["kind"] == "run")["events"] = number + 1
    for told, file in (
        ("run id", lines(("sealed-anew", "../x y"))),
        ("run id", lines(("sealed-anew", "x" * 201))),
        ("run id", lines(("sealed-anew", "x\\n"))),
        ("queue", lines(('"workspace":', '"queue":"a,b","workspace":'))),
        ("SHA-256 of its text", lines((hash_, false_hash))),
        ("runbook_known", without_runbook),
        ("edge_known", lines(('"target":"b"', '"target":"gone"'), ('"node":"b"', '"node":"gone"'))),
        ("settled_is_settled", without_opening),
    ):
        answer = desk.admin.ask("POST", "/v1/runs/import", expect=422, content=sealed(file)).json()
        assert told in answer["detail"]
        assert answer["detail"].startswith("Line ")
    desk.admin.get("/v1/runs/sealed-anew", expect=404)
    desk.admin.get(f"/v1/runbooks/{false_hash}/document", expect=404)
    assert not {"../x y", "sealed-anew"} & {each["run_id"] for each in desk.admin.get("/v1/runs?limit=500")["items"]}
    # A graph that is not that of the text is not believed: the text counts.
    other_graph = lines()
    (stored,) = (value["runbook"] for value in other_graph if value["kind"] == "runbook")
    stored["runbook"]["nodes"] = stored["runbook"]["nodes"][:1]
    desk.admin.ask("POST", "/v1/runs/import", expect=201, content=sealed(other_graph))
    assert desk.admin.get("/v1/runs/sealed-anew/next")["items"][0]["to"] == "a"


def test_a_long_run_is_taken_over_where_bodies_may_be_larger(site: Site) -> None:
    """A file beyond the limit is refused with the option that raises it; with that it comes in."""
    api = serve(site, "--body-limit", "1")
    caller = api.caller()
    text = TWO.replace("{a: {}", f"{{a: {{prompt: {'x' * 600_000}}}")
    caller.start(text, "long")
    for name in ("b", "a"):
        rebound = text.replace("initial: a", f"name: {name}\ninitial: a")
        caller.post(f"/v1/runs/long/rebind{WAIT}", {"text": rebound})
    file = caller.ask("GET", "/v1/runs/long/export", expect=200).content.replace(b'"long"', b'"back"')
    file = sealed(values_of(file))
    assert len(file) > 2**20
    refused = caller.ask("POST", "/v1/runs/import", expect=413, content=file).json()
    assert "--body-limit" in refused["hint"]
    larger = serve(site, "--body-limit", "9").caller()
    larger.ask("POST", "/v1/runs/import", expect=201, content=file)
    assert larger.get("/v1/runs/back")["current"] == "a"


def test_what_stands_in_the_way_of_a_workspace_is_named(desk: Desk, site: Site) -> None:
    """A file where a folder has to be is the caller's to mend, and no defect of the service."""
    blocked = site.write("blocked", "a file")
    caller = serve(site, "--workspaces", str(blocked)).caller()
    told = caller.start(TWO, "r", expect=422)
    assert str(blocked) in told["detail"]
    assert "--workspaces" in told["hint"]


def test_a_defect_in_one_of_many_runs_hides_none(site: Site) -> None:
    """It is that run's problem, and logged; the others are started."""
    api = serve(site)
    caller = api.caller()
    # A run without its document is nothing that was ever written: what comes of it is a defect.
    site.redis("HSET", keys.run("damaged"), "hints", "0")
    runs = [{"text": TWO, "run_id": name} for name in ("one", "damaged", "two")]
    made = caller.post("/v1/runs/bulk", {"runs": runs})
    assert (made["created"], made["failed"]) == (2, 1)
    assert [each.get("problem", {}).get("code") for each in made["items"]] == [None, "error", None]
    assert "run 1 of a bulk request could not be started" in api.program.stderr
