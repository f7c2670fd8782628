"""Fused layers compute what the layer and what follows it do, and never write over what is read later."""

from __future__ import annotations

import operator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pooled import rewritten
from torch import fx, nn
from torch.nn import functional as F

from landscape.evaluation.engines.cpu_kernels import FusedLayer

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="needs oneDNN")
IMAGES = torch.randn(3, 4, 9, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    """Layers to take from, and a function of them and the images."""

    def __init__(self, function, **options):
        super().__init__()
        torch.manual_seed(1)
        self.one, self.two = (nn.Conv2d(4, 4, 3, padding=1, **options) for _ in range(2))
        self.pointwise, self.strided = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 3, stride=2, padding=1)
        self.grouped = nn.Conv2d(4, 4, 3, padding=2, dilation=2, groups=2, bias=False)
        self.reflected = nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect")
        self.like = nn.Conv2d(4, 4, 3, padding="same")
        self.head, self.tail = nn.Linear(8, 8), nn.Linear(8, 4, bias=False)
        self.relu, self.inplace, self.pool = nn.ReLU(), nn.ReLU(inplace=True), nn.MaxPool2d(2)
        self.function = function

    def forward(self, x):
        return self.function(self, x)


def block(m, x):
    hidden = torch.relu(m.one(x))
    return torch.relu(m.two(hidden) + hidden)


def residual_block(m, x):
    first = torch.relu(m.pointwise(x))
    return torch.relu(m.two(torch.relu(m.one(first))) + first)


def vision_block(m, x):
    """As torchvision writes it: everything in place, and a shortcut with a layer of its own."""
    out = m.inplace(m.one(x))
    out = m.strided(out)
    out += m.strided(x)
    return m.inplace(out)


def read_later(m, x):
    hidden = torch.relu(m.one(x))
    return torch.relu(m.two(hidden) + hidden) + hidden


def viewed(m, x):
    hidden = torch.relu(m.one(x))
    view = hidden[:, :2]
    out = torch.relu(m.two(hidden) + hidden)
    return out[:, :2] + view


def written_between(m, x):
    hidden = m.pointwise(x)
    out = m.one(hidden)
    hidden.mul_(2)
    return torch.relu(out + hidden)


def branches(m, x):
    return torch.relu(m.one(x) + m.two(x)) + m.one(x)


# name: the function and how many layers are fused in it
NETS = {
    "block": (block, 2),
    "residual_block": (residual_block, 3),
    "vision_block": (vision_block, 2),
    "read_later": (read_later, 2),
    "viewed": (viewed, 2),
    "written_between": (written_between, 0),
    "branches": (branches, 2),
    "functional": (lambda m, x: F.relu(m.one(x), inplace=True) + F.relu(m.two(x), True), 2),
    "methods": (lambda m, x: m.one(x).relu().add(m.two(x)).relu_(), 2),
    "augmented": (lambda m, x: torch.relu(operator.iadd(m.one(x), m.pointwise(x))), 1),
    "preactivated": (lambda m, x: x + m.two(torch.relu(m.one(torch.relu(x)))), 2),
    "input": (lambda m, x: torch.relu(m.one(x) + x), 1),
    "broadcast": (lambda m, x: torch.relu(m.one(x) + x.mean((2, 3), keepdim=True)), 1),
    "number": (lambda m, x: torch.relu(m.one(x) + 1), 0),
    "itself": (lambda m, x: torch.relu((y := m.one(x)) + y), 0),
    "read_twice": (lambda m, x: torch.relu(y := m.one(x)) + y, 0),
    "grouped": (lambda m, x: torch.relu(m.grouped(x) + x), 1),
    "strided": (lambda m, x: torch.relu(m.strided(x)), 1),
    "reflected": (lambda m, x: torch.relu(m.reflected(x)) + torch.relu(m.like(x)), 0),
    "single": (lambda m, x: torch.relu(m.one(x[0])), 1),
    "linear": (lambda m, x: m.tail(torch.relu(m.head(x))), 2),
    "vector": (lambda m, x: torch.relu(m.head(x[0, 0, 0])), 1),
    "padded": (lambda m, x: torch.relu(m.one(x) + F.pad(x[:, :2], (0, 0, 0, 0, 1, 1))), 1),
    "pooled": (lambda m, x: m.pool(torch.relu(m.one(x) * 2)) + F.max_pool2d(m.relu(m.two(x) - 1), 2), 0),
    "alpha": (lambda m, x: torch.relu(torch.add(m.one(x), x, alpha=2)), 0),
}


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", NETS)
@torch.no_grad()
def test_fused_layers_agree_with_plain_ones(name, channels_last):
    function, count = NETS[name]
    model, images = Net(function).eval(), IMAGES.clone()
    if channels_last:
        model, images = (
            model.to(memory_format=torch.channels_last),
            images.contiguous(memory_format=torch.channels_last),
        )
    expected = model(images.clone())
    if not count:
        with pytest.raises(ValueError, match="no layer is followed"):
            rewritten(model, "fused")
        return
    traced, _ = rewritten(model, "fused")
    assert sum(isinstance(each, FusedLayer) for each in traced.modules()) == count
    found = traced(images)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(images, IMAGES, rtol=0, atol=0)  # what it is given is not written over
    torch.testing.assert_close(traced(images), found, rtol=0, atol=0)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", [name for name, (_, count) in NETS.items() if count])
@torch.no_grad()
def test_what_is_not_finite_stays_so_in_fused_layers(name, channels_last):
    model, images = Net(NETS[name][0]).eval(), IMAGES.clone()
    images[0, 0, 0, 0], images[-1, 0, -1, -1] = float("nan"), float("inf")
    if channels_last:
        model, images = (
            model.to(memory_format=torch.channels_last),
            images.contiguous(memory_format=torch.channels_last),
        )
    expected = model(images.clone())
    traced, _ = rewritten(model, "fused")
    torch.testing.assert_close(traced(images), expected, rtol=1e-5, atol=1e-6, equal_nan=True)


@torch.no_grad()
def test_only_a_residual_that_nobody_reads_later_is_written_over():
    overwriting = {}
    for name in ("block", "residual_block", "read_later", "viewed", "input", "vision_block"):
        model = rewritten(Net(NETS[name][0]).eval(), "fused")[0]
        overwriting[name] = any(isinstance(each, FusedLayer) and each.overwrite for each in model.modules())
    assert overwriting == {
        "block": False, "residual_block": True, "read_later": False, "viewed": False, "input": False,
        "vision_block": True,
    }  # fmt: skip


@torch.no_grad()
def test_weights_are_those_of_the_model_at_the_time():
    model = Net(block).eval()
    traced, _ = rewritten(model, "fused")
    for parameter in model.parameters():
        parameter.mul_(-1.5)
    torch.testing.assert_close(traced(IMAGES), model(IMAGES), rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_double_precision_is_left_to_the_layers():
    model = Net(block).eval().double()
    found = rewritten(model, "fused")[0](IMAGES.double())
    torch.testing.assert_close(found, model(IMAGES.double()), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("channels_last", [False, True])
@pytest.mark.parametrize("name", ["block", "residual_block", "vision_block", "linear", "broadcast", "input"])
@torch.no_grad()
def test_autocast_is_followed(name, channels_last):
    model = Net(NETS[name][0]).eval()
    model = model.to(memory_format=torch.channels_last) if channels_last else model
    traced, _ = rewritten(model, "fused")
    exact = model(IMAGES.clone())
    with torch.autocast("cpu", torch.bfloat16):
        expected, found = model(IMAGES.clone()), traced(IMAGES.clone())
    assert found.dtype == expected.dtype
    off = (found.double() - exact.double()).abs().max()
    assert off <= 2 * (expected.double() - exact.double()).abs().max() + 1e-6
    assert off > 0


@pytest.mark.parametrize("name", ["residual_block", "linear", "pooled", "padded"])
def test_derivatives_with_respect_to_the_inputs_are_those_of_the_model(name):
    model = Net(lambda m, x: NETS[name][0](m, x) + m.tail(x).mean()).eval().requires_grad_(False)
    inputs = [IMAGES.clone().requires_grad_() for _ in range(2)]
    for each, run in zip(inputs, (model, rewritten(model, "fused")[0]), strict=True):
        run(each).square().sum().backward()
    torch.testing.assert_close(inputs[1].grad, inputs[0].grad, rtol=1e-4, atol=1e-5)


def test_layers_that_are_to_be_left_alone_are():
    model = Net(block).eval()
    with torch.no_grad():
        traced, _ = rewritten(model, "fused", taken=frozenset([model.one]))
        assert any(each is model.one for each in traced.modules())
        torch.testing.assert_close(traced(IMAGES), model(IMAGES), rtol=1e-5, atol=1e-6)


OPERATIONS = {
    "one": lambda m, x, y: m.one(x),
    "two": lambda m, x, y: m.two(x),
    "pointwise": lambda m, x, y: m.pointwise(x),
    "relu": lambda m, x, y: torch.relu(x),
    "relu_": lambda m, x, y: x.relu_(),
    "module": lambda m, x, y: m.inplace(x),
    "add": lambda m, x, y: x + y,
    "add_": lambda m, x, y: x.add_(y),
    "iadd": lambda m, x, y: operator.iadd(x, y),
    "half_": lambda m, x, y: F.hardtanh(x, -1.0, 1.0, True),
    "view": lambda m, x, y: x.flatten(2).view(x.shape),
    "slice": lambda m, x, y: x[:, :],
    "pool": lambda m, x, y: F.max_pool2d(x, 3, 1, 1),
}


@pytest.mark.long
@settings(max_examples=40, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(sorted(OPERATIONS)), st.integers(0, 5), st.integers(0, 5)), max_size=12))
@torch.no_grad()
def test_any_sequence_of_operations_computes_the_same(steps):
    """Residuals, views and writes in any order; the oracle is the same graph untouched.

    The graph, not the model: tracing itself takes `x += y` for `x = x + y`, which shows where x has another name.
    """

    def program(m, x):
        values = [m.pointwise(x)]
        for name, one, other in steps:
            values.append(OPERATIONS[name](m, values[-1 - one % len(values)], values[-1 - other % len(values)]))
        return torch.relu(m.one(values[-1])) + sum(values)

    model = Net(program).eval()
    model, images = model.to(memory_format=torch.channels_last), IMAGES.contiguous(memory_format=torch.channels_last)
    traced, plain = rewritten(model, "fused", "maxima")[0], fx.symbolic_trace(model)
    torch.testing.assert_close(traced(images.clone()), plain(images.clone()), rtol=1e-4, atol=1e-4)
