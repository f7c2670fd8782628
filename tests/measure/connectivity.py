"""How much of the barrier between two trained networks a curve, or a matching of their units, takes away.

python tests/measure/connectivity.py lenet | mlp | orders | resnets | tuned [--data digits|mnist] [--width 512]

`lenet`: a Bezier curve between two LeNets; `mlp`: two MLPs, one matched to the other; `orders`: a LeNet trained twice
from one initialisation, the data in two orders; `resnets`: two ResNet-8 matched, then their statistics of batch
normalisation taken anew; `tuned`: a Bezier curve between two trainings that go on from the trained ResNet-20.

Prints one JSON document. The figures to reach: a Bezier curve between two LeNets without 90 % of the linear barrier and
with at most 1.25 × the loss of the worse end; an MLP 3 × 512 without 90 % of it after matching, the more the wider; of
two orders a barrier of less than 2 % error (Frankle et al. 2020); of matched networks with batch normalisation 60 %
less barrier once statistics are taken anew (Jordan et al. 2023).
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from landscape.analysis.connect.curve import BendTraining, point_on, train_bend
from landscape.analysis.connect.matching import match_weights
from landscape.model.parameters import state_of
from landscape.problem.batches import TensorSamples
from landscape.recipes.lenet import LeNet5
from landscape.recipes.resnet import ResNet
from landscape.surface.barriers import Barriers, barriers_of

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


def resnet_data(folder: Path) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
    """Normalised images of CIFAR-10 and their labels: those of training, and 1,024 of the test."""
    from landscape.recipes.cifar10 import normalise, read_cifar10

    both = [read_cifar10(folder / name) for name in ("cifar10-train-10000.npz", "cifar10-test-2048.npz")]
    (images, labels), (unseen, marks) = both
    return (normalise(images), labels), (normalise(unseen[:1024]), marks[:1024])


def train(
    model: nn.Module, data: tuple[Tensor, Tensor], epochs: int, rate: float, seed: int, momentum: float | None = None
) -> dict[str, Tensor]:
    """Train by Adam, or by gradient descent with this momentum, the rate falling to zero."""
    images, labels = data
    torch.manual_seed(seed)
    model.train()
    optimizer: torch.optim.Optimizer = torch.optim.Adam(model.parameters(), rate)
    if momentum is not None:
        optimizer = torch.optim.SGD(model.parameters(), rate, momentum=momentum, weight_decay=1e-4)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, epochs)
    for _ in range(epochs):
        for chosen in torch.randperm(len(images)).split(64):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(images[chosen]), labels[chosen]).backward()
            optimizer.step()
        schedule.step()
    model.eval()
    return {name: tensor.clone() for name, tensor in state_of(model).items()}


@torch.no_grad()
def renew(model: nn.Module, images: Tensor) -> None:
    """Take the running statistics of batch normalisation anew, as their mean over batches of 500."""
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None
    model.train()
    for batch in images.split(500):
        model(batch)
    model.eval()


@torch.no_grad()
def along(
    model: nn.Module, data: tuple[Tensor, Tensor], states: list[dict[str, Tensor]], renewed: Tensor | None = None
) -> tuple[Barriers, np.ndarray]:
    """The barriers of a way from network to network, and the losses on it.

    Args:
        renewed: images over which the statistics of batch normalisation are taken anew at each point but the ends.
    """
    losses, accuracies = [], []
    for number, state in enumerate(states):
        model.load_state_dict(state)
        if renewed is not None and 0 < number < len(states) - 1:
            renew(model, renewed)
        outputs = torch.cat([model(images) for images in data[0].split(1000)])
        losses.append(nn.functional.cross_entropy(outputs, data[1]).item())
        accuracies.append((outputs.argmax(1) == data[1]).double().mean().item())
    t = np.linspace(0, 1, len(states))
    found = barriers_of(t, {"loss": np.array(losses), "accuracy": np.array(accuracies)}, losses[0], None)
    assert found is not None
    return found, np.array(losses)


def line(first: dict[str, Tensor], second: dict[str, Tensor], points: int = POINTS) -> list[dict[str, Tensor]]:
    """The networks on the straight line; the number of batches seen is that of the first."""
    return [
        {
            name: torch.lerp(first[name], second[name], t.item()) if first[name].is_floating_point() else first[name]
            for name in first
        }
        for t in torch.linspace(0, 1, points)
    ]


def described(found: Barriers, losses: np.ndarray) -> dict[str, float]:
    """Heights and losses in a row."""
    return {
        "entezari": found.entezari.height, "git_re_basin": found.git_re_basin.height,
        "frankle": found.frankle.height if found.frankle else float("nan"),
        "ends": [losses[0], losses[-1]], "largest": losses.max(),
    }  # fmt: skip


def ends_of(options: argparse.Namespace, data: tuple[Tensor, Tensor], side: int) -> tuple[nn.Module, list[Any]]:
    """Two trained networks, from two initialisations or from one."""
    ends = []
    for seed in (1, 2):
        torch.manual_seed(1 if options.network == "orders" else seed)
        model = LeNet5() if options.network in ("lenet", "orders") else mlp(options.width, side * side)
        ends.append(train(model, data, options.epochs, options.rate, seed))
    return model, ends


def plain(options: argparse.Namespace, report: dict[str, Any]) -> None:
    """LeNets and MLPs on digits, or on MNIST."""
    side = 28 if options.data == "mnist" else 8
    if options.network != "mlp":
        side = 32
    images, labels = read_data(options.data, side, options.folder)
    count = len(images) if options.network != "orders" else len(images) * 4 // 5
    data = images[:count], labels[:count]
    model, ends = ends_of(options, data, side)
    before = along(model, data, line(*ends))
    report["line"] = described(*before)
    if options.network == "orders":
        report["unseen"] = described(*along(model, (images[count:], labels[count:]), line(*ends)))
        return
    if options.network == "lenet":
        training = BendTraining(options.curve_epochs, options.curve_rate, batch_size=64)
        bend = train_bend(model, TensorSamples(data), _observe, *ends, "bezier", training)
        after = along(model, data, [point_on("bezier", (*ends, bend.bend), t) for t in np.linspace(0, 1, POINTS)])
    else:
        matched = match_weights(model, *ends, outputs=lambda net: net(data[0][:256]))
        report["rounds"] = matched.rounds
        after = along(model, data, line(ends[0], matched.weights))
    report["after"] = described(*after)
    report["gone"] = 1 - after[0].entezari.height / before[0].entezari.height
    report["largest over the worse end"] = after[1].max() / max(before[1][0], before[1][-1])


def resnets(options: argparse.Namespace, report: dict[str, Any]) -> None:
    """Two ResNet-8 on digits of 16 × 16 pixels, matched, and with statistics taken anew."""
    images, labels = read_data("digits", 16, options.folder)
    images, ends = images.repeat(1, 3, 1, 1), []
    for seed in (1, 2):
        torch.manual_seed(seed)
        model = ResNet(8, options.width)
        ends.append(train(model, (images, labels), options.epochs, 0.05, seed, momentum=0.9))
    matched = match_weights(model, *ends, outputs=lambda net: net(images[:256]))
    for name, second in (("line", ends[1]), ("matched", matched.weights)):
        for statistics, renewed in (("as they move", None), ("renewed", images)):
            way = along(model, (images, labels), line(ends[0], second, options.points), renewed)
            report[f"{name}, statistics {statistics}"] = described(*way)


def tuned(options: argparse.Namespace, report: dict[str, Any]) -> None:
    """Two trainings that go on from the trained ResNet-20 of the shared data at a high rate, and a curve between."""
    from safetensors.torch import load_file

    (images, labels), unseen = resnet_data(options.folder)
    data, ends, model = (images[: options.images], labels[: options.images]), [], ResNet()
    for seed in (1, 2):
        model.load_state_dict(load_file(options.folder / "resnet20-cifar10.safetensors"), strict=False)
        ends.append(train(model, data, options.epochs, options.rate, seed, momentum=0.9))
        print("trained", seed, file=sys.stderr, flush=True)
    training = BendTraining(options.curve_epochs, options.curve_rate, batch_size=64)
    bend = train_bend(
        model, TensorSamples(data), _observe, *ends, "bezier", training,
        on_epoch=lambda epoch, loss: print("curve", epoch, loss, file=sys.stderr, flush=True),
    )  # fmt: skip
    curve = [point_on("bezier", (*ends, bend.bend), t) for t in np.linspace(0, 1, options.points)]
    for name, judged in (("training", data), ("unseen", unseen)):
        ways = [along(model, judged, way, data[0]) for way in (line(*ends, options.points), curve)]
        report[name] = {"line": described(*ways[0]), "curve": described(*ways[1])}
        report[name]["gone"] = 1 - ways[1][0].entezari.height / ways[0][0].entezari.height
        report[name]["largest over the worse end"] = ways[1][1].max() / max(ways[1][1][0], ways[1][1][-1])


def main() -> None:
    """Train two networks, and connect them."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("network", choices=["lenet", "mlp", "orders", "resnets", "tuned"])
    parser.add_argument("--data", choices=["digits", "mnist"], default="digits")
    parser.add_argument("--folder", type=Path, default=SHARED, help="where MNIST, CIFAR-10 and the ResNet-20 are")
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--rate", type=float, default=0.001)
    parser.add_argument("--curve-epochs", type=int, default=40)
    parser.add_argument("--curve-rate", type=float, default=0.02)
    parser.add_argument("--images", type=int, default=2048, help="of CIFAR-10, for training")
    parser.add_argument("--points", type=int, default=13, help="on ways between networks with batch normalisation")
    options = parser.parse_args()
    report: dict[str, Any] = {"options": vars(options)}
    start = time.perf_counter()
    {"resnets": resnets, "tuned": tuned}.get(options.network, plain)(options, report)
    report["seconds"] = time.perf_counter() - start
    print(json.dumps(report, indent=1, default=str))


def _observe(model: nn.Module, batch: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
    return {"loss": nn.functional.cross_entropy(model(batch[0]), batch[1], reduction="none")}


if __name__ == "__main__":
    main()
