"""What this device can do at best, measured beside the rest: multiply matrices, move bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils.flop_counter import FlopCounterMode

from landscape.bench.timing import Contestant
from landscape.bench.yardsticks import Bare
from landscape.core.plan import Plan, Precision
from landscape.evaluation.engines.base import arithmetic, wait
from landscape.problem.batches import dense_tensors_in, tensor_bytes

CPU_EDGE, CPU_BYTES = 1024, 1 << 27
CUDA_EDGE, CUDA_BYTES = 8192, 1 << 31


@dataclass(frozen=True)
class Ceiling:
    """A contestant, and how much one run of it does: floating-point operations, or bytes read and written."""

    contestant: Contestant
    work: float


def matmul_ceiling(key: str, plan: Plan, device: torch.device) -> Ceiling:
    """Square matrices in the plan's precision and threads: 2n³ operations."""
    edge = CUDA_EDGE if device.type == "cuda" else CPU_EDGE
    left, right, out = (torch.randn(edge, edge, device=device).to(_dtype(plan.precision)) for _ in range(3))

    def run(count: int) -> None:
        with arithmetic(plan, device), torch.no_grad():
            for _ in range(count):
                torch.mm(left, right, out=out)
            wait(device)

    return Ceiling(Contestant(key, run), 2.0 * edge**3)


def copy_ceiling(key: str, plan: Plan, device: torch.device) -> Ceiling:
    """A copy larger than any cache: every byte is read once and written once."""
    size = CUDA_BYTES if device.type == "cuda" else CPU_BYTES
    source = torch.ones(size // 4, device=device)
    target = torch.empty_like(source)

    def run(count: int) -> None:
        with arithmetic(plan, device):
            for _ in range(count):
                target.copy_(source)
            wait(device)

    return Ceiling(Contestant(key, run), 2.0 * size)


def _dtype(precision: Precision) -> torch.dtype:
    return {"bfloat16": torch.bfloat16, "float64": torch.float64}.get(precision, torch.float32)


def work_of(bare: Bare) -> dict[str, float | None]:
    """Of one point: floating-point operations as torch counts them, and the bytes that must be read at the least.

    The bytes are the weights and the samples once each, in float32; activations that leave the cache come on top.
    """
    weights = sum(each.nbytes for each in (*bare.model.parameters(), *bare.model.buffers()))
    samples = sum(each.nbytes for batch in bare.batches for each in dense_tensors_in(batch))
    return {"flops": _flops(bare), "bytes": float(weights + samples)}


def _flops(bare: Bare) -> float | None:
    try:
        with FlopCounterMode(display=False) as counter, torch.no_grad():
            bare.observe(bare.model, bare.batches[0])
    except Exception:
        return None  # an operation that the counter has no formula for and fails at
    share = sum(map(tensor_bytes, bare.batches)) / max(1, tensor_bytes(bare.batches[0]))
    return counter.get_total_flops() * share or None


def distance(work: Mapping[str, float | None], seconds: float, flops: float, bandwidth: float) -> dict[str, Any]:
    """How far a pass of `seconds` is from the ceilings: its share of each, and of the slower of the two bounds."""
    compute = (work["flops"] or 0.0) / flops
    memory = (work["bytes"] or 0.0) / bandwidth
    return {
        "flops_per_second": (work["flops"] or 0.0) / seconds, "share_of_flops": compute / seconds,
        "share_of_bandwidth": memory / seconds, "share_of_bound": max(compute, memory) / seconds,
        "bound": "flops" if compute >= memory else "bandwidth",
    }  # fmt: skip
