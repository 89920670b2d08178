"""``python -m statem_workers``: what ``statem-dist worker`` starts, with its options as one JSON argument."""

from __future__ import annotations

import os
import sys

import msgspec

from statem_dist.cli.answer import print_error
from statem_dist.errors import StatemError
from statem_dist.settings import Settings
from statem_workers.runtime import WorkerOptions
from statem_workers.worker import run_worker


def main() -> int:
    """Run the worker that the first argument describes; the settings come from the environment."""
    options = msgspec.json.decode(sys.argv[1], type=WorkerOptions)
    try:
        return run_worker(options, Settings.from_environment(os.environ))
    except StatemError as error:
        print_error(error, as_json=False)
        return int(error.exit_code)


if __name__ == "__main__":
    sys.exit(main())
