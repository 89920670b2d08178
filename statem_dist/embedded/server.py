"""A private Redis-compatible server for one state directory: started on demand, shared, stopped when idle.

Who may do what is decided by two kernel locks, never by a process id in a file:

* ``start.lock`` is held while somebody starts or stops the server, so that eight command lines make one server;
* ``data/owner.lock`` is inherited by the server and its keeper. It is free only when nobody has the data open,
  also after ``kill -9``, after the starter died half way, and for a server on another host of a shared disk.

The common case, a server that runs, costs one connect and one PING and takes neither.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from urllib.parse import quote

from msgspec import Struct

from statem_dist.embedded.keeper import ASIDE_SUFFIX
from statem_dist.embedded.locks import FileLock
from statem_dist.embedded.place import Place
from statem_dist.errors import Unavailable
from statem_dist.resp import Connection, ProtocolError, ReplyError

IDLE_STOP_SECONDS = 15 * 60.0
"""How long a server without any client stays up: longer than an agent thinks between two commands."""

START_TIMEOUT_SECONDS = 15.0
"""How long a command waits for a server to load its data."""

STOP_TIMEOUT_SECONDS = 15.0

_ANSWER_TIMEOUT_SECONDS = 5.0
_RETRY_PAUSE_SECONDS = 0.02
_STOP_PAUSE_SECONDS = 0.003


class Endpoint(Struct, frozen=True):
    """Where a running server is reached; ``started`` says whether this call had to start it."""

    socket: Path
    redis_url: str
    broker_url: str
    started: bool


class ServerStatus(Struct, frozen=True):
    """What a server says of itself; all but ``running`` and ``socket`` is empty when none runs.

    ``aof_writable`` is False while the disk refuses the append-only log, which makes the server refuse writes.
    """

    running: bool
    socket: Path
    pid: int | None = None
    product: str = ""
    version: str = ""
    memory_bytes: int = 0
    uptime_seconds: int = 0
    clients: int = 0
    aof_enabled: bool = False
    aof_writable: bool = False
    eviction_policy: str = ""


def ensure(
    state_dir: Path,
    *,
    idle_stop_seconds: float = IDLE_STOP_SECONDS,
    start_timeout_seconds: float = START_TIMEOUT_SECONDS,
    appendfsync: str = "everysec",
) -> Endpoint:
    """Return the server of a state directory, starting it if it does not run.

    Args:
        state_dir: created (0700) if missing.
        idle_stop_seconds: after how long without a client the server stops itself; 0 means never. It is the
            starter's choice: a server that already runs keeps its own.
        start_timeout_seconds: how long to wait for a start, somebody else's included, and for its data to load.
        appendfsync: when its log is flushed to disk; the starter's choice as well.

    Raises:
        Unavailable: the directory cannot be used, no server binary exists, or the server does not come up;
            the message quotes the end of its log.
    """
    place = Place.of(state_dir)
    place.require_private_socket()
    deadline = time.monotonic() + start_timeout_seconds
    if _answers(place, deadline):
        return _endpoint(place, started=False)
    place.create()
    with place.explaining():
        lock = FileLock(place.start_lock)
    with lock:
        while not lock.try_acquire():
            if _answers(place, deadline):
                return _endpoint(place, started=False)
            _require_time(deadline, f"somebody else has been starting or stopping the server of {place.state_dir}")
            time.sleep(_RETRY_PAUSE_SECONDS)
        with place.explaining():
            _put_name_back(place)
        if _answers(place, deadline):
            return _endpoint(place, started=False)
        # Only a start pays for loading what starts.
        from statem_dist.embedded.launch import launch

        launch(place, idle_stop_seconds=idle_stop_seconds, deadline=deadline, appendfsync=appendfsync)
    return _endpoint(place, started=True)


def stop(state_dir: Path, *, timeout_seconds: float = STOP_TIMEOUT_SECONDS) -> bool:
    """Stop the server of a state directory, its log flushed, and wait until it and its keeper have ended.

    Returns:
        False if none ran.

    Raises:
        Unavailable: it refuses (the message says why) or is still there after ``timeout_seconds``.
    """
    place = Place.of(state_dir)
    place.require_private_socket()
    if not os.path.exists(place.owner_lock):
        return False
    deadline = time.monotonic() + timeout_seconds
    with place.explaining():
        start_lock, owner_lock = FileLock(place.start_lock), FileLock(place.owner_lock)
    with start_lock, owner_lock:
        if not start_lock.acquire(timeout_seconds=timeout_seconds):
            raise Unavailable(
                f"another process is starting or stopping {place.state_dir}", hint="try again in a moment"
            )
        with place.explaining():
            _put_name_back(place)
        asked = False
        while not owner_lock.try_acquire():
            asked = asked or _ask_to_stop(place, deadline)
            if time.monotonic() >= deadline:
                raise Unavailable(
                    f"the server of {place.state_dir} ({owner_lock.read_note()}) did not stop",
                    hint=f"look at {place.log}; if it hangs, kill that process: its data survives",
                )
            time.sleep(_STOP_PAUSE_SECONDS)
        with place.explaining():
            _remove_leftovers(place)
    return asked


def running(state_dir: Path) -> Endpoint | None:
    """Return the server of a state directory if somebody listens there; none is started.

    Raises:
        Unavailable: it is there but cannot be asked.
    """
    place = Place.of(state_dir)
    place.require_private_socket()
    connection = _connect(place, _ANSWER_TIMEOUT_SECONDS)
    if connection is None:
        return None
    connection.close()
    return _endpoint(place, started=False)


def status(state_dir: Path) -> ServerStatus:
    """Describe the server of a state directory without starting it.

    Raises:
        Unavailable: it is there but cannot be asked: another user's, or it does not answer.
    """
    place = Place.of(state_dir)
    place.require_private_socket()
    connection = _connect(place, _ANSWER_TIMEOUT_SECONDS)
    if connection is None:
        return ServerStatus(running=False, socket=Path(place.socket))
    with connection:
        try:
            server, memory = connection.info("server"), connection.info("memory")
            clients, persistence = connection.info("clients"), connection.info("persistence")
        except (OSError, ReplyError, ProtocolError) as error:
            raise _silent(place, error) from error
    return ServerStatus(
        running=True,
        socket=Path(place.socket),
        pid=int(server["process_id"]),
        product="valkey" if "valkey_version" in server else "redis",
        version=server.get("valkey_version", server["redis_version"]),
        memory_bytes=int(memory["used_memory"]),
        uptime_seconds=int(server["uptime_in_seconds"]),
        clients=int(clients["connected_clients"]) - 1,
        aof_enabled=persistence["aof_enabled"] == "1",
        aof_writable=persistence.get("aof_last_write_status") == "ok",
        eviction_policy=memory["maxmemory_policy"],
    )


def _endpoint(place: Place, *, started: bool) -> Endpoint:
    path = quote(place.socket)
    return Endpoint(
        socket=Path(place.socket), redis_url=f"unix://{path}", broker_url=f"redis+socket://{path}", started=started
    )


def _connect(place: Place, timeout_seconds: float) -> Connection | None:
    """Connect to whoever listens on the socket; None if nobody does."""
    try:
        return Connection(place.socket, timeout_seconds=timeout_seconds)
    except (FileNotFoundError, ConnectionError, NotADirectoryError):
        return None
    except OSError as error:
        raise _silent(place, error) from error


def _answers(place: Place, deadline: float) -> bool:
    """Return whether a server runs with its data loaded; one that is loading is waited for.

    An error reply is an answer: a server whose disk is full refuses even a PING, and still serves reads.
    """
    while (connection := _connect(place, _ANSWER_TIMEOUT_SECONDS)) is not None:
        with connection:
            try:
                connection.call("PING")
                return True
            except ReplyError as error:
                if error.code != "LOADING":
                    return True
            except ConnectionError:
                return False
            except (OSError, ProtocolError) as error:
                raise _silent(place, error) from error
        _require_time(deadline, f"the server of {place.state_dir} is still loading its data")
        time.sleep(_RETRY_PAUSE_SECONDS)
    return False


def _silent(place: Place, error: Exception) -> Unavailable:
    try:
        pid = Path(place.pid_file).read_text().strip()
    except OSError:
        pid = "unknown"
    if isinstance(error, PermissionError):
        hint = "it belongs to another user; choose a directory of your own with --state-dir or STATEM_STATE_DIR"
    else:
        hint = f"look at {place.log}; if it hangs, kill it and repeat the command: its data survives"
    return Unavailable(
        f"the server of {place.state_dir} (process {pid}) cannot be asked at {place.socket}: {error}", hint=hint
    )


def _require_time(deadline: float, what: str) -> None:
    if time.monotonic() >= deadline:
        raise Unavailable(f"{what} for too long", hint="repeat the command in a moment")


def _put_name_back(place: Place) -> None:
    """Undo what a keeper that was killed during its last look left behind; the start lock is ours."""
    aside = place.socket + ASIDE_SUFFIX
    if os.path.lexists(aside):
        os.replace(aside, place.socket)


def _remove_leftovers(place: Place) -> None:
    """Remove what a killed server could not; both locks are ours."""
    for path in (place.socket, place.pid_file):
        Path(path).unlink(missing_ok=True)


def _ask_to_stop(place: Place, deadline: float) -> bool:
    """Tell the server to shut down; return False if nobody listens."""
    connection = _connect(place, _ANSWER_TIMEOUT_SECONDS)
    if connection is None:
        return False
    with connection:
        try:
            connection.shut_down(timeout_seconds=max(deadline - time.monotonic(), 0.1))
        except (OSError, ReplyError, ProtocolError) as error:
            raise _silent(place, error) from error
    return True
