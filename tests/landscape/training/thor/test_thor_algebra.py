"""THOR's steps beside dense linear algebra: Kronecker products that are written out, loops instead of im2col."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F

from landscape.training.thor.optimizer import THOR

DAMPING = 0.05


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)


def taken(model, loss_of, **options):
    """What a step of THOR takes off each parameter, at a learning rate of 1 and without momentum."""
    settings = {"lr": 1.0, "damping": DAMPING, "momentum": 0.0, **options}
    optimizer = THOR(model, **settings)
    before = {name: value.detach().clone() for name, value in model.named_parameters()}
    optimizer.zero_grad()
    loss_of(model).backward()
    optimizer.step()
    optimizer.close()
    moved = {name: before[name] - value.detach() for name, value in model.named_parameters()}
    model.load_state_dict({**model.state_dict(), **before})
    return moved


def walked(model, given, target, criterion):
    """The input of each module of a Sequential, and the gradient of the mean loss for its output."""
    inputs, outputs = [], []
    for module in model:
        inputs.append(given)
        given = torch.relu(given) if isinstance(module, nn.ReLU) else module(given)  # never in place
        given.retain_grad()
        outputs.append(given)
    model.zero_grad()
    criterion(given, target).backward()
    return [(a.detach(), z.grad) for a, z in zip(inputs, outputs, strict=True)]


def patches(module, images):
    """Every patch that a convolution multiplies its kernel with, [N, pixels, I], by loops over pixels."""
    before = [step * (size - 1) // 2 for step, size in zip(module.dilation, module.kernel_size, strict=True)]
    after = [step * (size - 1) for step, size in zip(module.dilation, module.kernel_size, strict=True)]
    if module.padding == "same":
        sides = list(zip(before, [b - a for a, b in zip(before, after, strict=True)], strict=True))
    else:
        padding = [0] * len(before) if module.padding == "valid" else module.padding
        sides = [(each, each) for each in padding]
    mode = {"zeros": "constant", "circular": "wrap", "reflect": "reflect", "replicate": "edge"}[module.padding_mode]
    padded = np.pad(images.numpy(), [(0, 0), (0, 0), *sides], mode=mode)
    lengths = [
        (size - step * (kernel - 1) - 1) // stride + 1
        for size, step, kernel, stride in zip(
            padded.shape[2:], module.dilation, module.kernel_size, module.stride, strict=True
        )
    ]
    found = []
    for pixel in itertools.product(*(range(length) for length in lengths)):
        window = tuple(
            slice(at * stride, at * stride + step * (kernel - 1) + 1, step)
            for at, stride, step, kernel in zip(pixel, module.stride, module.dilation, module.kernel_size, strict=True)
        )
        found.append(padded[(slice(None), slice(None), *window)].reshape(len(padded), -1))
    return np.stack(found, 1)


def positions(module, given, gradient):
    """Inputs [N, T, I] and gradients [N, T, O] of a layer, by samples and positions."""
    if isinstance(module, nn.Conv1d | nn.Conv2d):
        return patches(module, given), gradient.flatten(2).transpose(1, 2).numpy()
    if isinstance(module, nn.Embedding):
        given = F.one_hot(given, module.num_embeddings).to(gradient.dtype)
        if module.padding_idx is not None:  # counts nothing
            given[..., module.padding_idx] = 0
    count = len(given)
    return given.reshape(count, -1, given.shape[-1]).numpy(), gradient.reshape(count, -1, gradient.shape[-1]).numpy()


def block_diagonal(matrix, width):
    block = np.arange(len(matrix)) // width
    return matrix * (block[:, None] == block[None])


def dense_step(module, given, gradient, damping=DAMPING, width=128, balance=False):
    """Δ of the weight by a solve with the dense (A + √λ) ⊗ (G + √λ), in the order of the flattened weight."""
    a, g = positions(module, given, gradient)
    samples, count = a.shape[:2]
    factor_a = np.einsum("nti,ntj->ij", a, a) / (samples * count) * np.sqrt(count)
    factor_g = np.einsum("nti,ntj->ij", g, g) * samples**2 / (samples * count) * np.sqrt(count)
    weight_gradient = np.einsum("nto,nti->oi", g, a)
    is_embedding = isinstance(module, nn.Embedding)
    ratio = np.sqrt(np.diag(factor_a).mean() / np.diag(factor_g).mean()) if balance else 1.0
    left = block_diagonal(factor_g, width) + np.sqrt(damping) / ratio * np.eye(len(factor_g))
    right = block_diagonal(factor_a, 1 if is_embedding else width) + np.sqrt(damping) * ratio * np.eye(len(factor_a))
    step = np.linalg.solve(np.kron(left, right), weight_gradient.ravel()).reshape(weight_gradient.shape)
    return torch.from_numpy(step.T if is_embedding else step).reshape(module.weight.shape)


def assert_close(value, expected, relative=1e-8):
    assert float((value - expected).norm()) <= relative * float(expected.norm())


def flat(*layers):
    return nn.Sequential(*layers, nn.Flatten(), nn.LazyLinear(3))


NETS = {
    "linear": lambda: (nn.Sequential(nn.Linear(5, 7), nn.Tanh(), nn.Linear(7, 3, bias=False)), torch.randn(6, 5)),
    "tokens": lambda: (flat(nn.Linear(4, 5), nn.Tanh()), torch.randn(4, 3, 4)),
    "conv": lambda: (flat(nn.Conv2d(2, 4, 3), nn.ReLU(inplace=True)), torch.randn(5, 2, 5, 6)),
    "stride": lambda: (flat(nn.Conv2d(2, 3, (2, 3), (2, 1), padding=(1, 2), dilation=(1, 2))), torch.randn(4, 2, 6, 5)),
    "same": lambda: (flat(nn.Conv2d(2, 3, (2, 3), padding="same", dilation=(3, 1))), torch.randn(4, 2, 5, 5)),
    "circular": lambda: (flat(nn.Conv2d(2, 3, 3, padding=(1, 2), padding_mode="circular")), torch.randn(4, 2, 4, 5)),
    "reflect": lambda: (flat(nn.Conv2d(1, 3, 3, padding="same", padding_mode="reflect")), torch.randn(4, 1, 4, 5)),
    "valid": lambda: (flat(nn.Conv1d(2, 3, 3, padding="valid", stride=2)), torch.randn(4, 2, 8)),
    "conv1d": lambda: (flat(nn.Conv1d(2, 3, 3, padding=2, dilation=2, padding_mode="replicate")), torch.randn(4, 2, 8)),
    "embedding": lambda: (flat(nn.Embedding(9, 4), nn.Linear(4, 5), nn.Tanh()), torch.randint(0, 9, (6, 3))),
    "word": lambda: (nn.Sequential(nn.Embedding(9, 4, padding_idx=2), nn.Linear(4, 3)), torch.randint(0, 9, (20,))),
}  # fmt: skip


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@pytest.mark.parametrize(("width", "balance"), [(128, False), (3, False), (128, True)])
@pytest.mark.parametrize("name", NETS)
def test_steps_are_those_of_dense_kronecker_products(name, width, balance):
    model, given = NETS[name]()
    model(given)
    model = model.double()
    given = given if given.dtype == torch.int64 else given.double()
    target = torch.arange(len(given)) % 3
    layers = walked(model, given, target, F.cross_entropy)
    steps = taken(model, lambda each: F.cross_entropy(each(given), target), split_dim=width, balance=balance)
    for number, (module, (a, g)) in enumerate(zip(model, layers, strict=True)):
        if getattr(module, "padding_idx", None) is not None:
            g = g * (a != module.padding_idx).unsqueeze(-1)
        if hasattr(module, "weight"):
            expected = dense_step(module, a, g, width=width, balance=balance)
            value = steps[f"{number}.weight"]
            if getattr(module, "padding_idx", None) is not None:
                expected[module.padding_idx] = 0
            assert_close(value, expected)
