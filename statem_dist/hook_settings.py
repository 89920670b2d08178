"""The settings files of agent hosts, and how our Stop hook gets into them without anything else getting lost.

Claude Code and Codex share one shape: ``hooks.Stop`` is a list of groups, each with a list of ``hooks``. Our hook is
added as a group of its own, at the end. All other keys and their order stay as they were.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from statem_dist.errors import Invalid
from statem_dist.files import write_whole
from statem_dist.stophook import Host

HOOK_SECONDS = 10
"""How long a host waits for the hook, which answers in less than half of that."""

_FILES = {"claude": (".claude", "settings.json"), "codex": (".codex", "hooks.json")}
_HOMES = {"claude": "CLAUDE_CONFIG_DIR", "codex": "CODEX_HOME"}
_OURS = re.compile(r"\bstatem[-_]dist\b.*\bhook stop\b")


def settings_file(host: Host, environ: Mapping[str, str], *, user: bool) -> Path:
    """Return the settings file of a host: that of the user, or that of the project in the working directory.

    Args:
        host: the agent host.
        environ: usually ``os.environ``; a host's own variable may name another folder for a user's settings.
        user: which of the two.
    """
    folder, name = _FILES[host]
    if not user:
        return Path.cwd() / folder / name
    home = environ.get(_HOMES[host])
    return (Path(home) if home else Path.home() / folder) / name


def read(path: Path) -> str:
    """Return the text of a settings file; a missing one is empty.

    Raises:
        Invalid: it cannot be read, or it is no UTF-8.
    """
    try:
        return path.read_bytes().decode()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        raise Invalid(f"{path} cannot be read: {error}.") from error


def with_stop_hook(text: str, path: Path, command: str) -> str:
    """Return a settings file with our Stop hook in it; the same text if it is there already.

    Args:
        text: the file as it is.
        path: what to call it in messages.
        command: the command line of the hook.

    Raises:
        Invalid: the file is no JSON object, or its hooks are of another shape. It is not touched then.
    """
    settings = _parsed(text, path)
    hooks = settings.setdefault("hooks", {})
    if not isinstance(hooks, dict):
        raise _of_another_shape(path, "hooks", "an object")
    groups = hooks.setdefault("Stop", [])
    if not isinstance(groups, list):
        raise _of_another_shape(path, "hooks.Stop", "a list")
    if any(_is_ours(hook, command) for group in groups if isinstance(group, dict) for hook in _hooks_of(group)):
        return text
    groups.append({"hooks": [{"type": "command", "command": command, "timeout": HOOK_SECONDS}]})
    indent = re.search(r"^[ \t]+(?=\S)", text, re.MULTILINE)
    written = json.dumps(settings, ensure_ascii=text.isascii(), indent=indent[0] if indent else 2)
    if not text.strip() or text.endswith("\n"):
        written += "\n"
    return written.replace("\n", "\r\n") if "\r\n" in text else written


def difference(before: str, after: str, path: Path) -> str:
    """Return a unified diff of a settings file, without its last line end; empty if nothing changes."""
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), str(path), str(path), lineterm="")
    return "\n".join(lines)


def write(path: Path, text: str) -> None:
    """Write a settings file, whole or not at all; its permissions stay, and a link to it stays a link.

    Raises:
        Invalid: it cannot be written; the old one is still there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, text)
    except (OSError, UnicodeEncodeError) as error:
        raise Invalid(f"{path} cannot be written: {error}.", hint="Nothing was changed.") from error


def _parsed(text: str, path: Path) -> dict[str, Any]:
    if not text.strip():
        return {}
    try:
        settings = json.loads(text, object_pairs_hook=_without_duplicates)
    except json.JSONDecodeError as error:
        raise Invalid(
            f"{path}:{error.lineno}:{error.colno}: is no JSON: {error.msg}.", hint="Mend it first; it was not touched."
        ) from error
    except (ValueError, RecursionError) as error:
        raise Invalid(f"{path}: {error}.", hint="Mend it first; it was not touched.") from error
    if not isinstance(settings, dict):
        line = text[: len(text) - len(text.lstrip())].count("\n") + 1
        raise Invalid(f"{path}:{line}: must be a JSON object.", hint="Mend it first; it was not touched.")
    return settings


def _without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f"the key {twice!r} is given twice, and one of them would get lost")
    return found


def _of_another_shape(path: Path, key: str, kind: str) -> Invalid:
    return Invalid(f"{path}: {key} must be {kind}.", hint="Mend it first; it was not touched.")


def _hooks_of(group: dict[str, Any]) -> list[Any]:
    hooks = group.get("hooks")
    return hooks if isinstance(hooks, list) else []


def _is_ours(hook: Any, command: str) -> bool:
    """Return whether a hook is the given one, or calls this tool in another way."""
    found = hook.get("command") if isinstance(hook, dict) else None
    return isinstance(found, str) and (found == command or _OURS.search(found) is not None)
