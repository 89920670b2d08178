"""``python -m statem_dist.embedded.attend DIR``: shows the log of an embedded server for as long as it runs.

The server itself belongs to its keeper. This process is its face in a foreground stack: it repeats the server's
log, and it ends when the server does, so that the stack ends too.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from statem_dist.embedded.place import Place
from statem_dist.embedded.server import status

LOOK_SECONDS = 0.5


def main() -> int:
    """Repeat the log until the server is gone; return 1 then."""
    state_dir = Path(sys.argv[1])
    with Path(Place.of(state_dir).log).open(encoding="utf-8", errors="replace") as log:
        log.seek(0, 2)
        while status(state_dir).running:
            for line in log:
                print(line.rstrip("\n"), flush=True)
            time.sleep(LOOK_SECONDS)
    print("the server has ended", flush=True)
    return 1


if __name__ == "__main__":
    sys.exit(main())
