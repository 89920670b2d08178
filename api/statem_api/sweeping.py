"""Sweeps over the service: what may be submitted by whom, how they are shown, and which of them a caller reaches."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, TypeAlias

import msgspec
from msgspec.structs import replace

from statem_api import bodies
from statem_api.answers import REQUEST_ID_OF_KEY
from statem_api.callers import Caller
from statem_api.service import Service
from statem_api.starting import labels_within
from statem_dist.checks.environment import decides_what_runs
from statem_dist.coordinator import Terms
from statem_dist.errors import Conflict, Invalid, NotAuthorised, NotFound, RunbookInvalid
from statem_dist.sweep.desk import EVERYTHING, Submitted, content_of
from statem_dist.sweep.model import Definition, State, Sweep, Trial
from statem_dist.sweep.outputs import documents, junit, page, summary, tables
from statem_dist.sweep.scores import scores_of
from statem_dist.sweep.spec import RESERVED_LABELS, Loaded, parse_sweep
from statem_dist.sweep.summary import sweep_summary
from statem_dist.sweep.watching import obstacles_of

FILE_NAME = "sweep.yaml"
"""What a sweep file is called that came as text; a sweep without a name of its own has this one."""

LOOKED_AT_MAX = 500
"""Sweeps that a page of them looks at, at most."""

TRIALS_LOOKED_AT_MAX = 2_000
"""Trials that a page of them looks at, at most."""

ResultsFormat: TypeAlias = Literal["json", "jsonl", "csv", "xml", "md"]

RESULTS: dict[ResultsFormat, tuple[str, str]] = {
    "json": ("application/json", "results.json"),
    "jsonl": ("application/x-ndjson", "trials.jsonl"),
    "csv": ("text/csv; charset=utf-8", "trials.csv"),
    "xml": ("application/xml", "junit.xml"),
    "md": ("text/markdown; charset=utf-8", "summary.md"),
}
"""The formats of results: their media types, and what their files are called."""


class Answered(msgspec.Struct, frozen=True):
    """What a request was answered, as it is kept for its repetition."""

    status: int
    data: dict[str, Any]
    replayed: bool = False


def reached(service: Service, caller: Caller, sweep_id: str) -> Sweep:
    """Return a sweep that the caller's labels reach.

    Raises:
        NotFound: there is none, or they do not.
    """
    return caller.require_sweep(service.ledger.require(sweep_id))


def require_stored(service: Service, sweep_id: str) -> None:
    """Refuse to go on with a sweep of which not all trials were stored, and whose file is not here.

    Raises:
        Conflict: it is one.
    """
    sweep = service.ledger.require(sweep_id)
    if sweep.status == "planning" and not Path(sweep.definition.file).is_file():
        raise Conflict(
            f"The sweep {sweep_id} is planning: not all of its trials were stored.",
            hint="Submit it again, with the same file, folder and `id`.",
            details={"sweep": sweep_id, "status": sweep.status},
        )


# --- submitting ------------------------------------------------------------------------------------------------------


def submit(service: Service, caller: Caller, body: bodies.SweepSubmit, asked: Terms) -> Submitted:
    """Submit a sweep, or attach to the one of the same content that has not ended.

    Raises:
        RunbookInvalid: the file, or the runbook that it names, cannot be used.
        Invalid: the folder cannot be used, or a label is not the caller's.
        NotAuthorised: only registered runbooks may be started here, and this is none.
        Conflict: the id is taken.
    """
    loaded = _loaded(service, caller, body)
    if service.options.registered_only:
        _require_registered(service, loaded)
    sweep_id, new = body.id, body.new
    if new and asked.request:
        # A repetition has to find the sweep that was made before its answer was lost.
        own = asked.request.removeprefix(REQUEST_ID_OF_KEY)[:12]
        sweep_id, new = f"{loaded.definition.name}-{own}", False
    existing = None
    if sweep_id is not None:
        existing = service.ledger.sweep(sweep_id)
        if existing is not None and not caller.reaches_sweep(existing):
            raise Conflict(f"The sweep id {sweep_id!r} is taken.", hint="Choose another one.")
    elif not new and (held_by := service.ledger.holder(content_of(loaded, EVERYTHING))):
        existing = service.ledger.sweep(held_by)
        if existing is not None and not caller.reaches_sweep(existing):
            existing, new = None, True
    if existing is not None:
        # Who may see a sweep is decided once: whoever attaches to it takes it away from nobody.
        loaded = replace(loaded, definition=replace(loaded.definition, labels=existing.definition.labels))
    submitted = service.desk.submit(loaded, by=caller.name, sweep_id=sweep_id, new=new)
    if not caller.reaches_sweep(submitted.sweep):
        raise Conflict("Somebody else has submitted the same at this moment.", hint="Send the request once more.")
    return submitted


def _loaded(service: Service, caller: Caller, body: bodies.SweepSubmit) -> Loaded:
    """Return the sweep that a request holds, with the labels of its submitter."""
    folder = os.path.normpath(body.folder)
    service.require_within_roots(folder)
    if not os.path.isdir(folder):
        raise Invalid(
            f"There is no folder {folder} on the host of this service.",
            hint="Name one that the service and its workers see.",
            details={"folder": folder},
        )
    path = Path(folder) / FILE_NAME
    try:
        loaded = parse_sweep(body.file, path, service.settings.workspace_roots)
    except RunbookInvalid as error:
        pointers = {str(path): "/file"}
        raise RunbookInvalid(error.message, hint=error.hint, details={**error.details, "pointers": pointers}) from error
    definition = loaded.definition
    if taken := sorted(caller.labels.keys() & (RESERVED_LABELS | set(definition.axes))):
        raise NotAuthorised(
            f"A token with the label {taken[0]!r} submits no such sweep: its trials have values of their own of that.",
            details={"labels": taken},
        )
    labels = labels_within(caller, definition.labels)
    # There is no file to be read again: its folder stands for it, so that the same from there is the same.
    return replace(loaded, definition=replace(definition, labels=labels, file=folder))


def _require_registered(service: Service, loaded: Loaded) -> None:
    """Refuse what would execute other commands than those of a registered runbook at its checks.

    Raises:
        NotAuthorised: the runbook is none, or a variable decides which code its commands run.
    """
    definition = loaded.definition
    if not service.registry.is_registered(definition.runbook):
        raise NotAuthorised(
            "The runbook of this sweep is not registered, and runs start from registered ones only here.",
            hint="An admin registers runbooks: POST /v1/runbooks.",
            details={"hash": definition.runbook},
        )
    if named := sorted(filter(decides_what_runs, definition.env)):
        raise NotAuthorised(
            f"The variable {named[0]} decides which code a command runs.",
            hint="Choose another name: who starts registered runbooks must not change what their commands are.",
            details={"variables": named},
        )


def answered_once(service: Service, asked: Terms, act: Callable[[], Answered]) -> Answered:
    """Do something and return its answer; a request that was answered before gets the same again.

    Raises:
        RequestReused: its key was used for another request.
    """
    if service.engine.require_same_request(asked) and (kept := service.engine.store.answer_to(asked.request)):
        return replace(msgspec.json.decode(kept, type=Answered), replayed=True)
    answered = act()
    if asked.request:
        service.engine.store.keep_answer(asked.request, msgspec.json.encode(answered))
    return answered


# --- showing ---------------------------------------------------------------------------------------------------------


def sweep_view(service: Service, sweep: Sweep) -> dict[str, Any]:
    """Return a sweep as the service shows it: where it stands, what holds it back, and what it is."""
    return {
        **sweep_summary(sweep),
        "bounds": _bounds(service, sweep),
        "obstacles": obstacles_of(sweep, service.engine.roster),
        "definition": _definition(sweep.definition),
    }


def trial_view(sweep: Sweep, trial: Trial) -> dict[str, Any]:
    """Return a trial with all its attempts, each with the way to its run."""
    attempts = [
        {
            "attempt": each.attempt,
            "outcome": each.outcome,
            **tables.facts(each),
            "retried": each.retried,
            "usage": msgspec.to_builtins(each.usage),
            "links": {"run": f"/v1/runs/{each.run_id}", "history": f"/v1/runs/{each.run_id}/history"},
        }
        for each in trial.attempts
    ]
    return {"trial": tables.row(sweep, trial), "attempts": attempts}


def sweep_page(
    service: Service, caller: Caller, status: str | None, labels: dict[str, str], cursor: str | None, limit: int
) -> tuple[list[dict[str, Any]], str | None]:
    """Return some of the sweeps that a caller reaches, newest first, and the cursor of the next page.

    Raises:
        Invalid: the cursor is none that a page gave.
    """
    marks = service.ledger.marks()
    if cursor is not None:
        before = _mark(cursor)
        marks = [mark for mark in marks if mark < before]
    found: list[dict[str, Any]] = []
    for looked_at, mark in enumerate(marks, start=1):
        sweep = service.ledger.sweep(mark[1])
        if (
            sweep is not None
            and caller.reaches_sweep(sweep)
            and status in (None, sweep.status)
            and labels.items() <= {**sweep.definition.labels, "sweep": sweep.id}.items()
        ):
            found.append(sweep_summary(sweep))
        if looked_at < len(marks) and (len(found) == limit or looked_at == LOOKED_AT_MAX):
            return found, f"{mark[0]}.{mark[1]}"
    return found, None


def trial_page(
    service: Service, sweep: Sweep, state: State | None, values: dict[str, str], after: int, limit: int
) -> tuple[list[dict[str, Any]], str | None]:
    """Return some trials of a sweep in the order of their numbers, and the cursor of the next page.

    Raises:
        Invalid: the sweep has no such axis.
        NotFound: it was removed.
    """
    if unknown := sorted(set(values) - set(sweep.definition.axes)):
        axes = ", ".join(sweep.definition.axes) or "none"
        raise Invalid(f"The sweep has no axis {unknown[0]!r}.", hint=f"It has: {axes}.")
    census = service.ledger.census(sweep.id)
    wanted = [
        number for number, is_in in (census.trials if census else ()) if number > after and state in (None, is_in)
    ]
    looked_at = wanted[:TRIALS_LOOKED_AT_MAX] if values else wanted[:limit]
    found: list[dict[str, Any]] = []
    for trial in service.ledger.trials(sweep.id, looked_at):
        if values.items() <= trial.planned.cell.items() and state in (None, trial.state):
            found.append(tables.row(sweep, trial))
        if len(found) == limit:
            looked_at = [number for number in looked_at if number <= trial.planned.number]
            break
    more = len(looked_at) < len(wanted)
    return found, str(looked_at[-1]) if more else None


def trial_of(service: Service, sweep: Sweep, number: int) -> Trial:
    """Return one trial of a sweep.

    Raises:
        NotFound: it has none of that number.
    """
    for trial in service.ledger.trials(sweep.id, [number]):
        return trial
    raise NotFound(
        f"The sweep {sweep.id} has no trial {number}.",
        hint=f"GET /v1/sweeps/{sweep.id}/trials lists its trials.",
        details={"sweep": sweep.id, "number": number},
    )


def results(service: Service, sweep: Sweep, format: ResultsFormat) -> str:
    """Return the results of a sweep as they are now, in one of the formats of its files."""
    trials = list(service.ledger.trials(sweep.id))
    match format:
        case "jsonl":
            return tables.trials_jsonl(sweep, trials)
        case "csv":
            return tables.trials_csv(sweep, trials)
    scores = scores_of(sweep, trials)
    match format:
        case "xml":
            return junit.junit_xml(sweep, trials, scores)
        case "md":
            return summary.summary_markdown(sweep, scores)
        case "json":
            return documents.results_json(sweep, scores)


def report(service: Service, sweep: Sweep) -> str:
    """Return the page that reports a sweep as it is now."""
    trials = list(service.ledger.trials(sweep.id))
    return page.report_html(sweep, trials, scores_of(sweep, trials))


def _bounds(service: Service, sweep: Sweep) -> dict[str, Any]:
    """Return how many trials may be under way at once, and how many are: in all, and of those that share a value."""
    in_use = service.ledger.in_use(sweep.id)
    return {
        "total": sweep.definition.concurrency,
        "in_use": sweep.counts["running"],
        "per": sweep.definition.concurrency_per,
        "in_use_per": [
            {"value": msgspec.json.decode(counter), "in_use": number}
            for counter, number in sorted(in_use.items())
            if number
        ],
    }


def _definition(definition: Definition) -> dict[str, Any]:
    """Return what a sweep is. Values of variables for commands are not shown: they may be secret."""
    shown: dict[str, Any] = msgspec.to_builtins(definition)
    if definition.env:
        shown["env"] = sorted(definition.env)
    return shown


def _mark(cursor: str) -> tuple[int, str]:
    created_at, _, sweep_id = cursor.partition(".")
    if not created_at.isdecimal() or not created_at.isascii() or len(created_at) > 15 or not sweep_id:
        raise Invalid("The cursor is none that a page gave.", hint="Take `next_cursor` of the page before, unchanged.")
    return int(created_at), sweep_id
