"""What this machine and cluster have, what is wrong, and how to mend it."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

GOOD, NOTE, WRONG = "good", "note", "wrong"
SMALLEST_DISK, SMALLEST_SHM = 2e9, 1e9

Finding = dict[str, str]


def diagnose(address: str | None = None, run: str | None = None) -> list[Finding]:
    """Every check in turn; one that breaks is itself a finding."""
    checks: list[Callable[[], Iterator[Finding]]] = [_python, _torch, _ray, _zarr, _browser, _memory, _disk]
    found: list[Finding] = []
    for check in checks:
        found += _safely(check)
    if address:
        found += _safely(partial(_cluster, address))
    if run:
        found += _safely(partial(_run_place, run))
    return found


def _safely(check: Callable[[], Iterator[Finding]]) -> list[Finding]:
    try:
        return list(check())
    except Exception as error:
        return [
            _finding(
                getattr(check, "__name__", "cluster").strip("_"),
                WRONG,
                f"{type(error).__name__}: {error}",
                "see the message",
            )
        ]


def _finding(what: str, state: str, value: str, remedy: str = "") -> Finding:
    return {"what": what, "state": state, "value": value, "remedy": remedy}


def _python() -> Iterator[Finding]:
    good = sys.version_info >= (3, 11)
    yield _finding("python", GOOD if good else WRONG, platform.python_version(), "" if good else "needs 3.11 or later")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    yield _finding("cores", GOOD, f"{cores} of {os.cpu_count()}")


def _torch() -> Iterator[Finding]:
    import torch

    yield _finding("torch", GOOD, torch.__version__)
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            yield _finding(
                f"gpu {index}",
                GOOD,
                f"{torch.cuda.get_device_name(index)}, {free / 1e9:.1f} of {total / 1e9:.1f} GB free",
            )
    elif torch.version.cuda:
        yield _finding(
            "gpu", WRONG, "torch is built for CUDA and sees no GPU", "check nvidia-smi and CUDA_VISIBLE_DEVICES"
        )
    else:
        yield _finding(
            "gpu",
            NOTE,
            "none: torch is the CPU build",
            "landscapes run on the CPU; for GPUs install a CUDA build of torch",
        )


def _ray() -> Iterator[Finding]:
    yield _finding("ray", GOOD, version("ray"))
    address = os.environ.get("RAY_ADDRESS")
    if address:
        yield _finding("RAY_ADDRESS", NOTE, address, "`landscape run` attaches to it unless --address says otherwise")


def _zarr() -> Iterator[Finding]:
    found = version("zarr")
    old = tuple(int(part) for part in found.split(".")[:3]) < (3, 1, 3)
    yield _finding(
        "zarr",
        WRONG if old else GOOD,
        found,
        "3.1.3 is the first whose files appear whole: pip install -U zarr" if old else "",
    )


def _browser() -> Iterator[Finding]:
    from landscape.views.pictures import find_browser

    try:
        found = version("kaleido")
    except PackageNotFoundError:
        yield _finding(
            "kaleido",
            NOTE,
            "not installed",
            "PNG and SVG export needs it: pip install 'loss-landscape-cluster[export]'",
        )
        return
    yield _finding("kaleido", GOOD, found)
    browser = find_browser()
    if browser:
        yield _finding("browser", GOOD, browser)
    else:
        yield _finding(
            "browser",
            NOTE,
            "no Chromium found",
            "PNG and SVG export needs one: apt install chromium, or set BROWSER_PATH",
        )


def _memory() -> Iterator[Finding]:
    shm = Path("/dev/shm")
    if shm.is_dir():
        free = shutil.disk_usage(shm).free
        small = free < SMALLEST_SHM
        yield _finding(
            "shared memory", WRONG if small else GOOD, f"{free / 1e9:.1f} GB free",
            "Ray keeps samples and directions there: give the container --shm-size" if small else "",
        )  # fmt: skip


def _disk() -> Iterator[Finding]:
    for name, place in (("disk", Path.cwd()), ("temporary folder", Path(tempfile.gettempdir()))):
        usage = shutil.disk_usage(place)
        small = usage.free < SMALLEST_DISK
        yield _finding(name, WRONG if small else GOOD, f"{usage.free / 1e9:.1f} GB free", "make room" if small else "")
    if not os.access(Path.cwd(), os.W_OK):
        yield _finding("working directory", WRONG, "not writable", "change to a folder of your own")


def _run_place(run: str) -> Iterator[Finding]:
    from landscape.errors import LandscapeError
    from landscape.folders import open_folder, probe

    times: list[str] = []
    try:
        times += [f"{what} {1000 * seconds:.3g} ms" for what, seconds in probe(run)]
        yield _finding("run", GOOD, f"{open_folder(run).name}: {', '.join(times)}")
    except LandscapeError as error:
        yield _finding("run", WRONG, str(error))


def _cluster(address: str) -> Iterator[Finding]:
    import ray

    from cluster.session import ray_session
    from landscape.spec import Job

    with ray_session(Job(run=".", problem="doctor:none"), address, 1):
        resources = ray.cluster_resources()
        nodes = [node for node in ray.nodes() if node["Alive"]]
        yield _finding(
            "cluster",
            GOOD,
            f"{address}: {len(nodes)} nodes, {resources.get('CPU', 0):g} CPUs, {resources.get('GPU', 0):g} GPUs",
        )
        here = (platform.python_version(), version("ray"), version("torch"))
        for node, there in _node_versions(nodes):
            same = there == here
            yield _finding(
                f"node {node}", GOOD if same else WRONG, "python {}, ray {}, torch {}".format(*there),
                "" if same else "the driver here has python {}, ray {}, torch {}: install the same".format(*here),
            )  # fmt: skip


def _node_versions(nodes: list[dict[str, Any]]) -> Iterator[tuple[str, tuple[str, str, str]]]:
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    def look_here() -> tuple[str, str, str]:
        return platform.python_version(), version("ray"), version("torch")

    look = ray.remote(look_here)
    for node in nodes:
        strategy = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
        looked = look.options(num_cpus=0, scheduling_strategy=strategy).remote()
        yield node["NodeManagerHostname"], ray.get(looked, timeout=60)


def diagnosis_text(found: list[Finding]) -> str:
    width = max(len(each["what"]) for each in found)
    lines = []
    for each in found:
        remedy = f"; {each['remedy']}" if each["remedy"] else ""
        lines.append(f"{each['state']:5}  {each['what']:{width}}  {each['value']}{remedy}")
    lines.append(f"on {socket.gethostname()}")
    return "\n".join(lines)
