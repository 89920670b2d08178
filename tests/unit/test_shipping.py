"""What is shipped for containers: the compose file, the image's Dockerfile, Redis's configuration, the example of .env.

The files are judged by the programs that read them: Docker Compose and hadolint, both without a Docker daemon.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tests.support.compose import (
    COMPOSE_FILE,
    DOCKERFILE,
    ENV_EXAMPLE,
    ROOT,
    assignments,
    instructions,
    program,
    resolved,
)

SANDBOX_FILE = ROOT / "deploy" / "compose.sandbox.yml"
REDIS_CONF = ROOT / "deploy" / "redis.conf"
REQUIRED = {"STATEM_REDIS_PASSWORD": "hush0redis", "STATEM_FLOWER_BASIC_AUTH": "watcher:hush0flower"}
OURS = ("api", "flower", "llm-worker", "trial-worker", "worker")
UNITS = {"s": 1, "m": 60, "h": 3600}


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    """The compose file as Docker Compose understands it, with nothing set but what has to be."""
    return resolved(REQUIRED)


def seconds(duration: str) -> float:
    """Return a duration of Go's, such as ``2m15s``, in seconds."""
    return sum(float(number) * UNITS[unit] for number, unit in re.findall(r"([\d.]+)([hms])", duration))


def option(command: list[str], *names: str) -> str:
    """Return the value of an option in a command line."""
    return next(value for name, value in pairwise(command) if name in names)


# --- the compose file ------------------------------------------------------------------------------------------------


def test_the_services_are_there(config: dict[str, Any]) -> None:
    """Docker Compose accepts the file and finds these services and volumes in it."""
    assert set(config["services"]) == {"redis", *OURS}
    assert set(config["volumes"]) == {"redis-data", "workspaces"}


@pytest.mark.parametrize("missing", sorted(REQUIRED))
def test_a_missing_secret_is_refused_by_name(missing: str) -> None:
    """There is no default password: Compose starts nothing and names the variable."""
    given = {name: value for name, value in REQUIRED.items() if name != missing}
    for environment in (given, {**given, missing: ""}):
        with pytest.raises(subprocess.CalledProcessError) as caught:
            resolved(environment)
        assert missing in caught.value.stderr


def test_no_secret_stands_in_a_command_line_or_check(config: dict[str, Any]) -> None:
    """Secrets are in environments alone, each in no more of them than need it."""
    holders: dict[str, set[str]] = {"hush0redis": set(), "hush0flower": set()}
    for name, service in config["services"].items():
        environment = json.dumps(service.pop("environment"))
        assert "hush" not in json.dumps(service), name
        for secret, services in holders.items():
            if secret in environment:
                services.add(name)
    assert holders == {"hush0redis": {"redis", *OURS}, "hush0flower": {"flower"}}


def test_only_loopback_is_published(config: dict[str, Any]) -> None:
    """The service and Flower are published on this host's own address, Redis and the workers nowhere."""
    ports = {
        (name, port["host_ip"], port["published"], port["target"])
        for name, service in config["services"].items()
        for port in service.get("ports", ())
    }
    assert ports == {("api", "127.0.0.1", "8080", 8080), ("flower", "127.0.0.1", "5555", 5555)}
    elsewhere = resolved({**REQUIRED, "STATEM_API_BIND": "0.0.0.0", "STATEM_API_PORT": "80"})
    assert elsewhere["services"]["api"]["ports"][0]["host_ip"] == "0.0.0.0"
    assert elsewhere["services"]["flower"]["ports"][0]["host_ip"] == "127.0.0.1"


@pytest.mark.parametrize("name", ["redis", *OURS])
def test_every_service_is_confined_and_kept_running(config: dict[str, Any], name: str) -> None:
    """Each has an init, no capabilities, a read-only root, limits, a health check, and may be scaled."""
    service = config["services"][name]
    assert (service["init"], service["read_only"], service["cap_drop"]) == (True, True, ["ALL"])
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["restart"] == "unless-stopped"
    assert set(service["deploy"]["resources"]["limits"]) >= {"cpus", "memory"}
    assert service["healthcheck"]["test"]
    assert any(mount.startswith("/tmp:") for mount in service["tmpfs"])
    assert "container_name" not in service
    assert not service.get("privileged")


@pytest.mark.parametrize("name", OURS)
def test_our_services_wait_for_redis_and_share_one_image(config: dict[str, Any], name: str) -> None:
    """They start when Redis is healthy; all but Flower see the workspaces."""
    service = config["services"][name]
    assert service["depends_on"]["redis"]["condition"] == "service_healthy"
    assert service["image"] == "statem-dist:local"
    assert service["build"] == {"context": str(ROOT), "dockerfile": "deploy/Dockerfile"}
    mounts = {mount["source"]: mount["target"] for mount in service.get("volumes", ())}
    assert mounts == ({} if name == "flower" else {"workspaces": "/workspaces"})


def test_a_folder_of_the_host_may_hold_the_workspaces() -> None:
    """An absolute path in STATEM_WORKSPACES is mounted in place of the volume."""
    service = resolved({**REQUIRED, "STATEM_WORKSPACES": "/srv/agents"})["services"]["worker"]
    (mount,) = service["volumes"]
    assert (mount["type"], mount["source"], mount["target"]) == ("bind", "/srv/agents", "/workspaces")


@pytest.mark.parametrize(("name", "queue"), [("worker", "checks"), ("llm-worker", "llm"), ("trial-worker", "trials")])
def test_workers_have_more_time_to_stop_than_their_grace(config: dict[str, Any], name: str, queue: str) -> None:
    """A container is killed only after the grace of its checks, and time to hand the rest back, has passed."""
    service = config["services"][name]
    assert option(service["command"], "-Q") == queue == service["healthcheck"]["test"][-1]
    assert seconds(service["stop_grace_period"]) >= float(option(service["command"], "--grace")) + 10
    assert "--events" in service["command"]


def test_figures_are_those_of_env() -> None:
    """Slots, ports and the image come from the variables that .env.example names."""
    given = {"STATEM_WORKER_CONCURRENCY": "9", "STATEM_LLM_CONCURRENCY": "7", "STATEM_TRIAL_CONCURRENCY": "5"}
    given |= {"STATEM_IMAGE": "registry.invalid/x:1"}
    services = resolved({**REQUIRED, **given})["services"]
    assert option(services["worker"]["command"], "-c") == "9"
    assert option(services["llm-worker"]["command"], "-c") == "7"
    assert option(services["trial-worker"]["command"], "-c") == "5"
    assert services["worker"]["image"] == "registry.invalid/x:1"


def test_env_example_names_what_the_compose_file_reads_and_nothing_else() -> None:
    """Each variable of the compose file is in .env.example, explained and with the same default, and the reverse."""
    compose = re.sub(r"^\s*#.*$", "", COMPOSE_FILE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    used = {(name, rest) for name, rest in re.findall(r"(?<!\$)\$\{(\w+)([^}]*)\}", compose)}
    defaults = {name: rest.removeprefix(":-") if rest.startswith(":-") else "" for name, rest in used}
    example = assignments(ENV_EXAMPLE)
    assert len(used) == len(defaults), "a variable is read in two ways"
    assert example == defaults
    assert {name for name, rest in used if rest.startswith(":?")} == set(REQUIRED)
    for paragraph in ENV_EXAMPLE.read_text(encoding="utf-8").split("\n\n"):
        assert paragraph.startswith("#"), f"unexplained: {paragraph}"


def test_a_filled_in_example_is_enough() -> None:
    """A copy of the example with the two secrets filled in is a complete .env."""
    assert resolved({**assignments(ENV_EXAMPLE), **REQUIRED}) == resolved(REQUIRED)


def test_the_sandbox_file_adds_to_the_workers_alone() -> None:
    """With it, workers may make namespaces; privileges still cannot be gained, and no other service is changed."""
    plain, widened = resolved(REQUIRED), resolved(REQUIRED, SANDBOX_FILE)
    for name in ("worker", "llm-worker", "trial-worker"):
        assert widened["services"][name].pop("security_opt") == [
            "no-new-privileges:true",
            "seccomp=unconfined",
            "apparmor=unconfined",
            "systempaths=unconfined",
        ]
        del plain["services"][name]["security_opt"]
    assert widened == plain


# --- the image -------------------------------------------------------------------------------------------------------


def test_hadolint_finds_nothing_in_the_dockerfile() -> None:
    """The linter's rules hold, those for the scripts in it included; the one exception gives its reason in place."""
    done = subprocess.run([program("hadolint"), str(DOCKERFILE)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "")


def test_the_last_stage_is_what_may_be_shipped() -> None:
    """It runs as a fixed user without rights, starts our command, ends on SIGTERM, and installs no compiler."""
    stages: list[list[tuple[str, str]]] = []
    for word, rest in instructions():
        if word == "FROM":
            stages.append([])
        if stages:
            stages[-1].append((word, rest))
    assert len(stages) == 2
    last = dict(stages[-1])
    assert last["USER"] == "10001:10001"
    assert json.loads(last["ENTRYPOINT"]) == ["statem-dist"]
    assert (last["STOPSIGNAL"], last["HEALTHCHECK"]) == ("SIGTERM", "NONE")
    assert [rest for word, rest in stages[-1] if word == "COPY"] == ["--from=build /opt/statem-dist /opt/statem-dist"]
    assert all(stage[0][1].startswith("python:${PYTHON_VERSION}-slim") for stage in stages)
    installed = (
        next(rest for word, rest in stages[-1] if "apt-get install" in rest).partition("&&")[2].partition("&&")[0]
    )
    assert {word for word in installed.split()[2:] if not word.startswith("-")} == {"bubblewrap", "git"}
    assert "--no-install-recommends" in installed
    built = " ".join(rest for word, rest in stages[0] if word == "RUN")
    assert built.count("--constraint requirements.lock") == 2
    assert "statem-dist[flower] @ file://" in built
    assert not re.search(r"(^|\s)(-e|--editable)\s", built)
    assert not re.search(r"(?i)(password|token|secret)", DOCKERFILE.read_text(encoding="utf-8"))


def test_what_the_dockerfile_copies_is_enough_for_the_wheel(tmp_path: Path) -> None:
    """The build's own command makes a wheel of the copied files, all of which .dockerignore lets in."""
    let_in = {line[1:] for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines() if line[:1] == "!"}
    source = tmp_path / "src"
    source.mkdir()
    copied = set()
    for word, rest in instructions():
        if word == "COPY" and not rest.startswith("--from"):
            *names, target = rest.split()
            for name in names:
                copied.add(name)
                place = source / (name if target == "./" else target)
                copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
                copy(ROOT / name, place)
    assert copied == let_in
    line = next(part for _, rest in instructions() for part in rest.split("&&") if " wheel " in part)
    line = line.replace("/opt/statem-dist/bin/pip", f"{shlex.quote(sys.executable)} -m pip").replace(
        "/wheels", "wheels"
    )
    subprocess.run(line, shell=True, cwd=source, check=True, capture_output=True)
    assert [path.name.partition("-")[0] for path in (source / "wheels").glob("*.whl")] == ["statem_dist"]


def test_the_build_context_begins_empty() -> None:
    """Nothing is let into the build by default, so that no secret or environment of a developer can slip in."""
    lines = [
        line
        for line in (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
        if line and not line.startswith("#")
    ]
    assert lines[0] == "*"
    assert not any(line.startswith("!.") for line in lines)


# --- Redis -----------------------------------------------------------------------------------------------------------


def test_redis_keeps_what_it_is_given() -> None:
    """The log is written each second, nothing is evicted, and no password stands in the file; each line says why."""
    lines = REDIS_CONF.read_text(encoding="utf-8").splitlines()
    settings = dict(line.split(" ", 1) for line in lines if line and not line.startswith("#"))
    expected = {
        "appendonly": "yes",
        "appendfsync": "everysec",
        "maxmemory-policy": "noeviction",
        "protected-mode": "yes",
    }
    assert expected.items() <= settings.items()
    assert "requirepass" not in settings
    for before, line in pairwise(["", *lines]):
        assert not line or line.startswith("#") or before.startswith("#"), f"unexplained: {line}"


def test_redis_may_use_less_than_its_container(config: dict[str, Any]) -> None:
    """Half of the container's memory is left for the rewriting of the log."""
    settings = re.search(r"^maxmemory (\d+)gb$", REDIS_CONF.read_text(encoding="utf-8"), re.MULTILINE)
    assert settings is not None
    limit = int(config["services"]["redis"]["deploy"]["resources"]["limits"]["memory"])
    assert 2 * int(settings[1]) * 1024**3 <= limit


def test_secrets_of_a_deployment_are_not_committed() -> None:
    """Git ignores .env."""
    done = subprocess.run(["git", "check-ignore", "-q", "--no-index", ".env"], cwd=ROOT, check=False)
    if not (ROOT / ".git").exists():
        pytest.skip("no checkout of git")
    assert done.returncode == 0
