"""The loop that changes runs: races, dispatch with the commit, and looking after what nobody does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace

import pytest
from msgspec.structs import replace

from statem_dist.coordinator import REMIND_MS_MAX, Coordinator, Terms
from statem_dist.dispatch import NoDispatch, Owed
from statem_dist.errors import (
    Conflict,
    NotFound,
    StateRegressed,
    StoredDataUnreadable,
    StoreReset,
    TransitionInFlight,
    Unavailable,
)
from statem_dist.protocol.commands import (
    CancelRun,
    ClaimWork,
    Command,
    Decide,
    Goto,
    Pause,
    RecordOutcomes,
    Recover,
    Restart,
    Save,
    Start,
    Unpause,
)
from statem_dist.protocol.events import CheckSettled, DecisionRequested, TransitionSettled, WorkLost
from statem_dist.protocol.evolve import replay
from statem_dist.protocol.graph import Check, Manual, Node, Retry, Runbook, Steps
from statem_dist.protocol.model import Run
from statem_dist.protocol.outcome import Outcome
from statem_dist.protocol.progress import Batch
from statem_dist.reaper import PUSHED_BACK_MS, Reaper
from statem_dist.settings import Settings
from statem_dist.store.base import Change, Push, Snapshot
from tests.support.builders import (
    AGENT,
    EPOCH,
    FAILED,
    PASSED,
    PLACE,
    WORKER,
    failure,
    loop,
    one_by_one,
    shell,
)
from tests.support.memory_store import MemoryStore

SETTINGS = Settings(state_dir=Path("/unused"), lease_seconds=30.0, hint_grace_seconds=5.0, conflict_attempts_max=4)
LEASE_MS = 30_000
GRACE_MS = 5_000


class ContestedStore(MemoryStore):
    """A store on which somebody else is faster, as often as ``rivals`` says.

    Attributes:
        rival: what the somebody does, just before a commit.
    """

    def __init__(self) -> None:
        super().__init__(EPOCH)
        self.rivals = 0
        self.rival: Callable[[], object] = lambda: None

    def commit(self, change: Change) -> int | None:
        """Let the rival go first."""
        if self.rivals:
            self.rivals -= 1
            rivals, self.rivals = self.rivals, 0
            self.rival()
            self.rivals = rivals
        return super().commit(change)


class NamingDispatcher:
    """Pushes messages that name their batch: ``TRANSITION/CHECK``."""

    def pushes(self, batches: Sequence[Owed]) -> tuple[Push, ...]:
        """Return one message per batch."""
        return tuple(
            Push(batch.queue, f"{batch.transition}/{batch.checks[0]}".encode())
            for batch in batches
            if isinstance(batch, Batch)
        )

    def send(self, batches: Sequence[Owed]) -> None:
        """Do nothing."""


class ForeignDispatcher(NamingDispatcher):
    """Sends messages by another way than the commit, and notes down which."""

    def __init__(self) -> None:
        self.sent: list[str] = []

    def pushes(self, batches: Sequence[Owed]) -> tuple[Push, ...]:
        """Return nothing."""
        return ()

    def send(self, batches: Sequence[Owed]) -> None:
        """Note them down."""
        self.sent += [f"{batch.transition}/{batch.checks[0]}" for batch in batches if isinstance(batch, Batch)]


class Site:
    """A coordinator on a store in memory, with one run ``r``."""

    def __init__(self, steps: Steps = (), runbook: Runbook | None = None) -> None:
        self.runbook = runbook or loop(Node("a", before_transfer=steps))
        self.store = ContestedStore()
        self.coordinator = Coordinator(self.store, NamingDispatcher(), SETTINGS)
        self.coordinator.apply("r", Start(run_id="r", runbook=self.runbook, place=PLACE, by=AGENT))

    @property
    def run(self) -> Run:
        """The run as it is stored."""
        return self.store.runs["r"].run

    @property
    def reasons(self) -> dict[str, str]:
        """Why each settled check of the transition ended as it did."""
        assert self.run.transition is not None
        return {check: result.outcome.reason for check, result in self.run.transition.results.items()}

    def apply(self, command: Command) -> int:
        """Apply a command; return how many events it added."""
        return len(self.coordinator.apply("r", command).events)

    def goto(self) -> Goto:
        """Return the command that opens a transition."""
        return Goto(runbook=self.runbook, target="b", by=AGENT)

    def goto_and_wait(self) -> Goto:
        """Return the command that opens a transition which may wait for decisions."""
        return replace(self.goto(), on_manual="wait")

    def save(self) -> Save:
        """Return a command that adds two events."""
        return Save(runbook=self.runbook, by=AGENT)

    def claim(self, number: int = 0) -> Run:
        """Claim a check of ``before_transfer``; return the run afterwards."""
        assert self.run.transition is not None
        check = f"before_transfer.{number}"
        return self.coordinator.apply("r", ClaimWork(transition=self.run.transition.id, check=check, worker=WORKER)).run

    def outcome(self, run: Run, *outcomes: Outcome) -> RecordOutcomes:
        """Return the report of the claim that was made last in a run."""
        assert run.transition is not None
        return RecordOutcomes(
            transition=run.transition.id,
            token=run.transition.token,
            worker=WORKER,
            outcomes=outcomes,
            claim_more=False,
        )

    def messages(self) -> list[str]:
        """Take all messages, oldest first."""
        taken = [message.decode() for message in self.store.queues["checks"][::-1]]
        self.store.queues.clear()
        return taken

    def due_in(self) -> int | None:
        """Return when the reaper is to look at the run, in ms from now."""
        at = self.store.due.get("r")
        return None if at is None else at - self.store.now

    def reap(self) -> list[str]:
        """Move the clock to the reminder and look; return the messages that were sent."""
        self.store.now = self.store.due["r"]
        assert Reaper(self.coordinator).reap_once() == 1
        return self.messages()


@pytest.fixture(autouse=True)
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The pauses between tries, which are noted down and not made."""
    made: list[float] = []
    monkeypatch.setattr("statem_dist.coordinator.time", SimpleNamespace(sleep=made.append, monotonic=lambda: 0.0))
    return made


# --- races ----------------------------------------------------------------------------------------------------


def test_a_lost_race_is_decided_anew(pauses: list[float]) -> None:
    """The command is decided on the state that the rival left, after a short pause."""
    site = Site()
    site.store.rivals = 2
    site.store.rival = lambda: Coordinator(site.store, NoDispatch(), SETTINGS).apply("r", site.save())
    site.apply(site.goto())
    assert [event.kind for _, event in site.store.events("r") if hasattr(event, "kind")] == [
        "start",
        "save",
        "save",
        "goto",
    ]
    assert site.run.node == "b"
    assert len(pauses) == 2
    assert replay(event for _, event in site.store.events("r")) == site.run


def test_a_rejection_is_that_of_the_newer_state() -> None:
    """A command that the rival has made impossible is rejected, not committed."""
    site = Site(one_by_one(shell()))
    site.store.rivals = 1
    site.store.rival = lambda: site.apply(site.goto())
    with pytest.raises(TransitionInFlight):
        site.apply(site.goto())


def test_races_are_lost_a_bounded_number_of_times(pauses: list[float]) -> None:
    """After the last try the caller is told, nothing was written, and the pauses stayed short."""
    site = Site()
    site.store.rivals = 100
    site.store.rival = lambda: Coordinator(site.store, NoDispatch(), SETTINGS).apply("r", site.save())
    with pytest.raises(Conflict, match="changed 4 times") as caught:
        site.apply(site.goto())
    assert "nothing was written" in caught.value.hint
    assert site.run.node == "a"
    assert len(pauses) == 3
    assert max(pauses) <= 0.002 * 2**6


def test_only_a_start_creates_a_run() -> None:
    """Every other command on a run that does not exist says so."""
    site = Site()
    with pytest.raises(NotFound, match="nobody"):
        site.coordinator.apply("nobody", site.goto())
    with pytest.raises(NotFound, match="nobody"):
        site.coordinator.load("nobody")


def test_what_changes_nothing_commits_nothing() -> None:
    """A late claim is answered with the run as it is, and costs no version."""
    site = Site()
    version = site.run.version
    late = ClaimWork(transition="t1", check="in_hook.0", worker=WORKER)
    applied = site.coordinator.apply("r", late)
    assert (applied.run.version, applied.events) == (version, ())
    assert site.run.version == version


def test_outcomes_are_recorded_on_what_the_worker_read() -> None:
    """A worker that holds the latest state records without reading it again."""
    site = Site(one_by_one(shell()))
    site.apply(site.goto())
    run = site.claim()
    site.store.load = None  # type: ignore[method-assign, assignment]
    assert site.coordinator.record(run, site.outcome(run, PASSED)).run.node == "b"


def test_outcomes_that_lost_a_race_are_recorded_all_the_same() -> None:
    """Two members of a parallel step that end at once both count, whoever is first."""
    site = Site(((shell("x"), shell("y")),))
    site.apply(site.goto())
    first, second = site.claim(0), site.claim(1)
    site.coordinator.record(first, site.outcome(first, PASSED))
    site.coordinator.record(second, site.outcome(second, PASSED))
    assert site.run.node == "b"
    assert site.reasons == {"before_transfer.0": "passed", "before_transfer.1": "passed"}


def test_a_late_outcome_adds_nothing() -> None:
    """The result of a claim that was expired meanwhile is refused, also when it was decided on the old state."""
    site = Site(one_by_one(shell()))
    site.apply(site.goto())
    run = site.claim()
    site.messages()
    assert site.reap() == ["t2/before_transfer.0"]
    assert site.coordinator.record(run, site.outcome(run, FAILED)).events == ()
    assert site.reasons == {}


# --- a store that has lost writes --------------------------------------------------------------------------------


def test_a_claim_that_the_store_has_lost_records_nothing() -> None:
    """Also where the run has come to the same version, transition and token again, by the same worker."""
    site = Site(one_by_one(shell()))
    past = deepcopy(site.store.runs)
    site.apply(site.goto())
    lost = site.coordinator.apply("r", ClaimWork(transition="t2", check="before_transfer.0", worker=WORKER))
    site.store.runs = past
    with pytest.raises(StateRegressed):
        site.coordinator.apply("r", site.goto())
    site.apply(site.goto())
    again = site.claim()
    assert (again.version, again.transition) == (lost.run.version, lost.run.transition)
    with pytest.raises(StateRegressed) as error:
        site.coordinator.record(lost.run, site.outcome(lost.run, PASSED), lost.operation)
    assert (error.value.details["seen"], error.value.details["version"]) == (lost.run.version, again.version)
    assert site.run.version == again.version
    assert site.coordinator.record(again, site.outcome(again, PASSED)).run.node == "b"
    assert dict(site.store.losses) == {"run": 1, "claim": 1}


def test_what_another_process_has_written_meanwhile_is_no_loss() -> None:
    """A version that comes after the one that was read, however far, refuses nobody."""
    site = Site(one_by_one(shell()))
    other = Coordinator(site.store, NamingDispatcher(), SETTINGS)
    site.coordinator.load("r")
    for _ in range(20):
        other.apply("r", Pause("", AGENT))
        other.apply("r", Unpause(AGENT))
    site.apply(site.goto())
    assert dict(site.store.losses) == {}


def test_a_run_that_was_removed_and_made_anew_is_no_loss() -> None:
    """It begins with lower versions, at another time."""
    site = Site()
    site.coordinator.load("r")
    anew = Site()
    anew.store.runs["r"].run = replace(anew.run, created_at=anew.run.created_at + 1)
    site.store.runs = anew.store.runs
    site.coordinator.load("r")
    assert dict(site.store.losses) == {}


def test_a_version_that_was_never_reached_is_told_as_a_loss() -> None:
    """Who names a version ahead of the run has seen what the store has not."""
    site = Site()
    with pytest.raises(StateRegressed):
        site.coordinator.apply("r", site.goto(), terms=Terms(if_version=site.run.version + 1))


def test_a_run_that_is_gone_with_its_store_is_told_as_such() -> None:
    """A process that knows which store it has worked on tells another one; else the run is unknown."""
    site = Site()
    with pytest.raises(NotFound) as unknown:
        site.coordinator.load("none")
    assert unknown.value.code == "not_found"
    site.coordinator.recognise_store()
    site.coordinator.store = MemoryStore(EPOCH + 60_000)
    assert site.coordinator.recognise_store()
    with pytest.raises(StoreReset):
        site.coordinator.load("r")


# --- dispatch -------------------------------------------------------------------------------------------------


def test_owed_work_travels_with_the_commit() -> None:
    """What a commit leaves to do is announced once: not again by later commits of the same transition."""
    site = Site(((shell("x"), shell("y")), (shell("then"),)))
    site.apply(site.goto())
    assert site.messages() == ["t2/before_transfer.0", "t2/before_transfer.1"]
    run = site.claim(0)
    site.coordinator.record(run, site.outcome(run, PASSED))
    assert site.messages() == []
    run = site.claim(1)
    site.coordinator.record(run, site.outcome(run, PASSED))
    assert site.messages() == ["t2/before_transfer.2"]


def test_the_same_checks_of_another_transition_are_other_work() -> None:
    """A second attempt announces its checks, although they are named like those of the first."""
    site = Site(one_by_one(shell()))
    for transition in ("t2", "t3"):
        site.apply(site.goto())
        assert site.messages() == [f"{transition}/before_transfer.0"]
        run = site.claim()
        site.coordinator.record(run, site.outcome(run, FAILED))


def test_what_the_caller_claims_is_not_announced() -> None:
    """A caller that executes itself takes its work in the same commit."""
    site = Site(one_by_one(shell()))
    site.apply(replace(site.goto(), worker=WORKER))
    assert site.messages() == []
    assert site.due_in() == LEASE_MS


def test_another_try_is_announced_when_it_is_due() -> None:
    """A retry is not announced by the commit that asks for it, but by the reaper at its time."""
    retry = Retry(on=("failed",), initial_interval=7.0, jitter=0.0)
    site = Site(one_by_one(replace(shell(), retry=retry)))
    site.apply(site.goto())
    run = site.claim()
    site.messages()
    site.coordinator.record(run, site.outcome(run, FAILED))
    assert site.messages() == []
    assert site.due_in() == 7_000
    assert site.reap() == ["t2/before_transfer.0"]


def test_another_try_that_falls_due_with_a_commit_is_announced_by_it() -> None:
    """When a sibling is recorded at the moment at which a retry is due, the retry does not wait for the reaper."""
    retry = Retry(on=("failed",), initial_interval=1.0, jitter=0.0)
    site = Site(((replace(shell("x"), retry=retry), shell("y")),))
    site.apply(site.goto())
    first, second = site.claim(0), site.claim(1)
    site.messages()
    site.coordinator.record(first, site.outcome(first, FAILED))
    site.store.now += 1_000
    site.coordinator.record(second, site.outcome(second, PASSED))
    assert site.messages() == ["t2/before_transfer.0"]


def test_a_settled_run_is_never_due() -> None:
    """The reaper is not told of runs that owe nothing."""
    site = Site(one_by_one(shell()))
    assert site.due_in() is None
    site.apply(site.goto())
    assert site.due_in() == GRACE_MS
    run = site.claim()
    assert site.due_in() == LEASE_MS
    site.coordinator.record(run, site.outcome(run, PASSED))
    assert site.due_in() is None


# --- looking after --------------------------------------------------------------------------------------------


def test_a_lost_lease_is_expired_and_its_work_announced() -> None:
    """When the lease of a claim has run out, its work is offered to others."""
    site = Site(one_by_one(shell()))
    site.apply(site.goto())
    site.claim()
    site.messages()
    assert site.reap() == ["t2/before_transfer.0"]
    assert any(isinstance(event, WorkLost) for _, event in site.store.events("r"))
    assert site.store.runs["r"].leases == {}


def test_a_live_lease_is_left_alone() -> None:
    """A renewed claim stays; the reaper comes back when the lease would end."""
    site = Site(one_by_one(shell()))
    site.apply(site.goto())
    site.claim()
    site.messages()
    site.store.now += LEASE_MS - 1_000
    assert site.store.renew("r", 1, LEASE_MS)
    assert site.reap() == []
    assert site.run.transition is not None
    assert site.run.transition.claims
    assert site.due_in() == LEASE_MS - 1_000 + 1


def test_waiting_work_is_announced_ever_more_rarely() -> None:
    """Work that waits in a busy queue is announced again at doubling intervals, up to the longest one."""
    site = Site(one_by_one(shell()))
    site.apply(site.goto())
    assert site.messages() == ["t2/before_transfer.0"]
    intervals = []
    for _ in range(10):
        assert site.reap() == ["t2/before_transfer.0"]
        intervals.append(site.due_in())
    assert intervals == [min(GRACE_MS * 2**number, REMIND_MS_MAX) for number in range(10)]
    assert intervals[-1] == REMIND_MS_MAX
    site.claim()
    assert site.store.runs["r"].hints == 0


def test_two_reapers_announce_once() -> None:
    """Two that saw the same reminder: one acts on it."""
    site = Site(one_by_one(shell()))
    site.apply(site.goto())
    site.messages()
    site.store.now = site.store.due["r"]
    (seen,) = site.store.overdue(10)
    site.coordinator.tend(seen)
    site.coordinator.tend(seen)
    assert site.messages() == ["t2/before_transfer.0"]


def test_two_reapers_expire_once() -> None:
    """Two that saw the same lost lease at once: one expires it, and the other writes and sends nothing."""
    site = Site(one_by_one(shell()))
    site.apply(site.goto())
    site.claim()
    site.messages()
    site.store.now = site.store.due["r"]
    (seen,) = site.store.overdue(10)
    site.store.rivals = 1
    site.store.rival = lambda: Coordinator(site.store, NamingDispatcher(), SETTINGS).tend(seen)
    site.coordinator.tend(seen)
    assert [type(event) for _, event in site.store.events("r")].count(WorkLost) == 1
    assert site.messages() == ["t2/before_transfer.0"]


def test_claims_that_were_lost_together_expire_together() -> None:
    """A worker that died with two members of a parallel step in hand costs one look, and one commit."""
    site = Site(((shell("x"), shell("y")),))
    site.apply(site.goto())
    site.claim(0)
    site.claim(1)
    site.messages()
    commits = len(site.store.runs["r"].operations)
    assert site.reap() == ["t2/before_transfer.0", "t2/before_transfer.1"]
    assert [type(event) for _, event in site.store.events("r")].count(WorkLost) == 2
    assert len(site.store.runs["r"].operations) == commits + 1
    assert site.store.runs["r"].leases == {}


def test_hooks_that_are_lost_together_are_unknown_together() -> None:
    """One commit tells of both, and from then on nothing is due until somebody says how to go on."""
    check = replace(shell(), idempotent=False)
    site = Site(runbook=loop(Node("a", out_hook=((check, check),))))
    site.apply(site.goto())
    for number in (0, 1):
        assert site.run.transition is not None
        site.apply(ClaimWork(transition="t2", check=f"out_hook.{number}", worker=WORKER))
    site.reap()
    assert site.run.transition is not None
    assert list(site.run.transition.unknown) == ["out_hook.0", "out_hook.1"]
    assert (site.run.status, site.messages(), site.due_in()) == ("outcome_unknown", [], None)


def test_a_recovery_announces_what_follows() -> None:
    """What is executed again, and the repairs of what is given up, are sent by the commit that decides it."""
    repaired = replace(shell(), repair=(shell("undo"),))
    site = Site(runbook=loop(Node("a", out_hook=one_by_one(repaired, shell()))))
    site.apply(site.goto())
    site.apply(ClaimWork(transition="t2", check="out_hook.0", worker=WORKER))
    site.apply(RecordOutcomes("t2", 1, WORKER, (PASSED,), claim_more=False))
    site.messages()
    site.reap()
    assert (site.run.status, site.due_in()) == ("outcome_unknown", None)
    site.apply(Recover(way="resume", reason="", by=AGENT))
    assert (site.messages(), site.due_in()) == (["t2/out_hook.1"], GRACE_MS)
    site.apply(ClaimWork(transition="t2", check="out_hook.1", worker=WORKER))
    site.reap()
    site.apply(Recover(way="abort", reason="", by=AGENT))
    assert (site.messages(), site.due_in()) == (["t2/repair.0"], GRACE_MS)


def test_what_goes_by_a_foreign_broker_is_counted_and_repeated_more_rarely() -> None:
    """Messages that no commit carries are announced again at doubling intervals, too."""
    site = Site(one_by_one(shell()))
    foreign = ForeignDispatcher()
    site.coordinator = Coordinator(site.store, foreign, SETTINGS)
    site.apply(site.goto())
    intervals = []
    for _ in range(4):
        site.reap()
        intervals.append(site.due_in())
    assert intervals == [GRACE_MS * 2**number for number in range(4)]
    assert foreign.sent == ["t2/before_transfer.0"] * 5


def test_a_reminder_that_announces_nothing_is_not_counted() -> None:
    """Looking at a live lease is no dispatch: what is announced later starts with the shortest interval."""
    site = Site(one_by_one(shell()))
    site.apply(site.goto())
    site.claim()
    site.store.now += LEASE_MS - 1
    assert site.store.renew("r", 1, LEASE_MS)
    site.reap()
    assert site.store.runs["r"].hints == 0


# --- waits for people -----------------------------------------------------------------------------------------

SURE = Check(do=Manual("sure?"))


def decided(site: Site) -> int:
    """Approve the first question; return how many events that added."""
    return site.apply(Decide("t2", "before_transfer.0", True, "", AGENT, operator=True))


def test_who_waits_for_people_owes_nothing() -> None:
    """No message, no reminder: a transition may wait for weeks and costs nothing."""
    site = Site(one_by_one(SURE))
    site.apply(site.goto_and_wait())
    assert isinstance(site.store.events("r")[-1][1], DecisionRequested)
    assert (site.messages(), site.due_in()) == ([], None)
    assert [run_id for _, run_id in site.store.marks("waiting", 10)] == ["r"]
    decided(site)
    assert (site.run.node, site.due_in()) == ("b", None)


def test_a_decision_announces_what_follows() -> None:
    """The work behind a decision travels with its commit."""
    site = Site(runbook=loop(Node("a", before_transfer=one_by_one(SURE), out_hook=one_by_one(shell()))))
    site.apply(site.goto_and_wait())
    decided(site)
    assert site.messages() == ["t2/out_hook.0"]
    assert site.due_in() == GRACE_MS


def test_a_wait_is_ended_when_its_time_is_over() -> None:
    """The reaper is reminded of the earliest end, and settles what has run out, once."""
    site = Site(one_by_one(replace(SURE, timeout=60.0), replace(SURE, timeout=20.0)))
    site.apply(site.goto_and_wait())
    assert site.due_in() == 20_000
    site.reap()
    assert site.reasons == {"before_transfer.0": "not_confirmed", "before_transfer.1": "expired"}
    assert isinstance(site.store.events("r")[-1][1], TransitionSettled)
    assert site.due_in() is None


def test_waits_that_end_together_are_ended_together() -> None:
    """Two questions with the same limit: the first to expire settles the transition, and the other is over with it."""
    site = Site(one_by_one(replace(SURE, timeout=20.0), replace(SURE, timeout=20.0)))
    site.apply(site.goto_and_wait())
    site.reap()
    assert site.reasons == {"before_transfer.0": "expired", "before_transfer.1": "not_confirmed"}


def test_a_decision_that_comes_first_leaves_nothing_to_expire() -> None:
    """A reaper that had seen the reminder finds the run settled."""
    site = Site(one_by_one(replace(SURE, timeout=20.0)))
    site.apply(site.goto_and_wait())
    site.store.now = site.store.due["r"] - 1
    seen = site.store.due["r"]
    decided(site)
    site.store.now = seen
    assert site.store.overdue(10) == []
    assert [type(event) for _, event in site.store.events("r")].count(CheckSettled) == 1


def test_other_reminders_do_not_make_a_wait_longer() -> None:
    """Beside a command that nobody takes, announced ever more rarely, a question still ends in time."""
    hook = ((replace(SURE, timeout=60.0), shell()),)
    site = Site(runbook=loop(Node("a", out_hook=hook)))
    site.apply(site.goto_and_wait())
    ends_at = site.store.now + 60_000
    while site.store.due["r"] < ends_at:
        site.reap()
    assert site.store.due["r"] == ends_at
    site.reap()
    assert site.reasons == {"out_hook.0": "expired"}


def test_a_retry_and_a_wait_are_both_remembered() -> None:
    """The earlier of the two sets the reminder."""
    retry = Retry(on=("infrastructure",), initial_interval=7.0, jitter=0.0)
    hook = ((replace(SURE, timeout=60.0), replace(shell(), retry=retry, idempotent=True)),)
    site = Site(runbook=loop(Node("a", out_hook=hook)))
    site.apply(site.goto_and_wait())
    run = site.coordinator.apply("r", ClaimWork(transition="t2", check="out_hook.1", worker=WORKER)).run
    site.coordinator.record(run, site.outcome(run, failure("spawn_failed")))
    assert site.due_in() == 7_000


# --- what cannot be looked after --------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [StoredDataUnreadable("It is damaged."), KeyError("doc")], ids=["ours", "defect"])
def test_a_run_that_cannot_be_read_does_not_keep_others_waiting(
    error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """It is pushed back behind those that can be helped, and told of once."""
    site = Site(one_by_one(shell()))
    site.apply(site.goto())
    site.messages()
    load = site.store.load

    def damaged(run_id: str) -> Snapshot | None:
        if run_id == "poison":
            raise error
        return load(run_id)

    site.store.load = damaged  # type: ignore[method-assign]
    site.store.due["poison"] = EPOCH
    site.store.now = site.store.due["r"]
    reaper = Reaper(site.coordinator)
    assert reaper.reap_once() == 2
    assert site.messages() == ["t2/before_transfer.0"]
    assert site.store.due["poison"] == site.store.now + PUSHED_BACK_MS
    site.store.due["poison"] = site.store.now
    reaper.reap_once()
    assert caplog.text.count("poison cannot be looked after") == 1


def test_the_reminder_of_a_run_that_is_gone_is_removed() -> None:
    """Not at the first look, when somebody may just have been faster, but at the second."""
    site = Site()
    site.store.due["gone"] = EPOCH
    reaper = Reaper(site.coordinator)
    assert (reaper.reap_once(), reaper.reap_once(), reaper.reap_once()) == (1, 1, 0)


def test_a_store_that_is_away_ends_the_look() -> None:
    """Nothing is pushed back then: the next look finds everything as it was."""
    site = Site()
    site.store.due["r"] = EPOCH

    def away(*_: object) -> Snapshot | None:
        raise Unavailable("away")

    site.store.load = site.store.postpone = away  # type: ignore[method-assign,assignment]
    with pytest.raises(Unavailable):
        Reaper(site.coordinator).reap_once()
    assert site.store.due["r"] == EPOCH


# --- runs that are held -----------------------------------------------------------------------------------------


def test_a_paused_run_is_offered_to_nobody_until_it_goes_on() -> None:
    """The rest of a claim is not announced while the run is paused; letting it go on announces it, once."""
    site = Site(one_by_one(shell("x"), shell("y")))
    site.apply(site.goto())
    run = site.claim()
    site.messages()
    site.apply(Pause(reason="lunch", by=AGENT))
    site.coordinator.record(run, site.outcome(run, PASSED))
    assert site.messages() == []
    site.apply(Unpause(by=AGENT))
    assert site.messages() == ["t2/before_transfer.1"]
    site.apply(ClaimWork(transition="t2", check="before_transfer.1", worker=WORKER))
    assert site.messages() == []


def test_what_was_announced_before_a_pause_is_announced_again() -> None:
    """Its message may have been taken while there was nothing to claim."""
    site = Site(one_by_one(shell()))
    site.apply(site.goto())
    site.apply(Pause(reason="lunch", by=AGENT))
    site.messages()
    assert site.apply(ClaimWork(transition="t2", check="before_transfer.0", worker=WORKER)) == 0
    site.apply(Unpause(by=AGENT))
    assert site.messages() == ["t2/before_transfer.0"]


@pytest.mark.parametrize("asks", [False, True])
def test_a_paused_run_that_owes_nothing_is_never_due(asks: bool) -> None:
    """Nobody looks at it again and again; once it goes on it is due as before, also if it waits for people."""
    site = Site(one_by_one(Check(do=Manual("sure?")) if asks else shell()))
    site.apply(site.goto_and_wait())
    due = site.due_in()
    site.apply(Pause(reason="lunch", by=AGENT))
    assert site.due_in() is None
    site.apply(Unpause(by=AGENT))
    assert site.due_in() == due


def test_a_lost_claim_of_a_paused_run_is_found_once() -> None:
    """Its lease runs out and is expired; nothing is dispatched, and the run is not due again."""
    site = Site(one_by_one(shell()))
    site.apply(site.goto())
    site.claim()
    site.messages()
    site.apply(Pause(reason="lunch", by=AGENT))
    assert site.due_in() == LEASE_MS
    assert site.reap() == []
    assert (site.run.transition is not None and site.run.transition.claims, site.due_in()) == ((), None)
    site.apply(Unpause(by=AGENT))
    assert site.messages() == ["t2/before_transfer.0"]


def test_a_decision_that_nobody_made_expires_during_a_pause() -> None:
    """The time for it runs on, and the run is due at its end, and not before."""
    site = Site(one_by_one(replace(Check(do=Manual("sure?")), timeout=60.0)))
    site.apply(site.goto_and_wait())
    site.store.now += 10_000
    site.apply(Pause(reason="lunch", by=AGENT))
    assert site.due_in() == 50_000
    assert site.reap() == []
    assert (site.reasons, site.due_in()) == ({"before_transfer.0": "expired"}, None)
    assert site.run.in_flight is not None
    site.apply(Unpause(by=AGENT))
    assert site.run.in_flight is None


def test_the_lease_of_a_cancelled_run_is_looked_after() -> None:
    """What is being executed may end; if its worker is lost, the reaper ends the run."""
    site = Site(one_by_one(shell()))
    site.apply(site.goto())
    site.claim()
    site.messages()
    site.apply(CancelRun(reason="no use", by=AGENT))
    assert site.due_in() == LEASE_MS
    assert site.reap() == []
    assert (site.run.status, site.due_in()) == ("cancelled", None)


def test_a_restart_announces_checks_that_are_named_like_those_before() -> None:
    """The ``in_hook`` of the initial node is owed anew, although the same one was owed and announced just before."""
    runbook = Runbook(hash="h1", name="one", initial="a", nodes=(Node("a", in_hook=one_by_one(shell())),))
    site = Site(runbook=runbook)
    assert site.messages() == ["t1/in_hook.0"]
    site.apply(Restart(runbook=runbook, place=PLACE, by=AGENT))
    assert site.messages() == ["t2/in_hook.0"]
