"""What travels to the workers: directions as tensors or as seeds, to the same bits."""

from __future__ import annotations

from typing import get_args

import pytest
import torch
from torch import nn

import cluster
import landscape
from cluster.driver import transfer
from cluster.driver.transfer import OtherDirection, SeededTensors, pack_directions, unpack_direction
from landscape.core.errors import JobError
from landscape.job.directions.base import DirectionTensors, Normalise
from landscape.job.directions.random import RandomDirection, random_direction
from landscape.job.job import Job
from landscape.model.parameters import describe_parameters, direction_digest, state_of


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ConvTranspose2d(4, 2, 3), nn.Linear(3, 3))


def drawn(seed: int, normalise: str, ignore: tuple[str, ...]) -> DirectionTensors:
    tensors = random_direction(state_of(model()), describe_parameters(model()), seed, normalise, ignore)
    spec = RandomDirection(seed=seed, normalise=normalise, ignore=ignore)
    return DirectionTensors(tensors, spec.model_dump(mode="json") | {"digest": direction_digest(tensors)})


@pytest.mark.parametrize("normalise", get_args(Normalise))
@pytest.mark.parametrize("ignore", [(), ("bias", "norm")])
def test_a_seed_gives_the_bits_of_the_tensors(normalise, ignore):
    direction = drawn(7, normalise, ignore)
    (tensors,), (seeded,) = pack_directions([direction]), pack_directions([direction], at_most=0)
    assert isinstance(seeded, SeededTensors)
    parameters, origin = describe_parameters(model()), state_of(model())
    sent, made = (unpack_direction(each, origin, parameters) for each in (tensors, seeded))
    assert sent.keys() == made.keys()
    assert all(sent[name].numpy().tobytes() == made[name].numpy().tobytes() for name in sent)


def test_only_large_random_directions_travel_as_seeds():
    direction = drawn(1, "filter", ())
    size = sum(4 * tensor.numel() for tensor in direction.tensors.values())
    other = DirectionTensors(direction.tensors, {"kind": "file", "digest": "x"})
    assert not isinstance(pack_directions([direction], at_most=size)[0], SeededTensors)
    first, second = pack_directions([direction, other], at_most=size - 1)
    assert isinstance(first, SeededTensors)
    assert not isinstance(second, SeededTensors)
    assert transfer.SEEDED_BYTES == 1 << 30


def test_a_direction_is_drawn_with_as_many_threads_as_the_driver_has(monkeypatch):
    (seeded,), seen = pack_directions([drawn(7, "layer", ())], at_most=0), []
    assert seeded.threads == torch.get_num_threads()

    def counting(*given):
        seen.append(torch.get_num_threads())
        return random_direction(*given)

    monkeypatch.setattr("landscape.job.directions.random.random_direction", counting)
    before = torch.get_num_threads()
    unpack_direction(
        SeededTensors(seeded.spec, seeded.digest, before + 3), state_of(model()), describe_parameters(model())
    )
    assert (seen, torch.get_num_threads()) == ([before + 3], before)


def test_a_machine_that_draws_something_else_says_so_in_one_line():
    (seeded,) = pack_directions([drawn(7, "filter", ())], at_most=0)
    other = {name: tensor * 1.5 for name, tensor in state_of(model()).items()}
    with pytest.raises(OtherDirection, match=r"directions: seed 7 gives another direction on a worker") as caught:
        unpack_direction(seeded, other, describe_parameters(model()))
    assert "\n" not in str(caught.value)
    with pytest.raises(KeyError):
        unpack_direction(seeded, {}, describe_parameters(model()))


PROBLEM = """
import os, torch
from torch import nn
from landscape import Problem

def problem():
    torch.manual_seed(3)
    net = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    if os.getpid() != DRIVER:
        net[0].weight.requires_grad_(False)  # one of the things that change what a seed gives
    return Problem.supervised(net, (torch.randn(30, 6), torch.zeros(30).long()))
"""


def job_in(folder) -> Job:
    import os

    text = PROBLEM.replace("DRIVER", str(os.getpid()))
    (folder / "my_problem.py").write_text(text)
    (folder / "job.yaml").write_text(
        "run: run\nproblem: my_problem:problem\nnum_samples: 30\n"
        "landscapes:\n- {name: plane, size: [5, 4], directions: [{kind: random}, {kind: random, normalise: layer}]}\n"
    )
    return landscape.read_job(folder / "job.yaml")


@pytest.mark.usefixtures("local_ray")
def test_workers_that_draw_other_directions_end_the_job(tmp_path, monkeypatch):
    job = job_in(tmp_path)
    monkeypatch.setattr(transfer, "SEEDED_BYTES", 0)
    with pytest.raises(JobError, match="directions: seed 1 gives another direction on a worker than on the driver"):
        cluster.run(job, workers=1)
