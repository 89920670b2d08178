"""The tasks. They carry ids and names, never a command: what is to be done is read from the state."""

from __future__ import annotations

import logging
from typing import Any

from celery import shared_task

from statem_dist.dispatch import DRIVE_TASK_NAME, TASK_NAME
from statem_dist.errors import StatemError
from statem_workers.intake import handed_back
from statem_workers.runtime import runtime

logger = logging.getLogger(__name__)


@shared_task(bind=True, name=TASK_NAME, ignore_result=True)
def execute(task: Any, run_id: str, transition: str, check: str) -> None:
    """Claim and execute the batch of a run that begins with a check, and what follows from it."""
    if task.request.id in handed_back:
        return
    try:
        runtime().executor.execute(run_id, transition, check)
    except StatemError as error:
        # Nothing is lost: what is still owed is found by the reaper.
        logger.warning("run %s, transition %s: %s", run_id, transition, error.message)


@shared_task(bind=True, name=DRIVE_TASK_NAME, ignore_result=True)
def drive(task: Any, queue: str) -> None:
    """Take the next trial that waits for a queue, if there is one, and drive it to its end."""
    if task.request.id in handed_back:
        return
    try:
        runtime().slots.drive_next(queue)
    except StatemError as error:
        # Nothing is lost: a keeper finds the lease run out, and another slot goes on with the trial.
        logger.warning("a trial of the queue %s: %s", queue, error.message)
