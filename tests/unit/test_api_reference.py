"""The reference of the REST API tells what the service has."""

from __future__ import annotations

import re
from pathlib import Path

from statem_api.problems import KINDS
from statem_api.reference import MARK, document, reference
from statem_dist import AsyncClient, Client, errors

PAGE = Path(__file__).parents[2] / "docs" / "api.md"


def test_the_reference_is_that_of_the_service() -> None:
    """``make reference`` would change nothing."""
    made = PAGE.read_text(encoding="utf-8").partition(MARK)[2].lstrip("\n")
    assert made == reference()


def test_every_operation_says_what_it_does() -> None:
    """Each has a summary, a description and a name of its own, and tells of its problems."""
    operations = [each for methods in document()["paths"].values() for each in methods.values()]
    assert len({each["operationId"] for each in operations}) == len(operations)
    for operation in operations:
        assert operation["summary"]
        assert operation["description"]


def test_the_reference_tells_what_answers_hold() -> None:
    """The fields of a good answer stand with its operation, and those of what it holds as well."""
    operations = reference().split("#### `")[1:]
    moved = next(part for part in operations if part.startswith("POST /v1/runs/{run_id}/goto`"))
    assert "Answers 200 or 202: " in moved
    assert "`outcome`" in moved
    assert "`results` (`id`, `type`" in moved
    assert "Problems: 404, 409, 412." in moved
    tokens = next(part for part in operations if part.startswith("GET /v1/tokens`"))
    assert "`items` (`id`, `name`, `role`, `labels`, `state`" in tokens
    assert "Answers 200: `application/x-ndjson`." in reference()


def test_every_error_has_a_page() -> None:
    """Whatever error the library raises, the service explains its kind."""

    def codes(kind: type[errors.StatemError]) -> set[str]:
        return {kind.code}.union(*(codes(child) for child in kind.__subclasses__()))

    assert codes(errors.StatemError) <= set(KINDS)


def test_the_page_lists_every_method_of_the_client() -> None:
    """Each once, with its positional arguments, and none that there is not; both clients have the same."""
    listed = re.findall(r"^\| `(\w+)\(", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    public = [name for name in vars(Client) if not name.startswith("_")]
    assert sorted(listed) == sorted(public)
    assert set(public) == {name for name in vars(AsyncClient) if not name.startswith("_")}


def test_the_page_lists_every_error() -> None:
    """Each class with the one above it and its code."""

    def tree(kind: type[errors.StatemError]) -> set[tuple[str, str, str]]:
        children = [child for child in kind.__subclasses__() if child.__module__ == errors.__name__]
        return {(child.__name__, kind.__name__, child.code) for child in children}.union(*map(tree, children))

    listed = re.findall(r"^\| `(\w+)` \| `(\w+)` \| `(\w+)` \|", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert set(listed) == tree(errors.StatemError)
