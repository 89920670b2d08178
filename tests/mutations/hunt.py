"""Play worlds until one breaks a law, and say which: run in a copy of the project that has a deliberate bug."""

from __future__ import annotations

import argparse
import json
import sys
from typing import cast

from tests.simulation.faults import Kind
from tests.simulation.world import World


def main() -> int:
    """Read the command line, and print ``{"seed", "law"}`` of the first world in which a law was broken, or nulls."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutations.hunt", description=__doc__)
    parser.add_argument("first", type=int)
    parser.add_argument("count", type=int)
    parser.add_argument("kinds", nargs="*")
    options = parser.parse_args()
    kinds = frozenset(cast(list[Kind], options.kinds)) or None
    for seed in range(options.first, options.first + options.count):
        try:
            World(seed, kinds=kinds).play()
        except Exception as error:
            print(json.dumps({"seed": seed, "law": f"{type(error).__name__}: {error}"[:500]}))
            return 0
    print(json.dumps({"seed": None, "law": None}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
