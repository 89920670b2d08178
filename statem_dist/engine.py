"""The verbs of the product on stored runs, as the command line, the sweep and a service need them.

A verb makes a command of what it is asked for, and ``carrier`` sees it through.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import TYPE_CHECKING, Any

from msgspec import Struct

from statem_dist.carrier import Carrier, OnLeftover, OnWaiting
from statem_dist.coordinator import NO_TERMS, Coordinator, Terms, run_exists
from statem_dist.deadline import LOOK_AGAIN_SECONDS, NEVER, Deadline
from statem_dist.decisions import Decision, decisions_of
from statem_dist.dispatch import dispatcher_for
from statem_dist.errors import Conflict, Invalid, NotFound, RequestReused
from statem_dist.eventlog import new_events
from statem_dist.follow import OnEvent, Settled
from statem_dist.history import find_transition
from statem_dist.listing import OnUnreadable, Page, RunFilter, listed, page
from statem_dist.protocol.answers import question_of
from statem_dist.protocol.commands import (
    Cancel,
    CancelRun,
    Decide,
    ExpireDecision,
    Goto,
    Pause,
    Recover,
    Restart,
    Resume,
    Save,
    Start,
    Unpause,
)
from statem_dist.protocol.events import Event
from statem_dist.protocol.graph import DynamicConfig, LlmReview, Runbook
from statem_dist.protocol.model import Actor, Confirmations, DynamicFacts, OnManual, Place, Run, WayOut, Worker
from statem_dist.protocol.plan import plan_goto
from statem_dist.protocol.progress import asks
from statem_dist.questions import Question
from statem_dist.recovery import Neglected, neglected
from statem_dist.roster import Roster
from statem_dist.run_ids import no_active_run
from statem_dist.settings import Settings
from statem_dist.store.base import EventLog, Snapshot
from statem_dist.store.client import client_for
from statem_dist.store.codec import Receipt, StoredRunbook
from statem_dist.store.redis_store import RedisStore
from statem_dist.store.watch import Watcher
from statem_dist.views import run_summary
from statem_dist.waiting import WaitingReasons

if TYPE_CHECKING:
    from statem_dist.inline import InlineWorker
    from statem_dist.runbook import Format, Parsed
    from statem_dist.transfer import Parcel

NOTHING_CONFIRMED = Confirmations()


class StartRequest(Struct, frozen=True):
    """What to start: a registered runbook, a clean run id, where a new run's checks are executed, and by whom.

    ``rebind`` says whether a run that exists and follows another runbook is bound to this one.
    """

    runbook: Runbook
    run_id: str
    place: Place
    by: Actor
    confirmations: Confirmations = Confirmations()
    labels: dict[str, str] = {}
    rebind: bool = True


class Engine:
    """Verbs on the runs of one store; usable from several threads.

    Args:
        settings: limits and places.
        redis_url: the state store, already reachable or about to be.
        environ: the caller's environment, which commands get when the caller executes them.
        inline: whether the caller executes work that nobody serves.
        quick: whether this process is over after a command or two; see ``client_for``.
        own: what executes the work of the runs that are moved here, whoever else serves their queues.
    """

    def __init__(
        self,
        settings: Settings,
        redis_url: str,
        environ: Mapping[str, str] | None = None,
        *,
        inline: bool,
        quick: bool = False,
        own: InlineWorker | None = None,
    ) -> None:
        self.settings = settings
        self.redis_url = redis_url
        self.store = RedisStore(
            client_for(redis_url, quick=quick),
            patience_seconds=settings.patience_seconds,
            durability=settings.durability,
        )
        self.roster = Roster(self.store)
        self.watcher = Watcher(self.store.client)
        self._coordinator = Coordinator(self.store, dispatcher_for(settings, redis_url), settings)
        self._reasons = WaitingReasons(self.store, self.roster, settings, inline=inline)
        self._carrier = Carrier(
            settings,
            redis_url,
            self.store,
            self.roster,
            self.watcher,
            self._coordinator,
            self._reasons,
            dict(os.environ if environ is None else environ),
            inline=inline,
            quick=quick,
            own=own,
        )
        self._runbooks: dict[str, Runbook] = {}

    def close(self) -> None:
        """End what this engine has started: its listener, its leases, its commands."""
        self.watcher.close()
        self._carrier.close()
        self.store.client.close()

    @property
    def log(self) -> EventLog:
        """The events of runs."""
        return self.store

    def clock(self) -> int:
        """Return the time of the store in ms."""
        return self.store.clock()

    def acknowledge(self, run: Run) -> None:
        """Let a caller know of a run only when it is as safe as the level of durability says.

        Raises:
            NotConfirmed: it is written, and too few replicas have said in time that they have it.
        """
        self._carrier.acknowledge(run)

    def recognise_store(self) -> bool:
        """Remember which store this is; return whether it is another one than it was when this was first asked."""
        return self._coordinator.recognise_store()

    # --- reading -------------------------------------------------------------------------------------------

    def find(self, run_id: str) -> Run | None:
        """Return a run, or None when there is none of that id."""
        snapshot = self.store.load(run_id)
        return None if snapshot is None else snapshot.run

    def run(self, run_id: str) -> Run:
        """Return a run.

        Raises:
            NotFound: there is none of that id.
        """
        return self._coordinator.load(run_id).run

    def snapshot(self, run_id: str) -> Snapshot:
        """Return a run as it is, after ending what has waited too long for a decision.

        A verb that is given it as ``seen`` does not read the run again.

        Raises:
            NotFound: there is none of that id.
        """
        return self._look(run_id)

    def runbook(self, digest: str) -> Runbook:
        """Return a registered runbook by its hash; it is read once per process.

        Raises:
            NotFound: it is not registered in this store.
        """
        if digest not in self._runbooks:
            stored = self.store.runbook(digest)
            if stored is None:
                raise NotFound(f"The runbook {digest[:12]} is not registered in this store.")
            self._runbooks[digest] = stored.runbook
        return self._runbooks[digest]

    def active(self, scope: str) -> str | None:
        """Return the run that a scope (a state directory, or that and a runbook) points to."""
        return self.store.active(scope)

    def activate(self, scopes: Iterable[str], run_id: str) -> None:
        """Point scopes to a run."""
        self.store.activate(scopes, run_id)

    def active_run_id(self, state_dir: str) -> str:
        """Return the run that was started or resumed last in a state directory.

        Raises:
            NotFound: none was.
        """
        run_id = self.store.active(state_dir)
        if run_id is None:
            raise no_active_run(state_dir)
        return run_id

    def questions(self, run: Run, target: str) -> tuple[Question, ...]:
        """Return what a ``goto`` to a target will ask somebody to confirm; empty when there is no such edge.

        The answers are for the entry on which ``run`` stands: give it as ``from_entry`` together with them.
        """
        runbook = self.runbook(run.runbook)
        edge = runbook.edge(run.node, target)
        if edge is None:
            return ()
        plan = plan_goto(runbook, edge, self._dynamic_facts(run, NOTHING_CONFIRMED))
        has_reviewer = self.settings.reviewer_command is not None
        return tuple(
            Question(planned.id, planned.check.name or "", question_of(planned), planned.check.by == "operator")
            for planned in plan
            if asks(planned)
            or (isinstance(planned.check.do, LlmReview) and not planned.check.do.run and not has_reviewer)
        )

    # --- moving --------------------------------------------------------------------------------------------

    def register(self, parsed: Parsed, source: str) -> Runbook:
        """Keep a runbook in the store under its hash."""
        self.store.save_runbook(StoredRunbook(runbook=parsed.runbook, text=parsed.text, source=source))
        self._runbooks[parsed.runbook.hash] = parsed.runbook
        return parsed.runbook

    def start(
        self,
        request: StartRequest,
        deadline: Deadline = NEVER,
        on_event: OnEvent | None = None,
        on_waiting: OnWaiting | None = None,
        terms: Terms = NO_TERMS,
    ) -> Settled:
        """Create a run, or resume the one of that id, and run the ``in_hook`` of the node it stands on.

        Another runbook than before rebinds the run.
        """
        existing = self.store.load(request.run_id)
        if existing is not None:
            self._carrier.settle_leftover(self._expire_decisions(existing), deadline)
        queue = existing.run.place.queue if existing else request.place.queue
        inline = self._carrier.inline_worker(queue)
        worker = inline.worker if inline else None
        command: Start | Resume
        if existing is not None:
            command = Resume(
                runbook=request.runbook,
                by=request.by,
                confirmations=request.confirmations,
                request_id=terms.request or _request_id(),
                worker=worker,
                rebind=request.rebind,
            )
        else:
            command = _start_command(request, terms, worker)
        return self._carrier.carry_out(
            request.run_id, command, inline, deadline, on_event, on_waiting=on_waiting, terms=terms
        )

    def create(self, request: StartRequest, deadline: Deadline = NEVER, terms: Terms = NO_TERMS) -> Settled:
        """Create a run, and run the ``in_hook`` of its initial node.

        Raises:
            Conflict: there is a run of that id already.
        """
        inline = self._carrier.inline_worker(request.place.queue)
        command = _start_command(request, terms, inline.worker if inline else None)
        return self._carrier.carry_out(request.run_id, command, inline, deadline, None, terms=terms)

    def goto(
        self,
        run_id: str,
        target: str,
        by: Actor,
        confirmations: Confirmations = NOTHING_CONFIRMED,
        *,
        from_entry: str | None = None,
        on_manual: OnManual = "fail",
        wait: bool = True,
        deadline: Deadline = NEVER,
        on_event: OnEvent | None = None,
        on_waiting: OnWaiting | None = None,
        terms: Terms = NO_TERMS,
        seen: Snapshot | None = None,
    ) -> Settled:
        """Attempt the transition to a target, and wait until it has settled or time is up.

        Without ``wait`` it is left to workers, present or to come, and returned as it is then. What a killed caller
        has left is finished first; if that was the same request, or has reached the target, it is the answer.

        Raises:
            UnknownTarget: there is no such edge.
            TransitionInFlight: another transition of the run is open, and alive.
        """
        seen = seen or self._look(run_id)
        run = seen.run
        left = self._carrier.settle_leftover(seen, deadline) if wait else None
        if left is not None and left.transition.kind == "goto" and left.transition.target == target:
            transition = left.transition
            asked_the_same = (transition.by, transition.confirmations, transition.on_manual) == (
                by,
                confirmations,
                on_manual,
            )
            if asked_the_same or transition.outcome == "committed":
                return left
        inline = self._carrier.inline_worker(run.place.queue) if wait else None
        found = self._dynamic_facts(run, confirmations, on_manual)
        if found is not None:
            # They belong to this entry: if the run has moved on meanwhile, the command is stale.
            from_entry = from_entry or run.entry_id
        command = Goto(
            runbook=self.runbook(run.runbook),
            target=target,
            by=by,
            confirmations=confirmations,
            request_id=terms.request or _request_id(),
            worker=inline.worker if inline else None,
            from_entry=from_entry,
            dynamic=found,
            on_manual=on_manual,
        )
        return self._carrier.carry_out(
            run_id,
            command,
            inline,
            deadline if wait else Deadline(0),
            on_event,
            on_waiting=on_waiting,
            seen=None if left else seen,
            terms=terms,
        )

    def save(
        self,
        run_id: str,
        by: Actor,
        confirmations: Confirmations = NOTHING_CONFIRMED,
        *,
        skip_hooks: bool = False,
        deadline: Deadline = NEVER,
        on_event: OnEvent | None = None,
        on_waiting: OnWaiting | None = None,
        terms: Terms = NO_TERMS,
        seen: Snapshot | None = None,
    ) -> Settled:
        """Run the ``out_hook`` of the current node without moving."""
        seen = seen or self._look(run_id)
        run = seen.run
        left = self._carrier.settle_leftover(seen, deadline)
        inline = self._carrier.inline_worker(run.place.queue)
        command = Save(
            runbook=self.runbook(run.runbook),
            by=by,
            confirmations=confirmations,
            skip_hooks=skip_hooks,
            request_id=terms.request or _request_id(),
            worker=inline.worker if inline else None,
        )
        return self._carrier.carry_out(
            run_id,
            command,
            inline,
            deadline,
            on_event,
            on_waiting=on_waiting,
            seen=None if left else seen,
            terms=terms,
        )

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
        deadline: Deadline = NEVER,
        on_waiting: OnWaiting | None = None,
        terms: Terms = NO_TERMS,
        seen: Snapshot | None = None,
    ) -> Settled:
        """Settle a check that waits for a decision, and see the transition through to what it does next.

        On a paused run the decision is kept, and what follows from it waits for the end of the pause.

        Raises:
            Conflict: somebody else has decided otherwise, or nothing waits for this decision any more.
            NotAuthorised: the check is for an operator to decide.
        """
        seen = seen or self._look(run_id)
        inline = self._carrier.inline_worker(seen.run.place.queue)
        command = Decide(
            transition=transition,
            check=check,
            approved=approved,
            comment=comment,
            by=by,
            operator=operator,
            worker=inline.worker if inline else None,
        )
        if seen.run.paused is not None:
            deadline = Deadline(0)
        return self._carrier.carry_out(
            run_id, command, inline, deadline, None, on_waiting=on_waiting, seen=seen, terms=terms
        )

    def cancel(
        self, run_id: str, reason: str, by: Actor, terms: Terms = NO_TERMS, *, transition: str | None = None
    ) -> Settled:
        """End the open transition of a run where it stands; nothing that it would still do is done.

        Hooks that were begun and have a repair are repaired first: then it may be returned open.

        Raises:
            Conflict: no transition is open, or it has committed already.
        """
        seen = self._coordinator.load(run_id)
        if seen.run.in_flight is None:
            raise Conflict(
                f"Run {run_id!r} has no transition in flight; it stands on {seen.run.node!r}.",
                details={"run_id": run_id, "current": seen.run.node},
            )
        # Whoever means one transition does not end the next one that has been opened meanwhile.
        command = Cancel(transition=transition or seen.run.in_flight.id, reason=reason, by=by)
        run = self._coordinator.apply(run_id, command, seen, terms).run
        # Hooks that have to be repaired are left to workers, and repaired here where there are none.
        left = self._carrier.settle_leftover(self._coordinator.load(run_id), NEVER) if run.in_flight else None
        if left is not None:
            self.acknowledge(left.run)
            return left
        assert run.transition is not None
        self.acknowledge(run)
        return Settled(run=run, transition=run.transition)

    def recover(
        self,
        run_id: str,
        way: WayOut,
        reason: str,
        by: Actor,
        *,
        check: str | None = None,
        transition: str | None = None,
        deadline: Deadline = NEVER,
        on_waiting: OnWaiting | None = None,
        terms: Terms = NO_TERMS,
        seen: Snapshot | None = None,
    ) -> Settled:
        """Take a transition out of an unknown outcome, and see it through to what it does next. See ``WayOut``.

        On a paused run the decision is kept, and what follows from it waits for the end of the pause.

        Raises:
            Invalid: what came of a check is said without a reason.
            Conflict: nothing of the run is of unknown outcome, or something else than what is meant.
        """
        if way in ("passed", "failed") and not reason.strip():
            raise Invalid("Whoever says what came of a check says why.", hint="Give the reason: --reason TEXT")
        seen = seen or self._look(run_id)
        inline = self._carrier.inline_worker(seen.run.place.queue)
        command = Recover(
            way=way,
            reason=reason,
            by=by,
            check=check,
            transition=transition,
            worker=inline.worker if inline else None,
        )
        if seen.run.paused is not None:
            deadline = Deadline(0)
        return self._carrier.carry_out(
            run_id, command, inline, deadline, None, on_waiting=on_waiting, seen=seen, terms=terms
        )

    def neglected(self, on_unreadable: OnUnreadable) -> Iterator[Neglected]:
        """Yield what needs somebody, or what nobody works on. See ``recovery.neglected``."""
        return neglected(self.store, self.settings, on_unreadable)

    def relieve(self, found: Neglected) -> Run:
        """Do what is safe by itself about a run that nobody works on; return it as it is then."""
        self._coordinator.tend(self.store.reminder(found.run_id))
        run = self.run(found.run_id)
        self.acknowledge(run)
        return run

    def cancel_run(
        self, run_id: str, reason: str, by: Actor, *, terminate: bool = False, terms: Terms = NO_TERMS
    ) -> Run:
        """End a run for good; return it as it is then.

        What is being executed may end first, unless the run is terminated: then it is ended, which whoever executes
        it learns within ``RENEWAL_SECONDS_MAX``. A run that is ending already may still be terminated.

        Raises:
            CancelledRun: it was cancelled before, and nothing is left to be ended.
            Conflict: it has finished.
        """
        run = self._coordinator.apply(run_id, CancelRun(reason=reason, by=by, terminate=terminate), None, terms).run
        # What a killed caller has left is not waited for.
        left = self._carrier.settle_leftover(self._coordinator.load(run_id), NEVER) if run.in_flight else None
        self.acknowledge(run)
        return run if left is None else left.run

    def pause(self, run_id: str, reason: str, by: Actor, terms: Terms = NO_TERMS) -> Run:
        """Hold a run where it is until ``unpause``; return it as it is then.

        What is being executed may end, and people may decide; nothing else happens to it.

        Raises:
            PausedRun: it is paused already.
            CancelledRun: it was cancelled.
            Conflict: it has finished.
        """
        run = self._coordinator.apply(run_id, Pause(reason=reason, by=by), None, terms).run
        self.acknowledge(run)
        return run

    def unpause(self, run_id: str, by: Actor, terms: Terms = NO_TERMS) -> Run:
        """Let a paused run go on; return it as it is then. What it owes is offered to workers again.

        Raises:
            CancelledRun: it was cancelled.
            Conflict: it is not paused.
        """
        run = self._coordinator.apply(run_id, Unpause(by=by), None, terms).run
        self.acknowledge(run)
        return run

    def see_through(self, run_id: str, deadline: Deadline) -> Settled | None:
        """Wait until the open transition of a run has settled or time is up; None if there is none.

        What of it nobody else does is done here, if anything is.

        Raises:
            NotFound: there is no such run.
        """
        return self._carrier.see_through(run_id, deadline)

    def wait_while_paused(self, run_id: str, deadline: Deadline) -> Run:
        """Wait until a run is not paused any more, or time is up; return it as it is then."""
        with self.watcher.watch(run_id) as watch:
            while (run := self.run(run_id)).paused is not None and not deadline.passed:
                watch.wait(run.version, deadline.bound(LOOK_AGAIN_SECONDS))
        return run

    def restart(
        self,
        request: StartRequest,
        deadline: Deadline = NEVER,
        on_event: OnEvent | None = None,
        on_waiting: OnWaiting | None = None,
        terms: Terms = NO_TERMS,
    ) -> Settled:
        """End what a run does, begin it anew under its id, and run the ``in_hook`` of the initial node.

        The runbook and the place are those of the request; the history and the labels stay those of the run.

        Raises:
            NotFound: there is no run of that id.
        """
        inline = self._carrier.inline_worker(request.place.queue)
        command = Restart(
            runbook=request.runbook,
            place=request.place,
            by=request.by,
            confirmations=request.confirmations,
            request_id=terms.request or _request_id(),
            worker=inline.worker if inline else None,
        )
        return self._carrier.carry_out(
            request.run_id, command, inline, deadline, on_event, on_waiting=on_waiting, terms=terms
        )

    def listed(self, wanted: RunFilter, limit: int, on_unreadable: OnUnreadable) -> Iterator[Snapshot]:
        """Yield runs, newest first; at most ``limit``. See ``listing.listed``."""
        return islice(listed(self.store, wanted, on_unreadable), limit)

    def summaries(self, wanted: RunFilter, limit: int, on_unreadable: OnUnreadable) -> list[dict[str, Any]]:
        """Return runs in a line each (``views.run_summary``), newest first."""
        return [run_summary(each.run) for each in self.listed(wanted, limit, on_unreadable)]

    def new_events(self, run_id: str, after: int) -> Iterator[list[tuple[int, Event]]]:
        """Yield the events of a run after a number, and those to come, until it has ended. See ``eventlog``."""
        return new_events(self.store, self.watcher, run_id, after, LOOK_AGAIN_SECONDS)

    def page(self, wanted: RunFilter, cursor: str | None, limit: int, on_unreadable: OnUnreadable) -> Page:
        """Return a page of runs, newest first. See ``listing.page``."""
        return page(self.store, wanted, cursor, limit, on_unreadable)

    def answered(self, run_id: str, terms: Terms) -> Settled | None:
        """Return the run, and the transition that a request with an id of its own has led to.

        None if it was not carried out yet.

        Raises:
            RequestReused: the id stands for another request.
        """
        receipt = self._receipt(run_id, terms)
        if receipt is None:
            return None
        run = self.run(run_id)
        transition = find_transition(self.store, run, receipt.transition)
        if transition is None:
            # The store has lost it since it was asked for the receipt, and the receipt with it: it was not carried out.
            return None
        self.acknowledge(run)
        return Settled(run=run, transition=transition)

    def require_same_request(self, terms: Terms) -> bool:
        """Refuse the id of another request, for one that is about no run that is known yet; return whether it is one
        that was made before.

        Raises:
            RequestReused: the id stands for another request.
        """
        known = self.store.claim_request(terms.request, terms.fingerprint) if terms.request else "new"
        if known == "another":
            raise _request_reused()
        return known == "repeated"

    def was_carried_out(self, run_id: str, terms: Terms) -> bool:
        """Return whether a request with an id of its own was carried out.

        Raises:
            RequestReused: the id stands for another request.
        """
        return self._receipt(run_id, terms) is not None

    def latest(self, run_id: str) -> Settled:
        """Return a run and its latest transition.

        Raises:
            NotFound: there is no such run, or nothing has happened to it yet.
        """
        run = self.run(run_id)
        if run.transition is None:
            raise NotFound(f"Run {run_id!r} has made no transition yet.", details={"run_id": run_id})
        return Settled(run=run, transition=run.transition)

    def look(self, run_id: str, transition_id: str, seen: Snapshot | None = None) -> Settled:
        """Return a transition of a run as it is now, or was when it was ``seen``.

        Raises:
            NotFound: there is no such run, or it has not made such a transition.
            StateRegressed: the store was found to have lost what was seen of the run.
        """
        run = (seen or self._look(run_id)).run
        transition = find_transition(self.store, run, transition_id)
        if transition is None:
            self._coordinator.refuse_regressed(run_id)
            raise NotFound(
                f"Run {run_id!r} has made no transition {transition_id!r}.",
                details={"run_id": run_id, "transition": transition_id},
            )
        return Settled(run=run, transition=transition)

    def adopt(self, parcel: Parcel) -> Run:
        """Take over a run from a file, with the runbooks that it has followed; return it.

        Raises:
            Conflict: there is a run of that id already.
        """
        if self.store.load(parcel.run.id) is not None:
            # So that nothing at all is written then; a run that is made meanwhile is refused below.
            raise run_exists(parcel.run.id)
        for stored in parcel.runbooks:
            self.store.save_runbook(stored)
        run = self._coordinator.adopt(parcel.events)
        self.acknowledge(run)
        return run

    def decisions(
        self, limit: int, on_unreadable: OnUnreadable, labels: Mapping[str, str] | None = None
    ) -> list[Decision]:
        """Return what waits for somebody's decision, the runs that began last first. See ``listed``."""
        of_labels = dict(labels or {})
        found = [
            each
            for status in ("waiting", "paused")
            for each in self.listed(RunFilter(status=status, labels=of_labels), limit, on_unreadable)
        ]
        snapshots = sorted(found, key=lambda each: each.run.created_at, reverse=True)
        return [decision for snapshot in snapshots for decision in decisions_of(self._expire_decisions(snapshot).run)]

    def settled_run(self, run_id: str, on_leftover: OnLeftover | None = None) -> Run:
        """Return a run after settling what a killed or interrupted caller may have left of its transition.

        Args:
            run_id: the run.
            on_leftover: told of such a transition first, because finishing it takes as long as its checks take.

        Raises:
            NotFound: there is none of that id.
        """
        snapshot = self._look(run_id)
        left = self._carrier.settle_leftover(snapshot, NEVER, on_leftover)
        return snapshot.run if left is None else left.run

    def glance(self, run_id: str) -> tuple[Run, bool]:
        """Return a run as it is, and whether its open transition is in good hands.

        It is when it waits for people or for the time of another try, when a worker has it, or will have it. What a
        killed caller has left is not finished here.

        Raises:
            NotFound: there is none of that id.
        """
        snapshot = self._look(run_id)
        run = snapshot.run
        return run, run.in_flight is not None and not self._carrier.is_left_to_us(snapshot)

    def waiting_reason(self, run: Run) -> str:
        """Return why the open transition of a run has not settled yet, in a sentence; empty if none is open."""
        return self._reasons.of(run)

    # --- kept for agents ---------------------------------------------------------------------------------------

    def registered_checks(self, run: Run, config: DynamicConfig) -> list[dict[str, Any]]:
        """Return who has registered dynamic checks for the current entry (``dynamic.registration_view``)."""
        from statem_dist import dynamic

        return [dynamic.registration_view(run, each) for each in dynamic.registrations(self.store, run, config)]

    def register_checks(
        self, run: Run, text: str, source: str, format: Format, config: DynamicConfig, by: Actor
    ) -> tuple[dict[str, Any], Sequence[str]]:
        """Register the checks of a text for the current entry, in place of the agent's earlier ones.

        Args:
            run: the run.
            text: what holds them.
            source: what messages call it.
            format: its language.
            config: what the current node accepts.
            by: who registers.

        Returns:
            The registration (``dynamic.registration_view``), and what is doubtful about the text, in sentences.

        Raises:
            RunbookInvalid: the text holds something that the node does not accept.
        """
        from statem_dist import dynamic

        found = dynamic.accepted(text, source, format, config)
        made = dynamic.register(self.store, run, found.checks, by, self.store.clock())
        return dynamic.registration_view(run, made), [str(warning) for warning in found.warnings]

    def stops(self, run_id: str, session: str) -> bytes | None:
        """Return what is kept of a session of an agent host that wanted to stop, or None."""
        return self.store.stops(run_id, session)

    def save_stops(self, run_id: str, session: str, document: bytes) -> None:
        """Keep that for some days, in place of what was kept."""
        self.store.save_stops(run_id, session, document)

    def _receipt(self, run_id: str, terms: Terms) -> Receipt | None:
        """Return what is kept of a request; None if it has no id of its own, or was not carried out.

        Raises:
            RequestReused: the id stands for another request.
        """
        receipt = self.store.receipt(run_id, terms.request) if terms.request else None
        if receipt is not None and receipt.fingerprint != terms.fingerprint:
            raise _request_reused()
        return receipt

    def _look(self, run_id: str) -> Snapshot:
        """Return a run as it is, after ending what has waited too long for a decision.

        Raises:
            NotFound: there is none of that id.
        """
        return self._expire_decisions(self._coordinator.load(run_id))

    def _expire_decisions(self, snapshot: Snapshot) -> Snapshot:
        """End what has waited too long for a decision; return the run as it is then.

        A reaper does that too, and sooner; but an embedded instance without a worker has none.
        """
        run_id = snapshot.run.id
        late = [each for each in decisions_of(snapshot.run) if 0 < each.expires_at <= snapshot.now]
        for decision in late:
            self._coordinator.apply(run_id, ExpireDecision(transition=decision.transition, check=decision.check))
        return self._coordinator.load(run_id) if late else snapshot

    def _dynamic_facts(
        self, run: Run, confirmations: Confirmations, on_manual: OnManual = "fail"
    ) -> DynamicFacts | None:
        """Return what is registered for the current entry; None where its node accepts no dynamic checks."""
        node = self.runbook(run.runbook).node(run.node)
        if node is None or node.dynamic is None:
            return None
        from statem_dist import dynamic

        registered = dynamic.registrations(self.store, run, node.dynamic)
        return dynamic.snapshot(node.dynamic, registered, confirmations, on_manual)


def _start_command(request: StartRequest, terms: Terms, worker: Worker | None) -> Start:
    return Start(
        run_id=request.run_id,
        runbook=request.runbook,
        place=request.place,
        by=request.by,
        confirmations=request.confirmations,
        labels=request.labels,
        request_id=terms.request or _request_id(),
        worker=worker,
    )


def _request_reused() -> RequestReused:
    """Return the error for an idempotency key that was used for another request before."""
    return RequestReused(
        "This idempotency key was used before, for another request.",
        hint="Take a new key for a new request; a repeated request must be the same in every part.",
    )


def _request_id() -> str:
    return f"req_{os.urandom(8).hex()}"
