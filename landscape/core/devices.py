"""The cores, the device and the memory that this process may use."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
from pathlib import Path

import torch

from landscape.core.errors import JobError, quoted
from landscape.core.system import free_host_bytes


def cores() -> int:
    """How many cores this process may use: a Slurm job or a container may have fewer than its machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_here() -> torch.device:
    """The first GPU of this machine, else its CPU."""
    return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def processor_name(device: torch.device) -> str:
    """The name of the GPU; or that of the CPU with its vector instructions that torch uses.

    Measurements and recorded bits hold for one processor, which this text identifies.
    """
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return f"{' '.join(model.split())} ({torch.backends.cpu.get_cpu_capability()})"


def pick_device(wanted: str) -> torch.device:
    """The device that a job names.

    Args:
        wanted: "cpu", "cuda" or "auto", which is the first GPU where there is one, else the CPU.

    Raises:
        JobError: "cuda" is named, and there is no GPU.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise JobError("device: cuda is asked for, but torch sees no GPU here; use device: cpu or auto")
    return torch.device("cpu") if wanted == "cpu" else device_here()


# ----------------------------------------------------------------------------------------------------
# Memory of the host and the device: how much the samples may take, how much is free, how freed memory is kept.

# Environment variables.
HOST_BYTES, DEVICE_BYTES, KEPT_BYTES = "LANDSCAPE_HOST_BYTES", "LANDSCAPE_DEVICE_BYTES", "LANDSCAPE_KEPT_BYTES"
CURVATURE_BYTES = "LANDSCAPE_CURVATURE_BYTES"
MOST_KEPT = 1 << 30  # bytes that a landscape may keep of the losses of single samples
MOST_BASES = 1 << 32  # bytes of Lanczos bases, in the memory of the driver and in the folder of the run
SHARE_OF_HOST = 0.25  # of the free memory: while samples are read and sent to workers, there are up to three copies
SHARE_OF_DEVICE = 0.5  # of the free memory: the rest is for the model and its activations


def host_limit() -> int:
    """The bytes of samples above which they are kept on disk: the variable's value, or a share of the free memory.

    Raises:
        JobError: the variable LANDSCAPE_HOST_BYTES holds no number of bytes.
    """
    return _from_environment(HOST_BYTES) or int(SHARE_OF_HOST * free_host_bytes())


def device_limit(device: torch.device) -> int:
    """The bytes of samples above which they are not kept on the device; for the CPU, the limit of the host.

    Raises:
        JobError: the variable LANDSCAPE_DEVICE_BYTES holds no number of bytes.
    """
    limit = _from_environment(DEVICE_BYTES)
    if limit is not None:
        return limit
    return int(SHARE_OF_DEVICE * free_bytes(device)) if device.type == "cuda" else host_limit()


def kept_limit() -> int:
    """The bytes that the losses of single samples may take in one landscape.

    Raises:
        JobError: the variable LANDSCAPE_KEPT_BYTES holds no number of bytes.
    """
    return _from_environment(KEPT_BYTES) or MOST_KEPT


def curvature_limit() -> int:
    """The bytes that the basis vectors of a computation of eigenvectors may take.

    Raises:
        JobError: the variable LANDSCAPE_CURVATURE_BYTES holds no number of bytes.
    """
    return _from_environment(CURVATURE_BYTES) or MOST_BASES


def free_bytes(device: torch.device) -> int:
    """How many bytes can still be allocated on a device; for the CPU, on the host."""
    if device.type != "cuda":
        return free_host_bytes()
    # Memory that torch has reserved on the device without using it is free as well.
    cached = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0] + cached)


def _from_environment(variable: str) -> int | None:
    text = os.environ.get(variable, "")
    if not text:
        return None
    if not text.isdecimal() or int(text) == 0:
        raise JobError(f"{variable}: must be a whole number of bytes above zero, not {quoted(text)}; or leave it unset")
    return int(text)


M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # options of glibc's mallopt
LARGEST_KEPT = 1 << 30  # bytes: smaller allocations are kept by the C library when they are freed


def keep_freed_memory() -> None:
    """Let the C library keep the memory that this process frees; for processes that only evaluate.

    Otherwise it gives larger activations of a batch back to the system, and the next batch faults them in again page by
    page, which takes up to a quarter of a forward pass on the CPU. Without glibc nothing changes.
    """
    with contextlib.suppress(OSError, AttributeError):
        mallopt = ctypes.CDLL("libc.so.6").mallopt
        mallopt(M_MMAP_THRESHOLD, LARGEST_KEPT)
        mallopt(M_TRIM_THRESHOLD, LARGEST_KEPT)


def release_memory() -> None:
    """Give back the GPU memory that this process has reserved and does not use, so that other processes can have it."""
    gc.collect()
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an exception says that the memory of the device or of the host does not suffice."""
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    # Torch's allocator on the CPU raises a plain RuntimeError.
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)
