"""Run the service: ``python -m statem_api OPTIONS``, where the options are the JSON of ``ApiOptions``."""

from __future__ import annotations

import os
import sys

import msgspec

from statem_api.options import ApiOptions
from statem_api.server import serve
from statem_dist.errors import StatemError
from statem_dist.settings import Settings


def main() -> int:
    """Serve until SIGTERM or SIGINT; return the exit code."""
    try:
        options = msgspec.json.decode(sys.argv[1], type=ApiOptions)
        return serve(options, Settings.from_environment(os.environ))
    except StatemError as error:
        print(f"Error: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"Hint: {error.hint}", file=sys.stderr)
        return int(error.exit_code)


if __name__ == "__main__":
    sys.exit(main())
