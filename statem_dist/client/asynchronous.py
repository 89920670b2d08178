"""The client for event loops: the same calls as the blocking one, awaited."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Coroutine
from types import TracebackType
from typing import Any, Concatenate, ParamSpec, TypeVar

from statem_dist.client import calls
from statem_dist.client.address import Address
from statem_dist.client.calls import Call, Pages, Steps
from statem_dist.client.drive import ANSWER_SECONDS, PATIENCE_SECONDS, new_key, required_address, shown_as
from statem_dist.client.listening import SILENCE_SECONDS, Listening
from statem_dist.client.tries import Tries
from statem_dist.client.wire import AsyncTransport, Lost, Reply
from statem_dist.deadline import OUTAGE_SECONDS

P = ParamSpec("P")
T = TypeVar("T")


def _call(make: Callable[P, Call[T]]) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """Return the method that carries out one call."""

    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.perform(make(*args, **kwargs))

    return shown_as(method, make)


def _steps(make: Callable[P, Steps[T]]) -> Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, T]]:
    """Return the method that carries out calls one after the other."""

    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.follow(make(*args, **kwargs))

    return shown_as(method, make)


def _pages(make: Callable[P, Pages[T]]) -> Callable[Concatenate[AsyncClient, P], AsyncIterator[T]]:
    """Return the method that goes through pages, asking for each when it is needed."""

    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        pages = make(*args, **kwargs)
        call = next(pages, None)
        while call is not None:
            page = await self.perform(call)
            for item in page.items:
                yield item
            try:
                call = pages.send(page)
            except StopIteration:
                return

    return shown_as(method, make)


def _listening(make: Callable[P, Listening[T]]) -> Callable[Concatenate[AsyncClient, P], AsyncIterator[T]]:
    """Return the method that goes through a stream."""

    async def method(self: AsyncClient, /, *args: P.args, **kwargs: P.kwargs) -> AsyncIterator[T]:
        async for heard in self.listen(make(*args, **kwargs)):
            for told in heard:
                yield told

    return shown_as(method, make)


class AsyncClient:
    """A client of the REST service, for any number of tasks of one event loop.

    Args:
        url: the service; by default that of ``STATEM_URL``.
        token: the token to use; by default that of ``STATEM_TOKEN``.
        patience_seconds: how long a service that does not answer is tried again.
        outage_seconds: how long a stream that was heard before bears that; at least ``patience_seconds``.
        transport: what sends requests; by default a pool of connections.

    Raises:
        Usage: no service is named, or not by a usable URL.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        patience_seconds: float = PATIENCE_SECONDS,
        outage_seconds: float = OUTAGE_SECONDS,
        transport: Callable[[Address], AsyncTransport] | None = None,
    ) -> None:
        self._address = required_address(os.environ, url, token)
        self._patience_seconds = patience_seconds
        self._outage_seconds = outage_seconds
        self._transport = (transport or _pooled)(self._address)

    validate = _call(calls.validate)
    register = _call(calls.register)
    runbooks = _call(calls.runbooks)
    runbook = _call(calls.runbook)
    start = _steps(calls.start)
    start_many = _call(calls.start_many)
    runs = _pages(calls.runs)
    run = _call(calls.run)
    document = _call(calls.document)
    graph = _call(calls.graph)
    drawing = _call(calls.drawing)
    next = _call(calls.next)
    node = _call(calls.node)
    history = _call(calls.history)
    evidence = _call(calls.evidence)
    prompt = _call(calls.prompt)
    compact_prompt = _call(calls.compact_prompt)
    questions = _call(calls.questions)
    goto = _steps(calls.goto)
    save = _steps(calls.save)
    rebind = _steps(calls.rebind)
    transition = _call(calls.transition)
    wait = _steps(calls.wait)
    cancel_transition = _call(calls.cancel_transition)
    check_log = _call(calls.check_log)
    approvals = _call(calls.approvals)
    decide = _steps(calls.decide)
    approve = _steps(calls.approve)
    reject = _steps(calls.reject)
    cancel = _call(calls.cancel)
    terminate = _call(calls.terminate)
    pause = _call(calls.pause)
    resume = _call(calls.resume)
    recover = _steps(calls.recover)
    dynamic = _call(calls.dynamic)
    write_dynamic = _call(calls.write_dynamic)
    events = _listening(calls.events)
    feed = _listening(calls.feed)
    create_token = _call(calls.create_token)
    tokens = _call(calls.tokens)
    revoke_token = _call(calls.revoke_token)
    whoami = _call(calls.whoami)
    readiness = _call(calls.readiness)

    async def perform(self, call: Call[T], *, patience_seconds: float | None = None) -> T:
        """Carry out one call, over as many tries as it takes.

        Args:
            call: what is asked.
            patience_seconds: how long to try; by default that of the client.

        Raises:
            StatemError: what the service answers that is no success.
            Unavailable: it does not answer.
        """
        request = call.request(new_key())
        tries = self._tries(patience_seconds)
        while True:
            try:
                reply = await self._transport.send(request, call.wait + ANSWER_SECONDS)
            except Lost as lost:
                pause: float | None = tries.lost(lost)
            else:
                pause = None if reply.status in call.expected else tries.passing(reply)
                if pause is None:
                    return call.result(reply)
            await asyncio.sleep(pause or 0.0)

    async def follow(self, steps: Steps[T]) -> T:
        """Carry out calls one after the other, and return what they come to."""
        call = next(steps)
        while True:
            try:
                call = steps.send(await self.perform(call))
            except StopIteration as end:
                result: T = end.value
                return result

    async def listen(self, listening: Listening[T]) -> AsyncIterator[list[T]]:
        """Yield what is heard of a stream until it ends: a list for each piece that comes, empty for a heartbeat."""
        listening.begin(self._tries(None), self._tries(max(self._patience_seconds, self._outage_seconds)))
        while not listening.ended:
            try:
                async with self._transport.stream(listening.request(), SILENCE_SECONDS) as incoming:
                    if incoming.status == 200:
                        async for piece in incoming.chunks():
                            yield listening.heard(piece)
                            if listening.ended:
                                return
                        pause = listening.lost(Lost("the stream has ended too early"))
                    else:
                        body = b"".join([piece async for piece in incoming.chunks()])
                        pause = listening.answered(Reply(incoming.status, incoming.headers, body))
            except Lost as lost:
                pause = listening.lost(lost)
            await asyncio.sleep(pause)

    async def close(self) -> None:
        """Close every connection."""
        await self._transport.close()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._address.url!r})"

    def _tries(self, patience_seconds: float | None) -> Tries:
        patience = self._patience_seconds if patience_seconds is None else patience_seconds
        return Tries(self._address.url, patience)


def _pooled(address: Address) -> AsyncTransport:
    """Return a pool of connections; what it takes is imported by those who use it."""
    from statem_dist.client.pooled import AsyncPooledTransport

    return AsyncPooledTransport(address)
