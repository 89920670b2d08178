"""Whether the tokens of those who listen still count, without asking the store for each of them.

However many listen, and whatever happens, each token is looked up about once a second by a process.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from statem_dist.store.redis_store import RedisStore
from statem_dist.tokens import Tokens

RECHECK_SECONDS = 1.0
"""How long it is believed that a token counts, and how often it is looked again while nothing happens."""

Call = Callable[..., Awaitable[Any]]


class Standing:
    """Knows which tokens counted a moment ago.

    Args:
        tokens: where they are kept.
        store: whose clock says whether one has expired.
        call: runs a blocking call elsewhere.
    """

    def __init__(self, tokens: Tokens, store: RedisStore, call: Call) -> None:
        self._tokens = tokens
        self._store = store
        self._call = call
        self._looked: dict[str, tuple[float, asyncio.Future[bool]]] = {}

    def look(self, token_id: str) -> bool:
        """Return whether a token counts now; an empty id stands for none, and always does. This blocks."""
        if not token_id:
            return True
        token = self._tokens.get(token_id)
        return token is not None and token.state(self._store.clock()) == "live"

    async def counts(self, token_id: str, *, believed_seconds: float = RECHECK_SECONDS) -> bool:
        """Return whether a token counts, or did so not long ago.

        Args:
            token_id: the token, empty for none.
            believed_seconds: how old the answer may be; 0 looks now.

        Raises:
            Unavailable: the store cannot say.
        """
        if not token_id:
            return True
        now = time.monotonic()
        looked_at, found = self._looked.get(token_id, (0.0, None))
        if found is None or now - looked_at >= believed_seconds:
            for other, (at, _) in list(self._looked.items()):
                if now - at >= RECHECK_SECONDS:
                    del self._looked[other]
            found = asyncio.ensure_future(self._look(token_id))
            self._looked[token_id] = (now, found)
        # One who goes away takes the answer from nobody else.
        return await asyncio.shield(found)

    async def _look(self, token_id: str) -> bool:
        return bool(await self._call(self.look, token_id))
