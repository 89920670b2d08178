"""What a check is kept within: roots, limits, a sandbox, or a container; and how its command is started there.

Two parties have a say. The *policy* is that of whoever executes (``Settings``), and what it demands nobody weakens; the
*demand* is that of the runbook and the run. ``rules_for`` makes one value of both, and where they contradict each other
that value is a refusal, never a compromise.

A wrapper says on stderr that it has come as far as the command (``BEGUN``), before the command can say anything. Only
so can the exit status of a sandbox that could not be made, or of a container that is not there, be told from that of
the command; ``begun`` takes the words out again.
"""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Iterable, Mapping, Sequence

from msgspec import Struct, structs, to_builtins

from statem_dist.checks.environment import STORE_WITHHELD
from statem_dist.checks.process import Captured, Finished, Wrapper, environment_block
from statem_dist.checks.supervisor import MARKER
from statem_dist.errors import Invalid
from statem_dist.protocol.graph import NO_LIMITS, Confinement, ResourceLimits, Sandbox
from statem_dist.protocol.model import Place
from statem_dist.roots import is_below, outside_roots, within_roots
from statem_dist.settings import Settings

BEGUN = b"\x1estatem: begun\n"
"""What a wrapper writes to stderr when it is about to start the command."""

TEMPORARY_BYTES_MAX = 1 << 30
"""Size of the private ``/tmp`` of a sandbox, which lies in memory."""

VARIABLES_MAX = 2500
"""How many variables a sandbox can be given: bubblewrap takes 9000 words, and each variable is three."""

SYSTEM_FOLDERS = ("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
"""Folders of programs beside ``/usr``; on most systems they are links into it."""

SYSTEM_FILES = (
    *("alternatives", "crypto-policies", "fonts", "gitconfig", "group", "hosts", "ld.so.cache", "locale.alias"),
    *("locale.conf", "localtime", "mime.types", "nsswitch.conf", "os-release", "passwd", "pki/ca-trust"),
    *("pki/tls/cert.pem", "pki/tls/certs", "protocols", "resolv.conf", "services", "ssl/cert.pem", "ssl/certs"),
    *("ssl/openssl.cnf", "timezone"),
)
"""What programs need of ``/etc``. The rest of it stays outside: keys and hashed passwords are there too. Each is a
mount of its own and costs time: what few programs need is for a bind."""

KERNEL_FILES = ("acpi", "bus", "fs", "irq", "mtrr", "pressure", "scsi", "sys", "sysrq-trigger")
"""What a worker that is root could otherwise write to in ``/proc``, for the whole host."""

TOO_WIDE = ("/", "/boot", "/dev", "/etc", "/home", "/proc", "/run", "/sys", "/tmp", "/usr", "/var")
"""Folders that are no workspace in a sandbox, because that could keep nothing apart."""

BWRAP_HINT = "Install bubblewrap 0.8 or newer (Debian: apt-get install bubblewrap), and allow user namespaces."

PROBE_SECONDS = 10.0
"""How long a sandbox may take to be made when it is tried."""

CONTAINER_VARIABLE = "STATEM_CONTAINER_COMMAND"
"""Names, in a container, the command to which a process belongs; what is ended there is found by it."""

_IN_SANDBOX = """\
printf '\\036statem: begun\\n' >&2
trap : TERM
exec 4>&2 2>/dev/null
"$@" 2>&4 4>&-
status=$?
for _ in 1 2 3 4 5; do
    set -- /proc/[0-9]*
    [ $# -gt 2 ] || break
    sleep 0.05
done
exit $status
"""
"""Starts the command within a sandbox. Its end is that of the namespace, so what the command leaves behind gets a
moment to write what it has to write, as it does outside. It outlives SIGTERM, and says nothing of whom that ends."""

_IN_CONTAINER = """\
{limits}printf '\\036statem: begun\\n' >&2
exec "$@"
"""
"""Starts the command within a container."""

_AT_CLIENT = """\
end=$1
shift
trap 'kill "$client"; eval "$end"; exit 143' TERM
exec 3<&0
"$@" <&3 3<&- &
client=$!
exec 3<&- </dev/null 2>/dev/null
wait "$client"
"""
"""Runs the client of a container; when the command is to end, it ends what the client has begun there as well."""

_END_IN_CONTAINER = """\
pids() {
    for file in $(grep -lsF "$1" /proc/[0-9]*/environ); do
        pid=${file#/proc/}
        echo "${pid%/environ}"
    done
}
tries=0
kill -TERM $(pids "$1")
while [ -n "$(pids "$1")" ] && [ $tries -lt 10 ]; do
    sleep 0.1
    tries=$((tries + 1))
done
while [ -n "$(pids "$1")" ] && [ $tries -lt 30 ]; do
    kill -KILL $(pids "$1")
    sleep 0.1
    tries=$((tries + 1))
done
"""
"""Ends what carries a mark within a container: SIGTERM, a second at the most, SIGKILL."""


class Unconfinable(Exception):
    """A check that cannot be executed within what it is kept to; the message says why."""


class UnfitHost(Unconfinable):
    """The same, where it is this host or its policy that stands in the way, and nothing that the check could mend."""


class Invocation(Struct, frozen=True):
    """How a command is started: the arguments of ``Supervisor.run``, besides those that the check gives."""

    cwd: str
    env: Mapping[str, str]
    limits: Mapping[str, int]
    wrapper: Wrapper | None = None


class Rules(Struct, frozen=True):
    """What one check is kept within.

    ``binds`` are the further paths that are there in a sandbox, ``hidden`` those that are not, even if they lie below
    something that is. ``container`` is the name of one, or empty; ``passed`` names the variables that its commands
    get. ``refusal`` says why no command can be executed as it is demanded; empty if it can.
    """

    roots: tuple[str, ...] = ()
    limits: ResourceLimits = NO_LIMITS
    sandbox: Sandbox | None = None
    binds: tuple[str, ...] = ()
    hidden: tuple[str, ...] = ()
    container: str = ""
    passed: tuple[str, ...] = ()
    refusal: str = ""

    @property
    def guard_files(self) -> bool:
        """Whether a predicate may look at some files only."""
        return bool(self.roots) or self.sandbox is not None

    def file(self, workspace: str, directory: str, path: str) -> str:
        """Return the path of a predicate's file with every link followed, if the predicate may look at it.

        Raises:
            Unconfinable: it leads elsewhere, or what it is taken from does.
        """
        self._require_within("the cwd", workspace, directory)
        self._require_within("the file", workspace, path)
        resolved, inside = os.path.realpath(path), os.path.realpath(workspace)
        # Only below the workspace: a workspace may itself lie in the state directory, as those of a sweep's trials do.
        hidden = [each for each in map(os.path.realpath, self.hidden) if is_below(each, inside)]
        if self.sandbox is not None and any(is_below(resolved, each) for each in hidden):
            raise Unconfinable(f"the file {path} belongs to the state of statem-dist")
        return resolved

    def invocation(self, workspace: str, directory: str, env: Mapping[str, str]) -> Invocation:
        """Return how a command of the check is started.

        Args:
            workspace: absolute path of the run's workspace.
            directory: absolute path that the command works in.
            env: its whole environment.

        Raises:
            Unconfinable: it cannot be started within these rules.
        """
        if self.refusal:
            raise UnfitHost(self.refusal)
        self._require_within("the cwd", workspace, directory)
        limits = to_builtins(self.limits)
        if self.container:
            return _in_container(self, directory, env)
        if self.sandbox is not None:
            return Invocation("/", {}, limits, _in_sandbox(self, self.sandbox, workspace, directory, env))
        return Invocation(os.path.realpath(directory) if self.roots else directory, env, limits)

    def of_operator(self) -> Rules:
        """Return the rules for the host's own program: it is held to the roots alone."""
        return Rules(roots=self.roots)

    def _require_within(self, what: str, workspace: str, path: str) -> None:
        """Refuse a workspace, and what is taken from it, that leads out of where it may lead."""
        if self.roots:
            if not within_roots(workspace, self.roots):
                raise UnfitHost(outside_roots("the workspace", workspace, self.roots))
            if not within_roots(path, self.roots):
                raise Unconfinable(outside_roots(what, path, self.roots))
        if self.sandbox is not None and not within_roots(path, [workspace]):
            leads = os.path.realpath(path)
            raise Unconfinable(f"{what} {path} leads to {leads}, out of the sandbox: its workspace is {workspace}")


UNRULED = Rules()


def rules_for(
    settings: Settings, demand: Confinement, place: Place, hidden: Iterable[str], passed: Iterable[str]
) -> Rules:
    """Return what the checks of a run are kept within by who executes them.

    Args:
        settings: of who executes.
        demand: the runbook's.
        place: where and with what the run is executed.
        hidden: folders and sockets that no sandbox shows.
        passed: names of the variables that commands in a container get.
    """
    policy, executor = settings.sandbox, place.executor or demand.executor
    sandbox, refusal = demand.sandbox, ""
    if executor and (policy or sandbox):
        whose = "this worker's policy" if policy else "the runbook"
        refusal = f"{whose} demands a sandbox, and a command in the container {executor} would be outside of it"
    elif policy is not None:
        if sandbox is not None and sandbox.network and not policy.network:
            refusal = (
                "the runbook asks for the network in its sandbox, and this worker's policy does not allow that "
                "(--sandbox bwrap,network would)"
            )
        sandbox = sandbox or Sandbox()
    return Rules(
        roots=settings.workspace_roots,
        limits=settings.limits.stricter(demand.limits),
        sandbox=sandbox,
        binds=settings.sandbox_binds,
        hidden=tuple(path for path in hidden if path),
        container=executor.removeprefix("docker:"),
        passed=tuple(passed),
        refusal=refusal,
    )


def begun(finished: Finished, rules: Rules) -> Finished:
    """Return how a command ended, without the words of its wrapper.

    If it was never begun, that is a failure of its own: ``unfit`` where the sandbox could not be made, ``refused``
    where the program or the folder is not as it should be, ``spawn_failed`` where the container is not there.
    """
    before, found, after = finished.stderr.head.partition(BEGUN)
    if found:
        stderr = finished.stderr
        kept = Captured(head=before + after, tail=stderr.tail, written=stderr.written - len(BEGUN))
        return structs.replace(finished, stderr=kept)
    if finished.exit_code is None or finished.timed_out or finished.cancelled is not None:
        return finished
    text = before.decode(errors="replace").strip() or f"exit status {finished.exit_code}"
    if not rules.container:
        return Finished(failure="unfit", text=f"its sandbox could not be made: {text}")
    text = f"`docker exec` could not begin it in the container {rules.container!r}: {text}"
    # By Docker's convention: the container was reached, and something within it is not as the command needs it.
    return Finished(failure="refused" if finished.exit_code in (126, 127) else "spawn_failed", text=text)


def require_policy(settings: Settings) -> None:
    """See whether a policy can be kept here: its roots are there, and a sandbox can be made if it demands one.

    Raises:
        Invalid: it cannot; no check could be executed.
    """
    if missing := [root for root in settings.workspace_roots if not os.path.isdir(root)]:
        raise Invalid(
            f"The workspace root {missing[0]} is no directory.",
            hint="Make it first, or name another (--workspace-root, STATEM_WORKSPACE_ROOTS).",
        )
    if settings.sandbox is not None and (why := why_no_sandbox(settings.sandbox_binds)):
        raise Invalid(f"The sandbox that is demanded of this worker cannot be made: {why}", hint=BWRAP_HINT)


def why_no_sandbox(binds: Sequence[str] = ()) -> str:
    """Return why no sandbox can be made here, or an empty text after one was made."""
    program = shutil.which("bwrap")
    if program is None:
        return "bwrap is not installed"
    words = [*_system(binds), "--chdir", "/", "--", "/bin/sh", "-c", ":"]
    if missing := [path for path in binds if not os.path.exists(path)]:
        return f"{missing[0]}, which is to be bound into it, does not exist"
    try:
        done = subprocess.run(
            [program, *words], stdin=subprocess.DEVNULL, capture_output=True, timeout=PROBE_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"bwrap cannot be executed: {error}"
    return done.stderr.decode(errors="replace").strip() or f"exit status {done.returncode}" if done.returncode else ""


# --- the sandbox ------------------------------------------------------------------------------------------------------


def _in_sandbox(rules: Rules, sandbox: Sandbox, workspace: str, directory: str, env: Mapping[str, str]) -> Wrapper:
    program = shutil.which("bwrap")
    if program is None:
        raise UnfitHost(f"it is to run in a sandbox, and bwrap is not installed here. {BWRAP_HINT}")
    inside = os.path.realpath(workspace)
    if inside in TOO_WIDE:
        raise UnfitHost(f"the workspace {workspace} is too wide for a sandbox: use a folder of the run's own")
    if len(env) > VARIABLES_MAX:
        raise Unconfinable(f"{len(env)} variables are more than a sandbox can be given ({VARIABLES_MAX})")
    environment_block(env)
    words = _system(rules.binds, network=sandbox.network)
    # Before the workspace, which may lie below something that is bound and hidden: the trials of a sweep do.
    words += _hiding(rules.hidden, rules.binds)
    words += ["--bind", inside, inside]
    named = os.path.normpath(workspace)
    if named != inside and not any(is_below(named, each) for each in (inside, "/usr", *rules.binds)):
        words += ["--symlink", inside, named]
    if inside in map(os.path.realpath, rules.hidden):
        raise UnfitHost(f"the workspace {inside} is where statem-dist keeps its state; use another folder")
    words += _hiding(rules.hidden, [inside])
    for name, value in {**env, "HOME": "/tmp", "TMPDIR": "/tmp", STORE_WITHHELD: "1"}.items():
        # The supervisor gives its marker to bwrap, which hands it on; nobody else has a say in that.
        words += ["--setenv", name, value] if name != MARKER else []
    words += ["--chdir", os.path.realpath(directory), "--remount-ro", "/"]
    # Neither on the command line, which everybody can read, nor in bwrap's own environment, where a variable of the
    # run could make the loader take a library into a process that is not within the sandbox yet.
    arguments = b"\0".join(map(os.fsencode, words))
    argv = [program, "--args", "3", "--", "/bin/sh", "-c", _IN_SANDBOX, "sh"]
    return Wrapper(tuple(map(os.fsencode, argv)), arguments, steady=True)


def _system(binds: Iterable[str], *, network: bool = False) -> list[str]:
    """Return the options for what is in every sandbox."""
    words = ["--unshare-all", *(["--share-net"] if network else []), "--unshare-user", "--disable-userns"]
    words += ["--cap-drop", "ALL", "--die-with-parent", "--new-session"]
    words += ["--size", str(TEMPORARY_BYTES_MAX), "--tmpfs", "/tmp", "--symlink", "/tmp", "/var/tmp"]
    words += ["--ro-bind", "/usr", "/usr"]
    for folder in SYSTEM_FOLDERS:
        if os.path.islink(folder):
            words += ["--symlink", os.readlink(folder), folder]
        elif os.path.isdir(folder):
            words += ["--ro-bind", folder, folder]
    for path in (f"/etc/{name}" for name in SYSTEM_FILES):
        target = os.path.realpath(path)
        if os.path.islink(path) and is_below(target, "/usr"):
            words += ["--symlink", target, path]  # Cheaper than a mount.
        elif os.path.exists(target):
            words += ["--ro-bind", target, path]
    words += ["--proc", "/proc", "--dev", "/dev"]
    for path in (f"/proc/{name}" for name in KERNEL_FILES if os.geteuid() == 0):
        if os.path.exists(path):
            words += ["--ro-bind", path, path]
    for path in binds:
        words += ["--ro-bind", path, path]
    return words


def _hiding(hidden: Iterable[str], shown: Iterable[str]) -> list[str]:
    """Return the options that hide what is below something that a sandbox shows."""
    folders = [os.path.realpath(path) for path in shown]
    words: list[str] = []
    # A folder sorts before what is in it, which is hidden with it.
    for path in sorted(set(map(os.path.realpath, hidden))):
        if not any(is_below(path, folder) for folder in folders) or any(is_below(path, done) for done in words):
            continue
        if os.path.isdir(path):
            words += ["--tmpfs", path]
        elif os.path.exists(path):
            words += ["--ro-bind", "/dev/null", path]
    return words


# --- containers -------------------------------------------------------------------------------------------------------


def _in_container(rules: Rules, directory: str, env: Mapping[str, str]) -> Invocation:
    client = shutil.which("docker")
    if client is None:
        raise UnfitHost(f"it is to run in the container {rules.container!r}, and there is no docker on PATH here")
    mark = os.urandom(16).hex()
    passed = {name: env[name] for name in rules.passed if name in env} | {STORE_WITHHELD: "1"}
    # The mark is no secret, and the client must not carry it: a container may see the host's processes.
    begin = [client, "exec", "-i", "-w", directory, "-e", f"{CONTAINER_VARIABLE}={mark}"]
    # The names alone: values would stand in the list of processes. The client takes them from its own environment.
    for name in passed:
        begin += ["-e", name]
    begin += [rules.container, "/bin/sh", "-c", _IN_CONTAINER.format(limits=_limits_in_shell(rules.limits)), "sh"]
    end = [client, "exec", rules.container, "/bin/sh", "-c", _END_IN_CONTAINER, "sh", f"{CONTAINER_VARIABLE}={mark}"]
    argv = ["/bin/sh", "-c", _AT_CLIENT, "sh", f"{shlex.join(end)} >/dev/null", *begin]
    own = {name: os.environ[name] for name in os.environ if name in ("HOME", "PATH") or name.startswith("DOCKER_")}
    return Invocation("/", own | passed, {}, Wrapper(tuple(map(os.fsencode, argv))))


def _limits_in_shell(limits: ResourceLimits) -> str:
    """Return the lines that set limits in a container, where the processes are none of ours."""
    lines = []
    if limits.memory is not None:
        lines.append(f"ulimit -v {max(1, limits.memory >> 10)}")
    if limits.cpu is not None:
        lines.append(f"ulimit -t {limits.cpu}")
    if limits.files is not None:
        lines.append(f"ulimit -n {limits.files}")
    if limits.processes is not None:
        # Dash and busybox call it -p, bash -u.
        lines.append(f"{{ ulimit -u {limits.processes} 2>/dev/null || ulimit -p {limits.processes}; }}")
    return "".join(f"{line} || exit 126\n" for line in lines)
