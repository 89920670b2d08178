"""Settings come from the environment, and a variable that cannot be meant is refused by its name."""

from __future__ import annotations

import pytest

from statem_dist.errors import Usage
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
