"""Moments of weighted samples, merged block by block in a fixed order: means and standard errors that can be extended.

A *block* is a planned batch. Of every block and observable six numbers are kept,

    n, W = Σw, V = Σw², S = Σwℓ, B = Σw²(ℓ − m), A = Σw²(ℓ − m)²  with the block's own mean m = S/W,

and the blocks are merged one after the other. More samples are therefore more blocks, and what is merged so far need
not be computed again. Additions have a fixed order in float64, on whatever device and however many points are reduced
at once, so that the bits are the same.
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from landscape.surface.surface import MOMENT_PARTS

Floats = NDArray[np.float64]

PARTS = MOMENT_PARTS  # n, W, V, S, B, A


def tree_sum(values: Tensor) -> Tensor:
    """The sum over the last dimension [..., n] → [...], halves added to halves.

    torch's own sum may take another order for other shapes or numbers of threads; this one never does. Its error grows
    with log n.

    Example:
        >>> tree_sum(torch.tensor([1.0, 2.0, 3.0]))
        tensor(6.)
    """
    count = values.shape[-1]
    while count > 1:
        half = 1 << ((count - 1).bit_length() - 1)  # the largest power of two below the count
        first, second = values[..., :half], values[..., half:]
        more = count - half
        values = first + second if more == half else torch.cat([first[..., :more] + second, first[..., more:]], -1)
        count = half
    return values[..., 0] if count else values.sum(-1)


def block_moments(values: Tensor, weights: Tensor | None) -> Tensor:
    """The moments of one block.

    Args:
        values: float64 [points, rows, n].
        weights: float64 [points, n]; None for weights of 1, which gives the same bits as ones.

    Returns:
        [points, rows, 6].
    """
    count = values.shape[-1]
    weight = weights[:, None] if weights is not None else values.new_ones(())
    sums = tree_sum(weight * values)
    if weights is None:
        weighted = squares = torch.full_like(sums, count)
    else:
        totals = tree_sum(torch.stack([weights, weights * weights]))[:, :, None]
        weighted, squares = totals.expand(-1, -1, values.shape[1])
    # Two passes: the difference of large sums would lose the small spread near a minimum.
    away = weight * (values - (sums / weighted)[..., None])
    lean, spread = tree_sum(torch.stack([weight * away, away * away]))
    return torch.stack([torch.full_like(sums, count), weighted, squares, sums, lean, spread], -1)


def merged(before: Floats, block: Floats) -> Floats:
    """The moments of two sets of samples as those of both, [..., 6] each; a set of no samples changes nothing."""
    with np.errstate(all="ignore"):
        total = before + block  # n, W, V and S
        mean = total[..., 3] / total[..., 1]
        lean, spread = np.zeros_like(mean), np.zeros_like(mean)
        for one in (before, block):
            _, weights, squares, sums, own_lean, own_spread = np.moveaxis(one, -1, 0)
            shift = sums / weights - mean
            lean = lean + (own_lean + shift * squares)
            spread = spread + (own_spread + 2.0 * shift * own_lean + shift * shift * squares)
        total[..., 4], total[..., 5] = lean, spread
    total = np.where(before[..., :1] == 0, block, total)
    return np.asarray(np.where(block[..., :1] == 0, before, total), np.float64)


def mean_of(moments: Floats) -> Floats:
    """The mean m = Σwℓ / Σw, [..., 6] → [...]; NaN of no samples."""
    with np.errstate(all="ignore"):
        return np.asarray(moments[..., 3] / moments[..., 1], np.float64)


def stderr_of(moments: Floats) -> Floats:
    """The standard error of the mean, √(Σw²(ℓ−m)²)/Σw · √(n/(n−1)), [..., 6] → [...]; NaN of one sample.

    With weights of 1 it is s/√n, s being the standard deviation of the sample.
    """
    count = moments[..., 0]
    with np.errstate(all="ignore"):
        spread = np.maximum(moments[..., 5], 0.0)  # merging may round the spread of equal samples below zero
        error = np.sqrt(spread) / moments[..., 1] * np.sqrt(count / (count - 1.0))
    return np.asarray(np.where(count > 1, error, np.nan), np.float64)
