"""Every output of a sweep is read back by the tool it is for, with names and outputs that try to break out of it."""

from __future__ import annotations

import base64
import csv
import hashlib
import json
import math
import re
from html.parser import HTMLParser
from io import StringIO
from pathlib import Path
from typing import Any, NoReturn
from xml.etree import ElementTree

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from junitparser import JUnitXml, xunit2
from markdown_it import MarkdownIt

from statem_dist.files import write_whole
from statem_dist.sweep.comparison import compare
from statem_dist.sweep.model import STATES, Planned, Trial, Usage
from statem_dist.sweep.outputs.documents import digest, results_json
from statem_dist.sweep.outputs.junit import junit_xml
from statem_dist.sweep.outputs.page import TOLD_MAX, report_html
from statem_dist.sweep.outputs.summary import summary_markdown
from statem_dist.sweep.outputs.tables import trials_csv, trials_jsonl
from statem_dist.sweep.scores import scores_of
from tests.support.sweeps import HOSTILE, T0, attempt, definition, grid, sweep_of, trial, trials_of

AXES = ("model", "task")
HOSTILE_TRIALS = grid(2, 3, 2, hostile=True)
TEXT = st.text(st.characters(exclude_categories=()), max_size=30)


def strict(text: str) -> Any:
    """Return what a strict JSON parser reads: no NaN, no duplicate keys; a second parser must agree."""

    def refuse(constant: str) -> NoReturn:
        raise AssertionError(f"{constant} is not JSON")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        assert len({key for key, _ in pairs}) == len(pairs), "a key is there twice"
        return dict(pairs)

    data = json.loads(text, parse_constant=refuse, object_pairs_hook=once)
    assert msgspec.json.decode(text) == data
    return data


def read_csv(text: str) -> list[dict[str, str]]:
    """Return the rows that Python's csv module reads."""
    rows = list(csv.reader(StringIO(text, newline=""), strict=True))
    assert {len(row) for row in rows} == {len(rows[0])}
    assert len(set(rows[0])) == len(rows[0])
    return [dict(zip(rows[0], row, strict=True)) for row in rows[1:]]


def test_results_are_strict_json_with_every_key() -> None:
    """The document identifies the sweep, says whether it is complete, and has its counts and scores."""
    sweep = sweep_of(HOSTILE_TRIALS)
    data = strict(results_json(sweep, scores_of(sweep, HOSTILE_TRIALS)))
    assert list(data) == [
        "schema", "sweep", "definition", "status", "status_reason", "complete", "counts", "scores", "comparison",
    ]  # fmt: skip
    assert (data["sweep"]["id"], data["complete"], data["comparison"]) == ("swp-1", False, None)
    assert data["definition"]["runbook_hash"] == "f00d"
    assert data["counts"]["planned"] == sum(data["counts"][state] for state in STATES) == len(HOSTILE_TRIALS)
    assert len(data["scores"]["rows"]) == 2
    assert data["scores"]["overall"]["usage"]["cost_usd"] == pytest.approx(0.25 * len(HOSTILE_TRIALS))


def test_keys_do_not_depend_on_what_there_is() -> None:
    """A sweep without trials has the keys of one with trials of all kinds."""

    def keys(data: Any) -> Any:
        return {key: keys(value) for key, value in data.items()} if isinstance(data, dict) else None

    empty = sweep_of([])
    nothing = strict(results_json(empty, scores_of(empty, [])))
    trials = trials_of({("m", "t"): list(STATES)}, AXES)
    sweep = sweep_of(trials)
    everything = strict(results_json(sweep, scores_of(sweep, trials)))
    for data in (nothing, everything):
        for free in ("reasons", "earlier_reasons"):
            data["scores"]["overall"].pop(free)
    assert keys(nothing) == keys(everything)


def test_the_digest_is_that_of_what_was_asked_and_not_of_where() -> None:
    """The same definition from another folder has the same digest, another limit of steps another one."""
    here = definition()
    there = msgspec.structs.replace(here, file="/else/tb.sweep.yaml", folder="/else", runbook_path="/else/tb.yaml")
    assert digest(here) == digest(there)
    assert digest(here) != digest(msgspec.structs.replace(here, max_steps=21))


def test_a_comparison_is_part_of_the_results() -> None:
    """With a baseline the document has all of the comparison."""
    trials = trials_of({("m", "t"): ["passed"], ("m", "u"): ["failed"]}, AXES)
    sweep = sweep_of(trials)
    data = strict(results_json(sweep, scores_of(sweep, trials), compare(sweep, trials, sweep, trials)))
    assert data["comparison"]["difference"] == 0.0


def test_every_planned_trial_has_a_row() -> None:
    """Also trials that have not begun have a row, in the order of the plan; no line of JSONL is split by U+2028."""
    trials = [*HOSTILE_TRIALS, trial(99, {"model": HOSTILE, "task": "x"}, 1, "pending")]
    sweep = sweep_of(trials)
    lines = trials_jsonl(sweep, trials).splitlines()
    rows = [strict(line) for line in lines]
    table = read_csv(trials_csv(sweep, trials))
    assert [row["number"] for row in rows] == [each.planned.number for each in trials]
    assert [int(row["number"]) for row in table] == [each.planned.number for each in trials]
    assert len({tuple(row) for row in rows}) == 1
    assert rows[-1]["values"]["model"] == HOSTILE
    assert table[-1]["values.model"] == HOSTILE
    assert (rows[-1]["state"], rows[-1]["reason"], rows[-1]["attempts"]) == ("pending", None, 0)
    assert (table[-1]["state"], table[-1]["reason"], table[-1]["scored"]) == ("pending", "", "false")


def test_the_columns_are_always_the_same() -> None:
    """A sweep without trials has the head of any other."""
    full, empty = sweep_of(HOSTILE_TRIALS), sweep_of([])
    head = trials_csv(full, HOSTILE_TRIALS).split("\r\n")[0]
    assert trials_csv(empty, []) == head + "\r\n"
    assert head.startswith("schema,sweep,number,values.model,values.task,repetition,state,scored,passed,")


@pytest.mark.parametrize("value", ["=1+1", "+1", "-1", "@SUM(A1)", "\t=1", "\r=1", "\n=1", "\uff1d1"])
def test_no_cell_is_a_formula(value: str) -> None:
    """A name that a spreadsheet would calculate has an apostrophe before it; numbers stay numbers."""
    trials = [trial(1, {"model": value, "task": "a-b=c"}, 1, "failed", detail=value, queued=-1.0)]
    (row,) = read_csv(trials_csv(sweep_of(trials), trials))
    assert row["values.model"] == row["detail"] == f"'{value}"
    assert (row["values.task"], row["queued_seconds"]) == ("a-b=c", "-1.0")


def test_earlier_attempts_are_counted_in_csv_and_told_in_jsonl() -> None:
    """The row is that of the attempt that counts; usage is that of all, and a cost of NaN is none."""
    cell = {"model": "m", "task": "t"}
    tried = (
        attempt(1, "worker_lost", usage=Usage(input_tokens=3, cost_usd=math.nan)),
        attempt(1, "success_end", attempt=2, usage=Usage(input_tokens=4, cost_usd=0.5)),
    )
    done = Trial(planned=Planned(number=1, cell=cell, repetition=1), state="passed", attempts=tried)
    again = Trial(planned=Planned(number=2, cell=cell, repetition=2), state="pending", attempts=tried[:1])
    sweep = sweep_of([done, again])
    first, second = (strict(line) for line in trials_jsonl(sweep, [done, again]).splitlines())
    assert (first["attempts"], first["run_id"], first["reason"]) == (2, "run-1-2", "success_end")
    assert [each["reason"] for each in first["earlier_attempts"]] == ["worker_lost"]
    assert (first["input_tokens"], first["cost_usd"]) == (7, 0.5)
    assert (second["run_id"], [each["run_id"] for each in second["earlier_attempts"]]) == (None, ["run-1-1"])
    assert [row["attempts"] for row in read_csv(trials_csv(sweep, [done, again]))] == ["2", "1"]
    assert first["started_at"] == "2026-09-21T14:13:22.000+00:00", T0


@given(TEXT, TEXT, TEXT)
def test_any_text_comes_back(model: str, task: str, detail: str) -> None:
    """JSONL, JSON and CSV give back any text, but for halves of surrogate pairs, and can be written to a file."""
    trials = [trial(1, {"model": model, "task": task}, 1, "failed", detail=detail)]
    sweep = sweep_of(trials)
    whole = detail.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    assert strict(trials_jsonl(sweep, trials))["detail"] == whole
    (row,) = read_csv(trials_csv(sweep, trials))
    assert row["detail"] in (whole, f"'{whole}")
    strict(results_json(sweep, scores_of(sweep, trials)))
    trials_csv(sweep, trials).encode()


def test_outputs_can_be_written_whole(tmp_path: Path) -> None:
    """What is written is what is read."""
    sweep = sweep_of(HOSTILE_TRIALS)
    write_whole(tmp_path / "trials.csv", trials_csv(sweep, HOSTILE_TRIALS))
    with (tmp_path / "trials.csv").open(newline="", encoding="utf-8") as file:
        assert len(list(csv.reader(file))) == len(HOSTILE_TRIALS) + 1


def read_junit(text: str, path: Path) -> JUnitXml:
    """Return the report that junitparser reads from a file, after the standard library has read it."""
    ElementTree.fromstring(text.encode())
    write_whole(path, text)
    report = JUnitXml.fromfile(str(path))
    assert isinstance(report, JUnitXml)
    return report


def test_junit_is_read_with_its_counts(tmp_path: Path) -> None:
    """A suite per row, a case per planned trial, each verdict where it belongs, properties before the cases."""
    trials = trials_of({("opus", "x"): list(STATES), ("sonnet", "x"): ["passed"]}, AXES)
    sweep = sweep_of(trials)
    report = read_junit(junit_xml(sweep, trials, scores_of(sweep, trials)), tmp_path / "junit.xml")
    assert (report.tests, report.failures, report.errors, report.skipped) == (9, 3, 1, 3)
    suites = list(report)
    assert [suite.name for suite in suites] == ["opus", "sonnet"]
    assert [len(list(suite)) for suite in suites] == [8, 1]
    verdicts = {case.name: [type(result).__name__ for result in case.result] for case in suites[0]}
    assert verdicts["model=opus, task=x [trial 3/8]"] == []
    assert [verdicts[f"model=opus, task=x [trial {n}/8]"] for n in (1, 2, 4, 5, 6, 7, 8)] == [
        ["Skipped"], ["Skipped"], ["Failure"], ["Failure"], ["Failure"], ["Error"], ["Skipped"],
    ]  # fmt: skip
    properties = {each.name: each.value for each in suites[0].properties()}  # type: ignore[no-untyped-call]
    assert properties["statem.strict.pass@1"] == "0.125000"
    assert properties["statem.coverage"] == "0.500000"
    assert suites[0].timestamp == "2026-09-21T14:13:23Z"
    assert suites[0].time == 2.0 * 6
    assert suites[0].hostname == "h1"


def test_junit_tells_earlier_attempts() -> None:
    """Before a passed trial they are flaky, before any other reruns; each has its trace."""
    tried = [
        attempt(1, "worker_lost", detail="gone"),
        attempt(1, "failure_end", attempt=2, detail="no"),
        attempt(1, "success_end", attempt=3),
    ]
    passed = Trial(planned=Planned(1, {"model": "m", "task": "t"}, 1), state="passed", attempts=tuple(tried))
    failed = Trial(planned=Planned(2, {"model": "m", "task": "t"}, 2), state="failed", attempts=tuple(tried[:2]))
    sweep = sweep_of([passed, failed])
    text = junit_xml(sweep, [passed, failed], scores_of(sweep, [passed, failed]))
    elements = ElementTree.fromstring(text.encode()).iter("testcase")
    cases = [xunit2.TestCase.fromelem(each) for each in elements]  # type: ignore[no-untyped-call]
    assert cases[0].is_passed
    assert [(each.type, each.stack_trace) for each in cases[0].flaky_errors()] == [("worker_lost", "gone")]
    assert [(each.type, each.stack_trace) for each in cases[0].flaky_failures()] == [("failure_end", "no")]
    assert [(each.type, each.stack_trace) for each in cases[1].rerun_errors()] == [("worker_lost", "gone")]
    assert [result.type for result in cases[1].result] == ["failure_end"]
    assert "run run-1-3, attempt 3, at node work" in (cases[0].system_out or "")


def test_junit_holds_hostile_text(tmp_path: Path) -> None:
    """Names that XML cannot hold stay apart, markup stays text, what is forbidden is gone."""
    trials = trials_of({(HOSTILE, "a\x00"): ["failed"], (HOSTILE, "a"): ["failed"]}, AXES)
    sweep = sweep_of(trials)
    (suite,) = read_junit(junit_xml(sweep, trials, scores_of(sweep, trials)), tmp_path / "junit.xml")
    names = [case.name for case in suite]
    assert len(set(names)) == 2
    assert "<script>alert(1)</script> ]]> &amp; " in names[0]
    assert "漢字 \U0001f600" in names[0]
    assert "\x00" not in names[0]
    assert "\x1b" not in names[0]


def test_junit_stays_below_the_limit() -> None:
    """Outputs are cut, their ends kept, until the file is small enough; no case is left out."""
    trials = [trial(n, {"model": "m", "task": "t"}, n, "failed", detail="x" * 10_000 + "END") for n in range(1, 101)]
    sweep = sweep_of(trials)
    scores = scores_of(sweep, trials)
    whole = junit_xml(sweep, trials, scores)
    assert "left out" not in whole
    small = junit_xml(sweep, trials, scores, bytes_max=300_000)
    assert len(small.encode()) < 300_000
    assert small.count("<testcase") == small.count("xEND</failure>") == 100
    assert "[8979 characters left out]" in small
    least = junit_xml(sweep, trials, scores, bytes_max=1)
    assert least.count("<testcase") == 100
    assert "system-out" not in least


@given(TEXT, TEXT, TEXT)
def test_any_text_is_held_by_xml_and_markdown(model: str, task: str, detail: str) -> None:
    """Whatever the names and outputs: the XML is well-formed, and the table of the summary has its columns."""
    trials = [trial(1, {"model": model, "task": task}, 1, "failed", detail=detail)]
    sweep = sweep_of(trials)
    scores = scores_of(sweep, trials)
    ElementTree.fromstring(junit_xml(sweep, trials, scores).encode())
    table = [line for line in summary_markdown(sweep, scores).encode().decode().split("\n") if line.startswith("|")]
    assert len(table) == 3
    assert len({line.count("|") for line in table}) == 1


def test_the_summary_shows_hostile_names_as_they_are() -> None:
    """A Markdown parser makes no link, tag, code or emphasis of names, and gives their text back."""
    sweep = sweep_of(HOSTILE_TRIALS)
    scores = scores_of(sweep, HOSTILE_TRIALS)
    baseline = trials_of({("m", "t0"): ["failed"]}, AXES)
    text = summary_markdown(sweep, scores, compare(sweep_of(baseline), baseline, sweep, HOSTILE_TRIALS))
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    inline = [child for token in tokens for child in token.children or ()]
    assert {child.type for child in inline} <= {"text", "text_special", "strong_open", "strong_close", "softbreak"}
    cells = ["".join(child.content for child in token.children or ()) for token in tokens if token.type == "inline"]
    assert any("| pipe `tick` * _ [link](http://x) [31m <script>alert(1)</script> ]]> &amp; " in cell for cell in cells)
    assert {token.type for token in tokens} <= {
        "heading_open", "heading_close", "paragraph_open", "paragraph_close", "inline", "table_open", "table_close",
        "thead_open", "thead_close", "tbody_open", "tbody_close", "tr_open", "tr_close", "th_open", "th_close",
        "td_open", "td_close", "bullet_list_open", "bullet_list_close", "list_item_open", "list_item_close",
    }  # fmt: skip


def test_the_summary_says_what_counts() -> None:
    """Both ways of counting stand beside the coverage, and all rows have a line."""
    trials = trials_of({("opus", "x"): ["passed", "error"], ("sonnet", "x"): ["failed", "passed"]}, AXES)
    sweep = sweep_of(trials)
    text = summary_markdown(sweep, scores_of(sweep, trials))
    assert "**50.0 % of 4 planned trials passed**" in text
    assert "66.7 % of 3 scored (valid only); coverage 75.0 %. Status: finished, not complete." in text
    assert [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| ")] == [
        "| model", "| ---", "| opus", "| sonnet", "| all",
    ]  # fmt: skip


VOID = {"meta", "link", "br"}


class Page(HTMLParser):
    """What a page holds, read by the standard library; every element must be closed where it was opened."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.scripts: list[str] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note an element."""
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Check that it closes what is open."""
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        """Keep text apart from scripts."""
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        else:
            self.text += data

    def values(self, name: str) -> list[str]:
        """Return the values of an attribute wherever it stands."""
        return [value for attribute, value in self.attributes if attribute == name]


def page_of(trials: list[Trial], baseline: list[Trial] | None = None) -> tuple[str, Page]:
    """Return the page of trials as text and as it is read."""
    sweep = sweep_of(trials)
    comparison = None if baseline is None else compare(sweep_of(baseline), baseline, sweep, trials)
    text = report_html(sweep, trials, scores_of(sweep, trials), comparison)
    return text, Page(text)


def test_the_page_needs_nothing_and_runs_nothing_else() -> None:
    """One file: links lead within it, its policy allows the one script and the one style, hostile names are text."""
    text, page = page_of(HOSTILE_TRIALS, HOSTILE_TRIALS)
    assert page.tags.count("script") == len(page.scripts) == 1
    (style,) = re.findall("<style>(.*?)</style>", text, re.DOTALL)
    of_style, of_script = (
        base64.b64encode(hashlib.sha256(each.encode()).digest()).decode() for each in (style, page.scripts[0])
    )
    (policy,) = (value for value in page.values("content") if "default-src" in value)
    allowed = f"style-src 'sha256-{of_style}'; script-src 'sha256-{of_script}'"
    assert policy == f"default-src 'none'; img-src data:; {allowed}"
    assert not {"img", "iframe", "object", "form", "base", "video"} & set(page.tags)
    assert page.values("src") == []
    assert all(link == "data:," or link.removeprefix("#") in page.values("id") for link in page.values("href"))
    assert len(set(page.values("id"))) == len(page.values("id"))
    assert not [name for name, _ in page.attributes if name.startswith("on") or name == "style"]
    assert "<script>alert(1)</script> ]]> &amp; " in page.text
    assert "\x1b" not in page.text
    assert "\x00" not in page.text


def test_the_page_has_a_cell_per_trial_with_sign_and_title() -> None:
    """Colour is never alone: each state has a sign and a title; what has not passed leads to what was said of it."""
    trials = trials_of({("opus", "x"): list(STATES), ("sonnet", "x"): ["passed"]}, AXES)
    text, page = page_of(trials)
    titles = [value for value in page.values("title") if value.startswith("model=")]
    assert len(titles) == len(trials)
    assert "model=opus, task=x, trial 7: error (check_not_evaluated), 2.0 s" in titles
    assert [value for value in page.values("aria-label") if value.startswith("model=")] == titles
    assert 'class="e" href="#t7"' in text
    for glyph in "·▶✓✗∞◷!⊘":
        assert f">{glyph}</a>" in text
    assert "Not complete: 5 of 9 planned trials are scored." in page.text


def test_the_page_of_a_baseline_lists_flips() -> None:
    """What was gained and lost is named, with the size of the difference and how sure it is."""
    before = trials_of({("m", "up"): ["failed"], ("m", "down"): ["passed"], ("m", "gone"): ["passed"]}, AXES)
    after = trials_of({("m", "up"): ["passed"], ("m", "down"): ["failed"], ("m", "new"): ["passed"]}, AXES)
    _, page = page_of(after, before)
    for told in ("now (1) task=up", "before (1) task=down", "in the baseline (1) task=gone", "here (1) task=new"):
        assert told in " ".join(page.text.split())
    assert "+0.0 points (95 %: -100.0 points to +100.0 points) over 2 tasks" in page.text


@pytest.mark.parametrize(("models", "tasks", "bytes_max"), [(1, 89, 1_000_000), (2, 1000, 4_000_000)])
def test_the_page_of_many_trials_is_small(models: int, tasks: int, bytes_max: int) -> None:
    """445 trials take less than 1 MB, 10,000 a few; what is left out is counted."""
    trials = grid(models, tasks, 5)
    text, page = page_of(trials)
    assert len(text.encode()) < bytes_max
    assert len([value for value in page.values("title") if value.startswith("model=")]) == len(trials)
    troubled = sum(each.state != "passed" for each in trials)
    assert ("more are in trials.csv" in page.text) == (troubled > TOLD_MAX)


def test_the_page_of_no_trials_is_a_page() -> None:
    """Nothing planned, nothing listed: the page says so and does not fail."""
    plain = definition(("task",), ())
    sweep = sweep_of([], plain)
    assert "- strict: 0 of 0 planned" in Page(report_html(sweep, [], scores_of(sweep, []))).text


@given(TEXT, TEXT, TEXT)
def test_any_text_is_held_by_the_page(model: str, task: str, detail: str) -> None:
    """Whatever the names and outputs: elements stay balanced and the script stays the only one."""
    trials = [trial(1, {"model": model, "task": task}, 1, "failed", detail=detail)]
    text, page = page_of(trials)
    assert page.tags.count("script") == 1
    text.encode()
