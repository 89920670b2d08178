"""The reference of the REST API tells what the service has."""

from __future__ import annotations

from pathlib import Path

from statem_api.problems import KINDS
from statem_api.reference import MARK, document, reference
from statem_dist import errors

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


def test_every_error_has_a_page() -> None:
    """Whatever error the library raises, the service explains its kind."""

    def codes(kind: type[errors.StatemError]) -> set[str]:
        return {kind.code}.union(*(codes(child) for child in kind.__subclasses__()))

    assert codes(errors.StatemError) <= set(KINDS)
