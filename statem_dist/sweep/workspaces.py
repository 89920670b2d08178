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
import stat
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path

from statem_dist.errors import StatemError
from statem_dist.sweep.model import Cell, Workspace

GIT_SECONDS = 600.0
"""How long one git command may take. A first fetch of a large repository takes minutes."""

FRESH_SECONDS = 60.0
"""How long a branch is taken to be where it was when it was fetched."""

_PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
_COMMIT = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
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
        "GIT_REPLACE_REF_BASE",
        "GIT_SHALLOW_FILE",
        "GIT_TEMPLATE_DIR",
        "GIT_WORK_TREE",
    }
)
"""Variables by which git finds a repository; a worker that was started by a hook of one has them."""


class WorkspaceFailed(StatemError):
    """A workspace that could not be made or removed; it says nothing about the agent, and no caller ever sees it."""


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
    if not ref or ref.startswith("-") or not ref.isprintable() or ":" in ref or " " in ref:
        raise ValueError(f"{ref!r} names no commit, tag or branch")
    return ref


def digest_of(folder: Path) -> str:
    """Return a digest of everything in a folder: names, kinds, permissions, contents, and where links lead.

    Raises:
        OSError: something in it cannot be read.
    """
    digest = sha256()
    for path in sorted(_entries(folder)):
        found = path.lstat()
        digest.update(f"{len(os.fsencode(path.relative_to(folder)))}:".encode())
        digest.update(os.fsencode(path.relative_to(folder)))
        digest.update(f":{stat.S_IFMT(found.st_mode):o}:".encode())
        if stat.S_ISLNK(found.st_mode):
            content = sha256(os.fsencode(path.readlink())).digest()
        else:
            digest.update(f"{stat.S_IMODE(found.st_mode):o}:".encode())
            content = _content(path) if stat.S_ISREG(found.st_mode) else b""
        digest.update(content)
    return digest.hexdigest()


def _content(path: Path) -> bytes:
    import hashlib

    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def _entries(folder: Path) -> Iterator[Path]:
    """Yield everything in a folder, links not followed; a folder that cannot be read is an ``OSError``."""
    waiting = [folder]
    while waiting:
        for entry in os.scandir(waiting.pop()):
            yield Path(entry.path)
            if entry.is_dir(follow_symlinks=False):
                waiting.append(Path(entry.path))


def prepare(workspace, cell, folder, cache):
    folder.mkdir(parents=True)


def discard(folder):
    import shutil
    shutil.rmtree(folder)
