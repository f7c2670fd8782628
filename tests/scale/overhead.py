"""What retries, backups, hang detection, second opinions and metrics cost: the driver against a bare `ray.wait` loop.

Both compute the same tiles with the same actors and the same commits. A point sleeps, so that the workers do not
compete with the driver for the processor and the difference is the driver's own. The second half of the tiles is
timed: the driver begins with the first worker that is ready, the bare loop when all are.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import ray

import cluster
from cluster.driver.landscape_states import LandscapeState
from cluster.driver.pool import fetch, node_id
from cluster.driver.transfer import pack_samples
from cluster.driver.worker import ProblemSource, Worker
from landscape import read_job
from landscape.compute.prepare import prepare
from landscape.compute.tasks import Work, create_landscape, make_work
from landscape.evaluation.tuning.choices import TuningScope
from landscape.evaluation.tuning.search import TuningRequest
from landscape.job.job import Job

PROBLEM = """
import time

import torch
from torch import nn

from landscape import Problem


def observe(model, batch):
    if len(batch) > 2:
        time.sleep({seconds})
    return {{"loss": (model(batch) ** 2).mean(1)}}


def problem():
    torch.manual_seed(0)
    return Problem(nn.Linear(4, 2), torch.randn(8, 4), observe)
"""

JOB = """
run: run
problem: my_problem:problem
num_samples: 8
tile: 5
threads: 1
engine: eager
landscapes:
- {{name: plane, size: {size}}}
"""


def by_the_driver(job: Job, workers: int) -> float:
    ends: list[float] = []
    cluster.run(job, workers=workers, observer=lambda progress: ends.append(time.monotonic()))
    return second_half(ends)


def second_half(ends: list[float]) -> float:
    return ends[-1] - ends[len(ends) // 2 - 1]


def by_a_bare_loop(job: Job, workers: int) -> float:
    """Two tasks in flight at each worker, and nothing looked after."""
    prepared = prepare(job)
    (landscape,) = prepared.landscapes
    work = LandscapeState(landscape, create_landscape(prepared, landscape, (5, 5)))
    samples, inputs = ray.put(pack_samples(prepared.samples)), ray.put(work.sent.pack())
    source = ProblemSource(job.problem, job.folder, tuple(sys.path))
    actors = [ray.remote(Worker).remote(source, [samples], False, fetch, node_id) for _ in range(workers)]
    ray.get([actor.start.remote() for actor in actors])
    ray.get(
        [
            actor.tune.remote([inputs], TuningRequest("measure", (TuningScope(landscape.plan.engine),)))
            for actor in actors
        ]
    )
    tasks, pending = iter(work.tasks), {}

    def send(actor) -> None:
        for task in tasks:
            points = make_work(landscape, work.opened, task).points
            pending[actor.evaluate.remote([inputs], Work(points), [])] = (actor, task)
            return

    ends: list[float] = []
    for actor in actors * 2:
        send(actor)
    while pending:
        (reference,), _ = ray.wait(list(pending))
        actor, task = pending.pop(reference)
        work.opened.commit([(task, ray.get(reference).outcome)])
        ends.append(time.monotonic())
        send(actor)
    for actor in actors:
        ray.kill(actor)
    return second_half(ends)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--size", type=int, default=50)
    parser.add_argument("--point-seconds", type=float, default=0.02)
    given = parser.parse_args()
    temporary = tempfile.mkdtemp(prefix="ll")
    ray.init(
        address="local", num_cpus=given.workers, include_dashboard=False, log_to_driver=False,
        logging_level="error", _temp_dir=temporary, object_store_memory=100_000_000,
    )  # fmt: skip
    taken: dict[str, list[float]] = {"bare loop": [], "driver": []}
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "my_problem.py").write_text(PROBLEM.format(seconds=given.point_seconds))
        (Path(folder) / "job.yaml").write_text(JOB.format(size=given.size))
        job = read_job(Path(folder) / "job.yaml")
        for k in range(given.rounds):
            taken["bare loop"].append(by_a_bare_loop(job.replace(run=f"bare-{k}"), given.workers))
            taken["driver"].append(by_the_driver(job.replace(run=f"driver-{k}"), given.workers))
            print({name: round(each[-1], 2) for name, each in taken.items()}, flush=True)
    ray.shutdown()
    tiles = int(np.ceil(given.size / 5)) ** 2
    bare, driver = (statistics.median(each) for each in taken.values())
    least = given.size**2 * given.point_seconds / given.workers / 2
    print(f"{tiles} tiles of 25 points of {given.point_seconds:g} s on {given.workers} workers; second half, medians:")
    print(
        f"sleep alone {least:.2f} s, bare loop {bare:.2f} s, driver {driver:.2f} s: {100 * (driver / bare - 1):+.2f} %"
    )


if __name__ == "__main__":
    main()
