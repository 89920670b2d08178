"""URLs of a Redis that is more than one server: behind Sentinel, or a Cluster.

``redis+sentinel://USER:PASSWORD@HOST:PORT,HOST:PORT/SERVICE/DB`` names sentinels and the service whose primary is
meant. The credentials are those of Redis itself; ``?sentinel_username=`` and ``?sentinel_password=`` are those of the
sentinels. ``redis+cluster://USER:PASSWORD@HOST:PORT,HOST:PORT`` names some of the nodes. With ``rediss`` all speak TLS.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from msgspec import Struct

from statem_dist.errors import Unavailable

SENTINEL_PORT = 26379
NODE_PORT = 6379

FORMS = (
    "STATEM_REDIS_URL must look like redis://host:6379/0, rediss://…, unix:///path, "
    "redis+sentinel://host:26379,host:26379/SERVICE/0 or redis+cluster://host:6379,host:6379."
)


class Topology(Struct, frozen=True):
    """Servers that are one store: sentinels and the service that they watch, or nodes of a Cluster (no service)."""

    servers: tuple[tuple[str, int], ...]
    service: str = ""
    database: int = 0
    username: str | None = None
    password: str | None = None
    sentinel_username: str | None = None
    sentinel_password: str | None = None
    tls: bool = False

    @property
    def credentials(self) -> dict[str, Any]:
        """What a connection to Redis itself is made with."""
        given = {"username": self.username, "password": self.password}
        return {name: value for name, value in given.items() if value} | ({"ssl": True} if self.tls else {})

    @property
    def sentinel_credentials(self) -> dict[str, Any]:
        """What a connection to a sentinel is made with."""
        given = {"username": self.sentinel_username, "password": self.sentinel_password}
        return {name: value for name, value in given.items() if value} | ({"ssl": True} if self.tls else {})

    @property
    def broker_url(self) -> str:
        """The same sentinels as a kombu URL; the service goes into ``broker_options``."""
        user = "" if not self.username else quote(self.username, safe="")
        login = f"{user}:{quote(self.password, safe='')}@" if self.password else ""
        each = [f"sentinel://{login}{host}:{port}" for host, port in self.servers]
        return f"{';'.join(each)}/{self.database}"

    @property
    def broker_options(self) -> dict[str, Any]:
        """Transport options of kombu."""
        return {"master_name": self.service, "sentinel_kwargs": self.sentinel_credentials}


def topology_of(url: str) -> Topology | None:
    """Return the servers of a URL that names several; None for one that names a single server.

    Raises:
        Unavailable: it is of neither form.
    """
    kind, _, rest = url.partition("://")
    transport, _, what = kind.lower().partition("+")
    if what not in ("sentinel", "cluster"):
        return None
    try:
        parts = urlsplit(f"redis://{rest}")
        login, _, places = parts.netloc.rpartition("@")
        username, _, password = login.partition(":")
        port = SENTINEL_PORT if what == "sentinel" else NODE_PORT
        servers = tuple(_place(place, port) for place in places.split(",") if place)
        service, _, database = parts.path.strip("/").partition("/")
        query = dict(parse_qsl(parts.query))
        if not servers or (what == "sentinel") != bool(service):
            raise ValueError
        return Topology(
            servers=servers,
            service=unquote(service),
            database=int(database or 0),
            username=unquote(username) or None,
            password=unquote(password) or None,
            sentinel_username=query.get("sentinel_username"),
            sentinel_password=query.get("sentinel_password"),
            tls=transport == "rediss",
        )
    except ValueError:
        raise Unavailable("The URL of the state store cannot be understood.", hint=FORMS) from None


def _place(text: str, default: int) -> tuple[str, int]:
    host, colon, port = text.rpartition(":")
    if not colon or host.endswith(":") or port.endswith("]"):
        return text.strip("[]"), default
    return host.strip("[]"), int(port)
