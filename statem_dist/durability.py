"""How safe a commit is before whoever asked for it is told so: the levels that an operator chooses from.

======================  ===========================================================================================
level                   a commit is acknowledged when
======================  ===========================================================================================
``everysec``            the primary has it; its host may lose the last second with its power, and either of them two
                        while the disk is slow
``always``              it is on the disk of the primary (``appendfsync always``)
``replicas:N``          N replicas have it in memory
``replicas-fsynced:N``  it is on the disks of the primary and of N replicas (Redis 7.2 or newer, Valkey)
======================  ===========================================================================================

``replicas:N:MS`` says for how many milliseconds they are waited for. What has not been confirmed by then stays written.
"""

from __future__ import annotations

import re
from typing import Literal

from msgspec import Struct

from statem_dist.errors import Usage

WAIT_MS = 1_000
"""How long replicas are waited for where nobody says."""

WAIT_MS_MAX = 4_000
"""The longest that may be said: less than what a reply may take before it counts as lost."""

_REPLICAS = re.compile(r"(replicas|replicas-fsynced):([1-9]\d?)(?::([1-9]\d{0,4}))?")


class Durability(Struct, frozen=True):
    """A level, with how many replicas must confirm a commit (0: none) and within how many ms."""

    level: Literal["everysec", "always", "replicas", "replicas-fsynced"] = "everysec"
    replicas: int = 0
    wait_ms: int = WAIT_MS

    @property
    def fsynced(self) -> bool:
        """Whether replicas must have it on disk."""
        return self.level == "replicas-fsynced"

    @property
    def appendfsync(self) -> str:
        """What the primary's ``appendfsync`` has to be at least."""
        return "always" if self.level == "always" else "everysec"


EVERYSEC = Durability()


def read_durability(text: str | None) -> Durability:
    """Return the level that a text names.

    Raises:
        Usage: it names none.
    """
    match text:
        case None | "" | "everysec":
            return EVERYSEC
        case "always":
            return Durability("always")
    found = _REPLICAS.fullmatch(text)
    if found is None or int(found[3] or WAIT_MS) > WAIT_MS_MAX:
        raise Usage(
            f"There is no level of durability {text!r}.",
            hint="STATEM_DURABILITY is everysec, always, replicas:N[:MS] or replicas-fsynced:N[:MS], "
            f"with at most {WAIT_MS_MAX} ms.",
        )
    level: Literal["replicas", "replicas-fsynced"] = "replicas" if found[1] == "replicas" else "replicas-fsynced"
    return Durability(level, int(found[2]), int(found[3] or WAIT_MS))
