"""Directions between weights are computed part by part, with the bits of the whole, and only where they are needed."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from small_models import make_job
from torch import nn

import landscape.compute.landscape_context as landscape_context
from landscape import Problem, open_run, run
from landscape.job.directions.computed import ComputedTensors
from landscape.job.directions.file import supplied_direction
from landscape.job.directions.plane import plane_through, towards_direction
from landscape.model.parameters import State, describe_parameters, flat_pieces, flatten, layout, state_of


class Network(nn.Module):
    """A linear layer, three experts whose inputs come first, a mask of infinities, and a counter."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.first, self.experts = nn.Linear(5, 4), nn.Parameter(torch.randn(3, 4, 6))
            self.last = nn.Linear(6, 3)
        self.register_buffer("mask", torch.tensor([0.0, -torch.inf]))
        self.register_buffer("count", torch.tensor(seed))

    def forward(self, x):
        return self.last((torch.tanh(self.first(x)) @ self.experts).sum(0)) + self.mask[0]


def directions(dtype: torch.dtype) -> dict[str, ComputedTensors]:
    first, second, third = (state_of(Network(seed).to(dtype)) for seed in range(3))
    second["count"] = third["count"] = first["count"]
    infos = describe_parameters(Network(0))
    axes = plane_through([first, second, third], [info.name for info in infos]).axes
    given = {info.name: second[info.name] for info in infos}
    return {
        "towards": towards_direction(first, second), "second": axes[0], "third": axes[1],
        "file": supplied_direction(given, first, infos, "file"),
        "scaled": supplied_direction(given, first, infos, "file", "filter", ("bias",)),
    }  # fmt: skip


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("name", ["towards", "second", "third", "file", "scaled"])
def test_a_part_has_the_bits_of_the_whole(name, dtype):
    direction = directions(dtype)[name]
    assert "mask" not in direction
    assert len([*direction]) == len(direction) > 1
    for tensor, shape in direction.shapes.items():
        whole, leading = direction[tensor], direction.leading(tensor)
        assert whole.dtype is torch.float32
        assert tuple(whole.shape) == shape
        matrix = whole.reshape(torch.Size(shape[:leading]).numel(), -1)
        height, width = matrix.shape
        for top, left in itertools.product(range(0, height, 2), range(0, width, 3)):
            rows, columns = range(top, min(top + 2, height)), range(left, min(left + 3, width))
            part = direction.rectangle(tensor, rows, columns, leading=leading)
            assert part.numpy().tobytes() == matrix[top : rows.stop, left : columns.stop].numpy().tobytes()


def test_the_numbers_are_those_of_the_formulas():
    made = directions(torch.float32)
    first, second, third = (
        np.concatenate([tensor.detach().double().numpy().ravel() for tensor in Network(seed).parameters()])
        for seed in range(3)
    )
    names = [name for name, _ in Network(0).named_parameters()]

    def vector(direction: State) -> np.ndarray:
        return np.concatenate([direction[name].double().numpy().ravel() for name in names])

    u, w = second - first, third - first
    v = w - (w @ u) / (u @ u) * u
    np.testing.assert_allclose(vector(made["towards"]), u, rtol=1e-6)
    np.testing.assert_allclose(vector(made["second"]), u / np.linalg.norm(u), rtol=1e-6)
    np.testing.assert_allclose(vector(made["third"]), v / np.linalg.norm(v), rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(vector(made["file"]), second, rtol=1e-6)


@pytest.mark.parametrize("width", [1, 2, 7, 30, 100])
def test_a_vector_is_made_in_pieces(width):
    state = state_of(Network(1))
    del state["count"]
    places = layout(state, state)
    pieces = [*flat_pieces({**state, "last.bias": state["last.bias"]}, places, width)]
    assert all(len(piece) == width for piece in pieces[:-1])
    assert np.concatenate(pieces).tobytes() == flatten(state, places).tobytes()
    assert [*flat_pieces({}, [], width)] == []


def test_a_job_with_computed_directions_has_the_bits_of_held_ones(tmp_path, monkeypatch):
    inputs = torch.randn(12, 5, generator=torch.Generator().manual_seed(1))
    targets = torch.arange(12) % 3

    def problem() -> Problem:
        model = Network(0)
        del model.count
        return Problem.supervised(model, (inputs, targets))

    for seed in (1, 2):
        state = state_of(Network(seed))
        del state["count"]
        save_file(state, tmp_path / f"{seed}.safetensors")
    files = [str(tmp_path / f"{seed}.safetensors") for seed in (1, 2)]
    specs = [
        {"name": "line", "size": 4, "directions": [{"kind": "towards", "target": files[0]}]},
        {"name": "plane", "size": 3, "plane": ["problem", *files]},
    ]

    def values(folder: Path) -> dict[str, bytes]:
        run(make_job(folder, problem, specs, num_samples=12, batch_size=5))
        computed = open_run(folder)
        return {spec["name"]: computed[spec["name"]].loss.tobytes() for spec in specs}

    held = values(tmp_path / "held")
    monkeypatch.setattr("landscape.job.directions.computed.HELD_BYTES", 0)
    monkeypatch.setattr(landscape_context, "LARGE", 0)
    asked = list[str]()
    rectangle = ComputedTensors.rectangle
    monkeypatch.setattr(
        ComputedTensors, "rectangle", lambda self, name, *rest: (asked.append(name), rectangle(self, name, *rest))[1]
    )
    assert values(tmp_path / "computed") == held
    assert "experts" in asked
    assert values(tmp_path / "held") == held  # begun with held directions, and resumed
