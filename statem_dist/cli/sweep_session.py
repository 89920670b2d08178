"""What commands on sweeps work with: the desk and the ledger of the store, and how a sweep is named and told."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

from statem_dist.cli.answer import Answer
from statem_dist.cli.declare import Argument, Option
from statem_dist.cli.session import Session, require_no_service, session
from statem_dist.errors import ExitCode, Usage
from statem_dist.sweep.desk import SweepDesk, has_ended
from statem_dist.sweep.ledger import Ledger, sweep_not_found
from statem_dist.sweep.model import Selection, Sweep, Trial

if TYPE_CHECKING:
    from statem_dist.engine import Engine
    from statem_dist.sweep.scores import Scores

TROUBLES_MAX = 10
"""Reasons that are told below a table; those of all trials are in its rows."""

SweepArgument = Annotated[
    str, Argument(metavar="ID", help="The sweep: its id, or the beginning of it.", complete="sweeps")
]
OnlyOption = Annotated[
    list[str] | None, Option("--only", metavar="KEY=VALUE", help="Only trials with this value; repeatable.")
]
LimitOption = Annotated[int | None, Option("--limit", metavar="N", min=1, help="Only the first N trials of each row.")]
ExitStatusOption = Annotated[bool, Option("--exit-status", help="Exit with 6 unless every trial has passed.")]
AcceptOption = Annotated[
    bool, Option("--accept-changes", help="Take over what the sweep file has changed since it was submitted.")
]
WatchOption = Annotated[bool, Option("--watch", help="Show the sweep until it has ended.")]


class SweepSession:
    """One command's view of the sweeps of a store, which is opened when it is first asked for."""

    def __init__(self, at: Session) -> None:
        self.at = at

    @cached_property
    def ledger(self) -> Ledger:
        """Where the sweeps are kept."""
        return Ledger(self.at.store)

    @cached_property
    def desk(self) -> SweepDesk:
        """The verbs on them."""
        return desk_of(self.engine, self.ledger)

    @property
    def engine(self) -> Engine:
        """The verbs on runs of the same store."""
        from statem_dist.engine import Engine

        engine = self.at.engine
        assert isinstance(engine, Engine), "without a service the runs are in a store"
        return engine

    def sweep(self, wanted: str) -> Sweep:
        """Return the sweep of an id, or of the beginning of one.

        Raises:
            NotFound: there is none, or several begin like that.
        """
        return self.ledger.require(self.desk.find(wanted))


@contextmanager
def sweep_session(command: str, state_dir: str | None, *, wanted: str | None = None) -> Iterator[SweepSession]:
    """Open the store for a command on sweeps, and close what was opened.

    Args:
        command: its words, for the message where a service is meant.
        state_dir: the state directory that is given.
        wanted: the sweep that must be there; whoever only looks makes no state directory for that.

    Raises:
        Usage: ``STATEM_URL`` is set.
        NotFound: a sweep is wanted, and there is no state directory yet.
    """
    require_no_service(command)
    with session(state_dir) as at:
        if wanted is not None and at.nothing_yet:
            raise sweep_not_found(wanted)
        yield SweepSession(at)


def desk_of(engine: Engine, ledger: Ledger) -> SweepDesk:
    """Return the desk on the store of an engine."""
    from statem_dist.dispatch import dispatcher_for
    from statem_dist.sweep.hints import Hints

    settings = engine.settings
    hints = Hints(engine.store, dispatcher_for(settings, engine.redis_url))
    return SweepDesk(ledger, engine, hints, settings.state_dir)


def selection_of(only: list[str] | None, limit: int | None) -> Selection:
    """Return what ``--only`` and ``--limit`` select.

    Raises:
        Usage: ``--only`` was given something else than ``KEY=VALUE``.
    """
    wanted: dict[str, tuple[str, ...]] = {}
    for pair in only or ():
        name, separator, value = pair.partition("=")
        if not separator:
            raise Usage(f"--only takes KEY=VALUE, not {pair!r}.")
        wanted[name] = (*wanted.get(name, ()), value)
    return Selection(wanted, limit)


def told(sweep: Sweep, now: int) -> str:
    """Return where a sweep stands, in a few lines."""
    from statem_dist.cli.text import span
    from statem_dist.sweep.outputs.figures import dollars
    from statem_dist.sweep.watching import counted, slots_of

    because = f": {sweep.status_reason}" if sweep.status_reason else ""
    lines = [f"{sweep.id}  {sweep.status}{because}"]
    lines.append(f"  {sweep.ended} of {sweep.planned} trials ended: {counted(sweep, glyphs=True) or 'none is planned'}")
    if sweep.status == "active":
        lines.append(f"  slots in use: {slots_of(sweep)}; queue {sweep.definition.queue}")
    usage = sweep.usage
    if usage.cost_usd or usage.input_tokens or usage.output_tokens:
        tokens = f"{usage.input_tokens:,} tokens in, {usage.output_tokens:,} out"
        lines.append(f"  used: {dollars(usage.cost_usd)}, {tokens}")
    revised = f", changed {sweep.revision - 1} times since" if sweep.revision > 1 else ""
    age = span(now - sweep.created_at)
    lines.append(f"  submitted {age} ago by {sweep.created_by} from {sweep.definition.file}{revised}")
    lines += [f"  {host} begins no trial: {why}" for host, why in sorted(sweep.held.items())]
    return "\n".join(lines)


def results_text(sweep: Sweep, trials: Sequence[Trial], scores: Scores) -> str:
    """Return what came of a sweep as a table with its headline, and why trials came to nothing below it."""
    import shutil
    import sys

    from statem_dist.sweep import text

    columns = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    lines = [text.table(sweep, scores, columns=columns), text.headline(scores), *text.troubles(trials, TROUBLES_MAX)]
    return "\n".join(lines)


def judged(sweep: Sweep, data: dict[str, Any], text: str, *, must_pass: bool) -> Answer:
    """Return the answer of a command that has waited for a sweep.

    Its exit code is 0 where every trial was judged, 1 where some could not be, 6 with ``must_pass`` where not all have
    passed, 7 where the sweep has not ended. ``ok`` says whether it is 0.
    """
    from statem_dist.sweep.watching import counted

    code, error = ExitCode.DONE, ""
    errors, missed = sweep.counts["error"], sweep.planned - sweep.counts["passed"]
    if not has_ended(sweep):
        code, error = ExitCode.PENDING, f"The sweep {sweep.id} has not ended: {counted(sweep)}."
    elif must_pass and missed and not errors:
        code, error = ExitCode.UNSUCCESSFUL, f"{missed} of {sweep.planned} trials have not passed."
    elif sweep.status in ("stopped", "cancelled") and not sweep.complete:
        because = f": {sweep.status_reason}" if sweep.status_reason else ""
        code, error = (
            ExitCode.ERROR,
            f"The sweep was {sweep.status}{because}. Of {sweep.planned} trials: {counted(sweep)}.",
        )
    elif errors:
        code, error = ExitCode.ERROR, f"{errors} of {sweep.planned} trials could not be judged."
    data = {"ok": code == ExitCode.DONE, **{key: value for key, value in data.items() if key != "ok"}}
    return Answer(data, lambda: text, code, error)
