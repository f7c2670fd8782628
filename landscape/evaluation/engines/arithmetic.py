"""The arithmetic of a plan put into force: threads, precision, deterministic kernels."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import torch

from landscape.core.plan import Plan
from landscape.core.random_state import kept_draws


def autocast(plan: Plan, device: torch.device) -> contextlib.AbstractContextManager[None]:
    """Lower precision in those operations that torch lowers, for a plan in bfloat16; else nothing."""
    # Its cache holds for one block only, and must not be filled while a CUDA graph is captured.
    return torch.autocast(device.type, torch.bfloat16, enabled=plan.precision == "bfloat16", cache_enabled=False)


@contextlib.contextmanager
def arithmetic(plan: Plan, device: torch.device) -> Iterator[None]:
    """The plan's threads and precision and deterministic kernels; afterwards the process has its own settings again."""
    tf32 = plan.precision == "tf32"
    threads, precision = torch.get_num_threads(), torch.get_float32_matmul_precision()
    flags = torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=tf32)
    with kept_draws(), flags:
        try:
            if threads != plan.threads:
                torch.set_num_threads(plan.threads)
            torch.set_float32_matmul_precision("high" if tf32 else "highest")
            yield
        finally:
            torch.set_float32_matmul_precision(precision)
            if threads != plan.threads:
                torch.set_num_threads(threads)


def wait(device: torch.device) -> None:
    """Wait until the device has done all that it was given."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
