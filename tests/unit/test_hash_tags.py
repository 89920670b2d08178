"""Every script that touches several keys is called with keys of one hash tag, so that it runs in a Redis Cluster.

Nothing is started: a client that keeps what it is sent stands in for the connection, and what a script or a command
would answer is not needed for its keys.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from statem_dist import store as store_package
from statem_dist import sweep as sweep_package
from statem_dist.store import keys

LUA = [
    path
    for package in (store_package, sweep_package)
    for path in sorted((Path(package.__file__ or "").parent / "lua").glob("*.lua"))
]

CALL = re.compile(r"redis\.call\(\s*'(\w+)'\s*,\s*([^,)]+)")

FREE = {"TIME", "PUBLISH"}
"""Commands that name no key. A channel is none: what is announced at one node of a Cluster is heard at all."""


@pytest.mark.parametrize("path", LUA, ids=lambda path: f"{path.parents[1].name}/{path.stem}")
def test_a_script_names_only_keys_that_it_is_given(path: Path) -> None:
    """A key that is put together inside of a script is not known to a Cluster, and may be elsewhere."""
    called = CALL.findall(path.read_text(encoding="utf-8"))
    assert called
    for command, first in called:
        assert command in FREE or re.match(r"KEYS\[|key\b", first.strip()), f"{command} {first}"


def tag(key: str) -> str:
    """Return what a Cluster hashes of a key."""
    found = re.search(r"\{([^}]+)\}", key)
    return found[1] if found else key


def test_all_keys_of_a_run_share_a_tag() -> None:
    """Whatever a commit, a reminder or a removal touches: the run's own keys and the indices of its shard."""
    shard = keys.shard_of("r")
    of_a_run = [
        keys.run("r"),
        keys.events("r"),
        keys.log("r", "t1", "in_hook.0"),
        keys.dynamic("r", "r-e1"),
        keys.stops("r", "session"),
        keys.receipt("r", "request"),
        keys.due(shard),
        keys.runs(shard),
        keys.status(shard, "active"),
        keys.label(shard, "team", "{a}"),
        keys.feed(shard),
        keys.barrier(shard),
    ]
    assert {tag(key) for key in of_a_run} == {str(shard)}


def test_all_parts_of_a_sweep_and_of_a_limit_share_a_tag() -> None:
    """Each sweep and each limit is in one place, whatever the names in it."""
    parts = ("sweep", "plan", "lanes", "pending:[]", "running", "claims", "holders", "slots", "outcomes", "feed")
    assert {tag(keys.sweep("s", part)) for part in parts} == {"swp:s"}
    assert {tag(keys.limit("gpu", part)) for part in ("held", "begun")} == {"limit:gpu"}
