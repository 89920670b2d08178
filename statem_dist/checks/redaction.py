"""Secrets that a command was given, or could read from us, and that must not stand in what is kept of its output.

What is known to be a secret is blotted out before anything is stored, so that no result, log, file or stream has it:
the values of our own secret variables, those of variables of the command whose names say that they are secrets, and
the passwords in URLs among its variables. Short values are left alone: blotting out each ``1234`` would make nonsense
of honest output. This catches what is printed as it is, and no encoding of it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping

from statem_dist.checks.environment import RUN_NAMES, SECRET_NAMES

BLOT = "[redacted]"
"""What stands in the place of a secret."""

LENGTH_MIN = 8
"""Characters that a value has at least to count as a secret."""

ENDINGS = (
    "ACCESS_KEY",
    "API_KEY",
    "APIKEY",
    "CREDENTIAL",
    "CREDENTIALS",
    "PASSPHRASE",
    "PASSWD",
    "PASSWORD",
    "PRIVATE_KEY",
    "SECRET",
    "SECRET_KEY",
    "TOKEN",
)
"""Last words of the names of variables that hold secrets."""

_PASSWORD = re.compile(r"^[A-Za-z][\w+.-]*://[^/?#@]*?:([^/?#]+)@")


def secrets_of(environ: Mapping[str, str], own: Mapping[str, str]) -> tuple[str, ...]:
    """Return the secrets that a command may print, longest first.

    Args:
        environ: the environment of the command.
        own: the environment of this process, which the processes of its user can read.
    """
    found = {
        *_values(value for name, value in environ.items() if names_a_secret(name)),
        *_values(own[name] for name in SECRET_NAMES if name in own),
        *_passwords([*environ.values(), *(own[name] for name in SECRET_NAMES if name in own)]),
    }
    return tuple(sorted(found, key=lambda secret: (-len(secret), secret)))


def names_a_secret(name: str) -> bool:
    """Return whether a variable of that name holds a secret, as far as names tell."""
    if name in RUN_NAMES:
        return False
    upper = name.upper()
    return name in SECRET_NAMES or any(upper == ending or upper.endswith(f"_{ending}") for ending in ENDINGS)


def blotted(text: str, secrets: Iterable[str]) -> str:
    """Return a text in which something else stands in the place of each secret."""
    for secret in secrets:
        text = text.replace(secret, BLOT)
    return text


def _values(values: Iterable[str]) -> Iterator[str]:
    """Yield values and their lines that are long enough; a key of many lines may be printed line by line."""
    for value in values:
        yield from (part for part in {value.strip(), *map(str.strip, value.split("\n"))} if len(part) >= LENGTH_MIN)


def _passwords(values: Iterable[str]) -> Iterator[str]:
    for value in values:
        found = _PASSWORD.match(value)
        if found is not None and len(found[1]) >= LENGTH_MIN:
            yield found[1]
