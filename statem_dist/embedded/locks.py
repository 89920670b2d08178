"""File locks that the kernel releases whatever happens to their holder. Standard library only.

``flock`` belongs to the open file, not to the process: a child that inherits the descriptor holds the lock
too, and it is free when the last of them has ended, also after ``kill -9``. The files are never removed,
because a lock on a removed file excludes nobody.
"""

from __future__ import annotations

import fcntl
import os
import time
from types import TracebackType

_FIRST_PAUSE_SECONDS = 0.002
_LONGEST_PAUSE_SECONDS = 0.05
_NOTE_BYTES_MAX = 256


class FileLock:
    """An exclusive lock on a file, which is created (mode 0600) if it does not exist.

    Raises:
        OSError: the file cannot be created or opened, or is a symbolic link.
    """

    def __init__(self, path: str) -> None:
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)

    def try_acquire(self) -> bool:
        """Take the lock if it is free; return whether we hold it now."""
        try:
            fcntl.flock(self.descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        return True

    def acquire(self, *, timeout_seconds: float) -> bool:
        """Take the lock, waiting up to ``timeout_seconds`` for it; return whether we hold it now."""
        deadline = time.monotonic() + timeout_seconds
        pause = _FIRST_PAUSE_SECONDS
        while not self.try_acquire():
            if time.monotonic() >= deadline:
                return False
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
        return True

    def read_note(self) -> str:
        """Return what the last holder wrote about itself, or an empty text."""
        return os.pread(self.descriptor, _NOTE_BYTES_MAX, 0).decode(errors="replace").strip()

    def write_note(self, text: str) -> None:
        """Say who holds the lock, for the error messages of those who wait for it."""
        os.ftruncate(self.descriptor, 0)
        os.pwrite(self.descriptor, f"{text}\n".encode(), 0)

    def close(self) -> None:
        """Give up our descriptor, and with it the lock unless somebody inherited it."""
        os.close(self.descriptor)

    def __enter__(self) -> FileLock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
