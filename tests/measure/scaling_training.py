"""What a second worker saves of a ResNet-20's training, and how soon a training goes on whose worker was killed.

python tests/measure/scaling_training.py [--workers 1 2] [--steps 20] [--batch-size 128] [--repeats 3]

Both are ratios within one run, to be taken on cores that nobody else uses: two workers of one thread over one of one
thread, with the same global batch (to reach: 1.7); and the seconds from `kill -9` of a worker to the next step over
those from the call to the first step of all (to reach: 2 at the most). What the machine allows stands beside: the same
of processes that exchange nothing, without Ray. Prints one JSON document.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

import cluster
from cluster.training.train import WARM_STEPS, make_job, measure_scaling
from landscape import Training
from landscape.core.errors import Interrupted
from landscape.recipes.resnet import ResNet

IMAGES = 2048


def train(training: Training, batch_size: int = 128, epochs: int = 100, stamps: str = "", pause: float = 0.0) -> None:
    """Train a ResNet-20 on made images; each rank leaves its process id and the moment of its first step."""
    torch.manual_seed(0)
    images, labels = torch.randn(IMAGES, 3, 32, 32), torch.randint(10, (IMAGES,))
    model = ResNet()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    network = training.prepare(model)
    done = training.resume(model=model, optimizer=optimizer).get("epoch", 0)
    first = True
    for epoch in range(done, epochs):
        for share in training.batches(IMAGES if not stamps else 2 * batch_size, batch_size, epoch):
            loss = nn.functional.cross_entropy(network(images[share.index]), labels[share.index]) * share.weight
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            if first and stamps:
                (Path(stamps) / f"{time.time()}-{training.rank}-{os.getpid()}").touch()
                first = False
            time.sleep(pause)
        training.keep(model=model, optimizer=optimizer, epoch=epoch + 1)


def train_apart(samples: int, steps: int, begin: Any, medians: Any) -> None:
    """Train a ResNet-20 on batches of so many samples, and tell the median seconds of a step."""
    torch.set_num_threads(1)
    images, labels, model = torch.randn(IMAGES, 3, 32, 32), torch.randint(10, (IMAGES,)), ResNet()
    optimizer = torch.optim.SGD(model.parameters(), 0.1, momentum=0.9)
    seconds = []
    begin.wait()
    for _ in range(steps + WARM_STEPS):
        began = time.perf_counter()
        index = torch.randint(IMAGES, (samples,))
        loss = nn.functional.cross_entropy(model(images[index]), labels[index])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        seconds.append(time.perf_counter() - began)
    medians.put(median(seconds[WARM_STEPS:]))


def speedup_apart(workers: int, batch_size: int, steps: int) -> float:
    """Seconds of a step of one process over those of `workers` that share the batch and exchange nothing."""
    seconds = {}
    for count in (1, workers):
        context = multiprocessing.get_context("spawn")
        begin, medians = context.Barrier(count), context.Queue()
        given = (batch_size // count, steps, begin, medians)
        processes = [context.Process(target=train_apart, args=given) for _ in range(count)]
        for process in processes:
            process.start()
        seconds[count] = max(medians.get() for _ in processes)
        for process in processes:
            process.join()
    return seconds[1] / seconds[workers]


def first_steps(folder: Path, rank: int) -> list[tuple[float, int]]:
    """When each start of a rank took its first step, and in which process."""
    parts = [each.name.rsplit("-", 2) for each in folder.iterdir()]
    return sorted((float(moment), int(process)) for moment, number, process in parts if int(number) == rank)


def resumption(batch_size: int) -> dict[str, float]:
    """Seconds to the first step of a new training, and from the end of a worker to the next step."""
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "stamps"
        folder.mkdir()
        killed: list[float] = []

        def kill() -> None:
            while not (first_steps(folder, 1) and list(Path(place).glob("run/checkpoints/*.pt"))):
                time.sleep(0.05)
            killed.append(time.time())
            os.kill(first_steps(folder, 1)[0][1], signal.SIGKILL)

        began = time.time()
        threading.Thread(target=kill, daemon=True).start()
        over = lambda: len(first_steps(folder, 0)) > 1  # noqa: E731
        options = {"batch_size": batch_size, "stamps": str(folder), "pause": 0.5}
        with contextlib.suppress(Interrupted):
            cluster.train(train, run=f"{place}/run", workers=2, gpus_per_worker=0, stop=over, **options)
        cold, resumed = (moment for moment, _ in first_steps(folder, 0))
        return {"cold_seconds": cold - began, "resumed_seconds": resumed - killed[0]}


def main() -> None:
    """Print the measurements."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workers", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch-size", type=int, default=128)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    torch.set_num_threads(1)
    job = make_job(train, ".", {"batch_size": given.batch_size}, texts=False, gpus_per_worker=0)
    found: dict[str, Any] = {"apart": [], "scaling": [], "resumption": []}
    for _ in range(given.repeats):
        found["apart"].append(speedup_apart(given.workers[-1], given.batch_size, given.steps))
        found["scaling"].append([asdict(each) for each in measure_scaling(job, given.workers, given.steps)])
        found["resumption"].append(resumption(given.batch_size))
    speedups = [rows[-1]["speedup"] for rows in found["scaling"]]
    ratios = [each["resumed_seconds"] / each["cold_seconds"] for each in found["resumption"]]
    medians = {"speedup_apart": median(found["apart"]), "speedup": median(speedups)}
    print(json.dumps(found | medians | {"resumed_over_cold": median(ratios)}, indent=1))


if __name__ == "__main__":
    main()
