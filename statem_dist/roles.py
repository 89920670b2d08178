"""The roles in which people and agents speak to the service."""

from __future__ import annotations

from typing import Literal, TypeAlias

Role: TypeAlias = Literal["viewer", "agent", "operator", "admin"]
"""What a token may do; each may also do what those before it may."""
