"""Square matrices kept as their diagonal blocks: products of columns summed into blocks, and products with blocks."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

Blocks = tuple[Tensor, ...]  # each [count, width, width]: all blocks of one width, in their order on the diagonal


@dataclass(frozen=True)
class Split:
    """How a square matrix is cut into diagonal blocks.

    >>> list(Split(300, 128).runs())
    [(0, 2, 128), (256, 1, 44)]

    Attributes:
        size: rows of the matrix.
        width: of each block but the last, which holds the remaining rows. 1 keeps the diagonal alone.
    """

    size: int
    width: int

    def runs(self) -> Iterator[tuple[int, int, int]]:
        """Each run of blocks of one width: its first row, how many blocks, their width."""
        whole, rest = divmod(self.size, self.width)
        if whole:
            yield 0, whole, self.width
        if rest:
            yield whole * self.width, 1, rest

    def zeros(self, dtype: torch.dtype, device: torch.device) -> Blocks:
        return tuple(torch.zeros(count, width, width, dtype=dtype, device=device) for _, count, width in self.runs())

    @property
    def cost(self) -> int:
        """Of an inversion, up to a factor: the sum of the cubes of the widths."""
        return sum(count * width**3 for _, count, width in self.runs())


def gram(columns: Tensor, split: Split) -> Blocks:
    """The diagonal blocks of Σₙ XₙXₙᵀ, where Xₙ is columns[n] of [N, size, L]."""
    return tuple(
        _gram_of_run(columns[:, start : start + count * width], count, width) for start, count, width in split.runs()
    )


def _gram_of_run(columns: Tensor, count: int, width: int) -> Tensor:
    if width == 1:
        return columns.square().sum((0, 2)).view(count, 1, 1)
    if len(columns) == 1:  # of a linear layer: all blocks at once
        rows = columns[0].view(count, width, -1)
        return torch.bmm(rows, rows.mT)
    return torch.stack([torch.bmm(part, part.mT).sum(0) for part in torch.split(columns, width, 1)])


def left_product(blocks: Blocks, matrix: Tensor) -> Tensor:
    """B·M for the block-diagonal B and M [size, columns]."""
    parts, start = [], 0
    for block in blocks:
        count, width = block.shape[:2]
        rows = matrix[start : start + count * width]
        if width == 1:
            parts.append(block.view(-1, 1) * rows)
        else:
            parts.append(torch.bmm(block, rows.reshape(count, width, -1)).flatten(0, 1))
        start += count * width
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def right_product(matrix: Tensor, blocks: Blocks) -> Tensor:
    """M·B for the block-diagonal, symmetric B and M [rows, size]."""
    return left_product(blocks, matrix.t()).t()


def size_of(blocks: Blocks) -> int:
    """The rows of the matrix."""
    return sum(block.shape[0] * block.shape[1] for block in blocks)


def trace(blocks: Blocks) -> Tensor:
    """The sum of the diagonal, of no dimensions."""
    return torch.stack([block.diagonal(dim1=-2, dim2=-1).sum() for block in blocks]).sum()


def are_finite(blocks: Blocks) -> bool:
    """Whether no element is infinite or not a number."""
    return all(bool(block.isfinite().all()) for block in blocks)
