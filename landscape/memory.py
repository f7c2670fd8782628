"""How many bytes of samples the host and the device may hold: a share of what is free, or what the environment says."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
from pathlib import Path

import torch

from landscape.errors import JobError, shown

HOST_BYTES, DEVICE_BYTES = "LANDSCAPE_HOST_BYTES", "LANDSCAPE_DEVICE_BYTES"
SHARE_OF_HOST = 0.25  # while they are collected and handed to workers, there are up to three copies
SHARE_OF_DEVICE = 0.5  # the rest is for the model and its activations


def host_limit() -> int:
    """Bytes of samples above which they are kept on disk."""
    return _asked(HOST_BYTES) or int(SHARE_OF_HOST * _available())


def device_limit(device: torch.device) -> int:
    """Bytes of samples above which they are not kept on the device. On the CPU it is the host's memory that counts."""
    asked = _asked(DEVICE_BYTES)
    if asked is not None:
        return asked
    return int(SHARE_OF_DEVICE * free_bytes(device)) if device.type == "cuda" else host_limit()


def free_bytes(device: torch.device) -> int:
    """What a device can still give, and for the CPU the host."""
    if device.type != "cuda":
        return _available()
    # What torch has taken from the device and not handed out is free as well.
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + cached)


def _asked(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    if not text:
        return None
    if not text.isdecimal() or int(text) == 0:
        raise JobError(f"{variable}: must be a whole number of bytes above zero, not {shown(text)}; or leave it unset")
    return int(text)


def _available() -> int:
    """What can be had without swapping; a container or a Slurm job may have less than its machine."""
    return min([_of_machine(), *_of_group()])


def _of_machine() -> int:
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _of_group() -> list[int]:
    """What the control groups of this process allow, where they allow less than everything."""
    root, found = Path("/sys/fs/cgroup"), []
    try:
        own = root / Path("/proc/self/cgroup").read_text().splitlines()[-1].rpartition(":")[2].lstrip("/")
    except (OSError, IndexError):
        return []
    for folder in {own, *own.parents, root}:
        if folder.is_relative_to(root):
            found += _number(folder / "memory.max")
    return found


def _number(file: Path) -> list[int]:
    try:
        return [int(file.read_text())]
    except (OSError, ValueError):  # not there, or "max"
        return []


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt
KEPT = 1 << 30  # bytes


def keep_freed_memory() -> None:
    """Have the C library keep what this process frees, for processes that only evaluate.

    Otherwise a batch's larger activations are given back and faulted in anew, page by page, for every batch: up to a
    quarter of a forward pass on the CPU. Where there is no glibc nothing changes.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(M_MMAP_THRESHOLD, KEPT)
        mallopt(M_TRIM_THRESHOLD, KEPT)


def release_memory() -> None:
    """Give back what this process holds of the GPUs and does not use, for others that compute on them."""
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that the device's or the host's memory does not suffice."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)  # torch's allocator on the CPU
