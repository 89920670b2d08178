"""One caller as a process: it moves runs until it is told to stop, and notes what it asks and what it is told.

It may be killed at any moment. The next one of its name reads its notes, and asks again whatever was not answered,
under the same key. So every request is answered in the end, and who judges may ask what has become of each.

Run as ``python -m tests.chaos.caller KIND NAME FOLDER SEED``; KIND is one of ``THREADS``.
"""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar, Protocol

from msgspec import Struct

from statem_dist.client.calls import NewRun
from statem_dist.client.sync import Client
from statem_dist.coordinator import Terms
from statem_dist.deadline import Deadline
from statem_dist.engine import Engine, StartRequest
from statem_dist.errors import Conflict, NotFound, StatemError, Unavailable
from statem_dist.protocol.model import Actor, Place, WayOut
from statem_dist.runbook import load
from statem_dist.settings import Settings
from tests.chaos.load import Files
from tests.chaos.promises import Promise, Promises, promises_in

THREADS = {"rest": 3, "engine": 2, "command": 1, "approver": 2}
"""How many runs a caller of each kind moves at once."""

MOVES_MAX = 9
"""After that many moves of a run the caller leads it to its end, and starts another one."""

WAIT_SECONDS = 10.0

WAYS_OUT: tuple[WayOut, ...] = ("resume", "abort", "passed", "failed")

PAUSE_SECONDS = 0.2
"""Before something is asked again that could not be answered."""


class Told(Struct, frozen=True):
    """What a caller hears of a transition; ``outcome`` is ``pending`` while it is open."""

    transition: str
    outcome: str
    version: int
    node: str


class Ways(Protocol):
    """One way to reach the system. Every method may raise ``Unavailable``."""

    keyed: ClassVar[bool]
    """Whether a request that is repeated under its key is known for what it is."""

    def start(self, run_id: str) -> None:
        """Start a run, unless it is there."""

    def standing(self, run_id: str) -> tuple[str, str]:
        """Return the node that a run stands on, and its open transition; empty if there is none."""

    def goto(self, run_id: str, target: str, key: str) -> Told:
        """Ask for a transition, and wait for a while."""

    def look(self, run_id: str, transition: str) -> Told:
        """Return what has become of a transition, and wait for a while if it is open."""


class Rest:
    """By the REST service, with the client of this project."""

    keyed: ClassVar[bool] = True

    def __init__(self, files: Files) -> None:
        self._client = Client(patience_seconds=3.0)
        self._text = files.runbook.read_text()
        self._workspace = str(files.workspace)

    def start(self, run_id: str) -> None:
        """Start a run; see ``Ways``."""
        try:
            self._client.run(run_id)
        except NotFound:
            new = NewRun(text=self._text, workspace=self._workspace, run_id=run_id)
            self._client.start(new, wait=WAIT_SECONDS, key=f"start-{run_id}")

    def standing(self, run_id: str) -> tuple[str, str]:
        """Return where a run stands; see ``Ways``."""
        view = self._client.run(run_id)
        return view.current, view.in_flight.transition if view.in_flight else ""

    def goto(self, run_id: str, target: str, key: str) -> Told:
        """Ask for a transition; see ``Ways``."""
        view = self._client.goto(run_id, target, on_manual="wait", wait=WAIT_SECONDS, key=key)
        return Told(view.transition, view.outcome, view.version, view.current)

    def look(self, run_id: str, transition: str) -> Told:
        """Return what has become of a transition; see ``Ways``."""
        view = self._client.wait(run_id, transition, WAIT_SECONDS)
        return Told(view.transition, view.outcome, view.version, view.current)


class Library:
    """By the verbs of the engine, straight on the store."""

    keyed: ClassVar[bool] = True

    def __init__(self, files: Files) -> None:
        settings = Settings.from_environment(os.environ)
        assert settings.redis_url is not None
        self._engine = Engine(settings, settings.redis_url, inline=False)
        self._files = files
        self._by = Actor(id="library")

    def start(self, run_id: str) -> None:
        """Start a run; see ``Ways``."""
        if self._engine.find(run_id) is not None:
            return
        path = self._files.runbook
        runbook = self._engine.register(load(path), str(path))
        place = Place(workspace=str(self._files.workspace), state_dir=os.environ["STATEM_STATE_DIR"])
        request = StartRequest(runbook=runbook, run_id=run_id, place=place, by=self._by)
        try:
            self._engine.create(request, Deadline(WAIT_SECONDS), Terms(request=f"start-{run_id}", fingerprint="start"))
        except Conflict:
            # The first copy of this request was carried out after all.
            self._engine.run(run_id)

    def standing(self, run_id: str) -> tuple[str, str]:
        """Return where a run stands; see ``Ways``."""
        run = self._engine.run(run_id)
        return run.node, run.in_flight.id if run.in_flight else ""

    def goto(self, run_id: str, target: str, key: str) -> Told:
        """Ask for a transition; see ``Ways``."""
        terms = Terms(request=key, fingerprint=target)
        settled = self._engine.answered(run_id, terms) or self._engine.goto(
            run_id, target, self._by, on_manual="wait", deadline=Deadline(WAIT_SECONDS), terms=terms
        )
        run, transition = settled.run, settled.transition
        return Told(transition.id, transition.outcome or "pending", run.version, run.node)

    def look(self, run_id: str, transition: str) -> Told:
        """Return what has become of a transition; see ``Ways``."""
        settled = self._engine.look(run_id, transition)
        if settled.transition.open:
            time.sleep(PAUSE_SECONDS)
        run, found = settled.run, settled.transition
        return Told(found.id, found.outcome or "pending", run.version, run.node)


class CommandLine:
    """By commands, as a person at a shell has them; a request has no name that a repetition would be known by."""

    keyed: ClassVar[bool] = False

    def __init__(self, files: Files) -> None:
        self._files = files

    def start(self, run_id: str) -> None:
        """Start a run; see ``Ways``."""
        self._run("start", str(self._files.runbook), "--run-id", run_id, "--workspace", str(self._files.workspace))

    def standing(self, run_id: str) -> tuple[str, str]:
        """Return where a run stands; see ``Ways``."""
        document = self._run("cur", "--run-id", run_id)
        return str(document["current"]), str((document.get("in_flight") or {"transition": ""})["transition"])

    def goto(self, run_id: str, target: str, key: str) -> Told:
        """Ask for a transition; see ``Ways``."""
        document = self._run(
            "goto",
            target,
            "--run-id",
            run_id,
            "--on-manual",
            "wait",
            "--timeout",
            str(WAIT_SECONDS),
            accept=(0, 1, 2, 7),
        )
        found = document.get("details") or document
        return Told(found["transition"], found["outcome"], found.get("version", 0), found.get("current", ""))

    def look(self, run_id: str, transition: str) -> Told:
        """Return what has become of a transition; see ``Ways``."""
        time.sleep(PAUSE_SECONDS)
        events = self._run("history", "--raw", "--run-id", run_id)["events"]
        for event in events:
            if event["event"] == "transition_settled" and event["transition"] == transition:
                return Told(transition, event["outcome"], event["number"], "")
        return Told(transition, "pending", 0, "")

    def _run(self, *words: str, accept: tuple[int, ...] = (0,)) -> dict[str, Any]:
        done = subprocess.run(
            [sys.executable, "-m", "statem_dist.cli.main", *words, "--json"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        if done.returncode == 8:
            raise Unavailable(done.stdout)
        document = json.loads(done.stdout) if done.stdout else {}
        # A command that fails names its transition, if it has come to one.
        if done.returncode not in accept or not (document.get("ok") or "transition" in document.get("details", {})):
            problem = f"{words}: exit {done.returncode}\n{done.stdout}\n{done.stderr}"
            raise Conflict(problem) if done.returncode == 5 else StatemError(problem)
        return dict(document)


class Mover:
    """Moves runs one after another, in one thread.

    Args:
        name: the first part of the names of its runs.
        ways: how the system is reached.
        files: where to stop, and where the runbook is.
        promises: where it notes what it asks and hears.
        known: what those of its name have noted before.
        seed: decides where its runs go.
    """

    def __init__(
        self, name: str, ways: Ways, files: Files, promises: Promises, known: list[Promise], seed: int
    ) -> None:
        self._name = name
        self._ways = ways
        self._files = files
        self._promises = promises
        self._draw = random.Random(f"{seed}/{name}/{len(known)}")
        self._asked: list[Promise] = [each for each in known if each.what == "asked"]
        self._answered = {each.key for each in known if each.what in ("told", "refused")}
        self._accepted = {each.key: each.transition for each in known if each.what == "accepted"}

    def work(self) -> None:
        """Move runs until told to stop; then bring the last request to its end."""
        latest = self._asked[-1] if self._asked else None
        run_id = latest.run if latest else f"{self._name}-1"
        if latest is not None and latest.key not in self._answered:
            if self._ways.keyed or latest.key in self._accepted:
                self._bring_to_its_end(latest)
            else:
                self._wait_for_rest(run_id)
        while not self._files.stop.exists():
            self._insist(lambda: self._ways.start(run_id))  # noqa: B023
            node = self._wait_for_rest(run_id)
            if node == "end":
                run_id = f"{self._name}-{int(run_id.rpartition('-')[2]) + 1}"
                continue
            moves = sum(each.run == run_id for each in self._asked)
            ways_out = {"a": ["b"], "b": ["c"], "c": ["d"], "d": ["a", "end"] if moves < MOVES_MAX else ["end"]}[node]
            asked = Promise("asked", run_id, f"{run_id}/{moves + 1}", target=self._draw.choice(ways_out))
            self._promises.note(asked)
            self._asked.append(asked)
            self._bring_to_its_end(asked)

    def _bring_to_its_end(self, asked: Promise) -> None:
        """Ask, again and again if need be, and follow what it leads to until that has an outcome."""
        run_id, key = asked.run, asked.key
        transition = self._accepted.get(key, "")
        while True:
            try:
                if transition:
                    told = self._ways.look(run_id, transition)
                else:
                    told = self._ways.goto(run_id, asked.target, key)
                    self._promises.note(Promise("accepted", run_id, key, transition=told.transition))
                    transition = told.transition
            except Unavailable:
                if not transition and not self._ways.keyed:
                    # Whether it was heard is not known, and asking again might be a second request.
                    self._wait_for_rest(run_id)
                    return
                time.sleep(PAUSE_SECONDS)
                continue
            except Conflict as error:
                self._promises.note(Promise("refused", run_id, key, outcome=str(error)))
                self._wait_for_rest(run_id)
                return
            if told.outcome != "pending":
                self._promises.note(
                    Promise(
                        "told",
                        run_id,
                        key,
                        transition=told.transition,
                        outcome=told.outcome,
                        version=told.version,
                        node=told.node,
                    )
                )
                return
            time.sleep(PAUSE_SECONDS)

    def _wait_for_rest(self, run_id: str) -> str:
        """Wait until no transition of a run is open, and return the node that it stands on then."""
        while True:
            try:
                node, transition = self._ways.standing(run_id)
            except Unavailable:
                transition = "unknown"
            if not transition:
                return node
            time.sleep(PAUSE_SECONDS)

    def _insist(self, action: Callable[[], None]) -> None:
        while True:
            try:
                action()
            except Unavailable:
                time.sleep(PAUSE_SECONDS)
            else:
                return


class Approver:
    """Decides whatever waits for a decision, at the same time as others who do so."""

    def __init__(self, name: str, files: Files, promises: Promises, seed: int) -> None:
        self._name = name
        self._files = files
        self._promises = promises
        self._draw = random.Random(f"{seed}/{name}")
        self._client = Client(patience_seconds=1.0)

    def work(self) -> None:
        """Decide until the process is ended: transitions wait for it to their end."""
        while True:
            time.sleep(PAUSE_SECONDS)
            try:
                waiting = self._client.approvals()
                unsure = list(self._client.runs(status="outcome_unknown"))
            except Unavailable:
                continue
            for each in waiting:
                self._decide(each.id, each.run_id, approved=self._draw.random() < 0.8)
            for run in unsure:
                if run.in_flight is not None:
                    self._recover(run.run_id, run.in_flight.transition)

    def _decide(self, decision: str, run_id: str, *, approved: bool) -> None:
        outcome = "approved" if approved else "rejected"
        self._promises.note(Promise("asked", run_id, decision, outcome=outcome, by=self._name))
        try:
            self._client.decide(decision, approved=approved, comment=self._name)
        except (Conflict, NotFound, Unavailable):
            # Another one was faster, or it is not known; who was told so has decided nothing that others rely on.
            return
        self._promises.note(Promise("decided", run_id, decision, outcome=outcome, by=self._name))

    def _recover(self, run_id: str, transition: str) -> None:
        """Say how a transition goes on that stands still because nobody knows what its hook did."""
        way = self._draw.choice(WAYS_OUT)
        try:
            self._client.recover(run_id, way=way, reason=self._name, transition=transition)
        except (Conflict, NotFound, Unavailable):
            return
        self._promises.note(
            Promise("recovered", run_id, f"{run_id}/{transition}", transition=transition, outcome=way, by=self._name)
        )


def main(kind: str, name: str, folder: str, seed: int) -> None:
    """Run one caller to its end."""
    files = Files(Path(folder))
    known = list(promises_in(files.promises(name)))
    promises = Promises(files.promises(name))
    workers: list[Callable[[], None]] = []
    kinds: dict[str, Callable[[Files], Ways]] = {"rest": Rest, "engine": Library, "command": CommandLine}
    ways = kinds.get(kind)
    for number in range(THREADS[kind]):
        thread = f"{name}-{number}"
        if ways is None:
            workers.append(Approver(thread, files, promises, seed).work)
        else:
            own = [each for each in known if each.run.rpartition("-")[0] == thread]
            workers.append(Mover(thread, ways(files), files, promises, own, seed).work)
    failures: list[BaseException] = []

    def guarded(work: Callable[[], None]) -> None:
        try:
            work()
        except BaseException as error:
            failures.append(error)
            raise

    threads = [threading.Thread(target=guarded, args=(work,)) for work in workers]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    sys.exit(1 if failures else 0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
