"""Writing a file whole or not at all."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path


def write_whole(path: Path, text: str, *, mode: int | None = None) -> None:
    """Replace a file, or create it; who reads it sees the old one or the new one, also after a power cut.

    A link stays a link.

    Args:
        path: the file.
        text: what it is to hold.
        mode: its permissions, from the first moment on; by default those of the old file stay.

    Raises:
        OSError: it cannot be written; the old file is still there.
    """
    target = Path(os.path.realpath(path))
    temporary = target.with_name(f".{target.name}.{os.urandom(4).hex()}")
    try:
        created = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode)
        with open(created, "wb") as file:
            if mode is None:
                with suppress(FileNotFoundError):
                    os.fchmod(file.fileno(), target.stat().st_mode & 0o7777)
            file.write(text.encode())
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    folder = os.open(target.parent, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
