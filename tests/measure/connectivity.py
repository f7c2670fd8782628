"""How much of the barrier between two trained networks a curve, or a matching of their units, takes away.

python tests/measure/connectivity.py lenet | mlp [--data digits|mnist] [--width 512] [--epochs 60]

Prints one JSON document. The figures to reach: a Bezier curve between two LeNets without 90 % of the linear barrier and
with at most 1.25 × the loss of the worse end; an MLP 3 × 512 without 90 % of it after matching, the more the wider.
"""

from __future__ import annotations

import argparse
import gzip
import json
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from landscape.barrier import Barriers, barriers_of
from landscape.connectivity import Training, match_weights, train_bend
from landscape.connectivity.bending import point_on
from landscape.parameters import state_of
from landscape.problem.samples import Rows
from landscape.recipes.lenet import LeNet5

SHARED = Path(__file__).resolve().parents[3] / "shared" / "data"
POINTS = 61


def read_data(name: str, side: int, folder: Path) -> tuple[Tensor, Tensor]:
    """Normalised images [N, 1, side, side] and their labels."""
    if name == "digits":
        from landscape.recipes.digits import read_digits

        images, labels = read_digits()[0]
    else:
        pixels = np.frombuffer(gzip.decompress((folder / "t10k-images-idx3-ubyte.gz").read_bytes())[16:], np.uint8)
        marks = np.frombuffer(gzip.decompress((folder / "t10k-labels-idx1-ubyte.gz").read_bytes())[8:], np.uint8)
        images = (torch.from_numpy(pixels.astype(np.float32)).view(-1, 1, 28, 28) / 255 - 0.1307) / 0.3081
        labels = torch.from_numpy(marks.astype(np.int64))
    if images.shape[-1] != side:
        images = nn.functional.interpolate(images, size=(side, side), mode="bilinear")
    return images, labels


def mlp(width: int, inputs: int) -> nn.Module:
    """Three hidden layers of one width."""
    layers: list[nn.Module] = [nn.Flatten()]
    for size in (inputs, width, width):
        layers += [nn.Linear(size, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def train(model: nn.Module, data: tuple[Tensor, Tensor], epochs: int, rate: float, seed: int) -> dict[str, Tensor]:
    """Train by Adam, the rate falling to zero."""
    images, labels = data
    torch.manual_seed(seed)
    optimizer = torch.optim.Adam(model.parameters(), rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for chosen in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
        schedule.step()
    return state_of(model)


@torch.no_grad()
def along(
    model: nn.Module, data: tuple[Tensor, Tensor], states: list[dict[str, Tensor]]
) -> tuple[Barriers, np.ndarray]:
    """The barriers of a way from network to network, and the losses on it."""
    losses, accuracies = [], []
    for state in states:
        model.load_state_dict(state)
        outputs = torch.cat([model(images) for images in data[0].split(1000)])
        losses.append(nn.functional.cross_entropy(outputs, data[1]).item())
        accuracies.append((outputs.argmax(1) == data[1]).double().mean().item())
    t = np.linspace(0, 1, len(states))
    found = barriers_of(t, {"loss": np.array(losses), "accuracy": np.array(accuracies)}, losses[0], None)
    assert found is not None
    return found, np.array(losses)


def described(found: Barriers, losses: np.ndarray) -> dict[str, float]:
    """Heights and losses in a row."""
    return {
        "entezari": found.entezari.height, "git_re_basin": found.git_re_basin.height,
        "frankle": found.frankle.height if found.frankle else float("nan"),
        "ends": [losses[0], losses[-1]], "largest": losses.max(),
    }  # fmt: skip


def main() -> None:
    """Train two networks, and connect them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", choices=["lenet", "mlp"])
    parser.add_argument("--data", choices=["digits", "mnist"], default="digits")
    parser.add_argument("--folder", type=Path, default=SHARED, help="where the idx files of MNIST are")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rate", type=float, default=0.001)
    parser.add_argument("--curve-epochs", type=int, default=40)
    parser.add_argument("--curve-rate", type=float, default=0.02)
    options = parser.parse_args()
    lenet = options.network == "lenet"
    side = 32 if lenet else (28 if options.data == "mnist" else 8)
    data = read_data(options.data, side, options.folder)
    start = time.perf_counter()
    ends = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = LeNet5() if lenet else mlp(options.width, side * side)
        ends.append(train(model, data, options.epochs, options.rate, seed))

    def line(first: dict[str, Tensor], second: dict[str, Tensor]) -> list[dict[str, Tensor]]:
        return [
            {name: torch.lerp(first[name], second[name], t.item()) for name in first}
            for t in torch.linspace(0, 1, POINTS)
        ]

    before = along(model, data, line(*ends))
    report = {"options": vars(options), "line": described(*before), "seconds training": time.perf_counter() - start}
    start = time.perf_counter()
    if lenet:
        training = Training(options.curve_epochs, options.curve_rate, batch_size=64)
        bend = train_bend(model, Rows(data), _observe, *ends, "bezier", training)
        after = along(model, data, [point_on("bezier", (*ends, bend.bend), t) for t in np.linspace(0, 1, POINTS)])
    else:
        matched = match_weights(model, *ends, outputs=lambda net: net(data[0][:256]))
        report["rounds"] = matched.rounds
        after = along(model, data, line(ends[0], matched.weights))
    report["after"] = described(*after)
    report["gone"] = 1 - after[0].entezari.height / before[0].entezari.height
    report["largest over the worse end"] = after[1].max() / max(before[1][0], before[1][-1])
    report["seconds connecting"] = time.perf_counter() - start
    print(json.dumps(report, indent=1, default=str))


def _observe(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    return {"loss": nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")}


if __name__ == "__main__":
    main()
