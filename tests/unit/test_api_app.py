"""How the application of the REST service is put together."""

from __future__ import annotations

from collections.abc import Iterator
from inspect import iscoroutinefunction
from typing import Any

from fastapi.dependencies.utils import get_dependant

from statem_api import answers, callers, queries, service


def dependencies(dependant: Any) -> Iterator[Any]:
    """Yield what a dependant calls, and what that calls in turn."""
    yield dependant.call
    for each in dependant.dependencies:
        yield from dependencies(each)


def test_dependencies_take_no_thread() -> None:
    """A dependency that is no coroutine would wait for a thread of another pool, at each request."""
    roots = (
        answers.terms_of,
        answers.new_terms_of,
        answers.version_of,
        answers.wait_of,
        callers.caller_of,
        queries.refuse_unknown,
        service.service_of,
    )
    found = [each for root in roots for each in dependencies(get_dependant(path="/", call=root))]
    assert len(found) > len(roots)
    for each in found:
        assert iscoroutinefunction(each) or iscoroutinefunction(type(each).__call__), each
