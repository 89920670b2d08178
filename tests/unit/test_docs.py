"""The documentation says what is true: examples parse; commands, options, variables and limits are the code's."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from textwrap import indent
from typing import Any, NamedTuple, get_args

import pytest
import typer

from statem_dist import errors
from statem_dist.checks import process, supervisor
from statem_dist.checks.context import Limits
from statem_dist.checks.environment import RUN_NAMES, STORE_WITHHELD
from statem_dist.cli.completing import LIMIT_SECONDS as COMPLETION_SECONDS
from statem_dist.cli.full import make_app
from statem_dist.cli.hook import LIMIT_SECONDS
from statem_dist.embedded import server
from statem_dist.hook_settings import HOOK_SECONDS
from statem_dist.protocol import decide, outcome
from statem_dist.protocol.graph import CHECK_TYPES, DynamicConfig, Retry
from statem_dist.roles import Role
from statem_dist.roster import ANNOUNCE_SECONDS, PRESENCE_SECONDS
from statem_dist.runbook import checks, nodes, parse, tree
from statem_dist.settings import Settings
from statem_dist.statem_folders import HISTORY_BYTES_MAX
from statem_dist.stophook import REMINDERS_MAX, STOP_STATES
from statem_dist.sweep import form, model
from statem_dist.sweep.model import OUTCOME_OF, SCORED, STATES
from statem_dist.sweep.spec import load_sweep
from statem_dist.tokens import KEPT_MS, LIFE_SECONDS_MAX

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
RUNBOOKS = (ROOT / "docs" / "runbooks.md").read_text(encoding="utf-8")
CLI = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
SWEEPS = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")
OPERATIONS = (ROOT / "docs" / "operations.md").read_text(encoding="utf-8")

FAILURES = (ROOT / "docs" / "failures.md").read_text(encoding="utf-8")

OPTION = re.compile(r"(?<![\w/.-])(--[a-z][a-z-]*|-[A-Za-z])(?!\w)")
HELP = {"--help", "-h"}

FRAMES = {
    "": ("", 0),
    "checks": ("nodes:\n  here:\n    before_transfer:\n", 6),
    "node": ("nodes:\n  there:\n  here:\n", 4),
    "edge": ("nodes: [here, there]\nedges:\n", 2),
}
"""What stands before an example, and how far it is indented below that, by the word behind ``yaml`` on its fence."""


class Example(NamedTuple):
    """A fenced block: the document and line where it begins, the words on its fence, and its text."""

    place: str
    words: tuple[str, ...]
    text: str


def examples(path: Path, language: str) -> list[Example]:
    """Return the fenced blocks of a document in one language."""
    text = path.read_text(encoding="utf-8")
    found = re.finditer(rf"^```{language}\b([^\n]*)\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return [
        Example(f"{path.name}:{text.count(chr(10), 0, match.start()) + 1}", tuple(match[1].split()), match[2])
        for match in found
    ]


YAML = [each for path in DOCUMENTS for each in examples(path, "yaml")]


def framed(example: Example) -> str:
    """Return an example with what has to stand before it to make it a runbook."""
    head, columns = FRAMES[" ".join(word for word in example.words if not word.endswith("invalid"))]
    return head + indent(example.text, " " * columns)


def sections(text: str, level: int) -> dict[str, str]:
    """Return the parts of a document by their headings of one level."""
    parts = re.split(rf"^{'#' * level} (.+)$", text, flags=re.MULTILINE)
    return {
        title.strip("`"): re.split(r"^#{2,3} ", body, flags=re.MULTILINE)[0]
        for title, body in zip(parts[1::2], parts[2::2], strict=True)
    }


def rows(section: str) -> list[list[str]]:
    """Return the cells of the rows of the tables in a section, without heads."""
    lines = [line for line in section.splitlines() if line.startswith("| ")]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    return [row for row in cells if row[0] not in ("code", "variable")]


def members(group: Any, prefix: str = "") -> dict[str, Any]:
    """Return every command of a group and of the groups in it, by its words."""
    found: dict[str, Any] = {}
    for name, command in group.commands.items():
        inner = members(command, f"{prefix}{name} ") if hasattr(command, "commands") else {f"{prefix}{name}": command}
        found |= inner
    return found


ROOT_COMMAND: Any = typer.main.get_command(make_app())
COMMANDS = members(ROOT_COMMAND)


def options(command: Any) -> set[str]:
    """Return every spelling of the options of a command."""
    given = (parameter for parameter in command.params if parameter.param_type_name == "option")
    return {spelling for parameter in given for spelling in (*parameter.opts, *parameter.secondary_opts)} - HELP


def names_looked_up(module: ast.AST) -> Iterator[str]:
    """Yield every text by which a module looks something up, and what it calls the name of a variable."""
    for node in ast.walk(module):
        match node:
            case ast.Call(func=ast.Attribute(attr="get"), args=[ast.Constant(value=str(name)), *_]):
                yield name
            case ast.Call(func=ast.Name(id="_seconds" | "_whole"), args=[_, ast.Constant(value=str(name)), *_]):
                yield name
            case ast.Subscript(slice=ast.Constant(value=str(name)), ctx=ast.Load()):
                yield name
            case ast.Assign(targets=[ast.Name(id="VARIABLE")], value=ast.Constant(value=str(name))):
                yield name
            case _:
                pass


def variables_read() -> set[str]:
    """Return the names of our environment variables that any module reads."""
    modules = [*(ROOT / "statem_dist").rglob("*.py"), *(ROOT / "workers").rglob("*.py")]
    names = {name for path in modules for name in names_looked_up(ast.parse(path.read_text(encoding="utf-8")))}
    return {name for name in names if re.fullmatch(r"STATEM_[A-Z_]+", name)}


# --- the format of runbooks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "example", [each for each in YAML if "sweep" not in each.words], ids=lambda example: example.place
)
def test_examples_of_runbooks_are_valid_where_they_claim_to_be(example: Example) -> None:
    """Every YAML example passes strict validation, except those whose fence says what refuses them."""
    text = framed(example)
    if "invalid" in example.words:
        with pytest.raises(errors.RunbookInvalid):
            parse(text, source=example.place)
        return
    if "strict-invalid" in example.words:
        assert parse(text, source=example.place).warnings
        with pytest.raises(errors.RunbookInvalid):
            parse(text, source=example.place, strict=True)
        return
    parse(text, source=example.place, strict=True)


@pytest.mark.parametrize("example", [each for each in YAML if "sweep" in each.words], ids=lambda example: example.place)
def test_examples_of_sweeps_are_valid(example: Example, tmp_path: Path) -> None:
    """Every example of a sweep file is one, beside a runbook that has the ends it names."""
    (tmp_path / "runbook.yaml").write_text(
        "nodes: {work: {next: [done, given-up]}, done: , given-up: }", encoding="utf-8"
    )
    file = tmp_path / "example.sweep.yaml"
    file.write_text(example.text, encoding="utf-8")
    assert load_sweep(file).cells


def test_every_keyword_of_a_sweep_file_is_described_with_its_default() -> None:
    """The table of keywords is that of the model, and the figures in it are its defaults."""
    documented = {row[0].strip("`"): row[2] for row in rows(sections(SWEEPS, 2)["The sweep file"]) if len(row) == 3}
    fields = form.SweepFile.model_fields
    assert set(fields) == set(documented) - {"keyword"}
    assert {name for name, field in fields.items() if field.is_required()} == {"runbook"}
    for name in ("trials", "seed", "queue", "max_steps", "retries", "priority"):
        assert documented[name].strip("`") == str(fields[name].default)
    assert documented["timeouts"].startswith(f"{model.Agent('').timeout / 3600:g}h for a call")
    assert documented["disk_floor"] == f"{fields['disk_floor'].default >> 20}M"
    assert f"at most {form.TRIALS_MAX:,} trials" in SWEEPS
    kept = model.Artifacts()
    assert f"`file_max` ({kept.file_bytes_max >> 20}M without it)" in SWEEPS
    assert f"`total_max` ({kept.total_bytes_max >> 20}M)" in SWEEPS


@pytest.mark.parametrize(
    ("section", "part"),
    [("The agent", form.Agent), ("The workspace", form.Workspace), ("When a sweep stops", form.StopWhen)],
)
def test_keywords_below_those_of_a_sweep_file_are_described(section: str, part: type[form.Part]) -> None:
    """The tables of what stands under a keyword have exactly the keywords that may stand there."""
    documented = [row[0].strip("`") for row in rows(sections(SWEEPS, 3)[section])]
    assert documented[1:] == list(part.model_fields)


def test_states_of_trials_are_described_with_their_score() -> None:
    """The table of states has each of them, and says which count."""
    table = SWEEPS.partition("| state | a trial that |")[2].partition("`planned`")[0]
    documented = {row[0].strip("`"): row[2] == "yes" for row in rows(table) if len(row) == 3}
    assert documented == {str(state): state in SCORED for state in STATES}


def test_reasons_are_described_with_the_state_that_they_lead_to() -> None:
    """The list of reasons is closed: the table has each of them, in the order of the code, and no other."""
    table = SWEEPS.partition("| reason |")[2].partition("###")[0]
    documented: dict[str, str] = {}
    for row in rows(table):
        reasons, states = ([word.strip("`") for word in cell.split(", ")] for cell in row[:2])
        documented |= dict(zip(reasons, states * len(reasons) if len(states) == 1 else states, strict=True))
    assert list(documented.items()) == list(OUTCOME_OF.items())


def test_every_keyword_of_a_runbook_is_described() -> None:
    """The reference names every keyword that the parser knows, in every place."""
    known = {*nodes.ROOT_KEYWORDS, *nodes.NODE_KEYWORDS, *nodes.EDGE_KEYWORDS, *nodes.NEXT_KEYWORDS, *CHECK_TYPES}
    known = known.union(*checks.KEYWORDS.values(), Retry.__struct_fields__, DynamicConfig.__struct_fields__)
    described = set(re.findall(r"`([a-z_0-9-]+)[`:]", RUNBOOKS))
    assert known - described == set()


@pytest.mark.parametrize("check_type", sorted(CHECK_TYPES))
def test_every_type_of_check_has_a_section_with_an_example(check_type: str) -> None:
    """Each type is explained under its own heading, with an example in which it occurs."""
    section = sections(RUNBOOKS, 3)[check_type]
    assert "```yaml checks" in section


def test_every_reason_and_tier_is_described() -> None:
    """Nothing that a result can say is left unexplained."""
    section = sections(RUNBOOKS, 2)["What a result says"]
    described = set(re.findall(r"`([a-z_]+)`", section))
    assert {*get_args(outcome.Reason), *outcome.TIERS} - described == set()


def test_variables_of_commands_are_described() -> None:
    """The reference names the variables that a command sees, and no other of ours as one of them."""
    section = sections(RUNBOOKS, 2)["The environment of commands"]
    named = {name for row in rows(section) for name in re.findall(r"STATEM_[A-Z_]+", row[0])}
    assert named == RUN_NAMES - {"STATEM_URL"} | {STORE_WITHHELD}  # Nothing sets the URL yet.


# --- the command line ----------------------------------------------------------------------------------------------


def test_every_command_has_a_section_and_no_other_has() -> None:
    """The reference describes the commands that exist."""
    assert set(sections(CLI, 3)) == set(COMMANDS)


@pytest.mark.parametrize("name", sorted(COMMANDS))
def test_every_option_of_a_command_is_described_and_no_other(name: str) -> None:
    """The section of a command mentions exactly the options that it takes, and shows it in use."""
    section = sections(CLI, 3)[name]
    assert f"statem-dist {name}" in section
    assert set(OPTION.findall(section)) == options(COMMANDS[name])


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_commands_and_options_in_examples_exist(path: Path) -> None:
    """Whatever a document tells to type is a command, and its options are options of that command."""
    text = path.read_text(encoding="utf-8")
    code = [example.text for language in ("sh", "console") for example in examples(path, language)]
    code += re.findall(r"(?<!`)`([^`\n]+)`", text)
    typed = [line for part in code for line in re.findall(r"statem-dist ([a-z-][^\n|;&)]*)", part)]
    known = {"": ROOT_COMMAND, **COMMANDS}
    for line in typed:
        words = [] if line.startswith("-") else line.split()
        name = next((name for name in (" ".join(words[:2]), *words[:1]) if name in known), None)
        assert name is not None, line
        assert set(OPTION.findall(line)) <= options(known[name]) | HELP, line


def test_exit_codes_are_those_of_the_code() -> None:
    """The table of exit codes has every code under its name."""
    documented = {int(row[0]): row[1] for row in rows(sections(CLI, 2)["Exit codes"])}
    assert documented == {code.value: code.name.lower().replace("_", " ") for code in errors.ExitCode}


def test_environment_variables_are_those_that_are_read() -> None:
    """The table of variables names what the code reads, and its defaults."""
    documented = {row[0].strip("`"): row[1].strip("`") for row in rows(sections(CLI, 2)["Environment variables"])}
    assert set(documented) == variables_read()
    defaults = Settings.from_environment({})
    for name, default in documented.items():
        if name.endswith(("_SECONDS", "_EVENTS_MAX")):
            assert float(default) == getattr(defaults, name.removeprefix("STATEM_").lower())
    assert documented["STATEM_STATE_DIR"] == defaults.state_dir.name


def test_error_codes_are_those_of_the_error_tree() -> None:
    """The codes of errors in JSON are listed, and no others."""

    def tree_of(kind: type[errors.StatemError]) -> set[str]:
        return {kind.code}.union(*(tree_of(child) for child in kind.__subclasses__()))

    listed = CLI.rpartition("Codes: ")[2]
    assert set(re.findall(r"`([a-z_]+)`", listed)) - {"allowed"} == tree_of(errors.StatemError) - {"bad_request"}


# --- failures -------------------------------------------------------------------------------------------------------

FAILURE_ROWS = {"CB": 19, "SP": 10, "ST": 11, "WF": 15}
"""How many rows each table of failures has, by what the names of its rows begin with."""

REPORT = re.compile(r"\[([\w.-]+/[\w.-]+)#(\d+)\]\(https://github\.com/([\w.-]+/[\w.-]+)/issues/(\d+)\)")


def failures() -> dict[str, list[str]]:
    """Return the cells of the tables of failures by the name of their row."""
    lines = [line for line in FAILURES.splitlines() if re.match(r"\| [A-Z]{2}-", line)]
    cells = [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]
    assert len({row[0] for row in cells}) == len(cells), "no name is used twice"
    return {row[0]: row[1:] for row in cells}


def names_of_tests(path: Path) -> set[str]:
    """Return the names of the tests of a file."""
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    module = ast.parse(path.read_text(encoding="utf-8"))
    return {node.name for node in ast.walk(module) if isinstance(node, functions) and node.name.startswith("test_")}


def test_every_failure_has_its_row() -> None:
    """None is left out, and each says what went wrong, where it was reported, and what stands against it."""
    names = [f"{part}-{number:02}" for part, count in FAILURE_ROWS.items() for number in range(1, count + 1)]
    assert list(failures()) == names
    for name, row in failures().items():
        assert len(row) == 4, name
        failure, reports, answer, tests = row
        assert all(len(sentence) > 15 and sentence.endswith(".") for sentence in (failure, answer)), name
        for report in reports.split("<br>"):
            found = REPORT.fullmatch(report)
            assert found is not None, (name, report)
            assert found.groups()[:2] == found.groups()[2:], (name, report)
        assert tests, name


@pytest.mark.parametrize("name", failures())
def test_what_stands_against_a_failure_is_tested(name: str) -> None:
    """Every test that a row names is there, by file and function; a row names one at least."""
    named = failures()[name][-1].split("<br>")
    for each in named:
        found = re.fullmatch(r"`(\w+/test_\w+\.py)::(test_\w+)`", each)
        assert found is not None, each
        path = ROOT / "tests" / found[1]
        assert path.is_file(), each
        assert found[2] in names_of_tests(path), each
    assert len(set(named)) == len(named)


# --- figures and links ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("document", "sentence"),
    [
        (
            RUNBOOKS,
            f"{tree.BYTES_MAX >> 20} MiB per file, {tree.DEPTH_MAX} levels of nesting, {tree.NODES_MAX:,} values",
        ),
        (RUNBOOKS, f"first {process.HEAD_BYTES >> 10} KiB and the last {process.TAIL_BYTES >> 10} KiB"),
        (RUNBOOKS, f"up to {Limits().output_bytes_max >> 10} KiB of it"),
        (RUNBOOKS, f"larger than {Limits().predicate_bytes_max >> 20} MiB"),
        (RUNBOOKS, f"in text of {Limits().pattern_text_bytes_max >> 20} MiB"),
        (RUNBOOKS, f"for {Limits().pattern_seconds:g} seconds"),
        (
            RUNBOOKS,
            f"whole number from 1 to {checks.ATTEMPTS_MAX}, the first attempt included | {Retry().maximum_attempts} |",
        ),
        (RUNBOOKS, f"before the second attempt | {Retry().initial_interval:g} s |"),
        (RUNBOOKS, f"grows by each time | {Retry().backoff_coefficient:g} |"),
        (RUNBOOKS, f"before jitter | {Retry().maximum_interval:g} s |"),
        (RUNBOOKS, f"added to an interval | {Retry().jitter} |"),
        (
            OPERATIONS,
            f"announces\nitself every {ANNOUNCE_SECONDS:g} seconds and counts as gone {PRESENCE_SECONDS:g} seconds",
        ),
        (CLI, f"as far as they are found within {COMPLETION_SECONDS:g} s"),
        (OPERATIONS, f"Both stay listed for {KEPT_MS // 86_400_000} days"),
        (CLI, f"stays listed for {KEPT_MS // 86_400_000} days at least"),
        (OPERATIONS, f"A start waits {server.START_TIMEOUT_SECONDS:g} seconds"),
        (OPERATIONS, f"up to {Limits().output_bytes_max >> 10} KiB of the output"),
    ],
)
def test_figures_are_those_of_the_code(document: str, sentence: str) -> None:
    """A limit that is changed in the code has to be changed in the text."""
    assert sentence in document


def test_figures_in_words_are_those_of_the_code() -> None:
    """The figures that the text spells out."""
    assert "SIGTERM and two seconds later" in RUNBOOKS.replace("\n", " ")
    assert process.KILL_GRACE_SECONDS == Settings(state_dir=Path()).kill_grace_seconds == 2
    assert "three times at the most" in RUNBOOKS
    assert decide.STARTS_MAX == 3
    assert supervisor.ORPHANED_GRACE_SECONDS <= process.KILL_GRACE_SECONDS


def test_roles_of_tokens_are_described_in_their_order() -> None:
    """The table has each role once, least first, and the text how long a token may live."""
    described = [row[0].strip("`") for row in rows(sections(OPERATIONS, 2)["Tokens"]) if row[0] != "role"]
    assert described == list(get_args(Role))
    assert LIFE_SECONDS_MAX == 10 * 366 * 86_400
    assert "at most ten years" in CLI


def test_what_agents_are_told_of_the_stop_hook_is_true() -> None:
    """The figures and names of the Stop hook are the code's."""
    agents = (ROOT / "docs" / "agents.md").read_text(encoding="utf-8")
    assert f"told to go on {['', 'once', 'twice', 'three', 'four', 'five', 'six'][REMINDERS_MAX]} times" in agents
    assert all(f"`{state}`" in agents for state in STOP_STATES)
    row = next(row for row in rows(sections(CLI, 2)["Environment variables"]) if "STOP_STATES" in row[0])
    assert set(row[1].strip("`").split(",")) == STOP_STATES
    assert f"within {['', 'one', 'two'][round(LIMIT_SECONDS)]} seconds" in agents
    assert f'"timeout": {HOOK_SECONDS}' in agents
    assert f"more than {HISTORY_BYTES_MAX >> 20} MiB" in CLI


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    """Every relative link names a file of the checkout, and every anchor a heading."""
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text(encoding="utf-8")):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        linked = (path.parent / name) if name else path
        assert linked.exists(), target
        headings = re.findall(r"^#+ (.+)$", linked.read_text(encoding="utf-8"), re.MULTILINE) if anchor else []
        assert not anchor or anchor in {re.sub(r"[^\w -]", "", each).lower().replace(" ", "-") for each in headings}
