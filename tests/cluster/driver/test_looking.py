"""What workers must see `observe` return where the driver could not look."""

from __future__ import annotations

from dataclasses import replace

import torch
from small_models import make_job
from torch import nn

from cluster.driver.pool import look_of
from landscape import Problem
from landscape.compute.prepare import prepare

NAMES = ("loss", "distance")


def problem():
    model = nn.Linear(2, 1).double()

    def observe(model, batch):
        loss = model(batch)[:, 0].square()
        return {"loss": loss, "distance": loss.detach().sqrt()}

    return Problem(model, torch.ones(4, 2, dtype=torch.float64), observe, observables=NAMES)


def test_workers_look_for_what_the_problem_names_whatever_is_asked_of_them(tmp_path):
    landscape = {"name": "map", "convexity": True, "size": 3}
    prepared = prepare(make_job(tmp_path, problem, [landscape], num_samples=4, precision="float64"))
    (holding_more,) = prepared.landscapes
    assert set(holding_more.observables) > set(NAMES)
    holding_less = replace(holding_more, observables=("loss",))  # as ranges and eigenvectors are asked for
    for asked in (holding_more, holding_less):
        look = look_of(replace(prepared, landscapes=(asked,), looked=False))
        assert look is not None
        assert look.observables == NAMES
    assert look_of(prepared) is None
