"""Waiting for a run to change, as far as it needs no server."""

from __future__ import annotations

import asyncio

from statem_api import announcements
from statem_dist.store.watch import Watch


def test_what_was_announced_is_reported_once() -> None:
    """A store that came up with an older file stays behind what it announced: whoever waits does not go in circles."""
    watch = Watch()
    watch.announce(7)
    assert watch.wait(5, 0)
    assert not watch.wait(5, 0)
    watch.announce(6)
    assert watch.wait(5, 0)


def test_what_was_announced_is_reported_once_to_a_task() -> None:
    """The same holds for whoever waits in the event loop of the service."""

    async def waits() -> list[bool]:
        watch = announcements.Watch()
        watch.announce(7)
        return [await watch.wait(5, 0.01), await watch.wait(5, 0.01)]

    assert asyncio.run(waits()) == [True, False]
