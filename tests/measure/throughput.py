"""The points/s of `landscape run --workers 2` over those of bare forward passes on the same cores, in pairs.

    python tests/measure/throughput.py [points per axis] [pairs]

LeNet-5 on 2,048 samples; a quiet machine of two cores. The run's rate is that of its workers while they compute: their
start and the search for an engine are left out. Bare is `model(batch)` alone, eager, in batches that fit the cache:
in two processes of one thread at once, in one process of two threads, and in one process of one thread.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
import yaml

from landscape import Problem, open_run
from landscape.recipes.lenet import LeNet5

SAMPLES, BATCH, SECONDS = 2048, 128, 8.0
BARE = {"two processes": (2, 1), "two threads": (1, 2), "one thread": (1, 1)}  # processes, threads of each


def problem() -> Problem:
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(SAMPLES, 1, 32, 32, generator=generator), torch.randint(0, 10, (SAMPLES,), generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Problem.supervised(LeNet5(), data)


def pass_bare(threads: int) -> float:
    """Passes over all samples, per second, of this process."""
    torch.set_num_threads(threads)
    model, batches = LeNet5().eval(), torch.randn(SAMPLES, 1, 32, 32).split(BATCH)
    passes, start = -1, time.perf_counter()
    with torch.no_grad():
        while time.perf_counter() < start + SECONDS or passes < 1:
            for batch in batches:
                model(batch)
            passes += 1
            if passes == 0:  # the first pass warms up
                start = time.perf_counter()
    return passes / (time.perf_counter() - start)


def bare_passes(processes: int, threads: int) -> float:
    """Passes per second of several such processes at once."""
    command = [sys.executable, __file__, "bare", str(threads)]
    running = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(processes)]
    return sum(float(process.communicate()[0]) for process in running)


def points_per_second(folder: Path, size: int) -> float:
    """Of both workers together, while they compute."""
    landscapes = [{"name": "plane", "size": size}]
    job = {"run": "run", "problem": "throughput:problem", "num_samples": SAMPLES, "landscapes": landscapes}
    (folder / "job.yaml").write_text(yaml.safe_dump(job))
    command = [sys.executable, "-m", "cluster", "run", "job.yaml", "--workers", "2"]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parent)}
    subprocess.run(command, cwd=folder, env=environment, check=True, stderr=subprocess.DEVNULL)
    workers = open_run(str(folder / "run"))["plane"].attributes["progress"]["by_worker"]
    return float(sum(worker["points"] / worker["seconds"] for worker in workers if worker["seconds"]))


def main(size: int = 40, pairs: int = 5) -> None:
    ratios: dict[str, list[float]] = {name: [] for name in BARE}
    for _ in range(pairs):
        bare = {name: bare_passes(*split) for name, split in BARE.items()}
        with tempfile.TemporaryDirectory() as folder:
            rate = points_per_second(Path(folder), size)
        for name, passes in bare.items():
            ratios[name].append(rate / passes)
        print(f"{rate:.1f} points/s; {', '.join(f'{name} {passes:.1f}' for name, passes in bare.items())}", flush=True)
    for name, values in ratios.items():
        print(f"over {name}: {statistics.median(values):.2f} ({min(values):.2f}-{max(values):.2f})")


if __name__ == "__main__":
    if sys.argv[1:2] == ["bare"]:
        print(pass_bare(int(sys.argv[2])))
    else:
        main(*map(int, sys.argv[1:]))
