"""Apply a function to many items on Ray before a job has workers of its own, as directions need."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import torch

from cluster.runtime.placement import Placement
from cluster.runtime.session import keep_signals, ray_session, refuse_dead_ray
from landscape.core.errors import Interrupted, LandscapeError, one_line, quoted
from landscape.job.directions.base import Workers
from landscape.job.job import Job

STOP_SECONDS = 0.2  # how often `stop` is asked at least, while nothing else happens

Item = TypeVar("Item")
Result = TypeVar("Result")


@contextlib.contextmanager
def ray_workers(
    job: Job,
    address: str | None,
    workers: int | None,
    allow_open: bool = False,
    stop: Callable[[], bool] = lambda: False,
) -> Iterator[Workers]:
    """Within the block, a function that applies another one to many items on Ray.

    The first call starts the private Ray, or attaches to the cluster, and may raise what `ray_session` raises; most
    jobs never call it. The session ends with the block.

    Args:
        stop: is asked several times a second; when true, the workers are ended and `Interrupted` is raised.
    """
    with contextlib.ExitStack() as session:

        @cache
        def placement() -> Placement:
            with keep_signals():  # the caller's handlers act until the block ends, too
                return session.enter_context(ray_session(job, address, workers, allow_open))

        def on_ray(function: Callable[[Item], Result], items: Sequence[Item], /) -> list[Result]:
            return _results(placement(), job, function, items, stop)

        yield on_ray


def _results(
    placement: Placement,
    job: Job,
    function: Callable[[Item], Result],
    items: Sequence[Item],
    stop: Callable[[], bool],
) -> list[Result]:
    """The results in the order of the items, as many at once as the job has workers.

    The threads are those of this process: how many share a sum decides how it rounds, and the serial run must get the
    same bits.
    """
    import ray
    from ray.exceptions import RayError, RayTaskError

    task = ray.remote(num_cpus=placement.num_cpus, num_gpus=placement.num_gpus)(_apply)
    path, shared = tuple(map(os.path.abspath, sys.path)), [ray.put(function)]
    references: list[Any] = []
    running: list[Any] = []
    try:
        for item in items:
            running = _wait_until(running, placement.workers - 1, job, stop)
            references.append(task.remote(path, job.folder, torch.get_num_threads(), shared, item))
            running.append(references[-1])
        _wait_until(running, 0, job, stop)
        return list(ray.get(references))
    except RayError as error:
        cause = error.cause if isinstance(error, RayTaskError) else error
        if not isinstance(cause, RayError):
            raise cause from error
        refuse_dead_ray()
        raise LandscapeError(
            f"directions: the cluster could not compute them: {one_line(error)}; see why its processes "
            "end, memory first"
        ) from error


def _wait_until(running: list[Any], most: int, job: Job, stop: Callable[[], bool]) -> list[Any]:
    """Wait until at most so many tasks run; returns those that still do."""
    import ray

    while len(running) > most:
        if stop():
            for reference in running:
                ray.cancel(reference, force=True)
            raise Interrupted(f"run {quoted(job.run_path)} is interrupted; the same command goes on")
        _, running = ray.wait(running, timeout=STOP_SECONDS)
    return running


def _apply(path: Sequence[str], folder: Path, threads: int, function: Sequence[Any], item: Any) -> Any:
    """Run on a worker: what `function` returns for the item, in the job's folder and with the driver's module path.

    Args:
        threads: how many torch uses.
        function: a list of its reference, as it can be opened only when the modules that it names are found.
    """
    import ray

    sys.path[:0] = [each for each in path if each not in sys.path]
    if folder.is_dir():  # on another machine it is the working directory that was shipped
        os.chdir(folder)
    torch.set_num_threads(threads)
    return ray.get(function[0])(item)
