"""How the foreground runner cuts output into lines."""

from __future__ import annotations

from statem_dist.embedded.stack import LINE_BYTES_MAX, LineSplitter


def test_lines_are_joined_across_reads() -> None:
    """A line that arrives in two reads is one line; both kinds of line ends are removed."""
    splitter = LineSplitter()
    assert splitter.feed(b"one\r\ntw") == ["one"]
    assert splitter.feed(b"o\n\nthree") == ["two", ""]
    assert splitter.finish() == ["three"]
    assert splitter.finish() == []


def test_a_long_line_is_cut() -> None:
    """Pieces have at most 8 KiB, nothing is lost, and they come before the line ends."""
    splitter = LineSplitter()
    pieces = splitter.feed(b"x" * (2 * LINE_BYTES_MAX + 5))
    assert [len(piece) for piece in pieces] == [LINE_BYTES_MAX, LINE_BYTES_MAX]
    assert splitter.feed(b"y\n") == ["xxxxxy"]
    assert [len(piece) for piece in splitter.feed(b"z" * (LINE_BYTES_MAX + 1) + b"\n")] == [LINE_BYTES_MAX, 1]


def test_a_cut_does_not_fall_into_a_character() -> None:
    """A four-byte character at the boundary goes to the next piece as a whole."""
    text = "x" * (LINE_BYTES_MAX - 2) + "😀" + "end"
    assert LineSplitter().feed(f"{text}\n".encode()) == ["x" * (LINE_BYTES_MAX - 2), "😀end"]


def test_bytes_that_are_no_text_are_replaced() -> None:
    """Binary output is shown with replacement characters, also where a long line is cut."""
    assert LineSplitter().feed(b"a\xffb\n") == ["a\ufffdb"]
    assert "".join(LineSplitter().feed(b"\x80" * (LINE_BYTES_MAX + 10) + b"\n")) == "\ufffd" * (LINE_BYTES_MAX + 10)
