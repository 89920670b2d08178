"""Which searches may run in the worker, and what becomes of the others."""

from __future__ import annotations

import pytest

from statem_dist.checks.context import CheckContext
from statem_dist.checks.patterns import SearchInterrupted, is_quick, search
from statem_dist.checks.process import Supervisor

CONTEXT = CheckContext("k", "/", {}, "condition", "r", "n")


@pytest.mark.parametrize("pattern", ["", "river", r"ver \d+$", "(?s).{40,}", "(?im)^a|b", r"[a-z]+x", r"\bword\b"])
def test_simple_patterns_are_quick(pattern: str) -> None:
    """A pattern with at most one place to branch is searched on the spot."""
    assert is_quick(pattern, "text")


@pytest.mark.parametrize("pattern", ["(a+)+b", "a?a?a?aaa", "(a|a)(a|a)", r"(.+)\1", "(?P<x>a)(?P=x)", ".*.*="])
def test_patterns_that_can_explode_are_slow(pattern: str) -> None:
    """A pattern with several places to branch, or a reference back, is not trusted."""
    assert not is_quick(pattern, "text")


def test_long_texts_are_slow() -> None:
    """Even a simple pattern may need the square of the length of the text."""
    assert not is_quick("a+b", "a" * 20_000)


def test_both_ways_of_searching_agree() -> None:
    """The same pattern finds the same in this process and outside of it, NUL and other scripts included."""
    with Supervisor() as supervisor:
        for text in ("x\0⟪é⟫ 12\n", "nothing"):
            for quick, slow in ((r"⟪é⟫", r"(⟪)+(é)+⟫"), (r"^x\0", r"^x+\0+"), (r"\d$", r"\d+\d+$")):
                assert is_quick(quick, text)
                assert not is_quick(slow, text)
                assert search(slow, text, CONTEXT, supervisor) is search(quick, text, CONTEXT, supervisor)


def test_an_interrupted_search_is_no_failure() -> None:
    """A search that cannot run because the worker stops says so, instead of failing the check."""
    supervisor = Supervisor()
    supervisor.close()
    with pytest.raises(SearchInterrupted) as raised:
        search("(a+)+b", "aaa", CONTEXT, supervisor)
    assert raised.value.reason == "shutdown"
