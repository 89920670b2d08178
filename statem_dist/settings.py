"""Named limits and settings, with their units and reasons, in one frozen value that is passed and not fetched.

``Settings.from_environment`` is called once, by ``main`` of a command or by the worker's start; everything else
receives the value.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from msgspec import Struct

from statem_dist.durability import EVERYSEC, Durability, read_durability
from statem_dist.errors import Usage
from statem_dist.limits import read_limits
from statem_dist.protocol.graph import NO_LIMITS, ResourceLimits, Sandbox

REDIS_SCHEMES = ("redis", "rediss", "unix", "redis+sentinel", "rediss+sentinel", "redis+cluster", "rediss+cluster")
"""Schemes of the URLs by which a Redis can be reached."""

RISKS = ("eviction", "durability")
"""What may be accepted by name, where a service would not begin because of it."""


class Settings(Struct, frozen=True):
    """How one process works. Times are seconds, sizes are bytes."""

    state_dir: Path
    """Directory of the embedded instance and of everything local."""

    redis_url: str | None = None
    """State store; None means the embedded instance of ``state_dir``."""

    broker_url: str | None = None
    """Celery broker; None means the state store's Redis."""

    lease_seconds: float = 30.0
    """How long a silent worker keeps its claim. Longer than a Redis restart, shorter than anyone's patience."""

    hint_grace_seconds: float = 5.0
    """How long dispatched work may lie unclaimed in an empty queue before its message counts as lost."""

    patience_seconds: float = 5.0
    """How long a caller retries an unreachable store before it gives up; workers wait longer."""

    conflict_attempts_max: int = 16
    """Decisions tried anew after somebody else was faster, before the caller is told so."""

    history_events_max: int = 100_000
    """``STATEM_HISTORY_EVENTS_MAX``: events of a run from which on it begins nothing more: some 35 MB of Redis."""

    kill_grace_seconds: float = 2.0
    """Between SIGTERM and SIGKILL for a command that is ended."""

    idle_stop_seconds: float = 900.0
    """After how long without a command the embedded server stops itself."""

    durability: Durability = EVERYSEC
    """How safe a commit is before whoever asked for it is told so."""

    accepted_risks: tuple[str, ...] = ()
    """Which of ``RISKS`` are accepted."""

    reviewer_command: str | None = None
    """``STATEM_LLM_REVIEW_CMD``: the host's reviewer for ``llm_review`` checks without a command of their own."""

    flower_basic_auth: str | None = None
    """``STATEM_FLOWER_BASIC_AUTH``: the user name and password that Flower asks for, as ``user:password``."""

    workspace_roots: tuple[str, ...] = ()
    """Absolute paths; what a check works in or looks at must lie below one of them. None at all: anywhere."""

    limits: ResourceLimits = NO_LIMITS
    """Limits of every command that is executed here; a runbook may be stricter."""

    sandbox: Sandbox | None = None
    """The sandbox that every command is executed in here; its ``network`` says whether a runbook may ask for that."""

    sandbox_binds: tuple[str, ...] = ()
    """Absolute paths that are there in a sandbox, to be read, besides those that every sandbox has."""

    retain_days: float | None = None
    """``STATEM_RETAIN_DAYS``: days after which a run that has ended leaves the store; None means never."""

    retain_runs: int | None = None
    """``STATEM_RETAIN_RUNS``: how many ended runs stay that were created last, whatever their age; None: no number."""

    archive_dir: Path | None = None
    """``STATEM_ARCHIVE_DIR``: where runs go that leave the store. None: retention removes them for good."""

    @classmethod
    def from_environment(cls, environ: Mapping[str, str], *, state_dir: str | None = None) -> Settings:
        """Read the settings from environment variables.

        Args:
            environ: usually ``os.environ``.
            state_dir: overrides ``STATEM_STATE_DIR``; the default is ``.statem``.

        Raises:
            Usage: a variable holds something else than a positive number, no URL of a Redis, no limits,
                or no sandbox, level of durability or risk that there is.
        """
        return cls(
            state_dir=Path(state_dir or environ.get("STATEM_STATE_DIR") or ".statem").expanduser().absolute(),
            redis_url=_redis_url(environ.get("STATEM_REDIS_URL")),
            broker_url=environ.get("STATEM_BROKER_URL") or None,
            lease_seconds=_seconds(environ, "STATEM_LEASE_SECONDS", 30.0),
            hint_grace_seconds=_seconds(environ, "STATEM_HINT_GRACE_SECONDS", 5.0),
            patience_seconds=_seconds(environ, "STATEM_PATIENCE_SECONDS", 5.0),
            history_events_max=_whole(environ, "STATEM_HISTORY_EVENTS_MAX", 100_000),
            idle_stop_seconds=_seconds(environ, "STATEM_IDLE_STOP_SECONDS", 900.0),
            durability=read_durability(environ.get("STATEM_DURABILITY")),
            accepted_risks=_risks(environ.get("STATEM_ACCEPT_RISKS")),
            reviewer_command=environ.get("STATEM_LLM_REVIEW_CMD") or None,
            flower_basic_auth=environ.get("STATEM_FLOWER_BASIC_AUTH") or None,
            workspace_roots=_paths(environ.get("STATEM_WORKSPACE_ROOTS")),
            limits=_limits(environ.get("STATEM_LIMITS")),
            sandbox=_sandbox(environ.get("STATEM_SANDBOX")),
            sandbox_binds=_paths(environ.get("STATEM_SANDBOX_BINDS")),
            retain_days=_days(environ.get("STATEM_RETAIN_DAYS")),
            retain_runs=_count(environ.get("STATEM_RETAIN_RUNS")),
            archive_dir=_folder(environ.get("STATEM_ARCHIVE_DIR")),
        )

    @property
    def embedded(self) -> bool:
        """Whether the state lives in the embedded instance of the state directory."""
        return self.redis_url is None

    @property
    def on_cluster(self) -> bool:
        """Whether the state lives in a Redis Cluster."""
        return self.redis_url is not None and "+cluster://" in self.redis_url


def _redis_url(url: str | None) -> str | None:
    """Return the URL of the state store. The complaint shows no more than its scheme: the rest may hold a password."""
    if not url:
        return None
    scheme, sign, _ = url.partition("://")
    if sign and scheme.lower() in REDIS_SCHEMES:
        return url
    given = f"a URL of {scheme!r}" if sign else "a text without a scheme"
    schemes = ", ".join(f"{known}://" for known in REDIS_SCHEMES)
    raise Usage(f"STATEM_REDIS_URL must begin with one of {schemes}; it is {given}.")


def _seconds(environ: Mapping[str, str], name: str, default: float) -> float:
    text = environ.get(name)
    if not text:
        return default
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 < value < float("inf"):
        raise Usage(f"{name} must be a positive number of seconds, not {text!r}.")
    return value


def _days(text: str | None) -> float | None:
    if not text:
        return None
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise Usage(
            f"STATEM_RETAIN_DAYS must be a number of days, not {text!r}.", hint="Unset it to keep runs for ever."
        )
    return value


def _count(text: str | None) -> int | None:
    if not text:
        return None
    if not text.isdecimal():
        raise Usage(f"STATEM_RETAIN_RUNS must be a whole number, not {text!r}.", hint="Unset it to keep all runs.")
    return int(text)


def _folder(text: str | None) -> Path | None:
    return Path(text).expanduser().absolute() if text else None


def _whole(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name)
    if not text:
        return default
    if not text.isascii() or not text.isdigit() or int(text) == 0:
        raise Usage(f"{name} must be a positive whole number, not {text!r}.")
    return int(text)


def _paths(text: str | None) -> tuple[str, ...]:
    return tuple(os.path.abspath(path) for path in (text or "").split(os.pathsep) if path)


def _risks(text: str | None) -> tuple[str, ...]:
    names = tuple(name.strip() for name in (text or "").split(",") if name.strip())
    if unknown := [name for name in names if name not in RISKS]:
        raise Usage(f"STATEM_ACCEPT_RISKS knows no {unknown[0]!r}.", hint=f"Use {', '.join(RISKS)}.")
    return names


def _limits(text: str | None) -> ResourceLimits:
    try:
        return ResourceLimits(**read_limits((text or "").split(",")))
    except ValueError as error:
        raise Usage(f"A limit cannot be used: {error}.", hint="Such as memory=2G,cpu=600.") from None


def _sandbox(text: str | None) -> Sandbox | None:
    if not text:
        return None
    words = [word.strip() for word in text.split(",")]
    if words == ["bwrap"] or words == ["bwrap", "network"]:
        return Sandbox(network="network" in words)
    raise Usage(
        f"There is no sandbox {text!r}.", hint="Use bwrap, or bwrap,network to let runbooks ask for the network."
    )
