"""Every error that the project raises on purpose, in one tree.

Each class says whose turn it is (author of a runbook, caller, infrastructure, us) and maps to one exit code
of the CLI and one HTTP status, here and nowhere else::

    StatemError                     exit  HTTP   whose turn
    ├── RunbookInvalid                1    422   the author of the runbook (or of a sweep file)
    ├── CallerError
    │   ├── Usage                    64    400   the caller: the command line itself is wrong
    │   ├── Invalid                   1    422   the caller: a value that cannot be used
    │   ├── RequestReused             1    422   the caller: an idempotency key that stands for another request
    │   ├── NotFound                  1    404   the caller: no such run, node, runbook
    │   │   └── StoreReset            1    404   the operator: the store has lost everything since it was seen last
    │   └── UnknownTarget             1    409   the caller: no such edge from here; names the allowed ones
    ├── NotAuthenticated              4    401   the caller: no token, or one that does not count
    ├── NotAuthorised                 4    403   the caller: somebody else may do this
    ├── Conflict                      5    409   the caller, later: somebody else was faster
    │   ├── TransitionInFlight        5    409
    │   ├── PausedRun                 5    409   whoever paused it
    │   ├── CancelledRun              5    409   nobody: the run has ended, or is about to
    │   ├── HistoryFull               5    409   the caller: the run has as many events as a run may have
    │   ├── StaleVersion              5    412   the caller: it has seen an older version of the run than there is
    │   └── StateRegressed            5    409   the caller: the store has lost what it has seen of the run
    ├── Unavailable                   8    503   the operator: Redis, the broker, the state directory
    │   ├── StoreFault                8    503   the operator: Redis answers, and refuses (a class for each reason)
    │   ├── NotConfirmed              8    503   nobody: it is written, and too few replicas have said so yet
    │   └── UnsafeSurroundings        8    503   the operator: a setting of Redis or the broker that loses runs
    └── StoredDataUnreadable          1    500   the operator: written by a newer version, or damaged

Outcomes of a transition (blocked, pending) are values, not errors; their exit codes are in ``ExitCode``.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Any, ClassVar


class ExitCode(IntEnum):
    """Exit codes of ``statem-dist``; a promise to scripts."""

    DONE = 0
    ERROR = 1
    BLOCKED = 2
    NOT_AUTHORISED = 4
    CONFLICT = 5
    UNSUCCESSFUL = 6
    PENDING = 7
    UNREACHABLE = 8
    USAGE = 64
    INTERRUPTED = 130


class StatemError(Exception):
    """Base of all deliberate errors.

    Args:
        message: what happened, in one sentence that names the thing concerned.
        hint: what to do about it, or an empty text.
        details: machine-readable facts for ``--json`` and problem+json.
    """

    exit_code: ClassVar[ExitCode] = ExitCode.ERROR
    http_status: ClassVar[int] = 500
    code: ClassVar[str] = "error"

    def __init__(self, message: str, *, hint: str = "", details: dict[str, Any] | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.details = details or {}


class RunbookInvalid(StatemError):
    """A runbook or sweep file that cannot be used; the message lists every problem with its place."""

    http_status = 422
    code = "runbook_invalid"


class CallerError(StatemError):
    """The request itself cannot be honoured as it stands."""

    http_status = 400
    code = "bad_request"


class Usage(CallerError):
    """A command line that is no command."""

    exit_code = ExitCode.USAGE
    code = "usage"


class Invalid(CallerError):
    """A value that cannot be used, such as an empty run id."""

    http_status = 422
    code = "invalid"


class RequestReused(CallerError):
    """An idempotency key that was used before, for another request."""

    http_status = 422
    code = "idempotency_key_reused"


class NotFound(CallerError):
    """A run, node or runbook that does not exist."""

    http_status = 404
    code = "not_found"


class StoreReset(NotFound):
    """A run that is not there, in a store that is another one than this process has seen: its data was lost."""

    code = "store_was_reset"


class UnknownTarget(CallerError):
    """A ``goto`` along an edge that does not exist; ``details["allowed"]`` lists those that do."""

    http_status = 409
    code = "unknown_target"


class NotAuthenticated(StatemError):
    """A caller who cannot be told from anybody else."""

    exit_code = ExitCode.NOT_AUTHORISED
    http_status = 401
    code = "not_authenticated"


class NotAuthorised(StatemError):
    """Something that the caller may not do."""

    exit_code = ExitCode.NOT_AUTHORISED
    http_status = 403
    code = "not_authorised"


class Conflict(StatemError):
    """Somebody else changed the run first, again and again; nothing was written."""

    exit_code = ExitCode.CONFLICT
    http_status = 409
    code = "conflict"


class TransitionInFlight(Conflict):
    """Another transition of the run is open; ``details["transition"]`` says which."""

    code = "transition_in_flight"


class StaleVersion(Conflict):
    """The run is not at the version that the caller has seen; ``details`` say where it is now."""

    http_status = 412
    code = "stale_version"


class StateRegressed(Conflict):
    """The store is behind what somebody has seen of a run: it has lost writes. ``details`` say both versions.

    After a failover or a restart from an older file. What is stored counts; whoever holds newer knowledge looks again.
    """

    code = "state_regressed"


class PausedRun(Conflict):
    """The run is paused; its details say by whom, why and since when."""

    code = "run_paused"


class CancelledRun(Conflict):
    """The run was cancelled; its details say by whom, why and since when."""

    code = "run_cancelled"


class HistoryFull(Conflict):
    """The run has as many events as a run may have, and begins nothing more."""

    code = "history_full"


class Unavailable(StatemError):
    """Redis, the broker or the state directory cannot be used right now."""

    exit_code = ExitCode.UNREACHABLE
    http_status = 503
    code = "unavailable"


class StoreFault(Unavailable):
    """Redis answers, and refuses for a reason of its own; nothing was written. Each reason has a class."""

    code = "redis_refuses"


class StoreOutOfMemory(StoreFault):
    """OOM: ``maxmemory`` is used up, and nothing may be evicted."""

    code = "redis_out_of_memory"


class StoreNotPersisting(StoreFault):
    """MISCONF: Redis cannot write its files and therefore takes no writes."""

    code = "redis_not_persisting"


class StoreReadOnly(StoreFault):
    """READONLY: this Redis is a replica, as during a failover."""

    code = "redis_read_only"


class StoreLoading(StoreFault):
    """LOADING: Redis has been started and reads its files."""

    code = "redis_loading"


class StorePrimaryAway(StoreFault):
    """MASTERDOWN: this Redis is a replica whose primary is away."""

    code = "redis_primary_away"


class StoreTooFewReplicas(StoreFault):
    """NOREPLICAS: fewer replicas are connected than ``min-replicas-to-write`` asks for."""

    code = "redis_too_few_replicas"


class StoreBusy(StoreFault):
    """BUSY: a script or a function of somebody else keeps Redis from all other work."""

    code = "redis_busy"


class StoreClusterDown(StoreFault):
    """CLUSTERDOWN and TRYAGAIN: a part of the Redis Cluster is away, or is being moved."""

    code = "redis_cluster_down"


class NotConfirmed(Unavailable):
    """It is written and takes effect, but fewer replicas than were asked for have said in time that they have it."""

    code = "not_confirmed"


class UnsafeSurroundings(Unavailable):
    """A setting of Redis or of the broker with which runs would be lost; nothing is begun on it."""

    code = "unsafe_surroundings"


class StoredDataUnreadable(StatemError):
    """A stored document that this version does not understand."""

    code = "stored_data_unreadable"
