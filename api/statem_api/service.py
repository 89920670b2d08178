"""What every route works with: the verbs on runs and sweeps, tokens, registered runbooks, and who hears of commits.

The verbs are those of the library, and they block. ``Service.call`` runs them in a few threads; whatever waits for
something to happen waits in the event loop instead, where it costs no thread.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Annotated, ParamSpec, TypeVar

from anyio import CapacityLimiter, to_thread
from fastapi import Depends, Request

from statem_api.announcements import Announcements, Watch
from statem_api.feed import Feed
from statem_api.metrics import Metrics
from statem_api.options import WAIT_SECONDS_MAX, ApiOptions
from statem_api.standing import Standing
from statem_api.sweep_feed import SweepFeed
from statem_dist.deadline import LOOK_AGAIN_SECONDS, Deadline
from statem_dist.dispatch import dispatcher_for
from statem_dist.engine import Engine
from statem_dist.errors import Invalid, Unavailable, Usage
from statem_dist.follow import Settled
from statem_dist.protocol.progress import waits_for_people
from statem_dist.registry import Registry
from statem_dist.regression import state_regressed
from statem_dist.roots import outside_roots, within_roots
from statem_dist.settings import Settings
from statem_dist.sweep.desk import SweepDesk
from statem_dist.sweep.hints import Hints
from statem_dist.sweep.ledger import Ledger
from statem_dist.tokens import Token, Tokens

THREADS = 8
"""Blocking calls at once. They are short, and Python runs one thread at a time: more would only queue elsewhere."""

logger = logging.getLogger(__name__)

P = ParamSpec("P")
R = TypeVar("R")


class Service:
    """One process of the service.

    Args:
        options: how it was started.
        settings: limits and places.

    Raises:
        Usage: it was not told where the state store is.
    """

    def __init__(self, options: ApiOptions, settings: Settings) -> None:
        if settings.redis_url is None:
            raise Usage("The service needs STATEM_REDIS_URL.", hint="Start it with `statem-dist api`.")
        self.options = options
        self.settings = settings
        self.engine = Engine(settings, settings.redis_url, {}, inline=False)
        self.tokens = Tokens(self.engine.store)
        self.standing = Standing(self.tokens, self.engine.store, self.call)
        self.registry = Registry(self.engine.store)
        self.announcements = Announcements(settings.redis_url)
        self.feed = Feed(self.engine.store, self.announcements, self.call)
        self.ledger = Ledger(self.engine.store)
        self.sweep_feed = SweepFeed(self.ledger, self.announcements, self.call)
        hints = Hints(self.engine.store, dispatcher_for(settings, settings.redis_url))
        self.desk = SweepDesk(self.ledger, self.engine, hints, settings.state_dir)
        self.metrics = Metrics()
        self.stopping = False
        self._asks_for_tokens = False
        self._limiter: CapacityLimiter | None = None
        self._one_at_a_time: CapacityLimiter | None = None

    async def open(self) -> None:
        """Begin to listen, in the running event loop."""
        self._limiter = CapacityLimiter(THREADS)
        self._one_at_a_time = CapacityLimiter(1)
        with suppress(Unavailable):
            await self.asks_for_tokens()
            await self.call(self.engine.recognise_store)
        self.announcements.start()
        self.feed.start()
        self.sweep_feed.start()

    def stop(self) -> None:
        """Let go of whoever waits or follows a stream, because the process is to end."""
        self.stopping = True
        self.announcements.wake_all()
        self.feed.stop()
        self.sweep_feed.stop()

    async def close(self) -> None:
        """End what was begun."""
        await self.sweep_feed.close()
        await self.feed.close()
        await self.announcements.close()
        self.engine.close()

    async def call(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run a blocking call in a thread, and return what it returns."""
        return await to_thread.run_sync(partial(function, *args, **kwargs), limiter=self._limiter)

    async def calculate(self, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        """Run what may calculate for seconds, one such thing at a time, so that all else has its threads."""
        return await to_thread.run_sync(partial(function, *args, **kwargs), limiter=self._one_at_a_time)

    async def asks_for_tokens(self) -> bool:
        """Return whether a token was ever made. Once it is so, it stays so: also when the store has lost them all."""
        if not self._asks_for_tokens:
            self._asks_for_tokens = await self.call(self.tokens.in_use)
        return self._asks_for_tokens

    async def token(self, text: str) -> Token | None:
        """Return the live token that a text is, or None."""
        token = await self.call(self.tokens.named, text)
        self._asks_for_tokens = self._asks_for_tokens or token is not None
        return token

    def require_within_roots(self, workspace: str, hint: str = "") -> None:
        """Refuse a workspace outside of the roots, early; workers look for themselves, where and when it counts.

        Raises:
            Invalid: it leads out of them.
        """
        roots = self.settings.workspace_roots
        if roots and not within_roots(workspace, roots):
            raise Invalid(
                f"{outside_roots('The workspace', workspace, roots)}.",
                hint=hint or "Choose a folder below one of them.",
                details={"workspace": workspace, "roots": list(roots)},
            )

    async def waiting_reason(self, settled: Settled) -> str:
        """Return what a transition waits for; empty if it is not open."""
        return await self.call(self.engine.waiting_reason, settled.run) if settled.transition.open else ""

    async def seen_through(self, settled: Settled, watch: Watch, seconds: float) -> Settled:
        """Wait until a transition has settled, needs people, or time is up; return it as it was seen last.

        A store that is away meanwhile is waited for.

        Raises:
            StateRegressed: the store has lost what was seen of the run.

        Args:
            settled: the transition as it was seen last.
            watch: watches its run, since before it was opened.
            seconds: how long at most.
        """
        deadline = Deadline(min(seconds, WAIT_SECONDS_MAX))
        run_id, transition_id = settled.run.id, settled.transition.id
        while settled.transition.open and not waits_for_people(settled.run) and not deadline.passed:
            await watch.wait(settled.run.version, deadline.bound(LOOK_AGAIN_SECONDS))
            if self.stopping:
                break
            if self.announcements.away:
                continue
            with suppress(Unavailable):
                now = await self.call(self.engine.look, run_id, transition_id)
                if now.run.version < settled.run.version:
                    raise state_regressed(run_id, settled.run.version, now.run.version)
                settled = now
        if self.settings.durability.replicas:
            await self.call(self.engine.acknowledge, settled.run)
        return settled


async def service_of(request: Request) -> Service:
    """Return the service of an application."""
    service = request.app.state.service
    assert isinstance(service, Service)
    return service


Serving = Annotated[Service, Depends(service_of)]
"""The service, as a parameter of a route."""


def log_unreadable(run_id: str, error: Exception) -> None:
    """Log that a stored run is left out of a list."""
    logger.error("the run %s cannot be read and is left out: %s", run_id, error)
