"""Verifying what is stored of a run: its history by the laws, and everything else by its history.

The store is read as it is, by one run after another, page by page, so that the memory it takes does not grow with the
store or with a history. A store that is in use is no obstacle: events never change once they are written, and what else
is stored of a run is read at one moment, together with the number of the last event. If that is ahead of what was
judged, the new events are judged first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Mapping
from hashlib import sha256

from statem_dist.errors import StoredDataUnreadable
from statem_dist.laws import Judge, Violation, owes_work
from statem_dist.protocol.graph import Runbook
from statem_dist.protocol.model import Run
from statem_dist.store import inspection, keys
from statem_dist.store.codec import decode_event, decode_run
from statem_dist.store.inspection import Inspected, inspect, number_of, stored_events
from statem_dist.store.redis_store import RedisStore

RUNBOOKS_KEPT = 64
"""Runbooks that are kept in memory between runs."""

READINGS_MAX = 5
"""How often a run is read from its beginning that is replaced by another one of its id meanwhile."""


class StoredRunbooks(Mapping[str, Runbook]):
    """The runbooks of a store by their hashes, read when they are asked for. One that cannot be read is not there."""

    def __init__(self, store: RedisStore) -> None:
        self._store = store
        self._kept: OrderedDict[str, Runbook] = OrderedDict()

    def __getitem__(self, digest: str) -> Runbook:
        """Return the runbook of that hash, if its text has it too."""
        if digest in self._kept:
            self._kept.move_to_end(digest)
            return self._kept[digest]
        try:
            stored = self._store.runbook(digest)
        except StoredDataUnreadable:
            stored = None
        if stored is None or not digest == stored.runbook.hash == sha256(stored.text.encode()).hexdigest():
            raise KeyError(digest)
        self._kept[digest] = stored.runbook
        if len(self._kept) > RUNBOOKS_KEPT:
            self._kept.popitem(last=False)
        return stored.runbook

    def __iter__(self) -> Iterator[str]:
        """Yield the hashes of the runbooks that were read last."""
        return iter(self._kept)

    def __len__(self) -> int:
        """Return how many those are."""
        return len(self._kept)


class Findings:
    """What was found of one run: whether there is anything of it, its events, and the laws that it breaks."""

    def __init__(self, run_id: str) -> None:
        self.run_id = run_id
        self.there = False
        self.events = 0
        self.violations: list[Violation] = []

    def complain(self, event: int, law: str, sentence: str) -> None:
        """Note that a law is broken."""
        self.violations.append(Violation(run=self.run_id, event=event, law=law, sentence=sentence))


def verify_run(store: RedisStore, run_id: str, runbooks: Mapping[str, Runbook]) -> Findings:
    """Judge what is stored of a run.

    Args:
        store: where it is.
        run_id: the run.
        runbooks: those of the store.
    """
    found = Findings(run_id)
    for _ in range(READINGS_MAX):
        reading = _Reading(store, run_id, runbooks)
        if reading.catch_up():
            found = reading.found
            break
        found = reading.found
    return found


def run_ids(store: RedisStore) -> Iterator[str]:
    """Yield the id of every run of which the store has a document or events; one may come more than once."""
    return inspection.run_ids(store)


def strays(store: RedisStore) -> Iterator[Violation]:
    """Yield what stands in an index and is no run, or is a run that does not belong there."""
    for key, members in inspection.index_entries(store):
        label = key.partition("}:label:")[2]
        documents = store.call_many(("HGET", keys.run(run_id), "doc") for run_id in members)
        for run_id, document in zip(members, documents, strict=True):
            if document is None:
                # It may have been removed between the two readings, from everywhere at once.
                if store.call("ZSCORE", key, run_id) is not None and not store.call("EXISTS", keys.run(run_id)):
                    yield Violation(run_id, 0, "index_of_nobody", f"It stands in {key}, and there is no such run.")
                continue
            if not label:
                continue
            try:
                run = decode_run(document)
            except StoredDataUnreadable:
                continue  # That is told of the run itself.
            if label not in _labels(run) and _stands(store, key, run):
                told = f"It stands in the index of the label {label}, which it does not have."
                yield Violation(run_id, run.version, "label_index", told)


def _labels(run: Run) -> set[str]:
    return {f"{name}={value}" for name, value in run.labels.items()}


def _stands(store: RedisStore, key: str, run: Run) -> bool:
    """Return whether a run stands in an index after it was read; not if it was replaced by another one of its id."""
    score = store.call("ZSCORE", key, run.id)
    snapshot = store.load(run.id)
    return score is not None and snapshot is not None and snapshot.run.created_at == run.created_at


class _Reading:
    """One reading of a run from its first event to a moment at which everything that is stored of it was seen."""

    def __init__(self, store: RedisStore, run_id: str, runbooks: Mapping[str, Runbook]) -> None:
        self.found = Findings(run_id)
        self._store = store
        self._run_id = run_id
        self._judge = Judge(runbooks, run_id)
        self._last = 0
        self._legible = True

    def catch_up(self) -> bool:
        """Judge the events, then what else is stored; False if the run was replaced by another one meanwhile."""
        while True:
            self._read_events()
            run = self._judge.run
            seen = inspect(self._store, self._run_id, run.labels.items() if run else ())
            if seen.last_number < self._last:
                return False
            if seen.last_number == self._last:
                self._compare(seen)
                return True

    def _read_events(self) -> None:
        while page := stored_events(self._store, self._run_id, self._last):
            for entry, document in page:
                self._read(entry, document)

    def _read(self, entry: str, document: bytes) -> None:
        number = number_of(entry)
        if number != self._last + 1:
            missing = f"{self._last + 1}" if number == self._last + 2 else f"{self._last + 1} to {number - 1}"
            self.found.complain(self._last + 1, "numbering", f"The event {missing} is missing.")
        elif not entry.endswith("-0"):
            self.found.complain(number, "numbering", f"Its entry has the id {entry}, not {number}-0.")
        self._last = max(number, self._last)
        self.found.events += 1
        if not self._legible:
            return
        try:
            event = decode_event(document)
        except StoredDataUnreadable as error:
            self._legible = False
            self.found.complain(number, "readable_event", str(error))
            return
        violation = self._judge.judge(event, number)
        if violation is not None:
            self.found.violations.append(violation)

    def _compare(self, seen: Inspected) -> None:
        """Compare what is stored of the run at one moment with its history."""
        found, last = self.found, self._last
        if seen.document is None:
            self._compare_absence(seen)
            return
        found.there = True
        if not last:
            found.complain(1, "document_ahead", "There is a document of the run, and no event.")
        try:
            run = decode_run(seen.document)
        except StoredDataUnreadable as error:
            found.complain(last, "readable_document", str(error))
            return
        if seen.version != str(run.version):
            told = f"The version beside the document is {seen.version!r}, and the document has {run.version}."
            found.complain(last, "version", told)
        if last and run.version > last:
            told = f"The document is at version {run.version}, and the events end with {last}."
            found.complain(last + 1, "document_ahead", told)
        elif run.version < last:
            told = f"The document is at version {run.version}, and the events go on to {last}."
            found.complain(run.version + 1, "document_behind", told)
        elif self._foldable and run != self._judge.run:
            told = f"The document is not what the events make: {_differences(run, self._judge.run)}."
            found.complain(last, "document_is_fold", told)
        self._compare_indices(seen, run)
        self._compare_leases(seen, run)

    @property
    def _foldable(self) -> bool:
        return self._legible and not self._judge.lost and self._judge.run is not None

    def _compare_absence(self, seen: Inspected) -> None:
        found = self.found
        if seen.length:
            found.there = True
            found.complain(self._last, "document_behind", "There are events of the run, and no document.")
        places = [name for name, score in (("due-index", seen.due), ("list of runs", seen.listed)) if score is not None]
        places += [f"index of the status {status}" for status in seen.statuses]
        if places:
            found.there = True
            found.complain(0, "index_of_nobody", f"It stands in the {' and the '.join(places)}, and there is no run.")

    def _compare_indices(self, seen: Inspected, run: Run) -> None:
        found, version = self.found, run.version
        if seen.listed != run.created_at:
            told = "is not in the list of runs" if seen.listed is None else "stands elsewhere in the list of runs"
            found.complain(version, "run_index", f"The run, created at {run.created_at}, {told}.")
        if seen.statuses != {run.status: run.created_at}:
            where = ", ".join(seen.statuses) or "none"
            told = f"The run is {run.status}, and the indices of a status that have it are: {where}."
            found.complain(version, "status_index", told)
        labels = self._judge.run.labels if self._judge.run is not None else {}
        for key, value in run.labels.items():
            if (key, value) in labels.items() and seen.labels.get((key, value)) != run.created_at:
                found.complain(version, "label_index", f"The index of the label {key}={value} does not have the run.")
        if run.in_flight is None:
            if seen.due is not None:
                found.complain(version, "due_index", "Nothing is owed, and the due-index has the run.")
        elif seen.due is None and _has_to_be_looked_at(run):
            found.complain(version, "due_index", "Something is owed or waits for a time, and nothing is due.")

    def _compare_leases(self, seen: Inspected, run: Run) -> None:
        live = {str(claim.token) for claim in run.in_flight.claims} if run.in_flight else set[str]()
        for token in sorted(live - seen.leases):
            self.found.complain(run.version, "lease", f"The claim with the token {token} has no lease.")
        for token in sorted(seen.leases - live):
            self.found.complain(run.version, "lease", f"There is a lease for the token {token}, which nobody holds.")


def _has_to_be_looked_at(run: Run) -> bool:
    """Return whether a reaper has to look at a run some time: a claim may be lost, a wait may end, work may be lost."""
    transition = run.in_flight
    if transition is None:
        return False
    return bool(transition.claims) or any(transition.awaiting.values()) or owes_work(run)


def _differences(stored: Run, folded: Run | None) -> str:
    """Return the names of the fields in which two runs differ, those of the transition included."""
    found: list[str] = []
    for name in Run.__struct_fields__:
        one, other = getattr(stored, name), getattr(folded, name)
        if one == other:
            continue
        if name == "transition" and one is not None and other is not None:
            found += [
                f"transition.{field}"
                for field in type(one).__struct_fields__
                if getattr(one, field) != getattr(other, field)
            ]
        else:
            found.append(name)
    return ", ".join(found)
