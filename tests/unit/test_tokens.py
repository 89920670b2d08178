"""Tokens without a store: whom they reach, when they end, and what is left of one in a text."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from statem_dist.durations import seconds_of
from statem_dist.errors import Invalid
from statem_dist.tokens import LIFE_SECONDS_MAX, Token, life_seconds, redacted, token_view

NOW = round(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() * 1000)
SECRET = "s3cr-t_" * 6 + "x"
ID = "0123456789abcdef"


def token(*, labels: dict[str, str] | None = None, expires_at: int = 0, revoked_at: int = 0) -> Token:
    """Return a token that was made an hour ago."""
    return Token(
        id=ID,
        name="ci",
        role="agent",
        labels=labels or {},
        created_at=NOW - 3_600_000,
        created_by="alice",
        expires_at=expires_at,
        revoked_at=revoked_at,
    )


@pytest.mark.parametrize(
    ("labels", "run_labels", "reached"),
    [
        ({}, {}, True),
        ({}, {"team": "blue"}, True),
        ({"team": "blue"}, {"team": "blue", "model": "small"}, True),
        ({"team": "blue"}, {}, False),
        ({"team": "blue"}, {"team": "red"}, False),
        ({"team": "blue", "model": "small"}, {"team": "blue"}, False),
        ({"team": ""}, {}, False),
    ],
)
def test_a_token_reaches_runs_that_have_its_labels(
    labels: dict[str, str], run_labels: dict[str, str], reached: bool
) -> None:
    """All of them with the same values; the run may have more. Without labels a token reaches every run."""
    assert token(labels=labels).may(run_labels) is reached


def test_a_token_is_live_until_it_ends() -> None:
    """It has expired from its last moment on; one that was revoked stays so, whatever its end."""
    assert token().state(NOW) == "live"
    assert token(expires_at=NOW + 1).state(NOW) == "live"
    assert token(expires_at=NOW).state(NOW) == "expired"
    assert token(expires_at=NOW - 1, revoked_at=NOW).state(NOW) == "revoked"


def test_times_that_never_come_are_shown_as_none() -> None:
    """So that nobody takes the epoch for one."""
    view = token_view(token(), NOW)
    assert (view["state"], view["expires_at"], view["revoked_at"], view["revoked_by"]) == ("live", None, None, None)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("45s", 45),
        ("30m", 1800),
        ("12h", 43_200),
        (" 90 d ", 7_776_000),
        ("1.5h", 5400),
        ("2026-03-02", 43_200),
        ("2026-03-01T12:00:01", 1),
        ("2026-03-01T13:00:01+01:00", 1),
        ("2026-03-01T12:00:01Z", 1),
    ],
)
def test_a_life_is_a_duration_or_ends_at_a_time(text: str, seconds: float) -> None:
    """A date means its beginning, and UTC is meant where nothing else is said."""
    assert life_seconds(text, NOW) == seconds


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "is no time"),
        ("90", "is no time"),
        ("1y", "is no time"),
        ("-1d", "is no time"),
        ("tomorrow", "is no time"),
        ("2026-02-30", "is no time"),
        ("2026-03-01", "that is over"),
        ("2026-03-01T12:00:00Z", "that is over"),
        ("0s", "longer than 0 seconds"),
        ("9999-01-01", "at most 10 years"),
        ("9" * 400 + "d", "at most 10 years"),
    ],
)
def test_what_is_no_end_for_a_token_is_refused(text: str, message: str) -> None:
    """The error says why, and the hint what to write."""
    with pytest.raises(Invalid, match=message) as refused:
        life_seconds(text, NOW)
    assert refused.value.hint


def test_the_longest_life_is_allowed() -> None:
    """Up to the last second."""
    assert life_seconds(f"{LIFE_SECONDS_MAX}s", NOW) == LIFE_SECONDS_MAX
    with pytest.raises(Invalid):
        life_seconds(f"{LIFE_SECONDS_MAX + 1}s", NOW)


def test_a_unit_counts_only_where_it_is_meant() -> None:
    """Runbooks know no days."""
    assert seconds_of("2d", "smhd") == 172_800
    assert seconds_of("2d", "smh") is None


@pytest.mark.parametrize(
    ("text", "left"),
    [
        (f"stm_{ID}_{SECRET}", f"stm_{ID}_***"),
        (f"Authorization: Bearer stm_{ID}_{SECRET}\r\n", f"Authorization: Bearer stm_{ID}_***\r\n"),
        (f"?token=stm_{ID}_{SECRET}&x=1", f"?token=stm_{ID}_***&x=1"),
        (f'"stm_{ID}_{SECRET}","stm_other_{SECRET}"', f'"stm_{ID}_***","stm_other_***"'),
        (f"cut off: stm_{ID}_{SECRET[:20]}", f"cut off: stm_{ID}_***"),
        (f"Xstm_{ID}_{SECRET}{SECRET}", f"Xstm_{ID}_***"),
        (f"stm_{ID}_***", f"stm_{ID}_***"),
        (f"the token {ID}", f"the token {ID}"),
    ],
)
def test_secrets_are_blotted_out(text: str, left: str) -> None:
    """Wherever they stand, whole or not; the id stays, and what is done already is left alone."""
    assert redacted(text) == left
