"""What commands do with runs: the verbs that an engine on a state store and a service both have.

Commands know nothing else of either, so that they mean the same wherever the runs are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

from statem_dist.deadline import Deadline
from statem_dist.protocol.graph import DynamicConfig, Runbook
from statem_dist.protocol.model import Actor, Confirmations, OnManual, Run, WayOut

if TYPE_CHECKING:
    from statem_dist.carrier import OnLeftover, OnWaiting
    from statem_dist.decisions import Decision
    from statem_dist.engine import StartRequest
    from statem_dist.follow import OnEvent, Settled
    from statem_dist.listing import OnUnreadable, RunFilter
    from statem_dist.protocol.events import Event
    from statem_dist.questions import Question
    from statem_dist.registry import Registration
    from statem_dist.roles import Role
    from statem_dist.runbook import Format, Parsed
    from statem_dist.store.base import EventLog
    from statem_dist.store.codec import StoredRunbook
    from statem_dist.tokens import Token


class Verbs(Protocol):
    """The verbs of ``statem_dist.engine.Engine`` that commands use; what each does is told there."""

    @property
    def log(self) -> EventLog:
        """The events of runs."""

    def close(self) -> None:
        """End what was begun, and close what was opened."""

    def clock(self) -> int:
        """Return the time where the runs are, in ms."""

    def active(self, scope: str) -> str | None:
        """Return the run that a scope points to."""

    def active_run_id(self, state_dir: str) -> str:
        """Return the run that was started or resumed last in a state directory."""

    def activate(self, scopes: Iterable[str], run_id: str) -> None:
        """Point scopes to a run."""

    def find(self, run_id: str) -> Run | None:
        """Return a run, or None."""

    def run(self, run_id: str) -> Run:
        """Return a run."""

    def settled_run(self, run_id: str, on_leftover: OnLeftover | None = None) -> Run:
        """Return a run after settling what a killed caller may have left of its transition."""

    def glance(self, run_id: str) -> tuple[Run, bool]:
        """Return a run as it is, and whether its open transition is in good hands."""

    def runbook(self, digest: str) -> Runbook:
        """Return a runbook by its hash."""

    def waiting_reason(self, run: Run) -> str:
        """Return why the open transition of a run has not settled yet; empty if none is open."""

    def questions(self, run: Run, target: str) -> tuple[Question, ...]:
        """Return what a ``goto`` to a target will ask somebody to confirm."""

    def summaries(self, wanted: RunFilter, limit: int, on_unreadable: OnUnreadable) -> list[dict[str, Any]]:
        """Return runs in a line each, newest first."""

    def new_events(self, run_id: str, after: int) -> Iterator[list[tuple[int, Event]]]:
        """Yield the events of a run after a number, and those to come, until it has ended."""

    def register(self, parsed: Parsed, source: str) -> Runbook:
        """Keep a runbook for a run that is to be started from it."""

    def start(self, request: StartRequest, deadline: Deadline, *, on_waiting: OnWaiting | None = None) -> Settled:
        """Create a run, or resume the one of that id."""

    def restart(self, request: StartRequest, deadline: Deadline, *, on_waiting: OnWaiting | None = None) -> Settled:
        """Let a run begin anew."""

    def goto(
        self,
        run_id: str,
        target: str,
        by: Actor,
        confirmations: Confirmations,
        *,
        from_entry: str | None,
        on_manual: OnManual,
        wait: bool,
        deadline: Deadline,
        on_event: OnEvent | None,
        on_waiting: OnWaiting | None,
    ) -> Settled:
        """Attempt the transition to a target."""

    def save(
        self,
        run_id: str,
        by: Actor,
        confirmations: Confirmations,
        *,
        skip_hooks: bool,
        deadline: Deadline,
        on_waiting: OnWaiting | None,
    ) -> Settled:
        """Run the ``out_hook`` of the current node without moving."""

    def decide(
        self,
        run_id: str,
        transition: str,
        check: str,
        *,
        approved: bool,
        comment: str,
        by: Actor,
        operator: bool,
        on_waiting: OnWaiting | None,
    ) -> Settled:
        """Settle a check that waits for a decision."""

    def recover(
        self,
        run_id: str,
        way: WayOut,
        reason: str,
        by: Actor,
        *,
        check: str | None,
        on_waiting: OnWaiting | None,
    ) -> Settled:
        """Take a transition out of an unknown outcome."""

    def decisions(self, limit: int, on_unreadable: OnUnreadable) -> list[Decision]:
        """Return what waits for somebody's decision."""

    def cancel(self, run_id: str, reason: str, by: Actor) -> Settled:
        """End the open transition of a run."""

    def cancel_run(self, run_id: str, reason: str, by: Actor, *, terminate: bool = False) -> Run:
        """End a run for good."""

    def pause(self, run_id: str, reason: str, by: Actor) -> Run:
        """Hold a run where it is."""

    def unpause(self, run_id: str, by: Actor) -> Run:
        """Let a paused run go on."""

    def registered_checks(self, run: Run, config: DynamicConfig) -> list[dict[str, Any]]:
        """Return who has registered dynamic checks for the current entry, and which."""

    def register_checks(
        self, run: Run, text: str, source: str, format: Format, config: DynamicConfig, by: Actor
    ) -> tuple[dict[str, Any], Sequence[str]]:
        """Register the checks of a text; return the registration, and what is doubtful about it."""

    def stops(self, run_id: str, session: str) -> bytes | None:
        """Return what is kept of a session of an agent host."""

    def save_stops(self, run_id: str, session: str, document: bytes) -> None:
        """Keep that."""


class TokenDesk(Protocol):
    """What commands do with tokens; see ``statem_dist.tokens.Tokens``."""

    def create(
        self, name: str, role: Role, labels: Mapping[str, str], expires_in_seconds: float | None, by: str
    ) -> tuple[Token, str]:
        """Make a token, and return it with its text."""

    def list(self) -> Sequence[Token]:
        """Return the tokens, newest first."""

    def revoke(self, token_id: str, by: str) -> Token:
        """End a token at once."""


class RunbookDesk(Protocol):
    """What commands do with registered runbooks; see ``statem_dist.registry.Registry``."""

    def register(self, stored: StoredRunbook, name: str, by: str) -> Registration:
        """Register a runbook under a name."""

    def list(self) -> Sequence[Registration]:
        """Return every registered version, by name, the newest first."""
