"""Files of runs: what they hold comes back as it was, and whatever was done to one is named with its line."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable

import pytest
from msgspec.structs import replace

from statem_dist import transfer
from statem_dist.coordinator import Coordinator
from statem_dist.dispatch import NoDispatch
from statem_dist.errors import Invalid
from statem_dist.eventlog import WITHHELD
from statem_dist.protocol.commands import CancelRun, ClaimWork, Goto, RecordOutcomes, Restart, Start
from statem_dist.protocol.evolve import replay
from statem_dist.protocol.graph import Runbook
from statem_dist.protocol.model import Place, Run
from statem_dist.protocol.progress import pending
from statem_dist.runbook import parse
from statem_dist.store.codec import StoredRunbook
from statem_dist.transfer import End, EventLine, Head, Line, Parcel, RunbookLine, RunLine
from tests.support.builders import AGENT, EPOCH, FAILED, PASSED, WORKER
from tests.support.memory_store import MemoryStore
from tests.support.stored_runs import SETTINGS

TEXTS = (
    "nodes: {a: {before_transfer: [{run: 'true'}], next: b}, b: {next: a}}",
    "nodes: {a: {next: b}, b: The end.}",
)


class Desk:
    """A store in memory with two runbooks, and somebody who moves runs there."""

    def __init__(self) -> None:
        self.store = MemoryStore(EPOCH)
        self.coordinator = Coordinator(self.store, NoDispatch(), SETTINGS)
        self.runbooks = [parse(text, source="x.yaml", format="yaml") for text in TEXTS]

    def run(self, run_id: str, env: dict[str, str] | None = None, texts: Iterable[int] = (0,)) -> Run:
        """Make a run, let a check fail and pass, and let it begin anew for each further runbook."""
        first, *others = texts
        start = Start(run_id=run_id, runbook=self._book(first), place=Place("/work", env=env or {}), by=AGENT)
        self.coordinator.apply(run_id, start)
        for outcome in (FAILED, PASSED) if first == 0 else ():
            self.coordinator.apply(run_id, Goto(runbook=self._book(first), target="b", by=AGENT))
            (batch,) = pending(self._stored(run_id))
            claim = ClaimWork(transition=batch.transition, check=batch.checks[0], worker=WORKER)
            claimed = self.coordinator.apply(run_id, claim).run.transition
            assert claimed is not None
            report = RecordOutcomes(
                transition=claimed.id, token=claimed.token, worker=WORKER, outcomes=(outcome,), claim_more=False
            )
            self.coordinator.apply(run_id, report)
        for other in others:
            restart = Restart(runbook=self._book(other), place=Place("/work", env=env or {}), by=AGENT)
            self.coordinator.apply(run_id, restart)
        self.coordinator.apply(run_id, CancelRun(reason="enough", by=AGENT))
        return self._stored(run_id)

    def _book(self, number: int) -> Runbook:
        parsed = self.runbooks[number]
        self.store.save_runbook(StoredRunbook(runbook=parsed.runbook, text=parsed.text, source="x.yaml"))
        return parsed.runbook

    def _stored(self, run_id: str) -> Run:
        return self.coordinator.load(run_id).run


def three_runs() -> tuple[Desk, list[Run], list[bytes]]:
    """Return three runs, and the lines of the file that holds them."""
    desk = Desk()
    runs = [desk.run("one"), desk.run("two", texts=(0, 1)), desk.run("three", texts=(1,))]
    return desk, runs, list(transfer.pack(desk.store, runs))


def values(lines: Iterable[bytes]) -> list[Line]:
    """Return the values of lines that nobody has touched."""
    reader = transfer._Reader(lines)
    return [reader.next() for _ in lines]


def test_what_was_packed_comes_back() -> None:
    """The same events and the same documents, run by run; each runbook stands in the file once."""
    desk, runs, lines = three_runs()
    parcels = list(transfer.read(lines))
    assert [parcel.run for parcel in parcels] == runs
    for parcel in parcels:
        assert list(enumerate(parcel.events, start=1)) == desk.store.events(parcel.run.id)
        assert replay(parcel.events) == parcel.run
    assert sum(isinstance(value, RunbookLine) for value in values(lines)) == 2
    assert [len(parcel.runbooks) for parcel in parcels] == [1, 2, 1]


def test_a_run_makes_the_same_run_in_another_store() -> None:
    """Document and events are the same; there it is known for what it is, also when it has moved on."""
    _, runs, lines = three_runs()
    other = Desk()
    for parcel in transfer.read(lines):
        assert not transfer.is_there_already(other.store, parcel)
        for stored in parcel.runbooks:
            other.store.save_runbook(stored)
        assert other.coordinator.adopt(parcel.events) == parcel.run
        assert transfer.is_there_already(other.store, parcel)
    assert [other.coordinator.load(run.id).run for run in runs] == runs
    one = next(transfer.read(lines))
    other.coordinator.apply("one", Restart(runbook=one.runbooks[0].runbook, place=one.run.place, by=AGENT))
    assert transfer.is_there_already(other.store, one)
    assert not transfer.is_there_already(other.store, replace(one, events=(*one.events[:-1], one.events[0])))


def test_values_of_variables_stay_behind_unless_they_are_kept() -> None:
    """What is passed on has their names alone, and is still known for the same run; an archive has them."""
    desk = Desk()
    run = desk.run("one", env={"TOKEN": "hunter2"}, texts=(0, 1))
    passed_on = b"".join(transfer.pack(desk.store, [run]))
    assert b"hunter2" not in passed_on
    parcel = transfer.unpack(passed_on)
    assert parcel.run.place.env == {"TOKEN": WITHHELD}
    assert transfer.is_there_already(desk.store, parcel)
    kept = transfer.unpack(b"".join(transfer.pack(desk.store, [run], withheld=False)))
    assert kept.run == run


def changed(lines: list[bytes], number: int) -> list[bytes]:
    """Change a character of a line."""
    line = lines[number - 1]
    at = line.rindex(b'"')
    return [*lines[: number - 1], line[: at - 1] + b"~" + line[at:], *lines[number:]]


def missing(lines: list[bytes], number: int) -> list[bytes]:
    """Take a line out."""
    return [*lines[: number - 1], *lines[number:]]


def swapped(lines: list[bytes], number: int) -> list[bytes]:
    """Let a line and the next one change places."""
    return [*lines[: number - 1], lines[number], lines[number - 1], *lines[number + 1 :]]


def added(lines: list[bytes], number: int) -> list[bytes]:
    """Put a copy of a line before it, as if it belonged there."""
    return [*lines[: number - 1], lines[number - 2], *lines[number - 1 :]]


def renumbered(lines: list[bytes], number: int) -> list[bytes]:
    """Take a line out, and give those that follow new numbers."""
    rest = [
        line.replace(b'"line":%d,' % (at + 1), b'"line":%d,' % at) for at, line in enumerate(lines[number:], number)
    ]
    return [*lines[: number - 1], *rest]


@pytest.mark.parametrize("damage", [changed, missing, swapped, added, renumbered])
def test_the_first_line_that_is_not_as_it_was_is_named(damage: Callable[[list[bytes], int], list[bytes]]) -> None:
    """Whichever line it is."""
    _, _, lines = three_runs()
    for number in range(2, len(lines)):
        with pytest.raises(Invalid, match=rf"^Line {number}: ") as caught:
            list(transfer.read(damage(lines, number)))
        assert caught.value.details["line"] == number


def test_a_file_that_was_cut_off_is_refused_wherever_it_ends() -> None:
    """After a line, within one, and also behind a whole run: the line that is missing is named."""
    _, _, lines = three_runs()
    for kept in range(len(lines)):
        with pytest.raises(Invalid, match=rf"^Line {kept + 1}: the file ends before this line: it was cut off"):
            list(transfer.read(lines[:kept]))
        torn = [*lines[:kept], lines[kept][:-5]]
        with pytest.raises(Invalid, match=rf"^Line {kept + 1}: the file ends within this line"):
            list(transfer.read(torn))
    with pytest.raises(Invalid, match=rf"^Line {len(lines) + 1}: something follows"):
        list(transfer.read([*lines, lines[-1]]))


def test_what_was_sealed_anew_is_judged() -> None:
    """Whoever computes all hashes anew is not believed more than the laws, the counts and the texts allow."""
    _, _, lines = three_runs()
    whole = values(lines)
    first_event = next(number for number, value in enumerate(whole) if isinstance(value, EventLine))

    def refused(made: Iterable[Line]) -> str:
        with pytest.raises(Invalid) as caught:
            list(transfer.read(transfer.seal(made)))
        assert caught.value.message.startswith("Line ")
        return caught.value.message

    assert list(transfer.read(transfer.seal(whole))) == list(transfer.read(lines))
    assert "a file of runs begins with its head" in refused(whole[1:])
    assert "holds 9 runs" in refused([*whole[:-1], End(9)])
    assert "event 1 of the run 'one' is expected" in refused([*whole[:first_event], *whole[first_event + 1 :]])
    assert "runbook_known" in refused([value for value in whole if not isinstance(value, RunbookLine)])
    assert "format 'other'" in refused([Head(format="other"), *whole[1:]])
    other_name = [RunLine("four", value.events) if isinstance(value, RunLine) else value for value in whole]
    assert "do not make the run 'four'" in refused(other_name)
    lost = list(whole)
    event = whole[first_event + 1]
    assert isinstance(event, EventLine)
    lost[first_event + 1] = EventLine(2, replace(event.event, at=0, transition="t9"))
    assert "breaks the law" in refused(lost)


def test_a_compressed_file_is_read_like_another() -> None:
    """It is known by its beginning; cut off or damaged, it is refused with the line."""
    _, runs, lines = three_runs()
    packed = b"".join(transfer.compressed(lines))
    assert packed == b"".join(transfer.compressed(lines)), "the same runs make the same file"
    assert len(packed) < sum(map(len, lines))
    for text in (packed, b"".join(lines)):
        assert [parcel.run for parcel in transfer.read(transfer.lines_of(io.BytesIO(text)))] == runs
    for broken in (packed[:-1], packed[: len(packed) // 2], packed[:40] + b"\0\0\0" + packed[43:], packed + b"x"):
        with pytest.raises(Invalid, match=r"^Line \d+: "):
            list(transfer.read(transfer.lines_of(io.BytesIO(broken))))


def test_a_file_from_hostile_hands_is_refused_with_its_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Values nested too deeply, a line without an end, compressed or not, and times that no calendar has."""
    _, _, lines = three_runs()
    deep = b"[" * 100_000 + b"]" * 100_000
    for damaged in (b'{"line":1,"sha256":"x","value":%s}\n' % deep, _sealed(b'{"kind":"run","events":%s}' % deep)):
        with pytest.raises(Invalid, match=r"^Line 1: .*nested"):
            list(transfer.read([damaged]))
    whole = values(lines)
    at = next(at for at, value in enumerate(whole) if isinstance(value, EventLine))
    event = whole[at]
    assert isinstance(event, EventLine)
    for moment in (-1, 10**15, 10**30):
        whole[at] = replace(event, event=replace(event.event, at=moment))
        with pytest.raises(Invalid, match=rf"^Line {at + 1}: .*time"):
            list(transfer.read(transfer.seal(whole)))
    monkeypatch.setattr(transfer, "LINE_BYTES_MAX", 1 << 17)
    for size, refused in ((1 << 17, False), ((1 << 17) + 1, True), (1 << 22, True)):
        text = b"1\n" + b"x" * (size - 1) + b"\n"
        for written in (text, b"".join(transfer.compressed([text]))):
            found = transfer.lines_of(io.BytesIO(written))
            assert next(found) == b"1\n"
            if refused:
                with pytest.raises(Invalid, match=r"^Line 2: .*longer than"):
                    next(found)
            else:
                assert list(found) == [text[2:]]


def _sealed(value: bytes) -> bytes:
    return transfer._line(1, transfer._hash(transfer.START, value), value)


def test_one_run_is_unpacked_where_one_is_expected() -> None:
    """A file of several is refused there, with what to do."""
    desk, runs, lines = three_runs()
    single: Parcel = transfer.unpack(b"".join(transfer.pack(desk.store, runs[:1])))
    assert single.run == runs[0]
    with pytest.raises(Invalid, match="holds 3 runs"):
        transfer.unpack(b"".join(lines))
