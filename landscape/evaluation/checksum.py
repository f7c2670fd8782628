"""Checksums of tensors where they lie: they tell that something was written to, also past torch's version counters."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

COLUMNS = 61  # a prime: words that change places change the sum, unless they are a multiple of it apart
WORD = 8  # bytes


def checksums(tensors: Sequence[Tensor]) -> list[int]:
    """One number per tensor, from all of its bytes, in one pass over memory; one transfer from each device."""
    found = [0] * len(tensors)
    for device in {tensor.device for tensor in tensors}:
        here = [k for k, tensor in enumerate(tensors) if tensor.device == device]
        sums = torch.stack([_checksum(tensors[k].detach()) for k in here]).tolist()
        for k, value in zip(here, sums, strict=True):
            found[k] = value
    return found


def _checksum(tensor: Tensor) -> Tensor:
    """Σⱼ (2j+1)·Σᵢ wᵢⱼ modulo 2⁶⁴, the tensor's words w in rows of `COLUMNS`."""
    data = tensor.contiguous().reshape(-1).view(torch.uint8)
    aligned = data.data_ptr() % WORD == 0 and data.storage_offset() % WORD == 0
    cut = len(data) - len(data) % (WORD * COLUMNS if aligned else COLUMNS)
    head, tail = data[:cut], data[cut:]
    words = head.view(torch.int64) if aligned else head
    factors = torch.arange(COLUMNS, device=data.device) * 2 + 1
    rest = (tail.to(torch.int64) * torch.arange(1, len(tail) + 1, device=data.device)).sum()
    return (words.view(-1, COLUMNS).sum(0, dtype=torch.int64) * factors).sum() + rest
