"""The commands on sweeps that need no worker, as a user types them; and a sweep that workers of somebody else do."""

from __future__ import annotations

import json

import pytest

from tests.support.programs import Site, eventually

pytestmark = pytest.mark.e2e

GATE = """\
nodes: {work: {prompt: Go., before_transfer: [{type: command, run: test -f out}], next: done}, done: , never: }
"""

SERVED_BY_NOBODY = "no worker serves the queue 'trials': statem-dist worker -Q trials"


def write(site: Site, agent: str = "touch out", **sweep: object) -> str:
    """Write a sweep of four trials and its runbook; return the path of the sweep file."""
    site.write("gate.yaml", GATE)
    document = {"runbook": "gate.yaml", "matrix": {"model": ["small", "large"]}, "trials": 2, "agent": {"run": agent}}
    return str(site.write("gate.sweep.yaml", json.dumps({**document, **sweep})))


def test_plan_stores_nothing(site: Site) -> None:
    """It says what would be done, and makes no state directory for that."""
    path = write(site, concurrency=3, stop_when={"cost_usd": 20, "errors": "5%"})
    said = site.run("sweep", "plan", path)
    assert (said.exit_code, said.stderr) == (0, "")
    assert said.stdout.splitlines() == [
        "gate: 4 trials of 2 cells; nothing is stored",
        "  axes: model (2 values)",
        "  at once: 3; queue trials; priority normal",
        "  stops when errors reach 5% or cost reaches $20",
        "  #1  model=small  (1)",
        "  #2  model=large  (1)",
        "  #3  model=small  (2)",
        "  #4  model=large  (2)",
        "  no estimate: no trial of an earlier sweep of this name has been judged",
    ]
    assert not site.state_dir.exists()
    data = site.json("sweep", "plan", path, "--only", "model=large", "--limit", "1")
    assert (data["planned"], data["first"]) == (1, [{"number": 1, "values": {"model": "large"}, "repetition": 1}])
    assert site.json("sweep", "list") == {"ok": True, "sweeps": []}
    assert not site.state_dir.exists()


def test_a_sweep_from_its_submission_to_its_removal(site: Site) -> None:
    """Without workers nothing of it begins, and everything else can be done with it."""
    path = write(site)
    first = site.json("sweep", "submit", path)
    assert (first["fresh"], first["planned"], first["status"]) == (True, 4, "active")
    assert first["obstacles"] == [SERVED_BY_NOBODY]
    sweep_id = first["sweep"]
    again = site.run("sweep", "submit", path)
    assert f"Sweep {sweep_id} is active already: 0 of 4 trials have ended" in again.stdout
    assert f"held back: {SERVED_BY_NOBODY}" in again.stdout

    status = site.json("sweep", "status", "gate")
    assert (status["sweep"], status["counts"]["pending"], status["complete"]) == (sweep_id, 4, False)
    waited = site.json("sweep", "status", "gate", "--wait", "0", expect=7)
    assert waited["error"] == f"The sweep {sweep_id} has not ended: 4 pending."
    assert site.run("sweep", "watch", "gate", "--timeout", "0").exit_code == 7
    assert [each["sweep"] for each in site.json("sweep", "list")["sweeps"]] == [sweep_id]

    page = site.json("sweep", "trials", "gate", "--where", "model=large", "--limit", "1")
    assert ([trial["number"] for trial in page["trials"]], page["next_after"]) == ([2], 2)
    rest = site.json("sweep", "trials", "gate", "--where", "model=large", "--after", "2")
    assert ([trial["number"] for trial in rest["trials"]], rest["next_after"]) == ([4], None)
    assert site.json("sweep", "trials", "gate", "--state", "passed")["trials"] == []
    assert site.json("sweep", "trials", "gate", "--where", "modle=large", expect=64)["ok"] is False
    assert "was not begun yet" in site.json("sweep", "logs", "gate", "1", expect=1)["error"]
    assert "no trial 5" in site.json("sweep", "logs", "gate", "5", expect=1)["error"]

    assert site.json("sweep", "pause", "gate", "--reason", "lunch")["reason"] == "lunch"
    assert "paused: lunch" in site.run("sweep", "status", "gate").stdout
    assert site.json("sweep", "extend", "gate", "--trials", "3")["added"] == 2
    assert site.json("sweep", "resume", "gate")["status"] == "active"

    cancelled = site.json("sweep", "cancel", "gate")
    assert (cancelled["status"], cancelled["counts"]["cancelled"]) == ("cancelled", 6)
    assert site.json("sweep", "status", "gate", "--wait", "60", expect=1)["details"]["status"] == "cancelled"
    assert site.json("sweep", "resume", "gate", expect=5)["code"] == "conflict"
    dry = site.json("sweep", "retry", "gate", "--unscored", "2-3", "--dry-run")
    assert (dry["retried"], dry["dry_run"], dry["counts"]["cancelled"]) == (2, True, 6)
    retried = site.json("sweep", "retry", "gate", "--unscored", "2-3")
    assert (retried["retried"], retried["status"], retried["counts"]["pending"]) == (2, "active", 2)
    for words in ([], ["x"], ["0"], ["3-1"]):
        assert site.json("sweep", "retry", "gate", *words, expect=64)["ok"] is False

    assert "--force" in site.json("sweep", "rm", "gate", expect=5)["hint"]
    assert site.json("sweep", "rm", "gate", "--force")["removed"] is True
    assert site.json("sweep", "status", "gate", expect=1)["code"] == "not_found"


def test_ids_that_fit_several(site: Site) -> None:
    """The candidates are named; an id of its own can be given, and is refused for another content."""
    path = write(site)
    site.json("sweep", "submit", path, "--id", "night-1")
    site.json("sweep", "submit", path, "--id", "night-2")
    said = site.json("sweep", "status", "night", expect=1)
    assert said["hint"] == "Say which one: night-2, night-1."
    write(site, seed=8)
    refused = site.json("sweep", "submit", path, "--id", "night-1", expect=5)
    assert refused["details"]["differences"] == ["seed: 0 -> 8"]
    assert site.json("sweep", "submit", path, "--id", "night-1", "--new", expect=64)["ok"] is False


def test_a_file_that_has_changed(site: Site) -> None:
    """Resuming says what has changed and refuses; accepted, only what is new is added."""
    path = write(site)
    site.json("sweep", "submit", path)
    site.json("sweep", "pause", "gate")
    write(site, matrix={"model": ["small", "huge"]})
    refused = site.run("sweep", "resume", "gate")
    assert refused.exit_code == 5
    assert "1 cell is new: model=huge; 1 cell is gone: model=large" in refused.stderr
    accepted = site.json("sweep", "resume", "gate", "--accept-changes")
    assert (accepted["added"], accepted["withdrawn"], accepted["planned"]) == (2, 2, 6)
    assert accepted["before"] == "paused"
    assert [trial["values"]["model"] for trial in site.json("sweep", "trials", "gate", "--after", "4")["trials"]] == [
        "huge"
    ] * 2


def test_a_service_is_refused(site: Site) -> None:
    """These commands work on the store; whoever means a service is told so before anything is done."""
    said = site.json("sweep", "list", expect=64, STATEM_URL="http://127.0.0.1:1")
    assert "`sweep list` works on the state store itself" in said["error"]


def test_a_sweep_is_submitted_to_workers_that_are_there(site: Site) -> None:
    """``--watch`` shows it to its end; afterwards its trials, their logs and an estimate can be had."""
    site.worker("-Q", "trials", "-c", "2", "--pass-env", "PATH")
    path = write(
        site, 'echo "I am $STATEM_VAR_MODEL"; test "$STATEM_VAR_MODEL" = large || touch out', concurrency=2, max_steps=1
    )
    said = site.run("sweep", "submit", path, "--watch", "--json")
    assert said.exit_code == 0, said.stderr
    data = said.data
    assert (data["fresh"], data["status"], data["counts"]["passed"], data["counts"]["stuck"]) == (
        True,
        "finished",
        2,
        2,
    )
    assert said.stderr.count("∞") == 2
    assert site.run("sweep", "watch", "gate", "--exit-status").exit_code == 6
    logs = site.json("sweep", "logs", "gate", "2")
    assert (logs["outcome"], logs["reason"], logs["here"]) == ("stuck", "max_steps", True)
    assert "I am large\n" in "".join(f"{output['text']}\n" for output in logs["outputs"])
    assert [check["reason"] for check in logs["failed_checks"]] == ["check_failed"]
    assert "--- work -> done: before_transfer.0: check_failed" in site.run("sweep", "logs", "gate", "2").stdout
    assert site.json("sweep", "plan", path)["estimate"]["like"] == data["sweep"]
    retried = site.json("sweep", "retry", "gate", "--failed")
    assert retried["retried_by_outcome"] == {"stuck": 2}
    assert site.json("sweep", "status", "gate", "--wait", "60")["counts"]["stuck"] == 2
    assert [each["attempts"] for each in site.json("sweep", "trials", "gate", "--state", "stuck")["trials"]] == [2, 2]
    removed = site.json("sweep", "rm", "gate")
    assert removed["folder"] == str(site.state_dir / "sweeps" / data["sweep"])
    assert not (site.state_dir / "sweeps" / data["sweep"]).exists()


def test_results_in_every_format(site: Site) -> None:
    """Each is on stdout as it is in the file of an export; a comparison is of two sweeps."""
    site.worker("-Q", "trials", "-c", "2", "--pass-env", "PATH")
    path = write(site, 'test "$STATEM_VAR_MODEL" = large || touch out', max_steps=1)
    before = site.json("sweep", "submit", path, "--id", "before", "--watch")
    assert before["counts"]["passed"] == 2
    write(site, "touch out", max_steps=1)
    assert site.json("sweep", "submit", path, "--id", "after", "--watch")["counts"]["passed"] == 4
    exported = site.json("sweep", "export", "after", "--out", "results", "--baseline", "before")
    assert exported["files"] == [
        f"results/{name}"
        for name in ("results.json", "trials.jsonl", "trials.csv", "junit.xml", "summary.md", "report.html")
    ]
    for kind, name in {"jsonl": "trials.jsonl", "csv": "trials.csv", "junit": "junit.xml"}.items():
        said = site.run("sweep", "results", "after", "--format", kind)
        assert said.exit_code == 0
        assert said.stdout.splitlines() == (site.folder / "results" / name).read_text().splitlines(), kind
    assert json.loads((site.folder / "results" / "results.json").read_text())["counts"]["passed"] == 4
    document = json.loads(site.run("sweep", "results", "after", "--format", "json").stdout)
    assert (document["counts"]["planned"], document["comparison"]) == (4, None)
    written = site.json("sweep", "results", "after", "--format", "json", "--out", "r.json", "--baseline", "before")
    assert written["out"] == "r.json"
    assert json.loads((site.folder / "r.json").read_text())["comparison"]["baseline"]["id"] == "before"
    site.json("sweep", "report", "after", "--out", "r.html")
    assert (site.folder / "r.html").read_text().lstrip().lower().startswith("<!doctype html>")
    compared = site.json("sweep", "compare", "after", "before")
    assert (compared["difference"], compared["majority"]["gained"]) == (0.5, [{"model": "large"}])
    assert "gained: 1 (model=large)" in site.run("sweep", "compare", "after", "before").stdout
    assert site.run("sweep", "results", "after", "--out", "no/such/file").exit_code == 8


def test_who_only_watches_ends_the_watching_alone(site: Site) -> None:
    """Ctrl-C ends with 130 and says that the sweep goes on."""
    site.json("sweep", "submit", write(site))
    watching = site.begin("sweep", "watch", "gate")
    eventually(lambda: "Held back" in watching.stderr or not watching.running, "the sweep is watched")
    watching.interrupt()
    said = watching.wait()
    assert said.exit_code == 130
    assert "the sweep goes on" in said.stderr
    assert site.json("sweep", "status", "gate")["status"] == "active"
