"""The arithmetic of a landscape: device, threads, precision, batches. With the job, all that decides its bits."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import platform
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch

from landscape.errors import JobError
from landscape.spec import BatchNorm, Precision


@dataclass(frozen=True)
class Plan:
    """The arithmetic of a landscape: with the job, all that decides its bits. Recorded, and reused on resume."""

    batch_size: int
    threads: int
    device: Literal["cpu", "cuda"]
    precision: Precision = "float32"
    batch_norm: BatchNorm = "eval"
    seed: int = 0
    engine: str = "eager"


def default_plan(
    num_samples: int, device: str, precision: Precision, batch_norm: BatchNorm, seed: int,
    batch_size: int | None, threads: int | None,
) -> Plan:  # fmt: skip
    """The plan where the job leaves it open: a function of the job and the kind of device, not of the machine."""
    preferred = 2048 if device == "cuda" else 256
    kind: Literal["cpu", "cuda"] = "cuda" if device == "cuda" else "cpu"
    return Plan(min(batch_size or preferred, num_samples), threads or 1, kind, precision, batch_norm, seed)


def cores() -> int:
    """The cores that this process may use: a Slurm job or a container may have fewer than its machine."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def device_here() -> torch.device:
    """The first GPU of this machine, else its CPU."""
    return torch.device("cuda:0" if torch.cuda.is_available() else "cpu")


def processor_name(device: torch.device) -> str:
    """What computes: the GPU's name, or the CPU's with the vector instructions that torch uses of it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        model = platform.processor() or platform.machine()
    return f"{' '.join(model.split())} ({torch.backends.cpu.get_cpu_capability()})"


def pick_device(wanted: str) -> torch.device:
    """`auto` is the first GPU where there is one, else the CPU."""
    if wanted == "cuda" and not torch.cuda.is_available():
        raise JobError("device: cuda is asked for, but torch sees no GPU here; use device: cpu or auto")
    return torch.device("cpu") if wanted == "cpu" else device_here()


@contextlib.contextmanager
def arithmetic(plan: Plan, device: torch.device) -> Iterator[None]:
    """The plan's threads and precision and deterministic kernels; the process is left as it was found."""
    tf32 = plan.precision == "tf32"
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    flags = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=tf32)
    with _kept_draws(), flags:
        try:
            if threads != plan.threads:
                torch.set_num_threads(plan.threads)
            torch.set_float32_matmul_precision("high" if tf32 else "highest")
            yield
        finally:
            torch.set_float32_matmul_precision(precision)
            if threads != plan.threads:
                torch.set_num_threads(threads)


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


def seed_draws(seed: int) -> None:
    """Have torch, numpy and `random` draw from this seed, as `torch.manual_seed` does on the CPU and the GPUs in use.

    That one writes down a stack trace for every kind of device that is not in use, which costs several times what a
    point of a small model does.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
    random.seed(seed)
    np.random.seed(seed % SEEDS_OF_NUMPY)  # noqa: NPY002 - users draw from the global generator


SEEDS_OF_NUMPY = 1 << 32


@contextlib.contextmanager
def fixed_seeds(seed: int) -> Iterator[None]:
    """Code of the user's draws from this seed, with torch, numpy or `random`; the process is left as it was found."""
    first, before = not torch.cuda.is_initialized(), torch.initial_seed()  # type: ignore[no-untyped-call]
    first = first and torch.cuda.is_available()  # the code may be the first to use the GPU: seeded when it does
    with _kept_draws():
        seed_draws(seed)
        if first:
            torch.cuda.manual_seed_all(seed)
        try:
            yield
        finally:
            if first:
                torch.cuda.manual_seed_all(before)


@contextlib.contextmanager
def _kept_draws() -> Iterator[None]:
    """What the generators of torch, numpy and `random` draw next is afterwards what it was before."""
    devices = range(torch.cuda.device_count()) if torch.cuda.is_initialized() else []  # type: ignore[no-untyped-call]
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices, device_type="cuda"):
        try:
            yield
        finally:
            random.setstate(python)
            np.random.set_state(numpy)  # noqa: NPY002


@dataclass
class Draws:
    """Whether any generator of torch, numpy or `random` was drawn from."""

    happened: bool = False


@contextlib.contextmanager
def noticed_draws() -> Iterator[Draws]:
    """Tell afterwards whether anything inside drew random numbers from the generators of the process."""
    found, before = Draws(), _generators()
    yield found
    found.happened = _generators() != before


def _generators() -> list[Any]:
    array = np.random.get_state(legacy=False)["state"]  # noqa: NPY002
    used = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    torchs = [torch.get_rng_state(), *(torch.cuda.get_rng_state_all() if used else [])]
    return [random.getstate(), array["pos"], array["key"].tobytes(), *(each.numpy().tobytes() for each in torchs)]


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
