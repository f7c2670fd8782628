"""How far THOR's first step lies from MindSpore's, by each difference of their factors, on MindSpore's golden networks.

    python tests/measure/thor_factors.py FOLDER

FOLDER holds thor_dense_100.npz, thor_conv_100.npz and thor_convsame_100.npz. Both formulas of MindSpore 2.7.0 are
written out here, with a switch for every difference; its own steps on a GPU and those of THOR check the ends. Its
formula for Ascend is written from its sources alone. Prints, for each layer and difference, the norm of the
preconditioned gradient over the exact one's, and the norm of what they differ by over it.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from landscape.optim import THOR

LR, DAMPING, DECAY = 0.01, 0.03, 5e-4
FILES = {"thor_dense_100": 0, "thor_conv_100": 0, "thor_convsame_100": 1}  # with the padding of the convolution


@dataclass(frozen=True)
class Differences:
    """What is done as in MindSpore: `over_inputs` to `means` on GPUs; patches, `norms` and `halves` on Ascend."""

    over_inputs: bool = False  # A of a dense layer is divided by its inputs, not by the rows
    same_patches: bool = False  # whatever the padding of the convolution
    means: bool = False  # patches and gradients of a convolution are averaged over the samples
    largest: bool = False  # steps are multiplied by g_max² after the inverses were divided by a_max and g_max
    halves: bool = False  # inverses and gradients are rounded to float16


EXACT = Differences()
DENSE = {
    "GPU: A over in_channels": Differences(over_inputs=True),
    "Ascend, with a convolution: times g_max/a_max": Differences(largest=True),
    "Ascend, with a convolution: that and float16": Differences(largest=True, halves=True),
    "Ascend, without a convolution: float16": Differences(halves=True),
}
CONVOLUTION = {
    "GPU and Ascend: same patches": Differences(same_patches=True),
    "GPU: means over the batch": Differences(means=True),
    "GPU: both": Differences(same_patches=True, means=True),
    "Ascend: times g_max/a_max": Differences(largest=True),
    "Ascend: same patches, times g_max/a_max, float16": Differences(same_patches=True, largest=True, halves=True),
}
ON_GPUS = Differences(over_inputs=True, same_patches=True, means=True)


def direction(layer: nn.Module, given: Tensor, gradient: Tensor, done: Differences) -> Tensor:
    """The preconditioned gradient of the layer's weight, [O, I], from the gradient of the mean loss for its output."""
    batch = len(given)
    if isinstance(layer, nn.Conv2d):
        patches = F.unfold(given, layer.kernel_size, padding=1 if done.same_patches else layer.padding)
        outputs = gradient.flatten(2)
        if done.means:
            patches, outputs = patches.mean(0, keepdim=True), outputs.mean(0, keepdim=True)
        pixels, positions = patches.shape[2], outputs.shape[2]
        rows, columns = (each.transpose(1, 2).flatten(0, 1) for each in (patches, outputs))
    else:
        pixels, positions, rows, columns = 1, 1, given, gradient
    a = rows.T @ rows / (rows.shape[1] if done.over_inputs and isinstance(layer, nn.Linear) else len(rows))
    g = columns.T @ columns / len(columns) * batch**2
    of_a, of_g = inverted(a, pixels), inverted(g, positions)
    scale = 1 / pixels
    if done.largest:
        largest_a, largest_g = of_a.abs().max(), of_g.abs().max()
        of_a, of_g, scale = of_a / largest_a, of_g / largest_g, scale * largest_g**2
    matrix = layer.weight.grad.flatten(1)
    if done.halves:
        of_a, of_g, matrix = (each.half() for each in (of_a, of_g, matrix))
    return ((of_g @ matrix) @ of_a).to(gradient.dtype) * scale


def inverted(matrix: Tensor, pixels: int, width: int = 128) -> Tensor:
    damped = torch.block_diag(*(matrix[at : at + width, at : at + width] for at in range(0, len(matrix), width)))
    return torch.linalg.inv(damped + math.sqrt(DAMPING / pixels) * torch.eye(len(matrix), dtype=matrix.dtype))


def network(golden: Mapping[str, np.ndarray], padding: int) -> nn.Sequential:
    weights = [torch.from_numpy(value) for name, value in golden.items() if name.startswith("init:")]
    if "init:fc.weight" in golden:
        features = golden["init:fc.weight"].shape[1]
        layers = [nn.Conv2d(1, 4, 3, padding=padding, bias=False), nn.ReLU(), nn.Flatten(), nn.Linear(features, 4)]
    else:
        layers = [nn.Linear(20, 12), nn.ReLU(), nn.Linear(12, 4)]
    model = nn.Sequential(*layers)
    model.load_state_dict(dict(zip(model.state_dict(), weights, strict=True)))
    return model.double()


def step_of_thor(golden: Mapping[str, np.ndarray], padding: int, factors: str) -> list[Tensor]:
    """The first step over the learning rate, of each layer."""
    model = network(golden, padding)
    layers = [layer for layer in model if hasattr(layer, "weight")]
    start = [layer.weight.detach().clone() for layer in layers]
    optimizer = THOR(model, LR, damping=DAMPING, factors=factors)
    given, labels = torch.from_numpy(golden["xs"][0]).double(), torch.from_numpy(golden["ys"][0]).long()
    F.cross_entropy(model(given), labels).backward()
    optimizer.step()
    return [(before - layer.weight.detach()).flatten(1) / LR for before, layer in zip(start, layers, strict=True)]


def uses_of(model: nn.Sequential, golden: Mapping[str, np.ndarray]) -> list[tuple[nn.Module, Tensor, Tensor]]:
    """Each layer with a weight, its input in the first step, and the gradient of its output."""
    values, found = torch.from_numpy(golden["xs"][0]).double(), []
    for layer in model:
        before, values = values, layer(values)
        values.retain_grad()
        if hasattr(layer, "weight"):
            found.append((layer, before.detach(), values))
    F.cross_entropy(values, torch.from_numpy(golden["ys"][0]).long()).backward()
    return [(layer, before, after.grad) for layer, before, after in found]


def compared(step: Tensor, base: Tensor) -> str:
    ratio, apart = float(step.norm() / base.norm()), float((step - base).norm() / base.norm())
    return f"{ratio:9.3f} × its norm, {apart:9.3f} of it apart"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    folder = parser.parse_args().folder
    for file, padding in FILES.items():
        golden = dict(np.load(folder / f"{file}.npz"))
        uses = uses_of(network(golden, padding), golden)
        names = [name.removeprefix("init:") for name in golden if name.startswith("init:") and name.endswith("weight")]
        ends = zip(*(step_of_thor(golden, padding, each) for each in ("exact", "mindspore-gpu")), strict=True)
        for name, (layer, given, gradient), (exact, on_gpus) in zip(names, uses, ends, strict=True):
            base = direction(layer, given, gradient, EXACT)
            whole = direction(layer, given, gradient, ON_GPUS)
            taken = torch.from_numpy(golden[f"init:{name}"] - golden[f"1:{name}"]).double().flatten(1) / LR
            taken = taken - DECAY * layer.weight.detach().flatten(1)
            for value, expected, most in ((base, exact, 1e-9), (whole, on_gpus, 1e-9), (whole, taken, 1e-4)):
                assert float((value - expected).norm()) <= most * float(expected.norm()), (file, name)
            print(f"{file} {name}")
            is_convolution, has_convolution = isinstance(layer, nn.Conv2d), "conv" in file
            for words, done in (CONVOLUTION if is_convolution else DENSE).items():
                if is_convolution or has_convolution or not done.largest:
                    print(f"  {words:50} {compared(direction(layer, given, gradient, done), base)}")


if __name__ == "__main__":
    main()
