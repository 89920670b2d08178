"""Positions in the feed, as they come back from those who listen."""

from __future__ import annotations

import base64
import json

import pytest

from statem_api.feed import decode_position, encode_position
from statem_dist.errors import Invalid
from statem_dist.store import keys


def word(text: str) -> str:
    """Return a text as the id of an event would hold it."""
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def test_a_position_comes_back_as_it_was_given() -> None:
    """Up to the last one that Redis knows."""
    positions = ["0-0"] * keys.SHARDS
    positions[1] = "1700000000000-3"
    positions[-1] = f"{2**64 - 1}-{2**64 - 1}"
    assert decode_position(encode_position(positions)) == positions


@pytest.mark.parametrize(
    "position",
    [
        "999999999999999999999999-1",
        f"{2**64}-0",
        f"1-{2**64}",
        "-1-1",
        "1",
        "1-",
        "+1-1",
        " 1-1",
        "1_0-1",
        "\u0661-\u0661",
    ],
)
def test_what_redis_would_refuse_is_no_position(position: str) -> None:
    """It is a mistake of the caller, and no outage."""
    with pytest.raises(Invalid, match="Last-Event-ID"):
        decode_position(word(json.dumps({"0": position})))


@pytest.mark.parametrize("text", ["[" * 30_000, "[]", "1", "null", "", "{", "\x00"])
def test_what_is_no_object_is_no_position(text: str) -> None:
    """However deep it is nested."""
    with pytest.raises(Invalid, match="Last-Event-ID"):
        decode_position(word(text))
