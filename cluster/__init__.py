"""Run landscape jobs and trainings on Ray: drivers, workers pinned to GPUs, the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

from landscape.core.late_imports import import_on_use

if TYPE_CHECKING:
    from cluster.driver.driver import run
    from cluster.driver.in_memory import between, line, path, plane, volume
    from cluster.training.train import train

__all__ = ["between", "line", "path", "plane", "run", "train", "volume"]

# Importing ray takes seconds, which `landscape --help` should not cost.
__getattr__ = import_on_use(
    __name__,
    {
        "driver.driver": ("run",),
        "driver.in_memory": ("between", "line", "path", "plane", "volume"),
        "training.train": ("train",),
    },
)
