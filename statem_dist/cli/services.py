"""Commands that run things: ``up``, ``down``, ``worker``, ``api``, ``flower``, ``doctor``."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

from statem_dist.cli.answer import Answer
from statem_dist.cli.declare import Option
from statem_dist.cli.session import JsonOption, StateDirOption, service_for, store_url, variables_here
from statem_dist.errors import ExitCode
from statem_dist.settings import Settings

LOG_LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")

STOP_SECONDS = 10.0
"""How long the worker of ``up`` may take to end beyond the grace of its checks."""

FLOWER_PORT = 5555
"""Flower's own default."""

BODY_LIMIT_MIB = 8
"""The largest body of a request to the REST API: a thousand runs in one, or the file of a run with 30,000 events."""

QueuesOption = Annotated[str, Option("--queues", "-Q", metavar="NAMES", help="Queues to serve, separated by commas.")]
ConcurrencyOption = Annotated[
    int | None, Option("--concurrency", "-c", metavar="N", min=1, help="Slots (default: two per core).")
]
PassEnvOption = Annotated[
    list[str] | None,
    Option("--pass-env", metavar="NAME", help="Hand this variable to commands; repeatable."),
]
InheritEnvOption = Annotated[
    bool, Option("--inherit-env", help="Hand the whole environment to commands, but for secrets of this tool.")
]
LogLevelOption = Annotated[str, Option("--log-level", metavar="LEVEL", help="DEBUG, INFO, WARNING, ERROR or CRITICAL.")]
HostOption = Annotated[
    str, Option("--host", metavar="ADDRESS", help="Where to listen; beyond this host only with tokens.")
]
RegisteredOnlyOption = Annotated[
    bool, Option("--registered-only", help="Start runs only from runbooks that an admin has registered.")
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
    inherit_env: InheritEnvOption = False,
    grace: GraceOption = 30.0,
    until_done: Annotated[
        bool, Option("--until-done", help="End when its starter is gone and no sweep has work left.")
    ] = False,
    events: Annotated[bool, Option("--events", help="Send task events, for Flower.")] = False,
    log_level: LogLevelOption = "INFO",
    workspace_root: RootsOption = None,
    limit: LimitsOption = None,
    sandbox: SandboxOption = None,
    sandbox_bind: BindsOption = None,
    state_dir: StateDirOption = None,
) -> None:
    """Run a worker in the foreground; SIGTERM or Ctrl-C lets running checks end and hands the rest back.

    Trials of sweeps wait in the queue `trials`, and occupy a slot for as long as they take: give them workers of their
    own.

    Example: statem-dist worker -Q trials -c 16
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
        inherit_env=inherit_env,
        until_done=until_done,
    )
    os.execve(sys.executable, arguments, service_environ(environ, settings, store_url(settings)))


def api(
    host: HostOption = "127.0.0.1",
    port: Annotated[int, Option("--port", metavar="N", min=0, max=65535, help="0 takes a free one.")] = 8080,
    registered_only: RegisteredOnlyOption = False,
    workspaces: Annotated[
        Path | None,
        Option("--workspaces", metavar="DIR", help="Where runs without a workspace get a folder each."),
    ] = None,
    body_limit: Annotated[
        int, Option("--body-limit", metavar="MIB", min=1, max=4096, help="The largest body of a request.")
    ] = BODY_LIMIT_MIB,
    log_level: LogLevelOption = "INFO",
    state_dir: StateDirOption = None,
) -> None:
    """Serve the REST API in the foreground; SIGTERM or Ctrl-C lets requests end.

    Example: statem-dist api --port 8080
    """
    settings = Settings.from_environment(os.environ, state_dir=state_dir)
    arguments = api_arguments(
        host=host,
        port=port,
        registered_only=registered_only,
        workspaces=workspaces,
        log_level=log_level,
        body_limit=body_limit,
    )
    os.execve(sys.executable, arguments, service_environ(os.environ, settings, store_url(settings)))


def flower(
    address: Annotated[str, Option("--address", metavar="ADDRESS", help="Where it listens.")] = "127.0.0.1",
    port: Annotated[int, Option("--port", metavar="PORT", min=0, max=65535, help="0 takes a free one.")] = FLOWER_PORT,
    state_dir: StateDirOption = None,
) -> None:
    """Run Flower, the dashboard of Celery, in the foreground; workers show it what they do with --events.

    Example: statem-dist flower --port 5555
    """
    settings = Settings.from_environment(os.environ, state_dir=state_dir)
    arguments = flower_arguments(address, port)
    os.execve(sys.executable, arguments, service_environ(os.environ, settings, store_url(settings)))


def up(
    queues: QueuesOption = "checks,llm",
    concurrency: ConcurrencyOption = None,
    trials: Annotated[
        int | None,
        Option("--trials", metavar="N", min=0, help="Slots for trials of sweeps (default: two per core; 0: none)."),
    ] = None,
    pass_env: PassEnvOption = None,
    grace: GraceOption = 5.0,
    port: Annotated[
        int | None,
        Option("--port", metavar="N", min=0, max=65535, help="Of the REST API (default: 8080, or a free one)."),
    ] = None,
    with_api: Annotated[bool, Option("--api/--no-api", help="Serve the REST API, on this host alone.")] = True,
    with_flower: Annotated[bool, Option("--flower", help="Run Flower as well, on 127.0.0.1.")] = False,
    flower_port: Annotated[
        int, Option("--flower-port", metavar="PORT", min=0, max=65535, help="Where Flower listens.")
    ] = FLOWER_PORT,
    workspace_root: RootsOption = None,
    limit: LimitsOption = None,
    sandbox: SandboxOption = None,
    sandbox_bind: BindsOption = None,
    state_dir: StateDirOption = None,
) -> int:
    """Run the embedded Redis, workers and the REST API in the foreground, until Ctrl-C.

    Example: statem-dist up -c 8
    """
    from statem_dist.embedded import foreground, server
    from statem_dist.embedded.place import Place
    from statem_dist.embedded.stack import Service, run_foreground

    environ = with_policy(os.environ, workspace_root, limit, sandbox, sandbox_bind)
    settings = Settings.from_environment(environ, state_dir=state_dir)
    arguments = worker_arguments(
        queues=queues,
        concurrency=concurrency,
        pool="threads",
        pass_env=pass_env,
        grace=grace,
        events=with_flower,
        log_level="INFO",
    )
    # Trials take as long as their agents do: nobody's check is to wait behind them.
    for_trials = worker_arguments(
        queues="trials",
        concurrency=trials,
        pool="threads",
        pass_env=pass_env,
        grace=grace,
        events=with_flower,
        log_level="INFO",
    )
    # A request is told by its caller; what went wrong is told here.
    api_here = api_arguments(
        host="127.0.0.1",
        port=8080 if port is None else port,
        any_port=port is None,
        service_file=Place.of(settings.state_dir).service_file,
        registered_only=False,
        workspaces=None,
        log_level="WARNING",
    )
    dashboard = flower_arguments("127.0.0.1", flower_port) if with_flower else None

    def serve(redis_url: str, *before: Service) -> int:
        print("Submit from another terminal, for example: statem-dist start runbook.yaml", flush=True)
        environment = service_environ(environ, settings, redis_url)
        services = [*before, Service(name="worker", argv=arguments, env=environment)]
        if trials != 0:
            services.append(Service(name="trials", argv=for_trials, env=environment))
        if with_api:
            keep_local_token(settings, redis_url)
            services.append(Service(name="api", argv=api_here, env=environment))
        if dashboard is not None:
            services.append(Service(name="flower", argv=dashboard, env=environment))
        return run_foreground(services, out=sys.stdout, grace_seconds=grace + STOP_SECONDS)

    if settings.redis_url is not None:
        require_safe(settings, settings.redis_url)
        return serve(settings.redis_url)
    with foreground.only_here(settings.state_dir):
        endpoint = server.ensure(settings.state_dir, idle_stop_seconds=0, appendfsync=settings.durability.appendfsync)
        attend = [sys.executable, "-m", "statem_dist.embedded.attend", str(settings.state_dir)]
        try:
            print(f"State: {settings.state_dir}  ({server.status(settings.state_dir).product} on {endpoint.socket})")
            return serve(endpoint.redis_url, Service(name="redis", argv=attend))
        finally:
            server.stop(settings.state_dir)


def down(state_dir: StateDirOption = None, as_json: JsonOption = False) -> Answer:
    """Stop the embedded Redis of a state directory, and the `up` that runs on it; its data stays.

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
    from statem_dist.diagnosis import diagnose, diagnose_service

    settings = Settings.from_environment(os.environ, state_dir=state_dir)
    service = service_for(settings)
    findings = diagnose(settings) if service is None else diagnose_service(settings, service)
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
    inherit_env: bool = False,
    until_done: bool = False,
) -> list[str]:
    """Return the command line of a worker process. ``statem_workers.runtime.WorkerOptions`` says what the options mean.

    Raises:
        Usage: an option has a value that cannot be honoured.
    """
    import json

    from statem_dist.errors import Usage

    names = tuple(name.strip() for name in queues.split(",") if name.strip())
    if not names:
        raise Usage("-Q needs at least one queue name.")
    options = {
        "queues": names,
        "concurrency": concurrency or 2 * (os.cpu_count() or 1),
        "pool": pool,
        "pass_env": tuple(variables_here(pass_env)),
        "grace_seconds": grace,
        "events": events,
        "log_level": usable_log_level(log_level),
        "inherit_env": inherit_env,
        "until_done": until_done,
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


def api_arguments(
    *,
    host: str,
    port: int,
    registered_only: bool,
    workspaces: Path | None,
    log_level: str,
    any_port: bool = False,
    service_file: str = "",
    body_limit: int = BODY_LIMIT_MIB,
    until_done: bool = False,
) -> list[str]:
    """Return the command line of a process that serves the REST API.

    Args:
        any_port: whether another port will do if that one is taken.
        service_file: where it says that it listens, for the commands of this user.
        body_limit: the largest body of a request that it accepts, in MiB.
        until_done: whether it ends when its starter is gone and no sweep has work left.

    Raises:
        Usage: an option has a value that cannot be honoured.
    """
    import json

    options = {
        "host": host,
        "port": port,
        "any_port": any_port,
        "service_file": service_file,
        "scratch": "" if workspaces is None else os.path.abspath(workspaces),
        "registered_only": registered_only,
        "body_bytes_max": body_limit * 1024 * 1024,
        "log_level": usable_log_level(log_level),
        "until_done": until_done,
    }
    return [sys.executable, "-m", "statem_api", json.dumps(options)]


def keep_local_token(settings: Settings, redis_url: str) -> None:
    """See to it that the state directory holds a token for the commands of this user."""
    from statem_dist.embedded.token_file import local_admin_token
    from statem_dist.store.client import client_for
    from statem_dist.store.redis_store import RedisStore
    from statem_dist.tokens import Tokens

    client = client_for(redis_url, quick=True)
    try:
        store = RedisStore(client, patience_seconds=settings.patience_seconds)
        local_admin_token(Tokens(store), settings.state_dir)
    finally:
        client.close()


def require_safe(settings: Settings, redis_url: str) -> None:
    """Refuse to begin on a Redis on which runs would be lost, before anything is started.

    Raises:
        UnsafeSurroundings: a setting that loses runs.
        Unavailable: it cannot be asked.
    """
    from statem_dist.store.client import client_for
    from statem_dist.store.redis_store import RedisStore
    from statem_dist.surroundings import require_surroundings

    client = client_for(redis_url)
    try:
        require_surroundings(RedisStore(client, patience_seconds=settings.patience_seconds), settings)
    finally:
        client.close()


def usable_log_level(given: str) -> str:
    """Return the name of a level of the log.

    Raises:
        Usage: there is none of that name.
    """
    from statem_dist.errors import Usage

    if given.upper() not in LOG_LEVELS:
        raise Usage(f"--log-level must be one of {', '.join(LOG_LEVELS)}, not {given!r}.")
    return given.upper()


def flower_arguments(address: str, port: int) -> list[str]:
    """Return the command line of a Flower process.

    Raises:
        Unavailable: Flower is not installed.
    """
    import json
    from importlib.util import find_spec

    from statem_dist.errors import Unavailable

    if find_spec("flower") is None:
        raise Unavailable("Flower is not installed.", hint="Install it: pip install 'statem-dist[flower]'")
    # A folder named "flower" where the command is called must not be taken for the package (-P).
    return [sys.executable, "-P", "-m", "statem_workers.flower", json.dumps({"address": address, "port": port})]


def service_environ(environ: Mapping[str, str], settings: Settings, redis_url: str) -> dict[str, str]:
    """Return the environment of a service's process; the URL of the store goes here, where ``ps`` does not show it."""
    return {**environ, "STATEM_STATE_DIR": str(settings.state_dir), "STATEM_REDIS_URL": redis_url}
