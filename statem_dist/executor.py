"""Executing what a run owes: claim, evaluate, record, and straight on with what follows.

A worker process and a command line that works without a worker use the same executor; they differ in who they
are, which queues they serve, and the environment that they give to commands.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from urllib.parse import urlsplit

from msgspec.structs import replace

from statem_dist.checks.confinement import rules_for
from statem_dist.checks.context import CheckContext
from statem_dist.checks.environment import statem_variables
from statem_dist.checks.evaluate import evaluate
from statem_dist.checks.process import Supervisor
from statem_dist.coordinator import Applied, Coordinator
from statem_dist.deadline import NEVER, Deadline
from statem_dist.errors import StateRegressed
from statem_dist.leases import Held, LeaseKeeper
from statem_dist.protocol.commands import ClaimWork, RecordOutcomes, ReturnWork
from statem_dist.protocol.events import Event, WorkClaimed
from statem_dist.protocol.graph import LlmReview, Predicate
from statem_dist.protocol.model import Place, PlannedCheck, Run, Worker
from statem_dist.protocol.outcome import Outcome, Reason
from statem_dist.protocol.progress import repeatable
from statem_dist.settings import Settings

CUT_SHORT: frozenset[Reason] = frozenset({"cancelled", "shutdown"})
"""Reasons of an outcome that is our own doing, because this worker stops or has lost its claim."""

LOSSES_SHARED_MAX = 1
"""Workers that a check may have lost and still be begun beside others that have lost as many."""

LOOK_SECONDS = 0.2
"""How often who waits for its turn looks whether it is to stop."""

logger = logging.getLogger(__name__)

MakeEnvironment = Callable[[Place, dict[str, str]], dict[str, str]]
"""Builds the environment of a command from the run's place and its ``STATEM_*`` variables."""


def _nothing() -> None:
    """The observer of whoever does not observe."""


class _Work:
    """One claim being worked off: the last commit, and the outcomes that are not recorded yet."""

    def __init__(self, applied: Applied) -> None:
        self.applied = applied
        self.outcomes: list[Outcome] = []

    def ended(self, token: int) -> bool:
        """Return whether the claim is no longer ours, because it is done, cancelled or superseded."""
        transition = self.applied.run.in_flight
        return transition is None or transition.claim(token) is None


class Executor:
    """Executes batches of checks for one worker identity; safe to use from several threads.

    Args:
        coordinator: where claims are made and outcomes recorded.
        worker: who executes.
        supervisor: spawns and ends the commands.
        leases: keeps the leases of what is being executed.
        environment: see ``MakeEnvironment``.
        settings: limits, the policy of this host, and its reviewer.
        passed: names of the variables of this process that commands get, those in a container included.
        store_url: where the state is; a socket of it is shown in no sandbox.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        worker: Worker,
        supervisor: Supervisor,
        leases: LeaseKeeper,
        environment: MakeEnvironment,
        settings: Settings,
        *,
        passed: tuple[str, ...] = (),
        store_url: str = "",
    ) -> None:
        self.coordinator = coordinator
        self.worker = worker
        self.supervisor = supervisor
        self._leases = leases
        self._environment = environment
        self._settings = settings
        self._passed = passed
        self._hidden = (str(settings.state_dir), *socket_of(store_url))
        self._stopping = threading.Event()
        self._suspect = threading.Lock()
        self._prompt_of = lru_cache(maxsize=256)(self._load_prompt)

    def execute(
        self,
        run_id: str,
        transition: str,
        check: str,
        deadline: Deadline = NEVER,
        on_recorded: Callable[[], None] = _nothing,
    ) -> Run:
        """Claim the batch that begins with a check, execute it and what follows; return the run afterwards.

        When the batch is not on offer (any more), nothing happens. See ``carry_on`` for the arguments.

        Of the checks that have lost two workers in a row, a process executes one at a time. One of them may be what
        killed both; with its third start it takes none of the others with it.
        """
        claim = ClaimWork(transition=transition, check=check, worker=self.worker)
        snapshot = self.coordinator.load(run_id)
        if _losses(snapshot.run, check) <= LOSSES_SHARED_MAX:
            return self.carry_on(self.coordinator.apply(run_id, claim, snapshot), deadline, on_recorded)
        while not self._suspect.acquire(timeout=LOOK_SECONDS):
            if self._stopping.is_set() or deadline.passed:
                # It is still on offer.
                return snapshot.run
        try:
            return self.carry_on(self.coordinator.apply(run_id, claim), deadline, on_recorded)
        finally:
            self._suspect.release()

    def carry_on(
        self,
        applied: Applied,
        deadline: Deadline = NEVER,
        on_recorded: Callable[[], None] = _nothing,
    ) -> Run:
        """Execute the claim that was just made, and every further one; return the run afterwards.

        Args:
            applied: a commit whose last event may be a claim of this worker.
            deadline: when it has passed, what runs is ended and handed back.
            on_recorded: called after each commit.
        """
        on_recorded()
        while (token := _claimed(applied.events)) is not None:
            applied = self._work_off(applied, token, deadline, on_recorded)
        return applied.run

    def stop(self, grace_seconds: float) -> None:
        """Begin nothing more; after the grace, end running commands so that their checks are handed back."""
        self._stopping.set()
        timer = threading.Timer(grace_seconds, self.supervisor.cancel_all, args=("shutdown",))
        timer.daemon = True
        timer.start()

    @property
    def stopping(self) -> bool:
        """Whether ``stop`` was called."""
        return self._stopping.is_set()

    def _work_off(self, applied: Applied, token: int, deadline: Deadline, on_recorded: Callable[[], None]) -> Applied:
        """Execute the checks of one claim and record what came of them."""
        run, transition = applied.run, applied.run.transition
        assert transition is not None
        claim = transition.claim(token)
        assert claim is not None
        key = f"{run.id}/{transition.id}/{token}"
        work = _Work(Applied(run=run, events=(), operation=applied.operation))
        with self._leases.hold(
            run.id, token, lambda: self.supervisor.cancel(key, "lease lost"), applied.asked_at, applied.operation
        ) as held:
            try:
                for check_id in claim.checks:
                    planned = transition.planned(check_id)
                    assert planned is not None
                    quick = isinstance(planned.check.do, Predicate)
                    if not quick:
                        # What is known is recorded before anything takes long or has an effect.
                        self._flush(work, token, on_recorded)
                    if work.ended(token):
                        return work.applied
                    if held.lost or self._stopping.is_set() or deadline.passed:
                        return self._hand_back(work, token, on_recorded)
                    if not repeatable(planned) and not self._confirmed(run.id, held, deadline):
                        return self._hand_back(work, token, on_recorded)
                    outcome = self._evaluate(work.applied.run, planned, token, deadline)
                    if outcome.reason in CUT_SHORT and (repeatable(planned) or not outcome.begun):
                        return self._hand_back(work, token, on_recorded)
                    work.outcomes.append(outcome)
                    if not quick:
                        self._flush(work, token, on_recorded)
                self._flush(work, token, on_recorded)
            except KeyboardInterrupt:
                self.supervisor.cancel(key, "shutdown")
                self._hand_back_if_repeatable(work, token, on_recorded)
                raise
        return work.applied

    def _confirmed(self, run_id: str, held: Held, deadline: Deadline) -> bool:
        """Wait until a claim is as safe as the level of durability says: what must not run twice is begun only then.

        A replica that takes over without the claim would have somebody else begin it as well.
        """
        while not self.coordinator.store.confirm(run_id):
            if held.lost or self._stopping.is_set() or deadline.passed:
                return False
        return True

    def _evaluate(self, run: Run, planned: PlannedCheck, token: int, deadline: Deadline) -> Outcome:
        transition = run.transition
        assert transition is not None, "a claim belongs to a transition"
        key, stem = f"{run.id}/{transition.id}/{token}", f"{run.entry_id}.{transition.id}"
        variables = statem_variables(
            run_id=run.id,
            spec=run.place.spec,
            state_dir=run.place.state_dir,
            current=run.node,
            purpose=planned.purpose,
            entry_id=run.entry_id,
            agent_id=transition.by.id,
            agent_role=transition.by.role,
            url=None,
            check_key=f"{stem}.{planned.id}",
            fencing_token=token,
            repairs=planned.repairs or None,
            repairs_key=f"{stem}.{planned.repairs}" if planned.repairs else None,
        )
        context = CheckContext(
            key=key,
            workspace=run.place.workspace,
            environ=self._environment(run.place, variables),
            purpose=planned.purpose,
            run_id=run.id,
            node=run.node,
            node_prompt=self._prompt_of(run.runbook, run.node) if isinstance(planned.check.do, LlmReview) else "",
            spec=run.place.spec,
            reviewer_command=self._settings.reviewer_command,
            rules=rules_for(
                self._settings,
                transition.confinement,
                run.place,
                hidden=(*self._hidden, run.place.state_dir),
                passed=(*self._passed, *run.place.env, *variables),
            ),
            repeatable=repeatable(planned),
        )
        # What must not run twice is not cut short for the sake of somebody who waits no longer.
        limit = deadline if repeatable(planned) else NEVER
        with _alarm(limit, lambda: self.supervisor.cancel(key, "shutdown")):
            outcome = evaluate(planned.check, context, self.supervisor)
        logger.info("%s %s %s: %s, %d ms", run.id, transition.id, planned.id, outcome.reason, outcome.duration_ms)
        return outcome

    def _flush(self, work: _Work, token: int, on_recorded: Callable[[], None]) -> None:
        """Record the outcomes that are ready, if there are any."""
        if not work.outcomes:
            return
        work.applied = self._record(work.applied, token, work.outcomes)
        work.outcomes = []
        on_recorded()

    def _record(self, claimed: Applied, token: int, outcomes: list[Outcome]) -> Applied:
        run, transition = claimed.run, claimed.run.transition
        assert transition is not None
        claim = transition.claim(token)
        checks = claim.checks if claim else ()
        for check_id, outcome in zip(checks, outcomes, strict=False):
            if outcome.log:
                self.coordinator.store.save_log(run.id, transition.id, check_id, outcome.log)
        command = RecordOutcomes(
            transition=transition.id,
            token=token,
            worker=self.worker,
            outcomes=tuple(replace(outcome, log="") for outcome in outcomes),
            jitter=random.random(),
            claim_more=not self._stopping.is_set(),
        )
        try:
            applied = self.coordinator.record(run, command, claimed.operation)
        except StateRegressed:
            # Whatever has the same token in the history that is stored now, it is not this claim.
            self._keep_as_evidence(run.id, transition.id, token, checks, outcomes, "outcome of a lost claim")
            raise
        if not applied.events:
            self._keep_as_evidence(run.id, transition.id, token, checks, outcomes)
        return applied

    def _keep_as_evidence(
        self,
        run_id: str,
        transition: str,
        token: int,
        checks: tuple[str, ...],
        outcomes: list[Outcome],
        what: str = "late outcome of claim",
    ) -> None:
        """Keep outcomes that came too late to count, where the logs are."""
        for check_id, outcome in zip(checks, outcomes, strict=False):
            text = f"{what} {token}: {outcome.reason}\n{outcome.output}"
            self.coordinator.store.save_log(run_id, transition, f"{check_id}.late-{token}", text)

    def _hand_back(self, work: _Work, token: int, on_recorded: Callable[[], None]) -> Applied:
        self._flush(work, token, on_recorded)
        transition = work.applied.run.transition
        assert transition is not None
        command = ReturnWork(transition=transition.id, token=token)
        return self.coordinator.record(work.applied.run, command, work.applied.operation)

    def _hand_back_if_repeatable(self, work: _Work, token: int, on_recorded: Callable[[], None]) -> None:
        """Hand a claim back that was interrupted in the middle, unless what it had begun must not run twice.

        Then it is left to whoever finds this process gone: the outcome of its hook is unknown.
        """
        transition = work.applied.run.transition
        claim = transition.claim(token) if transition else None
        if transition is None or claim is None:
            return
        begun = transition.planned(claim.checks[len(work.outcomes)])
        if begun is not None and repeatable(begun):
            self._hand_back(work, token, on_recorded)

    def _load_prompt(self, runbook: str, node: str) -> str:
        stored = self.coordinator.store.runbook(runbook)
        found = stored.runbook.node(node) if stored else None
        return found.prompt if found else ""


def socket_of(store_url: str) -> tuple[str, ...]:
    """Return the path of the unix socket that a store is reached by; none for a store with a network address."""
    parts = urlsplit(store_url)
    return (parts.path,) if parts.scheme == "unix" and parts.path else ()


def _losses(run: Run, check: str) -> int:
    """Return how many workers in a row were lost while they executed a check; 0 while somebody has it."""
    transition = run.in_flight
    if transition is None or transition.claim_on(check) is not None:
        return 0
    return transition.starts.get(check, 0)


def _claimed(events: tuple[Event, ...]) -> int | None:
    """Return the token of the claim that was made by the last commit, if it made one."""
    last = events[-1] if events else None
    return last.token if isinstance(last, WorkClaimed) else None


@contextmanager
def _alarm(deadline: Deadline, ring: Callable[[], object]) -> Iterator[None]:
    """Call ``ring`` from another thread if the deadline passes inside the ``with`` block."""
    remaining = deadline.remaining
    if remaining is None:
        yield
        return
    timer = threading.Timer(remaining, ring)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
