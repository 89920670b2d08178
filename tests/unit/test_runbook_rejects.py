"""What a runbook must not look like: each mistake is named with its place, all of them in one answer."""

from __future__ import annotations

import pytest

from statem_dist.errors import ExitCode, RunbookInvalid
from statem_dist.runbook import parse, read_checks


def refusal(text: str, *, strict: bool = False) -> RunbookInvalid:
    with pytest.raises(RunbookInvalid) as caught:
        parse(text, source="loop.yaml", strict=strict)
    return caught.value


def lines(text: str, *, strict: bool = False) -> list[str]:
    first, *rest = str(refusal(text, strict=strict)).splitlines()
    assert first == "Invalid spec:"
    return rest


def gate(check: str) -> str:
    return f"nodes: {{a: {{before_transfer: {check}}}}}"


def edge(body: str) -> str:
    return f"nodes: {{sow: S., reap: R.}}\nedges: [{body}]"


def dynamic(body: str) -> str:
    return f"nodes: {{a: {{dynamic_before_transfer: {body}}}}}"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("name: hollow", "Spec must define at least one node"),
        ("nodes: {}", "Spec must define at least one node"),
        ("nodes: forty", "nodes: must be a mapping of nodes"),
        ("nodes: {'  ': x}", "the name of a node must not be empty"),
        ("nodes: {a: [1, 2]}", "node 'a': a node must be a mapping"),
        ("nodes: {a: 7}", "node 'a': a node must be a mapping"),
        ("nodes: [a, {prompt: x}]", "nodes[1]: a node in a list requires a name"),
        ("nodes: [a, [b]]", "nodes[1]: a node in a list must be a name"),
        ("nodes: [a, a]", "duplicate node 'a'"),
        ("nodes: [a]\nname: ''", "name: must not be empty"),
        ("initial: lobby\nnodes: [hall]", "initial node 'lobby' is not defined"),
        ("start: hal\nnodes: [hall]", "initial node 'hal' is not defined; did you mean 'hall'?"),
        ("nodes: [a]\nprotocol: whatever", "protocol: must be guards_first or persist_first"),
        ("nodes: {a: {next: cellar}}", "nodes.a.next: 'cellar' is not a node"),
        ("nodes: {a: {next: [7]}}", "nodes.a.next[0]: '7' is not a node"),
        ("nodes: {a: {next: [[b]]}}", "nodes.a.next[0]: an item of next must be"),
        ("nodes: {a: {next: {max_attempts: 1}}}", "an item of next requires to"),
        ("nodes: {a: {next: [a, {to: a}]}}", "duplicate edge a -> a"),
        ("nodes: {a: {outcome: faliure}}", "nodes.a.outcome: must be success or failure, not 'faliure'; did you mean"),
        (
            "nodes: {a: {outcome: failure, next: b}, b: }",
            "nodes.a.outcome: only an end has an outcome, and an edge leads",
        ),
        ("nodes: {a: {outcome: success}, b: }\nedges: [{from: a, to: b}]", "leads from here to 'b'"),
        ("nodes: [a]\nedges: {a: b}", "edges: must be a list"),
        (edge("sow"), "edges[0]: an edge must be a mapping"),
        (edge("{from: sow}"), "edges[0]: an edge requires to"),
        (edge("{to: sow}"), "edges[0]: an edge requires from"),
        (edge("{from: sow, to: market}"), "edges[0].to: 'market' is not a node"),
        (edge("{from: sow, to: reap}, {source: sow, node2: reap}"), "edges[1]: duplicate edge sow -> reap"),
        (edge("{from: sow, to: reap, max_attempts: 0}"), "max_attempts must be a positive integer"),
        (edge('{from: sow, to: reap, max_attempts: "2"}'), "max_attempts must be a positive integer"),
        (edge("{from: sow, to: reap, max_attempts: true}"), "max_attempts must be a positive integer"),
        (edge("{from: sow, to: reap, max_attempts: 2.0}"), "max_attempts must be a positive integer"),
        (gate("{type: command}"), "command requires run"),
        (gate("{type: command, run: '  '}"), "command requires run"),
        (gate("{run: [make, all]}"), "run: must be text"),
        (gate("{type: predicate, exists: true}"), "predicate requires path"),
        (gate("{type: checklist}"), "checklist requires items"),
        (gate("{items: []}"), "checklist requires items"),
        (gate("{items: [a, '']}"), "items[1]: must not be empty"),
        (gate("{items: [Paper: A4]}"), "items[0]: must be text; quote it"),
        (gate("[Tests: all pass]"), "manual requires text; a sentence that contains ': ' must be quoted"),
        (gate("{type: manual}"), "manual requires text"),
        (gate("{type: message}"), "message requires text"),
        (gate("{type: llm_review}"), "llm_review requires prompt"),
        (gate("{type: telepathy}"), "unsupported type 'telepathy'"),
        (gate("{type: comand, run: x}"), "did you mean 'command'?"),
        (gate("{run: x, on_failure: retry}"), "on_failure: must be block or continue, not 'retry'"),
        (gate("{run: x, blocking: yes}"), "blocking: must be true or false"),
        (gate("{run: x, idempotent: 1}"), "idempotent: must be true or false"),
        (gate("{run: x, timeout: 0}"), "timeout: must be a positive number of seconds"),
        (gate("{run: x, timeout: soon}"), "timeout: must be a positive number of seconds"),
        (gate("{run: x, timeout: true}"), "timeout: must be a positive number of seconds"),
        (gate("{run: x, timeout: 1:30}"), "'1:30' is a time of day, not a duration"),
        (gate("{run: x, timeout: 1e12}"), "timeout: must be at most"),
        (gate("{run: x, retries: -1}"), "retries: must be a whole number"),
        (gate("{run: x, retries: 1000}"), "retries: must be at most 99"),
        (gate("{run: x, retries: 1, retry: {jitter: 0}}"), "give either retries or retry"),
        (gate("{run: x, retry: 3}"), "retry: must be a mapping"),
        (gate("{run: x, retry: {maximum_attempts: 0}}"), "maximum_attempts: must be a positive integer"),
        (gate("{run: x, retry: {jitter: 2}}"), "jitter: must be a number from 0 to 1"),
        (gate("{run: x, retry: {exit_status: [0]}}"), "exit_status: must be exit statuses from 1 to 255"),
        (gate("{run: x, retry: {on: [fail]}}"), "'fail' is not one of infrastructure, failed, timed_out"),
        (gate("{path: x, matches: '('}"), "matches: is no regular expression: missing )"),
        (gate("{type: llm_review, prompt: x, accept_regex: '['}"), "accept_regex: is no regular expression"),
        (gate("{type: llm_review, prompt: x, reject_regex: '*'}"), "reject_regex: is no regular expression"),
        (gate("{path: x, one_of: 3}"), "one_of: must be a list of values"),
        (gate("{items: [a], confirmation: sometimes}"), "confirmation: must be none"),
        (gate("[true]"), "before_transfer[0]: a check must be a sentence or a mapping"),
        (gate("[[a]]"), "a list of checks holds no lists"),
        (gate("[{parallel: a}]"), "parallel: must be a list of checks"),
        (gate("[{parallel: [{parallel: [a]}]}]"), "parallel steps do not nest"),
        (dynamic("always"), "dynamic_before_transfer: must be a mapping"),
        (dynamic("{path: elsewhere}"), "path: must be current_entry"),
        (dynamic("{stale_policy: shrug}"), "stale_policy: must be none or require_confirmation"),
        (dynamic("{allow_types: manual}"), "allow_types: must be a list"),
        (dynamic("{allow_types: [manual, seance]}"), "allow_types[1]: unsupported type 'seance'"),
        (dynamic("{min_items: -2}"), "min_items: must be a whole number, 0 or more"),
    ],
)
def test_a_mistake_is_named(text: str, said: str) -> None:
    """One mistake gives one line, which says what and where."""
    (line,) = lines(text)
    assert said in line
    assert line.startswith("- loop.yaml:")


def test_all_problems_come_in_one_answer_in_the_order_of_the_file() -> None:
    """Lines and columns count from 1 and point at the value, the key, or the mapping that lacks something."""
    text = (
        "edges:\n"
        "  - {from: plan, to: nowhere}\n"
        "nodes:\n"
        "  plan:\n"
        "    before_transfer:\n"
        "      - run: make\n"
        "        timeout: -1\n"
        "      - type: checklist\n"
        "  plan: again\n"
        "  日本: {in_hook: {run: ''}}\n"
    )
    error = refusal(text)
    assert str(error).splitlines() == [
        "Invalid spec:",
        "- loop.yaml:2:22: edges[0].to: 'nowhere' is not a node",
        "- loop.yaml:7:18: nodes.plan.before_transfer[0].timeout: must be a positive number of seconds; "
        "such as 90, or with a unit 90s, 5m, 1h",
        "- loop.yaml:8:9: nodes.plan.before_transfer[1]: checklist requires items",
        "- loop.yaml:9:3: duplicate key 'plan' on line 9, first given on line 4",
        "- loop.yaml:10:17: nodes.日本.in_hook: command requires run",
    ]
    assert error.exit_code is ExitCode.ERROR
    assert [(problem["line"], problem["column"]) for problem in error.details["problems"]] == [
        (2, 22),
        (7, 18),
        (8, 9),
        (9, 3),
        (10, 17),
    ]
    assert error.details["problems"][0] == {
        "source": "loop.yaml",
        "line": 2,
        "column": 22,
        "field": "edges[0].to",
        "message": "'nowhere' is not a node",
        "hint": "",
    }


def test_a_known_node_with_a_broken_body_is_no_missing_node() -> None:
    """An edge to a node that is itself wrong is not reported as well."""
    (line,) = lines("nodes: {a: {next: b}, b: [1]}")
    assert "node 'b'" in line


UNKNOWN = """\
name: typo
inital: draft
nodes:
  draft:
    promt: Write.
    state_hooks: []
    before_transfer:
      - {path: a.md, exsits: true}
      - {run: make, path: a.md, retry: {jiter: 0}}
    dynamic_before_transfer: {requird: true}
    next: [{to: draft, max_attemps: 2, condition: {run: x, timeot: 3}}]
edges: []
"""


def test_unknown_keywords_are_warnings() -> None:
    """Permissive mode takes the runbook and says what it ignored, with places."""
    warnings = parse(UNKNOWN, source="typo.yaml").warnings
    assert [str(warning) for warning in warnings][:3] == [
        "typo.yaml:2:1: root: unknown keyword 'inital'; did you mean 'initial'?",
        "typo.yaml:5:5: node 'draft': unknown keyword 'promt'; did you mean 'prompt'?",
        "typo.yaml:6:5: node 'draft': unknown keyword 'state_hooks'; it is ignored here; use in_hook and out_hook",
    ]


def test_strict_refuses_unknown_and_misplaced_keywords_at_every_level() -> None:
    """Root, node, check, retry, dynamic config and edge are all looked at."""
    assert [line.removeprefix("- loop.yaml:").split(": ", 1)[1] for line in lines(UNKNOWN, strict=True)] == [
        "root: unknown keyword 'inital'; did you mean 'initial'?",
        "node 'draft': unknown keyword 'promt'; did you mean 'prompt'?",
        "node 'draft': unknown keyword 'state_hooks'",
        "nodes.draft.before_transfer[0]: unknown keyword 'exsits'; did you mean 'exists'?",
        "nodes.draft.before_transfer[1]: unknown keyword 'path'; a command check does not take it",
        "nodes.draft.before_transfer[1].retry: unknown keyword 'jiter'; did you mean 'jitter'?",
        "nodes.draft.dynamic_before_transfer: unknown keyword 'requird'; did you mean 'required'?",
        "nodes.draft.next[0]: unknown keyword 'max_attemps'; did you mean 'max_attempts'?",
        "nodes.draft.next[0].condition: unknown keyword 'timeot'; did you mean 'timeout'?",
    ]


def test_strict_reports_unknown_keywords_first_and_alone() -> None:
    """What else is wrong may follow from the misspelt keyword, so it waits for the next round."""
    text = "noodles: {a: A.}"
    assert lines(text, strict=True) == ["- loop.yaml:1:1: root: unknown keyword 'noodles'; did you mean 'nodes'?"]
    error = refusal(text)
    assert "Spec must define at least one node" in str(error)
    assert error.details["warnings"] == ["loop.yaml:1:1: root: unknown keyword 'noodles'; did you mean 'nodes'?"]
    assert error.details["warning_details"][0]["message"] == "unknown keyword 'noodles'"


@pytest.mark.parametrize(
    ("text", "hint"),
    [
        ("nodes: {a: {next: b, max_attempts: 3}, b: }", "belongs on an edge, such as next: {to: x, max_attempts: 3}"),
        ("nodes: {a: {multi_agent: {required: true}}}", "nothing guards in its place"),
        ("multi_agent: {required: true}\nnodes: [a]", "nothing guards in its place"),
        ("state_hooks: []\nnodes: [a]", "use in_hook and out_hook"),
    ],
)
def test_a_keyword_from_elsewhere_is_told_where_it_belongs(text: str, hint: str) -> None:
    """A keyword of an edge on a node, and one of newer StateM, is a warning that says what follows from it."""
    (warning,) = parse(text, source="loop.yaml").warnings
    assert warning.message.startswith("unknown keyword ")
    assert hint in warning.hint


def test_a_flood_of_problems_is_cut() -> None:
    """A hundred lines are enough to see the pattern; the number of the others is stated."""
    found = lines("nodes: [a]\nedges:\n" + "- {from: a, to: b}\n" * 150)
    assert len(found) == 101
    assert found[-1].startswith("- and ")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('"just do it"', "must be a list of checks, or a mapping with a list under 'checks'"),
        ('{"run": "make"}', "must be a list of checks"),
        ("", "must be a list of checks"),
        ('[{"run"', "c.json:1:8: expected ':', found the end of the text"),
        ('[{"path": "a.txt"}]', "checks[0]: type 'predicate' is not allowed here; allowed: manual, command"),
        ('["Look.", {"run": ""}]', "c.json:1:11: checks[1]: command requires run"),
    ],
)
def test_checks_on_their_own_are_refused_alike(text: str, said: str) -> None:
    """Dynamic checks get the same messages, and only the types that the node allows."""
    with pytest.raises(RunbookInvalid) as caught:
        read_checks(text, source="c.json", allow_types=("manual", "command"))
    assert said in str(caught.value)


@pytest.mark.parametrize("body", ["run: 'grep -c #define x.h'", "run: make a#b", "run: |\n        make # all"])
def test_a_whole_command_gives_no_warning(body: str) -> None:
    """Quoted and block forms keep a '#', and without a blank before it nothing is cut."""
    assert parse(f"nodes:\n  a:\n    before_transfer:\n      {body}\n", source="loop.yaml").warnings == ()


def test_a_comment_behind_a_plain_command_is_a_warning() -> None:
    """YAML cuts an unquoted command at ' #', and the warning shows what is left of it."""
    text = "nodes:\n  a:\n    before_transfer:\n      run: grep -c #define x.h\n"
    (warning,) = parse(text, source="loop.yaml").warnings
    assert str(warning) == (
        "loop.yaml:4:12: nodes.a.before_transfer.run: a comment ends this command; it runs as: grep -c; "
        "quote the command if the '#' belongs to it"
    )


def test_strict_advises_on_structure() -> None:
    """Nodes without a way to them, and pipes that hide a failure, are warnings under strict only."""
    text = (
        "nodes:\n  a: {before_transfer: [{run: make | tee log}, {run: \"grep 'a|b' x || true\"}], next: b}\n"
        "  b: B.\n  island: I.\n"
    )
    assert parse(text, source="x.yaml").warnings == ()
    assert [(w.line, w.field) for w in parse(text, source="x.yaml", strict=True).warnings] == [
        (2, "nodes.a.before_transfer[0].run"),
        (4, "node 'island'"),
    ]


def test_a_pipe_in_a_shell_that_fails_with_it_needs_no_advice() -> None:
    """``shell: bash`` sets ``pipefail``; another shell is a mistake with its place."""
    text = "nodes:\n  a: {before_transfer: [{run: make | tee log, shell: SHELL}], next: b}\n  b: B.\n"
    assert parse(text.replace("SHELL", "bash"), source="x.yaml", strict=True).warnings == ()
    (advice,) = parse(text.replace("SHELL", "sh"), source="x.yaml", strict=True).warnings
    assert (advice.line, advice.column, "shell: bash" in advice.hint) == (2, 31, True)
    with pytest.raises(RunbookInvalid, match="must be sh or bash, not 'zsh'"):
        parse(text.replace("SHELL", "zsh"), source="x.yaml")


def test_strict_advises_on_nodes_that_no_run_gets_away_from() -> None:
    """A circle without a way to any end is a trap, but only in a runbook that has ends."""
    trap = "nodes:\n  a: {next: [b, done]}\n  b: {next: c}\n  c: {next: b}\n  done:\n"
    found = parse(trap, source="x.yaml", strict=True).warnings
    assert [(w.line, w.column, w.field, w.message) for w in found] == [
        (3, 3, "node 'b'", "no way leads from here to an end of the runbook"),
        (4, 3, "node 'c'", "no way leads from here to an end of the runbook"),
    ]
    assert parse("nodes: {a: {next: [a, b]}, b: {next: a}}", source="x.yaml", strict=True).warnings == ()


@pytest.mark.parametrize("keyword", ["before_transfer: [Done.]", "dynamic_before_transfer: {}"])
def test_strict_advises_on_checks_that_never_run(keyword: str) -> None:
    """An end is never left, so what is to be checked before it is left suggests that an edge is missing."""
    (warning,) = parse(f"nodes:\n  a: {{next: b}}\n  b: {{{keyword}}}\n", source="x.yaml", strict=True).warnings
    assert (warning.line, warning.field) == (3, "node 'b'")
    assert f"its {keyword.partition(':')[0]} never runs" in warning.message


@pytest.mark.parametrize("command", ["make || true", "make >| log", "grep 'a|b' x", 'grep "a|b" x', "grep a\\|b x"])
def test_what_is_no_pipe_gives_no_advice(command: str) -> None:
    """Alternatives, redirections and quoted bars hide no failure behind a pipe."""
    text = f"nodes:\n  a:\n    before_transfer:\n      run: |\n        {command}\n    next: b\n  b:\n"
    assert parse(text, source="x.yaml", strict=True).warnings == ()


def test_a_name_beside_another_key_is_a_warning() -> None:
    """In a mapping of nodes the key is the name."""
    (warning,) = parse("nodes: {a: {name: b}}", source="x.yaml").warnings
    assert "'b' is ignored" in warning.message


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodes: {a: {in_hook: [{run: x, repair: {run: y}}]}}", "1:40: nodes.a.in_hook[0].repair: only an item of"),
        ("nodes: {a: {before_transfer: {run: x, repair: {run: y}}}}", "only an item of out_hook or of an edge's hook"),
        (edge("{from: sow, to: reap, condition: [{run: x, repair: {run: y}}]}"), "edges[0].condition[0].repair: only"),
        (
            "nodes: {a: {out_hook: [{run: x, repair: {run: y, repair: {run: z}}}]}}",
            "out_hook[0].repair.repair: only an",
        ),
        (
            "nodes: {a: {out_hook: [{path: x, repair: {run: y}}]}}",
            "out_hook[0].repair: a predicate has nothing to undo",
        ),
        ("nodes: {a: {out_hook: [{run: x, repair: Undo it.}]}}", "out_hook[0].repair: a repair is a command"),
        ("nodes: {a: {out_hook: [{run: x, repair: [{path: y}]}]}}", "out_hook[0].repair[0]: a repair is a command"),
        ("nodes: {a: {out_hook: [{run: x, repair: [{parallel: [{run: y}]}]}]}}", "repairs run one after another"),
        ("nodes: {a: {out_hook: [{run: x, repair: {run: y, idempotent: false}}]}}", "may be executed more than once"),
        ("nodes: {a: {out_hook: [{run: x, repair: 7}]}}", "out_hook[0].repair: a check must be a sentence"),
        ("nodes: {a: {out_hook: [{run: x, repair: {}}]}}", "out_hook[0].repair: message requires text"),
    ],
)
def test_a_repair_stands_where_something_can_be_undone(text: str, said: str) -> None:
    """A command of a hook before the commit has one, and it is a command that may be repeated."""
    assert any(said in line for line in lines(text)), lines(text)
