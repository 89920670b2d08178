"""A network that misbehaves: a TCP proxy between the programs and their server, with faults to be switched on."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress

CHUNK_BYTES = 65_536


class Proxy:
    """Hands bytes on between the programs and a server on this host.

    Every method may be called from any thread. What is dropped is a whole chunk of what the server says, as a rule one
    reply; the connection is cut after it, or stays open and never says anything again.

    Args:
        port: where the programs connect to.
        server_port: where the server listens.
    """

    def __init__(self, port: int, server_port: int) -> None:
        self.port = port
        self._server_port = server_port
        self._loop = asyncio.new_event_loop()
        self._flows = asyncio.Event()
        self._latency_seconds = 0.0
        self._to_drop = 0
        self._cuts = True
        self._writers: set[asyncio.StreamWriter] = set()
        self._thread = threading.Thread(target=self._run, name="chaos-proxy", daemon=True)
        self._ready = threading.Event()

    def start(self) -> None:
        """Begin to listen."""
        self._thread.start()
        self._ready.wait()

    def close(self) -> None:
        """End, with every connection."""
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    # --- faults ----------------------------------------------------------------------------------------------

    def hold(self) -> None:
        """Hand nothing on until ``heal``; what is sent meanwhile arrives then."""
        self._do(self._flows.clear)

    def delay(self, seconds: float) -> None:
        """Hand everything on so much later, until ``heal``."""
        self._latency_seconds = seconds

    def drop_replies(self, count: int, *, cuts: bool) -> None:
        """Lose that many of the next things that the server says.

        Args:
            cuts: whether the connection ends with each of them; else it stays open and silent.
        """
        self._cuts = cuts
        self._to_drop = count

    def reset(self) -> None:
        """Cut every connection that there is."""
        self._do(self._cut_all)

    def heal(self) -> None:
        """Be a good network again."""
        self._latency_seconds = 0.0
        self._to_drop = 0
        self._do(self._flows.set)

    # --- handing on ------------------------------------------------------------------------------------------

    def _do(self, action: Callable[[], object]) -> None:
        self._loop.call_soon_threadsafe(action)

    def _cut_all(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._flows.set()
        listening = self._loop.run_until_complete(
            asyncio.start_server(self._serve, "127.0.0.1", self.port, backlog=512)
        )
        self._ready.set()
        self._loop.run_forever()
        # What is cut off now is nobody's trouble any more.
        self._loop.set_exception_handler(lambda *_: None)
        listening.close()
        for task in asyncio.all_tasks(self._loop):
            task.cancel()
        self._cut_all()
        self._loop.run_until_complete(asyncio.sleep(0.05))
        self._loop.close()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            to_reader, to_writer = await asyncio.open_connection("127.0.0.1", self._server_port)
        except OSError:
            writer.transport.abort()
            return
        both = {writer, to_writer}
        self._writers |= both
        try:
            asked = asyncio.ensure_future(self._pump(reader, to_writer, replies=False))
            said = asyncio.ensure_future(self._pump(to_reader, writer, replies=True))
            await asyncio.wait({asked, said}, return_when=asyncio.FIRST_COMPLETED)
            asked.cancel()
            said.cancel()
        finally:
            self._writers -= both
            for each in both:
                each.transport.abort()

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, replies: bool) -> None:
        with suppress(OSError):
            while chunk := await reader.read(CHUNK_BYTES):
                if self._latency_seconds:
                    await asyncio.sleep(self._latency_seconds)
                await self._flows.wait()
                if replies and self._to_drop:
                    self._to_drop -= 1
                    if self._cuts:
                        return
                    await self._loop.create_future()
                writer.write(chunk)
                await writer.drain()
