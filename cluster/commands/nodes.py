"""What `landscape doctor --address` looks at: the head, its guard, and every node from a task that runs there."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Callable, Iterator
from importlib.metadata import version
from typing import Any

from cluster.commands.checks import GOOD, NOTE, WRONG, CheckResult, judged, result
from cluster.runtime.address import IN_A_RAY_JOB, check_address, head_place, is_beyond, is_loopback

NODE_SECONDS = 60.0  # until a node that does not answer is taken for hung
SLOW_CONNECTION = 0.1  # seconds to open a connection to the head; Ray opens many
LARGEST_SKEW = 2 * NODE_SECONDS  # between the driver's clock and a node's; the answer itself may take half of it
SMALLEST_DISK, SMALLEST_SHM = 2e9, 1e9
VERSIONS = ("python", "ray", "torch")


def examine(address: str) -> Iterator[CheckResult]:
    """Every check of a cluster, the first look at its address included.

    Raises:
        ClusterUnreachableError: no cluster answers, or not to this process.
    """
    import ray

    from cluster.runtime.session import ray_session
    from landscape.job.job import Job

    start = time.monotonic()
    answer = check_address(address, allow_open=True)
    seconds = time.monotonic() - start
    yield judged(
        "address", seconds > SLOW_CONNECTION + 1, f"{address} answers in {seconds:.2f} s",
        "a driver nearer to the head hears of failures sooner", NOTE,
    )  # fmt: skip
    yield _guard(address, answer)
    start = time.monotonic()
    with ray_session(Job(run=".", problem="doctor:none", device="cpu"), address, 1, allow_open=True):
        attached = time.monotonic() - start
        nodes = [node for node in ray.nodes() if node["Alive"]]
        yield check_places(nodes, ray.available_resources(), attached)
        yield from _nodes(nodes)
    yield from _stop_time()


def _guard(address: str, answer: str) -> CheckResult:
    if answer == "token":
        return result("authentication", GOOD, "the cluster asks for a token")
    if answer == "tls":
        return result("authentication", GOOD, "certificates on both sides (RAY_USE_TLS)")
    host, port = head_place(address)
    if not is_beyond(host, port):
        return result(
            "authentication", NOTE, "none: who reaches the head can run code on it",
            "start it with RAY_AUTH_MODE=token where others use this machine",
        )  # fmt: skip
    return result(
        "authentication", NOTE if is_loopback(host) else WRONG,
        "none, and it listens beyond this machine: who reaches the head can run code on it",
        "start every node with RAY_AUTH_MODE=token; `landscape run` needs --allow-open to attach from elsewhere",
    )  # fmt: skip


def check_places(nodes: list[dict[str, Any]], free: dict[str, float], seconds: float) -> CheckResult:
    """Whether the cluster has places for workers, and whether some are free.

    Args:
        nodes: those that are alive, as `ray.nodes()` describes them.
        free: what no job holds, by resource.
        seconds: how long attaching took.
    """
    total = {name: sum(node["Resources"].get(name, 0.0) for node in nodes) for name in ("CPU", "GPU")}
    text = ", ".join(f"{free.get(name, 0):g} of {amount:g} {name}s free" for name, amount in total.items())
    count = f"{len(nodes)} node{'s' * (len(nodes) != 1)}"
    none = not total["CPU"] and not total["GPU"]
    busy = not none and not any(free.get(name, 0) for name in total)
    remedy = "add nodes: workers have no place" if none else "other jobs hold everything: workers wait for them"
    return judged(
        "cluster", none or busy, f"{count}, {text}; attached in {seconds:.1f} s", remedy, WRONG if none else NOTE
    )  # fmt: skip


def _nodes(nodes: list[dict[str, Any]]) -> Iterator[CheckResult]:
    """A task on each node, all at once: what it has, and how that differs from here."""
    import ray
    from ray.exceptions import GetTimeoutError
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    look, start = ray.remote(_looker()), time.monotonic()
    asked = {}
    for node in nodes:
        strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        asked[look.options(num_cpus=0, max_retries=0, scheduling_strategy=strategy).remote()] = node
    for reference, node in asked.items():
        name = f"node {node['NodeManagerHostname']} {node['NodeID'][:8]}"
        left = max(0.0, start + NODE_SECONDS - time.monotonic())
        try:
            seen = ray.get(reference, timeout=left)
        except GetTimeoutError:
            yield result(
                name, WRONG, f"no task has run there within {NODE_SECONDS:g} s",
                "look at that node's raylet and its log; its ports must be open to the other nodes",
            )  # fmt: skip
            continue
        yield from check_node(name, node, seen)


def _looker() -> Callable[[], dict[str, Any]]:
    """What a node has, seen from a task on it. Made here so that it travels whole: a node may lack this package."""

    def look() -> dict[str, Any]:
        import os
        import platform
        import shutil
        import time
        from importlib.metadata import version

        seen: dict[str, Any] = {"python": platform.python_version(), "ray": version("ray"), "torch": "none", "cuda": 0}
        try:
            import torch

            seen |= {"torch": version("torch"), "cuda": torch.cuda.device_count() if torch.cuda.is_available() else 0}
        except ImportError:
            pass
        seen["shm"] = shutil.disk_usage("/dev/shm").free if os.path.isdir("/dev/shm") else None
        return seen | {"disk": shutil.disk_usage("/tmp").free, "clock": time.time()}

    return look


def check_node(name: str, node: dict[str, Any], seen: dict[str, Any]) -> Iterator[CheckResult]:
    """What is different on a node from here, or missing there.

    Args:
        node: as `ray.nodes()` describes it.
        seen: what a task on the node found there.
    """
    here = {"python": platform.python_version(), "ray": version("ray"), "torch": version("torch")}
    different = [f"{each} {seen[each]} there, {here[each]} here" for each in VERSIONS if seen[each] != here[each]]
    yield judged(
        name, bool(different), ", ".join(different or [f"{each} {seen[each]}" for each in VERSIONS]),
        "install the same there and here: values and pickles differ between versions",
    )  # fmt: skip
    gpus = int(node["Resources"].get("GPU", 0))
    if gpus > seen["cuda"]:
        yield result(
            name, WRONG, f"Ray counts {gpus} GPUs, torch sees {seen['cuda']}",
            "install a CUDA build of torch there, and check nvidia-smi",
        )  # fmt: skip
    if seen["shm"] is not None and seen["shm"] < SMALLEST_SHM:
        yield result(name, WRONG, f"{seen['shm'] / 1e9:.1f} GB of shared memory free", "give its container --shm-size")
    if seen["disk"] < SMALLEST_DISK:
        yield result(name, WRONG, f"{seen['disk'] / 1e9:.1f} GB free in its temporary folder", "make room there")
    skew = seen["clock"] - time.time()
    if abs(skew) > LARGEST_SKEW:
        yield result(name, NOTE, f"its clock is {skew:.0f} s off", "run NTP: times in logs will mislead")


def _stop_time() -> Iterator[CheckResult]:
    """Inside a Ray job: what `ray job stop` grants before it kills."""
    if IN_A_RAY_JOB not in os.environ:
        return
    seconds = float(os.environ.get("RAY_JOB_STOP_WAIT_TIME_S", "3"))
    yield judged(
        "stop time", seconds < 10, f"{seconds:g} s from `ray job stop` to the kill",
        "set RAY_JOB_STOP_WAIT_TIME_S=60 in the job's env_vars, as `landscape submit` does",
    )  # fmt: skip
