"""``python -m statem_workers.health QUEUE``: whether a worker of this host serves a queue, for health checks.

In a container, whose host name is its own, that is the worker of the container. The answer is the exit code: 0 if a
worker has announced itself within the last seconds and its process lives, 1 if not, and that of the error else.
"""

from __future__ import annotations

import os
import sys

from statem_dist.cli.answer import print_error
from statem_dist.errors import StatemError
from statem_dist.identity import process_here
from statem_dist.roster import Roster
from statem_dist.settings import Settings
from statem_dist.store.client import client_for
from statem_dist.store.redis_store import RedisStore
from statem_workers.runtime import store_url


def main() -> int:
    """Look for a worker that serves the queue in the first argument; the settings come from the environment."""
    queue = sys.argv[1]
    try:
        settings = Settings.from_environment(os.environ)
        store = RedisStore(client_for(store_url(settings)), patience_seconds=settings.patience_seconds)
        cards = Roster(store).present()
    except StatemError as error:
        print_error(error, as_json=False)
        return int(error.exit_code)
    if any(queue in card.queues and process_here(card.id) for card in cards):
        return 0
    print(f"No worker of this host serves the queue {queue!r}.", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
