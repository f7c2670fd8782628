"""How long a finished landscape takes to be looked at and opened again.

`python tests/scale/reopening.py [SIZE] [ROUNDS]`: SIZE x SIZE points in tiles of 4 x 4. Processor seconds of whole
commands, over those of a command that only imports what they import and reads every chunk's file: what is left of
the ratio is the work of checking.
"""

from __future__ import annotations

import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import large

ROOT = Path(__file__).resolve().parents[2]
BARE = """
import sys
from pathlib import Path
import cluster.driver.driver
from landscape.store.landscape import LandscapeStore
print(sum(len(each.read_bytes()) for each in Path(sys.argv[1]).rglob("*") if each.is_file()))
"""


def seconds_of(words: Sequence[str]) -> float:
    """The processor's, which other processes do not stretch."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *words], cwd=ROOT, capture_output=True, check=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(size: int = 256, rounds: int = 5) -> None:
    with tempfile.TemporaryDirectory(prefix="ll") as name:
        job = large.write_job(Path(name), size, tile=4)
        large.fill_whole(job)
        run = str(Path(name) / "run")
        commands = {
            "bare": ["-c", BARE, run],
            "status": ["-m", "cluster", "status", run, "--json"],
            "run again": ["-m", "cluster", "run", str(job)],
        }
        taken = [{what: seconds_of(words) for what, words in commands.items()} for _ in range(rounds)]
    print(f"{size} x {size} points in {(-(-size // 4)) ** 2} tiles, {rounds} rounds, medians of processor seconds")
    for what in commands:
        seconds = statistics.median(each[what] for each in taken)
        ratio = statistics.median(each[what] / each["bare"] for each in taken)
        print(f"{what:10} {seconds:6.2f} s  {ratio:5.2f} of bare")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
