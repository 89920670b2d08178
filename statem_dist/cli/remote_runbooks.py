"""The registered runbooks of a service, for the commands on them."""

from __future__ import annotations

from collections.abc import Sequence

from statem_dist.client.results import RegistrationView, RunbookView
from statem_dist.client.sync import Client
from statem_dist.registry import Registration
from statem_dist.runbook import format_of
from statem_dist.store.codec import StoredRunbook


class RemoteRunbooks:
    """The registered runbooks of a service; who registers one there is the token of the caller.

    Args:
        client: a client of it.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def register(self, stored: StoredRunbook, name: str, by: str) -> Registration:
        """Register a runbook under a name."""
        return _registration(
            self._client.register(stored.text, name=name, source=stored.source, format=format_of(stored.source))
        )

    def list(self) -> Sequence[Registration]:
        """Return every registered version, by name, the newest first."""
        return [_registration(each) for each in self._client.runbooks(versions=True)]


def _registration(view: RegistrationView | RunbookView) -> Registration:
    return Registration(name=view.name, hash=view.hash, at=view.registered_at, by=view.by, current=view.current)
