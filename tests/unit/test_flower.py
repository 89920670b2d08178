"""Who is asked for a password by Flower, and what is said where it is not installed."""

from __future__ import annotations

import sys

import pytest

from statem_dist.cli.services import flower_arguments
from statem_dist.errors import Unavailable, Usage
from statem_workers.flower import credentials_for


@pytest.mark.parametrize("address", ["127.0.0.1", "127.8.8.8", "::1", "localhost"])
def test_this_host_may_look_without_a_password(address: str) -> None:
    """A loopback address needs none, and asks for one that is given."""
    assert credentials_for(address, None) == []
    assert credentials_for(address, "user:word") == ["user:word"]


@pytest.mark.parametrize("address", ["", "0.0.0.0", "::", "10.0.0.7", "flower.internal"])
def test_others_may_not(address: str) -> None:
    """Whatever may be reached from elsewhere needs one."""
    with pytest.raises(Usage, match="without a password"):
        credentials_for(address, None)
    assert credentials_for(address, "user:a:b,c") == ["user:a:b,c"]


@pytest.mark.parametrize("given", ["hush", ":hush", "hush:", "user:hüsh"])
def test_a_password_of_the_wrong_form_is_refused_and_not_shown(given: str) -> None:
    """The complaint names the variable and the form."""
    with pytest.raises(Usage, match=r"STATEM_FLOWER_BASIC_AUTH .* user:password") as caught:
        credentials_for("127.0.0.1", given)
    assert "h\u00fcsh" not in caught.value.message
    assert "hush" not in caught.value.message


def test_a_missing_flower_is_an_error_with_the_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    """Flower is an extra; the hint is the command that installs it."""
    monkeypatch.setitem(sys.modules, "flower", None)
    with pytest.raises(Unavailable, match="not installed") as caught:
        flower_arguments("127.0.0.1", 5555)
    assert "pip install 'statem-dist[flower]'" in caught.value.hint
