"""Which paths lie below which folders, once every symbolic link has been followed: the rule of workspace roots.

What is asked here is asked on the host where the path is used, at the moment of its use: a link may lead elsewhere on
another host, and later. This module imports nothing but ``os``, because whoever creates runs asks the same question.
"""

from __future__ import annotations

import os
from collections.abc import Sequence


def within_roots(path: str, roots: Sequence[str]) -> bool:
    """Return whether a path leads to one of the roots or to something below one.

    Args:
        path: an absolute path; what does not exist of it is taken as it is written.
        roots: absolute paths, which may be symbolic links themselves.
    """
    resolved = os.path.realpath(path)
    return any(is_below(resolved, os.path.realpath(root)) for root in roots)


def outside_roots(what: str, path: str, roots: Sequence[str]) -> str:
    """Return the sentence on a path that is not within the roots: where it leads, and what the roots are.

    Args:
        what: what the path is, such as ``the workspace``.
    """
    resolved = os.path.realpath(path)
    leads = "" if resolved == path else f" leads to {resolved}, which"
    return f"{what} {path}{leads} is not below a workspace root (roots: {', '.join(roots)})"


def is_below(path: str, folder: str) -> bool:
    """Return whether a resolved path is a resolved folder, or lies below it."""
    return path == folder or path.startswith(folder.rstrip("/") + "/")
