"""Run landscape jobs and trainings on Ray: drivers, workers pinned to GPUs, the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cluster.driver.driver import run
    from cluster.training.train import train

__all__ = ["run", "train"]


def __getattr__(name: str) -> Any:
    # Importing ray takes seconds, which `landscape --help` should not cost.
    if name == "run":
        from cluster.driver.driver import run

        return run
    if name == "train":
        from cluster.training.train import train

        return train
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
