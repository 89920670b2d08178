"""From captured bytes to the text of a result."""

from __future__ import annotations

import json

import pytest

from statem_dist.checks.output import shorten, text_of
from statem_dist.checks.process import Captured, Finished


def captured(octets: bytes, head: int = 1000, tail: int = 1000) -> Captured:
    """Return the octets as a supervisor with these caps would have captured them."""
    rest = octets[head:]
    return Captured(octets[:head], rest[max(0, len(rest) - tail) :], len(octets))


@pytest.mark.parametrize(
    ("stdout", "stderr", "expected"),
    [
        (b"first\nsecond\n", b"aside\n", "first\nsecond\naside"),
        (b"\n  padded  \n\n", b"", "padded"),
        (b"", b"only aside\n", "only aside"),
        (b" \n", b"\n", ""),
        (b"\xff\x00\x1b[31mx", b"", "\ufffd\x00\x1b[31mx"),
    ],
)
def test_text_is_trimmed_stdout_and_then_trimmed_stderr(stdout: bytes, stderr: bytes, expected: str) -> None:
    """Each stream is stripped at its ends, empty ones leave no line, and no byte is an error."""
    text = text_of(Finished(exit_code=0, stdout=captured(stdout), stderr=captured(stderr)))
    assert text == expected
    assert json.loads(json.dumps(text)) == text


def test_a_character_between_head_and_tail_survives() -> None:
    """Where nothing was dropped, head and tail are decoded as one."""
    assert text_of(Finished(stdout=captured("aé€😀".encode(), head=4))) == "aé€😀"


@pytest.mark.parametrize("head", range(1, 30))
@pytest.mark.parametrize("tail", range(1, 8))
def test_a_cut_stream_has_whole_characters_and_a_mark(head: int, tail: int) -> None:
    """Whatever the cut, no character is split and the mark counts every byte that is not shown."""
    octets = "aé€😀".encode() * 20
    text = text_of(Finished(stdout=captured(octets, head, tail)))
    before, _, rest = text.partition("\n[... ")
    count, _, after = rest.partition(" bytes left out ...]\n")
    assert "\ufffd" not in text
    # Stripping takes no more than the line ends of the mark, because the text itself has no white space.
    assert len(f"{before}{after}".encode()) + int(count.partition(" ")[0]) == len(octets)


def test_a_short_text_is_left_alone() -> None:
    """A text that fits is returned as it is."""
    assert shorten("é" * 50, 100) == "é" * 50


@pytest.mark.parametrize("bytes_max", range(70, 100))
def test_a_long_text_keeps_both_ends_within_the_limit(bytes_max: int) -> None:
    """Head and tail are kept, the mark counts what is missing, and the limit holds in bytes."""
    text = shorten("é€" * 1000, bytes_max, dropped_bytes=7)
    assert len(text.encode()) <= bytes_max
    head, _, rest = text.partition("\n[... ")
    count, _, tail = rest.partition(" bytes left out ...]\n")
    assert int(count) == 5000 - len((head + tail).encode()) + 7
    assert "\ufffd" not in text
