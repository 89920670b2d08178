"""What somebody would try who means harm: each attempt fails, and says no more than it must."""

from __future__ import annotations

import contextlib
import json
import re
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2
import pytest

from tests.support.programs import Site, eventually
from tests.support.service import WAIT, Api, Caller, serve

pytestmark = pytest.mark.e2e

TWO = "initial: a\nnodes: {a: {}, b: {}}\nedges: [{from: a, to: b}, {from: b, to: a}]\n"

ASKING = """
initial: a
nodes: {a: {before_transfer: [{type: manual, text: sure?, by: operator}], dynamic_before_transfer: {}}, b: {}}
edges: [{from: a, to: b}]
"""


@pytest.fixture(scope="module")
def api() -> Iterator[Api]:
    """The service with a worker, in a store that has tokens."""
    site = Site()
    try:
        site.worker()
        served = serve(site)
        served.token("admin")
        yield served
    finally:
        site.close()


@pytest.fixture(scope="module")
def admin(api: Api) -> Caller:
    """An admin, who has started runs and sweeps of two teams and registered a runbook."""
    admin = api.caller("admin")
    admin.start(TWO, "ours", labels={"team": "ours"})
    admin.start(TWO, "theirs", labels={"team": "theirs"})
    admin.post("/v1/runbooks", {"text": TWO, "name": "two"}, expect=201)
    api.site.write("ends.yaml", "nodes: {a: {next: end}, end: {}}\n")
    admin.post("/v1/sweeps", submission(api, "of-ours", "seed: 1\nlabels: {team: ours}\n"), expect=201)
    admin.post("/v1/sweeps", submission(api, "of-theirs", "seed: 2\nlabels: {team: theirs}\n"), expect=201)
    return admin


def submission(api: Api, sweep_id: str | None, text: str) -> dict[str, Any]:
    """Return the body that submits a small sweep."""
    file = f"name: small\nrunbook: ends.yaml\nmatrix: {{model: [a, b]}}\nagent: {{run: 'true'}}\n{text}"
    return {"file": file, "folder": str(api.site.folder)} | ({"id": sweep_id} if sweep_id else {})


# --- tokens ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/runs"),
        ("GET", "/v1/runs/ours"),
        ("GET", "/v1/runs/ours/events"),
        ("GET", "/v1/runs/ours/agui"),
        ("GET", "/v1/events"),
        ("GET", "/v1/runbooks"),
        ("GET", "/v1/tokens"),
        ("GET", "/v1/approvals"),
        ("GET", "/v1/whoami"),
        ("GET", "/metrics"),
        ("POST", "/v1/runs"),
        ("POST", "/v1/runs/ours/goto"),
        ("POST", "/v1/agui/runs"),
        ("PUT", "/v1/runs/ours/dynamic"),
        ("DELETE", "/v1/tokens/x"),
    ],
)
def test_nothing_is_told_without_a_token(api: Api, admin: Caller, method: str, path: str) -> None:
    """Streams neither: 401, and how to come in; the body of the request is not even looked at."""
    response = Caller(api.url).ask(method, path, expect=401, headers={"Accept": "text/event-stream"})
    assert response.headers["WWW-Authenticate"].startswith("Bearer")
    assert response.json()["code"] == "not_authenticated"


def test_every_operation_asks_for_a_token(api: Api, admin: Caller) -> None:
    """Whatever the service offers under /v1 is refused without one; nothing was forgotten."""
    told = httpx2.get(f"{api.url}/openapi.json").json()
    somebody = Caller(api.url)
    for path, methods in told["paths"].items():
        for method in methods:
            if path.startswith("/v1/"):
                filled = re.sub("[{}]", "", path.replace("{run_id}", "ours").replace("{transition}", "t1"))
                somebody.ask(method.upper(), filled, expect=401)


def test_only_a_whole_token_counts(api: Api, admin: Caller) -> None:
    """Forged, cut, swapped, expired and revoked tokens are all the same: unknown."""
    text = api.token("admin")
    _, token_id, secret = text.split("_", 2)
    other = api.token("viewer").split("_", 2)[2]
    forged = [
        f"stm_{token_id}_{'A' * len(secret)}",
        f"stm_{token_id}_{other}",
        f"stm_{token_id}_",
        f"stm_{'0' * 16}_{secret}",
        text[:-1],
        text + "A",
        text.upper(),
        "stm__",
        "x" * 10_000,
    ]
    for each in forged:
        response = httpx2.get(f"{api.url}/v1/whoami", headers={"Authorization": f"Bearer {each}"})
        assert response.status_code in (401, 431, 400), each[:60]
        assert secret not in response.text
    for scheme in ("Basic", "Token", "bearer_"):
        response = httpx2.get(f"{api.url}/v1/whoami", headers={"Authorization": f"{scheme} {text}"})
        assert response.status_code == 401
    assert httpx2.get(f"{api.url}/v1/whoami?token={text}").status_code in (401, 422), "a URL is no place for a token"
    brief = api.token("admin", "--expires", "1s")
    eventually(lambda: Caller(api.url, brief).http.get("/v1/whoami").status_code == 401, "the token has expired")
    Caller(api.url, text).get("/v1/whoami")
    admin.ask("DELETE", f"/v1/tokens/{token_id}", expect=200)
    Caller(api.url, text).get("/v1/whoami", expect=401)


def test_the_last_token_that_is_revoked_opens_nothing(site: Site) -> None:
    """Where tokens were in use, nobody is let in without one, also when none is left, also after a restart."""
    api = serve(site)
    assert Caller(api.url).get("/v1/whoami")["name"] == "local"
    text = api.token("admin")
    Caller(api.url).get("/v1/whoami", expect=401)
    site.json("token", "revoke", text.split("_")[1])
    Caller(api.url).get("/v1/whoami", expect=401)
    api.program.terminate()
    api.program.wait()
    Caller(serve(site).url).get("/v1/whoami", expect=401)


def test_other_hosts_are_not_served_without_tokens(site: Site) -> None:
    """An address that others reach is refused while there is no token, and names the command that makes one."""
    said = site.run("api", "--host", "0.0.0.0", "--port", "0")
    assert said.exit_code == 4
    assert "statem-dist token create" in said.stderr


# --- roles -----------------------------------------------------------------------------------------------------------

VIEWER: list[tuple[str, str, Any]] = [
    ("POST", "/v1/runs", {"runbook": "two"}),
    ("POST", "/v1/runs/bulk", {"runs": [{"runbook": "two"}]}),
    ("POST", "/v1/runs/ours/goto", {"target": "b"}),
    ("POST", "/v1/runs/ours/save", {}),
    ("PUT", "/v1/runs/ours/dynamic", {"checks": []}),
    ("POST", "/v1/agui/runs", {"threadId": "ours", "runId": "x", "messages": [], "forwardedProps": {"goto": "b"}}),
]
AGENT: list[tuple[str, str, Any]] = [
    ("POST", "/v1/runs", {"text": "# not registered\n" + TWO}),
    ("POST", "/v1/runs/ours/cancel", {}),
    ("POST", "/v1/runs/ours/terminate", {}),
    ("POST", "/v1/runs/ours/pause", {}),
    ("POST", "/v1/runs/ours/resume", {}),
    ("POST", "/v1/runs/ours/rebind", {"runbook": "two"}),
    ("POST", "/v1/runs/ours/transitions/t1/cancel", {}),
    ("POST", "/v1/runs/ours/transitions/t1/decisions/before_transfer.0", {"approved": True}),
    ("POST", "/v1/agui/runs", {"threadId": "ours", "runId": "x", "messages": [], "resume": []}),
    ("POST", "/v1/runs", {"runbook": "two", "run_id": "ours", "on_existing": "restart"}),
    ("POST", "/v1/sweeps", {"file": "runbook: two.yaml\n", "folder": "/tmp"}),
    ("POST", "/v1/sweeps/of-ours/pause", {}),
    ("POST", "/v1/sweeps/of-ours/resume", {}),
    ("POST", "/v1/sweeps/of-ours/cancel", {}),
    ("POST", "/v1/sweeps/of-ours/retry", {"numbers": [1]}),
    ("POST", "/v1/sweeps/of-ours/extend", {"trials": 9}),
]
OPERATOR: list[tuple[str, str, Any]] = [
    ("POST", "/v1/runbooks", {"text": TWO}),
    ("POST", "/v1/tokens", {"role": "viewer"}),
    ("GET", "/v1/tokens", None),
    ("DELETE", "/v1/tokens/abcdefghijkl", None),
    ("DELETE", "/v1/sweeps/of-ours", None),
]
REFUSED = [
    *(("viewer", *case) for case in (*VIEWER, *AGENT, *OPERATOR)),
    *(("agent", *case) for case in (*AGENT, *OPERATOR)),
    *(("operator", *case) for case in OPERATOR),
]


@pytest.mark.parametrize(("role", "method", "path", "body"), REFUSED)
def test_a_role_may_not_do_what_is_above_it(
    api: Api, admin: Caller, role: str, method: str, path: str, body: Any
) -> None:
    """403, the role that it takes, and nothing has changed."""
    before = admin.get("/v1/runs/ours"), admin.get("/v1/sweeps/of-ours")
    refused = api.caller(role).ask(method, path, expect=403, json=body).json()
    assert refused["code"] == "not_authorised"
    assert (admin.get("/v1/runs/ours"), admin.get("/v1/sweeps/of-ours")) == before


def test_an_agent_cannot_loosen_what_holds_it(api: Api, admin: Caller) -> None:
    """Neither by resuming its run on another registered runbook, nor by variables that change what commands are."""
    admin.post("/v1/runbooks", {"text": "# laxer\n" + TWO, "name": "laxer"}, expect=201)
    agent = api.caller("agent", "--label", "team=ours")
    agent.post("/v1/runs", {"runbook": "two", "run_id": "held"}, expect=201)
    agent.post("/v1/runs", {"runbook": "two", "run_id": "held", "on_existing": "resume"}, expect=200)
    loosened = {"runbook": "laxer", "run_id": "held", "on_existing": "resume"}
    assert agent.post("/v1/runs", loosened, expect=403)["code"] == "not_authorised"
    for name in ("PATH", "LD_PRELOAD", "BASH_ENV", "PYTHONPATH", "HOME", "GIT_SSH_COMMAND"):
        body = {"runbook": "two", "vars": {name: "/tmp/evil"}}
        assert agent.post("/v1/runs", body, expect=403)["variables"] == [name]
    agent.post("/v1/runs", {"runbook": "two", "vars": {"TASK": "7"}}, expect=201)


def test_an_agent_does_not_take_away_the_checks_of_another(api: Api, admin: Caller) -> None:
    """Neither by its name nor by a role above its own; an operator may."""
    admin.start(ASKING, "shared", labels={"team": "ours"})
    one, two = (api.caller("agent", "--label", "team=ours") for _ in range(2))
    check = {"type": "manual", "text": "looked at it"}
    url = "/v1/runs/shared/dynamic"
    one.ask("PUT", url, expect=200, json={"agent_id": "alice", "checks": [check]})
    stolen = two.ask("PUT", url, expect=403, json={"agent_id": "alice", "checks": []}).json()
    assert "another token" in stolen["detail"]
    one.ask("PUT", url, expect=200, json={"agent_id": "alice", "checks": [check, check]})
    two.ask("PUT", url, expect=200, json={"agent_id": "bob", "checks": [check]})
    raised = two.ask("PUT", url, expect=403, json={"agent_role": "operator", "checks": []}).json()
    assert "does not speak as operator" in raised["detail"]
    assert sorted(each["checks"] for each in admin.get(url)["items"]) == [1, 2]
    admin.ask("PUT", url, expect=200, json={"agent_id": "alice", "checks": []})


def test_an_agent_does_not_rebind_by_a_race(api: Api, admin: Caller) -> None:
    """While an operator binds a run to and fro, an agent that resumes it never does."""
    texts = [f"# side {side}\n{TWO}" for side in ("a", "b")]
    digests = [
        admin.post("/v1/runbooks", {"text": text, "name": f"side-{number}"}, expect=201)["hash"]
        for number, text in enumerate(texts)
    ]
    admin.start(texts[0], "torn", labels={"team": "ours"})
    agent = api.caller("agent", "--label", "team=ours")
    stop = threading.Event()

    def resume() -> None:
        while not stop.is_set():
            body = {"runbook": digests[0], "run_id": "torn", "on_existing": "resume"}
            agent.http.post(f"/v1/runs{WAIT}", json=body)

    resumers = [threading.Thread(target=resume) for _ in range(2)]
    for each in resumers:
        each.start()
    for number in range(60):
        admin.http.post(f"/v1/runs/torn/rebind{WAIT}", json={"runbook": digests[(number + 1) % 2]})
    stop.set()
    for each in resumers:
        each.join()
    events = admin.get("/v1/runs/torn/events?limit=1000")["items"]
    rebound = [each["by"]["id"] for each in events if each["event"] == "run_rebound"]
    assert rebound
    assert set(rebound) == {"admin"}


def test_an_agent_does_not_decide_for_an_operator(api: Api, admin: Caller) -> None:
    """Neither by confirming everything, nor by naming the check, nor by calling itself an operator."""
    admin.start(ASKING, "asking", labels={"team": "ours"})
    agent = api.caller("agent", "--label", "team=ours")
    for fields in ({"confirm": True}, {"confirm": ["sure?"]}, {"confirm": True, "agent_role": "boss"}):
        told = agent.post(f"/v1/runs/asking/goto{WAIT}", {"target": "b", "agent_id": "admin", **fields})
        assert told["outcome"] == "blocked"
    events = admin.get("/v1/runs/asking/events?limit=1000")["items"]
    tokens = {each["by"].get("token") for each in events if each["event"] == "transition_opened"}
    assert agent.get("/v1/whoami")["token"] in tokens, "whoever it claims to be, its token is on record"


# --- labels ----------------------------------------------------------------------------------------------------------


def test_a_run_of_another_team_does_not_exist(api: Api, admin: Caller) -> None:
    """Every way to a run whose labels a token lacks says 404, just like for one that there is not."""
    # Of a role that may do almost everything, where it reaches.
    agent = api.caller("operator", "--label", "team=ours")
    told = httpx2.get(f"{api.url}/openapi.json").json()
    bodies: dict[str, Any] = {
        "/goto": {"target": "b"},
        "/dynamic": {"checks": []},
        "/rebind": {"runbook": "two"},
        "/recover": {"way": "abort"},
        "/transitions/t1/decisions/in_hook.0": {"approved": True},
        **{rest: {} for rest in ("/save", "/cancel", "/terminate", "/pause", "/resume", "/transitions/t1/cancel")},
    }
    for path, methods in told["paths"].items():
        if not path.startswith("/v1/runs/{run_id}"):
            continue
        rest = path.removeprefix("/v1/runs/{run_id}").replace("{transition}", "t1").replace("{check}", "in_hook.0")
        rest = rest.replace("{node}", "a") + ("?target=b" if rest == "/questions" else "")
        for method in methods:
            body = None if method == "get" else bodies[rest]
            given = {} if body is None else {"json": body}
            answers = [
                agent.ask(method.upper(), f"/v1/runs/{run_id}{rest}", expect=404, **given).json()
                for run_id in ("theirs", "nobodys")
            ]
            shapes = [{name: value for name, value in each.items() if name != "request_id"} for each in answers]
            assert str(shapes[0]).replace("theirs", "nobodys") == str(shapes[1])
    assert agent.post("/v1/agui/runs", {"threadId": "theirs", "runId": "x", "messages": []}, expect=404)
    assert {each["run_id"] for each in agent.get("/v1/runs")["items"]} >= {"ours"}
    assert "theirs" not in str(agent.get("/v1/runs?limit=500"))
    assert agent.get("/v1/runs?label=team=theirs")["items"] == []
    taken = agent.post("/v1/runs", {"runbook": "two", "run_id": "theirs", "on_existing": "use_existing"}, expect=409)
    assert "stands on" not in str(taken)


def test_a_sweep_of_another_team_does_not_exist(api: Api, admin: Caller) -> None:
    """Every way to a sweep whose labels a token lacks says 404, just like for one that there is not."""
    blind = api.caller("admin", "--label", "team=ours")
    told = httpx2.get(f"{api.url}/openapi.json").json()
    bodies: dict[str, Any] = {
        "/retry": {"numbers": [1]},
        "/extend": {"trials": 9},
        **{rest: {} for rest in ("/pause", "/resume", "/cancel")},
    }
    asked = 0
    for path, methods in told["paths"].items():
        if not path.startswith("/v1/sweeps/{sweep_id}"):
            continue
        rest = path.removeprefix("/v1/sweeps/{sweep_id}").replace("{number}", "1")
        for method in methods:
            given = {"json": bodies[rest]} if method == "post" else {}
            answers = [
                blind.ask(method.upper(), f"/v1/sweeps/{sweep_id}{rest}", expect=404, **given).json()
                for sweep_id in ("of-theirs", "of-nobodys")
            ]
            shapes = [{name: value for name, value in each.items() if name != "request_id"} for each in answers]
            assert str(shapes[0]).replace("of-theirs", "of-nobodys") == str(shapes[1])
            asked += 1
    assert asked >= 12
    assert "of-ours" in {each["sweep"] for each in blind.get("/v1/sweeps")["items"]}
    for query in ("limit=200", "label=team=theirs", "label=sweep=of-theirs"):
        assert "of-theirs" not in str(blind.get(f"/v1/sweeps?{query}"))
    assert "of-theirs" in str(admin.get("/v1/sweeps?label=team=theirs"))


def test_what_a_labelled_token_submits_has_its_labels(api: Api, admin: Caller) -> None:
    """It attaches to no sweep of another team, takes no id and no label of one, and takes no label away."""
    ours, theirs = (api.caller("operator", "--label", f"team={team}") for team in ("ours", "theirs"))
    mine = ours.post("/v1/sweeps", submission(api, None, "seed: 3\n"), expect=201)
    assert mine["labels"] == {"team": "ours"}
    assert ours.post("/v1/sweeps", submission(api, None, "seed: 3\n"), expect=200)["sweep"] == mine["sweep"]
    other = theirs.post("/v1/sweeps", submission(api, None, "seed: 3\n"), expect=201)
    assert other["sweep"] != mine["sweep"]
    assert other["labels"] == {"team": "theirs"}
    refused = ours.post("/v1/sweeps", submission(api, None, "seed: 4\nlabels: {team: theirs}\n"), expect=422)
    assert "team=ours" in refused["detail"]
    for text in ("seed: 2\n", "seed: 5\n"):
        taken = ours.post("/v1/sweeps", submission(api, "of-theirs", text), expect=409)
        assert "differences" not in taken
    attached = admin.post("/v1/sweeps", submission(api, mine["sweep"], "seed: 3\n"), expect=200)
    assert attached["labels"] == {"team": "ours"}, "whoever sees everything does not hide it from its owners"
    axis = api.caller("operator", "--label", "model=a")
    assert axis.post("/v1/sweeps", submission(api, None, "seed: 6\n"), expect=403)["labels"] == ["model"]


def test_a_token_for_a_trial_sees_no_sweep(api: Api, admin: Caller) -> None:
    """That of an agent is for one run; one for all runs of a sweep reaches that sweep, and no other."""
    for labels in (("sweep=of-ours", "trial=1", "attempt=1"), ("model=a",), ("sweep=of-ours", "model=a")):
        words = [word for label in labels for word in ("--label", label)]
        trial = api.caller("agent", *words)
        assert trial.get("/v1/sweeps")["items"] == []
        trial.get("/v1/sweeps/of-ours", expect=404)
        trial.get("/v1/sweeps/of-ours/events", expect=404)
    whole = api.caller("viewer", "--label", "sweep=of-ours")
    assert [each["sweep"] for each in whole.get("/v1/sweeps")["items"]] == ["of-ours"]
    whole.get("/v1/sweeps/of-ours/results")
    whole.get("/v1/sweeps/of-theirs", expect=404)
    bound = api.caller("operator", "--label", "sweep=of-ours")
    bound.post("/v1/sweeps", submission(api, None, "seed: 7\n"), expect=403)


def test_what_a_labelled_token_starts_has_its_labels(api: Api, admin: Caller) -> None:
    """Nobody starts a run into another team: who asks for that is told so."""
    agent = api.caller("agent", "--label", "team=ours")
    made = agent.post("/v1/runs", {"runbook": "two", "labels": {"kind": "x"}}, expect=201)
    assert made["labels"] == {"team": "ours", "kind": "x"}
    refused = agent.post("/v1/runs", {"runbook": "two", "labels": {"team": "theirs"}}, expect=422)
    assert "team=ours" in refused["detail"]


def test_an_admin_with_labels_is_admin_of_what_has_them(api: Api, admin: Caller) -> None:
    """The tokens it makes have its labels, others do not exist for it, and what is for everybody it leaves alone."""
    blue = api.caller("admin", "--label", "team=blue")
    admin.start(TWO, "of-red", labels={"team": "red"})
    red = admin.post("/v1/tokens", {"role": "viewer", "labels": {"team": "red"}}, expect=201)
    made = blue.post("/v1/tokens", {"role": "viewer", "labels": {"kind": "x"}}, expect=201)
    assert made["labels"] == {"team": "blue", "kind": "x"}
    Caller(api.url, made["token"]).get("/v1/runs/of-red", expect=404)
    refused = blue.post("/v1/tokens", {"role": "viewer", "labels": {"team": "red"}}, expect=422)
    assert "team=blue" in refused["detail"]
    assert {each["id"] for each in blue.get("/v1/tokens")["items"]} == {blue.get("/v1/whoami")["token"], made["id"]}
    assert {red["id"], made["id"]} <= {each["id"] for each in admin.get("/v1/tokens")["items"]}
    hidden = blue.ask("DELETE", f"/v1/tokens/{red['id']}", expect=404).json()
    unknown = blue.ask("DELETE", "/v1/tokens/0123456789abcdef", expect=404).json()
    assert hidden["detail"].replace(red["id"], "ID") == unknown["detail"].replace("0123456789abcdef", "ID")
    Caller(api.url, red["token"]).get("/v1/runs/of-red")
    assert blue.ask("DELETE", f"/v1/tokens/{made['id']}", expect=200).json()["state"] == "revoked"
    told = blue.post("/v1/runbooks", {"text": TWO, "name": "two"}, expect=403)
    assert "for the runs of everybody" in told["detail"]


def test_an_agent_pins_no_run_to_a_queue_that_nobody_serves(api: Api, admin: Caller) -> None:
    """Its work would wait for ever, and the service would not be ready; an operator may, and is warned."""
    agent = api.caller("agent")
    refused = agent.post("/v1/runs", {"runbook": "two", "queue": "chekcs"}, expect=422)
    assert "'chekcs'" in refused["detail"]
    made = admin.post("/v1/runs", {"runbook": "two", "queue": "chekcs"}, expect=201)
    assert made["warnings"] == ["no worker serves the queue 'chekcs' now"]


def test_the_feed_tells_of_reachable_runs_alone(api: Api, admin: Caller) -> None:
    """Whatever it is asked for."""
    agent = api.caller("agent", "--label", "team=ours")
    for query in ("", "?label=team=theirs"):
        with agent.stream(f"/v1/events{query}") as stream:
            messages = iter(stream)
            next(messages)
            admin.post("/v1/runs/theirs/save", {"skip_hooks": True})
            admin.post("/v1/runs/ours/save", {"skip_hooks": True})
            if not query:
                message = next(each for each in messages if "data" in each)
                assert '"run_id":"ours"' in message["data"]


# --- what a check may do ---------------------------------------------------------------------------------------------


def test_only_registered_runbooks_start_where_that_is_asked(site: Site) -> None:
    """Not even an admin starts another one; agents register only dynamic checks that run nothing."""
    api = serve(site, "--registered-only")
    admin = api.caller("admin")
    assert admin.post("/v1/runs", {"text": ASKING}, expect=403)["code"] == "not_authorised"
    digest = admin.post("/v1/runbooks", {"text": ASKING, "name": "asking"}, expect=201)["hash"]
    admin.post("/v1/runs", {"text": ASKING, "run_id": "by-text"}, expect=201)
    admin.post("/v1/runs", {"runbook": "asking", "run_id": "r"}, expect=201)
    admin.post("/v1/runs/r/rebind", {"text": TWO}, expect=403)
    site.start(TWO, "direct")
    unregistered = site.json("cur", "--run-id", "direct")["spec_hash"]
    assert unregistered != digest
    admin.post("/v1/runs", {"runbook": unregistered}, expect=404)
    agent = api.caller("agent")
    command = {"type": "command", "run": "id"}
    refused = agent.ask("PUT", "/v1/runs/r/dynamic", expect=422, json={"checks": [command]}).json()
    assert "command" in refused["detail"]
    manual = {"type": "manual", "text": "looked at it"}
    agent.ask("PUT", "/v1/runs/r/dynamic", expect=200, json={"checks": [manual]})


def test_workspaces_stay_below_their_roots(site: Site) -> None:
    """Neither a path out of the roots nor a link that leads out is a workspace; the runs' own folder is asked for."""
    inside, outside = site.folder / "inside", site.folder / "outside"
    inside.mkdir()
    outside.mkdir()
    (inside / "link").symlink_to(outside)
    roots = {"STATEM_WORKSPACE_ROOTS": str(inside)}
    api = serve(site, **roots)
    site.worker(**roots)
    caller = api.caller()
    for path in (outside, inside / "link", inside / ".." / "outside", Path("/"), site.folder):
        told = caller.start(TWO, "out", workspace=str(path), expect=422)
        assert told["code"] == "invalid"
        assert str(inside) in told["detail"]
    assert "--workspaces" in caller.start(TWO, "none", expect=422)["hint"]
    text = "initial: a\nnodes: {a: {before_transfer: [{run: 'true', cwd: CWD}]}, b: {}}\nedges: [{from: a, to: b}]\n"
    caller.start(text.replace("CWD", "."), "within", workspace=str(inside))
    assert caller.post(f"/v1/runs/within/goto{WAIT}", {"target": "b"})["outcome"] == "committed"
    for number, cwd in enumerate(("..", "link", str(outside), "/etc")):
        caller.start(text.replace("CWD", cwd), f"cwd-{number}", workspace=str(inside))
        blocked = caller.post(f"/v1/runs/cwd-{number}/goto{WAIT}", {"target": "b"})
        assert [each["reason"] for each in blocked["results"]] == ["config_error"]


# --- bodies, headers, paths ------------------------------------------------------------------------------------------


def test_a_body_that_is_too_large_is_refused_before_it_is_kept(api: Api, admin: Caller) -> None:
    """A hundred megabytes, announced or in chunks: 413, and the service has not grown by them."""
    before = _memory(api)
    response = admin.http.post("/v1/runs", content=b" " * 100_000_000, headers={"Content-Type": "application/json"})
    assert (response.status_code, response.json()["code"]) == (413, "body_too_large")
    url = urlsplit(api.url)
    token = admin.http.headers["Authorization"]
    with socket.create_connection((url.hostname, url.port)) as raw:
        raw.sendall(
            f"POST /v1/runs HTTP/1.1\r\nHost: {url.netloc}\r\nAuthorization: {token}\r\n"
            "Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
        )
        answer = b""
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                raw.sendall(b"f4240\r\n" + b" " * 1_000_000 + b"\r\n")
        with contextlib.suppress(ConnectionError):
            answer = raw.recv(65536)
    assert answer.startswith(b"HTTP/1.1 413") or answer == b""
    assert _memory(api) < before + 60_000
    admin.get("/v1/whoami")


def _memory(api: Api) -> int:
    """Return the memory of the service in KiB."""
    status = Path(f"/proc/{api.program.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in status if line.startswith("VmRSS"))


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{name}: &{name} [{', '.join([f'*{before}'] * 9)}]\n" for before, name in zip("abcdefgh", "bcdefghi", strict=True)
)


@pytest.mark.parametrize(
    "text",
    [
        BOMB,
        "a: &a [*a]",
        "[" * 50_000,
        "{" * 50_000,
        "!!python/object/apply:os.system ['id']",
        "initial: a\nnodes: {a: !!python/name:os.system {}}",
        "\ud800",
        "x" * 3_000_000,
    ],
    ids=["bomb", "recursion", "lists", "mappings", "object", "name", "surrogate", "long"],
)
def test_a_text_that_is_a_weapon_is_a_bad_runbook(api: Api, admin: Caller, text: str) -> None:
    """Refused at once, and the service lives."""
    began = time.monotonic()
    body = {"text": text}
    for path in ("/v1/runbooks/validate", "/v1/runs"):
        response = admin.http.post(path, content=_json(body), headers={"Content-Type": "application/json"})
        assert response.status_code in (400, 413, 422), response.text[:200]
    assert time.monotonic() - began < 20
    admin.get("/v1/whoami")


def _json(body: dict[str, str]) -> bytes:
    return json.dumps(body).encode()


def test_json_that_is_nested_too_deeply_is_refused(api: Api, admin: Caller) -> None:
    """It is no failure of the service."""
    deep = b'{"checks": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    headers = {"Content-Type": "application/json"}
    response = admin.http.put("/v1/runs/ours/dynamic", content=deep, headers=headers)
    assert response.status_code in (400, 422)


@pytest.mark.parametrize(
    "run_id", ["..", "../../etc/passwd", "a/b", "a\x00b", "-rf", "a b", ".hidden", "x" * 201, "é", "a\nb"]
)
def test_an_id_that_is_a_path_is_refused(api: Api, admin: Caller, run_id: str) -> None:
    """Neither as the id of a new run nor in a URL."""
    admin.post("/v1/runs", {"runbook": "two", "run_id": run_id}, expect=422)
    admin.post("/v1/sweeps", submission(api, run_id, ""), expect=422)
    quoted = "".join(f"%{byte:02x}" for byte in run_id.encode())
    assert admin.http.get(f"/v1/runs/{quoted}").status_code in (404, 422)
    assert admin.http.get(f"/v1/sweeps/{quoted}").status_code in (404, 422)
    assert admin.http.delete(f"/v1/sweeps/{quoted}").status_code in (404, 422)


@pytest.mark.parametrize("name", ["X-Request-Id", "Idempotency-Key", "If-Match", "Last-Event-ID", "Accept", "Origin"])
def test_a_header_cannot_smuggle_another(api: Api, admin: Caller, name: str) -> None:
    """Line ends in a header end the header, or the request; nothing of them comes back in an answer or in the log."""
    url = urlsplit(api.url)
    token = admin.http.headers["Authorization"]
    with socket.create_connection((url.hostname, url.port)) as raw:
        raw.sendall(
            f"GET /v1/whoami HTTP/1.1\r\nHost: {url.netloc}\r\nAuthorization: {token}\r\nConnection: close\r\n"
            f"{name}: x%0d%0aX-Smuggled: 1\rX-Smuggled: 2\r\n\r\n".encode()
        )
        answer = b"".join(iter(lambda: raw.recv(65536), b""))
    assert b"\nx-smuggled" not in answer.lower().partition(b"\r\n\r\n")[0].replace(b"\r", b"\n")


def test_pages_of_other_sites_are_refused(api: Api, admin: Caller) -> None:
    """By their origin, and by a name that is not this host's (DNS rebinding), with a token as well as without."""
    for headers in (
        {"Origin": "https://evil.example"},
        {"Origin": "null"},
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example"},
        {"Host": ""},
    ):
        response = admin.http.get("/v1/whoami", headers=headers)
        assert response.status_code in (400, 403), headers
    port = api.url.rpartition(":")[2]
    admin.ask("GET", "/v1/whoami", expect=200, headers={"Origin": api.url})
    admin.ask("GET", "/v1/whoami", expect=200, headers={"Host": f"localhost:{port}"})


# --- secrets ---------------------------------------------------------------------------------------------------------


def test_secrets_stay_where_they_are(api: Api, admin: Caller) -> None:
    """No token and no address of the store is in the log, on a command line, in a message, or where commands look."""
    text = """
initial: a
nodes: {a: {before_transfer: [{type: command, run: 'env; cat /proc/$PPID/environ /proc/$PPID/cmdline'}]}, b: {}}
edges: [{from: a, to: b}]
"""
    token = api.token("admin")
    caller = Caller(api.url, token)
    folder = api.site.folder
    caller.start(text, "leak", workspace=str(folder), vars={"STATEM_TOKEN": token, "PLAIN": "seen"})
    moved = caller.post(f"/v1/runs/leak/goto{WAIT}", {"target": "b"})
    output = moved["results"][0]["output"]
    secret = token.split("_", 2)[2]
    assert "PLAIN=seen" in output
    for word in ("STATEM_REDIS_URL=", "STATEM_TOKEN=", secret):
        assert word not in output
    caller.ask("GET", f"/v1/nothing?token={token}", expect=404)
    assert secret not in api.program.stderr
    for line in api.site.processes().values():
        assert secret not in line
    for queue in ("checks", "llm"):
        assert secret.encode() not in b"".join(api.site.redis("LRANGE", queue, "0", "-1"))
