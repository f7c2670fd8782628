"""What this machine has: versions, devices, memory, disk, names and ports."""

from __future__ import annotations

import os
import platform
import shutil
import socket
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

from cluster.commands.checks import GOOD, NOTE, WRONG, Check, CheckResult, judged, result
from cluster.commands.nodes import SMALLEST_DISK, SMALLEST_SHM
from landscape.core.errors import shown

# What a head takes unless told otherwise: the cluster's own port, the dashboard, Ray Client.
HEAD_PORTS = (6379, 8265, 10001)


def _python() -> Iterator[CheckResult]:
    good = sys.version_info >= (3, 11)
    yield result("python", GOOD if good else WRONG, platform.python_version(), "" if good else "needs 3.11 or later")
    from landscape.core.devices import cores

    yield result("cores", GOOD, f"{cores()} of {os.cpu_count()}")


def _torch() -> Iterator[CheckResult]:
    import torch

    yield result("torch", GOOD, torch.__version__)
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            yield result(
                f"gpu {index}",
                GOOD,
                f"{torch.cuda.get_device_name(index)}, {free / 1e9:.1f} of {total / 1e9:.1f} GB free",
            )
    elif torch.version.cuda:
        yield result(
            "gpu", WRONG, "torch is built for CUDA and sees no GPU", "check nvidia-smi and CUDA_VISIBLE_DEVICES"
        )
    else:
        yield result(
            "gpu",
            NOTE,
            "none: torch is the CPU build",
            "landscapes run on the CPU; for GPUs install a CUDA build of torch",
        )


def _ray() -> Iterator[CheckResult]:
    yield result("ray", GOOD, version("ray"))
    address = os.environ.get("RAY_ADDRESS")
    if address:
        yield result("RAY_ADDRESS", NOTE, address, "`landscape run` attaches to it unless --address says otherwise")


def _zarr() -> Iterator[CheckResult]:
    found = version("zarr")
    old = tuple(int(part) for part in found.split(".")[:3]) < (3, 1, 3)
    yield result(
        "zarr",
        WRONG if old else GOOD,
        found,
        "3.1.3 is the first whose files appear whole: pip install -U zarr" if old else "",
    )


def _browser() -> Iterator[CheckResult]:
    from landscape.views.export_files import find_browser

    try:
        found = version("kaleido")
    except PackageNotFoundError:
        yield result(
            "kaleido",
            NOTE,
            "not installed",
            "PNG and SVG export needs it: pip install 'loss-landscape-cluster[export]'",
        )
        return
    yield result("kaleido", GOOD, found)
    browser = find_browser()
    if browser:
        yield result("browser", GOOD, browser)
    else:
        yield result(
            "browser",
            NOTE,
            "no Chromium found",
            "PNG and SVG export needs one: apt install chromium, or set BROWSER_PATH",
        )


def _memory() -> Iterator[CheckResult]:
    shm = Path("/dev/shm")
    if shm.is_dir():
        free = shutil.disk_usage(shm).free
        small = free < SMALLEST_SHM
        yield result(
            "shared memory", WRONG if small else GOOD, f"{free / 1e9:.1f} GB free",
            "Ray keeps samples and directions there: give the container --shm-size" if small else "",
        )  # fmt: skip


def _disk() -> Iterator[CheckResult]:
    for name, place in (("disk", Path.cwd()), ("temporary folder", Path(tempfile.gettempdir()))):
        usage = shutil.disk_usage(place)
        small = usage.free < SMALLEST_DISK
        yield result(name, WRONG if small else GOOD, f"{usage.free / 1e9:.1f} GB free", "make room" if small else "")
    if not os.access(Path.cwd(), os.W_OK):
        yield result("working directory", WRONG, "not writable", "change to a folder of your own")


def check_network() -> Iterator[CheckResult]:
    """Whether this machine has a name and free ports, and whether a head started here would find its own."""
    host = socket.gethostname()
    try:
        place = socket.gethostbyname(host)
    except OSError:
        yield result(
            "host name", WRONG, f"{shown(host)} has no address", "add it to /etc/hosts: Ray's nodes look it up"
        )
        return
    yield result("host name", GOOD, f"{host}, {place}")
    with socket.socket() as any_port:
        any_port.bind(("", 0))  # raises where none is left
    taken = [port for port in HEAD_PORTS if not _free(port)]
    yield judged(
        "ports", bool(taken), f"{', '.join(map(str, taken))} in use" if taken else "those of a Ray head are free",
        "a head that is to start here needs others, or is there already; `landscape run` takes free ones", NOTE,
    )  # fmt: skip


def _free(port: int) -> bool:
    with socket.socket() as tried:
        tried.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            tried.bind(("", port))
        except OSError:
            return False
    return True


MACHINE_CHECKS: tuple[tuple[str, Check], ...] = (
    ("python", _python), ("torch", _torch), ("ray", _ray), ("zarr", _zarr), ("browser", _browser),
    ("shared memory", _memory), ("disk", _disk), ("network", check_network),
)  # fmt: skip
