"""Small problems that are packed once for all tests of a process, and what is done to their files."""

from __future__ import annotations

import hashlib
import json
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from landscape import Job, Problem
from landscape.compute.pack import PackResult, pack
from landscape.model.packed_model import PortableModel

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


def packed(problem: Callable[[], Problem], name: str, **fields: Any) -> PackResult:
    """A job of this problem with one small plane, packed."""
    job = Job(run=str(new_folder() / "source"), problem=problem, **{"num_samples": 24, "landscapes": [PLANE], **fields})
    return pack(job, new_folder() / f"{name}.landscape")


@cache
def small_file() -> Path:
    """The small network, packed once."""
    return packed(small_problem, "small").path


def members_of(file: Path) -> dict[str, bytes]:
    """The members of a file by their names."""
    with zipfile.ZipFile(file) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def written(place: Path, members: Mapping[str, bytes], *, sealed: bool = True, compressed: bool = False) -> Path:
    """A file of these members; sealed, its manifest has their digests, as one who tampers with it would see to."""
    members = dict(members)
    if sealed:
        manifest = json.loads(members["manifest.json"])
        others = {name: data for name, data in members.items() if name != "manifest.json"}
        manifest["members"] = {
            name: {"sha256": hashlib.sha256(data).hexdigest(), "bytes": len(data)} for name, data in others.items()
        }
        members["manifest.json"] = json.dumps(manifest).encode()
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED if compressed else zipfile.ZIP_STORED) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return place


def with_json(file: Path, name: str, change: Callable[[Any], object]) -> dict[str, bytes]:
    """The members of a file, one of whose JSON was changed."""
    members = members_of(file)
    values = json.loads(members[name])
    change(values)
    return {**members, name: json.dumps(values).encode()}


def of_one_operation(name: str, *args: Any, **kwargs: Any) -> Any:
    """What a packed graph of one operation returns: of a file, its tensors being the batch."""
    leaves: list[Tensor] = []

    def written(value: Any) -> Any:
        if isinstance(value, Tensor):
            leaves.append(value)
            return {"input": len(leaves) - 1}
        if isinstance(value, (list, tuple)):
            return [written(each) for each in value]
        return {"dtype": str(value).removeprefix("torch.")} if isinstance(value, torch.dtype) else value

    node = ["aten", name, written(args), {key: written(value) for key, value in kwargs.items()}]
    structure = ["tuple", *["tensor"] * max(1, len(leaves))]
    graph = {"inputs": max(1, len(leaves)), "nodes": [node], "outputs": [{"node": 0}]}
    model = PortableModel([], {}, [], {"model": {"graph": graph, "takes": structure, "returns": ["tuple", "tensor"]}})
    return model(tuple(leaves) or (torch.zeros(3),))[0]
