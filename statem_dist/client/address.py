"""Where a service is, and the token that speaks for the caller there."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from urllib.parse import urlsplit

from msgspec import Struct

from statem_dist.errors import Usage
from statem_dist.identity import is_dead

LOOPBACK_NAMES = frozenset({"localhost", "127.0.0.1", "::1"})

EXAMPLE = "Give it as scheme, host and port, such as http://127.0.0.1:8080."

_TOKEN = re.compile(r"[\x21-\x7e]*")


class Address(Struct, frozen=True):
    """A service and the token to use there; empty where it asks for none. The token is in no representation."""

    url: str
    token: str = ""

    def __repr__(self) -> str:
        return f"Address({self.url!r})"

    @property
    def loopback(self) -> bool:
        """Whether the service is on this host."""
        return urlsplit(self.url).hostname in LOOPBACK_NAMES


def address_from(environ: Mapping[str, str], url: str | None = None, token: str | None = None) -> Address | None:
    """Return the service that is given, else that of ``STATEM_URL`` and ``STATEM_TOKEN``; None where neither says one.

    Raises:
        Usage: it is no URL of a service, or no token.
    """
    given = url or environ.get("STATEM_URL")
    if not given:
        return None
    name = "The URL of the service" if url else "STATEM_URL"
    return Address(base_url(given, name), _usable_token(environ.get("STATEM_TOKEN", "") if token is None else token))


def base_url(text: str, name: str) -> str:
    """Return the URL of a service as the paths of its resources follow it; a ``/v1`` at its end is left out.

    Args:
        text: what was given.
        name: what a complaint calls it.

    Raises:
        Usage: it is no such URL. The complaint does not show it where it may hold a password.
    """
    try:
        parts = urlsplit(text.strip())
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        raise Usage(f"{name} is no URL of a service.", hint=EXAMPLE) from None
    if "@" in text:
        raise Usage(f"{name} must not hold a user name or a password.", hint="The token is given by STATEM_TOKEN.")
    if not usable or parts.query or parts.fragment:
        raise Usage(f"{name} is no URL of a service: {text!r}", hint=EXAMPLE)
    return f"{parts.scheme}://{parts.netloc}{parts.path.rstrip('/').removesuffix('/v1')}"


def local_token(url: str, service_file: Path, token_file: Path) -> str:
    """Return the token that a state directory keeps for this user's own programs; empty if there is none to be used.

    It is told to the service that runs for this state directory, and to nobody else who may listen on this host.

    Args:
        url: the service that is meant.
        service_file: says where that service listens, and which process it is.
        token_file: holds the token.
    """
    announced = announced_url(service_file)
    if not announced or _port(announced) != _port(url):
        return ""
    text = _private_text(token_file)
    return text if _TOKEN.fullmatch(text) else ""


def announced_url(service_file: Path) -> str:
    """Return the URL of the service that runs for a state directory; empty if none does.

    Args:
        service_file: says where that service listens, and which process it is.
    """
    announced, _, process = _private_text(service_file).partition(" ")
    return announced if process and not is_dead(process) else ""


def _private_text(file: Path) -> str:
    """Return what a file holds; nothing of one that others may read, or that is somebody else's."""
    try:
        with open(file, "rb") as opened:
            status = os.fstat(opened.fileno())
            if status.st_mode & 0o077 or status.st_uid != os.geteuid():
                return ""
            return opened.read(1_000).decode("ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def _port(url: str) -> int | None:
    parts = urlsplit(url)
    return parts.port or {"http": 80, "https": 443}.get(parts.scheme)


def _usable_token(text: str) -> str:
    token = text.strip()
    if not _TOKEN.fullmatch(token):
        raise Usage("STATEM_TOKEN holds characters that no token has.", hint="`statem-dist token create` makes one.")
    return token
