"""How a worker makes itself known, when the store is in trouble just then."""

from __future__ import annotations

from pathlib import Path

import pytest

from statem_dist.roster import Roster
from statem_dist.settings import Settings
from statem_dist.store.client import client_for
from statem_dist.store.redis_store import RedisStore
from statem_workers.runtime import WorkerOptions
from statem_workers.worker import Presence
from tests.support.programs import eventually
from tests.support.servers import real_server


def test_a_store_that_refuses_at_first_does_not_keep_a_worker_from_starting(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The announcement is repeated until it succeeds; what starts after it is not held up by an error."""
    with real_server() as server:
        store = RedisStore(client_for(server.url), patience_seconds=5.0)
        options = WorkerOptions(queues=("checks",), concurrency=1, pool="threads")
        settings = Settings(state_dir=tmp_path, redis_url=server.url)
        monkeypatch.setattr("statem_workers.runtime._runtime", None)
        monkeypatch.setattr("statem_workers.runtime._configured", (options, settings))
        presence = Presence(options, settings)
        store.call("CONFIG", "SET", "maxmemory", "1")
        try:
            presence.start()
            assert not Roster(store).present()
            store.call("CONFIG", "SET", "maxmemory", "0")
            eventually(lambda: Roster(store).present(), "it is announced")
        finally:
            presence.close()
        assert not Roster(store).present()
        store.client.close()
