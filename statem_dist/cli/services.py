"""Commands that run things: ``up``, ``down``, ``worker``, ``doctor``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from typing import Annotated

from statem_dist.cli.answer import Answer
from statem_dist.cli.declare import Option
from statem_dist.cli.session import JsonOption, StateDirOption, store_url, variables_here
from statem_dist.errors import ExitCode
from statem_dist.settings import Settings

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

STOP_SECONDS = 10.0
"""How long the worker of ``up`` may take to end beyond the grace of its checks."""

QueuesOption = Annotated[str, Option("--queues", "-Q", metavar="NAMES", help="Queues to serve, separated by commas.")]
ConcurrencyOption = Annotated[
    int | None, Option("--concurrency", "-c", metavar="N", min=1, help="Slots (default: two per core).")
]
PassEnvOption = Annotated[
    list[str] | None,
    Option("--pass-env", metavar="NAME", help="Hand this variable to commands; repeatable."),
]
RootsOption = Annotated[
    list[str] | None,
    Option("--workspace-root", metavar="DIR", help="Checks stay below this folder; repeatable."),
]
LimitsOption = Annotated[
    list[str] | None,
    Option("--limit", metavar="NAME=VALUE", help="Of memory, cpu, processes or files, for each command; repeatable."),
]
SandboxOption = Annotated[
    str | None,
    Option("--sandbox", metavar="KIND", help="bwrap: execute every command in one; bwrap,network: it may have that."),
]
BindsOption = Annotated[
    list[str] | None,
    Option("--sandbox-bind", metavar="PATH", help="Is there in a sandbox, to be read; repeatable."),
]
GraceOption = Annotated[
    float, Option("--grace", metavar="SECONDS", min=0, help="For running checks when it is stopped.")
]


def worker(
    queues: QueuesOption = "checks,llm",
    concurrency: ConcurrencyOption = None,
    pool: Annotated[str, Option("--pool", help="threads, prefork or solo.")] = "threads",
    pass_env: PassEnvOption = None,
    grace: GraceOption = 30.0,
    events: Annotated[bool, Option("--events", help="Send task events, for Flower.")] = False,
    log_level: Annotated[
        str, Option("--log-level", metavar="LEVEL", help="DEBUG, INFO, WARNING, ERROR or CRITICAL.")
    ] = "INFO",
    workspace_root: RootsOption = None,
    limit: LimitsOption = None,
    sandbox: SandboxOption = None,
    sandbox_bind: BindsOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Run a worker in the foreground; SIGTERM or Ctrl-C lets running checks end and hands the rest back.

    Example: statem-dist worker -Q checks -c 8
    """
    environ = with_policy(os.environ, workspace_root, limit, sandbox, sandbox_bind)
    settings = Settings.from_environment(environ, state_dir=state_dir)
    arguments = worker_arguments(
        queues=queues,
        concurrency=concurrency,
        pool=pool,
        pass_env=pass_env,
        grace=grace,
        events=events,
        log_level=log_level,
    )
    os.execve(sys.executable, arguments, worker_environ(environ, settings, store_url(settings)))


def up(
    queues: QueuesOption = "checks,llm",
    concurrency: ConcurrencyOption = None,
    pass_env: PassEnvOption = None,
    grace: GraceOption = 5.0,
    workspace_root: RootsOption = None,
    limit: LimitsOption = None,
    sandbox: SandboxOption = None,
    sandbox_bind: BindsOption = None,
    state_dir: StateDirOption = None,
) -> int:
    """Run the embedded Redis and a worker in the foreground, until Ctrl-C.

    Example: statem-dist up -c 8
    """
    from statem_dist.embedded import foreground, server
    from statem_dist.embedded.stack import Service, run_foreground

    environ = with_policy(os.environ, workspace_root, limit, sandbox, sandbox_bind)
    settings = Settings.from_environment(environ, state_dir=state_dir)
    arguments = worker_arguments(
        queues=queues,
        concurrency=concurrency,
        pool="threads",
        pass_env=pass_env,
        grace=grace,
        events=False,
        log_level="INFO",
    )

    def serve(redis_url: str, *before: Service) -> int:
        print("Submit from another terminal, for example: statem-dist start runbook.yaml", flush=True)
        worker = Service(name="worker", argv=arguments, env=worker_environ(environ, settings, redis_url))
        return run_foreground([*before, worker], out=sys.stdout, grace_seconds=grace + STOP_SECONDS)

    if settings.redis_url is not None:
        return serve(settings.redis_url)
    with foreground.only_here(settings.state_dir):
        endpoint = server.ensure(settings.state_dir, idle_stop_seconds=0)
        attend = [sys.executable, "-m", "statem_dist.embedded.attend", str(settings.state_dir)]
        try:
            print(f"State: {settings.state_dir}  ({server.status(settings.state_dir).product} on {endpoint.socket})")
            return serve(endpoint.redis_url, Service(name="redis", argv=attend))
        finally:
            server.stop(settings.state_dir)


def down(state_dir: StateDirOption = None, as_json: JsonOption = False) -> Answer:
    """Stop the embedded Redis of a state directory, and the ``up`` that runs on it; its data stays.

    Example: statem-dist down
    """
    from statem_dist.embedded import foreground, server

    settings = Settings.from_environment(os.environ, state_dir=state_dir)
    ended = foreground.ask_to_stop(settings.state_dir)
    if ended is not None:
        print(f"Asked `statem-dist up` (process {ended}) to stop; running checks get its grace.", file=sys.stderr)
        foreground.wait_until_stopped(settings.state_dir)
    stopped = server.stop(settings.state_dir) or ended is not None
    told = "Stopped." if stopped else "Nothing was running."
    if ended is not None:
        told = f"Stopped, and with it `statem-dist up` (process {ended})."
    return Answer({"ok": True, "stopped": stopped, "up_pid": ended, "state_dir": str(settings.state_dir)}, lambda: told)


def doctor(state_dir: StateDirOption = None, as_json: JsonOption = False) -> Answer:
    """Look at everything that has to be right, and say how to mend what is not.

    Example: statem-dist doctor
    """
    from statem_dist.diagnosis import diagnose

    settings = Settings.from_environment(os.environ, state_dir=state_dir)
    findings = diagnose(settings)
    healthy = all(finding.level != "error" for finding in findings)
    data = {
        "ok": healthy,
        "state_dir": str(settings.state_dir),
        "findings": [
            {"level": each.level, "what": each.what, "found": each.found, "fix": each.fix} for each in findings
        ],
    }
    marks = {"ok": "✓", "warning": "!", "error": "✗"}

    def as_text() -> str:
        return "\n".join(
            f"{marks[each.level]} {each.what}: {each.found}" + (f"\n    {each.fix}" if each.fix else "")
            for each in findings
        )

    if healthy:
        return Answer(data, as_text)
    return Answer(data, as_text, ExitCode.ERROR, "Something is not right; see the lines marked ✗.")


def worker_arguments(
    *,
    queues: str,
    concurrency: int | None,
    pool: str,
    pass_env: list[str] | None,
    grace: float,
    events: bool,
    log_level: str,
) -> list[str]:
    """Return the command line of a worker process.

    Raises:
        Usage: an option has a value that cannot be honoured.
    """
    import json

    from statem_dist.errors import Usage

    names = tuple(name.strip() for name in queues.split(",") if name.strip())
    if not names:
        raise Usage("-Q needs at least one queue name.")
    if log_level.upper() not in LOG_LEVELS:
        raise Usage(f"--log-level must be one of {', '.join(LOG_LEVELS)}, not {log_level!r}.")
    options = {
        "queues": names,
        "concurrency": concurrency or 2 * (os.cpu_count() or 1),
        "pool": pool,
        "pass_env": tuple(variables_here(pass_env)),
        "grace_seconds": grace,
        "events": events,
        "log_level": log_level.upper(),
    }
    return [sys.executable, "-m", "statem_workers", json.dumps(options)]


def with_policy(
    environ: Mapping[str, str],
    roots: list[str] | None,
    limits: list[str] | None,
    sandbox: str | None,
    binds: list[str] | None,
) -> dict[str, str]:
    """Return an environment in which the options of a worker's policy stand in place of the variables of the same."""
    given = {
        "STATEM_WORKSPACE_ROOTS": os.pathsep.join(roots) if roots else None,
        "STATEM_LIMITS": ",".join(limits) if limits else None,
        "STATEM_SANDBOX": sandbox,
        "STATEM_SANDBOX_BINDS": os.pathsep.join(binds) if binds else None,
    }
    return {**environ, **{name: value for name, value in given.items() if value is not None}}


def worker_environ(environ: Mapping[str, str], settings: Settings, redis_url: str) -> dict[str, str]:
    """Return the environment of a worker process; the URL of the store goes here, where ``ps`` does not show it."""
    return {**environ, "STATEM_STATE_DIR": str(settings.state_dir), "STATEM_REDIS_URL": redis_url}
