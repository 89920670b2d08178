"""The supervisor with real processes: limits, floods, survivors, and every way of dying."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from statem_dist.checks.process import Finished, Supervisor
from statem_dist.checks.supervisor import HAS_PROC, ProcessHandle, contents, environment_of, signal_if

pytestmark = pytest.mark.e2e

ENVIRONMENT = {"PATH": os.environ["PATH"]}
PATIENCE_SECONDS = 30.0

NAP = f"617.{os.getpid()}"
"""How long the processes of these tests sleep: far too long, and unmistakable in a list of processes."""

needs_proc = pytest.mark.skipif(not HAS_PROC, reason="descendants can be found in /proc only")


@pytest.fixture
def supervisor() -> Iterator[Supervisor]:
    """A supervisor with a short grace period."""
    with Supervisor(head_bytes=1000, tail_bytes=1000, kill_grace_seconds=0.3) as supervisor:
        yield supervisor


def run(supervisor: Supervisor, command: str, timeout: float | None = None, key: str = "k") -> Finished:
    """Run a command in the root folder."""
    return supervisor.run(key, command, cwd="/", env=ENVIRONMENT, timeout=timeout)


def pid_of(supervisor: Supervisor) -> int:
    """Return the pid of the supervisor process, having made sure that there is one."""
    return int(run(supervisor, "echo $PPID").stdout.head)


def alive(pid: int) -> bool:
    """Return whether a process exists and is no zombie."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            return file.read().rpartition(b")")[2].split()[0] != b"Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def marked(word: str) -> list[int]:
    """Return the pids of living processes with this word in their command line."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/cmdline", "rb") as file:
                if word.encode() in file.read() and alive(int(name)):
                    found.append(int(name))
        except (FileNotFoundError, ProcessLookupError):
            continue
    return found


def zombies_of(*parents: int) -> set[int]:
    """Return the pids of the children of these processes that have ended and were not collected."""
    found = set()
    for name in filter(str.isdigit, os.listdir("/proc")):
        state, parent = contents(f"/proc/{name}/stat").rpartition(b")")[2].split()[:2] or (b"", b"0")
        if state == b"Z" and int(parent) in parents:
            found.add(int(name))
    return found


def eventually(condition: Callable[[], object]) -> None:
    """Wait until a condition holds; fail if it takes absurdly long."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, "it never came true"
        time.sleep(0.01)


def test_a_timeout_ends_what_ignores_sigterm(supervisor: Supervisor) -> None:
    """A whole tree that ignores SIGTERM is killed after the grace period, and its output is kept."""
    finished = run(supervisor, "trap '' TERM; echo $$; sleep 600 & sleep 600; sleep 600", timeout=0.2)
    assert finished.timed_out
    assert finished.signal == signal.SIGKILL
    assert 450 <= finished.duration_ms < 10_000
    assert not alive(int(finished.stdout.head))


def test_sigterm_comes_first_and_once() -> None:
    """A program may clean up on SIGTERM, and is not told twice."""
    count = "[ $n -eq 0 ] || n=$((n+1))"
    command = f"n=0; trap 'echo told; n=1' TERM; echo up; while [ $n -lt 20 ]; do sleep 0.01; {count}; done"
    with Supervisor(kill_grace_seconds=PATIENCE_SECONDS) as patient:
        finished = run(patient, command, timeout=0.3)
    assert finished.timed_out
    assert finished.exit_code == 0
    assert finished.stdout.head == b"up\ntold\n"


@pytest.mark.slow
@needs_proc
def test_a_flood_of_output_is_bounded(supervisor: Supervisor) -> None:
    """A gigabyte is drained and counted; both ends are kept, and the supervisor stays small."""
    finished = run(supervisor, "echo begin; head -c 1000000000 /dev/zero; echo end")
    assert finished.exit_code == 0
    assert finished.stdout.written == 1_000_000_000 + len("begin\nend\n")
    assert finished.stdout.dropped == finished.stdout.written - 2000
    assert finished.stdout.head.startswith(b"begin\n")
    assert finished.stdout.tail.endswith(b"end\n")
    with open(f"/proc/{pid_of(supervisor)}/status") as file:
        peak_kilobytes = next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))
    assert peak_kilobytes < 40_000


def test_a_flood_does_not_outrun_the_timeout(supervisor: Supervisor) -> None:
    """A command that never stops writing is ended on time."""
    finished = run(supervisor, "exec yes", timeout=0.3)
    assert finished.timed_out
    assert finished.stdout.written > 0
    assert finished.duration_ms < 10_000


@needs_proc
@pytest.mark.parametrize(
    "command",
    [
        "sleep NAP & echo hi",
        "sleep NAP >/dev/null 2>&1 & echo hi",
        "setsid sleep NAP & echo hi",
        "setsid sh -c 'setsid sleep NAP & exit' & echo hi; sleep 0.1",
        "setsid env -i sh -c 'sleep NAP & sleep NAP' & echo hi; sleep 0.1",
        "nohup sleep NAP >/dev/null 2>&1 & echo hi",
        "(trap '' TERM; echo hi; exec sleep NAP) & sleep 0.1",
    ],
)
def test_daemons_do_not_outlive_their_command(supervisor: Supervisor, command: str) -> None:
    """A command ends with its shell, and what it leaves behind is ended and counted."""
    started = time.monotonic()
    finished = run(supervisor, command.replace("NAP", NAP))
    assert time.monotonic() - started < 60
    assert (finished.exit_code, finished.stdout.head) == (0, b"hi\n")
    assert finished.survivors >= 1
    assert marked(f"sleep\x00{NAP}") == []


def test_what_finishes_by_itself_is_waited_for(supervisor: Supervisor) -> None:
    """A helper that is about to finish may do so; its output counts and it is no survivor."""
    finished = run(supervisor, "(sleep 0.01; echo late) &")
    assert finished.stdout.head == b"late\n"
    assert finished.survivors == 0


@needs_proc
def test_a_daemon_of_one_command_leaves_the_others_alone(supervisor: Supervisor, tmp_path: Path) -> None:
    """Ending the survivors of one command touches neither another command nor that one's own background processes."""
    os.mkfifo(tmp_path / "ready")
    with ThreadPoolExecutor() as pool:
        # The daemon of the long command is re-parented to the supervisor while its shell goes on.
        daemon = f"(setsid sh -c 'sleep {NAP}; echo killed' &)"
        long = f"{daemon}; echo > {tmp_path}/ready; cat {tmp_path}/ready; echo done"
        waiting = pool.submit(run, supervisor, long, None, "long")
        (tmp_path / "ready").read_text()
        eventually(lambda: len(marked(f"sleep\x00{NAP}")) == 1)
        assert run(supervisor, f"sleep {NAP} & setsid sleep {NAP} & echo hi").survivors == 2
        eventually(lambda: len(marked(f"sleep\x00{NAP}")) == 1)
        (tmp_path / "ready").write_text("")
        finished = waiting.result()
    assert (finished.exit_code, finished.stdout.head) == (0, b"done\n")
    assert finished.survivors == 2
    assert marked(f"sleep\x00{NAP}") == []


@needs_proc
@pytest.mark.parametrize("number", ["x", "", "-1", "9" * 5000])
def test_a_marker_that_was_tampered_with_harms_no_other_command(supervisor: Supervisor, number: str) -> None:
    """A daemon that claims to belong to a command which there cannot be is ended, and its neighbours go on."""
    tamper = f'STATEM_SUPERVISED="${{STATEM_SUPERVISED%.*}}.{number}" setsid sleep {NAP} & sleep 0.1'
    with ThreadPoolExecutor() as pool:
        neighbour = pool.submit(run, supervisor, "read line; sleep 0.6; echo fine")
        assert run(supervisor, tamper).exit_code == 0
        assert neighbour.result().stdout.head == b"fine\n"
    eventually(lambda: marked(f"sleep\x00{NAP}") == [])


@needs_proc
def test_cancelling_ends_every_descendant(supervisor: Supervisor, tmp_path: Path) -> None:
    """A cancelled command takes its detached descendants with it."""
    os.mkfifo(tmp_path / "ready")
    with ThreadPoolExecutor() as pool:
        command = f"setsid setsid sleep {NAP} & sleep 0.1; echo > {tmp_path}/ready; sleep {NAP}"
        waiting = pool.submit(run, supervisor, command)
        (tmp_path / "ready").read_text()
        eventually(lambda: len(marked(f"sleep\x00{NAP}")) == 2)
        assert supervisor.cancel("k", "enough")
        assert waiting.result().cancelled == "enough"
    assert marked(f"sleep\x00{NAP}") == []


@needs_proc
def test_cancelling_right_after_the_start(supervisor: Supervisor) -> None:
    """Whenever a cancellation arrives, the command ends, this process lives, and nothing is left."""
    with ThreadPoolExecutor(1) as pool:
        for number in range(500):
            waiting = pool.submit(run, supervisor, f"exec sleep {NAP}", None, str(number))
            while not supervisor.cancel(str(number), "at once"):
                assert not waiting.done()
            assert waiting.result().cancelled == "at once"
    assert marked(f"sleep\x00{NAP}") == []


def test_cancelling_all_spares_nobody_and_harms_no_later_command(supervisor: Supervisor) -> None:
    """Every command under way is ended, and the supervisor goes on working."""
    with ThreadPoolExecutor(3) as pool:
        waiting = [pool.submit(run, supervisor, "exec sleep 60", None, str(number)) for number in range(3)]
        eventually(lambda: supervisor._link is not None and len(supervisor._link.numbers_of(None)) == 3)
        assert supervisor.cancel_all("stop")
        assert [each.result().cancelled for each in waiting] == ["stop"] * 3
    assert run(supervisor, "true").exit_code == 0


@needs_proc
def test_many_quick_commands_leave_nothing(supervisor: Supervisor) -> None:
    """Two hundred commands from eight threads: right results, no zombie anywhere, no descriptor left."""
    pid = pid_of(supervisor)
    zombies = zombies_of(os.getpid(), pid, 1)
    ours, its = len(os.listdir("/proc/self/fd")), len(os.listdir(f"/proc/{pid}/fd"))

    def one(number: int) -> bytes:
        finished = run(supervisor, f"echo {number}; bash -c 'echo x > >(cat >/dev/null)'", key=str(number))
        return finished.stdout.head

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(one, range(200))) == [b"%d\n" % number for number in range(200)]
    assert len(os.listdir(f"/proc/{pid}/fd")) == its
    # Fewer, where what an earlier test has left was collected meanwhile.
    assert len(os.listdir("/proc/self/fd")) <= ours
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        assert file.read() == ""
    assert zombies_of(os.getpid(), pid, 1) <= zombies


def test_commands_start_with_default_signals_and_their_own_session(supervisor: Supervisor) -> None:
    """A command ignores no signal, blocks none, has three descriptors, and leads its session."""
    script = (
        "import os, signal; print([s for s in signal.valid_signals() if signal.getsignal(s) == signal.SIG_IGN],"
        " signal.pthread_sigmask(signal.SIG_BLOCK, []), os.getsid(0) == os.getppid(), os.listdir('/dev/fd'))"
    )
    finished = run(supervisor, f'"{sys.executable}" -I -S -c "{script}"; :')
    # Python itself ignores SIGPIPE and SIGXFSZ; descriptor 3 is the listing.
    assert finished.stdout.head.decode() == (
        f"[{signal.SIGPIPE!r}, {signal.SIGXFSZ!r}] set() True ['0', '1', '2', '3']\n"
    )


def test_terminal_signals_do_not_reach_commands_past_the_worker(supervisor: Supervisor) -> None:
    """The supervisor outlives SIGINT and SIGTERM, and its command too: ending is the worker's decision."""
    pid = pid_of(supervisor)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        os.kill(pid, number)
    assert pid_of(supervisor) == pid
    assert os.getsid(pid) == pid


@needs_proc
def test_a_killed_supervisor_is_reported_and_replaced(supervisor: Supervisor, tmp_path: Path) -> None:
    """Whoever waited is told, nothing of the lost supervisor's commands runs on, and the next command works."""
    os.mkfifo(tmp_path / "ready")
    pid = pid_of(supervisor)
    with ThreadPoolExecutor() as pool:
        command = f"setsid sleep {NAP} & echo > {tmp_path}/ready; sleep {NAP}"
        waiting = pool.submit(run, supervisor, command)
        (tmp_path / "ready").read_text()
        os.kill(pid, signal.SIGKILL)
        finished = waiting.result()
    assert finished.failure == "supervisor_lost"
    assert "status -9" in finished.text
    assert marked(f"sleep\x00{NAP}") == []
    assert pid_of(supervisor) != pid


@needs_proc
def test_whoever_was_lost_with_the_culprit_is_run_again_alone(supervisor: Supervisor, tmp_path: Path) -> None:
    """Of two commands one kills their supervisor, whenever it is run: the other one comes to its end all the same, and
    the culprit is lost for good the second time, when nobody else can have been it."""
    os.mkfifo(tmp_path / "begun")
    innocent = f"echo >> {tmp_path}/i; [ $(wc -l < {tmp_path}/i) -gt 1 ] || exec sleep {NAP} > {tmp_path}/begun"
    culprit = f"echo >> {tmp_path}/c; read x < {tmp_path}/begun & sleep 0.3; kill -9 $PPID; sleep {NAP}"

    def begin(key: str, command: str) -> Finished:
        return supervisor.run(key, command, cwd="/", env=ENVIRONMENT, again=True)

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.submit(begin, "i", innocent), pool.submit(begin, "c", culprit)
        assert first.result().exit_code == 0
        lost = second.result()
    assert (lost.failure, lost.company) == ("supervisor_lost", 0)
    assert [(tmp_path / name).read_text() for name in ("i", "c")] == ["\n\n", "\n\n"]
    assert run(supervisor, "echo fine").stdout.head == b"fine\n"
    assert marked(f"sleep\x00{NAP}") == []
    assert supervisor._solitary == set()


@needs_proc
def test_what_must_not_run_twice_is_lost_with_its_company(supervisor: Supervisor) -> None:
    """Without leave nothing is run again, and the result says how many others were lost with it."""
    with ThreadPoolExecutor(2) as pool:
        waiting = [pool.submit(run, supervisor, f"exec sleep {NAP}", None, str(number)) for number in range(2)]
        eventually(lambda: len(marked(f"sleep\x00{NAP}")) == 2)
        os.kill(pid_of(supervisor), signal.SIGKILL)
        lost = [each.result() for each in waiting]
    assert [(each.failure, each.company) for each in lost] == [("supervisor_lost", 1)] * 2


@needs_proc
@pytest.mark.parametrize("whom", ["i", None], ids=["it", "all"])
def test_a_command_that_is_run_again_can_be_cancelled(supervisor: Supervisor, tmp_path: Path, whom: str | None) -> None:
    """A cancellation reaches it under its own supervisor, too."""
    with ThreadPoolExecutor(2) as pool:
        text = f"echo >> {tmp_path}/i; exec sleep {NAP}"
        waiting = pool.submit(supervisor.run, "i", text, cwd="/", env=ENVIRONMENT, again=True)
        other = pool.submit(run, supervisor, f"exec sleep {NAP}", None, "other")
        eventually(lambda: len(marked(f"sleep\x00{NAP}")) == 2)
        os.kill(pid_of(supervisor), signal.SIGKILL)
        assert other.result().failure == "supervisor_lost"
        eventually(lambda: (tmp_path / "i").read_text() == "\n\n")
        assert supervisor.cancel_all("enough") if whom is None else supervisor.cancel(whom, "enough")
        assert waiting.result().cancelled == "enough"
    assert marked(f"sleep\x00{NAP}") == []


@pytest.mark.slow
@needs_proc
def test_an_end_that_races_with_its_timeout_is_one_of_both(supervisor: Supervisor) -> None:
    """Three hundred commands that take about as long as they may: each has ended by itself, with what it wrote, or was
    ended, and nothing of it is left."""

    def one(number: int) -> bool:
        command = f"setsid sleep {NAP} & sleep 0.05; echo through"
        finished = run(supervisor, command, timeout=0.04 + (number % 30) / 400, key=str(number))
        if finished.timed_out:
            # It may have had the time to end all the same, or to say so, before the signal came.
            assert (finished.signal, finished.exit_code) in ((signal.SIGTERM, None), (None, 0))
        else:
            assert (finished.exit_code, finished.signal) == (0, None)
            assert finished.stdout.head == b"through\n"
        assert (finished.failure, finished.cancelled) == (None, None)
        return finished.timed_out

    with ThreadPoolExecutor(8) as pool:
        ends = list(pool.map(one, range(300)))
    assert set(ends) == {True, False}
    assert marked(f"sleep\x00{NAP}") == []


@pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="this system has no pidfds")
def test_a_late_signal_reaches_nobody_else() -> None:
    """A process that has ended and was collected gets none, and neither does one that is not meant any more; one that
    is meant does. No test can have a pid used again at will: that it is not looked at is what the second one shows."""
    gone = subprocess.Popen(["sleep", NAP])
    handle = ProcessHandle(gone.pid)
    assert handle.descriptor is not None
    gone.kill()
    gone.wait()
    handle.pid = os.getpid()
    handle.send(signal.SIGKILL)
    handle.close()
    other = subprocess.Popen(["sleep", NAP])
    asked: list[int] = []

    def is_meant(pid: int) -> bool:
        asked.append(pid)
        return len(asked) > 1

    signal_if(other.pid, signal.SIGKILL, is_meant)
    assert other.poll() is None
    signal_if(other.pid, signal.SIGKILL, is_meant)
    assert other.wait() == -signal.SIGKILL
    assert asked == [other.pid] * 2


@needs_proc
@pytest.mark.parametrize("cancelled", [False, True], ids=["timeout", "cancellation"])
def test_a_supervisor_that_hangs_holds_nobody_up(tmp_path: Path, cancelled: bool) -> None:
    """One that looks at no timer and answers nobody is killed with all that it started, and replaced: no command is
    without an end because of it."""
    os.mkfifo(tmp_path / "ready")
    with Supervisor(kill_grace_seconds=0.1, silence_seconds=1.0) as supervisor, ThreadPoolExecutor() as pool:
        pid = pid_of(supervisor)
        command = f"setsid sleep {NAP} & echo > {tmp_path}/ready; sleep {NAP}"
        waiting = pool.submit(run, supervisor, command, None if cancelled else 3.0)
        (tmp_path / "ready").read_text()
        os.kill(pid, signal.SIGSTOP)
        if cancelled:
            supervisor.cancel("k", "lease lost")
        finished = waiting.result(PATIENCE_SECONDS)
        assert finished.failure == "supervisor_lost"
        assert "had not answered" in finished.text
        assert marked(f"sleep\x00{NAP}") == []
        assert pid_of(supervisor) != pid


def test_a_supervisor_killed_while_idle_is_replaced(supervisor: Supervisor) -> None:
    """A loss that concerned no command is not noticed by the next one."""
    pid = pid_of(supervisor)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: not alive(pid))
    eventually(lambda: run(supervisor, "true").exit_code == 0)
    assert pid_of(supervisor) != pid


OWNER = """
import os, sys
from statem_dist.checks.process import Supervisor
supervisor = Supervisor(kill_grace_seconds=0.5)
supervisor.run("k", sys.argv[1], cwd="/", env=dict(os.environ))
"""


def start_owner(command: str, **environment: str) -> subprocess.Popen[str]:
    """Start another process that runs a command under its own supervisor."""
    root = str(Path(__file__).resolve().parents[2])
    env = {**os.environ, "PYTHONPATH": root, **environment}
    return subprocess.Popen([sys.executable, "-c", OWNER, command], env=env, stdout=subprocess.PIPE, text=True)


@needs_proc
@pytest.mark.chaos
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_commands_die_with_their_worker(tmp_path: Path, number: signal.Signals) -> None:
    """However a worker ends, its command, those that ignore SIGTERM and detached ones, and the supervisor end too."""
    os.mkfifo(tmp_path / "ready")
    command = f"trap '' TERM; setsid sleep {NAP} & echo $PPID > {tmp_path}/ready; sleep {NAP}; sleep {NAP}"
    with start_owner(command) as owner:
        supervisor_pid = int((tmp_path / "ready").read_text())
        started = time.monotonic()
        owner.send_signal(number)
        owner.wait(PATIENCE_SECONDS)
        eventually(lambda: not marked(f"sleep\x00{NAP}") and not alive(supervisor_pid))
        assert time.monotonic() - started < 10


def test_the_supervisor_holds_no_secret_and_no_output_of_its_worker(tmp_path: Path) -> None:
    """Its own environment has no secrets of ours, and a pipe of the worker closes with the worker."""
    os.mkfifo(tmp_path / "ready")
    command = f"(tr '\\0' '\\n' < /proc/$PPID/environ; echo) > {tmp_path}/ready; exec sleep 60"
    with start_owner(command, STATEM_REDIS_URL="redis://:hush@host", STATEM_TOKEN="hush", PLAIN="seen") as owner:
        environment = (tmp_path / "ready").read_text()
        owner.kill()
        assert owner.communicate(timeout=PATIENCE_SECONDS)[0] == ""
    if HAS_PROC:
        assert "PLAIN=seen" in environment
        assert "hush" not in environment


@needs_proc
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_has_its_own_supervisor(supervisor: Supervisor) -> None:
    """A child of a fork starts its own, leaves its parent's alone, and does not keep it alive."""
    pid = pid_of(supervisor)
    reader, writer = os.pipe()
    hold, release = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(release)
            os.write(writer, b"%d" % pid_of(supervisor))
            supervisor.close()
            os.read(hold, 1)
        finally:
            os._exit(0)
    try:
        assert int(os.read(reader, 20)) not in (pid, 0)
        assert pid_of(supervisor) == pid
        supervisor.close()
        assert not alive(pid)
    finally:
        for descriptor in (reader, writer, hold, release):
            os.close(descriptor)
        os.waitpid(child, 0)


def test_closing_ends_commands_and_later_ones_do_not_start() -> None:
    """``close`` waits for the end of everything; commands then and later are reported as a shutdown."""
    supervisor = Supervisor(kill_grace_seconds=0.3)
    pid = pid_of(supervisor)
    with ThreadPoolExecutor() as pool:
        waiting = pool.submit(run, supervisor, "trap '' TERM; sleep 60; sleep 60")
        eventually(lambda: supervisor._link is not None and supervisor._link.numbers_of("k"))
        supervisor.close()
        assert waiting.result().cancelled == "shutdown"
    assert not alive(pid)
    assert run(supervisor, "true").cancelled == "shutdown"
    supervisor.close()


def test_an_interrupted_caller_takes_its_command_with_it(supervisor: Supervisor) -> None:
    """Ctrl-C while a thread waits raises as usual and ends the command."""

    def press_ctrl_c() -> None:
        eventually(lambda: supervisor._link is not None and supervisor._link.numbers_of("k"))
        signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)

    interrupt = threading.Thread(target=press_ctrl_c)
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        run(supervisor, "exec sleep 60")
    interrupt.join()
    eventually(lambda: supervisor._link is not None and not supervisor._link.numbers_of("k"))


@pytest.mark.parametrize("name", ["", "A=B", "A\0B"])
def test_an_impossible_environment_is_refused(supervisor: Supervisor, name: str) -> None:
    """A name that no environment can hold is refused before anything starts."""
    finished = supervisor.run("k", "true", cwd="/", env={name: "x"})
    assert finished.failure == "refused"


def test_a_value_cannot_smuggle_in_a_variable(supervisor: Supervisor) -> None:
    """A NUL in a value would end it early and begin the next variable, so it is refused."""
    assert supervisor.run("k", "true", cwd="/", env={"A": "x\0B=y"}).failure == "refused"


def test_bytes_of_the_environment_arrive_as_they_are(supervisor: Supervisor) -> None:
    """Values that are not UTF-8 reach the command unchanged."""
    env = {**ENVIRONMENT, "ODD": os.fsdecode(b"caf\xe9\n=x")}
    assert supervisor.run("k", 'printf %s "$ODD"', cwd="/", env=env).stdout.head == b"caf\xe9\n=x"


@needs_proc
def test_processes_carry_the_marker_of_their_command(supervisor: Supervisor) -> None:
    """The environment names supervisor and command, which is how strays are told apart."""
    finished = run(supervisor, "echo $STATEM_SUPERVISED; echo $PPID")
    marker, pid = finished.stdout.head.split()
    assert supervisor._link is not None
    assert marker.decode() == f"{supervisor._link.token}.1"
    assert not any(entry.startswith(b"STATEM_SUPERVISED=") for entry in environment_of(int(pid)))
