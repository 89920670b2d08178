"""What of a workspace is kept when a trial has ended: regular files that match patterns, within bounds.

An agent has written the workspace, so nothing in it is trusted: files are opened below the folder in which they were
found, links are never followed, and what a name looks like in a message cannot fool a terminal.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import BinaryIO, TypeAlias

from msgspec import Struct

from statem_dist.sweep.model import Artifacts

LIST_NAME = "LEFT-OUT.txt"
"""The file beside the artifacts that says what is not among them."""

LISTED_MAX = 1000
"""How many files it names; the number of the others is said."""

DEPTH_MAX = 100
"""Folders below each other that are looked into. An agent that has gone wrong makes thousands."""

_CHUNK = 1024 * 1024

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""How they are opened. What has become a link meanwhile is not followed, and a pipe does not wait for a writer."""

_LeaveOut: TypeAlias = Callable[[str, str], None]


def collect(workspace: Path, into: Path, wanted: Artifacts) -> list[str]:
    """Copy what is wanted of a workspace, under the paths that it has there.

    Args:
        into: the folder that is made. What is there, from an earlier time that did not come to its end, is removed.

    Returns:
        one line for each file that is wanted and was left out, with the reason; the same lines are in ``LIST_NAME``.
        Nothing that stands in a workspace makes this fail.
    """
    shutil.rmtree(into, ignore_errors=True)
    if not wanted.paths:
        return []
    collecting = _Collecting(into, wanted)
    try:
        folder = os.open(workspace, _FOLDER)
    except OSError as error:
        collecting.leave_out(".", f"could not be read: {error.strerror}")
    else:
        try:
            for found in _Wanted(wanted.paths, collecting.leave_out).files(folder):
                collecting.take(found)
        finally:
            os.close(folder)
    return collecting.finish()


class _Found(Struct, frozen=True):
    """A file that is wanted: its path in the workspace, and its name in an open folder."""

    path: str
    name: str
    folder: int


class _Refused(Exception):
    """Why a file is left out."""


class _Collecting:
    def __init__(self, into: Path, wanted: Artifacts) -> None:
        self._into = into
        self._wanted = wanted
        self._taken = 0
        self._left_out: list[str] = []
        self._unlisted = 0

    def take(self, found: _Found) -> None:
        """Copy a file if it may be kept."""
        try:
            if found.path == LIST_NAME:
                raise _Refused("has the name of this list")
            self._taken += self._copied(found)
        except _Refused as refusal:
            self.leave_out(found.path, str(refusal))
        except (OSError, ValueError) as error:
            said = getattr(error, "strerror", None) or str(error)
            self.leave_out(found.path, f"could not be copied: {said}")

    def leave_out(self, path: str, why: str) -> None:
        """Note that something is left out."""
        if len(self._left_out) < LISTED_MAX:
            self._left_out.append(f"{_shown(path)}: {why}")
        else:
            self._unlisted += 1

    def finish(self) -> list[str]:
        """Write the list of what was left out, and return its lines."""
        lines = [*self._left_out, *([f"and {self._unlisted:,} more"] if self._unlisted else ())]
        if lines:
            try:
                self._into.mkdir(parents=True, exist_ok=True)
                (self._into / LIST_NAME).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
            except OSError as error:
                lines.append(f"{LIST_NAME}: could not be written: {error.strerror or error}")
        return lines

    def _copied(self, found: _Found) -> int:
        """Copy a file and return its size in bytes; what was begun and cannot be ended is removed."""
        source = os.open(found.name, _FILE, dir_fd=found.folder)
        with open(source, "rb") as file:
            status = os.fstat(source)
            if not stat.S_ISREG(status.st_mode):
                raise _Refused("is no regular file")
            most = self._most(status.st_size)
            target = self._into / found.path
            target.parent.mkdir(parents=True, exist_ok=True)
            with target.open("xb") as copy:
                try:
                    return self._copy(file, copy, most)
                except BaseException:
                    target.unlink()
                    raise

    def _copy(self, file: BinaryIO, copy: BinaryIO, most: int) -> int:
        size = 0
        while chunk := file.read(_CHUNK):
            size += len(chunk)
            # Whoever still writes to it may be faster than we are.
            if size > most:
                raise _Refused(f"grew beyond {most:,} bytes")
            copy.write(chunk)
        return size

    def _most(self, size: int) -> int:
        """Return how many bytes a file of this size may have."""
        left = self._wanted.total_bytes_max - self._taken
        if size > self._wanted.file_bytes_max:
            raise _Refused(f"{size:,} bytes, more than the {self._wanted.file_bytes_max:,} of a file")
        if size > left:
            raise _Refused(f"{size:,} bytes, more than the {left:,} that are left of {self._wanted.total_bytes_max:,}")
        return min(self._wanted.file_bytes_max, left)


class _Wanted:
    """Finds the files of a workspace that match some patterns, in the order of their names."""

    def __init__(self, patterns: Sequence[str], leave_out: _LeaveOut) -> None:
        split = [_parts(pattern) for pattern in patterns]
        self._paths = _any_of(_expression(parts) for parts in split)
        self._first = _any_of(_expression(parts[:1]) for parts in split)
        self._depth = DEPTH_MAX if any("**" in parts for parts in split) else max(map(len, split)) - 1
        self._leave_out = leave_out

    def files(self, folder: int, above: str = "", depth: int = 0) -> Iterator[_Found]:
        """Yield what is wanted of an open folder.

        Args:
            above: the path of the folder in the workspace, with a slash behind it; empty for the workspace.
            depth: how many folders there are above it.
        """
        try:
            with os.scandir(folder) as found:
                entries = sorted(found, key=lambda entry: entry.name)
        except OSError as error:
            self._leave_out(above, f"could not be read: {error.strerror}")
            return
        for entry in entries:
            path = above + entry.name
            if entry.is_dir(follow_symlinks=False):
                if depth or self._first.fullmatch(entry.name):
                    yield from self._below(folder, entry.name, path, depth)
            elif self._paths.fullmatch(path):
                if entry.is_symlink():
                    self._leave_out(path, "is a link")
                else:
                    yield _Found(path, entry.name, folder)

    def _below(self, folder: int, name: str, path: str, depth: int) -> Iterator[_Found]:
        if depth >= self._depth:
            if depth >= DEPTH_MAX:
                self._leave_out(f"{path}/", f"more than {DEPTH_MAX} folders below each other")
            return
        try:
            inner = os.open(name, _FOLDER, dir_fd=folder)
        except OSError as error:
            self._leave_out(f"{path}/", f"could not be read: {error.strerror}")
            return
        try:
            yield from self.files(inner, f"{path}/", depth + 1)
        finally:
            os.close(inner)


def check_pattern(pattern: str) -> None:
    """Raise ``ValueError`` if a pattern is none, or leads out of a workspace."""
    parts = _parts(pattern)
    if not parts or pattern.startswith("/") or ".." in parts:
        raise ValueError("must be a path or pattern within the workspace, such as *.log or out/**")
    try:
        _any_of([_expression(parts)])
    except re.error as error:
        raise ValueError(f"is no pattern: {error.msg}") from None


def _parts(pattern: str) -> list[str]:
    return [part for part in pattern.split("/") if part not in ("", ".")]


def _any_of(expressions: Iterable[str]) -> re.Pattern[str]:
    return re.compile("|".join(expressions), re.DOTALL)


def _expression(parts: Sequence[str]) -> str:
    """Return the regular expression of a pattern. As in a shell, only a dot in the pattern matches one that hides."""
    written = ""
    for number, part in enumerate(parts, start=1):
        last = number == len(parts)
        if part == "**":
            written += r"(?:(?!\.)[^/]+/)*" + (r"(?!\.)[^/]+" if last else "")
        else:
            written += ("" if part.startswith(".") else r"(?!\.)") + _SPECIAL.sub(_translated, part)
            written += "" if last else "/"
    return written


_SPECIAL = re.compile(r"\*|\?|\[(!?)(\]?[^\]]+|\])\]|[^*?\[]+|\[")


def _translated(found: re.Match[str]) -> str:
    match found[0]:
        case "*":
            return "[^/]*"
        case "?":
            return "[^/]"
        case _ if found[2] is not None:
            among = re.sub(r"([\\\]\[^&~|])", r"\\\1", found[2])
            return f"(?!/)[{'^' if found[1] else ''}{among}]"
        case _:
            return re.escape(found[0])


def _shown(path: str) -> str:
    """Return a path as one line that any terminal and any encoding can take."""
    return "".join(character if character.isprintable() else ascii(character)[1:-1] for character in path)
