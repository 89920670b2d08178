"""Bring up the server of a state directory, or say in its own words why it does not come up.

Imported only when there is something to start. The caller holds the start lock all the while.
"""

from __future__ import annotations

import os
import re
import select
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path

from statem_dist.embedded.binary import ServerBinary, find_server
from statem_dist.embedded.place import Place
from statem_dist.errors import Unavailable

_LOG_LINES_QUOTED = 5
_LOG_BYTES_QUOTED = 64 * 1024

_PASSED_ENVIRONMENT = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH", "DYLD_LIBRARY_PATH")
"""All that the server and its keeper get to see: they outlive the caller, whose secrets must not."""

_KEEPER_PROGRAM = (
    "import sys, types; "
    "package = types.ModuleType('statem_dist'); package.__path__ = [sys.argv[1]]; "
    "sys.modules['statem_dist'] = package; "
    "from statem_dist.embedded.keeper import main; main(sys.argv[2:])"
)
"""Runs the keeper under ``-I -S``, which knows no site-packages: the package is there by its folder alone."""

_DAMAGED_LOG = re.compile(r"(?:Bad file format|Unexpected end of file) reading the append only file (\S+?):?(?:\s|$)")


def launch(place: Place, *, idle_stop_seconds: float, deadline: float, appendfsync: str = "everysec") -> None:
    """Start the server with its keeper and wait until it answers.

    Args:
        place: its directories exist.
        idle_stop_seconds: after how long without a client it stops itself; 0 means never.
        deadline: when to stop waiting, by the monotonic clock; a server that is still loading then stays.
        appendfsync: when its log is flushed to disk.

    Raises:
        Unavailable: there is no server binary, the data is in use elsewhere, or the server does not come up.
    """
    binary = find_server()
    place.rotate_log()
    with place.explaining():
        log = os.open(place.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        log_start = os.fstat(log).st_size
        said = _run_keeper(place, _server_command(place, binary, appendfsync), idle_stop_seconds, deadline, log)
    finally:
        os.close(log)
    verdict, _, reason = said.partition(" ")
    match verdict:
        case "ready":
            return
        case "busy":
            raise Unavailable(
                f"the data of {place.state_dir} is in use by {reason}, which does not answer at {place.socket}",
                hint="a state directory serves one host; if the process is on this one, kill it and repeat the command",
            )
        case "waiting":
            raise Unavailable(
                f"the server of {place.state_dir} is not ready yet; it may be loading its data",
                hint=f"repeat the command in a moment, or look at {place.log}",
            )
        case _:
            raise _start_failure(place, binary, reason, log_start)


def _run_keeper(place: Place, command: list[str], idle_stop_seconds: float, deadline: float, log: int) -> str:
    """Return the keeper's report, ``waiting`` if it has none in time, or an empty text if it died."""
    receiving, reporting = os.pipe()
    try:
        with place.explaining():
            keeper = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", "-c", _KEEPER_PROGRAM, str(Path(__file__).parent.parent)),
                    *(place.socket, place.start_lock, place.owner_lock),
                    *(str(max(idle_stop_seconds, 0.0)), str(reporting)),
                    *command,
                ],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=place.data,
                env={name: os.environ[name] for name in _PASSED_ENVIRONMENT if name in os.environ},
                pass_fds=(reporting,),
            )
    finally:
        os.close(reporting)
    try:
        keeper.wait()  # It forks at once and goes on in the background.
        if not select.select([receiving], [], [], max(deadline - time.monotonic(), 0.0))[0]:
            return "waiting"
        return os.read(receiving, 1024).decode(errors="replace").strip()
    finally:
        os.close(receiving)


def _server_command(place: Place, binary: ServerBinary, appendfsync: str) -> list[str]:
    """Return the command line: no TCP, every write in an append-only log, nothing ever evicted."""
    options = {
        "port": "0",
        "unixsocket": place.socket,
        "unixsocketperm": "600",
        "protected-mode": "yes",
        "timeout": "0",
        "dir": place.data,
        "pidfile": place.pid_file,
        "logfile": place.log,
        "daemonize": "no",
        "save": "",
        "appendonly": "yes",
        "appendfsync": appendfsync,
        "aof-load-truncated": "yes",
        "maxmemory-policy": "noeviction",
    }
    return [str(binary.path), *(word for name, value in options.items() for word in (f"--{name}", value))]


def _start_failure(place: Place, binary: ServerBinary, reason: str, log_start: int) -> Unavailable:
    """Say why the server did not come up, in its own words."""
    lines = _log_lines(place, log_start)
    said = "\n".join(f"  {line}" for line in lines[-_LOG_LINES_QUOTED:])
    message = f"the server of {place.state_dir} did not start: {reason or 'its keeper failed'}"
    if damaged := next((found[1] for line in reversed(lines) if (found := _DAMAGED_LOG.search(line))), None):
        path = next((str(path) for path in Path(place.data).rglob(damaged)), damaged)
        message = f"the append-only log {path} is damaged"
        hint = (
            f"make a copy of {place.data}, then cut the file off at the damage: {_repair_command(binary, path)}; "
            "or start over with another --state-dir"
        )
    elif shutil.disk_usage(place.state_dir).free == 0:
        message = f"{message}; the disk that holds {place.state_dir} is full"
        hint = "free some space, or choose another directory with --state-dir or STATEM_STATE_DIR"
    else:
        hint = f"look at {place.log}, or choose another directory with --state-dir or STATEM_STATE_DIR"
    return Unavailable(f"{message}; the log {place.log} ends with\n{said}" if said else message, hint=hint)


def _log_lines(place: Place, start: int) -> list[str]:
    try:
        with open(place.log, "rb") as log:
            log.seek(start)
            return log.read(_LOG_BYTES_QUOTED).decode(errors="replace").splitlines()
    except OSError:
        return []


def _repair_command(binary: ServerBinary, path: str) -> str:
    """Return a shell command for the server's own repair tool, which is the same program under another name."""
    tool = f"{binary.product}-check-aof"
    beside = binary.path.with_name(tool)
    if installed := (str(beside) if beside.exists() else shutil.which(tool)):
        return shlex.join([installed, "--fix", path])
    run_as = f"exec -a {tool} {shlex.quote(str(binary.path))} --fix {shlex.quote(path)}"
    return shlex.join(["bash", "-c", run_as])
