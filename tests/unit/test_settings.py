"""Settings come from the environment, and a variable that cannot be meant is refused by its name."""

from __future__ import annotations

import pytest

from statem_dist.errors import Usage
from statem_dist.protocol.graph import ResourceLimits, Sandbox
from statem_dist.settings import Settings


@pytest.mark.parametrize(
    "url", ["redis://host:6379/0", "rediss://:secret@host/1", "unix:///run/redis.sock", "REDIS://h"]
)
def test_a_url_of_a_redis_is_taken_as_it_is(url: str) -> None:
    """The state is there then, and in no embedded instance."""
    settings = Settings.from_environment({"STATEM_REDIS_URL": url})
    assert (settings.redis_url, settings.embedded) == (url, False)


@pytest.mark.parametrize("url", ["host:6379", "/run/redis.sock", "http://:secret@host/", "redis:/host", "://"])
def test_any_other_url_is_refused(url: str) -> None:
    """The message names the variable and the schemes that there are, and shows no password."""
    with pytest.raises(Usage, match=r"STATEM_REDIS_URL must begin with one of redis://, rediss://, unix://") as caught:
        Settings.from_environment({"STATEM_REDIS_URL": url})
    assert "secret" not in caught.value.message


@pytest.mark.parametrize("name", ["STATEM_REDIS_URL", "STATEM_STATE_DIR", "STATEM_LEASE_SECONDS"])
def test_an_empty_variable_counts_as_none(name: str) -> None:
    """A script that sets a variable to nothing gets what it would get without it."""
    assert Settings.from_environment({name: ""}) == Settings.from_environment({})


def test_the_policy_of_a_worker_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lists of paths are made absolute, limits get their units, a sandbox says whether the network may be asked for."""
    monkeypatch.chdir("/usr")
    settings = Settings.from_environment(
        {
            "STATEM_WORKSPACE_ROOTS": "/srv/runs:share/",
            "STATEM_LIMITS": "memory=2G, cpu=10m,processes=256,files=1024,",
            "STATEM_SANDBOX": "bwrap,network",
            "STATEM_SANDBOX_BINDS": "/opt/tools",
        }
    )
    assert settings.workspace_roots == ("/srv/runs", "/usr/share")
    assert settings.limits == ResourceLimits(memory=2 << 30, cpu=600, processes=256, files=1024)
    assert settings.sandbox == Sandbox(network=True)
    assert settings.sandbox_binds == ("/opt/tools",)
    assert Settings.from_environment({"STATEM_SANDBOX": "bwrap"}).sandbox == Sandbox()


@pytest.mark.parametrize(
    ("name", "text", "told"),
    [
        ("STATEM_LIMITS", "memory", "'memory' is no limit: write NAME=VALUE with one of memory, cpu, processes, files"),
        ("STATEM_LIMITS", "memry=2G", "'memry=2G' is no limit"),
        ("STATEM_LIMITS", "memory=2X", "memory must be a size, such as 512M or 2G"),
        ("STATEM_LIMITS", "memory=-1", "memory must be a size"),
        ("STATEM_LIMITS", "cpu=0", "cpu must be a whole number of seconds"),
        ("STATEM_LIMITS", "cpu=1.5", "cpu must be a whole number of seconds"),
        ("STATEM_LIMITS", "files=many", "files must be a positive whole number"),
        ("STATEM_LIMITS", "memory=99999999999T", "memory must be a size"),
        ("STATEM_SANDBOX", "docker", "There is no sandbox 'docker'"),
        ("STATEM_SANDBOX", "network", "There is no sandbox 'network'"),
        ("STATEM_SANDBOX", "bwrap,net", "There is no sandbox 'bwrap,net'"),
    ],
)
def test_a_policy_that_cannot_be_meant_is_refused(name: str, text: str, told: str) -> None:
    """A worker never starts with less than was asked for because of a typing error."""
    with pytest.raises(Usage) as caught:
        Settings.from_environment({name: text})
    assert told in caught.value.message


def test_how_long_runs_stay_comes_from_the_environment() -> None:
    """For ever, unless days or a number are given; what cannot be meant is refused by the name of its variable."""
    assert Settings.from_environment({}).retain_days is None
    assert Settings.from_environment({}).retain_runs is None
    given = {"STATEM_RETAIN_DAYS": "1.5", "STATEM_RETAIN_RUNS": "0", "STATEM_ARCHIVE_DIR": "/srv/archive"}
    settings = Settings.from_environment(given)
    assert (settings.retain_days, settings.retain_runs, str(settings.archive_dir)) == (1.5, 0, "/srv/archive")
    for name, text in (
        ("STATEM_RETAIN_DAYS", "30d"),
        ("STATEM_RETAIN_DAYS", "-1"),
        ("STATEM_RETAIN_DAYS", "nan"),
        ("STATEM_RETAIN_RUNS", "-1"),
        ("STATEM_RETAIN_RUNS", "many"),
    ):
        with pytest.raises(Usage, match=name):
            Settings.from_environment({name: text})


def test_the_bound_of_a_history_is_a_whole_number() -> None:
    """Something else is refused by the name of its variable."""
    assert Settings.from_environment({}).history_events_max == 100_000
    assert Settings.from_environment({"STATEM_HISTORY_EVENTS_MAX": "2500"}).history_events_max == 2500
    for text in ("0", "-1", "1e5", "many", "1.5"):
        with pytest.raises(Usage, match="STATEM_HISTORY_EVENTS_MAX must be a positive whole number"):
            Settings.from_environment({"STATEM_HISTORY_EVENTS_MAX": text})
