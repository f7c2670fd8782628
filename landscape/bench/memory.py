"""How much memory an evaluation takes beyond the model, its directions and the samples.

On a GPU the figures are those of torch's allocator. On a CPU the resident size of the process is too noisy, so every
storage that an operation returns is counted while it lives. Neither sees what a kernel allocates and frees inside.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from landscape.bench.yardsticks import Bare
from landscape.evaluation.evaluator import Evaluator
from landscape.model.parameters import State


class LiveStorages(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While active, the bytes of all storages made in it that are still alive, and their largest sum."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.live = self.peak = 0
        self._known: dict[int, tuple[weakref.ref[Any], int]] = {}

    def __torch_dispatch__(
        self, func: Callable[..., Any], types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        given = {id(each) for each in _storages((args, kwargs))}
        result = func(*args, **(kwargs or {}))
        for storage in _storages(result):
            if id(storage) not in given and id(storage) not in self._known:
                self._count(storage)
        self.peak = max(self.peak, self.live)
        return result

    def _count(self, storage: Any) -> None:
        key = id(storage)
        # torch keeps one Python object per storage for as long as the storage lives.
        self._known[key] = (weakref.ref(storage, lambda gone: self._freed(key)), storage.nbytes())
        self.live += storage.nbytes()

    def _freed(self, key: int) -> None:
        self.live -= self._known.pop(key)[1]


def _storages(values: Any) -> list[Any]:
    return [each.untyped_storage() for each in tree_leaves(values) if isinstance(each, Tensor)]


@dataclass
class Peak:
    """The most bytes that were allocated above what was there before, and what is left of them at the end."""

    bytes: int = 0
    kept: int = 0


@contextmanager
def peak_of(device: torch.device) -> Iterator[Peak]:
    """The bytes that the `with` block allocates on the device; the yielded `Peak` holds them after the block."""
    peak = Peak()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        yield peak
        torch.cuda.synchronize(device)
        peak.bytes = torch.cuda.max_memory_allocated(device) - before
        peak.kept = torch.cuda.memory_allocated(device) - before
    else:
        with LiveStorages() as storages:
            yield peak
        peak.bytes, peak.kept = storages.peak, storages.live


def memory_of(
    evaluator: Evaluator, bare: Bare, model: nn.Module, directions: Sequence[State], points: NDArray[np.float64]
) -> dict[str, Any]:
    """Bytes an evaluation takes above model and directions, over those of one bare batch.

    A fresh evaluator is measured, a twin of `evaluator` that shares its samples. Its first points are reported apart
    from the later ones, as it learns at them which outputs stay the same. The bytes include what is kept between
    points, which is also reported by itself: the origin's weights and those that a row shares.
    """
    device, size = evaluator.device, 8 if evaluator.plan.precision == "float64" else 4
    with peak_of(device) as one_batch, torch.no_grad():
        bare.observe(bare.model, bare.batches[0])
    with peak_of(device) as whole:
        fresh = evaluator.twin(evaluator.plan)
        fresh.evaluate(points)
    with peak_of(device) as later:
        fresh.evaluate(points)
    weights = size * sum(each.numel() for each in (*model.parameters(), *model.buffers()))
    axes = size * sum(each.numel() for direction in directions for each in direction.values())
    above, kept = (max(0, each - weights - axes) for each in (whole.bytes, whole.kept))
    return {
        "engine": str(evaluator.plan.engine), "batch_size": evaluator.plan.batch_size,
        "how": "allocator" if device.type == "cuda" else "live storages",
        "first_bytes": above, "evaluation_bytes": kept + later.bytes, "kept_bytes": kept,
        "bare_batch_bytes": one_batch.bytes, "first_ratio": above / max(1, one_batch.bytes),
        "ratio": (kept + later.bytes) / max(1, one_batch.bytes), "model_bytes": weights, "direction_bytes": axes,
    }  # fmt: skip
