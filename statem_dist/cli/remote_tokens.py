"""The tokens of a service, for the commands on tokens."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from statem_dist.client.results import TokenView
from statem_dist.client.sync import Client
from statem_dist.roles import Role
from statem_dist.tokens import Token


class RemoteTokens:
    """The tokens of a service; who makes or ends one there is the token of the caller.

    Args:
        client: a client of it.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def create(
        self, name: str, role: Role, labels: Mapping[str, str], expires_in_seconds: float | None, by: str
    ) -> tuple[Token, str]:
        """Make a token, and return it with its text."""
        made = self._client.create_token(role, name=name, labels=labels, expires_in=expires_in_seconds)
        return _token(made), made.token

    def list(self) -> Sequence[Token]:
        """Return the tokens, newest first."""
        return [_token(each) for each in self._client.tokens()]

    def revoke(self, token_id: str, by: str) -> Token:
        """End a token at once."""
        return _token(self._client.revoke_token(token_id))


def _token(view: TokenView) -> Token:
    return Token(
        id=view.id,
        name=view.name,
        role=view.role,
        labels=view.labels,
        created_at=view.created_at,
        created_by=view.created_by,
        expires_at=view.expires_at or 0,
        revoked_at=view.revoked_at or 0,
        revoked_by=view.revoked_by or "",
    )
