"""The verbs of commands on the runs of a service.

What is shown is made here, of the very values that are stored there: runs, transitions, runbooks and events come as
documents. Which run a command means when it names none is known here alone, in the local state directory.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import Struct

from statem_dist.cli.notes import Notes
from statem_dist.client import calls
from statem_dist.client.address import Address
from statem_dist.client.calls import Call, NewRun, OnExisting
from statem_dist.client.results import TransitionView
from statem_dist.client.stdlib import StdlibTransport
from statem_dist.client.sync import Client
from statem_dist.deadline import LOOK_AGAIN_SECONDS, OUTAGE_SECONDS, Deadline
from statem_dist.errors import Conflict, NotFound
from statem_dist.protocol.events import Event
from statem_dist.protocol.graph import DynamicConfig, Runbook
from statem_dist.protocol.model import Actor, Confirmations, OnManual, Run, WayOut
from statem_dist.run_ids import no_active_run
from statem_dist.settings import Settings

if TYPE_CHECKING:
    from statem_dist.carrier import OnLeftover, OnWaiting
    from statem_dist.decisions import Decision
    from statem_dist.engine import StartRequest
    from statem_dist.follow import OnEvent, Settled
    from statem_dist.listing import OnUnreadable, RunFilter
    from statem_dist.questions import Question
    from statem_dist.runbook import Format, Parsed

SHOW_SECONDS = 0.5
"""How often new events are asked for while somebody watches them."""

QUIET_SECONDS = LOOK_AGAIN_SECONDS - SHOW_SECONDS
"""After so long without news it is told why nothing happens: at the end of one look, not of the second."""

ACTIVE_KEPT = 1_000
"""Scopes whose active run is remembered."""

STOPS_KEPT = 200
"""Sessions of agent hosts of which is remembered how often they were told to go on."""

PAGE = 200
"""Events and runs asked for at a time."""


class RemoteEngine:
    """The verbs, over HTTP. For one thread.

    Args:
        settings: where the local state directory is, and how long a service that does not answer is tried again.
        address: the service.
    """

    def __init__(self, settings: Settings, address: Address) -> None:
        self._address = address
        self.client = Client(
            address.url, address.token, patience_seconds=settings.patience_seconds, transport=StdlibTransport
        )
        self._active = Notes(settings.state_dir, "active.json", ACTIVE_KEPT)
        self._stops = Notes(settings.state_dir, "stops.json", STOPS_KEPT)
        self._runbooks: dict[str, Runbook] = {}
        self._parsed: dict[str, tuple[Parsed, str]] = {}
        self._registered: set[str] = set()
        self._perform = self.client.perform
        self.log = RemoteLog(self.client)

    def close(self) -> None:
        """Close the connection."""
        self.client.close()

    def clock(self) -> int:
        """Return the time of the service, to the second."""
        return self._perform(calls.clock())

    # --- which run -------------------------------------------------------------------------------------------

    def active(self, scope: str) -> str | None:
        """Return the run that a scope points to on this service."""
        return self._active.get(self._key(scope))

    def active_run_id(self, state_dir: str) -> str:
        """Return the run that was started or resumed last from this state directory on this service.

        Raises:
            NotFound: none was.
        """
        run_id = self.active(state_dir)
        if run_id is None:
            raise no_active_run(state_dir)
        return run_id

    def activate(self, scopes: Iterable[str], run_id: str) -> None:
        """Point scopes to a run."""
        self._active.put({self._key(scope): run_id for scope in scopes})

    # --- reading ---------------------------------------------------------------------------------------------

    def find(self, run_id: str) -> Run | None:
        """Return a run, or None."""
        try:
            return self.run(run_id)
        except NotFound:
            return None

    def run(self, run_id: str) -> Run:
        """Return a run; the values of its variables are withheld.

        Raises:
            NotFound: there is none of that id, or the token does not reach it.
        """
        run = self._perform(calls.document(run_id))
        self.log.note(run)
        return run

    def settled_run(self, run_id: str, on_leftover: OnLeftover | None = None) -> Run:
        """Return a run; the service leaves nothing for its callers to finish."""
        return self.run(run_id)

    def glance(self, run_id: str) -> tuple[Run, bool]:
        """Return a run as it is, and whether a transition is open: the service and its workers see to that."""
        run = self.run(run_id)
        return run, run.in_flight is not None

    def runbook(self, digest: str) -> Runbook:
        """Return a runbook by its hash; it is asked for once per process."""
        if digest not in self._runbooks:
            self._runbooks[digest] = self._perform(calls.runbook_document(digest)).runbook
        return self._runbooks[digest]

    def waiting_reason(self, run: Run) -> str:
        """Return why the open transition of a run has not settled yet; empty if none is open."""
        transition = run.in_flight
        return "" if transition is None else self._perform(calls.transition(run.id, transition.id)).waiting_reason

    def questions(self, run: Run, target: str) -> tuple[Question, ...]:
        """Return what a ``goto`` to a target will ask somebody to confirm."""
        from statem_dist.questions import Question

        asked = self._perform(calls.questions(run.id, target))
        return tuple(Question(each.check, each.name, each.text, each.operator) for each in asked)

    def summaries(self, wanted: RunFilter, limit: int, on_unreadable: OnUnreadable) -> list[dict[str, Any]]:
        """Return runs in a line each, newest first. What cannot be read is in the log of the service."""
        found: list[dict[str, Any]] = []
        cursor: str | None = None
        while len(found) < limit:
            call = calls.run_page(
                status=wanted.status,
                labels=wanted.labels,
                runbook=wanted.runbook,
                node=wanted.node,
                limit=min(limit - len(found), PAGE),
                cursor=cursor,
            )
            page = self._perform(calls.plain(call))
            found += page["items"]
            cursor = page["next_cursor"]
            if cursor is None:
                break
        return found

    def new_events(self, run_id: str, after: int) -> Iterator[list[tuple[int, Event]]]:
        """Yield the events of a run after a number, and those to come, until it has ended."""
        listening = calls.raw_events(run_id, after=after)
        for heard in self.client.listen(listening):
            yield [_event(document) for document in heard]

    # --- moving ----------------------------------------------------------------------------------------------

    def register(self, parsed: Parsed, source: str) -> Runbook:
        """Keep a runbook; it is sent with the run that is started from it."""
        digest = parsed.runbook.hash
        self._parsed[digest] = (parsed, source)
        self._runbooks[digest] = parsed.runbook
        return parsed.runbook

    def registered(self, name: str) -> Runbook:
        """Return the runbook that a name stands for at the service; a run that is started from it sends no text.

        Raises:
            NotFound: none is registered under that name.
        """
        runbook: Runbook = self._perform(calls.runbook_document(name)).runbook
        self._registered.add(runbook.hash)
        self._runbooks[runbook.hash] = runbook
        return runbook

    def start(self, request: StartRequest, deadline: Deadline, *, on_waiting: OnWaiting | None = None) -> Settled:
        """Create a run, or resume the one of that id."""
        return self._begin(request, "resume", deadline, on_waiting)

    def restart(self, request: StartRequest, deadline: Deadline, *, on_waiting: OnWaiting | None = None) -> Settled:
        """Let a run begin anew."""
        return self._begin(request, "restart", deadline, on_waiting)

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
        call = calls.goto_call(
            run_id,
            target,
            # An empty list would still be answers to the questions of one entry.
            confirm=confirmations.everything or confirmations.checks or False,
            decline=confirmations.declined,
            on_manual=on_manual,
            from_entry=from_entry,
            by=by,
        )
        shown = self.log.version(run_id)
        seen = self._perform(call)
        return self._seen_through(seen, deadline if wait else Deadline(0), on_waiting, on_event, shown)

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
        call = calls.save_call(run_id, confirm=confirmations.everything, skip_hooks=skip_hooks, by=by)
        return self._seen_through(self._perform(call), deadline, on_waiting)

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
        """Settle a check that waits for a decision; on a paused run nothing follows from it yet.

        Who decides is the token, unless that is an agent with the token of somebody else.
        """
        paused = self.run(run_id).paused is not None
        call = calls.decide_call(
            f"{run_id}/{transition}/{check}",
            approved=approved,
            comment=comment,
            as_agent=None if operator else by.id,
        )
        return self._seen_through(self._perform(call), Deadline(0) if paused else Deadline(), on_waiting)

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
        """Take a transition out of an unknown outcome; who decides is the token."""
        paused = self.run(run_id).paused is not None
        call = calls.recover_call(run_id, way=way, reason=reason, check=check)
        return self._seen_through(self._perform(call), Deadline(0) if paused else Deadline(), on_waiting)

    def decisions(self, limit: int, on_unreadable: OnUnreadable) -> list[Decision]:
        """Return what waits for somebody's decision."""
        from statem_dist.decisions import Decision

        return [
            Decision(
                run_id=each.run_id,
                transition=each.transition,
                check=each.check,
                question=each.question,
                source=each.source,
                target=each.target,
                entry_id=each.entry_id,
                spec_hash=each.spec_hash,
                requested_by=Actor(each.requested_by),
                requested_at=each.requested_at,
                expires_at=each.expires_at or 0,
                operator=each.operator,
            )
            for each in self._perform(calls.approvals())[:limit]
        ]

    # --- holding and ending ------------------------------------------------------------------------------------

    def cancel(self, run_id: str, reason: str, by: Actor) -> Settled:
        """End the open transition of a run.

        Raises:
            Conflict: none is open.
        """
        run = self.run(run_id)
        if run.in_flight is None:
            raise Conflict(
                f"Run {run_id!r} has no transition in flight; it stands on {run.node!r}.",
                details={"run_id": run_id, "current": run.node},
            )
        return self._settled(self._perform(calls.cancel_transition(run_id, run.in_flight.id, reason=reason)))

    def cancel_run(self, run_id: str, reason: str, by: Actor, *, terminate: bool = False) -> Run:
        """End a run for good."""
        end = calls.terminate if terminate else calls.cancel
        return self._changed(end(run_id, reason=reason))

    def pause(self, run_id: str, reason: str, by: Actor) -> Run:
        """Hold a run where it is."""
        return self._changed(calls.pause(run_id, reason=reason))

    def unpause(self, run_id: str, by: Actor) -> Run:
        """Let a paused run go on."""
        return self._changed(calls.resume(run_id))

    # --- dynamic checks ----------------------------------------------------------------------------------------

    def registered_checks(self, run: Run, config: DynamicConfig) -> list[dict[str, Any]]:
        """Return who has registered dynamic checks for the current entry, and which."""
        found: list[dict[str, Any]] = self._perform(calls.plain(calls.dynamic(run.id)))["items"]
        return found

    def register_checks(
        self, run: Run, text: str, source: str, format: Format, config: DynamicConfig, by: Actor
    ) -> tuple[dict[str, Any], Sequence[str]]:
        """Register the checks of a text; return the registration, and what is doubtful about it."""
        call = calls.write_dynamic(run.id, text, source=source, format=format, unused=True, by=by)
        made = self._perform(calls.plain(call))["items"][0]
        warnings: list[str] = made.pop("warnings")
        return made, warnings

    # --- sessions of agent hosts ---------------------------------------------------------------------------------

    def stops(self, run_id: str, session: str) -> bytes | None:
        """Return what is kept of a session of an agent host; it is kept here, where the host is."""
        kept = self._stops.get(self._key(f"{run_id} {session}"))
        return None if kept is None else base64.b64decode(kept)

    def save_stops(self, run_id: str, session: str, document: bytes) -> None:
        """Keep that."""
        self._stops.put({self._key(f"{run_id} {session}"): base64.b64encode(document).decode()})

    # --- carrying out --------------------------------------------------------------------------------------------

    def _begin(
        self, request: StartRequest, on_existing: OnExisting, deadline: Deadline, on_waiting: OnWaiting | None
    ) -> Settled:
        from statem_dist.runbook import format_of

        digest = request.runbook.hash
        parsed, source = (None, "") if digest in self._registered else self._parsed[digest]
        new = NewRun(
            # By its hash: its name may stand for another version by now than the one that was looked at.
            runbook=digest if parsed is None else None,
            text=None if parsed is None else parsed.text,
            source=source,
            format=format_of(source),
            run_id=request.run_id,
            on_existing=on_existing,
            workspace=request.place.workspace or None,
            spec=request.place.spec,
            queue=request.place.queue,
            executor=request.place.executor or None,
            labels=request.labels,
            vars=request.place.env,
            confirm=request.confirmations.everything,
            by=request.by,
        )
        begun = self._perform(calls.start_call(new))
        assert begun.transition is not None, "a run that was asked for has made a transition"
        return self._seen_through(begun.transition, deadline, on_waiting)

    def _seen_through(
        self,
        seen: TransitionView,
        deadline: Deadline,
        on_waiting: OnWaiting | None,
        on_event: OnEvent | None = None,
        shown: int = 0,
    ) -> Settled:
        """Wait until a transition has settled, needs people, or time is up.

        What has opened it did not wait: who waits bears longer outages than who asks for something.

        Args:
            seen: what is known of it.
            deadline: when time is up.
            on_waiting: told now and then why nothing happens.
            on_event: shown every event of the run after number ``shown``.
            shown: see there.
        """
        quiet = Deadline(QUIET_SECONDS)
        while True:
            if on_event is not None:
                for number, event in self.log.events(seen.run_id, shown):
                    shown = number
                    on_event(number, event)
            if not seen.pending or seen.waits_for_people or deadline.passed:
                return self._settled(seen)
            pause = deadline.bound(LOOK_AGAIN_SECONDS if on_event is None else SHOW_SECONDS)
            before = seen.version
            # Workers outlast a restart of the service, and so does who waits for them.
            look = calls.transition(seen.run_id, seen.transition, wait=pause)
            seen = self._perform(look, patience_seconds=max(pause, deadline.bound(OUTAGE_SECONDS)))
            if seen.version != before:
                quiet = Deadline(QUIET_SECONDS)
            elif seen.pending and quiet.passed:
                quiet = Deadline(QUIET_SECONDS)
                if on_waiting is not None and seen.waiting_reason:
                    on_waiting(seen.waiting_reason)

    def _settled(self, seen: TransitionView) -> Settled:
        """Return a transition that was seen, and its run, as they are stored."""
        from statem_dist.follow import Settled

        run = self.run(seen.run_id)
        if run.transition is not None and run.transition.id == seen.transition:
            return Settled(run=run, transition=run.transition)
        return Settled(run=run, transition=self._perform(calls.transition_document(seen.run_id, seen.transition)))

    def _changed(self, call: Call[Any]) -> Run:
        return self.run(self._perform(call).run_id)

    def _key(self, text: str) -> str:
        """Return the key of a note about this service."""
        return f"{self._address.url} {text}"


class RemoteLog:
    """The events of the runs of a service."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._versions: dict[str, int] = {}

    def note(self, run: Run) -> None:
        """Note how far the log of a run goes, as far as is known."""
        self._versions[run.id] = run.version

    def version(self, run_id: str) -> int:
        """Return the number of the last event of a run that was seen; 0 for a run that was not."""
        return self._versions.get(run_id, 0)

    def events(self, run_id: str, after: int = 0, limit: int | None = None) -> list[tuple[int, Event]]:
        """Return events with their numbers, oldest first, those after the given number."""
        found: list[tuple[int, Event]] = []
        while limit is None or len(found) < limit:
            size = PAGE if limit is None else min(PAGE, limit - len(found))
            page = self._client.perform(calls.event_page(run_id, after=after, limit=size))
            found += [_event(document) for document in page.items]
            after = page.next_after
            if len(page.items) < size:
                break
        return found

    def latest_events(self, run_id: str, before: int | None, limit: int) -> list[tuple[int, Event]]:
        """Return events with their numbers, newest first, those before the given number."""
        if before is None:
            before = (self.version(run_id) or self._client.perform(calls.document(run_id)).version) + 1
        after = max(0, before - 1 - limit)
        return self.events(run_id, after, before - 1 - after)[::-1] if before - 1 > after else []


class _Numbered(Struct, frozen=True):
    number: int


_number_decoder = msgspec.json.Decoder(_Numbered)
_event_decoder: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def _event(document: bytes | msgspec.Raw) -> tuple[int, Event]:
    """Return an event of the log with its number: what the service shows of one is all of it."""
    return _number_decoder.decode(document).number, _event_decoder.decode(document)
