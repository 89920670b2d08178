"""What people do with sweeps: submit, resume, pause, cancel, extend, retry, remove.

A verb changes what is stored and returns; workers do the rest. What a verb does depends on the status of the sweep
alone:

=========  ===========  =========  =========  =========  ==========  =========
status     submit       resume     pause      cancel     extend      retry
=========  ===========  =========  =========  =========  ==========  =========
planning   goes on      goes on    refused    cancelled  refused     refused
active     attaches     attaches   paused     cancelled  adds        repeats
paused     attaches     active     unchanged  cancelled  adds        repeats
stopped    a new one    active     refused    cancelled  adds        active
cancelled  a new one    refused    refused    unchanged  refused     active
finished   a new one    unchanged  refused    refused    active      active
=========  ===========  =========  =========  =========  ==========  =========

``submit`` of the same content under the same id attaches in every status. *Attaches* and *unchanged* change nothing;
*goes on* stores the trials that are missing and begins; *adds* and *repeats* make trials wait and leave the status as
it is; *active* does that too, and lets the sweep go on. ``retry`` of a cancelled sweep is refused while a worker still
has one of its trials. ``remove`` is refused while the sweep is active or a worker has a trial, unless it is forced.

Per trial, ``retry`` makes those wait again that have ended as asked for: ``failed`` means failed, stuck and timeout,
``errored`` means error, ``unscored`` means error and cancelled; a number alone means whatever it has ended as. Trials
that wait, are under way, or were withdrawn from the sweep stay as they are. Earlier attempts are kept.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from hashlib import sha256
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from statem_dist.deadline import NEVER, Deadline
from statem_dist.errors import Conflict, Invalid, NotFound
from statem_dist.run_ids import new_run_id, require_name
from statem_dist.sweep.ledger import Ledger, sweep_not_found
from statem_dist.sweep.model import (
    OUTCOMES,
    UNSCORED,
    Definition,
    Outcome,
    Planned,
    Selection,
    State,
    Status,
    Sweep,
    Trial,
)

if TYPE_CHECKING:
    from statem_dist.protocol.graph import Runbook
    from statem_dist.runbook import Parsed
    from statem_dist.sweep.spec import Loaded

Which: TypeAlias = Literal["failed", "errored", "unscored"]

OUTCOMES_OF: Mapping[Which, tuple[Outcome, ...]] = {
    "failed": ("failed", "stuck", "timeout"),
    "errored": ("error",),
    "unscored": UNSCORED,
}
"""The outcomes that ``retry`` means by a word."""

EVERYTHING = Selection()

HINTS_MAX = 64
"""Messages that wake slots, sent by one verb; keepers send more where there are more slots."""

LOOK_SECONDS = 0.2
"""How often a wait looks at the sweep."""

CANDIDATES_MAX = 10
"""Sweeps that are named where the beginning of an id fits several."""

REMOVAL_SECONDS = 15.0
"""How long a forced removal lets workers end the trials that they have."""


class Registrar(Protocol):
    """Keeps runbooks in the store, and knows its time."""

    def register(self, parsed: Parsed, source: str) -> Runbook:
        """Keep a runbook in the store under its hash."""

    def clock(self) -> int:
        """Return the store's time in ms since the epoch."""


class Waker(Protocol):
    """Wakes the slots of workers."""

    def send(self, queue: str, count: int = 1) -> None:
        """Send so many messages to a queue."""


class Submitted(Struct, frozen=True):
    """A sweep that was submitted. ``fresh`` says that it was made now; otherwise it was there and goes on."""

    sweep: Sweep
    fresh: bool


class Resumed(Struct, frozen=True):
    """A sweep that was resumed.

    ``before`` is its status until then, ``differences`` says what its file has changed, one sentence each; ``added``
    and ``withdrawn`` count trials.
    """

    sweep: Sweep
    before: Status
    differences: tuple[str, ...] = ()
    added: int = 0
    withdrawn: int = 0


class Repeated(Struct, frozen=True):
    """Trials that a verb made wait: how many of each outcome they had; ``left`` were asked for by number in vain."""

    sweep: Sweep
    outcomes: dict[State, int]
    left: tuple[int, ...] = ()

    @property
    def total(self) -> int:
        """How many wait again."""
        return sum(self.outcomes.values())


class SweepDesk:
    """The verbs on the sweeps of one store. Every method may raise ``Unavailable``.

    Args:
        ledger: where sweeps are kept.
        registrar: keeps their runbooks.
        waker: wakes workers.
        state_dir: below it are the folders of sweeps.
    """

    def __init__(self, ledger: Ledger, registrar: Registrar, waker: Waker, state_dir: Path) -> None:
        self._ledger = ledger
        self._registrar = registrar
        self._waker = waker
        self._state_dir = state_dir

    # --- finding ---------------------------------------------------------------------------------------------------

    def find(self, wanted: str) -> str:
        """Return the id of a sweep, given it or the beginning of it.

        Raises:
            NotFound: none begins like that, or several do.
        """
        ids = self._ledger.ids()
        found = [wanted] if wanted in ids else [each for each in ids if wanted and each.startswith(wanted)]
        if len(found) == 1:
            return found[0]
        if not found:
            raise sweep_not_found(wanted)
        named = ", ".join(found[:CANDIDATES_MAX])
        more = f" and {len(found) - CANDIDATES_MAX} more" if len(found) > CANDIDATES_MAX else ""
        raise NotFound(
            f"{len(found)} sweeps begin with {wanted!r}.",
            hint=f"Say which one: {named}{more}.",
            details={"sweep": wanted, "candidates": found},
        )

    def sweep(self, sweep_id: str) -> Sweep:
        """Return a sweep as it is now.

        Raises:
            NotFound: there is none of that id.
        """
        return self._ledger.require(sweep_id)

    def folder(self, sweep_id: str) -> Path:
        """Return where the folders of a sweep's attempts are on this host."""
        return self._state_dir / "sweeps" / sweep_id

    # --- submitting ------------------------------------------------------------------------------------------------

    def submit(
        self,
        loaded: Loaded,
        *,
        by: str,
        sweep_id: str | None = None,
        selection: Selection = EVERYTHING,
        new: bool = False,
        concurrency: int | None = None,
    ) -> Submitted:
        """Store a sweep and let it begin, or attach to the one of the same content that has not ended.

        It may be repeated: whoever is interrupted half-way, or never hears the answer, submits again and gets the same
        sweep with all its trials.

        Args:
            loaded: the sweep file.
            by: who submits.
            sweep_id: the id that it is to have; None for a new one, or that of the sweep to attach to.
            selection: which of its trials are wanted; a part of the content.
            new: make another sweep although there is one of the same content.
            concurrency: bounds the trials that run at once, in place of what the file says; no part of the content.

        Raises:
            Invalid: no trial is selected, or the id cannot be used.
            Conflict: the id stands for a sweep with another content; ``details["differences"]`` says which.
        """
        definition = replace(loaded.definition, selection=selection)
        trials = chosen(loaded, selection)
        content = content_of(loaded, selection)
        if sweep_id is not None:
            require_name(sweep_id, "The sweep id")
            found = self._ledger.sweep(sweep_id)
            if found is not None and self._ledger.fingerprint(sweep_id) != content:
                raise self._refused(
                    found, loaded, selection, f"The sweep {sweep_id} was submitted with another content"
                )
        else:
            sweep_id, found = self._reserved(content, definition.name, new=new)
        definition = _bounded(definition, concurrency)
        if found is None:
            self._registrar.register(loaded.parsed, definition.runbook_path)
            self._ledger.create(sweep_id, definition, content, by)
        elif found.status != "planning":
            self._taken_over(found, definition, content)
        if found is None or found.status == "planning":
            self._plan(sweep_id, trials)
        return Submitted(self._woken(sweep_id), fresh=found is None)

    def _taken_over(self, sweep: Sweep, definition: Definition, content: str) -> None:
        """Take over what a file says now of how a sweep is worked on: bounds, queue, rules to stop.

        A copy of the file elsewhere changes nothing: its paths may mean nothing to those who work on the sweep.
        """
        stored = sweep.definition
        # Trials may have been added since.
        wanted = _bounded_as(stored, replace(definition, trials=stored.trials))
        if definition.file == stored.file and wanted != stored:
            self._ledger.revise(sweep.id, wanted, content)

    def _reserved(self, content: str, name: str, *, new: bool) -> tuple[str, Sweep | None]:
        """Return the id under which a content is to be submitted, and the sweep to attach to if there is one."""
        if new:
            return new_run_id(name), None
        held_by = self._ledger.holder(content)
        found = self._ledger.sweep(held_by) if held_by else None
        # One that was revised since is the sweep of another content.
        same = found is not None and self._ledger.fingerprint(held_by) == content
        if held_by and (found is None or (same and found.status in ("planning", "active", "paused"))):
            # One that is not there is about to be created by somebody else, or by nobody any more.
            return held_by, found
        # Of two that submit the same at the same time, the second gets the id of the first: they store the same trials.
        taken = self._ledger.reserve(content, held_by, new_run_id(name))
        return taken, self._ledger.sweep(taken)

    def _plan(self, sweep_id: str, trials: Iterable[Planned]) -> None:
        """Store the trials of a sweep, and let it begin; those that are stored already stay."""
        self._ledger.add(sweep_id, self._ledger.require(sweep_id).definition, trials)
        try:
            self._ledger.steer(sweep_id, "active", ["planning"])
        except Conflict:
            # Somebody else who submitted the same may have begun it. If it was cancelled, so is what came after.
            with suppress(Conflict):
                self._ledger.steer(sweep_id, "cancelled", [])

    # --- steering --------------------------------------------------------------------------------------------------

    def resume(
        self,
        sweep_id: str,
        loaded: Loaded | None = None,
        *,
        accept_changes: bool = False,
        concurrency: int | None = None,
    ) -> Resumed:
        """Let a sweep go on that was paused or stopped, or that was never stored whole.

        Args:
            sweep_id: which one.
            loaded: its sweep file as it is now; None reads the file that it was submitted from, if that is there.
            accept_changes: whether the sweep takes over what the file has changed of its results: trials of new cells
                are added with new numbers, those of cells that are gone are withdrawn if they wait, and what has
                ended stays. What decides no results, such as bounds and rules to stop, is taken over in any case.
            concurrency: bounds the trials that run at once from now on, in place of what the file says.

        Raises:
            NotFound: there is no such sweep.
            Conflict: it was cancelled; or the file has changed and that is not accepted, where
                ``details["differences"]`` says what.
            RunbookInvalid: the file cannot be used.
        """
        sweep = self._ledger.require(sweep_id)
        if sweep.status == "cancelled":
            raise Conflict(
                f"The sweep {sweep_id} was cancelled.",
                hint=f"`statem-dist sweep retry {sweep_id} --unscored` begins what was cancelled again.",
                details={"sweep": sweep_id, "status": sweep.status},
            )
        file = Path(sweep.definition.file)
        if loaded is None and (sweep.status == "planning" or file.is_file()):
            from statem_dist.sweep.spec import load_sweep

            loaded = load_sweep(file)
        selection = sweep.definition.selection
        if loaded is None or content_of(loaded, selection) == self._ledger.fingerprint(sweep_id):
            if sweep.status == "planning":
                assert loaded is not None, "what was never stored whole is read again"
                self._plan(sweep_id, chosen(loaded, selection))
            elif sweep.status != "finished":
                definition = sweep.definition if loaded is None else replace(loaded.definition, selection=selection)
                self._taken_over(sweep, _bounded(definition, concurrency), self._ledger.fingerprint(sweep_id))
                self._ledger.steer(sweep_id, "active", ["paused", "stopped"])
            return Resumed(self._woken(sweep_id), sweep.status)
        if not accept_changes:
            raise self._refused(sweep, loaded, selection, f"The file of the sweep {sweep_id} has changed")
        return self._revised(sweep, loaded, concurrency)

    def _revised(self, sweep: Sweep, loaded: Loaded, concurrency: int | None) -> Resumed:
        """Put another content in the place of a sweep's own. Killed half-way, it may be repeated."""
        selection = sweep.definition.selection
        definition = replace(loaded.definition, selection=selection)
        definition = _bounded_as(sweep.definition, _bounded(definition, concurrency))
        wanted = {_key(planned): planned for planned in chosen(loaded, selection)}
        told = self._differences(sweep, loaded, selection)
        self._registrar.register(loaded.parsed, definition.runbook_path)
        if sweep.status == "active":
            # Nothing is to begin by one definition that was planned by the other.
            self._ledger.steer(sweep.id, "paused", ["active"], "its definition is being changed")
        known = {_key(trial.planned): trial for trial in self._ledger.trials(sweep.id)}
        gone = [trial.planned.number for key, trial in known.items() if key not in wanted]
        withdrawn = self._ledger.withdrawn(sweep.id)
        back = [trial for key, trial in known.items() if key in wanted and trial.planned.number in withdrawn]
        numbers = count(self._ledger.size(sweep.id) + 1)
        new = [
            Planned(next(numbers), planned.cell, planned.repetition)
            for key, planned in wanted.items()
            if key not in known
        ]
        added = self._ledger.add(sweep.id, definition, new, self._registrar.clock())
        ended = self._ledger.withdraw(sweep.id, gone)
        self._ledger.revise(sweep.id, definition, content_of(loaded, selection))
        added += self._ledger.again(sweep.id, back)
        self._ledger.steer(sweep.id, "active", ["planning", "paused", "stopped", "finished"])
        return Resumed(self._woken(sweep.id), sweep.status, tuple(told), added, ended)

    def pause(self, sweep_id: str, why: str = "") -> Sweep:
        """Let no more trials of a sweep begin; those under way go on to their end.

        Raises:
            NotFound: there is no such sweep.
            Conflict: it is not active.
        """
        self._ledger.steer(sweep_id, "paused", ["active"], why)
        return self._ledger.require(sweep_id)

    def cancel(self, sweep_id: str, why: str = "") -> Sweep:
        """End a sweep: trials that wait are cancelled at once, those under way are ended by their workers.

        Raises:
            NotFound: there is no such sweep.
            Conflict: it has finished.
        """
        self._ledger.steer(sweep_id, "cancelled", ["planning", "active", "paused", "stopped"], why)
        return self._ledger.require(sweep_id)

    def extend(self, sweep_id: str, trials: int) -> Resumed:
        """Raise the number of trials of each cell of a sweep to ``trials``; those that there are stay.

        Raises:
            NotFound: there is no such sweep.
            Invalid: it has as many already.
            Conflict: it is not stored whole yet, or it was cancelled.
        """
        sweep = self._ledger.require(sweep_id)
        definition = sweep.definition
        if sweep.status in ("planning", "cancelled"):
            raise Conflict(
                f"The sweep {sweep_id} is {sweep.status}: nothing can be added to it.",
                hint="Submit it again." if sweep.status == "planning" else "Submit it as a new one with --new.",
                details={"sweep": sweep_id, "status": sweep.status},
            )
        if trials <= definition.trials:
            raise Invalid(
                f"The sweep {sweep_id} has {definition.trials} trials of each cell; {trials} would be no more.",
                hint=f"Give a larger number, such as --trials {definition.trials + 1}.",
                details={"sweep": sweep_id, "trials": definition.trials},
            )
        withdrawn = self._ledger.withdrawn(sweep_id)
        kept = [each.planned for each in self._ledger.trials(sweep_id) if each.planned.number not in withdrawn]
        # Some may be there already, if whoever did this before was interrupted.
        known = {_key(planned) for planned in kept}
        cells = {key: planned.cell for planned in kept for key, _ in [_key(planned)]}
        numbers = count(self._ledger.size(sweep_id) + 1)
        new = [
            Planned(next(numbers), cell, repetition)
            for repetition in range(definition.trials + 1, trials + 1)
            for key, cell in cells.items()
            if (key, repetition) not in known
        ]
        added = self._ledger.add(sweep_id, definition, new, self._registrar.clock())
        # The content stays what it was: the file was not changed.
        content = self._ledger.fingerprint(sweep_id)
        self._ledger.revise(sweep_id, replace(definition, trials=trials), content)
        self._go_on_after(sweep_id, ["active", "finished"])
        return Resumed(self._woken(sweep_id), sweep.status, added=added)

    def retry(
        self, sweep_id: str, which: Sequence[Which] = (), numbers: Sequence[int] = (), *, dry_run: bool = False
    ) -> Repeated:
        """Make trials of a sweep that have ended wait again; what is known of their attempts stays.

        Args:
            sweep_id: which sweep.
            which: by outcome; none means every outcome, and then numbers must be given.
            numbers: only those; none means all.
            dry_run: whether it is only said what would be done.

        Raises:
            NotFound: there is no such sweep, or no trial of a number.
            Invalid: neither outcomes nor numbers are given.
            Conflict: it is not stored whole yet, or was cancelled while trials are under way that have not ended yet.
        """
        if not which and not numbers:
            raise Invalid(
                "Nothing is to be tried again.", hint="Name outcomes, such as --errored, or numbers of trials."
            )
        sweep = self._ledger.require(sweep_id)
        if sweep.status == "planning" or (sweep.status == "cancelled" and sweep.counts["running"]):
            because = "not stored whole yet" if sweep.status == "planning" else "being cancelled"
            raise Conflict(
                f"The sweep {sweep_id} is {because}: nothing of it can be tried again now.",
                hint="Submit it again." if sweep.status == "planning" else "Wait until its trials have ended.",
                details={"sweep": sweep_id, "status": sweep.status},
            )
        outcomes: Sequence[Outcome] = tuple(dict.fromkeys(each for word in which for each in OUTCOMES_OF[word]))
        withdrawn = self._ledger.withdrawn(sweep_id)
        found: list[Trial] = []
        seen: set[int] = set()
        for trial in self._ledger.trials(sweep_id, sorted(set(numbers)) or None):
            seen.add(trial.planned.number)
            if trial.state in (outcomes or OUTCOMES) and trial.planned.number not in withdrawn:
                found.append(trial)
        if missing := sorted(set(numbers) - seen):
            raise NotFound(
                f"The sweep {sweep_id} has no trial {', '.join(map(str, missing))}.",
                hint=f"`statem-dist sweep trials {sweep_id}` lists its trials.",
                details={"sweep": sweep_id, "numbers": missing},
            )
        repeated: dict[State, int] = {}
        for trial in found:
            repeated[trial.state] = repeated.get(trial.state, 0) + 1
        left = tuple(sorted(seen - {trial.planned.number for trial in found})) if numbers else ()
        if dry_run:
            return Repeated(sweep, repeated, left)
        if found:
            self._ledger.again(sweep_id, found)
            self._go_on_after(sweep_id, ["active", "stopped", "cancelled", "finished"])
        return Repeated(self._woken(sweep_id), repeated, left)

    def remove(self, sweep_id: str, *, force: bool = False, deadline: Deadline | None = None) -> bool:
        """Remove a sweep with everything that is stored of it, and its folder on this host; its runs stay.

        Args:
            sweep_id: which one.
            force: remove it although it is active or trials are under way: it is cancelled first.
            deadline: how long its workers may take to end their trials.

        Returns:
            Whether there was a folder.

        Raises:
            NotFound: there is no such sweep.
            Conflict: it is active, or trials are under way.
        """
        sweep = self._ledger.sweep(sweep_id)
        if sweep is not None and (sweep.status == "active" or sweep.counts["running"]):
            if not force:
                raise Conflict(
                    f"The sweep {sweep_id} is {sweep.status}, with {sweep.counts['running']} trials under way.",
                    hint=f"Cancel it first: statem-dist sweep cancel {sweep_id}; or remove it with --force.",
                    details={"sweep": sweep_id, "status": sweep.status, "running": sweep.counts["running"]},
                )
            with suppress(Conflict):
                self.cancel(sweep_id, "it is being removed")
            until = deadline or Deadline(REMOVAL_SECONDS)
            self._wait(sweep_id, lambda now: now.counts["running"] == 0, until)
        elif sweep is None and sweep_id not in self._ledger.ids():
            raise sweep_not_found(sweep_id)
        folder = self.folder(sweep_id)
        there = folder.is_dir()
        shutil.rmtree(folder, ignore_errors=True)
        self._ledger.remove(sweep_id)
        return there

    def wait(self, sweep_id: str, deadline: Deadline = NEVER) -> Sweep:
        """Wait until a sweep has ended, at most until a moment, and return it as it is then.

        Raises:
            NotFound: there is no such sweep.
        """
        return self._wait(sweep_id, has_ended, deadline)

    # --- parts -----------------------------------------------------------------------------------------------------

    def _wait(self, sweep_id: str, until: Callable[[Sweep], bool], deadline: Deadline) -> Sweep:
        while True:
            sweep = self._ledger.require(sweep_id)
            if until(sweep) or deadline.passed:
                return sweep
            time.sleep(deadline.bound(LOOK_SECONDS))

    def _go_on_after(self, sweep_id: str, expected: Sequence[Status]) -> None:
        """Let a sweep go on for which trials wait again; one that is paused, or that nobody expects to go on, stays."""
        with suppress(Conflict):
            self._ledger.steer(sweep_id, "active", expected)

    def _woken(self, sweep_id: str) -> Sweep:
        """Wake slots for the trials of a sweep that may begin, and return it."""
        sweep = self._ledger.require(sweep_id)
        if sweep.status == "active":
            at_once = sweep.definition.concurrency or HINTS_MAX
            self._waker.send(sweep.definition.queue, min(sweep.counts["pending"], at_once, HINTS_MAX))
        return sweep

    def _refused(self, sweep: Sweep, loaded: Loaded, selection: Selection, what: str) -> Conflict:
        told = self._differences(sweep, loaded, selection)
        listed = "".join(f"\n  {each}" for each in told)
        return Conflict(
            f"{what}:{listed}",
            hint=f"`statem-dist sweep resume {sweep.id} --accept-changes` takes the changes over; "
            "`statem-dist sweep submit --new` makes a sweep of its own.",
            details={"sweep": sweep.id, "differences": told},
        )

    def _differences(self, sweep: Sweep, loaded: Loaded, selection: Selection) -> list[str]:
        """Return what a file, with what is selected of it, would change of a sweep: one sentence each."""
        from statem_dist.sweep.changes import differences

        withdrawn = self._ledger.withdrawn(sweep.id)
        before = [each.planned.cell for each in self._ledger.trials(sweep.id) if each.planned.number not in withdrawn]
        after = tuple(each.cell for each in chosen(loaded, selection))
        told = differences(sweep.definition, before, replace(loaded, cells=after))
        if sweep.definition.name != loaded.definition.name:
            told.append(f"name: {sweep.definition.name!r} -> {loaded.definition.name!r}")
        if sweep.definition.selection != selection:
            told.append(f"selected: {_shown(sweep.definition.selection)} -> {_shown(selection)}")
        return told


def chosen(loaded: Loaded, selection: Selection) -> list[Planned]:
    """Return the trials of a sweep file that are selected, numbered from 1.

    Raises:
        Invalid: there is none, or an axis is named that the sweep does not have.
    """
    from statem_dist.sweep.plan import planned, select

    definition = loaded.definition
    every = planned(loaded.cells, definition.trials)
    if selection.everything:
        return list(every)
    axes = {axis for cell in loaded.cells for axis in cell}
    if unknown := sorted(set(selection.only) - axes):
        has = f"It has: {', '.join(sorted(axes))}." if axes else "It has no axes."
        raise Invalid(f"The sweep has no {unknown[0]!r}.", hint=has, details={"axes": sorted(axes)})
    found = select(every, definition.listed, selection.only, selection.first)
    if not found:
        values = ", ".join(f"{axis}={value}" for axis, wanted in selection.only.items() for value in wanted)
        raise Invalid(f"No trial of the sweep has {values}.", details={"only": values})
    return [Planned(number, each.cell, each.repetition) for number, each in enumerate(found, start=1)]


def content_of(loaded: Loaded, selection: Selection) -> str:
    """Return what the content of a sweep is known by: that of its file, its name, and what is selected of it.

    The name decides no result, but whoever gives the same work another name means another sweep.
    """
    from statem_dist.sweep.changes import fingerprint

    parts = (fingerprint(loaded), loaded.definition.name, selection)
    return sha256(msgspec.json.encode(parts, order="sorted")).hexdigest()


def has_ended(sweep: Sweep) -> bool:
    """Return whether nothing of a sweep runs or will begin by itself."""
    over: tuple[Status, ...] = ("stopped", "cancelled", "finished")
    return sweep.status in over and sweep.counts["running"] == 0


def _bounded(definition: Definition, concurrency: int | None) -> Definition:
    """Return a definition with the bound that was given, if one was."""
    return definition if concurrency is None else replace(definition, concurrency=concurrency, concurrency_given=True)


def _bounded_as(stored: Definition, definition: Definition) -> Definition:
    """Return a definition with the bound of the stored one, if that was given and no other one is given now."""
    if definition.concurrency_given or not stored.concurrency_given:
        return definition
    return replace(definition, concurrency=stored.concurrency, concurrency_given=True)


def _key(planned: Planned) -> tuple[str, int]:
    """Return by what a trial is the same trial, whatever its number."""
    from statem_dist.sweep.plan import key_of

    return key_of(planned.cell), planned.repetition


def _shown(selection: Selection) -> str:
    if selection.everything:
        return "all trials"
    parts = [f"{axis}={value}" for axis, values in selection.only.items() for value in values]
    return ", ".join([*parts, *([f"the first {selection.first} of each row"] if selection.first else [])])
