"""What is reported beside the times: the machine, the agreement with float32, the distance to the ceilings."""

from __future__ import annotations

import os
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from landscape.bench.ceilings import Ceiling, distance, work_of
from landscape.bench.timing import Seconds, typical
from landscape.bench.yardsticks import Bare
from landscape.evaluation.values import Values


def machine(device: str) -> dict[str, Any]:
    """The name of the processor or GPU that is measured, the machine's cores, and the versions of torch and Python."""
    name = torch.cuda.get_device_name() if device == "cuda" else _processor()
    versions = {"torch": torch.__version__, "python": platform.python_version()}
    return {"device": device, "name": name, "cores": os.cpu_count(), **versions}


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    return next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "")


def load() -> float | None:
    """How many processes have wanted a core over the last minute: a figure from a busy machine is a lower bound."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def agreement(found: Values, exact: Values) -> dict[str, dict[str, float | None]]:
    """How far each observable is from eager float32: max |Δ|, and max |Δ|/|exact|; None where not finite."""
    differences = {}
    for name, expected in exact.mean.items():
        off = np.abs(found.mean[name] - expected)
        relative = off / np.maximum(np.abs(expected), np.finfo(np.float64).tiny)
        differences[name] = {"max_abs": _finite(off), "max_rel": _finite(relative)}
    return differences


def _finite(values: NDArray[np.float64]) -> float | None:
    return float(values.max()) if np.isfinite(values).all() else None


def distances(
    ceilings: Sequence[Ceiling], rounds: Sequence[Seconds], bare: tuple[str, Bare], forwards: Mapping[str, str]
) -> dict[str, Any]:
    """The ceilings of this run, and how far the bare pass and the engines' forward passes stay below them.

    Args:
        bare: its key among the rounds, and itself.
        forwards: engine → key among the rounds.
    """
    flops, bandwidth = (each.work / typical(rounds, each.contestant.key) for each in ceilings)
    work = work_of(bare[1])
    return {
        "flops_per_second": flops,
        "bytes_per_second": bandwidth,
        "point": work,
        "bare": distance(work, typical(rounds, bare[0]), flops, bandwidth),
        "forwards": {
            engine: distance(work, typical(rounds, key), flops, bandwidth) for engine, key in forwards.items()
        },
    }
