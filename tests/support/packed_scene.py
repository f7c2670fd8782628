"""Small problems that are packed once for all tests of a process, and what is done to their files."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from landscape import Job, Problem
from landscape.packing import Packed, pack

PLANE = {"name": "plane", "size": 3, "directions": [{"kind": "random", "seed": 1}, {"kind": "random", "seed": 2}]}


class Small(nn.Module):
    """A layer of each kind that an engine or a mode treats specially: convolution, batch norm, pooling, linear."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 3, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(3)
        self.head = nn.Linear(12, 4)

    def forward(self, images: Tensor) -> Tensor:
        hidden = torch.relu(self.norm(self.conv(images)))
        return self.head(nn.functional.max_pool2d(hidden, 2).flatten(1))


def images_and_labels(count: int = 40) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(4)
    return torch.randn(count, 1, 4, 4, generator=generator), torch.randint(4, (count,), generator=generator)


def small_problem() -> Problem:
    torch.manual_seed(3)
    model = Small()
    with torch.no_grad():
        model.norm.running_mean.normal_()
        model.norm.running_var.uniform_(0.5, 2.0)
    return Problem.supervised(model, images_and_labels())


@cache
def new_folder() -> Path:
    """A folder that lives as long as the process."""
    kept.append(tempfile.TemporaryDirectory(prefix="packed-"))
    return Path(kept[-1].name)


kept: list[tempfile.TemporaryDirectory[str]] = []


def packed(problem: Callable[[], Problem], name: str, **fields: Any) -> Packed:
    """A job of this problem with one small plane, packed."""
    job = Job(run=str(new_folder() / "source"), problem=problem, **{"num_samples": 24, "landscapes": [PLANE], **fields})
    return pack(job, new_folder() / f"{name}.landscape")


@cache
def small_file() -> Path:
    """The small network, packed once."""
    return packed(small_problem, "small").path
