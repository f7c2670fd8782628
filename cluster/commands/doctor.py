"""What this machine and cluster have, what is wrong, and how to mend it."""

from __future__ import annotations

import errno
import os
import platform
import shutil
import socket
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from statistics import median

from cluster.commands.doctor_cluster import SMALLEST_DISK, SMALLEST_SHM, examine
from cluster.commands.findings import GOOD, NOTE, WRONG, Check, Finding, finding, judged, safely
from landscape.errors import shown
from landscape.folders.files import whole_file

# What a head takes unless told otherwise: the cluster's own port, the dashboard, Ray Client.
HEAD_PORTS = (6379, 8265, 10001)
PROBE_BYTES, PROBES = 64 << 10, 5
REMEDIES = {errno.ENOSPC: "make room", errno.EDQUOT: "make room", errno.EROFS: "mount it for writing"}
SLOW_STORE = 0.2  # seconds to commit one file; a tile is some ten of them


def diagnose(address: str | None = None, run: str | None = None) -> list[Finding]:
    """Every check in turn; one that breaks is itself a finding."""
    checks: list[tuple[str, Check]] = [
        ("python", _python), ("torch", _torch), ("ray", _ray), ("zarr", _zarr), ("browser", _browser),
        ("shared memory", _memory), ("disk", _disk), ("network", _network),
    ]  # fmt: skip
    if run is not None:
        checks.append(("run", partial(probe_run, run)))
    if address is not None:
        checks.append(("address", partial(examine, address)))
    return [each for what, check in checks for each in safely(what, check)]


def _python() -> Iterator[Finding]:
    good = sys.version_info >= (3, 11)
    yield finding("python", GOOD if good else WRONG, platform.python_version(), "" if good else "needs 3.11 or later")
    from landscape.devices import cores

    yield finding("cores", GOOD, f"{cores()} of {os.cpu_count()}")


def _torch() -> Iterator[Finding]:
    import torch

    yield finding("torch", GOOD, torch.__version__)
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            free, total = torch.cuda.mem_get_info(index)
            yield finding(
                f"gpu {index}",
                GOOD,
                f"{torch.cuda.get_device_name(index)}, {free / 1e9:.1f} of {total / 1e9:.1f} GB free",
            )
    elif torch.version.cuda:
        yield finding(
            "gpu", WRONG, "torch is built for CUDA and sees no GPU", "check nvidia-smi and CUDA_VISIBLE_DEVICES"
        )
    else:
        yield finding(
            "gpu",
            NOTE,
            "none: torch is the CPU build",
            "landscapes run on the CPU; for GPUs install a CUDA build of torch",
        )


def _ray() -> Iterator[Finding]:
    yield finding("ray", GOOD, version("ray"))
    address = os.environ.get("RAY_ADDRESS")
    if address:
        yield finding("RAY_ADDRESS", NOTE, address, "`landscape run` attaches to it unless --address says otherwise")


def _zarr() -> Iterator[Finding]:
    found = version("zarr")
    old = tuple(int(part) for part in found.split(".")[:3]) < (3, 1, 3)
    yield finding(
        "zarr",
        WRONG if old else GOOD,
        found,
        "3.1.3 is the first whose files appear whole: pip install -U zarr" if old else "",
    )


def _browser() -> Iterator[Finding]:
    from landscape.views.exports.browser import find_browser

    try:
        found = version("kaleido")
    except PackageNotFoundError:
        yield finding(
            "kaleido",
            NOTE,
            "not installed",
            "PNG and SVG export needs it: pip install 'loss-landscape-cluster[export]'",
        )
        return
    yield finding("kaleido", GOOD, found)
    browser = find_browser()
    if browser:
        yield finding("browser", GOOD, browser)
    else:
        yield finding(
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
        yield finding(
            "shared memory", WRONG if small else GOOD, f"{free / 1e9:.1f} GB free",
            "Ray keeps samples and directions there: give the container --shm-size" if small else "",
        )  # fmt: skip


def _disk() -> Iterator[Finding]:
    for name, place in (("disk", Path.cwd()), ("temporary folder", Path(tempfile.gettempdir()))):
        usage = shutil.disk_usage(place)
        small = usage.free < SMALLEST_DISK
        yield finding(name, WRONG if small else GOOD, f"{usage.free / 1e9:.1f} GB free", "make room" if small else "")
    if not os.access(Path.cwd(), os.W_OK):
        yield finding("working directory", WRONG, "not writable", "change to a folder of your own")


def _network() -> Iterator[Finding]:
    """Whether this machine has a name and free ports, and whether a head started here would find its own."""
    host = socket.gethostname()
    try:
        place = socket.gethostbyname(host)
    except OSError:
        yield finding(
            "host name", WRONG, f"{shown(host)} has no address", "add it to /etc/hosts: Ray's nodes look it up"
        )
        return
    yield finding("host name", GOOD, f"{host}, {place}")
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


# -- the run -----------------------------------------------------------------------------------------------------


def probe_run(run: str) -> Iterator[Finding]:
    """Whether a run can be kept there, and how long a commit takes; leaves nothing behind."""
    from landscape.folders.places import locate

    place = locate(run, Path.cwd())
    if "://" in place:
        yield from _probe_store(place)
        return
    folder = Path(place)
    there = next(each for each in (folder, *folder.parents) if each.exists())
    try:
        times = list(probe(str(there)))
    except OSError as error:
        remedy = REMEDIES.get(error.errno or 0, "change its rights")
        yield finding("run", WRONG, f"{there}: {error.strerror or error}", f"{remedy}, or name another place")
        return
    yield finding("run", GOOD, str(folder) if there == folder else f"{folder} (new, in {there})")
    free = shutil.disk_usage(there).free
    yield judged("run's disk", free < SMALLEST_DISK, f"{free / 1e9:.1f} GB free", "make room, or name another place")
    slow = any(seconds > SLOW_STORE for _, seconds in times)
    yield judged(
        "run's latency", slow, ", ".join(f"{what} {1000 * seconds:.3g} ms" for what, seconds in times),
        "each tile waits for it some ten times: prefer a faster file system, or larger tiles", NOTE,
    )  # fmt: skip


def _probe_store(url: str) -> Iterator[Finding]:
    """The same in an object store, and whether it keeps two drivers apart."""
    from landscape.errors import LandscapeError
    from landscape.folders import open_folder
    from landscape.folders import probe as probe_folder

    try:
        times = [f"{what} {1000 * seconds:.3g} ms" for what, seconds in probe_folder(url)]
    except LandscapeError as error:
        yield finding("run", WRONG, str(error))
        return
    yield finding("run", GOOD, f"{open_folder(url).name}: {', '.join(times)}")


def probe(folder: str) -> Iterator[tuple[str, float]]:
    """What a commit does, each with its median seconds: lock, write and sync, read back, delete."""
    from filelock import FileLock

    content, file = os.urandom(PROBE_BYTES), Path(folder) / f".probe-{os.getpid()}"
    seconds: dict[str, list[float]] = {}

    def timed(what: str, step: Callable[[], object]) -> object:
        start = time.perf_counter()
        result = step()
        seconds.setdefault(what, []).append(time.perf_counter() - start)
        return result

    try:
        lock = FileLock(str(file), timeout=5)
        timed("lock", lock.acquire)
        lock.release()
        for _ in range(PROBES):
            timed("write and sync", lambda: _write(file, content))
            if timed("read", file.read_bytes) != content:
                raise OSError(errno.EIO, "what is read is not what was written")
            timed("delete", file.unlink)
    finally:
        file.unlink(missing_ok=True)
    yield from ((what, median(each)) for what, each in seconds.items())


def _write(file: Path, content: bytes) -> None:
    with whole_file(file) as temporary:
        temporary.write_bytes(content)


def diagnosis_text(found: list[Finding]) -> str:
    width = max(len(each["what"]) for each in found)
    lines = []
    for each in found:
        remedy = f"; {each['remedy']}" if each["remedy"] else ""
        lines.append(f"{each['state']:5}  {each['what']:{width}}  {each['value']}{remedy}")
    lines.append(f"on {socket.gethostname()}")
    return "\n".join(lines)
