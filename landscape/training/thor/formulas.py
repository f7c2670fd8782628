"""The definitions of a layer's factors: those of its Fisher block, and those of MindSpore's code for GPUs.

THOR's published learning rates and dampings for GPUs were tuned on the latter (`nn.thor` of MindSpore 2.7.0).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from landscape.training.thor.factors import (
    MOMENTS,
    Blocks,
    Factors,
    FactorStatistics,
    MomentMethod,
    Split,
    gram,
)

FactorMethod = Callable[[nn.Module, FactorStatistics, tuple[Split, Split], float], Factors]


@dataclass(frozen=True)
class FactorFormula:
    """The factors of each type of layer, and what follows from them.

    Attributes:
        moments: the sums to gather, by type; layers of other types have no factors.
        factors: the factors from a module, its sums, the blocks of A and G, and `own` (see `Factors.of`).
        refused: types that a model must not have, and why.
        uses_once: whether a layer may be used only once in a call of the model.
        averages_inverses: whether every rank inverts the factors of its own samples, and the inverses are averaged.
            Otherwise statistics are summed over the ranks, and then inverted.
        clips_tensors: whether `clip` bounds the step of every parameter, instead of the whole step.
    """

    moments: Mapping[type[nn.Module], MomentMethod]
    factors: FactorMethod
    refused: Mapping[type[nn.Module], str] = field(default_factory=dict)
    uses_once: bool = False
    averages_inverses: bool = False
    clips_tensors: bool = False

    def moments_of(self, module: nn.Module) -> MomentMethod:
        """The functions for the module's type."""
        return next(moments for kind, moments in self.moments.items() if isinstance(module, kind))


# ----------------------------------------------------------------------------------------------------
# MindSpore's formula for GPUs.


def sum_of_images(module: nn.Module, inputs: Tensor, split: Split, dtype: torch.dtype) -> Blocks:
    """The sum over the samples of images [N, C, H, W]: patches of the mean image are the mean of the patches."""
    return (_batched(inputs).sum(0, dtype=dtype),)


def sum_of_gradients(module: nn.Module, inputs: Tensor, gradient: Tensor, split: Split, dtype: torch.dtype) -> Blocks:
    """The sum over the samples of gradients [N, O, H', W']."""
    return (_batched(gradient).sum(0, dtype=dtype),)


def _batched(images: Tensor) -> Tensor:
    return images if images.ndim == 4 else images.unsqueeze(0)


def factors_on_gpus(
    module: nn.Module, statistics: FactorStatistics, splits: tuple[Split, Split], own: float
) -> Factors:
    """The factors of MindSpore's `DenseThor` or `Conv2dThor` on a GPU."""
    factors = _of_convolution if isinstance(module, nn.Conv2d) else _of_linear
    return factors(module, statistics, splits, own)


def _of_linear(module: nn.Module, statistics: FactorStatistics, splits: tuple[Split, Split], own: float) -> Factors:
    """A = Σaaᵀ/I over all rows a of the batch, which I inputs divide in place of the rows; G = E[ĝĝᵀ] over the rows."""
    return Factors(
        tuple(block / splits[0].size for block in statistics.a),
        tuple(block * (own * own / statistics.rows) for block in statistics.g),
    )


def _of_convolution(
    module: nn.Module, statistics: FactorStatistics, splits: tuple[Split, Split], own: float
) -> Factors:
    """A = E[p̄p̄ᵀ]·√T and G = E[ḡḡᵀ]·√T′, of patches p̄ and gradients ḡ that are means over the samples.

    The T patches are those of a convolution with "same" padding, whatever the layer's own, and the T′ gradients those
    of the layer's pixels. MindSpore damps by √(λ/T) and √(λ/T′) and multiplies both inverses by 1/√T. This is
    (A + √λ)⁻¹ and (G + √λ)⁻¹·√(T′/T), by the identity at `Factors`.
    """
    assert isinstance(module, nn.Conv2d)
    (images,), (gradients,) = statistics.a, statistics.g
    patches = same_patches(images / statistics.samples, module)
    means = gradients.flatten(1) * (own / statistics.samples)
    pixels, positions = patches.shape[1], means.shape[1]
    return Factors(
        tuple(block / math.sqrt(pixels) for block in gram(patches.unsqueeze(0), splits[0])),
        tuple(block / math.sqrt(positions) for block in gram(means.unsqueeze(0), splits[1])),
        math.sqrt(positions / pixels),
    )


def same_patches(image: Tensor, module: nn.Conv2d) -> Tensor:
    """The patches of an image [C, H, W] under the kernel, as many as pixels over the stride, rounded up; [I, T].

    What the image lacks for them is padded with zeros, the odd row or column after it.
    """
    sides: list[int] = []
    for size, kernel, stride, dilation in zip(
        image.shape[1:], module.kernel_size, module.stride, module.dilation, strict=True
    ):
        lacking = max(0, (-(-size // stride) - 1) * stride + dilation * (kernel - 1) + 1 - size)
        sides = [lacking // 2, lacking - lacking // 2, *sides]
    padded = F.pad(image, sides).unsqueeze(0)
    return F.unfold(padded, module.kernel_size, module.dilation, 0, module.stride)[0]


# ----------------------------------------------------------------------------------------------------
# Both, by their names.

FORMULAS = {
    "exact": FactorFormula(MOMENTS, lambda module, statistics, splits, own: Factors.of(statistics, own)),
    "mindspore-gpu": FactorFormula(
        {nn.Linear: MOMENTS[nn.Linear], nn.Conv2d: MomentMethod(sum_of_images, sum_of_gradients)},
        factors_on_gpus,
        refused={nn.Embedding: "since MindSpore squares a triangular factor in place of inverting its G"},
        uses_once=True,
        averages_inverses=True,
        clips_tensors=True,
    ),
}
