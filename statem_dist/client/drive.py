"""What the drivers share: their limits, where the service is, and how their methods show themselves."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

from statem_dist.client.address import EXAMPLE, Address, address_from
from statem_dist.errors import Usage

PATIENCE_SECONDS = 10.0
"""How long a service that does not answer is tried again: as long as a restart takes."""

ANSWER_SECONDS = 15.0
"""How long the service may take for an answer, beyond what it was asked to wait."""

Method = TypeVar("Method", bound=Callable[..., Any])


def required_address(environ: Mapping[str, str], url: str | None, token: str | None) -> Address:
    """Return the service that a client is for.

    Raises:
        Usage: nothing names one.
    """
    address = address_from(environ, url, token)
    if address is None:
        raise Usage("No service is named.", hint=f"Give its URL, or set STATEM_URL. {EXAMPLE}")
    return address


def new_key() -> str:
    """Return an idempotency key that nobody else has."""
    return os.urandom(16).hex()


def shown_as(method: Method, make: Callable[..., Any]) -> Method:
    """Return a method that has the name, the text and the parameters of what makes its call."""
    method.__name__ = make.__name__
    method.__qualname__ = make.__name__
    method.__doc__ = make.__doc__
    own = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    method.__signature__ = inspect.Signature([own, *inspect.signature(make).parameters.values()])  # type: ignore[attr-defined]
    return method
