"""How much longer a step of THOR takes than one of SGD: ResNet-20, or ResNet-50 by name, on one core.

    python tests/measure/thor_steps.py [resnet20|resnet50] [--batch 64] [--rounds 10] [--frequency 100]

In every round SGD steps, THOR steps with its stale inverses, and THOR steps with new ones, which takes longest. Prints
the median processor seconds of each, and THOR's mean over `frequency` steps over SGD's.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable

import torch
from torch import nn

from landscape.recipes.resnet import ResNet
from landscape.recipes.resnet50 import ResNet50
from landscape.training.thor.optimizer import THOR

NETWORKS: dict[str, tuple[Callable[[], nn.Module], int]] = {
    "resnet20": (ResNet, 32),
    "resnet50": (lambda: ResNet50(classes=10), 224),
}


def seconds_of(model: nn.Module, optimizer: torch.optim.Optimizer, images: torch.Tensor, labels: torch.Tensor) -> float:
    start = time.process_time()
    optimizer.zero_grad()
    nn.functional.cross_entropy(model(images), labels).backward()
    optimizer.step()
    return time.process_time() - start


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", nargs="?", choices=NETWORKS, default="resnet20")
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--frequency", type=int, default=100)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    make, side = NETWORKS[asked.network]
    model = make()
    images, labels = torch.randn(asked.batch, 3, side, side), torch.randint(0, 10, (asked.batch,))
    sgd = torch.optim.SGD(model.parameters(), 1e-3, momentum=0.9, weight_decay=1e-4)
    thor = THOR(model, 1e-4, weight_decay=1e-4, frequency=2)  # every other step is a refresh
    seconds: dict[str, list[float]] = {"sgd": [], "refresh": [], "stale": []}
    for number in range(asked.rounds + 1):
        taken = {
            "refresh": seconds_of(model, thor, images, labels),
            "sgd": seconds_of(model, sgd, images, labels),
            "stale": seconds_of(model, thor, images, labels),
        }
        if number:  # the first round warms up
            for name, value in taken.items():
                seconds[name].append(value)
    median = {name: statistics.median(values) for name, values in seconds.items()}
    mean = (median["refresh"] + (asked.frequency - 1) * median["stale"]) / asked.frequency
    print(f"{asked.network}, batch {asked.batch}, one thread, medians of {asked.rounds} rounds")
    for name, value in median.items():
        print(f"{name:8} {value * 1000:9.1f} ms  {value / median['sgd']:6.3f} × SGD")
    print(f"THOR at frequency {asked.frequency}: {mean / median['sgd']:.3f} × SGD")


if __name__ == "__main__":
    main()
