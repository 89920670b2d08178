"""Where the server of a state directory keeps its files.

Every name derives from the real path of the state directory, so that all command lines meet at the same socket
without a pointer file, whatever their environment and working directory are::

    <state>/redis.sock     the socket (0600), unless its path is too long for the operating system, then
    /tmp/statem-<uid>-<hash of the state directory>/redis.sock
    <state>/redis.pid      written and removed by the server
    <state>/redis.log      the server's log, and the keeper's own words; one older log beside it
    <state>/start.lock     held by whoever starts or stops the server
    <state>/up.lock        held by the ``up`` that runs on the state directory, with its identity as the note
    <state>/token          the admin token for the service that ``up`` runs (0600)
    <state>/data/          the append-only files
    <state>/data/owner.lock  held by the server and its keeper as long as they live: free means nobody has the data open
"""

from __future__ import annotations

import hashlib
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from msgspec import Struct

from statem_dist.errors import Unavailable

SOCKET_PATH_BYTES_MAX = 100
"""Linux takes 107 bytes and macOS 103; below both, so that a directory moved between hosts behaves the same."""

_SHORT_ROOT = "/tmp"
"""Not XDG_RUNTIME_DIR: a job without a login session has none, and would look for the socket elsewhere."""

_LOG_BYTES_MAX = 1 << 20
_STATE_DIR_HINT = "choose a writable directory with --state-dir or STATEM_STATE_DIR"


class Place(Struct, frozen=True):
    """The paths of one state directory's server; all are absolute. ``short_dir`` is set if the socket had to move."""

    state_dir: str
    socket: str
    short_dir: str | None

    @classmethod
    def of(cls, state_dir: Path) -> Place:
        """Return the place of a state directory, which need not exist yet."""
        real = os.path.realpath(state_dir)
        socket = f"{real}/redis.sock"
        if len(os.fsencode(socket)) <= SOCKET_PATH_BYTES_MAX:
            return cls(state_dir=real, socket=socket, short_dir=None)
        digest = hashlib.sha256(os.fsencode(real)).hexdigest()[:16]
        short_dir = f"{_SHORT_ROOT}/statem-{os.geteuid()}-{digest}"
        return cls(state_dir=real, socket=f"{short_dir}/redis.sock", short_dir=short_dir)

    @property
    def data(self) -> str:
        """The directory of the append-only files."""
        return f"{self.state_dir}/data"

    @property
    def log(self) -> str:
        """The log file."""
        return f"{self.state_dir}/redis.log"

    @property
    def pid_file(self) -> str:
        """The file that holds the server's process id while it runs."""
        return f"{self.state_dir}/redis.pid"

    @property
    def start_lock(self) -> str:
        """The lock that serialises starting and stopping."""
        return f"{self.state_dir}/start.lock"

    @property
    def up_lock(self) -> str:
        """The lock that says whether ``up`` runs on the state directory."""
        return f"{self.state_dir}/up.lock"

    @property
    def token_file(self) -> str:
        """The file that holds the admin token of this state directory."""
        return f"{self.state_dir}/token"

    @property
    def service_file(self) -> str:
        """The file in which the service that ``up`` runs says where it listens, and which process it is."""
        return f"{self.state_dir}/service"

    @property
    def owner_lock(self) -> str:
        """The lock that says whether anybody has the data open."""
        return f"{self.data}/owner.lock"

    def create(self) -> None:
        """Create the directories (0700) that are missing.

        Raises:
            Unavailable: one cannot be created or written, or the short directory is not ours.
        """
        with self.explaining():
            os.makedirs(self.state_dir, mode=0o700, exist_ok=True)
            os.makedirs(self.data, mode=0o700, exist_ok=True)
            if self.short_dir is not None:
                os.makedirs(self.short_dir, mode=0o700, exist_ok=True)
        self.require_private_socket()

    def require_private_socket(self) -> None:
        """Refuse a short directory that somebody else could have put in our way; a missing one is fine.

        Raises:
            Unavailable: it is a symbolic link, no directory, another user's, or open to others.
        """
        if self.short_dir is None:
            return
        try:
            status = os.lstat(self.short_dir)
        except FileNotFoundError:
            return
        private = stat.S_ISDIR(status.st_mode) and not status.st_mode & 0o077 and status.st_uid == os.geteuid()
        if not private:
            raise Unavailable(
                f"{self.short_dir} is not a private directory of this user, so the socket of {self.state_dir} "
                "cannot be trusted",
                hint=f"remove {self.short_dir}, or choose a state directory with a shorter path (--state-dir)",
            )

    def rotate_log(self) -> None:
        """Set a long log aside, so that a directory that lives for years keeps two short ones."""
        with self.explaining():
            if os.path.exists(self.log) and os.path.getsize(self.log) > _LOG_BYTES_MAX:
                os.replace(self.log, f"{self.log}.1")

    @contextmanager
    def explaining(self) -> Iterator[None]:
        """Turn an operating system's error into Unavailable with the path and the fix."""
        try:
            yield
        except OSError as error:
            where = error.filename or self.state_dir
            raise Unavailable(
                f"the state directory {self.state_dir} cannot be used: {where}: {error.strerror or error}",
                hint=_STATE_DIR_HINT,
            ) from error
