"""Fixtures of the end-to-end tests: places where real programs run, emptied after each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.programs import Site


@pytest.fixture
def site() -> Iterator[Site]:
    """An empty folder with a state directory of its own; everything started there is ended afterwards."""
    site = Site()
    try:
        yield site
    finally:
        site.close()
