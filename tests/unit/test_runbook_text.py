"""Text that tries to be misread: YAML's traps, JSON's traps, bombs, and files that are none."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from statem_dist.errors import RunbookInvalid
from statem_dist.runbook import Format, load, parse, read_plain
from statem_dist.runbook.tree import BYTES_MAX


def refusal(text: str, format: Format = "yaml") -> str:
    with pytest.raises(RunbookInvalid) as caught:
        parse(text, source="loop.yaml", format=format)
    return str(caught.value)


@pytest.mark.parametrize(
    ("written", "value"),
    [
        *((word, word) for word in ("yes", "no", "on", "off", "Yes", "NO", "y", "none", ".inf", ".nan")),
        ("true", True),
        ("false", False),
        ("~", None),
        ("null", None),
        ("", None),
        ("'~'", "~"),
        ("10", 10),
        ("+10", 10),
        ("-1", -1),
        ("010", 10),
        ("08", 8),
        ("0x1f", "0x1f"),
        ("0o17", "0o17"),
        ("0b1", "0b1"),
        ("1_000", "1_000"),
        ("1:30", "1:30"),
        ("1.50", 1.5),
        (".5", 0.5),
        ("1e3", 1000.0),
        ("2026-01-31", "2026-01-31"),
        ("2026-01-31T10:00:00Z", "2026-01-31T10:00:00Z"),
        ("!!str 5", "5"),
        ("!!int '5'", 5),
        ("=", "="),
        ("<<", "<<"),
        ("123456789012345678901234567890", 123456789012345678901234567890),
    ],
)
def test_scalars_are_read_as_in_yaml_1_2(written: str, value: Any) -> None:
    """Only true and false are booleans, numbers are decimal, and what is left is text."""
    found = read_plain(f"v: {written}", source="m.yaml")["v"]
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a: {x: 1, <<: {y: 2, x: 3}}", {"y": 2, "x": 1}),
        ("a: {<<: [{x: 1}, {x: 2, y: 3}]}", {"x": 1, "y": 3}),
        ("b: &b {x: 1}\na: {<<: *b, '<<': 5}", None),
        ("a: {'<<': 5}", {"<<": 5}),
    ],
)
def test_merge_keys_work(text: str, expected: Any) -> None:
    """Own keys win, earlier bases win over later ones, and a quoted '<<' is a key like any other."""
    if expected is None:
        with pytest.raises(RunbookInvalid, match="duplicate key '<<'"):
            read_plain(text, source="m.yaml")
    else:
        assert read_plain(text, source="m.yaml")["a"] == expected


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("nodes:\n  plan: a\n  plan: b\n", "3:3: duplicate key 'plan' on line 3, first given on line 2"),
        ('nodes:\n  plan: a\n  "plan": b\n', "3:3: duplicate key 'plan' on line 3, first given on line 2"),
        ("nodes: {a: {prompt: x,\n prompt: y}}", "2:2: duplicate key 'prompt' on line 2, first given on line 1"),
        ("nodes:\n\ta: b\n", "2:1: a tab is used for indentation"),
        ("nodes:\n  a: b\n\tc: d\n", "a tab is used for indentation"),
        ('nodes:\n  a: "\\d"\n', "in double quotes a backslash starts an escape; write the text in single quotes"),
        ("nodes:\n  a:\n    in_hook: {run: x}\n    prompt: test: fail\n", "4:17: mapping values are not allowed"),
        ("nodes: {a: A.}\n---\nnodes: {b: B.}\n", "2:1: a second document starts here"),
        ("nodes: [a, b\nedges: ]:\n", "loop.yaml:2:"),
        ("nodes: [", "1:9: did not find expected node content; a value is missing, or a bracket is not closed"),
        ("nodes:\n  a: [b\n  c: d\n", "a comma is missing, or a bracket is not closed"),
        ("nodes:\n  - a\n  b: c\n", "the items of a list begin in the same column"),
        ("nodes:\n  a: 'open\n", "2:6: found unexpected end of stream"),
        ("", "loop.yaml: the file is empty"),
        ("# nothing\n", "loop.yaml: the file is empty"),
        ("---\n", "root: a runbook must be a mapping"),
        ("- a\n", "1:1: root: a runbook must be a mapping"),
        ("just text", "root: a runbook must be a mapping"),
        ("nodes: {a: *b}", "1:12: alias '*b' has no anchor before it"),
        ("nodes: &n {a: [*n]}", "1:16: alias '*n' stands inside its own anchor"),
        ("nodes: {a: &x [*x]}", "alias '*x' stands inside its own anchor"),
        ("nodes: {a: !thing x}", "unsupported tag '!thing'"),
        ("nodes: {a: !!python/name:os.system ''}", "unsupported tag '!!python/name:os.system'"),
        ("nodes: !!set {a}", "unsupported tag '!!set'"),
        ("nodes: {a: !!int x}", "'x' is no int"),
        ("nodes: {{x}}", "a key must be text"),
        ("nodes: {a: {<<: 5}}", "a merge key '<<' takes a mapping"),
        ("nodes: {a: 1e999}", "the number is out of range"),
        ("nodes: {a: " + "9" * 5000 + "}", "the number is too long"),
        ('nodes: {a: "x\\0y"}', "the character U+0000"),
        ("nodes: {a: x\x07}", "1:13: the character U+0007 is not allowed"),
        ("nodes: {a: \ud800}", "loop.yaml: is no valid text"),
        ("nodes: " + "[" * 65 + "]" * 65, "nested deeper than 64 levels"),
        ("[" * 100_000, "loop.yaml:1:"),
    ],
)
def test_bad_yaml_is_refused_with_a_place_and_a_reason(text: str, said: str) -> None:
    """Each trap has its own message, at the line where the author has to look."""
    assert said in refusal(text)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"name": "survey", nodes}', "1:20: expected a key in double quotes, found 'n'"),
        ('{"nodes": {"a": null,\n "a": null}}', "2:2: duplicate key 'a' on line 2, first given on line 1"),
        ('{"nodes": {"a": NaN}}', "1:17: expected a value"),
        ('{"nodes": {"a": -Infinity}}', "-Infinity is no JSON number"),
        ('{"nodes": {"a": 1e999}}', "the number is out of range"),
        ('{"nodes": {"a": "\\u0000"}}', "the character U+0000"),
        ('{"nodes": {"a": "\\ud800"}}', "the character U+D800"),
        ('{"nodes": {"a": "x', "unterminated string"),
        ('{"nodes": ["a"}', "1:15: expected ',' or ']', found '}'"),
        ('{"nodes": ["a"]} x', "1:18: there is text after the end"),
        ('{"nodes" ["a"]}', "expected ':'"),
        ('{"nodes": ["a",]}', "expected a value, found ']'"),
        ("[" * 100_000, "nested deeper than 64 levels"),
        ("", "the file is empty"),
        ("[]", "root: a runbook must be a mapping"),
    ],
)
def test_bad_json_is_refused_with_a_place_and_a_reason(text: str, said: str) -> None:
    """JSON is strict, has places too, and no key may be given twice."""
    assert said in refusal(text, "json")


def test_json_scalars_keep_their_values() -> None:
    """Escapes, surrogate pairs and numbers are decoded as the standard says."""
    text = '{"a": ["\\ud83c\\udf89", "é\\n", -1.5e2, 7, true, null, {}], "b": []}'
    assert read_plain(text, source="m.json", format="json") == {
        "a": ["🎉", "é\n", -150.0, 7, True, None, {}],
        "b": [],
    }


@pytest.mark.parametrize(
    "text",
    [
        "a0: &a0 [x, x, x, x, x, x, x, x, x]\n"
        + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]\n" for i in range(1, 12)),
        "a0: &a0 {x: 1}\n"
        + "".join(f"a{i}: &a{i} {{<<: [{', '.join([f'*a{i - 1}'] * 9)}], k{i}: 1}}\n" for i in range(1, 12)),
    ],
    ids=["lists", "merges"],
)
def test_an_alias_bomb_is_refused_while_it_is_read(text: str) -> None:
    """Aliases count with their expanded size, so the limit is met after a few lines of the bomb."""
    assert "more than 300,000 values once aliases are expanded" in refusal(text)


def test_aliases_cannot_nest_deeper_than_what_is_written() -> None:
    """A chain of anchors, each one level deeper, meets the depth limit as written nesting does."""
    text = "a0: &a0 [x]\n" + "".join(f"a{i}: &a{i} [*a{i - 1}]\n" for i in range(1, 80))
    assert "nested deeper than 64 levels by alias" in refusal(text)


def test_a_large_plain_file_is_no_bomb() -> None:
    """A runbook of nearly a megabyte without aliases is read."""
    text = "nodes:\n  a:\n    before_transfer:\n" + "      - b\n" * 100_000
    assert len(parse(text, source="big.yaml").runbook.nodes[0].before_transfer) == 100_000


def test_text_above_the_limit_is_refused_by_its_size() -> None:
    """The size in bytes decides, before any parsing."""
    assert "is larger than 1,048,576 bytes" in refusal("é" * (BYTES_MAX // 2 + 1))


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "there is no such file"),
        (b"", "the file is empty"),
        (b"\xff\xfen\x00", "is not UTF-8 text: byte 0xff on line 1"),
        (b"nodes:\n  a: \xe4\n", "is not UTF-8 text: byte 0xe4 on line 2"),
        (b"#" * (10 * BYTES_MAX), "is larger than 1,048,576 bytes"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(tmp_path: Path, content: bytes | None, said: str) -> None:
    """The message begins with the path as it was given."""
    path = tmp_path / "nowhere.yaml"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(RunbookInvalid) as caught:
        load(path)
    assert f"- {path}: " in str(caught.value)
    assert said in str(caught.value)


def test_a_directory_is_no_runbook(tmp_path: Path) -> None:
    """A path to a folder says so."""
    with pytest.raises(RunbookInvalid, match="is a directory"):
        load(tmp_path)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_an_unreadable_file_says_why(tmp_path: Path) -> None:
    """The reason is that of the operating system."""
    path = tmp_path / "secret.yaml"
    path.write_text("nodes: [a]")
    path.chmod(0)
    with pytest.raises(RunbookInvalid, match="cannot be read: Permission denied"):
        load(path)


def test_a_path_that_cannot_exist_is_an_error_of_the_same_kind() -> None:
    """A NUL in a path is refused by Python itself, with another exception."""
    with pytest.raises(RunbookInvalid, match="cannot be read"):
        load(Path("a\0b.yaml"))


def test_line_ends_and_byte_order_marks_do_not_matter() -> None:
    """Windows files are read, and places count as an editor does."""
    text = "\ufeffnodes:\r\n  a: A.\r\n  b: [1]\r\n"
    assert "loop.yaml:3:6: node 'b'" in refusal(text)


def test_importing_the_package_loads_no_yaml() -> None:
    """Commands that parse no runbook do not pay for a parser."""
    code = "import sys, statem_dist.runbook; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"yaml", "difflib", "statem_dist.runbook.yaml_text"} & set(done.stdout.split())
