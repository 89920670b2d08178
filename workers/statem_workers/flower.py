"""Flower, the dashboard of Celery, on the queues of one broker: what ``statem-dist flower`` starts.

Flower shows workers, queues and messages; the state of runs is not there, and nothing is lost when it ends. It is
therefore run read-only, keeps nothing on disk, and does not switch events on by itself: whether a worker pays for
them is said where the worker is started. Addresses and passwords come in by the environment, so that no command line
shows them.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import warnings
from ipaddress import ip_address
from typing import Any

import msgspec
from flower.app import Flower
from flower.urls import settings as page_settings
from msgspec import Struct
from tornado.options import options as flower_options

from statem_dist.cli.answer import print_error
from statem_dist.errors import StatemError, Unavailable, Usage
from statem_dist.settings import Settings
from statem_workers.app import broker_url_for, make_app, require_broker
from statem_workers.runtime import store_url
from statem_workers.worker import LOG_FORMAT

TASKS_MAX = 10_000
"""Messages that Flower remembers, the newest ones; each takes a few kilobytes of its memory."""

QUEUES = ("checks", "llm")
"""Queues that are shown while no worker has said which ones it serves."""

COLUMNS = "name,args,state,received,started,runtime,worker,uuid"
"""Columns of the list of messages: the arguments are run, transition and check."""

logger = logging.getLogger(__name__)


class FlowerOptions(Struct, frozen=True):
    """Where Flower listens; port 0 takes a free one."""

    address: str
    port: int


def run_flower(options: FlowerOptions, settings: Settings) -> int:
    """Run Flower in the foreground until SIGTERM or SIGINT; return its exit code.

    Raises:
        Usage: the address is reachable from other hosts and nobody is asked for a password, or the user name and
            password are not of the form that they must have.
        Unavailable: the broker cannot be reached, or the port is taken.
    """
    logging.basicConfig(level="INFO", format=LOG_FORMAT, stream=sys.stderr)
    # One line for each page is too much. That no worker has answered in time is no news.
    logging.getLogger("tornado.access").setLevel(logging.WARNING)
    logging.getLogger("flower.inspector").setLevel(logging.ERROR)
    # What Flower's own use of Celery is warned of is not for its users.
    warnings.simplefilter("ignore")
    credentials = credentials_for(options.address, settings.flower_basic_auth)
    app = make_app(settings.broker_url or broker_url_for(store_url(settings)), QUEUES)
    require_broker(app, settings)
    for name, value in {
        "address": options.address,
        "port": options.port,
        "basic_auth": credentials,
        "read_only": True,
        "enable_events": False,
        "max_tasks": TASKS_MAX,
        "tasks_columns": COLUMNS,
    }.items():
        setattr(flower_options, name, value)
    dashboard = Flower(capp=app, options=flower_options, **page_settings)
    try:
        port = dashboard.start_http_server()
    except OSError as error:
        raise Unavailable(
            f"Flower cannot listen on {options.address}:{options.port}: {error.strerror or error}.",
            hint="Choose another --port or --address.",
        ) from error

    def stop(*_: Any) -> None:
        dashboard.io_loop.add_callback_from_signal(dashboard.stop)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, stop)
    logger.info(
        "Flower is on http://%s:%d/ (%s)", options.address, port, "basic auth" if credentials else "no password"
    )
    dashboard.start()
    logger.info("stopped")
    return 0


def credentials_for(address: str, basic_auth: str | None) -> list[str]:
    """Return the user names with passwords that Flower accepts, each as ``user:password``; none where all may look.

    Args:
        address: where Flower will listen.
        basic_auth: ``STATEM_FLOWER_BASIC_AUTH``.

    Raises:
        Usage: see ``run_flower``.
    """
    if basic_auth is None:
        if not _is_loopback(address):
            raise Usage(
                f"Flower does not listen on {address or 'all addresses'} without a password.",
                hint="Set STATEM_FLOWER_BASIC_AUTH to user:password, or leave --address at 127.0.0.1.",
            )
        return []
    user, _, password = basic_auth.partition(":")
    # Flower compares them as text, and Python refuses to do that in constant time with other characters.
    if not user or not password or not basic_auth.isascii():
        raise Usage("STATEM_FLOWER_BASIC_AUTH must have the form user:password, of ASCII characters.")
    return [basic_auth]


def _is_loopback(address: str) -> bool:
    """Return whether only this host can reach an address; of a name nobody knows, ``localhost`` excepted."""
    if address == "localhost":
        return True
    try:
        return ip_address(address).is_loopback
    except ValueError:
        return False


def main() -> int:
    """Run the Flower that the first argument describes; the settings come from the environment."""
    options = msgspec.json.decode(sys.argv[1], type=FlowerOptions)
    try:
        code = run_flower(options, Settings.from_environment(os.environ))
    except StatemError as error:
        print_error(error, as_json=False)
        return int(error.exit_code)
    # Threads that wait for answers of workers would hold the process up, and nothing is lost with them.
    logging.shutdown()
    os._exit(code)


if __name__ == "__main__":
    sys.exit(main())
