"""Run landscape jobs on Ray: a driver that schedules and writes, workers pinned to GPUs, the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cluster.driver.run import run

__all__ = ["run"]


def __getattr__(name: str) -> Any:
    # Importing ray takes seconds, which `landscape --help` should not cost.
    if name == "run":
        from cluster.driver.run import run

        return run
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
