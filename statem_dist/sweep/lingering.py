"""Processes that outlive whoever has started them, for as long as sweeps need them, and no longer."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time

from statem_dist.errors import Unavailable
from statem_dist.store.redis_store import RedisStore
from statem_dist.sweep.ledger import Ledger

LOOK_SECONDS = 2.0
"""How often such a process looks whether it may end."""

logger = logging.getLogger(__name__)


def linger(store: RedisStore) -> None:
    """See to it that this process is told to end once its starter is gone and no sweep has work left.

    Call it at the start, while the starter can be told from whoever takes its orphans.
    """
    starter = os.getppid()
    ledger = Ledger(store)
    threading.Thread(target=_end_when_done, args=(starter, ledger), name="statem-lingering", daemon=True).start()


def _end_when_done(starter: int, ledger: Ledger) -> None:
    while os.getppid() == starter or _is_needed(ledger):
        time.sleep(LOOK_SECONDS)
    logger.info("whoever has started this process is gone, and no sweep has work left")
    os.kill(os.getpid(), signal.SIGTERM)


def _is_needed(ledger: Ledger) -> bool:
    try:
        return bool(ledger.open())
    except Unavailable as error:
        logger.warning("whoever has started this process is gone, and so is the state store: %s", error.message)
        return False
