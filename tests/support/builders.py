"""Short ways to write runbooks, runs and commands in tests."""

from __future__ import annotations

from statem_dist.protocol.commands import ClaimWork, Command, Goto, RecordOutcomes, Save, Start
from statem_dist.protocol.decide import decide
from statem_dist.protocol.events import Event
from statem_dist.protocol.evolve import evolve
from statem_dist.protocol.graph import Check, Edge, Node, Runbook, StageOrder, Steps
from statem_dist.protocol.graph import Command as ShellCommand
from statem_dist.protocol.model import Actor, Confirmations, Place, Run, Transition, Worker
from statem_dist.protocol.outcome import Outcome, Reason
from statem_dist.protocol.progress import CHECKS_QUEUE, REVIEWS_QUEUE, pending

NOBODY = Confirmations()
EVERYTHING = Confirmations(everything=True)
AGENT = Actor(id="agent", role="executor")
PLACE = Place(workspace="/work")
WORKER = Worker(id="worker-1", queues=(CHECKS_QUEUE, REVIEWS_QUEUE))
EPOCH = 1_750_000_000_000
"""A time in ms since the epoch, of the size that real clocks give."""

PASSED = Outcome(passed=True, reason="passed")
FAILED = Outcome(passed=False, reason="check_failed", exit_code=1)


def failure(reason: Reason) -> Outcome:
    """Return an outcome that did not pass, for that reason."""
    return Outcome(passed=False, reason=reason)


def shell(text: str = "true") -> Check:
    """Return a check that runs a command and has no other property."""
    return Check(do=ShellCommand(text))


def one_by_one(*checks: Check) -> Steps:
    """Return steps of one check each."""
    return tuple((check,) for check in checks)


def loop(node: Node, edge: Edge | None = None, *, order: StageOrder = "guards_first", in_hook: Steps = ()) -> Runbook:
    """Return a runbook with two nodes, ``a`` (the given one) and ``b``, and an edge each way.

    Args:
        node: what stands around ``a``.
        edge: the edge from ``a`` to ``b``, if it is more than a plain one.
        order: the order of the stages.
        in_hook: the ``in_hook`` of ``b``.
    """
    edges = (edge or Edge("a", "b"), Edge("b", "a"))
    return Runbook(
        hash="h1", name="loop", initial="a", nodes=(node, Node("b", in_hook=in_hook)), edges=edges, order=order
    )


class Desk:
    """A run in memory and somebody who applies commands to it, one event after another.

    Attributes:
        run: the run after the last command.
        events: everything that happened to it.
        now: the clock of the store, in ms; tests move it.
    """

    def __init__(self, runbook: Runbook, place: Place = PLACE, confirmations: Confirmations = NOBODY) -> None:
        self.runbook = runbook
        self.now = EPOCH
        self.events: list[Event] = []
        self._run: Run | None = None
        self.apply(Start(run_id="r", runbook=runbook, place=place, by=AGENT, confirmations=confirmations))

    @property
    def run(self) -> Run:
        """The run after the last command."""
        assert self._run is not None
        return self._run

    @property
    def transition(self) -> Transition:
        """The open transition, or the last one."""
        assert self.run.transition is not None
        return self.run.transition

    @property
    def offered(self) -> list[tuple[str, ...]]:
        """The ids of the checks of each batch that is owed and that nobody has."""
        return [batch.checks for batch in pending(self.run)]

    @property
    def reasons(self) -> dict[str, str]:
        """Why each settled check of the transition ended as it did."""
        return {check: result.outcome.reason for check, result in self.transition.results.items()}

    def apply(self, command: Command) -> list[Event]:
        """Decide a command on the run, fold what follows, and return it."""
        events = decide(self._run, command, self.now)
        for event in events:
            self._run = evolve(self._run, event)
        self.events += events
        return events

    def goto(
        self,
        target: str = "b",
        *,
        confirmations: Confirmations = NOBODY,
        request_id: str = "",
        worker: Worker | None = None,
        from_entry: str | None = None,
    ) -> list[Event]:
        """Attempt a transition."""
        return self.apply(
            Goto(
                runbook=self.runbook,
                target=target,
                by=AGENT,
                confirmations=confirmations,
                request_id=request_id,
                worker=worker,
                from_entry=from_entry,
            )
        )

    def save(self, *, skip_hooks: bool = False) -> list[Event]:
        """Run the ``out_hook`` without moving."""
        return self.apply(Save(runbook=self.runbook, by=AGENT, skip_hooks=skip_hooks))

    def claim(self, check: str | None = None, worker: Worker = WORKER) -> int:
        """Claim the batch that begins with a check, or the first one; return its token."""
        wanted = check or self.offered[0][0]
        assert self.apply(ClaimWork(transition=self.transition.id, check=wanted, worker=worker))
        return self.transition.token

    def record(
        self,
        token: int,
        *outcomes: Outcome,
        worker: Worker = WORKER,
        claim_more: bool = False,
        jitter: float = 0.0,
    ) -> list[Event]:
        """Report outcomes of a claim."""
        return self.apply(
            RecordOutcomes(
                transition=self.transition.id,
                token=token,
                worker=worker,
                outcomes=outcomes,
                jitter=jitter,
                claim_more=claim_more,
            )
        )

    def work(self, *outcomes: Outcome) -> None:
        """Claim the first batch and report its outcomes."""
        self.record(self.claim(), *outcomes)
