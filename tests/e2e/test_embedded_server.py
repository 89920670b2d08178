"""The embedded server as command lines use it: real processes, real sockets, real crashes."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from statem_dist.embedded import server
from statem_dist.embedded.keeper import ASIDE_SUFFIX
from statem_dist.embedded.locks import FileLock
from statem_dist.embedded.place import Place
from statem_dist.embedded.server import Endpoint, ensure, status, stop
from statem_dist.errors import Unavailable
from statem_dist.resp import Connection, ReplyError

PATIENCE_SECONDS = 30.0
"""How long a condition may take to come true; only a failure takes that long."""


def _eventually(condition: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, f"not within {PATIENCE_SECONDS:.0f} s: {what}"
        time.sleep(0.01)


def _gone(pid: int) -> bool:
    """Whether a process has ended; one that its parent has not collected yet counts as ended."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    found = subprocess.run(["ps", "-o", "stat=", "-p", str(pid)], capture_output=True, text=True, check=False)
    return found.stdout.strip().startswith("Z") or not found.stdout.strip()


def _parent(pid: int) -> int:
    return int(subprocess.run(["ps", "-o", "ppid=", "-p", str(pid)], capture_output=True, check=True).stdout)


def _pids(state_dir: Path) -> tuple[int, int]:
    """Return the process ids of server and keeper."""
    pid = status(state_dir).pid
    assert pid is not None
    return pid, _parent(pid)


def _call(endpoint: Endpoint, *words: str) -> object:
    with Connection(str(endpoint.socket)) as connection:
        return connection.call(*words)


def _remove(state_dir: Path) -> None:
    short_dir = Place.of(state_dir).short_dir
    stop(state_dir)
    shutil.rmtree(state_dir, ignore_errors=True)
    if short_dir is not None:
        shutil.rmtree(short_dir, ignore_errors=True)


@pytest.fixture
def state_dir() -> Iterator[Path]:
    """A state directory that does not exist yet, with a short path; its server is stopped afterwards."""
    with tempfile.TemporaryDirectory(prefix="statem-test-") as directory:
        path = Path(directory).resolve() / "state"
        yield path
        _remove(path)


def test_start_reuse_stop(state_dir: Path) -> None:
    """The first call starts a server, the second finds it, stopping leaves no process, socket or pid file."""
    assert not status(state_dir).running
    first = ensure(state_dir)
    pids = _pids(state_dir)
    second = ensure(state_dir)
    assert (first.started, second.started) == (True, False)
    assert first.socket == second.socket
    assert _pids(state_dir) == pids
    assert stop(state_dir)
    assert all(_gone(pid) for pid in pids)
    assert sorted(path.name for path in state_dir.iterdir()) == ["data", "redis.log", "start.lock"]
    assert not status(state_dir).running
    assert not stop(state_dir)


def test_data_outlives_a_stop(state_dir: Path) -> None:
    """What was written is there after stop and start."""
    _call(ensure(state_dir), "SET", "key", "value")
    stop(state_dir)
    assert _call(ensure(state_dir), "GET", "key") == b"value"


def test_only_the_owner_can_reach_it(state_dir: Path) -> None:
    """The directory is 0700, the socket and all files are 0600, and no TCP port is open."""
    endpoint = ensure(state_dir)
    modes = {path.name: path.stat().st_mode & 0o777 for path in (state_dir, *state_dir.iterdir())}
    assert modes.pop("state") == modes.pop("data") == 0o700
    assert set(modes.values()) == {0o600}
    assert endpoint.socket.is_socket()
    with Connection(str(endpoint.socket)) as connection:
        assert connection.info("server")["tcp_port"] == "0"
    log = (state_dir / "redis.log").read_text()
    assert "Ready to accept connections tcp" not in log


def test_nothing_is_lost_or_evicted_by_configuration(state_dir: Path) -> None:
    """The append-only log is on and synced every second, nothing is evicted, and the status says so."""
    endpoint = ensure(state_dir)
    wanted = {"appendonly": b"yes", "appendfsync": b"everysec", "maxmemory-policy": b"noeviction", "save": b""}
    for name, value in wanted.items():
        assert _call(endpoint, "CONFIG", "GET", name) == [name.encode(), value]
    now = status(state_dir)
    assert (now.running, now.aof_enabled, now.aof_writable) == (True, True, True)
    assert now.eviction_policy == "noeviction"
    assert now.product in ("redis", "valkey")
    assert now.memory_bytes > 0
    assert str(now.pid) == (state_dir / "redis.pid").read_text().strip()


_ENSURE = """
import sys
from pathlib import Path
from statem_dist.embedded.server import ensure, status
print(ensure(Path(sys.argv[1])).started, status(Path(sys.argv[1])).pid)
"""


def _ensure_in_process(state_dir: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", _ENSURE, str(state_dir)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def test_eight_command_lines_make_one_server(state_dir: Path) -> None:
    """Of eight processes that start at once one starts the server and all see the same one."""
    processes = [_ensure_in_process(state_dir) for _ in range(8)]
    said = [process.communicate(timeout=PATIENCE_SECONDS)[0].split() for process in processes]
    assert sorted(started for started, _ in said) == ["False"] * 7 + ["True"]
    assert {pid for _, pid in said} == {str(status(state_dir).pid)}


def test_the_callers_pipes_are_not_held(state_dir: Path) -> None:
    """A harness that waits for the end of the caller's output does not wait for the server."""
    kept, given = os.pipe()
    try:
        finished = subprocess.run(
            [sys.executable, "-c", _ENSURE, str(state_dir)],
            capture_output=True,
            timeout=PATIENCE_SECONDS,
            pass_fds=(given,),
            check=True,
        )
        assert finished.stdout.startswith(b"True")
        os.close(given)
        assert os.read(kept, 1) == b"", "the descriptor that the caller inherited is closed everywhere"
    finally:
        os.close(kept)
    pid, keeper = _pids(state_dir)
    assert os.getsid(pid) == os.getsid(keeper) == keeper != os.getsid(0)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_callers_secrets_are_not_kept(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of server and keeper, which outlive the caller, holds nothing but the ordinary."""
    monkeypatch.setenv("STATEM_TOKEN", "secret-of-the-caller")
    ensure(state_dir)
    for pid in _pids(state_dir):
        assert b"secret-of-the-caller" not in Path(f"/proc/{pid}/environ").read_bytes()


@pytest.mark.parametrize("with_keeper", [False, True])
def test_a_killed_server_is_replaced(state_dir: Path, with_keeper: bool) -> None:
    """After kill -9, of the keeper too, the next call starts a server that has all data."""
    endpoint = ensure(state_dir)
    _call(endpoint, "SET", "key", "value")
    pid, keeper = _pids(state_dir)
    for victim in (keeper, pid) if with_keeper else (pid,):
        os.kill(victim, signal.SIGKILL)
    _eventually(lambda: _gone(pid), "the server has ended")
    assert endpoint.socket.exists(), "a killed server leaves its socket behind"
    again = ensure(state_dir)
    assert again.started
    assert _call(again, "GET", "key") == b"value"
    assert status(state_dir).pid != pid
    _eventually(lambda: _gone(keeper), "the keeper of the dead server has ended")


def test_a_lost_keeper_costs_only_the_idle_stop(state_dir: Path) -> None:
    """When the keeper is killed the server goes on, is found, and can be stopped."""
    ensure(state_dir)
    pid, keeper = _pids(state_dir)
    os.kill(keeper, signal.SIGKILL)
    _eventually(lambda: _gone(keeper), "the keeper has ended")
    assert not ensure(state_dir).started
    assert status(state_dir).pid == pid
    assert stop(state_dir)
    _eventually(lambda: _gone(pid), "the server has ended")


def test_stale_files_are_replaced(state_dir: Path) -> None:
    """A socket nobody listens on and the pid of a process that is not ours do not prevent a start."""
    state_dir.mkdir()
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(str(state_dir / "redis.sock"))
    (state_dir / "redis.pid").write_text(f"{os.getpid()}\n")
    assert ensure(state_dir).started


def test_a_cleared_directory_gets_a_new_server(state_dir: Path) -> None:
    """Removing the state directory ends its old server, which does not take the new one's socket along."""
    ensure(state_dir)
    old = _pids(state_dir)
    shutil.rmtree(state_dir)
    endpoint = ensure(state_dir)
    assert endpoint.started
    _eventually(lambda: all(_gone(pid) for pid in old), "the old server and its keeper have ended")
    assert not ensure(state_dir).started
    assert status(state_dir).pid not in old


def test_a_removed_socket_does_not_lead_to_two_servers(state_dir: Path) -> None:
    """When only the socket is removed, its server ends before another opens the same data."""
    endpoint = ensure(state_dir)
    _call(endpoint, "SET", "key", "value")
    pid, _ = _pids(state_dir)
    endpoint.socket.unlink()
    again = ensure(state_dir)
    assert again.started
    assert _gone(pid)
    assert _call(again, "GET", "key") == b"value"


def test_data_in_use_elsewhere_is_refused(state_dir: Path) -> None:
    """Data that another process has open, perhaps on another host, is not opened twice; the error says by whom."""
    place = Place.of(state_dir)
    place.create()
    with FileLock(place.owner_lock) as owner:
        owner.acquire(timeout_seconds=0)
        owner.write_note("process 123 on elsewhere")
        with pytest.raises(Unavailable, match="in use by process 123 on elsewhere"):
            ensure(state_dir)
        with pytest.raises(Unavailable, match="process 123 on elsewhere"):
            stop(state_dir, timeout_seconds=0.1)
    assert ensure(state_dir).started


def test_an_idle_server_stops_itself(state_dir: Path) -> None:
    """Without clients the server ends after its idle time, its files in order and its data kept."""
    endpoint = ensure(state_dir, idle_stop_seconds=0.3)
    _call(endpoint, "SET", "key", "value")
    owner = Path(Place.of(state_dir).owner_lock).read_text()
    pid = int(owner.split()[1])
    _eventually(lambda: _gone(pid), "the idle server has ended")
    with FileLock(Place.of(state_dir).owner_lock) as lock:
        assert lock.acquire(timeout_seconds=PATIENCE_SECONDS), "the keeper has ended too"
    assert sorted(path.name for path in state_dir.iterdir()) == ["data", "redis.log", "start.lock"]
    again = ensure(state_dir)
    assert again.started
    assert _call(again, "GET", "key") == b"value"


def _wait_for_looks(connection: Connection, looks: int) -> None:
    """Wait until the keeper has looked that many times more; each look of its is two INFO calls."""

    def calls() -> int:
        line = connection.info("commandstats").get("cmdstat_info", "calls=0,")
        return int(line.split(",")[0].removeprefix("calls="))

    ours, before = 1, calls()
    while calls() - ours - before < 2 * looks:
        ours += 1
        time.sleep(0.01)


def test_a_connected_client_keeps_the_server(state_dir: Path) -> None:
    """A client that is connected but silent is use: the server stays far beyond its idle time."""
    endpoint = ensure(state_dir, idle_stop_seconds=0.2)
    with Connection(str(endpoint.socket)) as connection:
        _wait_for_looks(connection, looks=20)  # At least 50 ms apart: a second, five times the idle time.
    assert status(state_dir).running


def test_no_idle_stop_while_somebody_starts_or_stops(state_dir: Path) -> None:
    """The keeper defers to whoever holds the start lock, and stops the server once it is free."""
    place = Place.of(state_dir)
    place.create()
    endpoint = ensure(state_dir, idle_stop_seconds=0.1)
    with FileLock(place.start_lock) as lock:
        if not lock.acquire(timeout_seconds=PATIENCE_SECONDS) or not endpoint.socket.exists():
            pytest.skip("this machine stalled for longer than the idle time")
        with Connection(str(endpoint.socket)) as connection:
            _wait_for_looks(connection, looks=3)
            pid = int(connection.info("server")["process_id"])
        assert not ensure(state_dir).started
    _eventually(lambda: _gone(pid), "the idle server has ended")


def test_a_socket_set_aside_by_a_killed_keeper_is_put_back(state_dir: Path) -> None:
    """A keeper that dies during its last look leaves a running server without its name; it is found again."""
    endpoint = ensure(state_dir)
    pid, keeper = _pids(state_dir)
    os.kill(keeper, signal.SIGKILL)
    _eventually(lambda: _gone(keeper), "the keeper has ended")
    endpoint.socket.rename(f"{endpoint.socket}{ASIDE_SUFFIX}")
    assert not ensure(state_dir).started
    assert status(state_dir).pid == pid


def test_a_long_path(state_dir: Path) -> None:
    """A directory whose path is too long for a socket works the same, for every process."""
    deep = state_dir / ("d" * 120)
    try:
        endpoint = ensure(deep)
        assert len(os.fsencode(endpoint.socket)) <= 100
        said = _ensure_in_process(deep).communicate(timeout=PATIENCE_SECONDS)[0]
        assert said.split() == ["False", str(status(deep).pid)]
        assert stop(deep)
        assert not endpoint.socket.exists()
    finally:
        _remove(deep)


@pytest.mark.parametrize("below", ["", "/state", "/deep/state"])
def test_an_unusable_directory_is_named(tmp_path: Path, below: str) -> None:
    """A state directory that is a file, or below one, is an error that names it and the fix."""
    (tmp_path / "file").write_text("")
    path = Path(f"{tmp_path}/file{below}")
    with pytest.raises(Unavailable, match="cannot be used") as caught:
        ensure(path)
    assert str(path) in caught.value.message
    assert "--state-dir" in caught.value.hint
    assert not status(path).running
    assert not stop(path)


@pytest.mark.skipif(sys.platform != "linux", reason="uses /proc")
def test_a_file_system_that_takes_no_directory_is_named() -> None:
    """Where nothing can be created, whoever asks, the error says so."""
    with pytest.raises(Unavailable, match=r"/proc/nothing/\.statem cannot be used"):
        ensure(Path("/proc/nothing/.statem"))


def _append_only_file(state_dir: Path) -> Path:
    return max((state_dir / "data").rglob("*.aof"), key=lambda path: path.stat().st_size)


def _fill_and_stop(state_dir: Path) -> None:
    with Connection(str(ensure(state_dir).socket)) as connection:
        for number in range(100):
            connection.call("SET", f"key-{number}", "value" * 10)
    stop(state_dir)


def test_a_truncated_log_loads(state_dir: Path) -> None:
    """A log that ends in the middle of a write loses that write and nothing else."""
    _fill_and_stop(state_dir)
    path = _append_only_file(state_dir)
    os.truncate(path, path.stat().st_size - 5)
    assert _call(ensure(state_dir), "DBSIZE") == 99


def test_a_damaged_log_is_explained(state_dir: Path) -> None:
    """Damage in the middle is not skipped: the error names the file, quotes the server, and gives the repair."""
    _fill_and_stop(state_dir)
    path = _append_only_file(state_dir)
    data = path.read_bytes()
    middle = data.index(b"*3\r\n", len(data) // 2)
    path.write_bytes(data[:middle] + b"damage" + data[middle:])
    with pytest.raises(Unavailable, match="is damaged") as caught:
        ensure(state_dir)
    assert str(path) in caught.value.message
    assert "Bad file format" in caught.value.message
    repair = caught.value.hint.split("at the damage: ")[1].split("; or start over")[0]
    subprocess.run(repair, shell=True, input=b"y\n", capture_output=True, check=True)
    kept = _call(ensure(state_dir), "DBSIZE")
    assert isinstance(kept, int)
    assert 0 < kept < 100


def test_a_hanging_server_is_named(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that accepts but does not answer is an error with its process id, not an endless wait."""
    monkeypatch.setattr(server, "_ANSWER_TIMEOUT_SECONDS", 0.3)
    ensure(state_dir)
    pid, _ = _pids(state_dir)
    os.kill(pid, signal.SIGSTOP)
    try:
        for ask in (ensure, status):
            with pytest.raises(Unavailable, match=f"process {pid}"):
                ask(state_dir)
        with pytest.raises(Unavailable, match=f"process {pid}"):
            stop(state_dir, timeout_seconds=0.3)
    finally:
        os.kill(pid, signal.SIGCONT)


def test_a_server_that_dies_at_once_is_quoted(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the server says before it gives up is in the error."""
    state_dir.mkdir()
    program = state_dir / "server"
    program.write_text(
        "#!/bin/sh\n[ $1 = --version ] && exec echo 'Redis server v=7.0.0'\necho no luck today; exit 7\n"
    )
    program.chmod(0o755)
    monkeypatch.setenv("STATEM_REDIS_SERVER", str(program))
    with pytest.raises(Unavailable, match=r"(?s)exited with status 7.*no luck today"):
        ensure(state_dir)


def test_a_server_that_loads_for_too_long_is_left_to_it(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """When the wait runs out the server stays, and a second start does not happen beside it."""
    state_dir.mkdir()
    program = state_dir / "server"
    program.write_text("#!/bin/sh\n[ $1 = --version ] && exec echo 'Redis server v=7.0.0'\nexec sleep 600\n")
    program.chmod(0o755)
    monkeypatch.setenv("STATEM_REDIS_SERVER", str(program))
    with pytest.raises(Unavailable, match="not ready yet"):
        ensure(state_dir, start_timeout_seconds=0.5)
    place = Place.of(state_dir)
    with FileLock(place.owner_lock) as owner:
        assert not owner.try_acquire()
        _eventually(lambda: bool(owner.read_note()), "the keeper has noted the server")
        os.kill(int(owner.read_note().split()[1]), signal.SIGKILL)
        assert owner.acquire(timeout_seconds=PATIENCE_SECONDS), "the keeper has ended too"


def test_the_urls_lead_there(state_dir: Path) -> None:
    """Both URLs work as they are, also with blanks and per cent signs in the path."""
    import kombu
    import redis

    odd = state_dir / "50% done, really #1?"
    try:
        endpoint = ensure(odd)
        with redis.Redis.from_url(endpoint.redis_url) as client:
            assert client.ping()
        with kombu.Connection(endpoint.broker_url) as connection:
            connection.ensure_connection(max_retries=1, timeout=5)
    finally:
        _remove(odd)


def test_finding_a_running_server_loads_next_to_nothing(state_dir: Path) -> None:
    """The way that every command takes imports no client library and nothing that starts processes."""
    ensure(state_dir)
    program = _ENSURE + "print(*sorted({'redis', 'celery', 'pydantic', 'subprocess'} & set(sys.modules)))"
    said = subprocess.run(
        [sys.executable, "-c", program, str(state_dir)], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    assert said[0].startswith("False")
    assert said[1] == ""


def test_the_small_client_and_the_server_agree(state_dir: Path) -> None:
    """Nested replies, nulls, scripts and errors of a real server are decoded as they should be."""
    with Connection(str(ensure(state_dir).socket)) as connection:
        assert connection.call("SET", "blob", bytes(range(256))) == b"OK"
        assert connection.call("GET", "blob") == bytes(range(256))
        assert connection.call("GET", "none") is None
        assert connection.call("EVAL", "return {1, {'a', false}, {}}", 0) == [1, [b"a", None], []]
        with pytest.raises(ReplyError) as caught:
            connection.call("EVALSHA", "f" * 40, 0)
        assert caught.value.code == "NOSCRIPT"
        assert connection.call("PING") == b"PONG"
