"""What a worker process needs to execute checks, made once per process.

With the threads pool one runtime serves all slots. With prefork each child makes its own, because neither
connections nor threads survive a fork.
"""

from __future__ import annotations

import os

from msgspec import Struct

from statem_dist.checks.environment import STORE_WITHHELD, worker_environment
from statem_dist.checks.process import Supervisor
from statem_dist.coordinator import Coordinator
from statem_dist.dispatch import dispatcher_for
from statem_dist.errors import Usage
from statem_dist.executor import Executor
from statem_dist.identity import this_process
from statem_dist.leases import RENEWALS_PER_LEASE, LeaseKeeper
from statem_dist.protocol.model import Place, Worker
from statem_dist.settings import Settings
from statem_dist.store.client import client_for
from statem_dist.store.redis_store import RedisStore

PATIENCE_SECONDS = 300.0
"""A worker holds results that nobody else has: it waits long for a store that is away."""


class WorkerOptions(Struct, frozen=True):
    """How a worker was started. ``pass_env`` names variables of its own environment that commands get."""

    queues: tuple[str, ...]
    concurrency: int
    pool: str
    pass_env: tuple[str, ...] = ()
    grace_seconds: float = 30.0
    events: bool = False
    log_level: str = "INFO"


def store_url(settings: Settings) -> str:
    """Return the URL of the state store, which a worker is always given.

    Raises:
        Usage: it was not.
    """
    if settings.redis_url is None:
        raise Usage("A worker process needs STATEM_REDIS_URL.", hint="Start workers with `statem-dist worker`.")
    return settings.redis_url


class Runtime:
    """The executor of one process, and what it stands on."""

    def __init__(self, options: WorkerOptions, settings: Settings) -> None:
        self.pid = os.getpid()
        store = RedisStore(client_for(store_url(settings)), patience_seconds=PATIENCE_SECONDS, bears_faults=True)
        renewals = RedisStore(
            client_for(store_url(settings)), patience_seconds=settings.lease_seconds / (2 * RENEWALS_PER_LEASE)
        )
        self.coordinator = Coordinator(store, dispatcher_for(settings, store_url(settings)), settings)
        self.supervisor = Supervisor(kill_grace_seconds=settings.kill_grace_seconds)

        # The embedded instance of the run's own state directory is found without an address.
        withheld = {} if store_url(settings).startswith("unix://") else {STORE_WITHHELD: "1"}

        def environment(place: Place, variables: dict[str, str]) -> dict[str, str]:
            return worker_environment(os.environ, place.env, options.pass_env, variables | withheld)

        self.executor = Executor(
            coordinator=self.coordinator,
            worker=Worker(id=this_process("worker"), queues=options.queues),
            supervisor=self.supervisor,
            leases=LeaseKeeper(renewals, settings.lease_seconds, settings.kill_grace_seconds),
            environment=environment,
            settings=settings,
            passed=options.pass_env,
            store_url=store_url(settings),
        )


_configured: tuple[WorkerOptions, Settings] | None = None
_runtime: Runtime | None = None


def configure(options: WorkerOptions, settings: Settings) -> None:
    """Say how runtimes of this process and its children are to be made."""
    global _configured
    _configured = (options, settings)


def runtime() -> Runtime:
    """Return the runtime of this process; the first call makes it."""
    global _runtime
    if _runtime is None or _runtime.pid != os.getpid():
        assert _configured is not None, "a worker is configured before it takes a task"
        _runtime = Runtime(*_configured)
    return _runtime
