"""Server-sent events, taken apart as the HTML standard says, from whatever pieces the bytes come in."""

from __future__ import annotations

from msgspec import Struct


class Frame(Struct, frozen=True):
    """One event of a stream. ``id`` is that of the last event that had one, None before the first."""

    data: str
    event: str = "message"
    id: str | None = None


class Parser:
    """Takes bytes and gives frames. ``retry_seconds`` is the pause before a reconnection that the stream has asked for.

    Lines end with LF, CR or both, and a piece may end in the middle of anything. A frame is complete with its empty
    line; what a stream has begun and not completed is dropped with the parser.
    """

    def __init__(self) -> None:
        self.retry_seconds: float | None = None
        self.last_id: str | None = None
        self._held = b""
        self._begun = False
        self._data: list[str] = []
        self._event = ""

    def feed(self, piece: bytes) -> list[Frame]:
        """Return the frames that a piece completes."""
        self._held += piece
        if not self._begun and len(self._held) >= 3:
            self._begun, self._held = True, self._held.removeprefix(b"\xef\xbb\xbf")
        frames = []
        for line in self._lines():
            if line:
                self._take(line.decode(errors="replace"))
            elif (frame := self._completed()) is not None:
                frames.append(frame)
        return frames

    def _lines(self) -> list[bytes]:
        """Take the complete lines out of what is held, without their ends."""
        text = self._held
        # A CR at the very end may be half of a CRLF.
        whole = text[:-1] if text.endswith(b"\r") else text
        *lines, _ = whole.replace(b"\r\n", b"\n").replace(b"\r", b"\n").split(b"\n")
        end = max(whole.rfind(b"\n"), whole.rfind(b"\r")) + 1
        self._held = text[end:]
        return lines

    def _take(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        match name:
            case "data":
                self._data.append(value)
            case "event":
                self._event = value
            case "id" if "\0" not in value:
                self.last_id = value
            case "retry" if value.isascii() and value.isdecimal():
                self.retry_seconds = int(value) / 1000
            case _:
                # A comment, or a field of a later standard.
                pass

    def _completed(self) -> Frame | None:
        data, event = self._data, self._event
        self._data, self._event = [], ""
        return Frame("\n".join(data), event or "message", self.last_id) if data else None
