"""Whether a run can be kept at a place, and how long a commit takes there."""

from __future__ import annotations

import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import median

from cluster.commands.checks import GOOD, NOTE, WRONG, CheckResult, judged, result
from cluster.commands.nodes import SMALLEST_DISK
from landscape.core.files import whole_file

PROBE_BYTES, PROBES = 64 << 10, 5
REMEDIES = {errno.ENOSPC: "make room", errno.EDQUOT: "make room", errno.EROFS: "mount it for writing"}
SLOW_STORE = 0.2  # seconds to commit one file; a tile is some ten of them


def probe_run(run: str) -> Iterator[CheckResult]:
    """Whether a run can be kept there, and how long a commit takes; leaves nothing behind."""
    from landscape.core.folders import locate

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
        yield result("run", WRONG, f"{there}: {error.strerror or error}", f"{remedy}, or name another place")
        return
    yield result("run", GOOD, str(folder) if there == folder else f"{folder} (new, in {there})")
    free = shutil.disk_usage(there).free
    yield judged("run's disk", free < SMALLEST_DISK, f"{free / 1e9:.1f} GB free", "make room, or name another place")
    slow = any(seconds > SLOW_STORE for _, seconds in times)
    yield judged(
        "run's latency", slow, ", ".join(f"{what} {1000 * seconds:.3g} ms" for what, seconds in times),
        "each tile waits for it some ten times: prefer a faster file system, or larger tiles", NOTE,
    )  # fmt: skip


def _probe_store(url: str) -> Iterator[CheckResult]:
    """The same in an object store, and whether it keeps two drivers apart."""
    from landscape.core.errors import LandscapeError
    from landscape.core.folders import open_folder
    from landscape.core.folders import probe as probe_folder

    try:
        times = [f"{what} {1000 * seconds:.3g} ms" for what, seconds in probe_folder(url)]
    except LandscapeError as error:
        yield result("run", WRONG, str(error))
        return
    yield result("run", GOOD, f"{open_folder(url).name}: {', '.join(times)}")


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
