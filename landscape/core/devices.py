"""What this process may compute with: its cores and its device."""

from __future__ import annotations

import os
import platform
from pathlib import Path

import torch

from landscape.core.errors import JobError


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
    """The device that a job asks for.

    Args:
        wanted: "cpu", "cuda" or "auto", which is the first GPU where there is one, else the CPU.

    Raises:
        JobError: "cuda" is asked for, and there is no GPU.
    """
    if wanted == "cuda" and not torch.cuda.is_available():
        raise JobError("device: cuda is asked for, but torch sees no GPU here; use device: cpu or auto")
    return torch.device("cpu") if wanted == "cpu" else device_here()
