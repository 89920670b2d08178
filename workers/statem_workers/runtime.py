"""What a worker process needs to execute checks and to drive trials, made once per process.

With the threads pool one runtime serves all slots. With prefork each child makes its own, because neither
connections nor threads survive a fork.
"""

from __future__ import annotations

import os
import socket
import threading
from functools import cached_property
from pathlib import Path

from msgspec import Struct
from msgspec.structs import replace

from statem_dist.checks.environment import STORE_WITHHELD, inline_environment, worker_environment
from statem_dist.checks.process import Supervisor
from statem_dist.client.address import announced_url
from statem_dist.coordinator import Coordinator
from statem_dist.dispatch import DispatchOthers, dispatcher_for
from statem_dist.embedded.place import Place as StateDirectory
from statem_dist.engine import Engine
from statem_dist.errors import Usage
from statem_dist.executor import Executor
from statem_dist.identity import this_process
from statem_dist.inline import InlineWorker
from statem_dist.leases import RENEWALS_PER_LEASE, LeaseKeeper
from statem_dist.protocol.model import Place, Worker
from statem_dist.protocol.progress import CHECKS_QUEUE, REVIEWS_QUEUE
from statem_dist.settings import Settings
from statem_dist.store.client import client_for
from statem_dist.store.redis_store import RedisStore
from statem_dist.sweep.hints import Hints
from statem_dist.sweep.holding import Holding
from statem_dist.sweep.ledger import Ledger
from statem_dist.sweep.shared_limits import SharedLimits
from statem_dist.sweep.slots import Means, Slots
from statem_dist.sweep.taking import Taker
from statem_dist.tokens import Tokens

PATIENCE_SECONDS = 300.0
"""A worker holds results that nobody else has: it waits long for a store that is away."""


class WorkerOptions(Struct, frozen=True):
    """How a worker was started.

    ``pass_env`` names variables of its own environment that commands get; ``inherit_env`` gives them all of it, but
    for secrets of this tool. ``until_done`` ends the worker when whoever has started it is gone and no sweep has work
    left.
    """

    queues: tuple[str, ...]
    concurrency: int
    pool: str
    pass_env: tuple[str, ...] = ()
    grace_seconds: float = 30.0
    events: bool = False
    log_level: str = "INFO"
    inherit_env: bool = False
    until_done: bool = False


def store_url(settings: Settings) -> str:
    """Return the URL of the state store, which a worker is always given.

    Raises:
        Usage: it was not.
    """
    if settings.redis_url is None:
        raise Usage("A worker process needs STATEM_REDIS_URL.", hint="Start workers with `statem-dist worker`.")
    return settings.redis_url


class Runtime:
    """The executor of one process, its slots for trials, and what they stand on."""

    def __init__(self, options: WorkerOptions, settings: Settings) -> None:
        self.pid = os.getpid()
        self._options = options
        self._settings = settings
        self._url = store_url(settings)
        self._making = threading.Lock()
        self._slots: Slots | None = None
        self.store = RedisStore(
            client_for(self._url),
            patience_seconds=PATIENCE_SECONDS,
            durability=settings.durability,
            bears_faults=True,
        )
        self.coordinator = Coordinator(self.store, dispatcher_for(settings, self._url), settings)
        self.supervisor = Supervisor(kill_grace_seconds=settings.kill_grace_seconds)
        self._leases = LeaseKeeper(self._impatient_store(), settings.lease_seconds, settings.kill_grace_seconds)
        self.executor = self._executor(self.coordinator, options.queues)
        self.ledger = Ledger(self.store)
        self.hints = Hints(self.store, self.coordinator.dispatcher)

    @cached_property
    def _trial_executor(self) -> Executor:
        """Executes the checks of trials in the slots that drive them, where their workspaces are."""
        queues = (CHECKS_QUEUE, REVIEWS_QUEUE)
        return self._executor(
            Coordinator(self.store, DispatchOthers(self.coordinator.dispatcher, queues), self._settings), queues
        )

    @property
    def slots(self) -> Slots:
        """Drives trials in the slots of this process; made when the first of them is used."""
        with self._making:
            if self._slots is None:
                self._slots = self._made_slots()
            return self._slots

    def _made_slots(self) -> Slots:
        settings = replace(self._settings, patience_seconds=PATIENCE_SECONDS)
        holding = Holding(Ledger(self._impatient_store()), settings.lease_seconds, settings.kill_grace_seconds)
        own = InlineWorker(self._trial_executor, alone=False, asks_nobody=True)
        means = Means(
            settings=settings,
            store_url=self._url,
            engine=Engine(settings, self._url, inline=False, own=own),
            supervisor=self.supervisor,
            environment=self._environment,
            ledger=self.ledger,
            hints=self.hints,
            tokens=Tokens(self.store),
            worker=this_process("worker"),
            passed=self._options.pass_env,
            service_url=self._service_url,
            end_checks=lambda: self._trial_executor.stop(0.0),
        )
        taker = Taker(self.ledger, SharedLimits(self.store), holding.lease_ms, socket.gethostname(), settings.state_dir)
        return Slots(means, taker, holding)

    def stop(self, grace_seconds: float) -> None:
        """Begin nothing more; after the grace, hand back what is being executed and driven."""
        self.executor.stop(grace_seconds)
        # Not behind the lock: the child of a prefork pool is told by a signal, in the thread that may hold it.
        if self._slots is not None:
            self._slots.stop(grace_seconds)

    def _executor(self, coordinator: Coordinator, queues: tuple[str, ...]) -> Executor:
        return Executor(
            coordinator=coordinator,
            worker=Worker(id=this_process("worker"), queues=queues),
            supervisor=self.supervisor,
            leases=self._leases,
            environment=self._environment,
            settings=self._settings,
            passed=self._options.pass_env,
            store_url=self._url,
        )

    def _environment(self, place: Place, variables: dict[str, str]) -> dict[str, str]:
        # The embedded instance of the run's own state directory is found without an address.
        known = variables if self._url.startswith("unix://") else variables | {STORE_WITHHELD: "1"}
        if self._options.inherit_env:
            return inline_environment({**os.environ, **place.env}, known)
        return worker_environment(os.environ, place.env, self._options.pass_env, known)

    def _service_url(self) -> str | None:
        """Return where agents find the service: as this worker was told, else that of its state directory."""
        told = os.environ.get("STATEM_URL")
        return told or announced_url(Path(StateDirectory.of(self._settings.state_dir).service_file)) or None

    def _impatient_store(self) -> RedisStore:
        """Return the store for renewing leases, which must be given up within a fraction of one."""
        patience = self._settings.lease_seconds / (2 * RENEWALS_PER_LEASE)
        return RedisStore(client_for(self._url), patience_seconds=patience)


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
