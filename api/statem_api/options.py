"""How one process of the service was started."""

from __future__ import annotations

import ipaddress

from msgspec import Struct

WAIT_SECONDS_MAX = 60.0
"""The longest that a request may ask to wait; a longer wish is cut, because proxies cut longer requests anyway."""

HEARTBEAT_SECONDS = 15.0
"""How often a stream without news shows that it lives."""


class ApiOptions(Struct, frozen=True):
    """How the service was started.

    ``port`` 0 takes a free one, and ``any_port`` does so where the port is
    taken. ``scratch`` is the directory in which a run that names no workspace gets a folder of
    its own. ``registered_only`` lets runs start only from runbooks that an admin has registered, and agents register
    no other dynamic checks than those of ``agent_check_types``. ``service_file`` is where the service says that
    it listens. ``body_bytes_max`` limits the body of a request. ``until_done`` ends the service when whoever has
    started it is gone and no sweep has work left.
    """

    host: str = "127.0.0.1"
    port: int = 8080
    any_port: bool = False
    scratch: str = ""
    registered_only: bool = False
    agent_check_types: tuple[str, ...] = ("manual", "checklist", "message", "predicate")
    service_file: str = ""
    body_bytes_max: int = 8 * 1024 * 1024
    log_level: str = "INFO"
    until_done: bool = False

    @property
    def loopback(self) -> bool:
        """Whether only this host can reach the service."""
        if self.host == "localhost":
            return True
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return False
