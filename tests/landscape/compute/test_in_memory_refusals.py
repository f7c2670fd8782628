"""What functions of models in memory refuse: a line that names the argument, the rule, the value and a remedy."""

from __future__ import annotations

import re

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import landscape
from landscape import JobError, Problem

QUIET = {"progress": False, "num_samples": 40, "size": 5}


def make_net(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


def make_data() -> tuple[Tensor, Tensor]:
    x = torch.randn(60, 4, generator=torch.Generator().manual_seed(1))
    return x, x.argmax(1) % 3


def counted(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    return nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")


@pytest.mark.parametrize(
    "options, words",
    [
        ({"sise": 5}, "plane: unknown option 'sise'; did you mean 'size'"),
        ({"size": 1}, "size"),
        ({"loss": "crossentropy"}, "loss: unknown 'crossentropy'; did you mean 'cross_entropy'"),
        ({"loss": 3}, "loss: must be a name such as 'cross_entropy', a criterion, or a function"),
        ({"data": None}, "data: must be given with a model"),
        ({"loss": counted, "metrics": ["accuracy"]}, "metrics: goes with a criterion"),
        (
            {"keep": "s3://nowhere/run", "plane": [make_net(), make_net(1), make_net(2)]},
            "keep: must be a folder where networks are in memory",
        ),
        ({"directions": [{"kind": "towards", "target": "absent.pt"}]}, "absent.pt"),
    ],
)
def test_what_cannot_be_used_is_refused_in_a_line(options, words):
    arguments = {"data": make_data(), "loss": "cross_entropy", **options}
    with pytest.raises(landscape.LandscapeError, match=words.replace("(", r"\(")) as refused:
        landscape.plane(make_net(), progress=False, **arguments)
    assert len(str(refused.value).splitlines()) <= 2


def lazy() -> nn.Module:
    return nn.Sequential(nn.LazyLinear(6), nn.Tanh(), nn.LazyLinear(3))


def on_meta() -> nn.Module:
    with torch.device("meta"):
        return make_net()


PROBLEM = Problem.supervised(make_net(), make_data())


@pytest.mark.parametrize(
    "arguments, words",
    [
        ({"model": None}, "model: must be a torch.nn.Module"),
        ({"model": nn.ReLU}, "write ReLU()"),
        ({"model": make_net().state_dict()}, "model: must be a torch.nn.Module"),
        ({"model": lazy()}, "model: '0.weight' holds no numbers"),
        ({"model": on_meta()}, "model: '0.weight' holds no numbers"),
        ({"model": Problem.supervised(on_meta(), make_data()), "data": None}, "holds no numbers"),
        ({"model": PROBLEM, "data": None, "loss": "mse"}, "loss: goes with a torch.nn.Module alone"),
        ({"model": PROBLEM, "data": None, "metrics": ["top5"]}, "metrics: goes with a torch.nn.Module alone"),
        ({"loss": "causal_lm", "metrics": ["accuracy"]}, "metrics: do not go with 'causal_lm'"),
        ({"loss": nn.CrossEntropyLoss}, "write CrossEntropyLoss()"),
        ({"loss": np.zeros(3)}, "loss: must be a name"),
        ({"data": iter([make_data()])}, "data: must be readable more than once, and a list_iterator is not"),
        ({"data": (np.zeros((4, 4)), np.array(["a"] * 4))}, "data: arrays must hold numbers"),
        ({"keep": True}, "keep: must be the folder or the URL of a run, not True"),
        ({"keep": ""}, "keep: must be the folder or the URL of a run, not ''"),
    ],
)
def test_models_data_and_places_that_cannot_be_used_are_refused_in_a_line(arguments, words):
    with pytest.raises(JobError, match=re.escape(words)) as refused:
        landscape.plane(**{"model": make_net(), "data": make_data(), **arguments}, **QUIET)
    assert len(str(refused.value).splitlines()) == 1


@pytest.mark.parametrize(
    "given, words",
    [
        ({0.5: make_net(), 1: make_net(1), 2: make_net(2)}, "checkpoints: must be numbered by whole numbers"),
        ({"../x": make_net()}, "checkpoints: must be numbered by whole numbers"),
        ([make_net(), None, make_net(2)], "checkpoints: must hold files, modules or state dicts of tensors, not None"),
        (5, "checkpoints: must be a list"),
        ([make_net(), {"w": torch.eye(3).to_sparse()}], "weights 'epoch 2': 'w' is a sparse tensor"),
        ([nn.LazyLinear(3)], "weights 'epoch 1': 'weight' is a tensor without a shape"),
    ],
)
def test_checkpoints_in_memory_that_cannot_be_kept_are_refused(given, words):
    with pytest.raises(JobError, match=re.escape(words)):
        landscape.path(make_net(), given, make_data(), **QUIET)


def test_networks_whose_run_cannot_be_written_and_units_are_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(landscape.LandscapeError, match=r"cannot be written: .*; name another keep"):
        landscape.between(make_net(), make_net(1), make_data(), keep=tmp_path / "file", **QUIET)
    with pytest.raises(JobError, match="unit: must be 'epoch' or 'step', not"):
        landscape.path(make_net(), [make_net(1)], make_data(), unit="../x", **QUIET)
