"""Laws of the protocol, on random runbooks and random commands: right ones, late ones, foreign ones, repeated ones."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from statem_dist.errors import Conflict, NotAuthorised, StatemError
from statem_dist.laws import Judge
from statem_dist.protocol.commands import (
    Cancel,
    CancelRun,
    ClaimWork,
    Command,
    Decide,
    ExpireClaim,
    ExpireDecision,
    Goto,
    Pause,
    RecordOutcomes,
    Recover,
    Restart,
    Resume,
    ReturnWork,
    Save,
    Start,
    Unpause,
)
from statem_dist.protocol.decide import decide
from statem_dist.protocol.events import (
    CheckSettled,
    Event,
    RunCancelled,
    RunPaused,
    RunRebound,
    RunRestarted,
    RunUnpaused,
    TransitionOpened,
)
from statem_dist.protocol.evolve import evolve, replay
from statem_dist.protocol.model import Actor, Claim, Run, Transition, WayOut, Worker
from statem_dist.protocol.outcome import Outcome
from statem_dist.protocol.progress import CHECKS_QUEUE, REVIEWS_QUEUE, pending, waits_for_people
from statem_dist.store.codec import decode_event, decode_run, encode_event, encode_run
from tests.support.builders import AGENT, EPOCH, PLACE
from tests.support.random_worlds import (
    OPERATOR,
    random_confirmations,
    random_dynamic,
    random_on_manual,
    random_outcome,
    random_runbook,
)

WAYS: tuple[WayOut, ...] = ("resume", "abort", "passed", "failed")
QUEUES = (CHECKS_QUEUE, REVIEWS_QUEUE)
DECIDERS = (AGENT, OPERATOR, Actor(id="reviewer", role="reviewer"))
NODES_MAX = 4
COMMANDS_MAX = 40

seeds = st.integers(0, 2**32 - 1)
"""A world is drawn from a seed: a failing example is three numbers, and the sizes beside the seed shrink."""


class World:
    """One run, its runbook in two versions, and a judge who sees every event.

    Args:
        seed: where every choice comes from.
        nodes_max: how large the runbooks may be.
    """

    def __init__(self, seed: int, nodes_max: int) -> None:
        rng = Random(seed)
        self.rng = rng
        self.now = EPOCH
        self.runbook = random_runbook(rng, "h1", nodes_max)
        self.edited = random_runbook(rng, "h2", nodes_max)
        self.judge = Judge({book.hash: book for book in (self.runbook, self.edited)})
        self.events: list[Event] = []
        self.spent: list[Command] = []
        self._requests = 0
        place = replace(PLACE, queue=rng.choice((None, None, "pinned")))
        start = Start(
            run_id="r",
            runbook=self.runbook,
            place=place,
            by=AGENT,
            confirmations=random_confirmations(rng),
            request_id=self._request_id(),
            worker=self._worker(),
        )
        self._fold(decide(None, start, self.now))
        assert decide(self.run, start, self.now) == [] or self.run.transition is None

    @property
    def run(self) -> Run:
        """The run as it is now."""
        assert self.judge.run is not None
        return self.judge.run

    def apply(self, command: Command) -> list[Event]:
        """Decide a command, with everything that is to hold of any decision, and fold what follows."""
        run = self.run
        events = decide(run, command, self.now)
        assert events == decide(run, command, self.now), "a decision depends on nothing but its arguments"
        if run.in_flight is None and events:
            beginnings = TransitionOpened | RunRebound | RunRestarted
            steerings = RunPaused | RunUnpaused | RunCancelled
            assert isinstance(events[0], beginnings | steerings), "a settled run only moves by a new transition"
        self._fold(events)
        if events:
            self.spent.append(command)
        return events

    def act(self) -> None:
        """Send one random command that may be anything from right to absurd."""
        self.now += self.rng.choice((0, 1, 500, 5000))
        if self.rng.randint(0, 24) == 0 or (self.run.held and self.rng.randint(0, 1) == 0):
            self._steer()
        elif self.run.in_flight is None or self.rng.randint(0, 9) == 0:
            self._open()
        else:
            self._work()

    def repeat_something(self) -> None:
        """Send a command again that was answered before; anything but a plain request must be without effect."""
        if not self.spent:
            return
        command = self.rng.choice(self.spent[-6:])
        latest = self.run.transition.request_id if self.run.transition else ""
        match command:
            case RecordOutcomes() | ExpireClaim() | ReturnWork():
                # The claim may have a rest: what was sent for its head would now be taken for the next check.
                transition = self.run.in_flight
                if transition is None or transition.claim(command.token) is None:
                    assert self.apply(command) == [], "late reports decide to nothing"
            case Goto() | Resume() | Save() | Start() | Restart():
                if command.request_id == latest:
                    assert self.apply(command) == [], "the same request twice is one request"
            case Decide():
                self._repeat_decision(command)
            case ExpireDecision():
                assert self.apply(command) == [], "a wait expires once"
            case ClaimWork() | Recover() | Cancel() | CancelRun() | Pause() | Unpause():
                pass

    def settle_honestly(self) -> None:
        """Execute what is owed until the open transition settles; assert that it does, in bounded steps.

        A paused run is let go on first.
        """
        if self.run.paused is not None:
            assert self.apply(Unpause(by=AGENT))
        transition = self.run.in_flight
        plan = transition.plan if transition else ()
        repairs = [repair for each in plan for repair in each.check.repair]
        # A check that is executed again after an unknown outcome may end so once more.
        steps_max = 1 + sum(
            2 + 2 * check.retry.maximum_attempts for check in [*(each.check for each in plan), *repairs]
        )
        resumed: set[str] = set()
        for _ in range(steps_max):
            transition = self.run.in_flight
            if transition is None:
                return
            if waits_for_people(self.run):
                if transition.unknown:
                    check = self.rng.choice(tuple(transition.unknown))
                    ways = WAYS[1:] if check in resumed else WAYS
                    resumed.add(check)
                    assert self.apply(self._recovery(transition, self.rng.choice(ways), check))
                else:
                    self._answer(transition)
                continue
            token = transition.claims[0].token if transition.claims else self._take()
            transition = self.run.in_flight
            assert transition is not None
            claim = transition.claim(token)
            assert claim is not None
            assert self.apply(self._report(transition, claim, claim.checks, worker=self._worker()))
        assert self.run.in_flight is None, f"still open after {steps_max} evaluations and answers"

    def check_fold(self) -> None:
        """Assert that the events alone give the run."""
        assert replay(self.events) == self.run

    def _take(self) -> int:
        batches = pending(self.run)
        assert batches, "an open transition without claims owes work"
        batch = self.rng.choice(batches)
        self.now = max(self.now, batch.not_before)
        assert self.apply(ClaimWork(transition=batch.transition, check=batch.checks[0], worker=Worker("w", QUEUES)))
        assert self.run.transition is not None
        return self.run.transition.token

    def report(self, claim: Claim) -> Command:
        """Return the report of whoever holds a claim, on all that it holds."""
        transition = self.run.in_flight
        assert transition is not None
        return self._report(transition, claim, claim.checks, worker=Worker(claim.worker, QUEUES))

    def _steer(self) -> None:
        """Pause, let go on, cancel, terminate or restart, whether that can be done or not."""
        run = self.run
        command: Command
        match self.rng.randint(0, 9):
            case 0 | 1 | 2:
                command = Pause(reason="lunch", by=AGENT)
                possible = not run.held and run.status != "finished"
            case 3 | 4 | 5 | 6 | 7:
                command = Unpause(by=AGENT)
                possible = run.paused is not None
            case 8:
                command = CancelRun(reason="no use", by=AGENT, terminate=bool(self.rng.randint(0, 1)))
                hastened = command.terminate and run.in_flight is not None
                possible = run.status != "finished" and (run.ending is None or hastened)
            case _:
                command = Restart(
                    runbook=self.rng.choice((self.runbook, self.edited)),
                    place=replace(run.place, queue=self.rng.choice((None, "pinned"))),
                    by=AGENT,
                    confirmations=random_confirmations(self.rng),
                    request_id=self._request_id(),
                    worker=self._worker(),
                )
                possible = True
        try:
            events = self.apply(command)
        except Conflict:
            assert not possible
            assert self.run.version == run.version
        else:
            assert possible
            assert events, "nothing succeeds without a change"

    def _open(self) -> None:
        runbook = self.runbook if self.run.runbook == self.runbook.hash else self.edited
        request: Command
        match self.rng.randint(0, 5):
            case 0:
                request = Save(
                    runbook=runbook,
                    by=AGENT,
                    confirmations=random_confirmations(self.rng),
                    skip_hooks=bool(self.rng.randint(0, 1)),
                    request_id=self._request_id(),
                    worker=self._worker(),
                )
            case 1:
                request = Resume(
                    runbook=self.rng.choice((self.runbook, self.edited)),
                    by=AGENT,
                    confirmations=random_confirmations(self.rng),
                    request_id=self._request_id(),
                    worker=self._worker(),
                )
            case _:
                exits = [edge.target for edge in runbook.exits(self.run.node)]
                request = Goto(
                    runbook=runbook,
                    target=self.rng.choice((*exits, *exits, "nowhere")),
                    by=AGENT,
                    confirmations=random_confirmations(self.rng),
                    request_id=self._request_id(),
                    worker=self._worker(),
                    from_entry=self.rng.choice((None, self.run.entry_id, "an earlier one")),
                    dynamic=random_dynamic(self.rng),
                    on_manual=random_on_manual(self.rng),
                )
        version = self.run.version
        try:
            self.apply(request)
        except StatemError:
            assert self.run.version == version
        else:
            assert isinstance(request, Resume | Save) or self.run.transition is not None

    def _work(self) -> None:
        transition = self.run.in_flight
        assert transition is not None
        claims = transition.claims
        match self.rng.randint(0, 13) if not transition.unknown or self.rng.randint(0, 2) else 13:
            case 13:
                self._recover(transition)
            case 11:
                self._decide(transition)
            case 12:
                self._expire(transition)
            case 0 if claims:
                self.apply(ExpireClaim(transition=transition.id, token=self.rng.choice(claims).token))
            case 1 if claims:
                self.apply(ReturnWork(transition=transition.id, token=self.rng.choice(claims).token))
            case 2:
                token = self.rng.randint(-1, transition.token + 2)
                if transition.claim(token) is None:
                    for command in (
                        ExpireClaim(transition=transition.id, token=token),
                        ReturnWork(transition=transition.id, token=token),
                        self._foreign(transition.id, token),
                    ):
                        assert self.apply(command) == [], "a token that nobody holds decides to nothing"
            case 3 if claims:
                token = self.rng.choice(claims).token
                assert self.apply(self._foreign("t0", token)) == [], "so does the token of another transition"
            case 4 if self.rng.randint(0, 2) == 0:
                version = self.run.version
                try:
                    self.apply(Cancel(transition=transition.id, reason="enough", by=AGENT))
                except StatemError:
                    assert transition.entered or transition.unwinding
                    assert self.run.version == version
            case choice if claims and choice > 5:
                claim = self.rng.choice(claims)
                part = claim.checks[: self.rng.randint(0, len(claim.checks))]
                self.apply(self._report(transition, claim, part, worker=self._worker()))
            case _:
                self._claim(transition)

    def _recover(self, transition: Transition) -> None:
        """Recover any check in any way: it counts where the outcome is unknown, and once."""
        known = [planned.id for planned in transition.plan]
        check = self.rng.choice((None, *transition.unknown, *known))
        command = self._recovery(transition, self.rng.choice(WAYS), check)
        meant = tuple(transition.unknown) if check is None else (check,)
        possible = bool(meant) and all(each in transition.unknown for each in meant)
        if command.way in ("passed", "failed"):
            possible = possible and len(meant) == 1
        version = self.run.version
        try:
            events = self.apply(command)
        except Conflict:
            assert not possible
            assert self.run.version == version
            return
        assert possible
        assert events
        left = self.run.in_flight.unknown if self.run.in_flight else {}
        assert not set(meant) & set(left), "what was recovered is in question no more"

    def _recovery(self, transition: Transition, way: WayOut, check: str | None) -> Recover:
        return Recover(
            way=way,
            reason="looked at it",
            by=OPERATOR,
            transition=transition.id,
            check=check,
            worker=self._worker(),
        )

    def _decide(self, transition: Transition) -> None:
        """Decide on any check of the plan, by anybody: it counts where it is waited for, from who may, once."""
        if not transition.plan:
            return
        check = self.rng.choice((*transition.awaiting, *(planned.id for planned in transition.plan)))
        planned = transition.planned(check)
        assert planned is not None
        by = self.rng.choice(DECIDERS)
        command = self._verdict(transition, check, by, approved=bool(self.rng.randint(0, 1)))
        expires_at = transition.awaiting.get(check)
        waited_for = expires_at is not None and (expires_at == 0 or self.now < expires_at)
        allowed = command.operator or planned.check.by == "anyone"
        version = self.run.version
        try:
            events = self.apply(command)
        except NotAuthorised:
            assert waited_for
            assert not allowed
            assert self.run.version == version
        except Conflict:
            assert not waited_for
            assert self.run.version == version
        else:
            if events:
                assert waited_for
                assert allowed
                self._require_one_decision(transition, command, events)

    def _require_one_decision(self, transition: Transition, command: Decide, events: list[Event]) -> None:
        """Assert that one check was decided and that the decision stands; others may have become pointless by it."""
        answered = [event for event in events if isinstance(event, CheckSettled) and event.check in transition.awaiting]
        decided = [event.check for event in answered if event.result.outcome.reason != "not_confirmed"]
        assert decided == [command.check], "a decision settles one check"
        for by in DECIDERS:
            version = self.run.version
            try:
                self.apply(self._verdict(transition, command.check, by, approved=not command.approved))
            except Conflict:
                assert self.run.version == version
            else:
                raise AssertionError("the first decision wins")

    def _repeat_decision(self, command: Decide) -> None:
        latest = self.run.transition is not None and self.run.transition.id == command.transition
        version = self.run.version
        try:
            assert self.apply(command) == [], "the same decision twice is one decision"
        except Conflict:
            assert not latest, "a decision binds to one transition"
        assert self.run.version == version

    def _expire(self, transition: Transition) -> None:
        """Declare a wait over, rightly or not: only one whose time is over ends."""
        checks = (*transition.awaiting, "before_transfer.0")
        check = self.rng.choice(checks)
        over = 0 < transition.awaiting.get(check, 0) <= self.now
        events = self.apply(ExpireDecision(transition=transition.id, check=check))
        assert bool(events) == over
        assert self.apply(ExpireDecision(transition="t0", check=check)) == []

    def _answer(self, transition: Transition) -> None:
        """Answer one question that is waited for, in time or by letting its time pass."""
        check = self.rng.choice(tuple(transition.awaiting))
        expires_at = transition.awaiting[check]
        if expires_at and (expires_at <= self.now or self.rng.randint(0, 3) == 0):
            self.now = max(self.now, expires_at)
            assert self.apply(ExpireDecision(transition=transition.id, check=check))
        else:
            assert self.apply(self._verdict(transition, check, OPERATOR, approved=self.rng.randint(0, 3) > 0))

    def _verdict(self, transition: Transition, check: str, by: Actor, *, approved: bool) -> Decide:
        return Decide(
            transition=transition.id,
            check=check,
            approved=approved,
            comment="",
            by=by,
            operator=by == OPERATOR,
            worker=self._worker(),
        )

    def _claim(self, transition: Transition) -> None:
        """Claim any check of the plan: only the beginning of an offered batch is given, and only when it is time."""
        if not transition.plan:
            return
        offered = {batch.checks[0]: batch for batch in pending(self.run) if batch.not_before <= self.now}
        check = self.rng.choice((*offered, *(planned.id for planned in transition.plan)))
        events = self.apply(ClaimWork(transition=transition.id, check=check, worker=Worker("w", QUEUES)))
        assert bool(events) == (check in offered)
        late = ClaimWork(transition=transition.id, check=check, worker=Worker("late", QUEUES))
        assert self.apply(late) == [], "what is claimed is not given again"

    def _report(self, transition: Transition, claim: Claim, checks: tuple[str, ...], worker: Worker | None) -> Command:
        outcomes: list[Outcome] = []
        for check in checks:
            planned = transition.planned(check)
            assert planned is not None
            outcomes.append(random_outcome(self.rng, planned))
        return RecordOutcomes(
            transition=transition.id,
            token=claim.token,
            worker=worker or Worker("w", ()),
            outcomes=tuple(outcomes),
            jitter=self.rng.choice((0.0, 0.5)),
            claim_more=worker is not None,
        )

    def _foreign(self, transition: str, token: int) -> RecordOutcomes:
        passed = (Outcome(passed=True, reason="passed"),)
        return RecordOutcomes(transition=transition, token=token, worker=Worker("stranger", QUEUES), outcomes=passed)

    def _worker(self) -> Worker | None:
        return self.rng.choice((None, Worker("w", QUEUES), Worker("w", (CHECKS_QUEUE,)), Worker("w", ("pinned",))))

    def _request_id(self) -> str:
        self._requests += 1
        return f"q{self._requests}"

    def _fold(self, events: list[Event]) -> None:
        for event in events:
            self.judge.see([event])
            assert decode_event(encode_event(event)) == event
            assert self.judge.run is not None
            assert decode_run(encode_run(self.judge.run)) == self.judge.run
        self.events += events


@settings(max_examples=400)
@given(seed=seeds, nodes=st.integers(1, NODES_MAX), commands=st.integers(1, COMMANDS_MAX))
def test_every_history_is_lawful(seed: int, nodes: int, commands: int) -> None:
    """Whatever is sent, in whatever order: every event obeys the laws of the judge, and the fold gives the run."""
    world = World(seed, nodes)
    for _ in range(commands):
        world.act()
        if world.rng.randint(0, 3) == 0:
            world.repeat_something()
    world.check_fold()


@settings(max_examples=400)
@given(seed=seeds, nodes=st.integers(1, NODES_MAX), commands=st.integers(0, COMMANDS_MAX))
def test_honest_work_settles_any_transition(seed: int, nodes: int, commands: int) -> None:
    """From wherever confusion has led, executing what is owed settles the transition, in bounded steps."""
    world = World(seed, nodes)
    for _ in range(commands):
        world.act()
    world.settle_honestly()
    world.check_fold()


@settings(max_examples=200)
@given(seed=seeds, nodes=st.integers(1, NODES_MAX), commands=st.integers(0, COMMANDS_MAX))
def test_a_pause_in_which_nothing_happens_changes_nothing(seed: int, nodes: int, commands: int) -> None:
    """Paused and let go on, a run is what it was: the same work on offer, claimed and waited for."""
    world = World(seed, nodes)
    for _ in range(commands):
        world.act()
    run = world.run
    if run.held or run.status == "finished":
        return
    after = run
    for command in (Pause(reason="lunch", by=AGENT), Unpause(by=AGENT)):
        for event in decide(after, command, world.now):
            after = evolve(after, event)
    assert replace(after, version=run.version, updated_at=run.updated_at) == run
    assert pending(after) == pending(run)


@settings(max_examples=200)
@given(seed=seeds, nodes=st.integers(1, NODES_MAX), commands=st.integers(0, COMMANDS_MAX), terminate=st.booleans())
def test_a_cancelled_run_comes_to_an_end(seed: int, nodes: int, commands: int, terminate: bool) -> None:
    """From wherever a run is cancelled, it is at its end when what was being executed has ended, on the same node."""
    world = World(seed, nodes)
    for _ in range(commands):
        world.act()
    if world.run.ended or world.run.ending:
        return
    node, claims = world.run.node, world.run.in_flight.claims if world.run.in_flight else ()
    world.apply(CancelRun(reason="no use", by=AGENT, terminate=terminate))
    repaired = world.run.in_flight is not None and world.run.in_flight.unwinding is not None
    assert (world.run.status == "cancelled") == (terminate or not (claims or repaired))
    if not terminate:
        # What was being executed may end first, and then the hooks are repaired that were begun.
        world.settle_honestly()
    assert (world.run.status, world.run.node) == ("cancelled", node)
    world.check_fold()
