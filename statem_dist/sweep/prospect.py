"""What a sweep comes to before anything is stored: its trials, and what they may take, by an earlier sweep like it."""

from __future__ import annotations

from statistics import fmean, median
from typing import TYPE_CHECKING

from msgspec import Struct
from msgspec.structs import replace

from statem_dist.sweep.desk import EVERYTHING, chosen
from statem_dist.sweep.ledger import Ledger
from statem_dist.sweep.model import Attempt, Definition, Planned, Selection
from statem_dist.sweep.plan import key_of

if TYPE_CHECKING:
    from statem_dist.sweep.spec import Loaded

LOOKED_BACK_MAX = 50
"""Sweeps among which an earlier one of the same name is looked for."""

SAMPLE_MAX = 1_000
"""Trials of it by which a new one is estimated."""


class Prospect(Struct, frozen=True, kw_only=True):
    """What a sweep file comes to.

    ``values`` has how many values each axis has. ``like`` is an earlier sweep of the same name; ``trial_seconds`` is
    the median of its attempts, ``seconds`` what all trials take by it and by how many run at once, ``cost_usd`` what
    they cost at its mean. They are None without such a sweep, or where it, or the file, knows too little.
    """

    definition: Definition
    trials: tuple[Planned, ...]
    cells: int
    values: dict[str, int]
    like: str | None = None
    trial_seconds: float | None = None
    seconds: float | None = None
    cost_usd: float | None = None


def prospect_of(loaded: Loaded, selection: Selection = EVERYTHING, ledger: Ledger | None = None) -> Prospect:
    """Return what a sweep file comes to.

    Args:
        loaded: the sweep file.
        selection: which of its trials are wanted.
        ledger: where earlier sweeps are looked for; None to look for none.

    Raises:
        Invalid: no trial is selected.
    """
    trials = tuple(chosen(loaded, selection))
    definition = replace(loaded.definition, selection=selection)
    bare = Prospect(
        definition=definition,
        trials=trials,
        cells=len({key_of(trial.cell) for trial in trials}),
        values={axis: len({trial.cell[axis] for trial in trials if axis in trial.cell}) for axis in definition.axes},
    )
    earlier = None if ledger is None else _earlier(ledger, definition.name)
    if earlier is None:
        return bare
    like, attempts = earlier
    each = median(attempt.seconds for attempt in attempts)
    costs = [attempt.usage.cost_usd for attempt in attempts if attempt.usage is not None]
    at_once = definition.concurrency
    return replace(
        bare,
        like=like,
        trial_seconds=each,
        seconds=None if at_once is None else each * len(trials) / min(at_once, len(trials)),
        cost_usd=fmean(costs) * len(trials) if costs else None,
    )


def _earlier(ledger: Ledger, name: str) -> tuple[str, list[Attempt]] | None:
    """Return the latest sweep of a name of which trials were judged, with attempts of it that have ended."""
    for sweep in ledger.listed(LOOKED_BACK_MAX):
        if sweep.definition.name == name and sweep.scored:
            trials = ledger.trials(sweep.id, range(1, min(ledger.size(sweep.id), SAMPLE_MAX) + 1))
            ended = [attempt for trial in trials for attempt in trial.attempts if attempt.ended_at]
            if ended:
                return sweep.id, ended
    return None
