"""A callback that takes no arguments makes the network that the run's training made."""

import json

import pytest
import torch
from torch import nn

from landscape import Job, JobError, Problem, TrajectoryCollector, run
from landscape.compute.prepare import prepare
from landscape.model.run_files import read_info, read_network
from landscape.problem.callback import load_problem
from landscape.problem.network import network_options

LANDSCAPES = [{"name": "plane", "size": 3}]


def net(width: int = 1) -> nn.Module:
    return nn.Sequential(nn.Linear(2, width), nn.Linear(width, 1))


def problem() -> Problem:
    inputs = torch.linspace(-1, 1, 8).reshape(4, 2)
    return Problem.supervised(net(**network_options()), (inputs, inputs[:, :1]), nn.functional.mse_loss)


def collect(place, **network) -> None:
    TrajectoryCollector(place, net(**network), unit="epoch", intervals=[[0, 1, 2]], network=network).end_epoch()


def test_the_callback_makes_the_network_of_the_run(tmp_path):
    collect(tmp_path / "wide", width=3)
    collect(tmp_path / "plain")
    prepared = prepare(Job(run=str(tmp_path / "wide"), problem=problem, landscapes=LANDSCAPES))
    assert prepared.network == {"width": 3}
    assert prepared.problem.model[0].out_features == 3
    surfaces = run(Job(run=str(tmp_path / "wide"), problem=problem, landscapes=LANDSCAPES))
    assert surfaces["plane"].loss.shape == (3, 3)
    assert "network" not in read_info(tmp_path / "plain")
    assert prepare(Job(run=str(tmp_path / "plain"), problem=problem, landscapes=LANDSCAPES)).network == {}


def test_the_options_are_known_while_the_callback_is_called_alone():
    load_problem(problem, network={"width": 5})
    assert network_options() == {}
    with pytest.raises(JobError, match="depth"):
        load_problem(problem, network={"depth": 5})
    assert network_options() == {}


def test_a_training_that_goes_on_keeps_them(tmp_path):
    network = {"width": 2, "names": ("a", "b"), "function": print}
    model = net(2)
    for options in ({}, {"start_epoch": 1}):
        TrajectoryCollector(
            tmp_path, model, unit="epoch", intervals=[[0, 1, 2]], network=network, **options
        ).end_epoch()
        assert read_network(tmp_path) == {"width": 2, "names": ["a", "b"]}  # a function is nothing that JSON holds


@pytest.mark.parametrize("written", [None, 3, ["width"]])
def test_what_is_no_table_of_options_counts_for_none(tmp_path, written):
    (tmp_path / "run.json").write_text(json.dumps({"network": written}))
    assert read_network(tmp_path) == {}
