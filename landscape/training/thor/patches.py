"""Second moments of the patches that a convolution's kernel meets."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from landscape.training.thor.blocks import Blocks, Split, gram

MOST_UNFOLDED = 1 << 23  # numbers of unfolded images held at a time
QUICK_MULTIPLE = 8  # of channels, for products of matrices

Pair = tuple[int, ...]  # of rows and columns


def patch_gram(images: Tensor, kernel: Pair, stride: Pair, dilation: Pair, split: Split) -> Blocks:
    """The diagonal blocks of Σppᵀ over all patches p of padded images [N, C, H, W].

    The numbers of a patch are ordered by channel, then by row and column of the kernel.
    """
    shares_rows = kernel[0] > 1 and stride[0] == 1
    taken = images[0].numel() * (kernel[1] if shares_rows else math.prod(kernel) / math.prod(stride))
    totals = split.zeros(images.dtype, images.device)
    for some in torch.split(images, max(1, int(MOST_UNFOLDED / taken))):
        if shares_rows:
            blocks: Blocks = _by_rows(some, kernel, stride[1], dilation, split)
        elif math.prod(kernel) == 1:
            blocks = gram(some[:, :, :: stride[0], :: stride[1]].flatten(2), split)
        else:
            blocks = gram(F.unfold(some, kernel, dilation, 0, stride), split)
        for total, block in zip(totals, blocks, strict=True):
            total += block
    return totals


class _Strips(NamedTuple):
    """What a row of the kernel meets on each row of the images.

    Attributes:
        numbers: [H, C·columns, N·W′], by channel and column of the kernel, over images and columns of the output.
        rows, columns: of the kernel.
        dilation: of its rows.
    """

    numbers: Tensor
    rows: int
    columns: int
    dilation: int


def _by_rows(images: Tensor, kernel: Pair, stride: int, dilation: Pair, split: Split) -> Blocks:
    """Σppᵀ where the kernel goes down by single rows: patches above each other then share rows.

    With sᵧ for the strip of row y, the part of row i of the kernel with row j is Σ s(y+i)·s(y+j)ᵀ over rows y of the
    output. Its products are those of i + 1 with j + 1 a row above, so that one per distance j − i is taken of each
    row of the images, and the rows of the output are summed: for 3 rows a third of the products, and of the copies.
    """
    rows, columns = kernel
    height, channels = images.shape[2], images.shape[1]
    windows = images.unfold(3, dilation[1] * (columns - 1) + 1, stride)[..., :: dilation[1]]
    numbers = windows.permute(2, 1, 4, 0, 3).reshape(height, channels * columns, -1)
    strips = _Strips(numbers, rows, columns, dilation[0])
    return tuple(
        torch.stack([_block(strips, first, first + width) for first in range(start, start + count * width, width)])
        for start, count, width in split.runs()
    )


def _block(strips: _Strips, first: int, end: int) -> Tensor:
    """Σppᵀ of the numbers from `first` to `end` of patches, [end − first, end − first]."""
    size, available = strips.rows * strips.columns, strips.numbers.shape[1] // strips.columns
    start, channels = first // size, -(-end // size) - first // size
    if channels >= QUICK_MULTIPLE:  # 15 channels of 3 columns take a third longer than 16
        channels = min(-(-channels // QUICK_MULTIPLE) * QUICK_MULTIPLE, available)
        start = min(start, available - channels)
    chosen = strips.numbers[:, start * strips.columns : (start + channels) * strips.columns]
    shape = channels, strips.columns, channels, strips.columns
    moments = chosen.new_empty(channels, strips.rows, strips.columns, channels, strips.rows, strips.columns)
    for i, j, part in _parts(chosen, strips.rows, strips.dilation):
        moments[:, i, :, :, j] = part.view(shape)
        if i != j:
            moments[:, j, :, :, i] = part.t().view(shape)
    moments = moments.view(channels * size, channels * size)
    return moments[first - start * size : end - start * size, first - start * size : end - start * size]


def _parts(strips: Tensor, rows: int, dilation: int) -> Iterator[tuple[int, int, Tensor]]:
    """Rows i ≤ j of the kernel with Σ s(y+i)·s(y+j)ᵀ."""
    height = len(strips)
    outputs = height - dilation * (rows - 1)
    for apart in range(rows):
        products = torch.bmm(strips[: height - apart * dilation], strips[apart * dilation :].mT)
        for i in range(rows - apart):
            yield i, i + apart, products[i * dilation :][:outputs].sum(0)
