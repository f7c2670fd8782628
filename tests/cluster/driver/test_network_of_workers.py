"""A worker makes the network that the run's training made, by what the driver read of the run."""

from __future__ import annotations

import torch
from torch import nn

from cluster.driver.transfer import pack_samples
from cluster.driver.worker import ProblemSource, Worker
from landscape import Job, Problem, TrajectoryCollector
from landscape.compute.prepare import prepare
from landscape.problem.network import network_options

WIDTH = 3
made: list[int] = []  # the width of each network that the callback made


def problem() -> Problem:
    width = network_options().get("width", 1)
    made.append(width)
    return Problem(nn.Linear(2, width), torch.ones(4, 2), lambda model, batch: {"loss": model(batch).sum(1)})


def test_a_worker_makes_the_network_of_the_run(tmp_path):
    network = {"width": WIDTH}
    collector = TrajectoryCollector(tmp_path, nn.Linear(2, WIDTH), unit="epoch", intervals=[[0, 1, 2]], network=network)
    collector.end_epoch()
    prepared = prepare(Job(run=str(tmp_path), problem=problem, landscapes=[{"name": "plane", "size": 3}]))
    source = ProblemSource(problem, prepared.job.folder, network=prepared.network)
    worker = Worker(source, [pack_samples(prepared.samples)], False, lambda references: references[0])
    assert not worker.start().cause
    assert made == [WIDTH, WIDTH]
