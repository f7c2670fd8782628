"""A Ray session: local and private, or attached to a cluster; and what its nodes have."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torch

from cluster.runtime.address import check_address, unreachable, watch_head
from cluster.runtime.console import without_native_text
from cluster.runtime.logs import in_detail, in_environment, is_supervised, tell
from cluster.runtime.placement import Placement, ResourceRequest, Supply, placement
from cluster.runtime.shipping import upload
from landscape.core.devices import cores
from landscape.core.errors import ClusterUnreachableError, Interrupted, JobError, LandscapeError, one_line, quoted
from landscape.core.progress import stage
from landscape.job.directions.base import Workers
from landscape.job.job import Job

NODE_GROUP = "ray.io/node-group"


class RayDied(ClusterUnreachableError):
    """The private Ray that this process has started is gone."""


@contextlib.contextmanager
def ray_session(
    job: ResourceRequest, address: str | None, workers: int | None, allow_open: bool = False
) -> Iterator[Placement]:
    """Within the block, a private local Ray, or the cluster at `address` (default: RAY_ADDRESS), is attached.

    Raises:
        ClusterUnreachableError: nothing answers at the address, or a private Ray does not start, or dies.
        JobError: the job asks for devices or workers that cannot be had, or the cluster takes code from anybody.
    """
    refuse_without_ray()
    place = address or os.environ.get("RAY_ADDRESS") or "local"
    attached = place != "local"
    answer = check_address(place, allow_open) if attached else "none"
    if attached and job.device_ids is not None:
        raise JobError(
            "device_ids: restricts a local Ray only; "
            "on a cluster set CUDA_VISIBLE_DEVICES where each node's `ray start` runs"
        )
    stage("attaching to Ray" if attached else "starting Ray")
    with keep_signals(), without_native_text(keep=in_detail()):
        tell(attached=attached, ray=not attached, here=False)  # whatever was measured in this process is done
        import ray
        from ray._private import worker

        worker._worker_logs_enabled = in_detail()  # these include the last lines of the raylet
        started_here = not ray.is_initialized()
        if started_here:
            _begin(job, place if attached else None, workers)
        try:
            with watch_head(place, certified=answer == "tls") if attached else contextlib.nullcontext():
                yield placement(job, workers, supply())
        finally:
            if not (is_supervised() and private_ray_ended()):  # else Ray would wait for processes that are dead
                if started_here:
                    ray.shutdown()
                tell(ray=False, attached=False)


def refuse_without_ray(*, or_serial: bool = True) -> None:
    """Refuse what only Ray can do where it is not installed.

    Args:
        or_serial: whether the caller can compute in this process instead.

    Raises:
        JobError: says what to install.
    """
    if find_spec("ray") is None:
        other = ", or give --serial to compute in this process" if or_serial else ""
        raise JobError(f"ray: workers and clusters need it; `pip install 'loss-landscape-cluster[ray]'`{other}")


@contextlib.contextmanager
def keep_signals() -> Iterator[None]:
    """Restore the handlers of SIGINT and SIGTERM after the block; Ray replaces SIGTERM's, in Python and in its core."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler if handler is not None else signal.SIG_DFL)


def _begin(job: ResourceRequest, address: str | None, workers: int | None) -> None:
    try:
        if address is not None:
            _attach(job, address)
        else:
            _start(job, workers)
    except SystemExit:
        raise KeyboardInterrupt from None  # Ray's SIGTERM handler raises it


def private_ray_ended() -> str:
    """The name of a process of the private Ray that has ended; '' while all that it needs live, and on a cluster."""
    from ray._private import worker

    node = worker._global_node
    ended = {name for name, _ in node.dead_processes()} if node is not None else set()
    return next((name for name in ("gcs_server", "raylet") if name in ended), "")


def refuse_dead_ray() -> None:
    """Raise where the private Ray is gone.

    Raises:
        RayDied: one of its processes has ended.
    """
    ended = private_ray_ended()
    if ended:
        tell(lost=f"its {ended} has ended")
        raise RayDied(
            f"address: the private Ray has died (its {ended} has ended); finished tiles are saved: run the job "
            "again in a new process"
        )


def _attach(job: ResourceRequest, address: str) -> None:
    import ray

    with upload(job) as shipped:
        try:
            ray.init(address=address, runtime_env=shipped, **_quiet())
        except (ConnectionError, OSError, RuntimeError, ValueError) as error:
            raise ClusterUnreachableError(unreachable(address, str(error))) from error


def _start(job: ResourceRequest, workers: int | None) -> None:
    """Start a private Ray of this process, which listens on this machine's loopback alone."""
    import ray

    gpus = _local_gpus(job)
    try:
        with _visible(job.device_ids), _on_loopback(), without_services():
            ray.init(
                address="local",
                num_cpus=max(cores(), (workers or job.workers or 1) * (job.threads or 1)),
                num_gpus=gpus,
                include_dashboard=False,
                **_quiet(),
            )
    except Exception as error:  # Ray raises plain exceptions where one of its processes dies meanwhile
        tell(lost=f"it does not start: {one_line(error)}")
        raise RayDied(f"address: a private Ray does not start here: {one_line(error)}; --debug shows more") from error


def _quiet() -> dict[str, Any]:
    """Arguments of `ray.init` with which Ray logs nothing in this process, unless --debug asks for it."""
    return {"log_to_driver": False, "logging_level": "warning" if in_detail() else "critical"}


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Let a Ray that starts in the block take 127.0.0.1 as its address, and listen there alone.

    Ray's only way to this is the setting that disables clusters on Windows and macOS, which it reads when it is
    imported. It replaces an address given to `ray.init` by this machine's own, with ports open to the network.
    """
    from ray._private import ray_constants

    before = ray_constants.ENABLE_RAY_CLUSTER
    ray_constants.ENABLE_RAY_CLUSTER = False
    try:
        with in_environment(ray_constants.ENABLE_RAY_CLUSTERS_ENV_VAR, "0"):
            yield
    finally:
        ray_constants.ENABLE_RAY_CLUSTER = before


@contextlib.contextmanager
def without_services() -> Iterator[None]:
    """Let a Ray that starts in the block leave out the processes that only a cluster needs, so that it starts sooner.

    They are the autoscaler, the reader of logs that a driver shows, and the dashboard's server, which would run only
    for usage statistics. Ray has no public setting for it; a version without these methods starts them all.
    """
    from ray._private.node import Node

    def start_nothing(node: Any, **given: Any) -> None:
        pass

    def without_address(node: Any, **given: Any) -> None:
        node._webui_url = ""

    replaced = {"start_monitor": start_nothing, "start_log_monitor": start_nothing, "start_api_server": without_address}
    methods = {name: getattr(Node, name) for name in replaced if hasattr(Node, name)}
    for name in methods:
        setattr(Node, name, replaced[name])
    try:
        yield
    finally:
        for name, method in methods.items():
            setattr(Node, name, method)


def _local_gpus(job: ResourceRequest) -> int:
    """The number of GPUs of this machine that the job may use."""
    count = torch.cuda.device_count() if job.device != "cpu" else 0
    if job.device_ids is None:
        return count
    beyond = [number for number in job.device_ids if number >= count]
    if beyond:
        raise JobError(f"device_ids: this machine has {count} GPUs, numbered from 0; {beyond[0]} is not one of them")
    return len(job.device_ids)


@contextlib.contextmanager
def _visible(device_ids: tuple[int, ...] | None) -> Iterator[None]:
    """Let a Ray that starts in the block use only these GPUs, by way of CUDA_VISIBLE_DEVICES."""
    if device_ids is None:
        yield
        return
    # The ids count the devices that this process sees, which may be a selection already.
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = visible.split(",") if visible else []
    chosen = ",".join(names[i] if i < len(names) else str(i) for i in device_ids)
    with in_environment("CUDA_VISIBLE_DEVICES", chosen):
        yield


def supply() -> Supply:
    """What the cluster has at this moment; needs a session."""
    import ray

    nodes = [node for node in ray.nodes() if node["Alive"]]
    # Nodes that `ray up` and KubeRay start have this label; their autoscaler counts waiting actors as demand.
    managed = any(NODE_GROUP in node.get("Labels", {}) for node in nodes)
    return Supply(tuple(node["Resources"] for node in nodes), grows=managed)


def object_store_room() -> int:
    """Bytes that one shared object may have: half of the smallest node's object store."""
    import ray

    stores = [node["Resources"].get("object_store_memory", 0.0) for node in ray.nodes() if node["Alive"]]
    return int(min((room for room in stores if room), default=0.0) / 2)


def has_process(actor: Any) -> bool:
    """Whether Ray has given an actor its place and its process there, which may not have answered yet.

    Ray's public call for it asks a dashboard, and a private Ray has none. Where a version lacks the call that is used
    here, or the head does not answer, every actor counts as waiting for a place.
    """
    from ray.exceptions import RayError

    try:
        from ray._private.state import state

        entry = state.actor_table(actor._actor_id.hex())
    except (ImportError, AttributeError, TypeError):
        return False
    except (RayError, RuntimeError, OSError):
        return False  # the head is gone, which is reported elsewhere
    return entry.get("State") == "ALIVE" or bool(entry.get("Address", {}).get("IPAddress"))


def processes_named(part: str) -> int:
    """How many living actors have a name with this part in it; 0 where a version of Ray lacks the call, as above."""
    try:
        from ray._private.state import state

        return sum(part in entry["Name"] for entry in state.actor_table(None, actor_state_name="ALIVE").values())
    except (ImportError, AttributeError, TypeError, KeyError):
        return 0


def draining_nodes() -> set[str]:
    """The nodes that are about to be taken away, by their id.

    Ray has no public call for it; Ray Train uses this one. Where a version lacks it, no node counts as draining, and
    workers are replaced when they are gone.
    """
    try:
        from ray._private.state import state

        return {str(node) for node in state.get_draining_nodes()}
    except (ImportError, AttributeError):
        return set()


# ----------------------------------------------------------------------------------------------------
# Apply a function to many items before a job has workers of its own, as directions need.

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
    """The results in the order of the items, of which as many are computed at once as the job has workers.

    Each uses as many threads as this process, since sums round differently with another number, and the serial run
    must get the same bits.
    """
    import ray
    from ray.exceptions import RayError, RayTaskError

    custom = dict(placement.custom) or None
    task = ray.remote(num_cpus=placement.num_cpus, num_gpus=placement.num_gpus, resources=custom)(_apply)
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
    """What `function` returns for the item, on a worker, in the job's folder and with the driver's module path.

    Args:
        threads: how many torch uses.
        function: a list of its reference, since it can be unpickled only when its modules are found.
    """
    import ray

    sys.path[:0] = [entry for entry in path if entry not in sys.path]
    if folder.is_dir():  # on another machine it is the working directory that was shipped
        os.chdir(folder)
    torch.set_num_threads(threads)
    return ray.get(function[0])(item)
