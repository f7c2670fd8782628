"""ResNet-20 by THOR's published rates for GPUs, squeezed to a few epochs, with MindSpore's factors or exact ones.

    python tests/measure/thor_published.py FILE [--factors exact] [--epochs 3] [--seed 0]
    python -m torch.distributed.run --nproc-per-node 8 tests/measure/thor_published.py FILE [--epochs 6]

FILE is cifar10-train-10000.npz: 8,000 images are trained on, 32 in each rank's share of a batch, and 2,000 held out.
Prints the training and the held-out loss after every epoch.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel
from torch.optim.lr_scheduler import LambdaLR

from landscape.optim import SCHEDULES, THOR
from landscape.recipes.resnet import ResNet

SHARE, TRAINED = 32, 8000
PUBLISHED = SCHEDULES["gpu-8"]


def held_out(model: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, float]:
    """The loss and the accuracy in evaluation mode."""
    model.eval()
    with torch.no_grad():
        outputs = torch.cat([model(part) for part in torch.split(images, 500)])
    model.train()
    return float(F.cross_entropy(outputs, labels)), float((outputs.argmax(1) == labels).float().mean())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--factors", default=PUBLISHED.factors)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    rank, ranks = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
    if ranks > 1:
        dist.init_process_group("gloo")
    stored = np.load(asked.file)
    images = torch.from_numpy(stored["images"]).float().permute(0, 3, 1, 2) / 255
    labels = torch.from_numpy(stored["labels"]).long()
    images = (images - images.mean((0, 2, 3), keepdim=True)) / images.std((0, 2, 3), keepdim=True)
    torch.manual_seed(asked.seed)
    model = ResNet()
    batch = SHARE * ranks
    steps = TRAINED // batch
    steps_of_published = steps * asked.epochs / PUBLISHED.epochs  # in which the schedule passes one of its epochs
    optimizer = THOR(
        model, PUBLISHED.lr_init, damping=lambda step: PUBLISHED.damping(step / steps_of_published),
        weight_decay=5e-4, frequency=max(1, steps // 6), factors=asked.factors,
    )  # fmt: skip
    rates = LambdaLR(optimizer, lambda step: PUBLISHED.learning_rate(step / steps_of_published) / PUBLISHED.lr_init)
    network = DistributedDataParallel(model) if ranks > 1 else model
    for epoch in range(asked.epochs):
        order, total = torch.randperm(TRAINED, generator=torch.Generator().manual_seed(asked.seed * 1000 + epoch)), 0.0
        for number in range(steps):
            chosen = order[number * batch :][rank * SHARE : (rank + 1) * SHARE]
            optimizer.zero_grad()
            loss = F.cross_entropy(network(images[chosen]), labels[chosen], label_smoothing=0.1)
            loss.backward()
            optimizer.step()
            rates.step()
            total += float(loss.detach())
        if rank == 0:
            loss_there, accuracy = held_out(model, images[TRAINED:], labels[TRAINED:])
            print(f"{asked.factors}, {ranks} ranks, epoch {epoch + 1}: training {total / steps:.3f}, "
                  f"held out {loss_there:.3f}, accuracy {accuracy:.1%}", flush=True)  # fmt: skip
        if ranks > 1:
            dist.barrier()
    if ranks > 1:
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
