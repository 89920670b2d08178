"""Commands that steer a sweep: ``sweep pause``, ``cancel``, ``extend``, ``retry``, ``rm``."""

from __future__ import annotations

from typing import Annotated, Any

from statem_dist.cli.answer import Answer
from statem_dist.cli.declare import Argument, Option
from statem_dist.cli.session import JsonOption, StateDirOption
from statem_dist.cli.sweep_session import SweepArgument, sweep_session, told
from statem_dist.errors import Usage

ReasonOption = Annotated[str, Option("--reason", metavar="TEXT", help="Why, for whoever asks.")]

RANGE_MAX = 100_000
"""Trials that one word such as ``3-7`` may name."""


def pause(
    sweep: SweepArgument, reason: ReasonOption = "", state_dir: StateDirOption = None, as_json: JsonOption = False
) -> Answer:
    """Let no more trials of a sweep begin; those under way go on to their end.

    Example: statem-dist sweep pause tb21
    """
    from statem_dist.sweep.summary import sweep_summary

    with sweep_session("sweep pause", state_dir, wanted=sweep) as work:
        now = work.desk.pause(work.desk.find(sweep), reason)
        clock = work.engine.clock()
    hint = f"  to go on: statem-dist sweep resume {now.id}"
    return Answer({"ok": True, **sweep_summary(now)}, lambda: f"{told(now, clock)}\n{hint}")


def cancel(
    sweep: SweepArgument, reason: ReasonOption = "", state_dir: StateDirOption = None, as_json: JsonOption = False
) -> Answer:
    """End a sweep: what waits is cancelled at once, what is under way is ended by its workers.

    Example: statem-dist sweep cancel tb21 --reason "wrong model"
    """
    from statem_dist.sweep.summary import sweep_summary

    with sweep_session("sweep cancel", state_dir, wanted=sweep) as work:
        now = work.desk.cancel(work.desk.find(sweep), reason)
        clock = work.engine.clock()
    return Answer({"ok": True, **sweep_summary(now)}, lambda: told(now, clock))


def extend(
    sweep: SweepArgument,
    trials: Annotated[
        int, Option("--trials", metavar="N", min=1, max=100_000, help="Trials that each cell is to have.")
    ],
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Raise the number of trials of each cell; those that there are stay what they are.

    Example: statem-dist sweep extend tb21 --trials 10
    """
    from statem_dist.sweep.summary import sweep_summary

    with sweep_session("sweep extend", state_dir, wanted=sweep) as work:
        extended = work.desk.extend(work.desk.find(sweep), trials)
        clock = work.engine.clock()
    data = {"ok": True, **sweep_summary(extended.sweep), "added": extended.added}
    return Answer(data, lambda: f"Added {extended.added} trials.\n{told(extended.sweep, clock)}")


def retry(
    sweep: SweepArgument,
    numbers: Annotated[
        list[str] | None, Argument(metavar="[NUMBER...]", help="Only these trials, such as 4 or 10-19.")
    ] = None,
    failed: Annotated[bool, Option("--failed", help="Those that are failed, stuck or timeout.")] = False,
    errored: Annotated[bool, Option("--errored", help="Those that are error.")] = False,
    unscored: Annotated[bool, Option("--unscored", help="Those that are error or cancelled.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Say which, and change nothing.")] = False,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Try trials again that have ended; earlier attempts are kept. Trials by number alone: whatever they ended as.

    Example: statem-dist sweep retry tb21 --errored
    """
    from statem_dist.sweep.desk import Which
    from statem_dist.sweep.summary import sweep_summary

    wanted = numbers_of(numbers or [])
    which: list[Which] = []
    if failed:
        which.append("failed")
    if errored:
        which.append("errored")
    if unscored:
        which.append("unscored")
    if not which and not wanted:
        raise Usage(
            "It is not said which trials are to be tried again.",
            hint="Give --failed, --errored or --unscored, or numbers of trials.",
        )
    with sweep_session("sweep retry", state_dir, wanted=sweep) as work:
        repeated = work.desk.retry(work.desk.find(sweep), which, wanted, dry_run=dry_run)
        clock = work.engine.clock()
    now = repeated.sweep
    by_outcome = ", ".join(f"{count} {outcome}" for outcome, count in repeated.outcomes.items())
    sentence = f"{repeated.total} of {now.planned} trials {'would be' if dry_run else 'are'} tried again"
    left = f"\nLeft as they are: {', '.join(map(str, repeated.left))}." if repeated.left else ""
    data: dict[str, Any] = {
        "ok": True,
        **sweep_summary(now),
        "dry_run": dry_run,
        "retried": repeated.total,
        "retried_by_outcome": dict(repeated.outcomes),
        "left": list(repeated.left),
    }
    return Answer(data, lambda: f"{sentence}{f': {by_outcome}' if by_outcome else ''}.{left}\n{told(now, clock)}")


def rm(
    sweep: SweepArgument,
    force: Annotated[bool, Option("--force", help="Also one that is active: it is cancelled first.")] = False,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Remove a sweep, its results and its folder on this host; its runs stay.

    Example: statem-dist sweep rm tb21-20261130-130000-3f9c0a6d51e2
    """
    with sweep_session("sweep rm", state_dir, wanted=sweep) as work:
        sweep_id = work.desk.find(sweep)
        folder = work.desk.folder(sweep_id)
        there = work.desk.remove(sweep_id, force=force)
    also = f", and {folder}" if there else ""
    data = {"ok": True, "sweep": sweep_id, "removed": True, "folder": str(folder) if there else None}
    return Answer(data, lambda: f"Removed {sweep_id}{also}.")


def numbers_of(words: list[str]) -> list[int]:
    """Return the numbers that words such as ``4`` and ``10-19`` name.

    Raises:
        Usage: a word is something else.
    """
    found: list[int] = []
    for word in words:
        first, sign, last = word.partition("-")
        if not first.isdecimal() or (sign and not last.isdecimal()):
            raise Usage(f"{word!r} is no number of a trial.", hint="Such as 4, or 10-19 for several.")
        low, high = int(first), int(last) if sign else int(first)
        if not 0 < low <= high or high - low >= RANGE_MAX:
            raise Usage(f"{word!r} names no trials.", hint="Numbers begin with 1; a range goes from low to high.")
        found += range(low, high + 1)
    return found
