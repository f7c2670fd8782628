"""Which split of the cores is fastest: workers × threads, for every divisor of the cores. Run it on a quiet machine.

    python tests/measure/split.py [points per axis] [batch size]

Prints points/s of LeNet-5 on 2048 images, computed on a local Ray: the best of three runs per split, the
start of the workers left out.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path

import ray
import torch

import cluster
from landscape import Job, Problem, open_run
from landscape.core.devices import cores
from landscape.recipes.lenet import LeNet5

ROUNDS = 3


def problem() -> Problem:
    generator = torch.Generator().manual_seed(0)
    data = torch.randn(2048, 1, 32, 32, generator=generator), torch.randint(0, 10, (2048,), generator=generator)
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Problem.supervised(LeNet5(), data)


def points_per_second(folder: Path, size: int, batch_size: int | None, workers: int, threads: int) -> float:
    """Of all workers together, while they compute."""
    job = Job(
        run=str(folder), problem=problem, threads=threads, batch_size=batch_size, engine="eager", device="cpu",
        num_samples=2048, landscapes=[{"name": "plane", "size": size}], tile=[max(2, size // 8)],
    )  # fmt: skip
    cluster.run(job, workers=workers)
    pool = open_run(str(folder))["plane"].attributes["progress"]["by_worker"]
    return float(sum(each["points"] / each["seconds"] for each in pool if each["seconds"]))


def main(size: int = 24, batch_size: int | None = None) -> None:
    count = cores()
    for threads in (each for each in range(1, count + 1) if count % each == 0):
        workers, temporary = count // threads, tempfile.mkdtemp(prefix="ll")
        ray.init(
            address="local", num_cpus=count, include_dashboard=False, log_to_driver=False, logging_level="error",
            _temp_dir=temporary,
        )  # fmt: skip
        try:
            speeds = [
                points_per_second(Path(temporary, f"run{k}"), size, batch_size, workers, threads) for k in range(ROUNDS)
            ]
        finally:
            ray.shutdown()
            shutil.rmtree(temporary, ignore_errors=True)
        print(f"{workers} workers × {threads} threads: {max(speeds):.2f} points/s", flush=True)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
