"""The verbs of the product on stored runs, as the command line, the sweep and a service need them.

Where a worker serves a run's queue, a verb leaves the work to it and waits for the run's events. Where nobody
does and the store is the embedded one, the caller executes the work itself: the same decisions, claims, leases
and events, so that whoever comes next can settle what a killed caller has left.
"""

from __future__ import annotations

import os
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from msgspec import Struct

from statem_dist.coordinator import Applied, Coordinator
from statem_dist.deadline import NEVER, Deadline
from statem_dist.decisions import Decision, decisions_of
from statem_dist.dispatch import Dispatcher, PushWithCommit
from statem_dist.errors import Conflict, Invalid, NotFound, Unavailable
from statem_dist.follow import Follower, OnEvent, Settled, is_abandoned, lost_claims, queues_of_work
from statem_dist.leases import RENEWALS_PER_LEASE
from statem_dist.protocol.answers import question_of
from statem_dist.protocol.commands import Cancel, Command, Decide, ExpireDecision, Goto, Resume, Save, Start
from statem_dist.protocol.graph import LlmReview, Runbook
from statem_dist.protocol.model import Actor, Confirmations, DynamicFacts, OnManual, Place, Run, Transition
from statem_dist.protocol.plan import plan_goto
from statem_dist.protocol.progress import CHECKS_QUEUE, REVIEWS_QUEUE, asks, pending, waits_for_people
from statem_dist.roster import Roster
from statem_dist.settings import Settings
from statem_dist.store.base import Snapshot
from statem_dist.store.client import client_for
from statem_dist.store.codec import StoredRunbook
from statem_dist.store.redis_store import RedisStore
from statem_dist.store.watch import Watch, Watcher

if TYPE_CHECKING:
    from statem_dist.inline import InlineWorker
    from statem_dist.runbook import Parsed

RUN_ID_LENGTH_MAX = 200
"""Characters of a run id; it becomes part of keys, file names and environment variables."""

LOOK_AGAIN_SECONDS = 5.0
"""A waiting caller looks at the run at least that often, whatever was announced."""

OnWaiting = Callable[[str], None]
"""Called now and then while nothing happens, with the reason why."""

OnLeftover = Callable[[Transition], None]
"""Called with the transition that a caller has left, before it is finished."""

OnUnreadable = Callable[[str, Exception], None]
"""Called with the id of a stored run that cannot be read, and why."""

OUTAGE_SECONDS = 60.0
"""How long a caller that waits for a transition bears a store that is away."""

NOTHING_CONFIRMED = Confirmations()


class StartRequest(Struct, frozen=True):
    """What to start: a registered runbook, a clean run id, where a new run's checks are executed, and by whom."""

    runbook: Runbook
    run_id: str
    place: Place
    by: Actor
    confirmations: Confirmations = Confirmations()
    labels: dict[str, str] = {}


class Question(Struct, frozen=True):
    """A check that asks for a confirmation: its id in the plan, its name if it has one, and what it asks.

    ``operator`` says that only an operator's decision settles it.
    """

    check: str
    name: str
    text: str
    operator: bool


class Engine:
    """Verbs on the runs of one store; usable from several threads.

    Args:
        settings: limits and places.
        redis_url: the state store, already reachable or about to be.
        environ: the caller's environment, which commands get when the caller executes them.
        inline: whether the caller executes work that nobody serves.
        quick: whether this process is over after a command or two; see ``client_for``.
    """

    def __init__(
        self,
        settings: Settings,
        redis_url: str,
        environ: Mapping[str, str] | None = None,
        *,
        inline: bool,
        quick: bool = False,
    ) -> None:
        self.settings = settings
        self.redis_url = redis_url
        self._quick = quick
        self.store = RedisStore(client_for(redis_url, quick=quick), patience_seconds=settings.patience_seconds)
        self.roster = Roster(self.store)
        self.watcher = Watcher(self.store.client)
        self._inline = inline
        self._inline_workers: dict[tuple[str, ...], InlineWorker] = {}
        self._inline_lock = threading.Lock()
        self._environ = dict(os.environ if environ is None else environ)
        self._dispatcher = dispatcher_for(settings, redis_url)
        self._coordinator = Coordinator(self.store, self._dispatcher, settings)
        self._runbooks: dict[str, Runbook] = {}

    def close(self) -> None:
        """End what this engine has started: its listener, its leases, its commands."""
        self.watcher.close()
        for inline in self._inline_workers.values():
            inline.close()
        self.store.client.close()

    # --- reading -------------------------------------------------------------------------------------------

    def run(self, run_id: str) -> Run:
        """Return a run.

        Raises:
            NotFound: there is none of that id.
        """
        return self._coordinator.load(run_id).run

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
    ) -> Settled:
        """Create a run, or resume the one of that id, and run the ``in_hook`` of the node it stands on.

        Another runbook than before rebinds the run.
        """
        existing = self.store.load(request.run_id)
        if existing is not None:
            self._settle_leftover(self._expire_decisions(existing), deadline)
        queue = existing.run.place.queue if existing else request.place.queue
        inline = self._inline_worker(queue)
        worker = inline.worker if inline else None
        command: Start | Resume
        if existing is not None:
            command = Resume(
                runbook=request.runbook,
                by=request.by,
                confirmations=request.confirmations,
                request_id=_request_id(),
                worker=worker,
            )
        else:
            command = Start(
                run_id=request.run_id,
                runbook=request.runbook,
                place=request.place,
                by=request.by,
                confirmations=request.confirmations,
                labels=request.labels,
                request_id=_request_id(),
                worker=worker,
            )
        return self._carry_out(request.run_id, command, inline, deadline, on_event, on_waiting=on_waiting)

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
    ) -> Settled:
        """Attempt the transition to a target, and wait until it has settled or time is up.

        Without ``wait`` it is left to workers, present or to come, and returned as it is then. What a killed caller
        has left is finished first; if that was the same request, or has reached the target, it is the answer.

        Raises:
            UnknownTarget: there is no such edge.
            TransitionInFlight: another transition of the run is open, and alive.
        """
        seen = self._look(run_id)
        run = seen.run
        left = self._settle_leftover(seen, deadline) if wait else None
        if left is not None and left.transition.kind == "goto" and left.transition.target == target:
            transition = left.transition
            asked_the_same = (transition.by, transition.confirmations, transition.on_manual) == (
                by,
                confirmations,
                on_manual,
            )
            if asked_the_same or transition.outcome == "committed":
                return left
        inline = self._inline_worker(run.place.queue) if wait else None
        found = self._dynamic_facts(run, confirmations, on_manual)
        if found is not None:
            # They belong to this entry: if the run has moved on meanwhile, the command is stale.
            from_entry = from_entry or run.entry_id
        command = Goto(
            runbook=self.runbook(run.runbook),
            target=target,
            by=by,
            confirmations=confirmations,
            request_id=_request_id(),
            worker=inline.worker if inline else None,
            from_entry=from_entry,
            dynamic=found,
            on_manual=on_manual,
        )
        return self._carry_out(
            run_id,
            command,
            inline,
            deadline if wait else Deadline(0),
            on_event,
            on_waiting=on_waiting,
            seen=None if left else seen,
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
    ) -> Settled:
        """Run the ``out_hook`` of the current node without moving."""
        seen = self._look(run_id)
        run = seen.run
        self._settle_leftover(seen, deadline)
        inline = self._inline_worker(run.place.queue)
        command = Save(
            runbook=self.runbook(run.runbook),
            by=by,
            confirmations=confirmations,
            skip_hooks=skip_hooks,
            request_id=_request_id(),
            worker=inline.worker if inline else None,
        )
        return self._carry_out(run_id, command, inline, deadline, on_event, on_waiting=on_waiting)

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
    ) -> Settled:
        """Settle a check that waits for a decision, and see the transition through to what it does next.

        Raises:
            Conflict: somebody else has decided otherwise, or nothing waits for this decision any more.
            NotAuthorised: the check is for an operator to decide.
        """
        seen = self._look(run_id)
        inline = self._inline_worker(seen.run.place.queue)
        command = Decide(
            transition=transition,
            check=check,
            approved=approved,
            comment=comment,
            by=by,
            operator=operator,
            worker=inline.worker if inline else None,
        )
        return self._carry_out(run_id, command, inline, deadline, None, on_waiting=on_waiting, seen=seen)

    def cancel(self, run_id: str, reason: str, by: Actor) -> Settled:
        """End the open transition of a run where it stands; nothing that it would still do is done.

        Raises:
            Conflict: no transition is open, or it has committed already.
        """
        seen = self._coordinator.load(run_id)
        if seen.run.in_flight is None:
            raise Conflict(
                f"Run {run_id!r} has no transition in flight; it stands on {seen.run.node!r}.",
                details={"run_id": run_id, "current": seen.run.node},
            )
        command = Cancel(transition=seen.run.in_flight.id, reason=reason, by=by)
        applied = self._coordinator.apply(run_id, command, seen)
        assert applied.run.transition is not None
        return Settled(run=applied.run, transition=applied.run.transition)

    def listed(self, status: str | None, limit: int, on_unreadable: OnUnreadable) -> Iterator[Snapshot]:
        """Yield runs, newest first; one that was removed meanwhile is left out.

        Args:
            status: only runs of this status; None for all.
            limit: how many at most.
            on_unreadable: told of each run that cannot be read, for which the others are not kept back.
        """
        for run_id in self.store.run_ids(status, limit):
            try:
                snapshot = self.store.load(run_id)
            except Unavailable:
                raise
            except Exception as error:
                # Whatever stands there instead of a run.
                on_unreadable(run_id, error)
                continue
            if snapshot is not None:
                yield snapshot

    def decisions(self, limit: int, on_unreadable: OnUnreadable) -> list[Decision]:
        """Return what waits for somebody's decision, the runs that began last first. See ``listed``."""
        snapshots = self.listed("waiting", limit, on_unreadable)
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
        left = self._settle_leftover(snapshot, NEVER, on_leftover)
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
        return run, run.in_flight is not None and not self._is_left_to_us(snapshot)

    def waiting_reason(self, run: Run) -> str:
        """Return why the open transition of a run has not settled yet, in a sentence; empty if none is open."""
        transition = run.in_flight
        if transition is None:
            return ""
        if waits_for_people(run):
            listed = ", ".join(decision.id for decision in decisions_of(run))
            return f"somebody has to decide: {listed}"
        if transition.claims:
            return self._claim_reason(run.id)
        for batch in pending(run):
            if (wait := batch.not_before - self.store.clock()) > 0:
                return f"{batch.checks[0]} is tried again in {wait / 1000:.1f} s"
            if not self.roster.serves(batch.queue):
                return self._help_reason(batch.queue)
            return f"{batch.checks[0]} waits for a free slot in the queue {batch.queue!r}"
        return "its last result is being recorded"

    def _claim_reason(self, run_id: str) -> str:
        """Return who executes a run's first claimed check, or that nobody does any more; empty if none is claimed."""
        snapshot = self._coordinator.load(run_id)
        transition = snapshot.run.in_flight
        if transition is None or not transition.claims:
            return ""
        lost = lost_claims(snapshot)
        if not lost:
            claim = transition.claims[0]
            return f"{claim.checks[0]} is being executed by {claim.worker}"
        claim = lost[0]
        silence = f"{claim.checks[0]} was begun by {claim.worker}, which has died or is silent"
        unserved = [queue for queue in sorted(queues_of_work(snapshot)) if not self.roster.serves(queue)]
        return f"{silence}; {self._help_reason(unserved[0]) if unserved else 'another worker takes it over'}"

    def _help_reason(self, queue: str) -> str:
        """Return what it takes to get work done in a queue that no worker serves."""
        if self._inline:
            return "nobody works on it now; the next command on the run goes on with it"
        return f"no worker serves the queue {queue!r} (start one: statem-dist worker -Q {queue})"

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

    # --- carrying out ----------------------------------------------------------------------------------------

    def _carry_out(
        self,
        run_id: str,
        command: Command,
        inline: InlineWorker | None,
        deadline: Deadline,
        on_event: OnEvent | None,
        *,
        on_waiting: OnWaiting | None = None,
        seen: Snapshot | None = None,
    ) -> Settled:
        """Apply a command that opens a transition, and see it through in the caller, in workers, or in both."""
        if inline is not None and inline.alone:
            applied = inline.apply(run_id, command, seen)
            return inline.carry_out(applied, self._follower(applied, on_event), deadline)
        if inline is None and deadline.passed:
            applied = self._coordinator.apply(run_id, command, seen)
            return self._follower(applied, on_event).look(applied.run)
        with self.watcher.watch(run_id) as watch:
            coordinator = self._coordinator if inline is None else inline.coordinator
            applied = coordinator.apply(run_id, command, seen)
            run, follower = applied.run, self._follower(applied, on_event)
            if inline is not None:
                run = inline.carry_out(applied, follower, deadline).run
            return self._wait(run, follower, watch, deadline, on_waiting)

    def _wait(
        self,
        run: Run,
        follower: Follower,
        watch: Watch,
        deadline: Deadline,
        on_waiting: OnWaiting | None,
    ) -> Settled:
        """Wait until a transition that workers carry out has settled or time is up.

        What no worker serves, or serves any more, is executed by the caller.
        """
        while True:
            follower.show_new_events()
            settled = follower.look(run)
            if not settled.transition.open or waits_for_people(run) or deadline.passed:
                return settled
            version = run.version
            heard = watch.wait(version, deadline.bound(LOOK_AGAIN_SECONDS))
            snapshot = self._look_again(follower.run_id, deadline)
            run = snapshot.run
            if self._is_left_to_us(snapshot) and (inline := self._inline_worker(run.place.queue)):
                run = inline.finish(follower, deadline).run
            elif run.version == version and run.in_flight is not None and on_waiting is not None and not heard:
                on_waiting(self.waiting_reason(run))

    def _look_again(self, run_id: str, deadline: Deadline) -> Snapshot:
        """Load a run that workers have in hand. They outlast a restart of the store, and so does who waits for them."""
        outage = Deadline(deadline.bound(OUTAGE_SECONDS))
        while True:
            try:
                return self._coordinator.load(run_id)
            except Unavailable:
                if outage.passed:
                    raise

    def _settle_leftover(
        self, snapshot: Snapshot, deadline: Deadline, on_leftover: OnLeftover | None = None
    ) -> Settled | None:
        """Do what nobody else will of the open transition of a run; return it as it is then, settled as a rule."""
        run = snapshot.run
        if run.in_flight is None or not self._is_left_to_us(snapshot):
            return None
        inline = self._inline_worker(run.place.queue)
        if inline is None:
            return None
        if on_leftover is not None:
            on_leftover(run.in_flight)
        return inline.finish(Follower(self.store, run.id, run.in_flight.id, run.version, None), deadline)

    def _follower(self, applied: Applied, on_event: OnEvent | None) -> Follower:
        transition = applied.run.transition
        assert transition is not None, "a verb opens a transition, or goes on with one"
        before = applied.run.version - len(applied.events)
        return Follower(self.store, applied.run.id, transition.id, before, on_event)

    def _is_left_to_us(self, snapshot: Snapshot) -> bool:
        """Return whether the open transition of a run owes something that only a caller will execute."""
        if not self._inline or not is_abandoned(self.store, snapshot):
            return False
        return any(not self.roster.serves(queue) for queue in queues_of_work(snapshot))

    def _inline_worker(self, pinned: str | None) -> InlineWorker | None:
        """Return the caller as a worker for those queues of a run that no other serves; None if all are served.

        Args:
            pinned: the queue that the run is pinned to, or None for the common ones.
        """
        if not self._inline:
            return None
        everything = (CHECKS_QUEUE, REVIEWS_QUEUE) if pinned is None else (pinned,)
        unserved = tuple(queue for queue in everything if not self.roster.serves(queue))
        if not unserved:
            return None
        with self._inline_lock:
            if unserved not in self._inline_workers:
                # Only who executes checks pays for what executes them.
                from statem_dist.inline import InlineWorker

                patience = self.settings.lease_seconds / (2 * RENEWALS_PER_LEASE)
                self._inline_workers[unserved] = InlineWorker(
                    self.store,
                    RedisStore(client_for(self.redis_url, quick=self._quick), patience_seconds=patience),
                    self.settings,
                    self._environ,
                    unserved,
                    self._dispatcher,
                    alone=unserved == everything,
                    store_url=self.redis_url,
                )
            return self._inline_workers[unserved]


def dispatcher_for(settings: Settings, redis_url: str) -> Dispatcher:
    """Return how work is dispatched: with the commit where the broker is the store's Redis, else after it."""
    if settings.broker_url is None or settings.broker_url == redis_url:
        return PushWithCommit()
    from statem_dist.publish import PublishAfterCommit

    return PublishAfterCommit(settings.broker_url)


def no_active_run(state_dir: str, why: str = "") -> NotFound:
    """Return the error for a command that names no run where none was started; ``why`` begins its hint."""
    return NotFound(
        "No active run.",
        hint=f"{why} Start one with `statem-dist start RUNBOOK`, or name one with --run-id.".lstrip(),
        details={"state_dir": state_dir},
    )


def clean_run_id(text: str) -> str:
    """Return a run id of safe characters: trimmed, and each stretch of others turned into a hyphen.

    Raises:
        Invalid: nothing is left, or it is too long.
    """
    cleaned = re.sub(r"[^A-Za-z0-9._-]+", "-", text.strip()).strip("-")
    if not cleaned.strip("."):
        raise Invalid(f"The run id {text!r} has no usable character.", hint="Use letters, digits, '.', '_' and '-'.")
    if len(cleaned) > RUN_ID_LENGTH_MAX:
        raise Invalid(
            f"The run id is {len(cleaned)} characters long; {RUN_ID_LENGTH_MAX} are allowed.",
            hint="Choose a shorter one, and keep the rest in labels.",
        )
    return cleaned


def new_run_id(name: str) -> str:
    """Return a run id for a new run of a runbook: its name, the time in UTC, and 48 random bits."""
    stem = re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip("-.") or "run"
    return f"{stem[:80]}-{time.strftime('%Y%m%d-%H%M%S', time.gmtime())}-{os.urandom(6).hex()}"


def _request_id() -> str:
    return f"req_{os.urandom(8).hex()}"
