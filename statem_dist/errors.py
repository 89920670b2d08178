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
    │   └── UnknownTarget             1    409   the caller: no such edge from here; names the allowed ones
    ├── NotAuthenticated              4    401   the caller: no token, or one that does not count
    ├── NotAuthorised                 4    403   the caller: somebody else may do this
    ├── Conflict                      5    409   the caller, later: somebody else was faster
    │   ├── TransitionInFlight        5    409
    │   ├── PausedRun                 5    409   whoever paused it
    │   ├── CancelledRun              5    409   nobody: the run has ended, or is about to
    │   ├── HistoryFull               5    409   the caller: the run has as many events as a run may have
    │   └── StaleVersion              5    412   the caller: it has seen an older version of the run than there is
    ├── Unavailable                   8    503   the operator: Redis, the broker, the state directory
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


class StoredDataUnreadable(StatemError):
    """A stored document that this version does not understand."""

    code = "stored_data_unreadable"
