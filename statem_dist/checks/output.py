"""From the bytes that a command wrote to the text that a result shows.

A result shows what StateM shows: standard output, then standard error on a new line, each without white space at its
ends. Bytes that are not UTF-8 become replacement characters; they never decide a check. Whatever is left out, by the
supervisor that captured a stream or here because an event has little room, leaves a mark with the number of bytes,
and no cut goes through a character.
"""

from __future__ import annotations

from statem_dist.checks.process import Captured, Finished
from statem_dist.checks.redaction import blotted

MARK_BYTES = 64
"""Room for the mark of a cut."""


def shown_text(finished: Finished) -> str:
    """Return the whole captured text of a command as it may be kept and shown: without the secrets that are known."""
    return blotted(text_of(finished), finished.secrets)


def text_of(finished: Finished) -> str:
    """Return the whole captured text of a command, as it is to be judged."""
    streams = (_decode(finished.stdout).strip(), _decode(finished.stderr).strip())
    return "\n".join(stream for stream in streams if stream)


def shorten(text: str, bytes_max: int, dropped_bytes: int = 0) -> str:
    """Return a text of at most ``bytes_max`` bytes of UTF-8, its middle replaced by a mark if it was longer.

    Args:
        dropped_bytes: how many bytes are missing from the text already; the mark counts them too.
    """
    encoded = text.encode()
    if len(encoded) <= bytes_max:
        return text
    half = max(0, bytes_max - MARK_BYTES) // 2
    head = encoded[:half].decode(errors="ignore")
    tail = encoded[len(encoded) - half :].decode(errors="ignore")
    left_out = len(encoded) - len(head.encode()) - len(tail.encode()) + dropped_bytes
    return f"{head}{_mark(left_out)}{tail}"


def _decode(captured: Captured) -> str:
    if not captured.dropped:
        return (captured.head + captured.tail).decode(errors="replace")
    head, tail = _whole_head(captured.head), _whole_tail(captured.tail)
    left_out = captured.written - len(head) - len(tail)
    return f"{head.decode(errors='replace')}{_mark(left_out)}{tail.decode(errors='replace')}"


def _mark(left_out: int) -> str:
    return f"\n[... {left_out} bytes left out ...]\n"


def _whole_head(octets: bytes) -> bytes:
    """Return the bytes without a character that was cut at their end."""
    for back in range(1, min(4, len(octets)) + 1):
        first = octets[-back]
        if first & 0b1100_0000 != 0b1000_0000:
            length = 1 if first < 0xC0 else 2 if first < 0xE0 else 3 if first < 0xF0 else 4
            return octets[:-back] if length > back else octets
    return octets


def _whole_tail(octets: bytes) -> bytes:
    """Return the bytes without a character that was cut at their start."""
    start = 0
    while start < min(3, len(octets)) and octets[start] & 0b1100_0000 == 0b1000_0000:
        start += 1
    return octets[start:]
