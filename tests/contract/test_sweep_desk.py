"""What people do with sweeps, on a real Redis: every status with every verb, and submitters that are interrupted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from statem_dist.deadline import Deadline
from statem_dist.errors import Conflict, Invalid, NotFound
from statem_dist.protocol.graph import Runbook
from statem_dist.runbook import Parsed
from statem_dist.store.codec import StoredRunbook
from statem_dist.sweep import ledger as ledgers
from statem_dist.sweep.desk import Resumed, SweepDesk, has_ended
from statem_dist.sweep.ledger import Ledger
from statem_dist.sweep.model import Planned, Selection, State, Status, Sweep, Trial, Usage
from statem_dist.sweep.prospect import prospect_of
from statem_dist.sweep.spec import Loaded, load_sweep
from tests.contract.conftest import RedisBench
from tests.support.sweep_trials import claimed, end, end_next

STATUSES: tuple[Status, ...] = ("planning", "active", "paused", "stopped", "cancelled", "finished")

RUNBOOK = "nodes: {work: {prompt: Go., next: [done, never]}, done: , never: {outcome: failure}}\n"

FILE = """\
runbook: gate.yaml
matrix: {model: [small, large]}
trials: 2
queue: trials
agent: {run: "true"}
"""


class Keeping:
    """Keeps runbooks, and notes which slots were woken."""

    def __init__(self, bench: RedisBench) -> None:
        self.store = bench.redis_store
        self.woken: Counter[str] = Counter()

    def register(self, parsed: Parsed, source: str) -> Runbook:
        """Keep a runbook in the store."""
        self.store.save_runbook(StoredRunbook(runbook=parsed.runbook, text=parsed.text, source=source))
        return parsed.runbook

    def clock(self) -> int:
        """Return the store's time."""
        return self.store.clock()

    def send(self, queue: str, count: int = 1) -> None:
        """Note that slots were woken."""
        self.woken[queue] += count


class Bureau:
    """A desk, its ledger, and a folder with a sweep file."""

    def __init__(self, bench: RedisBench, folder: Path) -> None:
        self.folder = folder
        self.keeping = Keeping(bench)
        self.ledger = Ledger(bench.redis_store)
        self.desk = SweepDesk(self.ledger, self.keeping, self.keeping, folder / ".statem")
        self.file = folder / "gate.sweep.yaml"
        (folder / "gate.yaml").write_text(RUNBOOK)

    def loaded(self, text: str = FILE) -> Loaded:
        """Write the sweep file, and read it."""
        self.file.write_text(text)
        return load_sweep(self.file)

    def submit(self, text: str = FILE, **more: Any) -> Sweep:
        """Submit the sweep file."""
        return self.desk.submit(self.loaded(text), by="ada", **more).sweep

    def at(self, status: Status) -> str:
        """Return a sweep of that status with one trial that has failed and one that could not be judged."""
        made = self.submit()
        end_next(self.ledger, made.id, "failed", "error")
        if status == "finished":
            end_next(self.ledger, made.id, "passed", "passed")
        elif status == "planning":
            self.ledger._store.call("HSET", f"statem:{{swp:{made.id}}}:sweep", "status", "planning")
        elif status != "active":
            self.ledger.steer(made.id, status, ["active"], "for a test")
        assert self.ledger.require(made.id).status == status
        return made.id

    def trials(self, sweep_id: str) -> list[Trial]:
        """Return the trials of a sweep."""
        return list(self.ledger.trials(sweep_id))

    def states(self, sweep_id: str) -> dict[int, State]:
        """Return the state of each trial."""
        return {trial.planned.number: trial.state for trial in self.trials(sweep_id)}

    def status(self, sweep_id: str) -> Status:
        """Return the status of a sweep."""
        return self.ledger.require(sweep_id).status


@pytest.fixture
def bureau(real_bench: RedisBench, tmp_path: Path) -> Bureau:
    """A desk on an empty Redis."""
    return Bureau(real_bench, tmp_path)


# --- the table of statuses and verbs ---------------------------------------------------------------------------------


@pytest.mark.parametrize("status", STATUSES)
def test_submit_in_each_status(bureau: Bureau, status: Status) -> None:
    """What has not ended is attached to and left as it is; of what has ended, a new sweep is made."""
    sweep_id = bureau.at(status)
    again = bureau.desk.submit(bureau.loaded(), by="bob")
    attaches = status in ("planning", "active", "paused")
    assert again.fresh is not attaches
    assert (again.sweep.id == sweep_id) is attaches
    assert again.sweep.status == ("paused" if status == "paused" else "active")
    assert again.sweep.planned == 4
    assert bureau.ledger.require(sweep_id).created_by == "ada"


@pytest.mark.parametrize("status", STATUSES)
def test_submit_under_its_id_in_each_status(bureau: Bureau, status: Status) -> None:
    """The same content under the same id is that sweep, whatever its status."""
    sweep_id = bureau.at(status)
    again = bureau.desk.submit(bureau.loaded(), by="bob", sweep_id=sweep_id)
    assert (again.fresh, again.sweep.id) == (False, sweep_id)
    assert again.sweep.status == ("active" if status == "planning" else status)


@pytest.mark.parametrize(
    ("status", "then"),
    [
        ("planning", "active"),
        ("active", "active"),
        ("paused", "active"),
        ("stopped", "active"),
        ("cancelled", None),
        ("finished", "finished"),
    ],
)
def test_resume_in_each_status(bureau: Bureau, status: Status, then: Status | None) -> None:
    """What can go on does; what was cancelled is refused, what has finished is left."""
    sweep_id = bureau.at(status)
    before = bureau.states(sweep_id)
    if then is None:
        with pytest.raises(Conflict) as caught:
            bureau.desk.resume(sweep_id)
        assert "--unscored" in caught.value.hint
    else:
        resumed = bureau.desk.resume(sweep_id)
        assert (resumed.before, resumed.sweep.status) == (status, then)
    assert bureau.states(sweep_id) == before


@pytest.mark.parametrize(
    ("status", "then"),
    [
        ("planning", None),
        ("active", "paused"),
        ("paused", "paused"),
        ("stopped", None),
        ("cancelled", None),
        ("finished", None),
    ],
)
def test_pause_in_each_status(bureau: Bureau, status: Status, then: Status | None) -> None:
    """Only what is active can be paused; what is paused may be again."""
    sweep_id = bureau.at(status)
    if then is None:
        with pytest.raises(Conflict):
            bureau.desk.pause(sweep_id)
        assert bureau.status(sweep_id) == status
    else:
        assert bureau.desk.pause(sweep_id, "lunch").status == then


@pytest.mark.parametrize("status", STATUSES)
def test_cancel_in_each_status(bureau: Bureau, status: Status) -> None:
    """What waits is cancelled at once; what has ended stays; a finished sweep is refused."""
    sweep_id = bureau.at(status)
    if status == "finished":
        with pytest.raises(Conflict):
            bureau.desk.cancel(sweep_id)
        return
    now = bureau.desk.cancel(sweep_id)
    assert now.status == "cancelled"
    assert bureau.states(sweep_id) == {1: "failed", 2: "error", 3: "cancelled", 4: "cancelled"}
    assert has_ended(now)
    assert now.planned == 4


@pytest.mark.parametrize(
    ("status", "then"),
    [
        ("planning", None),
        ("active", "active"),
        ("paused", "paused"),
        ("stopped", "stopped"),
        ("cancelled", None),
        ("finished", "active"),
    ],
)
def test_extend_in_each_status(bureau: Bureau, status: Status, then: Status | None) -> None:
    """Trials are added behind those that there are; only a finished sweep changes its status by that."""
    sweep_id = bureau.at(status)
    before = bureau.states(sweep_id)
    if then is None:
        with pytest.raises(Conflict):
            bureau.desk.extend(sweep_id, 3)
        assert bureau.states(sweep_id) == before
        return
    extended = bureau.desk.extend(sweep_id, 3)
    assert (extended.added, extended.sweep.status) == (2, then)
    assert bureau.states(sweep_id) == {**before, 5: "pending", 6: "pending"}
    added = [trial.planned for trial in bureau.trials(sweep_id)[4:]]
    assert added == [Planned(5, {"model": "small"}, 3), Planned(6, {"model": "large"}, 3)]


@pytest.mark.parametrize(
    ("status", "then"),
    [
        ("planning", None),
        ("active", "active"),
        ("paused", "paused"),
        ("stopped", "active"),
        ("cancelled", "active"),
        ("finished", "active"),
    ],
)
def test_retry_in_each_status(bureau: Bureau, status: Status, then: Status | None) -> None:
    """The trials that could not be judged wait again, and nothing else changes."""
    sweep_id = bureau.at(status)
    before = bureau.states(sweep_id)
    if then is None:
        with pytest.raises(Conflict):
            bureau.desk.retry(sweep_id, ["errored"])
        assert bureau.states(sweep_id) == before
        return
    repeated = bureau.desk.retry(sweep_id, ["errored"])
    assert (repeated.total, repeated.outcomes, repeated.sweep.status) == (1, {"error": 1}, then)
    assert bureau.states(sweep_id) == {**before, 2: "pending"}
    assert len(bureau.trials(sweep_id)[1].attempts) == 1, "the earlier attempt is kept"


@pytest.mark.parametrize("status", STATUSES)
def test_remove_in_each_status(bureau: Bureau, status: Status) -> None:
    """An active sweep is removed by force alone; of what is removed nothing is left."""
    sweep_id = bureau.at(status)
    (bureau.desk.folder(sweep_id) / "workers").mkdir(parents=True)
    if status == "active":
        with pytest.raises(Conflict) as caught:
            bureau.desk.remove(sweep_id)
        assert "--force" in caught.value.hint
        assert bureau.ledger.sweep(sweep_id) is not None
    assert bureau.desk.remove(sweep_id, force=status == "active")
    assert bureau.ledger.sweep(sweep_id) is None
    assert not bureau.desk.folder(sweep_id).exists()
    assert bureau.ledger._store.call("KEYS", f"*{sweep_id}*") == []
    with pytest.raises(NotFound):
        bureau.desk.remove(sweep_id)


# --- which trials ----------------------------------------------------------------------------------------------------


def test_retry_in_each_state_of_a_trial(bureau: Bureau) -> None:
    """Words mean outcomes, numbers mean trials; what waits or is under way stays as it is."""
    sweep_id = bureau.submit(FILE.replace("trials: 2", "trials: 4")).id
    end_next(bureau.ledger, sweep_id, "passed", "failed", "stuck", "timeout", "error", "cancelled")
    claimed(bureau.ledger, sweep_id)
    before = bureau.states(sweep_id)
    assert list(before.values()) == [
        "passed",
        "failed",
        "stuck",
        "timeout",
        "error",
        "cancelled",
        "running",
        "pending",
    ]

    def dry(*which: Any, numbers: Iterable[int] = ()) -> tuple[dict[State, int], tuple[int, ...]]:
        found = bureau.desk.retry(sweep_id, which, tuple(numbers), dry_run=True)
        return found.outcomes, found.left

    assert dry("failed") == ({"failed": 1, "stuck": 1, "timeout": 1}, ())
    assert dry("errored") == ({"error": 1}, ())
    assert dry("unscored") == ({"error": 1, "cancelled": 1}, ())
    assert dry("failed", "errored") == ({"failed": 1, "stuck": 1, "timeout": 1, "error": 1}, ())
    assert dry(numbers=[1, 7, 8]) == ({"passed": 1}, (7, 8))
    assert dry("failed", numbers=[1, 2]) == ({"failed": 1}, (1,))
    assert bureau.states(sweep_id) == before, "nothing was changed"
    with pytest.raises(NotFound, match="no trial 9"):
        dry(numbers=[2, 9])
    with pytest.raises(Invalid):
        dry()
    assert bureau.desk.retry(sweep_id, ["failed", "unscored"]).total == 5
    assert Counter(bureau.states(sweep_id).values()) == {"passed": 1, "running": 1, "pending": 6}


def test_retry_while_a_cancelled_sweep_still_has_a_trial_under_way(bureau: Bureau) -> None:
    """What its workers have not ended yet would go on by itself, so that this is refused until then."""
    sweep_id = bureau.submit().id
    claim = claimed(bureau.ledger, sweep_id)
    bureau.desk.cancel(sweep_id)
    with pytest.raises(Conflict, match="being cancelled"):
        bureau.desk.retry(sweep_id, ["unscored"])
    end(bureau.ledger, claim, "cancelled")
    assert bureau.desk.retry(sweep_id, ["unscored"]).total == 4
    assert bureau.status(sweep_id) == "active"


def test_removal_by_force_lets_workers_end_their_trials(bureau: Bureau) -> None:
    """The sweep is cancelled, and removed when the last trial has ended or the wait ran out."""
    sweep_id = bureau.submit().id
    claimed(bureau.ledger, sweep_id)
    assert not bureau.desk.remove(sweep_id, force=True, deadline=Deadline(0))
    assert bureau.ledger.sweep(sweep_id) is None


def test_another_name_is_another_sweep(bureau: Bureau) -> None:
    """The same work under another name does not attach; a sweep whose file has another name says so when it goes on."""
    first = bureau.submit(f"name: one\n{FILE}")
    assert bureau.submit(f"name: two\n{FILE}").id != first.id
    assert bureau.submit(f"name: one\n{FILE}").id == first.id
    bureau.desk.pause(first.id)
    with pytest.raises(Conflict, match="name: 'one' -> 'two'"):
        bureau.desk.resume(first.id, bureau.loaded(f"name: two\n{FILE}"))


def test_extending_twice_and_by_nothing(bureau: Bureau) -> None:
    """A sweep that was extended has that many trials of each cell, and is still the same content."""
    sweep_id = bureau.at("active")
    bureau.desk.extend(sweep_id, 3)
    with pytest.raises(Invalid, match="has 3 trials"):
        bureau.desk.extend(sweep_id, 3)
    assert bureau.desk.extend(sweep_id, 4).added == 2
    assert bureau.ledger.require(sweep_id).definition.trials == 4
    resumed = bureau.desk.resume(sweep_id)
    assert (resumed.differences, resumed.sweep.planned, resumed.sweep.definition.trials) == ((), 8, 4)
    assert not bureau.desk.submit(bureau.loaded(), by="ada").fresh


# --- submitting ------------------------------------------------------------------------------------------------------


def test_submitted_twice_it_is_one(bureau: Bureau) -> None:
    """The second time finds the first; what differs in bounds alone is taken over from the same file."""
    first = bureau.submit()
    again = bureau.desk.submit(bureau.loaded(FILE + "concurrency: 3\n"), by="bob")
    assert (again.fresh, again.sweep.id) == (False, first.id)
    assert again.sweep.definition.concurrency == 3
    assert again.sweep.revision == 2
    assert len(bureau.ledger.ids()) == 1
    assert bureau.keeping.store.runbook(first.definition.runbook) is not None


def test_a_copy_of_the_file_attaches_and_changes_nothing(bureau: Bureau, tmp_path: Path) -> None:
    """From another folder comes the same content, but not the place from which workers take it."""
    first = bureau.submit()
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / "gate.yaml").write_text(RUNBOOK)
    (elsewhere / "gate.sweep.yaml").write_text(FILE)
    again = bureau.desk.submit(load_sweep(elsewhere / "gate.sweep.yaml"), by="bob")
    assert (again.sweep.id, again.sweep.definition) == (first.id, first.definition)


def test_a_new_one_is_made_when_it_is_asked_for(bureau: Bureau) -> None:
    """``new`` makes another sweep of the same content, which later submissions attach to."""
    first = bureau.submit()
    second = bureau.submit(new=True)
    assert second.id != first.id
    assert bureau.submit().id == second.id


def test_two_at_the_same_time_are_one(bureau: Bureau) -> None:
    """Whoever comes second, while the first one has not stored its trials yet, stores the same ones."""
    loaded = bureau.loaded()
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda _: bureau.desk.submit(loaded, by="ada").sweep.id, range(8)))
    assert len(set(found)) == 1
    assert bureau.ledger.ids() == found[:1]
    assert bureau.ledger.require(found[0]).planned == 4


def test_a_submitter_that_is_killed_half_way(bureau: Bureau, monkeypatch: pytest.MonkeyPatch) -> None:
    """At each page that it may die on, the next submission finishes what it began, under the same id."""
    monkeypatch.setattr(ledgers, "PAGE", 1)
    loaded = bureau.loaded()
    add = Ledger.add
    for survived in range(4):

        def add_some(ledger: Ledger, sweep_id: str, definition: Any, trials: Any, *rest: Any, n: int = survived) -> int:
            add(ledger, sweep_id, definition, list(trials)[:n], *rest)
            raise KeyboardInterrupt

        monkeypatch.setattr(Ledger, "add", add_some)
        with pytest.raises(KeyboardInterrupt):
            bureau.desk.submit(loaded, by="ada", new=survived == 0)
        (sweep_id,) = bureau.ledger.ids()
        torn = bureau.ledger.require(sweep_id)
        assert (torn.status, torn.planned) == ("planning", survived)
    monkeypatch.setattr(Ledger, "add", add)
    whole = bureau.desk.submit(loaded, by="ada")
    assert (whole.fresh, whole.sweep.id, whole.sweep.status, whole.sweep.planned) == (False, sweep_id, "active", 4)
    assert bureau.keeping.woken == {"trials": 4}


def test_a_submitter_that_is_killed_before_it_creates_anything(bureau: Bureau, monkeypatch: pytest.MonkeyPatch) -> None:
    """An id that was reserved and never used is used by the next one."""
    create = Ledger.create

    def die(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Ledger, "create", die)
    with pytest.raises(KeyboardInterrupt):
        bureau.submit()
    assert bureau.ledger.ids() == []
    monkeypatch.setattr(Ledger, "create", create)
    assert bureau.submit().planned == 4
    assert bureau.submit().id == bureau.ledger.ids()[0]


def test_another_content_under_a_known_id_is_refused(bureau: Bureau) -> None:
    """The refusal says what is different, and how to take it over."""
    bureau.submit(sweep_id="mine")
    with pytest.raises(Conflict) as caught:
        bureau.submit(
            FILE.replace("[small, large]", "[small, huge]").replace("trials: 2", "trials: 3"), sweep_id="mine"
        )
    assert caught.value.details["differences"] == [
        "1 cell is new: model=huge; 1 cell is gone: model=large",
        "trials: 2 -> 3",
    ]
    assert "resume mine --accept-changes" in caught.value.hint
    with pytest.raises(Invalid, match="sweep id"):
        bureau.submit(sweep_id="no/good")


def test_a_selection_is_a_part_of_the_content(bureau: Bureau) -> None:
    """Some trials of a file are another sweep than all of them; their numbers begin with 1."""
    whole = bureau.submit()
    large = Selection({"model": ("large",)}, 1)
    some = bureau.submit(selection=large)
    assert some.id != whole.id
    assert [trial.planned for trial in bureau.trials(some.id)] == [Planned(1, {"model": "large"}, 1)]
    assert bureau.submit(selection=large).id == some.id
    assert bureau.desk.resume(some.id).differences == ()
    with pytest.raises(Conflict) as caught:
        bureau.submit(sweep_id=some.id)
    assert "selected: model=large, the first 1 of each row -> all trials" in caught.value.details["differences"]
    with pytest.raises(Invalid, match="no 'modle'"):
        bureau.submit(selection=Selection({"modle": ("large",)}))
    with pytest.raises(Invalid, match="model=tiny"):
        bureau.submit(selection=Selection({"model": ("tiny",)}))


def test_slots_are_woken_for_trials_that_may_begin(bureau: Bureau) -> None:
    """As many as wait or as may run at once, in the sweep's own queue; a paused sweep wakes nobody."""
    sweep = bureau.submit(FILE.replace("queue: trials", "queue: mine") + "concurrency: 3\n")
    assert bureau.keeping.woken == {"mine": 3}
    bureau.desk.pause(sweep.id)
    bureau.submit(FILE.replace("queue: trials", "queue: mine") + "concurrency: 3\n")
    assert bureau.keeping.woken == {"mine": 3}
    bureau.desk.resume(sweep.id)
    assert bureau.keeping.woken == {"mine": 6}


# --- a file that has changed -----------------------------------------------------------------------------------------


def test_resume_refuses_a_file_that_has_changed(bureau: Bureau) -> None:
    """It says what is different; nothing is changed, and accepting it is the way."""
    sweep_id = bureau.at("paused")
    before = bureau.ledger.require(sweep_id)
    bureau.loaded(FILE.replace("[small, large]", "[small, large, huge]").replace('"true"', '"false"'))
    with pytest.raises(Conflict) as caught:
        bureau.desk.resume(sweep_id)
    assert caught.value.details["differences"] == ["1 cell is new: model=huge", "agent.run: 'true' -> 'false'"]
    assert "1 cell is new: model=huge" in caught.value.message
    assert "--accept-changes" in caught.value.hint
    assert bureau.ledger.require(sweep_id) == before


@pytest.mark.parametrize("status", ["planning", "active", "paused", "stopped", "finished"])
def test_accepted_changes_add_and_withdraw_trials(bureau: Bureau, status: Status) -> None:
    """New cells get new numbers, what waits of cells that are gone is withdrawn, what has ended stays."""
    sweep_id = bureau.at(status)
    before = bureau.states(sweep_id)
    bureau.loaded(FILE.replace("[small, large]", "[small, huge]"))
    resumed = bureau.desk.resume(sweep_id, accept_changes=True)
    gone = 0 if status == "finished" else 1
    assert resumed.differences == ("1 cell is new: model=huge; 1 cell is gone: model=large",)
    assert (resumed.added, resumed.withdrawn, resumed.sweep.status) == (2, gone, "active")
    assert bureau.states(sweep_id) == {**before, **({4: "cancelled"} if gone else {}), 5: "pending", 6: "pending"}
    assert [trial.planned for trial in bureau.trials(sweep_id)[4:]] == [
        Planned(5, {"model": "huge"}, 1),
        Planned(6, {"model": "huge"}, 2),
    ]
    assert resumed.sweep.revision == 2
    assert bureau.desk.resume(sweep_id) == Resumed(bureau.ledger.require(sweep_id), "active")
    assert bureau.desk.retry(sweep_id, ["unscored"], dry_run=True).outcomes == {"error": 1}, "not what was withdrawn"


def test_a_cell_that_comes_back_keeps_its_numbers(bureau: Bureau) -> None:
    """What was withdrawn waits again when its cell is planned again."""
    sweep_id = bureau.at("paused")
    bureau.loaded(FILE.replace("[small, large]", "[small]"))
    assert bureau.desk.resume(sweep_id, accept_changes=True).withdrawn == 1
    bureau.desk.pause(sweep_id)
    resumed = bureau.desk.resume(sweep_id, bureau.loaded(), accept_changes=True)
    assert (resumed.added, resumed.withdrawn) == (1, 0)
    assert bureau.states(sweep_id) == {1: "failed", 2: "error", 3: "pending", 4: "pending"}
    assert bureau.ledger.withdrawn(sweep_id) == set()


def test_a_sweep_of_which_everything_that_waits_is_withdrawn_ends(bureau: Bureau) -> None:
    """Nobody would end it otherwise: no trial of it will."""
    sweep_id = bureau.submit().id
    end_next(bureau.ledger, sweep_id, "passed", "passed", "passed")
    bureau.loaded(FILE.replace("[small, large]", "[small]"))
    ended = bureau.desk.resume(sweep_id, accept_changes=True).sweep
    assert (ended.status, ended.counts["cancelled"]) == ("finished", 1)
    assert ended.ended_at > 0


@pytest.mark.parametrize("step", ["add", "withdraw", "revise", "again"])
def test_accepting_changes_may_be_interrupted(bureau: Bureau, monkeypatch: pytest.MonkeyPatch, step: str) -> None:
    """Killed after any step of it, it is repeated, and ends as if nothing had happened."""
    sweep_id = bureau.at("active")
    bureau.loaded(FILE.replace("[small, large]", "[small, huge]"))
    whole = getattr(Ledger, step)

    def die(ledger: Ledger, *given: Any) -> None:
        whole(ledger, *given)
        raise KeyboardInterrupt

    monkeypatch.setattr(Ledger, step, die)
    with pytest.raises(KeyboardInterrupt):
        bureau.desk.resume(sweep_id, accept_changes=True)
    assert bureau.status(sweep_id) == "paused", "nothing begins half-changed"
    monkeypatch.setattr(Ledger, step, whole)
    assert bureau.desk.resume(sweep_id, accept_changes=True).sweep.status == "active"
    assert bureau.states(sweep_id) == {
        1: "failed",
        2: "error",
        3: "pending",
        4: "cancelled",
        5: "pending",
        6: "pending",
    }


def test_what_decides_no_results_is_taken_over_by_resume(bureau: Bureau) -> None:
    """Bounds, rules to stop and the like may change from one day to the next."""
    sweep_id = bureau.at("paused")
    bureau.loaded(FILE + "concurrency: 7\nstop_when: {errors: 5}\n")
    resumed = bureau.desk.resume(sweep_id)
    assert resumed.differences == ()
    assert resumed.sweep.definition.concurrency == 7
    assert resumed.sweep.definition.stop_when.errors is not None


def test_a_bound_that_was_given_stays_until_another_is(bureau: Bureau) -> None:
    """What somebody chose on the command line is not undone by whoever lets the sweep go on."""
    loaded = bureau.loaded(FILE + "concurrency: 8\n")
    sweep_id = bureau.desk.submit(loaded, by="ada", concurrency=2).sweep.id

    def bound() -> int | None:
        return bureau.ledger.require(sweep_id).definition.concurrency

    bureau.desk.pause(sweep_id)
    bureau.desk.resume(sweep_id)
    assert bound() == 2
    assert not bureau.desk.submit(loaded, by="ada").fresh
    assert bound() == 2
    bureau.desk.resume(sweep_id, concurrency=3)
    assert bound() == 3
    bureau.loaded(FILE.replace("[small, large]", "[small, huge]") + "concurrency: 9\n")
    bureau.desk.resume(sweep_id, accept_changes=True)
    assert bound() == 3
    bureau.file.unlink()
    bureau.desk.resume(sweep_id, concurrency=1)
    assert bound() == 1


def test_a_file_that_is_gone_holds_nothing_up(bureau: Bureau) -> None:
    """The sweep goes on as it was submitted: its workers need no file."""
    sweep_id = bureau.at("paused")
    bureau.file.unlink()
    assert bureau.desk.resume(sweep_id).sweep.status == "active"


# --- finding and waiting ---------------------------------------------------------------------------------------------


def test_ids_may_be_abbreviated(bureau: Bureau) -> None:
    """The beginning of an id will do while it is one sweep's; else the candidates are named."""
    for sweep_id in ("night-1", "night-10", "day"):
        bureau.submit(sweep_id=sweep_id)
    assert bureau.desk.find("d") == "day"
    assert bureau.desk.find("night-1") == "night-1", "an id in full is never ambiguous"
    with pytest.raises(NotFound, match="2 sweeps begin with 'night'") as caught:
        bureau.desk.find("night")
    assert sorted(caught.value.details["candidates"]) == ["night-1", "night-10"]
    assert "night-10" in caught.value.hint
    for unknown in ("dawn", ""):
        with pytest.raises(NotFound, match="Sweep not found"):
            bureau.desk.find(unknown)


def test_waiting(bureau: Bureau, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wait ends with the sweep, or when time is up."""
    sweep_id = bureau.at("active")
    assert not has_ended(bureau.desk.wait(sweep_id, Deadline(0)))

    def work(_: float) -> None:
        end_next(bureau.ledger, sweep_id, "passed")

    monkeypatch.setattr("statem_dist.sweep.desk.time.sleep", work)
    assert bureau.desk.wait(sweep_id).counts["passed"] == 2


# --- what it comes to ------------------------------------------------------------------------------------------------


def test_a_prospect_is_estimated_by_an_earlier_sweep(bureau: Bureau) -> None:
    """Time by the median of its attempts and by how many run at once, cost by their mean."""
    loaded = bureau.loaded(FILE + "concurrency: 2\n")
    bare = prospect_of(loaded, ledger=bureau.ledger)
    assert (len(bare.trials), bare.cells, bare.values, bare.like, bare.seconds) == (4, 2, {"model": 2}, None, None)
    earlier = bureau.submit().id
    assert prospect_of(loaded, ledger=bureau.ledger).like is None, "nothing has been judged yet"
    for milliseconds, dollars in ((1_000, 0.5), (3_000, 1.0), (60_000, 1.5)):
        claim = claimed(bureau.ledger, earlier)
        used = Usage(cost_usd=dollars)
        end(bureau.ledger, claim, "passed", ended_at=claim.ready_at + milliseconds, usage=used)
    found = prospect_of(loaded, ledger=bureau.ledger)
    assert (found.like, found.trial_seconds, found.seconds, found.cost_usd) == (earlier, 3.0, 6.0, 4.0)
    assert prospect_of(bureau.loaded(), ledger=bureau.ledger).seconds is None, "nobody knows how many slots there are"
    one = prospect_of(loaded, Selection({"model": ("large",)}, 1), bureau.ledger)
    assert (len(one.trials), one.seconds, one.cost_usd) == (1, 3.0, 1.0)
