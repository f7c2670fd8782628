"""How long a user waits: from the shell prompt to the first committed tile, for the help, for a finished run.

Real commands in a temporary folder, with a problem whose points cost next to nothing: what is left is the system.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from landscape.core.devices import cores
from landscape.core.errors import LandscapeError

COMMAND = (sys.executable, "-m", "cluster")
NAME = "bench"
LONGEST = 300.0  # seconds: a command that takes longer is taken for hung
LOOK_SECONDS = 0.01
FINISHED_SIZE = 256


def startup(finished_size: int = FINISHED_SIZE) -> dict[str, Any]:
    """Seconds to the first tile and to the end of a small job, of the help, and of a run that is finished."""
    with tempfile.TemporaryDirectory(prefix="ll") as name:
        folder = Path(name)
        small = write_job(folder, "small", 16)
        # Many points at once, since it is the time of a finished run that is asked for.
        finished = write_job(folder, "finished", finished_size, engine="vmap:64")
        found: dict[str, Any] = {"help": _whole(["--help"])}
        found["serial"] = first_tile(["run", str(small), "--serial", "--run", str(folder / "a")], folder / "a")
        asked = f"--workers={cores()}"  # else so small a job would start no Ray
        found["ray"] = first_tile(["run", str(small), asked, "--run", str(folder / "b")], folder / "b")
        again = ["run", str(finished), "--serial"]
        found["computing"] = _whole(again)
        found["resume"] = {"points": finished_size**2, "serial": _whole(again), "ray": _whole(again[:-1])}
        return found


def write_job(folder: Path, name: str, size: int, **fields: Any) -> Path:
    """A job file of the tiny problem, the run beside it under the same name."""
    landscape = {"name": NAME, "size": size}
    job = {"run": name, "problem": "landscape.bench.problems:tiny", "num_samples": 16, "landscapes": [landscape]}
    (folder / f"{name}.yaml").write_text(yaml.safe_dump(job | fields))
    return folder / f"{name}.yaml"


def first_tile(words: Sequence[str], run: Path) -> dict[str, float]:
    """Seconds until a tile's status, which is written last, is in the run; and until the command has ended."""
    chunks = run / "landscapes.zarr" / NAME / "status" / "c"
    start = time.monotonic()
    process = subprocess.Popen([*COMMAND, *words], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    found: dict[str, float] = {}
    try:
        while process.poll() is None and "first_tile" not in found:
            if time.monotonic() - start > LONGEST:
                raise LandscapeError(f"bench: `landscape {words[0]}` has written no tile in {LONGEST:g} s")
            if any(each.is_file() for each in chunks.rglob("*")):
                found["first_tile"] = time.monotonic() - start
            time.sleep(LOOK_SECONDS)
        _, told = process.communicate(timeout=LONGEST)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()
    _check(process.returncode, words, told)
    seconds = time.monotonic() - start
    return {"first_tile": found.get("first_tile", seconds), "end": seconds}


def _whole(words: Sequence[str]) -> float:
    start = time.monotonic()
    done = subprocess.run([*COMMAND, *words], capture_output=True, text=True, timeout=LONGEST, check=False)
    _check(done.returncode, words, done.stderr)
    return time.monotonic() - start


def _check(code: int | None, words: Sequence[str], told: str) -> None:
    if code != 0:
        last = (told.strip().splitlines() or ["nothing was said"])[-1]
        raise LandscapeError(f"bench: `landscape {words[0]}` ended with code {code}: {last[:200]}")
