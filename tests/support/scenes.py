"""The scenes in which processes are killed and power is cut, each task in an interpreter of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent

needs_proc = pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="names open files by /proc")


def play(script: str, *given: object, before: tuple[str, ...] = ()) -> Any:
    """What the script prints; numerical libraries must not start threads there, since it forks."""
    threads = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
    # Compiled modules that Python would write beside their sources are no changes of a run's.
    environment = {**os.environ, **dict.fromkeys(threads, "1"), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [*before, sys.executable, str(HERE / script), *map(str, given)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=2 * 3600, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)
