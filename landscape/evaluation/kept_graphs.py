"""Graphs of gradients that are kept from one Hessian product to the next, where the memory has room for them.

Lanczos asks for one product after another at the same weights. The forward pass and the gradient, a third of a product,
are the same each time.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Sequence

import torch
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from landscape.core.devices import free_bytes

ROOM = 4  # a block's graphs are kept where so many like them would fit: other processes and values need memory too


class KeptGraphs:
    """The gradients of blocks, with their graphs.

    Args:
        device: whose memory they take.
    """

    def __init__(self, device: torch.device) -> None:
        self._device, self._kept = device, dict[Hashable, list[Sequence[Tensor]]]()
        self._bytes_per_sample: float | None = None
        self._allowed = True

    def of(self, block: Hashable) -> list[Sequence[Tensor]] | None:
        """What is kept of a block: the gradients of each of its batches."""
        return self._kept.get(block)

    def keep(self, block: Hashable, gradients: list[Sequence[Tensor]]) -> None:
        """Keep the gradients of all batches of a block."""
        if self._allowed:
            self._kept[block] = gradients

    def forget(self) -> None:
        """Give the memory back, as other weights or other batches follow."""
        self._kept.clear()

    def never(self) -> None:
        """Keep none from now on: what a graph refers to does not stay as it was."""
        self._allowed = False
        self.forget()

    def has_room(self, samples: int) -> bool:
        """Whether graphs of so many samples may be kept; not before a batch was counted."""
        if not self._allowed or self._bytes_per_sample is None:
            return False
        return ROOM * samples * self._bytes_per_sample <= free_bytes(self._device)

    @contextlib.contextmanager
    def counting(self, samples: int) -> Iterator[None]:
        """Count the bytes that the graph made within the block takes, for a batch of so many samples; the first time.

        That graph must not be kept: what hooks have seen is not watched for later writes any more.
        """
        if self._bytes_per_sample is not None or not self._allowed:
            yield
            return
        seen: dict[int, int] = {}

        def count(tensor: Tensor) -> Tensor:
            storage = tensor.untyped_storage()
            seen[storage.data_ptr()] = storage.nbytes()
            return tensor

        with saved_tensors_hooks(count, lambda tensor: tensor):
            yield
        self._bytes_per_sample = sum(seen.values()) / max(1, samples)
