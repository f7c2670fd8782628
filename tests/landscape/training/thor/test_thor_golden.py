"""THOR with MindSpore's factors beside the steps that MindSpore 2.7.0 took, and beside its formula written out."""

from __future__ import annotations

import io
import itertools
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint_sequential

from landscape.core.errors import JobError
from landscape.optim import SCHEDULES, THOR

GOLDEN = Path(__file__).parents[5] / "shared" / "data" / "mindspore-thor"
OPTIONS = {"lr": 0.01, "damping": 0.03, "weight_decay": 5e-4, "factors": "mindspore-gpu"}
IMAGES, LABELS = torch.randn(8, 2, 5, 5, generator=torch.Generator().manual_seed(0)).double(), torch.arange(8) % 4


def dense():
    return nn.Sequential(nn.Linear(20, 12), nn.ReLU(), nn.Linear(12, 4))


def convolution(padding, features):
    layers = nn.Conv2d(1, 4, 3, padding=padding, bias=False), nn.ReLU(), nn.Flatten()
    return nn.Sequential(*layers, nn.Linear(features, 4))


NETWORKS = {
    "thor_dense_100": (dense, 100),
    "thor_dense_2": (dense, 2),
    "thor_conv_100": (lambda: convolution(0, 144), 100),
    "thor_convsame_100": (lambda: convolution(1, 256), 100),
}


@pytest.mark.skipif(not GOLDEN.is_dir(), reason="shared/data with MindSpore's steps of THOR is absent")
@pytest.mark.parametrize("name", NETWORKS)
def test_one_and_five_steps_are_those_of_mindspore_on_a_gpu(name):
    golden, (make, frequency) = np.load(GOLDEN / f"{name}.npz"), NETWORKS[name]
    names = [key.removeprefix("init:") for key in golden.files if key.startswith("init:")]
    start, *expected = ([torch.from_numpy(golden[f"{at}:{each}"]) for each in names] for at in ("init", 1, 5))
    model, weights = make(), []
    model.load_state_dict(dict(zip(model.state_dict(), start, strict=True)))
    optimizer = THOR(model, **OPTIONS, frequency=frequency)
    for given, labels in zip(golden["xs"], golden["ys"], strict=True):
        optimizer.zero_grad()
        F.cross_entropy(model(torch.from_numpy(given)), torch.from_numpy(labels).long()).backward()
        optimizer.step()
        weights.append([each.detach().clone() for each in model.parameters()])
    for taken, wanted in ((weights[0], expected[0]), (weights[4], expected[1])):
        for value, after, before in zip(taken, wanted, start, strict=True):
            assert float((value - after).norm()) <= 1e-5 * float((after - before).norm())


# The formula written out


def mean_patches(module, images):
    """The mean over the samples of the patches of each pixel that "same" padding gives, [I, T], by loops."""
    samples, channels = images.shape[:2]
    counts = [-(-size // stride) for size, stride in zip(images.shape[2:], module.stride, strict=True)]
    reach = [step * (size - 1) + 1 for step, size in zip(module.dilation, module.kernel_size, strict=True)]
    starts = [
        -(max(0, (count - 1) * stride + span - size) // 2)
        for count, stride, span, size in zip(counts, module.stride, reach, images.shape[2:], strict=True)
    ]
    columns = []
    for pixel in itertools.product(*map(range, counts)):
        patch = np.zeros((samples, channels, *module.kernel_size))
        for at in itertools.product(*map(range, module.kernel_size)):
            row, column = (
                start + number * stride + step * offset
                for start, number, stride, step, offset in zip(
                    starts, pixel, module.stride, module.dilation, at, strict=True
                )
            )
            if 0 <= row < images.shape[2] and 0 <= column < images.shape[3]:
                patch[:, :, at[0], at[1]] = images[:, :, row, column]
        columns.append(patch.mean(0).ravel())
    return np.stack(columns, 1)


def inverse(matrix, shift, width):
    block = np.arange(len(matrix)) // width
    return np.linalg.inv(matrix * (block[:, None] == block[None]) + shift * np.eye(len(matrix)))


def step_of(module, given, gradient, damping, width):
    """Δ of a weight in MindSpore's own normalisations, from an input and the gradient of the mean loss, in numpy."""
    batch = len(given)
    if isinstance(module, nn.Conv2d):
        patches, means = mean_patches(module, given), gradient.mean(0).reshape(module.out_channels, -1)
        pixels, positions = patches.shape[1], means.shape[1]
        a = inverse(patches @ patches.T / pixels, math.sqrt(damping / pixels), width) / math.sqrt(pixels)
        g = inverse(means @ means.T / positions * batch**2, math.sqrt(damping / positions), width) / math.sqrt(pixels)
        return g @ module.weight.grad.flatten(1).numpy() @ a
    rows, gradients = given.reshape(-1, given.shape[-1]), gradient.reshape(-1, gradient.shape[-1])
    a = inverse(rows.T @ rows / rows.shape[1], math.sqrt(damping), width)
    g = inverse(gradients.T @ gradients / len(gradients) * batch**2, math.sqrt(damping), width)
    return g @ module.weight.grad.numpy() @ a


FIRST = {
    "linear": lambda: (nn.Linear(5, 7), torch.randn(6, 5)),
    "tokens": lambda: (nn.Linear(4, 5), torch.randn(4, 3, 4)),
    "valid": lambda: (nn.Conv2d(2, 4, 3), torch.randn(5, 2, 5, 6)),
    "same": lambda: (nn.Conv2d(2, 4, 3, padding=1), torch.randn(5, 2, 6, 5)),
    "stride": lambda: (nn.Conv2d(2, 3, 3, stride=2, padding=1), torch.randn(4, 2, 6, 7)),
    "pointwise": lambda: (nn.Conv2d(3, 4, 1, stride=2), torch.randn(4, 3, 5, 6)),
    "oblong": lambda: (nn.Conv2d(2, 3, (2, 3), (2, 1), padding=(1, 2), dilation=(1, 2)), torch.randn(4, 2, 6, 5)),
}


@pytest.mark.parametrize("width", [128, 3])
@pytest.mark.parametrize("name", FIRST)
def test_a_step_is_that_of_the_formula_in_mindspores_own_words(name, width):
    torch.manual_seed(0)
    first, given = FIRST[name]()
    model, given = nn.Sequential(first, nn.Flatten(), nn.LazyLinear(3)), given.double()
    model(given.float())
    model.double()
    optimizer = THOR(model, 1.0, damping=0.05, momentum=0.0, split_dim=width, factors="mindspore-gpu")
    before = {id(layer): layer.weight.detach().clone() for layer in (model[0], model[2])}
    middle = model[0](given)
    outputs = model[2](model[1](middle))
    gradients = torch.autograd.grad(
        F.cross_entropy(outputs, torch.arange(len(given)) % 3), (middle, outputs), retain_graph=True
    )
    F.cross_entropy(model(given), torch.arange(len(given)) % 3).backward()
    optimizer.step()
    for layer, inputs, gradient in ((model[0], given, gradients[0]), (model[2], middle.flatten(1), gradients[1])):
        expected = step_of(layer, inputs.detach().numpy(), gradient.numpy(), 0.05, width)
        moved = (before[id(layer)] - layer.weight.detach()).flatten(1).numpy()
        assert np.linalg.norm(moved - expected) <= 1e-9 * np.linalg.norm(expected)


# Circumstances


def network():
    torch.manual_seed(1)
    layers = [nn.Conv2d(2, 3, 3), nn.BatchNorm2d(3), nn.ReLU(), nn.Flatten(), nn.LayerNorm(27), nn.Linear(27, 4)]
    return nn.Sequential(*layers).double()


def plain_network():
    torch.manual_seed(1)
    return nn.Sequential(nn.Conv2d(2, 3, 3), nn.ReLU(), nn.Flatten(), nn.Linear(27, 4)).double()


def loss_of(model, chosen=slice(None), share=1.0):
    return F.cross_entropy(model(IMAGES[chosen]), LABELS[chosen]) * share


def weights_after(backward, make=plain_network, steps=3, **options):
    model = make()
    optimizer = THOR(model, **{**OPTIONS, "frequency": 2, **options})
    for _ in range(steps):
        optimizer.zero_grad()
        backward(model)
        optimizer.step()
    return torch.cat([each.detach().flatten() for each in model.parameters()])


def assert_same(one, other, relative=1e-10):
    assert float((one - other).norm()) <= relative * float(other.norm())


def in_parts(model):
    loss_of(model, slice(0, 5), 5 / 8).backward()
    loss_of(model, slice(5, 8), 3 / 8).backward()


def in_two_passes(model):
    loss = loss_of(model)
    (loss * 0.25).backward(retain_graph=True)
    (loss * 0.75).backward()


def with_checkpoints(model):
    outputs = checkpoint_sequential(model, 2, IMAGES.clone().requires_grad_(), use_reentrant=False)
    F.cross_entropy(outputs, LABELS).backward()


@pytest.mark.parametrize("backward", [in_parts, in_two_passes, with_checkpoints])
def test_parts_of_a_batch_and_passes_give_the_steps_of_the_whole(backward):
    assert_same(weights_after(backward), weights_after(lambda model: loss_of(model).backward()))


def test_a_scaled_loss_and_a_grad_scaler_take_the_same_steps():
    expected = weights_after(lambda model: loss_of(model).backward())
    assert_same(weights_after(lambda model: loss_of(model, share=128.0).backward(), loss_scale=128.0), expected)
    model, scaler = plain_network(), torch.amp.GradScaler("cpu", init_scale=1024.0)
    optimizer = THOR(model, **OPTIONS, frequency=2)
    for _ in range(3):
        optimizer.zero_grad()
        scaler.scale(loss_of(model)).backward()
        scaler.step(optimizer)
        scaler.update()
    assert_same(torch.cat([each.detach().flatten() for each in model.parameters()]), expected)


@pytest.mark.parametrize("options", [{}, {"refresh": "thor_stop", "average": 0.5, "balance": True}])
def test_a_resumed_training_has_the_same_bits(options):
    options = {**OPTIONS, **options, "frequency": 2}
    model = network()
    optimizer = THOR(model, **options)

    def trained(model, optimizer):
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model).backward()
            optimizer.step()
        return torch.cat([each.detach().flatten() for each in model.parameters()])

    trained(model, optimizer)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
    kept = torch.load(io.BytesIO(file.getvalue()), weights_only=True)
    other = network()
    resumed = THOR(other, **options)
    other.load_state_dict(kept["model"])
    resumed.load_state_dict(kept["optimizer"])
    assert torch.equal(trained(other, resumed), trained(model, optimizer))


def test_the_state_of_other_factors_is_refused_and_one_without_has_exact_ones():
    exact, published = THOR(network(), 0.1), THOR(network(), 0.1, factors="mindspore-gpu")
    with pytest.raises(JobError, match=r"optimizer: must have factors 'exact', as in its state, not 'mindspore-gpu'"):
        published.load_state_dict(exact.state_dict())
    with pytest.raises(JobError, match=r"optimizer: must have factors 'mindspore-gpu', as in its state, not 'exact'"):
        exact.load_state_dict(published.state_dict())
    older = exact.state_dict()
    del older["thor"]["factors"]
    exact.load_state_dict(older)
    with pytest.raises(JobError, match="optimizer: must have factors 'exact'"):
        published.load_state_dict(older)


def test_clipping_shortens_the_step_of_each_parameter():
    found = []
    for clip in (None, 1.0):
        model = plain_network()
        before = [each.detach().clone() for each in model.parameters()]
        weights_after(lambda each: loss_of(each).backward(), lambda model=model: model, 1, lr=1.0, clip=clip)
        found.append([old - new.detach() for old, new in zip(before, model.parameters(), strict=True)])
    norms = [float(each.norm()) for each in found[0]]
    assert min(norms) < 1.0 < max(norms)
    for free, clipped, norm in zip(*found, norms, strict=True):
        assert_same(clipped, free * min(1, 1 / norm))


def test_a_convolution_of_one_dimension_is_trained_first_order_and_named(caplog):
    model = nn.Sequential(nn.Conv1d(2, 3, 3), nn.Flatten(), nn.Linear(9, 2))
    optimizer = THOR(model, **OPTIONS)
    assert [record.getMessage() for record in caplog.records] == ["THOR trains first order: 0.weight (Conv1d)"]
    assert [layer.name for layer in optimizer.layers] == ["2"]


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.one = nn.Linear(3, 3)

    def forward(self, given):
        return self.one(torch.tanh(self.one(given)))


def test_what_the_formula_cannot_do_is_refused_in_a_line():
    with pytest.raises(JobError, match=r"^factors: unknown 'mindspore'; did you mean 'mindspore-gpu'"):
        THOR(network(), 0.1, factors="mindspore")
    with pytest.raises(JobError, match=r"^factors: 'mindspore-gpu' must have no Embedding like words, since Mind"):
        THOR(nn.ModuleDict({"words": nn.Embedding(4, 3)}), **OPTIONS)
    with pytest.raises(JobError, match=r"^model: must have a Linear or Conv2d layer"):
        THOR(nn.Sequential(nn.Conv1d(2, 2, 1)), **OPTIONS)
    model = Twice()
    optimizer = THOR(model, **OPTIONS)
    with pytest.raises(JobError, match=r"^factors: 'mindspore-gpu' must have one use of one in a call of the model, "):
        model(torch.ones(2, 3)).sum().backward()
    optimizer.close()
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2, 2))
    optimizer = THOR(model, **OPTIONS)
    model(torch.ones(2, 1, 5, 5)).sum().backward()
    with pytest.raises(JobError, match=r"^factors: 'mindspore-gpu' must have images of one size in a step, not \[1, 5"):
        model(torch.ones(2, 1, 6, 5)).sum().backward()
    optimizer.close()


def test_a_damping_that_was_tuned_on_other_factors_is_told(caplog):
    schedule = SCHEDULES["gpu-8"]
    for factors in ("mindspore-gpu", "exact"):
        THOR(network(), schedule.lr_init, damping=schedule.damping_at(100), factors=factors)
    assert [record.getMessage() for record in caplog.records] == [
        "THOR has a damping for factors 'mindspore-gpu', not for 'exact'; THOR(…, factors=schedule.factors)"
    ]
    assert schedule.damping_at(100)(1000) == pytest.approx(0.02345 * 0.5467)
    assert SCHEDULES["ascend-8"].factors == "exact"
