"""Serving: one process, one event loop, until it is told to stop."""

from __future__ import annotations

import errno
import logging
import signal
import socket
import sys
from pathlib import Path

import uvicorn

from statem_api.app import make_app
from statem_api.options import ApiOptions
from statem_api.service import Service
from statem_dist.embedded.token_file import announce_service
from statem_dist.errors import NotAuthorised, Unavailable, UnsafeSurroundings
from statem_dist.settings import Settings
from statem_dist.surroundings import require_surroundings
from statem_dist.sweep.lingering import linger
from statem_dist.tokens import redacted

BACKLOG = 2_048
"""Connections that may wait to be accepted."""

KEEP_ALIVE_SECONDS = 30
"""How long an idle connection is kept; longer than the pauses of a client that polls."""

STOP_SECONDS = 5
"""How long requests may go on after the signal to stop; streams end at once."""

LOG_FORMAT = "%(asctime)s %(levelname)-7s %(message)s"

logger = logging.getLogger(__name__)


class Server(uvicorn.Server):
    """A server that lets go of streams and waiting requests before it waits for requests to end.

    Args:
        config: how to serve.
        service: what is served.
    """

    def __init__(self, config: uvicorn.Config, service: Service) -> None:
        super().__init__(config)
        self._service = service

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End everything, because the server was told to."""
        self._service.stop()
        await super().shutdown(sockets)


def serve(options: ApiOptions, settings: Settings) -> int:
    """Serve until SIGTERM or SIGINT; return the exit code.

    Raises:
        Unavailable: the state store cannot be reached, or the address cannot be had.
        UnsafeSurroundings: runs would be lost on the state store as it is.
        NotAuthorised: others than this host would reach a service that asks nobody for a token.
    """
    logging.basicConfig(level=options.log_level, format=LOG_FORMAT, stream=sys.stderr)
    for handler in logging.getLogger().handlers:
        handler.addFilter(_redact)
    app = make_app(options, settings)
    service = app.state.service
    try:
        require_surroundings(service.engine.store, settings)
    except UnsafeSurroundings:
        raise
    except Unavailable as error:
        # It answers for itself until the store is there, and the workers look as well.
        logger.warning("%s", error.message)
    if not options.loopback and not service.tokens.in_use():
        raise NotAuthorised(
            f"There is no token, and {options.host} is reached by others than this host.",
            hint="Make one first: statem-dist token create --role admin",
        )
    if options.until_done:
        linger(service.engine.store)
    listener = listener_for(options)
    host, port = listener.getsockname()[:2]
    shown = f"[{host}]" if ":" in host else host
    if options.service_file:
        announce_service(Path(options.service_file), f"http://{shown}:{port}")
    print(f"Serving: http://{shown}:{port}/v1", flush=True)
    config = uvicorn.Config(
        app,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE_SECONDS,
        timeout_graceful_shutdown=STOP_SECONDS,
    )
    for stop in (signal.SIGTERM, signal.SIGINT):
        # The server raises the signal again when it has stopped; to be told to stop and to stop is success.
        signal.signal(stop, lambda *_: None)
    try:
        Server(config, service).run(sockets=[listener])
    finally:
        if options.service_file:
            Path(options.service_file).unlink(missing_ok=True)
    return 0


def listener_for(options: ApiOptions) -> socket.socket:
    """Return the socket that the service listens on.

    Raises:
        Unavailable: the address cannot be had.
    """
    try:
        family, _, _, _, address = socket.getaddrinfo(options.host, options.port, type=socket.SOCK_STREAM)[0]
        # Named as TCP, so that the event loop sends small answers at once instead of holding them back for more.
        listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(address)
        except OSError as error:
            if not options.any_port or error.errno != errno.EADDRINUSE:
                raise
            listener.bind((address[0], 0, *address[2:]))
        listener.listen(BACKLOG)
    except OSError as error:
        raise Unavailable(
            f"{options.host}:{options.port} cannot be served: {error.strerror or error}.",
            hint="Choose another one with --host and --port, or end what serves it now.",
        ) from error
    return listener


def _redact(record: logging.LogRecord) -> bool:
    """Keep secrets of tokens out of a line of the log."""
    record.msg, record.args = redacted(record.getMessage()), None
    return True
