"""Landscapes of a model in memory on Ray: the functions of `landscape`, with workers."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, TypeVar

from cluster.driver.driver import run
from landscape.compute import in_memory
from landscape.surface.surface import Surface

F = TypeVar("F", bound=Callable[..., Surface])

WORKERS = """Computed on Ray, by workers to which model and data are sent, to the same bits as `landscape.{name}`.

    Args:
        workers: how many; default: one per GPU, else one per core. Without workers or an address, a call that takes
            less time than Ray needs to start is computed in this process.
        address: `host:port` or `auto` to attach to a cluster; default: RAY_ADDRESS, else a private local Ray.
        allow_open: also attach to a cluster that answers beyond loopback and asks for no token.
        options: the arguments of `landscape.{name}`, but for `compute`.

    Raises:
        JobError: as `landscape.{name}` does, or the cluster has not what is asked for.
        ClusterUnreachableError: no cluster answers at the address, or a private Ray does not start.
    """


def _on_ray(function: F) -> F:
    """The same function, computed by `cluster.run`."""

    @wraps(function)
    def on_ray(
        *args: Any, workers: int | None = None, address: str | None = None, allow_open: bool = False, **options: Any
    ) -> Surface:
        shown = {"progress": options.get("progress", True), "accept_origin": options.get("accept_origin", False)}
        compute = partial(run, workers=workers, address=address, allow_open=allow_open, **shown)
        return function(*args, compute=compute, **options)

    given = inspect.signature(function).parameters
    own = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None) for name in ("workers", "address")]
    own.append(inspect.Parameter("allow_open", inspect.Parameter.KEYWORD_ONLY, default=False))
    kept = [entry for name, entry in given.items() if name not in ("compute", "workers")]
    on_ray.__signature__ = inspect.signature(function).replace(parameters=[*kept, *own])  # type: ignore[attr-defined]
    on_ray.__doc__ = WORKERS.format(name=function.__name__)
    on_ray.__module__ = __name__
    return on_ray  # type: ignore[return-value]


line = _on_ray(in_memory.line)
plane = _on_ray(in_memory.plane)
volume = _on_ray(in_memory.volume)
between = _on_ray(in_memory.between)
path = _on_ray(in_memory.path)
