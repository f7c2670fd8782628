"""Checksums of tensors, computed on their device: they show writes that pass torch's version counters too."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

COLUMNS = 61  # a prime: two words that are exchanged change the sum, unless their distance is a multiple of it
WORD = 8  # bytes


def checksums(tensors: Sequence[Tensor]) -> list[int]:
    """One number per tensor, from all of its bytes, in one pass over memory; one transfer from each device."""
    values = [0] * len(tensors)
    for device in {tensor.device for tensor in tensors}:
        here = [k for k, tensor in enumerate(tensors) if tensor.device == device]
        sums = torch.stack([_checksum(tensors[k].detach()) for k in here]).tolist()
        for k, value in zip(here, sums, strict=True):
            values[k] = value
    return values


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
