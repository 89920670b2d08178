"""What a shell offers behind ``<TAB>``: values that are there, and silence where there are none."""

from __future__ import annotations

import pytest

from tests.support.programs import Site, eventually

pytestmark = pytest.mark.e2e

ASKING = "nodes: {a: {before_transfer: [Look at it.], next: [b, again]}, again: {next: a}, b: The end.}"


def offered(site: Site, line: str, **settings: str) -> list[str]:
    """Press <TAB> at the end of a line in bash; nothing may be said on stderr."""
    words = str(len(line.split()) - (not line.endswith(" ")))
    completion = {"_STATEM_DIST_COMPLETE": "complete_bash", "COMP_WORDS": line, "COMP_CWORD": words}
    said = site.run(**completion, **settings)
    assert (said.exit_code, said.stderr) == (0, "")
    return said.stdout.split()


def test_values_are_offered(site: Site) -> None:
    """Targets and nodes of the run that the line means, runs, decisions, tokens; what is begun is completed."""
    site.start(ASKING, "asking")
    site.start("nodes: {only: {next: other}, other: }", "newer")
    site.json("goto", "b", "--run-id", "asking", "--on-manual", "wait", expect=7)
    token = site.json("token", "create", "--role", "agent")
    site.json("token", "revoke", site.json("token", "create", "--role", "agent")["id"])
    site.write("night.sweep.yaml", "runbook: asking.yaml\n")
    for sweep_id in ("night-1", "night-2"):
        site.json("sweep", "submit", "night.sweep.yaml", "--id", sweep_id)
    expected = {
        "goto ": ["other"],
        "goto --run-id asking ": ["b", "again"],
        "transfer --run-id asking ag": ["again"],
        "ls ": ["only", "other"],
        "cur --run-id ": ["newer", "asking"],
        "approve ": ["asking/t2/before_transfer.0"],
        "token revoke ": [token["id"]],
        "sweep status ": ["night-2", "night-1"],
        "sweep compare night-1 ": ["night-2", "night-1"],
    }
    for line, values in expected.items():
        # On a busy machine nothing may be found out in time.
        assert eventually(lambda line=line: offered(site, f"statem-dist {line}"), line) == values  # type: ignore[misc]
    assert offered(site, f"statem-dist goto --state-dir {site.folder}/none ") == []


def test_nothing_is_started_or_said(site: Site) -> None:
    """Without a state directory, with a stopped server, and with settings that are wrong, nothing is offered."""
    assert offered(site, "statem-dist goto ") == []
    assert not site.state_dir.exists()
    site.start(ASKING)
    site.json("down")
    assert offered(site, "statem-dist goto ") == []
    assert not site.processes("redis")
    assert offered(site, "statem-dist goto ", STATEM_REDIS_URL="carrier-pigeon://coop") == []
    assert offered(site, "statem-dist goto ", STATEM_REDIS_URL="redis://127.0.0.1:1/0") == []
