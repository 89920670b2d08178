"""What somebody wants of a run, in the imperative. ``decide`` answers each with events or a rejection.

Whatever is random or comes from outside (ids, jitter, who asks) comes in with the command.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from msgspec import Struct

from statem_dist.protocol.graph import Runbook
from statem_dist.protocol.model import Actor, Confirmations, DynamicFacts, OnManual, Place, WayOut, Worker
from statem_dist.protocol.outcome import Outcome


class Start(Struct, frozen=True):
    """Create a run on the initial node and run that node's ``in_hook``."""

    run_id: str
    runbook: Runbook
    place: Place
    by: Actor
    confirmations: Confirmations = Confirmations()
    labels: dict[str, str] = {}
    request_id: str = ""
    worker: Worker | None = None


class Import(Struct, frozen=True):
    """Create a run that StateM began, where it stood; no hook runs. ``RunImported`` says what the fields mean.

    ``created_at`` is 0 where nobody knows.
    """

    run_id: str
    runbook: Runbook
    place: Place
    by: Actor
    node: str
    entry_id: str
    created_at: int
    attempts: dict[str, int]
    history: tuple[dict[str, Any], ...]
    left_out: int
    recorded_hash: str
    source: str


class Resume(Struct, frozen=True):
    """Take up a run again: run the current node's ``in_hook`` once more.

    ``rebind`` says whether a run that follows another runbook is bound to this one.
    """

    runbook: Runbook
    by: Actor
    confirmations: Confirmations = Confirmations()
    request_id: str = ""
    worker: Worker | None = None
    rebind: bool = True


class Goto(Struct, frozen=True):
    """Attempt the transition to ``target``. ``worker`` is who would execute checks on the spot, if anybody.

    ``from_entry`` is the entry the caller believes to be current; another one makes the command stale.
    ``dynamic`` is what was registered for that entry, None where the node accepts nothing.
    """

    runbook: Runbook
    target: str
    by: Actor
    confirmations: Confirmations = Confirmations()
    request_id: str = ""
    worker: Worker | None = None
    from_entry: str | None = None
    dynamic: DynamicFacts | None = None
    on_manual: OnManual = "fail"


class Save(Struct, frozen=True):
    """Run the current node's ``out_hook`` without moving."""

    runbook: Runbook
    by: Actor
    confirmations: Confirmations = Confirmations()
    skip_hooks: bool = False
    request_id: str = ""
    worker: Worker | None = None


class ClaimWork(Struct, frozen=True):
    """Take a batch that begins with ``check``. It decides to nothing when the batch is not on offer."""

    transition: str
    check: str
    worker: Worker


class RecordOutcomes(Struct, frozen=True):
    """Report what came of the first checks of a claim, in order.

    ``claim_more`` lets the same worker go straight on with the next batch of its queues, in the same commit.
    ``jitter`` is a random number in [0, 1) for the interval before another try.
    """

    transition: str
    token: int
    worker: Worker
    outcomes: tuple[Outcome, ...]
    jitter: float = 0.0
    claim_more: bool = True


class Decide(Struct, frozen=True):
    """Settle a check that waits for a decision. The first decision wins.

    ``operator`` says that ``by`` may decide what an operator has to decide. ``worker`` as in ``Goto``.
    """

    transition: str
    check: str
    approved: bool
    comment: str
    by: Actor
    operator: bool = False
    worker: Worker | None = None


class ExpireDecision(Struct, frozen=True):
    """Settle a check whose wait for a decision has expired. Before that time it decides to nothing."""

    transition: str
    check: str


class ReturnWork(Struct, frozen=True):
    """Give a claim back unfinished, as a worker does that is being shut down."""

    transition: str
    token: int


class ExpireClaim(Struct, frozen=True):
    """Declare a claim lost, because its lease ran out or its worker is known to be dead."""

    transition: str
    token: int


class Recover(Struct, frozen=True):
    """Take a transition out of an unknown outcome; ``WayOut`` says how.

    ``transition`` is the one that is meant, or None for whichever is open; ``check`` the check, or None for all whose
    outcome is unknown. Giving up is for the whole transition. ``worker`` as in ``Goto``.
    """

    way: WayOut
    reason: str
    by: Actor
    transition: str | None = None
    check: str | None = None
    worker: Worker | None = None


class Cancel(Struct, frozen=True):
    """End the open transition; nothing that it would still do is done. The run itself goes on: see ``CancelRun``."""

    transition: str
    reason: str
    by: Actor


class CancelRun(Struct, frozen=True):
    """End the run for good. A check that is being executed may end first, unless the run is terminated."""

    reason: str
    by: Actor
    terminate: bool = False


class Pause(Struct, frozen=True):
    """Hold the run where it is: nothing more is begun, judged or moved until ``Unpause``."""

    reason: str
    by: Actor


class Unpause(Struct, frozen=True):
    """Let a paused run go on."""

    by: Actor


class Restart(Struct, frozen=True):
    """End whatever a run does, and begin it anew under its id, as ``Start`` begins a run that does not exist."""

    runbook: Runbook
    place: Place
    by: Actor
    confirmations: Confirmations = Confirmations()
    request_id: str = ""
    worker: Worker | None = None


Command: TypeAlias = (
    Start
    | Import
    | Resume
    | Goto
    | Save
    | ClaimWork
    | RecordOutcomes
    | Decide
    | ExpireDecision
    | ReturnWork
    | ExpireClaim
    | Recover
    | Cancel
    | CancelRun
    | Pause
    | Unpause
    | Restart
)
