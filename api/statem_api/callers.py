"""Who is calling: the token of a request, what its role allows, and which runs its labels reach.

A run that a token does not reach is answered like one that does not exist: its id alone may say too much.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

from fastapi import Depends, Request
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from fastapi.security.utils import get_authorization_scheme_param
from msgspec import Struct

from statem_api.service import Service
from statem_dist.coordinator import run_not_found
from statem_dist.errors import NotAuthenticated, NotAuthorised
from statem_dist.protocol.model import Actor, Run
from statem_dist.roles import Role
from statem_dist.sweep.ledger import sweep_not_found
from statem_dist.sweep.model import Sweep
from statem_dist.tokens import Token

RANKS: dict[Role, int] = {"viewer": 0, "agent": 1, "operator": 2, "admin": 3}
"""The roles; each may do what those below it may."""

LOCAL = "local"
"""Who calls without a token, where that is allowed: somebody on this host."""

bearer = HTTPBearer(auto_error=False, scheme_name="token", description="A token of `statem-dist token create`.")


class Caller(Struct, frozen=True):
    """Who is calling. ``token`` is the id of the token, empty for somebody on this host without one."""

    name: str
    role: Role
    labels: dict[str, str] = {}
    token: str = ""

    def require(self, role: Role, what: str) -> None:
        """Refuse a caller below a role.

        Args:
            role: the lowest one that may do it.
            what: what it may do, as the end of "may ...".

        Raises:
            NotAuthorised: the caller's role is lower.
        """
        if RANKS[self.role] < RANKS[role]:
            raise NotAuthorised(
                f"A token of the role {self.role} may not {what}.",
                hint=f"It takes the role {role} or higher. `statem-dist token create` makes tokens.",
                details={"role": self.role, "required": role},
            )

    @property
    def operates(self) -> bool:
        """Whether the caller may decide what an operator has to decide."""
        return RANKS[self.role] >= RANKS["operator"]

    def reaches(self, labels: Mapping[str, str]) -> bool:
        """Return whether the caller's labels are among those of a run."""
        return self.labels.items() <= labels.items()

    def require_reach(self, run: Run) -> None:
        """Refuse a run that the caller's labels do not reach.

        Raises:
            NotFound: as if there were no such run.
        """
        if not self.reaches(run.labels):
            raise run_not_found(run.id)

    def reaches_sweep(self, sweep: Sweep) -> bool:
        """Return whether the caller's labels are among those that every run of a sweep has.

        A token for some of its trials does not reach the sweep, which tells of all of them.
        """
        return self.reaches({**sweep.definition.labels, "sweep": sweep.id})

    def require_sweep(self, sweep: Sweep) -> Sweep:
        """Return a sweep that the caller's labels reach.

        Raises:
            NotFound: they do not, as if there were no such sweep.
        """
        if not self.reaches_sweep(sweep):
            raise sweep_not_found(sweep.id)
        return sweep

    def actor(self, agent_id: str | None = None, agent_role: str | None = None) -> Actor:
        """Return who is named in what follows: whom the caller says it speaks for, and always the token itself.

        Raises:
            NotAuthorised: it says that it speaks in a role above that of its token.
        """
        if agent_role in RANKS and RANKS[agent_role] > RANKS[self.role]:
            raise NotAuthorised(
                f"A token of the role {self.role} does not speak as {agent_role}.",
                hint="Leave `agent_role` out, or name what the agent does.",
                details={"role": self.role},
            )
        return Actor(id=agent_id or self.name, role=self.role if agent_role is None else agent_role, token=self.token)

    def decider(self) -> Actor:
        """Return who decides: that is never for the body of a request to say."""
        return Actor(id=self.name, role=self.role, token=self.token)


async def caller_named(service: Service, headers: Mapping[str, str]) -> Caller:
    """Return who calls; the token is looked up anew for each request, so that a revocation counts at once.

    Args:
        service: what is called.
        headers: those of the request, by their names in small letters.

    Raises:
        NotAuthenticated: there is no token where one is needed, or it does not count.
    """
    if "authorization" not in headers:
        if service.options.loopback and not await service.asks_for_tokens():
            return Caller(name=LOCAL, role="admin")
        raise _unknown("This service asks for a token.")
    scheme, text = get_authorization_scheme_param(headers["authorization"])
    if scheme.lower() != "bearer" or not text:
        raise _unknown("The header `Authorization` holds no bearer token.")
    token = await service.token(text)
    if token is None:
        raise _unknown("The token is unknown, expired or revoked.")
    return _caller(token)


async def caller_of(
    request: Request,
    # For the OpenAPI document alone.
    _: Annotated[HTTPAuthorizationCredentials | None, Depends(bearer)],
) -> Caller:
    """Return who calls, as the envelope has found out before the body was read."""
    caller = request.state.caller
    assert isinstance(caller, Caller)
    return caller


def still_counts(service: Service, caller: Caller) -> bool:
    """Return whether the token of a caller still counts, whose request takes long; this blocks."""
    return service.standing.look(caller.token)


def _caller(token: Token) -> Caller:
    return Caller(name=token.name or token.id, role=token.role, labels=token.labels, token=token.id)


def _unknown(what: str) -> NotAuthenticated:
    return NotAuthenticated(
        what,
        hint="Send `Authorization: Bearer TOKEN`; `statem-dist token create` makes one (the CLI takes STATEM_TOKEN).",
    )


Calling = Annotated[Caller, Depends(caller_of)]
"""The caller, as a parameter of a route."""
