"""Sweeps over the REST service: submitted, steered and read, on a real service with a real store and no workers."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from statem_dist.engine import Engine
from statem_dist.sweep.ledger import Claim, Ledger
from statem_dist.sweep.model import Outcome, Planned, Usage
from tests.support.ledgers import attempt, definition, planned, settled, taken
from tests.support.programs import Site
from tests.support.service import Api, Caller, library, serve

pytestmark = pytest.mark.e2e

RUNBOOK = "nodes: {a: {next: [done, lost]}, done: {}, lost: {outcome: failure}}\n"

SWEEP = """\
name: small
runbook: fix.yaml
matrix:
  model: [opus, sonnet]
  task: {from: tasks.txt}
trials: 2
concurrency: {total: 3, per: {model: {opus: 1}}}
agent: {run: "true"}
env: {API_BASE: secret-value}
labels: {team: a}
"""


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    """The service alone, in a store that has tokens, beside a folder with a runbook and two tasks."""
    site = Site()
    try:
        write_files(site.folder)
        served = serve(site)
        served.token("admin")
        yield served
    finally:
        site.close()


@pytest.fixture(scope="module")
def operator(api: Api) -> Caller:
    """Somebody who may submit."""
    return api.caller("operator")


@pytest.fixture(scope="module")
def engine(api: Api) -> Iterator[Engine]:
    """The library, on the store of the service."""
    with library(api.site) as engine:
        yield engine


@pytest.fixture
def ledger(engine: Engine) -> Ledger:
    """The ledger of the store of the service."""
    return Ledger(engine.store)


def write_files(folder: Path) -> None:
    """Write what the sweep file names."""
    (folder / "fix.yaml").write_text(RUNBOOK)
    (folder / "tasks.txt").write_text("t1\nt2\n")


def submission(api: Api, text: str = SWEEP, **fields: Any) -> dict[str, Any]:
    """Return the body that submits a sweep."""
    return {"file": text, "folder": str(api.site.folder), **fields}


def finish(ledger: Ledger, sweep_id: str, outcome: Outcome, usage: Usage | None = None) -> Claim:
    """Take the next trial and end it; return its claim."""
    claim = taken(ledger, f"h-{outcome}-{ledger.latest_change(sweep_id)}", sweep_id)
    assert isinstance(claim, Claim)
    tried = attempt(claim, 1, outcome, usage=usage)
    assert settled(ledger, claim, outcome, tried, used=usage)
    return claim


# --- submitting ------------------------------------------------------------------------------------------------------


def test_a_sweep_is_submitted_once(api: Api, operator: Caller) -> None:
    """201 and its place; the same again attaches with 200, `new` makes another one, and so does another content."""
    response = operator.ask("POST", "/v1/sweeps", expect=201, json=submission(api))
    made = response.json()
    assert response.headers["Location"] == f"/v1/sweeps/{made['sweep']}"
    assert made["fresh"]
    assert (made["status"], made["planned"], made["counts"]["pending"]) == ("active", 8, 8)
    assert made["labels"] == {"team": "a"}
    assert made["created_by"] == "operator"
    assert "no worker serves the queue 'trials'" in made["obstacles"][0]
    again = operator.post("/v1/sweeps", submission(api), expect=200)
    assert (again["sweep"], again["fresh"]) == (made["sweep"], False)
    other = operator.post("/v1/sweeps", submission(api, new=True), expect=201)
    assert other["sweep"] != made["sweep"]
    named = operator.post("/v1/sweeps", submission(api, SWEEP + "seed: 3\n", id="named"), expect=201)
    assert named["sweep"] == "named"
    differs = operator.post("/v1/sweeps", submission(api, SWEEP + "seed: 4\n", id="named"), expect=409)
    assert differs["differences"]


def test_what_is_shown_of_a_sweep(api: Api, operator: Caller) -> None:
    """Where it stands and what it is; the values of its variables are not shown."""
    operator.ask("POST", "/v1/sweeps", expect=201, json=submission(api, id="shown"))
    response = operator.ask("GET", "/v1/sweeps/shown", expect=200)
    shown = response.json()
    assert shown["planned"] == sum(shown["counts"].values()) == 8
    assert not shown["complete"]
    assert shown["bounds"] == {"total": 3, "in_use": 0, "per": {"model": {"opus": 1}}, "in_use_per": []}
    assert shown["definition"]["axes"] == ["model", "task"]
    assert shown["definition"]["env"] == ["API_BASE"]
    assert "secret-value" not in response.text
    operator.get("/v1/sweeps/nobodys", expect=404)


@pytest.mark.parametrize("fields", [{}, {"new": True}], ids=["attach", "new"])
def test_a_repeated_submission_is_one(api: Api, operator: Caller, fields: dict[str, Any]) -> None:
    """With a key, the answer is that of the first time; the key for another body is refused."""
    body = submission(api, SWEEP + f"seed: {11 + len(fields)}\n", **fields)
    headers = {"Idempotency-Key": f"once-{len(fields)}"}
    first = operator.ask("POST", "/v1/sweeps", expect=201, json=body, headers=headers)
    second = operator.ask("POST", "/v1/sweeps", expect=201, json=body, headers=headers)
    assert second.json() == first.json()
    assert "Idempotent-Replayed" not in first.headers
    assert second.headers["Idempotent-Replayed"] == "true"
    other = submission(api, SWEEP + "seed: 99\n")
    refused = operator.ask("POST", "/v1/sweeps", expect=422, json=other, headers=headers).json()
    assert refused["code"] == "idempotency_key_reused"


def test_a_new_sweep_whose_answer_was_lost_is_found_again(api: Api, operator: Caller, engine: Engine) -> None:
    """Although it was to be another one: the service has died before it could keep its answer."""
    body = submission(api, SWEEP + "seed: 17\n", new=True)
    headers = {"Idempotency-Key": "lost"}
    first = operator.ask("POST", "/v1/sweeps", expect=201, json=body, headers=headers).json()
    kept = [bytes(key) for key in engine.store.call("KEYS", "statem:answer:*")]
    engine.store.call("DEL", *kept)
    second = operator.ask("POST", "/v1/sweeps", expect=200, json=body, headers=headers).json()
    assert second["sweep"] == first["sweep"]


def test_what_was_stored_in_part_is_submitted_again(api: Api, operator: Caller, ledger: Ledger) -> None:
    """A submission that was interrupted is not resumed, because its file is not there, but repeated."""
    body = submission(api, SWEEP + "seed: 18\n", id="partly")
    operator.post("/v1/sweeps", body, expect=201)
    content, (whole, _) = ledger.fingerprint("partly"), ledger.definition("partly")
    ledger.remove("partly")
    ledger.create("partly", whole, content, "operator")
    ledger.add("partly", whole, [Planned(1, {"model": "opus", "task": "t1"}, 1)])
    assert "Submit it again" in operator.post("/v1/sweeps/partly/resume", expect=409)["hint"]
    again = operator.post("/v1/sweeps", body, expect=200)
    assert (again["status"], again["planned"]) == ("active", 8)


def test_what_is_wrong_with_a_file_has_its_place(api: Api, operator: Caller) -> None:
    """A pointer to the field that holds the file, with line and column; what is wrong elsewhere has the name of it."""
    text = "runbook: fix.yaml\nmatrx: {model: [a]}\ntrials: many\n"
    told = operator.post("/v1/sweeps", submission(api, text), expect=422)
    assert told["code"] == "runbook_invalid"
    assert [(each["pointer"], each["line"], each["column"]) for each in told["errors"]] == [("/file", 2, 1)]
    assert "'matrix'" in told["errors"][0]["hint"]
    (api.site.folder / "broken.yaml").write_text("initial: a\nnodes: {b: {}}\n")
    broken = operator.post("/v1/sweeps", submission(api, "runbook: broken.yaml\n"), expect=422)
    assert {each["source"] for each in broken["errors"]} == {str(api.site.folder / "broken.yaml")}
    missing = operator.post("/v1/sweeps", {"file": SWEEP, "folder": "/nowhere/at/all"}, expect=422)
    assert "/nowhere/at/all" in missing["detail"]
    operator.post("/v1/sweeps", {"file": SWEEP, "folder": "relative"}, expect=422)
    operator.post("/v1/sweeps", submission(api, id="x", new=True), expect=422)


def test_a_sweep_stays_below_the_roots(site: Site) -> None:
    """Neither its folder nor anything that its file names lies outside; what is there is neither told nor looked at."""
    inside, outside = site.folder / "inside", site.folder / "outside"
    for folder in (inside, outside):
        folder.mkdir()
        write_files(folder)
    (outside / "secret.yaml").write_text("password: hunter2\n")
    (inside / "link.yaml").symlink_to(outside / "secret.yaml")
    operator = serve(site, STATEM_WORKSPACE_ROOTS=str(inside)).caller("operator")
    for folder in (outside, inside / ".." / "outside"):
        told = operator.post("/v1/sweeps", {"file": SWEEP, "folder": str(folder)}, expect=422)
        assert str(inside) in told["detail"]
    for text in (
        "runbook: ../outside/secret.yaml\n",
        "runbook: link.yaml\n",
        "runbook: ../outside/not-there.yaml\n",
        "runbook: /etc/passwd\n",
        "runbook: fix.yaml\nmatrix: {task: {from: ../outside/tasks.txt}}\n",
        "runbook: fix.yaml\nmatrix: {task: {from: '../outside/*.yaml'}}\n",
        "runbook: fix.yaml\nworkspace: {template: ../outside}\n",
        "runbook: fix.yaml\nworkspace: {git: ../outside}\n",
    ):
        told = operator.post("/v1/sweeps", {"file": text, "folder": str(inside)}, expect=422)
        (error,) = told["errors"]
        assert error["pointer"] == "/file"
        assert "not below a workspace root" in error["detail"]
        assert "hunter2" not in str(told)
    operator.post("/v1/sweeps", {"file": SWEEP, "folder": str(inside)}, expect=201)


def test_only_registered_runbooks_are_swept_where_that_is_asked(site: Site) -> None:
    """And no variable makes the commands of one others than they are."""
    write_files(site.folder)
    api = serve(site, "--registered-only")
    admin, operator = api.caller("admin"), api.caller("operator")
    refused = operator.post("/v1/sweeps", submission(api), expect=403)
    digest = admin.post("/v1/runbooks", {"text": RUNBOOK, "name": "fix"}, expect=201)["hash"]
    assert refused["hash"] == digest
    loosened = SWEEP.replace("API_BASE", "LD_PRELOAD")
    assert operator.post("/v1/sweeps", submission(api, loosened), expect=403)["variables"] == ["LD_PRELOAD"]
    operator.post("/v1/sweeps", submission(api), expect=201)


# --- lists -----------------------------------------------------------------------------------------------------------


def test_sweeps_are_listed_newest_first_in_pages(api: Api, operator: Caller, ledger: Ledger) -> None:
    """Each once, filtered by status and labels."""
    for number in range(7):
        labels = {"kind": "odd" if number % 2 else "even"}
        ledger.create(f"page-{number}", definition(labels=labels), f"content-{number}", "t")
        ledger.add(f"page-{number}", definition(labels=labels), planned([1]))
        if number > 3:
            ledger.steer(f"page-{number}", "active", ["planning"])
    assert [each["sweep"] for each in walk(operator, "label=kind=odd", 2)] == ["page-5", "page-3", "page-1"]
    assert [each["sweep"] for each in walk(operator, "label=kind=even&status=active", 1)] == ["page-6", "page-4"]
    everything = [each["sweep"] for each in walk(operator, "", 3)]
    assert len(set(everything)) == len(everything)
    assert set(everything) == set(ledger.ids())
    for cursor in ("x", "1", "-1.a", "\u0661.a", "."):
        operator.ask("GET", "/v1/sweeps", expect=422, params={"cursor": cursor})


def walk(caller: Caller, query: str, limit: int, path: str = "/v1/sweeps") -> Iterator[dict[str, Any]]:
    """Yield everything that a list has."""
    cursor = ""
    while True:
        page = caller.get(f"{path}?{query}&limit={limit}" + (f"&cursor={cursor}" if cursor else ""))
        assert len(page["items"]) <= limit
        yield from page["items"]
        if page["next_cursor"] is None:
            return
        cursor = page["next_cursor"]


def test_trials_are_listed_by_number_and_filtered(api: Api, operator: Caller, ledger: Ledger) -> None:
    """By state and by value; one trial shows all its attempts with the way to their runs."""
    operator.post("/v1/sweeps", submission(api, SWEEP.replace("per: {model: {opus: 1}}", ""), id="listed"), expect=201)
    first = finish(ledger, "listed", "error")
    (trial,) = ledger.trials("listed", [first.number])
    ledger.again("listed", [trial])
    second = taken(ledger, "second", "listed")
    assert isinstance(second, Claim)
    assert second.number == first.number
    assert settled(ledger, second, "passed", attempt(second, 2, "passed"))
    path = "/v1/sweeps/listed/trials"
    assert [each["number"] for each in walk(operator, "", 3, path)] == list(range(1, 9))
    assert [each["number"] for each in walk(operator, "state=passed", 3, path)] == [first.number]
    sonnet = list(walk(operator, "where=model=sonnet", 2, path))
    assert {each["values"]["model"] for each in sonnet} == {"sonnet"}
    assert len(sonnet) == 4
    both = list(walk(operator, "where=model=opus&where=task=t2&state=pending", 1, path))
    assert {tuple(each["values"].items()) for each in both} == {(("model", "opus"), ("task", "t2"))}
    assert "model, task" in operator.get(f"{path}?where=modle=opus", expect=422)["hint"]
    shown = operator.get(f"{path}/{first.number}")
    assert shown["trial"]["state"] == "passed"
    assert [(each["attempt"], each["outcome"]) for each in shown["attempts"]] == [(1, "error"), (2, "passed")]
    assert shown["attempts"][1]["links"]["run"] == f"/v1/runs/listed-{first.number}-2"
    operator.get(f"{path}/9", expect=404)
    operator.get(f"{path}/0", expect=422)


def test_slots_in_use_are_shown(api: Api, operator: Caller, ledger: Ledger) -> None:
    """In all, and by the values that have a bound of their own."""
    operator.post("/v1/sweeps", submission(api, id="slots"), expect=201)
    for holder in ("one", "two"):
        assert isinstance(taken(ledger, holder, "slots"), Claim)
    bounds = operator.get("/v1/sweeps/slots")["bounds"]
    assert bounds["in_use"] == 2
    assert bounds["in_use_per"] == [{"value": {"model": "opus"}, "in_use": 1}]


# --- steering --------------------------------------------------------------------------------------------------------


def test_a_sweep_is_steered(api: Api, operator: Caller, ledger: Ledger) -> None:
    """Paused, resumed, extended, cancelled and retried; what cannot be done now is 409."""
    operator.post("/v1/sweeps", submission(api, id="steered"), expect=201)
    paused = operator.post("/v1/sweeps/steered/pause", {"reason": "the provider is down"})
    assert (paused["status"], paused["reason"]) == ("paused", "the provider is down")
    resumed = operator.post("/v1/sweeps/steered/resume")
    assert (resumed["status"], resumed["before"]) == ("active", "paused")
    extended = operator.post("/v1/sweeps/steered/extend", {"trials": 3})
    assert (extended["planned"], extended["added"]) == (12, 4)
    operator.post("/v1/sweeps/steered/extend", {"trials": 3}, expect=422)
    finish(ledger, "steered", "error")
    cancelled = operator.post("/v1/sweeps/steered/cancel")
    assert cancelled["counts"]["cancelled"] == 11
    operator.post("/v1/sweeps/steered/resume", expect=409)
    said = operator.post("/v1/sweeps/steered/retry", {"which": ["errored"], "dry_run": True})
    assert (said["retried"], said["counts"]["error"]) == (1, 1)
    retried = operator.post("/v1/sweeps/steered/retry", {"which": ["errored"]})
    assert (retried["status"], retried["retried_by_outcome"]) == ("active", {"error": 1})
    operator.post("/v1/sweeps/steered/retry", {}, expect=422)
    operator.post("/v1/sweeps/steered/retry", {"numbers": [77]}, expect=404)
    for verb, body in (
        ("pause", {}),
        ("resume", {}),
        ("cancel", {}),
        ("retry", {"numbers": [1]}),
        ("extend", {"trials": 9}),
    ):
        operator.post(f"/v1/sweeps/nobodys/{verb}", body, expect=404)


def test_a_repeated_retry_retries_nothing_twice(api: Api, operator: Caller, ledger: Ledger) -> None:
    """The repetition of a request is answered like the first one, whatever has happened since."""
    operator.post("/v1/sweeps", submission(api, id="again"), expect=201)
    finish(ledger, "again", "error")
    headers = {"Idempotency-Key": "retry-once"}
    body = {"which": ["errored"]}
    first = operator.ask("POST", "/v1/sweeps/again/retry", expect=200, json=body, headers=headers)
    assert first.json()["retried"] == 1
    claim = taken(ledger, "later", "again")
    assert isinstance(claim, Claim)
    assert settled(ledger, claim, "error", attempt(claim, 2, "error"))
    second = operator.ask("POST", "/v1/sweeps/again/retry", expect=200, json=body, headers=headers)
    assert second.headers["Idempotent-Replayed"] == "true"
    assert second.json() == first.json()
    assert operator.get("/v1/sweeps/again")["counts"]["error"] == 1, "it has ended so since, and stays so"


def test_a_sweep_is_removed_when_it_has_ended(api: Api, operator: Caller) -> None:
    """By an admin; an active one is 409."""
    operator.post("/v1/sweeps", submission(api, id="removed"), expect=201)
    folder = api.site.state_dir / "sweeps" / "removed"
    folder.mkdir(parents=True)
    admin = api.caller("admin")
    admin.ask("DELETE", "/v1/sweeps/removed", expect=409)
    admin.post("/v1/sweeps/removed/cancel")
    removed = admin.ask("DELETE", "/v1/sweeps/removed", expect=200).json()
    assert removed == {"sweep": "removed", "removed": True, "folder": str(folder)}
    assert not folder.exists()
    admin.ask("DELETE", "/v1/sweeps/removed", expect=404)


# --- results ---------------------------------------------------------------------------------------------------------


def test_results_in_every_format(api: Api, operator: Caller, ledger: Ledger) -> None:
    """All tell the same: two have passed, one has failed, and what is not judged yet is no loss to anybody."""
    text = SWEEP.replace("per: {model: {opus: 1}}", "")
    operator.post("/v1/sweeps", submission(api, text, id="scored"), expect=201)
    for outcome in ("passed", "passed", "failed"):
        finish(ledger, "scored", outcome, Usage(cost_usd=0.5))
    url = "/v1/sweeps/scored/results"
    told = operator.ask("GET", url, expect=200)
    assert told.headers["Content-Type"] == "application/json"
    document = told.json()
    assert document["counts"]["planned"] == 8
    assert (document["counts"]["passed"], document["counts"]["failed"], document["counts"]["scored"]) == (2, 1, 3)
    lines = [json.loads(line) for line in operator.ask("GET", f"{url}?format=jsonl", expect=200).text.splitlines()]
    assert [line["number"] for line in lines] == list(range(1, 9))
    table = operator.ask("GET", f"{url}?format=csv", expect=200)
    assert table.headers["Content-Disposition"] == 'attachment; filename="scored-trials.csv"'
    assert [row["state"] for row in csv.DictReader(io.StringIO(table.text))].count("passed") == 2
    suites = ElementTree.fromstring(operator.ask("GET", f"{url}?format=xml", expect=200).text)
    assert (suites.get("tests"), suites.get("failures")) == ("8", "1")
    assert "small" in operator.ask("GET", f"{url}?format=md", expect=200).text
    operator.get(f"{url}?format=pdf", expect=422)
    operator.get("/v1/sweeps/nobodys/results", expect=404)
    assert operator.get("/v1/sweeps/scored")["usage"]["cost_usd"] == 1.5


def test_the_report_is_a_page_that_runs_nothing_but_its_own(api: Api, operator: Caller, ledger: Ledger) -> None:
    """Its policy names what is in it by hash, allows nothing else, and a name that is a script stays a name."""
    evil = SWEEP.replace("name: small", "name: <script>alert(1)</script>")
    operator.post("/v1/sweeps", submission(api, evil, id="reported"), expect=201)
    finish(ledger, "reported", "failed")
    response = operator.ask("GET", "/v1/sweeps/reported/report", expect=200)
    assert response.headers["Content-Type"] == "text/html; charset=utf-8"
    policy = response.headers["Content-Security-Policy"]
    assert policy.startswith("default-src 'none'; ")
    assert "unsafe" not in policy
    assert "<script>alert" not in response.text
    assert " style=" not in response.text
    for directive, tag in (("script-src", "script"), ("style-src", "style")):
        (inside,) = re.findall(f"<{tag}>(.*?)</{tag}>", response.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(inside.encode()).digest()).decode()
        assert f"{directive} 'sha256-{digest}'" in policy
