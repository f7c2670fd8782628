"""A worker without Ray: the network that it makes, and what it must see `observe` return for the driver."""

from __future__ import annotations

from dataclasses import replace

import torch
from small_models import make_job
from torch import nn

from cluster.driver.pool import look_of
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


NAMES = ("loss", "distance")


def naming_problem():
    model = nn.Linear(2, 1).double()

    def observe(model, batch):
        loss = model(batch)[:, 0].square()
        return {"loss": loss, "distance": loss.detach().sqrt()}

    return Problem(model, torch.ones(4, 2, dtype=torch.float64), observe, observables=NAMES)


def test_workers_look_for_what_the_problem_names_whatever_is_asked_of_them(tmp_path):
    landscape = {"name": "map", "convexity": True, "size": 3}
    prepared = prepare(make_job(tmp_path, naming_problem, [landscape], num_samples=4, precision="float64"))
    (holding_more,) = prepared.landscapes
    assert set(holding_more.observables) > set(NAMES)
    holding_less = replace(holding_more, observables=("loss",))  # as ranges and eigenvectors are asked for
    for asked in (holding_more, holding_less):
        look = look_of(replace(prepared, landscapes=(asked,), looked=False))
        assert look is not None
        assert look.observables == NAMES
    assert look_of(prepared) is None
