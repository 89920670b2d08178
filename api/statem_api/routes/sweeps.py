"""Sweeps: submit, steer, list, show; their trials, and what happens to them live."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

from fastapi import APIRouter, Query
from starlette.responses import Response

from statem_api import bodies, shapes, sweeping
from statem_api.answers import BadRequest, Keyed, answer, described
from statem_api.callers import Caller, Calling
from statem_api.routes.events import LastEventId
from statem_api.routes.runs import labels_of
from statem_api.service import Service, Serving
from statem_api.streams import EventStream, streamed, sweep_frames
from statem_api.sweep_feed import POSITION
from statem_api.sweeping import Answered
from statem_dist.coordinator import Terms
from statem_dist.errors import Invalid
from statem_dist.sweep.ledger import OVER
from statem_dist.sweep.model import Sweep
from statem_dist.sweep.outputs.page import content_policy

router = APIRouter(prefix="/v1/sweeps", tags=["sweeps"])

PAGE_MAX = 200
TRIALS_PAGE_MAX = 1_000

STREAM = "text/event-stream"

REPORT_POLICY = f"{content_policy()}; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

Cursor = Annotated[str | None, Query(max_length=500, description="`next_cursor` of the page before.")]


# --- submitting ------------------------------------------------------------------------------------------------------


@router.post(
    "",
    status_code=201,
    responses=described(404, 409, of_201=shapes.SweepSubmitted, of_200=shapes.SweepSubmitted),
    summary="Submit a sweep",
)
async def submit(body: bodies.SweepSubmit, service: Serving, caller: Calling, asked: Keyed) -> Response:
    """Hand a sweep to the workers. 200 where it attaches to the one of the same content that has not ended.

    The runbook, tasks and templates that the file names are read on the host of the service, below its workspace roots
    if it has any. A sweep has the labels of its submitter's token; one that is there keeps those that it has.
    """
    caller.require("operator", "submit sweeps")

    def act() -> Answered:
        submitted = sweeping.submit(service, caller, body, asked)
        data = {"fresh": submitted.fresh, **sweeping.sweep_view(service, submitted.sweep)}
        return Answered(201 if submitted.fresh else 200, data)

    answered = await service.call(sweeping.answered_once, service, asked, act)
    return _answer(answered, {"Location": f"/v1/sweeps/{answered.data['sweep']}"})


# --- lists -----------------------------------------------------------------------------------------------------------


@router.get("", responses=described(of_200=shapes.SweepPage), summary="List sweeps")
async def list_(
    service: Serving,
    caller: Calling,
    status: Annotated[shapes.SweepStatusName | None, Query(description="Only sweeps of this status.")] = None,
    label: Annotated[
        list[str] | None, Query(description="Only sweeps with this label, as `KEY=VALUE`; repeatable.", max_length=20)
    ] = None,
    cursor: Cursor = None,
    limit: Annotated[int, Query(ge=1, le=PAGE_MAX)] = 50,
) -> Response:
    """List sweeps, newest first. A page may hold fewer than asked for and still have a next one.

    A token with labels sees the sweeps all of whose runs have them.
    """
    wanted = labels_of(label)
    items, next_cursor = await service.call(sweeping.sweep_page, service, caller, status, wanted, cursor, limit)
    return answer({"items": items, "next_cursor": next_cursor})


@router.get("/{sweep_id}", responses=described(404, of_200=shapes.Sweep), summary="Show a sweep")
async def show(sweep_id: bodies.SweepId, service: Serving, caller: Calling) -> Response:
    """Show where a sweep stands: its counts, how many of its slots are in use, what holds it back, what it has used.

    Of `env` in its definition only the names are shown.
    """

    def look() -> dict[str, Any]:
        return sweeping.sweep_view(service, sweeping.reached(service, caller, sweep_id))

    return answer(await service.call(look))


@router.get("/{sweep_id}/trials", responses=described(404, of_200=shapes.TrialPage), summary="List trials")
async def trials(
    sweep_id: bodies.SweepId,
    service: Serving,
    caller: Calling,
    state: Annotated[shapes.TrialStateName | None, Query(description="Only trials in this state.")] = None,
    where: Annotated[
        list[str] | None,
        Query(description="Only trials with this value, as `AXIS=VALUE`; repeatable.", max_length=20),
    ] = None,
    cursor: Annotated[
        str | None, Query(pattern=r"^[0-9]{1,9}$", description="`next_cursor` of the page before.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=TRIALS_PAGE_MAX)] = 100,
) -> Response:
    """List the trials of a sweep in the order of their numbers, each with its latest attempt."""
    values = _values(where)

    def look() -> dict[str, Any]:
        sweep = sweeping.reached(service, caller, sweep_id)
        items, next_cursor = sweeping.trial_page(service, sweep, state, values, int(cursor or 0), limit)
        return {"items": items, "next_cursor": next_cursor}

    return answer(await service.call(look))


@router.get("/{sweep_id}/trials/{number}", responses=described(404, of_200=shapes.Trial), summary="Show a trial")
async def trial(sweep_id: bodies.SweepId, number: bodies.TrialNumber, service: Serving, caller: Calling) -> Response:
    """Show a trial with all its attempts, oldest first, each with the way to its run."""

    def look() -> dict[str, Any]:
        sweep = sweeping.reached(service, caller, sweep_id)
        return sweeping.trial_view(sweep, sweeping.trial_of(service, sweep, number))

    return answer(await service.call(look))


@router.get(
    "/{sweep_id}/results",
    responses=described(404)
    | {
        200: {
            "description": "The results in the format that was asked for.",
            "content": {
                kind.partition(";")[0]: {"schema": {"type": "object"} if name == "json" else {"type": "string"}}
                for name, (kind, _) in sweeping.RESULTS.items()
            },
        }
    },
    response_class=Response,
    summary="The results of a sweep",
)
async def results(
    sweep_id: bodies.SweepId,
    service: Serving,
    caller: Calling,
    format: Annotated[
        sweeping.ResultsFormat,
        Query(
            description="`json` is `results.json` with the scores, `jsonl` and `csv` have a line per trial, `xml` is a "
            "JUnit report, `md` a summary for people."
        ),
    ] = "json",
) -> Response:
    """Give the results of a sweep as they are now: those of the files that `sweep run` writes."""

    sweep = await service.call(sweeping.reached, service, caller, sweep_id)
    made = await service.calculate(sweeping.results, service, sweep, format)
    kind, name = sweeping.RESULTS[format]
    headers = {} if format == "json" else {"Content-Disposition": f'attachment; filename="{sweep_id}-{name}"'}
    return Response(made, 200, headers, kind)


@router.get(
    "/{sweep_id}/report",
    responses=described(404)
    | {200: {"description": "The page.", "content": {"text/html": {"schema": {"type": "string"}}}}},
    response_class=Response,
    summary="A sweep as a page",
)
async def report(sweep_id: bodies.SweepId, service: Serving, caller: Calling) -> Response:
    """Give the report of a sweep as it is now: one page of HTML that loads nothing, and runs no script but its own."""

    sweep = await service.call(sweeping.reached, service, caller, sweep_id)
    made = await service.calculate(sweeping.report, service, sweep)
    headers = {"Content-Security-Policy": REPORT_POLICY}
    return Response(made, 200, headers, "text/html; charset=utf-8")


def _values(given: list[str] | None) -> dict[str, str]:
    """Return values given as ``AXIS=VALUE``.

    Raises:
        Invalid: one of them is not.
    """
    found: dict[str, str] = {}
    for text in given or ():
        axis, sign, value = text.partition("=")
        if not axis or not sign:
            raise Invalid(f"The value {text!r} is not of the form AXIS=VALUE.")
        found[axis] = value
    return found


# --- steering --------------------------------------------------------------------------------------------------------


@router.post("/{sweep_id}/pause", responses=described(404, 409, of_200=shapes.Sweep), summary="Pause a sweep")
async def pause(
    sweep_id: bodies.SweepId, body: bodies.SweepWhy, service: Serving, caller: Calling, asked: Keyed
) -> Response:
    """Let no more trials begin; those under way go on to their end."""
    caller.require("operator", "pause sweeps")
    return await _steered(service, caller, sweep_id, asked, lambda: (service.desk.pause(sweep_id, body.reason), {}))


@router.post("/{sweep_id}/resume", responses=described(404, 409, of_200=shapes.SweepResumed), summary="Resume a sweep")
async def resume(
    sweep_id: bodies.SweepId, body: bodies.SweepResume, service: Serving, caller: Calling, asked: Keyed
) -> Response:
    """Let a sweep go on that was paused or stopped."""
    caller.require("operator", "resume sweeps")

    def act() -> tuple[Sweep, dict[str, Any]]:
        sweeping.require_stored(service, sweep_id)
        resumed = service.desk.resume(sweep_id, accept_changes=body.accept_changes)
        return resumed.sweep, {
            "before": resumed.before,
            "differences": list(resumed.differences),
            "added": resumed.added,
            "withdrawn": resumed.withdrawn,
        }

    return await _steered(service, caller, sweep_id, asked, act)


@router.post("/{sweep_id}/cancel", responses=described(404, 409, of_200=shapes.Sweep), summary="Cancel a sweep")
async def cancel(
    sweep_id: bodies.SweepId, body: bodies.SweepWhy, service: Serving, caller: Calling, asked: Keyed
) -> Response:
    """End a sweep: what waits is cancelled at once, what is under way is ended by its workers."""
    caller.require("operator", "cancel sweeps")
    return await _steered(service, caller, sweep_id, asked, lambda: (service.desk.cancel(sweep_id, body.reason), {}))


@router.post("/{sweep_id}/retry", responses=described(404, 409, of_200=shapes.SweepRetried), summary="Retry trials")
async def retry(
    sweep_id: bodies.SweepId, body: bodies.SweepRetry, service: Serving, caller: Calling, asked: Keyed
) -> Response:
    """Try trials again that have ended; earlier attempts are kept."""
    caller.require("operator", "retry trials")

    def act() -> tuple[Sweep, dict[str, Any]]:
        repeated = service.desk.retry(sweep_id, body.which, body.numbers, dry_run=body.dry_run)
        return repeated.sweep, {
            "dry_run": body.dry_run,
            "retried": repeated.total,
            "retried_by_outcome": repeated.outcomes,
            "left": repeated.left,
        }

    return await _steered(service, caller, sweep_id, asked, act)


@router.post("/{sweep_id}/extend", responses=described(404, 409, of_200=shapes.SweepExtended), summary="Extend a sweep")
async def extend(
    sweep_id: bodies.SweepId, body: bodies.SweepExtend, service: Serving, caller: Calling, asked: Keyed
) -> Response:
    """Raise the number of trials of each cell; those that there are stay what they are."""
    caller.require("operator", "extend sweeps")

    def act() -> tuple[Sweep, dict[str, Any]]:
        extended = service.desk.extend(sweep_id, body.trials)
        return extended.sweep, {"added": extended.added}

    return await _steered(service, caller, sweep_id, asked, act)


@router.delete("/{sweep_id}", responses=described(404, 409, of_200=shapes.SweepRemoved), summary="Remove a sweep")
async def remove(sweep_id: bodies.SweepId, service: Serving, caller: Calling) -> Response:
    """Remove a sweep that has ended, with its results and its folder on the service's host; its runs stay.

    One that is active, or has trials under way, is 409: cancel it first.
    """
    caller.require("admin", "remove sweeps")

    def end() -> dict[str, Any]:
        sweeping.reached(service, caller, sweep_id)
        folder = service.desk.folder(sweep_id)
        there = service.desk.remove(sweep_id)
        return {"sweep": sweep_id, "removed": True, "folder": str(folder) if there else None}

    return answer(await service.call(end))


async def _steered(
    service: Service, caller: Caller, sweep_id: str, asked: Terms, act: Callable[[], tuple[Sweep, dict[str, Any]]]
) -> Response:
    """Do something with a sweep that the caller reaches, and answer with where it stands and what else is to say."""

    def once() -> Answered:
        sweeping.reached(service, caller, sweep_id)

        def do() -> Answered:
            sweep, more = act()
            return Answered(200, {**sweeping.sweep_view(service, sweep), **more})

        return sweeping.answered_once(service, asked, do)

    return _answer(await service.call(once))


def _answer(answered: Answered, headers: dict[str, str] | None = None) -> Response:
    replayed = {"Idempotent-Replayed": "true"} if answered.replayed else {}
    return answer(answered.data, answered.status, headers={**(headers or {}), **replayed})


# --- live ------------------------------------------------------------------------------------------------------------


@router.get(
    "/{sweep_id}/events",
    responses=described(404)
    | {
        200: {"description": "Events as they come.", "content": {STREAM: {"schema": {"type": "string"}}}},
        204: {"description": "The sweep has ended and every event was seen: there is nothing to come back for."},
    },
    response_class=EventStream,
    summary="What happens to a sweep",
)
async def events(
    sweep_id: bodies.SweepId, service: Serving, caller: Calling, last_event_id: LastEventId = None
) -> Response:
    """Tell live what happens to a sweep: first a `snapshot` of all its trials, then what changes.

    `snapshot` has the `counts` and, as `trials`, a list of `[number, state]`; it comes again where trials were added,
    or after a `gap`: the reader was away for longer than the feed reaches back. `trials` is a list of such pairs, in
    the order in which they came about, about four times a second at most. `status` says that the status of the sweep
    has changed. `end` comes when it has ended. A heartbeat is a comment.

    The `id` of an event is a position in the feed of the sweep: with `Last-Event-ID` the stream goes on right after it.
    """
    sweep = await service.call(sweeping.reached, service, caller, sweep_id)
    if last_event_id is None:
        return streamed(service, sweep_frames(service, caller, sweep_id, None))
    if not POSITION.fullmatch(last_event_id):
        raise BadRequest(
            "`Last-Event-ID` is no position in the feed of a sweep.", hint="Leave it out to begin with a snapshot."
        )
    if sweep.status in OVER and await service.sweep_feed.all_told(sweep_id, last_event_id):
        return Response(status_code=204)
    return streamed(service, sweep_frames(service, caller, sweep_id, last_event_id))
