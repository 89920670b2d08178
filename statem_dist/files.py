"""Writing a file whole or not at all."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Iterable
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
    sync_folder(target.parent)


def write_chunks(path: Path, chunks: Iterable[bytes], *, mode: int) -> None:
    """Write a file in chunks, whole or not at all, also if the power fails; whatever has its name is replaced.

    Args:
        path: the file; its folder is made if missing.
        chunks: what it is to hold; it is taken chunk by chunk.
        mode: its permissions, from the first moment on.

    Raises:
        OSError: it cannot be written; an old file of its name is still there.
    """
    new = not path.parent.exists()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name[:200]}.{os.urandom(4).hex()}")
    try:
        with open(os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
            for chunk in chunks:
                file.write(chunk)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(temporary)
        raise
    sync_folder(path.parent)
    if new:
        sync_folder(path.parent.parent)


def sync_folder(path: Path) -> None:
    """Return when the names in a folder are on the disk.

    Raises:
        OSError: it cannot be read or synchronised.
    """
    folder = os.open(path, os.O_RDONLY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def write_anew(path: Path, text: str) -> None:
    """Write a file in a folder that somebody else may write to, in the place of whatever has its name.

    Nothing that lies there is opened: a pipe would block, and a link would lead elsewhere. The folder is made if
    missing.

    Raises:
        OSError: it cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        with temporary.open("x", encoding="utf-8", errors="replace") as file:
            file.write(text)
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        os.replace(temporary, path)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def read_at_most(path: Path, bytes_max: int) -> bytes:
    """Return the first bytes of a file that somebody else has written.

    Raises:
        OSError: it cannot be read, or is no regular file: a pipe would block, and a device might never end.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with open(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is no regular file")
        return file.read(bytes_max)
