"""Whether sandboxes can be made here: a test that needs one is skipped on a laptop, and fails on CI."""

from __future__ import annotations

import os
from functools import cache

import pytest

from statem_dist.checks.confinement import BWRAP_HINT, why_no_sandbox

_problem = cache(why_no_sandbox)


def need_sandbox() -> None:
    """Skip the test that calls this, or fail it on CI, where no sandbox can be made."""
    if why := _problem():
        if os.environ.get("CI"):
            pytest.fail(f"no sandbox can be made: {why}. {BWRAP_HINT}")
        pytest.skip(f"no sandbox can be made: {why}")
