"""How the service listens."""

from __future__ import annotations

import asyncio
import socket

from statem_api.options import ApiOptions
from statem_api.server import listener_for


def test_small_answers_are_sent_at_once() -> None:
    """The event loop turns Nagle's algorithm off for what it accepts; with it every answer costs 40 ms more."""

    async def delayed() -> bool:
        accepted: asyncio.Future[bool] = asyncio.get_running_loop().create_future()

        def note(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            connection = writer.get_extra_info("socket")
            accepted.set_result(not connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
            writer.close()

        listener = listener_for(ApiOptions(port=0))
        async with await asyncio.start_server(note, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname()[:2])
            try:
                return await accepted
            finally:
                writer.close()

    assert not asyncio.run(delayed())
