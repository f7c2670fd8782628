"""Random directions are drawn in any parts, on any number of threads, to the bits of the whole."""

from __future__ import annotations

import itertools
import math
import pickle
from typing import get_args

import pytest
import torch
from torch import nn

from landscape.job.directions.base import Normalise
from landscape.job.directions.random import RandomDirection, random_direction
from landscape.model.parameters import describe_parameters, filter_squares, filter_view, state_of


class MixtureExperts(nn.Module):
    """Fused experts: weights of all of them in one parameter, the output first or last, and a bias."""

    def __init__(self, *, is_transposed: bool) -> None:
        super().__init__()
        self.is_transposed = is_transposed
        self.weight = nn.Parameter(torch.randn(3, 4, 5) if is_transposed else torch.randn(3, 5, 4))
        self.bias = nn.Parameter(torch.randn(3, 5))


class Conv1D(nn.Module):
    """GPT-2's linear layer, whose weight is [inputs, outputs]."""

    def __init__(self) -> None:
        super().__init__()
        self.nf, self.weight = 6, nn.Parameter(torch.randn(7, 6))


class Everything(nn.Module):
    """Every layout of a parameter that directions know."""

    def __init__(self) -> None:
        super().__init__()
        with torch.random.fork_rng():
            torch.manual_seed(3)
            self.linear, self.double = nn.Linear(9, 5), nn.Linear(4, 3).double()
            self.conv, self.grouped = nn.Conv2d(4, 6, 3), nn.ConvTranspose2d(4, 6, 3, groups=2)
            self.first, self.last = MixtureExperts(is_transposed=False), MixtureExperts(is_transposed=True)
            self.gpt, self.norm, self.half = Conv1D(), nn.LayerNorm(4), nn.Linear(300, 4).bfloat16()
            self.scalar, self.empty = nn.Parameter(torch.randn(())), nn.Parameter(torch.randn(0, 3))


def direction_of(model: nn.Module, normalise: Normalise = "filter", seed: int = 5):
    return random_direction(state_of(model), describe_parameters(model), seed, normalise, ())


def cuts(count: int) -> list[list[range]]:
    """Ways to cut so many rows or columns into ranges."""
    edges = [[0, count], [0, min(1, count), count], [0, count // 2, count], [*range(count + 1)]]
    return [[range(*pair) for pair in itertools.pairwise(sorted(set(each)))] for each in edges]


@pytest.mark.parametrize("normalise", get_args(Normalise))
def test_the_parts_of_any_cut_are_those_of_the_whole(normalise):
    drawn = direction_of(Everything(), normalise)
    assert drawn.keys() == {info.name for info in describe_parameters(Everything())}
    for name, tensor in drawn.items():
        assert tensor.dtype is torch.float32
        scales = drawn.scales[name]
        whole = tensor.reshape(scales.rows, scales.columns)
        for rows, columns in itertools.product(cuts(scales.rows), cuts(scales.columns)):
            parts = [torch.cat([drawn.rectangle(name, row, column) for column in columns], 1) for row in rows]
            assert not parts or torch.equal(torch.cat(parts), whole), (name, rows, columns)


def test_every_filter_has_the_norm_of_its_weights():
    model = Everything()
    origin, drawn = state_of(model), direction_of(model)
    for info in describe_parameters(model):
        if origin[info.name].numel():
            found, wanted = (filter_view(each[info.name].double(), info).norm(dim=1) for each in (drawn, origin))
            torch.testing.assert_close(found, wanted, rtol=2e-7, atol=0)


def test_drawing_changes_no_weight():
    model = Everything()
    origin = state_of(model)
    before = {name: tensor.clone() for name, tensor in origin.items()}
    random_direction(origin, describe_parameters(model), 1, "model", ())
    assert all(torch.equal(before[name], origin[name]) for name in before)


@pytest.mark.parametrize("normalise", get_args(Normalise))
def test_the_number_of_threads_changes_no_bit(normalise):
    model = nn.Sequential(nn.Linear(70_000, 3), nn.Linear(300, 500))
    before, digests = torch.get_num_threads(), set()
    try:
        for threads in (1, 2, 3):
            torch.set_num_threads(threads)
            digests.add(direction_of(model, normalise).digest())
    finally:
        torch.set_num_threads(before)
    assert len(digests) == 1


def test_the_digest_follows_seed_scales_and_shapes():
    model, other = Everything(), Everything()
    other.linear.weight.data[0, 0] += 1
    digests = [direction_of(model).digest(), direction_of(model, seed=6).digest(), direction_of(other).digest()]
    digests.append(direction_of(model, "layer").digest())
    assert len(set(digests)) == len(digests)
    assert direction_of(model).digest() == digests[0]
    assert pickle.loads(pickle.dumps(direction_of(model))).digest() == digests[0]


def test_a_tensor_depends_on_no_other_tensor():
    alone = nn.Sequential(nn.Linear(9, 5))
    more = nn.Sequential(nn.Linear(9, 5), nn.Linear(5, 2))
    more.load_state_dict({**more.state_dict(), **alone.state_dict()})
    assert torch.equal(direction_of(alone)["0.weight"], direction_of(more)["0.weight"])


@pytest.mark.parametrize("shape", [(3, 1), (1, 1000), (5, 1 << 12), (2, 3, 7), (4,), ()])
def test_squares_are_summed_to_the_last_digits(shape):
    model = nn.Module()
    model.weight = nn.Parameter(torch.randn(shape, generator=torch.Generator().manual_seed(0)))
    (info,) = describe_parameters(model)
    found = filter_squares(model.weight.detach(), info)
    exact = [math.fsum(float(x) ** 2 for x in row) for row in filter_view(model.weight.detach(), info)]
    assert found.tolist() == pytest.approx(exact, rel=1e-15)


def test_what_is_recorded_of_a_direction_gives_it_again():
    direction = RandomDirection(seed=5, normalise="layer", ignore=())
    assert direction.model_dump(mode="json")["generator"] == "counter"
    assert RandomDirection(**direction.model_dump(mode="json")) == direction
