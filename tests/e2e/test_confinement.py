"""Attempts to get out: what a check tries that is kept within a sandbox or roots, and what it finds there.

Every attempt on a sandbox is made twice: where the runbook demands it and the command line executes, and where the
policy of a worker does.
"""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.programs import HAS_PROC, Site, eventually
from tests.support.sandboxes import need_sandbox

pytestmark = pytest.mark.e2e

PYTHON = f"{os.path.realpath(sys.executable)} -IS"
"""An interpreter that a sandbox can be given: it lies below ``BASE`` and needs nothing else."""

BASE = os.path.realpath(sys.base_prefix)

CONNECT = f"""{PYTHON} -c 'import socket, sys
kind, address = sys.argv[1:]
family = socket.AF_UNIX if kind == "unix" else socket.AF_INET
where = address if kind == "unix" else ("127.0.0.1", int(address))
socket.socket(family).connect(where)
print("connected")'"""
"""Connects to a socket of the host: ``CONNECT unix PATH`` or ``CONNECT tcp PORT``."""


class Cell:
    """A site whose commands are confined, and something outside of it that they have no business with."""

    def __init__(self, by: str) -> None:
        self.by = by
        self.site = Site(STATEM_SANDBOX_BINDS=BASE)
        self.outside = Path(tempfile.mkdtemp(prefix="statem-outside-")).resolve()
        (self.outside / "secret").write_text("the crown jewels")
        if by == "policy":
            self.site.worker("-c", "2", "--sandbox", "bwrap", "--sandbox-bind", BASE)
        self._runs = 0

    def close(self) -> None:
        """End everything and remove both folders."""
        try:
            self.site.close()
        finally:
            shutil.rmtree(self.outside)

    def attempt(self, run: str, *words: str, sandbox: str | None = None, **keywords: object) -> dict[str, Any]:
        """Attempt a move that a command guards, and return the result of that check."""
        self._runs += 1
        run_id = f"r{self._runs}"
        sandbox = sandbox or ("bwrap" if self.by == "runbook" else "null")
        script = self.site.write("command.sh", run)
        given = "".join(f", {name}: {value}" for name, value in {"timeout": 60, **keywords}.items())
        check = f"{{run: exec sh {script}{given}}}"
        self.site.start(
            f"{{sandbox: {sandbox}, nodes: {{a: {{before_transfer: [{check}], next: b}}, b: }}}}", run_id, *words
        )
        said = self.site.run("goto", "b", "--run-id", run_id, "--json").data
        (result,) = said["results"] if said["ok"] else said["details"]["results"]
        return dict(result)

    def output(self, run: str, *words: str, **given: str) -> str:
        """Attempt a move that a command guards; return what the command wrote."""
        return str(self.attempt(run, *words, sandbox=given.get("sandbox"))["output"])


@pytest.fixture(scope="module", params=["runbook", "policy"])
def cell(request: pytest.FixtureRequest) -> Iterator[Cell]:
    """One cell for all attempts of a kind."""
    need_sandbox()
    cell = Cell(request.param)
    try:
        yield cell
    finally:
        cell.close()


# --- what a sandbox is for --------------------------------------------------------------------------------------------


def test_work_in_a_sandbox_is_work(cell: Cell) -> None:
    """The workspace is there under its own path to be read and written, and programs and their status are as ever."""
    result = cell.attempt('pwd; echo made > made; cat made; echo "$WORD" >&2; exit 3', "--env", "WORD=with 'quotes' $x")
    assert (result["reason"], result["exit_code"]) == ("check_failed", 3)
    assert result["output"] == f"{cell.site.folder}\nmade\nwith 'quotes' $x"
    assert cell.output("ls /proc/$$/fd").split() == ["0", "1", "10", "2"]  # Its streams, and its own script.
    assert cell.site.lines("made") == ["made"]
    assert cell.attempt("true")["reason"] == "passed"
    assert cell.attempt("no-such-program")["reason"] == "config_error"
    assert cell.output("echo $HOME $TMPDIR; touch /tmp/x && cd /var/tmp && ls x") == "/tmp /tmp\nx"
    assert not os.path.lexists("/tmp/x")


WAYS = (
    "cat {outside}/secret",
    "cat ../{name}/secret",
    "cat {folder}/../{name}/secret",
    "ln -sf {outside} link; cat link/secret",
    "ln -sf {outside}/secret link2; cat link2",
    "cat /proc/1/root{outside}/secret",
    "cat /proc/1/cwd/../{name}/secret",
    "cat /proc/self/root/..{outside}/secret",
    "cat /proc/*/root{outside}/secret",
    "cd {outside} && cat secret",
)


def test_other_folders_cannot_be_read(cell: Cell) -> None:
    """By their path, by ``..``, by links of the workspace, by the links of /proc: they are not there."""
    ways = [way.format(outside=cell.outside, name=cell.outside.name, folder=cell.site.folder) for way in WAYS]
    output = cell.output("\n".join(f"({way}) || echo failed" for way in ways))
    assert output.splitlines().count("failed") == len(ways)
    assert "jewels" not in output


def test_the_host_s_files_are_not_there(cell: Cell) -> None:
    """Homes, the state of services, keys and passwords: nothing of them, and the rest of the tree is read-only."""
    system = ["bin", "dev", "etc", "lib", "lib32", "lib64", "libx32", "proc", "sbin", "tmp", "usr", "var"]
    assert set(cell.output("ls -A /").split()) <= {*system, Path(BASE).parts[1]}
    absent = ["/etc/shadow", "/etc/ssl/private", "/etc/ssh", "/var/run", "/run", "/sys", "/var/lib"]
    assert cell.output("\n".join(f"[ -e {path} ] || echo {path}" for path in absent)).split() == absent
    assert cell.output("id -un >/dev/null && echo known") == "known"


def test_nothing_can_be_written_outside_of_the_workspace(cell: Cell) -> None:
    """What is shown of the host is read-only, for root too."""
    paths = ["/x", "/usr/x", "/etc/x", "/etc/passwd", "/bin/x", "/var/x", "/proc/sys/kernel/x", f"{BASE}/x"]
    output = cell.output("\n".join(f"(echo x >> {path}) || echo failed" for path in paths))
    assert output.splitlines().count("failed") == len(paths)
    assert [path for path in paths if os.path.lexists(path)] == ["/etc/passwd"]


def test_what_is_outside_is_not_written_through_a_link(cell: Cell) -> None:
    """A link of the workspace leads nowhere in the sandbox, and nothing appears where it leads on the host."""
    there = f"{cell.outside}/new"
    cell.attempt(f"ln -sfn {cell.outside} way-out; echo x > way-out/new; mkdir -p {cell.outside}; echo x > {there}")
    assert os.listdir(cell.outside) == ["secret"]


@pytest.mark.skipif(not HAS_PROC, reason="there is no /proc")
def test_the_kernel_s_switches_are_read_only(cell: Cell) -> None:
    """A pattern for core dumps is a command that the kernel executes as root of the host."""
    writable = "for each in $(find /proc -maxdepth 5 -type f -writable 2>/dev/null); do case $each in"
    writable += " /proc/[0-9]*|/proc/self/*|/proc/thread-self/*) ;; *) echo $each;; esac; done; echo looked"
    found = cell.output(writable).split()
    assert found[-1] == "looked"
    assert [path for path in found[:-1] if not path.startswith("/proc/pressure/")] == []
    pattern = "/proc/sys/kernel/core_pattern"
    assert "Read-only" in cell.output(f"cat {pattern} > /tmp/x; cp /tmp/x {pattern}")


def test_processes_of_the_host_are_not_to_be_seen(cell: Cell) -> None:
    """The sandbox has a handful of processes of its own, and none of them knows more than the command."""
    mine = str(os.getpid())
    pids = cell.output("echo /proc/[0-9]*").split()
    assert 2 <= len(pids) <= 5
    cell.site.write("marker", mine)
    assert "STATEM_REDIS_URL" not in cell.output("cat /proc/*/environ | tr '\\0' '\\n'")
    assert str(cell.site.state_dir) not in cell.output("cat /proc/*/cmdline | tr '\\0' ' '")
    # Not even by their numbers: the parent of the first process is outside.
    assert cell.output("grep PPid /proc/1/status") == "PPid:\t0"


def test_processes_of_the_host_cannot_be_signalled(cell: Cell) -> None:
    """Neither by number nor all at once."""
    victim = subprocess.Popen(["sleep", "600"])
    try:
        output = cell.output(f"kill -9 {victim.pid}; kill -9 {os.getpid()}; echo tried; kill -9 -1")
        assert "tried" in output
        assert victim.poll() is None
    finally:
        victim.kill()
        victim.wait()


def test_the_store_cannot_be_reached(cell: Cell) -> None:
    """Its socket lies in the workspace here, and is hidden there; a ``statem-dist`` finds no way either."""
    state = cell.site.state_dir
    sock = state / "redis.sock"
    assert sock.is_socket()
    output = cell.output(f"ls -A {state}; {CONNECT} unix {sock}")
    assert output.startswith("Traceback")
    assert output.endswith("No such file or directory")
    cell.attempt(f"touch {state}/y; mkdir {state}/data; echo x > {state}/data/x")
    assert not (state / "y").exists()
    assert not (state / "data" / "x").exists()
    assert cell.output("printenv STATEM_REDIS_URL STATEM_BROKER_URL; echo none") == "none"
    assert cell.output("printenv STATEM_STORE_WITHHELD") == "1"


@pytest.fixture
def listening() -> Iterator[int]:
    """A port of the host's loopback on which somebody listens."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield server.getsockname()[1]


def test_the_network_is_not_there(cell: Cell, listening: int) -> None:
    """Not even the loopback of the host, nor its abstract sockets."""
    connect = f"{CONNECT} tcp {listening}"
    assert "connected" not in cell.output(connect)
    assert "ConnectionRefused" in cell.output(connect) or "Network is unreachable" in cell.output(connect)
    with socket.socket(socket.AF_UNIX) as abstract:
        name = f"statem-test-{os.getpid()}"
        abstract.bind(f"\0{name}")
        abstract.listen()
        program = f'import socket; socket.socket(socket.AF_UNIX).connect(chr(0) + "{name}"); print("connected")'
        assert "ConnectionRefused" in cell.output(f"{PYTHON} -c '{program}'")


def test_the_network_is_there_where_it_is_asked_for_and_allowed(cell: Cell, listening: int) -> None:
    """A runbook may ask for it; against a policy without it, that is refused and not passed over."""
    result = cell.attempt(f"{CONNECT} tcp {listening}", sandbox="{bwrap: {network: true}}")
    if cell.by == "runbook":
        assert result["output"] == "connected"
    else:
        assert result["reason"] == "spawn_failed"
        assert "asks for the network" in result["output"]
        assert "--sandbox bwrap,network" in result["output"]


def test_no_privileges_can_be_had(cell: Cell) -> None:
    """No capabilities, no new namespaces, no mounts, and no privileges by a program that is set-uid."""
    assert cell.output("grep -E 'Cap(Eff|Prm|Bnd)|NoNewPrivs' /proc/self/status | cut -f2 | sort -u").split() == [
        "0000000000000000",
        "1",
    ]
    tries = ("unshare -Ur true", "mount -t tmpfs none /usr", "chroot / /bin/true")
    assert "ok" not in cell.output("; ".join(f"{each} && echo ok" for each in tries))


@pytest.mark.skipif(not HAS_PROC, reason="what is left is found in /proc")
def test_no_daemon_survives(cell: Cell) -> None:
    """Whatever a command leaves behind ends with it, however it hides."""
    number = 70_000 + os.getpid() % 10_000
    leave = [f"setsid sleep {number} &", f"(setsid setsid sleep {number} &)", f"nohup sleep {number} &", "sleep 0.1"]
    assert cell.attempt("\n".join(leave))["reason"] == "passed"
    eventually(lambda: not sleepers(number), "the daemons end", lambda: sleepers(number))


def sleepers(number: int) -> list[int]:
    """Return the processes of the host that sleep for a certain time."""
    found = []
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            words = Path("/proc", name, "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"sleep", str(number).encode()]:
            found.append(int(name))
    return found


def test_a_cwd_outside_of_the_workspace_is_refused(cell: Cell) -> None:
    """Whatever it is written as: it counts by where it leads."""
    site = cell.site
    (site.folder / "way").symlink_to(cell.outside)
    (site.folder / "sub").mkdir()
    wrong = ["/", "/usr", "..", "way", "sub/../.."]
    checks = ", ".join(f"{{run: pwd, cwd: {cwd}}}" for cwd in [*wrong, "sub"])
    sandbox = "bwrap" if cell.by == "runbook" else "null"
    site.start(f"{{sandbox: {sandbox}, nodes: {{a: {{before_transfer: [{checks}], next: b}}, b: }}}}", "cwd")
    *refused, fine = site.json("goto", "b", "--run-id", "cwd", expect=2)["details"]["results"]
    assert [result["reason"] for result in refused] == ["config_error"] * len(wrong)
    assert all("out of the sandbox" in result["output"] for result in refused)
    assert fine["output"] == f"{site.folder}/sub"


# --- ends -------------------------------------------------------------------------------------------------------------


def test_a_timeout_ends_everything_and_keeps_what_was_printed(cell: Cell) -> None:
    """The command is asked first, and has its grace; what does not listen is killed."""
    number = 50_000 + os.getpid() % 10_000
    polite = "trap 'echo asked; exit 0' TERM; echo begun; while :; do :; done"
    result = cell.attempt(polite, timeout=0.5)
    assert (result["reason"], result["output"]) == ("timed_out", "timed out after 0.5 s\nbegun\nasked")
    deaf = f"trap '' TERM; setsid sleep {number} & echo begun; sleep {number}; sleep {number}"
    result = cell.attempt(deaf, timeout=0.5)
    assert (result["reason"], result["output"]) == ("timed_out", "timed out after 0.5 s\nbegun")
    assert sleepers(number) == []


@pytest.mark.skipif(not HAS_PROC, reason="processes are found in /proc")
def test_the_wrapper_tells_nobody_and_hears_nobody(cell: Cell) -> None:
    """No value of a variable is on a command line, and bubblewrap itself gets none: it is outside of the sandbox.

    A run may set ``LD_PRELOAD``, which would take a library into whatever process starts with it.
    """
    site, number = cell.site, 60_000 + os.getpid() % 10_000
    sandbox = "bwrap" if cell.by == "runbook" else "null"
    runbook = f"{{sandbox: {sandbox}, nodes: {{a: {{before_transfer: [{{run: sleep {number}}}], next: b}}, b: }}}}"
    site.start(runbook, "long", "--env", "TOKEN=do-not-tell", "--env", f"LD_PRELOAD={site.folder}/library.so")
    going = site.begin("goto", "b", "--run-id", "long", "--json")
    (inside,) = eventually(lambda: sleepers(number), "the command runs")
    try:
        assert "do-not-tell" in Path(f"/proc/{inside}/environ").read_text()
        commands = {pid: Path(f"/proc/{pid}/cmdline").read_text() for pid in site_pids(inside)}
        assert not any("do-not-tell" in each for each in commands.values())
        wrappers = [pid for pid, words in commands.items() if "--args" in words]
        assert wrappers, commands
        for pid in wrappers:
            names = {line.partition("=")[0] for line in Path(f"/proc/{pid}/environ").read_text().split("\0") if line}
            assert names == {"STATEM_SUPERVISED"}
    finally:
        said = site.run("cancel", "--run-id", "long")
        assert said.exit_code == 0, said
        going.wait()
    eventually(lambda: not sleepers(number), "a cancelled command ends", lambda: sleepers(number))


def site_pids(pid: int) -> list[int]:
    """Return a process and its ancestors."""
    found = []
    while pid > 1:
        found.append(pid)
        pid = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    return found


@pytest.mark.chaos
@pytest.mark.skipif(not HAS_PROC, reason="processes are found in /proc")
@pytest.mark.parametrize("who", ["worker", "both"])
def test_nothing_is_left_when_a_worker_is_killed(who: str) -> None:
    """Alone, or together with its supervisor: a sandbox ends with whoever made it."""
    need_sandbox()
    number = 40_000 + os.getpid() % 10_000
    site = Site()
    try:
        worker = site.worker("-c", "1", "--sandbox", "bwrap")
        run = f"setsid sleep {number} & sleep {number}"
        site.start(f"nodes: {{a: {{before_transfer: [{{run: {run}}}], next: b}}, b: }}")
        site.json("goto", "b", "--run-id", "r", "--no-wait")
        eventually(lambda: len(sleepers(number)) == 2, "the command runs")
        around = site_pids(sleepers(number)[0])
        supervisors = [pid for pid in around if "import supervisor" in Path(f"/proc/{pid}/cmdline").read_text()]
        assert supervisors
        worker.kill()
        if who == "both":
            os.kill(supervisors[0], signal.SIGKILL)
        eventually(lambda: not sleepers(number), "nothing is left", lambda: sleepers(number))
    finally:
        site.close()


# --- predicates and reviews -------------------------------------------------------------------------------------------


def guarded(site: Site, checks: list[str], *words: str, head: str = "") -> list[dict[str, Any]]:
    """Attempt a move that these checks guard, in a runbook that begins with ``head``; return their results."""
    run_id = f"guarded-{len(site.json('runs')['runs'])}"
    site.start(f"{{{head}nodes: {{a: {{before_transfer: [{', '.join(checks)}], next: b}}, b: }}}}", run_id, *words)
    said = site.run("goto", "b", "--run-id", run_id, "--json").data
    return list(said["results"] if said["ok"] else said["details"]["results"])


def test_a_predicate_of_a_sandboxed_run_looks_into_the_workspace_alone(cell: Cell) -> None:
    """It is evaluated outside of the sandbox, and held to the same folder, without a word on what is elsewhere."""
    site, head = cell.site, "sandbox: bwrap, " if cell.by == "runbook" else ""
    (site.folder / "to-secret").symlink_to(cell.outside / "secret")
    site.write("inner.txt", "jewels of ours")
    paths = ["to-secret", f"{cell.outside}/secret", f"../{cell.outside.name}/secret", "/etc/shadow", "state/redis.log"]
    checks = [f"{{path: {path}, contains: jewels}}" for path in ["inner.txt", *paths]]
    inner, *elsewhere, state = guarded(site, checks, head=head)
    assert inner["passed"]
    assert [result["reason"] for result in (*elsewhere, state)] == ["config_error"] * len(paths)
    assert all("out of the sandbox" in result["output"] for result in elsewhere)
    assert "belongs to the state of statem-dist" in state["output"]


def test_reviewers_of_the_host_are_outside_and_those_of_a_runbook_inside(cell: Cell) -> None:
    """The host's own program is the operator's; a runbook's is a command like any other."""
    if cell.by == "policy":
        pytest.skip("the reviewer of a worker is named when it starts")
    site = cell.site
    look = f"cat > /dev/null; cat {cell.outside}/secret 2>/dev/null && echo APPROVED"
    for run_id, own, expect in (("v1", "", 0), ("v2", f", run: '{look}'", 2)):
        review = f"{{type: llm_review, prompt: Look., accept_contains: APPROVED{own}}}"
        site.start(f"{{sandbox: bwrap, nodes: {{a: {{before_transfer: [{review}], next: b}}, b: }}}}", run_id)
        said = site.run("goto", "b", "--run-id", run_id, "--json", STATEM_LLM_REVIEW_CMD=look)
        assert said.exit_code == expect, said


# --- roots ------------------------------------------------------------------------------------------------------------


def test_roots_hold_for_workspace_cwd_and_files(site: Site) -> None:
    """On the worker, when the check is executed, by where each path leads; the message names all three."""
    inner, outside = site.folder / "runs", site.folder / "elsewhere"
    (inner / "sub").mkdir(parents=True)
    outside.mkdir()
    (outside / "secret").write_text("jewels")
    (inner / "link").symlink_to(outside)
    (inner / "sub" / "ok.txt").write_text("fine")
    site.worker("-c", "1", "--workspace-root", str(inner))
    fine = [
        "{run: test -e ok.txt, cwd: sub}",
        "{path: sub/ok.txt, contains: fine}",
        "{path: sub/not-there.txt, exists: false}",
        # A link that is made only when the run is under way is followed all the same.
        f"{{run: ln -s {outside} later}}",
    ]
    wrong = {
        "{run: echo ran, cwd: link}": f"the cwd {inner}/link leads to {outside}, which is",
        "{run: echo ran, cwd: later}": f"the cwd {inner}/later leads to {outside}, which is",
        "{run: echo ran, cwd: ..}": f"the cwd {site.folder} is",
        "{run: echo ran, cwd: /}": "the cwd / is",
        "{path: link/secret, contains: jewels}": f"the file {inner}/link/secret leads to {outside}/secret, which is",
        "{path: secret, contains: jewels, cwd: link}": f"the cwd {inner}/link leads to {outside}, which is",
        "{path: ../elsewhere/secret, exists: false}": f"../elsewhere/secret leads to {outside}/secret, which is",
        "{path: /etc/shadow, exists: true}": "the file /etc/shadow is",
        "{path: sub/../link/../../elsewhere/secret, non_empty: true}": "the file",
    }
    results = guarded(site, [*fine, *wrong], "--workspace", str(inner))
    assert [result["passed"] for result in results] == [True] * len(fine) + [False] * len(wrong)
    for result, told in zip(results[len(fine) :], wrong.values(), strict=True):
        assert result["reason"] == "config_error"
        assert told in result["output"]
        assert result["output"].endswith(f"not below a workspace root (roots: {inner})")
    (result,) = guarded(site, ["{run: echo ran}"], "--workspace", str(outside))
    assert f"the workspace {outside} is not below a workspace root" in result["output"]


# --- demands that cannot be met ---------------------------------------------------------------------------------------


@pytest.fixture
def without_bwrap(tmp_path: Path) -> str:
    """A PATH on which everything is that a shell needs, and no bubblewrap."""
    for name in ("sh", "true", "sleep", "cat"):
        found = shutil.which(name)
        assert found is not None
        (tmp_path / name).symlink_to(found)
    return str(tmp_path)


def test_a_worker_that_cannot_make_the_sandbox_does_not_start(site: Site, without_bwrap: str) -> None:
    """It says which package is missing, and never executes anything without."""
    for words in (["worker"], ["up"]):
        going = site.begin(*words, "--sandbox", "bwrap", PATH=without_bwrap)
        said = going.wait()
        assert said.exit_code == 1
        assert "bwrap is not installed" in said.stderr + said.stdout
        assert "apt-get install bubblewrap" in said.stderr + said.stdout
    said = site.run("worker", "--sandbox", "bwarp")
    assert said.exit_code == 64
    assert "There is no sandbox 'bwarp'" in said.stderr
    said = site.run("worker", "--limit", "memory")
    assert said.exit_code == 64


def test_a_bind_that_is_missing_keeps_a_worker_from_starting(site: Site) -> None:
    """It is named."""
    need_sandbox()
    said = site.begin("worker", "--sandbox", "bwrap", "--sandbox-bind", "/no/such/tools").wait()
    assert said.exit_code == 1
    assert "/no/such/tools, which is to be bound into it, does not exist" in said.stderr


def test_a_runbook_that_demands_a_sandbox_is_refused_where_there_is_none(site: Site, without_bwrap: str) -> None:
    """Its commands are not executed, and the result says what to install."""
    site.start("{sandbox: bwrap, nodes: {a: {before_transfer: [{run: touch ran}], next: b}, b: }}")
    said = site.json("goto", "b", "--run-id", "r", expect=1, PATH=without_bwrap)
    (result,) = said["details"]["results"]
    assert (said["details"]["outcome"], result["reason"]) == ("error", "spawn_failed"), "it says nothing of the work"
    assert "apt-get install bubblewrap" in result["output"]
    assert not (site.folder / "ran").exists()


def test_doctor_says_whether_a_demanded_sandbox_works(site: Site, without_bwrap: str) -> None:
    """Where none is demanded it says nothing; where it is missing, that is an error."""

    def found(expect: int, **settings: str) -> list[dict[str, Any]]:
        said = site.run("doctor", "--json", **settings)
        assert said.exit_code == expect
        findings = (said.data if expect == 0 else said.data["details"])["findings"]
        return [each for each in findings if each["what"] == "sandbox"]

    assert found(0) == []
    (finding,) = found(1, STATEM_SANDBOX="bwrap", PATH=without_bwrap)
    assert (finding["level"], "bubblewrap" in finding["fix"]) == ("error", True)
    need_sandbox()
    (finding,) = found(0, STATEM_SANDBOX="bwrap")
    assert finding["level"] == "ok"


def test_a_workspace_that_is_too_wide_is_refused(site: Site) -> None:
    """A sandbox around a folder of the system would keep nothing apart, nor would one around the state itself."""
    need_sandbox()
    for run_id, workspace in (("w1", "/"), ("w2", "/tmp"), ("w3", str(site.state_dir))):
        site.state_dir.mkdir(exist_ok=True)
        runbook = "{sandbox: bwrap, nodes: {a: {before_transfer: [{run: echo ran}], next: b}, b: }}"
        site.start(runbook, run_id, "--workspace", workspace)
        said = site.json("goto", "b", "--run-id", run_id, expect=1)
        (result,) = said["details"]["results"]
        assert result["reason"] == "spawn_failed"
        assert "workspace" in result["output"]


def test_limits_of_runbook_and_policy_hold_together(site: Site) -> None:
    """The stricter of both, for commands of the command line as well, and in a sandbox."""
    show = "{run: 'ulimit -n; ulimit -v; ulimit -t'}"
    site.environment["STATEM_LIMITS"] = "files=100,memory=1G"
    for run_id, sandbox in (("l1", "null"), ("l2", "bwrap")):
        if sandbox == "bwrap":
            need_sandbox()
        head = f"limits: {{files: 200, memory: 512M, cpu: 50}}, sandbox: {sandbox}"
        site.start(f"{{{head}, nodes: {{a: {{before_transfer: [{show}], next: b}}, b: }}}}", run_id)
        said = site.json("goto", "b", "--run-id", run_id)
        assert said["results"][0]["output"].split() == ["100", str(512 << 10), "50"]
