"""Commands on what came of sweeps: ``sweep results``, ``report``, ``compare``, ``export``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeAlias

from statem_dist.cli.answer import Answer, printable
from statem_dist.cli.declare import Argument, Option
from statem_dist.cli.session import JsonOption, StateDirOption
from statem_dist.cli.sweep_session import SweepArgument, SweepSession, results_text, sweep_session
from statem_dist.errors import Unavailable
from statem_dist.sweep.model import Sweep, Trial

if TYPE_CHECKING:
    from statem_dist.sweep.comparison import Comparison
    from statem_dist.sweep.scores import Scores

Counted: TypeAlias = Literal["strict", "valid"]
Format: TypeAlias = Literal["table", "json", "jsonl", "csv", "junit", "markdown"]

FILES: dict[Format, str] = {
    "json": "results.json",
    "jsonl": "trials.jsonl",
    "csv": "trials.csv",
    "junit": "junit.xml",
    "markdown": "summary.md",
}
"""The file of each format in an export; a table is for people at a terminal."""

SHOWN_MAX = 10
"""Tasks of a kind that a comparison names; the rest is counted."""

BaselineOption = Annotated[
    str | None,
    Option("--baseline", metavar="ID", help="Compare it with this sweep, task by task.", complete="sweeps"),
]
CountedOption = Annotated[
    Counted,
    Option("--counted", help="Whether trials that could not be judged count as not passed, or not at all."),
]


class Results:
    """A sweep with its trials as they stand, their scores, and how it compares with a baseline."""

    def __init__(self, work: SweepSession, wanted: str, baseline: str | None, counted: Counted = "strict") -> None:
        from statem_dist.sweep.comparison import compare
        from statem_dist.sweep.scores import scores_of

        self.sweep: Sweep = work.sweep(wanted)
        self.trials: list[Trial] = list(work.ledger.trials(self.sweep.id))
        self.scores: Scores = scores_of(self.sweep, self.trials)
        self.comparison: Comparison | None = None
        if baseline is not None:
            before = work.sweep(baseline)
            trials = list(work.ledger.trials(before.id))
            self.comparison = compare(before, trials, self.sweep, self.trials, counted=counted)

    def text(self, kind: Format) -> str:
        """Return the text of a format."""
        from statem_dist.sweep.outputs import documents, junit, summary, tables

        match kind:
            case "table":
                return results_text(self.sweep, self.trials, self.scores) + "\n"
            case "json":
                return documents.results_json(self.sweep, self.scores, self.comparison)
            case "jsonl":
                return tables.trials_jsonl(self.sweep, self.trials)
            case "csv":
                return tables.trials_csv(self.sweep, self.trials)
            case "junit":
                return junit.junit_xml(self.sweep, self.trials, self.scores)
            case "markdown":
                return summary.summary_markdown(self.sweep, self.scores, self.comparison)

    def page(self) -> str:
        """Return the text of the report as one page."""
        from statem_dist.sweep.outputs.page import report_html

        return report_html(self.sweep, self.trials, self.scores, self.comparison)

    def document(self) -> dict[str, Any]:
        """Return the results as JSON-ready data."""
        from statem_dist.sweep.outputs import documents

        return documents.document(self.sweep, self.scores, self.comparison)


def results(
    sweep: SweepArgument,
    format: Annotated[Format, Option("--format", help="table, json, jsonl, csv, junit or markdown.")] = "table",
    out: Annotated[
        Path | None, Option("--out", metavar="FILE", help="Write it to this file, instead of stdout.")
    ] = None,
    baseline: BaselineOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Show what came of a sweep, finished or not, in one of several formats.

    Example: statem-dist sweep results tb21 --format junit --out junit.xml
    """
    with sweep_session("sweep results", state_dir, wanted=sweep) as work:
        found = Results(work, sweep, baseline)
    data = {"ok": True, **found.document()}
    if out is None:
        if not as_json:
            _print_whole(found.text(format), plain=format != "table")
        return Answer(data, str)
    _write(out, found.text(format))
    return Answer({**data, "out": str(out)}, lambda: f"Written: {out}")


def report(
    sweep: SweepArgument,
    out: Annotated[Path, Option("--out", metavar="FILE", help="The file to write.")] = Path("report.html"),
    baseline: BaselineOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Write the report of a sweep as one HTML page that needs nothing else.

    Example: statem-dist sweep report tb21 --out report.html --baseline tb20
    """
    with sweep_session("sweep report", state_dir, wanted=sweep) as work:
        found = Results(work, sweep, baseline)
    _write(out, found.page())
    return Answer({"ok": True, **found.document(), "out": str(out)}, lambda: f"Written: {out}")


def compare(
    sweep: SweepArgument,
    baseline: Annotated[str, Argument(metavar="BASELINE", help="The sweep to compare with.", complete="sweeps")],
    counted: CountedOption = "strict",
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Compare a sweep with a baseline, task by task: what was gained and lost, and whether that may be chance.

    Example: statem-dist sweep compare tb21-new tb21-old
    """
    with sweep_session("sweep compare", state_dir, wanted=sweep) as work:
        comparison = Results(work, sweep, baseline, counted).comparison
    assert comparison is not None, "a baseline was given"
    return Answer({"ok": True, **comparison.as_data()}, lambda: _compared(comparison))


def export(
    sweep: SweepArgument,
    out: Annotated[Path, Option("--out", metavar="DIR", help="The folder to write to; made if missing.")],
    baseline: BaselineOption = None,
    state_dir: StateDirOption = None,
    as_json: JsonOption = False,
) -> Answer:
    """Write the results of a sweep in every format, and its report, to a folder.

    Example: statem-dist sweep export tb21 --out tb21-results
    """
    with sweep_session("sweep export", state_dir, wanted=sweep) as work:
        found = Results(work, sweep, baseline)
    written = {out / name: found.text(kind) for kind, name in FILES.items()}
    written[out / "report.html"] = found.page()
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Unavailable(f"The folder {out} cannot be made: {error.strerror}.") from error
    for path, text in written.items():
        _write(path, text)
    names = [str(path) for path in written]
    data = {"ok": True, "sweep": found.sweep.id, "complete": found.sweep.complete, "files": names}
    return Answer(data, lambda: "\n".join(f"Written: {name}" for name in names))


def _write(path: Path, text: str) -> None:
    from statem_dist.files import write_whole

    try:
        write_whole(path.absolute(), text)
    except OSError as error:
        raise Unavailable(f"{path} cannot be written: {error.strerror}.") from error


def _print_whole(text: str, *, plain: bool) -> None:
    """Print a file to stdout, to the byte; on a terminal, where it should be plain, without what moves its cursor."""
    sys.stdout.write(printable(text.replace("\r\n", "\n")) if plain and sys.stdout.isatty() else text)


def _compared(comparison: Comparison) -> str:
    from statem_dist.sweep.model import values_of
    from statem_dist.sweep.outputs.figures import p_value, percent, points

    before, after = comparison.baseline, comparison.other
    low, high = comparison.difference_low, comparison.difference_high
    interval = "" if low is None or high is None else f", 95 % between {points(low)} and {points(high)}"
    lines = [
        f"{after.id}: {percent(after.mean)}",
        f"{before.id}: {percent(before.mean)} (baseline)",
        f"difference: {points(comparison.difference)}{interval}; {len(comparison.pairs)} tasks, {comparison.counted}",
        f"p-values: McNemar {p_value(comparison.mcnemar_p)}, sign flip {p_value(comparison.sign_flip_p)}",
    ]
    for word, cells in (
        ("gained", comparison.majority.gained),
        ("lost", comparison.majority.lost),
        ("only in the sweep", comparison.only_in_other),
        ("only in the baseline", comparison.only_in_baseline),
        ("without a judged trial", comparison.unscored),
    ):
        if cells:
            more = f"; and {len(cells) - SHOWN_MAX} more" if len(cells) > SHOWN_MAX else ""
            lines.append(f"{word}: {len(cells)} ({'; '.join(map(values_of, cells[:SHOWN_MAX]))}{more})")
    lines += [f"warning: {warning}" for warning in comparison.warnings]
    return "\n".join(lines)
