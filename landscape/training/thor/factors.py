"""Second moments of a layer's inputs a and output gradients g, over every sample and position.

A layer's weight gradient is Σ g aᵀ over samples and positions: pixels of a convolution's output, tokens of a sequence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from landscape.core.errors import JobError

# ----------------------------------------------------------------------------------------------------
# Square matrices as their diagonal blocks.

Blocks = tuple[Tensor, ...]  # each [count, width, width]: all blocks of one width, in their order on the diagonal


@dataclass(frozen=True)
class Split:
    """The division of a square matrix into diagonal blocks.

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
    if len(columns) == 1:  # a linear layer: all blocks at once
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


def trace_of_blocks(blocks: Blocks) -> Tensor:
    """The sum of the diagonal, of no dimensions."""
    return torch.stack([block.diagonal(dim1=-2, dim2=-1).sum() for block in blocks]).sum()


def are_finite(blocks: Blocks) -> bool:
    """Whether no element is infinite or not a number."""
    return all(bool(block.isfinite().all()) for block in blocks)


# ----------------------------------------------------------------------------------------------------
# Patches of convolutions.

MOST_UNFOLDED = 1 << 23  # numbers of unfolded images held at a time
QUICK_MULTIPLE = 8  # products of matrices are fastest if the number of channels is a multiple of it

Pair = tuple[int, ...]  # of rows and columns


def patch_gram(images: Tensor, kernel: Pair, stride: Pair, dilation: Pair, split: Split) -> Blocks:
    """The diagonal blocks of Σppᵀ over all patches p of padded images [N, C, H, W].

    The numbers of a patch are ordered by channel, then by row and column of the kernel.
    """
    shares_rows = kernel[0] > 1 and stride[0] == 1
    per_image = images[0].numel() * (kernel[1] if shares_rows else math.prod(kernel) / math.prod(stride))
    totals = split.zeros(images.dtype, images.device)
    for part in torch.split(images, max(1, int(MOST_UNFOLDED / per_image))):
        if shares_rows:
            blocks: Blocks = _by_rows(part, kernel, stride[1], dilation, split)
        elif math.prod(kernel) == 1:
            blocks = gram(part[:, :, :: stride[0], :: stride[1]].flatten(2), split)
        else:
            blocks = gram(F.unfold(part, kernel, dilation, 0, stride), split)
        for total, block in zip(totals, blocks, strict=True):
            total += block
    return totals


class _Strips(NamedTuple):
    """The numbers under one row of the kernel, for each row of the images.

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
    """Σppᵀ for a kernel that moves down by single rows, so that patches above each other share rows.

    With s(y) for the strip of row y, the part of row i of the kernel with row j is Σ s(y+i)·s(y+j)ᵀ over rows y of the
    output. The same products, one row above, belong to i + 1 and j + 1. So one product per distance j − i is computed
    for each row of the images, and summed over the rows of the output: for 3 rows, a third of the products and copies.
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
    """Each two rows i ≤ j of the kernel with Σ s(y+i)·s(y+j)ᵀ."""
    height = len(strips)
    outputs = height - dilation * (rows - 1)
    for distance in range(rows):
        products = torch.bmm(strips[: height - distance * dilation], strips[distance * dilation :].mT)
        for i in range(rows - distance):
            yield i, i + distance, products[i * dilation :][:outputs].sum(0)


def linear_inputs(module: nn.Module, inputs: Tensor, split: Split, dtype: torch.dtype) -> Blocks:
    """Σaaᵀ of inputs [..., I]."""
    return gram(_as_columns(inputs, dtype), split)


def linear_gradients(module: nn.Module, inputs: Tensor, gradient: Tensor, split: Split, dtype: torch.dtype) -> Blocks:
    """Σggᵀ of gradients [..., O]."""
    return gram(_as_columns(gradient, dtype), split)


def embedding_inputs(module: nn.Module, inputs: Tensor, split: Split, dtype: torch.dtype) -> Blocks:
    """How often each word of an embedding is in the indices.

    An embedding is a linear layer with one-hot inputs: Σaaᵀ is diagonal and holds the counts. The word `padding_idx`
    gets no gradient.
    """
    assert isinstance(module, nn.Embedding)
    words = inputs[inputs != module.padding_idx] if module.padding_idx is not None else inputs.flatten()
    return (torch.bincount(words, minlength=module.num_embeddings).to(dtype).view(-1, 1, 1),)


def embedding_gradients(
    module: nn.Module, inputs: Tensor, gradient: Tensor, split: Split, dtype: torch.dtype
) -> Blocks:
    """Σggᵀ of gradients [..., D], without those of the word `padding_idx`."""
    assert isinstance(module, nn.Embedding)
    used = gradient[inputs != module.padding_idx] if module.padding_idx is not None else gradient
    return gram(_as_columns(used, dtype), split)


def convolution_inputs(module: nn.Module, inputs: Tensor, split: Split, dtype: torch.dtype) -> Blocks:
    """Σaaᵀ of the patches of a convolution, ordered by channel, then by the kernel, as in its weight."""
    assert isinstance(module, nn.Conv1d | nn.Conv2d)
    kernel, stride, dilation = module.kernel_size, module.stride, module.dilation
    images, sides = inputs.to(dtype), _padding(module)
    if images.ndim == len(kernel) + 1:  # one sample without a batch
        images = images.unsqueeze(0)
    if any(sides):
        images = F.pad(images, sides, "constant" if module.padding_mode == "zeros" else module.padding_mode)
    if len(kernel) == 1:
        images, kernel, stride, dilation = images.unsqueeze(2), (1, *kernel), (1, *stride), (1, *dilation)
    return patch_gram(images, kernel, stride, dilation, split)


def convolution_gradients(
    module: nn.Module, inputs: Tensor, gradient: Tensor, split: Split, dtype: torch.dtype
) -> Blocks:
    """Σggᵀ of gradients [N, O, …], over samples and pixels."""
    assert isinstance(module, nn.Conv1d | nn.Conv2d)
    if gradient.ndim == len(module.kernel_size) + 1:
        gradient = gradient.unsqueeze(0)
    return gram(gradient.flatten(2).to(dtype), split)


def _as_columns(rows: Tensor, dtype: torch.dtype) -> Tensor:
    return rows.reshape(-1, rows.shape[-1]).to(dtype).t().unsqueeze(0)


def _padding(module: nn.Conv1d | nn.Conv2d) -> list[int]:
    """The padding for `torch.nn.functional.pad`: before and after each dimension, the last one first."""
    sides: list[int] = []
    for number, (size, dilation) in enumerate(zip(module.kernel_size, module.dilation, strict=True)):
        if module.padding == "same":
            total = dilation * (size - 1)
            before, after = total // 2, total - total // 2
        else:
            before = after = 0 if isinstance(module.padding, str) else module.padding[number]
        sides = [before, after, *sides]
    return sides


class MomentMethod(NamedTuple):
    """The functions for Σaaᵀ and Σggᵀ from one use of a layer, in diagonal blocks."""

    of_inputs: Callable[[nn.Module, Tensor, Split, torch.dtype], Blocks]
    of_gradients: Callable[[nn.Module, Tensor, Tensor, Split, torch.dtype], Blocks]


CONVOLUTION = MomentMethod(convolution_inputs, convolution_gradients)
MOMENTS: dict[type[nn.Module], MomentMethod] = {
    nn.Linear: MomentMethod(linear_inputs, linear_gradients),
    nn.Conv1d: CONVOLUTION,
    nn.Conv2d: CONVOLUTION,
    nn.Embedding: MomentMethod(embedding_inputs, embedding_gradients),
}


def count_samples(module: nn.Module, inputs: Tensor) -> int:
    """The number of samples in a batch: its first dimension, or 1 without a batch dimension."""
    dimensions: dict[Any, int] = {nn.Conv1d: 3, nn.Conv2d: 4, nn.Embedding: 1}
    least = next((count for kind, count in dimensions.items() if isinstance(module, kind)), 2)
    return inputs.shape[0] if inputs.ndim >= least else 1


# ----------------------------------------------------------------------------------------------------
# Statistics since the last step, and the Kronecker factors made from them.


@dataclass
class FactorStatistics:
    """Σaaᵀ and Σggᵀ over samples and positions, in diagonal blocks, or the other sums that a `FactorFormula` takes.

    Attributes:
        a, g: empty until the first sum is added.
        samples: N, of the whole batch.
        rows: N·T, samples times positions: pixels of a convolution's output, tokens of a sequence.
    """

    a: Blocks = ()
    g: Blocks = ()
    samples: float = 0.0
    rows: float = 0.0

    def add_inputs(self, sums: Blocks) -> None:
        """Add the sums of the inputs of some samples."""
        self.a = _added(self.a, sums, 1)

    def add_gradients(self, sums: Blocks, times: int = 1) -> None:
        """Add the sums of the gradients of some samples; `times` −1 subtracts them again."""
        self.g = _added(self.g, sums, times)


def _added(totals: Blocks, sums: Blocks, times: int) -> Blocks:
    """The totals, changed in place."""
    for total, one in zip(totals, sums, strict=bool(totals)):
        if total.shape != one.shape:
            raise JobError(
                f"factors: 'mindspore-gpu' must have images of one size in a step, not {list(total.shape)} and "
                f"{list(one.shape)}, since it adds them up; take 'exact'"
            )
        total.add_(one, alpha=times)
    return totals or sums


@dataclass(frozen=True)
class Factors:
    """A = E[aaᵀ]·√T and G = E[ĝĝᵀ]·√T in diagonal blocks, so that A ⊗ G is the layer's empirical Fisher block.

    Means are over samples and positions; ĝ is the gradient of a sample's own loss. With T positions per sample F is
    T·E[aaᵀ] ⊗ E[ĝĝᵀ] (Grosse and Martens 2016, KFC, for convolutions; Eschenhagen et al. 2023, KFAC-expand, for
    sequences), and both factors get the same share of T. THOR's shipped code, which damps by √(λ/T) and multiplies
    each inverse by 1/√T, takes the same step: (X + √(λ/T))⁻¹/√T = (√T·X + √λ)⁻¹.

    Attributes:
        gain: by which the inverse of the damped G is multiplied.
    """

    a: Blocks
    g: Blocks
    gain: float = 1.0

    @classmethod
    def of(cls, statistics: FactorStatistics, own: float) -> Factors:
        """The factors from the sums of all ranks.

        Args:
            own: times which the gradient of a sample in the batch's loss is that of the sample's own loss.
        """
        samples, rows = statistics.samples, statistics.rows
        root = math.sqrt(rows / samples)
        return cls(
            tuple(block * (root / rows) for block in statistics.a),
            tuple(block * (root / rows * own * own) for block in statistics.g),
        )

    def mixed(self, older: Factors | None, share: float) -> Factors:
        """The moving average share·older + (1 − share)·these; these alone without older ones."""
        if older is None or share == 0:
            return self
        return Factors(
            tuple(old * share + new * (1 - share) for old, new in zip(older.a, self.a, strict=True)),
            tuple(old * share + new * (1 - share) for old, new in zip(older.g, self.g, strict=True)),
            self.gain,
        )

    @property
    def traces(self) -> tuple[float, float]:
        return float(trace_of_blocks(self.a)), float(trace_of_blocks(self.g))

    @property
    def are_finite(self) -> bool:
        return are_finite(self.a) and are_finite(self.g)


# ----------------------------------------------------------------------------------------------------
# Damping and inversion.

TRIES = 6  # dampings, each ten times the previous one


@dataclass(frozen=True)
class Inverse:
    """The inverses of damped A and G in diagonal blocks, that of G times `Factors.gain`."""

    a: Blocks
    g: Blocks

    def between(self, gradient: Tensor) -> Tensor:
        """G⁻¹·∇W·A⁻¹, both damped, for ∇W [O, I]."""
        return right_product(left_product(self.g, gradient), self.a)


@dataclass(frozen=True)
class Damping:
    """The division of λ between the two factors, A + π√λ and G + √λ/π.

    THOR adds √λ to both, π = 1. Inputs mostly have another magnitude than gradients, and then only the smaller factor
    is damped. Balanced, π² = (tr A/I)/(tr G/O) divides λ by the mean eigenvalues (Martens and Grosse 2015, section
    6.3), so that λ is compared with the eigenvalues of F.

    >>> Damping(0.04).shifts((8.0, 2.0), (2, 2)), Damping(0.04, balanced=True).shifts((8.0, 2.0), (2, 2))
    ((0.2, 0.2), (0.4, 0.1))
    >>> Damping(0.04, balanced=True).shifts((8.0, 0.0), (2, 2))  # no mean to balance
    (0.2, 0.2)
    """

    value: float
    balanced: bool = False

    def shifts(self, traces: tuple[float, float], sizes: tuple[int, int]) -> tuple[float, float]:
        """The shifts of the diagonals of A and G, from tr A and tr G and their sizes I and O."""
        root, (mean_a, mean_g) = (
            math.sqrt(self.value),
            (trace / size for trace, size in zip(traces, sizes, strict=True)),
        )
        if not self.balanced or not (mean_a > 0 and mean_g > 0):
            return root, root
        ratio = math.sqrt(mean_a / mean_g)
        return root * ratio, root / ratio

    def damped_trace(self, traces: tuple[float, float], sizes: tuple[int, int]) -> float:
        """The trace of the damped A ⊗ G, which is the product of the traces of both."""
        shifts = self.shifts(traces, sizes)
        a, g = (trace + size * shift for trace, size, shift in zip(traces, sizes, shifts, strict=True))
        return a * g


def invert(factors: Factors, damping: Damping) -> tuple[Inverse, float] | None:
    """The inverse of factors with the smallest damping of λ, 10λ, 100λ, … that makes it finite, and that damping.

    Returns:
        None if the factors are not finite, or no damping is enough.
    """
    if not factors.are_finite:
        return None
    sizes = size_of(factors.a), size_of(factors.g)
    for number in range(TRIES):
        used = replace(damping, value=damping.value * 10**number)
        shift_a, shift_g = used.shifts(factors.traces, sizes)
        a, g = _inverse_of(factors.a, shift_a), _inverse_of(factors.g, shift_g)
        if a is not None and g is not None:
            return Inverse(a, tuple(block * factors.gain for block in g) if factors.gain != 1 else g), used.value
    return None


def _inverse_of(blocks: Blocks, shift: float) -> Blocks | None:
    """(B + shift·I)⁻¹ per block; None if a block is not positive definite in its arithmetic."""
    inverses = []
    for block in blocks:
        damped = block.clone()
        damped.diagonal(dim1=-2, dim2=-1).add_(shift)
        if block.shape[-1] == 1:
            inverse = damped.reciprocal()
        else:
            triangle, failed = torch.linalg.cholesky_ex(damped)
            if bool(failed.any()):
                return None
            inverse = torch.cholesky_inverse(triangle)
        if not bool(inverse.isfinite().all()):
            return None
        inverses.append(inverse)
    return tuple(inverses)
