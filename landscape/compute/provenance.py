"""Where a landscape was computed, of what, and with which versions."""

from __future__ import annotations

import platform
import socket
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import numpy as np
import torch
from torch.nn.modules.batchnorm import _NormBase

from landscape.model.parameters import ParameterInfo
from landscape.surface.record_parts import Provenance


def provenance(model: torch.nn.Module, infos: Sequence[ParameterInfo], folder: Path) -> Provenance:
    """This machine, now, the model with its parameters, and the folder in which its callback is looked up."""
    return Provenance(
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        host=socket.gethostname(),
        platform=platform.platform(),
        versions={"python": platform.python_version(), **versions()},
        model=type(model).__name__,
        parameters=sum(int(np.prod(info.shape)) for info in infos),
        folder=str(folder),
        batch_norm_layers=batch_norm_layers(model),
    )


def batch_norm_layers(model: torch.nn.Module) -> int:
    """How many layers of the model the job's `batch_norm` changes."""
    return sum(map(_is_batch_norm, model.modules()))


def _is_batch_norm(module: torch.nn.Module) -> bool:
    """Whether the job's `batch_norm` changes what the layer does; layers of other libraries are known by their name."""
    return isinstance(module, _NormBase) or "BatchNorm" in type(module).__name__


@cache  # a process computes with what it has imported, whatever is installed meanwhile
def versions() -> Mapping[str, str]:
    """The versions of the packages that compute and store the values."""
    versions = {"torch": torch.__version__, "numpy": np.__version__}
    for package in ("zarr", "ray", "loss-landscape-cluster"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            continue
    return versions
