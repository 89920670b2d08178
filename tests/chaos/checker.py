"""What must be true when the faults are over, asked of everything that knows: store, ledger, callers, processes.

Nothing here uses the product's own idea of what is right, but for the reading of stored values. Each law that is
broken is a sentence that names the run, the request or the process.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path

from statem_dist.laws import Judge
from statem_dist.protocol.events import (
    CheckSettled,
    Event,
    NodeEntered,
    Recovered,
    RepairBegun,
    TransitionOpened,
    TransitionSettled,
    WorkClaimed,
)
from statem_dist.protocol.graph import Command, LlmReview, Runbook
from statem_dist.protocol.model import Run
from statem_dist.store import keys
from statem_dist.store.redis_store import RedisStore
from statem_dist.sweep.ledger import Ledger
from statem_dist.sweep.shared_limits import SharedLimits
from tests.chaos.load import LIMIT, NATURES, Files, Line
from tests.chaos.promises import Promise, promises_in
from tests.support.ledgers import audit

OVERLAP_SECONDS = 2.0
"""A command that its worker has lost goes on for no longer beside the one that replaces it. It should not at all; this
is what a machine may need that has more to do than it can."""

KNOWN_KEYS = (
    r"statem:\{\d+\}:(run|events):(?P<run>[^:]+)",
    r"statem:\{\d+\}:(log|dynamic|stops|receipt):(?P<of>[^:]+):.*",
    r"statem:\{\d+\}:(feed|runs|status:\w+|label:.*)",
    r"statem:(runbook:\w+|registered|named|active|workers|worker:.*|tokens|tokens-in-use|token:.*|leader:\w+|retention|store|losses)",
    r"statem:(request|answer):.*",
    r"statem:(sweeps|sweeps-open|sweeps-served|sweep-of:\w+)",
    r"statem:\{(swp|limit):[^}]+\}:.*",
    r"_kombu\.binding(\.|_permanent\.|_deadlines$).*",
)
"""Every key that may be there when nothing is owed: no due-index, no queue, no result of a task."""


class History:
    """The events of one run, and what they say when they are read plainly."""

    def __init__(self, run: Run, events: list[tuple[int, Event]]) -> None:
        self.run = run
        self.events = events
        self.opened = {event.transition: event for _, event in events if isinstance(event, TransitionOpened)}
        self.planned = {
            (event.transition, planned.id): planned
            for _, event in events
            if isinstance(event, TransitionOpened | RepairBegun)
            for planned in event.plan
        }
        self.settled: dict[str, list[tuple[int, TransitionSettled]]] = defaultdict(list)
        self.entered: dict[str, list[tuple[int, NodeEntered]]] = defaultdict(list)
        self.recovered: dict[str, list[Recovered]] = defaultdict(list)
        for number, event in events:
            if isinstance(event, Recovered):
                self.recovered[event.transition].append(event)
            elif isinstance(event, TransitionSettled):
                self.settled[event.transition].append((number, event))
            elif isinstance(event, NodeEntered):
                self.entered[event.transition].append((number, event))


class Checker:
    """Judges one round; ``broken`` lists what was found.

    Args:
        store: the store, past every proxy.
        files: the ledger, and what callers were promised.
        callers: the names of the callers.
        frozen: when workers were stopped, in seconds since the epoch.
    """

    def __init__(self, store: RedisStore, files: Files, callers: list[str], frozen: list[tuple[float, float]]) -> None:
        self.broken: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self.reasons: Counter[str] = Counter()
        self._store = store
        self._files = files
        self._callers = callers
        self._frozen = frozen
        self.histories = {run.id: History(run, store.events(run.id)) for run in self._runs()}
        self.promises = {caller: list(promises_in(files.promises(caller))) for caller in callers}
        self.lines = list(files.lines())
        for history in self.histories.values():
            for entries in history.settled.values():
                for _, event in entries:
                    self.outcomes[event.outcome] += 1
                    if event.reason:
                        self.reasons[event.reason] += 1

    def check(self, sweep_id: str, trials: int) -> None:
        """Ask everything."""
        laws: list[Callable[[], None]] = [
            self._check_histories,
            self._check_promises,
            self._check_decisions,
            self._check_recoveries,
            self._check_ledger,
            self._check_repairs,
            self._check_recorded_work,
            lambda: self._check_sweep(sweep_id, trials),
            self._check_leftovers,
        ]
        for law in laws:
            try:
                law()
            except Exception as error:
                self.broken.append(f"it could not be judged: {type(error).__name__}: {error}")

    # --- what is stored --------------------------------------------------------------------------------------

    def _runs(self) -> Iterator[Run]:
        for key in self._keys("statem:{*}:run:*"):
            snapshot = self._store.load(key.split(":run:", 1)[1])
            assert snapshot is not None
            yield snapshot.run

    def _keys(self, pattern: str = "*") -> list[str]:
        return [bytes(key).decode() for key in self._store.call("KEYS", pattern)]

    def _check_histories(self) -> None:
        """Every history is lawful, ends where the run stands, and has nothing open."""
        runbooks: dict[str, Runbook] = {}
        for key in self._keys("statem:runbook:*"):
            stored = self._store.runbook(key.removeprefix("statem:runbook:"))
            assert stored is not None
            runbooks[stored.runbook.hash] = stored.runbook
        for run_id, history in self.histories.items():
            judge = Judge(runbooks, run_id)
            for _, event in history.events:
                if (violation := judge.judge(event)) is not None:
                    self.broken.append(str(violation))
            if judge.run != history.run:
                self.broken.append(f"run {run_id} is not what its events make of it")
            numbers = [number for number, _ in history.events]
            if numbers != list(range(1, history.run.version + 1)):
                self.broken.append(f"run {run_id} is at version {history.run.version}, but its events are {numbers}")
            if history.run.in_flight is not None:
                self.broken.append(f"run {run_id}: transition {history.run.in_flight.id} was accepted and has no end")
            for transition in history.opened:
                if len(history.settled[transition]) > 1 or len(history.entered[transition]) > 1:
                    self.broken.append(f"run {run_id}: transition {transition} has ended or committed twice")

    def _check_leftovers(self) -> None:
        """No key is there that nothing explains, no lease, no place of a limit, no message."""
        runs = streams = receipts = 0
        for key in self._keys():
            found = next((match for known in KNOWN_KEYS if (match := re.fullmatch(known, key))), None)
            if found is None:
                self.broken.append(f"the key {key} is left over: {self._shown(key)}")
                continue
            of = found.groupdict().get("run") or found.groupdict().get("of")
            if of is not None and of not in self.histories:
                self.broken.append(f"the key {key} belongs to no run")
            runs += ":run:" in key
            streams += ":events:" in key
            receipts += ":receipt:" in key
        accepted = sum(
            len({each.key for each in self.promises[caller] if each.what == "accepted"}) for caller in self._callers
        )
        if runs != streams or runs != len(self.histories):
            self.broken.append(f"{runs} runs, {streams} streams of events")
        requests = accepted + runs + sum(each.what == "asked" for each in self.promises["approver"])
        if receipts > requests:
            self.broken.append(f"{receipts} receipts for {requests} requests")
        for run_id in self.histories:
            fields = [bytes(field).decode() for field in self._store.call("HKEYS", keys.run(run_id))]
            for field in fields:
                if field.startswith("lease:"):
                    self.broken.append(f"run {run_id} has kept {field}")
        if held := SharedLimits(self._store).usage(LIMIT).in_flight:
            self.broken.append(f"{held} places of the limit {LIMIT} are still taken")

    def _shown(self, key: str) -> str:
        kind = bytes(self._store.call("TYPE", key)).decode()
        reply = {
            "list": lambda: self._store.call("LRANGE", key, 0, 2),
            "zset": lambda: self._store.call("ZRANGE", key, 0, 5, "WITHSCORES"),
        }.get(kind, lambda: kind)()
        return repr(reply)[:300]

    # --- what was promised -----------------------------------------------------------------------------------

    def _check_promises(self) -> None:
        """Each accepted request is in the history once, with the outcome that its caller was told; nothing else is."""
        for caller in self._callers:
            by_run: dict[str, list[Promise]] = defaultdict(list)
            for promise in self.promises[caller]:
                by_run[promise.run].append(promise)
            if caller == "approver":
                continue
            for run_id, promises in by_run.items():
                history = self.histories.get(run_id)
                if history is None:
                    self.broken.append(f"run {run_id} was started for {caller} and is gone")
                    continue
                self._check_run(history, promises, keyed=caller != "commands")

    def _check_run(self, history: History, promises: list[Promise], *, keyed: bool) -> None:
        run_id = history.run.id
        transitions: dict[str, str] = {}
        answered = {each.key for each in promises if each.what in ("told", "refused")}
        for promise in promises:
            if promise.what == "asked" and keyed and promise.key not in answered:
                self.broken.append(f"run {run_id}: the request {promise.key} was never answered")
            if promise.what in ("accepted", "told"):
                first = transitions.setdefault(promise.key, promise.transition)
                if first != promise.transition:
                    self.broken.append(
                        f"run {run_id}: the request {promise.key} has led to {first} and to {promise.transition}"
                    )
                if promise.transition not in history.opened:
                    self.broken.append(
                        f"run {run_id}: {promise.transition} was accepted for {promise.key} and is not in the history"
                    )
            if promise.what == "told":
                self._check_told(history, promise)
        doubled = [key for key, count in Counter(transitions.values()).items() if count > 1]
        if doubled:
            self.broken.append(f"run {run_id}: {doubled} stand for several requests each")
        opened = [each for each in history.opened.values() if each.kind == "goto"]
        asked = len({each.key for each in promises if each.what == "asked"})
        most = len(transitions) if keyed else asked
        if not len(transitions) <= len(opened) <= most:
            self.broken.append(
                f"run {run_id}: {len(opened)} transitions for {len(transitions)} accepted requests of {asked}: "
                f"{sorted({each.transition for each in opened} - set(transitions.values()))} were asked for by nobody"
            )

    def _check_told(self, history: History, promise: Promise) -> None:
        run_id, transition = history.run.id, promise.transition
        settled = [event.outcome for _, event in history.settled[transition]]
        if settled != [promise.outcome]:
            self.broken.append(
                f"run {run_id}: {transition} was told to be {promise.outcome}, and the history says {settled}"
            )
        if promise.outcome == "committed" and not history.entered[transition]:
            self.broken.append(f"run {run_id}: the commit of {transition} was promised and is missing")
        if promise.version > history.run.version:
            self.broken.append(f"run {run_id} was seen at {promise.version} and is at {history.run.version}")

    def _check_decisions(self) -> None:
        """What somebody was told to have decided is what the transition went on with."""
        for promise in self.promises["approver"]:
            if promise.what != "decided":
                continue
            run_id, transition, check = promise.key.split("/", 2)
            history = self.histories[run_id]
            found = [
                event.result.outcome.reason
                for _, event in history.events
                if isinstance(event, CheckSettled) and (event.transition, event.check) == (transition, check)
            ]
            if found != [promise.outcome]:
                self.broken.append(f"{promise.key} was {promise.outcome} by {promise.by}, and the history says {found}")

    def _check_recoveries(self) -> None:
        """The way out of an unknown outcome that somebody was told to have chosen is in the history."""
        for promise in self.promises["approver"]:
            if promise.what != "recovered":
                continue
            ways = [each.way for each in self.histories[promise.run].recovered[promise.transition]]
            if promise.outcome not in ways:
                self.broken.append(f"{promise.key} was recovered by {promise.outcome}, and the history says {ways}")

    # --- what was done ---------------------------------------------------------------------------------------

    def _check_ledger(self) -> None:
        """Hooks begin once, what may be repeated keeps its key, and nobody works beside whoever has replaced him."""
        by_key: dict[tuple[str, str, str], list[Line]] = defaultdict(list)
        keys_of: dict[tuple[str, str, str], set[str]] = defaultdict(set)
        for line in self.lines:
            by_key[line.run, line.key, line.name].append(line)
            if line.name != "agent":
                _, transition, check = line.key.split(".", 2)
                keys_of[line.run, transition, check].add(line.key)
        for (run_id, transition, check), found in keys_of.items():
            if len(found) > 1:
                self.broken.append(f"run {run_id}: {check} of {transition} was executed under the keys {sorted(found)}")
        for (run_id, key, name), lines in by_key.items():
            begun = [line for line in lines if line.what == "begun"]
            if NATURES.get(name) == "hook" and len(begun) > 1 + self._resumed(run_id, key):
                self.broken.append(f"run {run_id}: the hook {name} was begun {len(begun)} times under {key}")
            tokens = [int(line.token) for line in begun if line.token != "-"]
            if NATURES.get(name) != "check" and tokens != sorted(set(tokens)):
                self.broken.append(f"run {run_id}: {name} was begun under the tokens {tokens}, which do not rise")
            self._check_overlaps(run_id, name, lines)

    def _resumed(self, run_id: str, key: str) -> int:
        """Return how often an operator had a check executed again."""
        _, transition, check = key.split(".", 2)
        recovered = self.histories[run_id].recovered[transition]
        return sum(each.way == "resume" and check in each.checks for each in recovered)

    def _check_repairs(self) -> None:
        """A hook that was begun is repaired where its transition has not committed, and nowhere else."""
        done: dict[tuple[str, str], set[str]] = defaultdict(set)
        for line in self.lines:
            if line.name in ("edge-hook", "undo"):
                done[line.run, line.key.split(".", 2)[1]].add(f"{line.name} {line.what}")
        for (run_id, transition), what in done.items():
            for _, event in self.histories[run_id].settled[transition]:
                if event.outcome == "committed" and "undo begun" in what:
                    self.broken.append(f"run {run_id}: {transition} has committed, and its hook was repaired")
                due = event.outcome != "committed" and event.reason != "repair_failed"
                if due and "edge-hook begun" in what and "undo ended" not in what:
                    self.broken.append(f"run {run_id}: {transition} is {event.outcome}, and its hook was not repaired")

    def _check_overlaps(self, run_id: str, name: str, lines: list[Line]) -> None:
        begun = {line.pid: line.at for line in lines if line.what == "begun"}
        over = {line.pid: line.at for line in lines if line.what in ("ended", "failed")}
        for pid, end in over.items():
            later = [at for other, at in begun.items() if other != pid and at > begun[pid]]
            if not later or end - min(later) <= OVERLAP_SECONDS:
                continue
            if any(since < end and until > begun[pid] for since, until in self._frozen):
                # Its worker could not end it: it was stopped, and its command was not.
                continue
            self.broken.append(
                f"run {run_id}: {name} went on for {end - min(later):.1f} s after another execution had begun"
            )

    def _check_recorded_work(self) -> None:
        """What is recorded as passed was done, under a claim of that transition."""
        ended = Counter((line.run, line.key) for line in self.lines if line.what == "ended")
        tokens: dict[tuple[str, str], set[str]] = defaultdict(set)
        for line in self.lines:
            tokens[line.run, line.key].add(line.token)
        for run_id, history in self.histories.items():
            entries: dict[str, set[str]] = defaultdict(set)
            for line in self.lines:
                if line.run == run_id and line.name != "agent":
                    entry, _, rest = line.key.partition(".")
                    entries[rest].add(entry)
            claims = {event.token for _, event in history.events if isinstance(event, WorkClaimed)}
            for _, event in history.events:
                if not isinstance(event, CheckSettled) or not event.result.passed:
                    continue
                planned = history.planned[event.transition, event.check]
                if not isinstance(planned.check.do, Command | LlmReview) or event.result.outcome.reason != "passed":
                    continue
                rest = f"{event.transition}.{event.check}"
                if not any(ended[run_id, f"{entry}.{rest}"] for entry in entries[rest]):
                    self.broken.append(f"run {run_id}: {rest} is recorded as passed, and was never done")
                for entry in entries[rest]:
                    strange = {int(token) for token in tokens[run_id, f"{entry}.{rest}"] - {"-"}} - claims
                    if strange:
                        self.broken.append(f"run {run_id}: {rest} was executed under {strange}, which nobody claimed")

    def _check_sweep(self, sweep_id: str, trials: int) -> None:
        """Each trial has one end, which is the right one; the counts say so; no attempt is there twice."""
        ledger = Ledger(self._store)
        sweep = ledger.require(sweep_id)
        found = list(ledger.trials(sweep_id))
        if sum(sweep.counts.values()) != trials or len(found) != trials:
            self.broken.append(f"the sweep has {len(found)} trials, counts {sweep.counts}, and was to have {trials}")
        for trial in found:
            number = trial.planned.number
            if trial.state != "passed":
                last = trial.last
                why = f"{last.reason}: {last.detail}" if last else "never begun"
                self.broken.append(f"trial {number} of the sweep is {trial.state} ({why}) where it must have passed")
            attempts = [attempt.attempt for attempt in trial.attempts]
            if attempts != list(range(1, len(attempts) + 1)):
                self.broken.append(f"trial {number} of the sweep has the attempts {attempts}")
            if any(not attempt.retried for attempt in trial.attempts[:-1]):
                self.broken.append(f"trial {number} of the sweep was tried again after its end")
            for attempt in trial.attempts:
                if attempt.run_id not in self.histories and attempt.outcome == "passed":
                    self.broken.append(f"trial {number} of the sweep has no run {attempt.run_id}")
        try:
            audit(self._store, sweep_id)
        except AssertionError as error:
            self.broken.append(f"the ledger of the sweep does not add up: {error}")


EXPECTED = (
    # What Celery says of a child of its pool that was killed.
    "Task handler raised error: WorkerLostError",
    # Celery's pool ends its worker if it loses the broker while a child has just died; whoever keeps workers running
    # starts another one.
    "Unrecoverable error: StopIteration()",
    "Unrecoverable error: WorkerLostError('Could not start worker processes')",
    # Kombu tries again by itself.
    "maybe_refresh_binding_expiry: Redis error, will retry",
)
"""What stands in the first line of what libraries say with a traceback, and is nobody's mistake here."""

RECORD = re.compile(r"^\[?\d{4}-\d\d-\d\d \d\d:\d\d:\d\d", re.MULTILINE)
"""Where the next record of a log begins."""


def unexpected_lines(logs: list[Path]) -> list[str]:
    """Return the records of logs that have a traceback, each with its first line and its last."""
    found = []
    for path in logs:
        text = path.read_text(errors="replace")
        begins = [0, *(match.start() for match in RECORD.finditer(text)), len(text)]
        for since, until in pairwise(begins):
            record = text[since:until].strip()
            lines = record.splitlines()
            if "Traceback (most" in record and not any(each in lines[0] for each in EXPECTED):
                found.append(f"{path.name}: {lines[0]} ... {lines[-1]}"[:400])
    return found
