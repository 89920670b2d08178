"""Workspaces of trials: made for each attempt, from nothing, from a template, or from a repository; and removed.

**A template** is copied: links stay links, permissions stay what they are.

**A repository** is fetched once per host into a bare mirror, and each attempt gets a clone of its own, made from the
mirror by hard links: git never changes an object that it has written, so they cost no space. A worktree would share
branches, stashes and configuration with every other trial. A clone that borrows its objects (``--shared``) breaks when
the mirror is removed or packed anew, and cannot be read where the mirror cannot be seen, as in a sandbox. Hard links
have none of that: what the mirror, or a ``git gc`` in it, unlinks stays in the clone.

The clone knows the commit and what led to it: branches, the remote and tags that are no part of its history are
removed, so that nothing that came later is offered to the agent. The objects are there all the same: it is no secrecy.
Submodules are not checked out, and of files in Git LFS only the pointers are.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
import subprocess
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from hashlib import file_digest, sha256
from pathlib import Path

from statem_dist.embedded.locks import FileLock
from statem_dist.errors import StatemError
from statem_dist.sweep.model import Cell, Definition, Workspace

GIT_SECONDS = 600.0
"""How long one git command may take. A first fetch of a large repository takes minutes."""

LOCK_SECONDS = 3 * GIT_SECONDS
"""How long a preparation waits for others that use the same mirror."""

FRESH_SECONDS = 60.0
"""How long a branch is taken to be where it was when it was fetched."""

LEFT_SECONDS = 60.0
"""How old a lock file of git in a mirror is that whoever made it has left behind."""

REMOVALS_MAX = 3
"""How often the removal of a workspace is begun."""

MIRROR_DIGITS = 24
"""Hex digits of the digest of a URL that name its mirror."""

AUTHOR = {"user.name": "agent", "user.email": "agent@localhost"}
"""Who commits in a clone: not every host knows a name, and git refuses to commit without one."""

_HEAD = "refs/statem/head"
_ASKED = "refs/statem/asked"
_PINS = "refs/statem/pins/"
_NO_BRANCH = "statem/none"
"""Refs of a mirror: where the HEAD of the repository stands, what was fetched by itself, and every commit that was
checked out; and the branch that it is on as long as it knows of no HEAD, which there is not."""

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_COMMIT = re.compile(r"[0-9a-f]{7,64}")
_OF_ANOTHER_REPOSITORY = frozenset(
    {
        "GIT_ALTERNATE_OBJECT_DIRECTORIES",
        "GIT_COMMON_DIR",
        "GIT_CONFIG",
        "GIT_DIR",
        "GIT_GRAFT_FILE",
        "GIT_IMPLICIT_WORK_TREE",
        "GIT_INDEX_FILE",
        "GIT_NAMESPACE",
        "GIT_NO_REPLACE_OBJECTS",
        "GIT_OBJECT_DIRECTORY",
        "GIT_PREFIX",
        "GIT_QUARANTINE_PATH",
        "GIT_REPLACE_REF_BASE",
        "GIT_SHALLOW_FILE",
        "GIT_TEMPLATE_DIR",
        "GIT_WORK_TREE",
    }
)
"""Variables by which git finds a repository; a worker that was started by a hook of one has them."""


class WorkspaceFailed(StatemError):
    """A workspace that could not be made or removed; it says nothing about the agent, and no caller ever sees it."""


def prepare(definition: Definition, cell: Cell, folder: Path, cache: Path) -> None:
    """Make the workspace of an attempt.

    Args:
        folder: what is made. If it is there, an earlier preparation of the same attempt did not come to its end: it is
            removed first.
        cache: where mirrors of repositories are kept, for all trials of this host; made if missing. On another file
            system than ``folder``, clones are copied and not linked. It may be removed while no trial begins.

    Raises:
        WorkspaceFailed: it could not be made; what there is of it is for the caller to discard.
    """
    workspace = definition.workspace
    discard(folder)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        if workspace.git is not None:
            _check_out(workspace.git, ref_of(workspace, cell), folder, cache)
        elif workspace.template is not None:
            _copy(Path(workspace.template), folder)
        else:
            folder.mkdir()
    except (OSError, ValueError) as error:
        raise WorkspaceFailed(f"The workspace '{folder}' could not be made: {_said(error)}") from error


def discard(folder: Path) -> None:
    """Remove a workspace, whatever its permissions are; one that is not there is no error.

    Modes are changed on folders alone: a file may be a hard link to an object of the mirror.

    Raises:
        WorkspaceFailed: something of it is left, such as a file that a container made as another user.
    """
    # What still runs in it may write while it is removed, and what has been opened up may hold more that is closed.
    for _ in range(REMOVALS_MAX):
        if not os.path.lexists(folder):
            return
        with suppress(OSError, RecursionError):
            if folder.is_dir() and not folder.is_symlink():
                shutil.rmtree(folder)
            else:
                folder.unlink()
            return
        _open_up(folder)
        # Python gives up where folders nest too deeply, or paths become too long.
        subprocess.run(["rm", "-rf", "--", str(folder)], stdin=subprocess.DEVNULL, capture_output=True, check=False)
    if os.path.lexists(folder):
        raise WorkspaceFailed(
            f"The workspace '{folder}' could not be removed as a whole.",
            hint="a container may have written files as another user; remove them as that one",
        )


def _open_up(folder: Path) -> None:
    """Let the owner of a folder, and of all folders in it, remove what they hold."""
    waiting = [str(folder)]
    while waiting:
        path = waiting.pop()
        with suppress(OSError):
            mode = os.lstat(path).st_mode
            if mode & stat.S_IRWXU != stat.S_IRWXU:
                os.chmod(path, stat.S_IMODE(mode) | stat.S_IRWXU)
            with os.scandir(path) as entries:
                waiting += [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]


def _said(error: Exception) -> str:
    """Return what an error says, without what Python puts around it."""
    if isinstance(error, shutil.Error) and error.args and isinstance(error.args[0], list):
        source, _, why = error.args[0][0]
        return f"{why} ('{source}')"
    if isinstance(error, OSError) and error.strerror:
        return f"{error.strerror} ('{error.filename}')" if error.filename else error.strerror
    return str(error)


# --- templates -----------------------------------------------------------------------------------------------------


def _copy(template: Path, folder: Path) -> None:
    if folder.resolve().is_relative_to(template.resolve()):
        raise WorkspaceFailed(
            f"The template '{template}' holds the workspace '{folder}' itself.",
            hint="take a folder that does not hold the state directory",
        )
    shutil.copytree(template, folder, symlinks=True)
    # The agent works in the folder itself, also where nobody may write into the template.
    folder.chmod(stat.S_IMODE(folder.stat().st_mode) | stat.S_IRWXU)


def digest_of(folder: Path) -> str:
    """Return a digest of everything in a folder: names, kinds, permissions, contents, and where links lead.

    Raises:
        OSError: something in it cannot be read.
    """
    digest = sha256()
    for path in sorted(_entries(folder)):
        name, found = os.fsencode(path.relative_to(folder)), path.lstat()
        digest.update(f"{len(name)}:".encode() + name + f":{stat.S_IFMT(found.st_mode):o}:".encode())
        if stat.S_ISLNK(found.st_mode):
            digest.update(sha256(os.fsencode(path.readlink())).digest())
            continue
        digest.update(f"{stat.S_IMODE(found.st_mode):o}:".encode())
        if stat.S_ISREG(found.st_mode):
            with path.open("rb") as file:
                digest.update(file_digest(file, "sha256").digest())
    return digest.hexdigest()


def _entries(folder: Path) -> Iterator[Path]:
    """Yield everything in a folder, links not followed; a folder that cannot be read is an ``OSError``."""
    waiting = [folder]
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in entries:
                yield Path(entry.path)
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))


# --- repositories --------------------------------------------------------------------------------------------------


def placeholders(ref: str) -> list[str]:
    """Return the names in braces of a ``ref``."""
    return _PLACEHOLDER.findall(ref)


def ref_of(workspace: Workspace, cell: Cell) -> str:
    """Return what is checked out for a cell.

    Raises:
        ValueError: the cell has no value for a placeholder, or what comes of it names no commit.
    """
    missing = [name for name in placeholders(workspace.ref) if name not in cell]
    if missing:
        raise ValueError(f"there is no value for {{{missing[0]}}}")
    ref = _PLACEHOLDER.sub(lambda found: cell[found[1]], workspace.ref)
    # A dash would begin an option of git, and a colon or a blank say more than what is to be checked out.
    if not ref or ref.startswith(("-", "+")) or not ref.isprintable() or ":" in ref or " " in ref:
        raise ValueError(f"{ref!r} names no commit, tag or branch")
    return ref


def _check_out(repository: str, ref: str, folder: Path, cache: Path) -> None:
    """Make a folder a clone of a repository, with one commit checked out."""
    cache.mkdir(parents=True, exist_ok=True)
    mirror = cache / f"{sha256(repository.encode()).hexdigest()[:MIRROR_DIGITS]}.git"
    with FileLock(str(mirror.with_suffix(".lock"))) as lock:
        if not lock.acquire(timeout_seconds=LOCK_SECONDS):
            raise WorkspaceFailed(f"The mirror '{mirror}' of {repository} has been in use for {LOCK_SECONDS:g} s.")
        commit = _Mirror(mirror, repository, lock).commit(ref)
        # Under the lock as well: what is linked file by file must not be added to meanwhile.
        _clone(mirror, commit, folder, lock)
    _forget_the_rest(folder, commit)
    for name, value in AUTHOR.items():
        _git("config", name, value, folder=folder)
    _git("checkout", "--quiet", "--detach", commit, folder=folder)


class _Mirror:
    """A bare repository that holds the branches and tags of another; used under its lock alone."""

    def __init__(self, path: Path, repository: str, lock: FileLock) -> None:
        self._path = path
        self._repository = repository
        self._lock = lock
        self._stamp = path.with_suffix(".fetched")

    def commit(self, ref: str) -> str:
        """Return the id of the commit that a ref names, after a fetch if it is not known or may have moved.

        Raises:
            WorkspaceFailed: the repository cannot be reached, or has no such commit.
        """
        self._remove_leftovers()
        fetched = self._fetched_at() if self._path.exists() else None
        if fetched is None:
            self._begin()
        commit = None if fetched is None else self._find(ref)
        fresh = fetched is not None and 0 <= time.time() - fetched < FRESH_SECONDS
        if not (fresh or (commit and self._stays(ref, commit))):
            self._fetch()
            commit = self._find(ref)
        if commit is None:
            commit = self._fetch_alone(ref)
        if self._find(f"{_PINS}{commit}") is None:
            # It may be asked for again, whatever becomes of the branch that led to it.
            self._git("update-ref", f"{_PINS}{commit}", commit)
        return commit

    def _begin(self) -> None:
        # Whatever an interrupted beginning has left is taken over.
        init = ("init", "--quiet", "--bare", "--template=", f"--initial-branch={_NO_BRANCH}", str(self._path))
        _git(*init, folder=self._path.parent, lock=self._lock)
        settings = {
            # Nothing is ever removed from it, and no housekeeping begins behind the back of the lock.
            "gc.auto": "0",
            "gc.pruneExpire": "never",
            "maintenance.auto": "false",
            "fetch.unpackLimit": "1",
            "remote.origin.url": self._repository,
        }
        for name, value in settings.items():
            self._git("config", name, value)

    def _fetched_at(self) -> float | None:
        try:
            return self._stamp.stat().st_mtime
        except FileNotFoundError:
            return None

    def _find(self, ref: str) -> str | None:
        try:
            return self._git("rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")
        except WorkspaceFailed:
            return None

    def _stays(self, ref: str, commit: str) -> bool:
        """Return whether a ref cannot mean another commit later: an id, or a tag."""
        if _COMMIT.fullmatch(ref) and commit.startswith(ref):
            return True
        return self._find(f"refs/tags/{ref.removeprefix('refs/tags/')}") is not None

    def _fetch(self) -> None:
        self._fetch_refs("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*", options=("--prune",))
        # Apart, because the HEAD of a repository may lead nowhere.
        with suppress(WorkspaceFailed):
            self._fetch_refs(f"+HEAD:{_HEAD}")
            # So that HEAD, HEAD~1 and @ mean what they mean in the repository.
            self._git("update-ref", "--no-deref", "HEAD", _HEAD)
        self._stamp.touch()

    def _fetch_alone(self, ref: str) -> str:
        """Fetch what no branch or tag leads to, such as the head of a pull request, or a commit by its id."""
        try:
            self._fetch_refs(f"+{ref}:{_ASKED}")
        except WorkspaceFailed as error:
            message = f"'{ref}' is no commit, tag or branch of {self._repository}: {error.message}"
            raise WorkspaceFailed(message) from None
        return self._git("rev-parse", "--verify", f"{_ASKED}^{{commit}}")

    def _fetch_refs(self, *refs: str, options: tuple[str, ...] = ()) -> None:
        always = ("--quiet", "--force", "--no-tags", "--no-write-fetch-head", "--no-recurse-submodules")
        self._git("fetch", *always, "--update-shallow", *options, "origin", *refs)

    def _remove_leftovers(self) -> None:
        """Remove the lock files of a git that was killed; one that lives holds our lock."""
        for path in [*self._path.glob("*.lock"), *(self._path / "refs").rglob("*.lock")]:
            with suppress(FileNotFoundError):
                if time.time() - path.stat().st_mtime > LEFT_SECONDS:
                    path.unlink()

    def _git(self, *arguments: str) -> str:
        return _git(*arguments, folder=self._path, lock=self._lock)


def _clone(mirror: Path, commit: str, folder: Path, lock: FileLock) -> None:
    try:
        options = ("--quiet", "--no-checkout", "--local", "--template=")
        _git("clone", *options, str(mirror), str(folder), folder=mirror.parent, lock=lock)
    except WorkspaceFailed:
        # Somebody may be packing the mirror by hand. Through git's protocol that does no harm; it only takes longer.
        discard(folder)
        _git("init", "--quiet", "--template=", str(folder), folder=mirror.parent, lock=lock)
        fetch = ("fetch", "--quiet", "--no-write-fetch-head", "--update-shallow")
        _git(*fetch, str(mirror), f"{_PINS}{commit}", folder=folder, lock=lock)


def _forget_the_rest(folder: Path, commit: str) -> None:
    """Remove every ref of a clone but the tags that lie in the history of a commit, and the remote."""
    refs = _git("for-each-ref", "--format=%(refname)", folder=folder).split()
    tags = set(_git("for-each-ref", "--format=%(refname)", f"--merged={commit}", "refs/tags", folder=folder).split())
    doomed = "".join(f"delete {ref}\n" for ref in refs if ref not in tags)
    # The remote's HEAD is a symbolic ref, and is removed itself.
    _git("update-ref", "--no-deref", "--stdin", folder=folder, given=doomed)
    if _git("remote", folder=folder):
        _git("remote", "remove", "origin", folder=folder)


def _git(*arguments: str, folder: Path, given: str = "", lock: FileLock | None = None) -> str:
    """Run git in a folder and return what it prints.

    Args:
        given: what it reads.
        lock: what it holds together with us, so that nobody else begins while it goes on without us.

    Raises:
        WorkspaceFailed: it failed, took too long or is not there; with the last line of what it said.
    """
    argv = ["git", "-c", f"core.hooksPath={os.devnull}", "-c", "advice.detachedHead=false", *arguments]
    try:
        process = subprocess.Popen(
            argv,
            cwd=folder,
            env=_environment(os.environ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
            pass_fds=() if lock is None else (lock.descriptor,),
        )
    except FileNotFoundError as error:
        hint = "install git on every host that drives trials"
        raise WorkspaceFailed(f"git could not be started in '{folder}': {_said(error)}", hint=hint) from error
    try:
        printed, complaint = process.communicate(given, timeout=GIT_SECONDS)
    except subprocess.TimeoutExpired:
        raise WorkspaceFailed(f"git {arguments[0]} took longer than {GIT_SECONDS:g} s.") from None
    finally:
        if process.poll() is None:
            # It has helpers, such as ssh, which would go on without it.
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
    if process.returncode:
        lines = [line.strip() for line in complaint.splitlines() if line.strip()]
        raise WorkspaceFailed(f"git {arguments[0]} failed: {lines[-1] if lines else f'status {process.returncode}'}")
    return printed.strip()


def _environment(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of git: ours, but nothing asks, and nothing speaks of another repository."""
    kept = {name: value for name, value in environ.items() if name not in _OF_ANOTHER_REPOSITORY}
    return {
        "GIT_SSH_COMMAND": "ssh -oBatchMode=yes",
        **kept,
        "GIT_TERMINAL_PROMPT": "0",
        "GIT_LFS_SKIP_SMUDGE": "1",
        "LC_ALL": "C",
    }
