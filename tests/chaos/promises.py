"""What a caller was promised, in a file of its own: written before each request and after each answer."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from threading import Lock

import msgspec
from msgspec import Struct


class Promise(Struct, frozen=True, omit_defaults=True):
    """Something that was asked, accepted, refused or told.

    ``what`` is ``asked`` (of ``target``), ``accepted`` (as ``transition``), ``refused``, ``told`` (its ``outcome``, at
    ``version`` of the run and on ``node``) or ``decided``. ``key`` names the request, or the decision.
    """

    what: str
    run: str
    key: str
    target: str = ""
    transition: str = ""
    outcome: str = ""
    version: int = 0
    node: str = ""
    by: str = ""


class Promises:
    """The file of one caller; usable from several threads."""

    def __init__(self, path: Path) -> None:
        self._lock = Lock()
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def note(self, promise: Promise) -> None:
        """Write one line, which is on the disk when this returns."""
        with self._lock:
            os.write(self._file, msgspec.json.encode(promise) + b"\n")
            os.fsync(self._file)


def promises_in(path: Path) -> Iterator[Promise]:
    """Yield what a caller has noted; a last line that its death cut short was never acted on."""
    if not path.exists():
        return
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n"):
            yield msgspec.json.decode(line, type=Promise)
